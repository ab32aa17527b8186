/* The models that are on this machine, and their removal. */
#pragma once

#include "base/err.h"
#include "hub/hub.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct stock_item {
    char *name;      /* what MODEL would be */
    char *path;      /* for store_open; NULL where it is not whole */
    char *quant;     /* of a GGUF, by its name; "" for safetensors */
    char commit[64]; /* "" = not from the Hub */
    uint64_t bytes;  /* of a part: those that are there */
    time_t changed;
};

struct stock {
    struct stock_item *items; /* (count), sorted by name */
    size_t count;
};

int stock_read(struct stock *s, const struct hub *h, struct err *e);
void stock_free(struct stock *s);

/* Removes what the name means, and says how many bytes went. USER/REPO without a quant is all of the repository; one
 * with a quant is that one, and bytes that another snapshot still uses stay. Paths are not ours to remove. */
int stock_remove(const struct hub *h, const struct hub_name *n, uint64_t *freed, struct err *e);
