/* The first bytes of every connection between ranks, and who is turned away. */
#pragma once

#include "comm/job.h"

enum greet_kind { GREET_LIFE = 1, GREET_DATA };

struct greeting {
    char magic[8], version[24], key[64];
    uint32_t kind, rank, size;
    uint16_t port; /* GREET_DATA to rank 0: where this rank listens for the others */
    uint16_t unused;
};

enum { GREET_REPLY = 192 };

void greet_fill(struct greeting *g, const struct rank_job *j, enum greet_kind kind, uint16_t port);
/* NULL where the newcomer belongs to this job, else the reply that it gets. A stranger gets none: "". */
const char *greet_refuse(const struct greeting *g, const struct rank_job *j, char reply[GREET_REPLY]);
