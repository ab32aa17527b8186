/* The internals of the CPU device. A step is one job of the pool: every worker runs the whole plan as a
 * `struct lane`, takes its share of each phase, in products of few rows some of the others', too, and waits for the others
 * at a barrier between phases.
 *
 * Ownership of outputs: a phase divides its output by columns, rows or heads, and each piece has one writer.
 * Every result depends on the step alone, never on the number of workers: sums are cut at fixed places.
 *
 * Thread: struct cpu belongs to the caller of device_ops.run; while a step runs its workers share it, and all
 * but the scratch named in struct area and the plan's buffers is read-only. */
#pragma once

#include "device/cpu/kernels.h"
#include "device/device.h"

#include <stdatomic.h>

struct pool;

/* Rows for a product, as floats, rounded, or both. */
struct rows {
    float *x; /* (m, x_stride) */
    size_t x_stride;
    struct q8_rows q8; /* `terms` rows for every row: rounded, then what the rounding left */
    uint32_t m, terms;
    const uint32_t *row; /* (m): the step's row that each is of, or NULL: all in order */
};

/* Room for rows: `floats` floats and `blocks` blocks of Q8_BLOCK rounded values. */
struct area {
    float *f;
    int8_t *q;
    float *d;
    int32_t *s;
    size_t floats, blocks;
    uint32_t terms;
};

/* One KV group. A KV head of a layer keeps its pages one after another, so that a worker that follows
 * one head through pages taken in order reads memory in order:
 *     base + ((layer * kv_heads + head) * pages + page) * head_page
 * and within that K transposed, then V (kv.c). */
struct kv_pool {
    void *memory;
    uint8_t *base;           /* memory, from a cache line on */
    size_t head_page;        /* bytes of one page of one head of one layer */
    size_t v_at;             /* where V starts in it */
    size_t k_scale, v_scale; /* pages of integers: offsets of the scales of tokens, floats */
    bool ints;
    size_t page_bytes; /* of all layers and heads */
    uint32_t pages,
        backed; /* the first `backed` may be in use; the system takes memory when they are written to */
    struct kv_group shape;
};

/* Cosines and sines for every row of the step: one table for each distinct rope of the plan. */
struct rope_table {
    weight_id freqs;
    uint32_t dims;
    float factor;
    float *cos_sin; /* (max_rows, dims) */
};

/* What a row chose, and the rows sorted by expert. A slot is one (row, expert) pair. */
struct moe_route {
    float *score;     /* (rows, experts + 1): router's logits; the last is the shared expert's gate */
    float *choice;    /* (rows, experts): what the choice is made by */
    uint32_t *expert; /* (rows, used) */
    float *weight;    /* (rows, used) */
    uint32_t *first;  /* (experts + 1): slots of expert e are first[e]..first[e + 1] */
    uint32_t *slot_row;
    float *slot_weight;
};

/* Scratch of one worker, and what is left of its share of a loop. */
struct worker_local {
    _Alignas(64) _Atomic uint64_t left; /* see lane_take */
    _Alignas(64) uint32_t loops;        /* loops that it has begun: the same for all workers */
    void *kernel;                       /* kernels.scratch_bytes */
    float *tile[2];                     /* (tile_floats): pieces of products */
    float *low;                         /* (max_rows or the experts' slots, largest rank): A x of adapters */
    struct area input;                  /* rows prepared by each worker for itself, CPU_FEW at most */
    float *state,
        *prepared; /* of recurrences: a part of a state, and what is made of rows first (ops_state.c) */
    float *index;  /* see index.c */
    struct attn_local {
        float *q, *k, *v, *s, *acc, *total, *stat; /* see attn.c */
        int16_t *w;
    } attn;
};

enum { CPU_FEW = 2, CPU_UNIT = 32, CPU_TILE = 1 << 18, CPU_ROPES_MOST = 16 };

struct cpu {
    struct device device;
    struct pool *pool;
    const struct kernels *k;
    const struct weights *w;
    bool exact, fixed, packs;
    bool pieces; /* workers share a single row's products in pieces: see lane_loop */
    /* Rounded rows a row: 1, int8; 2, int8 and int8 of the remainder, together about 15 bits. Small models
     * take 2: they are more sensitive, and fast enough. Beside weights of 16 bits 1 is bf16, and 2 is
     * floats. */
    uint32_t terms;
    struct packed *packed; /* (weights): those repacked; NULL: none */
    uint8_t *packed_data, *packed_done;
    /* of device_ops.prepare */
    const struct plan *plan;
    struct kv_config kv;
    struct kv_pool group[PLAN_GROUPS_MOST];
    float *state;           /* (kv.states, state_stride): slot 0 stays zero */
    uint32_t states_backed; /* slots that count as held */
    size_t state_stride;
    uint32_t max_rows, max_seqs, max_outs;
    float **buffer; /* (buffers): (max_rows, width) */
    struct area x, h, g,
        shared;          /* inputs, hidden rows, rows gathered by expert, hidden rows of the shared one */
    float *qt, *kt, *vt; /* products on their way to the pages: see op_qkv_run, op_latent_run */
    float *sum;          /* (max_rows, width of the output): results that wait for a norm */
    struct moe_route moe;
    struct rope_table rope[CPU_ROPES_MOST];
    uint32_t ropes;
    uint64_t *chosen; /* (max_rows, chosen_keys bits): the keys that the last OP_INDEX chose */
    size_t chosen_keys;
    float *partial; /* attention: pieces that wait to be merged */
    size_t partial_floats;
    uint32_t *row_seq; /* (max_rows): the sequence of a row; UINT32_MAX: a padded row */
    float *results;    /* (max_outs, out_width) */
    size_t tile_floats;
    struct worker_local *local; /* (workers) */
    void *memory;               /* all of the above but the KV */
    size_t scratch_bytes;
};

/* One worker in one step. */
struct lane {
    struct cpu *d;
    const struct kernels *k;
    const struct plan *p;
    const struct step *s;
    struct worker_local *local;
    int worker, workers;
};

/* Allocates memory for repacked weights (packed.c); without it products read the file's layout. */
void cpu_packed_open(struct cpu *d);
void cpu_packed_close(struct cpu *d);

/* ---- pieces that operations are made of (ops.c) ---- */

void lane_wait(struct lane *l);
const struct weight *lane_weight(const struct lane *l, weight_id id);
const float *lane_vector(const struct lane *l, weight_id id); /* NULL for none */
float *lane_at(const struct lane *l, struct operand o, size_t *stride);
/* True where this product is done in integers: rows have to be rounded for it. */
bool cpu_rounds(const struct cpu *d, weight_id id);
/* True where it is done there or in bf16: these products read repacked weights. */
bool cpu_packs(const struct cpu *d, weight_id id);
void lane_norm(const struct lane *l, const struct norm *n, const float *x, uint32_t width, float *y);

/* What lane_input has to make of its rows. */
struct cpu_input {
    float *x; /* (m, stride) */
    size_t stride;
    uint32_t m, k;
    const uint32_t *pick;    /* (m): row numbers, or NULL: all in order */
    const struct norm *norm; /* or NULL */
    const struct gate *gate; /* or NULL */
    bool rounded;            /* wanted in integers too */
    bool copy;               /* the rows will be overwritten while they are read */
};
/* Norms and rounds rows; when it returns, this worker may use them. */
struct rows lane_input(struct lane *l, const struct cpu_input *in);
/* Norms one head of a row in place, where there is a norm. */
void lane_norm_head(const struct lane *l, const struct norm *n, float *x, uint32_t size, uint32_t head);
/* Rounds n values into row `row` of `to`, from column `col` on. */
void lane_round(const struct lane *l, const float *x, uint32_t n, const struct rows *to, uint32_t row,
                uint32_t col);

/* Stride of the rows of an area: whole cache lines of every form. */
static inline size_t area_stride(uint32_t k)
{
    return ((size_t)k + 63) & ~(size_t)63;
}
/* Cuts an area for m rows of k. */
struct rows area_rows(const struct area *a, uint32_t m, uint32_t k);
struct rows rows_from(const struct rows *r, uint32_t first, uint32_t m, uint32_t col);

/* y(m, n0..n1) = rows W^T + bias, y[r * y_stride + (n - n0)]. */
struct cpu_product {
    struct linear linear;
    uint32_t matrix; /* which of the weight's matrices (and biases) */
    bool floats;     /* never in integers (routers) */
    uint32_t n0, n1;
    float *y;
    size_t y_stride;
};
void lane_product(const struct lane *l, const struct rows *x, const struct cpu_product *p);
/* Sets where the weight is, or will be, repacked for this product of `lines` rounded rows, if it is repacked at all. True:
 * it is repacked now; the product is done in pieces of *piece columns, and after each the file's pages of it are
 * dropped. (A later read loads them again: an embedding that is also the head.) */
bool lane_find_packed(const struct lane *l, const struct cpu_product *p, uint32_t lines, struct matmul *job,
                      uint32_t *piece);
void lane_forget_weight(const struct lane *l, const struct cpu_product *p, uint32_t n0, uint32_t n1);
/* The adapters of a row of the step; NULL = none. */
const struct adapter_mix *lane_mix(const struct lane *l, uint32_t row);
/* True where this product may need its rows as floats, rounded or not: an adapter needs them. */
bool lane_adapts(const struct lane *l, struct linear linear);

/* Columns of several products of different cost, cut into one contiguous share a worker at multiples of
 * CPU_UNIT: begin with the sum of share_cost over all of them, then ask for each in the same order. */
struct share {
    uint64_t from, to, at;
    uint64_t total; /* of a loop */
    uint32_t loop;  /* its number */
};
uint64_t share_cost(uint32_t n, uint64_t unit_cost);
struct share lane_share(const struct lane *l, uint64_t total);
/* The same in pieces, for loops that wait for memory, where a core is often slower than another for a while: a worker takes
 * its own share piece by piece, and then some of what others have left. All workers begin every loop, with the same total,
 * and a barrier is between two loops. Where the step has several rows, or the
 * model is small, a share is one piece. */
struct share lane_loop(const struct lane *l, uint64_t total);
bool lane_take(const struct lane *l, struct share *s); /* false: nothing is left */
/* The next piece of a loop over n columns of one product alone. */
struct share lane_columns(const struct lane *l, uint32_t n);
bool lane_take_columns(const struct lane *l, struct share *s, uint32_t n, uint32_t *n0, uint32_t *n1);
bool share_next(struct share *s, uint32_t n, uint64_t unit_cost, uint32_t *n0,
                uint32_t *n1); /* false: none of it */
/* This worker's rows, or columns in units. */
void lane_slice(const struct lane *l, uint32_t n, uint32_t unit, uint32_t *from, uint32_t *to);

/* Columns n0..n1 of y (m, y_stride) through the tail's elementwise part; lane_tail_end does the rest. */
void lane_tail(const struct lane *l, const struct tail *t, const float *y, size_t y_stride, uint32_t n0,
               uint32_t n1);
void lane_tail_end(struct lane *l, const struct tail *t, uint32_t n);
/* A product over all of its rows, and the tail, on this worker's columns. */
void lane_product_tail(const struct lane *l, const struct rows *x, struct linear linear,
                       const struct tail *t);
uint32_t lane_tile_cols(const struct lane *l, uint32_t m); /* how many columns of m rows fit into a tile */

/* Several products of the same rows, each to its own y (m, stride), times its scale and activated, on this
 * worker's columns. */
struct target {
    struct linear linear;
    float *y;
    size_t stride;
    float scale;
    enum act_kind act;
};
void lane_products(const struct lane *l, const struct rows *x, const struct target *t, uint32_t count);
bool lane_any_rounds(const struct lane *l, const struct target *t, uint32_t count);
/* Rotates a head of the step's row. */
void lane_rotate(const struct lane *l, const struct rope *r, uint32_t row, float *x);
/* The page and slot that a row's KV goes to; NULL for a padded row. */
uint8_t *lane_slot(const struct lane *l, uint32_t layer, uint32_t head, uint32_t row, uint32_t *slot);

/* gate/up, activation (and rounding) of hidden columns [n0, n1) into `to`. */
struct hidden {
    struct linear gate, up;
    uint32_t matrix;
    enum act_kind act;
    float alpha, limit;
    const float *xielu; /* its numbers where it is the activation, or NULL */
    struct rows to;     /* (m, hidden) */
    bool rounded;       /* as the down product needs it */
    bool floats;        /* and the floats, too */
};
void lane_hidden(const struct lane *l, const struct rows *x, const struct hidden *h, uint32_t n0,
                 uint32_t n1);

/* ---- operations; all workers enter, and leave behind a barrier ---- */

void op_embed_run(struct lane *l, const struct op_embed *o);
void op_qkv_run(struct lane *l, const struct op_qkv *o);
void op_latent_run(struct lane *l, const struct op_latent *o);
void op_attn_run(struct lane *l, const struct op_attn *o);
void op_heads_run(struct lane *l, const struct op_heads *o);
void op_out_run(struct lane *l, const struct op_out *o);
void op_ffn_run(struct lane *l, const struct op_ffn *o);
void op_moe_run(struct lane *l, const struct op_moe *o);
void op_logits_run(struct lane *l, const struct op_logits *o);
void op_proj_run(struct lane *l, const struct op_proj *o);
void op_conv_run(struct lane *l, const struct op_conv *o);
void op_scan_run(struct lane *l, const struct op_scan *o);
void op_cell_run(struct lane *l, const struct op_cell *o);
void op_map_run(struct lane *l, const struct op_map *o);
void op_mix_run(struct lane *l, const struct op_mix *o);
void op_index_run(struct lane *l, const struct op_index *o);

/* ---- scratch (sizes.c) ---- */

struct cpu_bump {
    uint8_t *base; /* NULL: only counting */
    size_t at;
    bool failed;
};
/* Places all that a step of this plan works in, or counts it. */
void cpu_place(struct cpu *d, const struct plan *p, struct cpu_bump *b);

/* ---- KV (kv.c) ---- */

/* Lays out a group; false: this type cannot keep heads of this size. */
bool kv_layout(struct kv_pool *g, const struct kv_group *shape, const struct kv_config *c, bool exact);
uint8_t *kv_page(const struct kv_pool *g, uint32_t layer, uint32_t head, uint32_t page);
/* One token's K or V into slot `slot` of a head's page. */
void kv_put_k(const struct cpu *d, const struct kv_pool *g, uint8_t *page, uint32_t slot, const float *k);
void kv_put_v(const struct cpu *d, const struct kv_pool *g, uint8_t *page, uint32_t slot, const float *v);
/* A page's K into columns of k (k_dim, ATTN_KEYS), and its first n tokens' V into rows of v (n, v_dim). */
void kv_get_k(const struct cpu *d, const struct kv_pool *g, const uint8_t *page, float *k);
void kv_get_v(const struct cpu *d, const struct kv_pool *g, const uint8_t *page, uint32_t n, float *v);
/* A page of integers as page `at` of a block of keys. */
void kv_point(const struct kv_pool *g, const uint8_t *page, uint32_t at, struct attn_pages *to);

/* ---- a worker's memory for an operation with state (ops_state.c) ---- */

size_t state_local_floats(const struct op *op);
size_t state_prepared_floats(const struct op *op);

/* ---- the choice of keys (index.c) ---- */

/* Keys that a bitmap has room for, and floats of a worker; 0: nothing is chosen. */
size_t index_keys(const struct cpu *d, const struct plan *p);
size_t index_local_floats(const struct cpu *d, const struct plan *p);
uint64_t *index_row(const struct cpu *d, uint32_t row);

/* ---- attention's memory (attn.c) ---- */

size_t attn_local_floats(const struct plan *p);
void attn_local_place(struct attn_local *a, const struct plan *p, float *at);
size_t attn_partial_floats(const struct cpu *d, const struct plan *p);
