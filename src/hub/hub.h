/* Where models come from and where this machine keeps them: the Hub's own cache in the Hub's own layout, so
 * that quern and other tools share downloads, and quern's own folder for models from elsewhere. */
#pragma once

#include "base/err.h"
#include "hub/name.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

/* The progress of a download. */
struct hub_progress {
    const char *file;
    uint64_t done, total; /* bytes of all files */
    bool checking;        /* the checksum, not the network: done and total are of this file */
};

struct hub {
    char endpoint[512];         /* HF_ENDPOINT, without a slash at the end */
    char cache[PATH_MAX];       /* HF_HUB_CACHE: models--USER--REPO/{blobs,refs,snapshots} */
    char own[PATH_MAX];         /* quern's folder in the user's cache: models/FILE, urls/HASH/FILE */
    char config[PATH_MAX];      /* models.json: {"alias": "MODEL"} */
    char token[1024];           /* "" = none */
    char authorities[PATH_MAX]; /* certificates to trust; "" = the system's */
    bool offline;               /* no network access */
    int patience;               /* seconds without a byte until a connection is given up */
    int connections;            /* ranges of one file at once */
    int retries;                /* attempts without a new byte */
    /* NULL = no progress reports. A result other than 0 ends the pull; the next one goes on from there. */
    int (*progress)(void *arg, const struct hub_progress *p);
    void *progress_arg;
};

/* From the environment: HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN (and its file), HF_HUB_OFFLINE, XDG_*,
 * SSL_CERT_FILE (or the names that curl and Python have for it). */
int hub_read(struct hub *h, struct err *e);

/* The model's path on this machine: 1 and the path for store_open, 0 where it is missing or incomplete, -1
 * for an error. No network access. */
int hub_find(const struct hub *h, const struct hub_name *n, char path[PATH_MAX], struct err *e);

/* Downloads what is missing, and returns the path. Existing files are checked against the Hub; offline they
 * are used unchecked. */
struct hub_pulled {
    char path[PATH_MAX];
    char commit[64]; /* "" = not from the Hub */
    uint64_t bytes;  /* of the model's files */
    uint64_t fetched;
    int files;
};
int hub_pull(const struct hub *h, const struct hub_name *n, struct hub_pulled *out, struct err *e);
