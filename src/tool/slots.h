/* How many requests a model generates at once. */
#pragma once

#include <stdint.h>

/* Without --slots: `cpu`, or on a GPU one for each GiB of its memory, at least `cpu`. KV takes memory as requests grow, so a
 * large card has many. device: of --device; NULL = a GPU if there is one. Before threads start. */
uint32_t slots_default(const char *device, uint32_t cpu);
