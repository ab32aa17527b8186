/* quern ps: the models that a running server has in memory. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/log.h"
#include "tool/client.h"
#include "tool/tool.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const struct arg_option ps_options[] = {
    CLIENT_OPTIONS,
    {"json", 0, ARG_FLAG, NULL, "print one JSON array", 0, 0},
    {0},
};

/* "2026-11-15T07:14:32.58Z" to "in 4 min". */
static void ps_until(char *out, size_t size, const char *text)
{
    struct tm tm = {0};
    if (!text || !strptime(text, "%Y-%m-%dT%H:%M:%S", &tm)) {
        snprintf(out, size, "-");
        return;
    }
    double left = difftime(timegm(&tm), time(NULL));
    if (left > 50.0 * 365 * 86400)
        snprintf(out, size, "for ever");
    else if (left >= 5400)
        snprintf(out, size, "%.1f h", left / 3600);
    else if (left >= 90)
        snprintf(out, size, "%.0f min", left / 60);
    else
        snprintf(out, size, "%.0f s", left > 0 ? left : 0);
}

static const char *ps_text(const json_t *m, const char *name)
{
    const char *text = json_string_value(json_object_get(m, name));
    return text ? log_safe(text) : "-";
}

/* Where its memory is, as Ollama's client says it. */
static void ps_processor(char *out, size_t size, const json_t *m)
{
    double all = json_number_value(json_object_get(m, "size")),
           card = json_number_value(json_object_get(m, "size_vram"));
    int share = all > 0 ? (int)(100 * card / all + 0.5) : 0;
    if (share > 0 && share < 100)
        snprintf(out, size, "%d%%/%d%% CPU/GPU", 100 - share, share);
    else
        snprintf(out, size, "100%% %s", share ? "GPU" : "CPU");
}

static void ps_table(struct buf *out, const json_t *models)
{
    size_t i, width = 4;
    const json_t *m;
    json_array_foreach((json_t *)models, i, m)
    {
        size_t n = strlen(ps_text(m, "name"));
        width = n > width ? n : width;
    }
    buf_printf(out, "%-*s  %-12s  %9s  %-15s  %7s  %-8s  %-7s  %s\n", (int)width, "NAME", "ID", "SIZE",
               "PROCESSOR", "CONTEXT", "UNTIL", "KIND", "DEVICE");
    json_array_foreach((json_t *)models, i, m)
    {
        char until[64], processor[64];
        ps_processor(processor, sizeof processor, m);
        ps_until(until, sizeof until, json_string_value(json_object_get(m, "expires_at")));
        buf_printf(out, "%-*s  %-12.12s  %6.2f GB  %-15s  %7lld  %-8s  %-7s  %s\n", (int)width,
                   ps_text(m, "name"), ps_text(m, "digest"),
                   1e-9 * json_number_value(json_object_get(m, "size")), processor,
                   (long long)json_integer_value(json_object_get(m, "context_length")), until,
                   ps_text(m, "kind"), ps_text(m, "device"));
    }
}

static int ps_run(const struct args *a, struct err *e)
{
    struct buf out = {0};
    json_t *reply = client_ask(a, "/api/ps", NULL, NULL, e);
    const json_t *models = json_object_get(reply, "models");
    if (!reply)
        return -1;
    if (args_flag(a, "json")) {
        size_t n = json_dumpb(models, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
        char *to = buf_reserve(&out, n);
        if (to)
            out.len += json_dumpb(models, to, n, JSON_COMPACT | JSON_ENCODE_ANY);
        buf_char(&out, '\n');
    } else
        ps_table(&out, models);
    json_decref(reply);
    return tool_print(&out, e);
}

const struct tool_verb tool_ps = {
    .name = "ps",
    .words = "",
    .brief = "list the models that a server has in memory",
    .options = ps_options,
    .run = ps_run,
};
