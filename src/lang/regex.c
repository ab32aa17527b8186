/* See regex.h. Two things differ between Oniguruma and PCRE2 and are rewritten before compiling: \s (PCRE2
 * counts U+180E in) and \h (a hexadecimal digit there, a blank here). */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "lang/regex.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"

#include <pcre2.h>
#include <stdbool.h>

#define MATCH_LIMIT 20000000
#define HEAP_LIMIT  (64 * 1024) /* KiB */

struct regex {
    pcre2_code *code;
    pcre2_match_context *limits;
};

struct regex_run {
    pcre2_match_data *data;
};

#define SPACES                                                                                               \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* The pattern with \s, \S and \h spelled out. */
static void translate(struct buf *out, const char *p, size_t n)
{
    bool in_class = false;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\\' && i + 1 < n) {
            char c = p[++i];
            if (c == 's')
                buf_str(out, in_class ? SPACES : "[" SPACES "]");
            else if (c == 'S' && !in_class)
                buf_str(out, "[^" SPACES "]");
            else if (c == 'h')
                buf_str(out, in_class ? "0-9a-fA-F" : "[0-9a-fA-F]");
            else {
                buf_char(out, '\\');
                buf_char(out, c);
            }
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
    r->code =
        pcre2_compile((PCRE2_SPTR)(text.data ? text.data : ""), text.len,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                      &code, &at, NULL);
    buf_free(&text);
    r->limits = pcre2_match_context_create(NULL);
    if (!r->code || !r->limits) {
        unsigned char why[128] = "out of memory";
        if (!r->code)
            pcre2_get_error_message(code, why, sizeof why);
        regex_close(r);
        return err_set(e, ERR_DATA, "the pattern '%s' does not compile: %s", log_safe_n(pattern, n),
                       (char *)why);
    }
    pcre2_set_match_limit(r->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(r->limits, HEAP_LIMIT);
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    *out = r;
    return 0;
}

void regex_close(struct regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    pcre2_match_context_free(r->limits);
    mem_free(r);
}

struct regex_run *regex_run_open(void)
{
    struct regex_run *run = mem_zalloc(1, sizeof *run);
    if (!run)
        return NULL;
    run->data = pcre2_match_data_create(1, NULL);
    if (!run->data) {
        mem_free(run);
        return NULL;
    }
    return run;
}

void regex_run_close(struct regex_run *run)
{
    if (!run)
        return;
    pcre2_match_data_free(run->data);
    mem_free(run);
}

int regex_find(const struct regex *r, struct regex_run *run, const char *s, size_t n, size_t from,
               size_t at[2], struct err *e)
{
    int got = pcre2_match(r->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, run->data, r->limits);
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
