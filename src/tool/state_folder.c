#include "tool/state_folder.h"

#include "hub/path.h"

#include <stdlib.h>
#include <string.h>

#define SERVICE_FOLDER "/var/lib/quern"

int state_folder(const struct args *a, char out[PATH_MAX], bool *chosen, struct err *e)
{
    const char *given = args_text(a, "state-dir"), *service = getenv("STATE_DIRECTORY"),
               *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    out[0] = 0;
    *chosen = true;
    if (given && !*given)
        return err_set(e, ERR_USAGE, "--state-dir needs a folder");
    if (given)
        return path_make(out, e, "%s", given);
    if (service && *service) /* systemd separates several with colons */
        return path_make(out, e, "%.*s", (int)strcspn(service, ":"), service);
    *chosen = false;
    if (xdg && *xdg == '/')
        return path_make(out, e, "%s/quern", xdg);
    return home && *home == '/' ? path_make(out, e, "%s/.local/state/quern", home) : 0;
}

int state_folder_existing(const struct args *a, char out[PATH_MAX], struct err *e)
{
    bool chosen;
    char file[PATH_MAX];
    if (state_folder(a, out, &chosen, e))
        return -1;
    if (chosen || (out[0] && !path_make(file, e, "%s/quern.db", out) && path_is_file(file)))
        return 0;
    if (path_is_file(SERVICE_FOLDER "/quern.db"))
        return path_make(out, e, "%s", SERVICE_FOLDER);
    return out[0] ? 0 : err_set(e, ERR_USAGE, "there is no state folder: give --state-dir");
}
