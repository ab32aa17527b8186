/* Which pages of a KV group are free. Page 0 is trash and is never handed out. Pages are reference counted,
 * so that sequences can share prefixes. Used by the engine's thread only. */
#pragma once

#include "base/err.h"

#include <stdint.h>

struct pages {
    uint32_t count;  /* with page 0 */
    uint32_t unused; /* how many are free */
    int32_t *stack;  /* (unused): the free ones, the next one last */
    uint16_t *refs;  /* (count) */
};

int pages_open(struct pages *p, uint32_t count, struct err *e);
void pages_close(struct pages *p);
int32_t pages_take(struct pages *p); /* 0 = none is free */
void pages_share(struct pages *p, int32_t page);
void pages_drop(struct pages *p, int32_t page); /* page 0 is ignored */
