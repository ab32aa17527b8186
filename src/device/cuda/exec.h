/* The CUDA device: one model's weights, KV and scratch on one card, and the launches that run its plan.
 * Everything is taken in load and prepare; a step writes one pinned block (the meta data), copies it,
 * launches (or replays a graph), and copies the results back: one synchronisation. */
#pragma once

#include "device/cuda/blas.h"
#include "device/cuda/gpu.h"
#include "device/cuda/upload.h"
#include "device/device.h"

/* How a product takes its input: packed fp16 for up to PATH_PACK_MOST rows, fp16 rows through cuBLASLt
 * beyond, float rows in exact mode. */
enum path { PATH_PACK, PATH_HALF, PATH_FLOAT };

enum {
    PACK_ROWS_MOST = 128, /* more rows than this go to cuBLASLt */
    GRAPHS_MOST = 64,
    TILE_QUERIES = 64,   /* of prefill attention */
    DECODE_QUERIES = 16, /* sequences with at most this many (row, head of a group) pairs are decode */
    RATIOS_MOST = 4,     /* different heads / kv_heads in a plan */
    MOE_ROWS = 512,      /* rows of an expert layer at a time */
    NORM_WIDTH_MOST = 32 * 1024, /* norm_pack keeps a row in registers */
    GEMM_NORM_MOST = 4096,       /* inputs of a product that norms its row itself */
    GEMM_ROW_MOST = 28672,       /* or only packs it */
    COPIES_LEAVE = 256 << 20 /* bytes that decoded weights leave free: the driver and cuBLASLt take some */
};

struct group_kv {
    struct kv_group shape;
    cu_ptr base;
    uint64_t bytes, page_bytes, layer_bytes;
    uint32_t type, k_row, v_row;
};

/* What a step's launches depend on: a graph serves all steps with the same key. */
struct step_key {
    const struct plan *plan;
    uint32_t rows, seqs, outs, width, longest;
    uint32_t from, to; /* operations */
    uint32_t picks, seen, lora;
};

struct step_graph {
    struct step_key key;
    void *exec;
    uint64_t used; /* step of the last use */
};

/* The rows that the next products take, as floats: row i is x's row x_row[i] (NULL: i), and row first + row[i] (NULL:
 * first + i) of the step. expert: (rows / 8), or NULL. */
struct lora_in {
    const float *x;
    uint64_t ldx;
    const int32_t *x_row, *row, *expert;
    uint32_t first;
};

struct cuda_device {
    struct device base;
    struct device_options options;
    struct gpu *g;
    struct blas *blas;
    struct upload weights;
    const struct weights *source;
    struct group_kv kv[PLAN_GROUPS_MOST];
    uint32_t kv_groups, page_tokens, kv_pages;

    /* scratch, all of it one allocation */
    cu_ptr scratch;
    uint64_t scratch_bytes;
    float **buffer; /* (plan.buffers): (max_rows, width) */
    uint32_t buffers;
    const uint32_t *width;
    uint8_t *pack;
    enum pack_order order; /* of what is packed there, or will be next */
    uint16_t *half;        /* (max_rows, k_most) */
    float *half_scale;     /* (max_rows) */
    float *x, *y, *z;      /* float rows; results of products; a second one for experts and latents */
    uint16_t *decoded;     /* weights as fp16, decoded_bytes of them at a time */
    uint64_t decoded_bytes;
    /* weights that stay decoded (options.copies), each from the first prompt on that wants it, until the pool is full */
    cu_ptr copies;
    uint64_t copies_bytes, copies_used;
    const uint16_t **copy; /* (weights.count) */
    float *part, *part_ml;
    float *logits; /* (max_outs, out_width) */
    float *router, *route_weight, *shared, *shared_gate;
    int32_t *route_expert, *slot, *slot_row, *group_expert;
    uint32_t y_most, k_most, z_most;
    uint32_t max_rows, max_seqs, max_outs;

    /* the step */
    uint8_t *meta_host;
    cu_ptr meta_device;
    uint64_t meta_bytes, meta_used;
    struct meta meta; /* device pointers */
    uint32_t ratio[RATIOS_MOST], ratios, tiles[RATIOS_MOST],
        tiles_at[RATIOS_MOST]; /* prefill tiles by heads / kv_heads */
    bool any_decode, any_prefill;
    uint32_t longest; /* of the sequences, rounded up to a power of two */
    float *results;   /* pinned; the card writes to it too */
    bool direct;      /* this step's product of the head did */
    /* tokens that the card chooses: for how many results, and the entries of their penalties, rounded up */
    uint32_t picks, seen;
    struct pick_args pick;
    int32_t *picked; /* pinned (max_outs) */
    uint32_t outs, out_width;
    struct gemm_in in; /* the input that the next product makes itself (x NULL: none) */
    struct pack_args in_rows;
    struct attn_args
        unjoined;          /* attention's parts of one row, left to the product behind it; part NULL: none */
    bool no_fuse;          /* for benchmarks: never, and no pairs of gate and up either */
    struct operand packed; /* what attention has packed already for the product that follows */
    /* adapters: the pairs, (slots + 1, adapters + 1); rows as floats; A x, for lora_rows rows of lora_rank */
    struct lora_entry *lora_table;
    float *lora_x, *lora_low;
    uint32_t lora_rows, lora_rank;
    bool lora;                     /* some sequence of this step has adapters: */
    const struct adapter_mix *mix; /* (seqs), on the card */
    struct lora_in lora_in;
    uint32_t row_first; /* of the rows that are computed now */
    const struct plan *plan;
    uint32_t from, to; /* the operations of this step */
    float *mirror;     /* pinned: rows of a buffer on their way (max_rows, the widest) */
    bool ran;

    struct step_graph graph[GRAPHS_MOST];
    uint32_t graphs;
    uint64_t step;
    bool no_graphs; /* building one failed once, or the caller wants none */
};

/* Bytes of one token's K or V of one head. type: enum kv_type. */
uint32_t kv_row_bytes(uint32_t type, uint32_t dim);

/* Launches operation i of the plan (step.c). */
int step_op(struct cuda_device *d, const struct plan *p, uint32_t i, struct err *e);

/* y (m, w->n) = x (m, w->k) W^T by the kernels of `path`; rows of both lie tightly. */
int step_product(struct cuda_device *d, enum path path, const struct mat *w, const float *x, uint32_t m,
                 float *y, struct err *e);

/* Sizes that step.c needs and cuda.c takes. */
struct step_sizes {
    uint32_t y, k, z; /* widest product, widest input, second results */
    uint64_t decoded; /* bytes of the largest weight as fp16 */
    uint64_t copies;  /* of all that are not fp16 as they are */
    uint32_t experts, used;
    uint32_t shared_width;
    uint64_t part; /* floats */
    uint64_t part_ml;
    uint32_t lora_rank; /* the largest rank of an adapter; 0: there are none */
    uint64_t lora_low;  /* floats of a row */
};
int step_measure(const struct cuda_device *d, const struct plan *p, const struct weights *all,
                 struct step_sizes *s, struct err *e);
