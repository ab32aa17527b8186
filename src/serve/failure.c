#include "serve/failure.h"

#include <stdarg.h>
#include <stdio.h>

int failure_set(struct failure *f, int status, const char *code, const char *param, const char *fmt, ...)
{
    if (f->status)
        return -1;
    f->status = status;
    f->code = code;
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->err.text, sizeof f->err.text, fmt, ap);
    va_end(ap);
    return -1;
}
