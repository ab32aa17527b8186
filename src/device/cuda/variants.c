#include "device/cuda/variants.h"

#include "device/cuda/stream_k.h"

/* Dynamic shared memory that a block may have: what is left beside the kernels' own. */
uint32_t gpu_shared_most(const struct gpu_profile *g)
{
    return (uint32_t)g->shared_block - SHARED_OWN;
}

uint32_t gpu_gemm_groups(uint32_t m)
{
    return m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : 8;
}

bool gpu_gemm_few_as(const struct gpu_profile *g, uint32_t strips, uint32_t each, uint32_t split,
                     struct gpu_gemm *how)
{
    const uint32_t stages = split > 1 ? 2 : GEMM_STAGES, shared = split * stages * 4 * PACK_BYTES;
    *how = (struct gpu_gemm){.kernel = K_GEMM_STAGED_FEW,
                             .groups = 4,
                             .split = split,
                             .outputs = TILE_ROWS,
                             .stages = stages,
                             .grid = gpu_grid(gpu_blocks(strips, each), 1, 1, each * split * 32, shared)};
    return each * split <= GEMM_FEW && split <= GEMM_PARTS && shared <= gpu_shared_most(g);
}

/* 17 rows of tiles and more, columns of x through shared memory: up to 32 rows a block an SM, all with equally many strips,
 * if there are few; else blocks of eight strips (or by two warps each four) where they fill the card. */
static bool gemm_staged(const struct gpu_profile *g, uint32_t groups, uint32_t strips, uint32_t columns,
                        bool paired, struct gpu_gemm *how)
{
    const uint32_t sms = (uint32_t)g->sms, step = paired ? 2 : 1,
                   each = gpu_blocks(gpu_blocks(strips, sms), step) * step;
    if (groups == 4 && each <= GEMM_FEW) {
        uint32_t split = GEMM_FEW / each < columns ? GEMM_FEW / each : columns;
        while (split > 1 && !gpu_gemm_few_as(g, strips, each, split, how))
            split--;
        return gpu_gemm_few_as(g, strips, each, split, how);
    }
    if (strips < sms * 6)
        return false;
    const uint32_t ring = GEMM_STAGES * 4 * PACK_BYTES,
                   split = strips < sms * 12 && columns > 1 && 2 * ring <= gpu_shared_most(g) ? 2 : 1;
    *how = (struct gpu_gemm){.kernel = K_GEMM_STAGED,
                             .groups = groups,
                             .split = split,
                             .outputs = TILE_ROWS,
                             .grid = gpu_grid(gpu_blocks(strips, GEMM_WARPS / split), groups / 4, 1,
                                              GEMM_WARPS * 32, split * ring)};
    return true;
}

enum { ROUNDS_MOST = 4 }; /* blocks that an SM has one after the other */
enum { LONG_COLUMNS = 32 };

struct gpu_gemm gpu_gemm_choose(const struct gpu_profile *g, uint32_t fmt, uint32_t m, uint32_t strips,
                                uint32_t k, bool paired)
{
    struct gpu_gemm r = {.groups = gpu_gemm_groups(m), .split = 1, .outputs = TILE_ROWS};
    const uint32_t columns = (k + 255) / 256, sms = (uint32_t)g->sms,
                   index = r.groups == 1   ? 0
                           : r.groups == 2 ? 1
                           : r.groups == 4 ? 2
                                           : 3;
    struct gpu_gemm staged;
    if (layout_is_tile(fmt) && index >= 2 && g->major >= 9 &&
        gemm_staged(g, r.groups, strips, columns, paired, &staged))
        return staged;
    /* few rows want all the warps that the card holds, many rows one wave of blocks; plain rows are long, and read best
     * by a whole block together */
    while (r.split < GEMM_WARPS && columns >= 2 * r.split &&
           (m > 16                    ? strips * r.split * 2 <= sms * 8
            : layout_plain_bytes(fmt) ? true
                                      : strips * r.split < sms * 8))
        r.split *= 2;
    uint32_t warps = GEMM_WARPS;
    r.kernel = K_GEMM + 4 * fmt + index;
    if (m <= 16 && r.split == GEMM_WARPS && strips <= sms && columns >= GEMM_DEEP)
        r.split = warps = GEMM_DEEP; /* an SM for each strip */
    /* one row of long strips, and some rows of many that are longer yet: a block an SM, or a few in turn, all with equally
     * many strips, in pairs where there are gate and up */
    const bool even_blocks =
        m == 1 ? columns >= GEMM_DEEP : m <= 16 && columns >= LONG_COLUMNS && strips > 2 * sms;
    const uint32_t step = paired ? 2 : 1, even = gpu_blocks(gpu_blocks(strips, sms), step) * step,
                   rounds = gpu_blocks(even * r.split, GEMM_DEEP);
    if (even_blocks && layout_is_tile(fmt) && (rounds == 1 || (r.split == 1 && rounds <= ROUNDS_MOST)))
        warps = gpu_blocks(gpu_blocks(even, rounds), step) * step * r.split;
    else if (paired && r.split == warps) /* both strips of a pair lie in one block */
        r.split /= 2;
    r.grid = gpu_grid(gpu_blocks(strips, warps / r.split), 1, 1, warps * 32, 0);
    return r;
}

/* 64 rows of an expert by wgmma: `groups` warpgroups a block, two columns of x and the rings of its warps. */
static struct gpu_gemm gemm_wide(uint32_t units, uint32_t groups)
{
    return (struct gpu_gemm){.kernel = K_GEMM_WIDE,
                             .groups = 8,
                             .split = 1,
                             .outputs = 64,
                             .grid = gpu_grid(gpu_blocks(units, groups), 1, 1, groups * 128,
                                              2 * 8 * PACK_BYTES + groups * 4 * WIDE_RING)};
}

struct gpu_gemm gpu_gemm_experts(const struct gpu_profile *g, uint32_t fmt, uint32_t rows, uint32_t tiles,
                                 uint32_t outputs, uint32_t k, bool paired, bool cores)
{
    if (cores) {
        struct gpu_gemm wide = gemm_wide(outputs / 64, 4);
        wide.grid.y = tiles;
        return wide;
    }
    struct gpu_gemm r = {.groups = rows / 8, .split = 1, .outputs = TILE_ROWS};
    const uint32_t index = rows <= 8    ? 0
                           : rows <= 16 ? 1
                           : rows <= 32 ? 2
                                        : 3,
                   columns = (k + 255) / 256, strips = outputs / TILE_ROWS,
                   most = paired ? GEMM_WARPS / 2 : GEMM_WARPS;
    while (2 * r.split <= most && columns >= 2 * r.split &&
           (uint64_t)strips * tiles * r.split < (uint64_t)g->sms * 8)
        r.split *= 2;
    r.kernel = layout_is_tile(fmt) && rows <= 8 ? K_GEMM_EXPERTS : K_GEMM + 4 * fmt + index;
    r.grid = gpu_grid(gpu_blocks(strips, GEMM_WARPS / r.split), tiles, 1, GEMM_WARPS * 32, 0);
    return r;
}

struct gpu_experts gpu_experts_row(const struct gpu_profile *g, uint32_t pairs, uint32_t kinds, uint32_t k,
                                   uint32_t most)
{
    /* a wave of blocks begins with the choice and the norm, which take about as long as three tiles */
    enum { START = 3 };
    const uint32_t columns = (k + 255) / 256, least = columns;
    struct gpu_experts best = {0};
    uint32_t cost = UINT32_MAX;
    for (uint32_t split = 1; split <= columns && split * kinds <= most; split++)
        for (uint32_t each = 1; each * split * kinds <= most; each++) {
            const uint32_t blocks = gpu_blocks(pairs, each), warps = each * split * kinds,
                           waves = gpu_blocks(blocks, (uint64_t)g->sms),
                           now = waves * (gpu_blocks(columns, split) + START);
            if (warps < least || now > cost || (now == cost && warps >= best.grid.threads / 32))
                continue;
            cost = now;
            best =
                (struct gpu_experts){each, split, gpu_grid(blocks, 1, 1, 32 * warps, columns * ROW_COLUMN)};
        }
    return best;
}

/* ---- one row, small weights ---- */

bool gpu_is_one(const struct mat *w)
{
    const bool tiles = layout_is_tile(w->fmt),
               has = w->fmt != FMT_Q4_K && w->fmt != FMT_Q4_K_TILE && w->fmt != FMT_Q6_K_TILE;
    /* whole tiles, and much of anything else but short rows, is faster on the tensor cores */
    const uint64_t most = tiles && w->k % TILE_COLS == 0 ? 0
                          : !tiles && w->k <= ONE_SHORT  ? ONE_SHORT_MOST
                                                         : ONE_BYTES_MOST;
    return has && w->k <= ONE_COLUMNS && layout_bytes(w->fmt, w->n, w->k) <= most;
}

struct gpu_gemm gpu_gemm_one(const struct gpu_profile *g, uint32_t outputs, uint32_t k)
{
    const uint32_t blocks = gpu_blocks(outputs, ONE_THREADS / 32), most = 4 * (uint32_t)g->sms;
    return (struct gpu_gemm){
        .kernel = K_GEMM_ONE,
        .split = 1,
        .outputs = 1,
        .grid = gpu_grid(blocks < most ? blocks : most, 1, 1, ONE_THREADS, (k + 7) / 8 * 32)};
}

/* ---- many rows ---- */

/* Blocks that an SM holds: by their shared memory, and by their registers four warpgroups in all. */
static uint32_t many_held(const struct gpu_profile *g, uint32_t shared, uint32_t groups)
{
    const uint32_t room = (uint32_t)g->shared_block / (shared + 2048), most = MANY_WARPS / 4 / groups;
    return room < most ? room : most;
}

/* A launch of `blocks` blocks of each row of blocks, as many as fit on the card at once if it is 0. */
static struct gpu_gemm many_launch(const struct gpu_profile *g, const struct gpu_many *p, uint32_t rows,
                                   uint32_t groups, uint64_t blocks)
{
    const uint32_t wide = gpu_blocks(p->m, rows), rings = groups * 4 * MANY_RING, stage = rows * 256,
                   few = MANY_STAGES / 2;
    const uint64_t sms = (uint64_t)g->sms;
    uint32_t stages = MANY_STAGES, held = many_held(g, rings + stages * stage, groups);
    if ((!blocks || blocks * wide > held * sms) && many_held(g, rings + few * stage, groups) > held) {
        stages = few;
        held = many_held(g, rings + few * stage, groups);
    }
    return (struct gpu_gemm){.kernel = K_GEMM_MANY + rows / 32 - 1,
                             .split = 1,
                             .rows = rows,
                             .stages = stages == MANY_STAGES ? 2 : 1,
                             .held = held,
                             .outputs = MANY_UNIT,
                             .grid = gpu_grid(wide, blocks ? (uint32_t)blocks : (uint32_t)(held * sms / wide),
                                              1, groups * 128, rings + stages * stage)};
}

bool gpu_gemm_many_as(const struct gpu_profile *g, const struct gpu_many *p, uint32_t rows, uint32_t groups,
                      uint32_t split, struct gpu_gemm *how)
{
    const uint32_t bands = gpu_blocks(p->units, groups);
    *how = many_launch(g, p, rows, groups, (uint64_t)bands * split);
    how->split = split;
    how->grid.y = bands;
    how->grid.z = split;
    return how->held && split <= gpu_blocks(p->k, TILE_COLS) &&
           (split == 1 || (uint64_t)bands * how->grid.x * split <= (uint64_t)how->held * (uint64_t)g->sms);
}

bool gpu_gemm_many_stream_k(const struct gpu_profile *g, const struct gpu_many *p, uint32_t rows,
                            uint32_t groups, uint32_t most, struct gpu_gemm *how)
{
    const uint32_t bands = gpu_blocks(p->units, groups);
    const uint64_t work = (uint64_t)bands * gpu_blocks(p->k, TILE_COLS);
    *how = many_launch(g, p, rows, groups, 0);
    how->stream_k = true;
    if (most && how->grid.y > most)
        how->grid.y = most;
    /* as many blocks as bands: each would have one */
    return how->held && rows <= MANY_STREAM_K && work < UINT32_MAX && how->grid.y != bands &&
           stream_k_fits((uint32_t)work, how->grid.y);
}

/* What a choice costs, in hundredths of a microsecond on an H200: 64 columns take a warpgroup `alone` where it has the SM
 * for itself, four together `full`; starting and storing take 6 us, and where blocks share columns adding up 3.5 more. With
 * stream-K that is 2.5 us, and `ends` for each band that ends within a share. Fitted to `gpu_bench large`.
 * percent: what the form's columns take, of what those of Q4_K do. */
static uint64_t many_cost(const struct gpu_profile *g, const struct gpu_many *p, const struct gpu_gemm *how,
                          uint32_t percent)
{
    static const uint32_t alone[MANY_KERNELS] = {33, 34, 36, 37}, full[MANY_KERNELS] = {42, 53, 76, 85},
                          ends[MANY_KERNELS] = {150, 400, 400, 400};
    const uint32_t kind = how->kernel - K_GEMM_MANY, sms = (uint32_t)g->sms, groups = how->grid.threads / 128,
                   columns = gpu_blocks(p->k, TILE_COLS), held = how->held;
    const uint64_t blocks = (uint64_t)how->grid.x * how->grid.y * how->split,
                   each = gpu_blocks(blocks, sms) < held ? gpu_blocks(blocks, sms) : held,
                   step = (alone[kind] + (full[kind] - alone[kind]) * (each * groups - 1) / 3) * percent;
    if (how->stream_k) {
        const uint32_t share = gpu_blocks((uint64_t)gpu_blocks(p->units, groups) * columns, how->grid.y);
        return share * 4 * step / 100 + 600 + 250 + ends[kind] * gpu_blocks(share, columns);
    }
    return gpu_blocks(blocks, sms * each) * (gpu_blocks(columns, how->split) * 4 * step / 100 + 600) +
           (how->split > 1 ? 350 : 0);
}

/* What a form's columns take, in % of Q4_K. */
static uint32_t many_percent(uint32_t fmt)
{
    return fmt == FMT_Q6_K_TILE ? 125 : fmt == FMT_Q8_0 ? 120 : 100;
}

/* The cheapest choice, and what it costs. */
static struct gpu_gemm many_best(const struct gpu_profile *g, const struct gpu_many *p, uint32_t percent,
                                 uint64_t *least)
{
    const uint32_t columns = gpu_blocks(p->k, TILE_COLS), rows = gpu_many_rows(p->m, MANY_ROWS);
    struct gpu_gemm best = {0}, how;
    *least = UINT64_MAX;
    for (uint32_t groups = MANY_WARPS / 4; groups > (p->paired ? 1 : 0); groups /= 2)
        for (uint32_t split = 0; split <= columns && split <= 16; split++) {
            if (split ? !gpu_gemm_many_as(g, p, rows, groups, split, &how)
                      : !gpu_gemm_many_stream_k(g, p, rows, groups, 0, &how))
                continue;
            const uint64_t cost = many_cost(g, p, &how, percent);
            if (cost < *least || (cost == *least && best.stream_k && groups == best.grid.threads / 128))
                *least = cost, best = how;
        }
    return best;
}

struct gpu_gemm gpu_gemm_many(const struct gpu_profile *g, const struct gpu_many *p)
{
    uint64_t cost;
    return many_best(g, p, 100, &cost);
}

bool gpu_has_many(const struct gpu_profile *g, uint32_t fmt, uint32_t m)
{
    return g->wide && m > 16 &&
           (fmt == FMT_Q4_K_TILE || fmt == FMT_Q6_K_TILE || fmt == FMT_Q8_0 || fmt == FMT_F16 ||
            fmt == FMT_BF16);
}

/* What gemm_staged_few costs, in hundredths of a microsecond on an H200: starting takes 3.6 us, storing 0.5 for each strip
 * of a block, and a warp's tiles one after the other each its time, longer where more strips share an SM. Fitted to
 * `gpu_bench few`. */
static uint64_t few_cost(const struct gpu_gemm *how, uint32_t columns, uint32_t percent)
{
    const uint32_t each = how->grid.threads / 32 / how->split, turn = each == 1 ? 100 : each == 2 ? 132 : 140;
    return 360 + 50 * each + (uint64_t)gpu_blocks(columns, how->split) * turn * percent / 100;
}

bool gpu_is_many(const struct gpu_profile *g, uint32_t fmt, const struct gpu_many *p)
{
    /* of their form's tiles, in % of Q4_K */
    const uint32_t few = fmt == FMT_Q6_K_TILE ? 130
                         : fmt == FMT_Q8_0    ? 105
                                              : 100,
                   strips = p->units * (MANY_UNIT / TILE_ROWS), columns = gpu_blocks(p->k, TILE_COLS);
    struct gpu_gemm how;
    uint64_t cost;
    if (!gpu_has_many(g, fmt, p->m) || p->m > 32 || !layout_is_tile(fmt))
        return gpu_has_many(g, fmt, p->m);
    /* more strips than that leave a block one warp for each, which costs more than it seems */
    if (strips > GEMM_FEW / 2 * (uint32_t)g->sms || !gemm_staged(g, 4, strips, columns, p->paired, &how))
        return true;
    many_best(g, p, many_percent(fmt), &cost);
    return cost < few_cost(&how, columns, few);
}

/* What cuBLASLt costs, in hundredths of a microsecond on an H200: its bytes, and 5 us for what stands beside it (activation
 * and sums, which gemm_many does itself). Fitted to steps of 72, 96 and 128 rows. */
static uint64_t half_cost(uint64_t values)
{
    return values * 2 * 100 / 4200000 + 500;
}

bool gpu_is_many_kept(const struct gpu_profile *g, const struct mat *const *w, uint32_t count, uint32_t m)
{
    uint64_t many = 0, half = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!gpu_has_many(g, w[i]->fmt, m) || !layout_is_tile(w[i]->fmt))
            return false;
        uint64_t values = 0, percents = 0, cost;
        struct gpu_many p = {.m = m, .k = w[i]->k};
        bool first = true; /* of those with its columns */
        for (uint32_t j = 0; j < count; j++) {
            if (w[j]->k != p.k)
                continue;
            first = first && j >= i;
            p.units += gpu_blocks(w[j]->n, MANY_UNIT);
            values += (uint64_t)w[j]->n * w[j]->k;
            percents += (uint64_t)w[j]->n * w[j]->k * many_percent(w[j]->fmt);
        }
        if (!first)
            continue;
        many_best(g, &p, (uint32_t)(percents / values), &cost);
        many += cost;
        half += half_cost(values);
    }
    return many < half;
}

/* What a choice costs, in hundredths of a microsecond on an H200: a wave of blocks is bound by the keys'
 * bytes, by what an SM can take in, or by a warp's way through its units one after the other; starting takes
 * 3 us, joining parts 2.5, more than one stage 1.5 (the SMs' memory is divided again), a launch for the heads 3. With one
 * stage loads and arithmetic take turns. */
static uint64_t decode_cost(const struct gpu_profile *g, uint32_t pairs, uint32_t units, bool heads,
                            struct gpu_decode how, uint32_t held)
{
    const bool one = how.stages == 1;
    const uint64_t sms = (uint64_t)g->sms, each = gpu_blocks(units, how.splits),
                   blocks = (uint64_t)pairs * how.splits, waves = gpu_blocks(blocks, sms * held),
                   together = blocks < sms * held ? blocks : sms * held,
                   memory = together * each * (one ? 30 : 24) / sms,
                   sm = gpu_blocks(together, sms) * each * 7,
                   warp = gpu_blocks(each, 4) * (one ? 180ull : 100ull), most = memory > sm ? memory : sm;
    return waves * ((most > warp ? most : warp) + 300) + (how.splits > 1 ? 250 : 0) +
           (how.splits > 32 ? 100 : 0) + (one ? 0 : 150) + (heads && (!one || how.splits > 1) ? 300 : 0);
}

struct gpu_decode gpu_decode_choose(const struct gpu_profile *g, uint32_t queries, uint32_t dim,
                                    uint32_t pairs, uint32_t keys, bool heads, uint32_t only)
{
    /* four warps' units of 16 keys (decode_ring of attn.cu), and then what they add up (decode_room) in their place */
    const uint32_t row = 2 * dim + (dim % 64 ? 0 : 64), unit = 4 * (16 * row + 32 * dim),
                   sums = queries * 4 * (dim + 4) * 4, most = (uint32_t)g->shared_block;
    struct gpu_decode best = {0};
    uint64_t least = UINT64_MAX;
    for (uint32_t stages = 3; stages; stages--) {
        const uint32_t shared = stages * unit > sums ? stages * unit : sums, fit = most / (shared + 1024),
                       by = stages == 1 ? 4 : 3, held = fit < by ? fit : by; /* by: their registers */
        if (shared > gpu_shared_most(g) || (only && only != stages))
            continue;
        for (uint32_t s = 1; held && s <= GPU_SPLITS_MOST && (s == 1 || s * 64 < keys + 64); s++) {
            if (s > 1 && (uint64_t)pairs * s > gpu_decode_parts(g, pairs))
                break;
            const struct gpu_decode how = {stages, shared, s};
            const uint64_t cost = decode_cost(g, pairs, (keys + 15) / 16, heads, how, held);
            if (cost < least || (cost == least && stages == best.stages)) {
                least = cost;
                best = how;
            }
        }
    }
    return best;
}

int gpu_head_index(uint32_t dim)
{
    return dim == 64 ? 0 : dim == 96 ? 1 : dim == 128 ? 2 : dim == 256 ? 3 : -1;
}

struct gpu_prefill gpu_prefill_choose(const struct gpu_profile *g, uint32_t dim, uint32_t blocks,
                                      uint32_t keys, bool no_wide)
{
    /* three blocks an SM: where there are few queries, blocks share their keys */
    const uint32_t parts = keys / 256, fill = gpu_prefill_slots(g) / (blocks ? blocks : 1);
    const bool wide = g->wide && !no_wide && dim <= 128;
    uint32_t splits = parts < fill ? parts : fill;
    splits = splits < 1 ? 1 : splits > GPU_PREFILL_SPLITS ? GPU_PREFILL_SPLITS : splits;
    /* two stages of 64 keys: K, in rows of 128 bytes for wgmma and padded for mma (prefill_room of attn_prefill.cu), and V;
     * with wgmma and heads of 64 values the queries, too */
    const uint32_t row = wide ? (2 * dim + 127) / 128 * 128 : 2 * dim + (dim % 64 ? 0 : 64);
    return (struct gpu_prefill){(wide ? K_ATTN_WIDE : K_ATTN_PREFILL) + (uint32_t)gpu_head_index(dim), splits,
                                2 * 64 * (row + 2 * dim) + (wide && dim == 64 ? 64 * 128 : 0)};
}
