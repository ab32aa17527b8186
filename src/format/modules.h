/* modules.json of a sentence-transformers folder: the parts that follow each other, each with files in a folder
 * of its own. One thread. */
#pragma once

#include "base/err.h"
#include "format/store.h"

struct modules {
    const struct store *store;
    json_t *list; /* NULL: the model has no such file */
};

int modules_open(struct modules *m, const struct store *s, struct err *e);
void modules_close(struct modules *m);
/* The last part of the i-th module's type, such as "Pooling" or "Dense"; NULL: there is none. */
const char *modules_kind(const struct modules *m, size_t i);
/* Path of a file of the module; NULL: it has none, or (with an error) its folder is not inside the model's. */
const char *modules_file(const struct modules *m, size_t i, const char *file, struct err *e);
/* The module's config.json; NULL: it has none, or an error. */
json_t *modules_config(const struct modules *m, size_t i, struct err *e);
