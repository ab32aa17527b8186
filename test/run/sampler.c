/* The sampler chain: what each link keeps, that draws follow the distribution, that noise depends on
 * (seed, position) alone, and that bad values are refused by name. */
#include "test.h"

#include "base/noise.h"
#include "run/sampler.h"
#include "run/stop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 8, DRAWS = 20000 };

/* Probabilities 0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.015, 0.005, shuffled over the ids. */
static const float P[VOCAB] = {0.1f, 0.4f, 0.015f, 0.25f, 0.005f, 0.15f, 0.03f, 0.05f};

static void plain(struct sampler_params *p)
{
    sampler_defaults(p);
    p->temperature = 1;
    p->top_k = 0;
    p->top_p = 1;
    p->min_p = 0;
}

static void draw(const struct sampler_params *p, const int32_t *history, size_t n, double share[VOCAB])
{
    struct err e = {0};
    struct sampler *s;
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = logf(P[i]) + 3;
    assert_int_equal(sampler_open(&s, p, VOCAB, NULL, &e), 0);
    memset(share, 0, VOCAB * sizeof *share);
    for (uint64_t pos = 0; pos < DRAWS; pos++) {
        int32_t id = sampler_pick(s, logits, history, n, pos, NULL, &e);
        assert_in_range(id, 0, VOCAB - 1);
        share[id] += 1.0 / DRAWS;
    }
    sampler_close(s);
}

/* The survivors have their renormalised probabilities, the others none. */
static void expect(const struct sampler_params *p, const char *survivors)
{
    double share[VOCAB], sum = 0;
    draw(p, NULL, 0, share);
    for (int i = 0; i < VOCAB; i++)
        sum += strchr(survivors, '0' + i) ? P[i] : 0;
    for (int i = 0; i < VOCAB; i++) {
        double want = strchr(survivors, '0' + i) ? P[i] / sum : 0;
        if (fabs(share[i] - want) > 0.015 || (want == 0 && share[i] != 0))
            fail_msg("survivors %s: token %d drawn with %.4f, wanted %.4f", survivors, i, share[i], want);
    }
}

static void test_links(void **state)
{
    (void)state;
    struct sampler_params p;
    plain(&p);
    expect(&p, "01234567");
    p.top_k = 3;
    expect(&p, "135");
    p.top_k = 100;
    expect(&p, "01234567");
    plain(&p);
    p.top_p = 0.75;
    expect(&p, "135"); /* 0.4 + 0.25 = 0.65 is not enough */
    p.top_p = 0;
    expect(&p, "1"); /* the best always stays */
    plain(&p);
    p.min_p = 0.3;
    expect(&p, "135");
    plain(&p);
    p.xtc_probability = 1;
    p.xtc_threshold = 0.12;
    expect(&p, "0245 67"); /* of 1, 3, 5 only the least stays */
    p.xtc_threshold = 0.5;
    expect(&p, "01234567");
    plain(&p);
    p.typical_p = 0.5; /* entropy 1.57 nats: -ln p is nearest for 0.25, then 0.15, then 0.4 */
    expect(&p, "135");
}

static void test_temperature(void **state)
{
    (void)state;
    struct sampler_params p;
    double share[VOCAB], z = 0;
    plain(&p);
    p.temperature = 0;
    draw(&p, NULL, 0, share);
    assert_true(share[1] > 0.999);
    p.temperature = 2;
    draw(&p, NULL, 0, share);
    for (int i = 0; i < VOCAB; i++)
        z += sqrt(P[i]);
    for (int i = 0; i < VOCAB; i++)
        assert_true(fabs(share[i] - sqrt(P[i]) / z) < 0.015);
}

struct one {
    float logit, p;
    int32_t id;
};

static int descending(const void *a, const void *b)
{
    const struct one *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : x->id - y->id;
}

/* The chain as its description says it, with every token in every link. */
static int32_t plainly(const struct sampler_params *p, const float *logits, uint32_t vocab,
                       const uint32_t *mask, uint64_t position)
{
    struct one c[1024];
    uint32_t n = 0, keep = 0;
    double sum = 0, mass = 0, best = -INFINITY;
    for (uint32_t i = 0; i < vocab; i++)
        if (!mask || mask[i / 32] >> i % 32 & 1)
            c[n++] = (struct one){.logit = logits[i], .id = (int32_t)i};
    for (uint32_t i = 0; i < n; i++)
        for (size_t b = 0; b < p->biases; b++)
            c[i].logit += p->bias[b].id == c[i].id ? p->bias[b].bias : 0;
    qsort(c, n, sizeof *c, descending);
    while (n && c[n - 1].logit == -INFINITY)
        n--;
    if (!n || p->temperature == 0)
        return n ? c[0].id : -1;
    n = p->top_k > 0 && p->top_k < n ? (uint32_t)p->top_k : n;
    for (uint32_t i = 0; i < n; i++)
        sum += c[i].p = expf(c[i].logit - c[0].logit);
    while (p->top_p < 1 && keep < n && (mass < p->top_p || !keep))
        mass += (float)(c[keep++].p / sum);
    n = p->top_p < 1 ? keep : n;
    while (p->min_p > 0 && c[n - 1].logit < c[0].logit + logf((float)p->min_p))
        n--;
    int32_t id = -1;
    for (uint32_t i = 0; i < n; i++) {
        double v =
            c[i].logit / p->temperature - log(-log(noise_uniform(p->seed, position, (uint64_t)c[i].id)));
        id = v > best ? c[i].id : id;
        best = v > best ? v : best;
    }
    return id;
}

static double next(uint64_t *at)
{
    return noise_uniform(11, ++*at, 0);
}

/* Whatever is asked for, and for vocabularies that are no whole number of anything: the token of the plain chain. */
static void test_short_ways(void **state)
{
    (void)state;
    uint64_t at = 0;
    for (uint64_t round = 0; round < 3000; round++) {
        float logits[1024];
        uint32_t vocab = 1 + (uint32_t)(1024 * next(&at) * next(&at)), mask[32] = {0};
        bool coarse = next(&at) < 0.3, masked = next(&at) < 0.5; /* coarse: many are equal */
        struct logit_bias bias[2];
        struct err e = {0};
        struct sampler *s;
        struct sampler_params p;
        double spread = 12 * next(&at), allowed = next(&at);
        for (uint32_t i = 0; i < vocab; i++) {
            float l = (float)(spread * (next(&at) + next(&at)));
            logits[i] = next(&at) < 0.02 ? -INFINITY : coarse ? roundf(l) : l;
            mask[i / 32] |= (uint32_t)(next(&at) < allowed) << i % 32;
        }
        for (int i = 0; i < 2; i++)
            bias[i] = (struct logit_bias){(int32_t)(vocab * next(&at)),
                                          next(&at) < 0.3 ? -INFINITY : (float)(8 * next(&at) - 4)};
        plain(&p);
        p.seed = round;
        p.temperature = next(&at) < 0.2 ? 0 : 3 * next(&at);
        p.top_k = next(&at) < 0.4 ? 0 : floor(1 + 1200 * pow(next(&at), 4));
        p.top_p = next(&at) < 0.4 ? 1 : next(&at);
        p.min_p = next(&at) < 0.4 ? 0 : next(&at) < 0.1 ? 1 : 0.2 * next(&at);
        p.bias = bias;
        p.biases = next(&at) < 0.4 ? 2 : 0;
        assert_int_equal(sampler_open(&s, &p, vocab, NULL, &e), 0);
        int32_t got = sampler_pick(s, logits, NULL, 0, round, masked ? mask : NULL, &e);
        int32_t want = plainly(&p, logits, vocab, masked ? mask : NULL, round);
        if (got != want)
            fail_msg(
                "round %d of %u tokens: %d, and plainly %d (top_k %g, top_p %g, min_p %g, temperature %g)",
                (int)round, vocab, got, want, p.top_k, p.top_p, p.min_p, p.temperature);
        sampler_close(s);
    }
}

/* The short way to the best token is the long one's: with a mask, with equals, with what is no number. */
static void test_plain_best(void **state)
{
    (void)state;
    struct sampler_params p;
    struct sampler *fast, *slow;
    const struct logit_bias none = {0, 0};
    struct err e = {0};
    plain(&p);
    p.temperature = 0;
    assert_int_equal(sampler_open(&fast, &p, VOCAB, NULL, &e), 0);
    p.bias = &none; /* adds nothing, but has to be added */
    p.biases = 1;
    assert_int_equal(sampler_open(&slow, &p, VOCAB, NULL, &e), 0);
    const float cases[][VOCAB] = {
        {1, 3, 2, 3, -INFINITY, 0, -1, 2},
        {-INFINITY, -9, -INFINITY, -9},
        {0, NAN},
        {0, INFINITY},
        {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t mask = 0; mask < 256; mask++) {
            struct err a = {0}, b = {0};
            const uint32_t *m = mask ? &mask : NULL;
            assert_int_equal(sampler_pick(fast, cases[i], NULL, 0, 0, m, &a),
                             sampler_pick(slow, cases[i], NULL, 0, 0, m, &b));
            assert_string_equal(a.text, b.text);
        }
    sampler_close(fast);
    sampler_close(slow);
}

/* The same over a vocabulary of several pieces and a rest, with few values, so that many are equal. */
static void test_plain_best_of_many(void **state)
{
    (void)state;
    enum { MANY = 1000 };
    struct sampler_params p;
    struct sampler *fast, *slow;
    const struct logit_bias none = {0, 0};
    struct err e = {0};
    srand(7);
    plain(&p);
    p.temperature = 0;
    assert_int_equal(sampler_open(&fast, &p, MANY, NULL, &e), 0);
    p.bias = &none;
    p.biases = 1;
    assert_int_equal(sampler_open(&slow, &p, MANY, NULL, &e), 0);
    for (int round = 0; round < 2000; round++) {
        float logits[MANY];
        uint32_t mask[(MANY + 31) / 32];
        for (size_t i = 0; i < MANY; i++)
            logits[i] = (float)(rand() % 40);
        if (round % 4 == 1)
            logits[rand() % MANY] = NAN;
        if (round % 4 == 2)
            logits[rand() % MANY] = round % 8 == 2 ? INFINITY : -INFINITY;
        for (size_t i = 0; i < sizeof mask / sizeof *mask; i++)
            mask[i] = (uint32_t)(rand() & rand() & rand());
        struct err a = {0}, b = {0};
        const uint32_t *m = round % 3 ? mask : NULL;
        assert_int_equal(sampler_pick(fast, logits, NULL, 0, 0, m, &a),
                         sampler_pick(slow, logits, NULL, 0, 0, m, &b));
        assert_string_equal(a.text, b.text);
    }
    sampler_close(fast);
    sampler_close(slow);
}

static void test_penalties(void **state)
{
    (void)state;
    struct sampler_params p;
    double share[VOCAB];
    const int32_t history[] = {1, 3, 1, 2};
    plain(&p);
    p.presence_penalty = 100;
    p.repeat_last_n = -1;
    draw(&p, history, 4, share);
    assert_true(share[1] == 0 && share[3] == 0 && share[2] == 0 && share[5] > 0.3);
    p.repeat_last_n = 2; /* looks at 1 and 2 only */
    draw(&p, history, 4, share);
    assert_true(share[1] == 0 && share[3] > 0.3);
    p.repeat_last_n = 0;
    draw(&p, history, 4, share);
    assert_true(share[1] > 0.35);
    plain(&p);
    p.frequency_penalty = (double)logf(2); /* twice seen: a quarter of the odds */
    draw(&p, history, 4, share);
    assert_true(fabs(share[1] / share[0] - 0.4 / 4 / 0.1) < 0.15);
    const struct logit_bias bias[] = {{1, -INFINITY}, {4, 100}};
    plain(&p);
    p.bias = bias;
    p.biases = 2;
    draw(&p, NULL, 0, share);
    assert_true(share[4] > 0.999);
    p.biases = 1;
    draw(&p, NULL, 0, share);
    assert_true(share[1] == 0 && share[3] > 0.3);
}

static void test_dry(void **state)
{
    (void)state;
    struct sampler_params p;
    double share[VOCAB];
    const int32_t history[] = {5, 3, 0, 1, 7, 5, 3, 0}; /* 5 3 0 came before, followed by 1 */
    plain(&p);
    p.dry_multiplier = 10;
    draw(&p, history, 8, share);
    assert_true(share[1] < 0.001 && share[3] > 0.3);
    p.dry_allowed_length = 4;
    draw(&p, history, 8, share);
    assert_true(share[1] > 0.35);
    p.dry_allowed_length = 2;
    uint8_t breaker[VOCAB] = {[0] = 1};
    p.dry_breaker = breaker;
    draw(&p, history, 8, share);
    assert_true(share[1] > 0.35);
}

static void test_mirostat(void **state)
{
    (void)state;
    struct sampler_params p;
    double share[VOCAB];
    for (int version = 1; version <= 2; version++) {
        plain(&p);
        p.mirostat = version;
        p.mirostat_tau = 1;
        draw(&p, NULL, 0, share);
        double surprise = 0;
        for (int i = 0; i < VOCAB; i++)
            surprise -= share[i] * log2(P[i]);
        assert_true(surprise < 2.2); /* the plain distribution has 2.35 bits */
        assert_true(share[1] > 0.45);
    }
}

static void test_seed(void **state)
{
    (void)state;
    struct err e = {0};
    struct sampler_params p;
    struct sampler *a, *b, *c;
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = logf(P[i]);
    plain(&p);
    p.seed = 42;
    struct sampler_room *room; /* all three share it */
    assert_int_equal(sampler_room_open(&room, VOCAB, &e), 0);
    assert_int_equal(sampler_open(&a, &p, VOCAB, room, &e) | sampler_open(&b, &p, VOCAB, room, &e), 0);
    p.seed = 43;
    assert_int_equal(sampler_open(&c, &p, VOCAB, room, &e), 0);
    int differ = 0, last = 0;
    for (uint64_t pos = 0; pos < 200; pos++) {
        int32_t x = sampler_pick(a, logits, NULL, 0, pos, NULL, &e);
        /* b is asked in another order: the position alone decides */
        int32_t y = sampler_pick(b, logits, NULL, 0, 199 - pos, NULL, &e);
        int32_t z = sampler_pick(b, logits, NULL, 0, pos, NULL, &e);
        assert_int_equal(x, z);
        differ += x != sampler_pick(c, logits, NULL, 0, pos, NULL, &e);
        last += x != y;
    }
    assert_true(differ > 50 && last > 50);
    uint32_t mask = 1u << 4 | 1u << 6;
    for (uint64_t pos = 0; pos < 200; pos++) {
        int32_t id = sampler_pick(a, logits, NULL, 0, pos, &mask, &e);
        assert_true(id == 4 || id == 6);
    }
    mask = 0;
    assert_int_equal(sampler_pick(a, logits, NULL, 0, 0, &mask, &e), -1);
    assert_string_equal(e.text, "no token is allowed here: every one is banned");
    e = (struct err){0};
    logits[3] = NAN;
    assert_int_equal(sampler_pick(a, logits, NULL, 0, 0, NULL, &e), -1);
    assert_int_equal(e.code, ERR_DEVICE);
    sampler_close(a);
    sampler_close(b);
    sampler_close(c);
    sampler_room_close(room);
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sampler_field_count; i++) {
        const struct sampler_field *f = &sampler_fields[i];
        double bad[] = {f->least - 1, f->most + 1, NAN, f->whole ? 0.5 : NAN};
        for (int k = 0; k < 4; k++) {
            struct sampler_params p;
            struct err e = {0};
            sampler_defaults(&p);
            assert_int_equal(sampler_check(&p, VOCAB, &e), 0);
            *(double *)((char *)&p + f->offset) = bad[k];
            assert_int_equal(sampler_check(&p, VOCAB, &e), -1);
            assert_int_equal(e.code, ERR_USAGE);
            assert_true(!strncmp(e.text, f->name, strlen(f->name)));
        }
    }
    struct sampler_params p;
    struct err e = {0};
    const struct logit_bias bias = {VOCAB, 1};
    sampler_defaults(&p);
    p.bias = &bias;
    p.biases = 1;
    assert_int_equal(sampler_check(&p, VOCAB, &e), -1);
    assert_string_equal(e.text, "logit_bias names token 8; the vocabulary has 0 to 7");
}

/* A large vocabulary: top-p without top-k, checked against a full sort. */
static void test_large(void **state)
{
    (void)state;
    enum { N = 50000 };
    struct err e = {0};
    struct sampler_params p;
    struct sampler *s;
    static float logits[N];
    uint32_t x = 1;
    for (int i = 0; i < N; i++) {
        x = x * 1664525 + 1013904223;
        logits[i] = (float)(x >> 8) / (1 << 24) * 12;
    }
    logits[7] = 22;
    logits[9] = 21;
    plain(&p);
    p.top_p = 0.7;
    assert_int_equal(sampler_open(&s, &p, N, NULL, &e), 0);
    for (uint64_t pos = 0; pos < 50; pos++) {
        int32_t id = sampler_pick(s, logits, NULL, 0, pos, NULL, &e);
        assert_true(id == 7 || id == 9);
    }
    sampler_close(s);
    assert_true(fabs(exp(sampler_logprob(logits, N, 7)) - 0.55) < 0.2);
}

static void test_stop(void **state)
{
    (void)state;
    static const char *const strings[] = {"\n\n", "END", "</s>"};
    static const char text[] = "one\ntwo E EN <</s ENDless";
    for (size_t piece = 1; piece < 6; piece++) {
        struct stop s = {.strings = strings, .count = 3};
        struct buf out = {0};
        bool hit = false;
        for (size_t at = 0; at < sizeof text - 1 && !hit; at += piece) {
            size_t n = sizeof text - 1 - at < piece ? sizeof text - 1 - at : piece;
            hit = stop_feed(&s, text + at, n, &out);
        }
        stop_flush(&s, &out);
        assert_true(hit);
        assert_string_equal(out.data, "one\ntwo E EN <</s ");
        buf_free(&out);
        stop_free(&s);
    }
    struct stop s = {.strings = strings, .count = 3};
    struct buf out = {0};
    assert_false(stop_feed(&s, "tail EN", 7, &out));
    assert_string_equal(out.data, "tail ");
    stop_flush(&s, &out);
    assert_string_equal(out.data, "tail EN");
    buf_free(&out);
    stop_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_best),
        cmocka_unit_test(test_short_ways),
        cmocka_unit_test(test_plain_best_of_many),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_temperature),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_dry),
        cmocka_unit_test(test_mirostat),
        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
