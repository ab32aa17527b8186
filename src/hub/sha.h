/* SHA-256 and SHA-1, for checking downloads: the Hub names large files by SHA-256 and, as git does, small
 * ones by SHA-1. SHA-256 uses the CPU's own instructions where it has them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { SHA_HEX = 64 + 1 }; /* room for either as text */

enum sha_kind { SHA_1, SHA_256 };

struct sha {
    enum sha_kind kind;
    uint32_t state[8]; /* SHA-1 uses five */
    uint8_t block[64];
    uint64_t bytes; /* so far */
};

void sha_start(struct sha *s, enum sha_kind kind);
void sha_add(struct sha *s, const void *data, size_t n);
/* Lower-case hex: 64 letters, or 40. */
void sha_end(struct sha *s, char hex[SHA_HEX]);
void sha_end_bytes(struct sha *s, uint8_t out[32]); /* of SHA-256 */
/* For tests: from now on SHA-256 in plain C, whatever the CPU can do. */
void sha_plain(void);
