/* Any bytes as the file of an image. What is decoded has the size that the limits allow, and can be resized. */
#include "media/decode.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct image_limits limits = {.bytes = 1 << 20, .pixels = 1 << 18};
    struct image image, small;
    struct err e = {0};
    if (image_decode(&image, data, size, &limits, &e)) {
        if (!e.text[0] || image.rgb)
            abort();
        return 0;
    }
    size_t pixels = (size_t)image.width * (size_t)image.height;
    if (pixels > limits.pixels)
        abort();
    sink += image.rgb[pixels * 3 - 1];
    int width = 1 + image.width % 17, height = 1 + image.height % 13;
    if (!image_resize(&small, &image, width, height, (enum image_filter)(size % 6), &e))
        sink += small.rgb[(size_t)width * (size_t)height * 3 - 1];
    image_free(&small);
    image_free(&image);
    return 0;
}
