/* Ranks that run one model together, and how bytes pass between them. A backend moves bytes between two ranks; sums,
 * gathers and broadcasts are made of that once (comm.c), so that every backend gives the same bits: a sum is taken in the
 * order of ranks.
 *
 * Backends: threads of one process (comm_threads), processes over TCP (tcp.h) and over MPI (mpi.h); job.h chooses.
 *
 * A comm belongs to one rank and is used by one thread at a time. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COMM_RANKS_MOST = 64 };

struct comm;

/* Bytes to or from a peer. */
struct comm_move {
    uint32_t peer;
    bool send;
    void *data;
    size_t bytes;
};

struct comm_ops {
    const char *name; /* "threads", "tcp", "mpi" */
    /* Makes all moves, at most two for each peer (one there, one back), at once; moves between the same two ranks arrive in
     * order. Both sides name the same number of bytes. Fails when the team is aborted. */
    int (*exchange)(struct comm *c, const struct comm_move *moves, uint32_t count, struct err *e);
    /* From now on a rank that is lost ends the others; NULL: it needs no watch. After the sandbox is closed. */
    int (*watch)(struct comm *c, struct err *e);
    /* Ends the work of all ranks: those that wait, or will wait, fail with this reason. In a team of processes every one of
     * them exits with ERR_DEVICE. */
    void (*abort)(struct comm *c, const char *why);
    void (*close)(struct comm *c);
};

struct comm {
    const struct comm_ops *ops;
    uint32_t rank, size;
    float *scratch; /* (room): what others send while a sum is made */
    size_t room;
};

/* A range of ranks that work together; `me` is counted within it. */
struct comm_group {
    uint32_t first, count, me;
};
struct comm_group comm_all(const struct comm *c);

/* Room for sums of this many floats: after it nothing is allocated. */
int comm_reserve(struct comm *c, size_t floats, struct err *e);
/* x = the sum of all ranks' x, the same bits on every rank. */
int comm_all_reduce(struct comm *c, struct comm_group g, float *x, size_t n, struct err *e);
/* Part i of `parts` is rank i's, from at[i] to at[i + 1] bytes: every rank gets all of them. */
int comm_all_gather(struct comm *c, struct comm_group g, void *parts, const size_t *at, struct err *e);
/* The same, to the first rank of the group alone. `mine` is sent by the others. */
int comm_gather(struct comm *c, struct comm_group g, const void *mine, void *parts, const size_t *at,
                struct err *e);
/* From the first rank of the group to the others. */
int comm_broadcast(struct comm *c, struct comm_group g, void *data, size_t bytes, struct err *e);
int comm_barrier(struct comm *c, struct comm_group g, struct err *e);
int comm_send(struct comm *c, uint32_t to, const void *data, size_t bytes, struct err *e);
int comm_recv(struct comm *c, uint32_t from, void *data, size_t bytes, struct err *e);
int comm_watch(struct comm *c, struct err *e);
void comm_abort(struct comm *c, const char *why);
void comm_close(struct comm *c);

/* One comm for each of n threads of this process. */
int comm_threads(struct comm **out, uint32_t n, struct err *e);
