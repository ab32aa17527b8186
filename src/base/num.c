#include "base/num.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool num_u64(const char *s, size_t n, uint64_t most, uint64_t *out)
{
    uint64_t v = 0;
    if (!n)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || __builtin_mul_overflow(v, 10u, &v) ||
            __builtin_add_overflow(v, (uint64_t)(s[i] - '0'), &v))
            return false;
    }
    if (v > most)
        return false;
    *out = v;
    return true;
}

bool num_i64(const char *s, size_t n, int64_t least, int64_t most, int64_t *out)
{
    uint64_t u;
    bool minus = n && s[0] == '-';
    if (!num_u64(s + minus, n - minus, minus ? (uint64_t)1 << 63 : INT64_MAX, &u))
        return false;
    int64_t v = minus ? (int64_t)(0 - u) : (int64_t)u;
    if (v < least || v > most)
        return false;
    *out = v;
    return true;
}

static size_t num_digits(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && s[i] >= '0' && s[i] <= '9')
        i++;
    return i;
}

/* Length of a JSON number at s, leading zeros allowed, 0 where there is none. */
static size_t num_shape(const char *s, size_t n)
{
    size_t i = n && s[0] == '-', d = num_digits(s + i, n - i);
    if (!d)
        return 0;
    i += d;
    if (i < n && s[i] == '.') {
        if (!(d = num_digits(s + i + 1, n - i - 1)))
            return 0;
        i += 1 + d;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        size_t sign = i + 1 < n && (s[i + 1] == '+' || s[i + 1] == '-');
        if (!(d = num_digits(s + i + 1 + sign, n - i - 1 - sign)))
            return 0;
        i += 1 + sign + d;
    }
    return i;
}

bool num_f64(const char *s, size_t n, double least, double most, double *out)
{
    char text[128];
    if (!n || n >= sizeof text || num_shape(s, n) != n)
        return false;
    memcpy(text, s, n);
    text[n] = 0;
    double v = strtod(text, NULL);
    if (!(v >= least && v <= most))
        return false;
    *out = v;
    return true;
}

/* Digits with a fraction, then k, m, g or t as a power of `unit`; `used`: how much of the text that is. */
static bool num_scaled(const char *s, size_t n, double unit, double *v, size_t *used)
{
    static const char letters[] = "kmgt";
    size_t d = num_digits(s, n);
    if (d < n && s[d] == '.')
        d += 1 + num_digits(s + d + 1, n - d - 1);
    if (!num_f64(s, d, 0, 1e18, v))
        return false;
    const char *letter = d < n ? strchr(letters, s[d] | 0x20) : NULL;
    if (letter && *letter) {
        for (const char *l = letters; l <= letter; l++)
            *v *= unit;
        d++;
    }
    *used = d;
    return *v <= 9e18;
}

bool num_count(const char *s, size_t n, uint64_t *out)
{
    double v;
    size_t used;
    if (!num_scaled(s, n, 1000, &v, &used) || used != n)
        return false;
    *out = (uint64_t)v;
    return true;
}

bool num_bytes(const char *s, size_t n, uint64_t *out)
{
    double v;
    size_t used;
    if (!num_scaled(s, n, 1024, &v, &used))
        return false;
    const char *rest = s + used;
    size_t left = n - used;
    if (left && !(left == 1 && (rest[0] | 0x20) == 'b') && !(left == 2 && !strncasecmp(rest, "ib", 2)))
        return false;
    *out = (uint64_t)v;
    return true;
}

bool num_duration(const char *s, size_t n, double *out)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    enum { UNITS = sizeof units / sizeof *units };
    double sum = 0, sign = n && *s == '-' ? -1 : 1;
    size_t at = sign < 0, whole = 0;
    do {
        size_t d = num_digits(s + at, n - at);
        if (at + d < n && s[at + d] == '.')
            d += 1 + num_digits(s + at + d + 1, n - at - d - 1);
        double v;
        if (!num_f64(s + at, d, 0, 1e12, &v))
            return false;
        at += d;
        whole++;
        if (at == n && whole == 1) { /* a bare number */
            *out = sign * v;
            return true;
        }
        int u = 0; /* the longer names stand first */
        while (u < UNITS && strncmp(s + at, units[u].name, strlen(units[u].name)) != 0)
            u++;
        if (u == UNITS || at + strlen(units[u].name) > n)
            return false;
        sum += v * units[u].seconds;
        at += strlen(units[u].name);
    } while (at < n);
    *out = sign * sum;
    return true;
}
