/* MODEL as a person writes it: a path, or a name of the small list of models that scripts/fetch-model knows. */
#pragma once

#include "base/err.h"

#include <stddef.h>

/* The model that is meant where none is said. */
#define HUB_DEFAULT "smollm2"

/* Writes the path that `model` means (NULL = the default model). `cache` is quern's folder in the user's cache.
 * A path that exists goes before a name. */
int hub_resolve(const char *cache, const char *model, char *path, size_t size, struct err *e);
