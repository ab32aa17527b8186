/* A constraint that begins behind reasoning, or where the prompt has begun it; and where it lets the text end. */
#include "test.h"

#include "base/mem.h"
#include "lang/grammar/constraint.h"
#include "lang/chat/output.h"
#include "run/constraint_cache.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* All bytes, a token that ends, one that has no text, and tokens in which a mark ends together with what follows. */
enum { END = 256, SILENT, MERGED };
static char bytes[256];
static const char *const merged[] = {">\n\n", ">\n\nHi",       "</think>", "</think>six.",
                                     "k>s",   "k> \t\r\n sea", ">six.x"};
enum { MERGES = sizeof merged / sizeof *merged, VOCAB = MERGED + MERGES };

static const char *token_text(const void *of, int32_t id, size_t *n)
{
    (void)of;
    const char *text = id < END ? bytes + id : id < MERGED ? "" : merged[id - MERGED];
    *n = id < END ? 1 : strlen(text);
    return text;
}

static enum constraint_kind token_kind(const void *of, int32_t id)
{
    (void)of;
    return id == END ? CONSTRAINT_END : id == SILENT ? CONSTRAINT_NEVER : CONSTRAINT_TEXT;
}

static struct constraint_vocab *open_vocab(void)
{
    struct err e = {0};
    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    return constraint_vocab_open(
        &(struct constraint_source){.count = VOCAB, .bytes = token_text, .kind = token_kind}, &e);
}

static const char *const words[] = {"one.", "two.", "six.", "sea"};

/* A rule of these words. */
static struct constraint_ref *open_constraint(const struct constraint_vocab *v, const char *behind,
                                              const char *lead)
{
    struct err e = {0};
    struct constraint_ref *r;
    struct constraint *c = constraint_from(
        &(struct constraint_spec){.language = LANGUAGE_CHOICES, .choices = words, .n = 4, .behind = behind},
        &e);
    assert_int_equal(constraint_ref_open(&r, c, v, &e), 0);
    assert_int_equal(lead ? constraint_ref_set_lead(r, lead, &e) : 0, 0);
    return r;
}

/* The tokens of one byte that may come next, $ for the end; "*" = everything. */
static void next(struct constraint_walk *w, const char *want)
{
    const uint32_t *mask;
    struct err e = {0};
    char got[260];
    size_t n = 0;
    assert_int_equal(constraint_walk_next(w, &mask, &e), 0);
    if (!mask)
        got[n++] = '*';
    for (int i = 1; mask && i <= END; i++)
        if (mask[i / 32] >> i % 32 & 1)
            got[n++] = i < END ? (char)i : '$';
    got[n] = 0;
    assert_string_equal(got, want);
}

static bool allowed(struct constraint_walk *w, int32_t id)
{
    const uint32_t *mask;
    struct err e = {0};
    assert_int_equal(constraint_walk_next(w, &mask, &e), 0);
    return !mask || mask[id / 32] >> id % 32 & 1;
}

/* Tokens of one byte, as a job takes them. */
static void say(struct constraint_walk *w, const char *text)
{
    struct err e = {0};
    for (const char *s = text; *s; s++)
        assert_int_equal(constraint_walk_accept(w, (unsigned char)*s, &e), 0);
}

static void test_lead(void **state)
{
    (void)state;
    struct constraint_vocab *v = open_vocab();
    struct constraint_walk w;
    struct err e = {0};
    struct constraint_ref *r = open_constraint(v, NULL, "t");
    assert_int_equal(constraint_walk_open(&w, r, VOCAB, &e), 0);
    next(&w, "w");
    say(&w, "wo.");
    next(&w, "$");
    constraint_walk_close(&w);
    constraint_ref_drop(r);
    constraint_vocab_close(v);
}

/* A token may end the mark and go on: what follows is white space, or is in the language, or the token is forbidden. */
static void test_behind(void **state)
{
    (void)state;
    static const struct {
        const char *said;
        int32_t token; /* then this one, which is `good` */
        bool good;
        const char *then; /* what may follow it */
    } cases[] = {
        {"so", END, false, NULL},
        {"so</think", MERGED, true, "\t\n\r ost"},
        {"so</think", MERGED + 1, false, NULL},
        {"so", MERGED + 2, true, "\t\n\r ost"},
        {"so", MERGED + 3, true, "$"},
        {"so</thin", MERGED + 4, true, "ei"},
        {"so</thin", MERGED + 5, true, "$"},
        {"so</think", MERGED + 6, false, NULL},
        {"so</thin", MERGED + 6, true, NULL}, /* there it is text */
        {"so</think>\n\n", END, false, NULL},
        {"so</think>\n\nsix.", END, true, NULL},
        {"</</think></think>", 't', false, NULL},
        {"\xff\xc3", '<', true, NULL}, /* bytes that are no UTF-8 */
    };
    struct constraint_vocab *v = open_vocab();
    struct constraint_ref *r = open_constraint(v, "</think>", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct constraint_walk w;
        struct err e = {0};
        assert_int_equal(constraint_walk_open(&w, r, VOCAB, &e), 0);
        for (const char *s = cases[i].said; *s; s++) {
            if (!allowed(&w, (unsigned char)*s))
                assert_int_equal(cases[i].token, 't'); /* a second mark is no word */
            else
                assert_int_equal(constraint_walk_accept(&w, (unsigned char)*s, &e), 0);
        }
        if (cases[i].token != 't') {
            assert_int_equal(allowed(&w, cases[i].token), cases[i].good);
            assert_int_equal(!constraint_walk_accept(&w, cases[i].token, &e), cases[i].good);
        }
        if (cases[i].then)
            next(&w, cases[i].then);
        assert_false(allowed(&w, SILENT));
        constraint_walk_close(&w);
    }
    constraint_ref_drop(r);
    constraint_vocab_close(v);
}

/* Text in which calls may come allows everything, tokens without a text, too, until one begins. */
static void test_free_text(void **state)
{
    (void)state;
    struct constraint_vocab *v = open_vocab();
    struct err e = {0};
    json_t *tools = json_loads("[{\"name\": \"go\", \"parameters\": {\"enum\": [{}]}}]", 0, NULL);
    struct constraint *c = output_constraint(output_form_named("hermes", &e),
                                             &(struct output_rule){.tools = tools, .free = true}, &e);
    struct constraint_ref *r;
    struct constraint_walk w;
    assert_int_equal(constraint_ref_open(&r, c, v, &e), 0);
    constraint_ref_set_yielding(r);
    assert_int_equal(constraint_walk_open(&w, r, VOCAB, &e), 0);
    next(&w, "*");
    assert_true(constraint_walk_allows_all(&w) && constraint_walk_is_open(&w));
    assert_int_equal(constraint_walk_accept(&w, SILENT, &e), 0);
    say(&w, "Well <tool_call");
    assert_false(constraint_walk_yields(&w));
    assert_false(allowed(&w, MERGED + 1)); /* no call goes on like that */
    assert_true(allowed(&w, 'x') && allowed(&w, MERGED));
    say(&w, ">");
    next(&w, "\n {");
    assert_false(allowed(&w, SILENT));
    assert_true(constraint_walk_accept(&w, SILENT, &e) < 0);
    say(&w, "{\"name\": \"go\", \"arguments\": {}}</tool_call>");
    assert_true(constraint_walk_yields(&w));
    next(&w, "\n $");
    say(&w, "\n");
    next(&w, "\n $");
    assert_true(constraint_walk_yields(&w));
    constraint_walk_close(&w);
    constraint_ref_drop(r);
    json_decref(tools);
    constraint_vocab_close(v);
}

/* ---- the cache ---- */

/* A rule of this regular expression as a request gets it. */
static struct constraint_ref *get(struct constraint_cache *all, const struct constraint_vocab *v,
                                  const char *regex)
{
    struct err e = {0};
    const struct constraint_cache_key key = {v, regex, strlen(regex)};
    struct constraint_ref *r = constraint_cache_find(all, &key);
    if (r)
        return r;
    assert_int_equal(constraint_ref_open(&r, constraint_from_regex(regex, strlen(regex), &e), v, &e), 0);
    constraint_cache_keep(all, &key, r);
    return r;
}

static struct constraint_cache_stats stats_of(struct constraint_cache *all)
{
    struct constraint_cache_stats s;
    constraint_cache_stats(all, &s);
    return s;
}

/* What is asked for again is compiled once, begins where each one says, and outlives the cache. */
static void test_kept(void **state)
{
    (void)state;
    struct err e = {0};
    struct constraint_cache *all;
    struct constraint_vocab *v = open_vocab(), *other = open_vocab();
    struct constraint_walk w[2];
    assert_int_equal(constraint_cache_open(&all, CONSTRAINT_CACHE_BYTES, &e), 0);
    struct constraint_ref *a = get(all, v, "ab+c"), *b = get(all, v, "ab+c");
    assert_ptr_not_equal(a, b);
    assert_int_equal(stats_of(all).hits, 1);
    assert_int_equal(stats_of(all).kept, 1);
    assert_true(stats_of(all).bytes == constraint_ref_bytes(a) + 4 &&
                constraint_ref_bytes(a) == constraint_ref_bytes(b));
    assert_int_equal(constraint_ref_set_lead(b, "abb", &e), 0);
    struct constraint_ref *c = get(all, v, "ab+"), *d = get(all, other, "ab+c");
    assert_int_equal(stats_of(all).misses, 3); /* another text, another vocabulary */
    constraint_cache_close(all);
    constraint_ref_drop(c);
    constraint_ref_drop(d);
    assert_int_equal(constraint_walk_open(&w[0], a, VOCAB, &e) | constraint_walk_open(&w[1], b, VOCAB, &e),
                     0);
    constraint_ref_drop(a);
    constraint_ref_drop(b);
    next(&w[0], "a");
    next(&w[1], "bc");
    say(&w[0], "a");
    next(&w[0], "b");
    constraint_walk_close(&w[0]);
    constraint_walk_close(&w[1]);
    constraint_vocab_close(v);
    constraint_vocab_close(other);
}

static void test_bounded(void **state)
{
    (void)state;
    struct err e = {0};
    struct constraint_cache *all;
    struct constraint_vocab *v = open_vocab();
    char text[16];
    assert_int_equal(constraint_cache_open(&all, CONSTRAINT_CACHE_BYTES, &e), 0);
    constraint_ref_drop(get(all, v, "[a-z]+"));
    size_t each = stats_of(all).bytes;
    constraint_cache_close(all);
    assert_int_equal(constraint_cache_open(&all, 4 * each, &e), 0);
    for (int i = 0; i < 20; i++) {
        snprintf(text, sizeof text, "[a-z]%02d", i);
        constraint_ref_drop(get(all, v, text));
        constraint_ref_drop(get(all, v, "[a-z]00")); /* asked for all the time */
        assert_true(stats_of(all).bytes <= 4 * each && stats_of(all).kept >= (i ? 2 : 1));
    }
    assert_int_equal(stats_of(all).misses, 20);
    constraint_ref_drop(get(all, v, "[a-z]19"));
    assert_int_equal(stats_of(all).misses, 20);
    constraint_ref_drop(get(all, v, "[a-z]01"));
    assert_int_equal(stats_of(all).misses, 21);
    /* without memory it forgets */
    for (long n = 1; n < 3; n++) {
        struct constraint_ref *r = get(all, v, "[a-z]02");
        mem_fail_at(n);
        constraint_cache_keep(all, &(struct constraint_cache_key){v, "new", 3}, r);
        mem_fail_at(0);
        constraint_ref_drop(r);
        assert_null(constraint_cache_find(all, &(struct constraint_cache_key){v, "new", 3}));
    }
    constraint_cache_close(all);
    constraint_vocab_close(v);
}

struct asker {
    pthread_t thread;
    struct constraint_cache *all;
    const struct constraint_vocab *v;
    int number;
};

static void *ask_often(void *arg)
{
    struct asker *a = arg;
    struct err e = {0};
    for (int i = 0; i < 60; i++) {
        char text[16];
        struct constraint_walk w;
        const uint32_t *mask;
        snprintf(text, sizeof text, "%c[a-c]*", 'a' + (i * 7 + a->number) % 5);
        struct constraint_ref *r = get(a->all, a->v, text);
        if (constraint_walk_open(&w, r, VOCAB, &e) || constraint_walk_next(&w, &mask, &e) ||
            constraint_walk_only(&w, mask) != text[0] || constraint_walk_accept(&w, text[0], &e))
            a->number = -1;
        constraint_walk_close(&w);
        constraint_ref_drop(r);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct err e = {0};
    struct asker askers[3];
    struct constraint_cache *all;
    struct constraint_vocab *v = open_vocab();
    assert_int_equal(constraint_cache_open(&all, 6 << 20, &e), 0); /* about two of them */
    for (int i = 0; i < 3; i++) {
        askers[i] = (struct asker){.all = all, .v = v, .number = i};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_often, &askers[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(askers[i].thread, NULL);
        assert_int_equal(askers[i].number, i);
    }
    assert_int_equal(stats_of(all).hits + stats_of(all).misses, 180);
    constraint_cache_close(all);
    constraint_vocab_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lead),      cmocka_unit_test(test_behind),
                                       cmocka_unit_test(test_free_text), cmocka_unit_test(test_kept),
                                       cmocka_unit_test(test_bounded),   cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
