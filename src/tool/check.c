#include "tool/check.h"

#include "base/file.h"
#include "tool/load.h"
#include "tool/progress.h"

#include <stdio.h>
#include <string.h>

enum { CHECK_CTX = 512, CHECK_OUTS = 64 };

static void check_show(void *arg, uint32_t done, uint32_t of, double value)
{
    char note[32];
    snprintf(note, sizeof note, "%.4f", value);
    progress_show(arg, (double)done / of, note);
}

/* A model with one sequence, ready to be scored. */
struct scored {
    struct session *l;
    struct seq *s;
};

static int scored_open(struct scored *x, const char *model, const struct args *a, struct err *e)
{
    struct session_options o = {.runner = {.ctx = CHECK_CTX, .outs = CHECK_OUTS}};
    *x = (struct scored){0};
    if (load_model(&x->l, model, &o, a, e))
        return -1;
    x->s = load_predicts(x->l->model, x->l->store->path, e) ? NULL : load_seq(x->l, e);
    return x->s ? 0 : -1;
}

static void scored_close(struct scored *x)
{
    seq_close(x->s);
    session_close(x->l);
}

static int check_measure(struct check *c, const struct scored *m, const struct scored *against,
                         const char *path, const struct args *a, struct err *e)
{
    struct buf text = {0};
    struct ids ids = {0};
    struct progress bar;
    struct tokenizer *t = m->l->tokenizer;
    struct perplexity_options o = {
        .ctx = m->l->runner->ctx,
        .chunks = (uint32_t)args_int(a, "chunks", 0),
        .bos = tokenizer_adds_bos(t) ? tokenizer_id(t, TOK_BOS) : -1,
        .other = against->s,
        .progress = check_show,
        .arg = &bar,
    };
    int failed = file_read(path, &text, e) ||
                 tokenizer_encode(t, text.data ? text.data : "", text.len, TOK_ADD, &ids, e);
    if (!failed) {
        progress_start(&bar, "perplexity");
        failed = perplexity_run(m->s, ids.data, ids.len, &o, &c->p, e);
        progress_end(&bar);
    }
    c->ctx = o.ctx;
    c->done = !failed;
    buf_free(&text);
    ids_free(&ids);
    return failed ? -1 : 0;
}

int check_run(struct check *c, const char *model, const char *against, const char *text, const struct args *a,
              struct err *e)
{
    struct scored m = {0}, other = {0};
    if (args_int(a, "ctx", CHECK_CTX) < 4)
        return err_set(e, ERR_USAGE, "--ctx has to be at least 4 here");
    int failed = scored_open(&m, model, a, e) || (against && scored_open(&other, against, a, e)) ||
                 check_measure(c, &m, &other, text, a, e);
    scored_close(&m);
    scored_close(&other);
    return failed ? -1 : 0;
}

static void put_num(struct json *j, const char *key, double v)
{
    json_key(j, key);
    json_num(j, v);
}

void check_json(struct json *j, const struct check *c)
{
    const struct perplexity *p = &c->p;
    json_begin(j, '{');
    put_num(j, "perplexity", p->value);
    put_num(j, "error", p->error);
    json_key(j, "chunks");
    json_uint(j, p->chunks);
    json_key(j, "context");
    json_uint(j, c->ctx);
    json_key(j, "scored");
    json_uint(j, p->scored);
    if (p->against.each) {
        const struct divergence *d = &p->against;
        put_num(j, "against", d->other);
        put_num(j, "ratio", d->ratio);
        json_key(j, "kl");
        json_begin(j, '{');
        put_num(j, "mean", d->mean);
        put_num(j, "error", d->error);
        put_num(j, "median", d->median);
        put_num(j, "p99", d->p99);
        put_num(j, "max", d->most);
        json_end(j, '}');
        put_num(j, "same_top", d->same_top);
    }
    json_end(j, '}');
}

void check_text(struct buf *out, const struct check *c)
{
    const struct perplexity *p = &c->p;
    const struct divergence *d = &p->against;
    buf_printf(out, "perplexity %.4f +- %.4f over %u chunks of %u tokens (%llu scored)\n", p->value, p->error,
               p->chunks, c->ctx, (unsigned long long)p->scored);
    if (!d->each)
        return;
    buf_printf(out, "against %.4f: ratio %.5f\n", d->other, d->ratio);
    buf_printf(out, "KL divergence %.6f +- %.6f, median %.6f, 99%% below %.6f, at most %.6f\n", d->mean,
               d->error, d->median, d->p99, d->most);
    buf_printf(out, "same best token at %.2f%% of the positions\n", 100 * d->same_top);
}

void check_free(struct check *c)
{
    perplexity_free(&c->p);
}
