/* quern rm MODEL…: removes downloaded models. */
#include "base/buf.h"
#include "base/json.h"
#include "hub/local_models.h"
#include "hub/preset.h"
#include "tool/tool.h"

static const struct arg_option rm_options[] = {
    {"json", 0, ARG_FLAG, NULL, "one JSON object: {\"freed\": bytes}", 0, 0},
    {0},
};

static int rm_run(const struct args *a, struct err *e)
{
    struct hub h;
    struct buf out = {0};
    uint64_t all = 0, freed;
    if (tool_hub(&h, e))
        return -1;
    for (int i = 0; i < a->count; i++) {
        struct hub_name n;
        int missing = preset_is_name(a->words[i]) ? preset_write(&h, a->words[i], NULL, e) : 1;
        if (missing < 0)
            return -1;
        if (!missing) /* it was a name of the user's own; its model stays */
            continue;
        if (name_read(&n, &h, a->words[i], e) || local_models_remove(&h, &n, &freed, e))
            return -1;
        all += freed;
    }
    if (args_flag(a, "json")) {
        struct json j = {.out = &out};
        json_begin(&j, '{');
        json_key(&j, "freed");
        json_uint(&j, all);
        json_end(&j, '}');
    } else {
        tool_scaled(&out, (double)all, "B freed");
    }
    buf_char(&out, '\n');
    return tool_print(&out, e);
}

const struct tool_verb tool_rm = {
    .name = "rm",
    .words = "MODEL...",
    .brief = "remove models that were fetched",
    .more = "  quern rm Qwen/Qwen3-8B-GGUF:Q8_0    this one\n"
            "  quern rm Qwen/Qwen3-8B-GGUF         all of the repository, parts of downloads too\n"
            "  quern rm brief                      a name that 'quern create' or 'cp' has made; its model "
            "stays\n\n"
            "Only files in the caches are removed, never a path.\n",
    .options = rm_options,
    .least = 1,
    .most = 1024,
    .run = rm_run,
};
