/* gpu_experts [all | quick] [NAME...]: expert layers on the GPU against the CPU in its exact arithmetic, for every type,
 * number of rows and gating, with odd shapes; of those with a NAME in theirs. quick: a few, for compute-sanitizer. */
#include "rig.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;
static bool quick;
static char **only; /* names, up to a NULL */

enum { ROWS = 512, VOCAB = 257 };

/* A kind of expert layer. Widths for types with blocks of 256, of 32, of one value. */
struct layer {
    const char *name;
    uint32_t width[3], ffn[3], shared[3], out; /* out 0: as wide as the input, with a residual */
    uint32_t experts, used;
    enum gating_kind gating;
    enum act_kind act;
    bool bias, ungated, normalise, groups, post_norm, half_router;
    bool router_norm,
        scale_input; /* the router has a norm of its own, experts a scale each; weights scale inputs */
    uint32_t identities;
    bool choice_bias;
    bool followed; /* by a dense layer, whose norm is made with the sum */
    float nearness;
    enum norm_kind norm;
};

static const struct layer layers[] = {
    {.name = "softmax",
     .followed = true,
     .width = {512, 320, 308},
     .ffn = {256, 96, 76},
     .experts = 12,
     .used = 3,
     .act = ACT_SILU,
     .normalise = true,
     .norm = NORM_RMS},
    {.name = "clamped, with biases",
     .width = {768, 1184, 1004},
     .ffn = {512, 544, 332},
     .out = 131,
     .experts = 9,
     .used = 4,
     .gating = GATING_SOFTMAX_TOPK,
     .act = ACT_SWIGLU_OAI,
     .bias = true,
     .norm = NORM_RMS},
    {.name = "sigmoid, groups, shared",
     .followed = true,
     .width = {256, 288, 264},
     .ffn = {256, 64, 40},
     .shared = {512, 160, 100},
     .experts = 64,
     .used = 6,
     .gating = GATING_SIGMOID,
     .act = ACT_GELU_TANH,
     .normalise = true,
     .groups = true,
     .half_router = true,
     .norm = NORM_RMS},
    {.name = "without gate, layer norm",
     .width = {256, 288, 264},
     .ffn = {512, 160, 100},
     .shared = {256, 64, 40},
     .experts = 5,
     .used = 2,
     .act = ACT_RELU2,
     .ungated = true,
     .post_norm = true,
     .norm = NORM_LAYER},
    {.name = "router with its own norm, scales of experts",
     .width = {512, 320, 308},
     .ffn = {256, 96, 76},
     .experts = 16,
     .used = 4,
     .act = ACT_GELU_TANH,
     .normalise = true,
     .router_norm = true,
     .post_norm = true,
     .norm = NORM_RMS},
    {.name = "weights scale inputs, shared",
     .followed = true,
     .width = {512, 320, 308},
     .ffn = {512, 160, 100},
     .shared = {256, 96, 76},
     .experts = 8,
     .used = 2,
     .gating = GATING_SIGMOID,
     .act = ACT_SILU,
     .scale_input = true,
     .norm = NORM_RMS},
    {.name = "identities",
     .followed = true,
     .width = {256, 288, 264},
     .ffn = {256, 64, 40},
     .experts = 10,
     .identities = 6,
     .used = 4,
     .act = ACT_SILU,
     .norm = NORM_RMS},
    {.name = "sparsemixer",
     .width = {256, 288, 264},
     .ffn = {512, 96, 76},
     .experts = 16,
     .used = 2,
     .act = ACT_SILU,
     .nearness = 0.2f,
     .norm = NORM_LAYER},
    {.name = "many, biases of the choice",
     .followed = true,
     .width = {256, 288, 264},
     .ffn = {256, 64, 40},
     .experts = 130,
     .used = 8,
     .gating = GATING_SIGMOID,
     .act = ACT_SILU,
     .normalise = true,
     .choice_bias = true,
     .norm = NORM_RMS},
    {.name = "one",
     .followed = true,
     .width = {256, 288, 264},
     .ffn = {256, 64, 40},
     .experts = 1,
     .used = 1,
     .act = ACT_SILU,
     .normalise = true,
     .norm = NORM_RMS},
    {.name = "128, many of them chosen",
     .followed = true,
     .width = {256, 288, 264},
     .ffn = {256, 64, 40},
     .experts = 128,
     .used = 22,
     .act = ACT_SILU,
     .norm = NORM_RMS},
    {.name = "256, the most chosen",
     .width = {256, 288, 264},
     .ffn = {256, 64, 40},
     .experts = 256,
     .used = 32,
     .gating = GATING_SIGMOID,
     .act = ACT_SILU,
     .normalise = true,
     .norm = NORM_RMS},
    {.name = "257: sorted apart",
     .width = {256, 288, 264},
     .ffn = {256, 64, 40},
     .experts = 257,
     .used = 8,
     .gating = GATING_SOFTMAX_TOPK,
     .act = ACT_SILU,
     .norm = NORM_RMS},
};

static struct linear experts_of(struct rig *r, const struct layer *l, uint32_t type, uint32_t rows,
                                uint32_t cols)
{
    struct linear e = {.weight = rig_matrix(r, type, rows, cols, l->experts, 1.7f / sqrtf((float)cols))};
    if (l->bias)
        e.bias = rig_matrix(r, DTYPE_F32, 1, rows, l->experts, 0.2f);
    return e;
}

static void follow(struct rig *r, uint32_t type, struct operand x, uint32_t k, uint32_t f)
{
    plan_add(&r->plan, OP_FFN, 1)->ffn = (struct op_ffn){.in = x,
                                                         .norm = rig_norm(r, NORM_RMS, k),
                                                         .gate = rig_linear(r, type, f, k, false),
                                                         .up = rig_linear(r, type, f, k, false),
                                                         .down = rig_linear(r, type, k, f, false),
                                                         .act = ACT_SILU,
                                                         .tail = {.scale = 0.3f, .residual = x, .out = x}};
}

/* embed -> experts (-> dense) -> rows. */
static void build(struct rig *r, const struct layer *l, uint32_t type)
{
    const uint32_t block = dtype_get(type)->block_values,
                   i = block == 256  ? 0
                       : block == 32 ? 1
                                     : 2,
                   k = l->width[i], f = l->ffn[i], n = l->out ? l->out : k, shared = l->shared[i];
    const struct operand x = plan_buffer(&r->plan, k), y = l->out ? plan_buffer(&r->plan, n) : x;
    const uint32_t router = l->half_router ? DTYPE_BF16 : DTYPE_F32;
    struct op_moe o = {.in = x,
                       .norm = rig_norm(r, l->norm, k),
                       .router = rig_linear(r, router, l->experts + l->identities, k, l->bias),
                       .act = l->act,
                       .alpha = 1.702f,
                       .limit = 1.5f,
                       .gating = l->gating,
                       .experts = l->experts,
                       .used = l->used,
                       .normalise = l->normalise,
                       .weight_scale = 1.3f,
                       .scale_input = l->scale_input,
                       .identities = l->identities,
                       .nearness = l->nearness,
                       .tail = {.scale = 0.7f, .residual = l->out ? (struct operand){0} : x, .out = y}};
    r->vocab = VOCAB;
    plan_add(&r->plan, OP_EMBED, UINT32_MAX)->embed =
        (struct op_embed){.table = rig_matrix(r, DTYPE_F32, VOCAB, k, 1, 1), .scale = 1, .out = x};
    if (l->groups || l->choice_bias)
        o.select_bias = rig_vector(r, l->experts, 0, 0.1f);
    if (l->groups) {
        o.groups = 4;
        o.groups_used = 2;
        o.group_pair = true;
    }
    if (l->router_norm) {
        o.router_norm = rig_norm(r, NORM_RMS, k);
        o.expert_scale = rig_vector(r, l->experts, 1, 0.3f);
        o.least_sum = 0.7f;
    }
    if (!l->ungated)
        o.gate = experts_of(r, l, type, f, k);
    o.up = experts_of(r, l, type, f, k);
    o.down = experts_of(r, l, type == DTYPE_Q4_K && l->groups ? DTYPE_Q6_K : type, n, f);
    if (shared) {
        if (!l->ungated)
            o.shared_gate = rig_linear(r, type, shared, k, false);
        o.shared_up = rig_linear(r, type, shared, k, false);
        o.shared_down = rig_linear(r, type == DTYPE_Q4_K ? DTYPE_Q8_0 : type, n, shared, true);
        if (l->groups)
            o.shared_router = rig_matrix(r, router, 1, k, 1, 0.1f);
    }
    if (l->post_norm)
        o.tail.post = rig_norm(r, NORM_RMS, n);
    plan_add(&r->plan, OP_MOE, 0)->moe = o;
    if (l->followed)
        follow(r, type, x, k, f);
    plan_add(&r->plan, OP_LOGITS, UINT32_MAX)->logits = (struct op_logits){.in = y, .scale = 1};
    r->plan.out_width = n;
    r->max_rows = ROWS;
    r->max_seqs = 1;
}

/* m rows of the layer; NULL: `e` says why. */
static const float *run(struct rig *r, uint32_t m, struct err *e)
{
    r->length[0] = 0;
    rig_begin(r);
    rig_add(r, 0, m, true);
    return rig_run(r, e);
}

static void report(const char *what, double error, double bound)
{
    error <= bound ? passed++ : failed++;
    if (error > bound || getenv("VERBOSE"))
        printf("%s %-60s error %.2e (bound %.0e)\n", error <= bound ? "ok  " : "FAIL", what, error, bound);
    fflush(stdout);
}

static void give_up(const char *what, struct err *e)
{
    failed++;
    printf("FAIL %s: %s\n", what, e->text);
    fflush(stdout);
    if (e->code == ERR_DEVICE)
        exit(70);
    *e = (struct err){0};
}

static void check_rows(struct rig *r, const char *what, bool exact, double bound, const float *want)
{
    static const uint32_t all[] = {1,  2,  3,  4,  5,  6,   7,   8,   9,   16,  17,
                                   31, 32, 33, 64, 65, 100, 128, 129, 256, 300, 512},
                          few[] = {1, 3, 17, 64, 100, 300};
    const uint32_t *rows = quick ? few : all;
    const size_t count = quick ? sizeof few / sizeof few[0] : sizeof all / sizeof all[0];
    struct err e = {0};
    if (rig_open(r, "cuda", &(struct device_options){.exact = exact, .no_parity = true}, DTYPE_F16, ROWS,
                 &e)) {
        give_up(what, &e);
        rig_close(r);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        char full[200];
        snprintf(full, sizeof full, "%s%s, %u rows", what, exact ? ", exact" : "", rows[i]);
        const float *y = run(r, rows[i], &e);
        if (!y) {
            give_up(full, &e);
            break;
        }
        report(full, rig_distance(y, want, (size_t)rows[i] * r->plan.out_width), bound);
    }
    rig_close(r);
}

static void check(const struct layer *l, uint32_t type)
{
    struct rig r = {0};
    struct err e = {0};
    char what[128];
    snprintf(what, sizeof what, "experts %s, %s", dtype_get(type)->name, l->name);
    bool wanted = !*only;
    for (char **name = only; *name; name++)
        wanted = wanted || strstr(what, *name);
    if (!wanted)
        return;
    build(&r, l, type);
    if (rig_open(&r, "cpu", &(struct device_options){.exact = true}, DTYPE_F32, ROWS, &e)) {
        give_up(what, &e);
        rig_free(&r);
        return;
    }
    const float *y = run(&r, ROWS, &e);
    const size_t n = (size_t)ROWS * r.plan.out_width;
    float *want = mem_alloc(n, 4);
    if (y) {
        memcpy(want, y, n * 4);
        rig_close(&r);
        const bool decoded = !dtype_get(type)->encode; /* to F16 at load */
        check_rows(&r, what, false, type == DTYPE_BF16 ? 8e-3 : 4e-3, want);
        check_rows(&r, what, true, decoded ? 4e-3 : 2e-5, want);
    } else {
        give_up(what, &e);
        rig_close(&r);
    }
    mem_free(want);
    rig_free(&r);
}

int main(int argc, char **argv)
{
    static const uint32_t types[] = {DTYPE_Q4_K,   DTYPE_Q6_K, DTYPE_Q8_0, DTYPE_MXFP4, DTYPE_F32,
                                     DTYPE_F16,    DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1,  DTYPE_Q5_0,
                                     DTYPE_Q5_1,   DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q5_K,  DTYPE_IQ4_NL,
                                     DTYPE_IQ4_XS, DTYPE_IQ3_S};
    quick = argc > 1 && !strcmp(argv[1], "quick");
    only = argv + (argc > 2 ? 2 : argc);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        for (size_t j = 0; j < sizeof layers / sizeof layers[0]; j++)
            if (!quick || (i < 5 && (i + j) % 2 == 0)) {
                rig_seed(100 * i + j + 1);
                check(&layers[j], types[i]);
            }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
