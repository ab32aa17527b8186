/* quern show MODEL: what a name refers to, which of its files are on this machine, and which types exist. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "format/store.h"
#include "hub/cache.h"
#include "hub/hub.h"
#include "hub/listing.h"
#include "tool/facts.h"
#include "tool/tool.h"

#include <string.h>

static const struct arg_option show_options[] = {
    {"json", 0, ARG_FLAG, NULL, "one JSON object", 0, 0},
    {0},
};

struct show {
    struct hub hub;
    struct hub_name name;
    char path[PATH_MAX];
    bool here;
    struct facts facts; /* where it is here */
    uint64_t bytes;
    struct listing listing; /* of the Hub where it was asked, else of the snapshot */
    bool asked;
    struct err unasked; /* why the Hub did not reply */
};

static int show_facts(struct show *s, struct err *e)
{
    struct store *store;
    if (store_open(&store, s->path, e))
        return -1;
    int bad = facts_read(&s->facts, store, e);
    s->bytes = store->bytes;
    store_close(store);
    return bad;
}

/* The repository's files: from the Hub, else from the local snapshot. */
static int show_list(struct show *s, struct err *e)
{
    struct hub_http h = {0};
    if (s->name.kind != HUB_REPO)
        return 0;
    if (s->hub.offline)
        err_set(&s->unasked, ERR_UNREACHABLE, "offline");
    else
        s->asked =
            !http_open(&h, &s->hub, &s->unasked) && !listing_fetch(&s->listing, &h, &s->name, &s->unasked);
    http_close(&h);
    if (s->asked)
        return 0;
    listing_free(&s->listing);
    char snapshot[PATH_MAX], *commit = s->listing.commit;
    if (!cache_commit(&s->hub, s->name.repo, s->name.revision, commit))
        return s->here ? 0
                       : err_set(e, s->unasked.code, "%s is not here, and the Hub says nothing of it: %s",
                                 name_text(&s->name), s->unasked.text);
    return cache_snapshot(&s->hub, s->name.repo, commit, snapshot, e) ||
                   path_list_read(&s->listing.files, snapshot, e)
               ? -1
               : 0;
}

static const char *show_kind(const struct show *s)
{
    return s->name.kind == HUB_PATH ? "path" : s->name.kind == HUB_URL ? "address" : "repository";
}

static void show_json(struct buf *out, const struct show *s)
{
    struct json j = {.out = out};
    char quant[256];
    json_begin(&j, '{');
    json_key(&j, "kind");
    json_str(&j, show_kind(s));
    json_key(&j, "name");
    json_str(&j, s->name.kind == HUB_REPO ? s->name.repo : s->name.text);
    json_key(&j, "revision");
    json_str(&j, s->name.kind == HUB_REPO ? s->name.revision : NULL);
    json_key(&j, "commit");
    json_str(&j, *s->listing.commit ? s->listing.commit : NULL);
    json_key(&j, "here");
    json_bool(&j, s->here);
    json_key(&j, "path");
    json_str(&j, s->here ? s->path : NULL);
    json_key(&j, "bytes");
    json_uint(&j, s->bytes);
    json_key(&j, "architecture");
    json_str(&j, *s->facts.architecture ? s->facts.architecture : NULL);
    json_key(&j, "parameters");
    json_uint(&j, s->facts.parameters);
    json_key(&j, "license");
    json_str(&j, *s->facts.license ? s->facts.license : NULL);
    json_key(&j, "types");
    json_begin(&j, '[');
    for (size_t i = 0; i < s->listing.files.count; i++)
        if (pick_is_first(s->listing.files.names[i])) {
            pick_quant(s->listing.files.names[i], quant, sizeof quant);
            json_str(&j, quant);
        }
    json_end(&j, ']');
    json_key(&j, "files");
    json_begin(&j, '[');
    for (size_t i = 0; i < s->listing.files.count; i++)
        json_str(&j, s->listing.files.names[i]);
    json_end(&j, ']');
    json_end(&j, '}');
    buf_char(out, '\n');
}

static void show_text(struct buf *out, const struct show *s)
{
    char quant[256];
    const char *between = "";
    buf_printf(out, "%s\n", name_text(&s->name));
    if (s->name.kind == HUB_REPO)
        buf_printf(out, "  %-14s %s, revision %s%s%s\n", "repository", s->name.repo, s->name.revision,
                   *s->listing.commit ? ", commit " : "", s->listing.commit);
    buf_printf(out, "  %-14s ", "here");
    log_safe_add(out, s->here ? s->path : "no: 'quern pull' fetches it");
    buf_char(out, '\n');
    if (s->here) {
        buf_printf(out, "  %-14s %s, ", "model",
                   *s->facts.architecture ? log_safe(s->facts.architecture) : "not said");
        tool_scaled(out, (double)s->facts.parameters, "");
        buf_str(out, "parameters, ");
        tool_scaled(out, (double)s->bytes, "B\n");
        buf_printf(out, "  %-14s %s\n", "licence",
                   *s->facts.license ? log_safe(s->facts.license) : "not said");
    }
    bool any = false;
    for (size_t i = 0; i < s->listing.files.count; i++)
        any |= pick_is_first(s->listing.files.names[i]);
    if (any) {
        buf_printf(out, "  %-14s ", s->asked ? "types" : "types here");
        for (size_t i = 0; i < s->listing.files.count; i++)
            if (pick_is_first(s->listing.files.names[i])) {
                pick_quant(s->listing.files.names[i], quant, sizeof quant);
                buf_printf(out, "%s%s", between, log_safe(quant));
                between = ", ";
            }
        buf_char(out, '\n');
    }
}

static int show_all(struct show *s, const char *model, struct err *e)
{
    if (tool_hub(&s->hub, e) || name_read(&s->name, &s->hub, model, e))
        return -1;
    int here = hub_find(&s->hub, &s->name, s->path, e);
    s->here = here > 0;
    return here < 0 || (s->here && show_facts(s, e)) || show_list(s, e) ? -1 : 0;
}

static int show_run(const struct args *a, struct err *e)
{
    struct show s = {0};
    struct buf out = {0};
    int bad = show_all(&s, a->count ? a->words[0] : NULL, e);
    if (!bad && args_flag(a, "json"))
        show_json(&out, &s);
    else if (!bad)
        show_text(&out, &s);
    listing_free(&s.listing);
    return bad ? -1 : tool_print(&out, e);
}

const struct tool_verb tool_show = {
    .name = "show",
    .words = "[MODEL]",
    .brief = "explain a model's name: its source, its local files, the types to choose from",
    .more = "  quern show Qwen/Qwen3-8B-GGUF\n"
            "  quern show smollm2 --offline --json\n\n"
            "'quern info' describes the model itself.\n",
    .options = show_options,
    .most = 1,
    .run = show_run,
};
