/* The type of a whole file ("Q4_K_M"): one name for the mix of types that its tensors have. */
#pragma once

#include "format/store.h"

/* Numbers are those of general.file_type. */
enum file_type {
    FILE_F32 = 0,
    FILE_F16 = 1,
    FILE_Q4_0 = 2,
    FILE_Q4_1 = 3,
    FILE_Q8_0 = 7,
    FILE_Q5_0 = 8,
    FILE_Q5_1 = 9,
    FILE_Q2_K = 10,
    FILE_Q3_K_S = 11,
    FILE_Q3_K_M = 12,
    FILE_Q3_K_L = 13,
    FILE_Q4_K_S = 14,
    FILE_Q4_K_M = 15,
    FILE_Q5_K_S = 16,
    FILE_Q5_K_M = 17,
    FILE_Q6_K = 18,
    FILE_IQ2_XXS = 19,
    FILE_IQ2_XS = 20,
    FILE_Q2_K_S = 21,
    FILE_IQ3_XS = 22,
    FILE_IQ3_XXS = 23,
    FILE_IQ1_S = 24,
    FILE_IQ4_NL = 25,
    FILE_IQ3_S = 26,
    FILE_IQ3_M = 27,
    FILE_IQ2_S = 28,
    FILE_IQ2_M = 29,
    FILE_IQ4_XS = 30,
    FILE_IQ1_M = 31,
    FILE_BF16 = 32,
    FILE_TQ1_0 = 36,
    FILE_TQ2_0 = 37,
    FILE_MXFP4 = 38,
    FILE_NVFP4 = 39,
    FILE_Q1_0 = 40
};

/* By general.file_type. Without the key: the type with the most bytes in the layers, and for K types the mix beside it.
 * "" = there is no tensor. */
const char *store_file_type(const struct store *s);
