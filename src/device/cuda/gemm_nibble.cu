/* Products with blocks of 32 values. */
#include "device/cuda/gemm.cuh"

GEMM_KERNELS(gemm_q4_0, FMT_Q4_0)
GEMM_KERNELS(gemm_q4_1, FMT_Q4_1)
GEMM_KERNELS(gemm_q5_0, FMT_Q5_0)
GEMM_KERNELS(gemm_q5_1, FMT_Q5_1)
GEMM_KERNELS(gemm_iq4_nl, FMT_IQ4_NL)
