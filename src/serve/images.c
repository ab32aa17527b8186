#define _GNU_SOURCE
#include "serve/images.h"

#include "base/base64.h"
#include "base/log.h"
#include "base/mem.h"
#include "hub/url_fetcher.h"
#include "media/decoder.h"
#include "run/session.h"
#include "serve/field.h"
#include "serve/limit.h"
#include "serve/request.h"
#include "serve/server_internal.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- bytes ---- */

static int image_base64(struct request *a, struct buf *out, const char *text, size_t n, const char *where)
{
    uint64_t most = limit_of(LIMIT_IMAGE_BYTES);
    if (n / 4 * 3 > most + 3)
        return request_fail(a, 400, where,
                            "%s: the image has about %zu bytes; at most %llu are read (limit image-bytes)",
                            where, n / 4 * 3, (unsigned long long)most);
    if (base64_read_loose(out, text, n))
        return 0;
    return out->failed ? request_fail(a, 503, NULL, "out of memory")
                       : request_fail(a, 400, where, "%s: the image is not valid base64", where);
}

/* "data:image/png;base64,..." */
static int image_data(struct request *a, struct buf *out, const char *url, size_t n, const char *where)
{
    static const char base64[] = ";base64";
    const char *comma = memchr(url, ',', n);
    size_t head = comma ? (size_t)(comma - url) : 0;
    if (!comma || head < sizeof base64 - 1 ||
        strncasecmp(comma - (sizeof base64 - 1), base64, sizeof base64 - 1) != 0)
        return request_fail(a, 400, where, "%s: a data: URL of an image has to be data:image/...;base64,...",
                            where);
    return image_base64(a, out, comma + 1, n - head - 1, where);
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
    if (!is_url && strncasecmp(s, "data:", 5) != 0)
        return image_base64(a, out, s, n, where);
    if (!strncasecmp(s, "data:", 5))
        return image_data(a, out, s, n, where);
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

bool part_is_image(const json_t *part)
{
    static const char *const types[] = {"image_url", "input_image", "image"};
    const char *type = field_text(part, "type");
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (!strcmp(type, types[i]))
            return true;
    return false;
}

/* The text of a part: {"image_url": {"url": text}}, {"image_url": text}, or {"data": text}. */
static const json_t *part_image_text(const json_t *part, bool *is_url)
{
    const json_t *url = json_object_get(part, "image_url"), *data = json_object_get(part, "data");
    *is_url = url != NULL;
    url = json_is_object(url) ? json_object_get(url, "url") : url;
    const json_t *text = *is_url ? url : data;
    return json_is_string(text) ? text : NULL;
}

int part_check_image(struct request *a, const json_t *part, const char *where)
{
    bool is_url;
    if (!a->model->session->vision)
        return request_fail(a, 400, where, "%s is of type '%s'; this model reads only text", where,
                            log_safe(field_text(part, "type")));
    return part_image_text(part, &is_url)
               ? 0
               : request_fail(a, 400, where, "%s has to have an image_url with a url", where);
}

/* The parts of one message; NULL and a failure. */
static json_t *parts_read(struct request *a, const json_t *parts, size_t at, struct request_images *to)
{
    json_t *out = json_array(), *part;
    char where[FAILURE_PARAM];
    bool is_url = false;
    size_t i;
    int failed = !out;
    json_array_foreach((json_t *)(uintptr_t)parts, i, part)
    {
        snprintf(where, sizeof where, "messages[%zu].content[%zu]", at, i);
        bool image = part_is_image(part);
        const json_t *text = image ? part_image_text(part, &is_url) : NULL;
        failed = failed || (image && to && request_image_add(a, to, text, is_url, where)) ||
                 json_array_append_new(out, image ? json_pack("{s:s}", "type", "image") : json_incref(part));
    }
    if (!failed)
        return out;
    json_decref(out);
    request_fail(a, 503, NULL, "out of memory");
    return NULL;
}

json_t *request_images_read(struct request *a, const json_t *messages, struct request_images *to)
{
    json_t *out = json_array(), *message, *part;
    size_t i, k;
    int failed = !out;
    json_array_foreach((json_t *)(uintptr_t)messages, i, message)
    {
        const json_t *content = json_object_get(message, "content");
        bool has = false;
        json_array_foreach((json_t *)(uintptr_t)content, k, part) has |= part_is_image(part);
        json_t *own = has ? json_copy(message) : json_incref(message);
        failed = failed || !own ||
                 (has && json_object_set_new(own, "content", parts_read(a, content, i, to))) ||
                 json_array_append(out, own);
        json_decref(own);
        if (failed)
            break;
    }
    if (!failed)
        return out;
    json_decref(out);
    request_fail(a, 503, NULL, "out of memory");
    return NULL;
}
