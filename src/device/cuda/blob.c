/* The compiled kernels, as bytes of this program. */
#include "device/cuda/gpu.h"

#if defined(QUERN_CUDA_KERNELS) && !defined(QUERN_CPU_ALONE)
#define BLOB(name)                                                                                           \
    __asm__(".section .rodata\n.balign 64\nquern_blob_" #name ":\n.incbin \"" QUERN_CUDA_KERNELS "/" #name   \
            ".fatbin\"\n.byte 0\n.previous\n");                                                              \
    extern const unsigned char quern_blob_##name[]

BLOB(gemm_tile);
BLOB(gemm_wide);
BLOB(gemm_many);
BLOB(gemm_one);
BLOB(gemm_plain);
BLOB(gemm_nibble);
BLOB(gemm_super);
BLOB(weights);
BLOB(rows);
BLOB(attn);
BLOB(attn_prefill);
BLOB(attn_wide);
BLOB(moe);
BLOB(moe_row);
BLOB(lora);
BLOB(state);
BLOB(small);

const void *gpu_blob(enum gpu_module module)
{
    static const void *const all[MODULE_COUNT] = {
        [MODULE_GEMM_TILE] = quern_blob_gemm_tile,
        [MODULE_GEMM_WIDE] = quern_blob_gemm_wide,
        [MODULE_GEMM_MANY] = quern_blob_gemm_many,
        [MODULE_GEMM_ONE] = quern_blob_gemm_one,
        [MODULE_GEMM_PLAIN] = quern_blob_gemm_plain,
        [MODULE_GEMM_NIBBLE] = quern_blob_gemm_nibble,
        [MODULE_GEMM_SUPER] = quern_blob_gemm_super,
        [MODULE_WEIGHTS] = quern_blob_weights,
        [MODULE_ROWS] = quern_blob_rows,
        [MODULE_ATTN] = quern_blob_attn,
        [MODULE_ATTN_PREFILL] = quern_blob_attn_prefill,
        [MODULE_ATTN_WIDE] = quern_blob_attn_wide,
        [MODULE_MOE] = quern_blob_moe,
        [MODULE_MOE_ROW] = quern_blob_moe_row,
        [MODULE_LORA] = quern_blob_lora,
        [MODULE_STATE] = quern_blob_state,
        [MODULE_SMALL] = quern_blob_small,
    };
    return all[module];
}
#else
const void *gpu_blob(enum gpu_module module)
{
    (void)module;
    return NULL;
}
#endif
