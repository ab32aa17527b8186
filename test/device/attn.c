/* Paged attention against a reference in double: shapes, masks, page sizes, KV types, tiers; batches
 * against sequences alone; threads to the bit; memory that is not the sequence's own full of NaN. And the kernels
 * against plain C, tile by tile. */
#include "reference.h"

#include "device/cpu/tiers.h"

struct shape {
    uint32_t heads, kv_heads, k_dim, v_dim, window;
    float softcap;
    bool sinks, both_ways, v_in_k;
    uint32_t page_tokens, type;
    bool ints;         /* not exact: pages of integers */
    uint32_t distance; /* columns of the bias by distance; 0 = none */
};

static const struct shape shapes[] = {
    {4, 4, 16, 16, 0, 0, false, false, false, 16, DTYPE_F32, false, 0},  /* every head its own KV */
    {6, 2, 40, 40, 0, 0, false, false, false, 32, DTYPE_F32, false, 0},  /* groups */
    {7, 1, 33, 21, 0, 0, false, false, false, 16, DTYPE_F32, false, 0},  /* one KV head, odd sizes */
    {4, 2, 64, 64, 19, 0, false, false, false, 16, DTYPE_F32, false, 0}, /* a window */
    {4, 2, 32, 32, 300, 0, true, false, false, 32, DTYPE_F32, false, 0}, /* a window over chunks, sinks */
    {2, 1, 64, 48, 0, 3, true, false, false, 16, DTYPE_F32, false, 0},   /* soft cap, sinks */
    {3, 3, 32, 32, 0, 0, false, true, false, 16, DTYPE_F32, false, 0},   /* both ways */
    {3, 3, 32, 32, 21, 0, false, true, false, 16, DTYPE_F32, false, 0},  /* a window on both sides */
    {4, 2, 32, 32, 0, 5, false, true, false, 16, DTYPE_F32, false, 9},   /* bias by distance, soft cap */
    {4, 2, 32, 32, 40, 0, true, false, false, 32, DTYPE_F16, true, 41},
    {3, 3, 32, 32, 130, 0, false, true, false, 32, DTYPE_F16, true, 0},
    {70, 1, 40, 32, 0, 0, false, false, true, 16, DTYPE_F32, false, 0}, /* latent, more heads than a tile */
    {6, 3, 64, 64, 0, 0, false, false, false, 16, DTYPE_F16, false, 0},
    {6, 3, 64, 64, 33, 0, false, false, false, 32, DTYPE_BF16, false, 0},
    {6, 3, 64, 64, 0, 0, true, false, false, 16, DTYPE_Q8_0, false, 0},
    {5, 1, 96, 64, 0, 0, false, false, true, 32, DTYPE_F16, false, 0},
    {6, 2, 64, 64, 0, 0, false, false, false, 32, DTYPE_F16, true, 0},
    {7, 1, 33, 21, 0, 0, true, false, false, 16, DTYPE_F16, true, 0},   /* odd sizes, sinks */
    {4, 2, 40, 72, 19, 0, false, false, false, 16, DTYPE_F16, true, 0}, /* a window within a block */
    {4, 2, 32, 96, 300, 0, true, false, false, 32, DTYPE_F16, true, 0}, /* over chunks */
    {2, 1, 128, 128, 0, 3, true, false, false, 32, DTYPE_F16, true, 0}, /* soft cap */
    {3, 3, 32, 32, 0, 0, false, true, false, 32, DTYPE_F16, true, 0},   /* both ways */
    {70, 1, 16, 16, 0, 0, false, false, false, 16, DTYPE_F16, true, 0}, /* more heads than a tile */
};

enum { SHAPES = sizeof shapes / sizeof *shapes, WIDTH = 24 };

static double tolerance(const struct shape *s)
{
    return s->ints ? 1e-3 : s->type == DTYPE_F32 ? 2e-5 : s->type == DTYPE_F16 ? 1e-2 : 8e-2;
}

static struct linear make(struct rig *g, uint32_t rows)
{
    return (struct linear){.weight = ref_weight(&g->weights, DTYPE_F32, rows, WIDTH, 1, 0)};
}

static struct rig *rig_of(const struct shape *s)
{
    struct rig *g = rig_new();
    struct plan *p = &g->plan;
    struct operand x = plan_buffer(p, WIDTH), q = plan_buffer(p, s->heads * s->k_dim);
    struct operand y = plan_buffer(p, s->heads * s->v_dim);
    plan_add(p, OP_EMBED, UINT32_MAX)->embed =
        (struct op_embed){.table = ref_weight(&g->weights, DTYPE_F32, 31, WIDTH, 1, 1), .scale = 1, .out = x};
    struct rope rope = {.kind = ROPE_HALVES, .dims = 8, .factor = 1, .freqs = ref_freqs(&g->weights, 8)};
    plan_kv(p, 0,
            (struct kv_group){.kv_heads = s->kv_heads,
                              .k_dim = s->k_dim,
                              .v_dim = s->v_in_k ? 0 : s->v_dim,
                              .window = s->both_ways ? 0 : s->window});
    if (s->v_in_k) {
        struct op_latent o = {
            .in = x, .out = q, .heads = s->heads, .nope = 12, .latent = s->v_dim, .rope = rope};
        o.q_b = make(g, s->heads * 20);
        o.kv_a = make(g, s->k_dim);
        o.rope.dims = s->k_dim - s->v_dim;
        o.rope.freqs = ref_freqs(&g->weights, o.rope.dims);
        o.q_b = make(g, s->heads * (12 + o.rope.dims));
        o.k_b = ref_weight(&g->weights, DTYPE_F32, s->v_dim, 12, s->heads, 0);
        plan_add(p, OP_LATENT, 0)->latent = o;
    } else {
        plan_add(p, OP_QKV, 0)->qkv = (struct op_qkv){.in = x,
                                                      .out = q,
                                                      .heads = s->heads,
                                                      .kv_heads = s->kv_heads,
                                                      .k_dim = s->k_dim,
                                                      .v_dim = s->v_dim,
                                                      .rope = rope,
                                                      .q = make(g, s->heads * s->k_dim),
                                                      .k = make(g, s->kv_heads * s->k_dim),
                                                      .v = make(g, s->kv_heads * s->v_dim)};
    }
    plan_add(p, OP_ATTN, 0)->attn = (struct op_attn){
        .in = q,
        .out = y,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .k_dim = s->k_dim,
        .v_dim = s->v_dim,
        .window = s->window,
        .scale = 1 / sqrtf((float)s->k_dim),
        .softcap = s->softcap,
        .causal = !s->both_ways,
        .v_in_k = s->v_in_k,
        .sinks = s->sinks ? ref_vector(&g->weights, s->heads, 0, 2) : 0,
        .distance = s->distance ? ref_weight(&g->weights, DTYPE_F32, 1, s->distance, s->heads, 2) : 0};
    plan_add(p, OP_LOGITS, UINT32_MAX)->logits = (struct op_logits){.in = y, .scale = 1};
    p->out_width = s->heads * s->v_dim;
    rig_begin(g, s->page_tokens, s->type);
    return g;
}

/* All that a sequence does not own is NaN (for Q8_0: numbers without meaning). */
static void poison(struct rig *g, struct device *d)
{
    struct err e = {0};
    size_t bytes = d->ops->page_bytes(d, 0);
    void *host = malloc(bytes);
    memset(host, 0xff, bytes);
    for (uint32_t i = 0; i < g->kv.pages[0]; i++)
        assert_int_equal(d->ops->write_page(d, 0, (int32_t)i, host, &e), 0);
    free(host);
}

/* Step i of a scene: a prompt over several chunks of keys, a mixed batch, single rows. */
static void scene(struct rig *g, int i, bool both_ways)
{
    rig_batch(g);
    if (i == 0) {
        rig_add(g, 3, both_ways ? 70 : 5);
        rig_add(g, 0, 290);
    } else if (both_ways) { /* whole sequences only */
        rig_add(g, (uint32_t)i, 100 * (uint32_t)i + 3);
        rig_add(g, (uint32_t)i + 4, 1);
    } else if (i == 1) {
        rig_add(g, 1, 17);
        rig_add(g, 0, 1);
        rig_add(g, 3, 66);
    } else {
        rig_add(g, 0, 1);
    }
}

/* What is known of a step: the reference's results, and the device's with one thread. */
struct known {
    double *want;
    float *got;
};

static double run_scenes(struct rig *g, const struct shape *s, const char *tier, int threads,
                         struct known keep[3])
{
    double worst = 0;
    struct device *d =
        rig_device(g, &(struct device_options){.threads = threads, .exact = !s->ints, .tier = tier});
    poison(g, d);
    memset(g->length, 0, sizeof g->length);
    for (int i = 0; i < 3; i++) {
        scene(g, i, s->both_ways);
        const float *y = rig_run(g, d);
        size_t bytes = (size_t)g->step.outs * g->plan.out_width * sizeof *y;
        if (!keep[i].want) {
            ref_run(&g->ref, &g->step, g->name);
            keep[i].want = malloc(2 * bytes);
            keep[i].got = malloc(bytes);
            memcpy(keep[i].want, g->ref.results, 2 * bytes);
        }
        if (threads == 1) {
            memcpy(g->ref.results, keep[i].want, 2 * bytes);
            worst = fmax(worst, rig_error(g, y, true));
            memcpy(keep[i].got, y, bytes);
        } else {
            assert_memory_equal(keep[i].got, y, bytes);
        }
    }
    d->ops->close(d);
    return worst;
}

/* The tiers of this machine that have attention of their own. */
static int attn_tiers(const char *tier[TIERS_MOST])
{
    struct err e = {0};
    const struct kernels *before = NULL, *k;
    int n = 0;
    for (size_t t = 0; kernels_tier(t) && (k = kernels_get(kernels_tier(t), &e)); before = k, t++)
        if (!before || k->attn_scores != before->attn_scores)
            tier[n++] = kernels_tier(t);
    return n;
}

static void test_shapes(void **state)
{
    (void)state;
    const char *tier[TIERS_MOST];
    const int tiers = attn_tiers(tier);
    for (int i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct rig *g = rig_of(s);
        struct known keep[3] = {{NULL, NULL}};
        printf("    %2u/%u heads of %u/%u, %s:", s->heads, s->kv_heads, s->k_dim, s->v_dim,
               s->ints ? "int16" : dtype_get(s->type)->name);
        for (int t = 0; t < tiers; t++) {
            double error = run_scenes(g, s, tier[t], 1, keep);
            printf(" %s %.1e", tier[t], error);
            assert_true(error < tolerance(s));
            for (int threads = 2; t == tiers - 1 && threads <= 4; threads++)
                run_scenes(g, s, tier[t], threads, keep);
        }
        printf("\n");
        for (int j = 0; j < 3; j++) {
            free(keep[j].want);
            free(keep[j].got);
        }
        rig_end(g);
    }
}

/* A prompt in pieces, beside others, is the prompt at once and alone. */
static void test_pieces(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        if (shapes[i].both_ways || shapes[i].heads > 8)
            continue;
        struct rig *g = rig_of(&shapes[i]);
        struct device *d =
            rig_device(g, &(struct device_options){
                              .threads = 2, .exact = !shapes[i].ints, .deterministic = shapes[i].ints});
        size_t n = g->plan.out_width;
        rig_batch(g);
        rig_add(g, 1, 280);
        const float *y = rig_run(g, d);
        float *whole = malloc(280 * n * sizeof *whole);
        memcpy(whole, y, 280 * n * sizeof *whole);
        g->length[1] = 0;
        static const uint32_t piece[] = {1, 63, 100, 2, 114};
        uint32_t done = 0;
        double most = 0, size = 0;
        for (int j = 0; j < 5; j++) {
            rig_batch(g);
            rig_add(g, 2, (uint32_t)(3 + j));
            rig_add(g, 1, piece[j]);
            y = rig_run(g, d) + (size_t)(3 + j) * n;
            for (size_t k = 0; k < piece[j] * n; k++) {
                most = fmax(most, fabs((double)y[k] - (double)whole[done * n + k]));
                size = fmax(size, fabs((double)y[k]));
            }
            done += piece[j];
        }
        if (shapes[i].ints) /* to the bit: the products before it are, too */
            assert_true(most == 0 && size > 0);
        assert_true(most <= 1e-5 * size + (shapes[i].type == DTYPE_F32 ? 0 : 2e-3));
        free(whole);
        d->ops->close(d);
        rig_end(g);
    }
}

/* ---- kernels ---- */

enum { M_MOST = 14, DIM_MOST = 130, COLS_MOST = 144 };

/* A tile and all that it points to. */
struct scene {
    struct attn_tile tile;
    struct attn_pages pages;
    struct attn_span seen[M_MOST];
    int16_t k[ATTN_KEYS * DIM_MOST], v[ATTN_KEYS * COLS_MOST], q16[M_MOST * DIM_MOST], w[M_MOST * ATTN_KEYS];
    float q[M_MOST * DIM_MOST], kf[DIM_MOST * ATTN_KEYS], vf[ATTN_KEYS * DIM_MOST];
    float s[M_MOST * ATTN_KEYS], acc[M_MOST * DIM_MOST];
    float max[M_MOST], sum[M_MOST], rescale[M_MOST], q_scale[M_MOST], w_scale[M_MOST];
};

static float noise(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

static void fill(float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = noise() * scale;
}

/* Keys, values and queries as pages keep them, rounded by plain C. */
static void scene_pages(struct scene *c, const struct kernels *k, uint32_t tokens)
{
    const uint32_t dim = c->tile.k_dim, even = dim + dim % 2, v_dim = c->tile.v_dim,
                   cols = attn_v_cols(v_dim);
    int16_t one[COLS_MOST];
    c->pages.tokens = tokens;
    for (uint32_t p = 0; p < ATTN_KEYS / tokens; p++) {
        c->pages.k[p] = c->k + p * tokens * even;
        c->pages.v[p] = c->v + p * tokens * cols;
    }
    for (uint32_t j = 0; j < ATTN_KEYS; j++) {
        float x[DIM_MOST];
        int16_t *to_k = c->k + j / tokens * tokens * even, *to_v = c->v + j / tokens * tokens * cols;
        fill(x, dim, j % 7 ? 1 : 90);
        c->pages.k_scale[j] = k->round_i16(x, dim, true, one);
        for (uint32_t i = 0; i < even; i++)
            to_k[(i / 2 * tokens + j % tokens) * 2 + i % 2] = i < dim ? one[i] : 0;
        fill(x, v_dim, 3);
        c->pages.v_scale[j] = j < c->tile.keys ? k->round_i16(x, v_dim, false, one) : 0;
        for (uint32_t i = 0; i < v_dim; i++)
            to_v[(j % tokens / 2 * cols + i) * 2 + j % 2] = one[i];
    }
    for (uint32_t r = 0; r < c->tile.m; r++) {
        c->q16[r * even + even - 1] = 0;
        c->q_scale[r] = k->round_i16(c->q + r * dim, dim, true, c->q16 + r * even);
    }
    c->tile.pages = &c->pages;
}

static void scene_open(struct scene *c, uint32_t m, uint32_t k_dim, uint32_t v_dim, uint32_t keys)
{
    memset(c, 0, sizeof *c);
    c->tile = (struct attn_tile){.q = c->q,
                                 .k = c->kf,
                                 .v = c->vf,
                                 .q16 = c->q16,
                                 .q_scale = c->q_scale,
                                 .seen = c->seen,
                                 .s = c->s,
                                 .max = c->max,
                                 .sum = c->sum,
                                 .rescale = c->rescale,
                                 .w = c->w,
                                 .w_scale = c->w_scale,
                                 .acc = c->acc,
                                 .m = m,
                                 .k_dim = k_dim,
                                 .v_dim = v_dim,
                                 .keys = keys};
    fill(c->q, m * k_dim, 1);
    fill(c->kf, k_dim * ATTN_KEYS, 1);
    fill(c->vf, keys * v_dim, 3);
    fill(c->acc, m * v_dim, 2);
    for (uint32_t r = 0; r < m; r++) {
        const uint32_t hi = r % 3 ? keys : keys * (r % 5) / 4, lo = r % 4 == 3 ? hi / 2 : 0;
        c->seen[r] = (struct attn_span){lo, hi};
        c->max[r] = r % 3 == 1 ? 1.5f : -INFINITY;
        c->sum[r] = r % 3 == 1 ? 4 : 0;
    }
}

/* The same scene: what kernels write is its own. */
static void scene_copy(struct scene *to, const struct scene *from)
{
    *to = *from;
    to->tile.max = to->max;
    to->tile.sum = to->sum;
    to->tile.rescale = to->rescale;
    to->tile.w = to->w;
    to->tile.w_scale = to->w_scale;
    to->tile.s = to->s;
    to->tile.acc = to->acc;
}

static void same(const char *what, const struct kernels *k, const float *a, const float *b, uint32_t n,
                 float bound)
{
    for (uint32_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= bound * (1 + fabsf(b[i]))) && a[i] != b[i])
            fail_msg("%s %s: value %u of %u is %.9g, scalar has %.9g", k->tier, what, i, n, (double)a[i],
                     (double)b[i]);
}

/* Each kernel of the tier on what plain C has made so far; those of the scalar tier give the same bits, with an instruction
 * for fmaf or without. */
static void scene_check(struct scene *want, struct scene *got, const struct kernels *k,
                        const struct kernels *scalar)
{
    const struct attn_tile *t = &want->tile;
    const float near = strcmp(k->tier, "scalar") ? 1 : 0;
    scene_copy(got, want);
    scalar->attn_scores(&want->tile);
    k->attn_scores(&got->tile);
    for (uint32_t r = 0; r < t->m; r++)
        same("scores", k, got->s + r * ATTN_KEYS, want->s + r * ATTN_KEYS, t->keys,
             near * (t->pages ? 1e-6f : 1e-5f));
    scene_copy(got, want);
    scalar->attn_softmax(&want->tile);
    k->attn_softmax(&got->tile);
    same("max", k, got->max, want->max, t->m, 0);
    same("sum", k, got->sum, want->sum, t->m, 2e-6f);
    same("rescale", k, got->rescale, want->rescale, t->m, 1e-6f);
    if (!t->pages)
        same("softmax", k, got->s, want->s, t->m * ATTN_KEYS, 1e-6f);
    for (uint32_t i = 0; t->pages && i < t->m * ATTN_KEYS; i++)
        if (abs(got->w[i] - want->w[i]) > 1)
            fail_msg("%s weight %u is %d, scalar has %d", k->tier, i, got->w[i], want->w[i]);
    scene_copy(got, want);
    scalar->attn_values(&want->tile);
    k->attn_values(&got->tile);
    for (uint32_t r = 0; r < t->m; r++) /* values are 3 at most */
        same("values", k, got->acc + r * t->v_dim, want->acc + r * t->v_dim, t->v_dim,
             near * 1e-6f * (3 + want->sum[r]));
}

static void test_kernels(void **state)
{
    (void)state;
    const char *tier[TIERS_MOST];
    static const uint32_t dims[][2] = {{1, 1}, {33, 21}, {64, 64}, {40, 72}, {130, 127}, {128, 128}};
    struct err e = {0};
    struct kernels scalar;
    kernels_scalar(&scalar);
    struct scene *want = malloc(sizeof *want), *got = malloc(sizeof *got);
    for (int n = 0, tiers = attn_tiers(tier); n < tiers; n++) {
        const struct kernels *k = kernels_get(tier[n], &e);
        for (uint32_t i = 0; i < 6 * M_MOST * 3; i++) {
            const uint32_t m = 1 + i / 6 % M_MOST, keys = i % 4 ? ATTN_KEYS : 1 + i * 7 % ATTN_KEYS;
            scene_open(want, m, dims[i % 6][0], dims[i % 6][1], keys);
            if (i / 6 / M_MOST)
                scene_pages(want, &scalar, 16 * (i / 6 / M_MOST));
            scene_check(want, got, k, &scalar);
        }
    }
    free(want);
    free(got);
}

/* Rounding is plain C's but for the last place of a length, keeps what is no number, and makes no sum overflow. */
static void test_rounding(void **state)
{
    (void)state;
    const char *tier[TIERS_MOST];
    struct err e = {0};
    for (int n = 0, tiers = attn_tiers(tier); n < tiers; n++) {
        const struct kernels *k = kernels_get(tier[n], &e);
        for (uint32_t i = 0; i < 200; i++) {
            float x[DIM_MOST];
            int16_t y[DIM_MOST];
            const uint32_t size = 1 + i % DIM_MOST;
            const bool length = i % 2;
            fill(x, size, i % 5 ? 3 : 1e-20f);
            float worth = k->round_i16(x, size, length, y);
            int64_t square = 0;
            for (uint32_t j = 0; j < size; j++) {
                assert_true(fabsf(x[j] - worth * y[j]) <= 0.51f * worth);
                assert_true(length || abs(y[j]) <= (int)I16_LARGEST);
                square += y[j] * y[j];
            }
            assert_true(!length || square < INT32_MAX);
            x[size / 2] = NAN;
            assert_true(isnan(k->round_i16(x, size, length, y)));
            memset(x, 0, sizeof x);
            assert_true(k->round_i16(x, size, length, y) == 0 && y[0] == 0 && y[size - 1] == 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_pieces),
                                       cmocka_unit_test(test_kernels), cmocka_unit_test(test_rounding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
