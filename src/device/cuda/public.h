/* What the files behind quern_gpu.h share. */
#pragma once

#include "quern_gpu.h"

#include "device/cuda/exec.h"

enum { PUBLIC_RING = 64, PUBLIC_PARTS = 1024, PUBLIC_PROFILE = 64 };
enum {
    PUBLIC_VECTORS = 16,
    PUBLIC_BUFFERS = 8,
    PUBLIC_OPS = 4,
    KV_PAGE = 16
}; /* of a call; tokens of a page */

struct public_weight {
    char *name;
    struct mat mat;
    uint64_t bytes;
};

/* A row of the profile: an operation by its name. */
struct public_row {
    const char *name;
    int level; /* 0 macro, 1 midi, 2 micro */
    uint64_t calls;
    double seconds, flops, bytes;
};

struct quern_gpu {
    struct gpu *g;
    struct err error; /* of the last call that failed */
    uint32_t most_rows, most_width;
    struct public_weight *weight; /* (weights); handle h is weight[h - 1] */
    uint32_t weights;
    struct mat *mat; /* (1 + weights + PUBLIC_VECTORS): by handle, then the vectors of a call */
    uint64_t weight_bytes;
    struct lower lower;
    struct replay replay;
    struct launch_list list; /* of the call that is made */
    /* scratch */
    cu_ptr scratch;
    uint64_t scratch_bytes;
    struct scratch at;
    float *b, *c; /* (most_rows, most_width) */
    int32_t *ids; /* (most_rows, 256), and floats for as many */
    float *values;
    /* the data of attention calls: a ring of pinned blocks, and their copies on the card */
    int32_t *ring_host;
    cu_ptr ring;
    uint32_t ring_ints, ring_at;
    bool recording;
    bool profiling;
    void *event[2];
    double wall_from;
    struct public_row row[PUBLIC_PROFILE];
    uint32_t rows;
};

/* Every call starts here: forgets the last error; -1 where the card is lost. */
int public_start(struct quern_gpu *g);
int public_fail(struct quern_gpu *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A buffer of `want` floats is expected; what: "x", and how `want` comes about. */
int public_room(struct quern_gpu *g, struct quern_gpu_buf b, uint64_t want, const char *what,
                const char *how);
const struct public_weight *public_get(struct quern_gpu *g, int handle);
int public_rows(struct quern_gpu *g, int m);
float *public_at(struct quern_gpu_buf b);

/* An operation's name and costs, for the profile. */
struct public_cost {
    const char *name;
    int level;
    double flops, bytes;
};
void public_begin(struct quern_gpu *g);
int public_end(struct quern_gpu *g, struct public_cost op, int result);

/* A call as a plan: operations over buffers of the caller's. Weights have their handles as numbers. */
struct public_call {
    struct quern_gpu *g;
    struct lower lower;
    struct op op[PUBLIC_OPS];
    uint32_t ops, vectors, buffers;
    uint32_t width[PUBLIC_BUFFERS];
    float *buffer[PUBLIC_BUFFERS];
    struct group_kv group;
    struct launch_step step;
    bool many; /* queries: attention goes over tiles of them */
};
void public_call(struct public_call *c, struct quern_gpu *g);
struct operand public_operand(struct public_call *c, float *at, uint32_t width);
weight_id public_vector(struct public_call *c, struct quern_gpu_buf v); /* 0: none */
struct op *public_op(struct public_call *c, enum op_kind kind);
/* Lowers and launches the call's operations for m rows. */
int public_run(struct public_call *c, uint32_t m);
/* A launch for an operation that plans do not have; public_replay runs those that were added. */
struct launch *public_launch(struct quern_gpu *g, uint32_t kernel, enum launch_args args,
                             struct gpu_grid grid);
int public_replay(struct quern_gpu *g, const struct launch_step *s);
