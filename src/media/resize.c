/* PIL's resampling: for every output pixel a window of input pixels with weights in 22-bit fixed point; the
 * horizontal pass rounds to 8 bits before the vertical one. Weights are doubles until they are rounded, so
 * that every one has PIL's value. */
#include "base/mem.h"
#include "base/size.h"
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
    int most;     /* entries of a row of weights */
    int *first;   /* (out) */
    int *count;   /* (out) */
    int *weights; /* (out, most): 22 bits behind the point */
};

static void axis_free(struct resize_axis *a)
{
    mem_free(a->first);
    mem_free(a->count);
    mem_free(a->weights);
}

static void axis_row(struct resize_axis *a, int at, int in, double scale, const struct resize_filter *f,
                     double *w)
{
    double wide = scale < 1 ? 1 : scale, support = f->support * wide, center = (at + 0.5) * scale, sum = 0,
           per = 1.0 / wide;
    int from = (int)(center - support + 0.5), to = (int)(center + support + 0.5);
    from = from < 0 ? 0 : from;
    to = to > in ? in : to;
    a->first[at] = from;
    a->count[at] = to - from;
    for (int k = 0; k < to - from; k++)
        sum += w[k] = f->weight((k + from - center + 0.5) * per);
    for (int k = 0; k < a->most; k++) {
        double v = k < to - from ? sum != 0 ? w[k] / sum : w[k] : 0;
        v *= 1 << RESIZE_BITS;
        a->weights[(size_t)at * (size_t)a->most + (size_t)k] = (int)(v < 0 ? v - 0.5 : v + 0.5);
    }
}

static int axis_make(struct resize_axis *a, int in, int out, const struct resize_filter *f, struct err *e)
{
    double scale = (double)in / out;
    a->most = (int)ceil(f->support * (scale < 1 ? 1 : scale)) * 2 + 1;
    a->first = mem_alloc((size_t)out, sizeof *a->first);
    a->count = mem_alloc((size_t)out, sizeof *a->count);
    a->weights = mem_alloc((size_t)out * (size_t)a->most, sizeof *a->weights);
    double *w = mem_alloc((size_t)a->most, sizeof *w);
    if (!a->first || !a->count || !a->weights || !w) {
        mem_free(w);
        return err_memory(e, "the weights of a resize", (size_t)out * (size_t)a->most * sizeof *a->weights);
    }
    for (int i = 0; i < out; i++)
        axis_row(a, i, in, scale, f, w);
    mem_free(w);
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

static int resize_wide(struct image *out, const struct image *in, int width, const struct resize_filter *f,
                       struct err *e)
{
    struct resize_axis a = {0};
    int rc = axis_make(&a, in->width, width, f, e) || image_new(out, width, in->height, e) ? -1 : 0;
    for (int y = 0; !rc && y < in->height; y++)
        for (int x = 0; x < width; x++)
            resize_pixel(out->rgb + ((size_t)y * (size_t)width + (size_t)x) * 3,
                         in->rgb + ((size_t)y * (size_t)in->width + (size_t)a.first[x]) * 3, 3,
                         a.weights + (size_t)x * (size_t)a.most, a.count[x]);
    axis_free(&a);
    return rc;
}

static int resize_high(struct image *out, const struct image *in, int height, const struct resize_filter *f,
                       struct err *e)
{
    struct resize_axis a = {0};
    size_t stride = (size_t)in->width * 3;
    int rc = axis_make(&a, in->height, height, f, e) || image_new(out, in->width, height, e) ? -1 : 0;
    for (int y = 0; !rc && y < height; y++)
        for (int x = 0; x < in->width; x++)
            resize_pixel(out->rgb + (size_t)y * stride + (size_t)x * 3,
                         in->rgb + (size_t)a.first[y] * stride + (size_t)x * 3, stride,
                         a.weights + (size_t)y * (size_t)a.most, a.count[y]);
    axis_free(&a);
    return rc;
}

/* The position is a running sum, as in PIL: it rounds where a product would not. */
static int resize_nearest(struct image *out, const struct image *in, int width, int height, struct err *e)
{
    if (image_new(out, width, height, e))
        return -1;
    double step_x = (double)in->width / width, step_y = (double)in->height / height, from_y = step_y * 0.5;
    for (int y = 0; y < height; y++, from_y += step_y) {
        const uint8_t *row =
            in->rgb + size_min((size_t)from_y, (size_t)in->height - 1) * (size_t)in->width * 3;
        double from_x = step_x * 0.5;
        for (int x = 0; x < width; x++, from_x += step_x)
            memcpy(out->rgb + ((size_t)y * (size_t)width + (size_t)x) * 3,
                   row + size_min((size_t)from_x, (size_t)in->width - 1) * 3, 3);
    }
    return 0;
}

int image_resize(struct image *out, const struct image *in, int width, int height, enum image_filter filter,
                 struct err *e)
{
    struct image half;
    *out = (struct image){0};
    if (width == in->width && height == in->height)
        return image_crop(out, in, 0, 0, width, height, e);
    if (filter == IMAGE_NEAREST)
        return resize_nearest(out, in, width, height, e);
    const struct resize_filter *f = &resize_filters[filter];
    if (width == in->width)
        return resize_high(out, in, height, f, e);
    if (height == in->height)
        return resize_wide(out, in, width, f, e);
    /* PIL 13 begins with the rows where it removes more than twice as many rows as columns */
    bool high_first = height < in->height && in->height - height > 2 * (in->width - width);
    if (high_first ? resize_high(&half, in, height, f, e) : resize_wide(&half, in, width, f, e))
        return -1;
    int rc = high_first ? resize_wide(out, &half, width, f, e) : resize_high(out, &half, height, f, e);
    image_free(&half);
    return rc;
}
