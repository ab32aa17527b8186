/* Products with Q4_K and Q6_K tiles. */
#include "device/cuda/gemm.cuh"

GEMM_KERNELS(gemm_tile, 0)
