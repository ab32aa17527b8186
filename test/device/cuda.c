/* What the GPU's code can prove without a GPU: that every layout is a permutation which the kernels' own decoders
 * read back as the file's decoders do, that the launch table is whole, and what is said where there is no driver. */
#include "test.h"

#include "codec/dtype.h"
#include "codec/half.h"
#include "base/mem.h"
#include "device/cuda/decode.h"
#include "device/cuda/stream_k.h"
#include "device/cuda/timing.h"
#include "device/cuda/upload.h"
#include "device/cuda/variants.h"
#include "device/device.h"

#include <math.h>
#include <string.h>

static uint32_t seed = 12345;

static uint32_t random_u32(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* Random blocks: any bytes, but halves that are finite and not tiny. */
static void fill(uint32_t type, uint8_t *to, size_t values)
{
    const struct dtype_info *info = dtype_get(type);
    float *v = mem_alloc(values, sizeof *v);
    for (size_t i = 0; i < values; i++)
        v[i] = ((float)(random_u32() & 0xffff) / 32768.0f - 1.0f) * (float)(1 + i % 7);
    info->encode(v, to, values, NULL);
    mem_free(v);
}

static void check_layout(uint32_t type, uint32_t fmt, uint32_t n, uint32_t k)
{
    size_t row = 0;
    assert_true(dtype_row_bytes(type, k, &row));
    size_t from_row = row + 6; /* a view: rows further apart than they are long */
    uint8_t *file = mem_zalloc(n, from_row);
    uint64_t bytes = layout_bytes(fmt, n, k);
    uint8_t *card = mem_zalloc(bytes + 64, 1);
    uint32_t *used = mem_zalloc(n * from_row, sizeof *used);
    float *want = mem_alloc(k, sizeof *want);
    assert_int_equal(bytes % 16, 0);
    for (uint32_t r = 0; r < n; r++)
        fill(type, file + r * from_row, k);
    for (uint64_t i = 0; i < bytes; i++) {
        if (layout_has_nibbles(fmt, i)) {
            for (uint32_t half = 0; half < 2; half++) {
                const int64_t at = layout_nibble(fmt, n, k, from_row, i, half);
                assert_true(at < 2 * (int64_t)(n * from_row));
                if (at < 0)
                    continue;
                card[i] |= (uint8_t)((file[at / 2] >> 4 * (at % 2) & 15) << 4 * half);
                used[at / 2] += at % 2; /* once for both halves */
            }
            continue;
        }
        int64_t at = layout_source(fmt, n, k, from_row, i);
        assert_true(at < (int64_t)(n * from_row));
        if (at >= 0) {
            card[i] = file[at];
            used[at]++;
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        for (size_t b = 0; b < row; b++)
            assert_int_equal(used[r * from_row + b], 1);
        dtype_get(type)->decode(file + r * from_row, want, k);
        for (uint32_t i = 0; i < (k + 7) / 8; i++) {
            float v[8];
            decode8(card, layout_stride(fmt, k), fmt, k, r, i, v);
            for (uint32_t j = 0; j < 8 && 8 * i + j < k; j++)
                if (fabsf(v[j] - want[8 * i + j]) > 1e-6f * fabsf(want[8 * i + j]) + 1e-9f)
                    fail_msg("%s (form %u) row %u value %u: %g, not %g", dtype_get(type)->name, fmt, r,
                             8 * i + j, v[j], want[8 * i + j]);
        }
    }
    mem_free(file);
    mem_free(card);
    mem_free(used);
    mem_free(want);
}

static void test_layouts(void **state)
{
    (void)state;
    static const uint32_t types[] = {
        DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0,   DTYPE_Q5_1,   DTYPE_Q8_0,
        DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        uint32_t block = dtype_get(types[i])->block_values;
        check_layout(types[i], layout_for(types[i]), 37, block == 256 ? 768 : block == 32 ? 160 : 61);
        check_layout(types[i], layout_for(types[i]), 1, block == 256 ? 256 : 32);
    }
    check_layout(DTYPE_Q4_K, FMT_Q4_K, 5, 512);
    check_layout(DTYPE_Q8_0, FMT_Q8_0, 33, 2 * TILE_COLS);
}

static void test_launch_table(void **state)
{
    (void)state;
    for (uint32_t k = 4; k < K_COUNT; k++)
        assert_string_not_equal(gpu_kernel_name(k), "?");
    struct gpu_profile g = {.major = 9, .sms = 132};
    for (uint32_t m = 1; m <= 64; m++) {
        struct gpu_gemm plain = gpu_gemm_choose(&g, FMT_F16, m, 256, 4096, false),
                        tile = gpu_gemm_choose(&g, FMT_Q4_K_TILE, m, 256, 4096, false);
        assert_true(8 * plain.groups >= m && plain.groups <= 8);
        assert_true(tile.grid.x * tile.grid.threads / 32 / tile.split >= 256);
        assert_string_not_equal(gpu_kernel_name(tile.kernel), "?");
        assert_int_equal(plain.outputs, TILE_ROWS);
    }
    /* one row: every strip has its warps, gate and up of a pair in one block */
    for (uint32_t strips = 2; strips < 10000; strips += 2 * (strips / 20 + 1))
        for (uint32_t k = 256; k <= 28672; k += 1280)
            for (int paired = 0; paired < 2; paired++) {
                struct gpu_gemm how = gpu_gemm_choose(&g, FMT_Q8_0, 1, strips, k, paired);
                uint32_t each = how.grid.threads / 32 / how.split;
                assert_true(how.grid.threads <= 32 * GEMM_DEEP && each * how.split * 32 == how.grid.threads);
                assert_true(how.grid.x * each >= strips && (!paired || each % 2 == 0));
            }
    /* more strips than a block has warps: blocks in turn, all with equally many; of up to 16 rows where both are long */
    for (uint32_t m = 1; m <= 16; m += 5) {
        const struct gpu_gemm turns = gpu_gemm_choose(&g, FMT_Q4_K_TILE, m, 3584, 8192, true),
                              few = gpu_gemm_choose(&g, FMT_Q4_K_TILE, m, 256, 14336, false);
        assert_int_equal(turns.split, 1);
        assert_int_equal(turns.grid.threads, 14 * 32);
        assert_int_equal(turns.grid.x, 256);
        assert_int_equal(few.grid.threads, m == 1 ? GEMM_DEEP * 32 : GEMM_WARPS * 32);
    }
    /* up to 64 rows: the same, and what is staged fits */
    g.shared_block = 227 << 10;
    for (uint32_t m = 2; m <= 64; m += 5)
        for (uint32_t strips = 2; strips < 10000; strips += 2 * (strips / 20 + 1))
            for (uint32_t k = 256; k <= 28672; k += 2816)
                for (int paired = 0; paired < 2; paired++) {
                    struct gpu_gemm how = gpu_gemm_choose(&g, FMT_Q4_K_TILE, m, strips, k, paired);
                    uint32_t each = how.grid.threads / 32 / how.split;
                    assert_true(how.split <= (k + 255) / 256 && each * how.split * 32 == how.grid.threads);
                    assert_true(how.grid.x * each >= strips && (!paired || each % 2 == 0));
                    assert_true(how.grid.shared <= 215 << 10);
                    assert_true(
                        how.kernel != K_GEMM_STAGED_FEW ||
                        (how.grid.x <= 132 && how.grid.threads <= 32 * GEMM_FEW && how.split <= GEMM_PARTS));
                }
    /* many rows: every unit has a block, and blocks that wait for each other are on the card together */
    for (uint32_t units = 2; units < 3000; units += units < 200 ? 2 : 90)
        for (uint32_t k = 32; k <= 16384; k += 992)
            for (uint32_t m = 17; m <= 512; m += m < 129 ? 16 : 128) {
                const struct gpu_many many = {.m = m, .k = k, .units = units, .paired = units % 4 == 0};
                struct gpu_gemm how = gpu_gemm_many(&g, &many);
                uint32_t groups = how.grid.threads / 128, each = (227 << 10) / (how.grid.shared + 2048),
                         blocks = how.grid.x * how.grid.y * how.split;
                each = each < 4 / groups ? each : 4 / groups;
                assert_true(groups == 4 || groups == 2 || (groups == 1 && units % 4));
                assert_true(how.grid.x * how.rows >= m && (how.stream_k || how.grid.y * groups >= units));
                assert_true(how.grid.z == how.split && how.split <= (k + 255) / 256);
                const bool meet = how.split > 1 || how.stream_k;
                assert_true(!how.stream_k || (how.split == 1 && how.rows <= MANY_STREAM_K &&
                                              how.grid.y != gpu_blocks(units, groups)));
                assert_true(!meet || blocks <= 132 * each);
                assert_true(!meet || (uint64_t)blocks * how.rows * groups * MANY_UNIT <=
                                         132 * MANY_ROWS * MANY_OUTPUTS);
                assert_true(1u << how.stages == MANY_STAGES || 1u << how.stages == MANY_STAGES / 2);
                assert_true(how.grid.shared <= 215 << 10);
                assert_true(how.rows * groups * MANY_UNIT * 4 <= how.grid.shared);
            }
    for (uint32_t pairs = 1; pairs < 2000; pairs += pairs < 20 ? 1 : 97)
        for (uint32_t keys = 1; keys < 200000; keys += keys < 600 ? 37 : 9999)
            for (uint32_t dim = 64; dim <= 256; dim += 32) {
                struct gpu_decode how = gpu_decode_choose(&g, 16, dim, pairs, keys, keys % 2, 0);
                assert_true(how.stages >= 1 && how.stages <= 3 && how.shared <= 215 << 10);
                assert_true(how.splits >= 1 && how.splits <= GPU_SPLITS_MOST);
                assert_true(how.splits == 1 || pairs * how.splits <= gpu_decode_parts(&g, pairs));
            }
    for (uint32_t blocks = 1; blocks < 2000; blocks += blocks < 20 ? 1 : 97)
        for (uint32_t keys = 1; keys < 200000; keys += keys < 600 ? 37 : 9999) {
            struct gpu_prefill how = gpu_prefill_choose(&g, 128, blocks, keys, false);
            assert_true(how.splits >= 1 && how.splits <= GPU_PREFILL_SPLITS);
            assert_true(how.splits == 1 || blocks * how.splits <= gpu_prefill_slots(&g));
        }
    for (uint32_t dim = 64; dim <= 128;
         dim += 32) { /* rows of K take whole lines of 128 bytes, three blocks fit */
        struct gpu_prefill how = gpu_prefill_choose(&g, dim, 1, 1, false);
        assert_int_equal(how.kernel, K_ATTN_PREFILL + dim / 32 - 2);
        g.wide = true;
        how = gpu_prefill_choose(&g, dim, 1, 1, false);
        assert_int_equal(how.kernel, K_ATTN_WIDE + dim / 32 - 2);
        assert_true(how.shared >= 2 * 64 * 4 * dim && how.shared % 1024 == 0 &&
                    3 * how.shared <= (uint32_t)g.shared_block);
        g.wide = false;
    }
    /* blocks that finish their heads have one stage and all keys, where that costs less than a launch */
    assert_true(gpu_decode_choose(&g, 8, 128, 64, 128, false, 0).stages > 1);
    assert_int_equal(gpu_decode_choose(&g, 8, 128, 64, 128, true, 0).stages, 1);
    assert_int_equal(gpu_decode_choose(&g, 8, 128, 64, 128, true, 0).splits, 1);
    assert_true(gpu_decode_choose(&g, 8, 128, 64, 4096, true, 0).stages > 1);
    g.shared_block = 99 << 10; /* a card with less */
    for (uint32_t m = 17; m <= 64; m += 15)
        for (uint32_t strips = 2; strips < 4000; strips += 34)
            assert_true(gpu_gemm_choose(&g, FMT_Q8_0, m, strips, 4096, true).grid.shared <= 87 << 10);
    assert_int_equal(gpu_decode_choose(&g, 16, 256, 8, 4096, false, 0).stages, 1);
    /* kernels are built in for all modules or for none */
    for (int m = 1; m < MODULE_COUNT; m++)
        assert_int_equal(!gpu_blob(m), !gpu_blob(0));
}

/* Every column of every band is in one share, once; a band that is cut has one owner, which has its first column and, of its
 * share, has it last; the others have their columns of it first, and come behind the owner one after the other. */
static void check_shares(uint32_t bands, uint32_t columns, uint32_t blocks)
{
    const uint32_t work = bands * columns;
    uint32_t at = 0;
    assert_true(stream_k_fits(work, blocks));
    for (uint32_t b = 0; b < blocks; b++) {
        const uint32_t end = stream_k_begin(work, blocks, b + 1);
        assert_int_equal(stream_k_begin(work, blocks, b), at);
        assert_true(end - at == work / blocks || end - at == work / blocks + 1);
        for (bool first = true; at < end; first = false) {
            const struct piece p = stream_k_piece(columns, at, end);
            assert_true(p.band == at / columns && p.from == at % columns && p.from < p.to && p.to <= columns);
            assert_int_equal(stream_k_owner(work, blocks, at), b);
            assert_int_equal(stream_k_owner(work, blocks, at + p.to - p.from - 1), b);
            assert_true(first || p.from == 0);
            at += p.to - p.from;
            assert_true(at == end || p.to == columns);
            if (p.from == 0)
                continue;
            const uint32_t owner = stream_k_owner(work, blocks, p.band * columns),
                           last = stream_k_owner(work, blocks, (p.band + 1) * columns - 1);
            assert_true(owner < b && b <= last);
            assert_true(stream_k_begin(work, blocks, owner) <= p.band * columns);
        }
    }
    assert_int_equal(at, work);
}

static void test_shares(void **state)
{
    (void)state;
    static const uint32_t bands[] = {1, 2, 3, 7, 16, 40, 112, 131, 132, 133, 224, 448, 2004},
                          columns[] = {1, 2, 3, 6, 16, 23, 32, 56, 112},
                          blocks[] = {1, 2, 3, 5, 16, 66, 131, 132, 133, 264, 528};
    for (size_t i = 0; i < sizeof bands / sizeof bands[0]; i++)
        for (size_t j = 0; j < sizeof columns / sizeof columns[0]; j++) {
            for (size_t l = 0; l < sizeof blocks / sizeof blocks[0]; l++) {
                if (blocks[l] <= bands[i] * columns[j])
                    check_shares(bands[i], columns[j], blocks[l]);
                else
                    assert_false(stream_k_fits(bands[i] * columns[j], blocks[l]));
            }
            if (bands[i] * columns[j] < 1 << 16)
                check_shares(bands[i], columns[j], bands[i] * columns[j]);
        }
    assert_false(stream_k_fits(100, 0));
    assert_false(stream_k_fits(1u << 24, 256));
    check_shares(1 << 14, 512, 510);
    /* parts of equal bands are shares, too */
    for (uint32_t split = 1; split <= 7; split++)
        for (uint32_t b = 0; b <= 5 * split; b++)
            assert_int_equal(stream_k_begin(35, 5 * split, b), b / split * 7 + 7 * (b % split) / split);
}

/* The launch with equal shares: all blocks fit on the card at once, and their parts into the room for them. */
static void test_stream_k(void **state)
{
    (void)state;
    const struct gpu_profile g = {.major = 9, .sms = 132, .shared_block = 227 << 10, .wide = true};
    struct gpu_gemm how;
    for (uint32_t units = 1; units < 3000; units += units < 20 ? 1 : 91)
        for (uint32_t k = 32; k <= 28672; k += 3104)
            for (uint32_t m = 17; m <= 512; m += 33)
                for (uint32_t groups = 1; groups <= 4; groups *= 2)
                    for (uint32_t most = 0; most < 400; most += 133) {
                        const uint32_t rows = gpu_many_rows(m, MANY_STREAM_K),
                                       bands = gpu_blocks(units, groups), work = bands * gpu_blocks(k, 256);
                        const struct gpu_many p = {.m = m, .k = k, .units = units};
                        if (!gpu_gemm_many_stream_k(&g, &p, rows, groups, most, &how))
                            continue;
                        const uint64_t all = (uint64_t)how.grid.x * how.grid.y;
                        assert_true(how.stream_k && how.split == 1 && how.grid.z == 1 && how.grid.y != bands);
                        assert_true(how.grid.x * rows >= m && how.grid.y <= work);
                        assert_true(how.held * how.grid.shared <= 227 << 10 && all <= 132 * how.held);
                        assert_true(all * rows * groups * MANY_UNIT <= 132 * MANY_ROWS * MANY_OUTPUTS);
                        assert_true(all <= GPU_COUNTERS && (!most || how.grid.y <= most));
                        assert_true(rows * groups * MANY_UNIT * 4 <= how.grid.shared);
                    }
    /* none for 128 rows, nor for less work than blocks, nor where each block would have a band */
    assert_false(
        gpu_gemm_many_stream_k(&g, &(struct gpu_many){.m = 128, .k = 8192, .units = 896}, 128, 4, 0, &how));
    assert_false(
        gpu_gemm_many_stream_k(&g, &(struct gpu_many){.m = 32, .k = 256, .units = 8}, 32, 4, 0, &how));
    assert_false(
        gpu_gemm_many_stream_k(&g, &(struct gpu_many){.m = 32, .k = 8192, .units = 528}, 32, 4, 0, &how));
    /* two waves become one, and few columns stay whole */
    assert_true(
        gpu_gemm_many(&g, &(struct gpu_many){.m = 32, .k = 8192, .units = 896, .paired = true}).stream_k);
    assert_true(
        gpu_gemm_many(&g, &(struct gpu_many){.m = 64, .k = 8192, .units = 896, .paired = true}).stream_k);
    assert_false(gpu_gemm_many(&g, &(struct gpu_many){.m = 32, .k = 4096, .units = 64}).stream_k);
}

/* Which kernel has 17 to 32 rows of tiles: what was measured to be faster. */
static void test_many_choice(void **state)
{
    (void)state;
    static const uint32_t tiles[] = {FMT_Q4_K_TILE, FMT_Q6_K_TILE, FMT_Q8_0};
    static const struct {
        uint32_t n, k;
        bool many[3]; /* up to 32 rows, of these forms */
    } shapes[] = {{10240, 8192, {true, true}},
                  {8192, 8192, {0}},
                  {57344, 8192, {true, true, true}},
                  {6144, 4096, {0}},
                  {4096, 4096, {0}},
                  {28672, 4096, {true, true, true}},
                  {2048, 1536, {0}},
                  {1536, 1536, {0}},
                  {17920, 1536, {true, true, true}},
                  {4096, 14336, {0}},
                  {8192, 28672, {true, true}},
                  {128256, 4096, {true, true, true}},
                  {1536, 8960, {0}}};
    const struct gpu_profile g = {.major = 9, .sms = 132, .shared_block = 227 << 10, .wide = true};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (uint32_t m = 1; m <= 64; m++) {
            const struct gpu_many p = {.m = m, .k = shapes[i].k, .units = shapes[i].n / MANY_UNIT};
            for (size_t t = 0; t < 3; t++)
                if (gpu_is_many(&g, tiles[t], &p) != (m > 32 || (m > 16 && shapes[i].many[t])))
                    fail_msg("%ux%u, %u rows of form %u", shapes[i].n, shapes[i].k, m, tiles[t]);
            assert_int_equal(gpu_is_many(&g, FMT_F16, &p), m > 16);
            assert_false(gpu_is_many(&g, FMT_MXFP4, &p));
        }
    const struct gpu_profile other = {.major = 8, .sms = 108, .shared_block = 99 << 10};
    assert_false(gpu_has_many(&other, FMT_F16, 64));
}

static void test_no_driver(void **state)
{
    (void)state;
    struct err e = {0};
    struct device *d = NULL;
    driver_set_library("libcuda-that-is-not-there.so.1");
    assert_int_equal(device_open(&d, "cuda", &(struct device_options){0}, &e), -1);
    assert_null(d);
    assert_int_equal(e.code, ERR_RESOURCE);
    assert_non_null(strstr(e.text, "no NVIDIA driver"));
    /* a library that is there but is no driver */
    e = (struct err){0};
    driver_set_library("libm.so.6");
    assert_int_equal(device_open(&d, "cuda:3", &(struct device_options){0}, &e), -1);
    assert_non_null(strstr(e.text, "too old"));
    driver_set_library("libcuda.so.1");
}

static void test_upload_sizes(void **state)
{
    (void)state;
    struct weights w = {0};
    static uint8_t data[4096];
    struct weight a = {.name = "a",
                       .type = DTYPE_F16,
                       .rows = 4,
                       .cols = 8,
                       .count = 1,
                       .data = data,
                       .row_bytes = 16,
                       .each_bytes = 64};
    assert_int_not_equal(weights_add(&w, &a), 0);
    uint64_t one = upload_bytes(&w);
    assert_true(one >= 4 * 64 && one % 256 == 0);
    weights_add(&w, &a); /* the same bytes: uploaded once */
    assert_int_equal(upload_bytes(&w), one);
    a.data = data + 64;
    weights_add(&w, &a);
    assert_int_equal(upload_bytes(&w), 2 * one);
    a.type = DTYPE_IQ2_XXS;
    assert_int_equal(upload_fmt(&a), FMT_F16);
    weights_free(&w);
}

/* What made-up launches have to themselves; all of it together is the time in which at least one ran. */
static void check_spans(struct timing_span *span, uint32_t n, const double *own, double busy)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        span[i].at = i;
    timing_exclusive(span, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(span[i].own >= 0 && span[i].own <= span[i].to - span[i].from);
        assert_true(fabs(span[i].own - own[span[i].at]) < 1e-12);
        sum += span[i].own;
    }
    assert_true(fabs(sum - busy) < 1e-12);
}

static void test_exclusive_time(void **state)
{
    (void)state;
    check_spans(NULL, 0, NULL, 0);
    struct timing_span apart[] = {{.from = 0, .to = 2}, {.from = 3, .to = 4}, {.from = 4, .to = 7}};
    check_spans(apart, 3, (const double[]){2, 1, 3}, 6);
    /* each starts while the last one ends */
    struct timing_span early[] = {{.from = 0, .to = 5}, {.from = 2, .to = 7}, {.from = 4, .to = 9}};
    check_spans(early, 3, (const double[]){5, 2, 2}, 9);
    /* one within another, and one that takes no time */
    struct timing_span within[] = {{.from = 1, .to = 9}, {.from = 2, .to = 3}, {.from = 9, .to = 9}};
    check_spans(within, 3, (const double[]){8, 0, 0}, 8);
    /* a second stream: the later launch started first, and they end in the other order */
    struct timing_span beside[] = {{.from = 6, .to = 8}, {.from = 0, .to = 7}, {.from = 6, .to = 12}};
    check_spans(beside, 3, (const double[]){1, 7, 4}, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),      cmocka_unit_test(test_launch_table),
        cmocka_unit_test(test_shares),       cmocka_unit_test(test_stream_k),
        cmocka_unit_test(test_many_choice),  cmocka_unit_test(test_no_driver),
        cmocka_unit_test(test_upload_sizes), cmocka_unit_test(test_exclusive_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
