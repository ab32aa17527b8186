/* Lowering needs no card: whole plans become the expected lists of launches from a stored device profile, and each pass
 * does its one change, and leaves alone what it must. */
#include "test.h"

#include "base/buf.h"
#include "codec/dtype.h"
#include "device/cuda/build.h"
#include "device/cuda/explain.h"
#include "device/cuda/passes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- plans ---- */

struct fixture {
    struct plan plan;
    struct weights weights;
};

/* Nothing reads the weights' bytes; each has an address of its own. */
static weight_id weight(struct fixture *f, uint32_t type, uint32_t rows, uint32_t cols, uint32_t count)
{
    static float place[512];
    struct weight w = {.name = "w", .type = type, .rows = rows, .cols = cols, .count = count};
    w.data = (const uint8_t *)(place + f->weights.count);
    assert_true(dtype_row_bytes(type, cols, &w.row_bytes));
    w.each_bytes = w.row_bytes * rows;
    weight_id id = weights_add(&f->weights, &w);
    assert_int_not_equal(id, 0);
    return id;
}

static struct linear linear(struct fixture *f, uint32_t type, uint32_t rows, uint32_t cols)
{
    return (struct linear){.weight = weight(f, type, rows, cols, 1)};
}

static struct norm rms(struct fixture *f, uint32_t n)
{
    return (struct norm){.kind = NORM_RMS, .weight = weight(f, DTYPE_F32, 1, n, 1), .eps = 1e-5f};
}

enum { WIDTH = 1024, HEADS = 8, KV_HEADS = 2, DIM = 128, FFN = 2048, VOCAB = 4096 };

static struct operand begin(struct fixture *f)
{
    *f = (struct fixture){0};
    struct operand x = plan_buffer(&f->plan, WIDTH);
    plan_add(&f->plan, OP_EMBED, UINT32_MAX)->embed =
        (struct op_embed){.table = weight(f, DTYPE_Q4_K, VOCAB, WIDTH, 1), .scale = 1, .out = x};
    return x;
}

static void add_attention(struct fixture *f, struct operand x, uint32_t window, struct norm post)
{
    const struct operand q = plan_buffer(&f->plan, HEADS * DIM), a = plan_buffer(&f->plan, HEADS * DIM);
    plan_kv(&f->plan, 0,
            (struct kv_group){.kv_heads = KV_HEADS, .k_dim = DIM, .v_dim = DIM, .window = window});
    plan_add(&f->plan, OP_QKV, 0)->qkv =
        (struct op_qkv){.in = x,
                        .norm = rms(f, WIDTH),
                        .q = linear(f, DTYPE_Q4_K, HEADS * DIM, WIDTH),
                        .k = linear(f, DTYPE_Q4_K, KV_HEADS * DIM, WIDTH),
                        .v = linear(f, DTYPE_Q6_K, KV_HEADS * DIM, WIDTH),
                        .rope = {ROPE_HALVES, DIM, 0, weight(f, DTYPE_F32, 1, DIM / 2, 1), .factor = 1},
                        .heads = HEADS,
                        .kv_heads = KV_HEADS,
                        .k_dim = DIM,
                        .v_dim = DIM,
                        .out = q};
    plan_add(&f->plan, OP_ATTN, 0)->attn = (struct op_attn){.in = q,
                                                            .out = a,
                                                            .heads = HEADS,
                                                            .kv_heads = KV_HEADS,
                                                            .k_dim = DIM,
                                                            .v_dim = DIM,
                                                            .window = window,
                                                            .scale = 0.1f,
                                                            .causal = true};
    plan_add(&f->plan, OP_OUT, 0)->out =
        (struct op_out){.in = a,
                        .linear = linear(f, DTYPE_Q4_K, WIDTH, HEADS * DIM),
                        .tail = {.post = post, .scale = 1, .residual = x, .out = x}};
}

static void add_ffn(struct fixture *f, struct operand x, struct norm post)
{
    plan_add(&f->plan, OP_FFN, 0)->ffn =
        (struct op_ffn){.in = x,
                        .norm = rms(f, WIDTH),
                        .gate = linear(f, DTYPE_Q4_K, FFN, WIDTH),
                        .up = linear(f, DTYPE_Q4_K, FFN, WIDTH),
                        .down = linear(f, DTYPE_Q6_K, WIDTH, FFN),
                        .act = ACT_SILU,
                        .tail = {.post = post, .scale = 1, .residual = x, .out = x}};
}

static void add_experts(struct fixture *f, struct operand x)
{
    enum { EXPERTS = 32, USED = 4, F = 512 };
    plan_add(&f->plan, OP_MOE, 0)->moe =
        (struct op_moe){.in = x,
                        .norm = rms(f, WIDTH),
                        .router = linear(f, DTYPE_F32, EXPERTS, WIDTH),
                        .gate = {.weight = weight(f, DTYPE_Q4_K, F, WIDTH, EXPERTS)},
                        .up = {.weight = weight(f, DTYPE_Q4_K, F, WIDTH, EXPERTS)},
                        .down = {.weight = weight(f, DTYPE_Q4_K, WIDTH, F, EXPERTS)},
                        .act = ACT_SILU,
                        .experts = EXPERTS,
                        .used = USED,
                        .normalise = true,
                        .weight_scale = 1,
                        .shared_gate = linear(f, DTYPE_Q4_K, F, WIDTH),
                        .shared_up = linear(f, DTYPE_Q4_K, F, WIDTH),
                        .shared_down = linear(f, DTYPE_Q4_K, WIDTH, F),
                        .tail = {.scale = 1, .residual = x, .out = x}};
}

static void add_latent(struct fixture *f, struct operand x)
{
    enum { L = 128, R = 64, NOPE = 64, V = 64, LOW = 256 };
    const struct operand q = plan_buffer(&f->plan, HEADS * (L + R)), a = plan_buffer(&f->plan, HEADS * L),
                         h = plan_buffer(&f->plan, HEADS * V);
    plan_kv(&f->plan, 0, (struct kv_group){.kv_heads = 1, .k_dim = L + R});
    plan_add(&f->plan, OP_LATENT, 0)->latent =
        (struct op_latent){.in = x,
                           .norm = rms(f, WIDTH),
                           .q_norm = rms(f, LOW),
                           .kv_norm = rms(f, L),
                           .q_a = linear(f, DTYPE_Q4_K, LOW, WIDTH),
                           .q_b = linear(f, DTYPE_Q4_K, HEADS * (NOPE + R), LOW),
                           .kv_a = linear(f, DTYPE_Q4_K, L + R, WIDTH),
                           .k_b = weight(f, DTYPE_F32, L, NOPE, HEADS),
                           .rope = {ROPE_PAIRS, R, 0, weight(f, DTYPE_F32, 1, R / 2, 1), .factor = 1},
                           .heads = HEADS,
                           .nope = NOPE,
                           .latent = L,
                           .out = q};
    plan_add(&f->plan, OP_ATTN, 0)->attn = (struct op_attn){.in = q,
                                                            .out = a,
                                                            .heads = HEADS,
                                                            .kv_heads = 1,
                                                            .k_dim = L + R,
                                                            .v_dim = L,
                                                            .scale = 0.1f,
                                                            .causal = true,
                                                            .v_in_k = true};
    plan_add(&f->plan, OP_HEADS, 0)->heads =
        (struct op_heads){.in = a, .out = h, .weight = weight(f, DTYPE_F32, V, L, HEADS)};
    plan_add(&f->plan, OP_OUT, 0)->out = (struct op_out){.in = h,
                                                         .linear = linear(f, DTYPE_Q4_K, WIDTH, HEADS * V),
                                                         .tail = {.scale = 1, .residual = x, .out = x}};
}

static void end(struct fixture *f, struct operand x)
{
    plan_add(&f->plan, OP_LOGITS, UINT32_MAX)->logits = (struct op_logits){
        .in = x, .norm = rms(f, WIDTH), .head = linear(f, DTYPE_Q6_K, VOCAB, WIDTH), .scale = 1};
    f->plan.out_width = VOCAB;
}

static void drop(struct fixture *f)
{
    plan_free(&f->plan);
    weights_free(&f->weights);
}

/* What `quern info --plan --device cuda` prints is what test/data/launches/NAME.txt has. With WRITE_LAUNCHES in the
 * environment it is written there instead: read the difference before it is committed. */
static void expect(const struct fixture *f, struct cuda_explain how, const char *name)
{
    struct buf out = {0};
    struct err e = {0};
    char path[128], want[16384];
    how.profile = "H200";
    if (cuda_explain(&f->plan, &f->weights, &how, &out, &e))
        fail_msg("%s", e.text);
    assert_false(out.failed);
    snprintf(path, sizeof path, "test/data/launches/%s.txt", name);
    const bool write = getenv("WRITE_LAUNCHES") != NULL;
    FILE *file = fopen(path, write ? "w" : "r");
    assert_non_null(file);
    if (write) {
        assert_int_equal(fwrite(out.data, 1, out.len, file), out.len);
    } else {
        const size_t n = fread(want, 1, sizeof want - 1, file);
        want[n] = 0;
        if (strcmp(out.data, want) != 0)
            fail_msg("%s: got\n%s\ninstead of\n%s", path, out.data, want);
    }
    assert_int_equal(fclose(file), 0);
    buf_free(&out);
}

static const struct norm none = {.kind = NORM_NONE};

/* One row: products make their input themselves. */
static void test_dense(void **state)
{
    (void)state;
    struct fixture f;
    const struct operand x = begin(&f);
    add_attention(&f, x, 0, none);
    add_ffn(&f, x, none);
    end(&f, x);
    expect(&f, (struct cuda_explain){.rows = 1, .keys = 512}, "dense-1");
    expect(&f, (struct cuda_explain){.rows = 64, .keys = 512}, "dense-64");
    drop(&f);
}

/* A window bounds the keys that are shared out; norms behind products are launches of their own. */
static void test_window(void **state)
{
    (void)state;
    struct fixture f;
    const struct operand x = begin(&f);
    add_attention(&f, x, 256, rms(&f, WIDTH));
    add_ffn(&f, x, rms(&f, WIDTH));
    end(&f, x);
    expect(&f, (struct cuda_explain){.rows = 1, .keys = 16384}, "window-1");
    expect(&f, (struct cuda_explain){.rows = 512, .keys = 512, .prompt = true}, "window-prompt");
    drop(&f);
}

static void test_experts(void **state)
{
    (void)state;
    struct fixture f;
    const struct operand x = begin(&f);
    add_experts(&f, x);
    end(&f, x);
    expect(&f, (struct cuda_explain){.rows = 1, .keys = 512}, "experts-1");
    expect(&f, (struct cuda_explain){.rows = 2, .keys = 512}, "experts-2");
    expect(&f, (struct cuda_explain){.rows = 8, .keys = 512}, "experts-8");
    expect(&f, (struct cuda_explain){.rows = 512, .keys = 512, .prompt = true}, "experts-prompt");
    expect(&f, (struct cuda_explain){.rows = 2, .keys = 512, .exact = true}, "experts-exact");
    drop(&f);
}

static void test_latent(void **state)
{
    (void)state;
    struct fixture f;
    const struct operand x = begin(&f);
    add_latent(&f, x);
    end(&f, x);
    expect(&f, (struct cuda_explain){.rows = 4, .keys = 512}, "latent-4");
    expect(&f, (struct cuda_explain){.rows = 1, .keys = 512, .exact = true}, "latent-exact");
    drop(&f);
}

/* A plan on a stored card, and the launches of a step. */
struct lowered {
    struct fixture f;
    struct paper_card c;
    struct launch_list list;
    struct launch_step s;
};

static void open_on(struct lowered *t, const char *card, const struct device_shape *shape, bool exact)
{
    struct err e = {0};
    assert_int_equal(profile_stored(card, &t->c.profile, &e), 0);
    if (paper_open(&t->c, &t->f.plan, &t->f.weights, shape, exact, &e))
        fail_msg("%s", e.text);
}

static void lower_step(struct lowered *t, uint32_t rows, bool decode)
{
    struct err e = {0};
    const struct step_class class = paper_step(&t->c, rows, rows, decode, &t->s);
    assert_int_equal(lower_plan(&t->c.lower, &class, &t->list, &e), 0);
}

static void close_lowered(struct lowered *t)
{
    launch_free(&t->list);
    paper_free(&t->c);
    drop(&t->f);
}

/* Experts on one side of the border: the general sequence for every number of rows, whose sorting knows the border. */
static void test_sides(void **state)
{
    (void)state;
    for (int side = MOE_BELOW; side <= MOE_ABOVE; side++)
        for (uint32_t rows = 1; rows <= 512; rows *= 2) {
            struct fixture f;
            struct err e = {0};
            struct paper_card c = {0};
            struct launch_list list = {0};
            struct launch_step s;
            struct kv_config kv = {.type = DTYPE_F16, .page_tokens = 16, .pages = {1}};
            const struct device_shape shape = {&kv, 512, 1, 1};
            const struct operand x = begin(&f);
            add_experts(&f, x);
            struct op_moe *o = &f.plan.ops[1].moe;
            o->side = (enum moe_side)side;
            if (side == MOE_ABOVE)
                o->shared_gate = o->shared_up = o->shared_down = (struct linear){0};
            end(&f, x);
            assert_int_equal(profile_stored("H200", &c.profile, &e), 0);
            if (paper_open(&c, &f.plan, &f.weights, &shape, false, &e))
                fail_msg("%s", e.text);
            const struct step_class class = paper_step(&c, rows, rows, true, &s);
            assert_int_equal(lower_plan(&c.lower, &class, &list, &e), 0);
            uint32_t sorts = 0;
            for (uint32_t i = 0; i < list.count; i++) {
                struct launch *l = &list.all[i];
                const struct group_args *a = &l->a.group;
                assert_int_not_equal(l->args, ARGS_MOE_ROW);
                if (l->args != ARGS_GROUP && l->args != ARGS_SORT)
                    continue;
                sorts++;
                for (s.border = 0; s.border <= 40; s.border += 8) { /* of 32 experts, from step to step */
                    const uint32_t at = s.border < 32 ? s.border : 32;
                    launch_bind(l, &s, &(struct launch_limits){.card = &c.profile});
                    assert_int_equal(a->first, side == MOE_ABOVE ? at : 0);
                    assert_int_equal(a->end, side == MOE_ABOVE ? 32 : at);
                    assert_true(side == MOE_ABOVE ? a->identities == UINT32_MAX : a->identities == 32);
                }
            }
            assert_int_equal(sorts, 1);
            launch_free(&list);
            paper_free(&c);
            drop(&f);
        }
}

/* One kernel chooses and sorts few rows, unless the choice or what its weights are for is more than it knows. */
static void test_sorts(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        const uint32_t rows = i == 1 ? SORT_ROWS + 1 : SORT_ROWS;
        struct fixture f;
        struct err e = {0};
        struct paper_card c = {0};
        struct launch_list list = {0};
        struct launch_step s;
        struct kv_config kv = {.type = DTYPE_F16, .page_tokens = 16, .pages = {1}};
        const struct device_shape shape = {&kv, 512, 1, 1};
        const struct operand x = begin(&f);
        add_experts(&f, x);
        struct op_moe *o = &f.plan.ops[1].moe;
        o->groups = i == 2 || i == 3 ? 4 : 0;
        o->groups_used = i == 2 ? 2 : 4; /* 3: of all groups */
        o->nearness = i == 4 ? 0.1f : 0.0f;
        o->scale_input = i == 5;
        o->identities = i == 6 ? SORT_EXPERTS - 32 : i == 7 ? SORT_EXPERTS - 31 : 0;
        if (o->identities)
            o->router = linear(&f, DTYPE_F32, 32 + o->identities, WIDTH);
        end(&f, x);
        assert_int_equal(profile_stored(i == 8 ? "A100" : "H200", &c.profile, &e),
                         0); /* it has no clusters */
        if (paper_open(&c, &f.plan, &f.weights, &shape, false, &e))
            fail_msg("%s", e.text);
        c.lower.options.no_fuse = i == 9;
        const struct step_class class = paper_step(&c, rows, rows, true, &s);
        assert_int_equal(lower_plan(&c.lower, &class, &list, &e), 0);
        uint32_t sorts = 0, kernel = 0;
        for (uint32_t j = 0; j < list.count; j++) {
            struct launch *l = &list.all[j];
            launch_bind(l, &s, &(struct launch_limits){.card = &c.profile});
            sorts += l->args == ARGS_SORT || l->args == ARGS_GROUP || l->args == ARGS_ROUTE;
            kernel = l->args == ARGS_SORT ? l->kernel : kernel;
            if (l->args == ARGS_SORT)
                assert_true(l->grid.x == SORT_BLOCKS && l->a.sort.group.m == rows &&
                            l->a.sort.group.end == 32);
        }
        assert_int_equal(kernel, i == 0 || i == 3 ? K_SORT : i == 6 ? K_SORT + 1 : 0);
        assert_int_equal(sorts, kernel ? 1 : 2);
        launch_free(&list);
        paper_free(&c);
        drop(&f);
    }
}

/* What the launches of an expert layer write stays within the scratch that was counted, for every number of rows: a list is
 * made for rows rounded up, whose tiles may be larger than those of the most rows. */
static void expect_room(const struct paper_card *c, struct launch_list *list, uint32_t rows)
{
    struct launch_step step;
    struct err e = {0};
    const struct step_class class = paper_step(c, rows, rows, true, &step);
    const struct scratch *at = &c->at;
    assert_int_equal(lower_plan(&c->lower, &class, list, &e), 0);
    for (uint32_t i = 0; i < list->count; i++) {
        struct launch *l = &list->all[i];
        launch_bind(l, &step, &(struct launch_limits){0});
        const struct gemm_args *g = &l->a.gemm;
        if (l->args == ARGS_GROUP || l->args == ARGS_SORT) {
            const struct group_args *a = &l->a.group;
            assert_true(a->slot + (size_t)a->m * a->used <= at->slot_row);
            assert_true((float *)a->slot_row + (size_t)a->most_tiles * a->rows <= at->slot_weight);
            assert_true((int32_t *)a->slot_weight + (size_t)a->most_tiles * a->rows <= at->group_expert);
            assert_true(a->group_expert + (size_t)a->most_tiles * a->rows / 8 <= (int32_t *)at->tile);
            assert_true((float *)(a->tile + a->most_tiles) <= at->lora_x);
        } else if (l->args == ARGS_GEMM && g->tile) {
            const uint64_t slots = 8ull * g->groups * launch_rows(&l->rows, &step.meta);
            assert_true(g->seg[0].y + slots * g->seg[0].ldy <= at->z);
            assert_true(g->x + slots / 8 * ((g->k + 255) / 256) * PACK_BYTES <= (uint8_t *)at->x);
        }
    }
}

static void test_scratch(void **state)
{
    (void)state;
    static const uint32_t most[] = {1, 7, 20, 33, 40, 63, 64, 100, 130, 500};
    for (size_t i = 0; i < sizeof most / sizeof most[0]; i++) {
        struct fixture f;
        struct paper_card card = {0};
        struct launch_list list = {0};
        struct err e = {0};
        const struct kv_config kv = {.type = DTYPE_F16, .page_tokens = 16};
        const struct device_shape shape = {&kv, most[i], most[i], most[i]};
        const struct operand x = begin(&f);
        add_experts(&f, x);
        end(&f, x);
        assert_int_equal(profile_stored("H200", &card.profile, &e), 0);
        if (paper_open(&card, &f.plan, &f.weights, &shape, false, &e))
            fail_msg("%s", e.text);
        for (uint32_t rows = 1; rows <= most[i]; rows++)
            expect_room(&card, &list, rows);
        launch_free(&list);
        paper_free(&card);
        drop(&f);
    }
}

/* ---- passes ---- */

/* Places that launches of these tests have in common. */
static float here[32 * 1024], there[32 * 1024], results[64];
static uint8_t packed[1 << 20];
static const struct span pack = {.place = PLACE_PACK}, y = {.place = PLACE_Y};

struct pass_test {
    struct gpu_profile card;
    struct scratch at;
    struct plan plan;
    struct op ops[4];
    struct lower l;
    struct step_class c;
    struct launch_list list;
};

static void start(struct pass_test *t, uint32_t rows)
{
    struct err e = {0};
    *t = (struct pass_test){0};
    assert_int_equal(profile_stored("h200", &t->card, &e), 0);
    t->at.results = results;
    t->plan.ops = t->ops;
    t->plan.count = 4;
    t->l = (struct lower){.card = &t->card, .plan = &t->plan, .at = &t->at};
    t->c.rows = rows;
}

static struct launch *put(struct pass_test *t, uint32_t kernel, enum launch_args args)
{
    struct launch *l = launch_add(&t->list);
    l->kernel = (uint16_t)kernel;
    l->args = (uint8_t)args;
    l->m = t->c.rows;
    l->rows = (struct launch_rows){.of = ROWS_STEP, .most = UINT32_MAX};
    l->why = "test";
    return l;
}

/* A product of a weight of this form: reads the pack, writes `to`. */
static struct launch *put_product(struct pass_test *t, uint32_t fmt, float *to)
{
    struct launch *l = put(t, K_GEMM, ARGS_GEMM);
    l->a.gemm = (struct gemm_args){.segs = 1, .k = 1024, .scale = 1, .x = packed};
    l->a.gemm.seg[0] = (struct gemm_seg){.w = {.fmt = fmt, .n = 256, .k = 1024}, .y = to, .ldy = 1024};
    l->reads[0] = pack;
    l->writes[0] = y;
    return l;
}

static struct launch *put_rows(struct pass_test *t, const float *x, uint32_t k, enum norm_kind norm)
{
    struct launch *l = put(t, K_NORM_PACK, ARGS_PACK);
    l->a.pack = (struct pack_args){.x = x, .ldx = k, .k = k, .norm = {.kind = norm}, .out = {.pack = packed}};
    l->reads[0] = (struct span){PLACE_BUFFER, 1, 0};
    l->writes[0] = pack;
    return l;
}

static void test_merge_products(void **state)
{
    (void)state;
    struct pass_test t;
    start(&t, 8);
    put_product(&t, FMT_Q4_K_TILE, here);
    put_product(&t, FMT_Q6_K_TILE, here + 256);
    put_product(&t, FMT_Q8_0, here + 512);
    put_product(&t, FMT_Q4_K_TILE, here + 768);
    put_product(&t, FMT_Q4_K_TILE, there + 256); /* more than GEMM_SEGS */
    put_product(&t, FMT_Q5_K, there);            /* another form */
    put_product(&t, FMT_Q5_K, there)->op = 1;    /* the same input, though of another operation */
    struct launch *sum = put_product(&t, FMT_Q5_K, there);
    sum->op = 1;
    sum->a.gemm.residual = here;
    pass_merge_products(&t.l, &t.c, &t.list);
    assert_int_equal(t.list.count, 4);
    assert_int_equal(t.list.all[0].a.gemm.segs, GEMM_SEGS);
    assert_ptr_equal(t.list.all[0].a.gemm.seg[2].y, here + 512);
    for (uint32_t i = 1; i < 4; i++)
        assert_int_equal(t.list.all[i].a.gemm.segs, i == 2 ? 2 : 1);
    launch_free(&t.list);
}

/* Gate and up, what adapters want of the activation (or not), the activation, the next product. */
static void put_gate_and_up(struct pass_test *t, uint32_t fmt, bool adapters)
{
    struct launch *g = put_product(t, fmt, here);
    g->a.gemm.segs = 2;
    g->a.gemm.seg[1] = g->a.gemm.seg[0];
    g->a.gemm.seg[1].y = here + 256;
    for (int i = !adapters; i < 2; i++) {
        struct launch *a = put(t, i ? K_ACT_PACK : K_ACT_ROWS, ARGS_ACT);
        a->a.act = (struct act_args){.gate = here, .up = here + 256, .ld = 512, .k = 256, .act = ACT_SILU};
        a->reads[0] = y;
        a->writes[0] = i ? pack : (struct span){.place = PLACE_LORA_X};
    }
    if (adapters) {
        struct launch *down = put(t, K_LORA_DOWN, ARGS_LORA);
        down->a.lora.x = there;
        down->reads[0] = (struct span){.place = PLACE_LORA_X};
    }
    put_product(t, fmt, there);
}

static void test_pair_activation(void **state)
{
    (void)state;
    struct pass_test t;
    start(&t, 8);
    put_gate_and_up(&t, FMT_Q5_K, false);
    pass_pair_activation(&t.l, &t.c, &t.list);
    assert_int_equal(t.list.count, 3);
    assert_true(t.list.all[0].a.gemm.paired && t.list.all[0].a.gemm.act == ACT_SILU);
    assert_int_equal(t.list.all[0].a.gemm.seg[0].ldy, 256);
    assert_null(t.list.all[1].a.act.gate);
    assert_ptr_equal(t.list.all[1].a.act.up, here);
    assert_int_equal(t.list.all[1].a.act.act, ACT_NONE);
    t.list.count = 0; /* the adapters' rows are then the product's own result */
    put_gate_and_up(&t, FMT_Q4_K_TILE, true);
    pass_pair_activation(&t.l, &t.c, &t.list);
    assert_int_equal(t.list.count, 4);
    assert_ptr_equal(t.list.all[2].a.lora.x, here);
    assert_int_equal(t.list.all[2].a.lora.ldx, 256);
    t.list.count = 0; /* plain rows have no such kernel */
    put_gate_and_up(&t, FMT_F16, false);
    pass_pair_activation(&t.l, &t.c, &t.list);
    assert_false(t.list.all[0].a.gemm.paired);
    t.list.count = 0; /* something stands between product and activation */
    put_gate_and_up(&t, FMT_Q5_K, false);
    struct launch *up = launch_insert(&t.list, 1);
    up->args = ARGS_LORA;
    up->kernel = K_LORA_UP;
    pass_pair_activation(&t.l, &t.c, &t.list);
    assert_false(t.list.all[0].a.gemm.paired);
    launch_free(&t.list);
}

/* A gated row in front of a product of tiles: how many launches are left. */
static uint32_t gate_launches(uint32_t rows, struct norm_args norm, uint32_t fmt)
{
    struct pass_test t;
    start(&t, rows);
    struct launch *g = put(&t, K_GATE, ARGS_GATE);
    g->a.gate = (struct gate_args){
        .x = here, .gate = here + 1024, .out = there, .norm = norm, .k = 1024, .act = ACT_SILU};
    g->writes[0] = (struct span){.place = PLACE_Z};
    struct launch *p = put_product(&t, fmt, there + 1024);
    p->a.gemm.k = 1024;
    p->a.gemm.in.x = there;
    p->reads[0] = g->writes[0];
    pass_gate_input(&t.l, &t.c, &t.list);
    const uint32_t count = t.list.count;
    const struct gemm_in *in = &t.list.all[count - 1].a.gemm.in;
    assert_ptr_equal(in->gate.gate, count == 1 ? here + 1024 : NULL);
    assert_ptr_equal(in->x, count == 1 ? here : there);
    launch_free(&t.list);
    return count;
}

static void test_gate_input(void **state)
{
    (void)state;
    const struct norm_args heads = {.kind = NORM_RMS, .heads = 8}, plain = {0}, whole = {.kind = NORM_RMS},
                           layer = {.kind = NORM_LAYER, .heads = 8}, odd = {.kind = NORM_RMS, .heads = 3};
    assert_int_equal(gate_launches(1, heads, FMT_Q4_K_TILE), 1);
    assert_int_equal(gate_launches(1, plain, FMT_Q6_K_TILE), 1);
    assert_int_equal(gate_launches(2, heads, FMT_Q4_K_TILE), 2); /* more rows */
    assert_int_equal(gate_launches(1, heads, FMT_F16), 2);       /* no tiles */
    assert_int_equal(gate_launches(1, whole, FMT_Q4_K_TILE), 2); /* a slice of many warps */
    assert_int_equal(gate_launches(1, layer, FMT_Q4_K_TILE), 2);
    assert_int_equal(gate_launches(1, odd, FMT_Q4_K_TILE), 2);
}

static void test_conv_results(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct pass_test t;
        start(&t, i == 1 ? 2 : 1);
        t.c.single = true;
        struct launch *p = put_product(&t, FMT_Q4_K_TILE, there);
        p->a.gemm.in.x = here;
        struct launch *c = put(&t, K_CONV, ARGS_CONV);
        c->a.conv =
            (struct conv_args){.x = i == 2 ? here : there, .y = here + 512, .w = here, .keep = 1, .cols = 4};
        c->a.conv.channels = t.list.all[0].a.gemm.seg[0].w.n;
        c->a.conv.cols = i == 3 ? 5 : 4;
        if (i < 4) /* 4: it writes where the row is that other blocks read */
            p->a.gemm.in.x = here + 16 * 1024;
        pass_conv_results(&t.l, &t.c, &t.list);
        assert_int_equal(t.list.count, i ? 2 : 1); /* more rows, other results, more columns */
        assert_ptr_equal(t.list.all[0].a.gemm.conv.y, i ? NULL : here + 512);
        launch_free(&t.list);
    }
}

/* A pack that is made once for the products of two operations. */
static void test_pack_once(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct pass_test t;
        start(&t, 1);
        put_rows(&t, here, 1024, NORM_RMS);
        put_product(&t, FMT_Q4_K_TILE, there);
        put_rows(&t, i == 1 ? here + 1024 : here, 1024, i == 2 ? NORM_NONE : NORM_RMS);
        put_product(&t, FMT_Q4_K_TILE, there + 256)->op = 1;
        pass_pack_once(&t.l, &t.c, &t.list);
        assert_int_equal(t.list.count, i ? 4 : 3);
        launch_free(&t.list);
    }
}

/* A sum in front of the norm of what it makes. */
static void test_sum_rows(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct pass_test t;
        start(&t, 200);
        struct launch *l = put(&t, K_TAIL, ARGS_TAIL);
        l->a.tail = (struct tail_args){.y = there,
                                       .ldy = 1024,
                                       .n = 1024,
                                       .scale = 2,
                                       .residual = here,
                                       .ldr = 1024,
                                       .out = here,
                                       .ldo = i == 1 ? 2048 : 1024, /* rows elsewhere */
                                       .post.kind = i == 2 ? NORM_RMS : NORM_NONE};
        l->reads[0] = y;
        l = put_rows(&t, i == 3 ? here + 8 : here, i == 4 ? 1016 : 1024, NORM_RMS);
        l->a.pack.ldx = 1024;
        if (i == 5)
            l->rows.of = ROWS_RESULTS;
        put_product(&t, FMT_Q4_K_TILE, there);
        pass_sum_rows(&t.list);
        assert_int_equal(t.list.count, i ? 3 : 2);
        const struct launch *first = &t.list.all[0];
        assert_int_equal(first->kernel, i ? K_TAIL : K_NORM_SUM);
        assert_int_equal(t.list.all[t.list.count - 1].args, ARGS_GEMM);
        if (!i) {
            assert_ptr_equal(first->a.pack.sum.y, there);
            assert_ptr_equal(first->a.pack.sum.residual, here);
            assert_true(first->a.pack.sum.scale == 2 && launch_reads(first, y));
        }
        launch_free(&t.list);
    }
}

/* The same of a sum of experts. */
static void test_combine_rows(void **state)
{
    (void)state;
    for (int i = 0; i < 9; i++) {
        struct pass_test t;
        start(&t, i == 5 ? 3000 : 40); /* 5: the layer comes in parts */
        const uint32_t n = i == 6 ? 8200 : i == 7 ? 8192 : 1024;
        struct launch *l = put(&t, K_COMBINE, ARGS_COMBINE);
        l->a.combine =
            (struct combine_args){.y = there, .n = n, .out = here, .ldo = i == 1 ? 2 * n : n, .used = 8};
        l->reads[0] = y;
        l->reads[4] = (struct span){.place = PLACE_Z};
        l->writes[0] = (struct span){PLACE_BUFFER, 1, 0};
        l->rows.most = MOE_ROWS;
        l = put_rows(&t, i == 2 ? here + 8 : here, i == 8 ? n - 8 : n, NORM_RMS);
        l->a.pack.ldx = n;
        l->kernel = i == 6 ? K_NORM_PACK + 2 : i == 7 ? K_NORM_PACK + 1 : K_NORM_PACK; /* 6: too wide */
        if (i == 3)
            l->rows.of = ROWS_RESULTS;
        if (i == 4)
            l->a.pack.slot = (const int32_t *)there;
        put_product(&t, FMT_Q4_K_TILE, there);
        pass_sum_rows(&t.list);
        const bool fused = i == 0 || i == 7;
        struct launch *first = &t.list.all[0];
        assert_int_equal(t.list.count, fused ? 2 : 3);
        assert_int_equal(first->args, fused ? ARGS_PACK_COMBINE : ARGS_COMBINE);
        if (fused) {
            const struct launch_step s = {.meta = {.rows = 33}};
            launch_bind(first, &s, &(struct launch_limits){0});
            const struct pack_combine_args *a = &first->a.pack_combine;
            assert_int_equal(first->kernel, K_NORM_COMBINE + i / 7);
            assert_true(a->pack.m == 33 && a->pack.k == n && a->from.used == 8);
            assert_true(a->from.out == here && a->pack.x == here);
            assert_true(launch_reads(first, first->reads[4]) && launch_writes(first, pack));
            assert_true(launch_writes(first, (struct span){PLACE_BUFFER, 1, 0}));
        }
        launch_free(&t.list);
    }
}

/* Products of experts read the list of tiles ahead where the rows of slots are packed right behind the sorting; not those of
 * another sorting. */
static void test_tiles_there(void **state)
{
    (void)state;
    static const struct moe_tile tiles[8];
    static const int32_t slots[8];
    const struct span route = {.place = PLACE_ROUTE};
    for (int i = 0; i < 6; i++) {
        const bool sorts = i % 2, asks = i < 2;
        struct pass_test t;
        start(&t, 8);
        put(&t, K_GROUP, sorts ? ARGS_SORT : ARGS_GROUP)->writes[0] = route;
        if (i / 2 == 1)
            put(&t, K_TAIL, ARGS_TAIL);
        put_rows(&t, here, 1024, NORM_RMS)->a.pack.slot = i / 2 == 2 ? NULL : slots;
        put_product(&t, FMT_Q4_K_TILE, there)->a.gemm.tile = tiles;
        put(&t, K_ACT_PACK, ARGS_ACT)->writes[0] = pack;
        put_product(&t, FMT_Q4_K_TILE, there)->a.gemm.tile = tiles;
        put_product(&t, FMT_Q4_K_TILE, there);
        put(&t, K_ROUTER, ARGS_ROUTER)->writes[0] = route;
        put_product(&t, FMT_Q4_K_TILE, there)->a.gemm.tile = tiles;
        pass_tiles_there(&t.l, &t.c, &t.list);
        const struct launch *first = &t.list.all[0];
        assert_int_equal(sorts ? first->a.sort.group.late : first->a.group.late, asks);
        uint32_t ahead = 0;
        for (uint32_t j = 0; j < t.list.count; j++) {
            const struct launch *l = &t.list.all[j];
            if (l->args == ARGS_PACK)
                assert_int_equal(l->a.pack.x_there, asks);
            ahead += l->args == ARGS_GEMM && l->a.gemm.tile_there;
        }
        assert_int_equal(ahead, asks ? 2 : 0);
        launch_free(&t.list);
    }
}

/* A layer of experts. */
struct mixture {
    uint32_t experts, used, identities, groups, type;
    enum moe_side side;
    bool shared, nearness, scales_input, exact;
};

static void add_mixture(struct fixture *f, struct operand x, const struct mixture *m)
{
    enum { F = 256 };
    struct op_moe *o = &plan_add(&f->plan, OP_MOE, 0)->moe;
    *o = (struct op_moe){.in = x,
                         .norm = rms(f, WIDTH),
                         .router = linear(f, DTYPE_F32, m->experts + m->identities, WIDTH),
                         .gate = {.weight = weight(f, m->type, F, WIDTH, m->experts)},
                         .up = {.weight = weight(f, m->type, F, WIDTH, m->experts)},
                         .down = {.weight = weight(f, m->type, WIDTH, F, m->experts)},
                         .act = ACT_SILU,
                         .experts = m->experts,
                         .used = m->used,
                         .identities = m->identities,
                         .groups = m->groups,
                         .groups_used = m->groups / 2,
                         .nearness = m->nearness ? 0.1f : 0.0f,
                         .scale_input = m->scales_input,
                         .normalise = true,
                         .weight_scale = 1,
                         .side = m->side,
                         .tail = {.scale = 1, .residual = x, .out = x}};
    if (m->shared) {
        o->shared_gate = linear(f, m->type, F, WIDTH);
        o->shared_up = linear(f, m->type, F, WIDTH);
        o->shared_down = linear(f, m->type, WIDTH, F);
    }
}

/* What kernels of experts read before they wait is complete, whatever the list: a pack that reads x early is behind a sort
 * that starts it late and does not write x; the list of tiles is read early only behind such a pack. And the card takes
 * every launch. */
static void check_experts(const struct paper_card *c, struct launch_list *list, const struct launch_step *s)
{
    bool sorted = false; /* the list of tiles is complete when a later launch starts */
    for (uint32_t i = 0; i < list->count; i++) {
        struct launch *l = &list->all[i];
        const struct launch *before = i ? l - 1 : NULL;
        launch_bind(l, s, &(struct launch_limits){.card = &c->profile});
        assert_true(l->grid.y <= 65535 && l->grid.z <= 65535 &&
                    l->grid.shared <= gpu_shared_most(&c->profile));
        if (l->args == ARGS_PACK && l->a.pack.x_there) {
            const bool sort = before->args == ARGS_SORT;
            assert_true(sort || before->args == ARGS_GROUP);
            assert_true(sort ? before->a.sort.group.late : before->a.group.late);
            assert_true(l->a.pack.slot && !launch_writes(before, l->reads[0]));
            sorted = true;
        } else if (launch_writes(l, (struct span){.place = PLACE_ROUTE}))
            sorted = false;
        if (l->args == ARGS_GEMM && l->a.gemm.tile)
            assert_int_equal(l->a.gemm.tile_there, sorted);
    }
}

static void lower_mixture(const struct mixture *m, const char *card, uint32_t most)
{
    static const uint32_t rows[] = {1, 3, 8, 17, 113, 128, 129, 300, 2047, 2048, 2049, 4100};
    struct lowered t = {0};
    const struct kv_config kv = {.type = DTYPE_F16, .page_tokens = 16, .pages = {1}};
    const struct operand x = begin(&t.f);
    add_mixture(&t.f, x, m);
    add_mixture(&t.f, x, m);
    end(&t.f, x);
    open_on(&t, card, &(struct device_shape){&kv, most, most, most}, m->exact);
    for (size_t i = 0; i < sizeof rows / sizeof *rows && rows[i] <= most; i++) {
        lower_step(&t, rows[i], i % 2);
        check_experts(&t.c, &t.list, &t.s);
    }
    close_lowered(&t);
}

static void test_early_reads_of_experts(void **state)
{
    (void)state;
    static const char *const cards[] = {"H200", "A100", "RTX 4090"};
    static const uint32_t experts[] = {1, 7, 128, 130, 512}, used[] = {1, 4, 8, 22, 32};
    static const struct mixture kinds[] = {{.type = DTYPE_Q4_K},
                                           {.type = DTYPE_F16, .shared = true},
                                           {.type = DTYPE_Q5_K, .exact = true},
                                           {.type = DTYPE_Q4_K, .side = MOE_BELOW, .shared = true},
                                           {.type = DTYPE_Q4_K, .side = MOE_ABOVE},
                                           {.type = DTYPE_Q4_K, .nearness = true},
                                           {.type = DTYPE_Q4_K, .scales_input = true},
                                           {.type = DTYPE_Q4_K, .identities = 5},
                                           {.type = DTYPE_Q4_K, .groups = 2}};
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++)
        for (size_t j = 0; j < sizeof used / sizeof *used; j++)
            for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
                struct mixture m = kinds[k];
                m.experts = experts[i];
                m.used = used[j];
                if (m.used <= m.experts && (!m.groups || (m.experts % 2 == 0 && m.experts / 2 >= m.used)))
                    lower_mixture(&m, cards[(i + j + k) % 3], k ? 2100 : 4100);
            }
}

/* Rows of k values that are normed and packed for one product; how many launches are left. */
static uint32_t norm_launches(uint32_t rows, uint32_t k, uint32_t fmt, float *to,
                              const struct norm_args *norm)
{
    struct pass_test t;
    start(&t, rows);
    put_rows(&t, here, k, norm->kind)->a.pack.norm = *norm;
    struct gemm_args *g = &put_product(&t, fmt, to)->a.gemm;
    g->k = g->seg[0].w.k = k;
    pass_row_input(&t.l, &t.c, &t.list);
    const uint32_t count = t.list.count;
    const float *x = t.list.all[count - 1].a.gemm.in.x;
    assert_ptr_equal(x, count == 1 ? here : NULL);
    launch_free(&t.list);
    return count;
}

static uint32_t row_launches(uint32_t rows, uint32_t k, uint32_t fmt, float *to)
{
    return norm_launches(rows, k, fmt, to, &(struct norm_args){.kind = NORM_RMS});
}

static void test_row_input(void **state)
{
    (void)state;
    static const struct norm_args mean = {.kind = NORM_LAYER}, bias = {.kind = NORM_RMS, .b = here};
    struct pass_test t;
    assert_int_equal(row_launches(1, 1024, FMT_Q4_K_TILE, there), 1);
    assert_int_equal(row_launches(2, 1024, FMT_Q4_K_TILE, there), 2); /* more rows */
    assert_int_equal(row_launches(1, 1024, FMT_Q5_K, there), 1);      /* not tiles, but small */
    assert_int_equal(row_launches(1, 16384, FMT_Q5_K, there), 2);     /* neither */
    assert_int_equal(row_launches(1, 1000, FMT_Q8_0, there), 1);      /* the last column is not whole */
    assert_int_equal(row_launches(1, 1004, FMT_Q6_K_TILE, there), 2); /* nor its lanes */
    /* every block has room for the row, if it need not hold it until the norm is known */
    assert_int_equal(row_launches(1, 28672, FMT_Q4_K_TILE, there), 1);
    assert_int_equal(row_launches(1, 28928, FMT_Q4_K_TILE, there), 2);
    assert_int_equal(norm_launches(1, 4096, FMT_Q4_K_TILE, there, &mean), 1);
    assert_int_equal(norm_launches(1, 4352, FMT_Q4_K_TILE, there, &mean), 2);
    assert_int_equal(norm_launches(1, 4352, FMT_Q4_K_TILE, there, &bias), 2);
    assert_int_equal(row_launches(1, 1024, FMT_Q4_K_TILE, here + 512), 2);  /* it writes where it reads */
    assert_int_equal(row_launches(1, 1024, FMT_Q4_K_TILE, here + 1024), 1); /* beside it */
    /* tiles, then another form: the pack is made between them, and tiles behind that take it, too */
    start(&t, 1);
    put_rows(&t, here, 1024, NORM_NONE);
    put_product(&t, FMT_Q4_K_TILE, there);
    put_product(&t, FMT_Q4_K, there);
    put_product(&t, FMT_Q6_K_TILE, there);
    pass_row_input(&t.l, &t.c, &t.list);
    assert_int_equal(t.list.count, 4);
    assert_ptr_equal(t.list.all[0].a.gemm.in.x, here);
    assert_int_equal(t.list.all[1].args, ARGS_PACK);
    assert_null(t.list.all[2].a.gemm.in.x);
    assert_null(t.list.all[3].a.gemm.in.x);
    launch_free(&t.list);
}

/* Attention that leaves parts, the launch that joins them, and rows that are packed of it. */
static struct launch *put_parts(struct pass_test *t, uint32_t splits)
{
    const struct attn_args a = {.out = here,
                                .heads = 8,
                                .splits = splits,
                                .part_queries = 8,
                                .part = there,
                                .kv = {.heads = 2, .v_dim = 128}};
    struct launch *l = put(t, K_ATTN_FEW, ARGS_ATTN);
    l->a.attn = a;
    l->writes[0] = splits > 1 ? (struct span){.place = PLACE_PARTS} : (struct span){PLACE_BUFFER, 1, 0};
    if (splits > 1) {
        l = put(t, K_ATTN_COMBINE, ARGS_ATTN);
        l->a.attn = a;
        l->writes[0] = (struct span){PLACE_BUFFER, 1, 0};
    }
    return put_rows(t, here, 1024, NORM_NONE);
}

static uint32_t joined(uint32_t splits, bool read_later)
{
    struct pass_test t;
    start(&t, 1);
    t.ops[1] = (struct op){.kind = OP_OUT, .out = {.in = {read_later ? 1 : 2, 0}}};
    put_parts(&t, splits);
    put_product(&t, FMT_Q4_K_TILE, results);
    pass_row_input(&t.l, &t.c, &t.list);
    pass_join_parts(&t.l, &t.c, &t.list);
    const uint32_t count = t.list.count;
    assert_ptr_equal(t.list.all[count - 1].a.gemm.in.parts.part, count == 2 && splits > 1 ? there : NULL);
    launch_free(&t.list);
    return count;
}

static void test_join_parts(void **state)
{
    (void)state;
    assert_int_equal(joined(GEMM_PARTS_MOST, false), 2);
    assert_int_equal(joined(GEMM_PARTS_MOST + 1, false), 3); /* too many parts for every block to read */
    assert_int_equal(joined(4, true), 3);                    /* another operation reads the row */
    assert_int_equal(joined(1, false), 2);                   /* there are no parts */
}

/* Heads, and attention over them: how many launches are left. */
static uint32_t heads_launches(uint32_t rows, uint32_t kernel, uint32_t splits, uint32_t stored,
                               bool read_later)
{
    struct pass_test t;
    start(&t, rows);
    t.c.single = 1;
    t.c.seqs = rows;
    t.ops[1] = (struct op){.kind = OP_OUT, .out = {.in = {read_later ? 2 : 1, 0}}};
    struct launch *l = put(&t, K_QKV, ARGS_QKV);
    l->a.qkv =
        (struct qkv_args){.out = here, .heads = 8, .k_heads = stored, .kv = {.heads = 2, .v_dim = 128}};
    l->reads[0] = y;
    l->writes[0] = (struct span){PLACE_BUFFER, 2, 0};
    put_parts(&t, splits);
    t.list.all[1].a.attn.q = here;
    t.list.all[1].kernel = (uint16_t)kernel;
    pass_finish_heads(&t.l, &t.c, &t.list);
    const uint32_t count = t.list.count;
    if (t.list.all[0].args == ARGS_ATTN_ROW) {
        assert_int_equal(t.list.all[0].kernel, K_ATTN_ROW + 2);
        assert_ptr_equal(t.list.all[0].a.attn_row.qkv.out, here);
        assert_ptr_equal(t.list.all[0].a.attn_row.attn.part, there);
        assert_true(launch_reads(&t.list.all[0], y));
    }
    launch_free(&t.list);
    return count;
}

static void test_finish_heads(void **state)
{
    (void)state;
    assert_int_equal(heads_launches(1, K_ATTN_FEW + 2, 1, 2, false), 2);
    assert_int_equal(heads_launches(1, K_ATTN_FEW + 2, 16, 2, false), 4); /* too many would repeat it */
    assert_int_equal(heads_launches(1, K_ATTN_FAR + 2, 1, 2, false), 3);  /* many keys */
    assert_int_equal(heads_launches(32, K_ATTN_FEW + 2, 1, 2, false), 2);
    assert_int_equal(heads_launches(200, K_ATTN_FEW + 2, 1, 2, false),
                     3); /* more blocks than there are at once */
    assert_int_equal(heads_launches(1, K_ATTN_DECODE + 2, 1, 2, false), 3); /* more queries */
    assert_int_equal(heads_launches(1, K_ATTN_FEW + 2, 1, 0, false), 3);    /* K and V of another layer */
    assert_int_equal(heads_launches(1, K_ATTN_FEW + 2, 1, 2, true), 3);     /* another operation reads Q */
}

/* Attention that finishes heads reads scales of Q, K and V's rows in all blocks of a row, of which one writes the scale of
 * its own result: they have places of their own. */
static void test_scales_apart(void **state)
{
    (void)state;
    static const uint32_t types[] = {DTYPE_F16, DTYPE_Q4_K};
    const struct kv_config kv = {.type = DTYPE_F16, .page_tokens = 16, .pages = {1000}};
    struct err e = {0};
    uint32_t both = 0;
    for (int i = 0; i < 4; i++) {
        struct lowered t = {0};
        struct kept_weight kept[64] = {{0}};
        const struct operand x = begin(&t.f);
        const uint32_t type = types[i % 2];
        add_attention(&t.f, x, 0, none);
        t.f.plan.ops[1].qkv.q = linear(&t.f, type, HEADS * DIM, WIDTH);
        t.f.plan.ops[1].qkv.k = linear(&t.f, type, KV_HEADS * DIM, WIDTH);
        t.f.plan.ops[1].qkv.v = linear(&t.f, type, KV_HEADS * DIM, WIDTH);
        t.f.plan.ops[3].out.linear = linear(&t.f, type, WIDTH, HEADS * DIM);
        end(&t.f, x);
        open_on(&t, "H200", &(struct device_shape){&kv, 512, 512, 512}, false);
        for (int id = 1; id < 64; id++)
            kept[id].values = (void *)((1ull << 50) + ((uint64_t)id << 32));
        t.c.lower.kept = i < 2 ? kept : NULL;
        for (uint32_t rows = 17; rows <= 200; rows += 8) {
            const struct step_class class = paper_step(&t.c, rows, 64, false, &t.s);
            assert_int_equal(lower_plan(&t.c.lower, &class, &t.list, &e), 0);
            for (uint32_t k = 0; k < t.list.count; k++) {
                const struct attn_row_args *p = &t.list.all[k].a.attn_row;
                if (t.list.all[k].args != ARGS_ATTN_ROW || !p->qkv.row_scale || !p->attn.pack.half_scale)
                    continue;
                assert_ptr_not_equal(p->qkv.row_scale, p->attn.pack.half_scale);
                both++;
            }
        }
        close_lowered(&t);
    }
    assert_true(both > 10);
}

static void test_attention_packs(void **state)
{
    (void)state;
    struct pass_test t;
    for (uint32_t splits = 1; splits <= 2; splits++) {
        start(&t, 4);
        put_parts(&t, splits);
        pass_attention_packs(&t.l, &t.c, &t.list);
        assert_int_equal(t.list.count, splits);
        for (uint32_t i = 0; i < splits; i++)
            assert_ptr_equal(t.list.all[i].a.attn.pack.pack, packed);
        assert_true(launch_writes(&t.list.all[splits - 1], pack));
        launch_free(&t.list);
    }
    start(&t, 4); /* other sequences have many queries: not all rows are here */
    t.c.tiles = 1;
    put_parts(&t, 2);
    pass_attention_packs(&t.l, &t.c, &t.list);
    assert_int_equal(t.list.count, 3);
    t.c.tiles = 0; /* a group's heads make no whole columns: only the launch that joins can pack them */
    for (uint32_t splits = 1; splits <= 2; splits++) {
        t.list.count = 0;
        put_parts(&t, splits)->a.pack.k = 8 * 96;
        for (uint32_t i = 0; i < splits; i++)
            t.list.all[i].a.attn.kv.v_dim = 96;
        pass_attention_packs(&t.l, &t.c, &t.list);
        assert_int_equal(t.list.count, 2);
    }
    t.list.count = 0; /* a norm stands between */
    put_parts(&t, 2)->a.pack.norm.kind = NORM_RMS;
    pass_attention_packs(&t.l, &t.c, &t.list);
    assert_int_equal(t.list.count, 3);
    launch_free(&t.list);
}

static void test_direct_results(void **state)
{
    (void)state;
    struct pass_test t;
    for (int finished = 0; finished < 2; finished++) {
        start(&t, 4);
        put_product(&t, FMT_Q6_K_TILE, here)->writes[0] = (struct span){.place = PLACE_LOGITS};
        if (finished)
            put(&t, K_FINISH, ARGS_FINISH);
        put(&t, LAUNCH_RESULTS, ARGS_RESULTS);
        pass_direct_results(&t.l, &t.c, &t.list);
        assert_int_equal(t.list.count, finished ? 3 : 1);
        assert_ptr_equal(t.list.all[0].a.gemm.seg[0].y, finished ? here : results);
        launch_free(&t.list);
    }
}

static void test_cut_rows(void **state)
{
    (void)state;
    struct pass_test t;
    start(&t, 130);
    put_product(&t, FMT_Q5_K, here)->a.gemm.residual = there;
    t.list.all[0].a.gemm.ldr = 16;
    pass_cut_rows(&t.l, &t.c, &t.list);
    assert_int_equal(t.list.count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        const struct launch *l = &t.list.all[i];
        assert_int_equal(l->m, i < 2 ? 64 : 2);
        assert_int_equal(launch_rows(&l->rows, &(struct meta){.rows = 130}), i < 2 ? 64 : 2);
        assert_int_equal(launch_rows(&l->rows, &(struct meta){.rows = 65}), i == 0 ? 64 : i == 1 ? 1 : 0);
        assert_ptr_equal(l->a.gemm.seg[0].y, here + 64 * i * 1024);
        assert_ptr_equal(l->a.gemm.residual, there + 64 * i * 16);
        assert_ptr_equal(l->a.gemm.x, packed + 8 * i * 4 * PACK_BYTES);
    }
    launch_free(&t.list);
}

static void test_choose_kernels(void **state)
{
    (void)state;
    static const struct {
        uint32_t rows, order, kernel;
        bool row;
    } want[] = {{1, PACK_LANES, K_GEMM_ROW, true},
                {1, PACK_LANES, K_GEMM + 4 * FMT_Q4_K_TILE, false},
                {8, PACK_LANES, K_GEMM + 4 * FMT_Q4_K_TILE, false},
                {16, PACK_LANES, K_GEMM + 4 * FMT_Q4_K_TILE + 1, false},
                {32, PACK_LANES, K_GEMM_STAGED_FEW, false},
                {32, PACK_ROWS, K_GEMM_MANY, false},
                {64, PACK_ROWS, K_GEMM_MANY + 1, false},
                {65, PACK_ROWS, K_GEMM_MANY + 2, false},
                {96, PACK_ROWS, K_GEMM_MANY + 2, false},
                {97, PACK_ROWS, K_GEMM_MANY + 3, false},
                {128, PACK_ROWS, K_GEMM_MANY + 3, false}};
    struct pass_test t;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        start(&t, want[i].rows);
        struct launch *l = put_product(&t, FMT_Q4_K_TILE, there);
        l->order = (uint8_t)want[i].order;
        l->a.gemm.in.x = want[i].row ? here : NULL;
        pass_choose_kernels(&t.l, &t.c, &t.list);
        assert_int_equal(l->kernel, want[i].kernel);
        assert_true(l->grid.x && l->grid.y && l->grid.threads && l->a.gemm.split && l->how);
        assert_int_equal(l->a.gemm.strips, want[i].order == PACK_ROWS ? 4 : 16);
        launch_free(&t.list);
    }
}

/* How many rows of a product at most do not go through cuBLASLt: where its weight is fp16 already, stays decoded, or
 * neither. */
static void test_paths(void **state)
{
    (void)state;
    const struct gpu_profile card = {.major = 9, .sms = 132, .shared_block = 232448, .wide = true},
                             old = {.major = 8, .sms = 132, .shared_block = 166912};
    /* of an 8B and of a 70B, of a form without wgmma, small, fp16 */
    struct mat mat[] = {{0},
                        {.fmt = FMT_Q4_K_TILE, .n = 14336, .k = 4096},
                        {.fmt = FMT_Q4_K_TILE, .n = 28672, .k = 8192},
                        {.fmt = FMT_Q5_K, .n = 28672, .k = 8192},
                        {.fmt = FMT_Q4_K_TILE, .n = 1024, .k = 4096},
                        {.fmt = FMT_F16, .n = 14336, .k = 4096},
                        {.fmt = FMT_Q8_0, .n = 14336, .k = 4096},
                        {.fmt = FMT_Q4_K_TILE, .n = 28672, .k = 8192}};
    enum { OF_8B = 1, OF_70B, PLAIN, SMALL, HALF, OF_Q8, FP8 };
    const struct {
        const struct gpu_profile *card;
        weight_id weight[2];
        uint32_t most;
        bool kept;
        uint32_t close; /* up to so many rows both cost about as much */
    } want[] = {{&card, {OF_8B, OF_8B}, PACK_ROWS_MOST, false, 0},
                {&old, {OF_8B}, PACK_ROWS_MOST, false, 0},
                {&card, {OF_8B, OF_8B}, 96, true, 128},
                {&card, {OF_70B, OF_70B}, 96, true, 128},
                {&old, {OF_70B, OF_70B}, KEPT_ROWS_LEAST, true, 0},
                {&card, {OF_Q8, OF_Q8}, KEPT_ROWS_LEAST, true, 0},
                {&card, {PLAIN}, KEPT_ROWS_LEAST, true, 0},
                {&card, {OF_70B, PLAIN}, KEPT_ROWS_LEAST, true, 0},
                {&card, {OF_70B, FP8}, KEPT_ROWS_LEAST, true, 0},
                {&card, {SMALL}, KEPT_SMALL_LEAST, true, 0},
                {&card, {HALF}, HALF_ROWS_LEAST, false, 0}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct kept_weight kept[FP8 + 1] = {{0}};
        for (uint32_t id = 1; id <= FP8 && want[i].kept; id++)
            kept[id] = (struct kept_weight){here, id == FP8 ? here : NULL};
        for (uint32_t m = 1; m <= 200; m++) {
            const struct lower l = {
                .card = want[i].card, .mat = mat, .kept = kept, .path = PATH_PACK, .half = true};
            const struct lowering b = {.l = &l, .m = m};
            const enum path path = path_of(&b, want[i].weight, 2);
            if (path != (m > want[i].most ? PATH_HALF : PATH_PACK) &&
                (m <= want[i].most || m > want[i].close))
                fail_msg("line %zu, %u rows: path %d", i, m, path);
        }
    }
}

/* One row by the short kernel, but where its input or its results need more. */
static void test_choose_row(void **state)
{
    (void)state;
    static const struct gemm_in in[] = {{.x = here},
                                        {.x = here, .norm.kind = NORM_RMS},
                                        {.x = here, .norm = {.kind = NORM_RMS, .b = here}},
                                        {.x = here, .norm.kind = NORM_LAYER},
                                        {.x = here, .gate.gate = here},
                                        {.x = here, .parts.part = here}};
    for (uint32_t i = 0; i < 7; i++) {
        struct pass_test t;
        start(&t, 1);
        struct launch *l = put_product(&t, FMT_Q4_K_TILE, there);
        l->a.gemm.in = in[i % 6];
        l->a.gemm.conv.w = i == 6 ? here : NULL;
        pass_choose_kernels(&t.l, &t.c, &t.list);
        assert_int_equal(l->kernel, i < 2 ? K_GEMM_ROW : K_GEMM_ROW_ANY);
        launch_free(&t.list);
    }
}

/* Rows that are too long for the kernel that norms are packed by the other one, and never by a product itself. */
static void test_long_rows(void **state)
{
    (void)state;
    struct mat mat[2] = {{0}, {.fmt = FMT_Q4_K_TILE, .n = 64, .k = 65536, .count = 1}};
    struct pass_test t;
    for (uint32_t rows = 1; rows <= 2; rows++) {
        start(&t, rows);
        float *buffer[3] = {NULL, here, there};
        uint32_t width[3] = {0, mat[1].k, mat[1].n};
        struct err e = {0};
        t.ops[0] =
            (struct op){.kind = OP_OUT,
                        .out = {.in = {1, 0}, .linear = {.weight = 1}, .tail = {.scale = 1, .out = {2, 0}}}};
        t.plan.count = 1;
        t.at.buffer = buffer;
        t.at.pack = packed;
        t.l.width = width;
        t.l.mat = mat;
        const struct step_class c = lower_class(&t.l, rows, 0);
        assert_int_equal(lower_plan(&t.l, &c, &t.list, &e), 0);
        assert_int_equal(t.list.count, 2);
        assert_int_equal(t.list.all[0].kernel, K_ACT_PACK);
        assert_null(t.list.all[1].a.gemm.in.x);
        launch_free(&t.list);
    }
}

/* Steps of one class share a list: bound to fewer rows than the class may have it launches for those alone. */
static void test_classes(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    struct paper_card c = {0};
    struct kv_config kv = {.type = DTYPE_F16, .page_tokens = 16, .pages = {1}};
    const struct operand x = begin(&f);
    add_attention(&f, x, 0, none);
    add_experts(&f, x);
    end(&f, x);
    assert_int_equal(profile_stored("H200", &c.profile, &e), 0);
    const struct device_shape shape = {.kv = &kv, .rows = 1024, .seqs = 64, .outs = 64};
    if (paper_open(&c, &f.plan, &f.weights, &shape, false, &e))
        fail_msg("%s", e.text);
    struct launch_list list = {0};
    const struct launch_limits limits = {.card = &c.profile, .part_floats = c.at.part_floats};
    for (uint32_t rows = 1; rows <= 1024; rows++) {
        struct launch_step s;
        const struct step_class class = paper_step(&c, rows, rows, rows > 64, &s);
        assert_true(class.rows >= rows && class.rows < rows + 32);
        assert_int_equal(lower_class(&c.lower, class.rows, class.outs).rows, class.rows);
        assert_int_equal(lower_plan(&c.lower, &class, &list, &e), 0);
        uint32_t products = 0, experts = 0;
        for (uint32_t i = 0; i < list.count; i++) {
            struct launch *l = &list.all[i];
            launch_bind(l, &s, &limits);
            if (l->args == ARGS_GEMM && l->op == 1)
                products += l->a.gemm.m;
            if (l->args == ARGS_COMBINE || l->kernel == K_MOE_DOWN)
                experts += l->kernel == K_MOE_DOWN ? l->grid.y : l->a.combine.m;
        }
        assert_int_equal(products, rows <= PACK_ROWS_MOST ? rows : 0); /* more go to cuBLASLt */
        assert_int_equal(experts, rows);
    }
    launch_free(&list);
    paper_free(&c);
    drop(&f);
}

/* Recurrences go in chunks where sequences have many rows; not those beside them that have few, nor what chunks cannot
 * do. */
static void test_chunks(void **state)
{
    (void)state;
    const struct {
        uint8_t chunks, delta, each;
        uint32_t k_dim, v_dim, want[3]; /* kernels + 1 */
    } cases[] = {{0, 1, 0, 128, 128, {K_SCAN + 3 + 1}},
                 {1, 1, 0, 128, 128, {K_SCAN_READY + 3 + 1, K_SCAN_FOLLOW + 3 + 1}},
                 {1, 0, 0, 64, 48, {K_SCAN_READY + 1, K_SCAN_FOLLOW + 1}},
                 {2, 1, 0, 64, 64, {K_SCAN_READY + 2 + 1, K_SCAN_FOLLOW + 2 + 1, K_SCAN + 2 + 1}},
                 {1, 1, 0, 136, 128, {K_SCAN + 4 + 1}},
                 {1, 1, 0, 64, 24, {K_SCAN + 2 + 1}},
                 {1, 1, 1, 128, 128, {K_SCAN_EACH + 3 + 1}}};
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof *cases); i++) {
        const size_t at = i / 2;
        const bool exact = i % 2;
        struct pass_test t;
        start(&t, 128);
        float *buffer[3] = {NULL, here, there};
        const struct mat mat[2] = {{0}, {.base = packed, .n = 1, .k = 4, .stride = 16}};
        uint32_t width[3] = {0, 4096, 4096}, found[3] = {0};
        struct err e = {0};
        t.ops[0] = (struct op){.kind = OP_SCAN,
                               .scan = {.q = {1, 0},
                                        .k = {1, 0},
                                        .v = {1, 0},
                                        .decay = {1, 0},
                                        .write = {cases[at].delta ? 1 : 0, 0},
                                        .out = {2, 0},
                                        .heads = 4,
                                        .k_heads = 2,
                                        .k_dim = cases[at].k_dim,
                                        .v_dim = cases[at].v_dim,
                                        .delta = cases[at].delta,
                                        .k_norm = {.kind = NORM_RMS, .heads = 2},
                                        .decay_each = cases[at].each,
                                        .decay_kind = DECAY_EXP,
                                        .a = 1,
                                        .state = 1}};
        t.plan.count = 1;
        t.at.buffer = buffer;
        t.at.chunks = packed;
        t.l.width = width;
        t.l.mat = mat;
        t.l.path = exact ? PATH_FLOAT : PATH_PACK;
        t.c.to = 1;
        t.c.chunks = cases[at].chunks;
        assert_int_equal(lower_plan(&t.l, &t.c, &t.list, &e), 0);
        assert_in_range(t.list.count, 1, 3);
        const struct launch_step s = {.meta = {.rows = 100, .seqs = 2}};
        for (uint32_t j = 0; j < t.list.count; j++) {
            struct launch *l = &t.list.all[j];
            found[j] = l->kernel + 1u;
            launch_bind(l, &s, &(struct launch_limits){0});
            if (l->kernel < K_SCAN_READY || l->kernel >= K_SCAN_FOLLOW)
                assert_int_equal(l->grid.y, 2);
            else
                assert_int_equal(l->grid.x, 4);
            if (l->kernel < K_SCAN_READY)
                assert_int_equal(l->a.scan.rows_most, j ? CHUNK_LEAST - 1 : UINT32_MAX);
        }
        if (exact) {
            assert_int_equal(t.list.count, 1);
            assert_in_range(found[0] - 1, K_SCAN, K_SCAN_READY - 1);
        } else {
            assert_memory_equal(found, cases[at].want, sizeof found);
        }
        launch_free(&t.list);
    }
}

/* Chunks of sequences have numbers of their own, within the room for them. */
static void test_chunk_numbers(void **state)
{
    (void)state;
    for (uint32_t first = 0; first < 200; first++)
        for (uint32_t rows = CHUNK_LEAST; rows < 400; rows++) {
            const uint32_t behind = first / CHUNK_LEAST + gpu_blocks(rows, CHUNK_ROWS);
            assert_true(behind <= (first + rows) / CHUNK_LEAST);
        }
}

/* A router that sees another input than the experts do. */
static void test_router_input(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) { /* with a norm of its own, and without */
        const bool exact = way & 1;
        struct fixture f;
        struct err e = {0};
        struct paper_card c = {0};
        struct kv_config kv = {.type = DTYPE_F16, .page_tokens = 16, .pages = {1}};
        const struct operand x = begin(&f), seen = plan_buffer(&f.plan, WIDTH);
        add_experts(&f, x);
        f.plan.ops[1].moe.router_in = seen;
        if (way & 2)
            f.plan.ops[1].moe.router_norm = rms(&f, WIDTH);
        end(&f, x);
        assert_int_equal(profile_stored("H200", &c.profile, &e), 0);
        const struct device_shape shape = {.kv = &kv, .rows = 64, .seqs = 64, .outs = 64};
        if (paper_open(&c, &f.plan, &f.weights, &shape, exact, &e))
            fail_msg("%s", e.text);
        for (uint32_t rows = 1; rows <= 64; rows += 21) {
            struct launch_list list = {0};
            struct launch_step s;
            const struct step_class class = paper_step(&c, rows, rows, false, &s);
            assert_int_equal(lower_plan(&c.lower, &class, &list, &e), 0);
            uint32_t routers = 0, of_seen = 0;
            for (uint32_t i = 0; i < list.count; i++) {
                const struct launch *l = &list.all[i];
                routers += l->args == ARGS_ROUTER;
                of_seen += (l->args == ARGS_ROUTER && l->a.router.x == c.at.buffer[seen.buffer]) ||
                           (l->args == ARGS_PACK && l->a.pack.x == c.at.buffer[seen.buffer]);
            }
            assert_int_equal(of_seen, 1);
            assert_int_equal(routers, !exact);
            launch_free(&list);
        }
        paper_free(&c);
        drop(&f);
    }
}

/* cuBLASLt gets weights that lie side by side as one: those that fit together into the room for decoded ones, and copies. */
static void test_join_halves(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    struct paper_card c = {0};
    struct kv_config kv = {.type = DTYPE_F16, .page_tokens = 16, .pages = {1}};
    struct kept_weight kept[64] = {{0}};
    const struct operand x = begin(&f);
    add_attention(&f, x, 0, none);
    add_ffn(&f, x, none);
    end(&f, x);
    const struct op_qkv *q = &f.plan.ops[1].qkv;
    assert_int_equal(profile_stored("H200", &c.profile, &e), 0);
    const struct device_shape shape = {.kv = &kv, .rows = 1024, .seqs = 64, .outs = 64};
    if (paper_open(&c, &f.plan, &f.weights, &shape, false, &e))
        fail_msg("%s", e.text);
    assert_in_range(q->v.weight, 1, 63);
    for (int way = 0; way < 3; way++) { /* nothing is kept; copies side by side; a gap in front of V's */
        const uint64_t q_n = HEADS * DIM, k_n = KV_HEADS * DIM;
        uint16_t *at = (uint16_t *)(1ull << 50);
        kept[q->q.weight].values = at;
        kept[q->k.weight].values = at + q_n * WIDTH;
        kept[q->v.weight].values = at + (q_n + k_n) * WIDTH + (way == 2 ? 32 : 0);
        c.lower.kept = way ? kept : NULL;
        const uint32_t rows[] = {KEPT_SMALL_LEAST, 128, 512};
        const uint32_t want[3][3] = {{0, 0, 1}, {0, 1, 1}, {0, 2, 2}};
        for (int r = 0; r < 3; r++) {
            struct launch_list list = {0};
            struct launch_step s;
            const struct step_class class = paper_step(&c, rows[r], rows[r], true, &s);
            assert_int_equal(lower_plan(&c.lower, &class, &list, &e), 0);
            uint32_t products = 0, outputs = 0;
            for (uint32_t i = 0; i < list.count; i++)
                if (list.all[i].args == ARGS_BLAS && list.all[i].op == 1) {
                    products++;
                    outputs += list.all[i].a.blas.n;
                }
            assert_int_equal(products, want[way][r]);
            assert_int_equal(outputs, products ? q_n + 2 * k_n : 0);
            launch_free(&list);
        }
    }
    paper_free(&c);
    drop(&f);
}

/* cuBLASLt is called with few numbers of rows, within the room that there is for rows of a step, and for results. */
static void test_blas_rows(void **state)
{
    (void)state;
    const struct {
        uint8_t of;
        uint32_t m, list, room, most, want, outs;
    } cases[] = {{ROWS_STEP, 75, 75, 2048, UINT32_MAX, 80, 0},
                 {ROWS_STEP, 75, 75, 76, UINT32_MAX, 76, 0},
                 {ROWS_STEP, 75, 75, 2048, 75, 75, 0},
                 {ROWS_STEP, 75, 75, 0, UINT32_MAX, 75, 0},
                 {ROWS_STEP, 130, 2048, 2048, UINT32_MAX, 192, 0},
                 {ROWS_STEP, 513, 2048, 2048, UINT32_MAX, 640, 0},
                 {ROWS_STEP, 2000, 2048, 2000, UINT32_MAX, 2000, 0},
                 {ROWS_RESULTS, 75, 77, 2048, UINT32_MAX, 77, 0},
                 {ROWS_RESULTS, 75, 128, 2048, UINT32_MAX, 80, 0},
                 {ROWS_RESULTS, 75, 128, 2048, UINT32_MAX, 80, 128},
                 {ROWS_RESULTS, 33, 64, 2048, UINT32_MAX, 36, 36}, /* a list is of more than was prepared */
                 {ROWS_RESULTS, 144, 2048, 2048, UINT32_MAX, 144, 144},
                 {ROWS_RESULTS, 129, 2048, 2048, UINT32_MAX, 144, 144}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct launch l = {.kernel = LAUNCH_BLAS,
                           .args = ARGS_BLAS,
                           .m = cases[i].list,
                           .rows = {.of = cases[i].of, .most = cases[i].most}};
        const struct launch_step s = {.meta = {.rows = cases[i].m, .outs = cases[i].m}};
        const struct launch_limits limits = {.rows = cases[i].room, .outs = cases[i].outs};
        launch_bind(&l, &s, &limits);
        assert_int_equal(l.a.blas.m, cases[i].want);
    }
}

/* A part of a plan that has the head alone: nothing else has counted room for decoded weights. */
static void test_head_alone(void **state)
{
    (void)state;
    struct lowered t = {0};
    uint32_t decoded = 0;
    const struct kv_config kv = {.type = DTYPE_F16, .page_tokens = 16};
    end(&t.f, begin(&t.f));
    open_on(&t, "H200", &(struct device_shape){&kv, 256, 256, 256}, false);
    lower_step(&t, 256, false);
    for (uint32_t i = 0; i < t.list.count; i++)
        if (t.list.all[i].args == ARGS_DEQUANT) {
            const struct dequant_args *d = &t.list.all[i].a.dequant;
            assert_in_range(2ull * d->rows * d->kp, 1, t.c.at.decoded_bytes);
            decoded++;
        }
    assert_true(decoded > 0);
    close_lowered(&t);
}

/* Rows are a dimension of grids that has 65,535 blocks at most. */
static void test_most_rows(void **state)
{
    (void)state;
    for (uint32_t rows = 65535; rows <= 65536; rows++) {
        struct fixture f;
        struct err e = {0};
        struct paper_card c = {0};
        const struct kv_config kv = {.type = DTYPE_F16, .page_tokens = 16, .pages = {1}};
        const struct device_shape shape = {&kv, rows, 1, 1};
        const struct operand x = begin(&f);
        add_attention(&f, x, 0, none);
        f.plan.ops[2].attn.causal = false;
        end(&f, x);
        assert_int_equal(profile_stored("H200", &c.profile, &e), 0);
        assert_int_equal(paper_open(&c, &f.plan, &f.weights, &shape, false, &e), rows > 65535 ? -1 : 0);
        paper_free(&c);
        drop(&f);
    }
}

/* What an operation has and no kernel knows is refused, not left out. */
static void test_refuses(void **state)
{
    (void)state;
    const struct norm slices = {.kind = NORM_RMS, .heads = 8};
    struct op o = {.kind = OP_SCAN, .scan.k_norm = {.kind = NORM_LAYER, .bias = 1}};
    assert_non_null(lower_refuses(&o));
    o = (struct op){.kind = OP_SCAN, .scan = {.decay_each = true, .decay_kind = DECAY_FIXED}};
    assert_non_null(lower_refuses(&o)); /* there is no row of decays to read */
    o = (struct op){.kind = OP_LATENT, .latent.rope = {.kind = ROPE_PAIRS, .axes = true}};
    assert_non_null(lower_refuses(&o));
    o = (struct op){.kind = OP_QKV, .qkv = {.clamp = 6, .q_norm = {.kind = NORM_LAYER}}};
    assert_non_null(lower_refuses(&o)); /* its numbers would be of what was not clipped */
    o.qkv.clamp_last = true;
    assert_null(lower_refuses(&o));
    o = (struct op){.kind = OP_FFN, .ffn.norm = slices};
    assert_non_null(lower_refuses(&o));
    o = (struct op){.kind = OP_FFN, .ffn.tail.after = slices};
    assert_non_null(lower_refuses(&o));
    o = (struct op){.kind = OP_OUT, .out.norm = slices};
    assert_null(lower_refuses(&o));
    const struct norm_args biased = {.kind = NORM_RMS, .heads = 8, .b = here};
    assert_int_equal(gate_launches(1, biased, FMT_Q4_K_TILE), 2);
}

/* Rows without a head are scaled and capped, too. */
static void test_rows_out(void **state)
{
    (void)state;
    struct lowered t = {0};
    uint32_t finished = 0;
    const struct kv_config kv = {.type = DTYPE_F16, .page_tokens = 16};
    const struct operand x = begin(&t.f);
    plan_add(&t.f.plan, OP_LOGITS, UINT32_MAX)->logits =
        (struct op_logits){.in = x, .scale = 1, .softcap = 30};
    t.f.plan.out_width = WIDTH;
    open_on(&t, "H200", &(struct device_shape){&kv, 4, 4, 4}, false);
    lower_step(&t, 4, false);
    for (uint32_t i = 0; i < t.list.count; i++)
        finished += t.list.all[i].args == ARGS_FINISH && t.list.all[i].a.finish.softcap == 30;
    assert_int_equal(finished, 1);
    close_lowered(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),           cmocka_unit_test(test_window),
        cmocka_unit_test(test_refuses),         cmocka_unit_test(test_rows_out),
        cmocka_unit_test(test_head_alone),      cmocka_unit_test(test_most_rows),
        cmocka_unit_test(test_experts),         cmocka_unit_test(test_latent),
        cmocka_unit_test(test_sides),           cmocka_unit_test(test_merge_products),
        cmocka_unit_test(test_pair_activation), cmocka_unit_test(test_row_input),
        cmocka_unit_test(test_join_parts),      cmocka_unit_test(test_gate_input),
        cmocka_unit_test(test_conv_results),    cmocka_unit_test(test_pack_once),
        cmocka_unit_test(test_finish_heads),    cmocka_unit_test(test_scales_apart),
        cmocka_unit_test(test_attention_packs), cmocka_unit_test(test_direct_results),
        cmocka_unit_test(test_cut_rows),        cmocka_unit_test(test_choose_kernels),
        cmocka_unit_test(test_paths),           cmocka_unit_test(test_choose_row),
        cmocka_unit_test(test_long_rows),       cmocka_unit_test(test_classes),
        cmocka_unit_test(test_scratch),         cmocka_unit_test(test_join_halves),
        cmocka_unit_test(test_sum_rows),        cmocka_unit_test(test_router_input),
        cmocka_unit_test(test_tiles_there),     cmocka_unit_test(test_early_reads_of_experts),
        cmocka_unit_test(test_combine_rows),    cmocka_unit_test(test_sorts),
        cmocka_unit_test(test_blas_rows),       cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_chunk_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
