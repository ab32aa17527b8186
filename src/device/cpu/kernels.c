/* Which kernels this machine gets: the tables are filled once, tier upon tier. */
#include "device/cpu/kernels.h"

#include "device/device.h"

#include <pthread.h>
#include <string.h>

enum { TIER_SCALAR, TIER_AVX2, TIER_AVX512, TIER_AMX, TIERS };

static const char *const tier_name[TIERS] = {"scalar", "avx2", "avx512", "amx"};
static struct kernels tier_table[TIERS];
static int tier_best;
static pthread_once_t tier_once = PTHREAD_ONCE_INIT;

static void kernels_fill(void)
{
    kernels_scalar(&tier_table[TIER_SCALAR]);
    static bool (*const fill[TIERS])(struct kernels *) = {NULL, kernels_avx2, kernels_avx512, kernels_amx};
    static void (*const fill_attn[TIERS])(struct kernels *) = {NULL, kernels_attn_avx2, kernels_attn_avx512,
                                                               NULL};
    for (int t = TIER_AVX2; t < TIERS; t++) {
        tier_table[t] = tier_table[t - 1];
        if (!fill[t](&tier_table[t]))
            return;
        if (fill_attn[t])
            fill_attn[t](&tier_table[t]);
        tier_table[t].tier = tier_name[t];
        tier_best = t;
    }
}

const struct kernels *kernels_get(const char *tier, struct err *e)
{
    pthread_once(&tier_once, kernels_fill);
    if (!tier)
        return &tier_table[tier_best];
    for (int t = 0; t < TIERS; t++) {
        if (strcmp(tier, tier_name[t]))
            continue;
        if (t <= tier_best)
            return &tier_table[t];
        err_set(e, ERR_USAGE, "this machine has no %s; its best tier is %s", tier, tier_name[tier_best]);
        return NULL;
    }
    err_set(e, ERR_USAGE, "there is no kernel tier '%s': the tiers are scalar, avx2, avx512 and amx", tier);
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
