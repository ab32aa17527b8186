/* Products of the NEON tier: panels of any type, floats and bf16. The tiers above it replace those of integers. */
#include "device/cpu/matmul_neon.h"
#include "device/cpu/matmul_classes.h"
#include "device/cpu/tiers.h"

/* sum + w * one lane of x. */
ALWAYS_INLINE __m256 add_lane(__m256 sum, __m256 w, float32x4_t x, int lane)
{
    return (__m256){vfmaq_n_f32(sum.lo, w.lo, x[lane]), vfmaq_n_f32(sum.hi, w.hi, x[lane])};
}

/* HALF_TILE rows and 16 columns at a time. */
static void float_tile_run(const struct tile_job *job)
{
    const struct float_panel *p = job->panel;
    const struct float_tile *t = job->tile;
    const struct tile_out *out = &job->out;
    for (uint32_t row = 0; row < out->rows; row += HALF_TILE)
        for (uint32_t col = 0; col < out->cols; col += 16) {
            const struct tile_piece piece = {row, col, HALF_TILE, 2, 1};
            __m256 acc[TILE];
            tile_load(out, piece, acc);
            for (uint32_t i = 0; i < job->width; i++) {
                const __m256 w0 = _mm256_load_ps(p->w[i] + col), w1 = _mm256_load_ps(p->w[i] + col + 8);
                const float32x4_t x = vld1q_f32(t->x[i] + row);
#pragma GCC unroll 4
                for (int r = 0; r < HALF_TILE; r++) {
                    acc[2 * r] = add_lane(acc[2 * r], w0, x, r);
                    acc[2 * r + 1] = add_lane(acc[2 * r + 1], w1, x, r);
                }
            }
            tile_store(out, piece, acc);
        }
}

#include "device/cpu/matmul_tier.h"

/* A piece of at most TILE sums. */
ALWAYS_INLINE void bf16_piece(const struct tile_job *job, struct tile_piece piece)
{
    const struct bf16_panel *p = job->panel;
    const struct bf16_floats *t = job->tile;
    __m256 acc[TILE];
    tile_load(&job->out, piece, acc);
    for (uint32_t i = 0; i < (job->width + 1) / 2; i++) {
        if (job->ask && piece.row == 0 && piece.col == 0)
            ask_ahead((const uint8_t *)p->w[i], STREAM_AHEAD, sizeof p->w[i]);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const float32x4_t x = vld1q_f32(t->x[2 * i + half] + piece.row);
#pragma GCC unroll 4
            for (int v = 0; v < piece.wide; v++) {
                const __m256i both = load_32(p->w[i][piece.col + 8 * v]);
                const __m256 w =
                    _mm256_castsi256_ps(half ? _mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000))
                                             : _mm256_slli_epi32(both, 16));
#pragma GCC unroll 4
                for (int r = 0; r < piece.rows; r++)
                    acc[r * piece.wide + v] = add_lane(acc[r * piece.wide + v], w, x, r);
            }
        }
    }
    tile_store(&job->out, piece, acc);
}

static void bf16_tile_run(const struct tile_job *job)
{
    bf16_tile_pieces(job, bf16_piece);
}

static void matmul_bf16(const struct matmul *job)
{
    bf16_many_floats(job, bf16_tile_run);
}

void matmul_neon(struct kernels *k)
{
    matmul_blocks_neon(k);
    matmul_supers_neon(k);
    matmul_smalls_neon(k);
    matmul_codes_neon(k);
    matmul_fill_tier(k, matmul_bf16);
}
