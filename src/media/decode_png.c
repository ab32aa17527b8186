/* PNG by libpng: all colour types and depths become RGBA of 8 bits; of 16 bits the upper half counts, as in PIL.
 * (Of grey with 16 bits PIL makes white of everything above 255; that is not followed.) */
#include "base/mem.h"
#include "media/decode.h"

#include <setjmp.h>
#include <string.h>

#include <png.h>

struct png_reader {
    struct image_source *s;
    size_t at;
    struct err *e;
    struct image *out;
    uint8_t *rgba;    /* (height, width, 4): interlaced images; else one row */
    png_bytep *lines; /* (height) of it */
};

static void png_fail(png_structp png, png_const_charp text)
{
    struct png_reader *r = png_get_error_ptr(png);
    err_set(r->e, ERR_DATA, "%s", text);
    png_longjmp(png, 1);
}

static void png_warn(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void png_take(png_structp png, png_bytep to, size_t n)
{
    struct png_reader *r = png_get_io_ptr(png);
    if (n > r->s->size - r->at)
        png_error(png, "the file ends before the image does");
    memcpy(to, r->s->bytes + r->at, n);
    r->at += n;
}

/* The sizes that libpng is to expand to, and the memory for them. */
static int png_prepare(struct png_reader *r, png_structp png, png_infop info, int *passes)
{
    png_uint_32 width = png_get_image_width(png, info), height = png_get_image_height(png, info);
    if (decode_start(r->out, r->s, width, height, r->e))
        return -1;
    png_set_expand(png);
    png_set_strip_16(png);
    png_set_gray_to_rgb(png);
    png_set_add_alpha(png, 255, PNG_FILLER_AFTER);
    *passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != 4 * (size_t)width)
        return err_set(r->e, ERR_DATA, "its rows do not have the length of RGBA");
    size_t lines = *passes > 1 ? height : 1;
    r->rgba = mem_zalloc(lines * width, 4);
    r->lines = mem_alloc(lines, sizeof *r->lines);
    if (!r->rgba || !r->lines)
        return err_memory(r->e, "an image", 4ull * lines * width);
    for (size_t y = 0; y < lines; y++)
        r->lines[y] = r->rgba + y * width * 4;
    return 0;
}

/* All that may jump. */
static int png_read(struct png_reader *r, png_structp png, png_infop info)
{
    enum { CHUNK = 8 << 20 };
    int passes;
    png_uint_32 exif_size = 0;
    png_bytep exif = NULL;
    png_set_user_limits(png, IMAGE_SIDE, IMAGE_SIDE);
    png_set_chunk_malloc_max(png, CHUNK);
    png_set_read_fn(png, r, png_take);
    png_read_info(png, info);
    if (png_prepare(r, png, info, &passes))
        return -1;
    size_t width = (size_t)r->out->width, height = (size_t)r->out->height;
    if (passes > 1)
        png_read_image(png, r->lines);
    for (size_t y = 0; y < height; y++) {
        if (passes == 1)
            png_read_row(png, r->rgba, NULL);
        decode_on_white(r->out->rgb + y * width * 3, r->lines[passes > 1 ? y : 0], width);
    }
    if (png_get_eXIf_1(png, info, &exif_size, &exif))
        r->s->orientation = decode_orientation(exif, exif_size);
    return 0;
}

/* Whether the file has all bytes that its chunks {length, name, data, checksum} say: libpng allocates a chunk
 * before it reads it. */
static bool png_chunks_fit(const uint8_t *bytes, size_t n)
{
    enum { SIGNATURE = 8, FRAME = 12 };
    for (size_t at = SIGNATURE, length; n - at >= FRAME; at += FRAME + length) {
        length = (size_t)bytes[at] << 24 | (size_t)bytes[at + 1] << 16 | (size_t)bytes[at + 2] << 8 |
                 bytes[at + 3];
        if (length > n - at - FRAME)
            return false;
        if (!memcmp(bytes + at + 4, "IEND", 4))
            break;
    }
    return true;
}

int decode_png(struct image *out, struct image_source *s, struct err *e)
{
    struct png_reader r = {.s = s, .e = e, .out = out};
    if (!png_chunks_fit(s->bytes, s->size))
        return err_set(e, ERR_DATA, "the file ends before the image does");
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, png_fail, png_warn);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    int failed = !info                     ? err_memory(e, "the PNG reader", sizeof r)
                 : setjmp(png_jmpbuf(png)) ? -1
                                           : png_read(&r, png, info);
    png_destroy_read_struct(&png, &info, NULL);
    mem_free(r.rgba);
    mem_free(r.lines);
    return failed;
}
