/* What the files of lowering share: functions that add launches of an operation to the list, and products
 * with their inputs and tails. Operations pass state to each other only through the list. */
#pragma once

#include "device/cuda/lower.h"

/* The state of one lowering: which rows and which operation launches are added for. */
struct lowering {
    const struct lower *l;
    const struct step_class *c;
    struct launch_list *list;
    uint32_t op;
    uint32_t m; /* rows */
    struct launch_rows rows;
};

static inline const struct mat *mat_of(const struct lowering *b, weight_id w)
{
    return &b->l->mat[w];
}

/* Where the scales of the operation's rows are. */
static inline float *scales_of(const struct lowering *b)
{
    return b->l->plan->ops[b->op].kind == OP_OUT ? b->l->at->out_scale : b->l->at->half_scale;
}

static inline const float *vector_of(const struct lowering *b, weight_id w)
{
    return w ? (const float *)b->l->mat[w].base : NULL;
}

static inline float *buffer_at(const struct lowering *b, struct operand o)
{
    return o.buffer ? b->l->at->buffer[o.buffer] + o.col : NULL;
}

static inline uint64_t buffer_ld(const struct lowering *b, struct operand o)
{
    return b->l->width[o.buffer];
}

static inline struct span buffer_span(struct operand o)
{
    return (struct span){o.buffer ? PLACE_BUFFER : PLACE_NONE, o.buffer, o.col};
}

static inline struct span span_of(enum launch_place p)
{
    return (struct span){.place = (uint8_t)p};
}

struct norm_args norm_of(const struct lowering *b, const struct norm *n);
/* A launch of the current operation and rows. rows, each: of the grid (enum grid_rows). */
struct launch *lowering_add(struct lowering *b, uint32_t kernel, enum launch_args args, struct gpu_grid grid,
                            const char *why);
void lowering_grid_rows(struct launch *l, enum grid_rows dimension, uint32_t each);

/* The input of products: rows of x, normed. */
struct input {
    const float *x;
    uint64_t ldx;
    struct span from;
    uint32_t k;
    const struct norm *norm;  /* or NULL */
    bool results;             /* row i is the row of the step for result i */
    uint32_t groups;          /* > 0: the rows of experts; groups of eight in a tile */
    const float *slot_weight; /* of those: they are multiplied with it; or NULL */
};

/* The same rows as floats, for adapters: row i is x's row x_row[i] (NULL: i), and row `row[i]` (NULL: i) of those that are
 * computed now. expert: (rows / 8), or NULL. */
struct lora_rows {
    const float *x;
    uint64_t ldx;
    struct span from;
    const int32_t *x_row, *row, *expert;
    bool results; /* row is the list of rows with results */
};

/* One product of a set that shares its input; y is (m, ldy). */
struct product {
    weight_id weight, bias;
    uint32_t adapter;
    float *y;
    uint64_t ldy;
    struct span to;
};

/* What follows: y = scale * (W x + bias) + residual. */
struct after {
    float scale;
    const float *residual;
    uint64_t ldr;
    struct span from;
};
static const struct after after_plain = {.scale = 1.0f};

/* A set of products with what they share. */
struct product_set {
    enum path path;
    enum pack_order order;
    struct product p[GEMM_SEGS];
    uint32_t n;
    struct after after;
};

/* How products with these weights (0: none) take the rows of now. */
enum path path_of(const struct lowering *b, const weight_id *w, uint32_t n);
/* The order that packed rows have in front of these products. */
enum pack_order order_of(const struct lowering *b, const struct product *p, uint32_t n);
/* Makes the input of a set, and of its adapters. */
struct lora_rows lower_input(struct lowering *b, const struct product_set *s, const struct input *in);
void lower_rows(struct lowering *b, const struct pack_args *a, struct span from, struct span to,
                const char *why);
void lower_products(struct lowering *b, const struct product_set *s, const struct lora_rows *in);
/* The same where results are wanted whole: behind cuBLASLt the row's scale and the bias are still to be applied. */
void lower_finished(struct lowering *b, const struct product_set *s, const struct lora_rows *in);
/* The last product of an operation, with its tail; y: where results wait for a tail that is more than a sum. */
struct product_set lower_last(const struct lowering *b, enum path path, const struct linear *l,
                              const struct tail *t, float *y);
void lower_tail(struct lowering *b, const struct product_set *s, const struct linear *l,
                const struct tail *t);
/* What a feed-forward layer computes between its input and `down`. */
struct hidden_values {
    const struct linear *gate, *up;
    enum act_kind act;
    weight_id xielu;          /* as in struct op_ffn; 0: none */
    const struct norm *inner; /* or NULL */
};
/* Norm, gate and up, activation: gives the input of `down`. */
struct lora_rows lower_up(struct lowering *b, const struct input *in, const struct hidden_values *h,
                          const struct product_set *down);
/* The activation alone, into the input of `down`; groups: as in struct input. */
struct lora_rows lower_act(struct lowering *b, struct act_args a, const struct product_set *down,
                           uint32_t groups);
/* Rows in float, whatever the path. */
void lower_float(struct lowering *b, const struct float_args *a, uint32_t adapter, const struct lora_rows *in,
                 struct span to, const char *why);
void lower_ffn(struct lowering *b, const struct op_ffn *o);
void lower_moe(struct lowering *b, const struct op_moe *o);
void lower_proj(struct lowering *b, const struct op_proj *o);
void lower_conv(struct lowering *b, const struct op_conv *o);
void lower_scan(struct lowering *b, const struct op_scan *o);
void lower_cell(struct lowering *b, const struct op_cell *o);
/* Gate and norm of a product's input, as float rows. */
struct input lower_gated(struct lowering *b, const struct op_out *o, uint32_t k);
/* The norm of each slice of a row, from its input to its output. */
void lower_normed(struct lowering *b, const struct op_map *o);
/* A x before a product, and B of it behind; nothing where no adapter has a pair for the slot. */
struct lora_job {
    uint32_t slot, area;            /* those whose A x are kept at the same time have different areas */
    uint32_t heads, x_step, y_step; /* > 0: as in struct float_args */
    float *y;
    uint64_t ldy;
    float scale;
    const float *row_scale; /* y still lacks this factor; or NULL */
    struct span to;
};
uint32_t lora_rank(const struct lowering *b, uint32_t slot);
void lora_down(struct lowering *b, const struct lora_job *j, const struct lora_rows *in);
void lora_up(struct lowering *b, const struct lora_job *j, const struct lora_rows *in);
