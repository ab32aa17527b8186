/* quern search [WORD]: models by name, in the catalogue, in the user's own file, and on the Hub. */
#define _GNU_SOURCE
#include "hub/search.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "hub/catalogue.h"
#include "hub/path.h"
#include "hub/preset.h"
#include "tool/tool.h"

#include <string.h>

static const struct arg_option search_options[] = {
    {"json", 0, ARG_FLAG, NULL, "one JSON array: name, model, source, date, downloads", 0, 0},
    {"sources", 0, ARG_FLAG, NULL, "print the pages that name the repositories", 0, 0},
    {0},
};

static void search_own(json_t *rows, const struct hub *h, const char *word, struct err *e)
{
    json_t *all = name_file(h, e), *v;
    const char *name;
    json_object_foreach(all, name, v)
    {
        const json_t *from = json_is_object(v) ? json_object_get(v, "from") : v;
        const char *to = json_is_string(from) ? json_string_value(from) : "";
        if (!word || strcasestr(name, word) || strcasestr(to, word))
            json_array_append_new(rows,
                                  json_pack("{s:s,s:s,s:s}", "name", name, "model", to, "source", h->config));
    }
    json_decref(all);
}

static void search_catalogue(json_t *rows, const char *word)
{
    const struct catalogue_row *r;
    for (int i = 0; (r = catalogue_row(i)); i++) {
        char model[512];
        snprintf(model, sizeof model, "%s%s%s", r->repo, *r->quant ? ":" : "", r->quant);
        if (!word || strcasestr(r->name, word) || strcasestr(r->repo, word))
            json_array_append_new(rows, json_pack("{s:s,s:s,s:s,s:s}", "name", r->name, "model", model,
                                                  "source", r->source, "date", r->date));
    }
}

/* The network is not needed for the rest: its failure is a warning. */
static void search_online(json_t *rows, const struct hub *h, const char *word)
{
    struct err e = {0};
    json_t *found = h->offline || !word ? NULL : search_hub(h, word, &e), *one;
    size_t i;
    if (e.code)
        log_warn("the Hub was not searched: %s", e.text);
    json_array_foreach(found, i, one)
        json_array_append_new(rows, json_pack("{s:O,s:O,s:s,s:O}", "name", json_object_get(one, "id"),
                                              "model", json_object_get(one, "id"), "source", h->endpoint,
                                              "downloads", json_object_get(one, "downloads")));
    json_decref(found);
}

static void search_text(struct buf *out, const json_t *rows, bool sources)
{
    const json_t *r;
    size_t i;
    json_array_foreach(rows, i, r)
    {
        const char *name = json_string_value(json_object_get(r, "name")),
                   *model = json_string_value(json_object_get(r, "model"));
        const json_t *downloads = json_object_get(r, "downloads");
        buf_printf(out, "%-24s %s", log_safe(name), downloads ? "" : log_safe(model));
        if (downloads)
            buf_printf(out, "%lld downloads", (long long)json_integer_value(downloads));
        if (sources)
            buf_printf(out, "  %s", log_safe(json_string_value(json_object_get(r, "source"))));
        buf_char(out, '\n');
    }
}

static int search_run(const struct args *a, struct err *e)
{
    struct hub h;
    struct buf out = {0};
    const char *word = a->count ? a->words[0] : NULL;
    json_t *rows = json_array();
    if (tool_hub(&h, e))
        return -1;
    search_own(rows, &h, word, e);
    search_catalogue(rows, word);
    search_online(rows, &h, word);
    if (args_flag(a, "json")) {
        char *text = json_dumps(rows, JSON_COMPACT);
        buf_str(&out, text ? text : "[]");
        buf_char(&out, '\n');
        mem_free(text);
    } else
        search_text(&out, rows, args_flag(a, "sources"));
    if (!json_array_size(rows) && !e->code)
        err_set(e, ERR_DATA, "no model is called like '%s'", log_safe(word ? word : ""));
    json_decref(rows);
    return tool_print(&out, e) || e->code ? -1 : 0;
}

const struct tool_verb tool_search = {
    .name = "search",
    .words = "[WORD]",
    .brief = "find models by name: the catalogue, your own names, the Hub",
    .more = "Without WORD all names of the catalogue. Every row has a page that names its repository "
            "(--sources).\n"
            "  quern search qwen3\n"
            "  quern search --offline\n",
    .options = search_options,
    .most = 1,
    .run = search_run,
};
