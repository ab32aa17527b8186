/* What the files of struct models share: models.c has what everybody calls, models_load.c the thread that loads and
 * unloads, models_list.c the list. The mutex is held by whoever calls these, unless they say otherwise. */
#pragma once

#include "serve/models.h"

enum { MODELS_FAILED = 60 }; /* seconds that a failed load counts */

/* The next form of all, in order; start with NULL. */
struct instance *models_next(const struct models *m, const struct instance *f);
uint64_t models_used(const struct models *m);
void models_add_stats(struct models_stats *sum, const struct instance *f);

/* All who wait, as a list of their own. Where the form is ready, they are its users now. */
struct model_wait *instance_waits(struct instance *f);
void waits_notify(struct model_wait *all); /* the mutex is not held: they may call back */

/* Puts a form at the end of those to be loaded. */
void models_want(struct models *m, struct instance *f);
void *models_thread(void *arg);

/* Reads the list anew; the mutex is not held. */
int models_scan(struct models *m, struct err *e);
void models_free_list(struct models *m);

/* The adapters of the options. */
int models_open_adapters(struct models *m, struct err *e);
void models_free_adapters(struct models *m);
/* Adds the adapters that the model had to one that is loaded again. The mutex is not held. */
void models_restore_adapters(struct models *m, struct instance *f);
