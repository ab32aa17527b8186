#define _GNU_SOURCE
#include "run/loaded.h"

#include "base/dtype.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/defaults.h"
#include "run/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double loaded_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The context where nobody says. Where the rotary scaling depends on it, the length that the model was
 * made with before it was stretched: short texts are read best so. */
static uint32_t loaded_context(const struct hparams *h)
{
    const struct rope_params *r = &h->rope[0];
    uint32_t ctx = h->context && h->context < LOADED_CTX ? h->context : LOADED_CTX;
    bool depends = r->scaling == SCALING_LONGROPE || r->scaling == SCALING_DYNAMIC;
    return depends && r->original && r->original < ctx ? r->original : ctx;
}

/* Makes the final rows the result, in place of logits. */
static void loaded_hide_head(struct model *m)
{
    for (uint32_t i = 0; i < m->plan.count; i++)
        if (m->plan.ops[i].kind == OP_LOGITS)
            m->plan.ops[i].logits.head = (struct linear){0};
    m->plan.out_width = m->h.width;
}

static int loaded_model(struct loaded *l, uint32_t *ctx, bool hidden, struct err *e)
{
    if (!*ctx) {
        struct hparams h;
        if (hparams_read(&h, l->store, e))
            return -1;
        *ctx = loaded_context(&h);
        hparams_free(&h);
    }
    if (model_open(&l->model, l->store, &(struct model_options){.ctx = *ctx}, e))
        return -1;
    if (hidden)
        loaded_hide_head(l->model);
    return 0;
}

/* Refuses what can never fit, with both figures. */
static int loaded_fits(struct loaded *l, const struct runner_options *r, struct err *e)
{
    struct memory m;
    memory_read(&m);
    uint32_t type = r->device_options.exact ? DTYPE_F32 : r->kv_type;
    l->kv_bytes = runner_kv_bytes(&l->model->plan, type);
    double kv = (double)l->kv_bytes * r->ctx * (r->seqs ? r->seqs : 1);
    double weights = (double)l->store->bytes + (double)l->model->converted;
    bool on_cpu = !r->device || !strcmp(r->device, "cpu");
    if (m.total && on_cpu && weights + kv > (double)m.total)
        return err_set(
            e, ERR_RESOURCE,
            "the model needs %.2f GB (weights %.2f, a context of %u tokens %.2f) and there are %.2f GB of "
            "memory; a smaller model, or --ctx, helps",
            1e-9 * (weights + kv), 1e-9 * weights, r->ctx, 1e-9 * kv, 1e-9 * (double)m.total);
    return 0;
}

static int loaded_text(struct loaded *l, const char *chat_template, struct err *e)
{
    if (tokenizer_open(&l->tokenizer, l->store, e))
        return -1;
    if (chat_open(&l->chat, l->store, chat_template, &l->chat_why))
        l->chat = NULL;
    /* a template that was asked for has to work; the model's own may be missing until it is needed */
    if (!l->chat && chat_template) {
        *e = l->chat_why;
        return -1;
    }
    return 0;
}

int loaded_open(struct loaded **out, struct store *store, const struct loaded_options *o, struct err *e)
{
    double start = loaded_clock();
    struct runner_options r = o->runner;
    struct loaded *l = mem_zalloc(1, sizeof *l);
    *out = NULL;
    if (!l) {
        store_close(store);
        return err_memory(e, "the model", sizeof *l);
    }
    l->store = store;
    if (loaded_model(l, &r.ctx, o->hidden, e) || loaded_fits(l, &r, e) ||
        (!o->no_text && loaded_text(l, o->chat_template, e)) ||
        runner_open(&l->runner, &l->model->plan, &l->model->weights, &r, e) ||
        defaults_stops(store, l->model->h.vocab, &l->stop_ids, &l->stops, e)) {
        loaded_close(l);
        return -1;
    }
    sampler_defaults(&l->defaults);
    defaults_sampling(store, &l->defaults);
    if (o->lock && mlockall(MCL_CURRENT))
        log_warn("the model cannot be kept in memory (--mlock): %s; 'ulimit -l' says how much may be locked",
                 strerror(errno));
    l->seconds = loaded_clock() - start;
    *out = l;
    return 0;
}

void loaded_close(struct loaded *l)
{
    if (!l)
        return;
    runner_close(l->runner);
    chat_close(l->chat);
    tokenizer_close(l->tokenizer);
    model_close(l->model);
    store_close(l->store);
    mem_free(l->stop_ids);
    mem_free(l);
}
