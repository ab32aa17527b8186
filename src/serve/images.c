#define _GNU_SOURCE
#include "serve/images.h"

#include "base/log.h"
#include "base/mem.h"
#include "hub/url_fetcher.h"
#include "media/decoder.h"
#include "run/image_parts.h"
#include "run/session.h"
#include "serve/field.h"
#include "serve/limit.h"
#include "serve/request.h"
#include "serve/server_internal.h"

#include <string.h>
#include <strings.h>

/* ---- bytes ---- */

/* Of base64, or of a data: URL. */
static int image_base64(struct request *a, struct buf *out, const char *text, size_t n, const char *where)
{
    uint64_t most = limit_of(LIMIT_IMAGE_BYTES);
    struct err e = {0};
    if (n / 4 * 3 > most + 3)
        return request_fail(a, 400, where,
                            "%s: the image has about %zu bytes; at most %llu are read (limit image-bytes)",
                            where, n / 4 * 3, (unsigned long long)most);
    if (!image_part_bytes(out, text, n, &e))
        return 0;
    return e.code == ERR_RESOURCE ? request_fail(a, 503, NULL, "out of memory")
                                  : request_fail(a, 400, where, "%s: %s", where, e.text);
}

static int image_fetch(struct request *a, struct buf *out, const char *url, const char *where)
{
    struct url_fetcher *fetcher = a->server->o->fetcher;
    struct err e = {0};
    if (!fetcher)
        return request_fail(
            a, 400, where,
            "%s: this server fetches no images; send a data: URL with the image in base64 (or start it with "
            "--image-urls)",
            where);
    const struct url_limits most = {limit_of(LIMIT_IMAGE_BYTES), (uint32_t)limit_of(LIMIT_IMAGE_SECONDS)};
    if (!url_fetch(fetcher, url, &most, out, &e))
        return 0;
    return request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, where, "%s: %s", where, e.text);
}

static int image_bytes(struct request *a, struct buf *out, const json_t *text, bool is_url, const char *where)
{
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    if (!is_url || !strncasecmp(s, "data:", 5))
        return image_base64(a, out, s, n, where);
    if (strncasecmp(s, "http://", 7) != 0 && strncasecmp(s, "https://", 8) != 0)
        return request_fail(a, 400, where, "%s: an image has to be a data: URL", where);
    return image_fetch(a, out, s, where);
}

/* ---- pictures ---- */

static int image_pixels(struct request *a, struct image *out, const struct buf *bytes, struct err *e)
{
    const struct image_limits most = {limit_of(LIMIT_IMAGE_BYTES), limit_of(LIMIT_IMAGE_PIXELS),
                                      (uint32_t)limit_of(LIMIT_IMAGE_SECONDS)};
    struct decoder *d = a->server->o->decoder;
    const char *data = bytes->data ? bytes->data : "";
    return d ? decoder_run(d, out, data, bytes->len, &most, e)
             : image_decode(out, data, bytes->len, &most, e);
}

/* Before an image is prepared: whether its tokens fit into the context, with those of the images before it, and
 * whether there is memory for it. */
static int image_fits(struct request *a, const struct request_images *to, const struct image *image,
                      const char *where)
{
    const struct session *l = a->model->session;
    struct vision_layout layout;
    struct err e = {0};
    uint64_t rows = 0;
    if (vision_layout(&layout, l->vision, image->width, image->height, &e))
        return request_fail(a, 400, where, "%s: %s", where, e.text);
    for (uint32_t i = 0; i < to->count; i++)
        rows += to->pictures[i]->rows;
    if (rows + layout.rows >= l->runner->ctx) {
        failure_set(&a->failure, 400, "context_length_exceeded", where,
                    "This model's maximum context length is %u tokens; the images have %llu. Send fewer or "
                    "smaller ones.",
                    l->runner->ctx, (unsigned long long)(rows + layout.rows));
        return -1;
    }
    size_t bytes = (size_t)12 * layout.tiles * layout.width * layout.height;
    if (bytes > limit_of(LIMIT_BODIES))
        return request_fail(a, 413, where, "%s: the image needs %zu MiB; this server has %llu (limit bodies)",
                            where, bytes >> 20, (unsigned long long)limit_of(LIMIT_BODIES) >> 20);
    return server_charge(a->server, &a->charged, a->charged + bytes)
               ? 0
               : request_fail(a, 503, NULL, "too many large requests at once");
}

int request_image_add(struct request *a, struct request_images *to, const json_t *text, bool is_url,
                      const char *where)
{
    struct buf bytes = {0};
    struct image image = {0};
    struct err e = {0};
    if (to->count >= limit_of(LIMIT_IMAGES))
        return request_fail(a, 400, where, "the request has more than %llu images (limit images)",
                            (unsigned long long)limit_of(LIMIT_IMAGES));
    struct picture **grown = mem_more(to->pictures, to->count, &to->room, sizeof(struct picture *));
    if (!grown)
        return request_fail(a, 503, NULL, "out of memory");
    to->pictures = grown;
    if (image_bytes(a, &bytes, text, is_url, where)) {
        buf_free(&bytes);
        return -1;
    }
    int failed = image_pixels(a, &image, &bytes, &e);
    buf_free(&bytes);
    failed = failed || image_fits(a, to, &image, where) ||
             picture_make(&to->pictures[to->count], a->model->session->vision, &image, &e);
    image_free(&image);
    if (a->failure.status)
        return -1;
    if (failed)
        return request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, where, "%s: %s", where, e.text);
    to->count++;
    return 0;
}

int request_image_places(struct request *a, struct request_images *to)
{
    to->places = to->count ? mem_zalloc(to->count, sizeof *to->places) : NULL;
    return to->count && !to->places ? request_fail(a, 503, NULL, "out of memory") : 0;
}

void request_images_free(struct request_images *i)
{
    for (uint32_t k = 0; k < i->count; k++)
        picture_drop(i->pictures[k]);
    mem_free(i->pictures);
    mem_free(i->places);
    *i = (struct request_images){0};
}

/* ---- parts of messages ---- */

const char *request_reads(const struct request *a, const char *type)
{
    if (!a->model->session->vision)
        return "this model reads only text";
    return type && strstr(type, "image") ? "an image can stand only in the messages of users and tools"
                                         : "this model reads only text and images";
}

int part_check_image(struct request *a, const json_t *part, const char *where)
{
    const char *type = field_text(part, "type");
    bool is_url;
    if (!a->model->session->vision)
        return request_fail(a, 400, where, "%s is of type '%s'; %s", where, log_safe(type),
                            request_reads(a, type));
    return image_part_text(part, &is_url)
               ? 0
               : request_fail(a, 400, where, "%s has to have an image_url with a url", where);
}

struct part_reader {
    struct request *request;
    struct request_images *to;
};

static int part_read(void *arg, const json_t *part, const char *where)
{
    const struct part_reader *r = arg;
    bool is_url;
    const json_t *text = image_part_text(part, &is_url);
    return request_image_add(r->request, r->to, text, is_url, where);
}

json_t *request_images_read(struct request *a, const json_t *messages, struct request_images *to)
{
    struct part_reader r = {a, to};
    json_t *out = image_parts_read(messages, to ? part_read : NULL, &r);
    if (!out)
        request_fail(a, 503, NULL, "out of memory"); /* unless it has failed before */
    return out;
}
