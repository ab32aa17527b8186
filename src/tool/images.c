#include "tool/images.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "media/decoder.h"

int images_add(struct images *m, const char *path, struct err *e)
{
    struct image_limits limits = IMAGE_LIMITS;
    struct decoder *d = NULL;
    struct buf bytes = {0};
    struct image *more = mem_realloc(m->image, m->count + 1, sizeof *more);
    if (!more)
        return err_memory(e, "an image", sizeof *more);
    m->image = more;
    int failed = file_read(path, &bytes, e) || decoder_start(&d, e);
    if (!failed && decoder_run(d, &m->image[m->count], bytes.data, bytes.len, &limits, e))
        failed = err_prefix(e, "%s", log_safe(path));
    decoder_stop(d);
    buf_free(&bytes);
    m->count += !failed;
    return failed ? -1 : 0;
}

int images_load(struct images *m, const struct args *a, struct err *e)
{
    int at = 0;
    for (const char *path; (path = args_next(a, "image", &at));)
        if (images_add(m, path, e))
            return -1;
    return 0;
}

int images_prepare(struct images *m, const struct vision *v, struct err *e)
{
    if (!m->count)
        return 0;
    if (!v)
        return err_set(e, ERR_USAGE,
                       "the model takes no images: it has no tower, and no mmproj file is beside it");
    m->picture = mem_zalloc(m->count, sizeof(struct picture *));
    if (!m->picture)
        return err_memory(e, "images", m->count * sizeof(struct picture *));
    for (uint32_t i = 0; i < m->count; i++)
        if (picture_make(&m->picture[i], &v->tower->v, &m->image[i], e))
            return -1;
    return 0;
}

void images_free(struct images *m)
{
    for (uint32_t i = 0; i < m->count; i++) {
        image_free(&m->image[i]);
        if (m->picture)
            picture_drop(m->picture[i]);
    }
    mem_free(m->image);
    mem_free(m->picture);
}
