#define PROBE_DOT(sum, a) vpadalq_s16(sum, vmull_s8(vget_low_s8(a), vget_low_s8(a)))
#define PROBE_DOT_OPS     16
#include "device/cpu/probe_arm64.h"

void probe_neon(struct probe_kernels *k)
{
    probe_fill(k);
}
