/* Plans: building, the check that protects devices, prices and print. */
#include "test.h"

#include "base/buf.h"
#include "codec/dtype.h"
#include "device/plan.h"

#include <math.h>
#include <string.h>

static float storage[1 << 14]; /* what all weights point to: nothing here computes */

struct fixture {
    struct plan p;
    struct weights w;
};

static weight_id matrix(struct fixture *f, uint32_t rows, uint32_t cols, uint32_t count)
{
    struct weight one = {.name = "m", .type = DTYPE_F32, .rows = rows, .cols = cols, .count = count};
    one.data = (const uint8_t *)storage;
    one.row_bytes = cols * sizeof(float);
    one.each_bytes = rows * one.row_bytes;
    return weights_add(&f->w, &one);
}

static struct linear product(struct fixture *f, uint32_t rows, uint32_t cols, uint32_t count)
{
    return (struct linear){.weight = matrix(f, rows, cols, count), .bias = matrix(f, 1, rows, count)};
}

static struct norm rms(struct fixture *f, uint32_t n)
{
    return (struct norm){.kind = NORM_RMS, .weight = matrix(f, 1, n, 1), .eps = 1e-6f};
}

enum { W = 32, HEADS = 4, KV = 2, K = 16, V = 8, VOCAB = 50, FF = 64, EXPERTS = 6, L = 24, R = 8, NOPE = 12 };
enum { AT_EMBED, AT_QKV, AT_ATTN, AT_OUT, AT_FFN, AT_LATENT, AT_LATENT_ATTN, AT_HEADS, AT_MOE, AT_LOGITS };

static void add_latent(struct fixture *f, struct operand x)
{
    struct plan *p = &f->p;
    struct operand q = plan_buffer(p, HEADS * (L + R)), a = plan_buffer(p, HEADS * L),
                   y = plan_buffer(p, HEADS * V);
    plan_kv(p, 1, (struct kv_group){.kv_heads = 1, .k_dim = L + R, .v_dim = 0});
    struct op_latent o = {
        .in = x, .out = q, .heads = HEADS, .nope = NOPE, .latent = L, .layer = 1, .norm = rms(f, W)};
    o.q_a = product(f, 20, W, 1);
    o.q_norm = rms(f, 20);
    o.q_b = product(f, HEADS * (NOPE + R), 20, 1);
    o.kv_a = product(f, L + R, W, 1);
    o.kv_norm = rms(f, L);
    o.k_b = matrix(f, L, NOPE, HEADS);
    o.rope = (struct rope){.kind = ROPE_PAIRS, .dims = R, .freqs = matrix(f, 1, R / 2, 1), .factor = 1};
    plan_add(p, OP_LATENT, 1)->latent = o;
    plan_add(p, OP_ATTN, 1)->attn = (struct op_attn){.in = q,
                                                     .out = a,
                                                     .heads = HEADS,
                                                     .kv_heads = 1,
                                                     .k_dim = L + R,
                                                     .v_dim = L,
                                                     .layer = 1,
                                                     .scale = 1,
                                                     .causal = true,
                                                     .v_in_k = true};
    plan_add(p, OP_HEADS, 1)->heads = (struct op_heads){.in = a, .out = y, .weight = matrix(f, V, L, HEADS)};
}

static void add_moe(struct fixture *f, struct operand x)
{
    struct op_moe m = {
        .in = x, .norm = rms(f, W), .act = ACT_SILU, .experts = EXPERTS, .used = 2, .weight_scale = 1};
    m.router = product(f, EXPERTS, W, 1);
    m.gate = product(f, FF, W, EXPERTS);
    m.up = product(f, FF, W, EXPERTS);
    m.down = product(f, W, FF, EXPERTS);
    m.select_bias = matrix(f, 1, EXPERTS, 1);
    m.groups = 3;
    m.groups_used = 2;
    m.gating = GATING_SIGMOID;
    m.shared_gate = product(f, FF, W, 1);
    m.shared_up = product(f, FF, W, 1);
    m.shared_down = product(f, W, FF, 1);
    m.shared_router = matrix(f, 1, W, 1);
    m.tail = (struct tail){.scale = 1, .residual = x, .out = x};
    plan_add(&f->p, OP_MOE, 1)->moe = m;
}

/* One operation of every kind. */
static void build(struct fixture *f)
{
    struct plan *p = &f->p;
    memset(f, 0, sizeof *f);
    struct operand x = plan_buffer(p, W), q = plan_buffer(p, HEADS * K), y = plan_buffer(p, HEADS * V);
    plan_add(p, OP_EMBED, UINT32_MAX)->embed = (struct op_embed){.table = matrix(f, VOCAB, W, 1),
                                                                 .positions = matrix(f, 99, W, 1),
                                                                 .types = matrix(f, 2, W, 1),
                                                                 .scale = 1,
                                                                 .norm = rms(f, W),
                                                                 .out = x};
    plan_kv(p, 0, (struct kv_group){.kv_heads = KV, .k_dim = K, .v_dim = V, .window = 64});
    plan_add(p, OP_QKV, 0)->qkv = (struct op_qkv){
        .in = x,
        .norm = rms(f, W),
        .q = product(f, HEADS * K, W, 1),
        .k = product(f, KV * K, W, 1),
        .v = product(f, KV * V, W, 1),
        .heads = HEADS,
        .kv_heads = KV,
        .k_dim = K,
        .v_dim = V,
        .out = q,
        .q_norm = {.kind = NORM_RMS, .weight = matrix(f, 1, K, 1), .heads = HEADS},
        .k_norm = rms(f, KV * K),
        .rope = {.kind = ROPE_HALVES, .dims = 8, .first = 8, .freqs = matrix(f, 1, 4, 1), .factor = 1}};
    plan_add(p, OP_ATTN, 0)->attn = (struct op_attn){.in = q,
                                                     .out = y,
                                                     .heads = HEADS,
                                                     .kv_heads = KV,
                                                     .k_dim = K,
                                                     .v_dim = V,
                                                     .window = 64,
                                                     .scale = 1,
                                                     .sinks = matrix(f, 1, HEADS, 1),
                                                     .causal = true};
    plan_add(p, OP_OUT, 0)->out =
        (struct op_out){.in = y,
                        .linear = product(f, W, HEADS * V, 1),
                        .tail = {.scale = 1, .residual = x, .out = x, .post = rms(f, W), .after = rms(f, W)}};
    plan_add(p, OP_FFN, 0)->ffn = (struct op_ffn){.in = x,
                                                  .norm = rms(f, W),
                                                  .gate = product(f, FF, W, 1),
                                                  .up = product(f, FF, W, 1),
                                                  .down = product(f, W, FF, 1),
                                                  .act = ACT_GELU,
                                                  .tail = {.scale = 1, .residual = x, .out = x}};
    add_latent(f, x);
    add_moe(f, x);
    plan_add(p, OP_LOGITS, UINT32_MAX)->logits =
        (struct op_logits){.in = x, .norm = rms(f, W), .head = product(f, VOCAB, W, 1), .scale = 1};
    p->out_width = VOCAB;
    assert_false(p->failed);
}

static void drop(struct fixture *f)
{
    plan_free(&f->p);
    weights_free(&f->w);
}

static void test_good(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    build(&f);
    if (plan_check(&f.p, &f.w, &e))
        fail_msg("%s", e.text);
    assert_int_equal(f.p.count, AT_LOGITS + 1);
    assert_int_equal(f.p.groups, 2);
    assert_int_equal(f.p.kv[1].group, 1);
    drop(&f);
}

/* Every number of an operation, made wrong in turn, is found: these are the fields, and a value each. */
#define BAD(at, field, value)                                                                                \
    do {                                                                                                     \
        struct fixture f;                                                                                    \
        struct err e = {0};                                                                                  \
        build(&f);                                                                                           \
        f.p.ops[at].field = value;                                                                           \
        if (!plan_check(&f.p, &f.w, &e))                                                                     \
            fail_msg("%s = %s passed", #field, #value);                                                      \
        assert_true(e.code == ERR_DATA && strlen(e.text) > 20);                                              \
        drop(&f);                                                                                            \
    } while (0)

static void test_bad_attention(void **state)
{
    (void)state;
    BAD(AT_QKV, kind, (enum op_kind)99);
    BAD(AT_QKV, qkv.in.buffer, 0);
    BAD(AT_QKV, qkv.in.buffer, 99);
    BAD(AT_QKV, qkv.in.col, 1);
    BAD(AT_QKV, qkv.in.col, UINT32_MAX);
    BAD(AT_QKV, qkv.out.buffer, 1);
    BAD(AT_QKV, qkv.q.weight, 0);
    BAD(AT_QKV, qkv.k.weight, 9999);
    BAD(AT_QKV, qkv.v.bias, 1);
    BAD(AT_QKV, qkv.heads, 3);
    BAD(AT_QKV, qkv.heads, 0);
    BAD(AT_QKV, qkv.heads, 0x80000000u);
    BAD(AT_QKV, qkv.kv_heads, 0);
    BAD(AT_QKV, qkv.k_dim, 2048);
    BAD(AT_QKV, qkv.v_dim, 0);
    BAD(AT_QKV, qkv.layer, 1);
    BAD(AT_QKV, qkv.layer, 1000);
    BAD(AT_QKV, qkv.clamp, NAN);
    BAD(AT_QKV, qkv.norm.kind, (enum norm_kind)7);
    BAD(AT_QKV, qkv.norm.eps, NAN);
    BAD(AT_QKV, qkv.norm.heads, 5);
    BAD(AT_QKV, qkv.q_norm.heads, 2);
    BAD(AT_QKV, qkv.k_norm.weight, 1);
    BAD(AT_QKV, qkv.rope.dims, 7);
    BAD(AT_QKV, qkv.rope.dims, 12);
    BAD(AT_QKV, qkv.rope.first, 9);
    BAD(AT_QKV, qkv.rope.first, UINT32_MAX);
    BAD(AT_QKV, qkv.rope.freqs, 0);
    BAD(AT_QKV, qkv.rope.factor, INFINITY);
    BAD(AT_QKV, qkv.rope.kind, (enum rope_kind)5);
    BAD(AT_ATTN, attn.in.col, 1);
    BAD(AT_ATTN, attn.out.buffer, 2);
    BAD(AT_ATTN, attn.v_dim, 16);
    BAD(AT_ATTN, attn.kv_heads, 4);
    BAD(AT_ATTN, attn.window, 0);
    BAD(AT_ATTN, attn.window, 65);
    BAD(AT_ATTN, attn.causal, false);
    BAD(AT_ATTN, attn.scale, NAN);
    BAD(AT_ATTN, attn.sinks, 1);
    BAD(AT_ATTN, attn.layer, 7);
    BAD(AT_ATTN, attn.v_in_k, true);
    BAD(AT_LATENT, latent.heads, 5);
    BAD(AT_LATENT, latent.nope, 13);
    BAD(AT_LATENT, latent.latent, 25);
    BAD(AT_LATENT, latent.latent, UINT32_MAX - 7);
    BAD(AT_LATENT, latent.k_b, 1);
    BAD(AT_LATENT, latent.rope.first, 1);
    BAD(AT_LATENT, latent.q_a.weight, 0);
    BAD(AT_LATENT, latent.layer, 0);
    BAD(AT_LATENT_ATTN, attn.v_dim, L + R + 1);
    BAD(AT_HEADS, heads.weight, 0);
    BAD(AT_HEADS, heads.in.buffer, 1);
    BAD(AT_HEADS, heads.out.buffer, 99);
}

static void test_bad_products(void **state)
{
    (void)state;
    BAD(AT_EMBED, embed.table, 0);
    BAD(AT_EMBED, embed.positions, 9999);
    BAD(AT_EMBED, embed.out.buffer, 0);
    BAD(AT_EMBED, embed.scale, NAN);
    BAD(AT_EMBED, embed.position_offset, UINT32_MAX);
    BAD(AT_OUT, out.linear.weight, 0);
    BAD(AT_OUT, out.in.buffer, 0);
    BAD(AT_OUT, out.tail.out.buffer, 0);
    BAD(AT_OUT, out.tail.residual.col, 5);
    BAD(AT_OUT, out.tail.scale, NAN);
    BAD(AT_OUT, out.tail.post.weight, 9999);
    BAD(AT_FFN, ffn.up.weight, 0);
    BAD(AT_FFN, ffn.gate.weight, 1);
    BAD(AT_FFN, ffn.down.weight, 1);
    BAD(AT_FFN, ffn.act, ACT_SWIGLU_OAI);
    BAD(AT_FFN, ffn.act, (enum act_kind) - 1);
    BAD(AT_MOE, moe.experts, 7);
    BAD(AT_MOE, moe.experts, 0);
    BAD(AT_MOE, moe.used, 7);
    BAD(AT_MOE, moe.used, 0);
    BAD(AT_MOE, moe.groups, 4);
    BAD(AT_MOE, moe.groups_used, 4);
    BAD(AT_MOE, moe.groups_used, 0);
    BAD(AT_MOE, moe.gating, (enum gating_kind)3);
    BAD(AT_MOE, moe.act, ACT_SWIGLU_OAI);
    BAD(AT_MOE, moe.select_bias, 1);
    BAD(AT_MOE, moe.router.weight, 1);
    BAD(AT_MOE, moe.down.bias, 1);
    BAD(AT_MOE, moe.shared_down.weight, 1);
    BAD(AT_MOE, moe.shared_router, 1);
    BAD(AT_MOE, moe.weight_scale, NAN);
    BAD(AT_MOE, moe.side, (enum moe_side)3);
    BAD(AT_MOE, moe.side, (enum moe_side) - 1);
    BAD(AT_MOE, moe.side, MOE_ABOVE);
    BAD(AT_LOGITS, logits.head.weight, 0);
    BAD(AT_LOGITS, logits.in.buffer, 0);
    BAD(AT_LOGITS, logits.softcap, NAN);
}

/* Experts on one side of a border: the tail has no norm, and the shared expert is below. */
static void test_sides(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    build(&f);
    struct op_moe *o = &f.p.ops[AT_MOE].moe;
    const struct norm norm = o->norm;
    o->side = MOE_BELOW;
    assert_int_equal(plan_check(&f.p, &f.w, &e), 0);
    o->tail.post = norm;
    assert_int_equal(plan_check(&f.p, &f.w, &e), -1);
    assert_non_null(strstr(e.text, "side of the experts"));
    o->tail.post = (struct norm){0};
    o->tail.after = norm;
    assert_int_equal(plan_check(&f.p, &f.w, &(struct err){0}), -1);
    o->tail.after = (struct norm){0};
    o->side = MOE_ABOVE;
    o->shared_gate = o->shared_up = o->shared_down = (struct linear){0};
    assert_int_equal(plan_check(&f.p, &f.w, &(struct err){0}), -1);
    o->shared_router = 0;
    assert_int_equal(plan_check(&f.p, &f.w, &(struct err){0}), 0);
    for (uint32_t border = 0; border < 9; border++) {
        const struct moe_range below = moe_range(6, MOE_BELOW, border),
                               above = moe_range(6, MOE_ABOVE, border), all = moe_range(6, MOE_ALL, border);
        assert_int_equal(below.first, 0);
        assert_int_equal(below.end, border < 6 ? border : 6);
        assert_int_equal(above.first, below.end);
        assert_int_equal(above.end, 6);
        assert_true(all.first == 0 && all.end == 6);
    }
    drop(&f);
}

/* Weights that lie about their storage. */
static void test_bad_weights(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        struct fixture f;
        struct err e = {0};
        build(&f);
        struct weight *q = &f.w.all[f.p.ops[AT_QKV].qkv.q.weight],
                      *up = &f.w.all[f.p.ops[AT_MOE].moe.up.weight];
        struct weight *norm = &f.w.all[f.p.ops[AT_QKV].qkv.norm.weight];
        switch (i) {
        case 0:
            q->type = 77;
            break;
        case 1:
            q->type = 4000;
            break;
        case 2:
            q->type = DTYPE_Q4_K;
            break;
        case 3:
            q->rows = 0;
            break;
        case 4:
            q->row_bytes = 8;
            break;
        case 5:
            q->data = NULL;
            break;
        case 6:
            up->each_bytes -= 4;
            break;
        case 7:
            norm->data++;
            break;
        case 8:
            norm->type = DTYPE_F16;
            break;
        default:
            q->cols = 1u << 25;
            break;
        }
        assert_int_equal(plan_check(&f.p, &f.w, &e), -1);
        assert_true(e.code == ERR_DATA && strlen(e.text) > 20);
        drop(&f);
    }
}

static void test_bad_plans(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct fixture f;
        struct err e = {0};
        build(&f);
        if (i == 0)
            f.p.out_width = 0;
        else if (i == 1)
            f.p.count--;
        else if (i == 2)
            f.p.width[1] = 0;
        else if (i == 3)
            f.p.group[0].k_dim = 1 << 20;
        else
            f.p.failed = true;
        assert_int_equal(plan_check(&f.p, &f.w, &e), -1);
        drop(&f);
    }
}

/* Memory that runs out while a plan is built is seen once, at the end. */
static void test_memory(void **state)
{
    (void)state;
    for (long n = 1; n < 40; n++) {
        struct plan p = {0};
        mem_fail_at(n);
        for (uint32_t i = 0; i < 40; i++) {
            plan_buffer(&p, 4 + i);
            plan_add(&p, OP_FFN, i)->ffn.act = ACT_RELU;
            plan_kv(&p, i, (struct kv_group){.kv_heads = 1, .k_dim = 4, .v_dim = 4, .window = i % 3});
        }
        mem_fail_at(0);
        assert_true(p.failed || (p.count == 40 && p.buffers == 41 && p.groups == 3 && p.layers == 40));
        plan_free(&p);
    }
    struct plan p = {0}; /* more geometries than there are groups */
    for (uint32_t i = 0; i <= PLAN_GROUPS_MOST; i++)
        plan_kv(&p, i, (struct kv_group){.kv_heads = i + 1, .k_dim = 4, .v_dim = 4});
    assert_true(p.failed);
    plan_free(&p);
}

static void test_cost(void **state)
{
    (void)state;
    struct fixture f;
    build(&f);
    struct op_cost c = plan_cost(&f.p, &f.w, AT_OUT, (struct step_shape){3, 1, 100});
    assert_true(c.weight_bytes == 4.0 * W * (HEADS * V) + 4 * W && c.flops == 2.0 * 3 * W * HEADS * V);
    c = plan_cost(&f.p, &f.w, AT_ATTN, (struct step_shape){1, 1, 100}); /* its window is 64 */
    assert_true(c.kv_bytes == 2.0 * 64 * KV * (K + V) && c.flops == 2.0 * 64 * HEADS * (K + V));
    c = plan_cost(&f.p, &f.w, AT_ATTN, (struct step_shape){8, 8, 50}); /* each sequence has keys of its own */
    assert_true(c.kv_bytes == 8 * 2.0 * 50 * KV * (K + V) && c.flops == 8 * 2.0 * 50 * HEADS * (K + V));
    c = plan_cost(&f.p, &f.w, AT_LATENT_ATTN, (struct step_shape){1, 1, 100});
    assert_true(c.kv_bytes == 2.0 * 100 * (L + R));
    struct op_cost one = plan_cost(&f.p, &f.w, AT_MOE, (struct step_shape){.rows = 1}),
                   many = plan_cost(&f.p, &f.w, AT_MOE, (struct step_shape){.rows = 1000});
    assert_true(one.weight_bytes < 0.6 * many.weight_bytes);
    assert_true(fabs(many.flops / one.flops - 1000) < 1);
    c = plan_cost(&f.p, &f.w, AT_EMBED, (struct step_shape){.rows = 2});
    assert_true(c.weight_bytes == 2.0 * 2 * 4 * W && c.flops == 0);
    drop(&f);
}

static void test_print(void **state)
{
    (void)state;
    struct fixture f;
    struct buf b = {0};
    build(&f);
    plan_print(&f.p, &f.w, &b);
    assert_false(b.failed);
    size_t lines = 0;
    for (size_t i = 0; i < b.len; i++)
        lines += b.data[i] == '\n';
    assert_int_equal(lines, f.p.count + f.p.groups);
    for (int k = OP_EMBED; k <= OP_LOGITS; k++)
        assert_non_null(strstr(b.data, plan_op_name((enum op_kind)k)));
    assert_non_null(strstr(b.data, "q=64x32:F32"));
    assert_non_null(strstr(b.data, "up=6x64x32:F32"));
    buf_free(&b);
    drop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),        cmocka_unit_test(test_bad_attention),
        cmocka_unit_test(test_sides),       cmocka_unit_test(test_bad_products),
        cmocka_unit_test(test_bad_weights), cmocka_unit_test(test_bad_plans),
        cmocka_unit_test(test_memory),      cmocka_unit_test(test_cost),
        cmocka_unit_test(test_print),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
