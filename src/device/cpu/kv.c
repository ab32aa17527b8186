/* The layout of KV in pages. Within a page of one head of one layer:
 *
 *   K  (k_dim, page_tokens): transposed, so that a vector of keys is one load in the scores
 *   V  (page_tokens, v_dim)
 *
 * Q8_0 keeps a scale for 32 dimensions of a token as F16, behind the int8 values of the same plane:
 *   K  (k_dim, page_tokens) int8, (k_dim / 32, page_tokens) F16;  V likewise, (page_tokens, v_dim / 32)
 *
 * Pages of type F16 hold integers of 16 bits, unless the device is to be exact or V is part of K: products of
 * pairs of them are twice as fast as those of floats, their sums are exact, and they keep more of a key than
 * halves do (doc/accuracy.md). Two dimensions of a key, or two tokens' values, are adjacent; each token has a
 * float scale:
 *   K  (k_dim / 2, page_tokens, 2) int16, (page_tokens) F32
 *   V  (page_tokens / 2, attn_v_cols, 2) int16, (page_tokens) F32 */
#include "device/cpu/cpu.h"

#include "codec/dtype.h"
#include "codec/half.h"
#include "base/size.h"

#include <math.h>
#include <string.h>

enum { KV_DIM_MOST = 1024 };

/* Bytes of `tokens` vectors of `dim`; 0: this type does not keep them. */
static size_t kv_plane(uint32_t type, uint32_t dim, uint32_t tokens)
{
    size_t n = (size_t)dim * tokens;
    switch (type) {
    case DTYPE_F32:
        return n * 4;
    case DTYPE_F16:
    case DTYPE_BF16:
        return n * 2;
    case DTYPE_Q8_0:
        return dim % Q8_BLOCK ? 0 : n + n / Q8_BLOCK * 2;
    default:
        return 0;
    }
}

bool kv_layout(struct kv_pool *g, const struct kv_group *shape, const struct kv_config *c, bool exact)
{
    size_t k = kv_plane(c->type, shape->k_dim, c->page_tokens),
           v = kv_plane(c->type, shape->v_dim, c->page_tokens);
    if (!k || (shape->v_dim && !v) || shape->k_dim > KV_DIM_MOST || shape->v_dim > KV_DIM_MOST)
        return false;
    g->shape = *shape;
    g->ints = c->type == DTYPE_F16 && shape->v_dim && !exact;
    if (g->ints) {
        g->k_scale = kv_plane(c->type, shape->k_dim + shape->k_dim % 2, c->page_tokens);
        g->v_scale = kv_plane(c->type, attn_v_cols(shape->v_dim), c->page_tokens);
        k = g->k_scale + c->page_tokens * sizeof(float);
        v = g->v_scale + c->page_tokens * sizeof(float);
    }
    g->v_at = (k + 63) & ~(size_t)63;
    g->head_page = (g->v_at + v + 63) & ~(size_t)63;
    return size_mul(g->head_page, shape->kv_heads, &g->page_bytes) &&
           size_mul(g->page_bytes, shape->layers, &g->page_bytes);
}

uint8_t *kv_page(const struct kv_pool *g, uint32_t layer, uint32_t head, uint32_t page)
{
    return g->base + (((size_t)layer * g->shape.kv_heads + head) * g->pages + page) * g->head_page;
}

/* ---- one token in ---- */

/* n values 32 by 32 as int8 and a scale. */
static void kv_round(const float *x, uint32_t n, int8_t *q, uint16_t *scale)
{
    for (uint32_t b = 0; b < n / Q8_BLOCK; b++) {
        float most = 0;
        for (uint32_t i = 0; i < Q8_BLOCK; i++)
            most = fmaxf(most, fabsf(x[b * Q8_BLOCK + i]));
        scale[b] = fp16_from_f32(most / 127.0f);
        float d = fp16_to_f32(scale[b]), inverse = d > 0 ? 1.0f / d : 0;
        for (uint32_t i = b * Q8_BLOCK; i < (b + 1) * Q8_BLOCK; i++)
            q[i] = (int8_t)nearbyintf(fminf(fmaxf(x[i] * inverse, -127.0f), 127.0f));
    }
}

static void kv_halves(const struct cpu *d, const float *x, uint32_t n, uint16_t *y)
{
    if (d->kv.type == DTYPE_F16)
        d->k->to_f16(x, n, y);
    else
        for (uint32_t i = 0; i < n; i++)
            y[i] = bf16_from_f32(x[i]);
}

static void kv_put_k_int(const struct cpu *d, const struct kv_pool *g, uint8_t *page, uint32_t slot,
                         const float *k)
{
    uint32_t n = g->shape.k_dim, tokens = d->kv.page_tokens;
    int16_t q[KV_DIM_MOST + 1], *to = (int16_t *)(void *)page + 2 * slot;
    q[n] = 0;
    ((float *)(void *)(page + g->k_scale))[slot] = d->k->round_i16(k, n, true, q);
    for (uint32_t i = 0; i < n; i += 2)
        memcpy(to + i * tokens, q + i, 2 * sizeof *q);
}

static void kv_put_v_int(const struct cpu *d, const struct kv_pool *g, uint8_t *plane, uint32_t slot,
                         const float *v)
{
    uint32_t n = g->shape.v_dim;
    int16_t q[KV_DIM_MOST], *to = (int16_t *)(void *)plane + slot / 2 * 2 * attn_v_cols(n) + slot % 2;
    ((float *)(void *)(plane + g->v_scale))[slot] = d->k->round_i16(v, n, false, q);
    for (uint32_t i = 0; i < n; i++)
        to[2 * i] = q[i];
}

void kv_put_k(const struct cpu *d, const struct kv_pool *g, uint8_t *page, uint32_t slot, const float *k)
{
    uint32_t n = g->shape.k_dim, tokens = d->kv.page_tokens;
    if (g->ints) {
        kv_put_k_int(d, g, page, slot, k);
    } else if (d->kv.type == DTYPE_F32) {
        float *to = (float *)(void *)page + slot;
        for (uint32_t i = 0; i < n; i++)
            to[i * tokens] = k[i];
    } else if (d->kv.type == DTYPE_Q8_0) {
        int8_t q[KV_DIM_MOST], *to = (int8_t *)page + slot;
        uint16_t scale[KV_DIM_MOST / Q8_BLOCK], *at = (uint16_t *)(void *)(page + n * tokens) + slot;
        kv_round(k, n, q, scale);
        for (uint32_t i = 0; i < n; i++)
            to[i * tokens] = q[i];
        for (uint32_t i = 0; i < n / Q8_BLOCK; i++)
            at[i * tokens] = scale[i];
    } else {
        uint16_t half[KV_DIM_MOST], *to = (uint16_t *)(void *)page + slot;
        kv_halves(d, k, n, half);
        for (uint32_t i = 0; i < n; i++)
            to[i * tokens] = half[i];
    }
}

void kv_put_v(const struct cpu *d, const struct kv_pool *g, uint8_t *page, uint32_t slot, const float *v)
{
    uint32_t n = g->shape.v_dim, tokens = d->kv.page_tokens;
    uint8_t *at = page + g->v_at;
    if (g->ints)
        kv_put_v_int(d, g, at, slot, v);
    else if (d->kv.type == DTYPE_F32)
        memcpy(at + (size_t)slot * n * sizeof *v, v, n * sizeof *v);
    else if (d->kv.type == DTYPE_Q8_0)
        kv_round(v, n, (int8_t *)at + slot * n,
                 (uint16_t *)(void *)(at + n * tokens) + slot * (n / Q8_BLOCK));
    else
        kv_halves(d, v, n, (uint16_t *)(void *)at + (size_t)slot * n);
}

/* ---- a page out ---- */

static void kv_from_bf16(const uint16_t *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = bf16_to_f32(x[i]);
}

static void kv_get_k_q8(const uint8_t *page, uint32_t n, uint32_t tokens, float *k)
{
    const int8_t *q = (const int8_t *)page;
    const uint16_t *scale = (const uint16_t *)(const void *)(page + n * tokens);
    float d[ATTN_KEYS];
    for (uint32_t i = 0; i < n; i++, q += tokens, k += ATTN_KEYS) {
        for (uint32_t t = 0; i % Q8_BLOCK == 0 && t < tokens; t++)
            d[t] = fp16_to_f32(scale[i / Q8_BLOCK * tokens + t]);
        for (uint32_t t = 0; t < tokens; t++)
            k[t] = (float)q[t] * d[t];
    }
}

void kv_get_k(const struct cpu *d, const struct kv_pool *g, const uint8_t *page, float *k)
{
    uint32_t n = g->shape.k_dim, tokens = d->kv.page_tokens;
    const uint16_t *half = (const uint16_t *)(const void *)page;
    if (d->kv.type == DTYPE_F16)
        d->k->panel_f16(half, tokens, n, tokens, k, ATTN_KEYS);
    else if (d->kv.type == DTYPE_Q8_0)
        kv_get_k_q8(page, n, tokens, k);
    else if (d->kv.type == DTYPE_BF16)
        for (uint32_t i = 0; i < n; i++)
            kv_from_bf16(half + i * tokens, tokens, k + i * ATTN_KEYS);
    else
        for (uint32_t i = 0; i < n; i++)
            memcpy(k + i * ATTN_KEYS, page + i * tokens * sizeof *k, tokens * sizeof *k);
}

void kv_get_v(const struct cpu *d, const struct kv_pool *g, const uint8_t *page, uint32_t n, float *v)
{
    uint32_t dim = g->shape.v_dim, count = n * dim;
    const uint8_t *at = page + g->v_at;
    const uint16_t *half = (const uint16_t *)(const void *)at;
    const uint16_t *scale = (const uint16_t *)(const void *)(at + dim * d->kv.page_tokens);
    if (d->kv.type == DTYPE_F32)
        memcpy(v, at, count * sizeof *v);
    else if (d->kv.type == DTYPE_F16)
        d->k->from_f16(half, count, v);
    else if (d->kv.type == DTYPE_BF16)
        kv_from_bf16(half, count, v);
    else
        for (uint32_t b = 0; b < count / Q8_BLOCK; b++) {
            float s = fp16_to_f32(scale[b]);
            for (uint32_t i = b * Q8_BLOCK; i < (b + 1) * Q8_BLOCK; i++)
                v[i] = (float)(int8_t)at[i] * s;
        }
}

void kv_point(const struct kv_pool *g, const uint8_t *page, uint32_t at, struct attn_pages *to)
{
    const uint8_t *v = page + g->v_at;
    size_t scale = to->tokens * sizeof(float);
    to->k[at] = (const int16_t *)(const void *)page;
    to->v[at] = (const int16_t *)(const void *)v;
    memcpy(to->k_scale + at * to->tokens, page + g->k_scale, scale);
    memcpy(to->v_scale + at * to->tokens, v + g->v_scale, scale);
}
