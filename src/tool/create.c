/* quern create, cp: models with settings of their own, which are entries of models.json (hub/preset.h). */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "hub/hub.h"
#include "hub/path.h"
#include "hub/preset.h"
#include "run/preset.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct arg_option create_options[] = {
    {"file", 'f', ARG_TEXT, "FILE", "the Modelfile (default: ./Modelfile)", 0, 0},
    {0},
};

/* The folder of a file. */
static int create_folder(const char *file, char out[PATH_MAX], struct err *e)
{
    const char *base = path_base(file);
    char real[PATH_MAX];
    if (base == file || !strcmp(file, "-"))
        return getcwd(out, PATH_MAX) ? 0 : err_set(e, ERR_RESOURCE, "the current folder has no path");
    if (path_make(out, e, "%.*s", (int)(base - file - (base - file > 1)), file))
        return -1;
    return realpath(out, real) ? path_make(out, e, "%s", real) : 0;
}

static int create_run(const struct args *a, struct err *e)
{
    const char *file = args_text(a, "file") ? args_text(a, "file") : "Modelfile";
    struct buf text = {.max = 4 << 20};
    struct hub h;
    struct hub_name n;
    char folder[PATH_MAX];
    json_t *preset = NULL;
    int failed = tool_hub(&h, e) || file_read(file, &text, e) || create_folder(file, folder, e) ||
                 !(preset = modelfile_read(text.data ? text.data : "", text.len, folder, e)) ||
                 preset_check_parameters(json_object_get(preset, "parameters"), e) ||
                 name_read(&n, &h, json_string_value(json_object_get(preset, "from")), e) ||
                 preset_write(&h, a->words[0], preset, e);
    buf_free(&text);
    json_decref(preset);
    if (!failed)
        printf("%s is made; 'quern run %s' runs it\n", log_safe(a->words[0]), log_safe(a->words[0]));
    return failed ? -1 : 0;
}

const struct tool_verb tool_create = {
    .name = "create",
    .words = "NAME",
    .brief = "make a model with settings of its own from a Modelfile",
    .more =
        "A Modelfile has FROM (a model, or a file), PARAMETER NAME VALUE, SYSTEM, TEMPLATE (Jinja, or Go's), "
        "ADAPTER, MESSAGE\n"
        "and LICENSE. The result is an entry of ~/.config/quern/models.json; no weights are copied.\n"
        "  printf 'FROM qwen3:8b\\nPARAMETER temperature 0.2\\nSYSTEM Be brief.\\n' > Modelfile\n"
        "  quern create brief && quern run brief\n",
    .options = create_options,
    .least = 1,
    .most = 1,
    .run = create_run,
};

static const struct arg_option cp_options[] = {{0}};

/* A name that has no entry becomes another name of its model. */
static int cp_run(const struct args *a, struct err *e)
{
    struct hub h;
    struct hub_name n;
    if (tool_hub(&h, e))
        return -1;
    json_t *entry = preset_entry(&h, a->words[0], e);
    if (!entry && !e->code && !name_read(&n, &h, a->words[0], e))
        entry = json_string(a->words[0]);
    int failed = !entry || preset_write(&h, a->words[1], entry, e);
    json_decref(entry);
    return failed ? -1 : 0;
}

const struct tool_verb tool_cp = {
    .name = "cp",
    .words = "FROM TO",
    .brief = "give a model another name, with its settings",
    .more = "  quern cp qwen3:8b mine\n",
    .options = cp_options,
    .least = 2,
    .most = 2,
    .run = cp_run,
};
