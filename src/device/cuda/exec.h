/* The CUDA device: one model's weights, KV and scratch on one card. All memory is allocated in load and
 * prepare; a step writes one pinned block (the meta data), copies it, replays the list of launches of its
 * class (launch.h), as launches or as a graph, and copies the results back: one synchronisation. */
#pragma once

#include "device/cuda/blas.h"
#include "device/cuda/copies.h"
#include "device/cuda/gpu.h"
#include "device/cuda/kv_memory.h"
#include "device/cuda/nccl.h"
#include "device/cuda/replay.h"
#include "device/cuda/sender.h"
#include "device/cuda/upload.h"
#include "device/device.h"

struct cuda_device {
    struct device base;
    struct device_options options;
    struct gpu *g;
    struct upload weights;
    const struct weights *source;
    struct nccl *nccl;     /* NULL: this card sums with no other */
    struct sender *sender; /* with options.streamed: in place of `weights` */
    void *pinned;          /* host memory of another device that rows are copied to and from directly */
    size_t pinned_bytes;
    bool pinned_here; /* and it is ours to unpin */
    void *passed;     /* event: rows have passed to or from the other device of this card */
    struct group_kv kv[PLAN_GROUPS_MOST];
    struct kv_memory kv_memory[PLAN_GROUPS_MOST];
    uint32_t kv_least[PLAN_GROUPS_MOST]; /* pages with memory from the start */
    uint32_t kv_groups, page_tokens, kv_pages;

    cu_ptr state; /* slots of state */
    struct kv_memory state_memory;
    uint64_t slot_bytes;
    uint32_t states, states_least;         /* least: those that always have memory */
    uint32_t backed[PLAN_GROUPS_MOST + 1]; /* pages that `back` was asked for, of each group and of states */

    /* scratch, all of it one allocation */
    cu_ptr scratch;
    uint64_t scratch_bytes;
    struct scratch at;
    uint32_t buffers;
    uint32_t max_rows, max_seqs, max_outs;
    struct copies copies; /* weights that stay decoded */

    /* the step */
    const struct plan *plan;
    uint8_t *meta_host;
    cu_ptr meta_device;
    uint64_t meta_bytes, meta_used;
    struct launch_step now;
    uint32_t picks,
        seen; /* results whose tokens the card chooses, and the entries of their penalties, rounded up */
    int32_t *picked; /* pinned (max_outs) */
    float *mirror;   /* pinned: rows of a buffer on their way (max_rows, the widest) */
    bool sending;    /* the card may still read it */
    bool ran;

    struct lower lower;
    struct replay replay;
    struct replay_cache cache;
    uint32_t warm_rows; /* up to which products have run once (warm.c) */
};

/* Bytes of one token's K or V of one head. type: enum kv_type. */
uint32_t kv_row_bytes(uint32_t type, uint32_t dim);
/* The layout and the sizes of the groups; allocates nothing. */
int kv_shape(struct group_kv *group, const struct plan *p, const struct kv_config *kv, struct err *e);

/* y (m, w->n) = x (m, w->k) W^T, lowered as an operation of its own; rows of both have no padding. */
int exec_product(struct cuda_device *d, const struct mat *w, const float *x, uint32_t m, float *y,
                 struct err *e);

/* device_ops.warm. */
bool exec_warm(struct cuda_device *d);

/* What a plan takes of scratch (sizes.c). */
struct step_sizes {
    uint32_t y, k, z; /* widest product, widest input, second results */
    uint64_t decoded; /* bytes of the largest weight as fp16 */
    uint32_t experts, used;
    uint32_t moe_rows, slots; /* of an expert layer at a time */
    uint32_t slots_k;         /* their widest input, as a width of max_rows rows */
    uint32_t shared_width;
    uint64_t part; /* floats */
    uint64_t part_ml;
    uint64_t chunk;     /* bytes of a recurrence's chunk; 0: none goes in chunks */
    uint32_t lora_rank; /* the largest rank of an adapter; 0: there are none */
    uint64_t lora_low;  /* floats of a row */
};
struct size_limits {
    const struct gpu_profile *card;
    uint32_t max_rows, max_seqs;
};
int step_measure(const struct size_limits *d, const struct plan *p, const struct weights *all,
                 struct step_sizes *s, struct err *e);

/* How scratch is laid out: the same for a card and for a lowering without one. */
struct scratch_shape {
    uint32_t max_rows, max_outs;
    bool exact, half, fp8; /* float rows; cuBLASLt; and in fp8 */
};
/* Fills in all addresses from `base` on; how many bytes that takes. */
uint64_t scratch_place(struct scratch *s, const struct plan *p, const struct step_sizes *sizes,
                       const struct scratch_shape *shape, cu_ptr base);
/* The block that a step is sent in (step.c): its size, its memory; what a step asks for is there; writes it, and says
 * what class of steps it is. */
void step_size(struct cuda_device *d, const struct plan *p);
int step_take(struct cuda_device *d, const struct plan *p, struct err *e);
int step_check(const struct cuda_device *d, const struct plan *p, const struct step *s, struct err *e);
int step_write(struct cuda_device *d, const struct plan *p, const struct step *s, struct step_class *c,
               struct err *e);

/* The step's rounding: graphs and lists are kept per length, rounded up to eighths of a power of two. */
uint32_t keys_rounded(uint32_t longest);
