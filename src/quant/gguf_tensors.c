#include "quant/gguf_tensors.h"

#include "codec/dtype.h"
#include "base/log.h"
#include "model/arch.h"
#include "model/bind.h"
#include "model/rope.h"
#include "quant/gguf_hybrid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    const struct out *x = a, *y = b;
    return recipe_before(x->name, y->name);
}

void gguf_tensors_sort(struct gguf_tensors *o)
{
    qsort(o->all, o->count, sizeof *o->all, by_name);
}

struct out *gguf_tensors_add(struct gguf_tensors *o, const char *name, struct err *e)
{
    struct out *more = mem_more(o->all, o->count, &o->room, sizeof *more);
    if (!more) {
        err_memory(e, "the list of tensors", (o->count + 1) * sizeof *more);
        return NULL;
    }
    o->all = more;
    struct out *t = &o->all[o->count];
    *t = (struct out){.dims = 1, .shape = {1, 1, 1, 1}, .kept = DTYPE_F32};
    t->name = arena_strndup(&o->arena, name, strlen(name));
    if (!t->name || names_add(&o->index, t->name, (uint32_t)o->count) < 0) {
        err_memory(e, "a name", strlen(name));
        return NULL;
    }
    o->count++;
    return t;
}

void gguf_tensors_count_dims(struct out *t)
{
    t->dims = 1;
    for (uint32_t i = 1; i < 4; i++)
        if (t->shape[i] > 1)
            t->dims = i + 1;
}

int gguf_tensors_from_gguf(struct gguf_tensors *o, const struct store *s, struct err *e)
{
    for (size_t i = 0; i < s->count; i++) {
        const struct tensor *from = &s->tensors[i];
        struct out *t = gguf_tensors_add(o, from->name, e);
        if (!t)
            return -1;
        memcpy(t->shape, from->shape, sizeof t->shape);
        gguf_tensors_count_dims(t);
        t->kept = from->type;
        t->parts = 1;
        if (!matrix_of(&t->part[0], from))
            return err_set(e, ERR_DATA, "tensor %s is too large, or its rows are no whole blocks",
                           log_safe(from->name));
    }
    gguf_tensors_sort(o);
    return 0;
}

bool gguf_tensors_name(const struct bound *b, char name[128])
{
    char layer[24] = "";
    const char *base = b->name;
    if (!base)
        return false;
    if (b->layer >= 0)
        snprintf(layer, sizeof layer, "blk.%d.", b->layer);
    /* fused there as here; only gate and up of one tensor have the name of one of them */
    if (b->whole && !strcmp(b->whole, "attn_qkv"))
        base = b->whole;
    else if (b->whole && !strcmp(b->whole, "ffn_gate_up"))
        base = "ffn_up";
    snprintf(name, 128, "%s%s%s", layer, base, b->suffix);
    return true;
}

/* Vectors are (1, n) here and (n) there; a norm with a row for each head is (heads, size of a head) there. */
static void shape_of(const struct hparams *h, const struct bound *b, const struct matrix *m, struct out *t)
{
    bool head_norm = !strcmp(b->name, "attn_q_norm") || !strcmp(b->name, "attn_k_norm");
    t->shape[0] = m->cols;
    t->shape[1] += t->parts ? m->rows : m->rows - 1;
    t->shape[2] = m->count;
    if (m->rows == 1 && m->count > 1 && !strcmp(b->suffix, ".bias")) {
        t->shape[1] = m->count;
        t->shape[2] = 1;
    }
    if (head_norm && m->cols > h->k_dim && !h->arch->qk_norm_row) {
        t->shape[0] = h->k_dim;
        t->shape[1] = m->cols / h->k_dim;
    }
    gguf_hybrid_shape(h, b->name, t->shape);
    gguf_tensors_count_dims(t);
}

/* What GGUF holds otherwise than the folder does. */
static void turn_to_gguf(const struct hparams *h, const struct bound *b, struct matrix *m)
{
    bool pairs = h->rope_kind == ROPE_HALVES && h->arch->gguf_rope == ROPE_PAIRS;
    if (pairs && (!strcmp(b->name, "attn_q") || !strcmp(b->name, "attn_k"))) {
        if (!strcmp(b->suffix, ".bias")) { /* a row for each number */
            m->rows = m->run = m->cols;
            m->cols = 1;
            m->row_bytes = sizeof(float);
        }
        m->pairs = h->k_dim;
    }
    gguf_tile_values(h, b, m);
    if (!strcmp(b->name, "position_embd")) { /* GGUF has cut off the rows that no position has */
        m->skip += h->position_offset;
        m->rows -= h->position_offset;
        m->run = m->rows;
    }
}

/* Slices in turn of a tensor that GGUF has as it is: all of it. */
static bool take_whole(const struct bound *b, struct matrix *m)
{
    bool same = b->whole && !strcmp(b->whole, b->name) && m->run < m->rows;
    if (same) {
        m->rows = m->rows / m->run * m->stride;
        m->run = m->rows;
        m->first = 0;
    }
    return same;
}

static int add_bound(struct gguf_tensors *o, const struct model *model, const struct bound *b, struct err *e)
{
    char name[128];
    struct matrix m = b->m;
    if (!gguf_tensors_name(b, name))
        return 0;
    int64_t there = names_find(&o->index, name);
    struct out *t = there < 0 ? NULL : &o->all[there];
    if (t && (!b->whole || t->parts == OUT_PARTS || t->complete)) /* bound twice: the same tensor */
        return 0;
    if (!t && !(t = gguf_tensors_add(o, name, e)))
        return -1;
    const float gain = gguf_gain(&model->h, b, t->parts);
    if (b->whole && t->parts && !strcmp(b->suffix, ".bias")) { /* a longer vector */
        t->shape[0] += m.cols;
        m.gain = gain != 0 ? gain : m.gain;
        t->part[t->parts++] = m;
        return 0;
    }
    t->complete = take_whole(b, &m);
    shape_of(&model->h, b, &m, t);
    turn_to_gguf(&model->h, b, &m);
    m.gain = gain != 0 ? gain : m.gain;
    t->shape[1] -= !strcmp(b->name, "position_embd") ? model->h.position_offset : 0;
    t->part[t->parts++] = m;
    return 0;
}

int gguf_tensors_add_vector(struct gguf_tensors *o, const char *name, const float *data, uint32_t n,
                            struct err *e)
{
    struct out *t = gguf_tensors_add(o, name, e);
    if (!t)
        return -1;
    t->shape[0] = n;
    t->parts = 1;
    t->part[0] =
        (struct matrix){.name = t->name, .type = DTYPE_F32, .rows = 1, .cols = n, .count = 1, .run = 1};
    t->part[0].data = (const uint8_t *)data;
    t->part[0].row_bytes = t->part[0].each_bytes = n * sizeof *data;
    return 0;
}

/* Pairs that do not rotate have a divisor without end. */
static int add_proportional(struct gguf_tensors *o, const struct rope_params *r, struct err *e)
{
    const uint32_t half = r->dims / 2, turn = (uint32_t)((float)half * r->partial);
    float *divisor = arena_alloc(&o->arena, half ? half : 1, sizeof *divisor);
    if (!divisor)
        return err_memory(e, "rope factors", half * sizeof *divisor);
    for (uint32_t i = 0; i < half; i++)
        divisor[i] = i >= turn ? 1e30f : r->factor > 0 ? r->factor : 1;
    return gguf_tensors_add_vector(o, "rope_freqs.weight", divisor, half, e);
}

/* Scalings that GGUF keeps as divisors of the frequencies. */
static int add_rope(struct gguf_tensors *o, const struct hparams *h, struct err *e)
{
    const struct rope_params *r = &h->rope[0];
    uint32_t half = h->rope_dims / 2;
    if (r->scaling == SCALING_LONGROPE)
        return gguf_tensors_add_vector(o, "rope_factors_short.weight", r->short_factor, r->factors, e) ||
                       gguf_tensors_add_vector(o, "rope_factors_long.weight", r->long_factor, r->factors, e)
                   ? -1
                   : 0;
    if (r->scaling == SCALING_PROPORTIONAL)
        return add_proportional(o, r, e);
    if (r->scaling != SCALING_LLAMA3 || !half)
        return 0;
    float *freqs = arena_alloc(&o->arena, half, sizeof *freqs), factor;
    if (!freqs)
        return err_memory(e, "rope factors", half * sizeof *freqs);
    if (rope_table(h, r, h->rope_dims, h->context, &(struct rope_divisors){0}, freqs, &factor, e) < 0)
        return -1;
    for (uint32_t i = 0; i < half; i++)
        freqs[i] = (float)pow(r->theta, -2.0 * i / h->rope_dims) / freqs[i];
    return gguf_tensors_add_vector(o, "rope_freqs.weight", freqs, half, e);
}

/* A head that is the embedding times another factor cannot be that tensor. */
static int add_head(struct gguf_tensors *o, const struct model *m, struct err *e)
{
    int64_t table = names_find(&o->index, "token_embd.weight");
    if (names_find(&o->index, "output.weight") >= 0 || table < 0 || o->all[table].part[0].gain == 0)
        return 0;
    struct out *t = gguf_tensors_add(o, "output.weight", e);
    if (!t)
        return -1;
    const char *name = t->name;
    *t = o->all[table];
    t->name = name;
    t->part[0].gain = m->h.logit_scale;
    return 0;
}

int gguf_tensors_from_model(struct gguf_tensors *o, const struct model *m, struct err *e)
{
    for (uint32_t i = 1; i < m->weights.count; i++)
        if (add_bound(o, m, &m->bound[i], e))
            return -1;
    if (add_rope(o, &m->h, e) || add_head(o, m, e))
        return -1;
    gguf_tensors_sort(o);
    return 0;
}

void gguf_tensors_free(struct gguf_tensors *o)
{
    mem_free(o->all);
    names_free(&o->index);
    arena_free(&o->arena);
    *o = (struct gguf_tensors){0};
}
