/* Tables for products in bf16 beside those of the tiers: what a machine with fewer or other instructions would have. */
#pragma once

#include "device/cpu/kernels.h"

enum { VARIANTS = 2 };

/* False: there is no i-th one on this machine. */
bool variant_bf16(size_t i, struct kernels *k);
