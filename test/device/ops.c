/* Every operation of the CPU device against a reference in double, over odd shapes, in both
 * arithmetics and with 1 to 4 threads (which must agree to the bit). */
#include "reference.h"

#include "base/mem.h"
#include "device/cpu/cpu.h"

enum { HEADS = 6, KV_HEADS = 2, DIM = 24, VDIM = 20 };

static struct norm rms(struct rig *g, uint32_t n)
{
    return (struct norm){.kind = NORM_RMS, .weight = ref_vector(&g->weights, n, 1, 0.3f), .eps = 1e-5f};
}

static struct norm layer(struct rig *g, uint32_t n)
{
    return (struct norm){.kind = NORM_LAYER,
                         .weight = ref_vector(&g->weights, n, 1, 0.3f),
                         .bias = ref_vector(&g->weights, n, 0, 0.3f),
                         .eps = 1e-5f};
}

static struct linear linear(struct rig *g, uint32_t type, uint32_t rows, uint32_t cols, bool bias)
{
    return (struct linear){.weight = ref_weight(&g->weights, type, rows, cols, 1, 0),
                           .bias = bias ? ref_vector(&g->weights, rows, 0, 0.5f) : 0};
}

static struct linear experts(struct rig *g, uint32_t type, uint32_t rows, uint32_t cols, uint32_t count,
                             bool bias)
{
    return (struct linear){.weight = ref_weight(&g->weights, type, rows, cols, count, 0),
                           .bias = bias ? ref_weight(&g->weights, DTYPE_F32, 1, rows, count, 0.5f) : 0};
}

static struct operand embed(struct rig *g, uint32_t width)
{
    struct operand x = plan_buffer(&g->plan, width);
    struct op *op = plan_add(&g->plan, OP_EMBED, UINT32_MAX);
    op->embed =
        (struct op_embed){.table = ref_weight(&g->weights, DTYPE_F32, 31, width, 1, 1), .scale = 1, .out = x};
    return x;
}

static void logits(struct rig *g, struct operand x, uint32_t width)
{
    struct op *op = plan_add(&g->plan, OP_LOGITS, UINT32_MAX);
    op->logits = (struct op_logits){.in = x, .scale = 1};
    g->plan.out_width = width;
}

/* Runs the same steps with 1 to 4 threads; the error to the reference, and bits between threads. */
static double run_all(struct rig *g, bool exact)
{
    double worst = 0;
    float *first[3] = {NULL};
    for (int threads = 1; threads <= 4; threads++) {
        struct device *d = rig_device(g, &(struct device_options){.threads = threads, .exact = exact});
        memset(g->length, 0, sizeof g->length);
        for (int step = 0; step < 3; step++) { /* a prompt, a mixed batch, single rows */
            rig_batch(g);
            if (step == 0)
                rig_add(g, 1, 37);
            if (step == 1) {
                rig_add(g, 2, 9);
                rig_add(g, 1, 1);
                rig_add(g, 0, 21);
            }
            if (step == 2)
                rig_add(g, 0, 1);
            size_t bytes = (size_t)g->step.outs * g->plan.out_width * sizeof(float);
            const float *y = rig_run(g, d);
            if (threads == 1) {
                ref_run(&g->ref, &g->step, g->name);
                worst = fmax(worst, rig_error(g, y, exact));
                first[step] = malloc(bytes);
                memcpy(first[step], y, bytes);
            } else {
                assert_memory_equal(first[step], y, bytes);
            }
        }
        d->ops->close(d);
    }
    for (int i = 0; i < 3; i++)
        free(first[i]);
    return worst;
}

static void both(struct rig *g, const char *what)
{
    rig_begin(g, 16, DTYPE_F32);
    double exact = run_all(g, true), fast = run_all(g, false);
    printf("    %-28s exact %.1e  rounded %.1e\n", what, exact, fast);
    assert_true(exact < 2e-5);
    assert_true(fast < 3e-2);
    rig_end(g);
}

static void test_embed(void **state)
{
    (void)state;
    static const uint32_t type[3] = {DTYPE_F32, DTYPE_Q8_0, DTYPE_Q4_K};
    for (int i = 0; i < 3; i++) {
        struct rig *g = rig_new();
        uint32_t n = i == 0 ? 77 : 256;
        struct operand x = embed(g, n);
        struct op_embed *o = &g->plan.ops[0].embed;
        o->table = ref_weight(&g->weights, type[i], 31, n, 1, 1);
        o->scale = i == 1 ? 16 : 1;
        if (i == 0) {
            o->positions = ref_weight(&g->weights, DTYPE_F16, 128, n, 1, 1);
            o->position_offset = 2;
            o->types = ref_weight(&g->weights, DTYPE_F32, 2, n, 1, 1);
            o->norm = layer(g, n);
        }
        logits(g, x, n);
        both(g, "embed");
    }
}

/* QKV and attention together: what QKV writes shows in what attention reads. */
static void add_attention(struct rig *g, struct operand x, uint32_t width, uint32_t type, int kind)
{
    struct plan *p = &g->plan;
    struct operand q = plan_buffer(p, HEADS * DIM), y = plan_buffer(p, HEADS * VDIM + 3);
    y.col = 3;
    plan_kv(p, 0, (struct kv_group){.kv_heads = KV_HEADS, .k_dim = DIM, .v_dim = VDIM});
    struct op_qkv o = {.in = x, .out = q, .heads = HEADS, .kv_heads = KV_HEADS, .k_dim = DIM, .v_dim = VDIM};
    bool bias = kind % 2;
    o.q = linear(g, type, HEADS * DIM, width, bias);
    o.k = linear(g, type, KV_HEADS * DIM, width, bias);
    o.v = linear(g, kind == 2 ? DTYPE_F16 : type, KV_HEADS * VDIM, width, bias);
    if (kind != 3)
        o.norm = kind == 1 ? layer(g, width) : rms(g, width);
    if (kind == 1)
        o.clamp = 0.7f;
    if (kind == 2) { /* per head, one weight for all; per head, own weights */
        o.q_norm = rms(g, DIM);
        o.q_norm.heads = HEADS;
        o.k_norm = rms(g, KV_HEADS * DIM);
        o.k_norm.heads = KV_HEADS;
    }
    if (kind == 3) { /* over the whole row */
        o.q_norm = rms(g, HEADS * DIM);
        o.k_norm = rms(g, KV_HEADS * DIM);
    }
    o.rope =
        (struct rope){.kind = kind % 2 ? ROPE_PAIRS : ROPE_HALVES, .dims = kind == 2 ? 16 : DIM, .factor = 1};
    o.rope.first = kind == 2 ? 8 : 0;
    o.rope.factor = kind == 3 ? 1.25f : 1;
    o.rope.freqs = ref_freqs(&g->weights, o.rope.dims);
    plan_add(p, OP_QKV, 0)->qkv = o;
    plan_add(p, OP_ATTN, 0)->attn = (struct op_attn){.in = q,
                                                     .out = y,
                                                     .heads = HEADS,
                                                     .kv_heads = KV_HEADS,
                                                     .k_dim = DIM,
                                                     .v_dim = VDIM,
                                                     .scale = 0.1f,
                                                     .causal = true};
    logits(g, y, HEADS * VDIM);
}

static void test_qkv(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct rig *g = rig_new();
        uint32_t width = kind == 1 ? 45 : 64;
        struct operand x = embed(g, width);
        add_attention(g, x, width, kind == 1 ? DTYPE_F32 : DTYPE_Q8_0, kind);
        both(g, "qkv");
    }
}

static void test_latent(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct rig *g = rig_new();
        struct plan *p = &g->plan;
        enum { H = 5, NOPE = 32, R = 8, L = 48, W = 64, V = 24 };
        uint32_t type = kind == 1 ? DTYPE_Q8_0 : DTYPE_F32, nope = kind == 2 ? 12 : NOPE;
        struct operand x = embed(g, W), q = plan_buffer(p, H * (L + R)), a = plan_buffer(p, H * L);
        struct operand y = plan_buffer(p, H * V);
        plan_kv(p, 0, (struct kv_group){.kv_heads = 1, .k_dim = L + R, .v_dim = 0});
        struct op_latent o = {.in = x, .out = q, .heads = H, .nope = nope, .latent = L, .norm = rms(g, W)};
        o.kv_norm = rms(g, L);
        if (kind) {
            o.q_a = linear(g, type, 32, W, kind == 2);
            o.q_norm = rms(g, 32);
        }
        o.q_b = linear(g, type, H * (nope + R), kind ? 32 : W, false);
        o.kv_a = linear(g, type, L + R, W, kind == 2);
        o.k_b = ref_weight(&g->weights, type, L, nope, H, 0);
        o.rope =
            (struct rope){.kind = ROPE_PAIRS, .dims = R, .factor = 1, .freqs = ref_freqs(&g->weights, R)};
        plan_add(p, OP_LATENT, 0)->latent = o;
        plan_add(p, OP_ATTN, 0)->attn = (struct op_attn){.in = q,
                                                         .out = a,
                                                         .heads = H,
                                                         .kv_heads = 1,
                                                         .k_dim = L + R,
                                                         .v_dim = L,
                                                         .scale = 0.1f,
                                                         .causal = true,
                                                         .v_in_k = true};
        plan_add(p, OP_HEADS, 0)->heads = (struct op_heads){
            .in = a,
            .out = y,
            .weight = ref_weight(&g->weights, kind == 2 ? DTYPE_F16 : DTYPE_F32, V, L, H, 0)};
        logits(g, y, H * V);
        both(g, "latent, heads");
    }
}

static void test_out(void **state)
{
    (void)state;
    static const uint32_t type[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q4_0,
                                    DTYPE_Q8_0, DTYPE_Q6_K, DTYPE_Q4_K};
    for (int i = 0; i < 7; i++) {
        struct rig *g = rig_new();
        uint32_t k = i < 3 ? 61 + (uint32_t)i : 256, n = i == 6 ? 256 : 67;
        struct operand x = embed(g, k), y = i == 6 ? x : plan_buffer(&g->plan, n);
        struct op_out *o = &plan_add(&g->plan, OP_OUT, 0)->out;
        *o = (struct op_out){
            .in = x, .linear = linear(g, type[i], n, k, i % 2), .tail = {.scale = 1, .out = y}};
        if (i == 1)
            o->norm = rms(g, k);
        if (i == 2) {
            o->tail.post = rms(g, n);
            o->tail.scale = 0.5f;
        }
        if (i == 3 || i == 6)
            o->tail.after = layer(g, n);
        if (i == 4 || i == 6) { /* over its own input, too */
            o->tail.residual = (struct operand){.buffer = x.buffer, .col = i == 4 ? 100 : 0};
            o->tail.scale = -2;
        }
        logits(g, y, n);
        both(g, dtype_get(type[i])->name);
    }
}

static void test_ffn(void **state)
{
    (void)state;
    static const enum act_kind act[] = {ACT_SILU,       ACT_GELU, ACT_GELU_TANH,
                                        ACT_GELU_QUICK, ACT_RELU, ACT_RELU2};
    for (int i = 0; i < 6; i++) {
        struct rig *g = rig_new();
        uint32_t k = i % 3 == 0 ? 96 : 50, n = i % 3 == 0 ? 160 : 71,
                 type = i % 3 == 0 ? DTYPE_Q5_0 : DTYPE_F32;
        struct operand x = embed(g, k);
        struct op_ffn *o = &plan_add(&g->plan, OP_FFN, 0)->ffn;
        *o = (struct op_ffn){
            .in = x, .norm = rms(g, k), .act = act[i], .tail = {.scale = 1, .out = x, .residual = x}};
        if (i % 2 == 0)
            o->gate = linear(g, type, n, k, i == 2);
        o->up = linear(g, type, n, k, i == 1);
        o->down = linear(g, i == 3 ? DTYPE_F16 : type, k, n, i == 1);
        if (i >= 4)
            o->tail.post = rms(g, k);
        if (i == 5)
            o->tail.after = layer(g, k);
        logits(g, x, k);
        both(g, "ffn");
    }
}

static void add_moe(struct rig *g, int kind)
{
    uint32_t k = 64, n = 96, type = kind % 2 ? DTYPE_Q8_0 : DTYPE_F32;
    struct operand x = embed(g, k);
    struct op_moe *o = &plan_add(&g->plan, OP_MOE, 0)->moe;
    *o = (struct op_moe){
        .in = x, .norm = rms(g, k), .act = ACT_SILU, .experts = 12, .used = 3, .weight_scale = 1};
    o->tail = (struct tail){.scale = 1, .out = x, .residual = x};
    bool bias = kind == 5;
    o->gate = experts(g, type, n, k, 12, bias);
    o->up = experts(g, type, n, k, 12, bias);
    o->down = experts(g, kind == 3 ? DTYPE_F16 : type, k, n, 12, bias);
    o->router = linear(g, DTYPE_F32, 12, k, bias);
    ((struct weight *)&g->weights.all[o->router.weight])->name = "router";
    if (kind == 0) /* qwen2-moe */
        o->gating = GATING_SOFTMAX;
    if (kind == 1) { /* mixtral */
        o->gating = GATING_SOFTMAX_TOPK;
        o->used = 2;
    }
    if (kind == 2) { /* deepseek v2 */
        o->gating = GATING_SOFTMAX;
        o->groups = 4;
        o->groups_used = 2;
        o->weight_scale = 4;
    }
    if (kind == 3 || kind == 4) { /* deepseek v3 */
        o->gating = GATING_SIGMOID;
        o->group_pair = true;
        o->groups = 3;
        o->groups_used = 2;
        o->normalise = true;
        o->weight_scale = 2.5f;
        o->select_bias = ref_vector(&g->weights, 12, 0, 0.3f);
    }
    if (kind == 5) { /* gpt-oss */
        o->gating = GATING_SOFTMAX_TOPK;
        o->act = ACT_SWIGLU_OAI;
        o->alpha = 1.702f;
        o->limit = 1.0f;
        o->used = 4;
        o->tail.post = rms(g, k);
    }
    if (kind == 0 || kind == 3) {
        o->shared_gate = linear(g, type, 128, k, false);
        o->shared_up = linear(g, type, 128, k, false);
        o->shared_down = linear(g, type, k, 128, false);
        o->shared_router = kind == 0 ? ref_weight(&g->weights, DTYPE_F32, 1, k, 1, 0) : 0;
    }
    logits(g, x, k);
}

static void test_moe(void **state)
{
    (void)state;
    static const char *const name[] = {"moe softmax, shared",      "moe mixtral",     "moe deepseek v2",
                                       "moe deepseek v3 + shared", "moe deepseek v3", "moe gpt-oss"};
    for (int kind = 0; kind < 6; kind++) {
        struct rig *g = rig_new();
        add_moe(g, kind);
        both(g, name[kind]);
    }
}

/* Both sides of a border, one after the other; and each alone. */
static void test_moe_sides(void **state)
{
    (void)state;
    static const uint32_t border[] = {0, 1, 5, 12, UINT32_MAX};
    for (int kind = 0; kind < 6; kind++)
        for (int i = 0; i < 15; i++) {
            struct rig *g = rig_new();
            char name[64];
            add_moe(g, kind);
            const struct op head = g->plan.ops[--g->plan.count];
            struct op *low = &g->plan.ops[1];
            low->moe.tail.post = (struct norm){0}; /* it would be of a part of the sum */
            struct op high = *low;
            low->moe.side = MOE_BELOW;
            high.moe.side = MOE_ABOVE;
            high.moe.shared_gate = high.moe.shared_up = high.moe.shared_down = (struct linear){0};
            high.moe.shared_router = 0;
            if (i % 3 == 1)
                *low = high;
            if (i % 3 == 2)
                *plan_add(&g->plan, OP_MOE, 0) = high;
            *plan_add(&g->plan, OP_LOGITS, UINT32_MAX) = head;
            g->border = border[i / 3];
            snprintf(name, sizeof name, "moe %d, sides %d at %d", kind, i % 3, (int)g->border);
            both(g, name);
        }
}

static bool any_repacked(const struct device *d, weight_id id)
{
    const struct packed *p = &((const struct cpu *)d)->packed[id];
    for (uint32_t i = 0; i < 12 * 3 * p->slabs; i++) /* panels of 96 rows of 12 experts */
        if (p->done[i])
            return true;
    return false;
}

/* Experts that single rows want are read in the file's layout, and repacked when several rows want one. The bits stay. */
static void test_moe_repacking(void **state)
{
    (void)state;
    struct rig *g = rig_new();
    float alone[64];
    add_moe(g, 1);
    const weight_id up = g->plan.ops[1].moe.up.weight;
    rig_begin(g, 16, DTYPE_F32);
    struct device *d =
        rig_device(g, &(struct device_options){.threads = 1, .activations = 8, .deterministic = true});
    const struct kernels *k = ((struct cpu *)d)->k;
    if (!k->streams || !k->streams(DTYPE_Q8_0)) {
        print_message("the tier %s repacks experts for single rows, too: skipped\n", k->tier);
    } else {
        for (int i = 0; i < 5; i++) {
            rig_batch(g);
            rig_add(g, 0, 1);
            memcpy(alone, rig_run(g, d), sizeof alone);
        }
        assert_false(any_repacked(d, up));
        const struct step single = g->step;
        const struct step_seq seq = g->seq[0];
        const int32_t id = g->ids[0], pos = g->pos[0];
        rig_batch(g);
        rig_add(g, 1, 8); /* of a guess: eight rows with three of twelve experts each */
        rig_run(g, d);
        assert_true(any_repacked(d, up));
        g->step = single;
        g->seq[0] = seq;
        g->ids[0] = id;
        g->pos[0] = pos;
        assert_memory_equal(alone, rig_run(g, d), sizeof alone);
    }
    d->ops->close(d);
    rig_end(g);
}

static void test_logits(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct rig *g = rig_new();
        struct operand x = embed(g, 64);
        logits(g, x, i == 2 ? 64 : 333);
        struct op_logits *o = &g->plan.ops[1].logits;
        o->norm = i == 0 ? rms(g, 64) : layer(g, 64);
        if (i < 2)
            o->head = linear(g, i ? DTYPE_Q8_0 : DTYPE_F32, 333, 64, i);
        o->scale = i == 0 ? 0.25f : 1;
        o->softcap = i == 1 ? 1.5f : 0;
        both(g, "logits");
    }
}

/* Only the rows that ask, in their order; and a step without any. */
static void test_outs(void **state)
{
    (void)state;
    struct rig *g = rig_new();
    struct operand x = embed(g, 40);
    logits(g, x, 50);
    g->plan.ops[1].logits.head = linear(g, DTYPE_F32, 50, 40, false);
    rig_begin(g, 16, DTYPE_F32);
    struct device *d = rig_device(g, &(struct device_options){.threads = 2, .exact = true});
    rig_batch(g);
    rig_add(g, 0, 20);
    rig_add(g, 3, 5);
    g->step.outs = 3;
    g->out[0] = 4;
    g->out[1] = 19;
    g->out[2] = 24;
    const float *y = rig_run(g, d);
    ref_run(&g->ref, &g->step, g->name);
    assert_true(rig_error(g, y, true) < 1e-5);
    g->step.outs = 0;
    rig_run(g, d);
    d->ops->close(d);
    rig_end(g);
}

/* The device says no, with a sentence, to steps that do not fit. */
static void test_bad_steps(void **state)
{
    (void)state;
    struct rig *g = rig_new();
    struct operand x = embed(g, 64);
    add_attention(g, x, 64, DTYPE_F32, 0);
    rig_begin(g, 16, DTYPE_F16);
    struct device *d = rig_device(g, &(struct device_options){.threads = 1});
    for (int i = 0; i < 8; i++) {
        struct err e = {0};
        struct plan other = g->plan;
        memset(g->length, 0, sizeof g->length);
        rig_batch(g);
        rig_add(g, 0, 20);
        if (i == 0)
            g->ids[3] = 31;
        else if (i == 1)
            g->ids[3] = -1;
        else if (i == 2)
            g->pos[19] = 20;
        else if (i == 3)
            g->tables[1] = 1 << 20;
        else if (i == 4)
            g->out[0] = 20;
        else if (i == 5)
            g->seq[0].rows = 21;
        else if (i == 6)
            g->step.table_width = 1;
        assert_int_equal(d->ops->run(d, i == 7 ? &other : &g->plan, &g->step, &e), -1);
        assert_true(e.code == ERR_USAGE && strlen(e.text) > 10);
    }
    d->ops->close(d);
    rig_end(g);
}

static void test_pages(void **state)
{
    (void)state;
    static const uint32_t type[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int t = 0; t < 3; t++) {
        struct rig *g = rig_new();
        struct operand x = embed(g, 64);
        add_attention(g, x, 64, DTYPE_F32, 0);
        rig_begin(g, 32, type[t]);
        struct device *d = rig_device(g, &(struct device_options){.threads = 2});
        struct err e = {0};
        rig_batch(g);
        rig_add(g, 0, 70);
        rig_run(g, d);
        /* Sequence 1 gets copies of the pages: two by copy_pages, the third through the host. */
        assert_int_equal(d->ops->copy_pages(d, 0, g->table[0][0], g->table[0][1], 2, &e), 0);
        size_t bytes = d->ops->page_bytes(d, 0);
        assert_true(bytes >= (size_t)32 * KV_HEADS * (DIM + VDIM) * (t ? 2 : 4));
        void *host = malloc(bytes);
        assert_int_equal(d->ops->read_page(d, 0, g->table[0][0][2], host, &e), 0);
        assert_int_equal(d->ops->write_page(d, 0, g->table[0][1][2], host, &e), 0);
        assert_int_equal(d->ops->read_page(d, 0, (int32_t)g->kv.pages[0], host, &e), -1);
        free(host);
        rig_batch(g);
        g->length[1] = g->length[0];
        rig_add(g, 0, 1);
        rig_add(g, 1, 1);
        g->ids[1] = g->ids[0];
        const float *y = rig_run(g, d);
        assert_memory_equal(y, y + g->plan.out_width, g->plan.out_width * sizeof *y);
        struct device_memory m;
        d->ops->memory(d, &m);
        assert_true(m.kv >= bytes * g->kv.pages[0] && m.scratch && m.weights && m.total);
        d->ops->close(d);
        rig_end(g);
    }
}

/* A step allocates nothing; preparing fails cleanly wherever memory runs out. */
static void test_memory(void **state)
{
    (void)state;
    struct rig *g = rig_new();
    struct operand x = embed(g, 64);
    add_attention(g, x, 64, DTYPE_Q8_0, 0);
    rig_begin(g, 16, DTYPE_F16);
    struct device *d = rig_device(g, &(struct device_options){.threads = 2});
    long before = mem_count();
    double seconds[8] = {0};
    d->seconds = seconds;
    rig_batch(g);
    rig_add(g, 0, 70);
    mem_guard(true);
    rig_run(g, d);
    mem_guard(false);
    assert_int_equal(mem_count(), before);
    for (uint32_t i = 0; i < g->plan.count; i++)
        assert_true(seconds[i] > 0);
    d->ops->close(d);
    for (long n = 1; n < 20; n++) {
        struct err e = {0};
        mem_fail_at(n);
        bool bad = device_open(&d, "cpu", &(struct device_options){.threads = 2}, &e) ||
                   d->ops->load(d, &g->weights, NULL, NULL, &e) ||
                   d->ops->prepare(d, &g->plan, &g->kv, REF_ROWS, REF_SEQS, REF_ROWS, &e);
        mem_fail_at(0);
        assert_true(!bad || e.code == ERR_RESOURCE);
        if (d)
            d->ops->close(d);
        if (!bad)
            break;
    }
    rig_end(g);
}

static void test_open(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "gpu", "cuda:", "cuda:x", "cpu0"};
    struct device *d;
    for (int i = 0; i < 5; i++) {
        struct err e = {0};
        assert_int_equal(device_open(&d, bad[i], &(struct device_options){0}, &e), -1);
        assert_true(e.code == ERR_USAGE && e.text[0]);
    }
    struct err e = {0};
    assert_int_equal(device_open(&d, "cpu", &(struct device_options){.tier = "mmx"}, &e), -1);
    assert_non_null(strstr(e.text, "mmx"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),   cmocka_unit_test(test_embed),     cmocka_unit_test(test_qkv),
        cmocka_unit_test(test_latent), cmocka_unit_test(test_out),       cmocka_unit_test(test_ffn),
        cmocka_unit_test(test_moe),    cmocka_unit_test(test_moe_sides), cmocka_unit_test(test_moe_repacking),
        cmocka_unit_test(test_logits), cmocka_unit_test(test_outs),      cmocka_unit_test(test_bad_steps),
        cmocka_unit_test(test_pages),  cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
