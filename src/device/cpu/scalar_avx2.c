#include "device/cpu/scalar_attn.h"
#include "device/cpu/tiers.h"

static void scores_fused(const struct attn_tile *t)
{
    any_scores(t);
}

static void values_fused(const struct attn_tile *t)
{
    any_values(t);
}

void scalar_avx2(struct kernels *k)
{
    k->attn_scores = scores_fused;
    k->attn_values = values_fused;
}
