/* A batch in files, as a feed of lines (serve/batch.h). The input is read twice: first every line is checked and
 * indexed, then lines are run. The output is the record of what is done: each reply is one line, written at once and whole.
 * A run that was stopped anywhere, also by kill -9, goes on with what neither output has; a torn last line is cut. Replies
 * of status 200 go to the output, others to the file of errors, which is made with the first of them.
 *
 * Opened and closed by the main thread; in between it is the driver's. */
#pragma once

#include "base/digest.h"
#include "base/err.h"
#include "base/file.h"
#include "serve/batch.h"
#include "tool/progress.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct batch_output {
    const char *path;
    int fd;     /* -1 = not there yet */
    off_t size; /* of whole lines */
    bool dirty; /* not all of it is on the disk */
};

struct batch_file {
    const char *path;
    struct map in;
    struct batch_entry {
        size_t at, n;     /* where the line is */
        struct digest id; /* of its custom_id */
        bool done;
    } * lines;     /* (count), in order of id */
    size_t *order; /* (count): as in the file */
    size_t count, room, next;
    size_t done, failed; /* with a reply; of these, those in the file of errors */
    size_t before;       /* done when this run began */
    struct batch_output out, errors;
    double synced;
    struct progress progress;
};

int batch_file_open(struct batch_file *f, const char *in, const char *out, const char *errors, struct err *e);
/* The rest is written to the disk. */
int batch_file_close(struct batch_file *f, struct err *e);
/* The functions of a feed; arg is the file. */
int batch_file_next(void *arg, struct batch_line *l, struct err *e);
int batch_file_done(void *arg, struct batch_line *l, struct err *e);
