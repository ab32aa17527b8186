/* Files for tests, written as words:
 *
 *   'text'    these bytes              z:N    N zero bytes
 *   W:V       V in W bytes, -1 too     pad:N  zeros up to a multiple of N
 *
 * "'GGUF' 4:3 8:0 8:0" is an empty GGUF file. */
#pragma once

#include "test.h"

#include "base/buf.h"
#include "base/err.h"

#include <stdio.h>
#include <string.h>

/* With 2^63-1 and its kin spelt as people do: "2^64-1", "2^31". */
static inline uint64_t bytes_number(const char *s)
{
    uint64_t v = 0;
    if (!strncmp(s, "2^", 2)) {
        char *rest;
        unsigned long p = strtoul(s + 2, &rest, 10);
        v = p < 64 ? (uint64_t)1 << p : 0;
        return v + (uint64_t)strtoll(*rest ? rest : "0", NULL, 10);
    }
    return s[0] == '-' ? (uint64_t)strtoll(s, NULL, 10) : strtoull(s, NULL, 10);
}

static inline void bytes_word(struct buf *b, const char *word, size_t n)
{
    char w[128];
    assert_true(n < sizeof w);
    memcpy(w, word, n);
    w[n] = 0;
    const char *colon = strchr(w, ':');
    if (w[0] == '\'') {
        buf_add(b, w + 1, n - 2);
        return;
    }
    assert_non_null(colon);
    uint64_t v = bytes_number(colon + 1);
    if (!strncmp(w, "s:", 2)) {
        v = strlen(colon + 1);
        buf_add(b, &v, 8);
        buf_add(b, colon + 1, v);
    } else if (!strncmp(w, "z:", 2)) {
        for (uint64_t i = 0; i < v; i++)
            buf_char(b, 0);
    } else if (!strncmp(w, "pad:", 4)) {
        while (b->len % v)
            buf_char(b, 0);
    } else {
        buf_add(b, &v, bytes_number(w));
    }
}

static inline void bytes_add(struct buf *b, const char *words)
{
    for (const char *at = words; *at;) {
        size_t n = strcspn(at, " ");
        if (n)
            bytes_word(b, at, n);
        at += n + (at[n] == ' ');
    }
}

/* The sentence of a failure that was expected; prints both when they differ. */
static inline bool bytes_said(const char *what, const struct err *e, const char *sentence)
{
    if (e->code && strcmp(e->text, sentence) == 0)
        return true;
    print_error("%s\n  said     \"%s\"\n  expected \"%s\"\n", what,
                e->code ? e->text : "(nothing: it opened)", sentence);
    return false;
}
