/* Activations by the names of config.json. */
#pragma once

#include "device/kinds.h"

#include <stdbool.h>

/* False: the name is not known, and *out as it was. */
bool act_named(const char *name, enum act_kind *out);
/* The first of its names; NULL = it has none. */
const char *act_name(enum act_kind kind);
