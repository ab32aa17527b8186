#include "hub/name.h"

#include "base/log.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
    const char *name, *file;
} hub_names[] = {
    {HUB_DEFAULT, "SmolLM2-135M-Instruct.Q4_1.gguf"},
    {"gemma3", "gemma-3-270m-q4_k_m.gguf"},
    {"qwen05", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"},
    {"qwen15", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"},
    {"minilm-st", "all-MiniLM-L6-v2"},
    {"nomic", "nomic-embed-text-v1.5.f16.gguf"},
};
enum { HUB_NAMES = sizeof hub_names / sizeof *hub_names };

/* Something that is there, or is spelt like a path: whoever opens it will say what is wrong with it. */
static bool hub_is_path(const char *model)
{
    struct stat st;
    return stat(model, &st) == 0 || errno != ENOENT || strpbrk(model, "/.") || !*model;
}

static int hub_named(const char *cache, int i, char *path, size_t size, struct err *e)
{
    struct stat st;
    int n = snprintf(path, size, "%s/models/%s", cache, hub_names[i].file);
    if (n < 0 || (size_t)n >= size)
        return err_set(e, ERR_USAGE, "the path of the cache is too long: %s", log_safe(cache));
    if (stat(path, &st) == 0)
        return 0;
    return err_set(e, ERR_DATA, "the model %s is not here yet (%s): scripts/fetch-model %s fetches it",
                   hub_names[i].name, log_safe(path), hub_names[i].name);
}

int hub_resolve(const char *cache, const char *model, char *path, size_t size, struct err *e)
{
    model = model ? model : HUB_DEFAULT;
    if (!strncmp(model, "hf:", 3))
        return err_set(e, ERR_USAGE,
                       "%s: this build fetches nothing from a hub; give the path of a file or folder",
                       log_safe(model));
    if (hub_is_path(model)) {
        int n = snprintf(path, size, "%s", model);
        return n >= 0 && (size_t)n < size ? 0 : err_set(e, ERR_USAGE, "the path of the model is too long");
    }
    char known[256] = "";
    for (int i = 0, at = 0; i < HUB_NAMES; i++) {
        if (!strcmp(model, hub_names[i].name))
            return hub_named(cache, i, path, size, e);
        at += snprintf(known + at, sizeof known - (size_t)at, "%s%s", i ? ", " : "", hub_names[i].name);
    }
    return err_set(e, ERR_DATA, "there is no file, folder or model '%s'; the models known by name are %s",
                   log_safe(model), known);
}
