#include "quant/quantize.h"

#include "base/log.h"
#include "base/pool.h"
#include "format/gguf_write.h"
#include "lang/token/regex.h"
#include "model/arch.h"
#include "quant/gguf_keys.h"
#include "quant/gguf_tensors.h"
#include "quant/gguf_tower.h"

#include <stdio.h>
#include <string.h>

enum { QUANTIZATION_VERSION = 2 };

struct quantize {
    const struct quantize_options *o;
    struct gguf_tensors outs;
    struct model *model;         /* described; NULL for a GGUF and for a tower */
    struct vision_params vision; /* of a tower */
    char arch[64];               /* as written */
    struct gguf_writer w;
    struct matrix_out *items; /* (item_count): the parts of all tensors */
    struct quantize_item {
        uint32_t tensor;
        size_t at; /* where the part begins in its tensor */
    } * of;
    uint32_t item_count;
};

/* ---- types ---- */

/* A number that the file has once, or for each layer: then the first one. */
static int read_fact(const struct gguf *g, const char *arch, const char *key, uint32_t *out, struct err *e)
{
    char name[160];
    uint64_t v = 0;
    snprintf(name, sizeof name, "%s.%s", arch, key);
    const struct gguf_key *k = gguf_find(g, name);
    if (k && k->type == GGUF_ARRAY)
        v = k->count && gguf_is_integer(k->item) ? (uint64_t)gguf_item_i64(k, 0) : 0;
    else if (gguf_get_u64(g, name, 0, UINT32_MAX, &v, e) < 0)
        return -1;
    *out = (uint32_t)v;
    return 0;
}

/* The recipe's inputs. A file of an unsupported architecture can be quantised, too. */
static int model_facts(struct quantize *q, const struct store *s, struct recipe_model *m, struct err *e)
{
    *m = (struct recipe_model){.arch = q->arch, .importance = q->o->imatrix != NULL};
    if (q->model) {
        const struct hparams *h = &q->model->h;
        snprintf(q->arch, sizeof q->arch, "%s", h->arch->written ? h->arch->written : h->arch->name);
        m->layers = h->layers, m->heads = h->heads, m->experts = h->experts;
        m->kv_heads = h->layer[0].kv_heads;
        return 0;
    }
    if (q->o->tower) {
        snprintf(q->arch, sizeof q->arch, "clip");
        m->layers = q->vision.used_layers, m->heads = q->vision.heads, m->kv_heads = q->vision.kv_heads;
        return 0;
    }
    struct gguf_str arch = {"", 0};
    if (gguf_get_str(s->gguf, "general.architecture", &arch, e) < 0)
        return -1;
    snprintf(q->arch, sizeof q->arch, "%.*s", (int)(arch.n < 63 ? arch.n : 63), arch.s);
    if (read_fact(s->gguf, q->arch, "block_count", &m->layers, e) ||
        read_fact(s->gguf, q->arch, "attention.head_count", &m->heads, e) ||
        read_fact(s->gguf, q->arch, "attention.head_count_kv", &m->kv_heads, e) ||
        read_fact(s->gguf, q->arch, "expert_count", &m->experts, e))
        return -1;
    m->kv_heads = m->kv_heads ? m->kv_heads : m->heads;
    return 0;
}

/* The first pattern that is in the name decides. */
static int override_types(const struct quantize *q, struct err *e)
{
    const struct quantize_options *o = q->o;
    struct regex_run *run = regex_run_open();
    int failed = run ? 0 : err_memory(e, "a pattern", 0);
    uint8_t *done = mem_zalloc(q->outs.count + 1, 1);
    if (!done)
        failed = err_memory(e, "the list of tensors", q->outs.count);
    for (size_t k = 0; k < o->override_count && !failed; k++) {
        struct regex *r = NULL;
        size_t hits = 0, at[2];
        failed = regex_open(&r, o->overrides[k].pattern, strlen(o->overrides[k].pattern), e);
        for (size_t i = 0; i < q->outs.count && !failed; i++) {
            struct out *t = &q->outs.all[i];
            struct recipe_tensor about = {.name = t->name, .dims = t->dims};
            int got =
                done[i] || !recipe_takes(&about) ? 0 : regex_find(r, run, t->name, strlen(t->name), 0, at, e);
            failed = got < 0 ? -1 : 0;
            if (got != 1)
                continue;
            hits++;
            done[i] = 1;
            t->wanted = o->overrides[k].type;
            t->type = recipe_fits(t->wanted, t->shape[0]);
        }
        if (!failed && !hits)
            log_warn("no tensor has '%s' in its name", log_safe(o->overrides[k].pattern));
        regex_close(r);
    }
    mem_free(done);
    regex_run_close(run);
    return failed;
}

static int choose_types(struct quantize *q, const struct store *s, struct err *e)
{
    struct recipe_model m;
    struct recipe_tensor *t = mem_alloc(q->outs.count + 1, sizeof *t);
    if (!t)
        return err_memory(e, "the list of tensors", q->outs.count * sizeof *t);
    int failed = model_facts(q, s, &m, e);
    for (size_t i = 0; i < q->outs.count; i++) {
        const struct out *x = &q->outs.all[i];
        t[i] = (struct recipe_tensor){.name = x->name, .dims = x->dims, .cols = x->shape[0], .kept = x->kept};
    }
    if (!failed)
        recipe_choose(q->o->recipe, &m, t, q->outs.count, q->o->pure || q->o->tower);
    for (size_t i = 0; i < q->outs.count; i++) {
        struct out *x = &q->outs.all[i];
        x->type = x->fixed ? x->kept : t[i].type;
        x->wanted = x->fixed ? x->kept : t[i].wanted;
    }
    mem_free(t);
    return failed || (q->o->override_count && override_types(q, e)) ? -1 : 0;
}

/* ---- the file ---- */

static void put_imatrix_keys(struct quantize *q)
{
    const struct imatrix *m = q->o->imatrix;
    if (!m)
        return;
    if (q->o->imatrix_file)
        gguf_put_str(&q->w, "quantize.imatrix.file", q->o->imatrix_file, strlen(q->o->imatrix_file));
    if (m->dataset)
        gguf_put_str(&q->w, "quantize.imatrix.dataset", m->dataset, strlen(m->dataset));
    gguf_put_u32(&q->w, "quantize.imatrix.entries_count", (uint32_t)m->count);
    gguf_put_u32(&q->w, "quantize.imatrix.chunks_count", m->chunks);
}

/* Keys and tensors; the first value of a key stays. */
static int declare(struct quantize *q, const struct store *s, struct err *e)
{
    gguf_put_u32(&q->w, "general.file_type", q->o->recipe->file_type);
    gguf_put_u32(&q->w, "general.quantization_version", QUANTIZATION_VERSION);
    put_imatrix_keys(q);
    if (s->kind == STORE_GGUF)
        keys_from_gguf(&q->w, s->gguf);
    else if (q->o->tower ? gguf_tower_keys(&q->w, s, &q->vision, e) : keys_from_model(&q->w, q->model, e))
        return -1;
    for (size_t i = 0; i < q->outs.count; i++) {
        const struct out *t = &q->outs.all[i];
        if (gguf_add_tensor(&q->w, t->name, t->type, t->dims, t->shape, e))
            return -1;
    }
    return 0;
}

static int list_items(struct quantize *q, struct err *e)
{
    size_t room = 3 * q->outs.count + 1;
    q->items = mem_alloc(room, sizeof *q->items);
    q->of = mem_alloc(room, sizeof *q->of);
    if (!q->items || !q->of)
        return err_memory(e, "the list of tensors", room * sizeof *q->items);
    for (size_t i = 0; i < q->outs.count; i++) {
        struct out *t = &q->outs.all[i];
        size_t at = 0, row, all;
        for (uint32_t p = 0; p < t->parts; p++) {
            struct matrix_out *x = &q->items[q->item_count];
            *x = (struct matrix_out){.m = &t->part[p], .type = t->type};
            if (!matrix_bytes(x->m, t->type, &row, &all))
                return err_set(e, ERR_DATA, "tensor %s cannot be made %s", log_safe(t->name),
                               dtype_get(t->type)->name);
            if (x->m->type != t->type && (!dtype_get(x->m->type)->decode || !dtype_get(t->type)->encode))
                return err_set(e, ERR_DATA, "tensor %s is %s, which cannot be made %s", log_safe(t->name),
                               dtype_get(x->m->type)->name, dtype_get(t->type)->name);
            struct importance known = {0};
            if (q->o->imatrix && x->m->type != t->type && dtype_get(t->type)->block_values > 1 &&
                imatrix_importance(q->o->imatrix, t->name, x->m->cols, x->m->count, &known, e))
                return -1;
            x->importance = known.mean;
            x->importances = known.rows;
            q->of[q->item_count++] = (struct quantize_item){(uint32_t)i, at};
            at += all;
        }
    }
    return 0;
}

static int put_piece(void *arg, uint32_t item, size_t at, const uint8_t *bytes, size_t n, struct err *e)
{
    struct quantize *q = arg;
    if (q->o->cancel && *q->o->cancel)
        return err_set(e, ERR_INTERRUPTED, "interrupted");
    return gguf_put_data(&q->w, q->of[item].tensor, q->of[item].at + at, bytes, n, e);
}

static void show(void *arg, double share)
{
    const struct quantize *q = arg;
    if (q->o->progress)
        q->o->progress(q->o->arg, share);
}

static void count_up(const struct quantize *q, struct quantize_result *r)
{
    *r = (struct quantize_result){.tensors = q->outs.count, .files = q->w.file_count};
    for (size_t i = 0; i < q->outs.count; i++) {
        const struct out *t = &q->outs.all[i];
        r->types[t->type]++;
        recipe_add_instead(&r->instead, t->wanted, t->type, t->shape[0]);
        r->after += q->w.tensors[i].bytes;
        for (uint32_t p = 0; p < t->parts; p++) {
            size_t row, all = 0;
            if (matrix_bytes(&t->part[p], t->part[p].type, &row, &all))
                r->before += all;
            r->values += (uint64_t)t->part[p].rows * t->part[p].cols * t->part[p].count;
        }
    }
    for (uint32_t i = 0; i < q->w.file_count; i++)
        r->file_bytes += q->w.files[i].size;
}

/* Warns of avoidable loss of accuracy. */
static void warn_blocks(const struct quantize *q)
{
    size_t again = 0;
    for (uint32_t i = 0; i < q->item_count; i++) {
        uint32_t from = q->items[i].m->type, to = q->items[i].type;
        again += from != to && dtype_get(from)->block_values > 1 && dtype_get(to)->block_values > 1;
    }
    if (again)
        log_warn("%zu tensors are quantised already and will be so again: the original, where there is one, "
                 "gives a "
                 "better file",
                 again);
}

/* And of types that rows are too short for. */
static void warn_instead(const struct quantize *q)
{
    struct recipe_instead instead = {0};
    struct buf text = {0};
    for (size_t i = 0; i < q->outs.count; i++)
        recipe_add_instead(&instead, q->outs.all[i].wanted, q->outs.all[i].type, q->outs.all[i].shape[0]);
    recipe_write_instead(&instead, &text);
    if (text.len && !text.failed)
        log_warn("%s cannot be used for all tensors: %s", q->o->recipe->name, text.data);
    buf_free(&text);
}

static int write_file(struct quantize *q, const struct store *s, const char *out, struct quantize_result *r,
                      struct err *e)
{
    struct matrix_sink sink = {.put = put_piece, .progress = show, .arg = q};
    q->w.allow = q->o->allow;
    q->w.allow_arg = q->o->allow_arg;
    if (gguf_begin(&q->w, out, q->o->tower ? 0 : q->o->split, e) ||
        (q->o->tower && gguf_tower_check(q->w.files[0].temporary, &q->vision, e)))
        return -1;
    struct pool *p = pool_open(q->o->threads, false, e);
    if (!p)
        return -1;
    int failed = matrix_stream(p, q->items, q->item_count, &sink, e);
    pool_close(p);
    count_up(q, r);
    return failed || store_check(s, e) ? -1 : gguf_commit(&q->w, e);
}

int quantize_run(const struct store *s, const char *out, const struct quantize_options *o,
                 struct quantize_result *r, struct err *e)
{
    struct quantize q = {.o = o};
    int failed;
    if (s->kind == STORE_GGUF)
        failed = gguf_tensors_from_gguf(&q.outs, s, e);
    else if (o->tower)
        failed = vision_read(&q.vision, s, e) || gguf_tower_tensors(&q.outs, s, &q.vision, o->recipe, e);
    else
        failed = model_open(&q.model, s, &(struct model_options){.describe = true}, e) ||
                 gguf_tensors_from_model(&q.outs, q.model, e);
    failed = failed || choose_types(&q, s, e) || list_items(&q, e) || declare(&q, s, e);
    if (!failed) {
        warn_blocks(&q);
        warn_instead(&q);
        failed = write_file(&q, s, out, r, e);
    }
    gguf_writer_close(&q.w);
    gguf_tensors_free(&q.outs);
    model_close(q.model);
    mem_free(q.items);
    mem_free(q.of);
    return failed ? -1 : 0;
}
