#include "hub/listing.h"

#include "base/buf.h"
#include "format/jsonread.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const struct jsonread_limits listing_limits = {.text = 16 << 20, .memory = 64 << 20, .depth = 16};

/* URL-encodes: everything but letters, digits and a few marks as %XX; slashes stay on request. */
static void listing_escape(struct buf *out, const char *s, bool slashes)
{
    for (; *s; s++)
        if (isalnum((unsigned char)*s) || strchr("-._~", *s) || (slashes && *s == '/'))
            buf_char(out, *s);
        else
            buf_printf(out, "%%%02X", (unsigned char)*s);
}

static int listing_address(struct buf *b, char out[HTTP_URL_MOST], struct err *e)
{
    bool fits = !b->failed && b->len < HTTP_URL_MOST;
    snprintf(out, HTTP_URL_MOST, "%s", fits ? b->data : "");
    buf_free(b);
    return fits ? 0 : err_set(e, ERR_USAGE, "an address of the Hub becomes too long");
}

int listing_url(const struct hub *h, const char *repo, const char *commit, const char *file,
                char out[HTTP_URL_MOST], struct err *e)
{
    struct buf b = {0};
    buf_printf(&b, "%s/%s/resolve/", h->endpoint, repo);
    listing_escape(&b, commit, false);
    buf_char(&b, '/');
    listing_escape(&b, file, true);
    return listing_address(&b, out, e);
}

int listing_read(struct listing *l, const char *text, size_t n, struct err *e)
{
    json_t *all = jsonread_object(text, n, &listing_limits, "the Hub's answer", e), *one;
    if (!all)
        return -1;
    const char *commit = json_string_value(json_object_get(all, "sha"));
    const json_t *files = json_object_get(all, "siblings");
    int bad = 0;
    size_t i;
    if (!commit || strlen(commit) >= sizeof l->commit || !path_is_inside(commit) || strchr(commit, '/') ||
        !json_is_array(files))
        bad = err_set(e, ERR_UNREACHABLE, "the Hub's answer names no commit (sha) or no files (siblings)");
    else
        snprintf(l->commit, sizeof l->commit, "%s", commit);
    json_array_foreach((json_t *)(uintptr_t)files, i, one)
    {
        const char *name = json_string_value(json_object_get(one, "rfilename"));
        if (!bad && name && path_is_inside(name)) /* others cannot be a file of ours, so are none */
            bad = path_list_add(&l->files, name, strlen(name), e);
    }
    json_decref(all);
    path_list_sort(&l->files);
    return bad;
}

int listing_fetch(struct listing *l, struct hub_http *h, const struct hub_name *n, struct err *e)
{
    char url[HTTP_URL_MOST];
    struct http_reply reply;
    struct buf b = {0}, text = {.max = listing_limits.text};
    *l = (struct listing){0};
    buf_printf(&b, "%s/api/models/%s/revision/", h->hub->endpoint, n->repo);
    listing_escape(&b, n->revision, false);
    int bad = listing_address(&b, url, e) || http_fetch(h, url, &text, &reply, e) ||
              listing_read(l, text.data ? text.data : "", text.len, e);
    buf_free(&text);
    return bad ? -1 : 0;
}

void listing_free(struct listing *l)
{
    path_list_free(&l->files);
}
