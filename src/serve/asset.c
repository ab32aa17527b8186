/* Files that are bytes of this program: the pages, and the description of all routes. */
#include "serve/asset.h"
#include "base/buf.h"
#include "serve/conn.h"
#include "serve/http.h"

#include <string.h>

#define ASSET(name, file)                                                                                    \
    __asm__(".section .rodata\nasset_" #name ":\n.incbin \"" QUERN_SOURCE "/" file "\"\nasset_" #name        \
            "_end:\n.byte 0\n.previous\n");                                                                  \
    extern const char asset_##name[], asset_##name##_end[];

ASSET(openapi, "doc/openapi.json")
ASSET(chat_html, "src/serve/page/chat.html")
ASSET(chat_js, "src/serve/page/chat.js")
ASSET(images_js, "src/serve/page/images.js")
ASSET(markdown_js, "src/serve/page/markdown.js")
ASSET(status_html, "src/serve/page/status.html")
ASSET(status_js, "src/serve/page/status.js")
ASSET(style_css, "src/serve/page/style.css")
ASSET(theme_js, "src/serve/page/theme.js")

static const struct asset {
    const char *path, *type, *data, *end;
} assets[] = {
    {"/", "text/html; charset=utf-8", asset_chat_html, asset_chat_html_end},
    {"/status", "text/html; charset=utf-8", asset_status_html, asset_status_html_end},
    {"/page/chat.js", "text/javascript", asset_chat_js, asset_chat_js_end},
    {"/page/images.js", "text/javascript", asset_images_js, asset_images_js_end},
    {"/page/markdown.js", "text/javascript", asset_markdown_js, asset_markdown_js_end},
    {"/page/status.js", "text/javascript", asset_status_js, asset_status_js_end},
    {"/page/style.css", "text/css", asset_style_css, asset_style_css_end},
    {"/page/theme.js", "text/javascript", asset_theme_js, asset_theme_js_end},
    {"/openapi.json", "application/json", asset_openapi, asset_openapi_end},
};

void asset_show(struct conn *c)
{
    const char *path = http_target(&c->http);
    size_t n = strcspn(path, "?");
    for (size_t i = 0; i < sizeof assets / sizeof *assets; i++)
        if (strlen(assets[i].path) == n && !strncmp(path, assets[i].path, n)) {
            struct buf out = {0};
            buf_add(&out, assets[i].data, (size_t)(assets[i].end - assets[i].data));
            conn_reply(c, 200, assets[i].type, &out);
            buf_free(&out);
            return;
        }
    conn_failf(c, 404, NULL, "there is no such file; the pages are / and /status");
}
