/* Inputs that are JSON, and a mutator that changes their structure rather than their bytes: types swapped, members
 * deleted, doubled, renamed, moved and nested, numbers and strings replaced by extremes. One document may hold several
 * files: {"config.json": {...}, "tokenizer_config.json": {...}}.
 *
 * A tree cannot hold everything that a text can, so two marks stand for the rest, and structure_write resolves them:
 * a key that ends with '#' is written without it (a duplicate key), and a string that begins with '@' is written
 * without its quotes (NaN, 1e999). */
#pragma once

#include "base/buf.h"
#include "base/mem.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *a, size_t an, const uint8_t *b, size_t bn, uint8_t *out,
                                 size_t most, unsigned seed);
/* libFuzzer's; a replay has none. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most) __attribute__((weak));

enum { STRUCTURE_SLOTS = 4096 };

/* Where a value stands: a member of an object, or an item of an array. */
struct structure_slot {
    json_t *in;
    const char *key; /* NULL = an item */
    size_t at;
};

struct structure {
    struct structure_slot slots[STRUCTURE_SLOTS];
    size_t count;
    uint32_t seed;
};

static uint32_t structure_random(struct structure *s, uint32_t below)
{
    s->seed = s->seed * 1664525u + 1013904223u;
    return below ? (s->seed >> 8) % below : 0;
}

static void structure_walk(struct structure *s, json_t *v)
{
    const char *key;
    json_t *one;
    size_t i;
    json_object_foreach(v, key, one)
    {
        if (s->count < STRUCTURE_SLOTS)
            s->slots[s->count++] = (struct structure_slot){v, key, 0};
        structure_walk(s, one);
    }
    json_array_foreach(v, i, one)
    {
        if (s->count < STRUCTURE_SLOTS)
            s->slots[s->count++] = (struct structure_slot){v, NULL, i};
        structure_walk(s, one);
    }
}

/* Any place of the document. False where it has none. Vocabularies are long: every other pick prefers a container. */
static bool structure_pick(struct structure *s, json_t *doc, struct structure_slot *out)
{
    s->count = 0;
    structure_walk(s, doc);
    if (!s->count)
        return false;
    uint32_t tries = structure_random(s, 2) ? 8 : 1;
    do {
        *out = s->slots[structure_random(s, (uint32_t)s->count)];
    } while (--tries && out->key && json_is_number(json_object_get(out->in, out->key)));
    return true;
}

static json_t *structure_at(const struct structure_slot *p)
{
    return p->key ? json_object_get(p->in, p->key) : json_array_get(p->in, p->at);
}

/* Takes the value over. */
static void structure_put(const struct structure_slot *p, json_t *v)
{
    if (!v)
        return;
    if (p->key)
        json_object_set_new(p->in, p->key, v);
    else
        json_array_set_new(p->in, p->at, v);
}

static json_t *structure_number(struct structure *s)
{
    static const json_int_t whole[] = {0,
                                       1,
                                       -1,
                                       2,
                                       3,
                                       7,
                                       64,
                                       100,
                                       255,
                                       256,
                                       1 << 16,
                                       1 << 22,
                                       4194305,
                                       1 << 24,
                                       INT32_MAX,
                                       INT32_MIN,
                                       4294967295,
                                       4294967296,
                                       9007199254740993,
                                       INT64_MAX,
                                       INT64_MIN};
    static const double real[] = {0.5, -0.5, 1.5, 1e-300, 1e30, -1e30, 1e300, 4294967296.5, 1e-9, 3.0};
    static const char *const raw[] = {"@NaN", "@-Infinity", "@1e999", "@99999999999999999999999",
                                      "@-0",  "@01",        "@1e"};
    uint32_t kind = structure_random(s, 8);
    if (kind == 0)
        return json_string(raw[structure_random(s, sizeof raw / sizeof *raw)]);
    if (kind < 3)
        return json_real(real[structure_random(s, sizeof real / sizeof *real)]);
    return json_integer(whole[structure_random(s, sizeof whole / sizeof *whole)]);
}

static json_t *structure_long_string(struct structure *s)
{
    static const char *const units[] = {"a", " ", "\xc3\xa9", "\xef\xb7\xba", "(a+)+", "[", "\\", "{{"};
    const char *unit = units[structure_random(s, sizeof units / sizeof *units)];
    struct buf b = {0};
    for (uint32_t n = 1u << structure_random(s, 10); n--;)
        buf_str(&b, unit);
    json_t *v = json_stringn(b.data, b.len);
    buf_free(&b);
    return v;
}

static json_t *structure_string(struct structure *s, const json_t *was)
{
    static const char *const odd[] = {"",          "\xe2\x96\x81", " ",           "a",
                                      "##",        "<0x41>",       "<0xZZ>",      "\xf0\x9f\x98\x80",
                                      "../../x",   "%s%n",         "NaN",         "-1",
                                      "null",      "(?:a|b)*c",    "(a+)+$",      "[^\\s\\p{L}\\p{N}]+",
                                      "\\p{Lu}?",  "(?<=a)b",      "Regex",       "BPE",
                                      "Unigram",   "WordPiece",    "linear",      "yarn",
                                      "longrope",  "llama",        "system",      "user",
                                      "assistant", "tool",         "text",        "function",
                                      "auto",      "required",     "json_schema", "{\"a\": 1}"};
    char bytes[256];
    size_t n = was ? json_string_length(was) : 0;
    if (was && n < 200 && LLVMFuzzerMutate && structure_random(s, 2)) {
        memcpy(bytes, json_string_value(was), n);
        json_t *v = json_stringn(bytes, LLVMFuzzerMutate((uint8_t *)bytes, n, sizeof bytes));
        if (v)
            return v;
    }
    return structure_random(s, 8) ? json_string(odd[structure_random(s, sizeof odd / sizeof *odd)])
                                  : structure_long_string(s);
}

static json_t *structure_any(struct structure *s)
{
    switch (structure_random(s, 8)) {
    case 0:
        return json_null();
    case 1:
        return json_true();
    case 2:
        return json_false();
    case 3:
        return structure_number(s);
    case 4:
        return structure_string(s, NULL);
    case 5:
        return structure_random(s, 2) ? json_array() : json_pack("[i, s, n, {}]", 1, "a");
    case 6:
        return structure_random(s, 2) ? json_object() : json_pack("{s: i, s: s}", "id", 1, "type", "a");
    default:
        return json_pack("[[], {}]");
    }
}

static json_t *structure_nest(struct structure *s, const json_t *v)
{
    uint32_t depth = structure_random(s, 6) ? 1 + structure_random(s, 3) : 60 + structure_random(s, 10);
    json_t *out = json_deep_copy(v);
    while (out && depth--)
        out = structure_random(s, 2) ? json_pack("[o]", out) : json_pack("{s: o}", "type", out);
    return out;
}

/* A second member of the same name, or a second item. */
static void structure_double(const struct structure_slot *p)
{
    char key[128];
    json_t *v = json_deep_copy(structure_at(p));
    if (!v)
        return;
    if (!p->key) {
        json_array_insert_new(p->in, p->at, v);
        return;
    }
    snprintf(key, sizeof key, "%.120s#", p->key);
    json_object_set_new(p->in, key, v);
}

/* To the name that another member of the document has, or to one that no definition knows. */
static void structure_rename(struct structure *s, const struct structure_slot *p)
{
    const struct structure_slot *other = &s->slots[structure_random(s, (uint32_t)s->count)];
    char key[128];
    if (!p->key)
        return;
    snprintf(key, sizeof key, "%.120s", other->key && structure_random(s, 4) ? other->key : "x");
    json_t *v = json_incref(json_object_get(p->in, p->key));
    json_object_del(p->in, p->key);
    json_object_set_new(p->in, key, v);
}

static void structure_change(struct structure *s, json_t *doc)
{
    struct structure_slot p, from;
    if (!structure_pick(s, doc, &p))
        return;
    const json_t *v = structure_at(&p);
    switch (structure_random(s, 10)) {
    case 0:
    case 1:
        structure_put(&p, structure_any(s));
        break;
    case 2:
        if (p.key)
            json_object_del(p.in, p.key);
        else
            json_array_remove(p.in, p.at);
        break;
    case 3:
        structure_double(&p);
        break;
    case 4:
        structure_rename(s, &p);
        break;
    case 5:
        structure_put(&p, structure_nest(s, v));
        break;
    case 6: /* a copy of another subtree */
        from = s->slots[structure_random(s, (uint32_t)s->count)];
        structure_put(&p, json_deep_copy(structure_at(&from)));
        break;
    case 7:
        structure_put(&p, structure_number(s));
        break;
    default:
        structure_put(&p, json_is_number(v) ? structure_number(s)
                                            : structure_string(s, json_is_string(v) ? v : NULL));
    }
}

static json_t *structure_parse(const uint8_t *data, size_t size)
{
    json_t *doc = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    return json_is_object(doc) ? doc : (json_decref(doc), NULL);
}

/* The document as an input; 0 = it does not fit. Frees it. */
static size_t structure_dump(json_t *doc, uint8_t *out, size_t most)
{
    size_t n = json_dumpb(doc, (char *)out, most, JSON_COMPACT);
    json_decref(doc);
    return n <= most ? n : 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    static struct structure s;
    json_t *doc = structure_parse(data, size);
    s.seed = seed;
    if (!doc)
        doc = json_object();
    json_t *before = json_deep_copy(doc);
    for (uint32_t n = 1 + structure_random(&s, 4); n--;)
        structure_change(&s, doc);
    size_t n = structure_dump(doc, data, most);
    return n ? (json_decref(before), n) : structure_dump(before, data, most);
}

/* A subtree of one document in a place of the other. */
size_t LLVMFuzzerCustomCrossOver(const uint8_t *a, size_t an, const uint8_t *b, size_t bn, uint8_t *out,
                                 size_t most, unsigned seed)
{
    static struct structure s;
    struct structure_slot from, to;
    json_t *x = structure_parse(a, an), *y = structure_parse(b, bn);
    size_t n = 0;
    s.seed = seed;
    if (x && y && structure_pick(&s, y, &from)) {
        json_t *v = json_deep_copy(structure_at(&from));
        if (structure_pick(&s, x, &to))
            structure_put(&to, v);
        else
            json_decref(v);
        n = structure_dump(json_incref(x), out, most);
    }
    json_decref(x);
    json_decref(y);
    return n;
}

/* A value as the text of a file, with the marks resolved. */
static void structure_write(const json_t *v, struct buf *out)
{
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    for (const char *at = text; at && *at; at++) {
        const char *end = at[0] == '"' && at[1] == '@' ? strchr(at + 2, '"') : NULL;
        if (at[0] == '#' && at[1] == '"' && at[2] == ':')
            continue;
        if (end) {
            buf_add(out, at + 2, (size_t)(end - at) - 2);
            at = end;
        } else
            buf_char(out, *at);
    }
    mem_free(text); /* jansson allocates by base/mem.h */
}
