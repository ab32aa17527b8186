/* The state folder of the command line and the environment. */
#pragma once

#include "base/err.h"
#include "tool/args.h"

#include <limits.h>
#include <stdbool.h>

/* Rows for a verb's option table. */
#define STATE_OPTIONS                                                                                        \
    {                                                                                                        \
        "state-dir", 0, ARG_TEXT, "DIR",                                                                     \
            "folder of the state (default: the service's, else quern in XDG_STATE_HOME or ~/.local/state)",  \
            0, 0                                                                                             \
    }

/* --state-dir, systemd's STATE_DIRECTORY, or quern in the user's XDG state folder; "" = there is none. `chosen`: one of the
 * first two, so that a server does not start without it. */
int state_folder(const struct args *a, char out[PATH_MAX], bool *chosen, struct err *e);
/* For a program beside the server: the user's folder where it has a state, else the service's. */
int state_folder_existing(const struct args *a, char out[PATH_MAX], struct err *e);
