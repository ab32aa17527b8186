/* Layers of gemma4's towers whose products clip what goes in and what comes out. No operation has both, so that a product
 * is three: a clip, the product, a clip. */
#include "codec/dtype.h"
#include "model/vision/tower_build.h"

#include <math.h>
#include <string.h>

static const char *const ends[] = {".input_min", ".input_max", ".output_min", ".output_max"};

/* Infinite ones change nothing. */
bool tower_has_clips(const struct store *s)
{
    for (size_t i = 0; i < s->count; i++) {
        const struct tensor *t = &s->tensors[i];
        const char *end = strrchr(t->name, '.');
        const struct dtype_info *type = dtype_get(t->type);
        const bool tower = !strncmp(t->name, "v.", 2) || strstr(t->name, "vision_tower.");
        for (size_t k = 0; tower && end && t->values == 1 && k < sizeof ends / sizeof *ends; k++) {
            float limit = INFINITY;
            if (!strcmp(end, ends[k]) && type && type->decode && type->block_values == 1)
                type->decode(t->data, &limit, 1);
            if (isfinite(limit))
                return true;
        }
    }
    return false;
}

static float clip_limit(struct tower_build *b, struct tensor_at at, int which)
{
    const struct tensor *t = lookup_find(&b->bind.names, at, ends[which]);
    const float *x = t ? bind_floats(&b->bind, t, 1, 0) : NULL, none = which & 1 ? INFINITY : -INFINITY;
    return x && !isnan(*x) ? *x : none;
}

/* out = in, clipped; false where the file has no limits for it. first: 0 for what goes in, 2 for what comes out. */
static bool clip_rows(struct tower_build *b, struct tensor_at at, int first, struct operand in,
                      struct operand out, uint32_t width)
{
    const float least = clip_limit(b, at, first), most = clip_limit(b, at, first + 1);
    if (isinf(least) && isinf(most))
        return false;
    struct op_map *o = tower_map(b, (uint32_t)at.layer, in, out, width);
    o->clips = true;
    o->least = least;
    o->most = most;
    return true;
}

static void clip_product(struct tower_build *b, const char *name, uint32_t layer, struct operand in,
                         struct linear l, struct shape s, struct operand out)
{
    const struct tensor_at at = {name, (int)layer, LOOKUP_NO_EXPERT};
    const bool clipped = clip_rows(b, at, 0, in, b->c, s.cols);
    plan_add(b->p, OP_OUT, layer)->out =
        (struct op_out){.in = clipped ? b->c : in, .linear = l, .tail = {.scale = 1, .out = out}};
    clip_rows(b, at, 2, out, out, s.rows);
}

/* x += norm(y) */
static void clip_join(struct tower_build *b, uint32_t layer, const char *post)
{
    struct op_map *o = tower_map(b, layer, b->y, b->x, b->v->width);
    o->norm = tower_norm(b, post, (int)layer, b->v->width, b->v->eps);
    o->residual = b->x;
}

static void clip_attention(struct tower_build *b, uint32_t layer)
{
    const struct vision_params *v = b->v;
    const uint32_t n = v->heads * v->head_dim, kv = v->kv_heads * v->head_dim;
    const struct operand k = {b->h.buffer, n}, values = {b->h.buffer, n + kv};
    struct op_qkv qkv = {.in = b->n,
                         .given = b->h,
                         .rope = b->rope,
                         .heads = v->heads,
                         .kv_heads = v->kv_heads,
                         .k_dim = v->head_dim,
                         .v_dim = v->head_dim,
                         .out = b->q};
    tower_map(b, layer, b->x, b->n, v->width)->norm = tower_need_norm(b, "ln1", (int)layer, v->width);
    tower_heads(b, layer, &qkv);
    tower_head_norms(b, layer, &qkv);
    clip_product(b, "attn_q", layer, b->n, qkv.q, (struct shape){n, v->width, 1}, b->h);
    clip_product(b, "attn_k", layer, b->n, qkv.k, (struct shape){kv, v->width, 1}, k);
    clip_product(b, "attn_v", layer, b->n, qkv.v, (struct shape){kv, v->width, 1}, values);
    plan_add(b->p, OP_QKV, layer)->qkv = qkv;
    plan_add(b->p, OP_ATTN, layer)->attn = tower_attn(b, layer);
    clip_product(b, "attn_out", layer, b->a, bind_linear(&b->bind, "attn_out", (int)layer, v->width, n),
                 (struct shape){v->width, n, 1}, b->y);
    clip_join(b, layer, "attn_post_norm");
}

static void clip_ffn(struct tower_build *b, uint32_t layer)
{
    const struct vision_params *v = b->v;
    const struct shape in = {v->ffn, v->width, 1}, out = {v->width, v->ffn, 1};
    tower_map(b, layer, b->x, b->n, v->width)->norm = tower_need_norm(b, "ln2", (int)layer, v->width);
    clip_product(b, "ffn_gate", layer, b->n, bind_linear(&b->bind, "ffn_gate", (int)layer, v->ffn, v->width),
                 in, b->g);
    clip_product(b, "ffn_up", layer, b->n, bind_linear(&b->bind, "ffn_up", (int)layer, v->ffn, v->width), in,
                 b->h);
    struct op_map *o = tower_map(b, layer, b->g, b->g, v->ffn);
    o->act = v->act;
    o->by = b->h;
    clip_product(b, "ffn_down", layer, b->g, bind_linear(&b->bind, "ffn_down", (int)layer, v->width, v->ffn),
                 out, b->y);
    clip_join(b, layer, "ffn_post_norm");
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

void tower_clipped_layer(struct tower_build *b, uint32_t layer)
{
    const struct vision_params *v = b->v;
    const uint32_t n = (v->heads + 2 * v->kv_heads) * v->head_dim;
    if (!b->n.buffer) {
        b->n = plan_buffer(b->p, v->width);
        b->y = plan_buffer(b->p, v->width);
        b->g = plan_buffer(b->p, v->ffn);
        b->h = plan_buffer(b->p, larger(n, v->ffn));
        b->c = plan_buffer(b->p, larger(larger(n, v->ffn), v->width));
    }
    clip_attention(b, layer);
    clip_ffn(b, layer);
}
