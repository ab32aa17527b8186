/* Detects changes of mapped files: are their bytes still those that were mapped? Bytes count, times do not.
 *
 * A check costs one fstat. If size, mtime and ctime are those of the last check, nothing was written. If not:
 *
 *   1. The file has become shorter: it is changed.
 *   2. The read lease on it is still held: no process has opened it for writing since, so it was only touched, linked,
 *      renamed or the like. (A process that opens it waits until the lease is given up; the kernel sends SIGIO.)
 *   3. Otherwise it is read once more, and its digest decides. The first digest is made by a thread of its own while
 *      size and times still are the first ones: when the kernel asks for the lease, before the lease is given up; where the
 *      file system has no leases, right after the file was mapped.
 *
 * Without a digest to compare with, a file counts as changed. A file that was read into memory never changes
 * for its reader; a log line reports that the file on disk differs. A file that was replaced by rename keeps
 * its old bytes.
 *
 * A page that cannot be read any more (SIGBUS) becomes zeros, and the file counts as changed: check after the
 * computation and before the result is used. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

struct watch;

/* From now on files are watched; before that, and in a library, a check finds nothing. The program handles SIGIO by
 * watch_wake and SIGBUS by watch_fault. */
void watch_start(void);

/* A file that was mapped, or (copied) read into memory, at data; st is as of before that. The descriptor stays open until
 * watch_remove. NULL: there are too many. */
struct watch *watch_add(const char *path, int fd, const struct stat *st, const void *data, bool copied);
void watch_remove(struct watch *w); /* call it before the memory is unmapped; NULL does nothing */
/* The first n bytes of a mapping become memory of this process: what the file holds there no longer matters. */
void watch_own(struct watch *w, size_t n);

/* -1 and ERR_CHANGED: the bytes are not those that were mapped. May read the whole file. Any thread. */
int watch_check(struct watch *w, struct err *e);
/* The result of the last check, without a new one; a thread checks about once a second. */
bool watch_is_changed(const struct watch *w);

/* Whether a touch can be told from a change by now: there is a lease or a digest. */
bool watch_is_ready(struct watch *w);
/* The same size and times: nothing was written between the two. */
bool watch_same(const struct stat *a, const struct stat *b);

/* Whole pages of [p, p + n) that belong to a mapped file leave memory; they are read again when they are used. */
void watch_forget(const void *p, size_t n);

/* For signal handlers. */
void watch_wake(void);
bool watch_fault(
    const void *address); /* false: no mapping of a watched file is there, or it cannot be mended */
