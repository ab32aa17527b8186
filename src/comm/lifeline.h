/* Signs of life between rank 0 and every other rank, on connections of their own. A thread sends and hears them while the
 * others compute, so a rank that is killed, stopped or cut off is noticed within seconds whatever the ranks are doing. Then
 * the reason is logged and sent to the other ranks, and every process exits with ERR_DEVICE: a sum needs all its parts. */
#pragma once

#include "comm/comm.h"

#include <pthread.h>
#include <stdatomic.h>

struct lifeline {
    uint32_t rank, size;
    int fd[COMM_RANKS_MOST];          /* rank 0: of each other rank; else fd[0] alone; -1 = none */
    atomic_bool bye[COMM_RANKS_MOST]; /* it has ended as it should */
    double heard[COMM_RANKS_MOST];
    atomic_bool leaving, closing; /* it has said goodbye; it hears no more */
    bool running;
    pthread_t thread;
    pthread_mutex_t lock; /* of sending */
};

void lifeline_init(struct lifeline *l, uint32_t rank, uint32_t size);
/* Starts the thread. */
int lifeline_start(struct lifeline *l, struct err *e);
/* Tells the others why, and ends the process. */
_Noreturn void lifeline_abort(struct lifeline *l, const char *why);
/* Says goodbye, and waits a moment for the goodbyes of the others: a connection that is closed too early loses ours. */
void lifeline_close(struct lifeline *l);
