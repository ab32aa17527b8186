/* Ranks that run one plan together, as a device. `tensor` ranks share every layer (shard.h), and `stages` such groups have
 * the layers one after the other: rank = stage * tensor + its number in the stage.
 *
 * Rank 0 is the device that a runner uses. It sends every order (prepare, run, pages) to the other ranks, which do the same
 * with their parts: threads of this process, or other processes that call team_serve. */
#pragma once

#include "comm/comm.h"
#include "device/device.h"

struct team_options {
    struct plan *plan; /* the team sets in it which stage runs an operation */
    const struct weights *weights;
    uint32_t tensor, stages;
    /* One comm for each rank of this process: all of them, or one where ranks are processes. Taken over. */
    struct comm *comm[COMM_RANKS_MOST];
    uint32_t comms;
    const char *device[COMM_RANKS_MOST]; /* of each of these: "cpu", "cuda:1"; not NULL */
    struct device_options options;
};

/* Rank 0, and threads for the other ranks of this process. All ranks are there when it returns. */
int team_open(struct device **out, const struct team_options *o, struct err *e);
/* Another rank's process: does what rank 0 says until that closes its device. */
int team_serve(const struct team_options *o, struct err *e);

/* Sets `device` of every operation of the plan to one of n stages of about the same cost. */
int team_stages(struct plan *p, const struct weights *w, uint32_t n, struct err *e);
