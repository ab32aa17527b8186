#include "model/vision/preprocess.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

/* The sizes of the steps: the image becomes `first` (idefics3 alone has two steps), then `size`, then it is cut. */
struct prepare_sizes {
    int first_width, first_height; /* 0: there is no such step */
    int width, height;
    int tile_width, tile_height;
    int cols, rows; /* of tiles; 0: the tile is cut from the middle */
    bool whole;     /* one more tile shows the whole */
    bool from_cut;  /* ... made from the resized image, not from the original one */
};

static int most(int a, int b)
{
    return a > b ? a : b;
}

/* ---- sizes: Python's arithmetic, in doubles ---- */

static void size_crop(struct prepare_sizes *s, const struct vision_pixels *p, int width, int height)
{
    int shorter = width < height ? width : height, longer = width < height ? height : width;
    if (p->resize) {
        int other = (int)((double)((int64_t)p->shortest * longer) / shorter);
        s->width = width <= height ? (int)p->shortest : other;
        s->height = width <= height ? other : (int)p->shortest;
    }
    s->tile_width = p->crop ? (int)p->width : s->width;
    s->tile_height = p->crop ? (int)p->height : s->height;
}

static void size_longest(struct prepare_sizes *s, const struct vision_pixels *p, int unit, int width,
                         int height)
{
    double ratio = fmax((double)height / p->longest, (double)width / p->longest);
    if (ratio > 1) {
        height = (int)floor(height / ratio);
        width = (int)floor(width / ratio);
    }
    /* a side that became 0 gets one row all the same */
    s->width = (most(width, 1) - 1) / unit * unit + unit;
    s->height = (most(height, 1) - 1) / unit * unit + unit;
}

static int size_pixels(struct prepare_sizes *s, const struct vision_pixels *p, int unit, int width,
                       int height, struct err *e)
{
    enum { RATIO = 200 };
    if ((double)most(width, height) / (width < height ? width : height) > RATIO)
        return err_set(e, ERR_DATA,
                       "an image of %d x %d pixels: for this model one side is at most %d times the other",
                       width, height, RATIO);
    double high = rint((double)height / unit) * unit,
           wide = rint((double)width / unit) * unit; /* half to even */
    double pixels = (double)height * width;
    if (high * wide > (double)p->max_pixels) {
        double beta = sqrt(pixels / (double)p->max_pixels);
        high = fmax(unit, floor(height / beta / unit) * unit);
        wide = fmax(unit, floor(width / beta / unit) * unit);
    } else if (high * wide < (double)p->min_pixels) {
        double beta = sqrt((double)p->min_pixels / pixels);
        high = ceil(height * beta / unit) * unit;
        wide = ceil(width * beta / unit) * unit;
    }
    s->width = most((int)wide, unit);
    s->height = most((int)high, unit);
    return 0;
}

static void size_tokens(struct prepare_sizes *s, const struct vision_params *v, int width, int height)
{
    int unit = (int)(v->patch * v->merge);
    double target = (double)v->pixels.max_tokens * unit * unit,
           factor = sqrt(target / ((double)height * width));
    int64_t longest = (int64_t)v->pixels.max_tokens * unit;
    s->height = (int)floor(factor * height / unit) * unit;
    s->width = (int)floor(factor * width / unit) * unit;
    if (s->height == 0) {
        s->height = unit;
        s->width = (int)fmin((double)(width / height) * unit, (double)longest);
    } else if (s->width == 0) {
        s->width = unit;
        s->height = (int)fmin((double)(height / width) * unit, (double)longest);
    }
}

static int up_to(int a, int tile)
{
    return (a + tile - 1) / tile * tile;
}

/* The longest side becomes `longest`, the other one an even number; nothing is larger than 4,096. */
static void size_split_first(int longest, int *width, int *height)
{
    enum { LARGEST = 4096 };
    double ratio = (double)*width / *height;
    bool wide = *width >= *height;
    int *longer = wide ? width : height, *other = wide ? height : width;
    *longer = longest;
    *other = (int)(wide ? longest / ratio : longest * ratio);
    *other = most(*other + *other % 2, 1);
    ratio = (double)*width / *height;
    wide = *width >= *height;
    longer = wide ? width : height;
    other = wide ? height : width;
    if (*longer > LARGEST) {
        *longer = LARGEST;
        *other = most((int)(wide ? LARGEST / ratio : LARGEST * ratio), 1);
    }
}

static void size_split(struct prepare_sizes *s, const struct vision_pixels *p, int width, int height)
{
    int tile = (int)p->tile;
    if (p->resize)
        size_split_first((int)p->longest, &width, &height);
    s->first_width = width;
    s->first_height = height;
    s->width = s->height = s->tile_width = s->tile_height = tile;
    s->cols = s->rows = 1;
    if (!p->split)
        return;
    double ratio = (double)width / height;
    if (width >= height) {
        s->width = up_to(width, tile);
        s->height = up_to((int)(s->width / ratio), tile);
    } else {
        s->height = up_to(height, tile);
        s->width = up_to((int)(s->height * ratio), tile);
    }
    s->cols = s->width / tile;
    s->rows = s->height / tile;
    s->whole = s->from_cut = s->cols * s->rows > 1;
}

/* Grids in order of their number of tiles; of two that are as near, the larger one, unless the image has less than half
 * of its pixels. */
static void size_grid(struct prepare_sizes *s, const struct vision_pixels *p, int width, int height)
{
    double ratio = (double)width / height, best = INFINITY, area = (double)width * height;
    int tile = (int)p->tile;
    s->cols = s->rows = 1;
    for (uint32_t n = p->min_tiles; n <= p->max_tiles; n++)
        for (uint32_t cols = 1; cols <= n; cols++) {
            if (n % cols)
                continue;
            double off = fabs(ratio - (double)cols / (n / cols));
            if (off > best || (off == best && area <= 0.5 * tile * tile * n))
                continue;
            best = off;
            s->cols = (int)cols;
            s->rows = (int)(n / cols);
        }
    s->width = s->cols * tile;
    s->height = s->rows * tile;
    s->tile_width = s->tile_height = tile;
    s->whole = p->thumbnail && s->cols * s->rows > 1;
}

static int prepare_sizes(struct prepare_sizes *s, const struct vision_params *v, int width, int height,
                         struct err *e)
{
    const struct vision_pixels *p = &v->pixels;
    int unit = (int)(v->patch * v->merge);
    *s = (struct prepare_sizes){.width = width, .height = height};
    if (p->sizing == SIZING_CROP)
        size_crop(s, p, width, height);
    else if (p->sizing == SIZING_SPLIT)
        size_split(s, p, width, height);
    else if (p->sizing == SIZING_GRID)
        size_grid(s, p, width, height);
    else if (p->resize && p->sizing == SIZING_EXACT)
        s->width = (int)p->width, s->height = (int)p->height;
    else if (p->resize && p->sizing == SIZING_LONGEST)
        size_longest(s, p, unit, width, height);
    else if (p->resize && p->sizing == SIZING_PIXELS && size_pixels(s, p, unit, width, height, e))
        return -1;
    else if (p->resize && p->sizing == SIZING_TOKENS)
        size_tokens(s, v, width, height);
    s->tile_width = s->tile_width ? s->tile_width : s->width;
    s->tile_height = s->tile_height ? s->tile_height : s->height;
    int cols = s->tile_width / (int)v->patch, rows = s->tile_height / (int)v->patch;
    if (!cols || !rows || cols % (int)v->merge || rows % (int)v->merge)
        return err_set(e, ERR_DATA, "an image of %d x %d pixels cannot be cut into patches of %d x %d", width,
                       height, unit, unit);
    return 0;
}

int vision_layout(struct vision_layout *out, const struct vision_params *v, int width, int height,
                  struct err *e)
{
    struct prepare_sizes s;
    if (prepare_sizes(&s, v, width, height, e))
        return -1;
    uint32_t tiles = s.cols ? (uint32_t)(s.cols * s.rows) : 1;
    *out = (struct vision_layout){
        .tiles = tiles + s.whole,
        .width = (uint32_t)s.tile_width / v->patch * v->patch,
        .height = (uint32_t)s.tile_height / v->patch * v->patch,
        .grid_cols = tiles > 1 ? (uint32_t)s.cols : 0,
        .grid_rows = tiles > 1 ? (uint32_t)s.rows : 0,
    };
    uint32_t unit = v->patch * v->merge;
    out->rows = out->tiles * (out->width / unit * (out->height / unit) + v->keep_class);
    return 0;
}

/* ---- pixels ---- */

/* What each value of a byte becomes, for each channel. */
static void prepare_values(float values[3][256], const struct vision_pixels *p)
{
    for (int c = 0; c < 3; c++)
        for (int v = 0; v < 256; v++) {
            float x = p->rescale ? (float)(v * p->scale) : (float)v;
            values[c][v] = p->normalise ? (x - p->mean[c]) / p->std[c] : x;
        }
}

static int tile_fill(struct vision_tile *t, const struct image *from, int x, int y,
                     const struct vision_layout *l, float values[3][256], struct err *e)
{
    size_t plane = (size_t)l->width * l->height;
    *t = (struct vision_tile){l->width, l->height, mem_alloc(3 * plane, sizeof(float))};
    if (!t->pixels)
        return err_memory(e, "an image's pixels", 3 * plane * sizeof(float));
    for (uint32_t row = 0; row < l->height; row++)
        for (uint32_t col = 0; col < l->width; col++) {
            const uint8_t *rgb =
                from->rgb + ((size_t)(y + (int)row) * (size_t)from->width + (size_t)(x + (int)col)) * 3;
            for (int c = 0; c < 3; c++)
                t->pixels[(size_t)c * plane + (size_t)row * l->width + col] = values[c][rgb[c]];
        }
    return 0;
}

/* Rounds down, also below zero. */
static int half_of(int a)
{
    return a >= 0 ? a / 2 : -((1 - a) / 2);
}

/* The middle of the resized image; only the part that is used is computed, and what is outside is black. */
static int prepare_middle(struct image *out, const struct image *in, const struct prepare_sizes *s,
                          enum image_filter filter, struct err *e)
{
    int x = half_of(s->width - s->tile_width), y = half_of(s->height - s->tile_height);
    struct image_part p = {.width = s->width,
                           .height = s->height,
                           .x = most(x, 0),
                           .y = most(y, 0),
                           .part_width = x < 0 ? s->width : s->tile_width,
                           .part_height = y < 0 ? s->height : s->tile_height};
    struct image part;
    if (image_resize_part(&part, in, &p, filter, e))
        return -1;
    int rc = image_crop(out, &part, x < 0 ? x : 0, y < 0 ? y : 0, s->tile_width, s->tile_height, e);
    image_free(&part);
    return rc;
}

static int prepare_tiles(struct vision_prepared *out, const struct image *in, const struct prepare_sizes *s,
                         const struct vision_params *v, const struct vision_layout *l, struct err *e)
{
    enum image_filter filter = (enum image_filter)v->pixels.filter;
    struct image sized = {0}, whole = {0};
    float values[3][256];
    bool middle = v->pixels.sizing == SIZING_CROP && v->pixels.crop;
    int rc = middle ? prepare_middle(&sized, in, s, filter, e)
                    : image_resize(&sized, in, s->width, s->height, filter, e);
    if (!rc && s->whole)
        rc = image_resize(&whole, s->from_cut ? &sized : in, s->tile_width, s->tile_height, filter, e);
    prepare_values(values, &v->pixels);
    for (uint32_t i = 0; !rc && i < l->tiles; i++) {
        bool last = s->whole && i + 1 == l->tiles;
        uint32_t cols = l->grid_cols ? l->grid_cols : 1;
        rc = tile_fill(&out->tile[out->tiles++], last ? &whole : &sized,
                       last ? 0 : (int)(i % cols) * s->tile_width,
                       last ? 0 : (int)(i / cols) * s->tile_height, l, values, e);
    }
    image_free(&sized);
    image_free(&whole);
    return rc;
}

int vision_prepare(struct vision_prepared *out, const struct vision_params *v, const struct image *image,
                   struct err *e)
{
    struct prepare_sizes s;
    struct vision_layout l;
    struct image first = {0};
    *out = (struct vision_prepared){0};
    if (prepare_sizes(&s, v, image->width, image->height, e) ||
        vision_layout(&l, v, image->width, image->height, e))
        return -1;
    if (s.first_width &&
        image_resize(&first, image, s.first_width, s.first_height, (enum image_filter)v->pixels.filter, e))
        return -1;
    out->grid_cols = l.grid_cols;
    out->grid_rows = l.grid_rows;
    out->tile = mem_zalloc(l.tiles, sizeof *out->tile);
    int rc = out->tile ? prepare_tiles(out, first.rgb ? &first : image, &s, v, &l, e)
                       : err_memory(e, "an image's tiles", l.tiles * sizeof *out->tile);
    image_free(&first);
    if (rc)
        vision_prepared_free(out);
    return rc;
}

void vision_prepared_free(struct vision_prepared *p)
{
    for (uint32_t i = 0; i < p->tiles; i++)
        mem_free(p->tile[i].pixels);
    mem_free(p->tile);
    *p = (struct vision_prepared){0};
}
