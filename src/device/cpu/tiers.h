/* What each file of a vector tier puts into the table. The machine has been asked before. */
#pragma once

#include "device/cpu/kernels.h"

void matmul_avx2(struct kernels *k);
void matmul_avx512(struct kernels *k);
void matmul_avx512bf16(struct kernels *k); /* after the one above, on a machine that has AVX512_BF16 */
void vector_avx2(struct kernels *k);
void vector_avx512(struct kernels *k);
