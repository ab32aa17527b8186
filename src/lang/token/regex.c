/* See regex.h. What Oniguruma means by \s (no U+180E), \w (marks and circled letters too), \b and \h (a
 * hexadecimal digit) is not what PCRE2 means: they are spelled out before compiling. */
#define _GNU_SOURCE
#define PCRE2_CODE_UNIT_WIDTH 8
#include "lang/token/regex.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "lang/token/unicode.h"

#include <pcre2.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#define MATCH_LIMIT  20000000
#define HEAP_LIMIT   (256 * 1024) /* KiB */
#define SECONDS      10 /* of the processor, for all that a run does, and this much more for each byte */
#define SECONDS_BYTE 2e-6
#define WINDOW       16 /* places that are tried between two looks at the clock, at first */

struct regex {
    pcre2_code *code;
};

struct regex_run {
    pcre2_match_data *data;
    pcre2_match_context *limits;
    size_t window, bytes; /* bytes: that it has gone over */
    double looked, begun; /* when the clocks were last looked at, and what the processor's said first */
};

#define SPACES                                                                                               \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

#define WORDS                                                                                                \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\xb2\\xb3\\xb9\\xbc-\\xbe\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"    \
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
#define BEHIND     "(?<=[" WORDS "])"
#define AHEAD      "(?=[" WORDS "])"
#define NOT_BEHIND "(?<![" WORDS "])"
#define NOT_AHEAD  "(?![" WORDS "])"

static const struct {
    char letter;
    const char *alone, *in_class; /* NULL = as it is */
} spelled[] = {{'s', "[" SPACES "]", SPACES},
               {'S', "[^" SPACES "]", NULL},
               {'w', "[" WORDS "]", WORDS},
               {'W', "[^" WORDS "]", NULL},
               {'h', "[0-9a-fA-F]", "0-9a-fA-F"},
               {'b', "(?:" BEHIND NOT_AHEAD "|" NOT_BEHIND AHEAD ")", NULL},
               {'B', "(?:" BEHIND AHEAD "|" NOT_BEHIND NOT_AHEAD ")", NULL}};

/* Characters of a category ("L", "Lu") that PCRE2's older tables do not know, as ranges of a class. */
static void later_ranges(struct buf *out, const char *name, size_t n)
{
    static const char *const two[] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                      "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                      "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
    uint32_t mask = 0, from = 0;
    for (int i = 1; i < 30; i++)
        if (!strncmp(two[i], name, n) && n <= 2)
            mask |= 1u << i;
    for (uint32_t cp = 0x80; mask && cp < 0x110000; cp++) {
        bool in = unicode_after_14(cp) && unicode_class(cp) & mask;
        if (in && !from)
            from = cp;
        if (!in && from) {
            buf_printf(out, "\\x{%x}-\\x{%x}", from, cp - 1);
            from = 0;
        }
    }
}

/* \p{X} or \P{X} at p: what it takes of the pattern, 0 = it is neither. */
static size_t property(struct buf *out, const char *p, size_t n, bool in_class)
{
    const char *end = n > 3 && (p[1] == 'p' || p[1] == 'P') && p[2] == '{' ? memchr(p, '}', n) : NULL;
    if (!end || (p[1] == 'P' && in_class) || p[3] == '^')
        return 0;
    size_t len = (size_t)(end - p) + 1;
    if (!in_class)
        buf_str(out, p[1] == 'P' ? "[^" : "[");
    buf_str(out, "\\p");
    buf_add(out, p + 2, len - 2);
    later_ranges(out, p + 3, len - 4);
    if (!in_class)
        buf_char(out, ']');
    return len;
}

/* A text of the table, which has properties inside of classes. */
static void spell(struct buf *out, const char *text)
{
    for (size_t n = strlen(text), i = 0; i < n;) {
        size_t taken = text[i] == '\\' ? property(out, text + i, n - i, true) : 0;
        if (!taken)
            buf_char(out, text[i]);
        i += taken ? taken : 1;
    }
}

/* The pattern with those spelled out. */
static void translate(struct buf *out, const char *p, size_t n)
{
    bool in_class = false;
    for (size_t i = 0; i < n; i++) {
        size_t taken = p[i] == '\\' ? property(out, p + i, n - i, in_class) : 0;
        if (taken) {
            i += taken - 1;
            continue;
        }
        if (p[i] == '\\' && i + 1 < n) {
            char c = p[++i];
            const char *text = NULL;
            for (size_t k = 0; k < sizeof spelled / sizeof *spelled; k++)
                if (spelled[k].letter == c)
                    text = in_class ? spelled[k].in_class : spelled[k].alone;
            if (!text)
                buf_char(out, '\\');
            if (text)
                spell(out, text);
            else
                buf_char(out, c);
            continue;
        }
        if (p[i] == '[')
            in_class = true;
        else if (p[i] == ']')
            in_class = false;
        buf_char(out, p[i]);
    }
}

int regex_open(struct regex **out, const char *pattern, size_t n, struct err *e)
{
    struct buf text = {.max = 1 << 20};
    translate(&text, pattern, n);
    struct regex *r = mem_zalloc(1, sizeof *r);
    if (!r || text.failed) {
        mem_free(r);
        buf_free(&text);
        return err_memory(e, "a regular expression", n);
    }
    int code;
    size_t at;
    r->code = pcre2_compile((PCRE2_SPTR)(text.data ? text.data : ""), text.len,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_MULTILINE |
                                PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT,
                            &code, &at, NULL);
    buf_free(&text);
    if (!r->code) {
        unsigned char why[128];
        pcre2_get_error_message(code, why, sizeof why);
        regex_close(r);
        return err_set(e, ERR_DATA, "the pattern '%s' does not compile: %s", log_safe_n(pattern, n),
                       (char *)why);
    }
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    *out = r;
    return 0;
}

void regex_close(struct regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    mem_free(r);
}

/* Seconds that this thread has run. */
static double regex_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct regex_run *regex_run_open(void)
{
    struct regex_run *run = mem_zalloc(1, sizeof *run);
    if (!run)
        return NULL;
    run->data = pcre2_match_data_create(1, NULL);
    run->limits = pcre2_match_context_create(NULL);
    if (!run->data || !run->limits) {
        regex_run_close(run);
        return NULL;
    }
    pcre2_set_match_limit(run->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(run->limits, HEAP_LIMIT);
    run->window = WINDOW;
    run->begun = regex_clock();
    return run;
}

void regex_run_close(struct regex_run *run)
{
    if (!run)
        return;
    pcre2_match_data_free(run->data);
    pcre2_match_context_free(run->limits);
    mem_free(run);
}

/* The limit of a match is reset at every place where one could begin, so that a pattern that is slow
 * everywhere is bounded only by the clock. The coarse one says when to look at the processor's. */
static int regex_late(struct regex_run *run, struct err *e)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    double now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec, since = now - run->looked;
    if (since < 0.05) {
        run->window = run->window < 1 << 16 ? run->window * 2 : run->window;
        return 0;
    }
    if (run->looked != 0)
        run->window = WINDOW;
    run->looked = now;
    double most = SECONDS + SECONDS_BYTE * (double)run->bytes;
    return regex_clock() - run->begun > most
               ? err_set(e, ERR_RESOURCE, "the tokenizer's pattern takes more than %.0f s on this text", most)
               : 0;
}

int regex_find(const struct regex *r, struct regex_run *run, const char *s, size_t n, size_t from,
               size_t at[2], struct err *e)
{
    int got = PCRE2_ERROR_NOMATCH;
    size_t start = from;
    for (size_t last; got == PCRE2_ERROR_NOMATCH && from <= n; from = last + 1) {
        if (regex_late(run, e))
            return -1;
        last = n - from > run->window ? from + run->window : n;
        while (last + 1 < n && ((unsigned char)s[last + 1] & 0xc0) == 0x80)
            last++; /* the next window begins with a character */
        pcre2_set_offset_limit(run->limits, last);
        got = pcre2_match(r->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, run->data, run->limits);
        if (got == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its stack on the heap */
            got = pcre2_match(r->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, run->data,
                              run->limits);
    }
    run->bytes += got > 0 ? pcre2_get_ovector_pointer(run->data)[1] - start : n - start;
    if (got == PCRE2_ERROR_NOMATCH)
        return 0;
    if (got < 0) {
        unsigned char why[128] = "";
        pcre2_get_error_message(got, why, sizeof why);
        return err_set(e, ERR_RESOURCE, "the tokenizer's pattern gave up on this text: %s", (char *)why);
    }
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(run->data);
    at[0] = v[0];
    at[1] = v[1];
    return 1;
}
