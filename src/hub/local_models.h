/* The models that are on this machine, and their removal. */
#pragma once

#include "base/err.h"
#include "hub/hub.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct local_model {
    char *name;      /* its name, as MODEL */
    char *path;      /* for store_open; NULL where it is not whole */
    char *quant;     /* of a GGUF, by its name; "" for safetensors */
    char commit[64]; /* "" = not from the Hub */
    uint64_t bytes;  /* of a partial download: the bytes present */
    time_t changed;
};

struct local_models {
    struct local_model *items; /* (count), sorted by name */
    size_t count;
};

int local_models_read(struct local_models *s, const struct hub *h, struct err *e);
void local_models_free(struct local_models *s);

/* Removes the named model and returns the number of bytes freed. USER/REPO without a quant is the whole
 * repository; with a quant only that file, and blobs that another snapshot uses stay. Paths are never
 * removed. */
int local_models_remove(const struct hub *h, const struct hub_name *n, uint64_t *freed, struct err *e);
