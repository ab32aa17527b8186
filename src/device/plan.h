/* The interface between models and devices, upper half: the plan, which a model writes. A model family
 * appends operations to a plan, once; a device runs the plan every step. Nothing in a plan changes from step
 * to step: token ids, positions, page tables and lengths come with the step (device/device.h), so a plan can
 * be replayed unchanged.
 *
 * Operands are {buffer, column}: a buffer holds one row of `width` floats for every row (token) of the batch.
 * Weights and vectors are indices into a weight table; 0 is "none".
 *
 * Ownership: plan and weight table belong to the model; the bytes of the weights to its store (the mapped
 * file) or to its arena (converted ones). Built by one thread, then read-only. */
#pragma once

#include "base/err.h"
#include "base/mem.h"
#include "device/kinds.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A matrix (rows, cols), row-major, blocks of its type along cols; or `count` of them (experts, heads).
 * Vectors (norms, biases, tables of frequencies) are F32 with rows = 1 (biases of experts: count = experts). */
struct weight {
    const char *name;    /* as in the file, for messages */
    uint32_t type;       /* enum dtype */
    uint32_t rows, cols; /* N outputs, K inputs */
    uint32_t count;      /* matrices, at least 1 */
    const uint8_t *data; /* host memory */
    size_t row_bytes;    /* from one row to the next (views: more than the packed size) */
    size_t each_bytes;   /* from one matrix to the next */
};

struct weights {
    struct weight *all; /* all[0] is unused: index 0 means "none" */
    uint32_t count, room;
};

typedef uint32_t weight_id; /* index into struct weights; 0 = none */

/* y = W x + b. `adapter` is the slot of low-rank pairs for this product (plan.lora), 0 = none. */
struct linear {
    weight_id weight, bias;
    uint32_t adapter;
};

/* What an adapter (LoRA) adds to a product: y += scale * B(A x). A is (rank, K); B lies transposed, (rank, N) in
 * F32, so that columns of y have their numbers side by side; it may have one row more, which is added whatever x is.
 * Both have as many matrices as the weight. Of the embedding, A has a row for every token: (vocabulary, rank). */
struct lora_pair {
    weight_id a, b; /* 0: the adapter leaves this product alone */
    float scale;
};

/* RMS: x / sqrt(mean(x^2) + eps) * w.  LAYER: (x - mean) / sqrt(var + eps) * w + b.
 * weight 0: no multiplication. `heads` > 0: applied to each of that many equal slices with the same
 * weight of slice length, or with an own weight per slice where the weight is as long as the row. */
struct norm {
    enum norm_kind kind;
    weight_id weight, bias;
    float eps;
    uint32_t heads;
};

/* All scaling schemes are in the table: angle(i, pos) = pos * freqs[i], cos and sin times `factor`. With a row of
 * frequencies for each axis of a position (step.axes) the angle is the sum over them: M-RoPE, and 2-D rotary positions. */
enum { PLAN_AXES = 3 };
struct rope {
    enum rope_kind kind;
    uint32_t dims;   /* leading dimensions of the head that rotate (even) */
    uint32_t first;  /* first dimension that rotates (latent attention rotates the tail); usually 0 */
    weight_id freqs; /* (dims / 2), or with `axes` (PLAN_AXES, dims / 2), F32: inverse frequencies, scaled */
    bool axes;
    float factor; /* YaRN's and longrope's attention factor; 1 otherwise */
};

struct operand {
    uint32_t buffer; /* index into plan.width; 0 = none */
    uint32_t col;
};

/* What follows a product: out = after(residual + scale * post(y)). Each part may be absent
 * (scale 1). `out` may be the same operand as `residual`. */
struct tail {
    struct norm post, after;
    float scale;
    struct operand residual, out;
};

/* What a product's input is multiplied by: act(in), a number for each of its columns or one for each of `heads`. */
struct gate {
    struct operand in; /* buffer 0: there is none */
    enum act_kind act; /* ACT_NONE: the numbers themselves; any but ACT_SWIGLU_OAI */
    uint32_t heads;    /* 0: a number for each column */
    bool first;        /* before the norm, else after it */
};

enum op_kind {
    OP_EMBED,  /* token ids -> rows */
    OP_QKV,    /* norm, Q/K/V products, bias, q/k norm, RoPE, K and V into the pages */
    OP_LATENT, /* the same for latent attention (deepseek) */
    OP_ATTN,   /* paged attention */
    OP_HEADS,  /* a product per head: y[h] = W[h] x[h] */
    OP_OUT,    /* norm, product, tail */
    OP_FFN,    /* norm, gate/up, activation, down, tail */
    OP_MOE,    /* norm, router, experts, shared expert, tail */
    OP_LOGITS, /* norm, head, for rows with results; or norm alone (weight 0): embeddings */
    OP_PROJ,   /* norm, products side by side */
    OP_CONV,   /* causal convolution over the rows of a sequence, channel by channel */
    OP_SCAN,   /* a recurrence over the rows of a sequence: state space, linear attention, delta rule */
    OP_CELL,   /* a recurrence of each channel for itself */
    OP_MAP,    /* a row for itself: norm, activation, sum, scale */
    OP_MIX,    /* streams side by side in a row, mixed by coefficients of the row */
    OP_INDEX,  /* the keys that sparse attention sees */
};

/* out = norm(scale * table[id] + positions[pos + offset] + types[type]). Ids beyond the table have its first row.
 * A row whose id is negative is the row of `given` where that is set: the host has written it (write_rows). Without a
 * table the other rows are 0. */
struct op_embed {
    weight_id table, positions, types;
    struct operand given; /* buffer 0: none */
    uint32_t width;       /* of the rows where there is no table */
    uint32_t adapter;     /* of the table, as in struct linear */
    uint32_t position_offset;
    float scale;
    struct norm norm;
    struct operand out;
};

/* q *= 1 + beta * ln(1 + floor((position + offset) / length)); beta 0: not at all. */
struct query_scale {
    float beta;
    uint32_t length, offset;
};

struct op_qkv {
    struct operand in;
    /* The results of the products, those of q, k and v that there are side by side with their biases, where other operations
     * computed them (plan_stream, zamba 2); buffer 0: they are computed here. */
    struct operand given;
    struct norm norm;      /* of the input */
    struct linear q, k, v; /* (heads*k_dim, width), (kv_heads*k_dim, width), (kv_heads*v_dim, width) */
    /* k.weight 0: q alone; the layer uses KV that another one wrote.
     * v.weight 0 beside a k: v = k after its bias, before its norm and rotation (v_dim = k_dim). */
    float clamp;                        /* > 0: q, k, v clipped to +-clamp (after the bias) */
    bool clamp_last;                    /* after the norms, before the rotation */
    struct norm q_norm, k_norm, v_norm; /* after bias; heads = 0: over the whole row (olmo2), else per head */
    bool norm_last;                     /* norms of q and k come after the rotation */
    struct rope rope;
    struct query_scale q_scale; /* last of all */
    uint32_t heads, kv_heads, k_dim, v_dim;
    uint32_t layer;     /* whose KV is written */
    struct operand out; /* q: (heads, k_dim) */
};

/* Latent attention, absorbed. With L = latent, R = rope.dims, n = nope:
 *   q = q_b(q_norm(q_a x)) or q_b(x) where q_a is absent: (heads, n + R), the last R rotated
 *   c = kv_a x: (L + R); the first L normed by kv_norm, the last R rotated; (c) is written to the pages
 *   out[h] = [ k_b[h] q[h][0..n) , q[h][n..n+R) ]: (heads, L + R)
 * so that OP_ATTN sees one KV head of k_dim L + R whose V is the first L of its K (v_in_k). */
struct op_latent {
    struct operand in;
    struct norm norm, q_norm, kv_norm;
    struct linear q_a, q_b, kv_a;
    weight_id k_b; /* count = heads, (L, n) */
    uint32_t k_b_adapter;
    struct rope rope; /* first = 0: counted within the R dimensions */
    struct query_scale q_scale;
    uint32_t heads, nope, latent;
    uint32_t layer;
    struct operand out;
};

struct op_attn {
    struct operand in, out; /* (heads, k_dim) -> (heads, v_dim) */
    uint32_t heads, kv_heads, k_dim, v_dim;
    uint32_t layer;
    uint32_t window;      /* 0 = all; else a query at p sees keys in (p - window, p], or not causal: in
                           * [p - window / 2, p + window / 2] */
    bool chunked;         /* the window is a chunk: it sees keys in [p - p % window, p] */
    float scale, softcap; /* s = scale q.k; softcap > 0: s = softcap * tanh(s / softcap) */
    weight_id sinks;      /* (heads): one more logit in the softmax's sum, without a value */
    weight_id
        distance; /* (heads, 2 n + 1): s += distance[head][clamp(key - query, +-n) + n], before softcap */
    bool causal;  /* false: keys on both sides (encoders; the whole sequence is one step) */
    bool v_in_k;  /* V is the first v_dim of K: nothing is stored for V */
    bool chosen;  /* it sees only the keys that the last OP_INDEX of the step chose */
    enum span_kind span;
};

struct op_heads {
    struct operand in, out; /* (heads, cols) -> (heads, rows) */
    weight_id weight;       /* count = heads */
    uint32_t adapter;
};

/* The product of norm(in) or, with a gate, of norm(in) * gate or norm(in * gate). */
struct op_out {
    struct operand in;
    struct norm norm;
    struct gate gate;
    struct linear linear;
    struct tail tail;
};

struct op_ffn {
    struct operand in;
    struct norm norm;
    struct linear gate, up, down; /* gate.weight 0: h = act(up x); else h = act(gate x) * (up x) */
    enum act_kind act;
    weight_id
        xielu; /* instead of act: p, n, b, eps. x > 0: p x^2 + b x, else (expm1(min(x, eps)) - x) n + b x */
    struct norm inner; /* of h, before down */
    struct tail tail;
};

/* Which of its experts an operation computes, where two devices divide them: both make the same choice with the same
 * weights, and each adds up its own part of the sum. Where the border is comes with each step (step.border). */
enum moe_side {
    MOE_ALL,
    MOE_BELOW, /* those below the border, identities, and the shared expert */
    MOE_ABOVE, /* those from the border on */
};

struct op_moe {
    struct operand in;
    struct norm norm;
    struct norm router_norm;      /* of the router's input, where it is another than the experts' */
    struct operand router_in;     /* that input, also without such a norm; buffer 0: `in` */
    struct linear router;         /* (experts + identities, width) */
    weight_id select_bias;        /* (experts): added for the choice, not for the weight (deepseek v3) */
    struct linear gate, up, down; /* count = experts; biases (count = experts, rows = 1) */
    enum act_kind act;
    float alpha, limit; /* ACT_SWIGLU_OAI */
    enum gating_kind gating;
    uint32_t experts, used;
    uint32_t groups, groups_used; /* 0 or 1: no groups */
    bool group_pair;              /* a group's score is the sum of its two best, else its best */
    bool normalise;               /* weights of the chosen ones sum to 1 */
    float least_sum;              /* ... but are divided by no less than this (ernie); 0 mostly */
    float weight_scale;           /* then times this; 1 otherwise */
    weight_id expert_scale;       /* (experts + identities): then times the expert's own */
    bool scale_input;             /* the weight multiplies what goes into the expert, not what comes out */
    uint32_t identities;          /* experts behind the others that give their input (out as wide as in) */
    float
        nearness; /* > 0: sparsemixer instead of gating. The best in turn; its weight is the softmax among those left
                     * that are near it: most - x <= nearness * max(|x|, most) (phimoe) */
    struct linear shared_gate, shared_up, shared_down; /* the shared expert, weight 0: none */
    weight_id shared_router; /* (1, width): its output times sigmoid(w x); 0: times 1 */
    uint32_t shared_router_adapter;
    enum moe_side side; /* any but MOE_ALL: the tail has no norms */
    struct tail tail;
};

/* Experts [first, end). */
struct moe_range {
    uint32_t first, end;
};

static inline struct moe_range moe_range(uint32_t experts, enum moe_side side, uint32_t border)
{
    const uint32_t at = border < experts ? border : experts;
    return (struct moe_range){side == MOE_ABOVE ? at : 0, side == MOE_BELOW ? at : experts};
}

/* Whether the router's input is not that of the experts. */
static inline bool moe_routes_apart(const struct op_moe *o)
{
    return o->router_norm.kind || o->router_in.buffer;
}

struct op_logits {
    struct operand in;
    struct norm norm;
    struct linear head;   /* (vocab, width); weight 0: the normed rows themselves are the result */
    float scale, softcap; /* logit = scale * y, then softcap as in attention */
};

enum { PROJ_MOST = 8 };

/* Products of the same rows, each times its scale and through its activation, one after the other in the columns of
 * `out`. */
struct op_proj {
    struct operand in, out;
    struct norm norm;
    struct linear linear[PROJ_MOST];
    enum act_kind act[PROJ_MOST]; /* then the activation */
    float scale[PROJ_MOST];
    uint32_t count;
    uint32_t best; /* > 0: the softmax of this many largest numbers of the row, and 0 for the others */
};

/* y[t][c] = act(bias[c] + sum over i of weight[c][i] * x[t - (cols - 1) + i][c]), x = in, or in * mul. What was before
 * the sequence's first row is in its state: the cols - 1 last x, oldest first, (cols - 1, channels). */
struct op_conv {
    struct operand in, mul, out; /* mul.buffer 0: none */
    weight_id weight;            /* (channels, cols) F32 */
    weight_id bias;              /* (channels) */
    enum act_kind act;
    uint32_t channels, cols;
    uint32_t state; /* its number in the plan */
};

/* Each head keeps a matrix S (k_dim, v_dim) in the sequence's state. Row by row, with the q, k and v of the head:
 *
 *     S = g S                          g: a factor for the head, or for each row of S
 *     S += k (w v)^T                   w: dt (DECAY_SOFTPLUS) or 1; or with `delta`
 *     S += k (w (v - S^T k))^T         w = write_scale * sigmoid(write)
 *     out = S^T q + skip * v
 *
 * DECAY_GIVEN may have a `write`, too, without `delta`: it is w itself. With `size`, a number for each head, S^T q is
 * divided by max(|size|, least) + size_eps.
 *
 * With `erase`, of length 1 for each head, and a `rate` for each of its numbers (RWKV 7), from the S before it decays:
 *
 *     S = g S + k v^T - (rate erase) (S^T erase)^T
 *
 * With `before` (RWKV 6) out is of the S before the row, with `rest` k is times 1 - g. `sharing` heads side by side have one
 * k and one v (0: each its own), while each has its q.
 *
 * Mamba's B, C, x are k, q, v. Heads share the q and k of k_heads: head h has those of h / (heads / k_heads), or
 * of h % k_heads where they are `tiled`. `decay` has a number for each head, or (decay_each) for each of its k_dim;
 * `a` is (1, heads) or, with a factor for each row of S, (heads, k_dim). */
struct op_scan {
    struct operand q, k, v;      /* (k_heads, k_dim) twice, (heads, v_dim) */
    struct operand decay, write; /* buffer 0: none */
    struct operand erase, rate;  /* (heads, k_dim) both; or buffer 0 */
    struct operand size, least;  /* (heads) both, with k_heads = heads; or buffer 0 */
    struct operand out;          /* (heads, v_dim) */
    struct norm q_norm, k_norm;  /* of each of the k_heads */
    float q_scale, k_scale;      /* after the norms */
    uint32_t heads, k_heads, k_dim, v_dim;
    uint32_t sharing;
    bool tiled, delta, decay_each, before, rest;
    enum decay_kind decay_kind;
    weight_id a;
    weight_id bias; /* as long as decay */
    weight_id skip; /* (heads) */
    float dt_range[2], bound, write_scale, size_eps;
    uint32_t state; /* its number in the plan */
};

/* A recurrence of each channel for itself. CELL_LRU keeps a number s:
 *
 *     g = e^(a sigmoid(decay + decay_bias))
 *     s = g s + sqrt(1 - g^2) sigmoid(gate + gate_bias) in      at position 0 without the root
 *     out = s
 *
 * CELL_AVERAGE (RWKV 4) is the mean of all rows' `in`, weighted by e^(gate + a distance), and by e^(gate + gate_bias) for
 * the row itself. It keeps the sum, that of the weights, and the largest exponent, which both are relative to.
 *
 * CELL_GATES (mLSTM) keeps m, the largest exponent, and gives what a recurrence decays by, how strongly it writes, and e^-m,
 * `channels` numbers each:
 *
 *     f = log sigmoid(decay + decay_bias), i = gate + gate_bias
 *     m' = max(f + m, i)
 *     out = e^(f + m - m'), e^(i - m'), e^-m'
 */
struct op_cell {
    enum cell_kind kind;
    struct operand in, gate, decay, out; /* in: not of CELL_GATES; decay: not of CELL_AVERAGE */
    weight_id a, gate_bias, decay_bias;  /* (channels) each; a: not of CELL_GATES; biases may be 0 */
    uint32_t channels;
    uint32_t state; /* its number in the plan */
};

/* Numbers that a channel keeps, and that it gives. */
static inline uint32_t cell_kept(enum cell_kind kind)
{
    return kind == CELL_AVERAGE ? 3 : 1;
}

static inline uint32_t cell_given(enum cell_kind kind)
{
    return kind == CELL_GATES ? 3 : 1;
}

/* out = scale * (residual + plus + by * rms(like) * times * act(sparse(cap * tanh(factor * norm(in) / cap)))), each part
 * optional: cap 0, deviations 0, ACT_NONE. sparse(x) = max(x - mean(x) - deviations * deviation(x), 0). With `clips` the
 * result is then clipped to [least, most], of which one may be infinite. */
struct op_map {
    struct operand in, residual, like, by, out;
    uint32_t width;
    struct norm norm;
    float factor, cap, deviations;
    enum act_kind act;
    weight_id times, plus; /* (width) */
    float scale;
    bool clips;
    float least, most;
};

/* out[i] = base[i] + sum over j of (coef[i][j] + fixed[i][j] + bias) * in[j], for rows of `outs` and `ins` streams of
 * `width`; without base, coef (buffer 0) or fixed those are 0. */
struct op_mix {
    struct operand base, in, coef, out; /* base and out: (outs, width), in: (ins, width), coef: (outs, ins) */
    weight_id fixed;                    /* (outs, ins) F32 */
    uint32_t outs, ins, width;
    float bias;
};

/* Sparse attention's choice, for every query among the keys up to its own:
 *   q = q_b(q_norm(q_a x)): (heads, dim), k = k_norm(k x): (dim), both rotated; k goes to the pages of `layer`
 *   score = sum over heads of (weights x)[h] * relu(q[h].k), and the `used` best are chosen
 * Scales of the score, which change no choice, are left out; they have to be positive. */
struct op_index {
    struct operand in;
    struct norm norm, q_norm, k_norm;
    struct linear q_a, q_b, k, weights;
    struct rope rope;
    uint32_t heads, dim, used;
    uint32_t layer; /* KV of one head of dim, without V */
};

struct op {
    enum op_kind kind;
    uint32_t layer;  /* for print and profile; UINT32_MAX outside the layers */
    uint32_t device; /* which device of a split runs it (device/place.h decides); 0 = the main device */
    union {
        struct op_embed embed;
        struct op_qkv qkv;
        struct op_latent latent;
        struct op_attn attn;
        struct op_heads heads;
        struct op_out out;
        struct op_ffn ffn;
        struct op_moe moe;
        struct op_logits logits;
        struct op_proj proj;
        struct op_conv conv;
        struct op_scan scan;
        struct op_cell cell;
        struct op_map map;
        struct op_mix mix;
        struct op_index index;
    };
};

/* Layers of equal geometry and window share a pool of pages and a page table. */
struct kv_group {
    uint32_t kv_heads, k_dim, v_dim; /* v_dim 0: V is part of K */
    uint32_t window;                 /* 0 = all */
    uint32_t layers;                 /* how many layers are in it */
};

struct kv_place {
    uint32_t group, index; /* layer -> its group, and its number within it */
};

enum { PLAN_GROUPS_MOST = 8 };

/* What an operation keeps of a sequence beside pages: a matrix of F32 that each row of the sequence replaces. A slot holds
 * those of all operations (device/device.h). */
struct plan_state {
    uint32_t layer;
    uint32_t heads, rows, cols; /* heads 0: not in this part of a plan */
    size_t at;                  /* floats of the slot before it */
};

struct plan {
    struct arena arena;
    struct op *ops; /* (count) */
    uint32_t count, room;
    uint32_t *width; /* (buffers): floats a row; width[0] is unused */
    uint32_t *fold;  /* (buffers): the buffer whose memory it has, 0 = its own */
    uint32_t given;  /* the buffer whose rows the host writes before a step (write_rows); 0 = none */
    uint32_t fold_by, fold_at; /* operations from fold_at on have fold_by times fewer rows; fold_by 0: none */
    uint32_t buffers;
    struct kv_group group[PLAN_GROUPS_MOST];
    uint32_t groups;
    struct kv_place *kv; /* (layers); group UINT32_MAX: no keys */
    uint32_t layers;
    struct plan_state *state; /* (states) */
    uint32_t states, state_room;
    size_t state_values; /* floats of a slot */
    uint32_t out_width;  /* of a result row: the vocabulary, or the width for an encoder */
    /* (slots + 1, adapters + 1): adapter i's pair for slot s is lora[s * (adapters + 1) + i]; 0 is "none" in both */
    struct lora_pair *lora;
    uint32_t slots, adapters;
    uint32_t rank; /* the largest rank of adapters that come later; 0 = none come */
    bool part;     /* cut from another plan: it may have no result */
    bool failed;   /* out of memory while it was built */
};

/* The pair of adapter `id` for a slot; NULL where it leaves that product alone. */
static inline const struct lora_pair *plan_lora(const struct plan *p, uint32_t slot, uint32_t id)
{
    const struct lora_pair *pair = &p->lora[(size_t)slot * (p->adapters + 1) + id];
    return slot && pair->a ? pair : NULL;
}

/* The largest rank of all pairs, those that come later included; 0: there are none. */
uint32_t plan_rank(const struct plan *p, const struct weights *w);

/* Building. All are sticky: look at plan.failed once. */
struct op *plan_add(struct plan *p, enum op_kind kind,
                    uint32_t layer); /* zeroed; scale fields are the caller's */
struct operand plan_buffer(struct plan *p, uint32_t width);
/* A buffer whose rows are n rows of another, side by side, in the same memory. The operations that are added from now on
 * have n times fewer rows: a step of its own runs them (step.from). All folds of a plan are by the same n, and there is
 * no operation between them. */
struct operand plan_fold(struct plan *p, struct operand of, uint32_t n);
/* Says how layer `layer` keeps its KV; joins the group of the same geometry or makes one. */
void plan_kv(struct plan *p, uint32_t layer, struct kv_group geometry);
/* Says that an operation of the layer keeps (heads, rows, cols) floats of a sequence; returns the number of that state. */
uint32_t plan_keep(struct plan *p, uint32_t layer, uint32_t heads, uint32_t rows, uint32_t cols);
void plan_free(struct plan *p);

/* Adds a weight; 0: out of memory. */
weight_id weights_add(struct weights *w, const struct weight *one);
/* Room for this many more, so that the table stays where it is meanwhile; false: out of memory. */
bool weights_reserve(struct weights *w, uint32_t more);
void weights_free(struct weights *w);

/* Checks a plan against its weights: every index, width and shape fits. Devices rely on it. */
int plan_check(const struct plan *p, const struct weights *w, struct err *e);

/* What an operation reads and writes; buffer 0 where there is none. */
enum { IO_READS = 9 };
struct op_io {
    struct operand read[IO_READS], out;
};
struct op_io plan_io(const struct op *op);
/* Whether operations touch a buffer from its middle on: then a write may leave a part of it as it was. */
bool plan_by_columns(const struct plan *p, uint32_t buffer);
/* Calls visit for every weight that the operation names (never 0); visit may put another number there. */
void plan_each_weight(struct op *op, void (*visit)(void *arg, weight_id *id), void *arg);
/* Calls visit for every product of the operation (its weight is never 0) with the slot of its adapters. */
void plan_each_slot(struct op *op, void (*visit)(void *arg, weight_id weight, uint32_t *slot), void *arg);
/* The layer whose KV an operation writes or reads; UINT32_MAX: none. */
uint32_t plan_kv_layer(const struct op *op);
/* The OP_INDEX whose choice an operation of the plan reads, which stays on its device; UINT32_MAX: none. */
uint32_t plan_chooser(const struct plan *p, uint32_t op);
/* Positions that the plan has: rows of a table, or UINT32_MAX where they have no end. */
uint32_t plan_positions(const struct plan *p, const struct weights *w);
/* The number of the state that it keeps; UINT32_MAX: none. */
uint32_t plan_state_of(const struct op *op);
/* The operations whose `device` is this one, as a plan of its own with just their weights and the KV of their
 * layers. Buffers and KV groups keep their numbers, so that the parts use the same step; a group may be
 * without layers. The caller frees both, also after a failure. */
int plan_cut(const struct plan *p, const struct weights *w, uint32_t device, struct plan *part,
             struct weights *own, struct err *e);

/* How products of the rest (device 1) are computed by a device (2) to which their weights are sent for each step. `plan` and
 * `weights` are those of the plan that is split, and behind them the operations that do it:
 *
 *   qkv                  -> out for each of q, k and v (device 2); then qkv with these as `given` (device 1)
 *   proj, out, ffn, moe  -> the same on device 2
 *   moe without norms in its tail
 *                        -> the residual and the experts from the step's border on (device 1), to rows of their own; then
 *                           the other experts (device 2), whose residual these rows are; or, for steps whose border is
 *                           behind all experts, all of it (device 2), with the same weights
 *
 * Attention stays with the keys, and everything else where it was, as do operations that device 2 refuses (device_ops;
 * NULL: none). Where all keys of a step are its own rows, device 2 computes attention, too: `qkv` with what is given and
 * `attn` run there with pages that last for a layer, and the rest only writes its pages. Every weight that is sent belongs
 * to one operation, or to the two of which a step runs one; the divided one comes first. */
enum stream_way {
    STREAM_FRESH = 1, /* for steps whose keys are all their own; empty: device 2 refuses some of it */
    STREAM_WHOLE = 2, /* no experts are divided, as all are sent; empty: none ever are */
    STREAM_WAYS = 4
};
struct plan_streamed {
    struct plan plan;
    struct weights weights;
    struct {
        uint32_t *op; /* (count): operations in the order in which they run */
        uint32_t count;
    } way[STREAM_WAYS];
    uint32_t *origin; /* (plan.count): the operation of the plan that is split */
};
int plan_stream(const struct plan *p, const struct weights *w, const char *(*refuses)(const struct op *op),
                struct plan_streamed *out, struct err *e);
void plan_stream_free(struct plan_streamed *s);
/* Calls visit for every weight that device 2 needs for the operation. */
void plan_each_sent(const struct op *op, void (*visit)(void *arg, weight_id *id), void *arg);
/* Whether device 2 needs only the matrices of this weight below the border. */
bool plan_is_divided(const struct op *op, weight_id id);

/* Bytes of one weight, and of all, in the file's layout. */
uint64_t weight_bytes(const struct weight *w);
uint64_t weights_bytes(const struct weights *w);

/* How many rows a step has, of how many sequences, and how many keys each row sees. */
struct step_shape {
    double rows, seqs, keys;
};
/* What an operation reads and computes in such a step. */
struct op_cost {
    double weight_bytes, kv_bytes, flops;
};
struct op_cost plan_cost(const struct plan *p, const struct weights *w, uint32_t op, struct step_shape s);
const char *plan_op_name(enum op_kind kind);
struct buf;
void plan_print(const struct plan *p, const struct weights *w, struct buf *out); /* one line an operation */
/* The parts of a model, as text: "embeddings, layers 0-11, head". */
void plan_summary(const struct plan *p, struct buf *out);
