#include "base/buf.h"

#include "base/mem.h"
#include "base/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BUF_DEFAULT_MAX ((size_t)1 << 30)

char *buf_reserve(struct buf *b, size_t n)
{
    size_t max = b->max ? b->max : BUF_DEFAULT_MAX, want;
    if (b->failed || !size_add(b->len, n, &want) || want > max) {
        b->failed = true;
        return NULL;
    }
    if (want + 1 > b->cap) {
        size_t cap = size_max(want + 1, size_min(b->cap * 2, max + 1));
        cap = size_max(cap, 64);
        char *p = mem_realloc(b->data, cap, 1);
        if (!p) {
            b->failed = true;
            return NULL;
        }
        b->data = p;
        b->cap = cap;
    }
    return b->data + b->len;
}

bool buf_add(struct buf *b, const void *data, size_t n)
{
    char *p = buf_reserve(b, n);
    if (!p)
        return false;
    if (n)
        memcpy(p, data, n);
    b->len += n;
    b->data[b->len] = 0;
    return true;
}

bool buf_str(struct buf *b, const char *s)
{
    return buf_add(b, s, strlen(s));
}

bool buf_char(struct buf *b, char c)
{
    return buf_add(b, &c, 1);
}

bool buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *p = n < 0 ? NULL : buf_reserve(b, (size_t)n);
    if (!p)
        return false;
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return true;
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = 0;
}

void buf_free(struct buf *b)
{
    mem_free(b->data);
    *b = (struct buf){.max = b->max};
}
