/* Products with Q4_K and Q6_K tiles. From 17 streams on a warp takes two strips, so that x is read half as often. */
#include "device/cuda/gemm.cuh"

GEMM_KERNEL(gemm_tile_8, 0, 1, 1, 2)
GEMM_KERNEL(gemm_tile_16, 0, 2, 1, 2)
GEMM_KERNEL(gemm_tile_32, 0, 4, 2, 1)
GEMM_KERNEL(gemm_tile_64, 0, 8, 1, 1)
