#include "format/modules.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "format/jsonread.h"

#include <stdio.h>
#include <string.h>

enum { MODULES_MOST = 64, MODULES_PATH = 256 };

static int modules_check(const struct modules *m, struct err *e)
{
    struct jsonread r = {m->list, "modules.json", e};
    if (json_array_size(m->list) > MODULES_MOST)
        return err_set(e, ERR_DATA, "modules.json has %zu modules; at most %d are expected",
                       json_array_size(m->list), MODULES_MOST);
    for (size_t i = 0; i < json_array_size(m->list); i++) {
        const json_t *one = jsonread_item(&r, m->list, i, JSONREAD_IS_OBJECT);
        jsonread_str(&r, one, "type?", NULL);
        jsonread_str(&r, one, "path?", NULL);
    }
    return e->code ? -1 : 0;
}

int modules_open(struct modules *m, const struct store *s, struct err *e)
{
    *m = (struct modules){.store = s};
    const char *path = store_beside(s, "modules.json");
    struct buf text = {0};
    if (!path)
        return 0;
    if (!file_read(path, &text, e))
        m->list = jsonread_value(text.data, text.len, &jsonread_config, "modules.json", e);
    buf_free(&text);
    if (!m->list)
        return -1;
    if (!json_is_array(m->list))
        err_set(e, ERR_DATA, "modules.json is not an array");
    else if (!modules_check(m, e))
        return 0;
    modules_close(m);
    return -1;
}

void modules_close(struct modules *m)
{
    json_decref(m->list);
    m->list = NULL;
}

const char *modules_kind(const struct modules *m, size_t i)
{
    const char *type = json_string_value(json_object_get(json_array_get(m->list, i), "type"));
    const char *dot = type ? strrchr(type, '.') : NULL;
    if (i >= json_array_size(m->list))
        return NULL;
    return dot ? dot + 1 : type ? type : "";
}

const char *modules_file(const struct modules *m, size_t i, const char *file, struct err *e)
{
    const char *folder = json_string_value(json_object_get(json_array_get(m->list, i), "path"));
    char path[MODULES_PATH];
    folder = folder ? folder : "";
    if (folder[0] == '/' || strstr(folder, "..") || strlen(folder) + strlen(file) + 2 > sizeof path) {
        err_set(e, ERR_DATA, "modules.json: the path \"%s\" is not a folder inside the model's",
                log_safe(folder));
        return NULL;
    }
    snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", file);
    return store_beside(m->store, path);
}

json_t *modules_config(const struct modules *m, size_t i, struct err *e)
{
    const char *path = modules_file(m, i, "config.json", e);
    return path ? jsonread_file(path, &jsonread_config, e) : NULL;
}
