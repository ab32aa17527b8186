/* quern ls: the models on this machine. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "format/file_type.h"
#include "hub/local_models.h"
#include "tool/tool.h"

#include <string.h>

static const struct arg_option ls_options[] = {
    {"paths", 0, ARG_FLAG, NULL, "print their paths", 0, 0},
    {"json", 0, ARG_FLAG, NULL, "one JSON array: name, path, type, commit, bytes, changed, whole", 0, 0},
    {0},
};

/* Of a GGUF as its header says; by its name where the header cannot be read. "" = it is none. */
static const char *ls_type(const struct local_model *m)
{
    struct store *s;
    struct err ignored = {0};
    if (!m->path || !*m->quant || store_open(&s, m->path, &ignored))
        return m->quant;
    const char *type = store_file_type(s);
    store_close(s);
    return *type ? type : m->quant;
}

static void ls_json(struct buf *out, const struct local_models *s)
{
    struct json j = {.out = out};
    json_begin(&j, '[');
    for (size_t i = 0; i < s->count; i++) {
        const struct local_model *m = &s->items[i];
        json_begin(&j, '{');
        json_key(&j, "name");
        json_str(&j, m->name);
        json_key(&j, "path");
        json_str(&j, m->path);
        json_key(&j, "format");
        json_str(&j, !m->path ? NULL : *m->quant ? "gguf" : "safetensors");
        json_key(&j, "type");
        json_str(&j, *m->quant ? ls_type(m) : NULL);
        json_key(&j, "commit");
        json_str(&j, *m->commit ? m->commit : NULL);
        json_key(&j, "bytes");
        json_uint(&j, m->bytes);
        json_key(&j, "changed");
        json_int(&j, m->changed);
        json_key(&j, "whole");
        json_bool(&j, m->path != NULL);
        json_end(&j, '}');
    }
    json_end(&j, ']');
    buf_char(out, '\n');
}

static void ls_text(struct buf *out, const struct local_models *s, bool paths)
{
    int width = 8;
    for (size_t i = 0; i < s->count; i++) {
        int n = (int)strlen(s->items[i].name);
        width = n > width && n <= 60 ? n : width;
    }
    for (size_t i = 0; i < s->count; i++) {
        const struct local_model *m = &s->items[i];
        char date[32] = "";
        struct tm t;
        if (localtime_r(&m->changed, &t))
            strftime(date, sizeof date, "%Y-%m-%d %H:%M", &t);
        struct buf size = {0};
        tool_scaled(&size, (double)m->bytes, "B");
        buf_printf(out, "%-*s  %10s  %-11s  %s", width, log_safe(m->name), size.failed ? "" : size.data,
                   !m->path    ? "part"
                   : *m->quant ? log_safe(ls_type(m))
                               : "safetensors",
                   date);
        buf_free(&size);
        if (paths)
            buf_printf(out, "  %s", m->path ? m->path : "");
        buf_char(out, '\n');
    }
}

static int ls_run(const struct args *a, struct err *e)
{
    struct hub h;
    struct local_models s;
    struct buf out = {0};
    if (tool_hub(&h, e) || local_models_read(&s, &h, e))
        return -1;
    if (args_flag(a, "json"))
        ls_json(&out, &s);
    else
        ls_text(&out, &s, args_flag(a, "paths"));
    if (!s.count)
        log_info("there is no model in %s and %s yet: 'quern pull' fetches one", log_safe(h.own),
                 log_safe(h.cache));
    local_models_free(&s);
    return tool_print(&out, e);
}

const struct tool_verb tool_ls = {
    .name = "ls",
    .words = "",
    .brief = "list the models on this machine, other tools' downloads included",
    .more = "  quern ls\n"
            "  quern ls --json | jq -r '.[].name'\n",
    .options = ls_options,
    .run = ls_run,
};
