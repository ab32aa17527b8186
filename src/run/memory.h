/* How much memory there is: the machine's, the cgroups' or the process's limit (ulimit -v), whichever is less. */
#pragma once

#include <stdint.h>

struct memory {
    uint64_t total;     /* what this process could have at most */
    uint64_t available; /* without pushing anything out but page cache */
    uint64_t resident;  /* of this process, now */
};

void memory_read(struct memory *m);
/* What a model may take of what is available: a fifth stays with others. */
uint64_t memory_for_model(const struct memory *m);
