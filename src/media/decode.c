#include "media/decode.h"
#include "base/mem.h"

#include <string.h>

/* ---- EXIF ---- */

static uint32_t tiff_number(const uint8_t *at, int bytes, bool big)
{
    uint32_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint32_t)at[i] << 8 * (big ? bytes - 1 - i : i);
    return v;
}

int decode_orientation(const uint8_t *tiff, size_t n)
{
    enum { ENTRY = 12, TAG = 0x112, SHORT = 3 };
    if (n < 8 || (memcmp(tiff, "II*\0", 4) != 0 && memcmp(tiff, "MM\0*", 4) != 0))
        return 1;
    bool big = *tiff == 'M';
    uint32_t at = tiff_number(tiff + 4, 4, big);
    if (at > n - 2)
        return 1;
    uint32_t count = tiff_number(tiff + at, 2, big);
    at += 2;
    for (uint32_t i = 0; i < count && n - at >= ENTRY; i++, at += ENTRY)
        if (tiff_number(tiff + at, 2, big) == TAG && tiff_number(tiff + at + 2, 2, big) == SHORT) {
            uint32_t value = tiff_number(tiff + at + 8, 2, big);
            return value >= 1 && value <= 8 ? (int)value : 1;
        }
    return 1;
}

/* Orientation o: 5 to 8 swap rows and columns; then, seen from the output, columns (2, 3, 7, 8) or rows (3, 4, 6, 7) run
 * backwards in the input. */
static int decode_turn(struct image *image, int o, struct err *e)
{
    struct image out;
    bool swap = o >= 5, back_x = o == 2 || o == 3 || o == 7 || o == 8,
         back_y = o == 3 || o == 4 || o == 6 || o == 7;
    if (o == 1)
        return 0;
    if (image_new(&out, swap ? image->height : image->width, swap ? image->width : image->height, e))
        return -1;
    for (int y = 0; y < out.height; y++)
        for (int x = 0; x < out.width; x++) {
            int from_x = swap ? y : x, from_y = swap ? x : y;
            from_x = back_x ? image->width - 1 - from_x : from_x;
            from_y = back_y ? image->height - 1 - from_y : from_y;
            memcpy(out.rgb + ((size_t)y * (size_t)out.width + (size_t)x) * 3,
                   image->rgb + ((size_t)from_y * (size_t)image->width + (size_t)from_x) * 3, 3);
        }
    image_free(image);
    *image = out;
    return 0;
}

/* ---- pixels ---- */

int decode_start(struct image *out, const struct image_source *s, uint64_t width, uint64_t height,
                 struct err *e)
{
    if (!width || !height)
        return err_set(e, ERR_DATA, "the image has no pixels");
    if (width > IMAGE_SIDE || height > IMAGE_SIDE || width * height > s->limits->pixels)
        return err_set(e, ERR_DATA,
                       "the image has %llu x %llu pixels; at most %llu in all and %d on a side are decoded",
                       (unsigned long long)width, (unsigned long long)height,
                       (unsigned long long)s->limits->pixels, IMAGE_SIDE);
    return image_new(out, (int)width, (int)height, e);
}

/* v * a / 255, rounded: exact for bytes. */
static uint8_t white_blend(uint8_t v, uint8_t alpha)
{
    unsigned sum = (unsigned)v * alpha + 255u * (255u - alpha) + 128;
    return (uint8_t)(((sum >> 8) + sum) >> 8);
}

void decode_on_white(uint8_t *rgb, const uint8_t *rgba, size_t pixels)
{
    for (; pixels--; rgb += 3, rgba += 4)
        for (int c = 0; c < 3; c++)
            rgb[c] = white_blend(rgba[c], rgba[3]);
}

/* ---- formats ---- */

static const struct image_format {
    const char *name, *magic;
    size_t at, n; /* of the magic */
    int (*decode)(struct image *out, struct image_source *s, struct err *e);
} image_formats[] = {
    {"JPEG", "\xff\xd8\xff", 0, 3, decode_jpeg}, {"PNG", "\x89PNG\r\n\x1a\n", 0, 8, decode_png},
    {"WebP", "WEBP", 8, 4, decode_webp},         {"GIF", "GIF87a", 0, 6, decode_gif},
    {"GIF", "GIF89a", 0, 6, decode_gif},
};

int image_decode(struct image *out, const void *bytes, size_t n, const struct image_limits *limits,
                 struct err *e)
{
    struct image_source s = {bytes, n, limits, 1};
    *out = (struct image){0};
    if (n > limits->bytes)
        return err_set(e, ERR_DATA, "the image has %zu bytes; at most %llu are decoded", n,
                       (unsigned long long)limits->bytes);
    for (size_t i = 0; i < sizeof image_formats / sizeof *image_formats; i++) {
        const struct image_format *f = &image_formats[i];
        if (n < f->at + f->n || memcmp(s.bytes + f->at, f->magic, f->n) != 0)
            continue;
        if (!f->decode(out, &s, e) && !decode_turn(out, s.orientation, e))
            return 0;
        image_free(out);
        return err_prefix(e, "%s", f->name);
    }
    return err_set(e, ERR_DATA, "these %zu bytes are no image that can be read: JPEG, PNG, WebP or GIF", n);
}
