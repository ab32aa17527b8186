/* The variant table: which kernel, how many blocks and how much shared memory, by form of weight, number of
 * rows and device profile. It reads nothing else, so it needs no card. */
#pragma once

#include "device/cuda/gpu.h"

/* How a product is launched: the row of the variant table for this form of weight and number of rows (at most 64). */
struct gpu_gemm {
    uint32_t kernel;
    uint32_t groups;  /* of eight streams */
    uint32_t split;   /* warps of a block (many: blocks) that share a strip's columns */
    uint32_t outputs; /* of a strip; gemm_many: of a warpgroup */
    uint32_t rows;    /* gemm_many: of a block */
    uint32_t stages;  /* gemm_many: log2 of the chunks of x in shared memory */
    uint32_t held;    /* gemm_many: blocks that an SM holds */
    bool stream_k;    /* gemm_many: blocks have equal shares of all columns */
    struct gpu_grid grid;
};
/* strips: of 16 outputs, k: columns; paired: strips of gate and up take turns. */
struct gpu_gemm gpu_gemm_choose(const struct gpu_profile *g, uint32_t fmt, uint32_t m, uint32_t strips,
                                uint32_t k, bool paired);
/* 17 to 32 rows of tiles by gemm_staged_few: strips that a block has, and warps that share each; false: they do not fit. */
bool gpu_gemm_few_as(const struct gpu_profile *g, uint32_t strips, uint32_t each, uint32_t split,
                     struct gpu_gemm *how);
/* Whether one row in front of a weight is left to gemm_one, which makes its input itself. */
bool gpu_is_one(const struct mat *w);
struct gpu_gemm gpu_gemm_one(const struct gpu_profile *g, uint32_t outputs, uint32_t k);
/* A product of many rows. units: of MANY_UNIT outputs; in pairs of gate and up their number is even. */
struct gpu_many {
    uint32_t m, k, units;
    bool paired;
};
/* Whether gemm_many takes m rows of this form; and whether it is the faster one for them, so that they are packed in the
 * order PACK_ROWS. */
bool gpu_has_many(const struct gpu_profile *g, uint32_t fmt, uint32_t m);
bool gpu_is_many(const struct gpu_profile *g, uint32_t fmt, const struct gpu_many *p);
/* Whether it is faster than cuBLASLt for m rows and weights that also stay decoded as fp16: those of one set, of which the
 * ones with equally many columns are one product. */
bool gpu_is_many_kept(const struct gpu_profile *g, const struct mat *const *w, uint32_t count, uint32_t m);
/* The rows of its block that m rows want, a multiple of 32, at most `most`. */
static inline uint32_t gpu_many_rows(uint32_t m, uint32_t most)
{
    const uint32_t rows = (m + 31) / 32 * 32;
    return rows < most ? rows : most;
}
struct gpu_gemm gpu_gemm_many(const struct gpu_profile *g, const struct gpu_many *p);
/* The same with the rows and warpgroups of a block, and the blocks of a strip's columns, as the caller wants them; false:
 * they do not fit on the card together. */
bool gpu_gemm_many_as(const struct gpu_profile *g, const struct gpu_many *p, uint32_t rows, uint32_t groups,
                      uint32_t split, struct gpu_gemm *how);
/* The same with equal shares of all columns for as many blocks as fit on the card together, or for `most` of them if that is
 * not 0; false: they cannot have that. */
bool gpu_gemm_many_stream_k(const struct gpu_profile *g, const struct gpu_many *p, uint32_t rows,
                            uint32_t groups, uint32_t most, struct gpu_gemm *how);
/* `tiles` tiles of `rows` rows, each with the matrices of its expert; cores: packed in the order PACK_CORES. */
struct gpu_gemm gpu_gemm_experts(const struct gpu_profile *g, uint32_t fmt, uint32_t rows, uint32_t tiles,
                                 uint32_t outputs, uint32_t k, bool paired, bool cores);
/* How gate and up of the experts of one row are launched: pairs of strips that a block has, warps a strip. */
struct gpu_experts {
    uint32_t pairs, split;
    struct gpu_grid grid;
};
struct gpu_experts gpu_experts_row(const struct gpu_profile *g, uint32_t pairs, uint32_t kinds, uint32_t k,
                                   uint32_t most);
/* Whether blocks of attention that have all keys of a sequence may finish its heads themselves, which saves a launch: all of
 * them are on the card at once. pairs: sequences x KV heads. */
static inline bool gpu_finishes_heads(const struct gpu_profile *g, uint64_t pairs)
{
    return pairs <= 2 * (uint64_t)g->sms;
}
/* How decode attention is launched, where `pairs` sequences x KV heads have up to `keys` keys each. heads: blocks with all
 * keys and one stage would finish them; only: with this number of stages (0: the one that costs least). */
struct gpu_decode {
    uint32_t stages; /* units of 16 keys that a warp has in flight */
    uint32_t shared; /* bytes */
    uint32_t splits; /* blocks that share a pair's keys */
};
struct gpu_decode gpu_decode_choose(const struct gpu_profile *g, uint32_t queries, uint32_t dim,
                                    uint32_t pairs, uint32_t keys, bool heads, uint32_t only);
enum { GPU_SPLITS_MOST = 128 };
/* splits * pairs is at most this. */
static inline uint64_t gpu_decode_parts(const struct gpu_profile *g, uint64_t pairs)
{
    return (uint64_t)g->sms * 4 + 2 * pairs;
}
/* The kernel on the tensor cores for heads of `dim` values: which of the four; -1: there is none. */
int gpu_head_index(uint32_t dim);
/* How attention of many queries is launched, where `blocks` tiles x KV heads see up to `keys` keys each. */
struct gpu_prefill {
    uint32_t kernel;
    uint32_t splits; /* blocks that share a tile's keys */
    uint32_t shared;
};
enum { GPU_PREFILL_SPLITS = 16 };
struct gpu_prefill gpu_prefill_choose(const struct gpu_profile *g, uint32_t dim, uint32_t blocks,
                                      uint32_t keys, bool no_wide);
/* blocks * splits is at most this where there are several. */
static inline uint32_t gpu_prefill_slots(const struct gpu_profile *g)
{
    return 3 * (uint32_t)g->sms;
}
/* Groups of eight streams that m rows are packed in, side by side: 1, 2, 4 or 8. */
uint32_t gpu_gemm_groups(uint32_t m);
/* Dynamic shared memory that a block may have. */
uint32_t gpu_shared_most(const struct gpu_profile *g);
