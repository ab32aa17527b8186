#include "tool/bench_kernels.h"

#include "base/buf.h"
#include "base/clock.h"
#include "codec/dtype.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "device/cpu/kernels.h"
#include "device/cpu/probe.h"
#include "device/cuda/gpu.h"
#include "device/device.h"
#include "tool/tool.h"

#include <string.h>

enum { SLAB_BYTES = 256 << 20, ROWS_MOST = 128, WIDTH_MOST = 14336, SMALL = 4096 };

static const struct kernel_shape shapes[] = {
    {"SmolLM2-135M ffn", 1536, 576}, {"Qwen2.5-1.5B down", 1536, 8960}, {"Llama-3-8B up", 14336, 4096}};
static const uint32_t rows[] = {1, 8, ROWS_MOST};

void kernel_add(struct kernel_bench *b, struct kernel_line line, double seconds, const struct kernel_work *w)
{
    if (b->count == KERNEL_LINES)
        return;
    line.us = 1e6 * seconds;
    line.gb_s = 1e-9 * w->bytes / seconds;
    line.gop_s = 1e-9 * w->ops / seconds;
    double peak = w->by_bytes ? w->read_peak : w->op_peak;
    line.share = peak > 0 ? (w->by_bytes ? w->bytes : w->ops) / seconds / peak : 0;
    line.limit = w->by_bytes ? "read bandwidth" : "arithmetic";
    b->line[b->count++] = line;
}

/* ---- the CPU ---- */

struct cpu_bench {
    struct kernel_bench *b;
    struct pool *pool;
    const struct kernels *k;
    struct probe walls, one; /* of all workers; of one */
    uint8_t *slab;           /* (SLAB_BYTES): weights, far more than the caches hold */
    float *x, *y;
    struct q8_rows q8;
    uint8_t *scratch; /* (workers, scratch_bytes) */
    size_t scratch_each;
};

/* A kernel, and its limit. */
struct product_way {
    const char *name;
    void (*run)(const struct matmul *job);
    double peak;
};

/* A product in which every worker has its share of the outputs. */
struct product_job {
    struct cpu_bench *c;
    struct matmul job;
    const struct product_way *way;
};

static void run_product(void *arg, int worker, int workers)
{
    const struct product_job *p = arg;
    struct matmul job = p->job;
    long from, to;
    pool_slice(p->job.n1, 32, worker, workers, &from, &to);
    job.n0 = (uint32_t)from;
    job.n1 = (uint32_t)to;
    job.scratch = p->c->scratch + (size_t)worker * p->c->scratch_each;
    if (from < to)
        p->way->run(&job);
}

/* The best of a few rounds: neighbours on the machine only slow one down. Weights walk through the slab. */
static double time_product(struct cpu_bench *c, struct product_job *p, size_t bytes)
{
    double best = 1e9, start = clock_now();
    size_t copies = SLAB_BYTES / bytes, at = 0;
    for (int i = 0; i < 4 || (clock_now() - start < 0.03 && i < 100); i++) {
        p->job.w = c->slab + (copies ? at++ % copies : 0) * bytes;
        double from = clock_now();
        pool_run(c->pool, run_product, p);
        double seconds = clock_now() - from;
        best = i && seconds < best ? seconds : best;
    }
    return best;
}

static void price_product(struct cpu_bench *c, uint32_t type, const struct product_way *way)
{
    const struct dtype_info *info = dtype_get(type);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const struct kernel_shape *shape = &shapes[s];
        size_t row = 0;
        if (!dtype_row_bytes(type, shape->k, &row) || row * shape->n > SLAB_BYTES)
            continue;
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            struct product_job p = {.c = c, .way = way};
            p.job = (struct matmul){.row_bytes = row,
                                    .type = type,
                                    .k = shape->k,
                                    .n1 = shape->n,
                                    .m = rows[r],
                                    .x = c->x,
                                    .x_stride = shape->k,
                                    .q8 = c->q8,
                                    .y = c->y,
                                    .y_stride = shape->n};
            p.job.q8.q_stride = shape->k;
            p.job.q8.s_stride = shape->k / Q8_BLOCK;
            double bytes = (double)row * shape->n, ops = 2.0 * rows[r] * shape->n * shape->k;
            struct kernel_work w = {bytes, ops, c->walls.read, way->peak, rows[r] <= 8};
            struct kernel_line line = {.device = "cpu",
                                       .kernel = way->name,
                                       .type = info->name,
                                       .shape_of = shape->of,
                                       .n = shape->n,
                                       .k = shape->k,
                                       .m = rows[r]};
            memcpy(line.tier, c->k->tier, strlen(c->k->tier) + 1);
            kernel_add(c->b, line, time_product(c, &p, (size_t)bytes), &w);
        }
    }
}

/* The small ones, on one core: called often enough that the clock does not count. */
enum small_kernel {
    SMALL_QUANTISE,
    SMALL_RMS,
    SMALL_LAYER,
    SMALL_ACT,
    SMALL_ROPE,
    SMALL_DOT,
    SMALL_AXPY,
    SMALL_MAX,
    SMALL_EXP,
    SMALL_ROUND,
    SMALL_TO_F16,
    SMALL_FROM_F16,
    SMALL_SOFTCAP,
    SMALL_PANEL,
    SMALL_SCORES,
    SMALL_SOFTMAX,
    SMALL_VALUES,
    SMALL_SCORES_INT,
    SMALL_SOFTMAX_INT,
    SMALL_VALUES_INT,
    SMALL_COUNT
};

enum { TILE_ROWS_TIMED = 12, TILE_DIM = 128 };
/* Of a tile, for each of SMALL: values of its keys, scores, and products of either kind. */
#define TILE_KEYS     ((double)ATTN_KEYS * TILE_DIM / SMALL)
#define TILE_PAIRS    ((double)ATTN_KEYS * TILE_ROWS_TIMED / SMALL)
#define TILE_PRODUCTS (TILE_PAIRS * TILE_DIM)

/* Its name, and what it reads and computes for each of SMALL values (or for a tile of attention). */
static const struct {
    const char *name;
    double bytes, ops;
} small_rows[SMALL_COUNT] = {
    [SMALL_QUANTISE] = {"quantise", 4, 4},
    [SMALL_RMS] = {"rms_norm", 8, 4},
    [SMALL_LAYER] = {"layer_norm", 12, 7},
    [SMALL_ACT] = {"act_mul silu", 8, 8},
    [SMALL_ROPE] = {"rope", 8, 3},
    [SMALL_DOT] = {"dot", 8, 2},
    [SMALL_AXPY] = {"axpy", 8, 2},
    [SMALL_MAX] = {"max", 4, 1},
    [SMALL_EXP] = {"exp_sum", 4, 10},
    [SMALL_ROUND] = {"round_i16", 4, 4},
    [SMALL_TO_F16] = {"to_f16", 4, 1},
    [SMALL_FROM_F16] = {"from_f16", 2, 1},
    [SMALL_SOFTCAP] = {"softcap", 4, 12},
    [SMALL_PANEL] = {"panel_f16", 2, 1},
    [SMALL_SCORES] = {"attn_scores", 4 * TILE_KEYS, 2 * TILE_PRODUCTS},
    [SMALL_SOFTMAX] = {"attn_softmax", 4 * TILE_PAIRS, 11 * TILE_PAIRS},
    [SMALL_VALUES] = {"attn_values", 4 * TILE_KEYS, 2 * TILE_PRODUCTS},
    [SMALL_SCORES_INT] = {"scores int16", 2 * TILE_KEYS, 2 * TILE_PRODUCTS},
    [SMALL_SOFTMAX_INT] = {"softmax int16", 4 * TILE_PAIRS, 14 * TILE_PAIRS},
    [SMALL_VALUES_INT] = {"values int16", 2 * TILE_KEYS, 2 * TILE_PRODUCTS},
};

/* A tile of attention somewhere in x and y, or with pages. */
static struct attn_tile small_tile(const struct cpu_bench *c, const struct attn_pages *pages)
{
    static const struct attn_span seen[TILE_ROWS_TIMED] = {[0 ... TILE_ROWS_TIMED - 1] = {0, ATTN_KEYS}};
    float *x = c->x, *y = c->y;
    return (struct attn_tile){.q = x,
                              .k = x + SMALL,
                              .v = x + 4 * SMALL,
                              .pages = pages,
                              .q16 = (const int16_t *)(const void *)x,
                              .q_scale = x,
                              .seen = seen,
                              .s = y,
                              .max = y + SMALL,
                              .sum = y + SMALL + 64,
                              .rescale = y + SMALL + 128,
                              .w = (int16_t *)(void *)(y + SMALL + 192),
                              .w_scale = y + 2 * SMALL,
                              .acc = y + 2 * SMALL + 64,
                              .m = TILE_ROWS_TIMED,
                              .k_dim = TILE_DIM,
                              .v_dim = TILE_DIM,
                              .keys = ATTN_KEYS};
}

static struct attn_pages small_pages(const struct cpu_bench *c)
{
    enum { TOKENS = 32, PAGE = TOKENS * TILE_DIM };
    const int16_t *k = (const int16_t *)(const void *)c->x, *v = k + 2 * PAGE;
    return (struct attn_pages){.k = {k, k + PAGE}, .v = {v, v + PAGE}, .tokens = TOKENS};
}

static void run_tile(const struct cpu_bench *c, enum small_kernel kind)
{
    const struct attn_pages pages = small_pages(c);
    const struct attn_tile tile = small_tile(c, kind >= SMALL_SCORES_INT ? &pages : NULL);
    if (kind == SMALL_SCORES || kind == SMALL_SCORES_INT)
        c->k->attn_scores(&tile);
    else if (kind == SMALL_SOFTMAX || kind == SMALL_SOFTMAX_INT)
        c->k->attn_softmax(&tile);
    else
        c->k->attn_values(&tile);
}

static void run_small(const struct cpu_bench *c, enum small_kernel kind)
{
    const struct kernels *k = c->k;
    float *x = c->x, *w = c->x + SMALL, *y = c->y;
    volatile float keep = 0;
    switch (kind) {
    case SMALL_QUANTISE:
        k->quantise(x, SMALL, c->q8.q, c->q8.d, c->q8.s);
        break;
    case SMALL_RMS:
        k->rms_norm(x, w, 1e-5f, SMALL, y);
        break;
    case SMALL_LAYER:
        k->layer_norm(x, w, w, 1e-5f, SMALL, y);
        break;
    case SMALL_ACT:
        k->act_mul(ACT_SILU, x, w, SMALL, y);
        break;
    case SMALL_ROPE:
        for (uint32_t i = 0; i < SMALL; i += TILE_DIM)
            k->rope(y + i, TILE_DIM, true, w);
        break;
    case SMALL_DOT:
        keep = k->dot(x, w, SMALL);
        break;
    case SMALL_AXPY:
        k->axpy(1e-3f, x, SMALL, y);
        break;
    case SMALL_MAX:
        keep = k->max(x, SMALL);
        break;
    case SMALL_EXP:
        memcpy(y, x, SMALL * sizeof *y);
        keep = k->exp_sum(y, SMALL, 1);
        break;
    case SMALL_ROUND:
        keep = k->round_i16(x, SMALL, true, (int16_t *)(void *)y);
        break;
    case SMALL_TO_F16:
        k->to_f16(x, SMALL, (uint16_t *)(void *)y);
        break;
    case SMALL_FROM_F16:
        k->from_f16((const uint16_t *)(const void *)w, SMALL, y);
        break;
    case SMALL_SOFTCAP:
        memcpy(y, x, SMALL * sizeof *y);
        k->softcap(y, SMALL, 1, 30);
        break;
    case SMALL_PANEL:
        k->panel_f16((const uint16_t *)(const void *)w, TILE_DIM, SMALL / TILE_DIM, TILE_DIM, y, TILE_DIM);
        break;
    case SMALL_SCORES:
    case SMALL_SOFTMAX:
    case SMALL_VALUES:
    case SMALL_SCORES_INT:
    case SMALL_SOFTMAX_INT:
    case SMALL_VALUES_INT:
        run_tile(c, kind);
        break;
    case SMALL_COUNT:
        break;
    }
    (void)keep;
}

static void price_small(struct cpu_bench *c, enum small_kernel kind)
{
    enum { CALLS = 200, ROUNDS = 5 };
    double best = 1e9;
    for (int r = 0; r < ROUNDS; r++) {
        double from = clock_now();
        for (int i = 0; i < CALLS; i++)
            run_small(c, kind);
        double seconds = (clock_now() - from) / CALLS;
        best = seconds < best ? seconds : best;
    }
    /* all data is in the caches: arithmetic is the limit */
    struct kernel_work w = {SMALL * small_rows[kind].bytes, SMALL * small_rows[kind].ops, c->one.read,
                            c->one.float32, false};
    struct kernel_line line = {.device = "cpu",
                               .kernel = small_rows[kind].name,
                               .type = "F32",
                               .shape_of = "one core",
                               .n = kind >= SMALL_SCORES ? ATTN_KEYS : 1,
                               .k = kind >= SMALL_SCORES ? TILE_DIM : SMALL,
                               .m = kind >= SMALL_SCORES ? TILE_ROWS_TIMED : 1};
    memcpy(line.tier, c->k->tier, strlen(c->k->tier) + 1);
    kernel_add(c->b, line, best, &w);
}

static int cpu_probe(struct cpu_bench *c, struct err *e)
{
    struct pool *one = pool_open(1, false, e);
    int failed = !one || probe_run(c->pool, &c->walls, e) || probe_run(one, &c->one, e);
    pool_close(one);
    return failed ? -1 : 0;
}

static int cpu_memory(struct cpu_bench *c, struct err *e)
{
    size_t values = (size_t)ROWS_MOST * WIDTH_MOST, workers = (size_t)pool_size(c->pool);
    c->scratch_each = (c->k->scratch_bytes + 63) / 64 * 64;
    c->slab = mem_aligned(64, SLAB_BYTES);
    c->x = mem_aligned(64, values * sizeof *c->x);
    c->y = mem_aligned(64, values * sizeof *c->y);
    c->q8.q = mem_aligned(64, values);
    c->q8.d = mem_aligned(64, values / Q8_BLOCK * sizeof *c->q8.d);
    c->q8.s = mem_aligned(64, values / Q8_BLOCK * sizeof *c->q8.s);
    c->scratch = mem_aligned(64, workers * c->scratch_each);
    if (!c->slab || !c->x || !c->y || !c->q8.q || !c->q8.d || !c->q8.s || !c->scratch)
        return err_memory(e, "the benchmark", SLAB_BYTES + 2 * values * sizeof *c->x);
    uint32_t seed = 1, *words = (uint32_t *)(void *)c->slab;
    for (size_t i = 0; i < SLAB_BYTES / 4; i++) { /* halves, floats and scales that are finite */
        seed = seed * 1664525 + 1013904223;
        words[i] = seed >> 3 & 0x3bff3bff;
    }
    for (size_t i = 0; i < values; i++)
        c->x[i] = (float)(words[i] & 0xffff) / 65536.0f - 0.25f;
    memset(c->y, 0, values * sizeof *c->y);
    c->k->quantise(c->x, (uint32_t)values, c->q8.q, c->q8.d, c->q8.s);
    return 0;
}

/* How a type is multiplied by default; false: with floats after decoding, which no table of kernels is about. */
static bool cpu_way(const struct cpu_bench *c, uint32_t type, struct product_way *way)
{
    const struct probe *w = &c->walls;
    if (c->k->matmul_q8[type])
        *way = (struct product_way){"matmul_q8", c->k->matmul_q8[type], w->int8};
    else if (kernel_bf16(type))
        *way = (struct product_way){"matmul_bf16", c->k->matmul_bf16, w->bf16 > 0 ? w->bf16 : w->float32};
    else
        *way = (struct product_way){"matmul_float", c->k->matmul_float, w->float32};
    return c->k->matmul_q8[type] || kernel_bf16(type) || type == DTYPE_F32;
}

static void cpu_rows(struct cpu_bench *c)
{
    const int only = c->b->only;
    struct product_way way;
    for (uint32_t t = 0; t < KERNEL_TYPES; t++)
        if ((only < 0 || only == (int)t) && cpu_way(c, t, &way))
            price_product(c, t, &way);
    for (int i = 0; i < SMALL_COUNT && only < 0; i++)
        price_small(c, (enum small_kernel)i);
}

static int bench_kernels_cpu(struct kernel_bench *b, struct err *e)
{
    struct cpu_bench c = {.b = b, .k = kernels_get(b->tier, e)};
    if (!c.k || !(c.pool = pool_open(b->threads, false, e)))
        return -1;
    int failed = cpu_probe(&c, e) || cpu_memory(&c, e);
    if (!failed)
        cpu_rows(&c);
    void *const all[] = {c.slab, c.x, c.y, c.q8.q, c.q8.d, c.q8.s, c.scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
    pool_close(c.pool);
    return failed ? -1 : 0;
}

/* ---- results ---- */

static void print_json(const struct kernel_bench *b, struct buf *out)
{
    struct json j = {.out = out};
    json_begin(&j, '[');
    for (uint32_t i = 0; i < b->count; i++) {
        const struct kernel_line *l = &b->line[i];
        const struct {
            const char *key, *text;
        } texts[] = {{"device", l->device}, {"tier", l->tier},      {"kernel", l->kernel},
                     {"type", l->type},     {"shape", l->shape_of}, {"limit", l->limit}};
        const struct {
            const char *key;
            double value;
        } numbers[] = {{"n", l->n},       {"k", l->k},         {"m", l->m},        {"us", l->us},
                       {"gb_s", l->gb_s}, {"gop_s", l->gop_s}, {"share", l->share}};
        json_begin(&j, '{');
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            json_key(&j, texts[k].key);
            json_str(&j, texts[k].text);
        }
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
            json_key(&j, numbers[k].key);
            json_num(&j, numbers[k].value);
        }
        json_end(&j, '}');
    }
    json_end(&j, ']');
    buf_char(out, '\n');
}

static void print_table(const struct kernel_bench *b, struct buf *out)
{
    buf_printf(out, "%-6s %-8s %-14s %-7s %-20s %13s %4s %10s %8s %9s %s\n", "device", "tier", "kernel",
               "type", "shape of", "n x k", "m", "us", "GB/s", "GOP/s", "share of the limit");
    for (uint32_t i = 0; i < b->count; i++) {
        const struct kernel_line *l = &b->line[i];
        buf_printf(out, "%-6s %-8s %-14s %-7s %-20s %6u x %-5u %4u %10.2f %8.1f %9.1f %5.1f%% of %s\n",
                   l->device, l->tier, l->kernel, l->type, l->shape_of, l->n, l->k, l->m, l->us, l->gb_s,
                   l->gop_s, 100 * l->share, l->limit);
    }
}

/* The cards that are asked for; a machine without one is no error unless one was named. */
static int gpu_rows(struct kernel_bench *b, struct err *e)
{
    struct err why = {0};
    uint64_t card = 0;
    if (b->device && !strncmp(b->device, "cuda:", 5) &&
        !num_u64(b->device + 5, strlen(b->device + 5), 1023, &card))
        return err_set(e, ERR_USAGE, "there is no device '%s': cpu, cuda or cuda:N was expected",
                       log_safe(b->device));
    if (b->device)
        return bench_kernels_gpu(b, (int)card, e);
    if (cuda_count(&why) <= 0) {
        log_info("no GPU rows: %s", why.code ? why.text : "there is no card");
        return 0;
    }
    return bench_kernels_gpu(b, 0, e);
}

int bench_kernels(struct kernel_bench *b, bool json, struct err *e)
{
    struct buf out = {0};
    bool cpu = !b->device || !strcmp(b->device, "cpu");
    if (b->device && !cpu && strncmp(b->device, "cuda", 4))
        return err_set(e, ERR_USAGE, "there is no device '%s': cpu, cuda or cuda:N was expected",
                       log_safe(b->device));
    if (cpu && bench_kernels_cpu(b, e))
        return -1;
    if ((!b->device || !cpu) && gpu_rows(b, e))
        return -1;
    json ? print_json(b, &out) : print_table(b, &out);
    return tool_print(&out, e);
}
