/* The rows of the GPU's kernel table, through the public header: each operation is recorded as a graph over weights that
 * are larger together than the card's cache, and replayed, so that launches cost what they cost in a step. */
#include "base/clock.h"
#include "codec/dtype.h"
#include "base/mem.h"
#include "device/cuda/gpu.h"
#include "quern_gpu.h"
#include "tool/bench_kernels.h"

#include <stdio.h>
#include <string.h>

enum {
    ROWS_MOST = 512,
    WIDTH_MOST = 16384,
    POOL_BYTES = 160 << 20,
    COPIES_MOST = 64,
    REPLAYS = 5,
    CALLS = 16 /* a recording holds 64 of attention */
};

static const struct kernel_shape shapes[] = {
    {"Llama-3-8B out", 4096, 4096}, {"Llama-3-8B up", 14336, 4096}, {"Qwen2.5-1.5B down", 1536, 8960}};
static const uint32_t rows[] = {1, 8, 32, 64, ROWS_MOST};

struct gpu_bench {
    struct kernel_bench *b;
    int card;
    struct quern_gpu *g;
    struct quern_gpu_facts facts;
    struct quern_gpu_buf x, w, y;
    struct quern_gpu_kv *kv;
    int weight[COPIES_MOST];
    int copies;
    uint8_t *bytes; /* of one weight */
    double op_peak; /* dense fp16 with float sums on tensor cores, by the clock */
};

/* One call of what is timed; i counts through the copies of a weight. */
struct gpu_call {
    int (*run)(struct gpu_bench *c, const struct gpu_call *a, int i);
    const char *name;
    uint32_t m, n, k;
    enum quern_gpu_variant variant;
};

static int gpu_fail(struct gpu_bench *c, struct err *e)
{
    return err_set(e, ERR_DEVICE, "%s", quern_gpu_error(c->g));
}

/* Seconds of a call, the best of a few replays of `calls` of them; < 0: it failed. */
static double gpu_time(struct gpu_bench *c, const struct gpu_call *a, int calls, struct err *e)
{
    struct quern_gpu_graph *graph;
    double best = 1e9;
    int failed = a->run(c, a, 0) || quern_gpu_sync(c->g) || quern_gpu_record(c->g);
    for (int i = 0; i < calls && !failed; i++)
        failed = a->run(c, a, i);
    if (failed)
        gpu_fail(c, e);
    if (quern_gpu_record_end(c->g, &graph) || failed) {
        gpu_fail(c, e); /* the first error counts */
        return -1;
    }
    for (int r = 0; r < REPLAYS && !failed; r++) {
        double from = clock_now();
        failed = quern_gpu_replay(c->g, graph) || quern_gpu_sync(c->g);
        double seconds = (clock_now() - from) / calls;
        best = r && seconds < best ? seconds : best;
    }
    quern_gpu_graph_delete(c->g, graph);
    if (failed)
        gpu_fail(c, e);
    return failed ? -1 : best;
}

static void gpu_add(struct gpu_bench *c, const struct gpu_call *a, const char *type, const char *of,
                    double seconds, double bytes, double ops)
{
    struct kernel_work w = {bytes, ops, 1e9 * c->facts.read_gbs, c->op_peak, a->m <= 64};
    struct kernel_line line = {
        .device = "cuda", .kernel = a->name, .type = type, .shape_of = of, .n = a->n, .k = a->k, .m = a->m};
    snprintf(line.tier, sizeof line.tier, "sm_%d%d", c->facts.major, c->facts.minor);
    kernel_add(c->b, line, seconds, &w);
}

/* ---- products ---- */

static int call_gemm(struct gpu_bench *c, const struct gpu_call *a, int i)
{
    struct quern_gpu_options o = {.variant = a->variant};
    struct quern_gpu_buf x = {c->x.at, (uint64_t)a->m * a->k}, y = {c->y.at, (uint64_t)a->m * a->n};
    return quern_gpu_gemm(c->g, c->weight[i % c->copies], x, (int)a->m, y, &o);
}

static int gpu_open_card(struct gpu_bench *c, struct err *e)
{
    char why[256];
    if (!(c->g = quern_gpu_open(c->card, ROWS_MOST, WIDTH_MOST, why, sizeof why)))
        return err_set(e, ERR_RESOURCE, "%s", why);
    uint64_t floats = (uint64_t)ROWS_MOST * WIDTH_MOST;
    if (quern_gpu_new(c->g, floats, &c->x) || quern_gpu_new(c->g, floats, &c->y) ||
        quern_gpu_new(c->g, floats, &c->w) || (c->facts.read_gbs <= 0 && quern_gpu_measure(c->g)))
        return gpu_fail(c, e);
    if (c->facts.read_gbs <= 0)
        quern_gpu_get_facts(c->g, &c->facts);
    for (uint64_t at = 0; at < floats; at += POOL_BYTES / 4) { /* plausible numbers */
        uint64_t n = floats - at < POOL_BYTES / 4 ? floats - at : POOL_BYTES / 4;
        struct quern_gpu_buf x = {c->x.at + 4 * at, n}, w = {c->w.at + 4 * at, n};
        if (quern_gpu_write(c->g, x, c->bytes, n) || quern_gpu_write(c->g, w, c->bytes, n))
            return gpu_fail(c, e);
    }
    return 0;
}

static void gpu_close_card(struct gpu_bench *c)
{
    struct quern_gpu_buf *const all[] = {&c->x, &c->y, &c->w};
    for (size_t i = 0; c->g && i < sizeof all / sizeof *all; i++)
        quern_gpu_delete(c->g, all[i]);
    quern_gpu_close(c->g);
    c->g = NULL;
}

/* The copies of one shape; they leave with the card. */
static int gpu_load(struct gpu_bench *c, const struct kernel_shape *s, const char *type, size_t bytes,
                    int flags, struct err *e)
{
    char name[32];
    c->copies = (int)(POOL_BYTES / bytes);
    c->copies = c->copies < 1 ? 1 : c->copies > COPIES_MOST ? COPIES_MOST : c->copies;
    for (int i = 0; i < c->copies; i++) {
        snprintf(name, sizeof name, "%d of %d", i, (int)flags);
        if ((c->weight[i] = quern_gpu_load(c->g, name, type, s->n, s->k, c->bytes, bytes, flags)) < 1)
            return gpu_fail(c, e);
    }
    return 0;
}

static int gpu_product(struct gpu_bench *c, uint32_t type, const struct kernel_shape *s,
                       enum quern_gpu_variant variant, struct err *e)
{
    static const char *const names[] = {"gemm", "gemv tiled", "gemv chunked", "gemv dp4a", "gemm float"};
    const char *name = dtype_get(type)->name;
    size_t row = 0;
    int flags = variant == QUERN_GPU_INTEGER ? QUERN_GPU_NATIVE : 0;
    if (!dtype_row_bytes(type, s->k, &row) || row * s->n > POOL_BYTES)
        return 0;
    if (gpu_open_card(c, e) || gpu_load(c, s, name, row * s->n, flags, e)) {
        gpu_close_card(c);
        return -1;
    }
    int failed = 0;
    for (size_t r = 0; r < sizeof rows / sizeof *rows && !failed; r++) {
        if (variant != QUERN_GPU_AUTO && rows[r] > 1)
            break;
        struct gpu_call a = {
            .run = call_gemm, .name = names[variant], .m = rows[r], .n = s->n, .k = s->k, .variant = variant};
        double seconds = gpu_time(c, &a, c->copies < 16 ? 16 : c->copies, e);
        failed = seconds < 0;
        if (!failed)
            gpu_add(c, &a, name, s->of, seconds, (double)row * s->n, 2.0 * rows[r] * s->n * s->k);
    }
    gpu_close_card(c);
    return failed;
}

/* ---- the small ones ---- */

static struct quern_gpu_buf part(struct quern_gpu_buf b, uint64_t floats)
{
    return (struct quern_gpu_buf){b.at, floats};
}

static int call_rms(struct gpu_bench *c, const struct gpu_call *a, int i)
{
    (void)i;
    uint64_t n = (uint64_t)a->m * a->k;
    return quern_gpu_rms_norm(c->g, part(c->x, n), (int)a->m, (int)a->k, part(c->w, a->k), 1e-5f, 0,
                              part(c->y, n));
}

static int call_layer_norm(struct gpu_bench *c, const struct gpu_call *a, int i)
{
    (void)i;
    uint64_t n = (uint64_t)a->m * a->k;
    return quern_gpu_layer_norm(c->g, part(c->x, n), (int)a->m, (int)a->k, part(c->w, a->k), part(c->w, a->k),
                                1e-5f, part(c->y, n));
}

static int call_swiglu(struct gpu_bench *c, const struct gpu_call *a, int i)
{
    (void)i;
    uint64_t n = (uint64_t)a->m * a->k;
    return quern_gpu_swiglu(c->g, part(c->x, n), part(c->w, n), part(c->y, n));
}

static int call_softmax(struct gpu_bench *c, const struct gpu_call *a, int i)
{
    (void)i;
    uint64_t n = (uint64_t)a->m * a->k;
    return quern_gpu_softmax(c->g, part(c->x, n), (int)a->m, part(c->y, n));
}

static int call_quantise(struct gpu_bench *c, const struct gpu_call *a, int i)
{
    (void)i;
    struct quern_gpu_buf to = c->y;
    return quern_gpu_quantise(c->g, part(c->x, (uint64_t)a->m * a->k), (int)a->m, (int)a->k, &to);
}

static int call_attention(struct gpu_bench *c, const struct gpu_call *a, int i)
{
    (void)i;
    const struct quern_gpu_heads h = {.heads = 32, .kv_heads = 8, .dim = 128, .scale = 0.088f};
    uint64_t n = (uint64_t)a->m * 4096;
    return quern_gpu_attention(c->g, &h, c->kv, part(c->x, n), (int)a->m, (int)a->n - (int)a->m,
                               part(c->y, n));
}

static int gpu_small(struct gpu_bench *c, struct err *e)
{
    enum { KEYS = 4096 };
    const struct {
        struct gpu_call call;
        double bytes, ops; /* a value; attention: in all */
    } all[] = {
        {{call_rms, "rms_norm", 32, 1, 4096, 0}, 8, 4},
        {{call_layer_norm, "layer_norm", 32, 1, 4096, 0}, 8, 7},
        {{call_swiglu, "swiglu", 32, 1, 14336, 0}, 12, 6},
        {{call_softmax, "softmax", 32, 1, 4096, 0}, 8, 10},
        {{call_quantise, "quantise q8_1", 32, 1, 4096, 0}, 5, 4},
        {{call_attention, "attention", 1, KEYS, 4096, 0}, 2.0 * KEYS * 8 * 256 / 4096, 4.0 * KEYS},
        {{call_attention, "attention", ROWS_MOST, KEYS, 4096, 0},
         2.0 * KEYS * 8 * 256 / 4096 / ROWS_MOST,
         4.0 * (KEYS - ROWS_MOST / 2)},
    };
    if (gpu_open_card(c, e) ||
        (quern_gpu_kv_new(c->g, 8, 128, KEYS, QUERN_GPU_KV_F16, &c->kv) && gpu_fail(c, e))) {
        gpu_close_card(c);
        return -1;
    }
    int failed = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && !failed; i++) {
        const struct gpu_call *a = &all[i].call;
        double seconds = gpu_time(c, a, CALLS, e), values = (double)a->m * a->k;
        failed = seconds < 0;
        if (!failed)
            gpu_add(c, a, "F32", a->run == call_attention ? "Llama-3-8B, F16 KV" : "Llama-3-8B", seconds,
                    values * all[i].bytes, values * all[i].ops);
    }
    quern_gpu_kv_delete(c->g, c->kv);
    gpu_close_card(c);
    return failed;
}

int bench_kernels_gpu(struct kernel_bench *b, int card, struct err *e)
{
    struct gpu_bench c = {.b = b, .card = card, .bytes = mem_alloc(POOL_BYTES, 1)};
    if (!c.bytes)
        return err_memory(e, "the benchmark", POOL_BYTES);
    uint32_t seed = 1, *words = (uint32_t *)(void *)c.bytes;
    for (size_t i = 0; i < POOL_BYTES / 4; i++) {
        seed = seed * 1664525 + 1013904223;
        words[i] = seed >> 3 & 0x3bff3bff;
    }
    int failed = gpu_open_card(&c, e);
    c.op_peak =
        failed ? 0 : 1e3 * c.facts.clock_khz * c.facts.sms * gpu_tensor_ops(c.facts.major, c.facts.minor);
    gpu_close_card(&c);
    for (uint32_t t = 0; t < DTYPE_MOST && !failed; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes && !failed; s++)
            if (layout_for(t) != FMT_NONE && (b->only < 0 || b->only == (int)t))
                failed = gpu_product(&c, t, &shapes[s], QUERN_GPU_AUTO, e);
    for (int v = QUERN_GPU_TILED; v <= QUERN_GPU_FLOAT && !failed && (b->only < 0 || b->only == DTYPE_Q4_K);
         v++)
        failed = gpu_product(&c, DTYPE_Q4_K, &shapes[0], (enum quern_gpu_variant)v, e);
    failed = failed || (b->only < 0 && gpu_small(&c, e));
    mem_free(c.bytes);
    return failed ? -1 : 0;
}
