/* Towers as plans. One block serves all families: they differ in norms, gates, positions, windows, and in what follows
 * the last layer. */
#include "model/vision/tower.h"

#include "base/log.h"
#include "base/mem.h"
#include "codec/dtype.h"
#include "model/vision/tower_build.h"

#include <math.h>
#include <string.h>

/* ---- norms and products ---- */

struct norm tower_norm(struct tower_build *b, const char *name, int layer, uint32_t n, float eps)
{
    if (!bind_has(&b->bind, name, layer))
        return (struct norm){0};
    struct norm out = {.eps = eps};
    out.weight = bind_vector(&b->bind, name, layer, ".weight", n, 0);
    out.bias = bind_optional(&b->bind, name, layer, ".bias", n);
    out.kind = out.bias ? NORM_LAYER : NORM_RMS; /* in towers the one always has a bias, the other never */
    return out;
}

struct norm tower_need_norm(struct tower_build *b, const char *name, int layer, uint32_t n)
{
    struct norm out = tower_norm(b, name, layer, n, b->v->eps);
    if (!out.kind)
        bind_tensor(&b->bind, (struct tensor_at){name, layer, LOOKUP_NO_EXPERT}, ".weight");
    return out;
}

struct op_map *tower_map(struct tower_build *b, uint32_t layer, struct operand in, struct operand out,
                         uint32_t width)
{
    struct op_map *o = &plan_add(b->p, OP_MAP, layer)->map;
    *o = (struct op_map){.in = in, .out = out, .width = width, .factor = 1, .scale = 1};
    return o;
}

/* ---- from pixels to the first rows ---- */

/* The kernel of the patches as (width, pixels), as the file has it: of a folder's video models with the frames of each
 * colour one after the other. */
static weight_id tower_kernel(struct tower_build *b, const struct tensor *t)
{
    const struct vision_params *v = b->v;
    const uint32_t n = b->t->pixels, area = v->patch * v->patch;
    const struct dtype_info *type = t ? dtype_get(t->type) : NULL;
    if (!t || b->bind.e->code || bind_number(&b->bind, t))
        return 0;
    if (t->values != (uint64_t)v->width * n || type->block_values != 1) {
        err_set(b->bind.e, ERR_DATA, "tensor %s has %llu values of type %s; %u x %u are expected",
                log_safe(t->name), (unsigned long long)t->values, type->name, v->width, n);
        return 0;
    }
    struct matrix m = {.name = t->name,
                       .type = t->type,
                       .rows = v->width,
                       .cols = n,
                       .count = 1,
                       .data = t->data,
                       .row_bytes = (size_t)n * type->block_bytes,
                       .each_bytes = t->bytes,
                       .run = v->width};
    if (v->family == VISION_GEMMA4 && !b->gguf) /* colours lie side by side */
        m.col_swap = (struct matrix_swap){0, area, 3, 1};
    return bind_add(&b->bind, "v.patch_embd", LOOKUP_NO_LAYER, &m);
}

/* The table of positions stays with the tower, which gives each row its own. The class row has its vector beside its
 * position, less the kernel's bias, which every row gets. */
static void tower_positions(struct tower_build *b, weight_id bias)
{
    const struct vision_params *v = b->v;
    const struct tensor *t = NULL, *own = NULL;
    const uint64_t tables = v->family == VISION_GEMMA4 ? 2 : 1, first = v->class_row ? 1 : 0;
    if (v->positions && (t = bind_tensor(&b->bind, tower_at("v.position_embd"), ".weight")))
        b->t->positions = bind_floats(&b->bind, t, (tables * v->positions + first) * v->width, 0);
    if (!v->class_row || !b->t->positions ||
        !(own = bind_tensor(&b->bind, tower_at("v.class_embd"), ".weight")))
        return;
    const float *vector = bind_floats(&b->bind, own, v->width, 0);
    const float *less = bias ? (const float *)(const void *)b->t->model.weights.all[bias].data : NULL;
    float *row = vector ? bind_memory(&b->bind, v->width * sizeof *row) : NULL;
    for (uint32_t i = 0; row && i < v->width; i++)
        row[i] = vector[i] + b->t->positions[i] - (less ? less[i] : 0);
    b->t->class_row = row;
    b->t->positions += v->width;
}

/* Pairs of the head turn by height or by width: frequencies for the axes of a step. */
static void tower_rope(struct tower_build *b)
{
    const struct vision_params *v = b->v;
    const uint32_t half = v->head_dim / 2, quarter = v->head_dim / 4;
    bool turns = v->family == VISION_PIXTRAL || v->family == VISION_QWEN2 || v->family == VISION_QWEN2_5 ||
                 v->family == VISION_QWEN3 || v->family == VISION_GEMMA4;
    float *freqs = turns ? bind_memory(&b->bind, PLAN_AXES * half * sizeof *freqs) : NULL;
    if (!freqs)
        return;
    memset(freqs, 0, PLAN_AXES * half * sizeof *freqs);
    float *height = freqs + half, *width = freqs + 2 * half;
    for (uint32_t i = 0; i < quarter; i++) {
        if (v->family == VISION_PIXTRAL) { /* of one row of frequencies, in turns */
            height[i] = (float)pow(v->theta, -2.0 * (2 * i) / v->head_dim);
            width[quarter + i] = (float)pow(v->theta, -2.0 * (2 * i + 1) / v->head_dim);
            continue;
        }
        const float f = (float)pow(v->theta, -2.0 * i / half);
        (v->family == VISION_GEMMA4 ? width : height)[i] = f;
        (v->family == VISION_GEMMA4 ? height : width)[quarter + i] = f;
    }
    b->rope = (struct rope){.kind = v->family == VISION_PIXTRAL && b->gguf ? ROPE_PAIRS : ROPE_HALVES,
                            .dims = v->head_dim,
                            .axes = true,
                            .factor = 1};
    b->rope.freqs = bind_table(&b->bind, "2-D rope", NULL, freqs, (struct shape){1, PLAN_AXES * half, 1});
}

/* The row behind each line of an image in tiles. */
static void tower_newline(struct tower_build *b)
{
    if (b->v->family != VISION_LLAVA_NEXT)
        return;
    const struct tensor *t = bind_tensor(&b->bind, tower_at("v.image_newline"), ".weight");
    b->t->newline = t ? bind_floats(&b->bind, t, b->v->out_width, 0) : NULL;
}

static void tower_begin(struct tower_build *b)
{
    const struct vision_params *v = b->v;
    b->in = plan_buffer(b->p, b->t->pixels + (v->positions ? v->width : 0));
    b->x = plan_buffer(b->p, v->width);
    b->q = plan_buffer(b->p, v->heads * b->dim);
    b->a = plan_buffer(b->p, v->heads * b->dim);
    b->p->given = b->in.buffer;
    plan_kv(b->p, 0, (struct kv_group){.kv_heads = v->kv_heads, .k_dim = b->dim, .v_dim = b->dim});
    tower_rope(b);
    struct linear kernel = {.weight =
                                tower_kernel(b, bind_tensor(&b->bind, tower_at("v.patch_embd"), ".weight"))};
    kernel.bias = bind_optional(&b->bind, "v.patch_embd", LOOKUP_NO_LAYER, ".bias", v->width);
    tower_positions(b, kernel.bias);
    const struct norm pre = tower_norm(b, "v.pre_ln", LOOKUP_NO_LAYER, v->width, v->eps);
    struct op_out *o = &plan_add(b->p, OP_OUT, UINT32_MAX)->out;
    *o = (struct op_out){.in = b->in, .linear = kernel, .tail = {.scale = 1, .out = b->x, .after = pre}};
    if (v->positions)
        o->tail.residual = (struct operand){b->in.buffer, b->t->pixels};
    /* GGUF has the second frame's kernel apart; an image is the same in both frames */
    const struct tensor *second = b->gguf ? store_find(b->bind.names.store, "v.patch_embd.weight.1") : NULL;
    if (!second)
        return;
    bind_mark(&b->bind, second);
    struct linear again = {.weight = tower_kernel(b, second)};
    plan_add(b->p, OP_OUT, UINT32_MAX)->out =
        (struct op_out){.in = b->in, .linear = again, .tail = {.scale = 1, .residual = b->x, .out = b->x}};
}

/* ---- a layer ---- */

/* Heads of gemma4 rotate each half by itself: their quarters are put in the order that rotating halves wants. */
static void tower_quarters(struct tower_build *b, const char *name, uint32_t layer, uint32_t n,
                           struct linear *l)
{
    const struct vision_params *v = b->v;
    const uint32_t quarter = v->head_dim / 4;
    const struct tensor *t =
        bind_tensor(&b->bind, (struct tensor_at){name, (int)layer, LOOKUP_NO_EXPERT}, ".weight");
    const float *from = t ? bind_floats(&b->bind, t, (uint64_t)n * v->width, 0) : NULL;
    float *to = from ? bind_memory(&b->bind, (size_t)n * v->width * sizeof *to) : NULL;
    for (uint32_t r = 0; to && r < n; r++) {
        uint32_t part = r % v->head_dim / quarter, swapped = part == 1 ? 2 : part == 2 ? 1 : part;
        memcpy(to + (size_t)r * v->width, from + (size_t)(r - part * quarter + swapped * quarter) * v->width,
               v->width * sizeof *to);
    }
    struct bound of = {.name = name, .layer = (int)layer, .suffix = ".weight"};
    l->weight = to ? bind_table(&b->bind, t->name, &of, to, (struct shape){n, v->width, 1}) : 0;
}

/* The same of a norm's weight. */
static void tower_quarter_norm(struct tower_build *b, struct norm *n)
{
    const uint32_t dim = b->v->head_dim, quarter = dim / 4;
    const float *from =
        n->weight ? (const float *)(const void *)b->t->model.weights.all[n->weight].data : NULL;
    float *to = from ? bind_memory(&b->bind, dim * sizeof *to) : NULL;
    for (uint32_t i = 0; to && i < dim; i++) {
        uint32_t part = i / quarter, swapped = part == 1 ? 2 : part == 2 ? 1 : part;
        to[i] = from[i - part * quarter + swapped * quarter];
    }
    n->weight = to ? bind_table(&b->bind, "norm of heads", NULL, to, (struct shape){1, dim, 1}) : 0;
}

void tower_heads(struct tower_build *b, uint32_t layer, struct op_qkv *o)
{
    const struct vision_params *v = b->v;
    const uint32_t n = v->heads * v->head_dim, kv = v->kv_heads * v->head_dim;
    if (bind_has(&b->bind, "attn_qkv", (int)layer)) {
        struct linear all[3];
        const struct slice s[3] = {
            {"attn_q", 1, 3 * n, 0, n}, {"attn_k", 1, 3 * n, n, n}, {"attn_v", 1, 3 * n, 2 * n, n}};
        memset(all, 0, sizeof all);
        bind_split(&b->bind, "attn_qkv", (int)layer, (struct shape){3 * n, v->width, 1}, s, 3, all);
        o->q = all[0];
        o->k = all[1];
        o->v = all[2];
        return;
    }
    const bool quarters = v->family == VISION_GEMMA4;
    if (quarters) {
        tower_quarters(b, "attn_q", layer, n, &o->q);
        tower_quarters(b, "attn_k", layer, kv, &o->k);
    } else {
        o->q = bind_linear(&b->bind, "attn_q", (int)layer, n, v->width);
        o->k = bind_linear(&b->bind, "attn_k", (int)layer, kv, v->width);
    }
    o->v = bind_linear(&b->bind, "attn_v", (int)layer, kv, v->width);
}

/* Norms of q and k: of each head (gemma4), or of the whole row (internvl). */
void tower_head_norms(struct tower_build *b, uint32_t layer, struct op_qkv *o)
{
    const struct vision_params *v = b->v;
    const bool each = v->family == VISION_GEMMA4;
    const uint32_t n = each ? v->head_dim : v->heads * v->head_dim;
    const float eps = each ? v->eps : 1e-6f;
    o->q_norm = tower_norm(b, "attn_q_norm", (int)layer, n, eps);
    o->k_norm = tower_norm(b, "attn_k_norm", (int)layer, n, eps);
    if (!each)
        return;
    o->q_norm.heads = v->heads;
    o->k_norm.heads = v->kv_heads;
    tower_quarter_norm(b, &o->q_norm);
    tower_quarter_norm(b, &o->k_norm);
    o->v_norm = (struct norm){.kind = NORM_RMS, .eps = v->eps, .heads = v->kv_heads};
}

/* What a branch adds to the stream: directly, or times the layer's own scale. */
static void tower_join(struct tower_build *b, struct tail *t, uint32_t layer, const char *scale,
                       const char *post)
{
    const struct vision_params *v = b->v;
    *t = (struct tail){.scale = 1, .residual = b->x, .out = b->x};
    t->post = tower_norm(b, post, (int)layer, v->width, v->eps);
    weight_id times = bind_optional(&b->bind, scale, (int)layer, ".weight", v->width);
    if (!times)
        return;
    if (!b->y.buffer)
        b->y = plan_buffer(b->p, v->width);
    t->residual = (struct operand){0};
    t->out = b->y;
    struct op_map *o = tower_map(b, layer, b->y, b->x, v->width);
    o->times = times;
    o->residual = b->x;
}

/* Heads of a weight padded with zeros: its rows, or its columns. */
static void tower_pad(struct tower_build *b, weight_id id, bool cols)
{
    const struct vision_params *v = b->v;
    if (!id || b->dim == v->head_dim || b->bind.e->code)
        return;
    struct weight *w = &b->bind.weights->all[id];
    const uint32_t n = v->heads * b->dim, rows = cols ? w->rows : n, all = cols ? n : w->cols;
    const size_t one = dtype_get(w->type)->block_bytes, part = (cols ? v->head_dim : (size_t)w->cols) * one;
    uint8_t *to = bind_memory(&b->bind, rows * all * one);
    if (!to)
        return;
    memset(to, 0, rows * all * one);
    for (uint32_t r = 0; r < w->rows; r++)
        for (uint32_t h = 0; h < (cols ? v->heads : 1); h++) {
            const uint32_t row = cols ? r : r / v->head_dim * b->dim + r % v->head_dim;
            memcpy(to + ((size_t)row * all + (cols ? h * b->dim : 0)) * one,
                   w->data + r * w->row_bytes + h * part, part);
        }
    w->data = to;
    w->rows = rows;
    w->cols = all;
    w->row_bytes = all * one;
    w->each_bytes = rows * w->row_bytes;
}

struct op_attn tower_attn(const struct tower_build *b, uint32_t layer)
{
    const struct vision_params *v = b->v;
    return (struct op_attn){.in = b->q,
                            .out = b->a,
                            .heads = v->heads,
                            .kv_heads = v->kv_heads,
                            .k_dim = b->dim,
                            .v_dim = b->dim,
                            .scale = v->family == VISION_GEMMA4 ? 1 : 1 / sqrtf((float)v->head_dim),
                            .span = v->window && !v->full[layer] ? SPAN_ONLY : SPAN_NONE};
}

static void tower_attention(struct tower_build *b, uint32_t layer)
{
    const struct vision_params *v = b->v;
    struct op_qkv qkv = {.in = b->x,
                         .norm = tower_need_norm(b, "ln1", (int)layer, v->width),
                         .rope = b->rope,
                         .heads = v->heads,
                         .kv_heads = v->kv_heads,
                         .k_dim = b->dim,
                         .v_dim = b->dim,
                         .out = b->q};
    tower_heads(b, layer, &qkv);
    tower_head_norms(b, layer, &qkv);
    const weight_id rows[] = {qkv.q.weight, qkv.k.weight, qkv.v.weight},
                    biases[] = {qkv.q.bias, qkv.k.bias, qkv.v.bias};
    for (int i = 0; i < 3; i++) {
        tower_pad(b, rows[i], false);
        tower_pad(b, biases[i], true);
    }
    plan_add(b->p, OP_QKV, layer)->qkv = qkv;
    plan_add(b->p, OP_ATTN, layer)->attn = tower_attn(b, layer);
    const struct linear out = bind_linear(&b->bind, "attn_out", (int)layer, v->width, v->heads * v->head_dim);
    tower_pad(b, out.weight, true);
    uint32_t at = b->p->count;
    plan_add(b->p, OP_OUT, layer);
    struct tail t;
    tower_join(b, &t, layer, "ls1", "attn_post_norm");
    if (!b->p->failed)
        b->p->ops[at].out = (struct op_out){.in = b->a, .linear = out, .tail = t};
}

/* Some files call the first product of the feed-forward ffn_down, and the second ffn_up. */
static void tower_ffn(struct tower_build *b, uint32_t layer)
{
    const struct vision_params *v = b->v;
    const bool gated = bind_has(&b->bind, "ffn_gate", (int)layer);
    const bool turned = !gated && v->ffn != v->width && bind_rows(&b->bind, "ffn_up", (int)layer) == v->width;
    struct op_ffn ffn = {.in = b->x, .norm = tower_need_norm(b, "ln2", (int)layer, v->width), .act = v->act};
    if (gated)
        ffn.gate = bind_linear(&b->bind, "ffn_gate", (int)layer, v->ffn, v->width);
    ffn.up = bind_linear(&b->bind, turned ? "ffn_down" : "ffn_up", (int)layer, v->ffn, v->width);
    ffn.down = bind_linear(&b->bind, turned ? "ffn_up" : "ffn_down", (int)layer, v->width, v->ffn);
    uint32_t at = b->p->count;
    plan_add(b->p, OP_FFN, layer);
    tower_join(b, &ffn.tail, layer, "ls2", "ffn_post_norm");
    if (!b->p->failed)
        b->p->ops[at].ffn = ffn;
}

/* ---- opening ---- */

/* Keeps the rows after `layers` layers where the projector takes those of several. */
static void tower_feature(struct tower_build *b, uint32_t layers)
{
    const struct vision_params *v = b->v;
    if (v->features < 2)
        return;
    if (!b->features.buffer)
        b->features = plan_buffer(b->p, v->features * v->width);
    for (uint32_t i = 0; i < v->features; i++)
        if (v->feature[i] == layers)
            tower_map(b, UINT32_MAX, b->x, (struct operand){b->features.buffer, i * v->width}, v->width);
}

static void tower_layers(struct tower_build *b)
{
    const struct vision_params *v = b->v;
    struct operand saved[VISION_DEEPSTACK_MOST] = {{0}};
    tower_begin(b);
    tower_newline(b);
    tower_feature(b, 0);
    for (uint32_t i = 0; i < v->used_layers; i++) {
        if (b->clips) {
            tower_clipped_layer(b, i);
        } else {
            tower_attention(b, i);
            tower_ffn(b, i);
        }
        tower_feature(b, i + 1);
        for (uint32_t k = 0; k < v->deepstacks; k++)
            if (v->deepstack[k] == i) {
                saved[k] = plan_buffer(b->p, v->width);
                tower_map(b, i, b->x, saved[k], v->width);
            }
    }
    tower_project(b, saved);
}

/* Only weights of whole numbers of bytes can be padded, and heads that are not normed. */
static uint32_t tower_dim(const struct tower_build *b, uint32_t (*head_dim)(uint32_t dim))
{
    const struct tensor *t = NULL;
    static const char *const names[] = {"attn_q", "attn_qkv"};
    for (int i = 0; i < 2 && !t; i++)
        t = lookup_find(&b->bind.names, (struct tensor_at){names[i], 0, LOOKUP_NO_EXPERT}, ".weight");
    bool plain = t && (t->type == DTYPE_F32 || t->type == DTYPE_F16 || t->type == DTYPE_BF16);
    return head_dim && plain && !bind_has(&b->bind, "attn_q_norm", 0) ? head_dim(b->v->head_dim)
                                                                      : b->v->head_dim;
}

static int tower_build(struct tower *t, const struct store *s, uint32_t (*head_dim)(uint32_t dim),
                       struct err *e)
{
    struct model *m = &t->model;
    struct tower_build b = {.t = t, .v = &t->v, .p = &m->plan, .gguf = s->kind == STORE_GGUF};
    b.clips = t->v.family == VISION_GEMMA4 && tower_has_clips(s);
    if (binder_open(&b.bind, s, &m->h, &m->weights, e) < 0)
        return -1;
    lookup_open_tower(&b.bind.names, s);
    b.dim = tower_dim(&b, head_dim);
    tower_layers(&b);
    if (m->plan.failed)
        err_memory(e, "the plan", 0);
    int ok = e->code ? -1 : plan_check(&m->plan, &m->weights, e);
    m->owned = b.bind.owned;
    m->bound = b.bind.bound;
    m->converted = b.bind.owned_bytes;
    binder_close(&b.bind);
    return ok;
}

int tower_open(struct tower **out, const struct store *s, uint32_t (*head_dim)(uint32_t dim), struct err *e)
{
    static const struct model_make usual;
    struct err own = {0};
    struct tower *t = mem_zalloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return err_memory(e, "the tower", sizeof *t);
    t->model.store = s;
    if (vision_read(&t->v, s, &own) == 0) {
        t->frames = s->kind == STORE_GGUF ? 1 : t->v.frames;
        t->pixels = 3 * t->frames * t->v.patch * t->v.patch;
        t->folded = t->v.merge * t->v.merge;
        if (tower_build(t, s, head_dim, &own) == 0 && model_make(&t->model, &usual, &own) == 0) {
            *out = t;
            return 0;
        }
    }
    tower_close(t);
    err_set(e, own.code, "%s: %s", log_safe(s->path), own.text);
    return -1;
}

void tower_close(struct tower *t)
{
    if (!t)
        return;
    plan_free(&t->model.plan);
    weights_free(&t->model.weights);
    owned_free(t->model.owned);
    mem_free(t->model.bound);
    mem_free(t);
}
