/* Paged attention against a reference in double: shapes, masks, page sizes, KV types, tiers; batches
 * against sequences alone; threads to the bit; memory that is not the sequence's own full of NaN. */
#include "reference.h"

struct shape {
    uint32_t heads, kv_heads, k_dim, v_dim, window;
    float softcap;
    bool sinks, both_ways, v_in_k;
    uint32_t page_tokens, type;
};

static const struct shape shapes[] = {
    {4, 4, 16, 16, 0, 0, false, false, false, 16, DTYPE_F32},  /* every head its own KV */
    {6, 2, 40, 40, 0, 0, false, false, false, 32, DTYPE_F32},  /* groups */
    {7, 1, 33, 21, 0, 0, false, false, false, 16, DTYPE_F32},  /* one KV head, odd sizes */
    {4, 2, 64, 64, 19, 0, false, false, false, 16, DTYPE_F32}, /* a window */
    {4, 2, 32, 32, 300, 0, true, false, false, 32, DTYPE_F32}, /* a window over chunks, sinks */
    {2, 1, 64, 48, 0, 3, true, false, false, 16, DTYPE_F32},   /* soft cap, sinks */
    {3, 3, 32, 32, 0, 0, false, true, false, 16, DTYPE_F32},   /* both ways */
    {70, 1, 40, 32, 0, 0, false, false, true, 16, DTYPE_F32},  /* latent, more heads than a tile */
    {6, 3, 64, 64, 0, 0, false, false, false, 16, DTYPE_F16},
    {6, 3, 64, 64, 33, 0, false, false, false, 32, DTYPE_BF16},
    {6, 3, 64, 64, 0, 0, true, false, false, 16, DTYPE_Q8_0},
    {5, 1, 96, 64, 0, 0, false, false, true, 32, DTYPE_F16},
};

enum { SHAPES = sizeof shapes / sizeof *shapes, WIDTH = 24 };

static double tolerance(uint32_t type)
{
    return type == DTYPE_F32 ? 2e-5 : type == DTYPE_F16 ? 1e-2 : 8e-2;
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
                              .window = s->window});
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
    plan_add(p, OP_ATTN, 0)->attn =
        (struct op_attn){.in = q,
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
                         .sinks = s->sinks ? ref_vector(&g->weights, s->heads, 0, 2) : 0};
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
        rig_device(g, &(struct device_options){.threads = threads, .exact = true, .tier = tier});
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

static void test_shapes(void **state)
{
    (void)state;
    static const char *const tier[] = {"scalar", "avx2", "avx512"};
    for (int i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct rig *g = rig_of(s);
        struct known keep[3] = {{NULL, NULL}};
        printf("    %2u/%u heads of %u/%u, %s:", s->heads, s->kv_heads, s->k_dim, s->v_dim,
               dtype_get(s->type)->name);
        for (int t = 0; t < 3; t++) {
            struct err e = {0};
            struct device *d = NULL;
            if (device_open(&d, "cpu", &(struct device_options){.threads = 1, .tier = tier[t]}, &e)) {
                printf(" no %s", tier[t]);
                continue;
            }
            d->ops->close(d);
            double error = run_scenes(g, s, tier[t], 1, keep);
            printf(" %s %.1e", tier[t], error);
            assert_true(error < tolerance(s->type));
            for (int threads = 2; t == 2 && threads <= 4; threads++)
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
        struct device *d = rig_device(g, &(struct device_options){.threads = 2, .exact = true});
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
        assert_true(most <= 1e-5 * size + (shapes[i].type == DTYPE_F32 ? 0 : 2e-3));
        free(whole);
        d->ops->close(d);
        rig_end(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
