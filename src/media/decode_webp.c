/* WebP by libwebp: lossy, lossless, with alpha; of an animation the first frame on its canvas. */
#include "media/decode.h"

#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

/* The payload of the EXIF chunk: the file is a list of chunks {name, size, payload, padding to two}. */
static int webp_orientation(const uint8_t *bytes, size_t n)
{
    for (size_t at = 12, size; n - at >= 8; at += size + (size & 1)) {
        size = bytes[at + 4] | (size_t)bytes[at + 5] << 8 | (size_t)bytes[at + 6] << 16 |
               (size_t)bytes[at + 7] << 24;
        const uint8_t *name = bytes + at;
        at += 8;
        if (size > n - at)
            break;
        if (!memcmp(name, "EXIF", 4)) {
            size_t skip = size > 6 && !memcmp(bytes + at, "Exif\0\0", 6) ? 6 : 0;
            return decode_orientation(bytes + at + skip, size - skip);
        }
        if (size + (size & 1) > n - at)
            break;
    }
    return 1;
}

static int webp_frame(struct image *out, WebPAnimDecoder *decoder, struct err *e)
{
    WebPAnimInfo info;
    uint8_t *rgba;
    int time;
    if (!WebPAnimDecoderGetInfo(decoder, &info) || info.canvas_width != (uint32_t)out->width ||
        info.canvas_height != (uint32_t)out->height)
        return err_set(e, ERR_DATA, "its parts disagree about the size of the image");
    if (!WebPAnimDecoderGetNext(decoder, &rgba, &time))
        return err_set(e, ERR_DATA, "the image is damaged, or the file ends before it does");
    decode_on_white(out->rgb, rgba, (size_t)out->width * (size_t)out->height);
    return 0;
}

int decode_webp(struct image *out, struct image_source *s, struct err *e)
{
    WebPBitstreamFeatures features;
    WebPAnimDecoderOptions options;
    if (WebPGetFeatures(s->bytes, s->size, &features) != VP8_STATUS_OK)
        return err_set(e, ERR_DATA, "the header is damaged, or the file ends in it");
    if (decode_start(out, s, (uint64_t)features.width, (uint64_t)features.height, e))
        return -1;
    WebPAnimDecoderOptionsInit(&options);
    options.color_mode = MODE_RGBA;
    WebPData data = {s->bytes, s->size};
    WebPAnimDecoder *decoder = WebPAnimDecoderNew(&data, &options);
    if (!decoder)
        return err_set(e, ERR_DATA, "the image is damaged, or the file ends before it does");
    int failed = webp_frame(out, decoder, e);
    WebPAnimDecoderDelete(decoder);
    s->orientation = webp_orientation(s->bytes, s->size);
    return failed;
}
