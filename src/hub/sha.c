#define _GNU_SOURCE
#include "hub/sha.h"

#include "hub/sha_fast.h"

#include <endian.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The first 32 bits of the fractions of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2). */
const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t sha_turn(uint32_t x, int n) /* to the right */
{
    return x >> n | x << (32 - n);
}

static uint32_t sha_word(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return be32toh(v);
}

static void sha256_blocks(uint32_t state[8], const uint8_t *data, size_t blocks)
{
    for (; blocks; blocks--, data += 64) {
        uint32_t w[64], v[8];
        for (int i = 0; i < 16; i++)
            w[i] = sha_word(data + 4 * i);
        for (int i = 16; i < 64; i++) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + w[i - 7] + (sha_turn(a, 7) ^ sha_turn(a, 18) ^ a >> 3) +
                   (sha_turn(b, 17) ^ sha_turn(b, 19) ^ b >> 10);
        }
        memcpy(v, state, sizeof v);
        for (int i = 0; i < 64; i++) {
            uint32_t a = v[0], e = v[4];
            uint32_t one = v[7] + (sha_turn(e, 6) ^ sha_turn(e, 11) ^ sha_turn(e, 25)) +
                           ((e & v[5]) ^ (~e & v[6])) + sha256_k[i] + w[i];
            uint32_t two = (sha_turn(a, 2) ^ sha_turn(a, 13) ^ sha_turn(a, 22)) +
                           ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
            memmove(v + 1, v, 7 * sizeof *v);
            v[4] += one;
            v[0] = one + two;
        }
        for (int i = 0; i < 8; i++)
            state[i] += v[i];
    }
}

static void sha1_blocks(uint32_t state[8], const uint8_t *data, size_t blocks)
{
    static const uint32_t k[4] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    for (; blocks; blocks--, data += 64) {
        uint32_t w[80];
        for (int i = 0; i < 16; i++)
            w[i] = sha_word(data + 4 * i);
        for (int i = 16; i < 80; i++)
            w[i] = sha_turn(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 31);
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
        for (int i = 0; i < 80; i++) {
            int part = i / 20;
            uint32_t f = part == 0 ? (b & c) | (~b & d) : part == 2 ? (b & c) | (b & d) | (c & d) : b ^ c ^ d;
            uint32_t next = sha_turn(a, 27) + f + e + k[part] + w[i];
            e = d, d = c, c = sha_turn(b, 2), b = a, a = next;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
    }
}

enum { SHA_NOT_ASKED, SHA_PLAIN, SHA_INSTRUCTIONS };
static _Atomic int sha_way;

void sha_plain(void)
{
    sha_way = SHA_PLAIN;
}

static bool sha_has_instructions(void)
{
    if (sha_way == SHA_NOT_ASKED)
        sha_way = sha256_instructions() ? SHA_INSTRUCTIONS : SHA_PLAIN;
    return sha_way == SHA_INSTRUCTIONS;
}

static void sha_blocks(struct sha *s, const uint8_t *data, size_t blocks)
{
    if (s->kind == SHA_1)
        sha1_blocks(s->state, data, blocks);
    else if (sha_has_instructions())
        sha256_blocks_fast(s->state, data, blocks);
    else
        sha256_blocks(s->state, data, blocks);
}

void sha_start(struct sha *s, enum sha_kind kind)
{
    static const uint32_t first[2][8] = {
        {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0},
        {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
    *s = (struct sha){.kind = kind};
    memcpy(s->state, first[kind], sizeof s->state);
}

void sha_add(struct sha *s, const void *data, size_t n)
{
    const uint8_t *p = data;
    size_t held = s->bytes % 64;
    s->bytes += n;
    if (held) {
        size_t take = n < 64 - held ? n : 64 - held;
        memcpy(s->block + held, p, take);
        p += take, n -= take;
        if (held + take < 64)
            return;
        sha_blocks(s, s->block, 1);
    }
    sha_blocks(s, p, n / 64);
    if (n % 64)
        memcpy(s->block, p + n / 64 * 64, n % 64);
}

static void sha_finish(struct sha *s)
{
    static const uint8_t pad[64] = {0x80};
    uint64_t bits = htobe64(s->bytes * 8);
    sha_add(s, pad, 1 + (119 - s->bytes % 64) % 64);
    sha_add(s, &bits, sizeof bits);
}

void sha_end(struct sha *s, char hex[SHA_HEX])
{
    sha_finish(s);
    for (int i = 0; i < (s->kind == SHA_1 ? 5 : 8); i++)
        snprintf(hex + 8 * i, 9, "%08x", s->state[i]);
}

void sha_end_bytes(struct sha *s, uint8_t out[32])
{
    sha_finish(s);
    for (int i = 0; i < 32; i++)
        out[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}
