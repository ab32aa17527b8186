/* The vector tiers of each architecture, and which of them this machine runs. A tier includes those of its architecture
 * before it. A file whose name ends in an architecture (isa_x86.c, isa_arm64.c) or in one of its tiers is compiled
 * for that architecture alone. */
#pragma once

#include <stdbool.h>

enum isa_tier { ISA_avx2, ISA_avx512, ISA_amx, ISA_x86_tiers };
enum isa_tier_arm64 { ISA_neon, ISA_dotprod, ISA_i8mm, ISA_arm64_tiers };

/* Whether the processor has all that the architecture's rows list for the tier, and the system keeps its registers. For AMX
 * the system must still be asked for the tiles. Fast after the first call. */
bool isa_has(int tier);
