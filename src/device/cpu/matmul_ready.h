/* For tiers that use panels and tiles in the order in which they are packed. */
#pragma once

#include "device/cpu/matmul_panel.h"

ALWAYS_INLINE void panel_ready(struct q8_panel *p, uint32_t groups)
{
    (void)p, (void)groups;
}

ALWAYS_INLINE void tile_ready(struct q8_tile *t, uint32_t groups)
{
    (void)t, (void)groups;
}
