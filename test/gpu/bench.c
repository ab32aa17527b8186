/* The benchmark of the card: decode and prefill of real models' shapes (random weights), and single kernels.
 *   gpu_bench step PRESET [TYPE]   decode at 1..64 streams and at 16k tokens, prefill, upload
 *   gpu_bench decode PRESET STREAMS KEYS [TYPE]   a few steps
 *   gpu_bench rest PRESET          the same: 512 tokens behind 4,000 that are known
 *   gpu_bench kernels              products over the shapes of two models, by rows
 *   gpu_bench product OUTPUTS COLUMNS ROWS [WAY]   one of them; WAY: few, split or stream-k, as in `large`
 *   gpu_bench few                  the same for every way to share the work of gemm_staged_few
 *   gpu_bench many                 the same for every way to share the work of gemm_many, for many_cost of variants.c
 *   gpu_bench large [WAY]          products of Llama 3 70B, and 8B's largest, of 17 to 64 rows: by gemm_staged_few (few), by
 *                                  gemm_many with whole bands or bands whose columns are shared (split), with equal shares
 *                                  (stream-k), and as it is chosen; for the costs of variants.c */
#include "device/split.h"
#include "rig.h"

#include "base/mem.h"
#include "device/cuda/exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct preset {
    const char *name;
    uint32_t layers, width, heads, kv_heads, dim, ffn, vocab;
    bool tied, bias;
    uint32_t experts, used;
};

static const struct preset presets[] = {
    {"llama3-8b", 32, 4096, 32, 8, 128, 14336, 128256, false, false, 0, 0},
    {"qwen2.5-1.5b", 28, 1536, 12, 2, 128, 8960, 151936, true, true, 0, 0},
    {"llama3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, true, false, 0, 0},
    {"qwen3-30b-a3b", 12, 2048, 32, 4, 128, 768, 151936, false, false, 128, 8}, /* a quarter of its layers */
};

/* As the recipe Q4_K_M mixes its types: Q6_K for the head, and for V and down of some layers. */
static uint32_t type_of(const struct preset *p, uint32_t base, uint32_t layer, bool mixed)
{
    uint32_t l = p->layers;
    bool more = layer < l / 8 || layer >= 7 * l / 8 || (layer - l / 8) % 3 == 2;
    return base == DTYPE_Q4_K && mixed && more ? DTYPE_Q6_K : base;
}

static struct linear slab_linear(struct rig *r, uint32_t type, uint32_t n, uint32_t k, bool bias)
{
    return (struct linear){.weight = rig_slab(r, type, n, k, 1),
                           .bias = bias ? rig_vector(r, n, 0, 0.1f) : 0};
}

static void add_experts(struct rig *r, const struct preset *p, uint32_t base, uint32_t l, struct tail t)
{
    const uint32_t down = type_of(p, base, l, true);
    plan_add(&r->plan, OP_MOE, l)->moe =
        (struct op_moe){.in = t.residual,
                        .norm = rig_norm(r, NORM_RMS, p->width),
                        .router.weight = rig_matrix(r, DTYPE_F32, p->experts, p->width, 1, 0.03f),
                        .gate.weight = rig_slab(r, base, p->ffn, p->width, p->experts),
                        .up.weight = rig_slab(r, base, p->ffn, p->width, p->experts),
                        .down.weight = rig_slab(r, down, p->width, p->ffn, p->experts),
                        .act = ACT_SILU,
                        .gating = GATING_SOFTMAX,
                        .experts = p->experts,
                        .used = p->used,
                        .normalise = true,
                        .weight_scale = 1,
                        .tail = t};
}

static void build(struct rig *r, const struct preset *p, uint32_t base)
{
    uint32_t qn = p->heads * p->dim, kn = p->kv_heads * p->dim, head = base == DTYPE_Q4_K ? DTYPE_Q6_K : base;
    struct operand x = plan_buffer(&r->plan, p->width), q = plan_buffer(&r->plan, qn),
                   a = plan_buffer(&r->plan, qn);
    weight_id table = rig_slab(r, p->tied ? head : base, p->vocab, p->width, 1),
              freqs = rig_vector(r, p->dim / 2, 0.01f, 0.01f);
    r->vocab = p->vocab;
    plan_add(&r->plan, OP_EMBED, UINT32_MAX)->embed = (struct op_embed){.table = table, .scale = 1, .out = x};
    for (uint32_t l = 0; l < p->layers; l++) {
        struct tail t = {.scale = 1, .residual = x, .out = x};
        plan_kv(&r->plan, l, (struct kv_group){.kv_heads = p->kv_heads, .k_dim = p->dim, .v_dim = p->dim});
        plan_add(&r->plan, OP_QKV, l)->qkv =
            (struct op_qkv){.in = x,
                            .norm = rig_norm(r, NORM_RMS, p->width),
                            .q = slab_linear(r, base, qn, p->width, p->bias),
                            .k = slab_linear(r, base, kn, p->width, p->bias),
                            .v = slab_linear(r, type_of(p, base, l, true), kn, p->width, p->bias),
                            .rope = {ROPE_HALVES, p->dim, 0, freqs, .factor = 1},
                            .heads = p->heads,
                            .kv_heads = p->kv_heads,
                            .k_dim = p->dim,
                            .v_dim = p->dim,
                            .layer = l,
                            .out = q};
        plan_add(&r->plan, OP_ATTN, l)->attn = (struct op_attn){.in = q,
                                                                .out = a,
                                                                .heads = p->heads,
                                                                .kv_heads = p->kv_heads,
                                                                .k_dim = p->dim,
                                                                .v_dim = p->dim,
                                                                .layer = l,
                                                                .scale = 0.088f,
                                                                .causal = true};
        plan_add(&r->plan, OP_OUT, l)->out =
            (struct op_out){.in = a, .linear = slab_linear(r, base, p->width, qn, false), .tail = t};
        if (p->experts) {
            add_experts(r, p, base, l, t);
            continue;
        }
        plan_add(&r->plan, OP_FFN, l)->ffn =
            (struct op_ffn){.in = x,
                            .norm = rig_norm(r, NORM_RMS, p->width),
                            .gate = slab_linear(r, base, p->ffn, p->width, false),
                            .up = slab_linear(r, base, p->ffn, p->width, false),
                            .down = slab_linear(r, type_of(p, base, l, true), p->width, p->ffn, false),
                            .act = ACT_SILU,
                            .tail = t};
    }
    struct linear out = {.weight = p->tied ? table : rig_slab(r, head, p->vocab, p->width, 1)};
    plan_add(&r->plan, OP_LOGITS, UINT32_MAX)->logits =
        (struct op_logits){.in = x, .norm = rig_norm(r, NORM_RMS, p->width), .head = out, .scale = 1};
    r->plan.out_width = p->vocab;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void die(const struct err *e)
{
    printf("FAILED: %s\n", e->text);
    exit(1);
}

/* Bytes of weights and KV that a step reads. */
static double step_bytes(const struct rig *r, uint32_t rows, uint32_t keys)
{
    double bytes = 0;
    for (uint32_t i = 0; i < r->plan.count; i++) {
        struct op_cost c = plan_cost(&r->plan, &r->weights, i, (struct step_shape){rows, rows, keys});
        bytes += c.weight_bytes + c.kv_bytes;
    }
    return bytes;
}

/* chosen: the card takes the best token of each stream, and nothing but ids goes to the host. */
static void decode_as(struct rig *r, const struct preset *p, uint32_t streams, uint32_t length, double peak,
                      bool chosen)
{
    static struct step_pick pick[RIG_SEQS];
    struct err e = {0};
    for (uint32_t i = 0; i < streams; i++)
        pick[i] = (struct step_pick){.on = true, .top_p = 1, .repeat = 1};
    double t[48];
    int count = (int)(sizeof t / sizeof t[0]);
    for (uint32_t i = 0; i < streams; i++)
        r->length[i] = length;
    for (int i = -6; i < count; i++) {
        double from = now();
        rig_begin(r);
        for (uint32_t s = 0; s < streams; s++)
            rig_add(r, s, 1, true);
        r->step.pick = chosen ? pick : NULL;
        if (!rig_run(r, &e))
            die(&e);
        if (i >= 0)
            t[i] = now() - from;
    }
    qsort(t, (size_t)count, sizeof t[0], order);
    double s = t[count / 2], gbs = step_bytes(r, streams, length) / s / 1e9;
    printf(
        "%-14s decode %2u streams, %5u keys: %8.1f tok/s  %7.1f us a step  %6.0f GB/s = %4.1f%% of %.0f%s\n",
        p->name, streams, length, streams / s, 1e6 * s, gbs, 100 * gbs / peak, peak,
        chosen ? ", tokens chosen on the card" : "");
    fflush(stdout);
}

static void decode(struct rig *r, const struct preset *p, uint32_t streams, uint32_t length, double peak)
{
    decode_as(r, p, streams, length, peak, false);
}

static void profile(struct rig *r, uint32_t rows, const char *what)
{
    static double seconds[4096];
    struct err e = {0};
    double kind[16] = {0}, total = 0;
    memset(seconds, 0, sizeof seconds);
    r->device->seconds = seconds;
    int rounds = 3;
    uint32_t length = r->length[0];
    for (int i = 0; i < rounds; i++) {
        r->length[0] = length;
        rig_begin(r);
        rig_add(r, 0, rows, false);
        if (!rig_run(r, &e))
            die(&e);
    }
    r->device->seconds = NULL;
    for (uint32_t i = 0; i < r->plan.count; i++) {
        kind[r->plan.ops[i].kind] += seconds[i] / rounds;
        total += seconds[i] / rounds;
    }
    printf("  profile %s: %.0f us of kernels:", what, 1e6 * total);
    for (int k = 0; k <= OP_LOGITS; k++)
        if (kind[k] > 0)
            printf(" %s %.0f", plan_op_name((enum op_kind)k), 1e6 * kind[k]);
    printf("\n");
    fflush(stdout);
}

/* What each kind of kernel costs where it stands: the step without it. */
static void ablate(struct rig *r, const struct preset *p, uint32_t streams, uint32_t keys, double peak)
{
    static const struct {
        const char *name;
        uint32_t from, count;
    } part[] = {{"nothing", 0, 0},
                {"norm_pack", K_NORM_PACK, 3},
                {"norm_slots", K_NORM_SLOTS, 3},
                {"qkv_finish", K_QKV, 1},
                {"attn_decode", K_ATTN_DECODE, 16},
                {"act_pack", K_ACT_PACK, 2},
                {"products", K_GEMM, K_REPACK},
                {"all but products", K_NORM_PACK, K_COUNT - K_NORM_PACK}};
    struct cuda_device *d = (struct cuda_device *)r->device;
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
        bool without[LAUNCH_KINDS] = {false};
        for (uint32_t k = 0; k < part[i].count; k++)
            without[part[i].from + k] = true;
        d->lower.options.without = without;
        cache_forget(&d->cache, d->g);
        printf("  without %-16s", part[i].name);
        decode(r, p, streams, keys, peak);
        d->lower.options.without = NULL;
    }
    cache_forget(&d->cache, d->g);
}

static void prefill(struct rig *r, const struct preset *p, uint32_t tokens, uint32_t chunk)
{
    struct err e = {0};
    double t[5];
    int count = 5;
    for (int i = -2; i < count; i++) {
        double from = now();
        r->length[0] = 0;
        for (uint32_t done = 0; done < tokens;) {
            uint32_t n = tokens - done < chunk ? tokens - done : chunk;
            rig_begin(r);
            rig_add(r, 0, n, false);
            if (!rig_run(r, &e))
                die(&e);
            done += n;
        }
        if (i >= 0)
            t[i] = now() - from;
    }
    qsort(t, (size_t)count, sizeof t[0], order);
    double flops = 0;
    for (uint32_t i = 0; i < r->plan.count; i++)
        flops += plan_cost(&r->plan, &r->weights, i, (struct step_shape){tokens, 1, tokens / 2.0}).flops;
    printf("%-14s prefill %5u in chunks of %4u: %8.0f tok/s  %7.2f ms  %.0f TFLOP/s\n", p->name, tokens,
           chunk, tokens / t[count / 2], 1e3 * t[count / 2], flops / t[count / 2] / 1e12);
    fflush(stdout);
}

/* The rest of a prompt of which `known` tokens are in KV already. */
static double read_rest(struct rig *r, uint32_t known, uint32_t rest)
{
    struct err e = {0};
    double t[7];
    int count = 7;
    for (int i = -2; i < count; i++) {
        double from = now();
        r->length[0] = known;
        rig_begin(r);
        rig_add(r, 0, rest, false);
        if (!rig_run(r, &e))
            die(&e);
        if (i >= 0)
            t[i] = now() - from;
    }
    qsort(t, (size_t)count, sizeof t[0], order);
    return t[count / 2];
}

static void continued(struct rig *r, const struct preset *p)
{
    static const uint32_t rests[] = {8, 32, 64, 128, 256, 512, 1024};
    for (size_t i = 0; i < sizeof rests / sizeof rests[0]; i++) {
        double alone = read_rest(r, 0, rests[i]), known = read_rest(r, 4000, rests[i]);
        printf("%-14s prefill %4u: %.2f ms, behind 4000 that are known %.2f ms = %.2f times\n", p->name,
               rests[i], 1e3 * alone, 1e3 * known, known / alone);
    }
    fflush(stdout);
}

static void open_rig(struct rig *r, uint32_t rows, uint32_t seqs, uint32_t tokens, uint64_t copies)
{
    struct err e = {0};
    r->max_rows = rows;
    r->max_seqs = seqs;
    double from = now();
    if (rig_open(r, "cuda", &(struct device_options){.copies = copies}, DTYPE_F16, tokens, &e))
        die(&e);
    struct device_memory m;
    r->device->ops->memory(r->device, &m);
    struct cuda_device *d = (struct cuda_device *)r->device;
    printf("  opened in %.2f s: weights %.2f GB in %.3f s = %.1f GB/s; KV %.2f GB, scratch %.0f MB\n",
           now() - from, (double)m.weights / 1e9, d->weights.seconds,
           (double)m.weights / 1e9 / d->weights.seconds, (double)m.kv / 1e9, (double)m.scratch / 1e6);
    fflush(stdout);
}

static double measure(void)
{
    struct err e = {0};
    struct gpu *g = gpu_open(0, 0, &e);
    if (!g || gpu_measure(g, &e))
        die(&e);
    double gbs = g->profile.read_gbs;
    printf("%s: read bandwidth %.0f GB/s\n", g->profile.name, gbs);
    gpu_close(g);
    return gbs;
}

static const struct preset *find_preset(const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
        if (!strcmp(presets[i].name, name))
            return &presets[i];
    return NULL;
}

static int bench_step(const char *name, uint32_t type)
{
    const struct preset *p = find_preset(name);
    if (!p)
        return 1;
    double peak = measure();
    struct rig r = {0};
    build(&r, p, type);
    open_rig(&r, 256, 64, 1024, 0);
    static const uint32_t streams[] = {1, 2, 4, 8, 16, 32, 64};
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++)
        decode(&r, p, streams[i], 512, peak);
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++)
        decode_as(&r, p, streams[i], 512, peak, true);
    r.length[0] = 512;
    profile(&r, 1, "decode 1");
    ablate(&r, p, 1, 512, peak);
    ablate(&r, p, 32, 512, peak);
    struct cuda_device *d = (struct cuda_device *)r.device;
    d->lower.options.no_fuse = true;
    cache_forget(&d->cache, d->g);
    printf("  nothing fused ");
    decode(&r, p, 1, 512, peak);
    d->lower.options.no_fuse = false;
    cache_forget(&d->cache, d->g);
    rig_close(&r);
    static const uint32_t tokens[] = {512, 2048, 8192};
    for (uint64_t copies = 1ull << 36;; copies = 0) { /* with weights that stay decoded, and without */
        open_rig(&r, 1024, 1, 17408, copies);
        for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
            prefill(&r, p, tokens[i], 1024);
        if (!copies)
            break;
        rig_close(&r);
    }
    continued(&r, p);
    r.length[0] = 1024;
    profile(&r, 1024, "prefill 1024 at 1024");
    prefill(&r, p, 16384, 1024);
    decode(&r, p, 1, 16384, peak);
    r.length[0] = 16384;
    profile(&r, 1, "decode 1 at 16k");
    rig_close(&r);
    rig_free(&r);
    return 0;
}

static int bench_decode(const char *name, uint32_t streams, uint32_t keys, uint32_t type)
{
    const struct preset *p = find_preset(name);
    struct rig r = {0};
    if (!p || !streams || streams > RIG_SEQS)
        return 1;
    build(&r, p, type);
    double peak = measure();
    open_rig(&r, streams > 256 ? streams : 256, streams, keys + 64, 0);
    decode_as(&r, p, streams, keys, peak, true);
    ablate(&r, p, streams, keys, peak);
    rig_close(&r);
    rig_free(&r);
    return 0;
}

/* ---- single kernels ---- */

struct shape {
    uint32_t n, k;
};

struct places {
    cu_ptr pool, x, y;
    uint64_t pool_bytes;
    double peak;
    void *event[2];
};

/* Microseconds of one product over ever other weights. */
static float time_product(struct gpu *g, const struct places *at, uint32_t fmt, struct shape shape,
                          uint32_t m, const struct gpu_gemm *how)
{
    struct err e = {0};
    float best = 1e9f;
    const uint64_t each = layout_bytes(fmt, shape.n, shape.k);
    int copies = (int)(at->pool_bytes / each);
    copies = copies > 40 ? 40 : copies;
    struct gemm_args a = {.segs = 1,
                          .strips = (shape.n + how->outputs - 1) / how->outputs,
                          .m = m,
                          .k = shape.k,
                          .split = how->split,
                          .groups = how->rows ? gpu_blocks(m, 8) : how->groups,
                          .stages = how->stages,
                          .row_scale = (const float *)at->y,
                          .scale = 1,
                          .x = (const uint8_t *)at->x,
                          .part = gpu_parts(g),
                          .count = gpu_counters(g)};
    a.seg[0].w = (struct mat){.fmt = fmt, .n = shape.n, .k = shape.k, .stride = layout_stride(fmt, shape.k)};
    a.seg[0].y = (float *)at->y;
    a.seg[0].ldy = shape.n;
    for (int round = 0; round < 4; round++) {
        float ms = 0;
        g->cu->event_record(at->event[0], g->stream);
        for (int i = 0; i < copies; i++) {
            a.seg[0].w.base = (const uint8_t *)(at->pool + (uint64_t)i * each);
            if (gpu_launch(g, how->kernel, how->grid, &a, &e))
                die(&e);
        }
        g->cu->event_record(at->event[1], g->stream);
        if (gpu_sync(g, &e))
            die(&e);
        g->cu->event_ms(&ms, at->event[0], at->event[1]);
        best = ms / (float)copies < best ? ms / (float)copies : best;
    }
    return 1e3f * best;
}

static const struct shape shapes[] = {{6144, 4096},  {4096, 4096},   {28672, 4096},
                                      {4096, 14336}, {128256, 4096}, {2048, 1536},
                                      {1536, 1536},  {17920, 1536},  {1536, 8960}};

static void kernels_of(struct gpu *g, uint32_t fmt, const char *name, const struct places *at)
{
    static const uint32_t rows[] = {1, 8, 16, 32, 64, 128};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        printf("%-5s %6ux%-5u", name, shapes[s].n, shapes[s].k);
        for (size_t m = 0; m < sizeof rows / sizeof rows[0]; m++) {
            const struct gpu_many many = {
                .m = rows[m], .k = shapes[s].k, .units = gpu_blocks(shapes[s].n, MANY_UNIT)};
            float best = 0;
            printf(" | M=%-2u", rows[m]);
            if (rows[m] <= GEMM_ROWS_MOST) {
                const struct gpu_gemm how = gpu_gemm_choose(
                    &g->profile, fmt, rows[m], gpu_blocks(shapes[s].n, TILE_ROWS), shapes[s].k, false);
                best = time_product(g, at, fmt, shapes[s], rows[m], &how);
                printf(" %.2f", best);
            }
            if (gpu_has_many(&g->profile, fmt, rows[m])) {
                const struct gpu_gemm how = gpu_gemm_many(&g->profile, &many);
                const float wide = time_product(g, at, fmt, shapes[s], rows[m], &how);
                best = best > 0 && best < wide ? best : wide;
                printf(" %.2f", wide);
            }
            printf(" (%.0f%%)",
                   100.0 * (double)layout_bytes(fmt, shapes[s].n, shapes[s].k) / best / 1e3 / at->peak);
        }
        printf("\n");
        fflush(stdout);
    }
}

/* Products of many rows: as chosen, and every way to share the work, for many_cost of variants.c. */
static void many_of(struct gpu *g, uint32_t fmt, const char *name, const struct places *at)
{
    static const uint32_t rows[] = {32, 64, 128, 256, 512};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            const struct gpu_many p = {
                .m = rows[i], .k = shapes[s].k, .units = gpu_blocks(shapes[s].n, MANY_UNIT)};
            struct gpu_gemm how = gpu_gemm_many(&g->profile, &p);
            if (shapes[s].n > 100000 && rows[i] > 128)
                continue;
            printf("%-5s %6ux%-5u M=%-4u chosen %u:%u%s %.1f |", name, shapes[s].n, shapes[s].k, rows[i],
                   how.grid.threads / 128, how.split, how.stream_k ? " stream-k" : "",
                   time_product(g, at, fmt, shapes[s], rows[i], &how));
            for (uint32_t groups = 4; groups; groups /= 2)
                for (uint32_t n = 1; n <= 12 && n <= shapes[s].k / 256; n++) {
                    const bool fits = gpu_gemm_many_as(&g->profile, &p, how.rows, groups, n, &how);
                    const uint32_t blocks = how.grid.x * how.grid.y * n;
                    if (fits && (n == 1 || blocks * 2 >= (uint32_t)g->profile.sms))
                        printf(" %u:%u %.1f", groups, n, time_product(g, at, fmt, shapes[s], rows[i], &how));
                }
            printf("\n");
            fflush(stdout);
        }
}

/* Products of 32 rows: as chosen, and every way to share the work of gemm_staged_few. */
static void few_of(struct gpu *g, uint32_t fmt, const char *name, const struct places *at)
{
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const uint32_t m = 32, strips = gpu_blocks(shapes[s].n, TILE_ROWS), k = shapes[s].k;
        struct gpu_gemm how = gpu_gemm_choose(&g->profile, fmt, m, strips, k, false);
        printf("%-5s %6ux%-5u chosen %.2f |", name, shapes[s].n, k,
               time_product(g, at, fmt, shapes[s], m, &how));
        for (uint32_t each = 1; each <= GEMM_FEW; each++)
            for (uint32_t split = 1; split * each <= GEMM_FEW && split <= k / TILE_COLS; split++)
                if (gpu_gemm_few_as(&g->profile, strips, each, split, &how) && each * split >= 4 &&
                    how.grid.x <= 2 * (uint32_t)g->profile.sms && how.grid.x * 2 >= (uint32_t)g->profile.sms)
                    printf(" %u:%u %.2f", each, split, time_product(g, at, fmt, shapes[s], m, &how));
        printf("\n");
        fflush(stdout);
    }
}

/* A product by one of the ways to launch it, each of its variants: names and microseconds. */
static void way_of(struct gpu *g, const struct places *at, uint32_t fmt, struct shape shape, uint32_t m,
                   const char *way)
{
    const struct gpu_many p = {.m = m, .k = shape.k, .units = gpu_blocks(shape.n, MANY_UNIT)};
    const uint32_t strips = gpu_blocks(shape.n, TILE_ROWS), rows = gpu_many_rows(m, MANY_ROWS);
    struct gpu_gemm how;
    if (!strcmp(way, "few") && m <= 32) {
        how = gpu_gemm_choose(&g->profile, fmt, m, strips, shape.k, false);
        printf(" | %s %.1f", gpu_kernel_name(how.kernel), time_product(g, at, fmt, shape, m, &how));
        return;
    }
    for (uint32_t groups = 4; groups; groups /= 2) {
        if (!strcmp(way, "stream-k") && gpu_gemm_many_stream_k(&g->profile, &p, rows, groups, 0, &how))
            printf(" | stream-k %u x %u %.1f", how.grid.y, groups, time_product(g, at, fmt, shape, m, &how));
        for (uint32_t n = 1; n <= 8 && !strcmp(way, "split"); n++)
            if (gpu_gemm_many_as(&g->profile, &p, rows, groups, n, &how) && groups > 1 &&
                (n == 1 || 4 * how.grid.y * n > 3 * how.held * (uint32_t)g->profile.sms))
                printf(" | %u:%u %.1f", groups, n, time_product(g, at, fmt, shape, m, &how));
    }
}

/* Large products of few rows: every way, or one of them. */
static void large_of(struct gpu *g, uint32_t fmt, const char *name, const struct places *at, const char *only)
{
    static const struct shape large[] = {{57344, 8192}, {8192, 28672}, {8192, 8192},
                                         {10240, 8192}, {28672, 4096}, {4096, 14336}};
    static const uint32_t rows[] = {17, 32, 64};
    static const char *const ways[] = {"few", "split", "stream-k"};
    for (size_t s = 0; s < sizeof large / sizeof large[0]; s++)
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            const uint32_t m = rows[i];
            const struct gpu_many p = {.m = m, .k = large[s].k, .units = gpu_blocks(large[s].n, MANY_UNIT)};
            const bool many = gpu_is_many(&g->profile, fmt, &p);
            const struct gpu_gemm how =
                many ? gpu_gemm_many(&g->profile, &p)
                     : gpu_gemm_choose(&g->profile, fmt, m, gpu_blocks(large[s].n, TILE_ROWS), large[s].k,
                                       false);
            printf("%-5s %6ux%-5u M=%-2u chosen %s %u:%u%s %.1f", name, large[s].n, large[s].k, m,
                   gpu_kernel_name(how.kernel), how.grid.threads / 128, how.split,
                   how.stream_k ? " stream-k" : "", time_product(g, at, fmt, large[s], m, &how));
            for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++)
                if (!only || !strcmp(only, ways[w]))
                    way_of(g, at, fmt, large[s], m, ways[w]);
            printf("\n");
            fflush(stdout);
        }
}

static struct places open_places(struct gpu *g)
{
    struct err e = {0};
    uint64_t bytes = 3ull << 30;
    if (!g || gpu_measure(g, &e))
        die(&e);
    struct places at = {gpu_alloc(g, bytes, "weights", &e),
                        gpu_alloc(g, 64u << 20, "x", &e),
                        gpu_alloc(g, 256u << 20, "y", &e),
                        bytes,
                        g->profile.read_gbs,
                        {NULL, NULL}};
    if (!at.pool || !at.x || !at.y)
        die(&e);
    g->cu->event_create(&at.event[0], 0);
    g->cu->event_create(&at.event[1], 0);
    /* plausible bytes: no kernel's speed depends on them, but zeros would draw less power */
    uint32_t *host = mem_alloc(64u << 20, 1);
    for (size_t i = 0; i < (64u << 18); i++)
        host[i] = rig_random() & 0x3bff3bff;
    for (uint64_t to = 0; to < bytes; to += 64u << 20)
        g->cu->to_device(at.pool + to, host, 64u << 20, g->stream);
    g->cu->to_device(at.x, host, 64u << 20, g->stream);
    if (gpu_sync(g, &e))
        die(&e);
    mem_free(host);
    return at;
}

/* One product of Q4_K, as it is chosen: for a profiler. */
static int bench_product(uint32_t n, uint32_t k, uint32_t m, const char *way)
{
    struct err e = {0};
    struct gpu *g = gpu_open(0, 0, &e);
    const struct places at = open_places(g);
    const struct gpu_many many = {.m = m, .k = k, .units = gpu_blocks(n, MANY_UNIT)};
    const struct gpu_gemm how =
        gpu_is_many(&g->profile, FMT_Q4_K_TILE, &many)
            ? gpu_gemm_many(&g->profile, &many)
            : gpu_gemm_choose(&g->profile, FMT_Q4_K_TILE, m, gpu_blocks(n, TILE_ROWS), k, false);
    if (way) {
        way_of(g, &at, FMT_Q4_K_TILE, (struct shape){n, k}, m, way);
        printf("\n");
        return 0;
    }
    printf("%s: %.2f us\n", gpu_kernel_name(how.kernel),
           time_product(g, &at, FMT_Q4_K_TILE, (struct shape){n, k}, m, &how));
    return 0;
}

static int bench_kernels(const char *which, const char *way)
{
    struct err e = {0};
    struct gpu *g = gpu_open(0, 0, &e);
    const struct places at = open_places(g);
    if (!strcmp(which, "few")) {
        printf("us for strips a block : warps that share one\n");
        few_of(g, FMT_Q4_K_TILE, "Q4_K", &at);
        few_of(g, FMT_Q6_K_TILE, "Q6_K", &at);
        few_of(g, FMT_Q8_0, "Q8_0", &at);
        return 0;
    }
    if (!strcmp(which, "large")) {
        printf("us for: kernel; warpgroups a block : blocks that share columns; even blocks x warpgroups\n");
        large_of(g, FMT_Q4_K_TILE, "Q4_K", &at, way);
        large_of(g, FMT_Q6_K_TILE, "Q6_K", &at, way);
        large_of(g, FMT_Q8_0, "Q8_0", &at, way);
        return 0;
    }
    if (!strcmp(which, "many")) {
        printf("us for warpgroups a block : blocks that share columns\n");
        many_of(g, FMT_Q4_K_TILE, "Q4_K", &at);
        return 0;
    }
    printf("us: mma, wgmma; %% of %.0f GB/s\n", g->profile.read_gbs);
    kernels_of(g, FMT_Q4_K_TILE, "Q4_K", &at);
    kernels_of(g, FMT_Q6_K_TILE, "Q6_K", &at);
    kernels_of(g, FMT_Q8_0, "Q8_0", &at);
    kernels_of(g, FMT_F16, "F16", &at);
    return 0;
}

static int bench_rest(const char *name)
{
    const struct preset *p = find_preset(name);
    struct rig r = {0};
    if (!p)
        return 1;
    build(&r, p, DTYPE_Q4_K);
    open_rig(&r, 512, 1, 8192, 0);
    printf("%.2f ms\n", 1e3 * read_rest(&r, 4000, 512));
    rig_close(&r);
    rig_free(&r);
    return 0;
}

/* The first layers on the CPU: prompts that send their weights to the card, and that do not. */
static int bench_split(const char *name, uint32_t layers)
{
    const struct preset *p = find_preset(name);
    if (!p)
        return 1;
    for (uint32_t stream_rows = 2;; stream_rows = UINT32_MAX) {
        struct rig r = {0};
        struct err e = {0};
        const struct device_options plain = {.no_parity = true}, sent = {.streamed = true};
        struct split_devices of = {.stream_rows = stream_rows};
        build(&r, p, DTYPE_Q4_K);
        for (uint32_t i = 0; i < r.plan.count; i++)
            r.plan.ops[i].device = i == 0 || r.plan.ops[i].layer < layers;
        r.max_rows = 1024;
        r.max_seqs = 1;
        if (device_open(&of.main, "cuda", &plain, &e) || cpu_open(&of.rest, &plain, &e) ||
            device_open(&of.stream, "cuda", &sent, &e) || split_open(&r.device, &of, &e) ||
            rig_open(&r, NULL, &plain, DTYPE_F16, 4096, &e))
            die(&e);
        printf("%u of the layers on the CPU, %s\n", layers,
               stream_rows == 2 ? "weights sent" : "weights stay");
        for (uint32_t n = 32; n <= 1024; n *= 2)
            if (stream_rows == 2 || n <= 128)
                prefill(&r, p, n, n);
        if (stream_rows != 2)
            decode(&r, p, 1, 512, 1);
        rig_close(&r);
        rig_free(&r);
        if (stream_rows != 2)
            return 0;
    }
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "step")) {
        int type = argc > 3 ? dtype_find(argv[3]) : DTYPE_Q4_K;
        return type < 0 ? 1 : bench_step(argv[2], (uint32_t)type);
    }
    if (argc > 4 && !strcmp(argv[1], "decode")) {
        int type = argc > 5 ? dtype_find(argv[5]) : DTYPE_Q4_K;
        return type < 0 ? 1
                        : bench_decode(argv[2], (uint32_t)strtoul(argv[3], NULL, 10),
                                       (uint32_t)strtoul(argv[4], NULL, 10), (uint32_t)type);
    }
    if (argc > 3 && !strcmp(argv[1], "split"))
        return bench_split(argv[2], (uint32_t)strtoul(argv[3], NULL, 10));
    if (argc > 2 && !strcmp(argv[1], "rest"))
        return bench_rest(argv[2]);
    if (argc > 1 && (!strcmp(argv[1], "kernels") || !strcmp(argv[1], "many") || !strcmp(argv[1], "few") ||
                     !strcmp(argv[1], "large")))
        return bench_kernels(argv[1], argc > 2 ? argv[2] : NULL);
    if (argc > 4 && !strcmp(argv[1], "product"))
        return bench_product((uint32_t)strtoul(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10),
                             (uint32_t)strtoul(argv[4], NULL, 10), argc > 5 ? argv[5] : NULL);
    fprintf(stderr, "usage: gpu_bench step PRESET [TYPE] | gpu_bench split PRESET LAYERS | gpu_bench kernels "
                    "| gpu_bench many | gpu_bench few | gpu_bench large [few|split|even] "
                    "| gpu_bench product OUTPUTS COLUMNS ROWS [few|split|even]\n");
    return 64;
}
