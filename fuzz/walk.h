/* For the targets of constraints: a walk through what compiled, with a small vocabulary. Whatever the mask allows is
 * accepted and what it does not is refused; taking back leads to the same mask. */
#pragma once

#include "lang/grammar/constraint.h"

#include <stdlib.h>
#include <string.h>

static const char *const walk_pieces[] = {"\": ",  "\",", "{\"",      "true", "null", "abc", "aaaa",
                                          "\\u00", "12",  "\xc3\xa9", "}]",   "((",   "))"};

enum { WALK_PIECES = sizeof walk_pieces / sizeof *walk_pieces, WALK_END = 256 + WALK_PIECES, WALK_COUNT };

static const char *walk_bytes(const void *of, int32_t id, size_t *n)
{
    static char bytes[256];
    (void)of;
    if (id >= 256) {
        *n = id < WALK_END ? strlen(walk_pieces[id - 256]) : 0;
        return id < WALK_END ? walk_pieces[id - 256] : "";
    }
    bytes[id] = (char)id;
    *n = 1;
    return bytes + id;
}

static enum constraint_kind walk_kind(const void *of, int32_t id)
{
    (void)of;
    return id == WALK_END ? CONSTRAINT_END : CONSTRAINT_TEXT;
}

enum { WALK_WORDS = (WALK_COUNT + 31) / 32 };

/* The forced text as tokens begins with the forced text. */
static void walk_forced(struct constraint_state *s, const char *forced, size_t n)
{
    int32_t ids[16];
    size_t count = constraint_forced_tokens(s, ids, 16), at = 0;
    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        const char *text = walk_bytes(NULL, ids[i], &bytes);
        if (bytes > n - at || memcmp(text, forced + at, bytes) != 0)
            abort();
        at += bytes;
    }
}

/* Up to `most` steps; the text so far goes to out. True when the text ended. */
static bool walk_steps(struct constraint_state *s, const uint8_t *data, size_t size, char *out, size_t *len,
                       size_t most)
{
    uint32_t mask[WALK_WORDS], again[WALK_WORDS], seed = 2166136261u;
    char forced[256];
    for (size_t i = 0; i < size; i++)
        seed = (seed ^ data[i]) * 16777619u;
    *len = 0;
    for (size_t step = 0; step < most; step++) {
        struct err e = {0};
        if (constraint_mask(s, mask, &e)) {
            if (!e.code)
                abort();
            return false;
        }
        int32_t pick = -1;
        uint32_t from = (seed = seed * 1664525u + 1013904223u) >> 8;
        for (uint32_t i = 0; i < WALK_COUNT; i++) {
            int32_t id = (int32_t)((from + i) % WALK_COUNT);
            bool allowed = mask[id / 32] >> id % 32 & 1;
            if (i < 8 || (allowed && pick < 0)) {
                struct err why = {0};
                bool accepted = constraint_accept(s, id, &why) == 0;
                if (why.code == ERR_RESOURCE)
                    return false;
                if (accepted != allowed)
                    abort();
                if (allowed && constraint_rollback(s, 1, NULL))
                    abort();
            }
            pick = allowed && pick < 0 ? id : pick;
        }
        size_t n = constraint_forced(s, forced, sizeof forced);
        walk_forced(s, forced, n);
        if (constraint_mask(s, again, &e) && e.code == ERR_RESOURCE)
            return false;
        if (e.code || memcmp(mask, again, sizeof mask) || pick < 0)
            abort();
        if (pick == WALK_END)
            return true;
        size_t bytes;
        const char *text = walk_bytes(NULL, pick, &bytes);
        if (memcmp(text, forced, n < bytes ? n : bytes))
            abort();
        if (constraint_accept(s, pick, &e) && e.code == ERR_RESOURCE)
            return false;
        if (e.code)
            abort();
        memcpy(out + *len, text, bytes);
        *len += bytes;
    }
    return false;
}

/* Walks, and closes the constraint. True when a text ended: it is in out. */
static bool walk_constraint(struct constraint *c, const uint8_t *data, size_t size, char *out, size_t *len,
                            size_t most)
{
    static struct constraint_vocab *v;
    struct err e = {0};
    struct constraint_source source = {WALK_COUNT, NULL, walk_bytes, walk_kind};
    if (!v)
        v = constraint_vocab_open(&source, &e);
    struct constraint_bound *b = constraint_bind(c, v, 2 << 20, &e);
    struct constraint_state *s = b ? constraint_state_open(b, &e) : NULL;
    if (b && size % 2)
        constraint_warm(b);
    bool ended = s && walk_steps(s, data, size, out, len, most);
    constraint_state_close(s);
    constraint_unbind(b);
    constraint_free(c);
    return ended;
}
