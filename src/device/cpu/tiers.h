/* The vector tiers of this architecture (tiers_x86.c, tiers_arm64.c), and what each file of a tier puts into the table. Call
 * that only on a machine that has the tier. */
#pragma once

#include "device/cpu/kernels.h"
#include "device/cpu/probe.h"

struct tier {
    const char *name;
    bool (*fill)(struct kernels *k); /* over the table of the tier below it; false: not on this machine */
    void (*probe)(struct probe_kernels *k);
};

enum { TIERS_MOST = 5 }; /* with scalar, and the row without a name that ends the list */
extern const struct tier kernel_tiers[];

/* The scalar kernels that call fmaf again, with the architecture's instruction where this machine has it: the same bits. */
void scalar_fused(struct kernels *k);
void scalar_avx2(struct kernels *k);

void matmul_avx2(struct kernels *k);
void matmul_avx512(struct kernels *k);
void matmul_blocks_avx2(struct kernels *k); /* families of types, called by these two */
void matmul_supers_avx2(struct kernels *k);
void matmul_smalls_avx2(struct kernels *k);
void matmul_codes_avx2(struct kernels *k);
void matmul_blocks_avx512(struct kernels *k);
void matmul_supers_avx512(struct kernels *k);
void matmul_smalls_avx512(struct kernels *k);
void matmul_codes_avx512(struct kernels *k);
void matmul_avx512bf16(struct kernels *k); /* after the one above, on a machine that has AVX512_BF16 */
void matmul_amx(struct kernels *k);
void vector_avx2(struct kernels *k);
void vector_avx512(struct kernels *k);
void attn_avx2(struct kernels *k);
void attn_avx512(struct kernels *k);
void matmul_neon(struct kernels *k);
void vector_neon(struct kernels *k);
void attn_neon(struct kernels *k);
void matmul_dotprod(struct kernels *k); /* over those of neon, as is the next one */
void matmul_i8mm(struct kernels *k);
void matmul_blocks_neon(struct kernels *k); /* families of types, called by these three */
void matmul_supers_neon(struct kernels *k);
void matmul_smalls_neon(struct kernels *k);
void matmul_codes_neon(struct kernels *k);
void matmul_blocks_dotprod(struct kernels *k);
void matmul_supers_dotprod(struct kernels *k);
void matmul_smalls_dotprod(struct kernels *k);
void matmul_codes_dotprod(struct kernels *k);
void matmul_blocks_i8mm(struct kernels *k);
void matmul_supers_i8mm(struct kernels *k);
void matmul_smalls_i8mm(struct kernels *k);
void matmul_codes_i8mm(struct kernels *k);

/* What the AMX tier takes from the one below it: products in bf16 where k does not fit tiles; those of few
 * rows, true where that has been done; and panels (struct bf16_panel): values [k0, k0 + width) of weight rows
 * [n, n + KERNEL_PANEL), at the start of the scratch or repacked. */
void product_bf16_avx512(const struct matmul *job);
bool few_bf16_avx512(const struct matmul *job);
const void *panel_bf16_avx512(const struct matmul *job, uint32_t n, uint32_t k0, uint32_t width);
