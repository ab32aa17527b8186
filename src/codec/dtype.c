/* The table of tensor types. */
#include "codec/dtype.h"

#include <strings.h>

#include "codec/block.h"
#include "codec/codec.h"
#include "base/size.h"

static const struct dtype_info dtypes[DTYPE_MOST] = {
    [DTYPE_F32] = {"F32", 1, 4, decode_f32, encode_f32},
    [DTYPE_F16] = {"F16", 1, 2, decode_f16, encode_f16},
    [DTYPE_BF16] = {"BF16", 1, 2, decode_bf16, encode_bf16},
    [DTYPE_Q4_0] = {"Q4_0", 32, sizeof(struct block_q4_0), decode_q4_0, encode_q4_0},
    [DTYPE_Q4_1] = {"Q4_1", 32, sizeof(struct block_q4_1), decode_q4_1, encode_q4_1},
    [DTYPE_Q5_0] = {"Q5_0", 32, sizeof(struct block_q5_0), decode_q5_0, encode_q5_0},
    [DTYPE_Q5_1] = {"Q5_1", 32, sizeof(struct block_q5_1), decode_q5_1, encode_q5_1},
    [DTYPE_Q8_0] = {"Q8_0", 32, sizeof(struct block_q8_0), decode_q8_0, encode_q8_0},
    [DTYPE_Q8_1] = {"Q8_1", 32, sizeof(struct block_q8_1), decode_q8_1, encode_q8_1},
    [DTYPE_Q2_K] = {"Q2_K", BLOCK_K, sizeof(struct block_q2_k), decode_q2_k, encode_q2_k},
    [DTYPE_Q3_K] = {"Q3_K", BLOCK_K, sizeof(struct block_q3_k), decode_q3_k, encode_q3_k},
    [DTYPE_Q4_K] = {"Q4_K", BLOCK_K, sizeof(struct block_q4_k), decode_q4_k, encode_q4_k},
    [DTYPE_Q5_K] = {"Q5_K", BLOCK_K, sizeof(struct block_q5_k), decode_q5_k, encode_q5_k},
    [DTYPE_Q6_K] = {"Q6_K", BLOCK_K, sizeof(struct block_q6_k), decode_q6_k, encode_q6_k},
    [DTYPE_Q8_K] = {"Q8_K", BLOCK_K, sizeof(struct block_q8_k), decode_q8_k, encode_q8_k},
    [DTYPE_IQ2_XXS] = {"IQ2_XXS", BLOCK_K, sizeof(struct block_iq2_xxs), decode_iq2_xxs, NULL},
    [DTYPE_IQ2_XS] = {"IQ2_XS", BLOCK_K, sizeof(struct block_iq2_xs), decode_iq2_xs, NULL},
    [DTYPE_IQ3_XXS] = {"IQ3_XXS", BLOCK_K, sizeof(struct block_iq3_xxs), decode_iq3_xxs, NULL},
    [DTYPE_IQ1_S] = {"IQ1_S", BLOCK_K, sizeof(struct block_iq1_s), decode_iq1_s, NULL},
    [DTYPE_IQ4_NL] = {"IQ4_NL", 32, sizeof(struct block_iq4_nl), decode_iq4_nl, encode_iq4_nl},
    [DTYPE_IQ3_S] = {"IQ3_S", BLOCK_K, sizeof(struct block_iq3_s), decode_iq3_s, NULL},
    [DTYPE_IQ2_S] = {"IQ2_S", BLOCK_K, sizeof(struct block_iq2_s), decode_iq2_s, NULL},
    [DTYPE_IQ4_XS] = {"IQ4_XS", BLOCK_K, sizeof(struct block_iq4_xs), decode_iq4_xs, encode_iq4_xs},
    [DTYPE_I8] = {"I8", 1, 1, decode_i8, NULL},
    [DTYPE_I16] = {"I16", 1, 2, decode_i16, NULL},
    [DTYPE_I32] = {"I32", 1, 4, decode_i32, NULL},
    [DTYPE_I64] = {"I64", 1, 8, decode_i64, NULL},
    [DTYPE_F64] = {"F64", 1, 8, decode_f64, NULL},
    [DTYPE_IQ1_M] = {"IQ1_M", BLOCK_K, sizeof(struct block_iq1_m), decode_iq1_m, NULL},
    [DTYPE_TQ1_0] = {"TQ1_0", BLOCK_K, sizeof(struct block_tq1_0), decode_tq1_0, encode_tq1_0},
    [DTYPE_TQ2_0] = {"TQ2_0", BLOCK_K, sizeof(struct block_tq2_0), decode_tq2_0, encode_tq2_0},
    [DTYPE_MXFP4] = {"MXFP4", 32, sizeof(struct block_mxfp4), decode_mxfp4, encode_mxfp4},
    [DTYPE_NVFP4] = {"NVFP4", 64, sizeof(struct block_nvfp4), decode_nvfp4, NULL},
    [DTYPE_Q1_0] = {"Q1_0", 128, sizeof(struct block_q1_0), decode_q1_0, NULL},
    [DTYPE_F8_E4M3] = {"F8_E4M3", 1, 1, decode_f8_e4m3, encode_f8_e4m3},
    [DTYPE_F8_E5M2] = {"F8_E5M2", 1, 1, decode_f8_e5m2, encode_f8_e5m2},
    [DTYPE_U8] = {"U8", 1, 1, decode_u8, NULL},
    [DTYPE_U16] = {"U16", 1, 2, decode_u16, NULL},
    [DTYPE_U32] = {"U32", 1, 4, decode_u32, NULL},
    [DTYPE_U64] = {"U64", 1, 8, decode_u64, NULL},
    [DTYPE_BOOL] = {"BOOL", 1, 1, decode_u8, NULL},
    [DTYPE_F8_E8M0] = {"F8_E8M0", 1, 1, decode_f8_e8m0, encode_f8_e8m0},
};

const struct dtype_info *dtype_get(uint32_t type)
{
    return type < DTYPE_MOST && dtypes[type].name ? &dtypes[type] : NULL;
}

int dtype_find(const char *name)
{
    for (int i = 0; i < DTYPE_MOST; i++)
        if (dtypes[i].name && !strcasecmp(dtypes[i].name, name))
            return i;
    return -1;
}

bool dtype_row_bytes(uint32_t type, size_t n, size_t *bytes)
{
    const struct dtype_info *t = dtype_get(type);
    return t && n % t->block_values == 0 && size_mul(n / t->block_values, t->block_bytes, bytes);
}
