#include "tool/images.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "media/decoder.h"

#include <string.h>

int images_start(struct images *m, struct err *e)
{
    return m->decoder ? 0 : decoder_start(&m->decoder, e);
}

int images_add(struct images *m, const char *path, struct err *e)
{
    struct image_limits limits = IMAGE_LIMITS;
    struct buf bytes = {.max = limits.bytes};
    struct image *images = mem_realloc(m->image, m->count + 1, sizeof *images);
    if (!images)
        return err_memory(e, "an image", sizeof *images);
    m->image = images;
    int failed = file_read(path, &bytes, e) || images_start(m, e);
    if (!failed && decoder_run(m->decoder, &m->image[m->count], bytes.data, bytes.len, &limits, e))
        failed = err_prefix(e, "%s", log_safe(path));
    buf_free(&bytes);
    m->count += !failed;
    return failed ? -1 : 0;
}

int images_load(struct images *m, const struct args *a, struct err *e)
{
    int at = 0;
    for (const char *path; (path = args_next(a, "image", &at));) {
        const char **named = mem_realloc(m->named, m->count + 1, sizeof(const char *));
        if (!named)
            return err_memory(e, "an image", sizeof(const char *));
        m->named = named;
        m->named[m->count] = path;
        if (images_add(m, path, e))
            return -1;
    }
    return 0;
}

int images_prepare(struct images *m, const struct vision_params *v, struct err *e)
{
    if (m->prepared == m->count)
        return 0;
    if (!v)
        return err_set(e, ERR_USAGE,
                       "the model takes no images: it has no tower, and no mmproj file is beside it");
    struct picture **pictures = mem_realloc(m->picture, m->count, sizeof(struct picture *));
    if (!pictures)
        return err_memory(e, "images", m->count * sizeof(struct picture *));
    m->picture = pictures;
    for (; m->prepared < m->count; m->prepared++) {
        if (picture_make(&m->picture[m->prepared], v, &m->image[m->prepared], e))
            return -1;
        image_free(&m->image[m->prepared]);
    }
    return 0;
}

void images_cut(struct images *m, uint32_t count)
{
    while (m->count > count) {
        m->count--;
        image_free(&m->image[m->count]);
        if (m->prepared > m->count)
            picture_drop(m->picture[--m->prepared]);
    }
}

void images_drop(struct images *m, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        image_free(&m->image[i]);
        picture_drop(m->picture[i]);
    }
    memmove(m->image, m->image + count, (m->count - count) * sizeof *m->image);
    memmove(m->picture, m->picture + count, (m->count - count) * sizeof *m->picture);
    m->count -= count;
    m->prepared -= count;
}

void images_free(struct images *m)
{
    images_cut(m, 0);
    decoder_stop(m->decoder);
    mem_free(m->image);
    mem_free(m->picture);
    mem_free(m->named);
    *m = (struct images){0};
}
