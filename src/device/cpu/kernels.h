/* The kernel table of the CPU: one struct of function pointers, filled with plain C first (scalar.c) and then
 * overwritten tier by tier (tiers_x86.c, tiers_arm64.c) as far as the machine supports and the caller allows. Every
 * entry has the meaning that scalar.c gives it; test/device/kernels.c compares every tier with it and
 * measures its speed.
 *
 * Activations for integer products are rounded once, in one way for all tiers and types: blocks of 32 int8
 * with one float scale (d = max|x| / 127, q = round to nearest even of x / d), and the sum of the 32 quants,
 * kept for types with a minimum. Products of F16 and BF16 weights round both sides to bf16. */
#pragma once

#include "base/err.h"
#include "codec/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rounded rows, kept as planes so that kernels load them whole: row r of k values has its quants at
 * q + r*q_stride, its scales at d + r*s_stride and its sums at s + r*s_stride (k/32 each). */
struct q8_rows {
    int8_t *q;
    float *d;   /* scale of a block of 32 */
    int32_t *s; /* sum of its 32 quants (not scaled) */
    size_t q_stride, s_stride;
};

/* A row may be two: after the rounded one its rounding error, in units of a 256th (a block with the smallest
 * scales has none). Integers then hold both: 256 q + rest, about 15 bits. */
#define Q8_REST  256.0f
#define Q8_LEAST 1e-30f

/* A weight repacked for products (matmul_packed.h), slab by slab, lazily, on first use; later products read
 * it from here. A slab of a panel has one writer: the worker that has these columns. */
struct packed {
    uint8_t *data; /* (panels, panel_bytes) */
    uint8_t *done; /* (panels, slabs): is it there? */
    size_t panel_bytes;
    uint32_t slabs;
};

/* y(m, n0..n1) = x(m, k) W(n, k)^T: rows [n0, n1) of the weight against m rows of x. Columns of y are weight
 * rows: y[r*y_stride + n]. Any m >= 1; kernels choose their blocks over m and n, and decode a panel of
 * weights once for all m. No bias, no accumulation into y. */
struct matmul {
    const uint8_t *w; /* row 0 of the weight */
    size_t row_bytes;
    uint32_t type, k;
    uint32_t n0, n1;
    uint32_t m;
    const float *x; /* (m, x_stride): float path, and bf16 */
    size_t x_stride;
    struct q8_rows q8; /* integer path; with its rests (m, 2) rows */
    bool rests;
    float *y;
    size_t y_stride;
    void *scratch; /* of this worker, kernels.scratch_bytes long, 64-byte aligned */
    bool fixed;    /* a row's result is the same, bit by bit, whatever m is: few rows are slower then */
    struct packed *packed; /* of the weight; what reads or fills it is fixed; NULL = none */
    size_t panel;          /* which of its panels starts at n0 */
    bool repack;           /* repack what is not repacked yet */
};

enum { KERNEL_TYPES = 128, Q8_BLOCK = 32, KERNEL_PANEL = 32, KERNEL_SLAB = 512 };

/* The types whose products are done in integers, in every tier. A tier compiles each family in a file of its own: one scale
 * for a block; two levels of scales; one to three bits; codes. */
/* clang-format off */
#define KERNEL_BLOCK_TYPES(X) \
    X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1) X(Q8_0, q8_0) X(Q1_0, q1_0)
#define KERNEL_SUPER_TYPES(X) X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k)
#define KERNEL_SMALL_TYPES(X) \
    X(Q2_K, q2_k) X(Q3_K, q3_k) X(IQ1_S, iq1_s) X(IQ1_M, iq1_m) X(IQ2_XXS, iq2_xxs) X(IQ2_XS, iq2_xs) \
    X(IQ2_S, iq2_s) X(IQ3_XXS, iq3_xxs) X(IQ3_S, iq3_s)
#define KERNEL_CODE_TYPES(X) \
    X(IQ4_NL, iq4_nl) X(IQ4_XS, iq4_xs) X(TQ1_0, tq1_0) X(TQ2_0, tq2_0) X(MXFP4, mxfp4) X(NVFP4, nvfp4)
#define KERNEL_ROUNDED_TYPES(X) \
    KERNEL_BLOCK_TYPES(X) KERNEL_SUPER_TYPES(X) KERNEL_SMALL_TYPES(X) KERNEL_CODE_TYPES(X)
/* clang-format on */

/* The types whose products are done in bf16. */
static inline bool kernel_bf16(uint32_t type)
{
    return type == DTYPE_F16 || type == DTYPE_BF16;
}

/* Attention's tile: m query rows (of any rows and heads that share a KV head) against a block of ATTN_KEYS
 * keys. Keys are stored transposed, so that lanes are keys in the scores and dimensions in the values. */
enum { ATTN_KEYS = 64, ATTN_PAGES = ATTN_KEYS / 16, ATTN_LAG = 8 };

/* Pages of integers (kv.c), in the pairs that processors multiply: sums of 32 bits cannot overflow, since
 *   - a key and a query have at most the length I16_LENGTH,
 *   - a value is at most I16_LARGEST, and the 64 weights of a row, none above I16_LENGTH, are I16_WEIGHTS together.
 * Magnitudes and scales of at most I16_LEAST count as zero. */
#define I16_LENGTH  32767.0f
#define I16_LARGEST 8191.0f
#define I16_WEIGHTS 262000.0f
#define I16_LEAST   1e-30f

struct attn_pages {
    const int16_t *k[ATTN_PAGES]; /* each (k_dim / 2, tokens, 2) */
    const int16_t *v[ATTN_PAGES]; /* each (tokens / 2, attn_v_cols, 2) */
    float k_scale[ATTN_KEYS];     /* scale of each key */
    float v_scale[ATTN_KEYS];     /* scale of each value; 0: the key is ignored */
    uint32_t tokens;              /* of a page: 16 or 32 */
};

/* Columns of V in pages of integers: whole registers. */
static inline uint32_t attn_v_cols(uint32_t v_dim)
{
    return (v_dim + 15) & ~15u;
}

/* The keys [lo, hi) of a block. */
struct attn_span {
    uint32_t lo, hi;
};

struct attn_tile {
    const float *q;                 /* (m, k_dim) */
    const float *k;                 /* (k_dim, ATTN_KEYS) */
    const float *v;                 /* (ATTN_KEYS, v_dim) */
    const struct attn_pages *pages; /* instead of k and v, or NULL; and instead of q */
    const int16_t *q16;             /* (m, k_dim, rounded up to pairs) */
    const float *q_scale;           /* (m) */
    const struct attn_span *seen;   /* (m) */
    float *s;                       /* (m, ATTN_KEYS): scores, then probabilities */
    float *max, *sum;               /* (m): what probabilities are relative to, and the sum of all yet */
    float *rescale;                 /* (m): what acc is multiplied by first */
    int16_t *w;     /* (m, ATTN_KEYS): instead of probabilities these, times v_scale, in integers */
    float *w_scale; /* (m) */
    float *acc;     /* (m, v_dim) */
    uint32_t m, k_dim, v_dim;
    uint32_t keys; /* how many there are; s and v are not read beyond them */
};

/* A convolution over n rows of some channels (struct op_conv). */
struct conv_tile {
    const float *x, *mul;  /* (n, x_stride), (n, mul_stride) or NULL */
    const float *w, *bias; /* (channels, cols), (channels) or NULL */
    float *past; /* (cols - 1, past_stride): x before the first row, replaced by those before row n */
    float *y;    /* (n, y_stride) */
    size_t x_stride, mul_stride, past_stride, y_stride;
    uint32_t n, channels, cols;
    int act;
};

/* n rows of a head's recurrence (struct op_scan), for v_dim columns of its state. What depends on the row alone is made:
 * q and k with norms and scales, the factors of decay, the strength of writing. */
struct scan_tile {
    const float *q, *k;        /* (n, k_dim) */
    const float *v;            /* (n, v_stride) */
    const float *decay;        /* (n, decays) */
    const float *write;        /* (n) */
    const float *erase, *rate; /* (n, k_dim), (n, rate_stride); or NULL */
    float *s;                  /* (k_dim, s_stride) */
    float *y;                  /* (n, y_stride) */
    float skip;                /* y = S^T q + skip * v */
    size_t v_stride, rate_stride, s_stride, y_stride;
    uint32_t n, k_dim, v_dim, decays; /* decays: 1 or k_dim */
    bool delta, before;
};

/* The same for `channels` heads whose state is a vector and decays element by element: s = e^(a dt) s + dt v k. */
struct scan_channels {
    const float *q, *k;  /* (n, k_dim) */
    const float *v, *dt; /* (n, v_stride), (n, channels) */
    const float *a;      /* (channels, k_dim) */
    const float *skip;   /* (channels) or NULL */
    float *s;            /* (channels, k_dim) */
    float *y;            /* (n, y_stride) */
    size_t v_stride, y_stride;
    uint32_t n, k_dim, channels;
};

/* n rows of a recurrence of channels (struct op_cell). */
struct cell_tile {
    int kind;                                /* enum cell_kind */
    const float *x, *gate, *decay;           /* (n, stride) each; NULL where the kind has none */
    const float *a, *gate_bias, *decay_bias; /* (channels); biases may be NULL */
    const int32_t *pos;                      /* (n) */
    float *s;                                /* (cell_kept, s_stride) */
    float *y;                                /* (n, y_stride) */
    size_t x_stride, gate_stride, decay_stride, s_stride, y_stride;
    size_t y_part; /* from one of cell_given numbers of a channel to the next */
    uint32_t n, channels;
};

/* The factors of decay of one head and row: y = e^(...) as enum decay_kind says, of n numbers x + bias. */
struct decay_row {
    int kind;              /* enum decay_kind */
    const float *x, *bias; /* (n); bias may be NULL */
    float a, least, most, bound;
    float *y, *dt; /* (n) each, or NULL; dt: of DECAY_SOFTPLUS */
    uint32_t n;
};

struct kernels {
    const char *tier;     /* name of the highest tier in it */
    size_t scratch_bytes; /* a worker's scratch for matmul, for any k up to KERNEL_K_MOST */
    /* x (k) -> one rounded row; k a multiple of 32 */
    void (*quantise)(const float *x, uint32_t k, int8_t *q, float *d, int32_t *s);
    /* What is behind a rounded row that has its rest there: x (k) minus row 0 of `row` -> row 1 */
    void (*quantise_rest)(const float *x, uint32_t k, const struct q8_rows *row);
    /* Integer products by weight type; NULL: this type has none, decode and use matmul_float. */
    void (*matmul_q8[KERNEL_TYPES])(const struct matmul *job);
    /* Bytes of a repacked panel of k values; 0: not for this type. NULL: this tier never repacks. */
    size_t (*packed_bytes)(uint32_t type, uint32_t k);
    /* Whether one line of activations takes as long with weights of this type in the file's layout: it waits for memory. */
    bool (*streams)(uint32_t type);
    /* Float products for any type with a decoder (F32, F16 and BF16 directly). */
    void (*matmul_float)(const struct matmul *job);
    /* Products of F16 and BF16 weights, these and x rounded to bf16. */
    void (*matmul_bf16)(const struct matmul *job);
    /* y may be x in norms and act_mul (gate or up); w and b may be NULL */
    void (*rms_norm)(const float *x, const float *w, float eps, uint32_t n, float *y);
    void (*layer_norm)(const float *x, const float *w, const float *b, float eps, uint32_t n, float *y);
    /* y = act(gate) * up; up may be NULL */
    void (*act_mul)(int act, const float *gate, const float *up, uint32_t n, float *y);
    /* cos_sin: (dims/2) cosines, then sines */
    void (*rope)(float *x, uint32_t dims, bool halves, const float *cos_sin);
    float (*dot)(const float *a, const float *b, uint32_t n);
    void (*axpy)(float a, const float *x, uint32_t n, float *y); /* y += a x */
    float (*max)(const float *x, uint32_t n);
    float (*exp_sum)(float *x, uint32_t n, float max); /* x = exp(x - max) in place, returns the sum */
    /* x (n) as integers y of at most I16_LENGTH together (length) or of I16_LARGEST; returns the scale. */
    float (*round_i16)(const float *x, uint32_t n, bool length, int16_t *y);
    void (*to_f16)(const float *x, uint32_t n, uint16_t *y);
    void (*from_f16)(const uint16_t *x, uint32_t n, float *y);
    /* x = cap * tanh(x * scale / cap); cap 0: x * scale */
    void (*softcap)(float *x, uint32_t n, float scale, float cap);
    /* F16 rows -> float rows */
    void (*panel_f16)(const uint16_t *x, size_t x_stride, uint32_t rows, uint32_t cols, float *y,
                      size_t y_stride);
    void (*attn_scores)(const struct attn_tile *t); /* s = q k */
    /* s = e^(s - max) for keys that a row sees, 0 for others; with pages w and w_scale instead. max is raised
     * first, if a score is larger by more than ATTN_LAG, which is rare, and rescale is the factor of all
     * earlier sums. */
    void (*attn_softmax)(const struct attn_tile *t);
    void (*attn_values)(const struct attn_tile *t); /* acc = acc * rescale + s v, or w v */
    void (*conv)(const struct conv_tile *t);
    float (*decay)(const struct decay_row *d); /* returns the last dt; 1 where the kind has none */
    void (*scan)(const struct scan_tile *t);
    void (*scan_channels)(const struct scan_channels *t);
    void (*cell)(const struct cell_tile *t);
};

enum { KERNEL_K_MOST = 1 << 18 };

/* The best table up to `tier` (a name of kernels_tier; NULL = what the machine has); NULL and an error for a tier that is
 * unknown or that the machine lacks. */
const struct kernels *kernels_get(const char *tier, struct err *e);
/* The tiers of this architecture, from "scalar" up; NULL behind the last. */
const char *kernels_tier(size_t i);
void kernels_scalar(struct kernels *k);
