#include "model/vision/preprocess.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

/* The sizes of the steps: the image becomes `first` (idefics3 alone has two steps), then `size`, then it is cut. */
struct prepare_sizes {
    int first_width, first_height; /* 0: there is no such step */
    int width, height;
    int tile_width, tile_height;
    int cols, rows;              /* of tiles; 0: the tile is cut from the middle */
    bool whole;                  /* one more tile shows the whole */
    bool from_cut;               /* ... made from the resized image, not from the original one */
    bool apart;                  /* tiles are made one by one, the whole first (pan and scan, llava-next) */
    int crop_width, crop_height; /* ... pan and scan: of a crop in the original image */
    int x, y;                    /* ... llava-next: the padding before the resized image */
};

static int most(int a, int b)
{
    return a > b ? a : b;
}

/* Rounds down, also below zero. */
static int half_of(int a)
{
    return a >= 0 ? a / 2 : -((1 - a) / 2);
}

/* ---- sizes: Python's arithmetic, in doubles ---- */

static void size_crop(struct prepare_sizes *s, const struct vision_pixels *p, int width, int height)
{
    if (p->square)
        width = height = most(width, height);
    int shorter = width < height ? width : height, longer = width < height ? height : width;
    s->width = p->resized_width && p->resize ? (int)p->resized_width : width;
    s->height = p->resized_width && p->resize ? (int)p->resized_height : height;
    if (p->resize && !p->resized_width) {
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

/* Crops along the longer side, beside the whole (gemma3's "pan and scan"). */
static void size_pan(struct prepare_sizes *s, const struct vision_pixels *p, int width, int height)
{
    const int longer = most(width, height), shorter = width < height ? width : height;
    const double ratio = (double)longer / shorter;
    if (!p->pan || ratio < p->pan_ratio)
        return;
    double n = fmin(floor((double)longer / p->pan_least), floor(ratio + 0.5));
    n = fmin(p->pan_most, fmax(2, n));
    const int side = (int)ceil(longer / n);
    if ((side < shorter ? side : shorter) < (int)p->pan_least)
        return;
    s->apart = true;
    s->cols = width >= height ? (int)n : 1;
    s->rows = width >= height ? 1 : (int)n;
    s->crop_width = width >= height ? side : width;
    s->crop_height = width >= height ? height : side;
}

/* The size of `grid` that keeps most pixels, then the one that wastes least; the image goes into its middle. */
static int size_anyres(struct prepare_sizes *s, const struct vision_pixels *p, int width, int height,
                       struct err *e)
{
    double most_kept = 0, least_wasted = INFINITY;
    const uint32_t *best = NULL;
    for (uint32_t i = 0; i < p->grids; i++) {
        const double high = p->grid[i][0], wide = p->grid[i][1], scale = fmin(wide / width, high / height);
        const double kept = fmin(floor(width * scale) * floor(height * scale), (double)width * height);
        const double wasted = wide * high - kept;
        if (kept > most_kept || (kept == most_kept && wasted < least_wasted)) {
            most_kept = kept;
            least_wasted = wasted;
            best = p->grid[i];
        }
    }
    if (!best || best[0] % p->tile || best[1] % p->tile)
        return err_set(e, ERR_DATA, "an image of %d x %d pixels cannot be cut into tiles of %u", width,
                       height, p->tile);
    const double high = best[0], wide = best[1], by_width = wide / width, by_height = high / height;
    s->apart = true;
    s->width = by_width < by_height ? (int)wide : (int)fmin(ceil(width * by_height), wide);
    s->height = by_width < by_height ? (int)fmin(ceil(height * by_width), high) : (int)high;
    s->x = ((int)wide - s->width) / 2;
    s->y = ((int)high - s->height) / 2;
    s->cols = (int)(best[1] / p->tile);
    s->rows = (int)(best[0] / p->tile);
    s->tile_width = (int)(p->crop ? p->width : p->resized_width ? p->resized_width : p->shortest);
    s->tile_height = (int)(p->crop ? p->height : p->resized_width ? p->resized_height : p->shortest);
    return 0;
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
    else if (p->sizing == SIZING_ANYRES) {
        if (size_anyres(s, p, width, height, e))
            return -1;
    } else if (p->resize && p->sizing == SIZING_EXACT) {
        s->width = (int)p->width;
        s->height = (int)p->height;
        size_pan(s, p, width, height);
    } else if (p->resize && p->sizing == SIZING_LONGEST)
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

/* Python's int(round(x, 7)). */
static int round_down(double x)
{
    return (int)(rint(x * 1e7) / 1e7);
}

/* The part of the joined tiles that is no padding, in rows of the tower. */
static struct vision_kept kept_rows(const struct vision_layout *l, uint32_t unit, int width, int height)
{
    const int wide = (int)(l->grid_cols * (l->width / unit)), high = (int)(l->grid_rows * (l->height / unit));
    struct vision_kept k = {.bottom = (uint32_t)high, .right = (uint32_t)wide};
    if ((double)width / height > (double)wide / high) {
        const int pad = half_of(high - round_down(height * ((double)wide / width)));
        k.top += (uint32_t)pad;
        k.bottom -= (uint32_t)pad;
    } else {
        const int pad = half_of(wide - round_down(width * ((double)high / height)));
        k.left += (uint32_t)pad;
        k.right -= (uint32_t)pad;
    }
    return k;
}

int vision_layout(struct vision_layout *out, const struct vision_params *v, int width, int height,
                  struct err *e)
{
    struct prepare_sizes s;
    if (prepare_sizes(&s, v, width, height, e))
        return -1;
    uint32_t tiles = s.cols ? (uint32_t)(s.cols * s.rows) : 1;
    *out = (struct vision_layout){
        .tiles = tiles + (s.whole || s.apart),
        .width = (uint32_t)s.tile_width / v->patch * v->patch,
        .height = (uint32_t)s.tile_height / v->patch * v->patch,
        .grid_cols = tiles > 1 || s.apart ? (uint32_t)s.cols : 0,
        .grid_rows = tiles > 1 || s.apart ? (uint32_t)s.rows : 0,
    };
    uint32_t unit = v->patch * v->merge;
    const uint32_t each = vision_tile_rows(v, out->width, out->height);
    if (v->pixels.sizing == SIZING_ANYRES)
        out->kept = kept_rows(out, unit, width, height);
    out->rows = out->kept.bottom ? each + vision_kept_rows(&out->kept) : out->tiles * each;
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

/* One tile of llava-next: resized and cut as CLIP's processor does it with an image of its own. */
static int fill_finished(struct vision_prepared *out, struct image *piece, const struct vision_params *v,
                         const struct vision_layout *l, float values[3][256], struct err *e)
{
    const struct vision_pixels *p = &v->pixels;
    struct prepare_sizes s = {.width = piece->width, .height = piece->height};
    struct image cut = {0};
    size_crop(&s, p, piece->width, piece->height);
    int rc = p->crop ? prepare_middle(&cut, piece, &s, (enum image_filter)p->filter, e)
                     : image_resize(&cut, piece, s.width, s.height, (enum image_filter)p->filter, e);
    rc = rc || tile_fill(&out->tile[out->tiles++], &cut, 0, 0, l, values, e);
    image_free(&cut);
    return rc ? -1 : 0;
}

/* The whole, then tiles of the image in the middle of its grid, on black. */
static int prepare_anyres(struct vision_prepared *out, const struct image *in, const struct prepare_sizes *s,
                          const struct vision_params *v, const struct vision_layout *l, struct err *e)
{
    const struct vision_pixels *p = &v->pixels;
    const enum image_filter filter = (enum image_filter)p->filter;
    const int side = (int)p->tile, wide = (int)(p->resized_width ? p->resized_width : p->shortest),
              high = (int)(p->resized_width ? p->resized_height : p->shortest);
    float values[3][256];
    struct image sized = {0}, piece = {0};
    prepare_values(values, p);
    int rc = image_resize(&piece, in, wide, high, filter, e) || fill_finished(out, &piece, v, l, values, e) ||
             image_resize(&sized, in, s->width, s->height, filter, e);
    image_free(&piece);
    for (int i = 0; !rc && i < s->cols * s->rows; i++) {
        rc =
            image_crop(&piece, &sized, i % s->cols * side - s->x, i / s->cols * side - s->y, side, side, e) ||
            fill_finished(out, &piece, v, l, values, e);
        image_free(&piece);
    }
    image_free(&sized);
    return rc ? -1 : 0;
}

/* The whole, then crops of the original; the last one may be smaller. */
static int prepare_pan(struct vision_prepared *out, const struct image *in, const struct prepare_sizes *s,
                       const struct vision_params *v, const struct vision_layout *l, struct err *e)
{
    float values[3][256];
    int rc = 0;
    prepare_values(values, &v->pixels);
    for (int i = -1; !rc && i < s->cols * s->rows; i++) {
        const int x = i < 0 ? 0 : i % s->cols * s->crop_width, y = i < 0 ? 0 : i / s->cols * s->crop_height;
        const int wide = i < 0 || in->width - x < s->crop_width ? in->width - x : s->crop_width,
                  high = i < 0 || in->height - y < s->crop_height ? in->height - y : s->crop_height;
        struct image piece = {0}, sized = {0};
        if (wide < 1 || high < 1)
            return err_set(e, ERR_DATA, "an image of %d x %d pixels cannot be cut into %d crops", in->width,
                           in->height, s->cols * s->rows);
        rc = image_crop(&piece, in, x, y, wide, high, e) ||
             image_resize(&sized, &piece, s->width, s->height, (enum image_filter)v->pixels.filter, e) ||
             tile_fill(&out->tile[out->tiles++], &sized, 0, 0, l, values, e);
        image_free(&piece);
        image_free(&sized);
    }
    return rc ? -1 : 0;
}

/* In the middle of a square of the mean colour. */
static int prepare_square(struct image *out, const struct image *in, const struct vision_pixels *p,
                          struct err *e)
{
    enum { SIDE_MOST = 8192 }; /* 192 MiB */
    const int side = most(in->width, in->height), x = (side - in->width) / 2, y = (side - in->height) / 2;
    if (side > SIDE_MOST)
        return err_set(e, ERR_DATA,
                       "an image of %d x %d pixels: this model pads it to a square; %d is the longest side",
                       in->width, in->height, SIDE_MOST);
    if (image_new(out, side, side, e))
        return -1;
    for (size_t i = 0; i < (size_t)side * (size_t)side * 3; i++)
        out->rgb[i] = (uint8_t)(int)(p->mean[i % 3] * 255.0);
    for (int row = 0; row < in->height; row++)
        memcpy(out->rgb + ((size_t)(y + row) * (size_t)side + (size_t)x) * 3,
               in->rgb + (size_t)row * (size_t)in->width * 3, (size_t)in->width * 3);
    return 0;
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
    if (v->pixels.square && v->pixels.sizing == SIZING_CROP && image->width != image->height &&
        prepare_square(&first, image, &v->pixels, e))
        return -1;
    if (s.first_width &&
        image_resize(&first, image, s.first_width, s.first_height, (enum image_filter)v->pixels.filter, e))
        return -1;
    out->grid_cols = l.grid_cols;
    out->grid_rows = l.grid_rows;
    out->kept = l.kept;
    out->tile = mem_zalloc(l.tiles, sizeof *out->tile);
    const struct image *from = first.rgb ? &first : image;
    int rc = !out->tile      ? err_memory(e, "an image's tiles", l.tiles * sizeof *out->tile)
             : l.kept.bottom ? prepare_anyres(out, from, &s, v, &l, e)
             : s.apart       ? prepare_pan(out, from, &s, v, &l, e)
                             : prepare_tiles(out, from, &s, v, &l, e);
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
