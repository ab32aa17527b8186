#include "hub/search.h"

#include "base/buf.h"
#include "format/jsonread.h"
#include "hub/http.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const struct jsonread_limits search_limits = {.text = 4 << 20, .memory = 16 << 20, .depth = 16};

/* The rows that are what they should be. Takes the answer over. */
static json_t *search_rows(json_t *all, struct err *e)
{
    json_t *out = json_array(), *one;
    size_t i;
    if (!json_is_array(all))
        err_set(e, ERR_UNREACHABLE, "the Hub's answer to a search is no list");
    json_array_foreach(all, i, one)
    {
        const char *id = json_string_value(json_object_get(one, "id"));
        if (id && name_is_repo(id) && json_array_size(out) < SEARCH_MOST)
            json_array_append_new(out, json_pack("{s:s,s:I,s:I}", "id", id, "downloads",
                                                 json_integer_value(json_object_get(one, "downloads")),
                                                 "likes", json_integer_value(json_object_get(one, "likes"))));
    }
    json_decref(all);
    if (!e->code)
        return out;
    json_decref(out);
    return NULL;
}

json_t *search_hub(const struct hub *h, const char *word, struct err *e)
{
    struct hub_http http;
    struct http_reply reply;
    struct buf url = {0}, text = {.max = search_limits.text};
    json_t *all = NULL;
    buf_printf(&url, "%s/api/models?filter=gguf&sort=downloads&direction=-1&limit=%d&search=", h->endpoint,
               SEARCH_MOST);
    for (const char *p = word; *p; p++)
        buf_printf(&url, isalnum((unsigned char)*p) || strchr("-._~", *p) ? "%c" : "%%%02X",
                   (unsigned char)*p);
    if (url.failed || url.len >= HTTP_URL_MOST)
        err_set(e, ERR_USAGE, "the word to search for is too long");
    else if (!http_open(&http, h, e)) {
        if (!http_fetch(&http, url.data, &text, &reply, e))
            all = jsonread_value(text.data ? text.data : "", text.len, &search_limits, "the Hub's answer", e);
        http_close(&http);
    }
    buf_free(&url);
    buf_free(&text);
    return all ? search_rows(all, e) : NULL;
}
