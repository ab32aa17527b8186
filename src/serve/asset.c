/* Files that are bytes of this program: the pages, and the description of all routes. Texts are compressed; a client that
 * does not accept that gets them inflated. */
#include "serve/asset.h"
#include "base/buf.h"
#include "serve/conn.h"
#include "serve/http.h"
#include "serve/page.h"
#include "serve/server.h"
#include "serve/server_internal.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#define ASSET(n, path, type, file)                                                                           \
    __asm__(".section .rodata\nasset_" #n ":\n.incbin \"" file "\"\nasset_" #n                               \
            "_end:\n.byte 0\n.previous\n");                                                                  \
    extern const unsigned char asset_##n[], asset_##n##_end[];
#include QUERN_ASSETS /* written by cmake/page.cmake */
#undef ASSET

#define ASSET(n, path, type, file) {path, type, asset_##n, asset_##n##_end},
static const struct asset {
    const char *path, *type;
    const unsigned char *data, *end;
} assets[] = {
#include QUERN_ASSETS
};
#undef ASSET

enum { ASSET_TAIL = 8, ASSET_GZIP = 16 + MAX_WBITS }; /* of a gzip file: checksum and length */

static bool asset_is_packed(const struct asset *a)
{
    return strncmp(a->type, "font/", 5) != 0;
}

static void asset_inflate(const struct asset *a, struct buf *out)
{
    unsigned char part[16384];
    z_stream z = {.next_in = (unsigned char *)a->data, .avail_in = (uInt)(a->end - a->data)};
    int state = inflateInit2(&z, ASSET_GZIP);
    bool begun = state == Z_OK;
    while (state == Z_OK) {
        z.next_out = part;
        z.avail_out = sizeof part;
        state = inflate(&z, Z_NO_FLUSH);
        buf_add(out, part, sizeof part - z.avail_out);
    }
    if (begun)
        inflateEnd(&z);
    out->failed |= state != Z_STREAM_END;
}

/* What a page may load and reach: this server, and the MCP servers of --mcp. */
static void asset_policy(const struct server *s, struct buf *out)
{
    buf_str(
        out,
        "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
        "worker-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; connect-src 'self'");
    for (size_t i = 0; i < s->o->mcp_count; i++)
        buf_printf(out, " %s", s->o->mcp[i].origin);
    buf_str(out, "\r\nReferrer-Policy: no-referrer\r\n");
}

/* The bytes decide: a page that a browser has is not sent again, and never stays when the program is another one. */
static void asset_send(struct conn *c, const struct asset *a)
{
    char tag[2 * ASSET_TAIL + 3] = "\"";
    const char *accept = http_field(&c->http, "accept-encoding"),
               *known = http_field(&c->http, "if-none-match");
    bool packed = asset_is_packed(a), as_it_is = !packed || (accept && strstr(accept, "gzip"));
    struct buf head = {0}, body = {0};
    for (int i = 0; i < ASSET_TAIL; i++)
        snprintf(tag + 1 + 2 * i, 4, "%02x\"", a->end[i - ASSET_TAIL]);
    buf_printf(&head, "Cache-Control: no-cache\r\nETag: %s\r\n", tag);
    if (!strncmp(a->type, "text/html", 9))
        asset_policy(c->server, &head);
    if (packed)
        buf_str(&head, as_it_is ? "Vary: Accept-Encoding\r\nContent-Encoding: gzip\r\n"
                                : "Vary: Accept-Encoding\r\n");
    bool same = known && strstr(known, tag);
    if (same)
        ;
    else if (as_it_is)
        buf_add(&body, a->data, (size_t)(a->end - a->data));
    else
        asset_inflate(a, &body);
    c->headers = head.failed ? NULL : head.data;
    conn_reply(c, same ? 304 : 200, a->type, &body);
    buf_free(&head);
    buf_free(&body);
}

void asset_show(struct conn *c)
{
    const char *path = http_target(&c->http);
    size_t n = strcspn(path, "?");
    for (size_t i = 0; i < sizeof assets / sizeof *assets; i++)
        if (strlen(assets[i].path) == n && !strncmp(path, assets[i].path, n)) {
            asset_send(c, &assets[i]);
            return;
        }
    conn_failf(c, 404, NULL, "there is no such file; the pages are / and /status");
}
