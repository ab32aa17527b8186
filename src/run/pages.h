/* Which pages of a KV group are free. Page 0 is trash and is never handed out. Pages are reference counted,
 * so that sequences can share prefixes. Only the first `backed` pages have memory on the device; the lowest free
 * one is handed out first, so that the last ones become free and can return theirs. Used by the engine's thread
 * only. */
#pragma once

#include "base/err.h"

#include <stdint.h>

struct pages {
    uint32_t count;  /* with page 0 */
    uint32_t backed; /* with page 0: those from here on cannot be handed out */
    uint32_t unused; /* how many of those before are free */
    int32_t *free;   /* (unused): a heap, the lowest one first */
    uint16_t *refs;  /* (count) */
    uint16_t *kept;  /* (count): of these, references of the prefix tree */
    uint32_t idle;   /* pages that only the prefix tree holds */
};

/* backed: 0 = all. */
int pages_open(struct pages *p, uint32_t count, uint32_t backed, struct err *e);
void pages_close(struct pages *p);
int32_t pages_take(struct pages *p); /* 0 = none is free */
void pages_share(struct pages *p, int32_t page);
void pages_drop(struct pages *p, int32_t page); /* page 0 is ignored */
/* The same for a reference of the prefix tree. */
void pages_keep(struct pages *p, int32_t page);
void pages_leave(struct pages *p, int32_t page); /* page 0 is ignored */
/* The last page in use. */
uint32_t pages_last(const struct pages *p);
/* The first `backed` pages have memory now; all pages in use are among them. */
void pages_back(struct pages *p, uint32_t backed);
