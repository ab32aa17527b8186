/* Vector work of the NEON tiers. */
#define VECTOR_BYTES 16
#include "device/cpu/vector.h"
#include "device/cpu/state_vector.h"
#include "device/cpu/tiers.h"

void vector_neon(struct kernels *k)
{
    vector_fill(k);
    state_fill(k);
}
