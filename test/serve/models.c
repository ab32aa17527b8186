/* Several models with room for one: whoever asks gets what he asked for, nobody waits for ever, and all comes back. */
#include "test.h"

#include "base/clock.h"
#include "codec/dtype.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/models.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { THREADS = 6, ROUNDS = 30, CTX = 64 };

/* ---- a client that waits ---- */

struct client {
    struct model_wait wait;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool told;
};

static void client_told(struct model_wait *w)
{
    struct client *c = (struct client *)w;
    pthread_mutex_lock(&c->mutex);
    c->told = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->mutex);
}

static void client_open(struct client *c)
{
    memset(c, 0, sizeof *c);
    c->wait.ready = client_told;
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->changed, NULL);
}

static void client_wait(struct client *c)
{
    pthread_mutex_lock(&c->mutex);
    while (!c->told)
        pthread_cond_wait(&c->changed, &c->mutex);
    c->told = false;
    pthread_mutex_unlock(&c->mutex);
}

/* The form of this model, however long it takes; NULL and a failure. */
static struct instance *client_take(struct models *m, struct client *c, const char *name,
                                    enum instance_kind kind)
{
    enum taken t = models_take(m, &(struct model_want){.name = name, .kind = kind}, &c->wait);
    if (t == TAKEN_LATER)
        client_wait(c);
    return c->wait.form;
}

/* ---- the models of test/data/arch, without text ---- */

static const char *const folders[] = {"llama", "qwen2", "gemma", "bert", "broken"};
static atomic_int opened;
static atomic_int open_delay_us;

static int list_all(void *arg, struct model_list *out, struct err *e)
{
    const size_t *count = arg;
    for (size_t i = 0; i < *count; i++) {
        char path[256];
        snprintf(path, sizeof path, "test/data/arch/%s", folders[i]);
        if (model_list_add(out, folders[i], path, e))
            return -1;
    }
    return 0;
}

static struct models *small; /* a device that has room for two, whatever its models count on; NULL = none */

static int open_one(void *arg, struct session **out, const char *path, const struct session_options *o,
                    struct err *e)
{
    struct session_options own = *o;
    struct store *store;
    (void)arg;
    own.no_text = true;
    own.runner.kv_type = DTYPE_F16;
    own.runner.device = "cpu";
    own.runner.device_options.threads = 1;
    opened++;
    usleep((unsigned)open_delay_us);
    struct models_stats s = {0};
    if (small)
        models_stats(small, &s);
    if (s.loaded >= 2)
        return err_set(e, ERR_RESOURCE, "the device is full"), err_crowded(e);
    return store_open(&store, path, e) ? -1 : session_open(out, store, &own, e);
}

static size_t five = 5, three = 3;
static const struct models_options plain = {.keep = MODELS_KEEP_FOREVER,
                                            .patience = 60,
                                            .ctx = CTX,
                                            .texts = 4,
                                            .engine.slots = 2,
                                            .list = list_all,
                                            .open = open_one,
                                            .arg = &five};

static struct models *open_models(const struct models_options *o)
{
    struct models *m;
    struct err e = {0};
    if (models_open(&m, o, &e))
        fail_msg("%s", e.text);
    return m;
}

/* Some tokens of the writer, with nobody else's word in them: the same prompt gives the same ids. */
static void write_some(struct instance *f, int32_t *out, uint32_t n)
{
    static const int32_t prompt[] = {3, 5, 7, 11};
    struct engine_request r = {.prompt = prompt, .n = 4, .most = n, .ignore_eog = true};
    struct stream *s;
    struct err e = {0};
    sampler_defaults(&r.sampler);
    r.sampler.temperature = 0;
    if (engine_submit(f->engine, &r, &s, &e))
        fail_msg("%s", e.text);
    uint32_t have = 0;
    for (struct stream_chunk chunk = {0}; !chunk.done;)
        if (stream_look(s, -1, &chunk))
            for (size_t i = 0; i < chunk.count; i++)
                out[have++] = chunk.ids[i];
    assert_int_equal(have, n);
    stream_close(s);
}

/* ---- tests ---- */

static void nothing_is_loaded_until_it_is_asked_for(void **state)
{
    (void)state;
    struct client c;
    client_open(&c);
    opened = 0;
    struct models *m = open_models(&plain);
    models_lock(m);
    const struct served *s = models_find(m, "llama:latest");
    assert_non_null(s);
    assert_string_equal(models_state(s), "unloaded");
    assert_int_equal(s->facts.context, CTX);
    assert_false(models_find(m, "broken")->facts.known);
    assert_true(models_find(m, "bert")->facts.encoder);
    models_unlock(m);
    assert_int_equal(opened, 0);
    struct instance *f = client_take(m, &c, "llama", INSTANCE_WRITER);
    assert_non_null(f);
    assert_string_equal(models_state(f->of), "loaded");
    assert_true(f->bytes > 10000);
    models_drop(m, f, MODELS_KEEP_DEFAULT);
    assert_ptr_equal(client_take(m, &c, "", INSTANCE_WRITER), f); /* the first, and it is there already */
    models_drop(m, f, MODELS_KEEP_DEFAULT);
    assert_int_equal(opened, 1);
    models_close(m);
}

static void what_cannot_be_had_is_said(void **state)
{
    (void)state;
    struct client c;
    client_open(&c);
    struct models *m = open_models(&plain);
    assert_null(client_take(m, &c, "nobody", INSTANCE_WRITER));
    assert_int_equal(c.wait.failure.status, 404);
    assert_string_equal(c.wait.failure.code, "model_not_found");
    assert_null(client_take(m, &c, "bert", INSTANCE_WRITER));
    assert_int_equal(c.wait.failure.status, 400);
    struct instance *good = client_take(m, &c, "llama", INSTANCE_WRITER);
    assert_null(client_take(m, &c, "broken", INSTANCE_WRITER));
    assert_int_equal(c.wait.failure.status, 500);
    assert_null(strstr(c.wait.failure.err.text, "test/data")); /* a client sees no path */
    assert_non_null(strstr(c.wait.why.text, "broken"));
    int32_t ids[8];
    write_some(good, ids, 8); /* the others go on */
    models_drop(m, good, MODELS_KEEP_DEFAULT);
    models_close(m);
}

static void an_idle_model_goes(void **state)
{
    (void)state;
    struct client c;
    client_open(&c);
    struct models_options o = plain;
    o.keep = 0.05;
    struct models *m = open_models(&o);
    struct instance *f = client_take(m, &c, "llama", INSTANCE_WRITER),
                    *kept = client_take(m, &c, "qwen2", INSTANCE_WRITER);
    models_drop(m, f, MODELS_KEEP_DEFAULT);
    struct models_stats s = {0};
    for (int i = 0; i < 1000 && (s.unloads < 1 || s.loaded > 1); i++) {
        usleep(2000);
        models_stats(m, &s);
    }
    assert_int_equal(s.unloads, 1);
    assert_int_equal(s.loaded, 1); /* the one that is in use */
    models_drop(m, kept, MODELS_KEEP_FOREVER);
    usleep(100000);
    models_stats(m, &s);
    assert_int_equal(s.loaded, 1);
    assert_int_equal(models_stop(m, "nobody"), -1);
    assert_int_equal(models_stop(m, "qwen2"), 1);
    for (int i = 0; i < 1000 && s.loaded; i++) {
        usleep(2000);
        models_stats(m, &s);
    }
    assert_int_equal(s.bytes, 0);
    models_close(m);
}

/* ---- A, B, A with room for one ---- */

struct crowd {
    struct models *m;
    int32_t expected[3][16];
    atomic_int wrong, served;
};

static void *crowd_one(void *arg)
{
    struct crowd *c = arg;
    struct client me;
    client_open(&me);
    uint64_t seed = (uintptr_t)&me;
    for (int i = 0; i < ROUNDS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int which = (int)((seed >> 33) % 3);
        struct instance *f = client_take(c->m, &me, folders[which], INSTANCE_WRITER);
        int32_t ids[16];
        if (!f || strcmp(f->of->name, folders[which]) != 0) {
            c->wrong++;
            continue;
        }
        write_some(f, ids, 16);
        c->wrong += memcmp(ids, c->expected[which], sizeof ids) != 0;
        c->served++;
        models_drop(c->m, f, MODELS_KEEP_DEFAULT);
    }
    return NULL;
}

static void models_take_turns_where_there_is_room_for_one(void **state)
{
    (void)state;
    struct client me;
    client_open(&me);
    struct models_options o = plain;
    struct crowd c = {.m = open_models(&o)};
    uint64_t most = 0;
    for (int i = 0; i < 3; i++) {
        struct instance *f = client_take(c.m, &me, folders[i], INSTANCE_WRITER);
        write_some(f, c.expected[i], 16);
        most = f->bytes > most ? f->bytes : most;
        models_drop(c.m, f, MODELS_KEEP_DEFAULT);
    }
    models_close(c.m);
    o.memory = most + 1000;
    c.m = open_models(&o);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_one, &c), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(c.wrong, 0);
    assert_int_equal(c.served, THREADS * ROUNDS);
    struct models_stats s;
    models_stats(c.m, &s);
    assert_int_equal(s.loaded, 1);
    assert_true(s.unloads > 3 && s.loads == s.unloads + 1);
    assert_int_equal(s.engine.finished, THREADS * ROUNDS); /* counters outlive the engines */
    assert_int_equal(s.engine.submitted, s.engine.finished);
    models_close(c.m);
}

/* Where a device has less room than was counted on, others go before a request fails. */
static void a_full_device_makes_room(void **state)
{
    (void)state;
    struct client c;
    struct models_stats s;
    client_open(&c);
    small = open_models(&plain);
    for (int i = 0; i < 3; i++) {
        struct instance *f = client_take(small, &c, folders[i], INSTANCE_WRITER);
        assert_non_null(f);
        models_drop(small, f, MODELS_KEEP_DEFAULT);
    }
    models_stats(small, &s);
    assert_int_equal(s.loads, 3);
    assert_int_equal(s.unloads, 1);
    assert_int_equal(s.failures, 0);
    models_close(small);
    small = NULL;
}

static void a_busy_model_is_waited_for_no_longer_than_patience(void **state)
{
    (void)state;
    struct client a, b, again;
    client_open(&a);
    client_open(&b);
    client_open(&again);
    struct models_options o = plain;
    o.memory = 1 << 20; /* enough for one of them */
    o.patience = 1000;
    struct models *m = open_models(&o);
    struct instance *f = client_take(m, &a, "llama", INSTANCE_WRITER);
    o.memory = f->bytes + 1000;
    models_lock(m);
    m->room = o.memory;
    models_unlock(m);
    assert_int_equal(models_take(m, &(struct model_want){.name = "qwen2"}, &b.wait), TAKEN_LATER);
    for (bool leaving = false; !leaving; usleep(1000)) {
        models_lock(m);
        leaving = f->state == INSTANCE_LEAVING;
        models_unlock(m);
    }
    /* it is on its way out: new users queue up behind the other */
    assert_int_equal(models_take(m, &(struct model_want){.name = "llama"}, &again.wait), TAKEN_LATER);
    again.wait.since = clock_now() + 2000;
    models_expire(m, clock_now() + 1500); /* b has waited too long */
    client_wait(&b);
    assert_null(b.wait.form);
    assert_int_equal(b.wait.failure.status, 503);
    client_wait(&again); /* so the first may stay, and who asked for it has it */
    assert_ptr_equal(again.wait.form, f);
    models_drop(m, f, MODELS_KEEP_DEFAULT);
    models_drop(m, f, MODELS_KEEP_DEFAULT);
    models_close(m);
}

static void a_wait_can_be_taken_back(void **state)
{
    (void)state;
    struct client c, d;
    client_open(&c);
    client_open(&d);
    open_delay_us = 50000;
    struct models *m = open_models(&plain);
    assert_int_equal(models_take(m, &(struct model_want){.name = "llama"}, &c.wait), TAKEN_LATER);
    assert_int_equal(models_take(m, &(struct model_want){.name = "llama"}, &d.wait), TAKEN_LATER);
    assert_true(models_unwait(m, &c.wait));
    assert_false(models_unwait(m, &c.wait));
    client_wait(&d);
    assert_non_null(d.wait.form);
    assert_int_equal(d.wait.form->users, 1);
    models_drop(m, d.wait.form, MODELS_KEEP_DEFAULT);
    /* the end of the server: whoever waits is told */
    assert_int_equal(models_take(m, &(struct model_want){.name = "qwen2"}, &c.wait), TAKEN_LATER);
    models_shut(m);
    client_wait(&c);
    assert_true(c.wait.form || c.wait.failure.status == 503);
    open_delay_us = 0;
    models_close(m);
}

static void the_list_can_change(void **state)
{
    (void)state;
    struct client c;
    client_open(&c);
    size_t count = three;
    struct models_options o = plain;
    o.arg = &count;
    struct models *m = open_models(&o);
    struct instance *f = client_take(m, &c, "gemma", INSTANCE_WRITER);
    assert_null(client_take(m, &c, "bert", INSTANCE_VECTORS));
    count = 2;
    models_rescan(m);
    for (int i = 0; i < 1000; i++) {
        models_lock(m);
        bool gone = !models_find(m, "gemma");
        models_unlock(m);
        if (gone)
            break;
        usleep(2000);
    }
    int32_t ids[8];
    write_some(f, ids, 8); /* who has it keeps it */
    assert_null(client_take(m, &c, "gemma", INSTANCE_WRITER));
    assert_int_equal(c.wait.failure.status, 404);
    models_drop(m, f, MODELS_KEEP_DEFAULT);
    count = 5;
    models_rescan(m);
    for (int i = 0; i < 1000 && !(f = client_take(m, &c, "bert", INSTANCE_VECTORS)); i++)
        usleep(2000);
    assert_non_null(f);
    models_drop(m, f, MODELS_KEEP_DEFAULT);
    models_close(m);
}

/* ---- vectors ---- */

static void vectors_told(void *arg)
{
    atomic_store((atomic_bool *)arg, true);
}

/* One text alone and among forty gives the same vector. */
static void texts_share_steps(struct models *m, const char *name)
{
    enum { TEXTS = 40 };
    struct client c;
    client_open(&c);
    struct instance *f = client_take(m, &c, name, INSTANCE_VECTORS);
    assert_non_null(f);
    size_t width = f->session->model->h.width;
    int32_t data[TEXTS][CTX];
    struct ids texts[TEXTS];
    float *all = mem_alloc(TEXTS, width * sizeof *all), *one = mem_alloc(1, width * sizeof *one);
    for (int i = 0; i < TEXTS; i++) {
        for (int k = 0; k < CTX; k++)
            data[i][k] = 1 + (i * 7 + k * 13) % 60;
        texts[i] = (struct ids){.data = data[i], .len = (size_t)(1 + i * 5 % CTX)};
    }
    atomic_bool done = false;
    struct embed_job j = {.texts = texts, .count = TEXTS, .out = all, .done = vectors_told, .arg = &done};
    struct err e = {0};
    assert_int_equal(embedder_submit(f->embedder, &j, &e), 0);
    while (!atomic_load(&done))
        usleep(1000);
    assert_int_equal(j.err.code, 0);
    for (int i = 0; i < TEXTS; i += 3) {
        struct embed_job alone = {
            .texts = &texts[i], .count = 1, .out = one, .done = vectors_told, .arg = &done};
        atomic_store(&done, false);
        assert_int_equal(embedder_submit(f->embedder, &alone, &e), 0);
        while (!atomic_load(&done))
            usleep(200);
        double dot = 0, length = 0;
        for (size_t k = 0; k < width; k++) {
            dot += (double)one[k] * all[(size_t)i * width + k];
            length += (double)one[k] * one[k];
        }
        assert_float_equal(length, 1, 1e-4);
        assert_float_equal(dot, 1, 1e-3);
    }
    texts[0].len = 0;
    assert_int_equal(embedder_submit(f->embedder, &j, &e), -1);
    struct err large = {0};
    texts[0].len = 1;
    data[0][0] = 64;
    assert_int_equal(embedder_submit(f->embedder, &j, &large), -1);
    models_drop(m, f, MODELS_KEEP_DEFAULT);
    mem_free(all);
    mem_free(one);
}

static void vectors_do_not_depend_on_their_neighbours(void **state)
{
    (void)state;
    struct models *m = open_models(&plain);
    texts_share_steps(m, "bert");
    texts_share_steps(m, "llama");
    struct models_stats s;
    models_stats(m, &s);
    assert_int_equal(s.embedder.texts, 2 * (40 + 14));
    assert_int_equal(s.embedder.waiting, 0);
    models_close(m);
}

static void names_come_from_paths(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"a/b/c.gguf", "c"},      {"c", "c"},
                                           {"/x/folder/", "folder"}, {"m-Q4-00001-of-00003.gguf", "m-Q4"},
                                           {"hf:user/repo", "repo"}, {"smollm2", "smollm2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *name = model_name(cases[i][0]);
        assert_string_equal(name, cases[i][1]);
        mem_free(name);
    }
    struct model_list l = {0};
    struct err e = {0};
    assert_int_equal(model_list_folder(&l, "test/data/arch", &e), 0);
    assert_true(l.count > 30);
    for (size_t i = 1; i < l.count; i++)
        assert_true(strcmp(l.items[i - 1].name, l.items[i].name) < 0);
    model_list_free(&l);
    assert_int_equal(model_list_folder(&l, "test/data/nowhere", &e), -1);
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_come_from_paths),
        cmocka_unit_test(nothing_is_loaded_until_it_is_asked_for),
        cmocka_unit_test(what_cannot_be_had_is_said),
        cmocka_unit_test(an_idle_model_goes),
        cmocka_unit_test(models_take_turns_where_there_is_room_for_one),
        cmocka_unit_test(a_full_device_makes_room),
        cmocka_unit_test(a_busy_model_is_waited_for_no_longer_than_patience),
        cmocka_unit_test(a_wait_can_be_taken_back),
        cmocka_unit_test(the_list_can_change),
        cmocka_unit_test(vectors_do_not_depend_on_their_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
