#define _GNU_SOURCE
/* Normalisers: each step reads one buffer and appends to another. */
#include "lang/token/tok.h"

#include "base/utf8.h"
#include "lang/token/unicode.h"

#include <string.h>

static void put(struct buf *out, uint32_t cp)
{
    char utf8[4];
    buf_add(out, utf8, utf8_put(cp, utf8));
}

static void lower(struct buf *out, const char *s, size_t n)
{
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t to[2], cp = unicode_next(s + at, &len);
        int count = unicode_lower(cp, to);
        for (int i = 0; i < count; i++)
            put(out, to[i]);
    }
}

static int replace(struct tok_work *w, const struct norm_step *step, struct buf *out, const char *s, size_t n)
{
    if (!step->regex) {
        size_t at = 0;
        while (at < n && step->from.n) {
            const char *hit = memmem(s + at, n - at, step->from.s, step->from.n);
            if (!hit)
                break;
            buf_add(out, s + at, (size_t)(hit - s) - at);
            buf_add(out, step->to.s, step->to.n);
            at = (size_t)(hit - s) + step->from.n;
        }
        buf_add(out, s + at, n - at);
        return 0;
    }
    size_t from = 0, at = 0, hit[2];
    int got;
    while (at <= n && (got = regex_find(step->regex, w->run, s, n, at, hit, w->e)) > 0) {
        buf_add(out, s + from, hit[0] - from);
        buf_add(out, step->to.s, step->to.n);
        from = at = hit[1];
        if (hit[1] == hit[0]) { /* an empty match: go on behind the next character */
            size_t len = 1;
            if (at < n)
                unicode_next(s + at, &len);
            buf_add(out, s + from, at < n ? len : 0);
            from = at += len;
        }
    }
    if (at <= n && got < 0)
        return -1;
    if (from < n)
        buf_add(out, s + from, n - from);
    return 0;
}

static void strip(const struct norm_step *step, struct buf *out, const char *s, size_t n)
{
    size_t from = 0, to = 0, len;
    while (step->left && from < n && unicode_is_space(unicode_next(s + from, &len)))
        from += len;
    to = step->right ? from : n;
    for (size_t at = from; step->right && at < n; at += len)
        if (!unicode_is_space(unicode_next(s + at, &len)))
            to = at + len;
    buf_add(out, s + from, to - from);
}

static void nmt(struct buf *out, const char *s, size_t n)
{
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t c = unicode_next(s + at, &len);
        if ((c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f)
            continue;
        bool blank = c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
                     (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                     c == 0xfeff || c == 0xfffd;
        put(out, blank ? ' ' : c);
    }
}

static bool is_chinese(uint32_t c)
{
    /* 2B920 is as the original has it */
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) ||
           (c >= 0x2b920 && c <= 0x2ceaf) || (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

static void bert(const struct norm_step *step, struct buf *out, const char *s, size_t n)
{
    struct buf a = {0}, b = {0};
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t c = unicode_next(s + at, &len);
        bool kept = c == '\t' || c == '\n' || c == '\r';
        if (step->clean) {
            bool control = unicode_class(c) & (UC_CC | UC_CF | UC_CO) && unicode_is_old(c);
            if (!c || c == 0xfffd || (control && !kept))
                continue;
            if (kept || unicode_is_space(c))
                c = ' ';
        }
        bool alone = step->chinese && is_chinese(c);
        if (alone)
            buf_char(&a, ' ');
        put(&a, c);
        if (alone)
            buf_char(&a, ' ');
    }
    struct buf *now = &a;
    if (step->accents) {
        unicode_normalize(&b, UNICODE_NFD, a.data, a.len);
        buf_clear(&a);
        for (size_t at = 0, len; at < b.len; at += len)
            if (!unicode_is_bert_mark(unicode_next(b.data + at, &len)))
                buf_add(&a, b.data + at, len);
    }
    if (step->lower)
        lower(out, now->data, now->len);
    else
        buf_add(out, now->data, now->len);
    out->failed |= a.failed | b.failed;
    buf_free(&a);
    buf_free(&b);
}

/* ---- charsmap ---- */

static uint32_t unit(const struct charsmap *m, size_t i)
{
    const unsigned char *p = m->units + i * 4;
    return i < m->count ? (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24
                        : 0;
}

int tok_charsmap(struct charsmap *m, const void *data, size_t n, struct err *e)
{
    const unsigned char *p = data;
    *m = (struct charsmap){0};
    if (!n)
        return 0;
    uint32_t bytes =
        n < 4 ? 0 : (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    if (n < 4 || bytes > n - 4 || bytes % 4 || p[n - 1])
        return err_set(e, ERR_DATA,
                       "the tokenizer's charsmap of %zu bytes is damaged: its trie says %u bytes", n, bytes);
    m->units = p + 4;
    m->count = bytes / 4;
    m->strings = (const char *)p + 4 + bytes;
    m->strings_n = n - 4 - bytes;
    return 0;
}

/* The longest (or the shortest) prefix of s that the map replaces: its length, 0 = none. A word of the
 * array: bits 0-7 label, bit 8 has a leaf, bits 10-30 offset, shifted by 8 where bit 9 says so. */
static size_t charsmap_find(const struct charsmap *m, const char *s, size_t n, bool longest,
                            struct tok_str *to)
{
    size_t found = 0, place = 0;
    if (!m->count)
        return 0;
#define OFFSET(u) ((u) >> 10 << (((u)&1u << 9) >> 6))
    uint32_t u = unit(m, 0);
    place ^= OFFSET(u);
    for (size_t i = 0; i < n && s[i]; i++) {
        unsigned char c = (unsigned char)s[i];
        place ^= c;
        u = unit(m, place);
        if ((u & (1u << 31 | 0xff)) != c)
            break;
        place ^= OFFSET(u);
        if (!(u >> 8 & 1))
            continue;
        uint32_t at = unit(m, place) & 0x7fffffff;
        if (at >= m->strings_n)
            break;
        *to = (struct tok_str){m->strings + at, (uint32_t)strnlen(m->strings + at, m->strings_n - at)};
        found = i + 1;
        if (!longest)
            break;
    }
#undef OFFSET
    return found;
}

static void precompiled(const struct norm_step *step, struct buf *out, const char *s, size_t n)
{
    struct tok_str to;
    for (size_t at = 0; at < n;) {
        size_t end = unicode_grapheme(s, n, at), len;
        if (end - at < 6 && charsmap_find(&step->map, s + at, end - at, false, &to)) {
            buf_add(out, to.s, to.n);
            at = end;
        }
        for (; at < end; at += len) {
            unicode_next(s + at, &len);
            if (charsmap_find(&step->map, s + at, len, false, &to))
                buf_add(out, to.s, to.n);
            else
                buf_add(out, s + at, len);
        }
    }
}

/* SentencePiece: the longest replacement at each place; then spaces: squeezed, one in front or behind,
 * written as U+2581. */
static void spm(const struct tok_work *w, const struct norm_step *step, struct buf *out, const char *s,
                size_t n)
{
    const char *space = step->escape ? TOK_SPACE_MARK : " ";
    bool inside = step->first_only && !w->at_start; /* something stands before this piece */
    bool started = false, due = false;              /* due: squeezed spaces stand before the next character */
    for (size_t at = 0, len; at < n; at += len) {
        struct tok_str to = {s + at, 0};
        len = charsmap_find(&step->map, s + at, n - at, true, &to);
        if (!len) {
            unicode_next(s + at, &len);
            to.n = (uint32_t)len;
        }
        for (uint32_t i = 0; i < to.n; i++) {
            if (to.s[i] == ' ' && step->squeeze) {
                due = started || inside;
                continue;
            }
            if (!started && step->prefix && !inside)
                buf_str(out, space);
            if (due)
                buf_str(out, space);
            started = true;
            due = false;
            if (to.s[i] == ' ')
                buf_str(out, space);
            else
                buf_char(out, to.s[i]);
        }
    }
    if (due && step->first_only && !w->at_end)
        buf_str(out, space);
    if (started && step->suffix)
        buf_str(out, space);
}

/* ---- all of them ---- */

static int apply(struct tok_work *w, const struct norm_step *step, struct buf *out, const char *s, size_t n)
{
    size_t len;
    switch (step->kind) {
    case NORM_FORM:
        unicode_normalize(out, (enum unicode_form)step->form, s, n);
        return 0;
    case NORM_LOWER:
        lower(out, s, n);
        return 0;
    case NORM_REPLACE:
        return replace(w, step, out, s, n);
    case NORM_PREPEND:
        if (n)
            buf_add(out, step->to.s, step->to.n);
        buf_add(out, s, n);
        return 0;
    case NORM_STRIP:
        strip(step, out, s, n);
        return 0;
    case NORM_STRIP_ACCENTS:
        for (size_t at = 0; at < n; at += len)
            if (!unicode_is_accent(unicode_next(s + at, &len)))
                buf_add(out, s + at, len);
        return 0;
    case NORM_NMT:
        nmt(out, s, n);
        return 0;
    case NORM_BERT:
        bert(step, out, s, n);
        return 0;
    case NORM_BYTES:
        for (size_t at = 0; at < n; at++)
            put(out, tok_byte_char((unsigned char)s[at]));
        return 0;
    case NORM_PRECOMPILED:
        precompiled(step, out, s, n);
        return 0;
    case NORM_SPM:
        spm(w, step, out, s, n);
        return 0;
    }
    return 0;
}

int tok_norm_apply(struct tok_work *w, const struct norm_step *steps, int n, const char **s, size_t *len)
{
    for (int i = 0; i < n; i++) {
        struct buf *out = &w->norm[i & 1];
        tok_grow_begin(w, out, *len);
        if (apply(w, &steps[i], out, *s, *len) || tok_grow_end(w, out, *len))
            return -1;
        *s = out->data ? out->data : "";
        *len = out->len;
    }
    return 0;
}
