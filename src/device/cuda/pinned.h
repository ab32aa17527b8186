/* Weights that the card reads from where they are in host memory, mostly the mapped file: the driver pins their pages, and
 * no thread copies them. They are pinned piece by piece as they are first sent; what is not, or cannot be, goes through
 * slots of pinned memory (upload.h). Pinned pages stay in memory until pinned_close, beside what the CPU has repacked of
 * them, also where map_forget drops them. */
#pragma once

#include "device/cuda/gpu.h"

#include <stddef.h>

struct pinned;

/* A run of bytes. */
struct pinned_range {
    const uint8_t *from;
    size_t bytes;
};

/* range: (n) sorted here; nothing is pinned yet. NULL: the card or its driver cannot, or all of it is more than `most`. */
struct pinned *pinned_open(struct gpu *g, struct pinned_range *range, size_t n, uint64_t most);
void pinned_close(struct pinned *p);
/* Bytes that are pinned, or will be. */
uint64_t pinned_bytes(const struct pinned *p);
/* Whether all of it is pinned. Any thread. */
bool pinned_has(const struct pinned *p, struct pinned_range r);
/* Pins what is not yet of the pieces of a range. Where the driver refuses, no more is tried. Any thread. */
void pinned_take(struct pinned *p, struct pinned_range r);
/* Copies a range that is pinned to the card, in its stream. */
int pinned_send(const struct pinned *p, struct gpu *g, cu_ptr to, struct pinned_range r, struct err *e);
