/* A set of names with a number each: one hash table for keys, tensors and shards. The hash is keyed with
 * random bytes of this process, so a file cannot choose colliding names. The names are not copied. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct names_slot {
    const char *name; /* NULL = free */
    uint32_t hash, value;
};

struct names {
    struct names_slot *slots; /* (mask + 1), a power of two, at most half full */
    size_t mask, count;
};

/* 0 = added, 1 = the name was there already (and keeps its value), -1 = out of memory. */
int names_add(struct names *n, const char *name, uint32_t value);
/* The value, or -1 where the name is not there. */
int64_t names_find(const struct names *n, const char *name);
void names_free(struct names *n);
