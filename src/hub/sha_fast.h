/* SHA-256 by the processor's own instructions: sha_x86.c, sha_arm64.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The constants of FIPS 180-4, 4.2.2. */
extern const uint32_t sha256_k[64] __attribute__((aligned(16)));

/* Whether this machine has them. */
bool sha256_instructions(void);
/* Call it only where it has. */
void sha256_blocks_fast(uint32_t state[8], const uint8_t *data, size_t blocks);
