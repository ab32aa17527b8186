/* gpu_check [all | quick | brief | least] [NAME]: the device test, or a short form, or a few plans and types of that, or
 * that without whole plans (for compute-sanitizer); of products and plans those with NAME in theirs. Every product on
 * the GPU against a sum in double, for every type, number of rows and odd shapes; every operation and whole plans, with
 * adapters and without, against the CPU device in its exact arithmetic. */
#include "rig.h"

#include "base/mem.h"
#include "device/cuda/exec.h"
#include "quern_gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;
static bool quick;       /* a short form, for compute-sanitizer */
static bool brief;       /* of that a few plans and types */
static const char *only; /* what a product or a plan must have in its name */

static void verdict(bool good, const char *what, double error, double bound)
{
    good ? passed++ : failed++;
    if (!good || getenv("VERBOSE"))
        printf("%s %-60s error %.2e (bound %.0e)\n", good ? "ok  " : "FAIL", what, error, bound);
    fflush(stdout);
}

static bool fatal(const char *what, struct err *e)
{
    failed++;
    printf("FAIL %s: %s\n", what, e->text);
    fflush(stdout);
    if (e->code == ERR_DEVICE)
        exit(70);
    *e = (struct err){0};
    return false;
}

/* ---- products ---- */

/* embed (F32) -> product -> out, as they are. */
static void product_plan(struct rig *r, uint32_t type, uint32_t n, uint32_t k, bool bias)
{
    struct operand x = plan_buffer(&r->plan, k), y = plan_buffer(&r->plan, n);
    r->vocab = 97;
    plan_add(&r->plan, OP_EMBED, UINT32_MAX)->embed =
        (struct op_embed){.table = rig_matrix(r, DTYPE_F32, 97, k, 1, 1), .scale = 1, .out = x};
    plan_add(&r->plan, OP_OUT, 0)->out =
        (struct op_out){.in = x, .linear = rig_linear(r, type, n, k, bias), .tail = {.scale = 1, .out = y}};
    plan_add(&r->plan, OP_LOGITS, UINT32_MAX)->logits = (struct op_logits){.in = y, .scale = 1};
    r->plan.out_width = n;
    r->max_rows = 512;
    r->max_seqs = 1;
}

static float *product_reference(const struct rig *r, uint32_t n, uint32_t k)
{
    const struct weight *table = &r->weights.all[r->plan.ops[0].embed.table];
    const struct weight *w = &r->weights.all[r->plan.ops[1].out.linear.weight];
    weight_id b = r->plan.ops[1].out.linear.bias;
    float *y = mem_alloc((size_t)r->max_rows * n, 4), *row = mem_alloc(k, 4);
    for (uint32_t j = 0; j < n; j++) {
        dtype_get(w->type)->decode(w->data + j * w->row_bytes, row, k);
        for (uint32_t i = 0; i < r->max_rows; i++) {
            if (i >= r->vocab) { /* the same tokens again */
                y[(size_t)i * n + j] = y[(size_t)(i - r->vocab) * n + j];
                continue;
            }
            const float *x =
                (const float *)(table->data + (size_t)((i * 7919u + 17u) % 97) * table->row_bytes);
            double s = b ? ((const float *)r->weights.all[b].data)[j] : 0;
            for (uint32_t t = 0; t < k; t++)
                s += (double)row[t] * x[t];
            y[(size_t)i * n + j] = (float)s;
        }
    }
    mem_free(row);
    return y;
}

static void check_product(uint32_t type, uint32_t n, uint32_t k, bool exact, bool bias)
{
    static const uint32_t all[] = {1,  2,  3,  4,  5,  6,   7,   8,   9,   16,  17,  31,
                                   32, 33, 64, 65, 90, 100, 128, 129, 160, 256, 300, 512},
                          few[] = {1, 9, 24, 40, 100, 300};
    struct rig r = {0};
    struct err e = {0};
    char what[128];
    snprintf(what, sizeof what, "%s %ux%u%s%s", dtype_get(type)->name, n, k, exact ? " exact" : "",
             bias ? " bias" : "");
    product_plan(&r, type, n, k, bias);
    float *want = product_reference(&r, n, k);
    if (rig_open(&r, "cuda", &(struct device_options){.exact = exact, .no_parity = quick}, DTYPE_F16, 16,
                 &e)) {
        fatal(what, &e);
        goto done;
    }
    size_t count = quick ? sizeof few / sizeof few[0] : sizeof all / sizeof all[0];
    double bound = exact ? 2e-6 : type == DTYPE_BF16 ? 1.5e-3 : 6e-4;
    if (exact && !dtype_get(type)->encode)
        bound = 6e-4; /* types that are decoded to F16 */
    for (size_t i = 0; i < count; i++) {
        uint32_t m = quick ? few[i] : all[i];
        char full[160];
        snprintf(full, sizeof full, "%s M=%u", what, m);
        r.length[0] = 0;
        rig_begin(&r);
        rig_add(&r, 0, m, true);
        const float *y = rig_run(&r, &e);
        if (!y) {
            fatal(full, &e);
            break;
        }
        double d = rig_distance(y, want, (size_t)m * n);
        verdict(d <= bound, full, d, bound);
    }
done:
    rig_close(&r);
    rig_free(&r);
    mem_free(want);
}

/* Products of many rows whose blocks have equal shares of all columns: few blocks with several bands each, and many with a
 * part of one. Odd outputs, columns that end within a tile, bias. */
static void check_shares(uint32_t type, uint32_t n, uint32_t k)
{
    static const uint32_t rows[] = {17, 31, 32, 33, 63, 64, 65, 90, 96, 100, 128}, shares[] = {2, 5, 20};
    struct rig r = {0};
    struct err e = {0};
    product_plan(&r, type, n, k, true);
    float *want = product_reference(&r, n, k);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] * 3; i++) {
        const uint32_t m = rows[i / 3];
        char what[128];
        snprintf(what, sizeof what, "%s %ux%u M=%u, %u shares", dtype_get(type)->name, n, k, m,
                 shares[i % 3]);
        if (i == 0 && rig_open(&r, "cuda", &(struct device_options){.no_parity = true}, DTYPE_F16, 16, &e)) {
            fatal(what, &e);
            break;
        }
        struct cuda_device *d = (struct cuda_device *)r.device;
        d->lower.options.stream_k = shares[i % 3];
        cache_forget(&d->cache, d->g);
        r.length[0] = 0;
        rig_begin(&r);
        rig_add(&r, 0, m, true);
        const float *y = rig_run(&r, &e);
        if (!y) {
            fatal(what, &e);
            break;
        }
        const double error = rig_distance(y, want, (size_t)m * n), bound = type == DTYPE_BF16 ? 1.5e-3 : 6e-4;
        verdict(error <= bound, what, error, bound);
    }
    rig_close(&r);
    rig_free(&r);
    mem_free(want);
}

static void check_all_shares(void)
{
    static const struct {
        uint32_t type, n, k;
    } all[] = {{DTYPE_Q4_K, 699, 2304}, {DTYPE_Q6_K, 699, 2304}, {DTYPE_Q8_0, 699, 2208},
               {DTYPE_F16, 699, 2280},  {DTYPE_BF16, 520, 1336}, {DTYPE_Q4_K, 1280, 256}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!only || strstr(dtype_get(all[i].type)->name, only) || !strcmp(only, "shares"))
            check_shares(all[i].type, all[i].n, all[i].k);
}

static void check_products(void)
{
    static const uint32_t types[] = {DTYPE_F32,   DTYPE_F16,   DTYPE_BF16, DTYPE_Q4_0,   DTYPE_Q4_1,
                                     DTYPE_Q5_0,  DTYPE_Q5_1,  DTYPE_Q8_0, DTYPE_Q2_K,   DTYPE_Q3_K,
                                     DTYPE_Q4_K,  DTYPE_Q5_K,  DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS,
                                     DTYPE_MXFP4, DTYPE_IQ3_S, DTYPE_TQ2_0};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        uint32_t block = dtype_get(types[t])->block_values;
        if ((only && !strstr(dtype_get(types[t])->name, only)) || (brief && t % 4))
            continue;
        uint32_t k[3] = {block == 256  ? 256
                         : block == 32 ? 96
                                       : 77,
                         block == 256  ? 2304
                         : block == 32 ? 1184
                                       : 1001,
                         1536};
        for (int i = 0; i < (quick ? 1 : 3); i++)
            for (int exact = 0; exact < 2; exact++)
                check_product(types[t], i == 0 ? 37 : i == 1 ? 131 : 512, k[i], exact, i == 1);
    }
}

/* ---- plans ---- */

/* One recipe of a small model. */
struct recipe {
    const char *name;
    uint32_t type, width, heads, kv_heads, dim, ffn, kv_type;
    enum rope_kind rope;
    uint32_t rope_dims, window;
    float softcap, scale_out;
    bool bias, sinks, whole_norm, head_norm, post_norm, layer_norm, gelu, plain_ffn, parallel, clamp, encoder,
        distance, latent, xielu, inner;
    uint32_t experts, used, shared;
    enum gating_kind gating;
    enum act_kind act;
    double bound; /* of the default arithmetic */
    bool brief;   /* in the briefest form, too */
};

static weight_id frequencies(struct rig *r, uint32_t dims)
{
    weight_id id = rig_vector(r, dims / 2, 0, 0);
    float *f = (float *)r->weights.all[id].data;
    for (uint32_t i = 0; i < dims / 2; i++)
        f[i] = powf(10000.0f, -2.0f * (float)i / (float)dims);
    return id;
}

static struct tail tail_of(struct rig *r, const struct recipe *c, struct operand x, uint32_t width)
{
    struct tail t = {.scale = c->scale_out ? c->scale_out : 1, .residual = x, .out = x};
    if (c->post_norm)
        t.post = rig_norm(r, NORM_RMS, width);
    if (c->encoder) {
        t.after = rig_norm(r, NORM_LAYER, width);
    }
    return t;
}

static void add_attention(struct rig *r, const struct recipe *c, uint32_t layer, struct operand x,
                          struct operand q, struct operand a)
{
    enum norm_kind kind = c->layer_norm ? NORM_LAYER : NORM_RMS;
    uint32_t qn = c->heads * c->dim, kn = c->kv_heads * c->dim;
    struct op_qkv o = {
        .in = x,
        .q = rig_linear(r, c->type, qn, c->width, c->bias),
        .k = rig_linear(r, c->type, kn, c->width, c->bias),
        .v = rig_linear(r, c->type == DTYPE_Q4_K && layer ? DTYPE_Q6_K : c->type, kn, c->width, c->bias),
        .clamp = c->clamp ? 0.8f : 0,
        .clamp_last = c->head_norm,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .k_dim = c->dim,
        .v_dim = c->dim,
        .layer = layer,
        .out = q};
    if (!c->encoder)
        o.norm = rig_norm(r, kind, c->width);
    if (c->rope != ROPE_NONE)
        o.rope = (struct rope){
            .kind = c->rope, .dims = c->rope_dims, .freqs = frequencies(r, c->rope_dims), .factor = 1.0f};
    if (c->head_norm) {
        o.q_norm = rig_norm(r, NORM_RMS, c->dim);
        o.k_norm = rig_norm(r, NORM_RMS, c->dim);
        o.q_norm.heads = c->heads;
        o.k_norm.heads = c->kv_heads;
    }
    if (c->whole_norm) {
        o.q_norm = rig_norm(r, NORM_RMS, qn);
        o.k_norm = rig_norm(r, NORM_RMS, kn);
    }
    uint32_t window = layer % 2 == 0 ? c->window : 0;
    plan_kv(
        &r->plan, layer,
        (struct kv_group){
            .kv_heads = c->kv_heads, .k_dim = c->dim, .v_dim = c->dim, .window = c->encoder ? 0 : window});
    plan_add(&r->plan, OP_QKV, layer)->qkv = o;
    plan_add(&r->plan, OP_ATTN, layer)->attn = (struct op_attn){
        .in = q,
        .out = a,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .k_dim = c->dim,
        .v_dim = c->dim,
        .layer = layer,
        .window = window,
        .scale = 1.0f / sqrtf((float)c->dim),
        .softcap = c->softcap,
        .sinks = c->sinks ? rig_vector(r, c->heads, 0.5f, 1) : 0,
        .distance = c->distance ? rig_matrix(r, DTYPE_F32, 1, 2 * 20 + 1, c->heads, 0.5f) : 0,
        .causal = !c->encoder};
    plan_add(&r->plan, OP_OUT, layer)->out = (struct op_out){
        .in = a, .linear = rig_linear(r, c->type, c->width, qn, c->bias), .tail = tail_of(r, c, x, c->width)};
}

/* Latent attention with L = 64, R = 32, nope = 48, value heads of 40. */
static void add_latent(struct rig *r, const struct recipe *c, uint32_t layer, struct operand x)
{
    enum { L = 64, R = 32, NOPE = 48, V = 40, LOW = 96 };
    struct operand q = plan_buffer(&r->plan, c->heads * (L + R)), a = plan_buffer(&r->plan, c->heads * L);
    struct operand h = plan_buffer(&r->plan, c->heads * V);
    struct op_latent o = {.in = x,
                          .norm = rig_norm(r, NORM_RMS, c->width),
                          .kv_norm = rig_norm(r, NORM_RMS, L),
                          .kv_a = rig_linear(r, c->type, L + R, c->width, false),
                          .k_b = rig_matrix(r, DTYPE_F32, L, NOPE, c->heads, 0.2f),
                          .rope = {ROPE_PAIRS, R, 0, frequencies(r, R), .factor = 1.0f},
                          .heads = c->heads,
                          .nope = NOPE,
                          .latent = L,
                          .layer = layer,
                          .out = q};
    if (layer) {
        o.q_a = rig_linear(r, c->type, LOW, c->width, false);
        o.q_norm = rig_norm(r, NORM_RMS, LOW);
    }
    o.q_b = rig_linear(r, c->type, c->heads * (NOPE + R), layer ? LOW : c->width, false);
    plan_kv(&r->plan, layer, (struct kv_group){.kv_heads = 1, .k_dim = L + R, .v_dim = 0});
    plan_add(&r->plan, OP_LATENT, layer)->latent = o;
    plan_add(&r->plan, OP_ATTN, layer)->attn = (struct op_attn){.in = q,
                                                                .out = a,
                                                                .heads = c->heads,
                                                                .kv_heads = 1,
                                                                .k_dim = L + R,
                                                                .v_dim = L,
                                                                .layer = layer,
                                                                .scale = 0.11f,
                                                                .causal = true,
                                                                .v_in_k = true};
    plan_add(&r->plan, OP_HEADS, layer)->heads =
        (struct op_heads){.in = a, .out = h, .weight = rig_matrix(r, DTYPE_F32, V, L, c->heads, 0.2f)};
    plan_add(&r->plan, OP_OUT, layer)->out =
        (struct op_out){.in = h,
                        .linear = rig_linear(r, c->type, c->width, c->heads * V, false),
                        .tail = tail_of(r, c, x, c->width)};
}

static struct linear experts_of(struct rig *r, const struct recipe *c, uint32_t rows, uint32_t cols)
{
    struct linear l = {.weight = rig_matrix(r, c->type, rows, cols, c->experts, 1.7f / sqrtf((float)cols))};
    if (c->bias) {
        l.bias = rig_matrix(r, DTYPE_F32, 1, rows, c->experts, 0.2f);
    }
    return l;
}

static void add_ffn(struct rig *r, const struct recipe *c, uint32_t layer, struct operand x)
{
    enum norm_kind kind = c->layer_norm ? NORM_LAYER : NORM_RMS;
    struct norm norm = {.kind = NORM_NONE};
    if (!c->encoder)
        norm = rig_norm(r, kind, c->width);
    enum act_kind act = c->act ? c->act : c->gelu ? ACT_GELU_TANH : ACT_SILU;
    if (!c->experts) {
        struct op_ffn o = {.in = x, .norm = norm, .act = act, .tail = tail_of(r, c, x, c->width)};
        if (!c->plain_ffn)
            o.gate = rig_linear(r, c->type, c->ffn, c->width, c->bias);
        o.up = rig_linear(r, c->type, c->ffn, c->width, c->bias);
        o.down =
            rig_linear(r, c->type == DTYPE_Q4_K && layer ? DTYPE_Q6_K : c->type, c->width, c->ffn, c->bias);
        if (c->xielu)
            o.xielu = rig_vector(r, 4, 0.4f, 0.2f);
        if (c->inner)
            o.inner = rig_norm(r, NORM_RMS, c->ffn);
        plan_add(&r->plan, OP_FFN, layer)->ffn = o;
        return;
    }
    struct op_moe o = {.in = x,
                       .norm = norm,
                       .router = rig_linear(r, DTYPE_F32, c->experts, c->width, c->act == ACT_SWIGLU_OAI),
                       .act = act,
                       .alpha = 1.702f,
                       .limit = 1.5f,
                       .gating = c->gating,
                       .experts = c->experts,
                       .used = c->used,
                       .normalise = c->gating != GATING_SOFTMAX_TOPK,
                       .weight_scale = 1.3f,
                       .tail = tail_of(r, c, x, c->width)};
    if (c->gating == GATING_SIGMOID) {
        o.select_bias = rig_vector(r, c->experts, 0, 0.1f);
        o.groups = 4;
        o.groups_used = 2;
        o.group_pair = true;
    }
    o.gate = experts_of(r, c, c->ffn, c->width);
    o.up = experts_of(r, c, c->ffn, c->width);
    o.down = experts_of(r, c, c->width, c->ffn);
    if (c->shared) {
        o.shared_gate = rig_linear(r, c->type, c->shared, c->width, false);
        o.shared_up = rig_linear(r, c->type, c->shared, c->width, false);
        o.shared_down = rig_linear(r, c->type, c->width, c->shared, false);
        o.shared_router = rig_matrix(r, DTYPE_F32, 1, c->width, 1, 0.1f);
    }
    plan_add(&r->plan, OP_MOE, layer)->moe = o;
}

static void build(struct rig *r, const struct recipe *c)
{
    enum { VOCAB = 301, LAYERS = 2 };
    struct operand x = plan_buffer(&r->plan, c->width), q = plan_buffer(&r->plan, c->heads * c->dim);
    struct operand a = plan_buffer(&r->plan, c->heads * c->dim);
    r->vocab = VOCAB;
    struct op_embed em = {.table = rig_matrix(r, c->type, VOCAB, c->width, 1, 1), .scale = 1, .out = x};
    if (c->encoder) {
        em.positions = rig_matrix(r, DTYPE_F32, 512, c->width, 1, 0.3f);
        em.types = rig_matrix(r, DTYPE_F32, 2, c->width, 1, 0.3f);
        em.norm = rig_norm(r, NORM_LAYER, c->width);
    }
    plan_add(&r->plan, OP_EMBED, UINT32_MAX)->embed = em;
    for (uint32_t l = 0; l < LAYERS; l++) {
        c->latent ? add_latent(r, c, l, x) : add_attention(r, c, l, x, q, a);
        add_ffn(r, c, l, x);
    }
    struct op_logits lo = {.in = x, .scale = 1};
    r->plan.out_width = c->width;
    if (!c->encoder) {
        lo.norm = rig_norm(r, NORM_RMS, c->width);
        lo.head = rig_linear(r, c->type, VOCAB, c->width, false);
        lo.softcap = c->softcap > 0 ? 20 : 0;
        r->plan.out_width = VOCAB;
    }
    plan_add(&r->plan, OP_LOGITS, UINT32_MAX)->logits = lo;
    r->max_rows = 400;
    r->max_seqs = 100;
}

/* The steps of a check: prompts, a mixed batch, a long text and more of it, single tokens, eight together (three times: the
 * last replays a graph), a hundred, most of them new. */
enum { STEPS = 13, QUICK_STEPS = 7, TOKENS = 1024 };

static void build_step(struct rig *r, int step, bool encoder)
{
    rig_begin(r);
    if (encoder) {
        memset(r->length, 0, sizeof r->length);
        rig_add(r, 0, 5 + 13 * (uint32_t)step, true);
        rig_add(r, 1, 3, true);
        return;
    }
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
            rig_add(r, i, 7 * i - 14, false);
        break;
    case 3:
    case 4:
        rig_add(r, 1, 200 + 50 * (uint32_t)step, false);
        break;
    case 5: /* few queries, and the keys that blocks share */
        rig_add(r, 1, 19, true);
        rig_add(r, 0, 9, true);
        break;
    case 6:
    case 7:
        rig_add(r, 1, 1, true);
        break;
    default:
        for (uint32_t i = 0; i < (step == STEPS - 1 ? 100 : 8); i++)
            rig_add(r, i, 1, true);
    }
}

/* How steps run: the arithmetic, the KV, how many units of keys decode attention has in flight (0: as it likes), whether
 * attention does without wgmma, bytes for weights that stay decoded, whether they do as fp8, whether their memory comes
 * and goes between steps, and how many equal shares products of many rows are cut into (0: as it costs least). */
struct way {
    bool exact;
    uint32_t kv, stages;
    bool no_wide;
    uint64_t copies;
    bool fp8, come_and_go;
    uint32_t shares;
};

#define FP8_BOUND 0.2 /* three bits of a value are left: a thirtieth of each, in all inputs and weights */

/* Before a step: one of three parts of decoded weights goes, or all that is left, or all come back; and once products run
 * ahead of the steps that need them. */
static void move_copies(struct rig *r, int step)
{
    struct copies *c = &((struct cuda_device *)r->device)->copies;
    while (step == 3 && r->device->ops->warm(r->device))
        ;
    if (step % 3 && c->bytes)
        c->spare.give(&c->spare, step % 3 == 1 ? c->bytes / 3 : c->bytes);
    else
        copies_fill(c);
}

/* All steps on one device; results one after the other. */
static float *run_steps(struct rig *r, const struct recipe *c, const char *device, struct way way,
                        size_t *count, struct err *e)
{
    float *all = mem_alloc(4u << 20, 4);
    *count = 0;
    const struct device_options options = {
        .exact = way.exact, .copies = way.copies, .fp8 = way.fp8, .no_parity = quick};
    if (rig_open(r, device, &options, way.kv, TOKENS, e)) {
        rig_close(r);
        mem_free(all);
        return NULL;
    }
    if (way.stages || way.shares) {
        struct lower_options *o = &((struct cuda_device *)r->device)->lower.options;
        o->stream_k = way.shares;
        o->stages = way.stages;
        o->no_wide = way.no_wide;
    }
    for (int s = 0; s < (quick ? QUICK_STEPS : STEPS); s++) {
        build_step(r, s, c->encoder);
        if (way.come_and_go)
            move_copies(r, s);
        const float *y = rig_run(r, e);
        if (!y) {
            rig_close(r);
            mem_free(all);
            return NULL;
        }
        size_t n = (size_t)r->step.outs * r->plan.out_width;
        memcpy(all + *count, y, n * 4);
        *count += n;
    }
    rig_close(r);
    return all;
}

/* The plan of a recipe, as the CPU computes it in exact mode and as the card does, in so many ways. */
static void check_ways(struct rig *r, const struct recipe *c, const char *with, const struct way *ways,
                       size_t count)
{
    struct err e = {0};
    char what[128];
    size_t n = 0, m = 0;
    float *want = run_steps(r, c, "cpu", (struct way){.exact = true, .kv = DTYPE_F32}, &n, &e);
    if (!want) {
        fatal(c->name, &e);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const bool exact = ways[i].exact;
        snprintf(what, sizeof what, "plan %s%s%s%s, stages %u", c->name, with, exact ? " exact" : "",
                 ways[i].fp8           ? ", many rows in fp8"
                 : ways[i].come_and_go ? ", decoded weights come and go"
                 : ways[i].copies      ? ", some weights decoded"
                 : ways[i].shares      ? ", equal shares"
                                       : "",
                 ways[i].stages);
        float *got = run_steps(r, c, "cuda", ways[i], &m, &e);
        if (!got) {
            fatal(what, &e);
            continue;
        }
        double d = m == n ? rig_distance(got, want, n) : 1e9, bound = exact         ? 3e-5
                                                                      : ways[i].fp8 ? FP8_BOUND
                                                                      : c->bound    ? c->bound
                                                                                    : 4e-3;
        verdict(d <= bound, what, d, bound);
        mem_free(got);
    }
    mem_free(want);
}

static void check_recipe(const struct recipe *c)
{
    struct rig r = {0};
    if ((only && !strstr(c->name, only)) || (brief && !c->brief))
        return;
    const uint32_t kv = c->kv_type ? c->kv_type : DTYPE_F16;
    const struct way ways[] = {{.exact = true, .kv = DTYPE_F32},
                               {.kv = kv},
                               {.kv = kv, .copies = COPIES_AUTO, .come_and_go = true},
                               {.kv = kv, .shares = 5},
                               {.kv = kv, .stages = 2, .no_wide = true},
                               {.kv = kv, .stages = 3, .copies = 1 << 20},
                               {.kv = kv, .copies = COPIES_AUTO, .fp8 = true}};
    build(&r, c);
    check_ways(&r, c, "", ways, kv == DTYPE_F16 && !quick ? 7 : 4);
    rig_adapt(&r, 3);
    check_ways(&r, c, " with adapters", ways + quick, quick ? 1 : 2);
    rig_free(&r);
}

static void check_recipes(void)
{
#define COMMON                                                                                               \
    .width = 256, .heads = 8, .kv_heads = 2, .dim = 64, .ffn = 512, .rope = ROPE_HALVES, .rope_dims = 64
    static const struct recipe all[] = {
        {.brief = true, .name = "llama q4_k", .type = DTYPE_Q4_K, COMMON},
        {.name = "qwen2 bias q8_0", .type = DTYPE_Q8_0, COMMON, .bias = true},
        {.brief = true,
         .name = "pairs, partial rotation, dim 128",
         .type = DTYPE_F16,
         .width = 320,
         .heads = 6,
         .kv_heads = 2,
         .dim = 128,
         .ffn = 544,
         .rope = ROPE_PAIRS,
         .rope_dims = 96},
        {.name = "dim 96, head norm",
         .type = DTYPE_Q4_0,
         .width = 288,
         .heads = 3,
         .kv_heads = 3,
         .dim = 96,
         .ffn = 576,
         .rope = ROPE_HALVES,
         .rope_dims = 96,
         .head_norm = true},
        {.brief = true,
         .name = "dim 256, softcap, window, post norm",
         .type = DTYPE_Q5_K,
         .width = 256,
         .heads = 4,
         .kv_heads = 1,
         .dim = 256,
         .ffn = 512,
         .rope = ROPE_HALVES,
         .rope_dims = 256,
         .softcap = 30,
         .window = 40,
         .post_norm = true,
         .gelu = true},
        {.name = "dim 80, odd head",
         .type = DTYPE_F16,
         .width = 240,
         .heads = 3,
         .kv_heads = 1,
         .dim = 80,
         .ffn = 333,
         .rope = ROPE_PAIRS,
         .rope_dims = 80},
        {.name = "whole-row norm, multipliers",
         .type = DTYPE_Q6_K,
         COMMON,
         .whole_norm = true,
         .scale_out = 0.5f},
        {.name = "layer norm, plain gelu, clamp",
         .type = DTYPE_Q5_0,
         COMMON,
         .layer_norm = true,
         .bias = true,
         .gelu = true,
         .plain_ffn = true,
         .clamp = true},
        {.name = "encoder",
         .type = DTYPE_F16,
         .width = 192,
         .heads = 3,
         .kv_heads = 3,
         .dim = 64,
         .ffn = 384,
         .bias = true,
         .plain_ffn = true,
         .encoder = true,
         .act = ACT_GELU},
        {.brief = true,
         .name = "encoder, dim 96",
         .type = DTYPE_F16,
         .width = 192,
         .heads = 3,
         .kv_heads = 3,
         .dim = 96,
         .ffn = 400,
         .bias = true,
         .plain_ffn = true,
         .encoder = true,
         .act = ACT_GELU_TANH},
        {.name = "encoder, window",
         .type = DTYPE_F16,
         .width = 192,
         .heads = 3,
         .kv_heads = 3,
         .dim = 64,
         .ffn = 384,
         .window = 31,
         .bias = true,
         .plain_ffn = true,
         .encoder = true,
         .act = ACT_GELU},
        {.name = "encoder, bias by distance",
         .type = DTYPE_F16,
         .width = 192,
         .heads = 3,
         .kv_heads = 3,
         .dim = 64,
         .ffn = 384,
         .bias = true,
         .plain_ffn = true,
         .encoder = true,
         .distance = true,
         .act = ACT_GELU},
        {.brief = true,
         .name = "sinks, window",
         .type = DTYPE_BF16,
         COMMON,
         .sinks = true,
         .window = 24,
         .bound = 1e-2},
        {.brief = true,
         .name = "experts softmax",
         .type = DTYPE_Q4_K,
         COMMON,
         .experts = 16,
         .used = 4,
         .gating = GATING_SOFTMAX,
         .bound = 3e-2},
        {.name = "experts sigmoid, groups, shared",
         .type = DTYPE_Q8_0,
         COMMON,
         .experts = 16,
         .used = 3,
         .gating = GATING_SIGMOID,
         .shared = 256,
         .bound = 4e-2}, /* a row whose experts are close may choose another: 2.8e-2 of all rows together */
        {.name = "experts oai mxfp4",
         .type = DTYPE_MXFP4,
         COMMON,
         .experts = 8,
         .used = 2,
         .gating = GATING_SOFTMAX_TOPK,
         .act = ACT_SWIGLU_OAI,
         .bias = true,
         .bound = 2e-2},
        {.name = "latent",
         .type = DTYPE_F16,
         .width = 256,
         .heads = 4,
         .kv_heads = 1,
         .dim = 64,
         .ffn = 512,
         .latent = true},
        {.name = "kv bf16", .type = DTYPE_F16, COMMON, .kv_type = DTYPE_BF16, .bound = 2e-2},
        {.name = "kv q8_0", .type = DTYPE_F16, COMMON, .kv_type = DTYPE_Q8_0, .bound = 4e-2},
        {.name = "kv fp8", .type = DTYPE_F16, COMMON, .kv_type = DTYPE_F8_E4M3, .bound = 2e-1},
        {.name = "relu squared", .type = DTYPE_Q4_1, COMMON, .act = ACT_RELU2, .plain_ffn = true},
        {.name = "head norm, then clamp", .type = DTYPE_Q8_0, COMMON, .head_norm = true, .clamp = true},
        {.name = "xielu", .type = DTYPE_Q8_0, COMMON, .bias = true, .plain_ffn = true, .xielu = true},
        {.name = "norm of hidden values", .type = DTYPE_Q4_K, COMMON, .act = ACT_RELU2, .inner = true},
        {.name = "wide rows", /* more columns than two for each warp of a block */
         .type = DTYPE_Q4_K,
         .width = 33 * 256,
         .heads = 4,
         .kv_heads = 1,
         .dim = 64,
         .ffn = 256,
         .rope = ROPE_HALVES,
         .rope_dims = 64},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        rig_seed(i + 1);
        check_recipe(&all[i]);
    }
}

/* ---- the public header ---- */

static struct quern_gpu *pub;

static struct quern_gpu_buf floats(const float *v, uint64_t n)
{
    struct quern_gpu_buf b = {0};
    if (quern_gpu_new(pub, n, &b) || (v && quern_gpu_write(pub, b, v, n))) {
        printf("FAIL buffer: %s\n", quern_gpu_error(pub));
        exit(1);
    }
    quern_gpu_sync(pub);
    return b;
}

static void fill(float *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] = rig_uniform(1);
}

/* The operation's result against `want`; it must have been accepted. */
static void expect(int result, struct quern_gpu_buf y, const float *want, size_t n, const char *what,
                   double bound)
{
    float *got = mem_alloc(n, 4);
    if (result || quern_gpu_read(pub, y, got, n)) {
        printf("FAIL %s: %s\n", what, quern_gpu_error(pub));
        failed++;
    } else {
        double d = rig_distance(got, want, n);
        verdict(d <= bound, what, d, bound);
    }
    mem_free(got);
}

/* A call that must be refused with words that contain `part`. */
static void refused(int result, const char *part)
{
    char what[160];
    snprintf(what, sizeof what, "refused: ...%s...", part);
    bool good = result < 0 && strstr(quern_gpu_error(pub), part);
    if (!good)
        printf("     said: %s\n", quern_gpu_error(pub));
    verdict(good, what, 0, 0);
}

/* An encoded weight, its decoded rows and its handle. */
static int public_weight(const char *name, const char *type, uint32_t n, uint32_t k, int flags,
                         float *decoded)
{
    const struct dtype_info *info = dtype_get((uint32_t)dtype_find(type));
    size_t row = 0;
    dtype_row_bytes((uint32_t)dtype_find(type), k, &row);
    uint8_t *bytes = mem_alloc(n, row);
    for (uint32_t i = 0; i < n; i++) {
        fill(decoded + (size_t)i * k, k);
        info->encode(decoded + (size_t)i * k, bytes + i * row, k, NULL);
        info->decode(bytes + i * row, decoded + (size_t)i * k, k);
    }
    int h = quern_gpu_load(pub, name, type, n, k, bytes, row * n, flags);
    if (h < 1)
        fatal(name, &(struct err){.code = ERR_USAGE});
    mem_free(bytes);
    return h;
}

static void matmul(const float *w, const float *x, uint32_t m, uint32_t n, uint32_t k, float *y)
{
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            double s = 0;
            for (uint32_t t = 0; t < k; t++)
                s += (double)w[(size_t)j * k + t] * x[(size_t)i * k + t];
            y[(size_t)i * n + j] = (float)s;
        }
}

static void check_public_products(void)
{
    enum { N = 300, K = 1024, M = 5 };
    float *w = mem_alloc(N * K, 4), *x = mem_alloc(M * K, 4), *y = mem_alloc(M * N, 4);
    fill(x, M * K);
    int native = public_weight("native", "Q4_K", N, K, QUERN_GPU_NATIVE, w);
    struct quern_gpu_buf dx = floats(x, K), dm = floats(x, M * K), dy = floats(NULL, N),
                         dym = floats(NULL, M * N);
    matmul(w, x, M, N, K, y);
    for (int per = 1; per <= 8; per *= 2) {
        expect(quern_gpu_gemm(pub, native, dx, 1, dy, &(struct quern_gpu_options){QUERN_GPU_TILED, per}), dy,
               y, N, "public tiled", 2e-6);
        expect(quern_gpu_gemm(pub, native, dx, 1, dy, &(struct quern_gpu_options){QUERN_GPU_CHUNKED, per}),
               dy, y, N, "public chunked", 2e-6);
    }
    expect(quern_gpu_gemm(pub, native, dx, 1, dy, &(struct quern_gpu_options){QUERN_GPU_INTEGER, 0}), dy, y,
           N, "public integer", 2e-2);
    expect(quern_gpu_gemm(pub, native, dm, M, dym, &(struct quern_gpu_options){QUERN_GPU_FLOAT, 0}), dym, y,
           M * N, "public float", 2e-6);
    expect(quern_gpu_gemm(pub, native, dm, M, dym, NULL), dym, y, M * N, "public native by table", 6e-4);
    int tile = public_weight("tile", "Q4_K", N, K, 0, w);
    matmul(w, x, M, N, K, y);
    expect(quern_gpu_gemm(pub, tile, dm, M, dym, NULL), dym, y, M * N, "public tile by table", 6e-4);
    verdict(quern_gpu_find(pub, "tile") == tile, "public find", 0, 0);
    refused(quern_gpu_find(pub, "none"), "no weight 'none'");
    dx.floats--;
    refused(quern_gpu_gemm(pub, tile, dx, 1, dy, NULL), "the input has 1023 floats, M*K = 1*1024 = 1024");
    dx.floats++;
    refused(quern_gpu_gemm(pub, 99, dx, 1, dy, NULL), "weight 99 is not loaded");
    refused(quern_gpu_gemm(pub, tile, (struct quern_gpu_buf){0}, 1, dy, NULL), "null pointer");
    refused(quern_gpu_gemm(pub, tile, dx, 1, dy, &(struct quern_gpu_options){QUERN_GPU_INTEGER, 0}),
            "QUERN_GPU_NATIVE");
    refused(quern_gpu_load(pub, "odd", "Q4_K", 4, 1000, x, 100, 0), "multiple of the block of 256");
    refused(quern_gpu_load(pub, "short", "F32", 4, 8, x, 100, 0), "has 100 bytes");
    refused(quern_gpu_load(pub, "what", "Q9_Z", 4, 8, x, 128, 0), "no type 'Q9_Z'");
    struct quern_gpu_buf huge = {0};
    refused(quern_gpu_new(pub, 1ull << 40, &huge), "MB are free");
    struct quern_gpu_buf q8 = {0};
    verdict(quern_gpu_quantise(pub, dm, M, K, &q8) == 0 && q8.floats == M * K / 32 * 9, "public quantise", 0,
            0);
    refused(quern_gpu_quantise(pub, dm, M, 1023, &q8), "multiple of the block of 32");
    mem_free(w);
    mem_free(x);
    mem_free(y);
}

static void check_public_rows(void)
{
    enum { M = 3, N = 384, H = 3, D = N / H };
    float x[M * N], w[N], b[N], y[M * N], freqs[D / 2];
    int32_t pos[M] = {0, 7, 4000}, ids[M * 4];
    fill(x, M * N);
    fill(w, N);
    fill(b, N);
    struct quern_gpu_buf dx = floats(x, M * N), dw = floats(w, N), db = floats(b, N),
                         dy = floats(NULL, M * N), ds = floats(w, D);
    for (int i = 0; i < M; i++) {
        double mean = 0, var = 0, rms = 0;
        for (int j = 0; j < N; j++)
            mean += x[i * N + j] / (double)N;
        for (int j = 0; j < N; j++) {
            var += (x[i * N + j] - mean) * (x[i * N + j] - mean) / N;
            rms += (double)x[i * N + j] * x[i * N + j] / N;
        }
        for (int j = 0; j < N; j++)
            y[i * N + j] = (float)((x[i * N + j] - mean) / sqrt(var + 1e-5) * w[j] + b[j]);
    }
    expect(quern_gpu_layer_norm(pub, dx, M, N, dw, db, 1e-5f, dy), dy, y, M * N, "public layer norm", 2e-6);
    for (int i = 0; i < M * H; i++) {
        double s = 0;
        for (int j = 0; j < D; j++)
            s += (double)x[i * D + j] * x[i * D + j] / D;
        for (int j = 0; j < D; j++)
            y[i * D + j] = (float)(x[i * D + j] / sqrt(s + 1e-6) * w[j]);
    }
    expect(quern_gpu_rms_norm(pub, dx, M, N, ds, 1e-6f, H, dy), dy, y, M * N, "public norm by head", 2e-6);
    for (int i = 0; i < M * N; i++)
        y[i] = x[i] / (1 + expf(-x[i]));
    expect(quern_gpu_act(pub, QUERN_GPU_SILU, dx, dy), dy, y, M * N, "public silu", 2e-6);
    for (int i = 0; i < M * N; i++)
        y[i] = 0.5f * x[i] * (1 + erff(x[i] * 0.70710678f));
    expect(quern_gpu_act(pub, QUERN_GPU_GELU, dx, dy), dy, y, M * N, "public gelu", 2e-6);
    for (int i = 0; i < M * N; i++)
        y[i] = x[i] + b[i % N];
    expect(quern_gpu_bias(pub, dx, M, db, dy), dy, y, M * N, "public bias", 1e-7);
    for (int i = 0; i < M * N; i++)
        y[i] = 2 * x[i];
    expect(quern_gpu_add(pub, dx, dx, dy), dy, y, M * N, "public add", 1e-7);
    for (int i = 0; i < M * N; i++)
        y[i] = x[i] / (1 + expf(-x[i])) * x[i];
    expect(quern_gpu_swiglu(pub, dx, dx, dy), dy, y, M * N, "public swiglu", 2e-6);
    for (int i = 0; i < M; i++) {
        double s = 0;
        for (int j = 0; j < N; j++)
            s += exp(x[i * N + j]);
        for (int j = 0; j < N; j++)
            y[i * N + j] = (float)(exp(x[i * N + j]) / s);
    }
    expect(quern_gpu_softmax(pub, dx, M, dy), dy, y, M * N, "public softmax", 2e-6);
    for (int i = 0; i < D / 2; i++)
        freqs[i] = powf(10000, -2.0f * (float)i / D);
    struct quern_gpu_buf df = floats(freqs, D / 2), dp = floats((const float *)pos, M),
                         di = floats(NULL, M * 4);
    for (int kind = QUERN_GPU_ROPE_PAIRS; kind <= QUERN_GPU_ROPE_HALVES; kind++) {
        for (int i = 0; i < M * H; i++)
            for (int j = 0; j < D / 2; j++) {
                float t = (float)pos[i / H] * freqs[j], c = cosf(t), s = sinf(t);
                int p = i * D + (kind == QUERN_GPU_ROPE_PAIRS ? 2 * j : j),
                    q = kind == QUERN_GPU_ROPE_PAIRS ? p + 1 : p + D / 2;
                y[p] = x[p] * c - x[q] * s;
                y[q] = x[p] * s + x[q] * c;
            }
        struct quern_gpu_rope_options o = {(enum quern_gpu_rope)kind, H, D, D, 0, 1.0f};
        expect(quern_gpu_rope(pub, dx, M, &o, df, dp, dy), dy, y, M * N, "public rope", 1e-5);
    }
    bool good =
        !quern_gpu_top(pub, dx, M, 4, di, (struct quern_gpu_buf){0}) && !quern_gpu_read(pub, di, ids, M * 4);
    for (int i = 0; good && i < M; i++) {
        int best = 0;
        for (int j = 0; j < N; j++)
            best = x[i * N + j] > x[i * N + best] ? j : best;
        good = ids[4 * i] == best && x[i * N + ids[4 * i + 1]] >= x[i * N + ids[4 * i + 2]];
    }
    verdict(good, "public top", 0, 0);
    float noise[M] = {0.0f, 0.5f, 0.9999f};
    struct quern_gpu_buf dn = floats(noise, M), d1 = floats(NULL, M);
    good = !quern_gpu_sample(pub, dx, M, &(struct quern_gpu_sampling){0.7f, 0.9f, 0, 40}, dn, d1) &&
           !quern_gpu_read(pub, d1, pos, M);
    verdict(good && pos[0] == ids[0] && pos[1] >= 0 && pos[1] < N && pos[2] >= 0 && pos[2] < N,
            "public sample", 0, 0);
    refused(quern_gpu_softmax(pub, dx, 7, dy), "no 7 rows");
}

/* A layer by the public calls one by one, as one call, and as a replayed graph: all three agree. */
static void check_public_layer(void)
{
    enum { W = 256, F = 512, HEADS = 4, KVH = 2, D = 64, M = 6 };
    float *w = mem_alloc(F * F, 4), x[M * W], norm[W], freqs[D / 2], one[M * W];
    fill(x, M * W);
    for (int i = 0; i < W; i++)
        norm[i] = 1 + rig_uniform(0.2f);
    for (int i = 0; i < D / 2; i++)
        freqs[i] = powf(10000, -2.0f * (float)i / D);
    struct quern_gpu_layer l = {.heads = {HEADS, KVH, D, 0, 0.125f, 0}, .eps = 1e-6f};
    l.qkv = (struct quern_gpu_qkv){.q = public_weight("l.q", "Q4_K", HEADS * D, W, 0, w),
                                   .k = public_weight("l.k", "Q8_0", KVH * D, W, 0, w),
                                   .v = public_weight("l.v", "Q6_K", KVH * D, W, 0, w),
                                   .norm = floats(norm, W),
                                   .freqs = floats(freqs, D / 2),
                                   .eps = 1e-6f,
                                   .rope = QUERN_GPU_ROPE_HALVES};
    l.out = public_weight("l.out", "F16", W, HEADS * D, 0, w);
    l.ffn_norm = floats(norm, W);
    l.ffn = (struct quern_gpu_ffn){public_weight("l.gate", "Q4_K", F, W, 0, w),
                                   public_weight("l.up", "Q4_K", F, W, 0, w),
                                   public_weight("l.down", "Q5_K", W, F, 0, w), QUERN_GPU_SILU, 0};
    struct quern_gpu_kv *kv = NULL;
    if (quern_gpu_kv_new(pub, KVH, D, 64, 0, &kv)) {
        refused(0, "KV");
        return;
    }
    struct quern_gpu_buf dx = floats(x, M * W), q = floats(NULL, M * HEADS * D),
                         a = floats(NULL, M * HEADS * D), o = floats(NULL, M * W);
    struct quern_gpu_buf n = floats(NULL, M * W), s = floats(x, M * W);
    int bad = quern_gpu_qkv(pub, &l.qkv, &l.heads, kv, s, M, 0, q) ||
              quern_gpu_attention(pub, &l.heads, kv, q, M, 0, a) ||
              quern_gpu_gemm(pub, l.out, a, M, o, NULL) || quern_gpu_add(pub, s, o, s) ||
              quern_gpu_rms_norm(pub, s, M, W, l.ffn_norm, 1e-6f, 0, n) ||
              quern_gpu_ffn(pub, &l.ffn, n, M, o) || quern_gpu_add(pub, s, o, s) ||
              quern_gpu_read(pub, s, one, M * W);
    verdict(!bad, "public layer, step by step", 0, 0);
    expect(quern_gpu_layer(pub, &l, kv, dx, M, 0), dx, one, M * W, "public layer in one call", 1e-3);
    struct quern_gpu_graph *graph = NULL;
    bad = quern_gpu_write(pub, dx, x, M * W) || quern_gpu_sync(pub) || quern_gpu_record(pub) ||
          quern_gpu_layer(pub, &l, kv, dx, M, 0) || quern_gpu_record_end(pub, &graph);
    expect(bad || quern_gpu_replay(pub, graph), dx, one, M * W, "public layer as a graph", 1e-3);
    quern_gpu_graph_delete(pub, graph);
    float host[M * W], want[M * W];
    bad = quern_gpu_write(pub, n, x, M * W) || quern_gpu_ffn(pub, &l.ffn, n, M, o) ||
          quern_gpu_read(pub, o, want, M * W) || quern_gpu_ffn_host(pub, &l.ffn, x, M, host);
    verdict(!bad && rig_distance(host, want, M * W) == 0, "public ffn in host memory", 0, 0);
    refused(quern_gpu_attention(pub, &l.heads, kv, q, M, 60, a), "KV has room for 64");
    char table[4096];
    quern_gpu_profile(pub, QUERN_GPU_PROFILE_ON);
    bad = quern_gpu_layer(pub, &l, kv, dx, M, 0) || quern_gpu_gemm(pub, l.out, a, M, o, NULL);
    verdict(!bad && quern_gpu_profile_table(pub, table, sizeof table) && strstr(table, "gemm") &&
                strstr(table, "launch overhead") && quern_gpu_profile_json(pub, table, sizeof table) &&
                strstr(table, "overhead_seconds"),
            "public profile", 0, 0);
    quern_gpu_profile(pub, QUERN_GPU_PROFILE_OFF);
    quern_gpu_kv_delete(pub, kv);
    mem_free(w);
}

static void check_public(void)
{
    char why[256];
    verdict(!quern_gpu_open(99, 8, 1024, why, sizeof why) && strstr(why, "there is no cuda:99"),
            "public: no such card", 0, 0);
    pub = quern_gpu_open(0, 16, 4096, why, sizeof why);
    if (!pub) {
        printf("FAIL %s\n", why);
        failed++;
        return;
    }
    check_public_products();
    check_public_rows();
    check_public_layer();
    quern_gpu_close(pub);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    bool least = argc > 1 && !strcmp(argv[1], "least");
    brief = argc > 1 && !strcmp(argv[1], "brief");
    quick = least || brief || (argc > 1 && !strcmp(argv[1], "quick"));
    only = argc > 2 ? argv[2] : NULL;
    struct gpu *g = gpu_open(0, 0, &e);
    if (!g) {
        printf("no GPU: %s\n0 passed, 1 failed\n", e.text);
        return 1;
    }
    printf("%s, sm_%d%d, %d SMs, driver %d\n", g->profile.name, g->profile.major, g->profile.minor,
           g->profile.sms, g->profile.driver);
    gpu_close(g);
    if (!only)
        check_public();
    if (!least)
        check_recipes();
    check_products();
    check_all_shares();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
