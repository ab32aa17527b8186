#include "base/base64.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_add(struct buf *out, const uint8_t *data, size_t n)
{
    for (size_t i = 0; i < n; i += 3) {
        size_t have = n - i < 3 ? n - i : 3;
        uint32_t v = (uint32_t)data[i] << 16;
        v |= have > 1 ? (uint32_t)data[i + 1] << 8 : 0;
        v |= have > 2 ? data[i + 2] : 0;
        char four[4] = {digits[v >> 18], digits[v >> 12 & 63], have > 1 ? digits[v >> 6 & 63] : '=',
                        have > 2 ? digits[v & 63] : '='};
        buf_add(out, four, sizeof four);
    }
}

/* -1: no digit. */
static int base64_digit(char c, bool loose)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
           : loose && c == '-'    ? 62
           : loose && c == '_'    ? 63
                                  : -1;
}

static bool base64_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool base64_decode(struct buf *out, const char *text, size_t n, bool loose)
{
    uint32_t bits = 0;
    int have = 0;
    while (n && (text[n - 1] == '=' || (loose && base64_is_space(text[n - 1]))))
        n--;
    char *to = buf_reserve(out, n / 4 * 3 + 3), *at = to;
    for (size_t i = 0; to && i < n; i++) {
        int v = base64_digit(text[i], loose);
        if (v < 0 && loose && base64_is_space(text[i]))
            continue;
        if (v < 0)
            return false;
        bits = bits << 6 | (uint32_t)v;
        have += 6;
        if (have >= 8) {
            have -= 8;
            *at++ = (char)(bits >> have);
        }
    }
    if (!to)
        return false;
    out->len += (size_t)(at - to);
    *at = 0;
    return true;
}

bool base64_read(struct buf *out, const char *text, size_t n)
{
    return base64_decode(out, text, n, false);
}

bool base64_read_loose(struct buf *out, const char *text, size_t n)
{
    return base64_decode(out, text, n, true);
}
