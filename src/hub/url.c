/* A GGUF by its URL, from a server that is not the Hub: kept in hub.own/urls/HASH/FILE, beside a file
 * `source` with the URL and each file's ETag, one a line. There is no checksum; the length and the ETag must
 * stay the same from the first byte to the last. */
#define _GNU_SOURCE
#include "hub/pull.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "hub/cache.h"
#include "hub/fetch.h"
#include "hub/partial_download.h"
#include "hub/sha.h"

#include <stdio.h>
#include <string.h>

int url_folder(const struct hub *h, const char *url, char out[PATH_MAX], struct err *e)
{
    struct sha s;
    char hex[SHA_HEX];
    sha_start(&s, SHA_256);
    sha_add(&s, url, strlen(url));
    sha_end(&s, hex);
    return path_make(out, e, "%s/urls/%.16s", h->own, hex);
}

/* The last word of the address's path. */
static int url_file(const char *url, char *out, size_t size, struct err *e)
{
    size_t n = strcspn(url, "?#");
    const char *slash = memrchr(url, '/', n);
    snprintf(out, size, "%.*s", slash ? (int)(url + n - slash - 1) : 0, slash ? slash + 1 : "");
    return path_is_inside(out) ? 0 : err_set(e, ERR_USAGE, "%s names no file", log_safe(url));
}

/* The address of part i of a split. */
static void url_part(const char *url, const char *first, unsigned i, char out[HTTP_URL_MOST])
{
    char name[PATH_MAX];
    size_t end = strcspn(url, "?#"), stem = end - strlen(first);
    pick_part(first, i, name, sizeof name);
    snprintf(out, HTTP_URL_MOST, "%.*s%s%s", (int)stem, url, name, url + end);
}

int url_find(const struct hub *h, const char *url, char path[PATH_MAX], struct err *e)
{
    char folder[PATH_MAX], file[256], source[PATH_MAX];
    if (url_folder(h, url, folder, e) || url_file(url, file, sizeof file, e) ||
        path_make(path, e, "%s/%s", folder, file) || path_make(source, e, "%s/source", folder))
        return -1;
    return path_is_file(path) && path_is_file(source); /* which is written when all is there */
}

struct url_source {
    const struct hub *hub;
    struct hub_http http;
    char folder[PATH_MAX];
    struct hub_progress so_far;
    struct hub_pulled *out;
    struct buf before, source; /* the file `source` as it was, and as it will be */
};

/* Whether `before` has this very line. */
static bool url_knows(const struct url_source *a, const char *line)
{
    const char *at = a->before.data ? strstr(a->before.data, line) : NULL;
    return at && (at == a->before.data || at[-1] == '\n');
}

static int url_one(struct url_source *a, const char *url, const char *file, struct err *e)
{
    struct http_reply reply;
    char path[PATH_MAX], part[PATH_MAX], line[PATH_MAX], hex[SHA_HEX];
    if (http_fetch(&a->http, url, NULL, &reply, e))
        return -1;
    uint64_t size = reply.linked_size != HTTP_UNKNOWN ? reply.linked_size : reply.length;
    if (size == HTTP_UNKNOWN)
        return err_set(e, ERR_UNREACHABLE, "%s: the server does not say how long the file is", log_safe(url));
    struct sha s;
    sha_start(&s, SHA_256);
    sha_add(&s, reply.etag, strlen(reply.etag));
    sha_end(&s, hex);
    if (path_make(path, e, "%s/%s", a->folder, file) || path_make(part, e, "%s.%.8s.quern-part", path, hex) ||
        path_make(line, e, "%s %llu %s\n", file, (unsigned long long)size, reply.etag))
        return -1;
    buf_str(&a->source, line);
    a->out->bytes += size;
    a->out->files++;
    if (url_knows(a, line) && path_bytes(path) == size)
        return 0;
    if (pull_space(a->folder, partial_missing(part, size), e))
        return -1;
    bool hashed = strlen(reply.linked_etag) == SHA_HEX - 1;
    struct fetch f = {.url = url,
                      .file = file,
                      .part = part,
                      .path = path,
                      .size = size,
                      .so_far = &a->so_far,
                      .etag = hashed ? "" : reply.etag,
                      .checksum = hashed ? reply.linked_etag : ""};
    a->so_far.file = file;
    a->so_far.total += size;
    int bad = fetch_file(&a->http, &f, e);
    a->out->fetched += f.fetched;
    return bad;
}

static int url_all(struct url_source *a, const char *url, struct err *e)
{
    char first[256], source[PATH_MAX], name[PATH_MAX], part[HTTP_URL_MOST];
    struct err ignored = {0};
    if (url_file(url, first, sizeof first, e) || path_make(source, e, "%s/source", a->folder) ||
        path_make_folders(source, e))
        return -1;
    if (path_is_file(source))
        file_read(source, &a->before, &ignored);
    buf_printf(&a->source, "%s\n", url);
    unsigned parts = pick_parts(first);
    if (parts == 1 && url_one(a, url, first, e))
        return -1;
    for (unsigned i = 1; parts > 1 && i <= parts; i++) {
        pick_part(first, i, name, sizeof name);
        url_part(url, first, i, part);
        if (url_one(a, part, name, e))
            return -1;
    }
    if (path_make(a->out->path, e, "%s/%s", a->folder, first))
        return -1;
    return a->source.failed ? err_memory(e, "a note", a->source.len)
                            : path_write(source, a->source.data, a->source.len, e);
}

int url_pull(const struct hub *h, const char *url, struct hub_pulled *out, struct err *e)
{
    struct url_source a = {.hub = h, .out = out, .before.max = 1 << 20, .source.max = 1 << 20};
    char lock_path[PATH_MAX];
    if (url_folder(h, url, a.folder, e) || path_make(lock_path, e, "%s/lock", a.folder) ||
        http_open(&a.http, h, e))
        return -1;
    int lock = cache_lock(lock_path, url, e);
    int bad = lock < 0 || url_all(&a, url, e);
    cache_unlock(lock);
    http_close(&a.http);
    buf_free(&a.before);
    buf_free(&a.source);
    return bad ? -1 : 0;
}
