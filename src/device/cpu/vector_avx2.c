/* Vector work of the AVX2 tier. */
#define VECTOR_BYTES 32
#include "device/cpu/vector.h"
#include "device/cpu/state_vector.h"
#include "device/cpu/tiers.h"

void vector_avx2(struct kernels *k)
{
    vector_fill(k);
    state_fill(k);
}
