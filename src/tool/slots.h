/* How many requests a model generates at once. */
#pragma once

#include "tool/args.h"

#include <stdint.h>

/* Without --slots: `cpu`, doubled on a GPU as long as that is at most its memory in GiB, up to 128. KV takes memory as
 * requests grow, so a large card has many. By the options of LOAD_OPTIONS: those that leave the card out, and
 * --gpu-memory. Before threads start. */
uint32_t slots_default(const struct args *a, uint32_t cpu);
