#include "base/utf8.h"

#include "base/buf.h"

size_t utf8_decode(const char *str, size_t n, uint32_t *cp)
{
    const uint8_t *s = (const uint8_t *)str;
    if (!n)
        return 0;
    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    size_t len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n < len)
        return 0;
    uint32_t c = s[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (s[i] & 0x3fu);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0;
    *cp = c;
    return len;
}

size_t utf8_put(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0;
    size_t len = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(0xf00u >> len | c);
    return len;
}

bool utf8_valid(const char *s, size_t n)
{
    uint32_t cp;
    for (size_t i = 0, len; i < n; i += len)
        if (!(len = utf8_decode(s + i, n - i, &cp)))
            return false;
    return true;
}

size_t utf8_partial(const char *str, size_t n)
{
    const uint8_t *s = (const uint8_t *)str;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        uint8_t c = s[n - back];
        if ((c & 0xc0) == 0x80)
            continue;
        size_t len = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
        if (len <= back || c < 0xc2 || c > 0xf4)
            return 0;
        /* the second byte already shows overlong forms, surrogates and what is above U+10FFFF */
        if (back >= 2) {
            uint8_t d = s[n - back + 1];
            if ((c == 0xe0 && d < 0xa0) || (c == 0xed && d > 0x9f) || (c == 0xf0 && d < 0x90) ||
                (c == 0xf4 && d > 0x8f))
                return 0;
        }
        return back;
    }
    return 0;
}

bool utf8_clean(struct buf *out, const char *s, size_t n)
{
    uint32_t cp;
    for (size_t i = 0; i < n;) {
        size_t len = utf8_decode(s + i, n - i, &cp);
        buf_add(out, len ? s + i : "\xef\xbf\xbd", len ? len : 3);
        i += len ? len : 1;
    }
    return !out->failed;
}
