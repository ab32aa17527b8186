/* Unicode properties and normal forms, over one generated table (unicode_data.c) and utf8proc. */
#include "lang/token/unicode.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <string.h>
#include <utf8proc.h>

#define CAT(x) (1u << (x))
/* Ps Pe Pd ... by their places in the table: 13 Pd, 14 Ps, 15 Pe, 18 Po, 19 Sm, 20 Sc, 21 Sk, 23 Zs, 26 Cc */
#define SP  (CAT(23) | UC_SPACE)
#define CTL CAT(26)
#define WSP (CAT(26) | UC_SPACE)
#define EOL (CAT(26) | UC_SPACE | UC_NEWLINE)
#define PO  CAT(18)
#define SM  CAT(19)
#define SK  CAT(21)
/* clang-format off */
const uint32_t unicode_ascii[128] = {
    CTL, CTL, CTL, CTL, CTL, CTL, CTL, CTL, CTL, WSP, EOL, WSP, WSP, EOL, CTL, CTL,
    CTL, CTL, CTL, CTL, CTL, CTL, CTL, CTL, CTL, CTL, CTL, CTL, CTL, CTL, CTL, CTL,
    SP,  PO,  PO,  PO,  CAT(20), PO, PO,  PO,  CAT(14), CAT(15), PO, SM, PO, CAT(13), PO, PO,
    UC_ND, UC_ND, UC_ND, UC_ND, UC_ND, UC_ND, UC_ND, UC_ND, UC_ND, UC_ND, PO, PO, SM, SM, SM, PO,
    PO,  UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU,
    UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, UC_LU, CAT(14), PO, CAT(15), SK, UC_PC,
    SK,  UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL,
    UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, UC_LL, CAT(14), SM, CAT(15), SM, CTL,
};
/* clang-format on */

bool unicode_is_space(uint32_t cp)
{
    if (cp < 0x1680)
        return cp == ' ' || (cp >= 9 && cp <= 13) || cp == 0x85 || cp == 0xa0;
    return cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

bool unicode_is_old(uint32_t cp)
{
    return !(unicode_blocks[unicode_index[cp >> 7]][cp & 127] & 0x40);
}

bool unicode_is_word(uint32_t cp)
{
    if (unicode_class(cp) & (UC_L | UC_M | UC_ND | UC_NL | UC_PC))
        return true;
    /* Join_Control and Other_Alphabetic symbols: circled and squared letters */
    return cp == 0x200c || cp == 0x200d || (cp >= 0x24b6 && cp <= 0x24e9) ||
           (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) ||
           (cp >= 0x1f170 && cp <= 0x1f189);
}

bool unicode_is_han(uint32_t cp)
{
    static const uint32_t ranges[][2] = {
        {0x2e80, 0x2e99},   {0x2e9b, 0x2ef3},   {0x2f00, 0x2fd5},   {0x3005, 0x3005},   {0x3007, 0x3007},
        {0x3021, 0x3029},   {0x3038, 0x303b},   {0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfa6d},
        {0xfa70, 0xfad9},   {0x16fe2, 0x16fe3}, {0x16ff0, 0x16ff1}, {0x20000, 0x2a6df}, {0x2a700, 0x2b739},
        {0x2b740, 0x2b81d}, {0x2b820, 0x2cea1}, {0x2ceb0, 0x2ebe0}, {0x2ebf0, 0x2ee5d}, {0x2f800, 0x2fa1d},
        {0x30000, 0x3134a}, {0x31350, 0x323af}};
    if (cp < 0x2e80)
        return false;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (cp <= ranges[i][1])
            return cp >= ranges[i][0];
    return false;
}

bool unicode_is_bert_punct(uint32_t cp)
{
    if (cp < 128)
        return cp > ' ' && cp < 127 && !(unicode_ascii[cp] & (UC_L | UC_N));
    /* two that changed their category since */
    return cp == 0x166d || cp == 0x111c9 || (unicode_class(cp) & UC_P && unicode_is_old(cp));
}

bool unicode_is_bert_mark(uint32_t cp)
{
    return unicode_class(cp) & UC_MN && unicode_is_old(cp) && cp != 0x111c9;
}

static bool unicode_after_9(uint32_t cp)
{
    return unicode_blocks[unicode_index[cp >> 7]][cp & 127] & 0x20;
}

bool unicode_after_14(uint32_t cp)
{
    return unicode_blocks[unicode_index[cp >> 7]][cp & 127] & 0x80;
}

bool unicode_is_accent(uint32_t cp)
{
    return cp == 0x1cf2 || cp == 0x1cf3 ||
           (unicode_class(cp) & UC_M && !unicode_after_9(cp) && cp != 0x111c9);
}

int unicode_lower(uint32_t cp, uint32_t out[2])
{
    if (cp < 128) {
        out[0] = cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
        return 1;
    }
    if (cp == 0x130) {
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    /* what utf8proc's table (Unicode 14) does not have yet */
    static const uint32_t later[][2] = {{0x1c89, 0x1c8a}, {0xa7cb, 0x264},  {0xa7cc, 0xa7cd},
                                        {0xa7ce, 0xa7cf}, {0xa7d2, 0xa7d3}, {0xa7d4, 0xa7d5},
                                        {0xa7da, 0xa7db}, {0xa7dc, 0x19b}};
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    if (out[0] != cp)
        return 1;
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (cp == later[i][0])
            out[0] = later[i][1];
    if (cp >= 0x10d50 && cp <= 0x10d65)
        out[0] = cp + 0x20;
    if (cp >= 0x16ea0 && cp <= 0x16eb8)
        out[0] = cp + 0x1b;
    return 1;
}

/* Length of the broken sequence at s: the longest prefix of a well-formed one, at least a byte. */
static size_t broken(const unsigned char *s, size_t n)
{
    unsigned lo = 0x80, hi = 0xbf;
    size_t want;
    if (s[0] >= 0xc2 && s[0] < 0xe0)
        want = 2;
    else if (s[0] >= 0xe0 && s[0] < 0xf0)
        want = 3, lo = s[0] == 0xe0 ? 0xa0 : 0x80, hi = s[0] == 0xed ? 0x9f : 0xbf;
    else if (s[0] >= 0xf0 && s[0] < 0xf5)
        want = 4, lo = s[0] == 0xf0 ? 0x90 : 0x80, hi = s[0] == 0xf4 ? 0x8f : 0xbf;
    else
        return 1;
    size_t i = 1;
    for (; i < want && i < n && s[i] >= lo && s[i] <= hi; i++)
        lo = 0x80, hi = 0xbf;
    return i;
}

void unicode_repair(struct buf *out, const char *s, size_t n)
{
    size_t from = 0, at = 0;
    while (at < n) {
        uint32_t cp;
        size_t len = (unsigned char)s[at] < 0x80 ? 1 : utf8_decode(s + at, n - at, &cp);
        if (len) {
            at += len;
            continue;
        }
        buf_add(out, s + from, at - from);
        buf_add(out, "\xef\xbf\xbd", 3);
        at += broken((const unsigned char *)s + at, n - at);
        from = at;
    }
    buf_add(out, s + from, n - from);
}

/* Can the text be cut before this character: it neither composes with nor moves across what precedes. */
static bool boundary(uint32_t cp)
{
    return cp < 0x300 || (cp >= 0x3041 && cp <= 0x3096) || (cp >= 0x4e00 && cp <= 0x9fff) ||
           (cp >= 0xac00 && cp <= 0xd7a3);
}

#define CHUNK 512

static void normalize_chunk(struct buf *out, int options, const char *s, size_t n)
{
    /* the longest decomposition has 18 characters */
    utf8proc_int32_t *cps = mem_alloc(n * 18 + 1, sizeof *cps);
    if (!cps) {
        out->failed = true;
        return;
    }
    utf8proc_ssize_t got = utf8proc_decompose((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, cps,
                                              (utf8proc_ssize_t)(n * 18), (utf8proc_option_t)options);
    if (got >= 0)
        got = utf8proc_normalize_utf32(cps, got, (utf8proc_option_t)options);
    for (utf8proc_ssize_t i = 0; i < got; i++) {
        char utf8[4];
        buf_add(out, utf8, utf8_put((uint32_t)cps[i], utf8));
    }
    if (got < 0)
        buf_add(out, s, n);
    mem_free(cps);
}

void unicode_normalize(struct buf *out, enum unicode_form form, const char *s, size_t n)
{
    static const int options[] = {
        [UNICODE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [UNICODE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [UNICODE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [UNICODE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    size_t at = 0;
    while (at < n) {
        /* ASCII that nothing follows to compose with stays as it is */
        size_t end = at;
        while (end < n && (unsigned char)s[end] < 0x80)
            end++;
        size_t keep = end == n ? end : end > at ? end - 1 : at;
        buf_add(out, s + at, keep - at);
        at = keep;
        if (at >= n)
            break;
        size_t count = 0, len;
        uint32_t first = unicode_next(s + at, &len);
        if (unicode_after_9(first)) {
            buf_add(out, s + at, len);
            at += len;
            continue;
        }
        for (end = at; end < n; end += len, count++) {
            uint32_t cp = unicode_next(s + end, &len);
            if (unicode_after_9(cp))
                break;
            if (count && ((cp < 128) || (count >= 256 && boundary(cp)) || count >= CHUNK))
                break;
        }
        normalize_chunk(out, options[form], s + at, end - at);
        at = end;
    }
}

size_t unicode_grapheme(const char *s, size_t n, size_t at)
{
    size_t len;
    utf8proc_int32_t state = 0;
    uint32_t prev = unicode_next(s + at, &len);
    at += len;
    while (at < n) {
        uint32_t cp = unicode_next(s + at, &len);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)prev, (utf8proc_int32_t)cp, &state))
            break;
        prev = cp;
        at += len;
    }
    return at;
}
