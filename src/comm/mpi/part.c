/* The part of quern that calls MPI, a library of its own: see comm/mpi.h. */
#include "comm/mpi.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TAG = 7, SPIN = 4000, SLEEP_LEAST = 20000, SLEEP_MOST = 1000000 }; /* nanoseconds */
enum { PIECE = 1 << 30 }; /* bytes of a message: MPI counts with int */

static int part_start(uint32_t *rank, uint32_t *size)
{
    int given = 0, r = 0, n = 0;
    /* copies through shared memory alone: a process in a sandbox must not read another one's memory */
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    int failed = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given);
    if (!failed)
        failed = given < MPI_THREAD_SERIALIZED ? MPI_ERR_OTHER
                                               : MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (!failed && !(failed = MPI_Comm_rank(MPI_COMM_WORLD, &r)))
        failed = MPI_Comm_size(MPI_COMM_WORLD, &n);
    *rank = (uint32_t)r;
    *size = (uint32_t)n;
    return failed;
}

/* Looks often at first, then sleeps: a rank that waits for its next step leaves the core to others. */
static int wait_all(MPI_Request *all, int count)
{
    long pause = SLEEP_LEAST;
    for (long i = 0;; i++) {
        int done = 0, failed = MPI_Testall(count, all, &done, MPI_STATUSES_IGNORE);
        if (failed || done)
            return failed;
        if (i < SPIN)
            continue;
        nanosleep(&(struct timespec){0, pause}, NULL);
        pause = pause * 3 / 2 < SLEEP_MOST ? pause * 3 / 2 : SLEEP_MOST;
    }
}

static int part_exchange(const struct comm_move *moves, uint32_t count)
{
    MPI_Request all[2 * COMM_RANKS_MOST];
    size_t most = 0;
    int failed = 0;
    for (uint32_t i = 0; i < count; i++)
        most = moves[i].bytes > most ? moves[i].bytes : most;
    for (size_t at = 0; at < most && !failed; at += PIECE) {
        int n = 0;
        for (uint32_t i = 0; i < count && !failed; i++) {
            if (at >= moves[i].bytes)
                continue;
            size_t left = moves[i].bytes - at;
            int bytes = left < PIECE ? (int)left : PIECE, peer = (int)moves[i].peer;
            char *data = (char *)moves[i].data + at;
            failed = moves[i].send ? MPI_Isend(data, bytes, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, &all[n++])
                                   : MPI_Irecv(data, bytes, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, &all[n++]);
        }
        failed = failed ? failed : wait_all(all, n);
    }
    return failed;
}

static int part_broadcast(void *data, uint32_t bytes)
{
    return MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
}

static void part_end(void)
{
    MPI_Finalize();
}

static void part_text(int error, char *out, uint32_t size)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(error, text, &n);
    snprintf(out, size, "%s", text);
}

const struct mpi_part *quern_mpi_part(void);
const struct mpi_part *quern_mpi_part(void)
{
    static const struct mpi_part part = {.version = MPI_PART_VERSION,
                                         .start = part_start,
                                         .exchange = part_exchange,
                                         .broadcast = part_broadcast,
                                         .end = part_end,
                                         .text = part_text};
    return &part;
}
