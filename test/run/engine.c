/* The engine: what a request gets does not depend on what runs beside it, pages that are too few are
 * made do with, prefixes are computed and stored once, and whatever clients do, all comes back. */
#include "test.h"

#include "base/mem.h"
#include "run/ahead.h"
#include "run/open.h"
#include "run/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Families that keep state: beside pages, and without any. */
#define HYBRID    "falcon-h1"
#define RECURRENT "mamba2"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { SLOW = 8 };
#else
enum { SLOW = 1 };
#endif
/* Sanitizers find with fewer requests what they find. */
enum { CTX = 512, REQUESTS = SLOW == 1 ? 64 : 40, PROMPT_MOST = 256, ANSWER_MOST = 32 };

/* ---- a small model, requests from a seed ---- */

static uint64_t rng(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

struct setting {
    const char *folder;
    uint32_t seqs, pages, chunk, outs, ctx;
    uint32_t snapshots; /* 0: as many as an engine wants */
    bool fast;          /* whatever kernels there are: where no ids are compared */
    bool fixed;         /* whatever kernels there are, and the same bits in every batch */
    bool ahead;         /* the device works ahead, and chooses tokens */
};

static struct session *open_model(const struct setting *o)
{
    struct runner_options r = {
        .ctx = o->ctx ? o->ctx : CTX, .seqs = o->seqs, .pages = o->pages, .chunk = o->chunk, .outs = o->outs};
    r.snapshots = o->snapshots ? o->snapshots : engine_snapshots(o->seqs);
    r.device_options.deterministic = o->fixed;
    if (!o->fast && !o->fixed)
        r.device_options = (struct device_options){.exact = true, .tier = "scalar"};
    struct session *l = open_tiny(o->folder, &r);
    if (o->ahead)
        ahead_begin(l);
    return l;
}

struct ask {
    int32_t prompt[PROMPT_MOST];
    struct engine_request r;
};

/* Four families of prompts, each with a beginning in common, of up to 120 tokens. */
static void make_ask(struct ask *a, uint32_t i, bool sampled)
{
    uint64_t s = i * 7919 + 1;
    uint32_t family = i % 4, shared = family * 40, own = 1 + (uint32_t)(rng(&s) % 40);
    uint64_t f = family + 1000;
    memset(a, 0, sizeof *a);
    for (uint32_t k = 0; k < shared; k++)
        a->prompt[k] = 3 + (int32_t)(rng(&f) % 60);
    for (uint32_t k = shared; k < shared + own; k++)
        a->prompt[k] = 3 + (int32_t)(rng(&s) % 60);
    a->r = (struct engine_request){.prompt = a->prompt,
                                   .n = shared + own,
                                   .most = 4 + (uint32_t)(rng(&s) % (ANSWER_MOST - 4)),
                                   .ignore_eog = true};
    sampler_defaults(&a->r.sampler);
    a->r.sampler.temperature = sampled ? 0.7 : 0;
    a->r.sampler.seed = 100 + i;
}

struct answer {
    int32_t ids[CTX];
    size_t n;
    struct stream_chunk last;
};

/* What the model says when nothing runs beside it, by the plainest loop there is. */
static void answer_alone(struct seq *s, const struct ask *a, struct answer *out)
{
    struct err e = {0};
    struct sampler *sampler;
    seq_truncate(s, 0);
    assert_int_equal(sampler_open(&sampler, &a->r.sampler, s->runner->plan->out_width, NULL, &e), 0);
    int failed = seq_feed(s, a->r.prompt, a->r.n, &e);
    for (out->n = 0; !failed && out->n < a->r.most; out->n++) {
        const float *logits = runner_results(s->runner, &e);
        int32_t *id = &out->ids[out->n];
        *id = logits ? sampler_pick(sampler, logits, s->ids, s->len, s->len, NULL, &e) : -1;
        struct seq_rows row = {.seq = s, .ids = id, .n = 1, .outs = 1};
        failed = *id < 0 || runner_step(s->runner, &row, 1, &e);
    }
    sampler_close(sampler);
    if (failed)
        fail_msg("%s", e.text);
}

static struct stream *submit(struct engine *g, const struct engine_request *r)
{
    struct err e = {0};
    struct stream *s;
    if (engine_submit(g, r, &s, &e))
        fail_msg("%s", e.text);
    return s;
}

/* Reads a stream to its end and closes it. */
static void read_all(struct stream *s, struct answer *out)
{
    out->n = 0;
    do {
        assert_true(stream_look(s, -1, &out->last));
        assert_true(out->n + out->last.count <= CTX);
        memcpy(out->ids + out->n, out->last.ids, out->last.count * sizeof *out->ids);
        out->n += out->last.count;
    } while (!out->last.done);
    stream_close(s);
}

static void assert_same(const struct answer *got, const struct answer *want, uint32_t i)
{
    size_t n = got->n < want->n ? got->n : want->n;
    for (size_t k = 0; k < n; k++)
        if (got->ids[k] != want->ids[k])
            fail_msg("request %u: token %zu is %d; alone it is %d", i, k, got->ids[k], want->ids[k]);
    assert_int_equal(got->n, want->n);
}

static void assert_all_back(struct session *l)
{
    assert_int_equal(l->runner->seqs, 0);
    for (uint32_t g = 0; g < l->model->plan.groups; g++)
        assert_int_equal(l->runner->pages[g].unused, l->runner->pages[g].backed - 1);
    if (l->model->plan.states)
        assert_int_equal(l->runner->states.unused, l->runner->states.backed - 1);
}

static void assert_balanced(const struct engine_stats *s)
{
    assert_int_equal(s->running, 0);
    assert_int_equal(s->waiting, 0);
    assert_int_equal(s->submitted, s->finished + s->cancelled + s->failed);
}

/* ---- batched = alone ---- */

static struct ask asks[REQUESTS];
static struct answer alone[REQUESTS], got;

static void answers_alone_by(const struct setting *setting, bool sampled)
{
    struct err e = {0};
    struct session *l = open_model(setting);
    struct seq *s = seq_open(l->runner, &e);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        make_ask(&asks[i], i, sampled);
        answer_alone(s, &asks[i], &alone[i]);
    }
    seq_close(s);
    session_close(l);
}

static void answers_alone(const char *folder, bool sampled)
{
    answers_alone_by(&(struct setting){.folder = folder, .seqs = 1}, sampled);
}

static struct engine_stats run_batch(const struct setting *setting, const struct engine_options *o)
{
    struct err e = {0};
    struct engine *g;
    struct engine_stats stats;
    struct stream *streams[REQUESTS];
    struct session *l = open_model(setting);
    assert_int_equal(engine_open(&g, l, o, &e), 0);
    for (uint32_t i = 0; i < REQUESTS; i++)
        streams[i] = submit(g, &asks[i].r);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        read_all(streams[i], &got);
        if (got.last.err.code)
            fail_msg("request %u: %s", i, got.last.err.text);
        assert_int_equal(got.last.finish, FINISH_LENGTH);
        assert_same(&got, &alone[i], i);
    }
    engine_stats(g, &stats);
    assert_balanced(&stats);
    assert_int_equal(stats.finished, REQUESTS);
    engine_close(g);
    assert_all_back(l);
    session_close(l);
    return stats;
}

/* Places of the answers alone that a draft must be made at: the last three tokens were there before. `right`: all that
 * followed them before is what follows now, so that it must be accepted. */
static void count_repeats(uint32_t *repeats, uint32_t *right)
{
    static int32_t text[PROMPT_MOST + CTX];
    *repeats = *right = 0;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        const size_t n = asks[i].r.n, end = n + alone[i].n;
        memcpy(text, asks[i].r.prompt, n * sizeof *text);
        memcpy(text + n, alone[i].ids, alone[i].n * sizeof *text);
        for (size_t at = n < 3 ? 3 : n + 1; at + 2 < end; at++) {
            uint32_t same = 0, other = 0;
            for (size_t k = 3; k < at; k++) {
                bool met = !memcmp(text + k - 3, text + at - 3, 3 * sizeof *text);
                same += met && text[k] == text[at];
                other += met && text[k] != text[at];
            }
            *repeats += same + other > 0;
            *right += same && !other;
        }
    }
}

/* The first three under sanitizers, too. Behind gpt-oss: chunks, shared keys, keys that are chosen. */
static void batched_is_alone(void **state)
{
    static const char *const folders[] = {"llama",   HYBRID,     "gemma2", "mistral",     "deepseek-v2",
                                          "gpt-oss", "gemma4-e", "llama4", "deepseek-v32"};
    (void)state;
    for (size_t f = 0; f < sizeof folders / sizeof *folders && (f < 3 || SLOW == 1); f++) {
        for (int sampled = 0; sampled < 2; sampled++) {
            uint32_t repeats, right;
            answers_alone(folders[f], sampled);
            struct setting setting = {.folder = folders[f], .seqs = 8, .chunk = 128, .outs = 64};
            struct engine_options o = {.queue = REQUESTS, .guard = true};
            struct engine_stats plain = run_batch(&setting, &o);
            assert_true(plain.cached_tokens > 0);
            assert_int_equal(plain.drafted, 0);
            o.draft = 8;
            o.draft_always = true;
            struct engine_stats drafted = run_batch(&setting, &o);
            count_repeats(&repeats, &right);
            assert_true(drafted.drafted > 0 || !repeats);
            assert_true(drafted.accepted > 0 || !right);
            assert_true(right || sampled || f); /* llama says the same again and again */
        }
    }
}

/* The same on a device that is still at a step while the next is prepared: with pages for all and with few, with guesses
 * and without. */
static void ahead_is_alone(void **state)
{
    static const char *const folders[] = {"llama", "gemma2", HYBRID};
    (void)state;
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++)
        for (int sampled = 0; sampled < 2; sampled++) {
            answers_alone(folders[f], sampled);
            struct setting setting = {
                .folder = folders[f], .seqs = 8, .chunk = 128, .outs = 64, .ahead = true};
            struct engine_options o = {.queue = REQUESTS, .guard = true};
            assert_true(run_batch(&setting, &o).cached_tokens > 0);
            setting.pages = 12;
            o.draft = 8;
            o.draft_always = true;
            struct engine_stats s = run_batch(&setting, &o);
            assert_true(s.preempted > 0 && s.drafted > 0);
            assert_true(ahead.chosen >= s.made_tokens);
        }
}

/* Two of three requests are of batches: everyone's answer is as alone, with pages for all and with few. */
static void batches_are_alone(void **state)
{
    static const char *const folders[] = {"llama", HYBRID};
    (void)state;
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++)
        for (int way = 0; way < 4; way++) {
            answers_alone(folders[f], true);
            for (uint32_t i = 0; i < REQUESTS; i++)
                asks[i].r.batch = i % 3 > 0;
            struct setting setting = {.folder = folders[f],
                                      .seqs = 8,
                                      .pages = way & 1 ? 12 : 0,
                                      .chunk = 128,
                                      .outs = 64,
                                      .ahead = way & 2};
            struct engine_options o = {.queue = REQUESTS, .guard = true, .draft = way & 1 ? 8 : 0};
            struct engine_stats s = run_batch(&setting, &o);
            assert_int_equal(s.batch_running + s.batch_waiting, 0);
        }
}

/* Batches hold all slots: requests that come get them at once, and before any of a batch that waits. */
static void batches_make_way(void **state)
{
    enum { SLOTS = 4, BATCH = REQUESTS - SLOTS };
    struct err e = {0};
    struct engine *g;
    struct engine_stats stats;
    struct stream *batch[BATCH], *users[SLOTS];
    struct session *l = open_model(&(struct setting){.folder = "llama", .seqs = SLOTS, .chunk = 64});
    (void)state;
    answers_alone("llama", false);
    assert_int_equal(engine_open(&g, l, &(struct engine_options){.queue = BATCH, .guard = true}, &e), 0);
    for (uint32_t i = 0; i < BATCH; i++) {
        asks[i].r.batch = true;
        batch[i] = submit(g, &asks[i].r);
    }
    do
        engine_stats(g, &stats);
    while (stats.batch_running < SLOTS);
    for (uint32_t i = 0; i < SLOTS; i++)
        users[i] = submit(g, &asks[BATCH + i].r);
    for (uint32_t i = 0; i < SLOTS; i++) {
        read_all(users[i], &got);
        assert_same(&got, &alone[BATCH + i], BATCH + i);
    }
    engine_stats(g, &stats);
    assert_true(stats.preempted > 0 && stats.batch_waiting > 0);
    for (uint32_t i = 0; i < BATCH; i++) {
        read_all(batch[i], &got);
        assert_same(&got, &alone[i], i);
    }
    engine_close(g);
    assert_all_back(l);
    session_close(l);
}

/* Another engine has requests of no batch: until they end, batches alone wait; a request of its own is not kept waiting, and
 * batches run beside it. */
static void batches_wait_for_others(void **state)
{
    struct err e = {0};
    struct engine *g;
    struct engine_stats stats;
    atomic_uint users = 1;
    struct session *l = open_model(&(struct setting){.folder = "llama", .seqs = 4, .chunk = 64});
    (void)state;
    answers_alone("llama", false);
    assert_int_equal(engine_open(&g, l, &(struct engine_options){.guard = true, .users = &users}, &e), 0);
    asks[0].r.batch = true;
    struct stream *batch = submit(g, &asks[0].r), *own = submit(g, &asks[1].r);
    read_all(own, &got);
    assert_same(&got, &alone[1], 1);
    assert_int_equal(users, 1);
    asks[2].r.batch = true;
    struct stream *later = submit(g, &asks[2].r);
    usleep(50000);
    engine_stats(g, &stats);
    uint64_t steps = stats.steps;
    usleep(50000);
    engine_stats(g, &stats);
    assert_int_equal(stats.steps, steps);
    users = 0;
    read_all(batch, &got);
    assert_same(&got, &alone[0], 0);
    read_all(later, &got);
    assert_same(&got, &alone[2], 2);
    engine_close(g);
    assert_all_back(l);
    session_close(l);
}

/* With --deterministic the fast kernels, too, give every request its own bits: few pages, guesses and all. */
static void deterministic_is_alone(void **state)
{
    static const char *const folders[] = {"llama", "gemma2", "qwen2-moe"};
    (void)state;
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++)
        for (int sampled = 0; sampled < 2; sampled++) {
            answers_alone_by(&(struct setting){.folder = folders[f], .seqs = 1, .fixed = true}, sampled);
            struct setting few = {
                .folder = folders[f], .seqs = 8, .pages = 24, .chunk = 128, .outs = 64, .fixed = true};
            struct engine_options o = {.queue = REQUESTS, .guard = true};
            run_batch(&few, &o);
            o.draft = 8;
            run_batch(&few, &o);
        }
}

/* A draft model that says the same is always right; another one is often wrong, and changes nothing. */
static void draft_models_guess_for(const char *folder, const char *wrong)
{
    struct err e = {0};
    struct engine *g;
    struct setting few = {.folder = folder, .seqs = 8, .pages = 40, .chunk = 128, .outs = 64};
    for (int sampled = 0; sampled < 2; sampled++) {
        answers_alone(folder, sampled);
        struct session *same = open_model(&(struct setting){.folder = folder, .seqs = 8, .chunk = 96});
        struct session *other = open_model(&(struct setting){.folder = wrong, .seqs = 8});
        struct engine_options o = {
            .queue = REQUESTS, .guard = true, .draft = 4, .draft_always = true, .draft_model = same};
        struct engine_stats s = run_batch(&few, &o);
        assert_true(s.accepted > s.made_tokens / 3 && s.accepted > s.drafted / 2);
        assert_all_back(same);
        o.draft_model = other;
        s = run_batch(&few, &o);
        assert_true(s.drafted > 0 && s.accepted < s.drafted);
        assert_all_back(other);
        session_close(same);
        session_close(other);
    }
    struct session *l = open_model(&few);
    struct session *small = open_model(&(struct setting){.folder = folder, .seqs = 2});
    assert_int_equal(engine_open(&g, l, &(struct engine_options){.draft = 4, .draft_model = small}, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    session_close(small);
    session_close(l);
}

static void draft_models_guess(void **state)
{
    (void)state;
    draft_models_guess_for("llama", "mistral");
    draft_models_guess_for(HYBRID, RECURRENT);
}

/* ---- rules ---- */

/* The model's 64 tokens as text: letters, pieces of words, an end. */
static const char *const rule_pieces[] = {"na", "name", "me",  ": ", "place", "pla",
                                          "ce", ", ",   "yes", "no", "es"};
enum { RULE_LETTERS = 40, RULE_END = 63 };

static const char *piece_bytes(const void *of, int32_t id, size_t *n)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789:, .";
    const uint32_t pieces = sizeof rule_pieces / sizeof *rule_pieces;
    (void)of;
    if (id < RULE_LETTERS) {
        *n = 1;
        return letters + id;
    }
    uint32_t at = (uint32_t)id - RULE_LETTERS;
    *n = at < pieces ? strlen(rule_pieces[at]) : 0;
    return at < pieces ? rule_pieces[at] : "";
}

static enum constraint_kind piece_kind(const void *of, int32_t id)
{
    size_t n;
    piece_bytes(of, id, &n);
    return id == RULE_END ? CONSTRAINT_END : n ? CONSTRAINT_TEXT : CONSTRAINT_NEVER;
}

/* Where the rule leaves one continuation, the answer is the same with guesses and without, in fewer steps. */
static void rules_are_jumped_along(void **state)
{
    static const char source[] = "root ::= (\"name: \" [a-z]{2,4} \", place: \" [a-z0-9]{1,5} \", yes\")+";
    (void)state;
    struct err e = {0};
    struct constraint_source words = {64, NULL, piece_bytes, piece_kind};
    struct constraint_vocab *v = constraint_vocab_open(&words, &e);
    struct engine_stats stats[2];
    struct constraint_ref *constraint;
    static struct answer answers[2];
    for (int sampled = 0; sampled < 2; sampled++) {
        for (int guess = 0; guess < 2; guess++) {
            struct engine *g;
            struct ask a;
            struct session *l = open_model(&(struct setting){.folder = "llama", .seqs = 2, .outs = 16});
            struct engine_options o = {.draft = guess ? 8 : 0, .draft_always = true, .guard = true};
            assert_int_equal(
                constraint_ref_open(&constraint, constraint_from_gbnf(source, sizeof source - 1, &e), v, &e),
                0);
            assert_int_equal(engine_open(&g, l, &o, &e), 0);
            make_ask(&a, 1, sampled);
            a.r.most = 60;
            a.r.constraint = constraint;
            read_all(submit(g, &a.r), &answers[guess]);
            assert_int_equal(answers[guess].last.err.code, 0);
            constraint_ref_drop(constraint);
            engine_stats(g, &stats[guess]);
            engine_close(g);
            assert_all_back(l);
            session_close(l);
        }
        assert_same(&answers[1], &answers[0], (uint32_t)sampled);
        assert_int_equal(stats[0].forced, 0);
        assert_true(stats[1].forced > 4 && stats[1].steps + stats[1].accepted == stats[0].steps);
        assert_int_equal(answers[1].last.forced, stats[1].forced);
    }
    constraint_vocab_close(v);
}

static void few_pages_preempt(void **state)
{
    (void)state;
    answers_alone("llama", true);
    for (uint32_t pages = 8; pages <= 24; pages += 8) {
        struct setting setting = {.folder = "llama", .seqs = 8, .pages = pages, .chunk = 128, .outs = 64};
        struct engine_options o = {.queue = REQUESTS, .guard = true, .draft = 4, .draft_always = true};
        struct engine_stats s = run_batch(&setting, &o);
        assert_int_equal(s.pages, pages);
        assert_true(pages > 16 || s.preempted > 0);
        assert_true(s.prefix.evicted > 0);
    }
}

/* The same where slots of state are few, and where both are. */
static void few_slots_preempt(void **state)
{
    static const struct setting settings[] = {{.folder = HYBRID, .snapshots = 1},
                                              {.folder = HYBRID, .snapshots = 4, .pages = 12},
                                              {.folder = HYBRID, .snapshots = 16, .pages = 12},
                                              {.folder = RECURRENT, .snapshots = 1}};
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct setting few = settings[i];
        struct engine_options o = {
            .queue = REQUESTS, .guard = true, .snapshot = 32, .draft = 4 * (i % 2), .draft_always = true};
        if (!i || strcmp(few.folder, settings[i - 1].folder) != 0)
            answers_alone(few.folder, true);
        few.seqs = 8;
        few.chunk = 128;
        few.outs = 64;
        struct engine_stats s = run_batch(&few, &o);
        assert_int_equal(s.states, 16 + few.snapshots);
        assert_true(s.prefix.evicted_snapshots > 0 || few.pages); /* else nodes took them along */
    }
}

static bool refuse(void *arg, uint64_t from, uint64_t to)
{
    (void)arg;
    return to <= from;
}

/* Longer than a runner waits until it asks for memory again. */
static int take_long(void *arg, struct err *e)
{
    (void)arg;
    (void)e;
    usleep(120000);
    return 0;
}

/* A request alone ends with the two slots that always have memory, whatever drafts it has; and memory of a draft model is
 * returned, too. */
static void no_more_slots_get_memory(void **state)
{
    (void)state;
    static const struct logit_bias five = {.id = 5, .bias = 1000}; /* and drafts are right */
    struct err e = {0};
    struct engine *g;
    struct ask a;
    struct session *l = open_model(&(struct setting){.folder = RECURRENT, .seqs = 4, .outs = 16});
    l->runner->resize = refuse;
    l->runner->intact = take_long;
    assert_int_equal(engine_open(&g, l, &(struct engine_options){.draft = 8, .draft_always = true}, &e), 0);
    make_ask(&a, 3, false);
    a.r.most = 8;
    a.r.sampler.bias = &five;
    a.r.sampler.biases = 1;
    read_all(submit(g, &a.r), &got);
    if (got.last.err.code)
        fail_msg("%s", got.last.err.text);
    assert_int_equal(got.n, 8);
    engine_close(g);
    assert_all_back(l);
    session_close(l);
}

static void draft_models_return_memory(void **state)
{
    (void)state;
    struct err e = {0};
    struct engine *g;
    struct stream *s[4];
    struct session *l = open_model(&(struct setting){.folder = "llama", .seqs = 4, .outs = 40, .fast = true}),
                   *draft = open_model(&(struct setting){.folder = "llama", .seqs = 4, .fast = true});
    const struct engine_options o = {.draft = 4, .draft_always = true, .draft_model = draft};
    const uint32_t had = draft->runner->pages[0].backed;
    assert_int_equal(engine_open(&g, l, &o, &e), 0);
    for (uint32_t i = 0; i < 4; i++) {
        make_ask(&asks[i], i, false);
        for (uint32_t k = 0; k < 200; k++)
            asks[i].prompt[k] = 3 + (int32_t)(k * (i + 3) % 50);
        asks[i].r.n = 200;
        asks[i].r.most = 60;
        s[i] = submit(g, &asks[i].r);
    }
    for (uint32_t i = 0; i < 4; i++)
        read_all(s[i], &got);
    assert_true(draft->runner->pages[0].backed > had);
    engine_shed(g);
    for (int i = 0; draft->runner->pages[0].backed > had && i < 2000; i++)
        usleep(10000);
    engine_close(g);
    assert_int_equal(draft->runner->pages[0].backed, had);
    session_close(l);
    session_close(draft);
}

/* ---- what cannot fit ---- */

static void never_fits(void **state)
{
    (void)state;
    struct err e = {0};
    struct engine *g;
    struct stream *s;
    struct ask a;
    struct session *l = open_model(&(struct setting){.folder = "llama", .seqs = 2, .pages = 3});
    assert_int_equal(engine_open(&g, l, &(struct engine_options){0}, &e), 0);
    make_ask(&a, 3, false);
    a.r.n = 97;
    assert_int_equal(engine_submit(g, &a.r, &s, &e), -1);
    assert_int_equal(e.code, ERR_RESOURCE);
    assert_string_equal(e.text, "the prompt has 97 tokens and there is room for 96: 1 too many");
    /* one that grows until nothing is left ends as one whose context is full, beside another one */
    a.r.n = 60;
    a.r.most = 0;
    struct ask b = a;
    b.r.prompt = b.prompt;
    b.r.n = 40;
    struct stream *first = submit(g, &a.r), *second = submit(g, &b.r);
    read_all(first, &got);
    assert_int_equal(got.n, 96 - 60 + 1);
    assert_true(got.last.context_full && !got.last.err.code);
    read_all(second, &got);
    assert_int_equal(got.n, 96 - 40 + 1);
    assert_true(got.last.context_full);
    e = (struct err){0};
    a.r.n = 0;
    assert_int_equal(engine_submit(g, &a.r, &s, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    e = (struct err){0};
    a.r.n = 1;
    a.prompt[0] = 64;
    assert_int_equal(engine_submit(g, &a.r, &s, &e), -1);
    assert_string_equal(e.text, "token 0 of the prompt is 64; the vocabulary has 0 to 63");
    engine_close(g);
    assert_all_back(l);
    session_close(l);
}

/* ---- shared prefixes ---- */

static void prefix_once(void **state)
{
    enum { SHARED = 4000 / SLOW / RUNNER_PAGE * RUNNER_PAGE, STREAMS = 16, OWN = 5, CTX_LONG = 4096 };
    (void)state;
    struct err e = {0};
    struct engine *g;
    struct engine_stats s;
    struct stream *streams[STREAMS];
    static int32_t prompt[SHARED + OWN];
    struct session *l = open_model(
        &(struct setting){.folder = "llama", .seqs = STREAMS, .pages = 400, .ctx = CTX_LONG, .fast = true});
    assert_int_equal(engine_open(&g, l, &(struct engine_options){0}, &e), 0);
    uint64_t seed = 5;
    for (uint32_t i = 0; i < SHARED; i++)
        prompt[i] = (int32_t)(rng(&seed) % 64);
    struct engine_request r = {.prompt = prompt, .n = SHARED + OWN, .most = 3, .ignore_eog = true};
    sampler_defaults(&r.sampler);
    for (uint32_t i = 0; i < STREAMS; i++) {
        for (uint32_t k = 0; k < OWN; k++)
            prompt[SHARED + k] = (int32_t)((i + k * k) % 64);
        streams[i] = submit(g, &r);
    }
    uint32_t cached = 0;
    for (uint32_t i = 0; i < STREAMS; i++) {
        read_all(streams[i], &got);
        cached += got.last.cached;
    }
    engine_stats(g, &s);
    assert_int_equal(s.prompt_tokens + s.cached_tokens, STREAMS * (SHARED + OWN));
    assert_int_equal(s.cached_tokens, cached);
    assert_int_equal(s.cached_tokens, (STREAMS - 1) * SHARED); /* whole pages */
    /* the pages of what is shared, and one for what each has of its own */
    assert_int_equal(s.pages - s.pages_free, SHARED / RUNNER_PAGE + STREAMS);
    assert_int_equal(s.preempted, 0);
    /* another salt knows nothing of it */
    r.salt = 7;
    read_all(submit(g, &r), &got);
    assert_int_equal(got.last.cached, 0);
    read_all(submit(g, &r), &got);
    assert_true(got.last.cached >= SHARED);
    engine_close(g);
    assert_all_back(l);
    session_close(l);
}

/* A conversation of 20 turns on a model with state: each turn computes its own tokens, whether or not the prompt writes
 * the last answer as it was; a change in the middle costs at most one interval. */
static void second_turns(void **state)
{
    enum { EVERY = 64, TURNS = 20, OWN = 23, ANSWER = 17, LONG = 2048, SAYS = 4 };
    static const char *const folders[] = {HYBRID, RECURRENT};
    static int32_t text[LONG];
    (void)state;
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++)
        for (int rewritten = 0; rewritten < 2; rewritten++) {
            struct err e = {0};
            struct engine *g;
            struct session *l =
                open_model(&(struct setting){.folder = folders[f], .seqs = 2, .ctx = LONG, .snapshots = 60});
            assert_int_equal(
                engine_open(&g, l, &(struct engine_options){.snapshot = EVERY, .guard = true}, &e), 0);
            struct engine_request r = {.prompt = text, .most = ANSWER, .ignore_eog = true};
            uint64_t seed = 9;
            uint32_t n = 0;
            sampler_defaults(&r.sampler);
            r.sampler.temperature = 0;
            for (uint32_t turn = 0; turn < TURNS; turn++) {
                uint32_t had = n, answered = turn ? had - (rewritten ? ANSWER + 1 : 1) : 0;
                for (uint32_t i = 0; i < OWN; i++)
                    text[n++] = 3 + (int32_t)(rng(&seed) % 60);
                r.n = n;
                read_all(submit(g, &r), &got);
                assert_int_equal(got.last.err.code, 0);
                assert_int_equal(got.last.cached, answered);
                memcpy(text + n, got.ids, got.n * sizeof *text);
                for (uint32_t i = 0; i < SAYS && rewritten;
                     i++) /* as a template does without the reasoning */
                    text[n + i] = 63;
                n += (uint32_t)got.n;
            }
            for (uint32_t at = n / 2; at < n; at += 50) { /* the whole of it, with another token at `at` */
                int32_t was = text[at];
                text[at] = 62;
                r.n = n;
                read_all(submit(g, &r), &got);
                assert_in_range(got.last.cached, at - EVERY, at);
                text[at] = was;
            }
            engine_close(g);
            assert_all_back(l);
            session_close(l);
        }
}

/* ---- cancels, deadlines, a full queue ---- */

static void queue_and_deadline(void **state)
{
    (void)state;
    struct err e = {0};
    struct engine *g;
    struct engine_stats stats;
    struct stream *s[6], *refused;
    struct ask a;
    struct session *l = open_model(&(struct setting){.folder = "llama", .seqs = 1, .ctx = 8192});
    assert_int_equal(engine_open(&g, l, &(struct engine_options){.queue = 4}, &e), 0);
    make_ask(&a, 1, false);
    a.r.most = 0;
    s[0] = submit(g, &a.r);
    assert_true(stream_look(s[0], -1, &got.last)); /* it runs: the queue is empty now */
    for (int i = 1; i < 5; i++) {
        a.r.seconds = i == 2 ? 0.001 : 0;
        s[i] = submit(g, &a.r);
    }
    int full = engine_submit(g, &a.r, &refused, &e);
    if (full) /* unless the one with the deadline has gone by now */
        assert_int_equal(e.code, ERR_RESOURCE);
    else
        stream_close(refused);
    read_all(s[2], &got);
    assert_int_equal(got.last.err.code, ERR_RESOURCE);
    assert_string_equal(got.last.err.text, "the deadline has passed");
    stream_cancel(s[0]);
    stream_cancel(s[3]);
    read_all(s[0], &got);
    assert_int_equal(got.last.finish, FINISH_CANCEL);
    read_all(s[3], &got);
    assert_int_equal(got.n, 0);
    stream_close(s[1]);
    engine_close(g); /* ends the last one */
    read_all(s[4], &got);
    assert_int_equal(got.last.finish, FINISH_CANCEL);
    assert_all_back(l);
    assert_int_equal(engine_open(&g, l, &(struct engine_options){.queue = 1}, &e), 0);
    s[0] = submit(g, &a.r);
    while (stream_look(s[0], -1, &got.last) && !got.last.count)
        ;
    s[1] = submit(g, &a.r);
    assert_int_equal(engine_submit(g, &a.r, &refused, &e), -1);
    assert_int_equal(e.code, ERR_RESOURCE);
    engine_stats(g, &stats);
    assert_int_equal(stats.refused, 1);
    stream_close(s[0]);
    stream_close(s[1]);
    engine_close(g);
    assert_all_back(l);
    session_close(l);
}

struct client {
    pthread_t thread;
    struct engine *engine;
    uint64_t seed;
    uint32_t cycles, wrong;
    atomic_int wakes;
};

static void client_wake(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

/* Compares what has come so far with the answer alone: no token of another request. */
static void client_check(struct client *c, const struct stream_chunk *news, uint32_t i, size_t *n)
{
    for (size_t k = news->echoed; k < news->count; k++, (*n)++)
        c->wrong += *n >= alone[i].n || news->ids[k] != alone[i].ids[*n];
}

/* One request: read for a while, or to the end, or not at all; cancel; close. */
static void client_cycle(struct client *c)
{
    struct err e = {0};
    struct stream *s;
    struct stream_chunk news = {0};
    uint32_t i = (uint32_t)(rng(&c->seed) % REQUESTS), kind = (uint32_t)(rng(&c->seed) % 8);
    struct engine_request r = asks[i].r;
    size_t n = 0;
    r.wake = client_wake;
    r.arg = &c->wakes;
    r.salt = rng(&c->seed) % 3;
    r.logprobs = kind == 3 || kind == 7;
    r.echo = kind == 7;
    r.top_logprobs = kind == 4 ? 5 : 0;
    r.seconds = kind == 5 ? 0.002 : 0;
    if (engine_submit(c->engine, &r, &s, &e)) {
        c->wrong += e.code != ERR_RESOURCE;
        return;
    }
    uint32_t looks = kind < 2 ? kind : 1000;
    for (uint32_t k = 0; k < looks && !news.done; k++) {
        if (!stream_look(s, kind == 2 ? 0 : 0.05, &news))
            continue;
        client_check(c, &news, i, &n);
        if (kind == 6 && k == 3)
            stream_cancel(s);
    }
    stream_close(s);
}

static void *client_run(void *arg)
{
    struct client *c = arg;
    for (uint32_t i = 0; i < c->cycles; i++)
        client_cycle(c);
    return NULL;
}

static void random_clients_of(const char *folder, bool works_ahead)
{
    enum { CLIENTS = 3 };
    const char *cycles = getenv("QUERN_CYCLES");
    struct err e = {0};
    struct engine *g;
    struct engine_stats s;
    struct client clients[CLIENTS] = {0};
    answers_alone_by(&(struct setting){.folder = folder, .seqs = 1, .fixed = true}, true);
    struct setting setting = {.folder = folder,
                              .seqs = 4,
                              .pages = 16,
                              .chunk = 64,
                              .outs = 32,
                              .fixed = true,
                              .ahead = works_ahead};
    struct session *l = open_model(&setting);
    assert_int_equal(
        engine_open(&g, l, &(struct engine_options){.queue = 6, .draft = 4, .draft_always = true}, &e), 0);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        clients[i].engine = g;
        clients[i].seed = 77 + i;
        clients[i].cycles = cycles ? (uint32_t)strtoul(cycles, NULL, 10) : 200 / SLOW;
        assert_int_equal(pthread_create(&clients[i].thread, NULL, client_run, &clients[i]), 0);
    }
    for (uint32_t i = 0; i < CLIENTS; i++) {
        pthread_join(clients[i].thread, NULL);
        assert_int_equal(clients[i].wrong, 0);
    }
    do {
        usleep(1000);
        engine_stats(g, &s);
    } while (s.running || s.waiting);
    assert_balanced(&s);
    assert_true(s.cancelled > 0 && s.finished > 0);
    engine_close(g);
    assert_all_back(l);
    session_close(l);
}

static void random_clients(void **state)
{
    (void)state;
    const char *one = getenv("QUERN_FOLDER"); /* a long run of one family */
    if (one) {
        random_clients_of(one, false);
        random_clients_of(one, true);
        return;
    }
    random_clients_of("llama", false);
    random_clients_of("gemma2", false); /* windows */
    random_clients_of("llama", true);
    random_clients_of(HYBRID, false);
    random_clients_of(HYBRID, true);
}

/* ---- memory, figures ---- */

static void submit_without_memory(void **state)
{
    (void)state;
    static const char *const stops[] = {"one", "two"};
    struct err e = {0};
    struct engine *g;
    struct stream *s = NULL;
    struct ask a;
    struct session *l = open_model(&(struct setting){.folder = "llama", .seqs = 2});
    assert_int_equal(engine_open(&g, l, &(struct engine_options){0}, &e), 0);
    make_ask(&a, 2, true);
    a.r.logprobs = true;
    a.r.top_logprobs = 3;
    a.r.stop_strings = stops;
    a.r.stops = 2;
    long n = 1;
    for (;; n++) {
        e = (struct err){0};
        mem_fail_at(n);
        int failed = engine_submit(g, &a.r, &s, &e);
        if (!failed)
            break;
        mem_fail_at(0);
        assert_int_equal(e.code, ERR_RESOURCE);
    }
    assert_true(n > 10);
    read_all(s, &got); /* the failing one may have hit the thread's own: then it says so */
    mem_fail_at(0);
    assert_true(!got.last.err.code || got.last.err.code == ERR_RESOURCE);
    read_all(submit(g, &a.r), &got);
    assert_int_equal(got.n, a.r.most);
    engine_close(g);
    for (n = 1;; n++) { /* the engine itself */
        mem_fail_at(n);
        int failed = engine_open(&g, l, &(struct engine_options){0}, &e);
        mem_fail_at(0);
        if (!failed)
            break;
    }
    assert_true(n > 5);
    engine_close(g);
    assert_all_back(l);
    session_close(l);
}

static void logprobs_are_right(void **state)
{
    (void)state;
    struct err e = {0};
    struct engine *g;
    struct stream_chunk news;
    struct ask a;
    struct session *l = open_model(&(struct setting){.folder = "llama", .seqs = 2});
    assert_int_equal(engine_open(&g, l, &(struct engine_options){.draft = 8, .draft_always = true}, &e), 0);
    make_ask(&a, 2, false);
    a.r.logprobs = true;
    a.r.top_logprobs = 4;
    a.r.most = 30;
    struct stream *s = submit(g, &a.r);
    size_t seen = 0;
    do {
        assert_true(stream_look(s, -1, &news));
        for (size_t i = 0; i < news.count; i++, seen++) {
            const struct token_prob *top = news.top + 4 * i;
            assert_int_equal(news.ids[i], top[0].id); /* greedy */
            assert_true(news.logprobs[i] == top[0].logprob && top[0].logprob < 0);
            for (int k = 1; k < 4; k++)
                assert_true(top[k].logprob <= top[k - 1].logprob && top[k].id != top[k - 1].id);
        }
    } while (!news.done);
    assert_int_equal(seen, 30);
    stream_close(s);
    a.r.top_logprobs = 21;
    assert_int_equal(engine_submit(g, &a.r, &s, &e), -1);
    assert_string_equal(e.text, "top_logprobs is 21; the most is 20");
    engine_close(g);
    session_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batched_is_alone),
        cmocka_unit_test(ahead_is_alone),
        cmocka_unit_test(batches_are_alone),
        cmocka_unit_test(batches_make_way),
        cmocka_unit_test(batches_wait_for_others),
        cmocka_unit_test(deterministic_is_alone),
        cmocka_unit_test(draft_models_guess),
        cmocka_unit_test(few_pages_preempt),
        cmocka_unit_test(few_slots_preempt),
        cmocka_unit_test(no_more_slots_get_memory),
        cmocka_unit_test(draft_models_return_memory),
        cmocka_unit_test(second_turns),
        cmocka_unit_test(never_fits),
        cmocka_unit_test(prefix_once),
        cmocka_unit_test(queue_and_deadline),
        cmocka_unit_test(random_clients),
        cmocka_unit_test(submit_without_memory),
        cmocka_unit_test(logprobs_are_right),
        cmocka_unit_test(rules_are_jumped_along),
    };
    if (getenv("QUERN_CYCLES")) /* a long run of that one */
        cmocka_set_test_filter("random_clients");
    if (getenv("QUERN_TEST"))
        cmocka_set_test_filter(getenv("QUERN_TEST"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
