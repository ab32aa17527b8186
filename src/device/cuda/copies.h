/* Weights that stay on the card a second time, decoded for the products of many rows (options.copies). They are a cache:
 * each is made by the first step that uses it, and any thread of the process that needs the card's memory takes it from
 * them, the last weights of the plan first (gpu_make_room). Products of those that have gone decode them again, step by
 * step. */
#pragma once

#include "device/cuda/gpu.h"
#include "device/cuda/lower.h"

#include <pthread.h>

/* Memory comes and goes in this number of parts: when one goes, all lists and graphs are made again. */
enum { COPIES_PARTS = 32 };
/* Copies leave this much of the card free: the driver and cuBLASLt take some. */
#define COPIES_LEAVE ((uint64_t)256 << 20)

struct copy_place {
    struct kept_weight at; /* where the copy is, or would be */
    uint64_t end;          /* bytes from the first copy to its end */
};

struct copies {
    struct gpu_spare spare; /* the first: what it counts is what can be taken from them */
    struct gpu *g;
    pthread_mutex_t mutex; /* held while a step goes to the card, and while copies come or go */
    uint64_t asked;        /* COPIES_AUTO, or at most this */
    bool fp8;
    cu_ptr base, scales;                  /* scales: of fp8 */
    uint64_t part;                        /* that memory comes and goes in */
    uint64_t bytes, backed, scales_bytes; /* addresses of all copies; the first of them that have memory */
    bool returns; /* else the card cannot map memory, and all of it is one allocation */
    bool stale;   /* lists and graphs may use copies that have gone */
    uint32_t count;
    struct copy_place *place; /* (count) */
    struct kept_weight *kept; /* (count): those that have memory; for lowering */
    bool *made;               /* (count): decoded by now; for replay */
};

/* How many bytes of copies to have where `room` bytes are free or theirs. By themselves they take at most seven eighths,
 * where they can be taken back, else all of them or none, within an eighth; as fp8 what they need. */
uint64_t copies_share(const struct copies *c, uint64_t room);

/* At most this much of `room` is for copies that can be taken back. */
uint64_t copies_most(uint64_t room);

/* Before anything else. */
void copies_init(struct copies *c, struct gpu *g);
/* Gives each weight of the plan that can have a copy its place, and takes memory for as many as copies_share says. */
int copies_open(struct copies *c, const struct plan *p, const struct mat *mat, uint32_t count, struct err *e);
void copies_close(struct copies *c);
/* Takes memory for copies that have none, as far as copies_share says. Between steps. */
void copies_fill(struct copies *c);
/* Around putting a step on the stream. true: forget all lists and graphs first. */
bool copies_hold(struct copies *c);
void copies_release(struct copies *c);
/* Bytes that copies hold now. */
uint64_t copies_bytes(const struct copies *c);
