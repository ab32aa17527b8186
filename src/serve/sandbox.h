/* A server that has all it needs gives up the rest: files that it was not told of (Landlock), and calls that no
 * server makes (seccomp). Both are of the kernel's; where it lacks one, the other still holds. For a process that
 * drives a GPU this is not: the driver opens devices and maps memory as it likes. */
#pragma once

#include "base/err.h"

#include <stddef.h>

enum { SANDBOX_PATHS = 512 };

struct sandbox {
    struct sandbox_path {
        const char *path;
        enum sandbox_access {
            SANDBOX_READ,   /* the file, or all below the folder */
            SANDBOX_WRITE,  /* and make, change and remove */
            SANDBOX_SOCKET, /* make and remove sockets in the folder */
        } access;
    } paths[SANDBOX_PATHS];
    size_t count;
};

/* The path (kept, not copied) may be missing: then there is nothing to allow. */
void sandbox_allow(struct sandbox *s, const char *path, enum sandbox_access access);
/* For the whole process, for good: call before other threads are started, or on each of them. Returns what holds now,
 * for the log: "files and calls", "calls", "files", "nothing". */
const char *sandbox_enter(const struct sandbox *s);
