/* Recurrent layers: what stands in the place of attention. Each is a projection of the input, a causal convolution, a
 * recurrence, and a product of its gated and normed output. */
#include "model/build.h"

#include "base/mem.h"
#include "model/arch.h"

#include <math.h>
#include <string.h>

struct operand build_mix(struct build *b, uint32_t i, uint32_t width)
{
    if (!b->mix[i].buffer)
        b->mix[i] = plan_buffer(b->p, width);
    else if (b->p->width[b->mix[i].buffer] < width)
        b->p->width[b->mix[i].buffer] = width;
    return b->mix[i];
}

static struct operand column(struct operand o, uint32_t col)
{
    o.col += col;
    return o;
}

/* A weight of n numbers, each f(x); suffix "" is that of parameters without one. */
static weight_id bind_mapped(struct build *b, const char *name, uint32_t layer, const char *suffix,
                             struct shape s, float (*f)(float))
{
    struct tensor_at at = {name, (int)layer, LOOKUP_NO_EXPERT};
    const struct tensor *t = bind_tensor(&b->bind, at, suffix);
    size_t n = (size_t)s.rows * s.cols;
    const float *data = t ? bind_floats(&b->bind, t, n, 0) : NULL;
    float *mapped = data && f ? bind_memory(&b->bind, n * sizeof *mapped) : NULL;
    for (size_t i = 0; mapped && i < n; i++)
        mapped[i] = f(data[i]);
    struct bound of = {.name = name, .layer = (int)layer, .suffix = suffix};
    return data ? bind_table(&b->bind, t->name, &of, mapped ? mapped : data, s) : 0;
}

static float minus_exp(float x)
{
    return -expf(x);
}

/* Files of Hugging Face hold the logarithm of -A. */
static weight_id bind_decay(struct build *b, uint32_t layer, struct shape s)
{
    return bind_mapped(b, "ssm_a", layer, "", s, b->h->container == STORE_GGUF ? NULL : minus_exp);
}

/* ---- operations ---- */

/* conv has its operands, channels and activation. */
static void build_conv(struct build *b, uint32_t layer, const char *name, struct op_conv conv)
{
    uint32_t cols = b->h->ssm.conv;
    conv.cols = cols;
    if (!conv.weight)
        conv.weight = bind_mapped(b, name, layer, ".weight", (struct shape){conv.channels, cols, 1}, NULL);
    conv.bias = bind_optional(&b->bind, name, (int)layer, ".bias", conv.channels);
    conv.state = plan_keep(b->p, layer, 1, cols > 1 ? cols - 1 : 1, conv.channels);
    plan_add(b->p, OP_CONV, layer)->conv = conv;
}

static const char *const conv_qkv[] = {"ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"};

/* KDA's convolutions in one tensor, three of the same length, which GGUF has apart. */
static weight_id split_conv_qkv(struct build *b, uint32_t layer, uint32_t channels)
{
    const uint32_t cols = b->h->ssm.conv, each = channels / 3;
    const struct tensor *t =
        bind_tensor(&b->bind, (struct tensor_at){"ssm_conv1d", (int)layer, LOOKUP_NO_EXPERT}, ".weight");
    const float *w = t ? bind_floats(&b->bind, t, (uint64_t)channels * cols, 0) : NULL;
    for (uint32_t i = 0; w && i < 3; i++)
        bind_table(&b->bind, t->name,
                   &(struct bound){.name = conv_qkv[i], .layer = (int)layer, .suffix = ".weight"},
                   w + (size_t)i * each * cols, (struct shape){each, cols, 1});
    return w ? bind_table(&b->bind, t->name, NULL, w, (struct shape){channels, cols, 1}) : 0;
}

/* The convolutions of Q, K and V as one: they are separate tensors of any lengths, one after the other. */
static weight_id bind_conv_qkv(struct build *b, uint32_t layer, uint32_t channels)
{
    const char *const *names = conv_qkv;
    size_t cols = b->h->ssm.conv, all = channels * cols, at = 0;
    float *w = bind_memory(&b->bind, all * sizeof *w);
    for (int i = 0; w && i < 3; i++) {
        struct tensor_at where = {names[i], (int)layer, LOOKUP_NO_EXPERT};
        const struct tensor *t = bind_tensor(&b->bind, where, ".weight");
        if (t && (t->values > all - at || t->values % cols))
            err_set(b->bind.e, ERR_DATA, "the convolutions of layer %u have not %u channels of %zu columns",
                    layer, channels, cols);
        const float *part = t && !b->bind.e->code ? bind_floats(&b->bind, t, t->values, 0) : NULL;
        if (!part)
            return 0;
        memcpy(w + at, part, t->values * sizeof *w);
        struct bound of = {.name = names[i], .layer = (int)layer, .suffix = ".weight"};
        bind_table(&b->bind, t->name, &of, part,
                   (struct shape){(uint32_t)(t->values / cols), (uint32_t)cols, 1});
        at += t->values;
    }
    if (w && at != all)
        err_set(b->bind.e, ERR_DATA, "the convolutions of layer %u have not %u channels", layer, channels);
    return w ? bind_table(&b->bind, "convolution", NULL, w, (struct shape){channels, (uint32_t)cols, 1}) : 0;
}

static struct op_proj *build_proj(struct build *b, uint32_t layer, struct operand in, struct norm norm,
                                  struct operand out)
{
    struct op_proj *o = &plan_add(b->p, OP_PROJ, layer)->proj;
    *o = (struct op_proj){.in = in, .norm = norm, .out = out};
    for (uint32_t i = 0; i < PROJ_MOST; i++)
        o->scale[i] = 1;
    return o;
}

static void proj_add(struct op_proj *o, struct linear l)
{
    o->linear[o->count++] = l;
}

static struct op_scan *build_scan(struct build *b, uint32_t layer, struct op_scan scan)
{
    const struct ssm_params *s = &b->h->ssm;
    struct op_scan *o = &plan_add(b->p, OP_SCAN, layer)->scan;
    *o = scan;
    o->q_scale = o->k_scale = o->write_scale = 1;
    o->dt_range[0] = s->dt_range[0];
    o->dt_range[1] = s->dt_range[1] > 0 ? s->dt_range[1] : INFINITY;
    o->state = plan_keep(b->p, layer, o->heads, o->k_dim, o->v_dim);
    return o;
}

/* The product that ends a layer, of rows of `in`. */
static struct op_out *build_back(struct build *b, uint32_t layer, const char *name, struct operand in,
                                 uint32_t width)
{
    struct op_out *o = &plan_add(b->p, OP_OUT, layer)->out;
    *o = (struct op_out){.in = in};
    o->linear = bind_linear(&b->bind, name, (int)layer, b->h->width, width);
    o->tail = (struct tail){.scale = b->h->residual_scale, .residual = b->x, .out = b->x};
    return o;
}

/* ---- mamba ---- */

/* The file's order is z, x, B, C, dt; multipliers of each (falcon-h1) make them products of their own. */
static void mamba2_inputs(struct build *b, uint32_t layer, struct op_proj *o)
{
    const struct ssm_params *s = &b->h->ssm;
    uint32_t bc = s->groups * s->state, len[5] = {s->inner, s->inner, bc, bc, s->heads}, at = 0;
    uint32_t all = 2 * s->inner + 2 * bc + s->heads;
    struct slice part[5];
    struct linear out[5] = {0};
    if (!s->scaled) {
        proj_add(o, bind_linear(&b->bind, "ssm_in", (int)layer, all, b->h->width));
        return;
    }
    for (int i = 0; i < 5; i++, at += len[i - 1])
        part[i] = (struct slice){.name = "ssm_in", .groups = 1, .stride = all, .first = at, .len = len[i]};
    bind_split(&b->bind, "ssm_in", (int)layer, (struct shape){all, b->h->width, 1}, part, 5, out);
    for (int i = 0; i < 5; i++) {
        o->scale[i] = s->scale[i];
        proj_add(o, out[i]);
    }
}

struct op_out *build_mamba2(struct build *b, uint32_t layer, struct norm in)
{
    const struct ssm_params *s = &b->h->ssm;
    uint32_t inner = s->inner, bc = s->groups * s->state, channels = inner + 2 * bc;
    struct operand p = build_mix(b, MIX_IN, inner + channels + s->heads),
                   c = build_mix(b, MIX_CONV, channels), y = build_mix(b, MIX_OUT, inner);
    mamba2_inputs(b, layer, build_proj(b, layer, b->x, in, p));
    build_conv(b, layer, "ssm_conv1d",
               (struct op_conv){.in = column(p, inner), .out = c, .channels = channels, .act = s->act});
    weight_id a = bind_decay(b, layer, (struct shape){1, s->heads, 1});
    struct op_scan *scan = build_scan(
        b, layer,
        (struct op_scan){
            .heads = s->heads, .k_heads = s->groups, .k_dim = s->state, .v_dim = inner / s->heads, .a = a});
    scan->decay_kind = DECAY_SOFTPLUS;
    scan->v = c, scan->k = column(c, inner), scan->q = column(c, inner + bc), scan->out = y;
    scan->decay = column(p, inner + channels);
    scan->bias = bind_vector(&b->bind, "ssm_dt", (int)layer, ".bias", s->heads, 0);
    scan->skip = bind_mapped(b, "ssm_d", layer, "", (struct shape){1, s->heads, 1}, NULL);
    struct op_out *o = build_back(b, layer, "ssm_out", y, inner);
    o->gate = (struct gate){.in = p, .act = ACT_SILU, .first = !s->norm_first};
    if (bind_has(&b->bind, "ssm_norm", (int)layer)) {
        o->norm = (struct norm){.kind = NORM_RMS, .eps = s->eps, .heads = s->groups};
        o->norm.weight = bind_vector(&b->bind, "ssm_norm", (int)layer, ".weight", inner, 0);
    }
    return o;
}

/* A norm of dt, B or C: with a weight, without one, or none. */
static struct norm mamba_norm(struct build *b, const char *name, uint32_t layer, uint32_t n, uint32_t heads)
{
    struct norm norm = {.kind = NORM_RMS, .eps = b->h->ssm.eps, .heads = heads};
    norm.weight = bind_optional(&b->bind, name, (int)layer, ".weight", n);
    if (!norm.weight && !b->h->ssm.norms)
        norm = (struct norm){0};
    return norm;
}

struct op_out *build_mamba(struct build *b, uint32_t layer, struct norm in)
{
    const struct ssm_params *s = &b->h->ssm;
    uint32_t inner = s->inner, rank = s->heads;
    struct operand p = build_mix(b, MIX_IN, 2 * inner), c = build_mix(b, MIX_CONV, inner),
                   y = build_mix(b, MIX_OUT, inner), low = build_mix(b, MIX_LOW, rank + 2 * s->state),
                   dt = build_mix(b, MIX_STEP, inner);
    proj_add(build_proj(b, layer, b->x, in, p), /* x, z */
             bind_linear(&b->bind, "ssm_in", (int)layer, 2 * inner, b->h->width));
    build_conv(b, layer, "ssm_conv1d", (struct op_conv){.in = p, .out = c, .channels = inner, .act = s->act});
    proj_add(build_proj(b, layer, c, (struct norm){0}, low), /* dt, B, C */
             bind_linear(&b->bind, "ssm_x", (int)layer, rank + 2 * s->state, inner));
    struct norm dt_norm = mamba_norm(b, "ssm_dt_norm", layer, rank, 0);
    weight_id up = bind_matrix(&b->bind, "ssm_dt", (int)layer, (struct shape){inner, rank, 1});
    proj_add(build_proj(b, layer, low, dt_norm, dt), (struct linear){.weight = up});
    struct norm k_norm = mamba_norm(b, "ssm_b_norm", layer, s->state, 1),
                q_norm = mamba_norm(b, "ssm_c_norm", layer, s->state, 1);
    weight_id a = bind_decay(b, layer, (struct shape){inner, s->state, 1});
    struct op_scan *scan = build_scan(
        b, layer, (struct op_scan){.heads = inner, .k_heads = 1, .k_dim = s->state, .v_dim = 1, .a = a});
    scan->decay_kind = DECAY_SOFTPLUS;
    scan->v = c, scan->k = column(low, rank), scan->q = column(low, rank + s->state), scan->out = y;
    scan->k_norm = k_norm, scan->q_norm = q_norm;
    scan->decay = dt;
    scan->bias = bind_vector(&b->bind, "ssm_dt", (int)layer, ".bias", inner, 0);
    scan->skip = bind_mapped(b, "ssm_d", layer, "", (struct shape){1, inner, 1}, NULL);
    struct op_out *o = build_back(b, layer, "ssm_out", y, inner);
    o->gate = (struct gate){.in = column(p, inner), .act = ACT_SILU};
    return o;
}

/* A product for each block of the row: (rows, cols) for each of `heads`. */
static void blocks_of(struct build *b, uint32_t layer, weight_id w, struct operand in, struct operand out)
{
    plan_add(b->p, OP_HEADS, layer)->heads = (struct op_heads){.in = in, .out = out, .weight = w};
}

/* x and z, which lie in turns in the file, one after the other. */
static void mamba_halves(struct build *b, uint32_t layer, struct norm in, const struct slice part[2],
                         struct operand out)
{
    const uint32_t rows = 2 * b->h->ssm.inner;
    struct linear half[2] = {0};
    bind_split(&b->bind, "ssm_in", (int)layer, (struct shape){rows, b->h->width, 1}, part, 2, half);
    struct op_proj *o = build_proj(b, layer, b->x, in, out);
    proj_add(o, half[0]);
    proj_add(o, half[1]);
}

/* zamba: mamba 1 in heads, each with dt, B and C of its own channels. x and z lie channel by channel. */
struct op_out *build_mamba_heads(struct build *b, uint32_t layer, struct norm in)
{
    const struct ssm_params *s = &b->h->ssm;
    struct binder *w = &b->bind;
    const int il = (int)layer;
    const uint32_t inner = s->inner, heads = s->groups, size = inner / heads, rank = s->heads,
                   rows[3] = {rank, s->state, s->state}, all = rank + 2 * s->state;
    struct operand p = build_mix(b, MIX_IN, 2 * inner), c = build_mix(b, MIX_CONV, inner),
                   y = build_mix(b, MIX_OUT, inner), low = build_mix(b, MIX_LOW, heads * all),
                   dt = build_mix(b, MIX_STEP, inner), at = low;
    static const char *const names[3] = {"ssm_x_dt", "ssm_x_b", "ssm_x_c"};
    const struct slice xz[2] = {{"ssm_in", inner, 2, 0, 1}, {"ssm_in", inner, 2, 1, 1}},
                       part[3] = {{names[0], 1, all, 0, rank},
                                  {names[1], 1, all, rank, s->state},
                                  {names[2], 1, all, rank + s->state, s->state}};
    struct linear of[3] = {0};
    mamba_halves(b, layer, in, xz, p);
    build_conv(b, layer, "ssm_conv1d", (struct op_conv){.in = p, .out = c, .channels = inner, .act = s->act});
    if (bind_has(w, "ssm_x", il))
        bind_split(w, "ssm_x", il, (struct shape){all, size, heads}, part, 3, of);
    for (int i = 0; i < 3; at = column(at, heads * rows[i++])) {
        if (!bind_has(w, "ssm_x", il))
            of[i].weight = bind_matrix(w, names[i], il, (struct shape){rows[i], size, heads});
        blocks_of(b, layer, of[i].weight, c, at);
    }
    blocks_of(b, layer, bind_matrix(w, "ssm_dt", il, (struct shape){size, rank, heads}), low, dt);
    weight_id a = bind_decay(b, layer, (struct shape){inner, s->state, 1});
    struct op_scan *scan = build_scan(
        b, layer, (struct op_scan){.heads = inner, .k_heads = heads, .k_dim = s->state, .v_dim = 1, .a = a});
    scan->decay_kind = DECAY_SOFTPLUS;
    scan->v = c, scan->k = column(low, heads * rank), scan->q = column(scan->k, heads * s->state);
    scan->out = y;
    scan->decay = dt;
    scan->bias = bind_vector(w, "ssm_dt", il, ".bias", inner, 0);
    scan->skip = bind_mapped(b, "ssm_d", layer, "", (struct shape){1, inner, 1}, NULL);
    struct op_out *out = build_back(b, layer, "ssm_out", y, inner);
    out->gate = (struct gate){.in = column(p, inner), .act = ACT_SILU};
    return out;
}

/* plamo 2: dt, B and C are products of the convolution's output, as mamba's; heads are mamba 2's. z and x lie head by
 * head. */
struct op_out *build_plamo2(struct build *b, uint32_t layer, struct norm in)
{
    const struct ssm_params *s = &b->h->ssm;
    struct binder *w = &b->bind;
    const int il = (int)layer;
    const uint64_t rows = bind_rows(w, "ssm_x", il);
    const uint32_t inner = s->inner, size = inner / s->heads,
                   rank = rows > 2 * s->state && rows <= HPARAMS_SIZE[1] ? (uint32_t)rows - 2 * s->state : 1;
    struct operand p = build_mix(b, MIX_IN, 2 * inner), c = build_mix(b, MIX_CONV, inner),
                   y = build_mix(b, MIX_OUT, inner), low = build_mix(b, MIX_LOW, rank + 2 * s->state),
                   dt = build_mix(b, MIX_STEP, s->heads);
    const struct slice part[2] = {{"ssm_in", s->heads, 2 * size, 0, size},
                                  {"ssm_in", s->heads, 2 * size, size, size}};
    mamba_halves(b, layer, in, part, p);
    build_conv(b, layer, "ssm_conv1d",
               (struct op_conv){.in = column(p, inner), .out = c, .channels = inner, .act = ACT_SILU});
    proj_add(build_proj(b, layer, c, (struct norm){0}, low), /* B, C, dt */
             bind_linear(w, "ssm_x", il, rank + 2 * s->state, inner));
    struct norm dt_norm = mamba_norm(b, "ssm_dt_norm", layer, rank, 0);
    weight_id up = bind_matrix(w, "ssm_dt", il, (struct shape){s->heads, rank, 1});
    proj_add(build_proj(b, layer, column(low, 2 * s->state), dt_norm, dt), (struct linear){.weight = up});
    weight_id a = bind_decay(b, layer, (struct shape){1, s->heads, 1});
    struct norm k_norm = mamba_norm(b, "ssm_b_norm", layer, s->state, 1),
                q_norm = mamba_norm(b, "ssm_c_norm", layer, s->state, 1);
    build_bare(b, dt_norm.weight);
    build_bare(b, k_norm.weight);
    build_bare(b, q_norm.weight);
    struct op_scan *scan = build_scan(
        b, layer,
        (struct op_scan){.heads = s->heads, .k_heads = 1, .k_dim = s->state, .v_dim = size, .a = a});
    scan->decay_kind = DECAY_SOFTPLUS;
    scan->v = c, scan->k = low, scan->q = column(low, s->state), scan->out = y;
    scan->k_norm = k_norm, scan->q_norm = q_norm;
    scan->decay = dt;
    scan->bias = bind_vector(w, "ssm_dt", il, ".bias", s->heads, 0);
    scan->skip = bind_mapped(b, "ssm_d", layer, "", (struct shape){1, s->heads, 1}, NULL);
    struct op_out *out = build_back(b, layer, "ssm_out", y, inner);
    out->gate = (struct gate){.in = p, .act = ACT_SILU};
    return out;
}

/* ---- delta rules ---- */

/* q and k of length 1, as norms and scales. */
static void scan_unit_keys(struct op_scan *o)
{
    const float root = 1 / sqrtf((float)o->k_dim);
    o->q_norm = o->k_norm =
        (struct norm){.kind = NORM_RMS, .eps = 1e-6f / (float)o->k_dim, .heads = o->k_heads};
    o->k_scale = root;
    o->q_scale = root * root; /* with that of attention */
}

/* Rows of q, k, v, z and of b, a, one after the other, however the file keeps them. */
static void delta_inputs(struct build *b, uint32_t layer, struct op_proj *o)
{
    const struct ssm_params *s = &b->h->ssm;
    struct binder *w = &b->bind;
    int il = (int)layer;
    uint32_t keys = s->groups * s->state, width = b->h->width, each = s->heads / s->groups;
    uint32_t head = s->inner / s->heads * each, group = 2 * s->state + 2 * head;
    struct linear out[4] = {0};
    if (bind_has(w, "ssm_in", il)) { /* key head by key head */
        const struct slice part[4] = {{"attn_qkv", s->groups, group, 0, s->state},
                                      {"attn_qkv", s->groups, group, s->state, s->state},
                                      {"attn_qkv", s->groups, group, 2 * s->state, head},
                                      {"attn_gate", s->groups, group, 2 * s->state + head, head}};
        bind_split(w, "ssm_in", il, (struct shape){s->groups * group, width, 1}, part, 4, out);
        for (int i = 0; i < 4; i++)
            proj_add(o, out[i]);
    } else {
        if (bind_has(w, "attn_qkv", il)) {
            proj_add(o, bind_linear(w, "attn_qkv", il, 2 * keys + s->inner, width));
        } else {
            proj_add(o, bind_linear(w, "attn_q", il, keys, width));
            proj_add(o, bind_linear(w, "attn_k", il, keys, width));
            proj_add(o, bind_linear(w, "attn_v", il, s->inner, width));
        }
        proj_add(o, bind_linear(w, "attn_gate", il, s->inner, width));
    }
    if (bind_has(w, "ssm_ba", il)) {
        const struct slice part[2] = {{"ssm_ba", s->groups, 2 * each, 0, each},
                                      {"ssm_ba", s->groups, 2 * each, each, each}};
        bind_split(w, "ssm_ba", il, (struct shape){2 * s->heads, width, 1}, part, 2, out);
        proj_add(o, out[0]);
        proj_add(o, out[1]);
        return;
    }
    proj_add(o, bind_linear(w, "ssm_beta", il, s->heads, width));
    proj_add(o, bind_linear(w, "ssm_alpha", il, s->heads, width));
}

struct op_out *build_delta(struct build *b, uint32_t layer, struct norm in)
{
    const struct ssm_params *s = &b->h->ssm;
    uint32_t keys = s->groups * s->state, channels = 2 * keys + s->inner, gate = channels;
    struct operand p = build_mix(b, MIX_IN, channels + s->inner + 2 * s->heads),
                   c = build_mix(b, MIX_CONV, channels), y = build_mix(b, MIX_OUT, s->inner);
    delta_inputs(b, layer, build_proj(b, layer, b->x, in, p));
    struct op_conv conv = {.in = p, .out = c, .channels = channels, .act = s->act};
    if (bind_has(&b->bind, "ssm_conv1d_q", (int)layer))
        conv.weight = bind_conv_qkv(b, layer, channels);
    build_conv(b, layer, "ssm_conv1d", conv);
    weight_id a = bind_decay(b, layer, (struct shape){1, s->heads, 1});
    struct op_scan *scan = build_scan(b, layer,
                                      (struct op_scan){.heads = s->heads,
                                                       .k_heads = s->groups,
                                                       .k_dim = s->state,
                                                       .v_dim = s->inner / s->heads,
                                                       .a = a});
    scan_unit_keys(scan);
    scan->tiled = s->tiled, scan->delta = true;
    scan->decay_kind = DECAY_SOFTPLUS;
    scan->q = c, scan->k = column(c, keys), scan->v = column(c, 2 * keys), scan->out = y;
    scan->write = column(p, gate + s->inner);
    scan->decay = column(p, gate + s->inner + s->heads);
    scan->write_scale = s->write_scale;
    scan->bias = bind_vector(&b->bind, "ssm_dt", (int)layer, ".bias", s->heads, 0);
    uint32_t size = s->inner / s->heads;
    struct op_out *o = build_back(b, layer, "ssm_out", y, s->inner);
    o->norm = (struct norm){.kind = NORM_RMS, .eps = s->eps, .heads = s->heads};
    o->norm.weight = bind_vector(&b->bind, "ssm_norm", (int)layer, ".weight", size, 0);
    o->gate = (struct gate){.in = column(p, gate), .act = ACT_SILU};
    return o;
}

/* KDA's decay and gate are low-rank products, or (bailing) whole ones; both are as wide as q. */
static void kda_inputs(struct build *b, uint32_t layer, struct norm in, struct operand p, struct operand fg)
{
    const struct ssm_params *s = &b->h->ssm;
    struct binder *w = &b->bind;
    int il = (int)layer;
    uint32_t width = b->h->width, low = s->state;
    bool whole = !bind_has(w, "ssm_f_b", il);
    struct op_proj *o = build_proj(b, layer, b->x, in, p);
    proj_add(o, bind_linear(w, "attn_q", il, s->inner, width));
    proj_add(o, bind_linear(w, "attn_k", il, s->inner, width));
    proj_add(o, bind_linear(w, "attn_v", il, s->inner, width));
    proj_add(o, bind_linear(w, "ssm_beta", il, s->heads, width));
    if (whole) {
        o = build_proj(b, layer, b->x, in, fg);
        proj_add(o, bind_linear(w, "ssm_f_a", il, s->inner, width));
        proj_add(o, bind_linear(w, "ssm_g_a", il, s->inner, width));
        return;
    }
    proj_add(o, bind_linear(w, "ssm_f_a", il, low, width));
    proj_add(o, bind_linear(w, "ssm_g_a", il, low, width));
    struct operand from = column(p, 3 * s->inner + s->heads);
    proj_add(build_proj(b, layer, from, (struct norm){0}, fg), bind_linear(w, "ssm_f_b", il, s->inner, low));
    proj_add(build_proj(b, layer, column(from, low), (struct norm){0}, column(fg, s->inner)),
             bind_linear(w, "ssm_g_b", il, s->inner, low));
}

/* A delta rule that decays channel by channel. */
struct op_out *build_kda(struct build *b, uint32_t layer, struct norm in)
{
    const struct ssm_params *s = &b->h->ssm;
    uint32_t inner = s->inner;
    struct operand p = build_mix(b, MIX_IN, 3 * inner + s->heads + 2 * s->state),
                   c = build_mix(b, MIX_CONV, 3 * inner), y = build_mix(b, MIX_OUT, inner),
                   fg = build_mix(b, MIX_LOW, 2 * inner);
    kda_inputs(b, layer, in, p, fg);
    build_conv(b, layer, "ssm_conv1d",
               (struct op_conv){.in = p,
                                .out = c,
                                .channels = 3 * inner,
                                .act = s->act,
                                .weight = bind_has(&b->bind, "ssm_conv1d", (int)layer)
                                              ? split_conv_qkv(b, layer, 3 * inner)
                                              : bind_conv_qkv(b, layer, 3 * inner)});
    /* The bounded decay is of +exp(A_log), in GGUF too. */
    weight_id a = s->bound < 0 ? bind_mapped(b, "ssm_a", layer, "", (struct shape){1, s->heads, 1},
                                             b->h->container == STORE_GGUF ? NULL : expf)
                               : bind_decay(b, layer, (struct shape){1, s->heads, 1});
    struct op_scan *scan =
        build_scan(b, layer,
                   (struct op_scan){
                       .heads = s->heads, .k_heads = s->heads, .k_dim = s->state, .v_dim = s->state, .a = a});
    scan_unit_keys(scan);
    scan->delta = scan->decay_each = true;
    scan->decay_kind = s->bound < 0 ? DECAY_SIGMOID : DECAY_SOFTPLUS;
    scan->bound = s->bound;
    scan->q = c, scan->k = column(c, inner), scan->v = column(c, 2 * inner), scan->out = y;
    scan->write = column(p, 3 * inner);
    scan->decay = fg;
    scan->bias = bind_vector(&b->bind, "ssm_dt", (int)layer, ".bias", inner, 0);
    struct op_out *o = build_back(b, layer, "attn_output", y, inner);
    o->norm = (struct norm){.kind = NORM_RMS, .eps = b->h->eps, .heads = s->heads};
    o->norm.weight = bind_vector(&b->bind, "ssm_norm", (int)layer, ".weight", s->state, 0);
    o->gate = (struct gate){.in = column(fg, inner), .act = ACT_SIGMOID};
    return o;
}

/* ---- others ---- */

/* lfm2: y = C * conv(B * x). */
struct op_out *build_shortconv(struct build *b, uint32_t layer, struct norm in)
{
    uint32_t width = b->h->width;
    struct operand p = build_mix(b, MIX_IN, 3 * width), c = build_mix(b, MIX_CONV, width);
    proj_add(build_proj(b, layer, b->x, in, p), /* B, C, x */
             bind_linear(&b->bind, "shortconv.in_proj", (int)layer, 3 * width, width));
    build_conv(b, layer, "shortconv.conv",
               (struct op_conv){.in = column(p, 2 * width), .mul = p, .out = c, .channels = width});
    struct op_out *o = build_back(b, layer, "shortconv.out_proj", c, width);
    o->gate = (struct gate){.in = column(p, width)};
    return o;
}

/* A product for each block of the row, (heads, size, size); Hugging Face has it from inputs to outputs. */
static void block_product(struct build *b, uint32_t layer, const char *name, struct operand in,
                          struct operand out)
{
    const uint32_t heads = b->h->heads, size = b->h->ssm.inner / heads;
    struct tensor_at at = {name, (int)layer, LOOKUP_NO_EXPERT};
    struct matrix m = bind_find(&b->bind, at, (struct shape){size, size, heads});
    if (b->h->container == STORE_SAFETENSORS)
        m = matrix_turn(&m);
    blocks_of(b, layer, bind_add(&b->bind, name, (int)layer, &m), in, out);
}

static float lru_decay(float x)
{
    return -8 * (x > 20 ? x : log1pf(expf(x)));
}

/* Griffin: a convolution and RG-LRU, gated by a product of the same input. */
struct op_out *build_lru(struct build *b, uint32_t layer, struct norm in)
{
    const uint32_t n = b->h->ssm.inner, width = b->h->width;
    struct binder *w = &b->bind;
    const int il = (int)layer;
    struct operand p = build_mix(b, MIX_IN, 2 * n), c = build_mix(b, MIX_CONV, n),
                   y = build_mix(b, MIX_OUT, n), gates = build_mix(b, MIX_LOW, 2 * n);
    struct op_proj *o = build_proj(b, layer, b->x, in, p);
    proj_add(o, bind_linear(w, "lru_in", il, n, width));
    proj_add(o, bind_linear(w, "lru_gate", il, n, width));
    build_conv(b, layer, "ssm_conv1d", (struct op_conv){.in = p, .out = c, .channels = n});
    block_product(b, layer, "lru_input_gate", c, gates);
    block_product(b, layer, "lru_recurrent_gate", c, column(gates, n));
    struct op_cell cell = {.in = c, .gate = gates, .decay = column(gates, n), .out = y, .channels = n};
    cell.a = bind_mapped(b, "lru_a", layer, "", (struct shape){1, n, 1},
                         b->h->container == STORE_GGUF ? NULL : lru_decay);
    cell.gate_bias = bind_vector(w, "lru_input_gate", il, ".bias", n, 0);
    cell.decay_bias = bind_vector(w, "lru_recurrent_gate", il, ".bias", n, 0);
    cell.state = plan_keep(b->p, layer, 1, 1, n);
    plan_add(b->p, OP_CELL, layer)->cell = cell;
    struct op_out *out = build_back(b, layer, "lru_out", y, n);
    out->gate = (struct gate){.in = column(p, n), .act = b->h->act};
    return out;
}

/* ---- xLSTM ---- */

/* q, k, v and the gates of the output, of writing and of forgetting, one after the other, however the file has them. */
static void mlstm_inputs(struct build *b, uint32_t layer, struct op_proj *o)
{
    const struct ssm_params *s = &b->h->ssm;
    const uint32_t keys = s->heads * s->state, len[4] = {keys, keys, s->inner, s->inner},
                   all = 2 * (keys + s->inner);
    static const char *const names[4] = {"attn_q", "attn_k", "attn_v", "attn_gate"};
    const int il = (int)layer;
    struct slice part[4];
    struct linear of[4] = {0};
    for (uint32_t i = 0, at = 0; i < 4; at += len[i++])
        part[i] = (struct slice){names[i], 1, all, at, len[i]};
    if (bind_has(&b->bind, "attn_qkv", il))
        bind_split(&b->bind, "attn_qkv", il, (struct shape){all, b->h->width, 1}, part, 4, of);
    for (int i = 0; i < 4; i++)
        proj_add(o, of[i].weight ? of[i] : bind_linear(&b->bind, names[i], il, len[i], b->h->width));
    if (bind_has(&b->bind, "mlstm_gates", il)) {
        proj_add(o, bind_linear(&b->bind, "mlstm_gates", il, 2 * s->heads, b->h->width));
        return;
    }
    proj_add(o, bind_linear(&b->bind, "mlstm_input_gate", il, s->heads, b->h->width));
    proj_add(o, bind_linear(&b->bind, "mlstm_forget_gate", il, s->heads, b->h->width));
}

/* mLSTM: linear attention with exponential gates, divided by the sum of its weights. */
struct op_out *build_mlstm(struct build *b, uint32_t layer, struct norm in)
{
    const struct ssm_params *s = &b->h->ssm;
    const uint32_t n = s->heads, keys = n * s->state;
    struct operand p = build_mix(b, MIX_IN, 2 * (keys + s->inner + n)), y = build_mix(b, MIX_OUT, s->inner),
                   gates = build_mix(b, MIX_LOW, 3 * n), size = build_mix(b, MIX_STEP, n),
                   given = column(p, 2 * (keys + s->inner));
    mlstm_inputs(b, layer, build_proj(b, layer, b->x, in, p));
    if (b->h->attn_softcap > 0)
        build_map(b, layer, given, given, 2 * n)->cap = b->h->attn_softcap;
    struct op_cell cell = {
        .kind = CELL_GATES, .gate = given, .decay = column(given, n), .out = gates, .channels = n};
    cell.state = plan_keep(b->p, layer, 1, cell_kept(cell.kind), n);
    plan_add(b->p, OP_CELL, layer)->cell = cell;
    float *ones = bind_memory(&b->bind, n * sizeof *ones);
    for (uint32_t i = 0; ones && i < n; i++)
        ones[i] = 1;
    const weight_id a = ones ? bind_table(&b->bind, "a", NULL, ones, (struct shape){1, n, 1}) : 0;
    struct op_scan each = {.heads = n, .k_heads = n, .k_dim = s->state, .v_dim = 1, .a = a, .q = p};
    each.decay_kind = DECAY_GIVEN, each.decay = gates, each.k = column(p, keys);
    struct op_scan *scan = build_scan(b, layer, each); /* the sum of keys, as the gates weigh them */
    scan->v = column(gates, n), scan->out = size, scan->q_scale = 1 / sqrtf((float)s->state);
    each.v_dim = s->inner / n;
    scan = build_scan(b, layer, each);
    scan->v = column(p, 2 * keys), scan->out = y, scan->q_scale = 1 / sqrtf((float)s->state);
    scan->write = column(gates, n);
    scan->size = size, scan->least = column(gates, 2 * n), scan->size_eps = s->eps;
    struct op_out *out = build_back(b, layer, "ssm_out", y, s->inner);
    out->norm = (struct norm){.kind = NORM_LAYER, .eps = b->h->eps, .heads = n};
    out->norm.weight = bind_vector(&b->bind, "ssm_norm", (int)layer, ".weight", s->inner, 0);
    out->gate = (struct gate){.in = column(p, 2 * keys + s->inner), .act = ACT_SIGMOID};
    return out;
}

/* Lightning attention: heads decay by slopes that follow from the head and the layer. */
struct op_out *build_lightning(struct build *b, uint32_t layer, struct norm in)
{
    const struct hparams *h = b->h;
    uint32_t dim = h->k_dim, inner = h->heads * dim;
    struct operand p = build_mix(b, MIX_IN, 4 * inner), y = build_mix(b, MIX_OUT, inner);
    const struct slice part[3] = {{"attn_qkv", h->heads, 3 * dim, 0, dim},
                                  {"attn_qkv", h->heads, 3 * dim, dim, dim},
                                  {"attn_qkv", h->heads, 3 * dim, 2 * dim, dim}};
    struct linear qkv[3] = {0};
    struct op_proj *o = build_proj(b, layer, b->x, in, p);
    bind_split(&b->bind, "attn_qkv", (int)layer, (struct shape){3 * inner, h->width, 1}, part, 3, qkv);
    for (int i = 0; i < 3; i++) {
        o->act[i] = h->act;
        proj_add(o, qkv[i]);
    }
    proj_add(o, bind_linear(&b->bind, "attn_gate", (int)layer, inner, h->width));
    float *slopes = bind_memory(&b->bind, h->heads * sizeof *slopes);
    double of_layer = 1 - layer / (h->layers - 1 + 1e-5) + 1e-5;
    for (uint32_t i = 0; slopes && i < h->heads; i++)
        slopes[i] = (float)-(pow(2, -8.0 * (i + 1) / h->heads) * of_layer);
    weight_id a = slopes ? bind_table(&b->bind, "slopes", NULL, slopes, (struct shape){1, h->heads, 1}) : 0;
    struct op_scan *scan = build_scan(
        b, layer,
        (struct op_scan){.heads = h->heads, .k_heads = h->heads, .k_dim = dim, .v_dim = dim, .a = a});
    scan->q = p, scan->k = column(p, inner), scan->v = column(p, 2 * inner), scan->out = y;
    struct op_out *out = build_back(b, layer, "attn_output", y, inner);
    out->norm = (struct norm){.kind = NORM_RMS, .eps = h->ssm.eps};
    out->norm.weight = bind_vector(&b->bind, "attn_norm_2", (int)layer, ".weight", inner, 0);
    out->gate = (struct gate){.in = column(p, 3 * inner), .act = ACT_SIGMOID};
    return out;
}
