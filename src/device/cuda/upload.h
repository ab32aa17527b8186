/* The weights of a model on the GPU: one pool, filled by several threads through pinned memory. */
#pragma once

#include "device/cuda/gpu.h"
#include "device/cuda/pinned.h"
#include "device/device.h"

struct upload {
    struct gpu *g;
    struct mat *mat; /* (weights.count); base NULL for index 0 */
    uint32_t count;
    cu_ptr pool;
    uint64_t bytes;
    uint32_t converted;           /* weights whose type has no kernel: decoded to F16 */
    uint32_t decoded[DTYPE_MOST]; /* how many of each such type */
    double seconds;
};

/* ---- piece by piece, through slots of pinned memory ---- */

enum { UPLOAD_THREADS = 8, UPLOAD_SLOTS = 3 }; /* slots of a thread: one is filled while others are sent */

/* A run of rows of one matrix, or several whole matrices of a weight. */
struct upload_job {
    uint32_t weight, matrix, first, rows;
    uint32_t matrices;
};

/* Pinned memory, and room on the GPU for the file's bytes before they are repacked. */
struct upload_slot {
    uint8_t *host;
    cu_ptr device;
    /* events: the copy of the file's bytes begins, and is done, where it has a stream of its own; the slot can be filled
     * again */
    void *begun, *copied, *done;
    float *decoded; /* a row, for types that are converted */
};

/* What a slot holds, and where it goes. */
struct upload_item {
    const struct weight *weight;
    const struct mat *mat;
    const struct upload_job *job;
    const struct pinned *pinned; /* the bytes are there, and not in the slot; or NULL */
};

/* Whether slots have room for the rows of all weights: before anything else. */
int upload_check(const struct weights *w, struct err *e);
/* The most columns of a weight. */
size_t upload_widest(const struct weights *w);
int upload_slot_open(struct upload_slot *s, struct gpu *g, size_t widest, struct err *e);
void upload_slot_close(struct upload_slot *s, struct gpu *g);
/* The jobs of one weight, in order; with NULL only how many there are. */
uint32_t upload_jobs(const struct weights *w, uint32_t weight, struct upload_job *jobs);
/* The bytes of a job, where the card can take them as they are, one after the other; else none. A part of a job has
 * a part of them. */
struct pinned_range upload_range(const struct weight *w, const struct upload_job *j);
/* Bytes of a job that cross the link. */
uint64_t upload_sent(const struct weight *w, const struct upload_job *j);
/* Copies the rows of a job into the slot. */
void upload_fill(const struct upload_slot *s, const struct weight *w, const struct upload_job *j);
/* Sends them to the GPU, and repacks them there: in the streams of g and of `repack`, which may be one. A copy never waits
 * for the repacking of others where they are two. */
int upload_send(struct gpu *g, struct gpu *repack, const struct upload_slot *s, const struct upload_item *of,
                struct err *e);
/* Bytes of a weight on the GPU; and the weight there. */
uint64_t upload_room(const struct weight *w);
struct mat upload_mat(const struct weight *w, cu_ptr at);
/* Threads for `wanted`; 0 = up to eight. */
int upload_threads(int wanted);

/* ---- all of a model ---- */

/* What upload_weights will take, and beside it while it runs. */
uint64_t upload_bytes(const struct weights *w);
uint64_t upload_ring_bytes(int threads);
/* The address of each weight in a pool that begins there; allocates only the table. */
int upload_place(struct upload *u, const struct weights *w, cu_ptr pool, struct err *e);
/* threads: 0 = up to eight. */
int upload_weights(struct upload *u, struct gpu *g, const struct weights *w, int threads,
                   void (*progress)(void *, double), void *arg, struct err *e);
void upload_free(struct upload *u);
/* The form that a weight gets, and its dtype there (for messages). */
uint32_t upload_fmt(const struct weight *w);
