/* quern stop: unloads a model, or all models, of a running server. */
#include "base/buf.h"
#include "base/log.h"
#include "tool/client.h"
#include "tool/tool.h"

enum { STOP_KEY_FILE = 1 << 20 };

static const struct arg_option stop_options[] = {
    CLIENT_OPTIONS,
    {"admin-key-file", 0, ARG_TEXT, "FILE", "the admin key of a server that has keys (or QUERN_ADMIN_KEY)", 0,
     0},
    {"json", 0, ARG_FLAG, NULL, "print one JSON object", 0, 0},
    {0},
};

static int stop_run(const struct args *a, struct err *e)
{
    struct buf out = {0}, text = {.max = STOP_KEY_FILE};
    json_t *body = a->count ? json_pack("{s:s}", "model", a->words[0]) : json_object();
    if (!body)
        return err_set(e, ERR_USAGE, "'%s' is no name of a model", log_safe(a->words[0]));
    const char *key = client_admin_key(a, &text, e);
    json_t *reply = e->code ? NULL : client_ask(a, "/models/unload", key, body, e);
    json_decref(body);
    buf_free(&text);
    if (!reply)
        return -1;
    long long count = json_integer_value(json_object_get(reply, "unloaded"));
    if (args_flag(a, "json"))
        buf_printf(&out, "{\"unloaded\":%lld}\n", count);
    else
        buf_printf(&out, "%lld unloaded\n", count);
    json_decref(reply);
    return tool_print(&out, e);
}

const struct tool_verb tool_stop = {
    .name = "stop",
    .words = "[NAME]",
    .brief = "unload a server's model, or all of them, as soon as they are idle",
    .more = "The server keeps running; SIGTERM ends it.\n",
    .options = stop_options,
    .most = 1,
    .run = stop_run,
};
