/* A plan as the card runs it: an explicit list of launches, each with its kernel, its grid, its arguments,
 * what it reads and writes, its operation and the reason for it.
 *
 *   lower.c    plan + class of steps + device profile -> the plain list, one operation after the other
 *   passes.c   the same list with fewer launches (fusions), and the row of the variant table for each product
 *   replay.c   list + step -> numbers in place of names (launch_bind), then launches, or a graph
 *
 * All addresses are in the arguments when the list is made. What differs between steps of a class is named
 * instead: how many rows (struct launch_rows), the step's data (struct launch_step); launch_bind puts them
 * in. */
#pragma once

#include "device/cuda/blas.h"
#include "device/cuda/variants.h"
#include "device/plan.h"

enum {
    LAUNCH_BLAS = K_COUNT, /* cuBLASLt */
    LAUNCH_RESULTS,        /* a copy to the host */
    LAUNCH_KINDS
};

/* Which struct of params.h a launch has. */
enum launch_args {
    ARGS_GEMM,
    ARGS_FLOAT,
    ARGS_PACK,
    ARGS_ACT,
    ARGS_TAIL,
    ARGS_EMBED,
    ARGS_MAP,
    ARGS_MIX,
    ARGS_FINISH,
    ARGS_QKV,
    ARGS_LATENT,
    ARGS_ATTN,
    ARGS_ATTN_ROW,
    ARGS_ROUTER,
    ARGS_ROUTE,
    ARGS_GROUP,
    ARGS_SORT,
    ARGS_COMBINE,
    ARGS_PACK_COMBINE,
    ARGS_MOE_ROW,
    ARGS_CONV,
    ARGS_SCAN,
    ARGS_CELL,
    ARGS_GATE,
    ARGS_LORA,
    ARGS_DEQUANT,
    ARGS_FP8,
    ARGS_PICK,
    ARGS_EACH,
    ARGS_Q8,
    ARGS_GEMV,
    ARGS_SAMPLE,
    ARGS_BLAS,
    ARGS_RESULTS
};

/* Where a launch reads or writes: a buffer of the plan (with its number), or scratch. */
enum launch_place {
    PLACE_NONE,
    PLACE_BUFFER,
    PLACE_PACK,   /* input of products, packed fp16 */
    PLACE_HALF,   /* the same for cuBLASLt */
    PLACE_FP8,    /* and as fp8 */
    PLACE_FLOATS, /* the same as float rows */
    PLACE_Q8,     /* the same as int8 blocks */
    PLACE_Y,      /* results of products */
    PLACE_Z,
    PLACE_PARTS, /* attention's, of blocks that share keys */
    PLACE_KV,
    PLACE_DECODED, /* weights as fp16 */
    PLACE_ROUTE,   /* experts chosen, and the slots of their rows */
    PLACE_SHARED,  /* the shared expert's result */
    PLACE_STATE,   /* slots of state */
    PLACE_CHUNKS,  /* what recurrences in chunks make of rows */
    PLACE_LORA_X,
    PLACE_LORA_LOW,
    PLACE_LOGITS,
    PLACE_HOST,
    PLACE_COUNT
};

struct span {
    uint8_t place; /* enum launch_place */
    uint32_t buffer, col;
};

enum { LAUNCH_READS = 5, LAUNCH_WRITES = 2 };

/* Whose rows a launch has: [first, first + most) of the step's, or of its results; or the slots that experts' rows take:
 * used experts for each of those rows, each expert's padded to tiles of so many; or, instead of a row, each such tile; or
 * each pair of a row and one of its experts, without what is padded. */
enum rows_of { ROWS_NONE, ROWS_STEP, ROWS_RESULTS, ROWS_PAIRS, ROWS_SLOTS, ROWS_TILES };

struct launch_rows {
    uint8_t of; /* enum rows_of */
    uint32_t first, most;
    uint32_t used, experts, tile; /* of ROWS_PAIRS (used), ROWS_SLOTS and ROWS_TILES */
};
/* Rows of a tile where each expert has about pairs / experts of them: few enough that most of a tile is rows, many
 * enough that most experts have one tile. */
static inline uint32_t launch_tile_rows(uint32_t pairs, uint32_t experts)
{
    return pairs <= 5 * experts ? 8 : pairs <= 12 * experts ? 16 : pairs <= 24 * experts ? 32 : 64;
}
/* Tiles there may be for the experts of n rows. */
static inline uint32_t launch_tiles(uint32_t n, uint32_t used, uint32_t experts, uint32_t tile)
{
    const uint32_t pairs = n * used;
    return pairs / tile + (pairs < experts ? pairs : experts);
}

/* Which dimension of the grid counts rows, `each` of them a block; or y counts the step's sequences. */
enum grid_rows { GRID_FIXED, GRID_X, GRID_Y, GRID_SEQS };

struct copy_args {
    float *to;
    const float *from;
    uint64_t row; /* floats */
};

union launch_params {
    struct gemm_args gemm;
    struct float_args product;
    struct pack_args pack;
    struct act_args act;
    struct tail_args tail;
    struct embed_args embed;
    struct finish_args finish;
    struct qkv_args qkv;
    struct latent_args latent;
    struct attn_args attn;
    struct attn_row_args attn_row;
    struct router_args router;
    struct route_args route;
    struct group_args group;
    struct sort_args sort; /* begins with those of `group` */
    struct combine_args combine;
    struct pack_combine_args pack_combine;
    struct moe_row_args moe_row;
    struct conv_args conv;
    struct scan_args scan;
    struct cell_args cell;
    struct gate_args gate;
    struct map_args map;
    struct mix_args mix;
    struct lora_args lora;
    struct dequant_args dequant;
    struct fp8_args fp8;
    struct pick_args pick;
    struct rows_args each;
    struct q8_args q8;
    struct gemv_args gemv;
    struct sample_args sample;
    struct blas_product blas;
    struct copy_args copy;
};

struct launch {
    uint16_t kernel; /* enum gpu_kernel, or LAUNCH_BLAS, LAUNCH_RESULTS */
    uint8_t args;    /* enum launch_args */
    uint8_t order;   /* of a product: enum pack_order of its input */
    uint8_t grid_rows, each;
    uint8_t ratio; /* of attention over tiles of queries: which list of tiles */
    uint8_t group; /* of what sees KV: which group's page table */
    uint8_t side;  /* of what sorts rows by expert: enum moe_side, with the step's border */
    uint32_t op;   /* of the plan */
    uint32_t m;    /* rows, as many as the class may have */
    uint32_t once; /* a weight that is decoded for good: not again once it is */
    bool more;     /* and another launch follows before it is */
    struct launch_rows rows;
    struct gpu_grid grid;
    struct span reads[LAUNCH_READS], writes[LAUNCH_WRITES];
    const char *why; /* it is there */
    const char *how; /* of a product: why this kernel */
    union launch_params a;
};

struct launch_list {
    struct launch *all; /* (count) */
    uint32_t count, room;
    bool part;   /* of another list: it cannot grow */
    bool failed; /* there was no room */
};

/* Adds a zeroed launch; never NULL: without room it is a dummy, and list.failed is set. */
struct launch *launch_add(struct launch_list *list);
/* The same at place i. */
struct launch *launch_insert(struct launch_list *list, uint32_t i);
void launch_remove(struct launch_list *list, uint32_t i);
int launch_reserve(struct launch_list *list, uint32_t room, struct err *e);
void launch_free(struct launch_list *list);

static inline bool span_same(struct span a, struct span b)
{
    return a.place && a.place == b.place && a.buffer == b.buffer;
}
bool launch_reads(const struct launch *l, struct span s);
bool launch_writes(const struct launch *l, struct span s);

/* What a step brings along. */
enum { RATIOS_MOST = 4 }; /* different heads / kv_heads in a plan */
struct launch_step {
    struct meta meta;                                   /* device pointers */
    const struct adapter_mix *mix;                      /* (seqs), on the card */
    uint32_t tiles[RATIOS_MOST], tiles_at[RATIOS_MOST]; /* prefill tiles by heads / kv_heads */
    uint32_t keys;                                      /* of the longest sequence, rounded up */
    uint32_t border;                                    /* of experts that are divided */
    struct pick_args pick;
};

/* What binding needs beside the step. */
struct launch_limits {
    const struct gpu_profile *card;
    uint64_t part_floats; /* of attention's parts */
    bool no_wide;         /* attention without wgmma */
    uint32_t rows, outs;  /* that scratch has, of a step and of its results; 0: as many as the list */
};

/* Rows that cuBLASLt is called with for m: it looks for an algorithm for every number of them, so these are few. */
uint32_t launch_blas_rows(uint32_t m);
/* How many rows a launch has in this step. */
uint32_t launch_rows(const struct launch_rows *r, const struct meta *m);
void launch_bind(struct launch *l, const struct launch_step *s, const struct launch_limits *limits);
/* Whether a bound launch has no blocks: it is left out. */
bool launch_empty(const struct launch *l);
struct buf;
/* One line: kernel, grid, what it reads and writes, why. The launch is bound. */
void launch_print(const struct launch *l, struct buf *out);
