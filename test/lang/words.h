/* A small vocabulary for the tests of constraints: every byte, pieces of JSON, an end and a control token. */
#pragma once

#include "lang/grammar/constraint.h"

#include <string.h>

static const char *const words_pieces[] = {
    "{\"",  "\":",  "\": ", "\",",   "\", \"", "\"}",  "[]",   "{}",   "true", "false", "null", ", ",
    "\n  ", "the",  " the", "name",  "abc",    "\xc3", "\xa9", "12",   "100",  "0.5",   "aaaa", "aaaaaaaa",
    "))))", "((((", "x\"",  "\\u00", "\\n\"",  "]]",   "[[[[", "bc\"", "é日",  "\"a\""};

enum {
    WORDS_PIECES = sizeof words_pieces / sizeof *words_pieces,
    WORDS_END = 256 + WORDS_PIECES,
    WORDS_CONTROL,
    WORDS_COUNT
};

static const char *words_bytes(const void *of, int32_t id, size_t *n)
{
    static char bytes[256];
    (void)of;
    if (id >= WORDS_END) {
        *n = 3;
        return "<x>";
    }
    if (id >= 256) {
        *n = strlen(words_pieces[id - 256]);
        return words_pieces[id - 256];
    }
    bytes[id] = (char)id;
    *n = 1;
    return bytes + id;
}

static enum constraint_kind words_kind(const void *of, int32_t id)
{
    (void)of;
    return id == WORDS_END ? CONSTRAINT_END : id == WORDS_CONTROL ? CONSTRAINT_NEVER : CONSTRAINT_TEXT;
}

static inline struct constraint_vocab *words_open(void)
{
    struct err e = {0};
    struct constraint_source s = {WORDS_COUNT, NULL, words_bytes, words_kind};
    struct constraint_vocab *v = constraint_vocab_open(&s, &e);
    assert_non_null(v);
    return v;
}

static inline bool words_allowed(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> id % 32 & 1;
}

/* Is the text in the language: byte by byte, and by the longest tokens, each of which its mask must allow? */
static inline bool words_accepts(struct constraint_bound *b, const char *text, size_t n)
{
    struct err e = {0};
    uint32_t mask[(WORDS_COUNT + 31) / 32];
    struct constraint_state *s = constraint_state_open(b, &e), *t = constraint_state_open(b, &e);
    assert_non_null(s);
    assert_non_null(t);
    bool bytes = !constraint_accept_bytes(s, text, n, NULL) && constraint_accepts_end(s), tokens = true;
    for (size_t at = 0, len; at < n && tokens; at += len) {
        int32_t best = (uint8_t)text[at];
        len = 1;
        for (int32_t id = 256; id < WORDS_END; id++) {
            size_t k = strlen(words_pieces[id - 256]);
            if (k > len && k <= n - at && !memcmp(words_pieces[id - 256], text + at, k)) {
                best = id;
                len = k;
            }
        }
        struct err none = {0};
        bool allowed = !constraint_mask(t, mask, &none) && words_allowed(mask, best);
        tokens = !constraint_accept(t, best, NULL);
        assert_int_equal(allowed, tokens);
    }
    tokens = tokens && constraint_accepts_end(t);
    assert_int_equal(bytes, tokens);
    constraint_state_close(s);
    constraint_state_close(t);
    return bytes;
}

/* Texts that are in the language of c and texts that are not, up to eight each; c is done with then. `warm`: with masks
 * made beforehand. */
static inline void words_check(const struct constraint_vocab *v, struct constraint *c, const char *source,
                               bool warm, const char *const yes[8], const char *const no[8])
{
    struct err e = {0};
    struct constraint_bound *b = constraint_bind(c, v, 4 << 20, &e);
    assert_non_null(b);
    if (warm)
        constraint_warm(b);
    for (size_t k = 0; k < 8 && yes[k]; k++)
        if (!words_accepts(b, yes[k], strlen(yes[k])))
            fail_msg("%s refuses %s", source, yes[k]);
    for (size_t k = 0; k < 8 && no[k]; k++)
        if (words_accepts(b, no[k], strlen(no[k])))
            fail_msg("%s accepts %s", source, no[k]);
    constraint_unbind(b);
    constraint_free(c);
}
