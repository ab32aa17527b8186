/* JPEG by libjpeg-turbo, with the library's defaults, as PIL has them. */
#include "base/mem.h"
#include "media/decode.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

struct jpeg_reader {
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr errors;
    jmp_buf back;
    struct err *e;
    struct image *out;
    uint8_t *row; /* (width, 4): CMYK */
};

static _Noreturn void jpeg_fail(j_common_ptr c)
{
    struct jpeg_reader *r = c->client_data;
    char text[JMSG_LENGTH_MAX];
    c->err->format_message(c, text);
    err_set(r->e, ERR_DATA, "%s", text);
    longjmp(r->back, 1);
}

/* Warnings of damaged data give pixels nevertheless; the end of the file before the end of the image is an error. */
static void jpeg_warn(j_common_ptr c, int level)
{
    struct jpeg_reader *r = c->client_data;
    if (level >= 0 || c->err->msg_code != JWRN_JPEG_EOF)
        return;
    err_set(r->e, ERR_DATA, "the file ends before the image does");
    longjmp(r->back, 1);
}

static int jpeg_orientation(const struct jpeg_decompress_struct *d)
{
    for (const struct jpeg_marker_struct *m = d->marker_list; m; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length > 6 && !memcmp(m->data, "Exif\0\0", 6))
            return decode_orientation(m->data + 6, m->data_length - 6);
    return 1;
}

/* Adobe's convention: the file has 255 minus the ink. */
static void jpeg_from_cmyk(uint8_t *rgb, const uint8_t *cmyk, size_t pixels)
{
    for (; pixels--; rgb += 3, cmyk += 4)
        for (int c = 0; c < 3; c++) {
            unsigned paper = cmyk[3], ink = (255u - cmyk[c]) * paper + 128;
            rgb[c] = (uint8_t)(paper - (((ink >> 8) + ink) >> 8));
        }
}

/* All that may jump. */
static int jpeg_read(struct jpeg_reader *r, struct image_source *s)
{
    struct jpeg_decompress_struct *d = &r->d;
    jpeg_create_decompress(d);
    jpeg_save_markers(d, JPEG_APP0 + 1, 0xffff);
    jpeg_mem_src(d, s->bytes, s->size);
    jpeg_read_header(d, TRUE);
    bool cmyk = d->num_components == 4;
    if (d->num_components != 1 && d->num_components != 3 && !cmyk)
        return err_set(r->e, ERR_DATA, "an image of %d components cannot be read", d->num_components);
    if (decode_start(r->out, s, d->image_width, d->image_height, r->e))
        return -1;
    s->orientation = jpeg_orientation(d);
    d->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    if (cmyk && !(r->row = mem_alloc(d->image_width, 4)))
        return err_memory(r->e, "a row of pixels", 4ull * d->image_width);
    jpeg_start_decompress(d);
    for (size_t stride = 3 * (size_t)d->image_width; d->output_scanline < d->output_height;) {
        uint8_t *rgb = r->out->rgb + d->output_scanline * stride;
        JSAMPROW row = cmyk ? r->row : rgb;
        jpeg_read_scanlines(d, &row, 1);
        if (cmyk)
            jpeg_from_cmyk(rgb, r->row, d->image_width);
    }
    return 0;
}

int decode_jpeg(struct image *out, struct image_source *s, struct err *e)
{
    struct jpeg_reader r = {.e = e, .out = out};
    r.d.err = jpeg_std_error(&r.errors);
    r.d.client_data = &r;
    r.errors.error_exit = jpeg_fail;
    r.errors.emit_message = jpeg_warn;
    int failed = setjmp(r.back) ? -1 : jpeg_read(&r, s);
    jpeg_destroy_decompress(&r.d);
    mem_free(r.row);
    return failed;
}
