/* One card: its primary context, a stream, our kernels on it, and what it is (the device profile). Used by
 * one thread only. After a fault that the driver calls sticky every call fails with "device lost". */
#pragma once

#include "base/err.h"
#include "device/cuda/driver.h"
#include "device/cuda/params.h"

#include <stdatomic.h>
#include <stdbool.h>

/* The products come in fours, for up to 8, 16, 32 and 64 streams, in the order of enum fmt. */
enum gpu_module {
    MODULE_GEMM_TILE,
    MODULE_GEMM_WIDE,
    MODULE_GEMM_MANY,
    MODULE_GEMM_ONE,
    MODULE_GEMM_PLAIN,
    MODULE_GEMM_NIBBLE,
    MODULE_GEMM_SUPER,
    MODULE_WEIGHTS,
    MODULE_ROWS,
    MODULE_ATTN,
    MODULE_ATTN_PREFILL,
    MODULE_ATTN_WIDE,
    MODULE_MOE,
    MODULE_MOE_ROW,
    MODULE_LORA,
    MODULE_STATE,
    MODULE_SCAN_CHUNK,
    MODULE_SMALL,
    MODULE_COUNT
};

enum gpu_kernel {
    K_GEMM = 0,                 /* + 4 * fmt + (0, 1, 2, 3); the forms of tiles share theirs */
    K_GEMM_ROW = 4 * FMT_COUNT, /* tiles, one row */
    K_GEMM_ROW_ANY,             /* the same with a gate, parts, a convolution, a mean or a bias of the norm */
    K_GEMM_ONE,                 /* small weights of any form, one row */
    K_GEMM_STAGED,              /* tiles, 32 rows at a time, columns staged */
    K_GEMM_STAGED_FEW,          /* the same where there are few strips */
    K_GEMM_EXPERTS,             /* tiles, up to 8 rows of an expert */
    K_GEMM_WIDE,                /* tiles, up to 64 rows of an expert, by wgmma */
    K_GEMM_MANY,                /* many rows, by wgmma: + 0..3: 32, 64, 96, 128 a block */
    K_REPACK = K_GEMM_MANY + MANY_KERNELS,
    K_FETCH,
    K_DEQUANT,
    K_DEQUANT_TILE,
    K_FP8,
    K_GEMM_FLOAT,
    K_GEMV_TILED,
    K_QUANTISE,
    K_GEMV_DP4A,
    K_PROBE,
    K_NORM_PACK,                       /* + 0..2: rows of up to 4096, 8192, 32768 */
    K_NORM_SUM = K_NORM_PACK + 3,      /* the same, of rows that are summed there */
    K_NORM_COMBINE = K_NORM_SUM + 3,   /* + 0, 1: the same, of sums of experts */
    K_NORM_SLOTS = K_NORM_COMBINE + 2, /* + 0..2: the same as K_NORM_PACK, for slots of experts' rows */
    K_ACT_PACK = K_NORM_SLOTS + 3,
    K_ACT_ROWS,
    K_TAIL,
    K_EMBED,
    K_MAP,
    K_MIX,
    K_FINISH,
    K_QKV,
    K_LATENT,
    K_ATTN_ANY,
    K_ATTN_COMBINE,
    K_ATTN_DECODE,                  /* + 0..3: head sizes 64, 96, 128, 256 */
    K_ATTN_FEW = K_ATTN_DECODE + 4, /* at most 8 queries */
    K_ATTN_FAR = K_ATTN_FEW + 4,    /* the same with more keys in flight */
    K_ATTN_ROW = K_ATTN_FAR + 4,    /* a row a sequence, whose heads it finishes itself */
    K_ATTN_PREFILL = K_ATTN_ROW + 4,
    K_ATTN_WIDE = K_ATTN_PREFILL + 4, /* + 0 to 2: head sizes 64, 96, 128, by wgmma */
    K_ATTN_JOIN = K_ATTN_WIDE + 3,
    K_ROUTER, /* + 0..2: one row, up to 64, more */
    K_ROUTE = K_ROUTER + 3,
    K_GROUP,
    K_SORT, /* + 0, 1: both for few rows of up to 128 and 256 experts */
    K_COMBINE = K_SORT + 2,
    K_MOE_UP,   /* one row or two */
    K_MOE_UP_4, /* of forms of four chunks */
    K_MOE_DOWN,
    K_CONV, /* + 0, 1: up to 4 and 8 columns */
    K_CONV_STATE = K_CONV + 2,
    K_SCAN,                             /* + 0..5: 1 to 32 lanes a column */
    K_SCAN_EACH = K_SCAN + 6,           /* a decay for each key */
    K_SCAN_CHANNELS = K_SCAN_EACH + 6,  /* states that are vectors */
    K_SCAN_ERASE = K_SCAN_CHANNELS + 6, /* rows that erase, and a decay for each key */
    K_SCAN_READY = K_SCAN_ERASE + 6,    /* in chunks: + 0..3: 64 and 128 keys, the same with the delta rule */
    K_SCAN_FOLLOW = K_SCAN_READY + 4,   /* the same */
    K_CELL = K_SCAN_FOLLOW + 4,         /* + enum cell_kind */
    K_GATE = K_CELL + 3,
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
    bool wide;       /* kernels with wgmma are there (Hopper) */
};

struct gpu {
    const struct driver *cu;
    int card;
    void *context, *stream;
    void *module[MODULE_COUNT];
    void *kernel[K_COUNT];
    struct gpu_profile profile;
    bool plain_launch;       /* no programmatic dependent launch (below sm_90) */
    bool fetches;            /* kernels can read pinned memory of the host by its address there */
    bool whole_next;         /* the next kernel begins when all before it have ended */
    int lost;                /* the driver's error code once the card is lost */
    uint64_t taken;          /* bytes of device memory that are ours, without what is only held to spare */
    struct gpu_spare *spare; /* ours; NULL: there is none */
    uint64_t limit;          /* at most; 0 = what is free */
    int shared_percent; /* of an SM's memory that launches want as shared memory; 0: as each kernel has it */
    struct gpu_timing *timing; /* while a profile is taken; else NULL */
    cu_ptr split_k;            /* of split-K: counters of blocks, then room for partial sums */
};

struct gpu *gpu_open(int index, uint64_t limit, struct err *e);
void gpu_close(struct gpu *g);

/* 0 where r is CU_OK, else -1 and a sentence: `doing` is what failed. */
int gpu_check(struct gpu *g, int r, const char *doing, struct err *e);
/* -1 and "device lost" where it is. */
int gpu_alive(const struct gpu *g, struct err *e);
/* The same, and makes the card's context that of the calling thread: the thread that opens a device need not
 * be the one that uses it. */
int gpu_enter(struct gpu *g, struct err *e);

/* ---- memory ---- */

/* What holds memory of a card only as long as nothing else needs it: decoded weights (copies.h), sent ones (sender.h). */
struct gpu_spare {
    int card;
    _Atomic uint64_t bytes; /* that it holds */
    /* Frees at least `bytes` of them, or all it holds if that is less. Any thread may call it. */
    void (*give)(struct gpu_spare *s, uint64_t bytes);
    struct gpu_spare *next;
};
void gpu_spare_add(struct gpu_spare *s);
void gpu_spare_remove(struct gpu_spare *s);
/* What all of them hold of a card. */
uint64_t gpu_spare_bytes(int card);
/* What can still be allocated, memory that gpu_spare holds included. */
int gpu_room(struct gpu *g, uint64_t *bytes, struct err *e);
/* Held around gpu_make_room and the allocation that it is for, and by gpu_spare's owners while they take memory: what one
 * has made free is not taken by the other. Before the locks of gpu_spare's owners. */
void gpu_memory_lock(void);
void gpu_memory_unlock(void);
/* If fewer than `bytes` are free, frees memory that gpu_spare holds. gpu_memory_lock is held. */
void gpu_make_room(struct gpu *g, uint64_t bytes);
/* There is only `room` for these bytes: always -1. */
int gpu_refuse(const struct gpu *g, uint64_t bytes, uint64_t room, const char *what, struct err *e);
cu_ptr gpu_alloc(struct gpu *g, uint64_t bytes, const char *what, struct err *e); /* 0 on failure */
void gpu_free(struct gpu *g, cu_ptr p, uint64_t bytes);
/* Memory behind reserved addresses, in granules; ERR_RESOURCE: none is left. Not every card can. */
#define GPU_GRANULE ((uint64_t)2 << 20)
static inline uint64_t gpu_granules(uint64_t bytes)
{
    return (bytes + GPU_GRANULE - 1) / GPU_GRANULE * GPU_GRANULE;
}
bool gpu_can_map(struct gpu *g);
int gpu_map(struct gpu *g, cu_ptr at, uint64_t bytes, const char *what, struct err *e);
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
/* Copies bytes (a multiple of four) in the order of the stream, within the card, and to the card from pinned memory of the
 * host. By a kernel: a copy engine works in the order in which it was asked, so a few bytes would wait for all weights that
 * are on their way in another stream. */
int gpu_copy(struct gpu *g, cu_ptr to, const void *from, uint64_t bytes, const char *doing, struct err *e);
int gpu_fetch(struct gpu *g, cu_ptr to, const void *from, uint64_t bytes, const char *doing, struct err *e);
int gpu_sync(struct gpu *g, struct err *e);

enum { GPU_COUNTERS = 1 << 16 }; /* zero between kernels */
static inline uint32_t *gpu_counters(const struct gpu *g)
{
    return (uint32_t *)g->split_k;
}
/* 128 rows x 256 outputs for each SM. */
static inline float *gpu_parts(const struct gpu *g)
{
    return (float *)(g->split_k + 4ull * GPU_COUNTERS);
}
const char *gpu_kernel_name(uint32_t kernel);
/* GB/s of reading, over 2 GB (or less where less is free). */
int gpu_measure(struct gpu *g, struct err *e);
/* Bytes a second from pinned host memory to the card. */
int gpu_measure_link(struct gpu *g, double *bytes_s, struct err *e);
/* Operations a clock and multiprocessor of dense fp16 products with float sums, by compute capability. */
double gpu_tensor_ops(int major, int minor);

/* The built-in kernels: NULL in a build without nvcc. */
const void *gpu_blob(enum gpu_module module);

static inline unsigned gpu_blocks(uint64_t n, uint64_t per)
{
    return (unsigned)((n + per - 1) / per);
}
