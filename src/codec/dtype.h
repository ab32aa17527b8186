/* Tensor types: one table for every type that a model file can hold. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Types 0.. are numbered as in GGUF; those that only safetensors has follow from 100. */
enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F16 = 1,
    DTYPE_Q4_0 = 2,
    DTYPE_Q4_1 = 3,
    DTYPE_Q5_0 = 6,
    DTYPE_Q5_1 = 7,
    DTYPE_Q8_0 = 8,
    DTYPE_Q8_1 = 9,
    DTYPE_Q2_K = 10,
    DTYPE_Q3_K = 11,
    DTYPE_Q4_K = 12,
    DTYPE_Q5_K = 13,
    DTYPE_Q6_K = 14,
    DTYPE_Q8_K = 15,
    DTYPE_IQ2_XXS = 16,
    DTYPE_IQ2_XS = 17,
    DTYPE_IQ3_XXS = 18,
    DTYPE_IQ1_S = 19,
    DTYPE_IQ4_NL = 20,
    DTYPE_IQ3_S = 21,
    DTYPE_IQ2_S = 22,
    DTYPE_IQ4_XS = 23,
    DTYPE_I8 = 24,
    DTYPE_I16 = 25,
    DTYPE_I32 = 26,
    DTYPE_I64 = 27,
    DTYPE_F64 = 28,
    DTYPE_IQ1_M = 29,
    DTYPE_BF16 = 30,
    DTYPE_TQ1_0 = 34,
    DTYPE_TQ2_0 = 35,
    DTYPE_MXFP4 = 39,
    DTYPE_NVFP4 = 40,
    DTYPE_Q1_0 = 41,
    DTYPE_F8_E4M3 = 100,
    DTYPE_F8_E5M2 = 101,
    DTYPE_U8 = 102,
    DTYPE_U16 = 103,
    DTYPE_U32 = 104,
    DTYPE_U64 = 105,
    DTYPE_BOOL = 106,
    DTYPE_F8_E8M0 = 107,
    DTYPE_MOST = 128
};

struct dtype_info {
    const char *name;      /* as GGUF spells it, "Q4_K" */
    uint32_t block_values; /* values in a block; 1 for plain types */
    uint32_t block_bytes;
    /* n values, a multiple of block_values, from blocks at src (any alignment); NULL = not numbers we can decode */
    void (*decode)(const void *src, float *dst, size_t n);
    /* the reverse, with importance weights or NULL; NULL = no encoder */
    void (*encode)(const float *src, void *dst, size_t n, const float *importance);
};

/* NULL for a number that names no type. */
const struct dtype_info *dtype_get(uint32_t type);
/* By name, as in the table, upper or lower case; -1 = none. */
int dtype_find(const char *name);
/* Bytes of n values in one row; false when n is not a multiple of the block or it overflows. */
bool dtype_row_bytes(uint32_t type, size_t n, size_t *bytes);
