/* Every kernel of every tier that this machine has, against scalar.c, over odd shapes. With --bench
 * [TYPE [TIER]] it prices the products instead. */
#include "test.h"

#include "codec/block.h"
#include "codec/dtype.h"
#include "codec/half.h"
#include "base/mem.h"
#include "device/cpu/kernels.h"
#include "device/cpu/probe.h"
#include "device/cpu/tiers.h"
#include "device/plan.h"
#include "variants.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define TYPE_ROW(TYPE, name) DTYPE_##TYPE,
static const uint32_t rounded_types[] = {KERNEL_ROUNDED_TYPES(TYPE_ROW)};
static const uint32_t float_types[] = {DTYPE_F32,  DTYPE_F16,    DTYPE_BF16,
                                       DTYPE_Q4_K, DTYPE_IQ2_XS, DTYPE_NVFP4};

static const uint32_t bf16_types[] = {DTYPE_F16, DTYPE_BF16};

enum { M_MOST = 100 };

static uint64_t random_state = 88172645463325252u;

static uint32_t random_u32(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static float random_unit(void) /* [-1, 1) */
{
    return (float)(int32_t)random_u32() * 0x1p-31f;
}

/* Bell-like, with an outlier now and then as activations have them. */
static float random_value(void)
{
    float v = random_unit() + random_unit() + random_unit();
    return random_u32() % 64 ? v : v * 20;
}

static const struct kernels *tier_or_skip(const char *name)
{
    struct err e = {0};
    const struct kernels *k = kernels_get(name, &e);
    if (!k)
        print_message("no %s on this machine: skipped\n", name);
    return k;
}

/* ---- weights ---- */

/* Where a block keeps its fp16 scales, so that random bytes become sensible numbers. */
static void set_scales(uint32_t type, uint8_t *block)
{
    static const struct {
        uint8_t type, at[2], count;
    } where[] = {{DTYPE_Q4_0, {0}, 1},    {DTYPE_Q4_1, {0, 2}, 2}, {DTYPE_Q5_0, {0}, 1},
                 {DTYPE_Q5_1, {0, 2}, 2}, {DTYPE_Q8_0, {0}, 1},    {DTYPE_Q2_K, {80, 82}, 2},
                 {DTYPE_Q3_K, {108}, 1},  {DTYPE_Q4_K, {0, 2}, 2}, {DTYPE_Q5_K, {0, 2}, 2},
                 {DTYPE_Q6_K, {208}, 1},  {DTYPE_IQ4_NL, {0}, 1},  {DTYPE_IQ4_XS, {0}, 1},
                 {DTYPE_IQ1_S, {0}, 1},   {DTYPE_IQ2_XXS, {0}, 1}, {DTYPE_IQ2_XS, {0}, 1},
                 {DTYPE_IQ2_S, {0}, 1},   {DTYPE_IQ3_XXS, {0}, 1}, {DTYPE_IQ3_S, {0}, 1},
                 {DTYPE_TQ1_0, {52}, 1},  {DTYPE_TQ2_0, {64}, 1},  {DTYPE_Q1_0, {0}, 1}};
    static const float extremes[] = {0, 6e-8f, -6e-8f, 6.1e-5f, -3.0f};
    for (size_t i = 0; i < sizeof where / sizeof *where; i++)
        for (int j = 0; where[i].type == type && j < where[i].count; j++) {
            float d = random_u32() % 16 ? random_unit() * 0.05f : extremes[random_u32() % 5];
            uint16_t h = fp16_from_f32(d);
            memcpy(block + where[i].at[j], &h, 2);
        }
    uint16_t d = fp16_from_f32(random_unit() * 0.05f);
    for (int j = 0; type == DTYPE_IQ1_M && j < 4; j++) /* a quarter of d in the top of each pair of bytes */
        block[49 + 2 * j] = (uint8_t)((block[49 + 2 * j] & 15) | (d >> 4 * j & 15) << 4);
    if (type == DTYPE_MXFP4)
        block[0] = (uint8_t)(random_u32() % 16 ? 110 + random_u32() % 20 : random_u32() % 2 ? 0 : 140);
    for (int j = 0; type == DTYPE_NVFP4 && j < 4; j++)
        block[j] = (uint8_t)(random_u32() % 16 ? random_u32() % 0x60 : 0x7f + 0x80 * (random_u32() % 2));
}

static void random_row(uint32_t type, uint32_t k, uint8_t *row)
{
    const struct dtype_info *t = dtype_get(type);
    for (uint32_t b = 0; b < k / t->block_values; b++, row += t->block_bytes) {
        for (uint32_t i = 0; i < t->block_bytes; i++)
            row[i] = (uint8_t)random_u32();
        set_scales(type, row);
        float v = random_value() * 0.05f;
        uint16_t h = type == DTYPE_F16 ? fp16_from_f32(v) : bf16_from_f32(v);
        if (type == DTYPE_F32)
            memcpy(row, &v, 4);
        else if (type == DTYPE_F16 || type == DTYPE_BF16)
            memcpy(row, &h, 2);
    }
}

/* A product and its truth. All arrays are exactly as long as they may be read, and at odd addresses. */
struct cpu_product {
    struct matmul job;
    uint8_t *w_hold;
    float *x, *y, *truth, *scale; /* (M_MOST, n1): y has one column more, which stays untouched */
    uint32_t cols;
};

/* What the error of one result is measured by: the sum of |x| times the largest |w| of each 32. (The
 * parts of w = a q + b may cancel, and each has its own rounding.) */
static void product_scales(struct cpu_product *p)
{
    const struct dtype_info *t = dtype_get(p->job.type);
    float *row = mem_alloc(p->job.k, sizeof(float));
    for (uint32_t n = p->job.n0; n < p->job.n1; n++) {
        t->decode(p->job.w + n * p->job.row_bytes, row, p->job.k);
        for (uint32_t r = 0; r < M_MOST; r++) {
            float sum = 0;
            for (uint32_t k = 0; k < p->job.k; k += 32) {
                float most = 0, part = 0;
                for (uint32_t i = k; i < k + 32 && i < p->job.k; i++) {
                    most = fmaxf(most, fabsf(row[i]));
                    part += fabsf(p->x[r * p->job.x_stride + i]);
                }
                sum += most * part;
            }
            p->scale[r * p->cols + n] = sum;
        }
    }
    mem_free(row);
}

static void product_open(struct cpu_product *p, uint32_t type, uint32_t n0, uint32_t n1, uint32_t k)
{
    const struct dtype_info *t = dtype_get(type);
    size_t row_bytes = (size_t)(k / t->block_values) * t->block_bytes;
    memset(p, 0, sizeof *p);
    p->cols = n1 + 1;
    p->w_hold = mem_alloc(n1 * row_bytes + 1, 1);
    p->x = mem_alloc((size_t)M_MOST * k, sizeof(float));
    p->y = mem_alloc((size_t)M_MOST * p->cols, sizeof(float));
    p->truth = mem_alloc((size_t)M_MOST * p->cols, sizeof(float));
    p->scale = mem_alloc((size_t)M_MOST * p->cols, sizeof(float));
    for (uint32_t n = 0; n < n1; n++)
        random_row(type, k, p->w_hold + 1 + n * row_bytes);
    for (size_t i = 0; i < (size_t)M_MOST * k; i++)
        p->x[i] = random_value();
    p->job = (struct matmul){.w = p->w_hold + 1,
                             .row_bytes = row_bytes,
                             .type = type,
                             .k = k,
                             .n0 = n0,
                             .n1 = n1,
                             .x = p->x,
                             .x_stride = k,
                             .y = p->y,
                             .y_stride = p->cols};
    p->job.q8 = (struct q8_rows){.q = mem_alloc((size_t)2 * M_MOST * k, 1),
                                 .d = mem_alloc((size_t)2 * M_MOST * (k / 32) + 1, sizeof(float)),
                                 .s = mem_alloc((size_t)2 * M_MOST * (k / 32) + 1, sizeof(int32_t)),
                                 .q_stride = k,
                                 .s_stride = k / 32};
    product_scales(p);
}

static void product_close(struct cpu_product *p)
{
    void *all[] = {p->w_hold, p->x, p->y, p->truth, p->scale, p->job.q8.q, p->job.q8.d, p->job.q8.s};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

/* The rounded row r, with its rest behind it where they have rests. */
static struct q8_rows product_lines(const struct cpu_product *p, uint32_t r)
{
    struct q8_rows q = p->job.q8;
    const size_t line = p->job.rests ? 2 * r : r;
    q.q += line * q.q_stride;
    q.d += line * q.s_stride;
    q.s += line * q.s_stride;
    return q;
}

static void product_round(struct cpu_product *p, const struct kernels *k)
{
    for (uint32_t r = 0; r < M_MOST; r++) {
        const struct q8_rows q = product_lines(p, r);
        k->quantise(p->x + r * p->job.x_stride, p->job.k, q.q, q.d, q.s);
        if (p->job.rests)
            k->quantise_rest(p->x + r * p->job.x_stride, p->job.k, &q);
    }
}

/* The bound: 2e-6 of the scale, that is a few units in the last place of a float, whatever k and m. */
static void product_check(struct cpu_product *p, const struct kernels *k, uint32_t m,
                          void (*kernel)(const struct matmul *), void *scratch)
{
    struct matmul job = p->job;
    job.m = m;
    job.scratch = scratch;
    for (size_t i = 0; i < (size_t)M_MOST * p->cols; i++)
        p->y[i] = 12345.0f;
    kernel(&job);
    for (uint32_t r = 0; r < M_MOST; r++)
        for (uint32_t n = 0; n < p->cols; n++) {
            size_t at = (size_t)r * p->cols + n;
            if (r >= m || n < job.n0 || n >= job.n1) {
                if (p->y[at] != 12345.0f)
                    fail_msg("%s %s wrote outside: row %u column %u", k->tier, dtype_get(job.type)->name, r,
                             n);
                continue;
            }
            float off = fabsf(p->y[at] - p->truth[at]);
            if (!(off <= 2e-6f * p->scale[at] + 1e-30f))
                fail_msg(
                    "%s %s m %u k %u rows %u..%u: y(%u, %u) is %g, scalar has %g, off by %g of the scale",
                    k->tier, dtype_get(job.type)->name, m, job.k, job.n0, job.n1, r, n, (double)p->y[at],
                    (double)p->truth[at], (double)(off / p->scale[at]));
        }
}

/* Products differ by what they make of their two sides: nothing, int8 for quantised types, that with its rests, bf16. */
enum product_kind { PRODUCT_FLOAT, PRODUCT_Q8, PRODUCT_RESTS, PRODUCT_BF16 };

static void (*product_kernel(const struct kernels *k, uint32_t type,
                             enum product_kind kind))(const struct matmul *)
{
    if (kind == PRODUCT_Q8 || kind == PRODUCT_RESTS)
        return k->matmul_q8[type];
    return kind == PRODUCT_BF16 ? k->matmul_bf16 : k->matmul_float;
}

/* Products of types that can be repacked to integers always have the same bits. */
static bool product_is_fixed(const struct matmul *job, const struct kernels *k,
                             void (*kernel)(const struct matmul *))
{
    return kernel == k->matmul_q8[job->type] && k->packed_bytes && k->packed_bytes(job->type, job->k);
}

/* These, and the others with `fixed`: rows [first, first + m) are what they are among all the
 * others, bit by bit. */
static void product_check_fixed(struct cpu_product *p, const struct kernels *k, uint32_t first, uint32_t m,
                                void (*kernel)(const struct matmul *), void *scratch)
{
    struct matmul all = p->job, some = p->job;
    float *y = mem_alloc((size_t)M_MOST * p->cols, sizeof *y);
    all.fixed = some.fixed = !product_is_fixed(&all, k, kernel);
    all.scratch = some.scratch = scratch;
    all.m = M_MOST;
    some.m = m;
    some.x += first * some.x_stride;
    some.q8 = product_lines(p, first);
    some.y = y;
    kernel(&all);
    kernel(&some);
    for (uint32_t r = 0; r < m; r++)
        if (memcmp(y + r * p->cols + all.n0, all.y + (first + r) * p->cols + all.n0,
                   (all.n1 - all.n0) * sizeof *y) != 0)
            fail_msg("%s %s: row %u of %u from %u on is not what it is among all, k %u", k->tier,
                     dtype_get(all.type)->name, r, m, first, all.k);
    mem_free(y);
}

/* Room to lay out `rows` weight rows anew; false: not for this type. */
static bool packed_open(struct packed *p, const struct kernels *k, uint32_t type, uint32_t cols,
                        uint32_t rows)
{
    const size_t panels = (rows + KERNEL_PANEL - 1) / KERNEL_PANEL;
    *p = (struct packed){.panel_bytes = k->packed_bytes ? k->packed_bytes(type, cols) : 0,
                         .slabs = (cols + KERNEL_SLAB - 1) / KERNEL_SLAB};
    if (!p->panel_bytes)
        return false;
    p->data = mem_aligned(64, panels * p->panel_bytes);
    p->done = mem_zalloc(panels, p->slabs);
    return true;
}

static void packed_close(struct packed *p)
{
    mem_free(p->data);
    mem_free(p->done);
}

/* Laid out anew the numbers are the same, bit by bit: when that is done, and when it is read, whatever m is. */
static void product_check_packed(struct cpu_product *p, const struct kernels *k, uint32_t m,
                                 void (*kernel)(const struct matmul *), void *scratch)
{
    static const uint32_t again[] = {1, 2, 3, 9, M_MOST};
    struct matmul job = p->job;
    struct packed packed;
    const size_t bytes = (size_t)M_MOST * p->cols * sizeof *job.y;
    if (!packed_open(&packed, k, job.type, job.k, job.n1 - job.n0))
        return;
    float *y = mem_alloc(bytes, 1);
    memset(y, 0, bytes);
    memset(p->y, 0, bytes);
    job.scratch = scratch;
    job.fixed = !product_is_fixed(&job, k, kernel);
    job.m = M_MOST;
    kernel(&job);
    job.y = y;
    job.packed = &packed;
    job.m = m;
    kernel(&job);
    assert_int_equal(packed.done[0], 0); /* nobody asked for it */
    job.repack = true;
    kernel(&job);
    const uint32_t parts = (job.n1 - job.n0 + KERNEL_PANEL - 1) / KERNEL_PANEL * packed.slabs;
    for (uint32_t i = 0; i < parts; i++)
        assert_int_equal(packed.done[i], 1);
    for (size_t i = 0; i <= sizeof again / sizeof *again; i++) {
        for (uint32_t r = 0; r < job.m; r++)
            if (memcmp(y + r * p->cols, p->y + r * p->cols, p->cols * sizeof *y) != 0)
                fail_msg("%s %s: row %u of %u is another one when laid out anew, k %u", k->tier,
                         dtype_get(job.type)->name, r, job.m, job.k);
        if (i == sizeof again / sizeof *again)
            break;
        memset(y, 0, bytes);
        job.m = again[i];
        kernel(&job);
    }
    mem_free(y);
    packed_close(&packed);
}

static void product_check_tier(struct cpu_product *p, const struct kernels *k, enum product_kind kind)
{
    static const uint32_t ms[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 64, 100};
    void *scratch = mem_aligned(64, k->scratch_bytes);
    void (*kernel)(const struct matmul *) = product_kernel(k, p->job.type, kind);
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        product_check(p, k, ms[i], kernel, scratch);
    product_check_fixed(p, k, 13, 1, kernel, scratch);
    product_check_fixed(p, k, 31, 2, kernel, scratch);
    product_check_fixed(p, k, 2, 3, kernel, scratch);
    product_check_fixed(p, k, 50, 37, kernel, scratch);
    if (kind != PRODUCT_FLOAT) {
        product_check_packed(p, k, 1, kernel, scratch);
        product_check_packed(p, k, 40, kernel, scratch);
    }
    mem_free(scratch);
}

static void product_all_m(struct cpu_product *p, enum product_kind kind)
{
    struct err e = {0};
    const struct kernels *scalar = kernels_get("scalar", &e);
    p->job.rests = kind == PRODUCT_RESTS;
    if (kind == PRODUCT_Q8 || kind == PRODUCT_RESTS)
        product_round(p, scalar);
    p->job.m = M_MOST;
    float *y = p->job.y;
    p->job.y = p->truth;
    product_kernel(scalar, p->job.type, kind)(&p->job);
    p->job.y = y;
    for (size_t t = 1; kernels_tier(t); t++) {
        const struct kernels *k = kernels_get(kernels_tier(t), &e);
        if (k)
            product_check_tier(p, k, kind);
    }
    struct kernels k;
    for (size_t i = 0; i < VARIANTS && kind == PRODUCT_BF16; i++)
        if (variant_bf16(i, &k))
            product_check_tier(p, &k, kind);
}

static void test_rounded_products(void **state)
{
    (void)state;
    static const uint32_t small[] = {32, 64, 224, 256, 288, 544, 1056}, large[] = {256, 512, 768, 1280};
    static const uint32_t rows[][2] = {{0, 1}, {0, 16}, {3, 20}, {5, 6}, {1, 34}, {2, 10}, {0, 31}};
    for (size_t t = 0; t < sizeof rounded_types / sizeof *rounded_types; t++) {
        const uint32_t values = dtype_get(rounded_types[t])->block_values;
        const bool k_type = values == 256;
        const uint32_t *ks = k_type ? large : small;
        for (size_t i = 0; i < (k_type ? 4 : 7); i++) {
            struct cpu_product p;
            product_open(&p, rounded_types[t], rows[i][0], rows[i][1],
                         (ks[i] + values - 1) / values * values);
            product_all_m(&p, PRODUCT_Q8);
            product_all_m(&p, PRODUCT_RESTS);
            product_close(&p);
        }
        struct cpu_product p;
        product_open(&p, rounded_types[t], 1, 34, 1280);
        product_all_m(&p, PRODUCT_Q8);
        product_all_m(&p, PRODUCT_RESTS);
        product_close(&p);
    }
}

static void check_float_type(uint32_t type, enum product_kind kind)
{
    static const uint32_t plain[] = {1, 7, 8, 9, 31, 64, 257, 300, 521, 1056}, blocks[] = {256, 768};
    static const uint32_t rows[][2] = {{0, 1},  {0, 16}, {3, 20}, {5, 6},  {1, 34},
                                       {2, 10}, {0, 31}, {0, 7},  {4, 33}, {1, 66}};
    const uint32_t values = dtype_get(type)->block_values;
    for (size_t i = 0; i < (values == 1 ? 10 : 2); i++) {
        struct cpu_product p;
        uint32_t k = values == 1 ? plain[i] : blocks[i] + (values < 64 && i ? 32 : 0);
        product_open(&p, type, rows[i][0], rows[i][1], k);
        product_all_m(&p, kind);
        product_close(&p);
    }
}

static void test_float_products(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof float_types / sizeof *float_types; t++)
        check_float_type(float_types[t], PRODUCT_FLOAT);
    for (size_t t = 0; t < sizeof rounded_types / sizeof *rounded_types; t++)
        check_float_type(rounded_types[t], PRODUCT_FLOAT);
}

static void test_bf16_products(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof bf16_types / sizeof *bf16_types; t++)
        check_float_type(bf16_types[t], PRODUCT_BF16);
}

/* ---- vectors ---- */

enum { N_MOST = 400 };

static const uint32_t lengths[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 128, 255, 400};

static void random_values(float *x, uint32_t n, float scale)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = random_value() * scale;
}

/* |a - b| <= bound * (1 + |b|) */
static void check_close(const char *what, const struct kernels *k, uint32_t n, const float *a, const float *b,
                        float bound)
{
    for (uint32_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= bound * (1 + fabsf(b[i]))))
            fail_msg("%s %s, %u values: value %u is %.9g, scalar has %.9g", k->tier, what, n, i, (double)a[i],
                     (double)b[i]);
}

static void check_norms(const struct kernels *k, const struct kernels *s, uint32_t n)
{
    float x[N_MOST], w[N_MOST], b[N_MOST], y[N_MOST], truth[N_MOST];
    random_values(x, n, 3);
    random_values(w, n, 1);
    random_values(b, n, 1);
    for (int with = 0; with < 2; with++) {
        k->rms_norm(x, with ? w : NULL, 1e-5f, n, y);
        s->rms_norm(x, with ? w : NULL, 1e-5f, n, truth);
        check_close("rms_norm", k, n, y, truth, 1e-6f);
        k->layer_norm(x, with ? w : NULL, with ? b : NULL, 1e-5f, n, y);
        s->layer_norm(x, with ? w : NULL, with ? b : NULL, 1e-5f, n, truth);
        check_close("layer_norm", k, n, y, truth, n > 2 ? 4e-6f : 1e-4f); /* two values may nearly cancel */
    }
    memcpy(y, x, n * sizeof *x); /* in place */
    k->rms_norm(y, w, 1e-5f, n, y);
    s->rms_norm(x, w, 1e-5f, n, truth);
    check_close("rms_norm in place", k, n, y, truth, 1e-6f);
}

static void check_acts(const struct kernels *k, const struct kernels *s, uint32_t n)
{
    float g[N_MOST], u[N_MOST], y[N_MOST], truth[N_MOST];
    for (int act = ACT_NONE; act <= ACT_RELU2; act++)
        for (int round = 0; round < 3; round++) {
            random_values(g, n, round == 0 ? 0.01f : round == 1 ? 2 : 40);
            random_values(u, n, 1);
            k->act_mul(act, g, round ? u : NULL, n, y);
            s->act_mul(act, g, round ? u : NULL, n, truth);
            for (uint32_t i = 0; i < n; i++) { /* where 1 + tanh or 1 + erf cancel, scalar.c itself is off */
                float bound = 1e-6f * (1 + fabsf(truth[i])) + 2e-7f * fabsf(g[i] * (round ? u[i] : 1));
                if (!(fabsf(y[i] - truth[i]) <= bound))
                    fail_msg("%s act %d(%.9g) is %.9g, scalar has %.9g", k->tier, act, (double)g[i],
                             (double)y[i], (double)truth[i]);
            }
        }
}

static void check_small(const struct kernels *k, const struct kernels *s, uint32_t n)
{
    float a[N_MOST], b[N_MOST], y[N_MOST], truth[N_MOST], size = 0;
    random_values(a, n, 1);
    random_values(b, n, 1);
    for (uint32_t i = 0; i < n; i++)
        size += fabsf(a[i] * b[i]);
    assert_true(fabsf(k->dot(a, b, n) - s->dot(a, b, n)) <= 1e-6f * size);
    assert_true(k->max(a, n) == s->max(a, n));
    memcpy(y, b, sizeof y);
    memcpy(truth, b, sizeof y);
    k->axpy(0.37f, a, n, y);
    s->axpy(0.37f, a, n, truth);
    check_close("axpy", k, n, y, truth, 1e-6f);
    for (int capped = 0; capped < 2; capped++) {
        memcpy(y, a, sizeof y);
        memcpy(truth, a, sizeof y);
        k->softcap(y, n, 1.7f, capped ? 30 : 0);
        s->softcap(truth, n, 1.7f, capped ? 30 : 0);
        check_close("softcap", k, n, y, truth, 1e-6f);
    }
    for (int halves = 0; halves < 2 && n % 2 == 0; halves++) {
        memcpy(y, a, sizeof y);
        memcpy(truth, a, sizeof y);
        k->rope(y, n, halves, b);
        s->rope(truth, n, halves, b);
        check_close("rope", k, n, y, truth, 1e-5f); /* cosines of any size here */
    }
    a[n / 2] = -INFINITY; /* a masked key */
    memcpy(y, a, sizeof y);
    memcpy(truth, a, sizeof y);
    float sum = k->exp_sum(y, n, 2.5f), sum_truth = s->exp_sum(truth, n, 2.5f);
    check_close("exp_sum", k, n, y, truth, 1e-6f);
    assert_true(y[n / 2] == 0);
    check_close("the sum of exp_sum", k, 1, &sum, &sum_truth, 1e-6f);
}

static void check_quantise(const struct kernels *k, const struct kernels *s)
{
    enum { K = 96 };
    for (int round = 0; round < 200; round++) {
        float x[K], d[2][2 * K / 32];
        int8_t q[2][2 * K];
        int32_t sums[2][2 * K / 32];
        random_values(x, K, round % 7 == 0 ? 1e-38f : round % 11 == 0 ? 1e30f : 1);
        if (round % 5 == 0)
            memset(x + 32, 0, 32 * sizeof *x);
        if (round % 3 == 0)
            for (int i = 0; i < 32; i++) /* halves: where rounding has a tie */
                x[i] = i == 0 ? 127 : (float)(int)(random_u32() % 200) - 99.5f;
        for (int i = 0; i < 2; i++) {
            const struct q8_rows row = {q[i], d[i], sums[i], K, K / 32};
            (i ? s : k)->quantise(x, K, q[i], d[i], sums[i]);
            (i ? s : k)->quantise_rest(x, K, &row);
        }
        assert_memory_equal(q[0], q[1], sizeof q[0]);
        assert_memory_equal(d[0], d[1], sizeof d[0]);
        assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
        for (int i = 0; i < K && round % 7;
             i++) { /* a 256th of a step, and half of one where that is the rest */
            const float step = d[0][i / 32] / Q8_REST, value = step * (Q8_REST * q[0][i] + q[0][K + i]);
            assert_true(fabsf(x[i] - value) <= 1.01f * step);
        }
    }
}

static void check_panel(const struct kernels *k, const struct kernels *s)
{
    enum { ROWS = 3, COLS = 37, FROM = 40, TO = 41 };
    uint16_t h[ROWS * FROM];
    float y[ROWS * TO] = {0}, truth[ROWS * TO] = {0};
    for (int i = 0; i < ROWS * FROM; i++)
        h[i] = fp16_from_f32(random_value());
    k->panel_f16(h, FROM, ROWS, COLS, y, TO);
    s->panel_f16(h, FROM, ROWS, COLS, truth, TO);
    assert_memory_equal(y, truth, sizeof y);
}

static void check_halves(const struct kernels *k, const struct kernels *s)
{
    enum { ALL = 65536, ODD = 3 };
    uint16_t *h = mem_alloc(ALL, 2), *back = mem_alloc(ALL, 2), *truth_back = mem_alloc(ALL, 2);
    float *f = mem_alloc(ALL, 4), *truth = mem_alloc(ALL, 4);
    for (uint32_t i = 0; i < ALL; i++)
        h[i] = (uint16_t)i;
    k->from_f16(h, ALL - ODD, f);
    s->from_f16(h, ALL - ODD, truth);
    for (uint32_t i = 0; i < ALL - ODD; i++)
        assert_true(f[i] == truth[i] || (isnan(f[i]) && isnan(truth[i])));
    for (uint32_t i = 0; i < ALL; i++) {
        uint32_t bits = random_u32();
        memcpy(f + i, &bits, 4);
        if (isnan(f[i]))
            f[i] = random_value() * 1e-6f;
    }
    k->to_f16(f, ALL - ODD, back);
    s->to_f16(f, ALL - ODD, truth_back);
    assert_memory_equal(back, truth_back, (ALL - ODD) * 2);
    mem_free(h);
    mem_free(back);
    mem_free(truth_back);
    mem_free(f);
    mem_free(truth);
}

static void test_vectors(void **state)
{
    (void)state;
    struct err e = {0};
    const struct kernels *scalar = kernels_get("scalar", &e);
    for (size_t t = 1; kernels_tier(t); t++) {
        const struct kernels *k = tier_or_skip(kernels_tier(t));
        if (!k)
            continue;
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            check_norms(k, scalar, lengths[i]);
            check_acts(k, scalar, lengths[i]);
            check_small(k, scalar, lengths[i]);
        }
        check_quantise(k, scalar);
        check_halves(k, scalar);
        check_panel(k, scalar);
    }
}

/* ---- prices ----
 * One thread, its own processor time and the best of a few runs: neighbours on the machine then do
 * little harm. The walls are measured in the same way. */

enum { PRICE_K = 1536, PRICE_N = 2240, PRICE_M = 512, PRICE_BYTES = 128 << 20, PRICE_RUNS = 5 };

static double price_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double price_loop(float (*loop)(long), double round)
{
    enum { STEPS = 20000 };
    double best = 0;
    for (int i = 0; loop && i < 20; i++) {
        double start = price_now();
        volatile float keep = loop(STEPS);
        (void)keep;
        best = fmax(best, round * STEPS / (price_now() - start));
    }
    return best;
}

static struct probe price_walls(const char *tier, const uint8_t *memory)
{
    struct probe_kernels k = {0};
    struct probe walls = {0};
    for (const struct tier *t = kernel_tiers; t->name; t++)
        if (!strcmp(tier, t->name))
            t->probe(&k);
    walls.int8 = price_loop(k.int8, k.int8_round);
    walls.float32 = price_loop(k.float32, k.float32_round);
    walls.bf16 = price_loop(k.bf16, k.bf16_round);
    for (int i = 0; i < PRICE_RUNS; i++) {
        double start = price_now();
        volatile uint64_t keep = k.read(memory, PRICE_BYTES);
        (void)keep;
        walls.read = fmax(walls.read, PRICE_BYTES / (price_now() - start));
    }
    return walls;
}

struct price {
    const struct kernels *k;
    struct matmul job;
    struct probe walls;
    uint8_t *weights; /* PRICE_BYTES, far more than the caches hold */
    enum product_kind kind;
    bool packed;
};

/* What up to 8 rows are measured by is memory; more, arithmetic. */
static double price_wall(const struct price *p, uint32_t m)
{
    if (m <= 8)
        return p->walls.read;
    if (p->kind == PRODUCT_Q8 || p->kind == PRODUCT_RESTS)
        return p->walls.int8;
    return p->kind == PRODUCT_BF16 && p->walls.bf16 > 0 ? p->walls.bf16 : p->walls.float32;
}

static void price_type(struct price *p, uint32_t type)
{
    static const char *const kind_name[] = {"float", "int8", "rests", "bf16"};
    struct packed packed;
    static const uint32_t ms[] = {1, 2, 4, 8, 16, 32, 128, 512};
    const struct dtype_info *t = dtype_get(type);
    size_t row_bytes = (size_t)(PRICE_K / t->block_values) * t->block_bytes, rows = PRICE_BYTES / row_bytes;
    for (size_t n = 0; n < rows; n++)
        if (n < 64)
            random_row(type, PRICE_K, p->weights + n * row_bytes);
        else
            memcpy(p->weights + n * row_bytes, p->weights + n % 64 * row_bytes, row_bytes);
    if (p->packed && !packed_open(&packed, p->k, type, PRICE_K, (uint32_t)rows))
        return;
    printf("%-7s %-7s %-6s", p->k->tier, t->name,
           p->packed && p->kind != PRODUCT_RESTS ? "packed" : kind_name[p->kind]);
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        struct matmul job = p->job;
        job.w = p->weights;
        job.row_bytes = row_bytes;
        job.type = type;
        job.m = ms[i];
        job.n1 = (uint32_t)(ms[i] > 8 ? PRICE_N : rows < 65536 ? rows : 65536);
        job.y_stride = job.n1;
        job.packed = p->packed ? &packed : NULL;
        job.repack = true;
        job.rests = p->kind == PRODUCT_RESTS;
        double best = 1e9;
        for (int run = 0; run < PRICE_RUNS; run++) {
            double start = price_now();
            product_kernel(p->k, type, p->kind)(&job);
            best = fmin(best, price_now() - start);
        }
        double rate =
            ms[i] > 8 ? 2.0 * ms[i] * job.n1 * PRICE_K / best : (double)job.n1 * (double)row_bytes / best;
        printf(" | %5.1f %3.0f%%", rate * 1e-9, 100 * rate / price_wall(p, ms[i]));
        fflush(stdout);
    }
    printf("\n");
    if (p->packed)
        packed_close(&packed);
}

static void price_tier(struct price *p, const char *only)
{
    const struct probe *w = &p->walls;
    p->walls = price_walls(p->k->tier, p->weights);
    printf("%s, one thread: read %.1f GB/s, int8 %.0f GOP/s, float %.0f GFLOP/s, bf16 %.0f GFLOP/s\n",
           p->k->tier, w->read * 1e-9, w->int8 * 1e-9, w->float32 * 1e-9, w->bf16 * 1e-9);
    printf("                   rows: 1 GB/s     2            4            8            16 GOP/s     32       "
           "    "
           "128          512\n");
    p->job.scratch = mem_aligned(64, p->k->scratch_bytes);
    static const struct {
        enum product_kind kind;
        bool packed;
        const uint32_t *types;
        size_t count;
    } rows[] = {{PRODUCT_Q8, false, rounded_types, sizeof rounded_types / sizeof *rounded_types},
                {PRODUCT_Q8, true, rounded_types, sizeof rounded_types / sizeof *rounded_types},
                {PRODUCT_RESTS, true, rounded_types, sizeof rounded_types / sizeof *rounded_types},
                {PRODUCT_FLOAT, false, float_types, sizeof float_types / sizeof *float_types},
                {PRODUCT_BF16, false, bf16_types, sizeof bf16_types / sizeof *bf16_types},
                {PRODUCT_BF16, true, bf16_types, sizeof bf16_types / sizeof *bf16_types}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        p->kind = rows[i].kind;
        p->packed = rows[i].packed;
        for (size_t t = 0; t < rows[i].count; t++)
            if (!only || (uint32_t)dtype_find(only) == rows[i].types[t])
                price_type(p, rows[i].types[t]);
    }
    mem_free(p->job.scratch);
}

/* Prints GB/s (up to 8 rows) and GOP/s of every product, and their shares of the walls. */
static int price_all(const char *only, const char *tier)
{
    struct price p = {.weights = mem_aligned(64, PRICE_BYTES)};
    float *x = mem_alloc((size_t)PRICE_M * PRICE_K, 4), *y = mem_alloc((size_t)8 * PRICE_BYTES / 512, 4);
    struct q8_rows q8 = {mem_aligned(64, (size_t)2 * PRICE_M * PRICE_K),
                         mem_aligned(64, (size_t)PRICE_M * PRICE_K / 4),
                         mem_aligned(64, (size_t)PRICE_M * PRICE_K / 4), PRICE_K, PRICE_K / 32};
    random_values(x, PRICE_M * PRICE_K, 1);
    p.job = (struct matmul){.k = PRICE_K, .x = x, .x_stride = PRICE_K, .q8 = q8, .y = y};
    memset(p.weights, 1, PRICE_BYTES);
    for (size_t i = 1; kernels_tier(i); i++)
        if ((!tier || !strcmp(tier, kernels_tier(i))) && (p.k = tier_or_skip(kernels_tier(i)))) {
            p.k->quantise(x, PRICE_M * PRICE_K, q8.q, q8.d, q8.s);
            memcpy(q8.q + PRICE_M * PRICE_K, q8.q, PRICE_M * PRICE_K);
            memcpy(q8.d + PRICE_M * PRICE_K / 32, q8.d, PRICE_M * PRICE_K / 8);
            memcpy(q8.s + PRICE_M * PRICE_K / 32, q8.s, PRICE_M * PRICE_K / 8);
            price_tier(&p, only);
        }
    void *all[] = {p.weights, x, y, q8.q, q8.d, q8.s};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounded_products),
        cmocka_unit_test(test_float_products),
        cmocka_unit_test(test_bf16_products),
        cmocka_unit_test(test_vectors),
    };
    if (argc > 1 && !strcmp(argv[1], "--bench"))
        return price_all(argc > 2 ? argv[2] : NULL, argc > 3 ? argv[3] : NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
