/* Pages of the prefix tree on disk, so that they outlive the process. A file holds one page of tokens: all the
 * tokens from the start to its end, and their last page's KV of every group. Its name is a digest of what it was
 * computed with (model, settings, salt) and of the tokens, so that any number of processes share a folder
 * without a lock: they write the same names, each to a file of its own first, and rename it.
 *
 *     0  magic "quernKV1"      24  tokens, u32     40  digest of tokens and pages
 *     8  digest: computed with 32  bytes of pages  56  digest of all before          72  tokens, then the pages
 *
 * A file is used only when all of it is as it was written and the tokens are the very ones; one that is not is
 * removed, with one warning a process. Where the folder grows beyond its bound, files that were not used for
 * the longest time go.
 *
 * The engine's thread reads, and hands what is to be written to a thread of its own. */
#pragma once

#include "base/digest.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct disk;

struct disk_options {
    const char *folder;     /* made where it is not there */
    uint64_t most;          /* bytes in all */
    struct digest computed; /* what all pages of this engine are computed with */
    uint32_t tokens;        /* the most that a prefix has */
    size_t bytes;           /* of a page of every group */
};

struct disk_page {
    struct digest with; /* of disk_root */
    struct digest name; /* of disk_name, over all pages so far */
    const int32_t *ids; /* (tokens), from the start */
    uint32_t tokens;
};

/* What is put in place of a page until it is written. */
struct disk_slot {
    struct disk_slot *next;
    struct disk_page page;
    int32_t *ids;
    uint8_t *bytes;
};

int disk_open(struct disk **out, const struct disk_options *o, struct err *e);
/* Waits until everything is written. */
void disk_close(struct disk *d);

struct digest disk_root(const struct disk *d, uint64_t salt);
/* The name of a page after the one that is called `before` (the root's digest for the first). */
struct digest disk_name(struct digest before, const int32_t *ids, uint32_t n);

/* The page's bytes, or NULL where it is not there; valid until the next call. Allocates nothing. */
const uint8_t *disk_read(struct disk *d, const struct disk_page *p);
bool disk_has(const struct disk *d, const struct disk_page *p);
/* A slot to fill (ids, bytes, page.with, .name and .tokens; 0 tokens: nothing after all) and to hand to
 * disk_write; NULL: none is free now. wait: until one is. */
struct disk_slot *disk_slot(struct disk *d, bool wait);
void disk_write(struct disk *d, struct disk_slot *s);

struct disk_stats {
    uint64_t read, written, damaged, bytes; /* pages; bytes in the folder, as far as known */
};
void disk_stats(struct disk *d, struct disk_stats *out);
