/* From the bytes of a file to pixels: JPEG (baseline, progressive, grey, CMYK), PNG (every kind), WebP and GIF (of both
 * the first frame). The size is read from the header and checked before pixels are allocated.
 *
 * The libraries parse bytes from strangers: programs call image_decode by decoder.h, in a process without
 * rights. */
#pragma once

#include "media/image.h"

struct image_limits {
    uint64_t bytes;   /* of the file */
    uint64_t pixels;  /* width times height */
    uint32_t seconds; /* of decoding (decoder.h) */
};
#define IMAGE_LIMITS ((struct image_limits){.bytes = 32 << 20, .pixels = 64 << 20, .seconds = 10})

/* Errors are ERR_DATA with a sentence for the client, or ERR_RESOURCE. */
int image_decode(struct image *out, const void *bytes, size_t n, const struct image_limits *limits,
                 struct err *e);

/* ---- for the formats ---- */

/* What a file holds: rgb or rgba rows in `image`, which has 3 bytes a pixel in the end. */
struct image_source {
    const uint8_t *bytes; /* (size) */
    size_t size;
    const struct image_limits *limits;
    int orientation; /* of EXIF: 1 to 8 */
};

int decode_jpeg(struct image *out, struct image_source *s, struct err *e);
int decode_png(struct image *out, struct image_source *s, struct err *e);
int decode_webp(struct image *out, struct image_source *s, struct err *e);
int decode_gif(struct image *out, struct image_source *s, struct err *e);

/* The size as the header says it, checked; the pixels are allocated. */
int decode_start(struct image *out, const struct image_source *s, uint64_t width, uint64_t height,
                 struct err *e);
/* One row of RGBA on white. */
void decode_on_white(uint8_t *rgb, const uint8_t *rgba, size_t pixels);
/* The orientation of a block of EXIF (TIFF), 1 where it has none. */
int decode_orientation(const uint8_t *tiff, size_t n);
