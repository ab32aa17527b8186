/* Pages of the prefix tree on disk, kept across restarts. A file holds one page of tokens: all the tokens
 * from the start to its end, and their last page's KV of every group; or a snapshot: all the tokens up to it, the
 * state after them and, where that is within a page, the page's KV. Its name is a digest of what it was
 * computed with (model, settings, salt) and of the tokens, so that any number of processes share a folder
 * without a lock: they write the same names, each to a file of its own first, and rename it.
 *
 *     0  magic "quernKV1"      24  tokens, u32     40  digest of tokens and what follows
 *     8  digest: computed with 32  bytes after them 56  digest of all before          72  tokens, state, pages
 *
 * A file is used only when its digests are right and its tokens are the same. A damaged file is removed, with
 * one warning a process. When the folder exceeds its limit, the least recently used files are removed.
 *
 * The engine's thread reads; a separate thread writes. */
#pragma once

#include "base/digest.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct picture_ids;
struct prefix_disk;

struct prefix_disk_options {
    const char *folder;         /* created if missing */
    uint64_t most;              /* bytes in all */
    struct digest computed;     /* what all pages of this engine are computed with */
    uint32_t tokens;            /* the most that a prefix has */
    size_t bytes;               /* of a page of every group */
    size_t state_bytes;         /* of a snapshot, at most; 0 = there are none */
    struct picture_ids *images; /* which images negative ids stand for; NULL: there are none */
};

struct prefix_disk_page {
    struct digest with; /* of prefix_disk_root */
    struct digest name; /* of prefix_disk_name, over all pages so far */
    const int32_t *ids; /* (tokens), from the start */
    uint32_t tokens;
    size_t bytes; /* of pages and state; 0 = of a page of every group */
};

enum prefix_disk_kind { PREFIX_DISK_PAGE, PREFIX_DISK_STATE, PREFIX_DISK_KINDS };

/* A slot of the write queue: a page to be written. */
struct prefix_disk_slot {
    struct prefix_disk_slot *next;
    enum prefix_disk_kind kind;
    struct prefix_disk_page page;
    int32_t *ids;
    uint8_t *bytes;
};

int prefix_disk_open(struct prefix_disk **out, const struct prefix_disk_options *o, struct err *e);
/* Waits until everything is written. */
void prefix_disk_close(struct prefix_disk *d);

struct digest prefix_disk_root(const struct prefix_disk *d, uint64_t salt);
/* The name of a page after the one that is called `before` (the root's digest for the first). Rows of images have their
 * digests in it. */
struct digest prefix_disk_name(const struct prefix_disk *d, struct digest before, const int32_t *ids,
                               uint32_t n);

/* The page's bytes, or NULL where it is not there; valid until the next call. Allocates nothing. */
const uint8_t *prefix_disk_read(struct prefix_disk *d, const struct prefix_disk_page *p);
bool prefix_disk_has(const struct prefix_disk *d, const struct prefix_disk_page *p);
/* A slot to fill (ids, bytes, page.with, .name, .tokens and .bytes; 0 tokens: nothing after all) and to hand to
 * prefix_disk_write; NULL: none is free now. wait: until one is. */
struct prefix_disk_slot *prefix_disk_slot(struct prefix_disk *d, enum prefix_disk_kind kind, bool wait);
void prefix_disk_write(struct prefix_disk *d, struct prefix_disk_slot *s);

struct prefix_disk_stats {
    uint64_t read, written, damaged, bytes; /* files; bytes in the folder, as far as known */
};
void prefix_disk_stats(struct prefix_disk *d, struct prefix_disk_stats *out);
