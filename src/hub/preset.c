#define _GNU_SOURCE
#include "hub/preset.h"

#include "base/log.h"
#include "base/mem.h"
#include "hub/hub.h"
#include "hub/path.h"

#include <ctype.h>
#include <string.h>

enum { PRESET_CHAIN = 8, PRESET_NAME = 200 };

static const struct {
    const char *name;
    json_type type;
} preset_fields[] = {{"from", JSON_STRING},       {"system", JSON_STRING},  {"template", JSON_STRING},
                     {"parameters", JSON_OBJECT}, {"adapters", JSON_ARRAY}, {"messages", JSON_ARRAY},
                     {"license", JSON_STRING}};

bool preset_is_name(const char *name)
{
    size_t n = strlen(name), slashes = 0;
    if (!n || n > PRESET_NAME || !isalnum((unsigned char)name[0]))
        return false;
    for (size_t i = 0; i < n; i++) {
        slashes += name[i] == '/';
        if (!isalnum((unsigned char)name[i]) && !strchr("-_.:/", name[i]))
            return false;
    }
    return slashes <= 1 && !strstr(name, "..");
}

static int preset_lists(const json_t *preset, const char *what, struct err *e)
{
    const json_t *adapters = json_object_get(preset, "adapters"),
                 *messages = json_object_get(preset, "messages"), *v;
    size_t i;
    json_array_foreach(adapters, i, v) if (!json_is_string(v)) return err_set(
        e, ERR_DATA, "%s: adapters has to be a list of paths", log_safe(what));
    json_array_foreach(
        messages, i,
        v) if (!json_is_string(json_object_get(v, "role")) ||
               !json_is_string(json_object_get(
                   v, "content"))) return err_set(e, ERR_DATA,
                                                  "%s: messages has to be a list of {\"role\", \"content\"}",
                                                  log_safe(what));
    return 0;
}

int preset_check(const json_t *preset, const char *what, struct err *e)
{
    for (size_t i = 0; i < sizeof preset_fields / sizeof *preset_fields; i++) {
        const json_t *v = json_object_get(preset, preset_fields[i].name);
        if (v && json_typeof(v) != preset_fields[i].type)
            return err_set(e, ERR_DATA, "%s: %s has the wrong type: %s was expected", log_safe(what),
                           preset_fields[i].name,
                           preset_fields[i].type == JSON_STRING  ? "a text"
                           : preset_fields[i].type == JSON_ARRAY ? "a list"
                                                                 : "an object");
    }
    if (!json_is_string(json_object_get(preset, "from")))
        return err_set(e, ERR_DATA, "%s names no model (from)", log_safe(what));
    return preset_lists(preset, what, e);
}

/* Without ":latest", which every name has. */
static const json_t *preset_find(const json_t *all, const char *name)
{
    char plain[PRESET_NAME + 16];
    const char *latest = strstr(name, ":latest");
    const json_t *v = json_object_get(all, name);
    if (v || !latest || latest[7] || (size_t)(latest - name) >= sizeof plain)
        return v;
    snprintf(plain, sizeof plain, "%.*s", (int)(latest - name), name);
    return json_object_get(all, plain);
}

json_t *preset_entry(const struct hub *h, const char *name, struct err *e)
{
    json_t *all = name_file(h, e), *v = json_deep_copy(preset_find(all, name));
    json_decref(all);
    return v;
}

/* What the child does not say, the parent says. */
static int preset_merge(json_t *into, const json_t *parent)
{
    json_t *own = json_object_get(into, "parameters"), *theirs = json_object_get(parent, "parameters");
    if (own && theirs && json_object_update_missing(own, theirs))
        return -1;
    return json_object_update_missing(into, (json_t *)(uintptr_t)parent);
}

json_t *preset_read(const struct hub *h, const char *name, struct err *e)
{
    json_t *all = name ? name_file(h, e) : NULL, *merged = NULL;
    for (int i = 0; all && name && i < PRESET_CHAIN && !e->code; i++) {
        const json_t *v = preset_find(all, name);
        if (json_is_object(v) && preset_check(v, name, e))
            break;
        if (json_is_object(v) && !merged)
            merged = json_deep_copy(v);
        else if (json_is_object(v) && preset_merge(merged, v))
            err_memory(e, "a preset", 64);
        const char *next =
            json_is_object(v) ? json_string_value(json_object_get(v, "from")) : json_string_value(v);
        name = next && strcmp(next, name) ? next : NULL;
    }
    json_decref(all);
    if (e->code) {
        json_decref(merged);
        merged = NULL;
    }
    return merged;
}

int preset_write(const struct hub *h, const char *name, const json_t *entry, struct err *e)
{
    if (!preset_is_name(name))
        return err_set(e, ERR_USAGE, "'%s' cannot be a model's name: letters, digits and -_.:/ were expected",
                       log_safe(name));
    json_t *all = name_file(h, e);
    if (!all)
        return -1;
    int missing = !entry && json_object_del(all, name);
    if (entry)
        json_object_set(all, name, (json_t *)(uintptr_t)entry);
    char *text = json_dumps(all, JSON_INDENT(2));
    int failed =
        !text ? err_memory(e, "models.json", 64)
              : !missing && (path_make_folders(h->config, e) || path_write(h->config, text, strlen(text), e));
    mem_free(text);
    json_decref(all);
    return failed ? -1 : missing;
}
