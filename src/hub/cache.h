/* The Hub's cache, in the layout that its own library keeps:
 *
 *     CACHE/models--USER--REPO/refs/main              the commit of "main"
 *                              snapshots/COMMIT/FILE  links to ../../blobs/ETAG
 *                              blobs/ETAG             the bytes; ETAG.quern-part while they come
 *     CACHE/.locks/models--USER--REPO/ETAG.lock       held (flock) while that blob is fetched
 */
#pragma once

#include "base/err.h"
#include "hub/hub.h"
#include "hub/path.h"
#include "hub/pick.h"

#include <stdbool.h>
#include <stdint.h>

int cache_repo(const struct hub *h, const char *repo, char out[PATH_MAX], struct err *e);
/* The repository that a folder of the cache holds; false for a dataset and what is none. */
bool cache_repo_name(const char *folder, char *out, size_t size);
/* A local repository with a similar name; false where there is none. */
bool cache_near(const struct hub *h, const char *repo, char *out, size_t size);
/* The commit of a revision: 40 hex digits are the commit itself, other names are looked up in refs/; else the
 * newest snapshot's of "main". false where there is none. */
bool cache_commit(const struct hub *h, const char *repo, const char *revision, char commit[64]);
int cache_snapshot(const struct hub *h, const char *repo, const char *commit, char out[PATH_MAX],
                   struct err *e);

/* Whether all that the pick needs is in this snapshot, and what to open: 1, 0, or -1. */
int cache_complete(const char *snapshot, const struct pick *p, char path[PATH_MAX], struct err *e);

int cache_write_ref(const struct hub *h, const char *repo, const char *revision, const char *commit,
                    struct err *e);
/* snapshots/COMMIT/FILE -> blobs/ETAG; what is there already is replaced. */
int cache_link(const char *snapshot, const char *file, const char *etag, struct err *e);

/* A descriptor that holds the lock; waits for another holder, and logs that; -1 for an error. */
int cache_lock(const char *path, const char *file, struct err *e);
void cache_unlock(int lock);
