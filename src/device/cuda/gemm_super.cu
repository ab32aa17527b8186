/* Products with blocks of 256 values. */
#include "device/cuda/gemm.cuh"

GEMM_KERNELS(gemm_q2_k, FMT_Q2_K)
GEMM_KERNELS(gemm_q3_k, FMT_Q3_K)
GEMM_KERNELS(gemm_q4_k, FMT_Q4_K)
GEMM_KERNELS(gemm_q5_k, FMT_Q5_K)
GEMM_KERNELS(gemm_iq4_xs, FMT_IQ4_XS)
