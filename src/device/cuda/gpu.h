/* One card: its primary context, a stream, our kernels on it, and what it is (the device profile).
 * Belongs to one thread. After a fault that the driver calls sticky every call answers "device lost". */
#pragma once

#include "base/err.h"
#include "device/cuda/driver.h"
#include "device/cuda/params.h"

#include <stdbool.h>

/* The products come in fours, for up to 8, 16, 32 and 64 streams, in the order of enum fmt. */
enum gpu_module {
    MODULE_GEMM_TILE,
    MODULE_GEMM_WIDE,
    MODULE_GEMM_PLAIN,
    MODULE_GEMM_NIBBLE,
    MODULE_GEMM_SUPER,
    MODULE_WEIGHTS,
    MODULE_ROWS,
    MODULE_ATTN,
    MODULE_ATTN_PREFILL,
    MODULE_ATTN_WIDE,
    MODULE_MOE,
    MODULE_LORA,
    MODULE_SMALL,
    MODULE_COUNT
};

enum gpu_kernel {
    K_GEMM = 0,                 /* + 4 * fmt + (0, 1, 2, 3); the forms of tiles share theirs */
    K_GEMM_ROW = 4 * FMT_COUNT, /* tiles, one row */
    K_GEMM_STAGED,              /* tiles, 32 rows at a time, columns staged */
    K_GEMM_WIDE,                /* tiles, up to 64 rows, by wgmma */
    K_REPACK,
    K_DEQUANT,
    K_DEQUANT_TILE,
    K_GEMM_FLOAT,
    K_GEMV_TILED,
    K_QUANTISE,
    K_GEMV_DP4A,
    K_PROBE,
    K_NORM_PACK, /* + 0..2: rows of up to 4096, 8192, 32768 */
    K_ACT_PACK = K_NORM_PACK + 3,
    K_ACT_ROWS,
    K_TAIL,
    K_EMBED,
    K_FINISH,
    K_QKV,
    K_LATENT,
    K_ATTN_ANY,
    K_ATTN_COMBINE,
    K_ATTN_DECODE,                  /* + 0..3: head sizes 64, 96, 128, 256 */
    K_ATTN_FEW = K_ATTN_DECODE + 4, /* at most 8 queries */
    K_ATTN_FAR = K_ATTN_FEW + 4,    /* the same with more keys in flight */
    K_ATTN_PREFILL = K_ATTN_FAR + 4,
    K_ATTN_WIDE = K_ATTN_PREFILL + 4, /* head size 128, by wgmma */
    K_ATTN_JOIN,
    K_ROUTE,
    K_GROUP,
    K_COMBINE,
    K_LORA_DOWN,
    K_LORA_UP,
    K_EACH,
    K_SOFTMAX,
    K_ROPE,
    K_TOP,
    K_PICK,
    K_PICK_ROWS,
    K_COUNT
};

/* What the card is; selects kernels, and `quern doctor` prints it. */
struct gpu_profile {
    char name[96];
    int major, minor, sms, driver;
    int shared_block, l2_bytes, clock_khz, memory_khz, bus_bits, ecc;
    size_t memory;
    double read_gbs; /* measured by gpu_measure; 0 = not yet */
};

/* For benchmarks: whether products with staged columns are taken. */
enum gpu_stage { GPU_STAGE_AUTO, GPU_STAGE_NEVER, GPU_STAGE_ALWAYS };

struct gpu {
    const struct driver *cu;
    int card;
    void *context, *stream;
    void *module[MODULE_COUNT];
    void *kernel[K_COUNT];
    struct gpu_profile profile;
    bool plain_launch; /* without programmatic dependent launch (below sm_90) */
    int lost;          /* the driver's code, once it said so */
    uint64_t taken;    /* bytes of device memory that are ours */
    uint64_t limit;    /* at most; 0 = what is free */
    uint64_t launches; /* so far */
    enum gpu_stage stage;
    uint32_t stages;           /* for tests: of decode attention; 0 = as it costs least */
    struct gpu_timing *timing; /* while a profile is taken; else NULL */
    bool wide;                 /* kernels with wgmma are there (Hopper) */
    bool no_wide;              /* for tests: not for attention */
    cu_ptr meeting;            /* for blocks that add up what each has: counters, then room for parts */
    bool skip[K_COUNT];        /* for benchmarks: leaves a kernel out, to see what it costs */
};

struct gpu *gpu_open(int index, uint64_t limit, struct err *e);
void gpu_close(struct gpu *g);
/* How many cards there are; -1 and the reason where there is no driver. */
int gpu_count(struct err *e);

/* 0 where r is CU_OK, else -1 and a sentence: `doing` is what failed. */
int gpu_check(struct gpu *g, int r, const char *doing, struct err *e);
/* -1 and "device lost" where it is. */
int gpu_alive(const struct gpu *g, struct err *e);
/* The same, and makes the card's context that of the calling thread: who opens a device need not be who uses it. */
int gpu_enter(struct gpu *g, struct err *e);

/* What can still be taken. */
int gpu_room(struct gpu *g, uint64_t *bytes, struct err *e);
cu_ptr gpu_alloc(struct gpu *g, uint64_t bytes, const char *what, struct err *e); /* 0 on failure */
void gpu_free(struct gpu *g, cu_ptr p, uint64_t bytes);
void *gpu_pinned(struct gpu *g, uint64_t bytes, struct err *e);
void gpu_pinned_free(struct gpu *g, void *p);

struct gpu_grid {
    unsigned x, y, z, threads, shared;
};

static inline struct gpu_grid gpu_grid(unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared)
{
    return (struct gpu_grid){x, y, z, threads, shared};
}

int gpu_launch(struct gpu *g, uint32_t kernel, struct gpu_grid grid, const void *args, struct err *e);
int gpu_sync(struct gpu *g, struct err *e);

/* How a product is launched: the row of the variant table for this form of weight and number of rows (at most 64). */
struct gpu_gemm {
    uint32_t kernel;
    uint32_t groups;  /* of eight streams */
    uint32_t split;   /* warps of a block (wide: blocks) that share a strip's columns */
    uint32_t outputs; /* of a strip */
    struct gpu_grid grid;
};
/* strips: of 16 outputs, k: columns; paired: strips of gate and up take turns. */
struct gpu_gemm gpu_gemm_choose(const struct gpu *g, uint32_t fmt, uint32_t m, uint32_t strips, uint32_t k,
                                bool paired);
/* Whether m rows in front of weights of this form are packed in the order PACK_CORES, for gpu_gemm_wide. */
bool gpu_is_wide(const struct gpu *g, uint32_t fmt, uint32_t m);
/* units: of 64 outputs; in pairs of gate and up their number is even. */
struct gpu_gemm gpu_gemm_wide(const struct gpu *g, uint32_t units, uint32_t k, bool paired);
/* The same with warpgroups a block and blocks a strip's columns as the caller wants them. */
struct gpu_gemm gpu_gemm_wide_as(uint32_t units, uint32_t groups, uint32_t split);
/* How decode attention is launched, where `pairs` sequences x KV heads have up to `keys` keys each. */
struct gpu_decode {
    uint32_t stages; /* units of 16 keys that a warp has in flight */
    uint32_t shared; /* bytes */
    uint32_t splits; /* blocks that share a pair's keys */
};
struct gpu_decode gpu_decode_choose(const struct gpu *g, uint32_t queries, uint32_t dim, uint32_t pairs,
                                    uint32_t keys);
enum { GPU_SPLITS_MOST = 128 };
/* splits * pairs is at most this. */
static inline uint64_t gpu_decode_parts(const struct gpu *g, uint64_t pairs)
{
    return (uint64_t)g->profile.sms * 4 + 2 * pairs;
}
/* The kernels on the tensor cores for heads of so many values: which of the four; -1: there is none. */
int gpu_head_index(uint32_t dim);
/* How attention of many queries is launched, where `blocks` tiles x KV heads see up to `keys` keys each. */
struct gpu_prefill {
    uint32_t kernel;
    uint32_t splits; /* blocks that share a tile's keys */
    uint32_t shared;
};
enum { GPU_PREFILL_SPLITS = 16 };
struct gpu_prefill gpu_prefill_choose(const struct gpu *g, uint32_t dim, uint32_t blocks, uint32_t keys);
/* blocks * splits is at most this where there are several. */
static inline uint32_t gpu_prefill_slots(const struct gpu *g)
{
    return 3 * (uint32_t)g->profile.sms;
}
enum { GPU_COUNTERS = 1 << 16 }; /* zero between kernels */
static inline uint32_t *gpu_counters(const struct gpu *g)
{
    return (uint32_t *)g->meeting;
}
/* 64 rows x 256 outputs for each SM. */
static inline float *gpu_parts(const struct gpu *g)
{
    return (float *)(g->meeting + 4ull * GPU_COUNTERS);
}
/* Groups of eight streams that m rows are packed in, side by side: 1, 2, 4 or 8. */
uint32_t gpu_gemm_groups(uint32_t m);
const char *gpu_kernel_name(uint32_t kernel);
/* GB/s of reading, over 2 GB (or less where less is free). */
int gpu_measure(struct gpu *g, struct err *e);
/* Operations a clock and multiprocessor of dense fp16 products with float sums, by compute capability. */
double gpu_tensor_ops(int major, int minor);

/* The kernels that were built in: NULL where nvcc was not there. */
const void *gpu_blob(enum gpu_module module);

static inline unsigned gpu_blocks(uint64_t n, uint64_t per)
{
    return (unsigned)((n + per - 1) / per);
}
