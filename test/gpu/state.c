/* gpu_state [all | quick] [NAME]: layers that keep a state on the GPU against the CPU in its exact arithmetic: every kind of
 * recurrence, odd sizes, sequences side by side, prompts in pieces, states that stay, move and are cut back. quick: a few
 * steps, for compute-sanitizer. */
#include "rig.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;
static bool quick;
static const char *only;

enum { WIDTH = 256, VOCAB = 193, TOKENS = 1024 };

struct layer {
    const char *name;
    uint32_t heads, k_heads, k_dim, v_dim, cols;
    enum decay_kind decay;
    uint32_t sharing;
    bool delta, each, channels, tiled, qk_norm, mul, skip, no_scan, erase, before, rest, gates, cell;
    bool chunks;         /* the steps are those of build_chunks */
    float bound;         /* of the default arithmetic; 0: 1e-2 */
    float fast, slow;    /* what the state decays by, as powers; 0: as usual */
    enum cell_kind kind; /* of a cell */
    enum norm_kind norm; /* behind the recurrence */
    uint32_t norm_slices, gate_heads;
    bool gate_first;
};

static const struct layer layers[] = {
    {.name = "mamba 2",
     .heads = 12,
     .k_heads = 2,
     .k_dim = 64,
     .v_dim = 20,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .skip = true,
     .norm = NORM_RMS,
     .norm_slices = 2,
     .gate_first = true},
    {.name = "mamba 2, one group, long keys",
     .heads = 3,
     .k_heads = 1,
     .k_dim = 256,
     .v_dim = 64,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .norm = NORM_RMS,
     .gate_first = true},
    {.name = "mamba 1",
     .heads = 150,
     .k_heads = 1,
     .k_dim = 16,
     .v_dim = 1,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .channels = true,
     .skip = true},
    {.name = "delta rule",
     .heads = 8,
     .k_heads = 4,
     .k_dim = 128,
     .v_dim = 128,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .delta = true,
     .qk_norm = true,
     .norm = NORM_RMS,
     .norm_slices = 8},
    {.name = "delta rule, tiled heads, odd",
     .heads = 6,
     .k_heads = 3,
     .k_dim = 12,
     .v_dim = 17,
     .cols = 3,
     .decay = DECAY_SOFTPLUS,
     .delta = true,
     .tiled = true,
     .qk_norm = true,
     .norm = NORM_RMS,
     .norm_slices = 6},
    {.name = "delta rule, a decay for each key",
     .heads = 4,
     .k_heads = 4,
     .k_dim = 96,
     .v_dim = 96,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .delta = true,
     .each = true,
     .qk_norm = true,
     .norm = NORM_RMS,
     .norm_slices = 4},
    {.name = "bounded decay for each key",
     .heads = 4,
     .k_heads = 4,
     .k_dim = 24,
     .v_dim = 30,
     .cols = 8,
     .decay = DECAY_SIGMOID,
     .delta = true,
     .each = true,
     .qk_norm = true,
     .norm = NORM_RMS,
     .norm_slices = 4},
    {.name = "a direction that is erased",
     .heads = 4,
     .k_heads = 4,
     .k_dim = 64,
     .v_dim = 64,
     .cols = 2,
     .decay = DECAY_SIGMOID,
     .each = true,
     .erase = true,
     .norm = NORM_LAYER,
     .norm_slices = 4},
    {.name = "erased, odd",
     .heads = 3,
     .k_heads = 3,
     .k_dim = 20,
     .v_dim = 33,
     .cols = 2,
     .decay = DECAY_SIGMOID,
     .each = true,
     .erase = true,
     .skip = true},
    {.name = "the state before the row",
     .heads = 4,
     .k_heads = 4,
     .k_dim = 64,
     .v_dim = 64,
     .cols = 2,
     .decay = DECAY_EXP,
     .each = true,
     .before = true,
     .norm = NORM_LAYER,
     .norm_slices = 4},
    {.name = "before, odd",
     .heads = 3,
     .k_heads = 3,
     .k_dim = 20,
     .v_dim = 33,
     .cols = 2,
     .decay = DECAY_EXP,
     .each = true,
     .before = true,
     .skip = true},
    {.name = "shared keys, times what decays",
     .heads = 6,
     .k_heads = 6,
     .k_dim = 64,
     .v_dim = 64,
     .cols = 2,
     .decay = DECAY_EXP,
     .each = true,
     .rest = true,
     .sharing = 3},
    {.name = "channels of several keys",
     .heads = 210,
     .k_heads = 3,
     .k_dim = 16,
     .v_dim = 1,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .channels = true,
     .skip = true},
    {.name = "channels of a key each, odd",
     .heads = 6,
     .k_heads = 6,
     .k_dim = 7,
     .v_dim = 1,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .channels = true},
    {.name = "gated channels", .heads = 200, .k_heads = 200, .k_dim = 1, .v_dim = 1, .cols = 4, .cell = true},
    {.name = "weighted averages of channels",
     .heads = 200,
     .k_heads = 200,
     .k_dim = 1,
     .v_dim = 1,
     .cols = 2,
     .cell = true,
     .kind = CELL_AVERAGE},
    {.name = "exponential gates",
     .heads = 4,
     .k_heads = 4,
     .k_dim = 32,
     .v_dim = 64,
     .cols = 2,
     .gates = true,
     .norm = NORM_LAYER,
     .norm_slices = 4},
    {.name = "exponential gates, odd",
     .heads = 3,
     .k_heads = 3,
     .k_dim = 23,
     .v_dim = 17,
     .cols = 2,
     .gates = true},
    {.name = "fixed decay",
     .heads = 4,
     .k_heads = 4,
     .k_dim = 40,
     .v_dim = 40,
     .cols = 2,
     .decay = DECAY_FIXED,
     .norm = NORM_RMS,
     .gate_heads = 4},
    {.name = "the longest keys",
     .heads = 2,
     .k_heads = 2,
     .k_dim = 512,
     .v_dim = 9,
     .cols = 5,
     .decay = DECAY_SOFTPLUS},
    {.name = "delta rule in chunks",
     .heads = 4,
     .k_heads = 2,
     .k_dim = 128,
     .v_dim = 128,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .delta = true,
     .qk_norm = true,
     .norm = NORM_RMS,
     .norm_slices = 4,
     .chunks = true},
    {.name = "delta rule in chunks, tiled heads, 64 keys",
     .heads = 6,
     .k_heads = 3,
     .k_dim = 64,
     .v_dim = 64,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .delta = true,
     .tiled = true,
     .qk_norm = true,
     .norm = NORM_RMS,
     .norm_slices = 6,
     .chunks = true},
    {.name = "delta rule in chunks, strong decays",
     .heads = 4,
     .k_heads = 4,
     .k_dim = 128,
     .v_dim = 64,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .delta = true,
     .qk_norm = true,
     .norm = NORM_RMS,
     .norm_slices =
         1, /* not by head: v times the sign of q k, which may be about zero, is off by 0.1 from rounded inputs
                        * alone */
     .chunks = true,
     .fast = 30.0f,
     .slow = 2.0f},
    {.name = "delta rule in chunks, weak decays, odd",
     .heads = 4,
     .k_heads = 2,
     .k_dim = 96,
     .v_dim = 48,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .delta = true,
     .tiled = true,
     .qk_norm = true,
     .norm = NORM_RMS,
     .norm_slices = 4,
     .chunks = true,
     .fast = 0.01f,
     .slow = 0.0001f},
    {.name = "delta rule in chunks, 16 keys",
     .heads = 4,
     .k_heads = 2,
     .k_dim = 16,
     .v_dim = 16,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .delta = true,
     .qk_norm = true,
     .norm = NORM_RMS,
     .norm_slices = 4,
     .chunks = true,
     .bound = 2e-2f /* a norm of 16 values may divide by little; row by row it is 6e-3 */},
    {.name = "mamba 2 in chunks",
     .heads = 4,
     .k_heads = 1,
     .k_dim = 128,
     .v_dim = 64,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .skip = true,
     .norm = NORM_RMS,
     .gate_first = true,
     .chunks = true},
    {.name = "mamba 2 in chunks, 64 keys, strong decays",
     .heads = 6,
     .k_heads = 2,
     .k_dim = 64,
     .v_dim = 16,
     .cols = 4,
     .decay = DECAY_SOFTPLUS,
     .norm = NORM_RMS,
     .gate_first = true,
     .chunks = true,
     .fast = 30.0f,
     .slow = 0.01f},
    {.name = "short convolution",
     .heads = 1,
     .k_heads = 1,
     .k_dim = 1,
     .v_dim = 200,
     .cols = 3,
     .mul = true,
     .no_scan = true},
};

/* A vector of numbers in [low, high]. */
static weight_id between(struct rig *r, uint32_t n, float low, float high)
{
    return rig_vector(r, n, 0.5f * (low + high), 0.5f * (high - low));
}

static struct op_scan scan_of(struct rig *r, const struct layer *l)
{
    const uint32_t decays = l->heads * (l->each ? l->k_dim : 1);
    struct op_scan o = {.heads = l->heads, .k_heads = l->k_heads, .k_dim = l->k_dim, .v_dim = l->v_dim};
    o.tiled = l->tiled, o.delta = l->delta, o.decay_each = l->each, o.decay_kind = l->decay;
    o.before = l->before, o.rest = l->rest, o.sharing = l->sharing;
    o.q_scale = 0.3f, o.k_scale = l->qk_norm ? 1.0f / sqrtf((float)l->k_dim) : 0.2f;
    o.dt_range[0] = 0.001f, o.dt_range[1] = 3.0f, o.bound = -2.0f, o.write_scale = 1.0f;
    o.a = l->channels ? rig_matrix(r, DTYPE_F32, l->heads, l->k_dim, 1, 1.0f)
                      : between(r, l->heads, l->fast ? -l->fast : -1.0f, l->fast ? -l->slow : -0.05f);
    if (l->channels) {
        float *a = (float *)r->weights.all[o.a].data;
        for (uint32_t i = 0; i < l->heads * l->k_dim; i++)
            a[i] = -0.02f - fabsf(a[i]);
    }
    o.bias = l->decay == DECAY_FIXED ? 0 : between(r, decays, -1.0f, 1.0f);
    o.skip = l->skip ? between(r, l->heads, -1.0f, 1.0f) : 0;
    if (l->qk_norm)
        o.q_norm = o.k_norm = (struct norm){.kind = NORM_RMS, .eps = 1e-6f, .heads = l->k_heads};
    return o;
}

/* Its input, gate and decay are the v, k and q of a recurrence of heads. */
static void add_cell(struct rig *r, const struct layer *l, uint32_t layer, struct operand c, struct operand y)
{
    const uint32_t n = l->heads;
    struct op_cell cell = {.kind = l->kind, .in = c, .gate = {c.buffer, n}, .out = y, .channels = n};
    if (l->kind == CELL_LRU) {
        cell.decay = (struct operand){c.buffer, 2 * n};
        cell.decay_bias = layer ? between(r, n, -1.0f, 1.0f) : 0;
    }
    cell.a = between(r, n, -2.0f, -0.02f);
    cell.gate_bias = between(r, n, -1.0f, 1.0f);
    cell.state = plan_keep(&r->plan, layer, 1, cell_kept(l->kind), n);
    plan_add(&r->plan, OP_CELL, layer)->cell = cell;
}

/* mLSTM: gates, the sums of keys, then the recurrence that is divided by them. decay and write are the gates' inputs. */
static void add_gates(struct rig *r, const struct layer *l, uint32_t layer, struct op_scan o)
{
    const uint32_t n = l->heads;
    struct operand gates = plan_buffer(&r->plan, 3 * n), size = plan_buffer(&r->plan, n);
    struct op_cell cell = {
        .kind = CELL_GATES, .gate = o.write, .decay = o.decay, .out = gates, .channels = n};
    cell.gate_bias = between(r, n, -1.0f, 1.0f);
    cell.decay_bias = layer ? between(r, n, 0.0f, 3.0f) : 0;
    cell.state = plan_keep(&r->plan, layer, 1, 1, n);
    plan_add(&r->plan, OP_CELL, layer)->cell = cell;
    o.decay_kind = DECAY_GIVEN, o.bias = 0, o.decay = gates, o.size_eps = 1e-6f;
    struct op_scan sum = o;
    sum.v_dim = 1, sum.v = (struct operand){gates.buffer, n}, sum.write.buffer = 0, sum.out = size;
    sum.state = plan_keep(&r->plan, layer, n, l->k_dim, 1);
    plan_add(&r->plan, OP_SCAN, layer)->scan = sum;
    o.write = (struct operand){gates.buffer, n}, o.size = size,
    o.least = (struct operand){gates.buffer, 2 * n};
    o.state = plan_keep(&r->plan, layer, n, l->k_dim, l->v_dim);
    plan_add(&r->plan, OP_SCAN, layer)->scan = o;
}

/* Columns of the projection: gate, v, k, q, decay, write. */
static void add_layer(struct rig *r, const struct layer *l, uint32_t type, uint32_t layer, struct operand x)
{
    const uint32_t inner = l->heads * l->v_dim, keys = l->k_heads * l->k_dim, channels = inner + 2 * keys,
                   decays = l->heads * (l->each ? l->k_dim : 1);
    const uint32_t parts[] = {inner, channels, decays, l->heads, inner};
    struct operand p = plan_buffer(&r->plan, 2 * inner + channels + decays + l->heads),
                   c = plan_buffer(&r->plan, channels), y = plan_buffer(&r->plan, inner);
    struct op_proj *proj = &plan_add(&r->plan, OP_PROJ, layer)->proj;
    *proj = (struct op_proj){.in = x, .out = p, .norm = rig_norm(r, NORM_RMS, WIDTH), .count = 5};
    for (uint32_t i = 0; i < 5; i++) {
        proj->linear[i] = rig_linear(r, type, parts[i], WIDTH, i == 1);
        proj->scale[i] = i == 2 ? 0.5f : 1.0f;
        proj->act[i] = i == 4 ? ACT_SIGMOID : ACT_NONE;
    }
    struct op_conv *conv = &plan_add(&r->plan, OP_CONV, layer)->conv;
    *conv = (struct op_conv){.in = {p.buffer, inner}, .out = c, .channels = channels, .cols = l->cols};
    conv->act = l->mul ? ACT_NONE : ACT_SILU;
    conv->weight = rig_matrix(r, DTYPE_F32, channels, l->cols, 1, 0.6f);
    conv->bias = l->mul ? 0 : rig_vector(r, channels, 0, 0.1f);
    if (l->mul) { /* values alone: by the columns behind all others */
        conv->mul = (struct operand){p.buffer, inner + channels + decays + l->heads};
        conv->channels = inner;
        conv->weight = rig_matrix(r, DTYPE_F32, inner, l->cols, 1, 0.6f);
    }
    conv->state = plan_keep(&r->plan, layer, 1, l->cols - 1, conv->channels);
    if (l->cell) {
        add_cell(r, l, layer, c, y);
    } else if (!l->no_scan) {
        struct op_scan o = scan_of(r, l);
        o.v = c, o.k = (struct operand){c.buffer, inner}, o.q = (struct operand){c.buffer, inner + keys};
        o.decay = l->decay == DECAY_FIXED && !l->gates ? (struct operand){0}
                                                       : (struct operand){p.buffer, inner + channels};
        if (l->delta || l->gates)
            o.write = (struct operand){p.buffer, inner + channels + decays};
        if (l->erase) {
            o.erase = o.k;
            o.rate = o.decay;
        }
        o.out = y;
        if (l->gates) {
            add_gates(r, l, layer, o);
        } else {
            o.state = plan_keep(&r->plan, layer, l->heads, l->k_dim, l->v_dim);
            plan_add(&r->plan, OP_SCAN, layer)->scan = o;
        }
    }
    struct op_out *out = &plan_add(&r->plan, OP_OUT, layer)->out;
    *out = (struct op_out){.in = l->no_scan ? c : y, .linear = rig_linear(r, type, WIDTH, inner, false)};
    out->gate = (struct gate){.in = {p.buffer, l->gate_heads ? inner + channels : 0},
                              .act = l->gate_heads ? ACT_SIGMOID : ACT_SILU,
                              .heads = l->gate_heads,
                              .first = l->gate_first};
    if (l->norm) {
        out->norm = rig_norm(r, l->norm, l->norm_slices && !l->gate_first ? inner / l->norm_slices : inner);
        out->norm.heads = l->norm_slices;
    }
    out->tail = (struct tail){.scale = 1.0f, .residual = x, .out = x};
}

static void build(struct rig *r, const struct layer *l, uint32_t type)
{
    *r = (struct rig){.max_rows = 512, .max_seqs = 48, .vocab = VOCAB};
    struct operand x = plan_buffer(&r->plan, WIDTH);
    struct op_embed *embed = &plan_add(&r->plan, OP_EMBED, UINT32_MAX)->embed;
    *embed =
        (struct op_embed){.table = rig_matrix(r, DTYPE_F32, VOCAB, WIDTH, 1, 1.0f), .scale = 1.0f, .out = x};
    for (uint32_t i = 0; i < 2; i++)
        add_layer(r, l, type, i, x);
    struct op_logits *o = &plan_add(&r->plan, OP_LOGITS, UINT32_MAX)->logits;
    *o = (struct op_logits){.in = x, .norm = rig_norm(r, NORM_RMS, WIDTH), .scale = 1.0f};
    o->head = rig_linear(r, type, VOCAB, WIDTH, false);
    r->plan.out_width = VOCAB;
}

/* Prompts, pieces of prompts, sequences side by side, single rows (twice and more: the last replay a graph), and a
 * sequence that goes back to the middle of its last rows. */
enum { STEPS = 12, QUICK_STEPS = 6 };

static void build_step(struct rig *r, int step)
{
    if (step == 5)
        rig_back(r, 1, 19);
    rig_begin(r);
    switch (step) {
    case 0:
        rig_add(r, 0, 37, true);
        break;
    case 1:
        rig_add(r, 1, 200, false);
        rig_add(r, 0, 1, true);
        rig_add(r, 2, 3, true);
        break;
    case 2:
        for (uint32_t i = 3; i < 8; i++)
            rig_add(r, i, 7 * i - 14, true);
        break;
    case 3:
        rig_add(r, 1, 300, false);
        break;
    case 4:
        rig_add(r, 1, 19, true);
        rig_add(r, 0, 2, true);
        break;
    case 5:
    case 6:
    case 7:
        rig_add(r, 1, 1, true);
        break;
    default:
        for (uint32_t i = 0; i < (step == STEPS - 1 ? 40 : 8); i++)
            rig_add(r, i, 1, true);
    }
}

/* Steps around the sizes of chunks, with sequences of few rows beside them. Every prompt keeps a state in its middle. */
static void build_chunks(struct rig *r, int step)
{
    static const uint32_t rows[][8] = {{2, 31, 32, 33, 63, 64, 65}, {100}, {129, 0, 128, 1, 3}, {300}, {512},
                                       {1, 1, 1, 1, 1, 1, 1, 1}};
    if (step == 2)
        rig_back(r, 0, 100);
    rig_begin(r);
    for (uint32_t i = 0; step < 6 && i < 8; i++)
        if (rows[step][i])
            rig_add(r, i, rows[step][i], true);
    for (uint32_t i = 0; step >= 6 && i < 3; i++) /* pieces of different sequences */
        rig_add(r, 8 + (i + (uint32_t)step) % 4, 17 + 41 * i, step % 2);
}

static float *run_steps(struct rig *r, const struct layer *l, const char *device, bool exact, size_t *count,
                        struct err *e)
{
    const struct device_options options = {.exact = exact, .no_parity = quick};
    float *all = mem_alloc(1u << 20, sizeof *all);
    *count = 0;
    bool good = all && !rig_open(r, device, &options, DTYPE_F32, TOKENS, e);
    for (int s = 0; good && s < (quick ? QUICK_STEPS : STEPS); s++) {
        if (l->chunks)
            build_chunks(r, s);
        else
            build_step(r, s);
        const float *y = rig_run(r, e);
        const size_t n = (size_t)r->step.outs * VOCAB;
        if ((good = y != NULL))
            memcpy(all + *count, y, n * sizeof *y);
        *count += n;
    }
    rig_close(r);
    if (good)
        return all;
    mem_free(all);
    return NULL;
}

/* The largest difference, in relation to the largest number. */
static double distance(const float *a, const float *b, size_t n)
{
    double most = 0, off = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        off = d <= off ? off : d; /* a NaN stays */
        most = fmax(most, fabs((double)b[i]));
    }
    return off / most;
}

static void check(const struct layer *l, uint32_t type)
{
    struct rig r;
    struct err e = {0};
    size_t n = 0, m = 0;
    if ((only && !strstr(l->name, only)) || (type == DTYPE_Q8_0 && l->heads * l->v_dim % 32))
        return;
    build(&r, l, type);
    float *want = run_steps(&r, l, "cpu", true, &n, &e);
    for (int exact = 1; exact >= 0; exact--) {
        float *got = want ? run_steps(&r, l, "cuda", exact, &m, &e) : NULL;
        const double d = got && m == n ? distance(got, want, n) : 1e9,
                     bound = exact      ? 5e-5
                             : l->bound ? l->bound
                             : l->each  ? 4e-2 /* errors of decays add up over the keys */
                                        : 1e-2;
        const bool good = d <= bound;
        printf("%s %s, %s%s: %.2e of %.0e%s%s\n", good ? "ok  " : "FAIL", l->name, dtype_get(type)->name,
               exact ? ", exact" : "", d, bound, got ? "" : " ", got ? "" : e.text);
        passed += good;
        failed += !good;
        mem_free(got);
        e = (struct err){0};
    }
    mem_free(want);
    rig_free(&r);
}

int main(int argc, char **argv)
{
    static const uint32_t types[] = {DTYPE_F32, DTYPE_Q8_0, DTYPE_F16};
    quick = argc > 1 && !strcmp(argv[1], "quick");
    only = argc > 2 ? argv[2] : NULL;
    for (size_t i = 0; i < (quick ? 1 : sizeof types / sizeof types[0]); i++)
        for (size_t j = 0; j < sizeof layers / sizeof layers[0]; j++) {
            rig_seed(100 * i + j + 1);
            check(&layers[j], types[i]);
        }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
