/* Ranks that are processes: who this one is, as mpirun, torchrun and LeaderWorkerSet say by the environment, and the
 * connections to the others. */
#pragma once

#include "comm/comm.h"

enum job_kind { JOB_NONE, JOB_MPI, JOB_TCP };

struct rank_job {
    enum job_kind kind;
    uint32_t rank, size, local; /* local: its number on its machine */
    char address[256];          /* of rank 0 */
    uint16_t port;
    char key[65];    /* QUERN_RANK_KEY: ranks without it are turned away; "" = none */
    double patience; /* seconds that ranks wait for each other at the start */
};

enum { JOB_PORT = 29500, JOB_PATIENCE = 120 };

/* JOB_NONE where the environment names one rank or none. */
int job_read(struct rank_job *j, const char *(*get)(const char *name), struct err *e);
/* Meets the other ranks, and fails with ERR_DEVICE where one does not come. From comm_watch on a lost rank ends this process
 * with that code. */
int job_join(struct comm **out, const struct rank_job *j, struct err *e);
