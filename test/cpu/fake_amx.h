/* The AMX tier's products with tiles in plain C, over a table that has the AVX-512 tier with AVX512_BF16. */
#pragma once

#include "device/cpu/kernels.h"

void fake_amx(struct kernels *k);
