#include "model/vision/encode.h"

#include "base/clock.h"
#include "base/cores.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/size.h"
#include "codec/dtype.h"

#include <math.h>
#include <string.h>

enum {
    PAGE_TOKENS = 32,
    ROWS_LEAST = 64,
    ROWS_MOST = 1 << 17,
    FILL_THREADS = 4, /* that fill rows: more wait for memory */
    FILL_ALONE = 512  /* fewer rows are filled by the caller */
};

struct encoder {
    const struct tower *tower;
    struct device *device;
    bool exact;
    struct pool *pool; /* fills `in` */
    uint32_t rows;     /* that the device and the arrays below are prepared for */
    uint64_t count;
    struct encoder_profile *profile;   /* NULL: none is made */
    float *in;                         /* (rows, width of plan.given) */
    uint32_t placed_cols, placed_rows; /* the grid whose positions are in it; 0: none */
    int32_t *pos, *axes, *out, *table;
    struct step_span *span;
    uint32_t *block; /* (rows): which block of merged patches is where */
    bool sliced;     /* a slice is an operation */
    struct {         /* the image that is encoded; image NULL: none */
        const struct vision_prepared *image;
        float *result, *apart, *to; /* apart: rows of tiles that are joined at the end */
        uint32_t tile, op;          /* the next of both */
        uint32_t rows, outs;        /* of the tile; rows 0: it has not begun */
    } now;
};

/* ---- memory ---- */

static void pin_rows(struct encoder *c, size_t bytes)
{
    if (c->device && c->device->ops->pin)
        c->device->ops->pin(c->device, c->in, bytes);
}

static void encoder_drop(struct encoder *c)
{
    float *in = c->in;
    c->in = NULL;
    pin_rows(c, 0);
    mem_free(in);
    mem_free(c->pos);
    mem_free(c->axes);
    mem_free(c->out);
    mem_free(c->table);
    mem_free(c->span);
    mem_free(c->block);
    c->pos = c->axes = c->out = c->table = NULL;
    c->span = NULL;
    c->block = NULL;
    c->rows = 0;
    c->placed_cols = c->placed_rows = 0;
}

/* Room for tiles of n rows. */
static int encoder_reserve(struct encoder *c, uint32_t n, struct err *e)
{
    const struct plan *p = &c->tower->model.plan;
    uint32_t rows = ROWS_LEAST;
    if (n <= c->rows)
        return 0;
    if (n > ROWS_MOST)
        return err_set(e, ERR_RESOURCE, "an image of %u patches; %d is the most", n, ROWS_MOST);
    while (rows < n)
        rows *= 2;
    rows = rows - rows / 4 >= n ? rows - rows / 4 : rows; /* powers of two, and what lies between */
    encoder_drop(c);
    const uint32_t pages = (rows + PAGE_TOKENS - 1) / PAGE_TOKENS;
    c->in = mem_alloc(rows, p->width[p->given] * sizeof *c->in);
    c->pos = mem_alloc(rows, sizeof *c->pos);
    c->axes = mem_alloc(rows, PLAN_AXES * sizeof *c->axes);
    c->out = mem_alloc(rows, sizeof *c->out);
    c->table = mem_alloc(pages, sizeof *c->table);
    c->span = mem_alloc(rows, sizeof *c->span);
    c->block = mem_alloc(rows, sizeof *c->block);
    if (!c->in || !c->pos || !c->axes || !c->out || !c->table || !c->span || !c->block) {
        encoder_drop(c);
        return err_memory(e, "an image", rows * p->width[p->given] * sizeof *c->in);
    }
    for (uint32_t i = 0; i < rows; i++)
        c->pos[i] = c->out[i] = (int32_t)i;
    for (uint32_t i = 0; i < pages; i++)
        c->table[i] = (int32_t)i + 1;
    const struct kv_config kv = {
        .type = c->exact ? DTYPE_F32 : DTYPE_F16, .page_tokens = PAGE_TOKENS, .pages = {pages + 1}};
    if (c->device->ops->prepare(c->device, p, &kv, rows, 1, rows, e))
        return -1;
    pin_rows(c, rows * p->width[p->given] * sizeof *c->in);
    c->rows = rows;
    return 0;
}

int encoder_open(struct encoder **out, const struct tower *t, const char *device,
                 const struct device_options *o, struct err *e)
{
    struct encoder *c = mem_zalloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return err_memory(e, "the encoder of images", sizeof *c);
    c->tower = t;
    c->exact = o->exact;
    c->sliced = !device || !strcmp(device, "cpu");
    struct cores cores = {.n = o->threads};
    if (cores.n <= 0)
        cores_find(&cores);
    c->pool = pool_open(cores.n < FILL_THREADS ? cores.n : FILL_THREADS, false, e);
    if (!c->pool || device_open(&c->device, device, o, e) ||
        c->device->ops->load(c->device, &t->model.weights, NULL, NULL, e)) {
        encoder_close(c);
        return -1;
    }
    *out = c;
    return 0;
}

void encoder_close(struct encoder *c)
{
    if (!c)
        return;
    encoder_stop(c);
    encoder_drop(c);
    if (c->device)
        c->device->ops->close(c->device);
    pool_close(c->pool);
    mem_free(c);
}

uint32_t encoder_width(const struct encoder *c)
{
    return c->tower->model.plan.out_width;
}

uint64_t encoder_count(const struct encoder *c)
{
    return c->count;
}

void encoder_profile(struct encoder *c, struct encoder_profile *p)
{
    c->profile = p;
    c->device->seconds = p ? p->operations : NULL;
}

struct device *encoder_device(const struct encoder *c)
{
    return c->device;
}

/* ---- the rows of a tile ---- */

/* A tile in patches, and in blocks of merge x merge of them. */
struct tile_grid {
    uint32_t cols, rows, block_cols, block_rows;
};

/* Blocks in the order of rows; with windows (qwen2.5) window after window, each row by row, and the span of each. */
static void order_blocks(struct encoder *c, const struct tile_grid *g)
{
    const struct vision_params *v = &c->tower->v;
    const uint32_t each = v->merge * v->merge, side = v->window / v->merge / v->patch;
    uint32_t n = 0;
    if (!v->window || !side) {
        for (uint32_t i = 0; i < g->block_cols * g->block_rows; i++)
            c->block[n++] = i;
        return;
    }
    for (uint32_t y0 = 0; y0 < g->block_rows; y0 += side)
        for (uint32_t x0 = 0; x0 < g->block_cols; x0 += side) {
            const uint32_t first = n;
            for (uint32_t y = y0; y < y0 + side && y < g->block_rows; y++)
                for (uint32_t x = x0; x < x0 + side && x < g->block_cols; x++)
                    c->block[n++] = y * g->block_cols + x;
            for (uint32_t r = first * each; r < n * each; r++)
                c->span[r] = (struct step_span){first * each, n * each};
        }
}

/* The position of patch (x, y) of a tile, (width): one of the table's, or four of them blended where the tile is another
 * grid than the table (qwen3: corners on corners), or one of each axis added (gemma4). */
static void put_position(const struct encoder *c, const struct tile_grid *g, uint32_t x, uint32_t y,
                         float *to)
{
    const struct vision_params *v = &c->tower->v;
    const float *table = c->tower->positions;
    const uint32_t n = v->width, side = (uint32_t)(sqrt((double)v->positions) + 0.5);
    if (v->family == VISION_GEMMA4) {
        const float *a = table + (size_t)x * n, *b = table + ((size_t)v->positions + y) * n;
        for (uint32_t i = 0; i < n; i++)
            to[i] = a[i] + b[i];
        return;
    }
    if (v->family != VISION_QWEN3) { /* idefics3 puts smaller grids over the whole table */
        const uint32_t ty = (uint32_t)((uint64_t)y * side / g->rows),
                       tx = (uint32_t)((uint64_t)x * side / g->cols);
        memcpy(to, table + ((size_t)ty * side + tx) * n, n * sizeof *to);
        return;
    }
    const float fy = g->rows > 1 ? (float)y * (float)(side - 1) / (float)(g->rows - 1) : 0,
                fx = g->cols > 1 ? (float)x * (float)(side - 1) / (float)(g->cols - 1) : 0;
    const uint32_t y0 = (uint32_t)fy, x0 = (uint32_t)fx, y1 = y0 + 1 < side ? y0 + 1 : y0,
                   x1 = x0 + 1 < side ? x0 + 1 : x0;
    const float dy = fy - (float)y0, dx = fx - (float)x0;
    const float *p00 = table + ((size_t)y0 * side + x0) * n, *p01 = table + ((size_t)y0 * side + x1) * n,
                *p10 = table + ((size_t)y1 * side + x0) * n, *p11 = table + ((size_t)y1 * side + x1) * n;
    for (uint32_t i = 0; i < n; i++)
        to[i] =
            (1 - dy) * (1 - dx) * p00[i] + (1 - dy) * dx * p01[i] + dy * (1 - dx) * p10[i] + dy * dx * p11[i];
}

/* Lines of a square of pixels, one behind the other, colour by colour, each as often as there are frames. Inlined with a
 * constant side, so that a line is a few moves. */
static inline __attribute__((always_inline)) void copy_lines(const struct vision_tile *t, const float *from,
                                                             uint32_t frames, const uint32_t side, float *to)
{
    const size_t width = t->width, plane = width * t->height;
    for (const float *end = from + 3 * plane; from < end; from += plane)
        for (uint32_t f = 0; f < frames; f++)
            for (uint32_t i = 0; i < side; i++, to += side)
                memcpy(to, from + i * width, side * sizeof *to);
}

/* The pixels of a patch. gemma4's are from -1 to 1, which its processor leaves to the tower. */
static void put_pixels(const struct encoder *c, const struct vision_tile *t, uint32_t x, uint32_t y,
                       float *to)
{
    const uint32_t side = c->tower->v.patch, frames = c->tower->frames;
    const float *from = t->pixels + ((size_t)y * t->width + x) * side;
    if (side == 14)
        copy_lines(t, from, frames, 14, to);
    else if (side == 16)
        copy_lines(t, from, frames, 16, to);
    else
        copy_lines(t, from, frames, side, to);
    for (uint32_t i = 0; c->tower->v.family == VISION_GEMMA4 && i < c->tower->pixels; i++)
        to[i] = 2 * (to[i] - 0.5f);
}

/* The rows of a tile's patches; each worker fills its slice. */
struct fill_job {
    struct encoder *c;
    const struct vision_tile *t;
    const struct tile_grid *g;
    uint32_t rows;
    bool placed; /* positions are there */
};

static void fill_slice(void *arg, int worker, int workers)
{
    const struct fill_job *j = arg;
    struct encoder *c = j->c;
    const struct tower *w = c->tower;
    const uint32_t merge = w->v.merge, each = merge * merge, cols = j->g->block_cols;
    const size_t stride = w->model.plan.width[w->model.plan.given];
    long from, to;
    pool_slice(j->rows, each, worker, workers, &from, &to);
    for (uint32_t r = (uint32_t)from; r < (uint32_t)to; r++) {
        const uint32_t block = c->block[r / each], x = block % cols * merge + r % each % merge,
                       y = block / cols * merge + r % each / merge;
        float *row = c->in + r * stride;
        int32_t *axes = c->axes + (size_t)r * PLAN_AXES;
        put_pixels(c, j->t, x, y, row);
        if (w->positions && !j->placed)
            put_position(c, j->g, x, y, row + w->pixels);
        axes[0] = 0;
        axes[1] = (int32_t)y;
        axes[2] = (int32_t)x;
    }
}

/* All rows of a tile; returns how many. */
static uint32_t fill_rows(struct encoder *c, const struct vision_tile *t, const struct tile_grid *g)
{
    const struct tower *w = c->tower;
    const struct vision_params *v = &w->v;
    const uint32_t rows = g->block_cols * g->block_rows * v->merge * v->merge;
    const size_t stride = w->model.plan.width[w->model.plan.given];
    struct fill_job job = {c, t, g, rows, c->placed_cols == g->cols && c->placed_rows == g->rows};
    order_blocks(c, g);
    if (rows < FILL_ALONE)
        fill_slice(&job, 0, 1);
    else
        pool_run(c->pool, fill_slice, &job);
    c->placed_cols = g->cols;
    c->placed_rows = g->rows;
    if (!v->class_row)
        return rows;
    float *to = c->in + rows * stride;
    memset(to, 0, w->pixels * sizeof *to);
    memcpy(to + w->pixels, w->class_row, v->width * sizeof *to);
    memset(c->axes + (size_t)rows * PLAN_AXES, 0, PLAN_AXES * sizeof *c->axes);
    return rows + 1;
}

/* ---- steps ---- */

/* Operations [from, to) of a tile: up to the merge with all rows, then with those that are left. */
static int run_part(struct encoder *c, uint32_t from, uint32_t to, struct err *e)
{
    const struct plan *p = &c->tower->model.plan;
    const bool fold = p->fold_by > 1, merged = fold && from >= p->fold_at;
    const uint32_t rows = merged ? c->now.outs : c->now.rows;
    const struct step_seq seq = {.first = 0, .rows = rows, .length = rows};
    const struct step s = {.rows = rows,
                           .seqs = 1,
                           .outs = to == p->count ? c->now.outs : 0,
                           .ids = c->pos,
                           .pos = c->pos,
                           .axes = c->axes,
                           .span = c->tower->v.window && !merged ? c->span : NULL,
                           .seq = &seq,
                           .tables = c->table,
                           .table_width = (c->rows + PAGE_TOKENS - 1) / PAGE_TOKENS,
                           .out = c->out,
                           .from = from,
                           .to = to};
    if (c->profile)
        c->device->seconds = c->profile->operations + from;
    return c->device->ops->run(c->device, p, &s, e);
}

/* The next tile's rows to the device. */
static int tile_start(struct encoder *c, struct err *e)
{
    const struct vision_params *v = &c->tower->v;
    const struct vision_tile *t = &c->now.image->tile[c->now.tile];
    const uint32_t unit = v->patch * v->merge, outs = vision_tile_rows(v, t->width, t->height);
    const struct tile_grid g = {.cols = t->width / v->patch,
                                .rows = t->height / v->patch,
                                .block_cols = t->width / unit,
                                .block_rows = t->height / unit};
    if (!outs || t->width % unit || t->height % unit)
        return err_set(e, ERR_USAGE, "a tile of %u x %u pixels; multiples of %u are expected", t->width,
                       t->height, unit);
    if (v->family == VISION_GEMMA4 && (g.cols > v->positions || g.rows > v->positions))
        return err_set(e, ERR_USAGE, "a tile of %u x %u patches; the tower has positions for %u", g.cols,
                       g.rows, v->positions);
    if (encoder_reserve(c, g.cols * g.rows + 1, e))
        return -1;
    c->now.op = 0;
    c->now.outs = outs + v->drop_first;
    const double start = clock_now();
    c->now.rows = fill_rows(c, t, &g);
    const double filled = clock_now();
    const int failed =
        c->device->ops->write_rows(c->device, c->tower->model.plan.given, c->now.rows, c->in, e);
    if (c->profile) {
        c->profile->rows += filled - start;
        c->profile->sending += clock_now() - filled;
    }
    return failed;
}

/* Where the next slice of a tile ends: the CPU stops behind each operation, others only at the merge. */
static uint32_t slice_end(const struct encoder *c)
{
    const struct plan *p = &c->tower->model.plan;
    const bool before = p->fold_by > 1 && c->now.op < p->fold_at;
    return c->sliced ? c->now.op + 1 : before ? p->fold_at : p->count;
}

/* The tile's rows, in the order of the text. */
static int tile_end(struct encoder *c, struct err *e)
{
    const struct vision_params *v = &c->tower->v;
    const uint32_t width = encoder_width(c), outs = c->now.outs - v->drop_first;
    const float *result = c->device->ops->results(c->device, e);
    if (!result)
        return -1;
    result += v->drop_first ? width : 0;
    for (uint32_t i = 0; i < outs; i++) { /* a class row comes before the others */
        uint32_t to = v->window ? c->block[i] : !v->keep_class ? i : i + 1 < outs ? i + 1 : 0;
        memcpy(c->now.to + (size_t)to * width, result + (size_t)i * width, width * sizeof *result);
    }
    c->now.to += (size_t)outs * width;
    c->now.tile++;
    c->now.rows = 0;
    return 0;
}

/* llava-next: the first tile's rows, then the others' as lines of the image, each with the newline behind it. */
static void join_tiles(const struct encoder *c, const struct vision_prepared *image, const float *from,
                       float *to)
{
    const struct vision_params *v = &c->tower->v;
    const struct vision_kept *k = &image->kept;
    const uint32_t unit = v->patch * v->merge, cols = image->tile[0].width / unit,
                   lines = image->tile[0].height / unit, each = cols * lines;
    const size_t width = encoder_width(c), bytes = width * sizeof *to;
    memcpy(to, from, each * bytes);
    to += each * width;
    from += each * width;
    for (uint32_t y = k->top; y < k->bottom; y++) {
        for (uint32_t x = k->left; x < k->right; x++, to += width) {
            const uint32_t tile = y / lines * image->grid_cols + x / cols;
            memcpy(to, from + ((size_t)tile * each + y % lines * cols + x % cols) * width, bytes);
        }
        memcpy(to, c->tower->newline, bytes);
        to += width;
    }
}

int encoder_start(struct encoder *c, const struct vision_prepared *image, float *rows, struct err *e)
{
    const struct vision_tile *t = &image->tile[0];
    const size_t all = (size_t)image->tiles * vision_tile_rows(&c->tower->v, t->width, t->height);
    encoder_stop(c);
    float *apart = image->kept.bottom ? mem_alloc(all, encoder_width(c) * sizeof *apart) : NULL;
    if (image->kept.bottom && !apart)
        return err_memory(e, "rows of an image", all * encoder_width(c) * sizeof *apart);
    c->now.image = image;
    c->now.result = rows;
    c->now.apart = apart;
    c->now.to = apart ? apart : rows;
    return 0;
}

void encoder_stop(struct encoder *c)
{
    mem_free(c->now.apart);
    memset(&c->now, 0, sizeof c->now);
}

int encoder_go(struct encoder *c, double seconds, struct err *e)
{
    const struct plan *p = &c->tower->model.plan;
    const double end = clock_now() + seconds;
    while (c->now.image && c->now.tile < c->now.image->tiles) {
        if (!c->now.rows && tile_start(c, e))
            return -1;
        const uint32_t to = slice_end(c);
        if (run_part(c, c->now.op, to, e))
            return -1;
        c->now.op = to;
        if (to == p->count && tile_end(c, e))
            return -1;
        if (clock_now() >= end && c->now.tile < c->now.image->tiles)
            return 0;
    }
    if (c->now.apart)
        join_tiles(c, c->now.image, c->now.apart, c->now.result);
    encoder_stop(c);
    c->count++;
    return 1;
}

int encoder_run(struct encoder *c, const struct vision_prepared *image, float *rows, struct err *e)
{
    if (encoder_start(c, image, rows, e))
        return -1;
    int done = encoder_go(c, 1e9, e);
    if (done < 0)
        encoder_stop(c);
    return done < 0 ? -1 : 0;
}
