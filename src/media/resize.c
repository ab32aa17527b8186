/* PIL's resampling: for every output pixel a window of input pixels with weights in 22-bit fixed point; the
 * horizontal pass rounds to 8 bits before the vertical one. Weights are doubles until they are rounded, so
 * that every one has PIL's value. */
#include "base/mem.h"
#include "media/image.h"

#include <math.h>
#include <string.h>

enum { RESIZE_BITS = 32 - 8 - 2 };

static double filter_box(double x)
{
    return x > -0.5 && x <= 0.5 ? 1 : 0;
}

static double filter_bilinear(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double filter_hamming(double x)
{
    x = fabs(x);
    if (x == 0)
        return 1;
    if (x >= 1)
        return 0;
    x *= M_PI;
    return sin(x) / x * (0.54 + 0.46 * cos(x));
}

static double filter_bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double filter_sinc(double x)
{
    if (x == 0)
        return 1;
    x *= M_PI;
    return sin(x) / x;
}

static double filter_lanczos(double x)
{
    return x >= -3 && x < 3 ? filter_sinc(x) * filter_sinc(x / 3) : 0;
}

static const struct resize_filter {
    double (*weight)(double x);
    double support; /* half of the window, at scale 1 */
} resize_filters[] = {
    [IMAGE_LANCZOS] = {filter_lanczos, 3}, [IMAGE_BILINEAR] = {filter_bilinear, 1},
    [IMAGE_BICUBIC] = {filter_bicubic, 2}, [IMAGE_BOX] = {filter_box, 0.5},
    [IMAGE_HAMMING] = {filter_hamming, 1},
};

/* One axis: output pixel i is the sum over k < count[i] of weight[i][k] * input[first[i] + k]. */
struct resize_axis {
    int most;        /* entries of a row of weights */
    int *first;      /* (out) */
    int *count;      /* (out) */
    int *weights;    /* (out, most): 22 bits behind the point */
    double *scratch; /* (most) */
};

static void axis_free(struct resize_axis *a)
{
    mem_free(a->first);
    mem_free(a->count);
    mem_free(a->weights);
    mem_free(a->scratch);
}

static void axis_row(struct resize_axis *a, int at, int in, double scale, const struct resize_filter *f,
                     int center_at)
{
    double wide = scale < 1 ? 1 : scale, support = f->support * wide, center = (center_at + 0.5) * scale,
           sum = 0, per = 1.0 / wide, *w = a->scratch;
    int from = (int)(center - support + 0.5), to = (int)(center + support + 0.5);
    from = from < 0 ? 0 : from;
    to = to > in ? in : to;
    a->first[at] = from;
    a->count[at] = to - from;
    for (int k = 0; k < to - from; k++)
        sum += w[k] = f->weight((k + from - center + 0.5) * per);
    for (int k = 0; k < to - from; k++) {
        double v = (sum != 0 ? w[k] / sum : w[k]) * (1 << RESIZE_BITS);
        a->weights[(size_t)at * (size_t)a->most + (size_t)k] = (int)(v < 0 ? v - 0.5 : v + 0.5);
    }
}

/* Of an axis of `in` pixels that becomes `out`: the outputs from `first` on, `count` of them. */
struct resize_span {
    int in, out, first, count;
};

static int axis_make(struct resize_axis *a, const struct resize_span *s, const struct resize_filter *f,
                     struct err *e)
{
    double scale = (double)s->in / s->out;
    size_t count = (size_t)s->count;
    a->most = (int)ceil(f->support * (scale < 1 ? 1 : scale)) * 2 + 1;
    a->first = mem_alloc(count, sizeof *a->first);
    a->count = mem_alloc(count, sizeof *a->count);
    a->weights = mem_alloc(count * (size_t)a->most, sizeof *a->weights);
    a->scratch = mem_alloc((size_t)a->most, sizeof *a->scratch);
    if (!a->first || !a->count || !a->weights || !a->scratch)
        return err_memory(e, "the weights of a resize", count * (size_t)a->most * sizeof *a->weights);
    for (int i = 0; i < s->count; i++)
        axis_row(a, i, s->in, scale, f, s->first + i);
    return 0;
}

static uint8_t resize_clip(int sum)
{
    int v = sum >> RESIZE_BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* The sum of `count` pixels that are `stride` bytes apart. */
static void resize_pixel(uint8_t *out, const uint8_t *in, size_t stride, const int *w, int count)
{
    int r = 1 << (RESIZE_BITS - 1), g = r, b = r;
    for (int k = 0; k < count; k++, in += stride) {
        r += in[0] * w[k];
        g += in[1] * w[k];
        b += in[2] * w[k];
    }
    out[0] = resize_clip(r);
    out[1] = resize_clip(g);
    out[2] = resize_clip(b);
}

static int resize_wide(struct image *out, const struct image *in, const struct resize_span *s,
                       const struct resize_filter *f, struct err *e)
{
    struct resize_axis a = {0};
    int rc = axis_make(&a, s, f, e) || image_new(out, s->count, in->height, e) ? -1 : 0;
    for (int y = 0; !rc && y < in->height; y++)
        for (int x = 0; x < s->count; x++)
            resize_pixel(out->rgb + ((size_t)y * (size_t)s->count + (size_t)x) * 3,
                         in->rgb + ((size_t)y * (size_t)in->width + (size_t)a.first[x]) * 3, 3,
                         a.weights + (size_t)x * (size_t)a.most, a.count[x]);
    axis_free(&a);
    return rc;
}

static int resize_high(struct image *out, const struct image *in, const struct resize_span *s,
                       const struct resize_filter *f, struct err *e)
{
    struct resize_axis a = {0};
    size_t stride = (size_t)in->width * 3;
    int rc = axis_make(&a, s, f, e) || image_new(out, in->width, s->count, e) ? -1 : 0;
    for (int y = 0; !rc && y < s->count; y++)
        for (int x = 0; x < in->width; x++)
            resize_pixel(out->rgb + (size_t)y * stride + (size_t)x * 3,
                         in->rgb + (size_t)a.first[y] * stride + (size_t)x * 3, stride,
                         a.weights + (size_t)y * (size_t)a.most, a.count[y]);
    axis_free(&a);
    return rc;
}

/* The input of each output. The position is a running sum, as in PIL: it rounds where a product would not. */
static void nearest_axis(int *from, const struct resize_span *s)
{
    double step = (double)s->in / s->out, at = step * 0.5;
    for (int i = 0; i < s->first + s->count; i++, at += step)
        if (i >= s->first)
            from[i - s->first] = (int)at < s->in ? (int)at : s->in - 1;
}

static int resize_nearest(struct image *out, const struct image *in, const struct resize_span *wide,
                          const struct resize_span *high, struct err *e)
{
    int *x = mem_alloc((size_t)wide->count, sizeof *x), *y = mem_alloc((size_t)high->count, sizeof *y);
    int rc = !x || !y ? err_memory(e, "a resize", sizeof *x * (size_t)(wide->count + high->count))
                      : image_new(out, wide->count, high->count, e);
    if (!rc) {
        nearest_axis(x, wide);
        nearest_axis(y, high);
    }
    for (int row = 0; !rc && row < high->count; row++)
        for (int at = 0; at < wide->count; at++)
            memcpy(out->rgb + ((size_t)row * (size_t)wide->count + (size_t)at) * 3,
                   in->rgb + ((size_t)y[row] * (size_t)in->width + (size_t)x[at]) * 3, 3);
    mem_free(x);
    mem_free(y);
    return rc;
}

/* An axis that keeps its size is only cut. PIL 13 begins with the rows where it removes more than twice as many rows as
 * columns. */
static int resize_both(struct image *out, const struct image *in, const struct resize_span *wide,
                       const struct resize_span *high, const struct resize_filter *f, struct err *e)
{
    struct image half;
    if (wide->in == wide->out && high->in == high->out)
        return image_crop(out, in, wide->first, high->first, wide->count, high->count, e);
    bool high_only = wide->in == wide->out, wide_only = high->in == high->out;
    bool high_first = high_only || (!wide_only && high->out < high->in &&
                                    high->in - high->out > 2 * (wide->in - wide->out));
    if (high_first ? resize_high(&half, in, high, f, e) : resize_wide(&half, in, wide, f, e))
        return -1;
    int rc = high_only    ? image_crop(out, &half, wide->first, 0, wide->count, high->count, e)
             : wide_only  ? image_crop(out, &half, 0, high->first, wide->count, high->count, e)
             : high_first ? resize_wide(out, &half, wide, f, e)
                          : resize_high(out, &half, high, f, e);
    image_free(&half);
    return rc;
}

int image_resize_part(struct image *out, const struct image *in, const struct image_part *p,
                      enum image_filter filter, struct err *e)
{
    struct resize_span wide = {in->width, p->width, p->x, p->part_width},
                       high = {in->height, p->height, p->y, p->part_height};
    *out = (struct image){0};
    return filter == IMAGE_NEAREST ? resize_nearest(out, in, &wide, &high, e)
                                   : resize_both(out, in, &wide, &high, &resize_filters[filter], e);
}

int image_resize(struct image *out, const struct image *in, int width, int height, enum image_filter filter,
                 struct err *e)
{
    return image_resize_part(out, in, &(struct image_part){width, height, 0, 0, width, height}, filter, e);
}
