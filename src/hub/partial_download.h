/* A file that is downloaded out of order and can be resumed after an interruption at any byte.
 *
 *     0                    size            size + 32              size + 32 + 4 * pieces
 *     | bytes of the file  | struct mark   | count[0] count[1] …  |
 *
 * count[i] says how many bytes of piece i are there, from its start. It is written after the bytes that it
 * counts, so a killed process never leaves a count that is too large. A file without the tail is the
 * beginning of the file and nothing else: a partial file of another tool, or a complete file that was not
 * renamed yet. In any case the checksum at the end decides. */
#pragma once

#include "base/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PARTIAL_PIECE = 16 << 20 };

struct partial_download {
    char path[PATH_MAX];
    int fd;
    uint64_t size;
    uint32_t *counts; /* (pieces) */
    uint32_t pieces;
    uint64_t done; /* the sum of the counts */
    bool resumed;  /* some of it was there when it was opened */
};

/* Creates the file if it does not exist. */
int partial_open(struct partial_download *p, const char *path, uint64_t size, struct err *e);
void partial_close(struct partial_download *p);
uint64_t partial_piece_bytes(const struct partial_download *p, uint32_t piece);
/* n bytes at `at`, which is where a piece's bytes end; may reach over the end of a piece. Disk full is
 * ERR_RESOURCE, and what was there stays. */
int partial_write(struct partial_download *p, uint64_t at, const void *data, size_t n, struct err *e);
/* Bytes that the file system has not allocated yet. */
uint64_t partial_missing(const char *path, uint64_t size);
/* Cuts the tail off, syncs, and renames: the file is there, whole. */
int partial_finish(struct partial_download *p, const char *to, struct err *e);
