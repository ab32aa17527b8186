#define _GNU_SOURCE
#include "run/stop.h"

#include <string.h>

/* Length of the longest end of text that is a beginning of some stop string. */
static size_t stop_overlap(const struct stop *s, const char *text, size_t n)
{
    size_t best = 0;
    for (size_t i = 0; i < s->count; i++) {
        size_t most = strlen(s->strings[i]) - 1;
        for (size_t k = most < n ? most : n; k > best; k--) {
            if (!memcmp(text + n - k, s->strings[i], k))
                best = k;
        }
    }
    return best;
}

bool stop_feed(struct stop *s, const char *text, size_t n, struct buf *out)
{
    if (s->hit)
        return true;
    if (!s->count) {
        buf_add(out, text, n);
        return false;
    }
    buf_add(&s->held, text, n);
    const char *first = NULL;
    for (size_t i = 0; i < s->count; i++) {
        const char *at = memmem(s->held.data, s->held.len, s->strings[i], strlen(s->strings[i]));
        if (at && (!first || at < first)) {
            first = at;
            s->which = i;
        }
    }
    s->hit = first != NULL;
    size_t keep = s->hit ? 0 : stop_overlap(s, s->held.data, s->held.len);
    size_t go = s->hit ? (size_t)(first - s->held.data) : s->held.len - keep;
    go += s->hit && s->keep ? strlen(s->strings[s->which]) : 0;
    buf_add(out, s->held.data, go);
    memmove(s->held.data, s->held.data + s->held.len - keep, keep);
    s->held.len = keep;
    return s->hit;
}

void stop_flush(struct stop *s, struct buf *out)
{
    if (!s->hit)
        buf_add(out, s->held.data ? s->held.data : "", s->held.len);
    s->held.len = 0;
}

void stop_free(struct stop *s)
{
    buf_free(&s->held);
}
