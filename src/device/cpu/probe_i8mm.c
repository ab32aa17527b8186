#define PROBE_DOT(sum, a) vmmlaq_s32(sum, a, a)
#define PROBE_DOT_OPS     64
#include "device/cpu/probe_arm64.h"

void probe_i8mm(struct probe_kernels *k)
{
    probe_fill(k);
}
