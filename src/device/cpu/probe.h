/* The measured limits of this machine, to which speeds are compared. */
#pragma once

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct pool;

struct probe {
    double read;    /* bytes a second, all workers reading memory far larger than the caches */
    double int8;    /* operations a second: products and sums of bytes, with the best tier */
    double float32; /* operations a second: fused multiply-add of floats */
    double bf16;    /* the same of pairs of bf16; 0 where the machine has no instruction for it */
};

/* Takes about a second. */
int probe_run(struct pool *p, struct probe *out, struct err *e);

/* One worker's share, by tier. Sums are returned so that the work cannot be left out. */
struct probe_kernels {
    uint64_t (*read)(const void *p, size_t bytes); /* 64-byte aligned, a multiple of 1024 bytes */
    /* `steps` rounds of independent instructions; the operations of a round */
    float (*int8)(long steps);
    float (*float32)(long steps);
    float (*bf16)(long steps); /* NULL: none */
    double int8_round, float32_round, bf16_round;
};

/* By tier; the names of probe_avx2.c and its like. */
void probe_avx2(struct probe_kernels *k);
void probe_avx512(struct probe_kernels *k);
void probe_amx(struct probe_kernels *k);
void probe_neon(struct probe_kernels *k);
void probe_dotprod(struct probe_kernels *k);
void probe_i8mm(struct probe_kernels *k);
