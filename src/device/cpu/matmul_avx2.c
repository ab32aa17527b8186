/* Products of the AVX2 tier: panels of any type, floats and bf16. */
#include "device/cpu/matmul_avx2.h"
#include "device/cpu/matmul_classes.h"
#include "device/cpu/tiers.h"

/* HALF_TILE rows and 16 columns at a time. */
static void float_tile_run(const struct tile_job *job)
{
    const struct float_panel *p = job->panel;
    const struct float_tile *t = job->tile;
    const struct tile_out *out = &job->out;
    for (uint32_t row = 0; row < out->rows; row += HALF_TILE)
        for (uint32_t col = 0; col < out->cols; col += 16) {
            __m256 left[HALF_TILE], right[HALF_TILE];
            tile_load(out, (struct tile_piece){row, col, HALF_TILE, 1, 1}, left);
            tile_load(out, (struct tile_piece){row, col + 8, HALF_TILE, 1, 1}, right);
            for (uint32_t i = 0; i < job->width; i++) {
                __m256 w0 = _mm256_load_ps(p->w[i] + col), w1 = _mm256_load_ps(p->w[i] + col + 8);
                for (int r = 0; r < HALF_TILE; r++) {
                    __m256 x = _mm256_set1_ps(t->x[i][row + r]);
                    left[r] = _mm256_fmadd_ps(w0, x, left[r]);
                    right[r] = _mm256_fmadd_ps(w1, x, right[r]);
                }
            }
            tile_store(out, (struct tile_piece){row, col, HALF_TILE, 1, 1}, left);
            tile_store(out, (struct tile_piece){row, col + 8, HALF_TILE, 1, 1}, right);
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
        for (int half = 0; half < 2; half++) {
            __m256 w[PANEL / 8];
            for (int v = 0; v < piece.wide; v++) {
                const __m256i both = load_32(p->w[i][piece.col + 8 * v]);
                w[v] = _mm256_castsi256_ps(half ? _mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000))
                                                : _mm256_slli_epi32(both, 16));
            }
            for (int r = 0; r < piece.rows; r++) {
                const __m256 x = _mm256_set1_ps(t->x[2 * i + half][piece.row + r]);
                for (int v = 0; v < piece.wide; v++)
                    acc[r * piece.wide + v] = _mm256_fmadd_ps(w[v], x, acc[r * piece.wide + v]);
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

void matmul_avx2(struct kernels *k)
{
    matmul_blocks_avx2(k);
    matmul_supers_avx2(k);
    matmul_smalls_avx2(k);
    matmul_codes_avx2(k);
    matmul_fill_tier(k, matmul_bf16);
}
