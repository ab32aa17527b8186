/* The engine of pretok_scan.h: each shape is a short matcher with the result that a backtracking engine
 * would find. */
#include "lang/token/pretok_scan.h"

#include "lang/token/unicode.h"

#include <string.h>

static bool in_ranges(const uint32_t (*r)[2], uint32_t cp)
{
    for (; (*r)[1]; r++)
        if (cp <= (*r)[1])
            return cp >= (*r)[0];
    return false;
}

/* Is the character at `at` in the set; *len gets its length. */
static inline bool has(const struct scan_set *set, const char *s, size_t at, size_t *len)
{
    uint32_t cp = unicode_next(s + at, len);
    uint32_t cls = unicode_class(cp);
    bool in = cls & set->any;
    if (!in && set->extra)
        in = cp && cp < 128 && strchr(set->extra, (int)cp);
    if (!in && set->ranges)
        in = in_ranges(set->ranges, cp);
    if (in == set->neg)
        return false;
    return !set->han || unicode_is_han(cp) == (set->han > 0);
}

static size_t run(const struct scan_set *set, const char *s, size_t n, size_t at)
{
    size_t len;
    while (at < n && has(set, s, at, &len))
        at += len;
    return at;
}

static size_t run_counted(const struct scan_alt *alt, const char *s, size_t n, size_t at)
{
    size_t end = at, len;
    int count = 0;
    while (end < n && (!alt->max || count < alt->max) && has(&alt->b, s, end, &len)) {
        end += len;
        count++;
    }
    return count >= alt->min ? end : at;
}

/* a?b+: with the prefix where something of b follows it, else without. */
static size_t prefixed(const struct scan_alt *alt, const char *s, size_t n, size_t at)
{
    size_t len;
    if (has(&alt->a, s, at, &len)) {
        size_t end = run(&alt->b, s, n, at + len);
        if (end > at + len)
            return end;
    }
    return run(&alt->b, s, n, at);
}

static size_t contraction(bool ci, const char *s, size_t n, size_t at)
{
    if (s[at] != '\'' || at + 1 >= n)
        return at;
    /* U+017F, the long s, is an s in any case */
    if (ci && n - at >= 3 && !memcmp(s + at + 1, "\xc5\xbf", 2))
        return at + 3;
    char c = s[at + 1], d = at + 2 < n ? s[at + 2] : 0;
    if (ci) {
        c = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
        d = d >= 'A' && d <= 'Z' ? (char)(d + 32) : d;
    }
    if (c == 's' || c == 't' || c == 'm' || c == 'd')
        return at + 2;
    if ((c == 'r' && d == 'e') || (c == 'v' && d == 'e') || (c == 'l' && d == 'l'))
        return at + 3;
    return at;
}

/* b*c+ from `at`: the longest run of b, then c; where no c follows, the run gives back until its last
 * character that is also in c. */
static size_t camel_low(const struct scan_alt *alt, const char *s, size_t n, size_t at)
{
    size_t end = at, last = 0, len; /* last: end of the last character that is in both */
    while (end < n && has(&alt->b, s, end, &len)) {
        end += len;
        if (has(&alt->c, s, end - len, &len))
            last = end;
    }
    size_t low = run(&alt->c, s, n, end);
    return low > end ? low : last ? last : at;
}

static size_t camel(const struct scan_alt *alt, const char *s, size_t n, size_t at)
{
    size_t len, tries[2] = {at, at};
    int count = 1;
    if (has(&alt->a, s, at, &len)) {
        tries[0] = at + len;
        count = 2;
    }
    for (int i = 0; i < count; i++) {
        size_t from = tries[i], end;
        if (alt->shape == SCAN_CAMEL_LOW) {
            end = camel_low(alt, s, n, from);
        } else {
            end = run(&alt->b, s, n, from);
            if (end > from)
                end = run(&alt->c, s, n, end);
        }
        if (end > from)
            return alt->ci && end < n ? contraction(true, s, n, end) : end;
    }
    return at;
}

static size_t spaces(enum scan_shape shape, const char *s, size_t n, size_t at)
{
    size_t end = at, last = at, newline = at, len;
    while (end < n) {
        uint32_t cp = unicode_next(s + end, &len);
        if (!(unicode_class(cp) & UC_SPACE))
            break;
        last = end;
        end += len;
        if (cp == '\n' || cp == '\r')
            newline = end;
    }
    switch (shape) {
    case SCAN_NEWLINES:
        return newline;
    case SCAN_SPACES_KEEP:
        return end == n ? end : last;
    case SCAN_SPACES_END:
        return end == n ? end : at;
    default:
        return end;
    }
}

/* \w as Oniguruma has it: with the superscripts and fractions of Latin-1, without the joiners. */
static bool is_word(uint32_t cp)
{
    if (cp == 0x200c || cp == 0x200d)
        return false;
    return unicode_is_word(cp) || cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || (cp >= 0xbc && cp <= 0xbe);
}

static size_t triples(const struct scan_alt *alt, struct scan_memo *memo, const char *s, size_t n, size_t at)
{
    size_t take = 3, len;
    if (at >= memo->end) { /* a new run: what is left over of its threes comes first */
        size_t end = at, count = 0;
        while (end < n && has(&alt->b, s, end, &len)) {
            end += len;
            count++;
        }
        if (!count)
            return at;
        memo->end = end;
        memo->fits = !alt->ci || end == n || !is_word(unicode_next(s + end, &len));
        take = count % 3 ? count % 3 : 3;
    }
    for (; memo->fits && take; take--) {
        unicode_next(s + at, &len);
        at += len;
    }
    return at;
}

static size_t match_one(const struct scan_alt *alt, struct scan_memo *memo, const char *s, size_t n,
                        size_t at)
{
    size_t len, end;
    switch (alt->shape) {
    case SCAN_RUN:
        return run_counted(alt, s, n, at);
    case SCAN_PREFIXED:
        return prefixed(alt, s, n, at);
    case SCAN_TAILED:
        end = prefixed(alt, s, n, at);
        return end > at ? run(&alt->c, s, n, end) : at;
    case SCAN_CAMEL_LOW:
    case SCAN_CAMEL_UP:
        return camel(alt, s, n, at);
    case SCAN_CONTRACTION:
        return contraction(alt->ci, s, n, at);
    case SCAN_PAIR:
        if (!has(&alt->a, s, at, &len))
            return at;
        end = run(&alt->b, s, n, at + len);
        return end > at + len ? end : at;
    case SCAN_TRIPLES:
        return triples(alt, memo, s, n, at);
    default:
        return spaces(alt->shape, s, n, at);
    }
}

size_t scan_match(const struct scan_pass *p, struct scan_memo *memo, const char *s, size_t n, size_t at)
{
    for (const struct scan_alt *alt = p->alts; alt->min >= 0; alt++) {
        size_t end = match_one(alt, memo, s, n, at);
        if (end > at)
            return end;
    }
    return at;
}
