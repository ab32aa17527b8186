/* The vector tiers of ARM64: which of them this machine has. */
#include "device/cpu/tiers.h"

const struct tier kernel_tiers[] = {{0}};
