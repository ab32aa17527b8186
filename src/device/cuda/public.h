/* What the files behind quern_gpu.h share. */
#pragma once

#include "quern_gpu.h"

#include "device/cuda/gpu.h"

enum { PUBLIC_RING = 64, PUBLIC_PARTS = 1024, PUBLIC_PROFILE = 64 };

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
    uint64_t weight_bytes;
    /* scratch */
    cu_ptr scratch;
    uint64_t scratch_bytes;
    uint8_t *pack, *q8;
    float *a, *b, *c; /* (most_rows, 2 most_width), (most_rows, most_width) twice */
    float *part, *part_ml;
    int32_t *ids; /* (most_rows, 256), and floats for as many */
    float *values;
    /* the data of attention calls: pinned blocks in turn, and their copies */
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

/* An operation with its costs, timed while profiling. */
struct public_op {
    const char *name;
    int level;
    double flops, bytes;
};
void public_begin(struct quern_gpu *g);
int public_end(struct quern_gpu *g, struct public_op op, int result);

/* y = scale * W x + residual by the variant table; m at most most_rows. */
int public_product(struct quern_gpu *g, const struct mat *w, const float *x, uint32_t m, float *y,
                   const float *residual);
/* Packs x (m, k), normed or not. */
int public_pack(struct quern_gpu *g, const float *x, uint32_t m, uint32_t k, const struct norm_args *norm);
int public_packed_product(struct quern_gpu *g, const struct mat *w, uint32_t m, float *y, uint64_t ldy,
                          const float *residual);
