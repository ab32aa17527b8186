/* The public library: images of requests. They are decoded in a process of their own (media/decoder.h), which a thread
 * of the model starts and keeps: such a process ends with the thread that started it, and a caller's may end at any time. */
#define _GNU_SOURCE
#include "run/api.h"

#include "base/log.h"
#include "base/mem.h"
#include "media/decoder.h"
#include "run/image_parts.h"
#include "run/image_text.h"

#include <signal.h>
#include <string.h>
#include <strings.h>

enum { API_IMAGES_MOST = 64 };

/* ---- the process ---- */

struct api_decoder {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t change;
    struct decoder *decoder; /* once it is ready; NULL and an error: it could not be started */
    struct err error;
    bool ready, ends;
};

static void *api_decoder_keep(void *arg)
{
    struct api_decoder *d = arg;
    struct decoder *started = NULL;
    struct err e = {0};
    decoder_start(&started, &e);
    pthread_mutex_lock(&d->mutex);
    d->decoder = started;
    d->error = e;
    d->ready = true;
    pthread_cond_broadcast(&d->change);
    while (!d->ends)
        pthread_cond_wait(&d->change, &d->mutex);
    pthread_mutex_unlock(&d->mutex);
    decoder_stop(started);
    return NULL;
}

int api_decoder_open(struct api_decoder **out, struct err *e)
{
    struct api_decoder *d = mem_zalloc(1, sizeof *d);
    sigset_t all, before;
    if (!d)
        return err_memory(e, "the decoder", sizeof *d);
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->change, NULL);
    sigfillset(&all); /* signals are for the caller's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&d->thread, NULL, api_decoder_keep, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        pthread_cond_destroy(&d->change);
        pthread_mutex_destroy(&d->mutex);
        mem_free(d);
        return err_set(e, ERR_RESOURCE, "cannot start the thread of the decoder: %s", strerror(failed));
    }
    pthread_mutex_lock(&d->mutex);
    while (!d->ready)
        pthread_cond_wait(&d->change, &d->mutex);
    pthread_mutex_unlock(&d->mutex);
    *out = d;
    if (d->decoder)
        return 0;
    *e = d->error;
    return -1;
}

void api_decoder_close(struct api_decoder *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->mutex);
    d->ends = true;
    pthread_cond_broadcast(&d->change);
    pthread_mutex_unlock(&d->mutex);
    pthread_join(d->thread, NULL);
    pthread_cond_destroy(&d->change);
    pthread_mutex_destroy(&d->mutex);
    mem_free(d);
}

/* ---- pictures ---- */

void api_pictures_free(struct api_pictures *p)
{
    for (uint32_t i = 0; i < p->count; i++)
        picture_drop(p->all[i]);
    mem_free(p->all);
    mem_free(p->places);
    *p = (struct api_pictures){0};
}

/* Whether the image's tokens fit into the context, with those of the images before it. */
static int picture_fits(const struct session *l, const struct api_pictures *p, const struct image *image,
                        struct err *e)
{
    struct vision_layout layout;
    uint64_t rows = 0;
    if (vision_layout(&layout, l->vision, image->width, image->height, e))
        return -1;
    for (uint32_t i = 0; i < p->count; i++)
        rows += p->all[i]->rows;
    return rows + layout.rows < l->runner->ctx
               ? 0
               : err_set(e, ERR_USAGE, "the images have %llu tokens; the context has room for %u",
                         (unsigned long long)(rows + layout.rows), l->runner->ctx);
}

/* One more picture, of the bytes of a file. */
static int picture_add(struct api_pictures *p, const void *bytes, size_t n, struct err *e)
{
    const struct session *l = p->model->session;
    const struct image_limits most = IMAGE_LIMITS;
    struct image image = {0};
    if (p->count == API_IMAGES_MOST)
        return err_set(e, ERR_USAGE, "more than %d images in a request", API_IMAGES_MOST);
    struct picture **grown = mem_more(p->all, p->count, &p->room, sizeof(struct picture *));
    if (!grown)
        return err_memory(e, "an image", sizeof(struct picture *));
    p->all = grown;
    int failed = decoder_run(p->model->decoder->decoder, &image, n ? bytes : "", n, &most, e) ||
                 picture_fits(l, p, &image, e) || picture_make(&p->all[p->count], l->vision, &image, e);
    image_free(&image);
    p->count += !failed;
    return failed ? -1 : 0;
}

/* The next of the images that the request has beside its messages. */
static int picture_add_given(struct api_pictures *p, struct err *e)
{
    if (p->used == p->given)
        return err_set(e, ERR_USAGE, "there are more places for images than images: %zu", p->given);
    const struct quern_image *i = &p->images[p->used++];
    return picture_add(p, i->bytes, i->length, e);
}

static int picture_add_text(struct api_pictures *p, const char *text, size_t n, bool is_url, struct err *e)
{
    const uint64_t most = IMAGE_LIMITS.bytes;
    struct buf bytes = {0};
    if (is_url && (n < 5 || strncasecmp(text, "data:", 5) != 0))
        return err_set(e, ERR_USAGE, "an image has to be a data: URL; the library fetches none");
    if (n / 4 * 3 > most + 3)
        return err_set(e, ERR_USAGE, "the image has about %zu bytes; at most %llu are read", n / 4 * 3,
                       (unsigned long long)most);
    int failed = image_part_bytes(&bytes, text, n, e) || picture_add(p, bytes.data, bytes.len, e);
    buf_free(&bytes);
    return failed ? -1 : 0;
}

struct picture_reader {
    struct api_pictures *to;
    struct err *e;
};

static int picture_read_part(void *arg, const json_t *part, const char *where)
{
    const struct picture_reader *r = arg;
    bool is_url;
    const json_t *text = image_part_text(part, &is_url);
    int failed =
        !text ? picture_add_given(r->to, r->e)
              : picture_add_text(r->to, json_string_value(text), json_string_length(text), is_url, r->e);
    return failed ? err_prefix(r->e, "%s", where) : 0;
}

/* All that were given have been used; their places. */
static int pictures_end(struct api_pictures *p, struct err *e)
{
    if (p->used != p->given)
        return err_set(e, ERR_USAGE, "there are %zu images, and places for %zu of them", p->given, p->used);
    p->places = p->count ? mem_zalloc(p->count, sizeof *p->places) : NULL;
    return p->count && !p->places ? err_memory(e, "images", p->count * sizeof *p->places) : 0;
}

int api_pictures_open(struct api_pictures *p, struct quern_model *m, const struct quern_request *r,
                      struct err *e)
{
    *p = (struct api_pictures){.model = m, .images = r->images, .given = r->image_count};
    if (r->image_count > API_IMAGES_MOST)
        return err_set(e, ERR_USAGE, "more than %d images in a request", API_IMAGES_MOST);
    if (r->image_count && !m->session->vision)
        return err_set(e, ERR_USAGE, "this model reads only text, no images");
    return r->image_count && r->ids ? err_set(e, ERR_USAGE, "images need messages, prompt or raw") : 0;
}

json_t *api_pictures_read(struct api_pictures *p, const json_t *messages, struct err *e)
{
    struct picture_reader r = {p, e};
    json_t *out = image_parts_read(messages, picture_read_part, &r);
    if (!out && !e->code)
        err_memory(e, "the messages", 1);
    if (out && pictures_end(p, e)) {
        json_decref(out);
        return NULL;
    }
    return out;
}

int api_pictures_raw(struct api_pictures *p, const char *raw, struct buf *text, struct err *e)
{
    const bool placed = strstr(raw, IMAGE_TEXT_MARK) != NULL;
    while (p->used < p->given) {
        if (picture_add_given(p, e))
            return -1;
        if (!placed)
            buf_str(text, IMAGE_TEXT_MARK);
    }
    buf_str(text, raw);
    return text->failed ? err_memory(e, "the prompt", strlen(raw)) : pictures_end(p, e);
}
