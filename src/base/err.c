#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

int err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
    if (!e || e->code)
        return -1;
    e->code = code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    return -1;
}

int err_crowded(struct err *e)
{
    if (e && e->code == ERR_RESOURCE)
        e->crowded = true;
    return -1;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e || !e->code)
        return -1;
    char old[sizeof e->text];
    memcpy(old, e->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n < 0)
        n = 0;
    size_t at = (size_t)n < sizeof old - 3 ? (size_t)n : sizeof old - 3, left = sizeof old - at - 3;
    memcpy(e->text + at, ": ", 2);
    memcpy(e->text + at + 2, old, left);
    e->text[sizeof old - 1] = 0;
    return -1;
}

int err_memory(struct err *e, const char *what, unsigned long long bytes)
{
    struct rlimit all;
    if (getrlimit(RLIMIT_AS, &all) || all.rlim_cur == RLIM_INFINITY)
        return err_set(e, ERR_RESOURCE, "out of memory: %llu bytes for %s", bytes, what);
    return err_set(e, ERR_RESOURCE,
                   "out of memory: %llu bytes for %s, and this process may have %llu in all (ulimit -v)",
                   bytes, what, (unsigned long long)all.rlim_cur);
}
