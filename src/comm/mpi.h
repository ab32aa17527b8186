/* Processes that mpirun has started. MPI's libraries differ from machine to machine, and a program that is linked to one
 * does not start without it. So what calls MPI is a small library of its own (mpi/part.c), loaded when mpirun says that
 * there are several ranks. Signs of life go over TCP (lifeline.h): MPI says nothing about a rank that is stopped. */
#pragma once

#include "comm/job.h"

int comm_mpi(struct comm **out, const struct rank_job *j, struct err *e);

/* What the library has: no function of it needs one of the program. All return 0, or MPI's error. */
struct mpi_part {
    uint32_t version; /* MPI_PART_VERSION */
    int (*start)(uint32_t *rank, uint32_t *size);
    int (*exchange)(const struct comm_move *moves, uint32_t count);
    int (*broadcast)(void *data, uint32_t bytes); /* from rank 0 */
    void (*end)(void);
    void (*text)(int error, char *out, uint32_t size);
};
enum { MPI_PART_VERSION = 1 };
#define MPI_PART_SYMBOL "quern_mpi_part"
