/* LD_PRELOAD: writes to stderr which files could not be opened for lack of a right. For scripts/gpu-sandbox-check: Landlock
 * says so to the audit log alone, and a GPU's driver says only that it did not start. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void denied(const char *call, const char *path)
{
    int why = errno;
    char line[512];
    if (why == EACCES || why == EPERM) {
        int n = snprintf(line, sizeof line, "denied: %s %s: %s\n", call, path, strerror(why));
        ssize_t sent = n > 0 ? write(2, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1) : 0;
        (void)sent;
    }
    errno = why;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                                                           \
    int name(const char *path, int flags, ...)                                                               \
    {                                                                                                        \
        va_list ap;                                                                                          \
        va_start(ap, flags);                                                                                 \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;                                \
        va_end(ap);                                                                                          \
        int fd = NEXT(name)(path, flags, mode);                                                              \
        if (fd < 0)                                                                                          \
            denied(#name, path);                                                                             \
        return fd;                                                                                           \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                         \
    int name(int at, const char *path, int flags, ...)                                                       \
    {                                                                                                        \
        va_list ap;                                                                                          \
        va_start(ap, flags);                                                                                 \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;                                \
        va_end(ap);                                                                                          \
        int fd = NEXT(name)(at, path, flags, mode);                                                          \
        if (fd < 0)                                                                                          \
            denied(#name, path);                                                                             \
        return fd;                                                                                           \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                                          \
    FILE *name(const char *path, const char *mode)                                                           \
    {                                                                                                        \
        FILE *f = NEXT(name)(path, mode);                                                                    \
        if (!f)                                                                                              \
            denied(#name, path);                                                                             \
        return f;                                                                                            \
    }
FOPEN(fopen)
FOPEN(fopen64)
