#include "device/cuda/parity.h"

#include "codec/dtype.h"
#include "base/log.h"
#include "base/mem.h"

#include <math.h>

/* Of each weight one strip of 16 outputs, and of that SAMPLES outputs, for up to ROWS rows: one row, eight rows, as many
 * as make a wide product, and where large ones are prepared as many as make one of those (the first rows are compared). */
enum { SAMPLES = 3, ROWS = 8, WIDE = 33, STRIP = 16, LARGE = PACK_ROWS_MOST + 1 };

struct parity {
    struct cuda_device *d;
    float *x;      /* (LARGE, widest) on the host; rows of k floats lie at the front */
    float *row;    /* a decoded row */
    float *result; /* (STRIP * LARGE) */
    cu_ptr x_device, y_device;
    uint64_t x_bytes, y_bytes;
    uint32_t state;
    uint32_t checked;
};

static float next(struct parity *p)
{
    p->state = p->state * 1664525u + 1013904223u;
    return (float)(p->state >> 8) / 8388608.0f - 1.0f;
}

/* The strip of weight i that is compared: rows [*first, ...) of matrix *m. */
static struct mat strip_of(struct parity *p, uint32_t i, uint32_t *first, uint32_t *matrix)
{
    struct mat w = p->d->weights.mat[i];
    uint32_t strips = (w.n + STRIP - 1) / STRIP;
    *matrix = (p->state >> 8) % w.count;
    *first = (p->state >> 4) % strips * STRIP;
    w.base += *matrix * w.each + (layout_is_tile(w.fmt) ? *first / STRIP : *first) * w.stride;
    w.n = w.n - *first < STRIP ? w.n - *first : STRIP;
    w.count = 1;
    return w;
}

/* Output n of the file's matrix against row r of x, and the size that its rounding is measured by. */
static double reference(struct parity *p, const struct weight *w, uint32_t r, double *size)
{
    double sum = 0, square = 0;
    for (uint32_t j = 0; j < w->cols; j++) {
        double v = (double)p->row[j] * p->x[(size_t)r * w->cols + j];
        sum += v;
        square += v * v;
    }
    *size = sqrt(square);
    return sum;
}

static int compare(struct parity *p, uint32_t i, const struct mat *part, uint32_t first, uint32_t matrix,
                   uint32_t rows, struct err *e)
{
    const struct weight *w = &p->d->source->all[i];
    /* types that were decoded to F16 keep its rounding in exact mode too */
    const double bound = p->d->options.exact && layout_for(w->type) != FMT_NONE ? 1e-4 : 1e-2;
    for (uint32_t s = 0; s < SAMPLES && s < part->n; s++) {
        uint32_t n = (s * 7 + (p->state >> 20)) % part->n;
        dtype_get(w->type)->decode(w->data + matrix * w->each_bytes + (size_t)(first + n) * w->row_bytes,
                                   p->row, w->cols);
        for (uint32_t r = 0; r < rows && r < ROWS; r++) {
            double size, want = reference(p, w, r, &size), got = p->result[(size_t)r * part->n + n];
            if (!(fabs(got - want) <= bound * size + 1e-6))
                return err_set(e, ERR_DEVICE,
                               "the GPU does not compute %s (%s, %u x %u) as the CPU does: output %u of row "
                               "%u of %u is %g, not %g; "
                               "use --device cpu, or --no-parity to go on all the same",
                               log_safe(w->name), dtype_get(w->type)->name, w->rows, w->cols, first + n, r,
                               rows, got, want);
        }
    }
    return 0;
}

static int check_weight(struct parity *p, uint32_t i, struct err *e)
{
    struct cuda_device *d = p->d;
    struct gpu *g = d->g;
    const uint32_t counts[4] = {1, ROWS, gpu_has_many(&g->profile, d->weights.mat[i].fmt, WIDE) ? WIDE : 0,
                                d->at.decoded_bytes ? LARGE : 0};
    uint32_t first, matrix;
    struct mat w = strip_of(p, i, &first, &matrix);
    for (int c = 0; c < 4; c++) {
        uint32_t m = counts[c];
        if (!m || m > d->max_rows || (m == LARGE && (uint64_t)w.k * 2 * 128 > d->at.decoded_bytes))
            continue;
        if (exec_product(d, &w, (const float *)p->x_device, m, (float *)p->y_device, e) ||
            gpu_check(g, g->cu->to_host(p->result, p->y_device, (size_t)m * w.n * 4, g->stream),
                      "checking weights", e) ||
            gpu_sync(g, e) || compare(p, i, &w, first, matrix, m, e))
            return -1;
    }
    p->checked++;
    return 0;
}

static int check_all(struct parity *p, uint32_t widest, struct err *e)
{
    struct cuda_device *d = p->d;
    struct gpu *g = d->g;
    p->x_bytes = (uint64_t)LARGE * widest * 4;
    p->y_bytes = (uint64_t)LARGE * STRIP * 4;
    p->x = mem_alloc((size_t)LARGE * widest, sizeof *p->x);
    p->row = mem_alloc(widest, sizeof *p->row);
    p->result = mem_alloc((size_t)LARGE * STRIP, sizeof *p->result);
    if (!p->x || !p->row || !p->result)
        return err_memory(e, "the parity gate", p->x_bytes);
    for (size_t j = 0; j < (size_t)LARGE * widest; j++)
        p->x[j] = next(p);
    if (!(p->x_device = gpu_alloc(g, p->x_bytes, "the parity gate", e)) ||
        !(p->y_device = gpu_alloc(g, p->y_bytes, "the parity gate", e)) ||
        gpu_check(g, g->cu->to_device(p->x_device, p->x, p->x_bytes, g->stream), "checking weights", e) ||
        gpu_sync(g, e))
        return -1;
    for (uint32_t i = 1; i < d->source->count; i++) {
        const struct weight *w = &d->source->all[i];
        next(p);
        if (w->rows > 1 && w->cols <= widest && check_weight(p, i, e))
            return -1;
    }
    return 0;
}

uint64_t parity_bytes(const struct step_sizes *sizes)
{
    return (uint64_t)LARGE * ((uint64_t)sizes->k + STRIP) * 4;
}

int parity_check(struct cuda_device *d, const struct step_sizes *sizes, struct err *e)
{
    struct parity p = {.d = d, .state = 1};
    /* wider weights than the products' (a table of positions) are not multiplied */
    uint32_t widest = 1;
    for (uint32_t i = 1; i < d->source->count; i++)
        if (d->source->all[i].rows > 1 && d->source->all[i].cols <= sizes->k &&
            d->source->all[i].cols > widest)
            widest = d->source->all[i].cols;
    int bad = check_all(&p, widest, e);
    gpu_free(d->g, p.x_device, p.x_bytes);
    gpu_free(d->g, p.y_device, p.y_bytes);
    mem_free(p.x);
    mem_free(p.row);
    mem_free(p.result);
    if (!bad)
        log_debug("parity: %u weights agree with the CPU", p.checked);
    return bad;
}
