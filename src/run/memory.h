/* How much memory there is: the machine's, the cgroups' or the process's limit (ulimit -v), whichever is less. */
#pragma once

#include <stdint.h>

struct memory {
    uint64_t total;     /* the most that this process can use */
    uint64_t available; /* free memory, and page cache that can be dropped */
    uint64_t resident;  /* of this process, now */
};

void memory_read(struct memory *m);
/* What a model may take of what is available: four fifths. */
uint64_t memory_for_model(const struct memory *m);
