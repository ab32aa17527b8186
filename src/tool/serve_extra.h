/* Models that came while a server runs: pulled, made or copied by its clients. With a file they are there again after a
 * restart. Any thread. */
#pragma once

#include "base/err.h"
#include "serve/models.h"
#include "serve/server.h"

#include <jansson.h>
#include <limits.h>
#include <pthread.h>

struct serve_extra {
    pthread_mutex_t mutex;
    json_t *all;         /* {NAME: {"path", "preset"?}} */
    char file[PATH_MAX]; /* "" = none: they are forgotten */
};

int serve_extra_open(struct serve_extra *x, struct err *e);
void serve_extra_close(struct serve_extra *x);
/* From now on they are kept in this folder; those that it has and that are still there come back. */
void serve_extra_keep(struct serve_extra *x, const char *folder);
void serve_extra_forget(struct serve_extra *x); /* the folder is not ours */
/* A model was pulled, made, copied or removed. */
void serve_extra_change(struct serve_extra *x, const struct model_change *c);
/* Adds them to a list; names that it has stay what they are. */
int serve_extra_list(struct serve_extra *x, struct model_list *out, struct err *e);
/* The settings of one by its name; a new reference, or NULL. */
json_t *serve_extra_preset(struct serve_extra *x, const char *name);
