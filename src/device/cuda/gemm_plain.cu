/* Products with plain rows. */
#include "device/cuda/gemm.cuh"

GEMM_KERNELS(gemm_f32, FMT_F32)
GEMM_KERNELS(gemm_f16, FMT_F16)
GEMM_KERNELS(gemm_bf16, FMT_BF16)
