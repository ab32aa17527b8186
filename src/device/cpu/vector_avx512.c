/* Vector work of the AVX-512 tier. */
#define VECTOR_BYTES 64
#include "device/cpu/vector.h"
#include "device/cpu/state_vector.h"
#include "device/cpu/tiers.h"

void vector_avx512(struct kernels *k)
{
    vector_fill(k);
    state_fill(k);
}
