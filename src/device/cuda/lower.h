/* Lowering: the operations of a plan become launches, for a class of steps. It reads the plan, the layout of
 * weights, the addresses of scratch and the device profile; it needs no card. Each operation gives its plain
 * sequence (lower.c, lower_product.c, lower_moe.c, over build.h); fusions are passes over the finished list
 * (passes.h). */
#pragma once

#include "device/cuda/launch.h"
#include "device/device.h"

/* How a product takes its input: packed fp16 for up to PACK_ROWS_MOST rows, fp16 rows through cuBLASLt beyond, float rows
 * in exact mode. For callers of the public header one row, too: float through shared memory, or rounded to int8. */
enum path { PATH_PACK, PATH_HALF, PATH_FLOAT, PATH_TILED, PATH_INTEGER };

enum {
    HALF_ROWS_LEAST = 32,  /* more rows than this of F16 weights go to cuBLASLt; */
    KEPT_SMALL_LEAST = 32, /* more than this of small weights that stay decoded (options.copies), */
    KEPT_ROWS_LEAST = 64,  /* more than this of large ones, unless gemm_many is faster, */
    PACK_ROWS_MOST = 128,  /* and more than this of all others */
    KEPT_SMALL = 32 << 20, /* bytes that a weight is smaller than */
    GRAPH_ROWS_MOST = 512, /* decode steps of more rows are not recorded */
    TILE_QUERIES = 64,     /* of prefill attention */
    DECODE_QUERIES = 16,   /* sequences with at most this many (row, head of a group) pairs are decode */
    MOE_ROWS = 2048,       /* rows of an expert layer at a time, at most */
    MOE_PAIRS = 1 << 15,   /* and pairs of a row and an expert: blocks of a grid, words of shared memory */
    NORM_WIDTH_MOST = 32 * 1024, /* norm_pack keeps a row in registers */
    GEMM_NORM_MOST = 4096,       /* inputs of a product that holds its row until the norm is known */
    GEMM_ROW_MOST = 28672,       /* or need not */
    MOE_FEW = 2,                 /* rows whose experts are multiplied row by row */
    LORA_AREAS = GEMM_SEGS       /* products whose A x are kept at the same time */
};

struct group_kv {
    struct kv_group shape;
    cu_ptr base;
    uint64_t bytes, page_bytes; /* of all pages; of one, with all layers one after the other */
    uint64_t layer_bytes;       /* of a layer in a page */
    uint32_t type, k_row, v_row;
};

/* The addresses of everything on the card except weights and KV. */
struct scratch {
    float **buffer; /* (plan.buffers): (max_rows, width) */
    uint8_t *pack;
    uint8_t *q8;
    uint16_t *half;    /* (max_rows, the most columns) */
    float *half_scale; /* (max_rows): the scales of rows of `half`, and of packed ones for gemm_many; */
    float *out_scale; /* those of OP_OUT: attention writes them while other blocks read those of Q, K and V */
    uint8_t *fp8;     /* the same rows as e4m3, times fp8_scale; NULL: no product wants it */
    float *fp8_scale;
    float *x, *y, *z;  /* float rows; results of products; a second one for experts and latents */
    uint16_t *decoded; /* weights as fp16, decoded_bytes of them at a time */
    uint64_t decoded_bytes;
    float *part, *part_ml;
    uint64_t part_floats;
    uint8_t *chunks; /* of recurrences (struct scan_chunk), the same for all; NULL: they go row by row */
    float *logits;   /* (max_outs, out_width) */
    float *results;  /* the same, pinned host memory that the card can write to */
    float *router, *route_weight, *slot_weight, *shared;
    int32_t *route_expert, *slot, *slot_row, *group_expert;
    struct moe_tile *tile;
    /* adapters: the pairs, (slots + 1, adapters + 1); rows as floats; A x, for lora_rows rows of lora_rank */
    struct lora_entry *lora_table;
    float *lora_x, *lora_low;
    uint32_t lora_rows, lora_rank;
    uint32_t *counters; /* of split-K: counters of blocks, and their partial sums */
    float *sums;
    uint32_t max_rows;
};

/* A weight that stays decoded, as fp16; or, with a scale a row, as e4m3. */
struct kept_weight {
    void *values; /* NULL: it does not */
    float *scale;
};

/* Ways to lower that tests and benchmarks compare. */
struct lower_options {
    bool no_fuse;        /* launches do one thing each; nothing is read before a kernel's wait */
    bool no_wide;        /* attention of many queries without wgmma */
    uint32_t stages;     /* of decode attention; 0: as it costs least */
    uint32_t stream_k;   /* gemm_many where it can be, with that many shares at most; 0: as it costs least */
    const bool *without; /* (LAUNCH_KINDS): kernels to leave out; NULL: none */
};

struct lower {
    const struct gpu_profile *card;
    struct lower_options options;
    const struct plan *plan;
    const struct weights *source; /* of the plan, for the shapes of adapters; NULL: there are none */
    const struct mat *mat;        /* (weights): in the card's layout */
    const uint32_t *width;        /* (plan.buffers) */
    const struct scratch *at;
    const struct group_kv *kv; /* (plan.groups) */
    uint32_t page_tokens;
    float *state; /* slots of state, state_floats each */
    uint64_t state_floats;
    uint32_t ratio[RATIOS_MOST], ratios; /* heads / kv_heads that attention of the plan has */
    const struct kept_weight *kept;      /* (weights): those that stay decoded; NULL: none does */
    bool half;                           /* cuBLASLt is there */
    enum path path;     /* PATH_FLOAT, TILED or INTEGER for all products; else as rows want it */
    uint32_t per_block; /* of PATH_TILED: outputs a block; its chunk is all of x where `whole` */
    bool whole;
};

/* A class of steps: one list serves all of them. rows and outs are rounded up (lower_class). */
struct step_class {
    uint32_t from, to; /* operations */
    uint32_t rows, seqs, outs;
    uint32_t keys;  /* of the longest sequence, rounded up */
    uint32_t tiles; /* bit r: sequences with many queries, for ratio[r] */
    uint8_t decode; /* some sequence has few queries */
    uint8_t single; /* every sequence has one row */
    uint8_t lora;   /* some sequence has adapters */
    uint8_t spans;  /* some row has a span of keys */
    uint8_t chunks; /* 1: some sequence has enough rows for a recurrence in chunks; 2: and some has not */
    uint8_t picks;  /* the card chooses tokens: 1 for some results, 2 for all */
};

/* Rows of an expert layer that are computed at a time: their scratch is bounded. k, f, n: widths of the input, of the
 * experts and of the result. */
uint32_t lower_moe_rows(const struct op_moe *o, uint32_t k, uint32_t f, uint32_t n);
/* The most slots that this number of rows takes. */
uint32_t lower_moe_slots(uint32_t rows, uint32_t used, uint32_t experts);
/* The class of a step with these rows and results; the caller fills in the rest. */
struct step_class lower_class(const struct lower *l, uint32_t rows, uint32_t outs);
/* Makes the list, passes and all. */
int lower_plan(const struct lower *l, const struct step_class *c, struct launch_list *out, struct err *e);
/* Whether the product's input goes through a gate or a norm of slices, into rows of its own. */
static inline bool lower_is_gated(const struct op_out *o)
{
    return o->gate.in.buffer || o->norm.heads > 1;
}
/* Whether prompts of a recurrence may go in chunks (scan_chunk.cu). Keys of the delta rule must be normed: with keys of any
 * length what rows write may grow from row to row. */
static inline bool lower_has_chunks(const struct op_scan *o)
{
    return !o->decay_each && !o->erase.buffer && !o->size.buffer && !o->sharing && !o->before && !o->rest &&
           (!o->delta || o->k_norm.kind) && o->k_dim % 16 == 0 && o->k_dim <= CHUNK_KEYS_MOST &&
           o->v_dim % 16 == 0;
}
/* Floats of a slot of state on the card. */
uint64_t state_floats(const struct plan *p);
/* Why the card has no kernels for an operation, which then gives no launches and belongs on the CPU; NULL: it has. */
const char *lower_refuses(const struct op *op);
/* The ratios of heads to KV heads. */
void lower_ratios(struct lower *l, const struct plan *p);
/* Where weights stay decoded for cuBLASLt: called for each that may, in the order of the plan. */
void lower_each_half(const struct plan *p, void (*visit)(void *arg, weight_id id), void *arg);
