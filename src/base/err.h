/* Errors propagate to the caller. A function that can fail takes a `struct err *` as its last argument and
 * returns 0 or -1 (or NULL). The first error wins: setting one that is already set does nothing, so a
 * clean-up path can never hide the cause. The code is the program's exit code. */
#pragma once

#include <stdbool.h>

enum err_code {
    ERR_NONE = 0,
    ERR_USAGE = 64,       /* the command line or a request's fields */
    ERR_DATA = 65,        /* a bad or missing model, template, prompt: input that is wrong */
    ERR_UNREACHABLE = 69, /* a server or a hub that does not reply */
    ERR_DEVICE = 70,      /* a GPU fault, or a rank that is lost */
    ERR_FULL = 73,        /* a disk or a folder without room, or that cannot be written */
    ERR_CHANGED = 74,     /* the model file changed while in use, or reading it failed */
    ERR_RESOURCE = 75,    /* out of memory, threads, file descriptors or context */
    ERR_INTERRUPTED = 130
};

struct err {
    enum err_code code;
    bool crowded; /* of ERR_RESOURCE: others hold what is missing, and may give it back */
    char text[768];
};

/* Both return -1, so a failure is one line: return err_set(e, ERR_DATA, "...", ...). */
int err_set(struct err *e, enum err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "where: " in front of an error that is already set. */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Marks an error that is already set as `crowded`. */
int err_crowded(struct err *e);
int err_memory(struct err *e, const char *what, unsigned long long bytes);
