/* Processes connected by TCP: every rank with every other, for data, and rank 0 with all others, for signs of life.
 *
 * A connection begins with a greeting of fixed length (version, rank, key); who sends anything else, or nothing within some
 * seconds, is turned away. The numbers themselves are not encrypted: ranks belong on a network of their own. */
#pragma once

#include "comm/job.h"
#include "comm/lifeline.h"

int comm_tcp(struct comm **out, const struct rank_job *j, struct err *e);

/* ---- for backends that move data in another way ---- */

/* Rank 0 listens; *port is where. `any`: on all addresses, else for this machine only. */
int tcp_listen(bool any, uint16_t *port, struct err *e);
/* The lifelines alone: rank 0 takes those of all others from `listener`, which it closes; others connect to j's address. */
int tcp_lifelines(struct lifeline *l, const struct rank_job *j, int listener, struct err *e);
