/* quern pull MODEL…: downloads models, or the files that have changed. */
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "hub/hub.h"
#include "tool/tool.h"

#include <string.h>

static const struct arg_option pull_options[] = {
    {"connections", 0, ARG_INT, "N", "ranges of a file at once (default: 8)", 1, 64},
    {"retries", 0, ARG_INT, "N", "attempts without a new byte before giving up (default: 5)", 0, 1000},
    {"json", 0, ARG_FLAG, NULL, "one JSON array: path, commit, bytes, fetched, files of each", 0, 0},
    {0},
};

static void pull_text(struct buf *out, const struct hub_name *n, const struct hub_pulled *p)
{
    buf_printf(out, "%s: ", name_text(n));
    if (p->fetched) {
        tool_scaled(out, (double)p->fetched, "B fetched, ");
    }
    tool_scaled(out, (double)p->bytes, "B");
    buf_printf(out, "%s in ", p->fetched ? "" : ", all here already,");
    log_safe_add(out, p->path);
    buf_char(out, '\n');
}

static void pull_json(struct json *j, const char *model, const struct hub_pulled *p)
{
    json_begin(j, '{');
    json_key(j, "model");
    json_str(j, model);
    json_key(j, "path");
    json_str(j, p->path);
    json_key(j, "commit");
    json_str(j, *p->commit ? p->commit : NULL);
    json_key(j, "files");
    json_int(j, p->files);
    json_key(j, "bytes");
    json_uint(j, p->bytes);
    json_key(j, "fetched");
    json_uint(j, p->fetched);
    json_end(j, '}');
}

/* A built-in name's own file is all that there is to have. */
static int pull_one(struct hub *h, const struct hub_name *n, struct hub_pulled *p, struct err *e)
{
    *p = (struct hub_pulled){.files = 1};
    int here = *n->text && n->kind == HUB_REPO ? hub_find(h, n, p->path, e) : 0;
    if (here > 0 && !strcmp(p->path, n->text))
        return 0;
    return here < 0 ? -1 : tool_fetch(h, n, p, e);
}

static int pull_run(const struct args *a, struct err *e)
{
    struct hub h;
    struct buf out = {0};
    struct json j = {.out = &out};
    bool json = args_flag(a, "json");
    if (tool_hub(&h, e))
        return -1;
    h.connections = (int)args_int(a, "connections", h.connections);
    h.retries = (int)args_int(a, "retries", h.retries);
    if (json)
        json_begin(&j, '[');
    for (int i = 0; i < a->count; i++) {
        struct hub_name n;
        struct hub_pulled p;
        if (name_read(&n, &h, a->words[i], e) || pull_one(&h, &n, &p, e)) {
            buf_free(&out);
            return -1;
        }
        if (json)
            pull_json(&j, a->words[i], &p);
        else
            pull_text(&out, &n, &p);
    }
    if (json) {
        json_end(&j, ']');
        buf_char(&out, '\n');
    }
    return tool_print(&out, e);
}

const struct tool_verb tool_pull = {
    .name = "pull",
    .words = "MODEL...",
    .brief = "download or update a model, from the Hub or by its URL",
    .more = "  quern pull Qwen/Qwen3-8B-GGUF            the Q4_K_M, else the first\n"
            "  quern pull Qwen/Qwen3-8B-GGUF:Q8_0\n"
            "  quern pull Qwen/Qwen3-0.6B@main          safetensors, where there is no GGUF\n"
            "  quern pull https://example.org/model.gguf\n\n"
            "Files go to the Hub's own cache (HF_HOME, HF_HUB_CACHE), which other tools share.\n"
            "HF_ENDPOINT names another Hub; HF_TOKEN, or the file that its login writes, gives access to "
            "private\n"
            "models. The same command resumes an interrupted download. Aliases for models are in\n"
            "~/.config/quern/models.json: {\"name\": \"USER/REPO:QUANT\"}.\n",
    .options = pull_options,
    .least = 1,
    .most = 1024,
    .run = pull_run,
};
