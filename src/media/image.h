/* A decoded image: 8-bit RGB, rows from the top, no padding, the right way up (EXIF orientation applied),
 * transparent pixels on white. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image {
    int width, height; /* both from 1 */
    uint8_t *rgb;      /* (height, width, 3), owned */
};

enum { IMAGE_SIDE = 65535 }; /* pixels of a side at most: JPEG's own limit */

int image_new(struct image *out, int width, int height, struct err *e); /* pixels are not cleared */
void image_free(struct image *image);

/* The filters of PIL, by the numbers that preprocessor_config.json has. */
enum image_filter {
    IMAGE_NEAREST = 0,
    IMAGE_LANCZOS = 1,
    IMAGE_BILINEAR = 2,
    IMAGE_BICUBIC = 3,
    IMAGE_BOX = 4,
    IMAGE_HAMMING = 5,
};

/* `in` at another size, byte for byte as PIL's Image.resize does it: antialiased, in two passes of 8-bit results with
 * fixed-point weights. */
int image_resize(struct image *out, const struct image *in, int width, int height, enum image_filter filter,
                 struct err *e);
/* A part of the resized image, without the memory for the rest: of an image of width x height the part at (x, y), which is
 * inside of it. */
struct image_part {
    int width, height, x, y, part_width, part_height;
};
int image_resize_part(struct image *out, const struct image *in, const struct image_part *p,
                      enum image_filter filter, struct err *e);
/* The part of `in` whose upper left pixel is (x, y); what is outside of `in` is black. */
int image_crop(struct image *out, const struct image *in, int x, int y, int width, int height, struct err *e);
