/* The vector tiers of x86-64, and which of them this machine runs. A tier includes those before it. */
#pragma once

#include <stdbool.h>

enum isa_tier { ISA_avx2, ISA_avx512, ISA_amx };

/* Whether the processor has all that isa_rows.h lists for the tier, and the system keeps its registers. For AMX the
 * system must still be asked for the tiles. Fast after the first call. */
bool isa_has(enum isa_tier t);
