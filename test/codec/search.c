/* The search gives the same codes with every set of instructions. */
#include "test.h"

#include "base/isa.h"
#include "codec/search.h"

#include <string.h>

static const float levels[] = {-6, -4, -3, -2, -1.5f, -1, -0.5f, 0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

static const struct search_form forms[] = {
    {.groups = 16, .len = 16, .most = 3, .scale_most = 15, .min_most = 15},
    {.groups = 8, .len = 32, .most = 15, .scale_most = 63, .min_most = 63},
    {.groups = 16, .len = 16, .least = -32, .most = 31, .scale_least = -128, .scale_most = 127},
    {.groups = 1, .len = 32, .least = -8, .most = 7, .scale_least = 1, .scale_most = 1},
    {.groups = 1,
     .len = 32,
     .most = 31,
     .scale_least = 1,
     .scale_most = 1,
     .min_most = 1,
     .min_signed = true},
    {.groups = 1,
     .len = 32,
     .least = -7,
     .most = 7,
     .levels = levels,
     .scale_least = 1,
     .scale_most = 1,
     .power = true},
};

static uint32_t seed = 1;

static float noise(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)seed * 0x1p-31f;
}

static void same_everywhere(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof forms / sizeof *forms; k++)
        for (int n = 0; n < 200; n++) {
            float x[SEARCH_VALUES], w[SEARCH_VALUES], size = n % 5 ? 0.02f : 1e30f;
            struct search_result plain, other;
            for (int i = 0; i < SEARCH_VALUES; i++) {
                x[i] = n % 7 ? noise() * noise() * size : n % 14 ? 0 : 1 / (float)i;
                w[i] = noise() + 0.9f;
            }
            const float *weight = n % 2 ? w : NULL;
            search_plain(&forms[k], x, weight, &plain);
            for (const struct search_way *o = search_ways; o->tier != SEARCH_ANYWHERE; o++)
                if (isa_has(o->tier)) {
                    o->run(&forms[k], x, weight, &other);
                    assert_memory_equal(&plain, &other, sizeof plain);
                }
            search_block(&forms[k], x, weight, &other);
            assert_memory_equal(&plain, &other, sizeof plain);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_everywhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
