/* Convolutions and recurrences: every tier's kernels against plain C, and the operations of the CPU device, where
 * neither the cut of a prompt into steps, nor the slots, nor the threads may change a bit. */
#include "device/cpu/kernels.h"
#include "device/device.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

static uint32_t seed = 7;

static float random_value(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (float)(1u << 23) - 1.0f;
}

static void fill(float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_value() * scale;
}

static void check_close(const char *what, const char *tier, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= 2e-5f * (1 + fabsf(b[i]))))
            fail_msg("%s %s: value %zu of %zu is %.9g, scalar has %.9g", tier, what, i, n, (double)a[i],
                     (double)b[i]);
}

/* ---- kernels ---- */

enum { ROWS = 9, WIDE = 200, MOST = 80 };

static void check_conv(const struct kernels *k, const struct kernels *s, uint32_t channels, uint32_t cols)
{
    static float x[ROWS * WIDE], mul[ROWS * WIDE], w[WIDE * 12], bias[WIDE], past[2][12 * WIDE],
        y[2][ROWS * WIDE];
    fill(x, ROWS * WIDE, 1);
    fill(mul, ROWS * WIDE, 1);
    fill(w, WIDE * 12, 1);
    fill(bias, WIDE, 1);
    fill(past[0], 12 * WIDE, 1);
    for (int with = 0; with < 4; with++) {
        memcpy(past[1], past[0], sizeof past[0]);
        memset(y, 0, sizeof y);
        for (int i = 0; i < 2; i++) {
            struct conv_tile t = {
                .x = x, .mul = with & 1 ? mul : NULL, .w = w, .bias = with & 2 ? bias : NULL};
            t.past = past[i], t.y = y[i];
            t.x_stride = t.mul_stride = t.past_stride = t.y_stride = WIDE;
            t.n = ROWS, t.channels = channels, t.cols = cols;
            t.act = with & 1 ? ACT_NONE : ACT_SILU;
            (i ? s : k)->conv(&t);
        }
        check_close("conv", k->tier, y[0], y[1], ROWS * WIDE);
        check_close("conv's past", k->tier, past[0], past[1], (size_t)(cols - 1) * WIDE);
    }
}

static void check_scan(const struct kernels *k, const struct kernels *s, uint32_t k_dim, uint32_t v_dim)
{
    static float q[ROWS * MOST], key[ROWS * MOST], v[ROWS * WIDE], g[ROWS * MOST], write[ROWS];
    static float erase[ROWS * MOST], rate[ROWS * WIDE];
    static float state[2][MOST * WIDE], y[2][ROWS * WIDE];
    fill(q, ROWS * MOST, 0.3f);
    fill(key, ROWS * MOST, 0.3f);
    fill(v, ROWS * WIDE, 1);
    fill(write, ROWS, 1);
    fill(erase, ROWS * MOST, 0.2f);
    fill(rate, ROWS * WIDE, 1);
    for (size_t i = 0; i < ROWS * MOST; i++)
        g[i] = 0.9f + 0.1f * random_value();
    for (int with = 0; with < 6; with++) {
        fill(state[0], MOST * WIDE, 1);
        memcpy(state[1], state[0], sizeof state[0]);
        memset(y, 0, sizeof y);
        for (int i = 0; i < 2; i++) {
            struct scan_tile t = {.q = q, .k = key, .v = v, .decay = g, .write = write, .skip = 0.4f};
            t.s = state[i], t.y = y[i];
            t.v_stride = t.s_stride = t.y_stride = WIDE;
            t.n = ROWS, t.k_dim = k_dim, t.v_dim = v_dim;
            t.delta = with < 4 && with & 1;
            t.before = with == 5;
            t.decays = with & 2 ? k_dim : 1;
            if (with == 4) {
                t.erase = erase, t.rate = rate;
                t.rate_stride = WIDE;
                t.decays = k_dim;
            }
            (i ? s : k)->scan(&t);
        }
        check_close("scan", k->tier, y[0], y[1], ROWS * WIDE);
        check_close("scan's state", k->tier, state[0], state[1], MOST * WIDE);
    }
}

static void check_channels(const struct kernels *k, const struct kernels *s, uint32_t k_dim,
                           uint32_t channels)
{
    static float q[ROWS * MOST], key[ROWS * MOST], v[ROWS * WIDE], dt[ROWS * WIDE], a[WIDE * MOST],
        skip[WIDE];
    static float state[2][WIDE * MOST], y[2][ROWS * WIDE];
    fill(q, ROWS * MOST, 0.3f);
    fill(key, ROWS * MOST, 0.3f);
    fill(v, ROWS * WIDE, 1);
    fill(skip, WIDE, 1);
    fill(state[0], WIDE * MOST, 1);
    memcpy(state[1], state[0], sizeof state[0]);
    for (size_t i = 0; i < ROWS * WIDE; i++)
        dt[i] = fabsf(random_value());
    for (size_t i = 0; i < WIDE * MOST; i++)
        a[i] = -3 * fabsf(random_value());
    for (int i = 0; i < 2; i++) {
        struct scan_channels t = {.q = q, .k = key, .v = v, .dt = dt, .a = a, .skip = skip};
        t.s = state[i], t.y = y[i];
        t.v_stride = t.y_stride = WIDE;
        t.n = ROWS, t.k_dim = k_dim, t.channels = channels;
        (i ? s : k)->scan_channels(&t);
    }
    check_close("scan_channels", k->tier, y[0], y[1], ROWS * WIDE);
    check_close("its state", k->tier, state[0], state[1], (size_t)channels * k_dim);
}

static void check_cell(const struct kernels *k, const struct kernels *s, enum cell_kind kind,
                       uint32_t channels)
{
    static const int32_t pos[ROWS] = {0, 1, 2, 3, 0, 1, 2, 3, 4};
    static float x[ROWS * WIDE], gate[ROWS * WIDE], decay[ROWS * WIDE], bias[2 * WIDE], a[WIDE];
    static float state[2][3 * WIDE], y[2][ROWS * 3 * WIDE];
    fill(x, ROWS * WIDE, 1);
    fill(gate, ROWS * WIDE, 3);
    fill(decay, ROWS * WIDE, 3);
    fill(bias, 2 * WIDE, 1);
    fill(state[0], WIDE, 1);
    memset(state[0] + WIDE, 0, 2 * WIDE * sizeof state[0][0]); /* of an average: no row yet */
    for (size_t i = 0; i < WIDE; i++)
        a[i] = -2 - 2 * random_value();
    for (int with = 0; with < 2; with++) {
        memcpy(state[1], state[0], sizeof state[0]);
        for (int i = 0; i < 2; i++) {
            struct cell_tile t = {.kind = kind, .x = x, .gate = gate, .decay = decay, .a = a, .pos = pos};
            if (with)
                t.gate_bias = bias, t.decay_bias = bias + WIDE;
            t.s = state[i], t.y = y[i];
            t.x_stride = t.gate_stride = t.decay_stride = t.s_stride = t.y_part = WIDE;
            t.y_stride = 3 * WIDE;
            t.n = ROWS, t.channels = channels;
            (i ? s : k)->cell(&t);
        }
        check_close("cell", k->tier, y[0], y[1], ROWS * 3 * WIDE);
        check_close("cell's state", k->tier, state[0], state[1], 3 * WIDE);
    }
}

static void check_decay(const struct kernels *k, const struct kernels *s, uint32_t n)
{
    static float x[WIDE], bias[WIDE], y[2][WIDE], dt[2][WIDE];
    for (int kind = DECAY_FIXED; kind <= DECAY_EXP; kind++) {
        fill(x, WIDE, kind == DECAY_SOFTPLUS ? 30 : 3);
        fill(bias, WIDE, 1);
        float last[2];
        for (int i = 0; i < 2; i++) {
            struct decay_row d = {.kind = kind, .x = x, .bias = bias, .y = y[i], .dt = dt[i], .n = n};
            d.a = kind == DECAY_SIGMOID ? 1.3f : -0.7f;
            d.least = 1e-3f, d.most = 20, d.bound = -5;
            last[i] = (i ? s : k)->decay(&d);
        }
        check_close("decay", k->tier, y[0], y[1], n);
        check_close("dt", k->tier, dt[0], dt[1], n);
        check_close("the last dt", k->tier, &last[0], &last[1], 1);
    }
}

static void test_kernels(void **none)
{
    (void)none;
    static const uint32_t sizes[] = {1, 3, 8, 15, 16, 17, 31, 64, 67, 80};
    const struct kernels *s = kernels_get("scalar", NULL);
    for (size_t t = 1; kernels_tier(t); t++) {
        struct err e = {0};
        const struct kernels *k = kernels_get(kernels_tier(t), &e);
        for (size_t i = 0; k && i < sizeof sizes / sizeof *sizes; i++) {
            check_conv(k, s, 2 * sizes[i], i % 3 == 0 ? 4 : i % 3 == 1 ? 3 : 10);
            check_scan(k, s, sizes[i], 2 * sizes[sizeof sizes / sizeof *sizes - 1 - i]);
            check_scan(k, s, 24, sizes[i]);
            check_channels(k, s, sizes[i], 2 * sizes[i]);
            check_decay(k, s, sizes[i]);
            for (int kind = CELL_LRU; kind <= CELL_GATES; kind++)
                check_cell(k, s, kind, 2 * sizes[i]);
        }
    }
}

/* ---- operations ---- */

enum {
    WIDTH = 48,
    HEADS = 6,
    KEYS = 3,
    KDIM = 10,
    VDIM = 8,
    INNER = HEADS * VDIM,
    TOKENS = 14,
    SLOTS = 24,
    COLS = 4
};

struct rig {
    struct weights weights;
    struct plan plan;
    struct arena arena;
};

static weight_id weight(struct rig *r, uint32_t rows, uint32_t cols, float middle, float spread)
{
    float *data = arena_alloc(&r->arena, (size_t)rows * cols, sizeof *data);
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        data[i] = middle + spread * random_value();
    struct weight w = {.name = "w", .type = DTYPE_F32, .rows = rows, .cols = cols, .count = 1};
    w.data = (const uint8_t *)data;
    w.row_bytes = cols * sizeof *data;
    w.each_bytes = rows * w.row_bytes;
    return weights_add(&r->weights, &w);
}

enum form {
    FORM_SSM,
    FORM_DELTA,
    FORM_KDA,
    FORM_TILED,
    FORM_FIXED,
    FORM_CHANNELS,
    FORM_CHANNEL_HEADS,
    FORM_ERASE,
    FORM_BEFORE,
    FORM_SHARING,
    FORM_CELL,
    FORM_AVERAGE,
    FORM_GATES,
    FORM_CONV,
    FORMS
};

static void add_scan(struct rig *r, enum form form, struct operand p, struct operand c, struct operand y)
{
    struct op_scan o = {.heads = HEADS, .k_heads = KEYS, .k_dim = KDIM, .v_dim = VDIM, .q = c, .out = y};
    bool channels = form == FORM_CHANNELS || form == FORM_CHANNEL_HEADS;
    o.k = (struct operand){c.buffer, KEYS * KDIM}, o.v = (struct operand){c.buffer, 2 * KEYS * KDIM};
    o.q_scale = o.k_scale = 0.4f, o.write_scale = 1.5f;
    o.dt_range[1] = INFINITY;
    o.decay_kind = DECAY_SOFTPLUS;
    o.decay = p;
    o.delta = form == FORM_DELTA || form == FORM_KDA || form == FORM_TILED;
    o.before = form == FORM_BEFORE;
    o.rest = form == FORM_SHARING;
    o.decay_each = form == FORM_KDA || form == FORM_ERASE || o.before || o.rest;
    o.tiled = form == FORM_TILED;
    if (o.delta)
        o.write = (struct operand){p.buffer, HEADS * KDIM};
    if (form == FORM_FIXED)
        o.decay_kind = DECAY_FIXED, o.decay.buffer = 0;
    if (form == FORM_KDA)
        o.decay_kind = DECAY_SIGMOID, o.bound = -3;
    if (form == FORM_ERASE) {
        o.heads = o.k_heads, o.v_dim = INNER / KEYS; /* what is erased is k before its norm */
        o.erase = o.k, o.rate = p;
    }
    if (o.before || o.rest) /* q is what k is */
        o.k_heads = o.heads = 3, o.v_dim = INNER / 3, o.decay_kind = DECAY_EXP;
    if (o.rest)
        o.sharing = 3;
    if (channels)
        o.heads = INNER, o.v_dim = 1, o.k_heads = form == FORM_CHANNELS ? 1 : KEYS;
    o.q_norm = (struct norm){.kind = NORM_RMS, .eps = 1e-6f, .heads = o.k_heads};
    if (!o.sharing)
        o.k_norm = o.q_norm;
    o.a = channels ? weight(r, INNER, KDIM, -1, 0.5f)
                   : weight(r, 1, o.heads, form == FORM_KDA ? 1 : -0.5f, 0.3f);
    if (o.decay.buffer)
        o.bias = weight(r, 1, o.heads * (o.decay_each ? KDIM : 1), 0, 1);
    o.skip = weight(r, 1, o.heads, 0, 1);
    o.state = plan_keep(&r->plan, 0, o.heads, o.k_dim, o.v_dim);
    plan_add(&r->plan, OP_SCAN, 0)->scan = o;
}

static void add_cell(struct rig *r, enum form form, struct operand p, struct operand c, struct operand y)
{
    struct op_cell o = {.in = c, .gate = p, .out = y, .channels = INNER};
    if (form == FORM_AVERAGE)
        o.kind = CELL_AVERAGE;
    else
        o.decay = (struct operand){p.buffer, HEADS}, o.decay_bias = weight(r, 1, INNER, 0, 1);
    o.a = weight(r, 1, INNER, -2, 1.5f);
    o.gate_bias = weight(r, 1, INNER, 0, 1);
    o.state = plan_keep(&r->plan, 0, 1, cell_kept(o.kind), INNER);
    plan_add(&r->plan, OP_CELL, 0)->cell = o;
}

/* mLSTM: gates, the sums of keys, then the recurrence that is divided by them. */
static void add_gates(struct rig *r, struct operand p, struct operand c, struct operand y)
{
    struct operand gates = plan_buffer(&r->plan, 3 * KEYS), size = plan_buffer(&r->plan, KEYS);
    struct op_cell g = {
        .kind = CELL_GATES, .gate = p, .decay = {p.buffer, KEYS}, .out = gates, .channels = KEYS};
    g.decay_bias = weight(r, 1, KEYS, 2, 1);
    g.state = plan_keep(&r->plan, 0, 1, 1, KEYS);
    plan_add(&r->plan, OP_CELL, 0)->cell = g;
    struct op_scan o = {.heads = KEYS, .k_heads = KEYS, .k_dim = KDIM, .v_dim = 1, .q = c, .out = size};
    o.k = (struct operand){c.buffer, KEYS * KDIM}, o.v = (struct operand){gates.buffer, KEYS};
    o.q_scale = 0.4f, o.k_scale = o.write_scale = 1, o.size_eps = 1e-6f;
    o.decay_kind = DECAY_GIVEN, o.decay = gates;
    o.a = weight(r, 1, KEYS, 1, 0);
    o.state = plan_keep(&r->plan, 0, KEYS, KDIM, 1);
    plan_add(&r->plan, OP_SCAN, 0)->scan = o;
    o.v_dim = INNER / KEYS, o.v = (struct operand){c.buffer, 2 * KEYS * KDIM}, o.out = y;
    o.write = (struct operand){gates.buffer, KEYS}, o.size = size,
    o.least = (struct operand){gates.buffer, 2 * KEYS};
    o.state = plan_keep(&r->plan, 0, KEYS, KDIM, o.v_dim);
    plan_add(&r->plan, OP_SCAN, 0)->scan = o;
}

/* Embedding, projection, convolution, recurrence, gated product, result. */
static void rig_open(struct rig *r, enum form form)
{
    *r = (struct rig){0};
    struct plan *p = &r->plan;
    const uint32_t conv = 2 * KEYS * KDIM + INNER, wide = HEADS * KDIM + HEADS + conv;
    struct operand x = plan_buffer(p, WIDTH), in = plan_buffer(p, wide), c = plan_buffer(p, conv),
                   y = plan_buffer(p, INNER);
    plan_add(p, OP_EMBED, UINT32_MAX)->embed =
        (struct op_embed){.table = weight(r, 31, WIDTH, 0, 1), .scale = 1, .out = x};
    struct op_proj proj = {.in = x, .out = in, .count = 2, .scale = {1, 0.7f}, .act = {ACT_NONE, ACT_SILU}};
    proj.norm = (struct norm){.kind = NORM_RMS, .eps = 1e-5f, .weight = weight(r, 1, WIDTH, 1, 0.2f)};
    proj.linear[0].weight = weight(r, HEADS * KDIM + HEADS, WIDTH, 0, 0.3f);
    proj.linear[1].weight = weight(r, conv, WIDTH, 0, 0.3f);
    plan_add(p, OP_PROJ, 0)->proj = proj;
    struct op_conv o = {.in = {in.buffer, HEADS * KDIM + HEADS}, .out = c, .channels = conv, .cols = COLS};
    o.weight = weight(r, conv, COLS, 0, 1), o.bias = weight(r, 1, conv, 0, 0.2f), o.act = ACT_SILU;
    o.state = plan_keep(p, 0, 1, COLS - 1, conv);
    plan_add(p, OP_CONV, 0)->conv = o;
    if (form == FORM_CELL || form == FORM_AVERAGE)
        add_cell(r, form, in, c, y);
    else if (form == FORM_GATES)
        add_gates(r, in, c, y);
    else if (form != FORM_CONV)
        add_scan(r, form, in, c, y);
    struct op_out out = {.in = form == FORM_CONV ? c : y, .gate = {.in = in, .act = ACT_SILU, .first = true}};
    out.norm = (struct norm){.kind = NORM_RMS, .eps = 1e-5f, .heads = 2};
    out.linear.weight = weight(r, WIDTH, INNER, 0, 0.3f);
    out.tail = (struct tail){.scale = 1, .residual = x, .out = x};
    plan_add(p, OP_OUT, 0)->out = out;
    plan_add(p, OP_LOGITS, UINT32_MAX)->logits = (struct op_logits){.in = x, .scale = 1};
    p->out_width = WIDTH;
}

static void rig_close(struct rig *r)
{
    plan_free(&r->plan);
    weights_free(&r->weights);
    arena_free(&r->arena);
}

static struct device *rig_device(struct rig *r, int threads, const char *tier)
{
    struct device *d;
    struct err e = {0};
    struct kv_config kv = {.type = DTYPE_F32, .page_tokens = 16, .states = SLOTS};
    if (cpu_open(
            &d,
            &(struct device_options){.threads = threads, .exact = true, .deterministic = true, .tier = tier},
            &e) ||
        d->ops->load(d, &r->weights, NULL, NULL, &e) ||
        d->ops->prepare(d, &r->plan, &kv, 2 * TOKENS, 2, 2 * TOKENS, &e))
        fail_msg("%s", e.text);
    return d;
}

/* One sequence's rows [from, to) of the prompt: from slot `in`; row i leaves its state in slots[i]. */
static void run(struct rig *r, struct device *d, uint32_t from, uint32_t to, int32_t in, const int32_t *slots,
                float *result)
{
    int32_t ids[TOKENS], pos[TOKENS], out[TOKENS];
    struct step_seq q = {.rows = to - from, .length = to};
    struct step s = {
        .rows = to - from, .seqs = 1, .outs = to - from, .ids = ids, .pos = pos, .seq = &q, .out = out};
    struct err e = {0};
    for (uint32_t i = from; i < to; i++) {
        ids[i - from] = (int32_t)(i * 7 % 31);
        pos[i - from] = (int32_t)i;
        out[i - from] = (int32_t)(i - from);
    }
    s.state_in = &in;
    s.state_out = slots;
    if (d->ops->run(d, &r->plan, &s, &e))
        fail_msg("%s", e.text);
    memcpy(result + (size_t)from * WIDTH, d->ops->results(d, &e),
           (size_t)(to - from) * WIDTH * sizeof *result);
}

static void same_bits(const char *what, const float *a, const float *b, size_t n)
{
    if (memcmp(a, b, n * sizeof *a))
        fail_msg("%s differs", what);
}

/* All cuts of a prompt in two, in place and by way of another slot; states behind rows inside it; threads. */
static void test_operations(void **none)
{
    (void)none;
    static float whole[TOKENS * WIDTH], cut[TOKENS * WIDTH], scalar[TOKENS * WIDTH];
    for (enum form form = 0; form < FORMS; form++) {
        struct rig r;
        rig_open(&r, form);
        struct device *d = rig_device(&r, 1, NULL), *two = rig_device(&r, 3, NULL),
                      *plain = rig_device(&r, 1, "scalar");
        int32_t last[TOKENS] = {0}, each[TOKENS], none_kept[TOKENS] = {0};
        last[TOKENS - 1] = 5;
        for (int32_t i = 0; i < TOKENS; i++)
            each[i] = i + 6;
        run(&r, d, 0, TOKENS, 0, last, whole);
        run(&r, two, 0, TOKENS, 0, last, cut);
        same_bits("another number of threads", whole, cut, TOKENS * WIDTH);
        run(&r, plain, 0, TOKENS, 0, last, scalar);
        check_close("the operations", "best", whole, scalar, TOKENS * WIDTH);
        run(&r, d, 0, TOKENS, 0, none_kept, cut);
        same_bits("a prompt whose state is not kept", whole, cut, TOKENS * WIDTH);
        size_t bytes = d->ops->state_bytes(d);
        assert_int_equal(bytes, r.plan.state_values * sizeof(float));
        float *a = mem_alloc(bytes, 1), *b = mem_alloc(bytes, 1);
        struct err e = {0};
        for (uint32_t at = 1; at < TOKENS; at++) {
            int32_t first[TOKENS] = {0}, rest[TOKENS] = {0};
            first[at - 1] = 1;
            rest[TOKENS - at - 1] = at % 2 ? 1 : 2; /* in place, or to another slot */
            run(&r, d, 0, at, 0, first, cut);
            run(&r, d, at, TOKENS, 1, rest, cut);
            same_bits("a prompt in two steps", whole, cut, TOKENS * WIDTH);
            assert_int_equal(d->ops->read_state(d, 5, a, &e) | d->ops->read_state(d, at % 2 ? 1 : 2, b, &e),
                             0);
            same_bits("the state", a, b, bytes / sizeof *a);
        }
        run(&r, d, 0, TOKENS, 0, each,
            cut); /* the state after every row: continue from some, on another device */
        same_bits("a prompt with all states", whole, cut, TOKENS * WIDTH);
        for (uint32_t at = 1; at < TOKENS; at += 4) {
            assert_int_equal(
                d->ops->read_state(d, (int32_t)at + 5, a, &e) | two->ops->write_state(two, 3, a, &e), 0);
            run(&r, two, at, TOKENS, 3, last, cut);
            same_bits("a state from another device", whole, cut, TOKENS * WIDTH);
        }
        mem_free(a);
        mem_free(b);
        d->ops->close(d);
        two->ops->close(two);
        plain->ops->close(plain);
        rig_close(&r);
    }
}

/* Two sequences in one step do not see each other. */
static void test_two_sequences(void **none)
{
    (void)none;
    static float alone[TOKENS * WIDTH];
    struct rig r;
    rig_open(&r, FORM_DELTA);
    struct device *d = rig_device(&r, 2, NULL);
    int32_t last[TOKENS] = {0}, ids[2 * TOKENS], pos[2 * TOKENS], out[2 * TOKENS], slots[2 * TOKENS] = {0},
            in[2] = {0};
    struct step_seq q[2] = {{0, 5, 5}, {5, TOKENS, TOKENS}};
    struct step s = {
        .rows = 5 + TOKENS, .seqs = 2, .outs = 5 + TOKENS, .ids = ids, .pos = pos, .seq = q, .out = out};
    struct err e = {0};
    run(&r, d, 0, TOKENS, 0, last, alone);
    for (uint32_t i = 0; i < s.rows; i++) {
        pos[i] = (int32_t)(i < 5 ? i : i - 5);
        ids[i] = i < 5 ? 30 - (int32_t)i : pos[i] * 7 % 31;
        out[i] = (int32_t)i;
    }
    s.state_in = in;
    s.state_out = slots;
    slots[4] = 1, slots[s.rows - 1] = 2;
    assert_int_equal(d->ops->run(d, &r.plan, &s, &e), 0);
    same_bits("a sequence beside another", alone, d->ops->results(d, &e) + 5 * WIDTH, TOKENS * WIDTH);
    in[1] = SLOTS; /* refused */
    assert_int_equal(d->ops->run(d, &r.plan, &s, &e), -1);
    d->ops->close(d);
    rig_close(&r);
}

/* What a plan may not say. */
static void test_check(void **none)
{
    (void)none;
    struct rig r;
    struct err e = {0};
    rig_open(&r, FORM_KDA);
    assert_int_equal(plan_check(&r.plan, &r.weights, &e), 0);
#define BAD(field, value)                                                                                    \
    do {                                                                                                     \
        struct op old = *op;                                                                                 \
        op->field = value;                                                                                   \
        e = (struct err){0};                                                                                 \
        if (!plan_check(&r.plan, &r.weights, &e))                                                            \
            fail_msg(#field " = " #value " passes the check");                                               \
        *op = old;                                                                                           \
    } while (0)
    struct op *op = &r.plan.ops[1];
    BAD(proj.count, 9);
    BAD(proj.act[0], ACT_SWIGLU_OAI);
    BAD(proj.scale[1], NAN);
    BAD(proj.out.col, 1);
    op = &r.plan.ops[2];
    BAD(conv.cols, 1);
    BAD(conv.channels, 7);
    BAD(conv.state, 9);
    BAD(conv.out, op->conv.in);
    op = &r.plan.ops[3];
    BAD(scan.k_heads, 4);
    BAD(scan.v_dim, 9);
    BAD(scan.state, 0);
    BAD(scan.delta, false);
    BAD(scan.decay.buffer, 0);
    BAD(scan.decay_kind, 7);
    BAD(scan.dt_range[1], -1);
    BAD(scan.bound, INFINITY);
    BAD(scan.out, op->scan.v);
    op = &r.plan.ops[4];
    BAD(out.gate.act, ACT_SWIGLU_OAI);
    BAD(out.gate.heads, 5);
    BAD(out.gate.in.buffer, 99);
    rig_close(&r);
    rig_open(&r, FORM_CELL);
    op = &r.plan.ops[3];
    BAD(cell.channels, 0);
    BAD(cell.channels, INNER - 1);
    BAD(cell.a, 0);
    BAD(cell.gate.buffer, 99);
    BAD(cell.state, 0);
    BAD(cell.out, op->cell.in);
    BAD(cell.kind, CELL_AVERAGE);
    BAD(cell.kind, 3);
    rig_close(&r);
    rig_open(&r, FORM_GATES);
    op = &r.plan.ops[3];
    BAD(cell.in, op->cell.gate);
    BAD(cell.out.col, 1);
    op = &r.plan.ops[5];
    BAD(scan.size.buffer, 0);
    BAD(scan.least.buffer, 99);
    BAD(scan.size_eps, NAN);
    BAD(scan.decay_kind, DECAY_EXP);
    BAD(scan.delta, true);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels), cmocka_unit_test(test_operations),
                                       cmocka_unit_test(test_two_sequences), cmocka_unit_test(test_check)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
