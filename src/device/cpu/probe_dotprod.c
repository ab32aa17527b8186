#define PROBE_DOT(sum, a) vdotq_s32(sum, a, a)
#define PROBE_DOT_OPS     32
#include "device/cpu/probe_arm64.h"

void probe_dotprod(struct probe_kernels *k)
{
    probe_fill(k);
}
