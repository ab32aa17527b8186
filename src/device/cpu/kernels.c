/* Which kernels this machine gets: the tables are filled once, tier upon tier. */
#include "device/cpu/kernels.h"

#include "device/cpu/tiers.h"
#include "device/device.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct kernels tier_table[TIERS_MOST];
static size_t tier_best;
static pthread_once_t tier_once = PTHREAD_ONCE_INIT;

const char *kernels_tier(size_t i)
{
    return i ? kernel_tiers[i - 1].name : "scalar";
}

static void kernels_fill(void)
{
    kernels_scalar(&tier_table[0]);
    scalar_fused(&tier_table[0]);
    for (size_t t = 1; kernels_tier(t); t++) {
        tier_table[t] = tier_table[t - 1];
        if (!kernel_tiers[t - 1].fill(&tier_table[t]))
            return;
        tier_table[t].tier = kernels_tier(t);
        tier_best = t;
    }
}

static const struct kernels *kernels_unknown(const char *tier, struct err *e)
{
    char names[128] = "";
    for (size_t t = 0; kernels_tier(t); t++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
                 !t                    ? ""
                 : kernels_tier(t + 1) ? ", "
                                       : " and ",
                 kernels_tier(t));
    err_set(e, ERR_USAGE, "there is no kernel tier '%s': the tiers are %s", tier, names);
    return NULL;
}

const struct kernels *kernels_get(const char *tier, struct err *e)
{
    pthread_once(&tier_once, kernels_fill);
    if (!tier)
        return &tier_table[tier_best];
    size_t t = 0;
    while (kernels_tier(t) && strcmp(tier, kernels_tier(t)))
        t++;
    if (!kernels_tier(t))
        return kernels_unknown(tier, e);
    if (t <= tier_best)
        return &tier_table[t];
    err_set(e, ERR_USAGE, "this machine has no %s; its best tier is %s", tier, kernels_tier(tier_best));
    return NULL;
}

const char *cpu_tier(const char *most)
{
    struct err none = {0};
    const struct kernels *k = kernels_get(most, &none);
    return k ? k->tier : "";
}

float cpu_max(const float *x, uint32_t n)
{
    return kernels_get(NULL, NULL)->max(x, n);
}

float cpu_exp_sum(float *x, uint32_t n, float max)
{
    return kernels_get(NULL, NULL)->exp_sum(x, n, max);
}
