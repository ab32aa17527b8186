#include "media/image.h"
#include "base/mem.h"
#include "base/size.h"

#include <string.h>

int image_new(struct image *out, int width, int height, struct err *e)
{
    size_t bytes;
    *out = (struct image){0};
    if (width < 1 || height < 1 || !size_mul((size_t)width, (size_t)height, &bytes) ||
        !size_mul(bytes, 3, &bytes))
        return err_set(e, ERR_DATA, "an image of %d x %d pixels is not possible", width, height);
    uint8_t *rgb = mem_alloc(bytes, 1);
    if (!rgb)
        return err_memory(e, "an image", bytes);
    *out = (struct image){width, height, rgb};
    return 0;
}

void image_free(struct image *image)
{
    mem_free(image->rgb);
    *image = (struct image){0};
}

int image_crop(struct image *out, const struct image *in, int x, int y, int width, int height, struct err *e)
{
    if (image_new(out, width, height, e))
        return -1;
    memset(out->rgb, 0, (size_t)width * (size_t)height * 3);
    int left = x < 0 ? -x : 0, right = width;
    if (right > in->width - x)
        right = in->width - x;
    for (int row = 0; row < height && left < right; row++)
        if (y + row >= 0 && y + row < in->height)
            memcpy(out->rgb + ((size_t)row * (size_t)width + (size_t)left) * 3,
                   in->rgb + ((size_t)(y + row) * (size_t)in->width + (size_t)(x + left)) * 3,
                   (size_t)(right - left) * 3);
    return 0;
}
