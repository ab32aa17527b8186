#define _GNU_SOURCE
#include "tool/tool.h"

#include "base/buf.h"
#include "base/log.h"
#include "format/store.h"
#include "hub/name.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOOL_ROW(name) &tool_##name,
const struct tool_verb *const tool_verbs[] = {TOOL_VERBS(TOOL_ROW) NULL};

const struct tool_verb *tool_find(const char *name, struct err *e)
{
    const char *near = NULL;
    int least = 3;
    for (int i = 0; tool_verbs[i]; i++) {
        int far = args_distance(name, tool_verbs[i]->name);
        if (!far)
            return tool_verbs[i];
        if (far < least) {
            least = far;
            near = tool_verbs[i]->name;
        }
    }
    if (near)
        err_set(e, ERR_USAGE, "there is no command '%s'; did you mean '%s'?", log_safe(name), near);
    else
        err_set(e, ERR_USAGE, "there is no command '%s'; 'quern help' lists them", log_safe(name));
    return NULL;
}

int tool_model_path(const char *model, char *path, size_t size, struct err *e)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char cache[PATH_MAX];
    bool own = xdg && xdg[0] == '/'; /* the standard says that a relative one is to be ignored */
    int n = snprintf(cache, sizeof cache, "%s%s",
                     own    ? xdg
                     : home ? home
                            : "",
                     own ? "/quern" : "/.cache/quern");
    if (n < 0 || (size_t)n >= sizeof cache)
        return err_set(e, ERR_USAGE, "the path of the cache (XDG_CACHE_HOME or HOME) is too long");
    return hub_resolve(cache, model, path, size, e);
}

int tool_open(struct store **out, const char *model, struct err *e)
{
    char path[PATH_MAX];
    return tool_model_path(model, path, sizeof path, e) < 0 ? -1 : store_open(out, path, e);
}

int tool_print(struct buf *b, struct err *e)
{
    bool failed = b->failed;
    /* a failure to write shows in ferror, which main looks at once at the end */
    if (!failed && b->len)
        fwrite(b->data, 1, b->len, stdout);
    buf_free(b);
    return failed ? err_set(e, ERR_RESOURCE, "out of memory for what was to be printed") : 0;
}

bool tool_colour(int fd)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fd) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}
