/* The pairs of adapters, bound to the products of a plan. */
#include "model/lora.h"

#include "codec/dtype.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "format/gguf.h"
#include "format/jsonread.h"
#include "lang/token/regex.h"
#include "model/arch.h"
#include "model/build.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { LORA_RANK_MOST = 1 << 16 };

/* ---- modules that adapters can change ---- */

enum fused { FUSED_NO, FUSED_QKV, FUSED_GATE_UP };

/* A product of an operation, and what its module is called: alone, and as part of a fused one. */
struct site {
    enum op_kind op;
    size_t weight, adapter;   /* offsets into struct op */
    const char *name, *whole; /* name NULL: as the weight was bound */
    enum fused fused;
    uint32_t part; /* of the fused module */
};

#define LINEAR(field) offsetof(struct op, field.weight), offsetof(struct op, field.adapter)

static const struct site sites[] = {
    {OP_QKV, LINEAR(qkv.q), "attn_q", "attn_qkv", FUSED_QKV, 0},
    {OP_QKV, LINEAR(qkv.k), "attn_k", "attn_qkv", FUSED_QKV, 1},
    {OP_QKV, LINEAR(qkv.v), "attn_v", "attn_qkv", FUSED_QKV, 2},
    {OP_LATENT, LINEAR(latent.q_a), "attn_q_a", NULL, FUSED_NO, 0},
    {OP_LATENT, LINEAR(latent.q_b), "attn_q_b", "attn_q", FUSED_NO, 0},
    {OP_LATENT, LINEAR(latent.kv_a), "attn_kv_a_mqa", NULL, FUSED_NO, 0},
    {OP_OUT, LINEAR(out.linear), NULL, NULL, FUSED_NO, 0},
    {OP_PROJ, LINEAR(proj.linear[0]), NULL, NULL, FUSED_NO, 0},
    {OP_PROJ, LINEAR(proj.linear[1]), NULL, NULL, FUSED_NO, 0},
    {OP_PROJ, LINEAR(proj.linear[2]), NULL, NULL, FUSED_NO, 0},
    {OP_PROJ, LINEAR(proj.linear[3]), NULL, NULL, FUSED_NO, 0},
    {OP_PROJ, LINEAR(proj.linear[4]), NULL, NULL, FUSED_NO, 0},
    {OP_PROJ, LINEAR(proj.linear[5]), NULL, NULL, FUSED_NO, 0},
    {OP_PROJ, LINEAR(proj.linear[6]), NULL, NULL, FUSED_NO, 0},
    {OP_PROJ, LINEAR(proj.linear[7]), NULL, NULL, FUSED_NO, 0},
    {OP_FFN, LINEAR(ffn.gate), "ffn_gate", "ffn_gate_up", FUSED_GATE_UP, 0},
    {OP_FFN, LINEAR(ffn.up), "ffn_up", "ffn_gate_up", FUSED_GATE_UP, 1},
    {OP_FFN, LINEAR(ffn.down), "ffn_down", NULL, FUSED_NO, 0},
    {OP_MOE, LINEAR(moe.router), "ffn_gate_inp", NULL, FUSED_NO, 0},
    {OP_MOE, LINEAR(moe.gate), "ffn_gate_exps", "ffn_gate_up_exps", FUSED_GATE_UP, 0},
    {OP_MOE, LINEAR(moe.up), "ffn_up_exps", "ffn_gate_up_exps", FUSED_GATE_UP, 1},
    {OP_MOE, LINEAR(moe.down), "ffn_down_exps", NULL, FUSED_NO, 0},
    {OP_MOE, LINEAR(moe.shared_gate), "ffn_gate_shexp", "ffn_gate_up_shexp", FUSED_GATE_UP, 0},
    {OP_MOE, LINEAR(moe.shared_up), "ffn_up_shexp", "ffn_gate_up_shexp", FUSED_GATE_UP, 1},
    {OP_MOE, LINEAR(moe.shared_down), "ffn_down_shexp", NULL, FUSED_NO, 0},
    {OP_MOE, offsetof(struct op, moe.shared_router), offsetof(struct op, moe.shared_router_adapter),
     "ffn_gate_inp_shexp", NULL, FUSED_NO, 0},
    {OP_LATENT, offsetof(struct op, latent.k_b), offsetof(struct op, latent.k_b_adapter), "attn_kv_b", NULL,
     FUSED_NO, 0},
    {OP_HEADS, offsetof(struct op, heads.weight), offsetof(struct op, heads.adapter), "attn_kv_b", NULL,
     FUSED_NO, 1},
    {OP_LOGITS, LINEAR(logits.head), "output", NULL, FUSED_NO, 0},
    {OP_EMBED, offsetof(struct op, embed.table), offsetof(struct op, embed.adapter), "token_embd", NULL,
     FUSED_NO, 0},
};

enum { SITES = sizeof sites / sizeof *sites };

static uint32_t site_field(const struct op *op, size_t offset)
{
    uint32_t v;
    memcpy(&v, (const char *)op + offset, sizeof v);
    return v;
}

/* Every product of the plan gets a slot. */
static void lora_number(struct plan *p)
{
    for (uint32_t i = 0; i < p->count; i++)
        for (size_t k = 0; k < SITES; k++)
            if (sites[k].op == p->ops[i].kind && site_field(&p->ops[i], sites[k].weight)) {
                p->slots++;
                memcpy((char *)&p->ops[i] + sites[k].adapter, &p->slots, sizeof p->slots);
            }
}

/* ---- one adapter ---- */

/* The pairs are in terms of its own table of weights until it is attached. */
struct lora {
    struct weights weights;
    struct owned *owned;
    uint64_t bytes;
    uint32_t rank;
    struct lora_pair *pair; /* (slots + 1) */
};

struct lora_reader {
    struct binder b;
    const struct model *m;
    struct lora *to;
    double alpha; /* 0: the scale is 1 */
    bool root;    /* divided by the root of the rank (rsLoRA) */
    json_t *config, *patterns;
    struct regex_run *run;
};

/* The tensors of one module. */
struct lora_source {
    const struct tensor *a, *b, *bias; /* bias: NULL = none */
    const char *parameter;             /* of the module, where PEFT wraps one; NULL = the module itself */
};

static bool lora_is_gguf(const struct lora_reader *l)
{
    return l->b.names.store->kind == STORE_GGUF;
}

/* The module's pair: false where the adapter has none. */
static bool lora_find(struct lora_reader *l, struct tensor_at at, struct lora_source *out)
{
    bool gguf = lora_is_gguf(l), table = !strcmp(at.name, "token_embd");
    const char *a = gguf ? ".weight.lora_a" : table ? ".lora_embedding_A" : ".lora_A.weight";
    const char *b = gguf ? ".weight.lora_b" : table ? ".lora_embedding_B" : ".lora_B.weight";
    *out = (struct lora_source){.a = lookup_find(&l->b.names, at, a), .b = lookup_find(&l->b.names, at, b)};
    if (!gguf)
        out->bias = lookup_find(&l->b.names, at, ".lora_B.bias");
    if (!out->a != !out->b) {
        const struct tensor *one = out->a ? out->a : out->b;
        err_set(l->b.e, ERR_DATA, "the adapter has tensor %s, and not the other one of the pair",
                log_safe(one->name));
        return false;
    }
    return out->a != NULL;
}

static void lora_take(struct lora_reader *l, const struct lora_source *s)
{
    bind_mark(&l->b, s->a);
    bind_mark(&l->b, s->b);
    if (s->bias)
        bind_mark(&l->b, s->bias);
}

/* All numbers of a tensor as floats, for the caller to free. */
static float *lora_floats(struct lora_reader *l, const struct tensor *t)
{
    const struct dtype_info *info = dtype_get(t->type);
    float *out =
        info->decode && t->values % info->block_values == 0 ? mem_alloc(t->values, sizeof *out) : NULL;
    if (out)
        info->decode(t->data, out, t->values);
    else if (!info->decode)
        err_set(l->b.e, ERR_DATA, "tensor %s is of type %s, which does not hold numbers", log_safe(t->name),
                info->name);
    else
        err_memory(l->b.e, "an adapter", t->values * sizeof *out);
    return out;
}

/* Does PEFT's pattern name this module: at its end, after a dot or the whole of it. */
static bool lora_named(struct lora_reader *l, const char *pattern, const char *module)
{
    struct regex *r = NULL;
    size_t at[2], room = strlen(pattern) + 32;
    char *text = mem_alloc(room, 1);
    bool yes = false;
    if (text) {
        snprintf(text, room, "^(?:.*\\.)?(?:%s)$", pattern);
        yes = !regex_open(&r, text, strlen(text), l->b.e) &&
              regex_find(r, l->run, module, strlen(module), 0, at, l->b.e) == 1;
    } else
        err_memory(l->b.e, "a pattern", room);
    regex_close(r);
    mem_free(text);
    return yes;
}

static float lora_scale(struct lora_reader *l, const struct lora_source *s, uint64_t rank)
{
    double alpha = l->alpha;
    const char *name = s->a->name + strlen(l->b.names.wrap), *end = strstr(name, ".base_layer"), *key;
    char module[256];
    json_t *value;
    end = end ? end : strstr(name, ".lora_");
    snprintf(module, sizeof module, "%.*s%s%s", end ? (int)(end - name) : 0, name, s->parameter ? "." : "",
             s->parameter ? s->parameter : "");
    json_object_foreach(l->patterns, key, value)
    {
        if (lora_named(l, key, module)) {
            alpha = json_number_value(value); /* lora_read_peft has checked them */
            break;
        }
    }
    if (lora_is_gguf(l) && alpha == 0)
        return 1;
    return (float)(l->root ? alpha / sqrt((double)rank) : alpha / (double)rank);
}

/* ---- pairs ---- */

/* Which row of a module's B is row i of the product: out of a fused one, and in the order of the container. */
struct order {
    struct slice slice;
    uint32_t head;   /* > 0: rows of each head of this size are in another order */
    bool from_pairs; /* the adapter has pairs side by side, and the model halves */
};

static size_t order_row(const struct order *o, uint32_t i)
{
    if (o->head) {
        uint32_t in = i % o->head, half = o->head / 2;
        i -= in;
        i += o->from_pairs ? in % half * 2 + in / half : in % 2 * half + in / 2;
    }
    return (size_t)(i / o->slice.len) * o->slice.stride + o->slice.first + i % o->slice.len;
}

/* The store is closed before the adapter. */
static const char *lora_name(struct lora_reader *l, const char *name)
{
    size_t n = strlen(name) + 1;
    char *own = bind_memory(&l->b, n);
    return own ? memcpy(own, name, n) : NULL;
}

/* A matrix of `count` (rows, cols) F32 that the adapter owns; the caller fills it. */
static float *lora_matrix(struct lora_reader *l, const char *name, struct shape s, struct weight *w)
{
    *w = (struct weight){
        .name = lora_name(l, name), .type = DTYPE_F32, .rows = s.rows, .cols = s.cols, .count = s.count};
    w->row_bytes = s.cols * sizeof(float);
    w->each_bytes = s.rows * w->row_bytes;
    float *data = bind_memory(&l->b, w->each_bytes * s.count);
    w->data = (const uint8_t *)data;
    return data;
}

static bool lora_rank_fits(struct lora_reader *l, const struct tensor *t, uint64_t rank)
{
    if (rank && rank <= LORA_RANK_MOST)
        return true;
    err_set(l->b.e, ERR_DATA, "tensor %s has a rank of %llu; 1 to %d can be", log_safe(t->name),
            (unsigned long long)rank, LORA_RANK_MOST);
    return false;
}

static weight_id lora_add(struct lora_reader *l, const struct weight *w)
{
    if (l->b.e->code || !w->data)
        return 0;
    weight_id id = weights_add(l->b.weights, w);
    if (!id)
        err_memory(l->b.e, "the table of weights", sizeof *w);
    return id;
}

/* B, transposed, rows in order; and the bias as a last row. */
static weight_id lora_columns(struct lora_reader *l, const struct lora_source *s, const struct order *o,
                              uint32_t rows, uint32_t rank)
{
    struct weight w;
    float *from = lora_floats(l, s->b), *bias = s->bias ? lora_floats(l, s->bias) : NULL;
    float *to = lora_matrix(l, s->b->name, (struct shape){rank + (bias != NULL), rows, 1}, &w);
    for (uint32_t i = 0; from && to && i < rows; i++) {
        size_t row = order_row(o, i);
        for (uint32_t k = 0; k < rank; k++)
            to[(size_t)k * rows + i] = from[row * rank + k];
        if (bias)
            to[(size_t)rank * rows + i] = bias[row];
    }
    mem_free(from);
    mem_free(bias);
    return lora_add(l, &w);
}

/* A plain module, whole or a part of a fused one. */
static struct lora_pair lora_plain(struct lora_reader *l, const struct lora_source *s, const struct order *o,
                                   uint32_t rows, uint32_t cols)
{
    struct lora_pair pair = {0};
    uint32_t all = o->slice.groups * o->slice.stride;
    uint64_t rank = s->a->shape[1];
    lora_take(l, s);
    if (!lora_rank_fits(l, s->a, rank) ||
        bind_check(&l->b, s->a, (struct shape){(uint32_t)rank, cols, 1}) < 0 ||
        bind_check(&l->b, s->b, (struct shape){all, (uint32_t)rank, 1}) < 0 ||
        (s->bias && bind_check(&l->b, s->bias, (struct shape){1, all, 1}) < 0))
        return pair;
    struct weight a = {.name = lora_name(l, s->a->name),
                       .type = s->a->type,
                       .rows = (uint32_t)rank,
                       .cols = cols,
                       .count = 1};
    if (!dtype_get(a.type)->decode || !dtype_row_bytes(a.type, cols, &a.row_bytes)) {
        err_set(l->b.e, ERR_DATA, "tensor %s is of type %s, which is not one for weights",
                log_safe(s->a->name), dtype_get(a.type)->name);
        return pair;
    }
    a.each_bytes = a.row_bytes * a.rows;
    uint8_t *copy = bind_memory(&l->b, a.each_bytes);
    a.data = copy ? memcpy(copy, s->a->data, a.each_bytes) : NULL;
    pair =
        (struct lora_pair){.b = lora_columns(l, s, o, rows, (uint32_t)rank), .scale = lora_scale(l, s, rank)};
    pair.a = lora_add(l, &a);
    return pair;
}

/* The embedding: A becomes a row for every token. */
static struct lora_pair lora_table(struct lora_reader *l, const struct lora_source *s, uint32_t vocab,
                                   uint32_t width)
{
    struct lora_pair pair = {0};
    bool gguf = lora_is_gguf(l);
    uint64_t rank = gguf ? s->a->shape[0] : s->a->shape[1];
    lora_take(l, s);
    if (!lora_rank_fits(l, s->a, rank))
        return pair;
    struct shape lies = {gguf ? vocab : (uint32_t)rank, gguf ? (uint32_t)rank : vocab, 1};
    if (bind_check(&l->b, s->a, lies) < 0 ||
        bind_check(&l->b, s->b, (struct shape){width, (uint32_t)rank, 1}) < 0)
        return pair;
    struct weight w;
    float *from = lora_floats(l, s->a);
    float *to = lora_matrix(l, s->a->name, (struct shape){vocab, (uint32_t)rank, 1}, &w);
    for (uint64_t i = 0; from && to && i < vocab; i++)
        for (uint64_t k = 0; k < rank; k++)
            to[i * rank + k] = gguf ? from[i * rank + k] : from[k * vocab + i];
    mem_free(from);
    struct order whole = {.slice = {NULL, 1, width, 0, width}};
    pair = (struct lora_pair){.b = lora_columns(l, s, &whole, width, (uint32_t)rank),
                              .scale = lora_scale(l, s, rank)};
    pair.a = lora_add(l, &w);
    return pair;
}

/* kv_b of latent attention: W = [K; V] of every head, (heads, nope + v, latent), and W += B A. The plan has K
 * transposed, (latent, nope): there A and B change places. V's pair is as it is. */
static struct lora_pair lora_latent(struct lora_reader *l, const struct lora_source *s,
                                    const struct weight *of, bool values)
{
    const struct hparams *h = l->b.h;
    struct lora_pair pair = {0};
    uint32_t heads = of->count, each = h->nope_dim + h->v_dim, latent = h->kv_lora;
    uint32_t n = values ? h->v_dim : h->nope_dim, first = values ? h->nope_dim : 0;
    uint64_t rank = s->a->shape[1];
    lora_take(l, s);
    if (!lora_rank_fits(l, s->a, rank) ||
        bind_check(&l->b, s->a, (struct shape){(uint32_t)rank, latent, 1}) < 0 ||
        bind_check(&l->b, s->b, (struct shape){heads * each, (uint32_t)rank, 1}) < 0)
        return pair;
    struct weight down, up;
    float *a = lora_floats(l, s->a), *b = lora_floats(l, s->b);
    float *same =
        lora_matrix(l, s->a->name, (struct shape){(uint32_t)rank, latent, heads}, values ? &down : &up);
    float *turned =
        lora_matrix(l, s->b->name, (struct shape){(uint32_t)rank, n, heads}, values ? &up : &down);
    for (uint32_t i = 0; a && b && same && turned && i < heads; i++) {
        memcpy(same + i * rank * latent, a, rank * latent * sizeof *a);
        for (uint64_t k = 0; k < rank; k++)
            for (uint32_t r = 0; r < n; r++)
                turned[(i * rank + k) * n + r] = b[((uint64_t)i * each + first + r) * rank + k];
    }
    mem_free(a);
    mem_free(b);
    pair = (struct lora_pair){.a = lora_add(l, &down), .scale = lora_scale(l, s, rank)};
    pair.b = lora_add(l, &up);
    return pair;
}

/* ---- experts ---- */

/* How the experts of a fused module take turns in its rows. */
struct lora_turn {
    uint32_t first, step, all; /* row i of the product is first + i * step of `all` */
};

/* The positions of expert e's numbers: A[a + r * a_row + k], B[b + n * b_row + r * b_col]. */
struct stack {
    const float *a, *b;
    size_t a_row, b_row, b_col;
    uint32_t rank;
};

/* Copies an expert's numbers into A (rank, K) and the transposed B (rank, N); the rest of the rank stays zero. */
static void lora_expert(const struct stack *s, const struct lora_turn *t, uint32_t n, uint32_t k, float *a,
                        float *b)
{
    for (uint32_t r = 0; r < s->rank; r++) {
        memcpy(a + (size_t)r * k, s->a + r * s->a_row, k * sizeof *a);
        for (uint32_t i = 0; i < n; i++)
            b[(size_t)r * n + i] = s->b[(t->first + (size_t)i * t->step) * s->b_row + r * s->b_col];
    }
}

/* Room for all experts, cleared. */
static bool lora_expert_room(struct lora_reader *l, const struct lora_source *s, const struct weight *of,
                             uint32_t rank, struct weight w[2])
{
    float *a = lora_matrix(l, s->a->name, (struct shape){rank, of->cols, of->count}, &w[0]);
    float *b = a ? lora_matrix(l, s->b->name, (struct shape){rank, of->rows, of->count}, &w[1]) : NULL;
    if (!b)
        return false;
    memset(a, 0, w[0].each_bytes * of->count);
    memset(b, 0, w[1].each_bytes * of->count);
    return true;
}

static float *expert_of(const struct weight *w, uint32_t e)
{
    return (float *)(void *)(uintptr_t)(w->data + e * w->each_bytes);
}

static struct lora_pair lora_pair_of(struct lora_reader *l, const struct weight w[2], float scale)
{
    struct lora_pair pair = {.a = lora_add(l, &w[0]), .scale = scale};
    pair.b = lora_add(l, &w[1]);
    return pair;
}

/* All experts in one pair of tensors: GGUF stacks them, (E, rank, K) and (E, N, rank); PEFT wraps a parameter,
 * (E * rank, K) and (N, rank * E). */
static struct lora_pair lora_stacked(struct lora_reader *l, const struct lora_source *s,
                                     const struct weight *of, const struct lora_turn *t)
{
    uint32_t count = of->count;
    bool gguf = lora_is_gguf(l);
    uint64_t rank = gguf ? s->a->shape[1] : s->a->shape[1] / count;
    struct lora_pair pair = {0};
    struct weight w[2];
    lora_take(l, s);
    if (!lora_rank_fits(l, s->a, rank))
        return pair;
    uint32_t r = (uint32_t)rank;
    struct shape a_is = gguf ? (struct shape){r, of->cols, count} : (struct shape){count * r, of->cols, 1};
    struct shape b_is = gguf ? (struct shape){t->all, r, count} : (struct shape){t->all, r * count, 1};
    if (bind_check(&l->b, s->a, a_is) < 0 || bind_check(&l->b, s->b, b_is) < 0 ||
        !lora_expert_room(l, s, of, r, w))
        return pair;
    float *a = lora_floats(l, s->a), *b = lora_floats(l, s->b);
    for (uint32_t e = 0; a && b && e < count; e++) {
        struct stack one = {.a = a + e * rank * of->cols, .a_row = of->cols, .rank = r};
        one.b = gguf ? b + e * rank * t->all : b + e;
        one.b_row = gguf ? r : (size_t)r * count;
        one.b_col = gguf ? 1 : count;
        lora_expert(&one, t, of->rows, of->cols, expert_of(&w[0], e), expert_of(&w[1], e));
    }
    mem_free(a);
    mem_free(b);
    return lora_pair_of(l, w, lora_scale(l, s, rank));
}

/* A module an expert; some may have none, and ranks may differ. Their scales go into B. */
static struct lora_pair lora_one_by_one(struct lora_reader *l, const char *name, int layer,
                                        const struct weight *of)
{
    uint64_t most = 0;
    struct lora_source s, any = {0};
    struct weight w[2];
    for (uint32_t e = 0; e < of->count; e++)
        if (lora_find(l, (struct tensor_at){name, layer, (int)e}, &s)) {
            any = s;
            most = s.a->shape[1] > most ? s.a->shape[1] : most;
        }
    if (!any.a || !lora_rank_fits(l, any.a, most) || !lora_expert_room(l, &any, of, (uint32_t)most, w))
        return (struct lora_pair){0};
    for (uint32_t e = 0; e < of->count && !l->b.e->code; e++) {
        if (!lora_find(l, (struct tensor_at){name, layer, (int)e}, &s))
            continue;
        uint32_t rank = (uint32_t)s.a->shape[1];
        lora_take(l, &s);
        if (bind_check(&l->b, s.a, (struct shape){rank, of->cols, 1}) < 0 ||
            bind_check(&l->b, s.b, (struct shape){of->rows, rank, 1}) < 0)
            break;
        float *a = lora_floats(l, s.a), *b = lora_floats(l, s.b), scale = lora_scale(l, &s, rank);
        for (size_t i = 0; b && i < (size_t)of->rows * rank; i++)
            b[i] *= scale;
        struct stack one = {.a = a, .b = b, .a_row = of->cols, .b_row = rank, .b_col = 1, .rank = rank};
        struct lora_turn whole = {.step = 1, .all = of->rows};
        if (a && b)
            lora_expert(&one, &whole, of->rows, of->cols, expert_of(&w[0], e), expert_of(&w[1], e));
        mem_free(a);
        mem_free(b);
    }
    return lora_pair_of(l, w, 1);
}

static struct lora_pair lora_experts(struct lora_reader *l, const struct site *at, int layer,
                                     const struct weight *of)
{
    struct lora_source s;
    struct lora_turn whole = {.step = 1, .all = of->rows}, part = {.all = 2 * of->rows, .step = 1};
    bool fused = at->fused == FUSED_GATE_UP, in_turn = l->b.h->act == ACT_SWIGLU_OAI && !lora_is_gguf(l);
    part.first = at->part * (in_turn ? 1 : of->rows);
    part.step = in_turn ? 2 : 1;
    if (lora_find(l, (struct tensor_at){at->name, layer, LOOKUP_NO_EXPERT}, &s))
        return lora_stacked(l, &s, of, &whole);
    if (fused && lora_find(l, (struct tensor_at){at->whole, layer, LOOKUP_NO_EXPERT}, &s))
        return lora_stacked(l, &s, of, &part);
    /* PEFT nests its wrappers, and only the shapes show which parameter belongs to which */
    static const char *const wrappers[] = {"ffn_exps", "ffn_exps_inner"};
    const struct lora_turn *turn = fused ? &part : &whole;
    for (size_t i = 0; i < 2; i++)
        if (lora_find(l, (struct tensor_at){wrappers[i], layer, LOOKUP_NO_EXPERT}, &s) &&
            s.a->shape[0] == of->cols && s.b->shape[1] == turn->all) {
            s.parameter = fused ? "gate_up_proj" : "down_proj";
            return lora_stacked(l, &s, of, turn);
        }
    return lora_one_by_one(l, at->name, layer, of);
}

/* ---- sites ---- */

/* The order of rows where adapter and model come from different containers, of which one turns Q and K. */
static void lora_turn_heads(const struct lora_reader *l, const struct op *op, const struct site *at,
                            struct order *o)
{
    const struct arch *a = l->b.h->arch;
    bool differs = l->b.h->container != l->b.names.store->kind && a->gguf_rope != a->hf_rope && a->hf_rope;
    if (op->kind != OP_QKV || at->part == 2 || !differs)
        return;
    o->head = op->qkv.k_dim;
    o->from_pairs = lora_is_gguf(l);
}

static struct order lora_part(const struct lora_reader *l, const struct op *op, const struct site *at,
                              uint32_t rows)
{
    struct slice s[3] = {{NULL, 1, 2 * rows, 0, rows}, {NULL, 1, 2 * rows, rows, rows}};
    if (at->fused == FUSED_QKV)
        build_qkv_slices(l->b.h, l->b.names.store->kind, &op->qkv, s);
    return (struct order){.slice = s[at->part]};
}

/* Where the weight is some rows of the tensor that the module is: which ones. */
static void lora_slice(const struct bound *b, struct order *o)
{
    const struct matrix *m = &b->m;
    if (b->whole)
        o->slice = (struct slice){NULL, m->rows / m->run, m->stride, m->first, m->run};
}

/* GGUF has rows of some recurrent layers in another order, or scaled: an adapter for the other container would be wrong. */
static bool lora_reordered(const struct lora_reader *l, const struct op *op)
{
    const struct hparams *h = l->b.h;
    bool differs = h->container != l->b.names.store->kind,
         tiled = h->arch->tiled_values && h->ssm.heads != h->ssm.groups;
    return differs && op->layer < h->layers && h->layer[op->layer].recurrent &&
           (tiled || !strcmp(h->arch->name, "falcon-h1"));
}

/* A product whose module has the name that its weight was bound by. */
static struct lora_pair lora_bound(struct lora_reader *l, const struct op *op, const struct weight *of,
                                   const struct bound *b)
{
    struct lora_source s;
    struct order rows = {.slice = {NULL, 1, of->rows, 0, of->rows}};
    bool found =
        b->name && b->whole && lora_find(l, (struct tensor_at){b->whole, b->layer, LOOKUP_NO_EXPERT}, &s);
    if (found)
        lora_slice(b, &rows);
    else
        found = b->name && lora_find(l, (struct tensor_at){b->name, b->layer, LOOKUP_NO_EXPERT}, &s);
    if (found && lora_reordered(l, op)) {
        err_set(l->b.e, ERR_DATA,
                "tensor %s is for a model in the other format, which has it in another order",
                log_safe(s.a->name));
        return (struct lora_pair){0};
    }
    return found && !l->b.e->code ? lora_plain(l, &s, &rows, of->rows, of->cols) : (struct lora_pair){0};
}

static struct lora_pair lora_site(struct lora_reader *l, const struct op *op, const struct site *at)
{
    weight_id id = site_field(op, at->weight);
    struct weight of = l->m->weights.all[id];
    if (op->kind == OP_QKV && op->qkv.given.buffer)
        return (struct lora_pair){0}; /* other operations compute it */
    const struct bound *bound = &l->m->bound[id];
    const bool other = op->kind == OP_FFN && bound->name && !bound->whole && strncmp(bound->name, "ffn_", 4);
    if (!at->name || other) /* RWKV calls its feed-forward otherwise */
        return lora_bound(l, op, &of, bound);
    int layer = op->layer == UINT32_MAX ? LOOKUP_NO_LAYER : (int)op->layer;
    struct lora_source s;
    struct order whole = {.slice = {NULL, 1, of.rows, 0, of.rows}};
    if (op->kind == OP_MOE && of.count > 1)
        return lora_experts(l, at, layer, &of);
    bool found = lora_find(l, (struct tensor_at){at->name, layer, LOOKUP_NO_EXPERT}, &s);
    if (!strcmp(at->name, "attn_kv_b"))
        return found ? lora_latent(l, &s, &of, at->part) : (struct lora_pair){0};
    if (found && op->kind == OP_EMBED)
        return lora_table(l, &s, of.rows, of.cols);
    if (!found && at->whole &&
        (found = lora_find(l, (struct tensor_at){at->whole, layer, LOOKUP_NO_EXPERT}, &s)) && at->fused)
        whole = lora_part(l, op, at, of.rows);
    /* phi3's GGUF calls the module of gate and up ffn_up */
    struct lora_source both;
    if (at->fused == FUSED_GATE_UP &&
        lora_find(l, (struct tensor_at){"ffn_up", layer, LOOKUP_NO_EXPERT}, &both) &&
        both.b->shape[1] == 2ull * of.rows) {
        found = true;
        s = both;
        whole = lora_part(l, op, at, of.rows);
    }
    if (found && bound->whole && !strcmp(bound->whole, at->name))
        lora_slice(bound, &whole); /* q beside its gate */
    lora_turn_heads(l, op, at, &whole);
    return found && !l->b.e->code ? lora_plain(l, &s, &whole, of.rows, of.cols) : (struct lora_pair){0};
}

/* ---- reading ---- */

static int lora_read_gguf(struct lora_reader *l, struct err *e)
{
    const struct gguf *g = l->b.names.store->gguf;
    struct gguf_str type = {0}, kind = {0}, arch = {0};
    const char *known = l->b.h->arch->name;
    if (gguf_get_str(g, "general.type", &type, e) < 0 || gguf_get_str(g, "adapter.type", &kind, e) < 0 ||
        gguf_get_str(g, "general.architecture", &arch, e) < 0 ||
        gguf_get_f64(g, "adapter.lora.alpha", &l->alpha, e) < 0)
        return -1;
    if (type.n != 7 || memcmp(type.s, "adapter", 7) != 0)
        return err_set(e, ERR_DATA, "it is no adapter: general.type is \"%s\", \"adapter\" was expected",
                       log_safe_n(type.s ? type.s : "", type.n));
    if (kind.n != 4 || memcmp(kind.s, "lora", 4) != 0)
        return err_set(e, ERR_DATA, "adapter.type is \"%s\"; only \"lora\" is known",
                       log_safe_n(kind.s ? kind.s : "", kind.n));
    if (arch.n != strlen(known) || memcmp(arch.s, known, arch.n) != 0) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)arch.n, arch.s ? arch.s : "");
        if (arch_by_gguf(name) != l->b.h->arch)
            return err_set(e, ERR_DATA, "the adapter is for architecture %s, and the model is of %s",
                           log_safe(name), known);
    }
    if (gguf_find(g, "adapter.alora.invocation_tokens"))
        return err_set(e, ERR_DATA, "it is an activated adapter (aLoRA), which is not run");
    return 0;
}

/* Settings of PEFT that change the computation and are not supported. */
static int lora_refuse(const json_t *config, struct err *e)
{
    static const char *const no[] = {
        "use_dora",     "use_qalora",  "use_bdlora",       "alora_invocation_tokens",
        "arrow_config", "kasa_config", "layer_replication"};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        const json_t *v = json_object_get(config, no[i]);
        if (v && !json_is_null(v) && !json_is_false(v))
            return err_set(e, ERR_DATA, "adapter_config.json sets %s, and that kind of adapter is not run",
                           no[i]);
    }
    return 0;
}

static int lora_read_peft(struct lora_reader *l, struct err *e)
{
    const char *path = store_beside(l->b.names.store, "adapter_config.json");
    if (!path)
        return err_set(e, ERR_DATA, "there is no adapter_config.json beside the tensors");
    if (!(l->config = jsonread_file(path, &jsonread_config, e)))
        return -1;
    struct jsonread r = {l->config, "adapter_config.json", e};
    const char *type = jsonread_str(&r, l->config, "peft_type?", "LORA"), *pattern;
    if (strcmp(type, "LORA") != 0)
        return err_set(e, ERR_DATA, "adapter_config.json: peft_type is \"%s\"; only LORA is known",
                       log_safe(type));
    l->alpha = jsonread_number(&r, l->config, "lora_alpha", HPARAMS_REAL, 8); /* PEFT's own default */
    l->root = jsonread_bool(&r, l->config, "use_rslora?", false);
    l->patterns = jsonread_get(&r, l->config, "alpha_pattern?", JSONREAD_IS_OBJECT);
    json_t *value;
    json_object_foreach(l->patterns, pattern, value)
    {
        jsonread_member(&r, l->patterns, pattern, JSONREAD_IS_NUMBER);
    }
    if (e->code)
        return -1;
    if (json_object_size(l->patterns) && !(l->run = regex_run_open()))
        return err_memory(e, "a pattern", 0);
    return lora_refuse(l->config, e);
}

/* Refuses tensors that would be ignored. */
static int lora_all_taken(const struct lora_reader *l, struct err *e)
{
    const struct store *s = l->b.names.store;
    for (size_t i = 0; i < s->count; i++) {
        const char *name = s->tensors[i].name;
        if (l->b.used[i])
            continue;
        if (strstr(name, ".base_layer.weight")) { /* PEFT saves the embedding that it adapts, too */
            log_warn("the adapter has a copy of the model's own tensor %s, which is not looked at",
                     log_safe(name));
            continue;
        }
        if (!strstr(name, "lora_"))
            return err_set(
                e, ERR_DATA,
                "tensor %s is a whole tensor in place of the model's (modules_to_save, or a trained "
                "bias); only pairs of lora_A and lora_B can be applied",
                log_safe(name));
        return err_set(e, ERR_DATA, "tensor %s has no place in a model of architecture %s with %u layers",
                       log_safe(name), l->b.h->arch->name, l->b.h->layers);
    }
    return s->count ? 0 : err_set(e, ERR_DATA, "the adapter has no tensors");
}

static int lora_read(struct lora_reader *l, struct err *e)
{
    const struct plan *p = &l->m->plan;
    if (lora_is_gguf(l) ? lora_read_gguf(l, e) : lora_read_peft(l, e))
        return -1;
    lookup_open(&l->b.names, l->b.names.store, lora_is_gguf(l) ? "" : "base_model.model.");
    for (uint32_t i = 0; i < p->count; i++)
        for (size_t k = 0; k < SITES && !e->code; k++) {
            uint32_t slot = site_field(&p->ops[i], sites[k].adapter);
            if (sites[k].op == p->ops[i].kind && site_field(&p->ops[i], sites[k].weight))
                l->to->pair[slot] = lora_site(l, &p->ops[i], &sites[k]);
        }
    return e->code ? -1 : lora_all_taken(l, e);
}

int lora_open(struct lora **out, const struct model *m, const struct store *s, struct err *e)
{
    struct lora *a = mem_zalloc(1, sizeof *a);
    struct lora_reader l = {.m = m, .to = a};
    *out = NULL;
    if (!a || !(a->pair = mem_zalloc(m->plan.slots + 1, sizeof *a->pair))) {
        mem_free(a);
        return err_memory(e, "an adapter", sizeof *a + m->plan.slots * sizeof *a->pair);
    }
    int failed = binder_open(&l.b, s, &m->h, &a->weights, e) || lora_read(&l, e);
    a->owned = l.b.owned;
    a->bytes = l.b.owned_bytes;
    for (uint32_t i = 1; i <= m->plan.slots; i++)
        if (a->pair[i].b && a->weights.all[a->pair[i].b].rows > a->rank)
            a->rank = a->weights.all[a->pair[i].b].rows;
    binder_close(&l.b);
    json_decref(l.config);
    regex_run_close(l.run);
    if (failed) {
        lora_close(a);
        return -1;
    }
    *out = a;
    return 0;
}

uint64_t lora_bytes(const struct lora *a)
{
    return a->bytes;
}

uint32_t lora_most_rank(const struct lora *a)
{
    return a->rank;
}

void lora_close(struct lora *a)
{
    if (!a)
        return;
    weights_free(&a->weights);
    owned_free(a->owned);
    mem_free(a->pair);
    mem_free(a);
}

/* ---- places in a plan ---- */

int lora_reserve(struct model *m, uint32_t places, uint32_t rank, struct err *e)
{
    struct plan *p = &m->plan;
    lora_number(p);
    p->adapters = places;
    p->rank = rank;
    p->lora = arena_alloc(&p->arena, (size_t)(p->slots + 1) * (places + 1), sizeof *p->lora);
    m->lora = mem_zalloc(places + 1, sizeof *m->lora);
    m->own_weights = m->weights.count;
    if (!p->lora || !m->lora || !weights_reserve(&m->weights, 2 * p->slots * places))
        return err_memory(e, "adapters", (uint64_t)p->slots * places * sizeof *p->lora);
    return 0;
}

/* Weights of adapters follow the model's own in its table, which has room for all; a written file does not contain them. */
static weight_id lora_place(struct model *m, uint32_t *from, const struct weight *w)
{
    while (*from < m->weights.count && m->weights.all[*from].data)
        ++*from;
    if (*from == m->weights.count)
        return weights_add(&m->weights, w);
    m->weights.all[*from] = *w;
    return *from;
}

int lora_attach(struct model *m, uint32_t place, struct lora *a, struct err *e)
{
    struct plan *p = &m->plan;
    uint32_t from = m->own_weights;
    m->lora[place] = a;
    for (uint32_t i = 1; i <= p->slots; i++) {
        struct lora_pair *pair = &p->lora[(size_t)i * (p->adapters + 1) + place];
        const struct lora_pair *own = &a->pair[i];
        if (!own->a || !own->b)
            continue;
        *pair = (struct lora_pair){.a = lora_place(m, &from, &a->weights.all[own->a]), .scale = own->scale};
        pair->b = lora_place(m, &from, &a->weights.all[own->b]);
    }
    if (!plan_check(p, &m->weights, e))
        return 0;
    lora_detach(m, place);
    return -1;
}

void lora_detach(struct model *m, uint32_t place)
{
    struct plan *p = &m->plan;
    for (uint32_t i = 1; i <= p->slots; i++) {
        struct lora_pair *pair = &p->lora[(size_t)i * (p->adapters + 1) + place];
        if (pair->a)
            m->weights.all[pair->a] = m->weights.all[pair->b] = (struct weight){0};
        *pair = (struct lora_pair){0};
    }
    lora_close(m->lora[place]);
    m->lora[place] = NULL;
}

int lora_bind(struct model *m, const char *const *paths, uint32_t count, struct err *e)
{
    int failed = lora_reserve(m, count, 0, e);
    for (uint32_t i = 0; i < count && !failed; i++) {
        struct store *s = NULL;
        struct lora *a = NULL;
        struct err own = {0};
        failed = lora_open_store(&s, paths[i], e);
        if (!failed && (lora_open(&a, m, s, &own) || lora_attach(m, i + 1, a, &own)))
            failed = err_set(e, own.code, "adapter %s: %s", log_safe(paths[i]), own.text);
        store_close(s);
    }
    return failed;
}

int lora_open_store(struct store **out, const char *path, struct err *e)
{
    struct stat st;
    char inside[PATH_MAX];
    if (stat(path, &st) || !S_ISDIR(st.st_mode))
        return store_open(out, path, e);
    if (snprintf(inside, sizeof inside, "%s/adapter_model.safetensors", path) >= (int)sizeof inside)
        return err_set(e, ERR_USAGE, "the path of the adapter is too long");
    return store_open(out, inside, e);
}
