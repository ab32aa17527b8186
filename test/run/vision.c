/* Images in the engine: the second turn of a conversation encodes nothing, nor does the first after a restart with a cache
 * on disk; other pixels are another image; what is said does not depend on what is cached. */
#include "test.h"

#include "codec/dtype.h"
#include "run/engine.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CTX = 512, MADE = 8, TURN_MOST = 256 };

struct talk {
    struct session *l;
    struct engine *g;
    int32_t ids[TURN_MOST]; /* prompt, and what was said */
    uint32_t n;
    struct prompt_image at[2];
    uint32_t images;
};

static void open_talk_with(struct talk *t, const char *folder, struct engine_options with)
{
    char path[256];
    struct err e = {0};
    struct store *store;
    struct session_options o = {.runner = {.ctx = CTX, .seqs = 2, .snapshots = 16, .kv_type = DTYPE_F16},
                                .no_text = true};
    *t = (struct talk){0};
    o.runner.device = "cpu";
    o.runner.device_options = (struct device_options){.threads = 1, .exact = true};
    snprintf(path, sizeof path, "test/data/vision/%s", folder);
    if (store_open(&store, path, &e) || session_open(&t->l, store, &o, &e) ||
        engine_open(&t->g, t->l, &with, &e))
        fail_msg("%s", e.text);
    assert_non_null(t->l->tower);
}

static void open_talk(struct talk *t, const char *folder, const char *cache)
{
    open_talk_with(t, folder, (struct engine_options){.cache_dir = cache, .snapshot = RUNNER_PAGE});
}

static void close_talk(struct talk *t)
{
    for (uint32_t i = 0; i < t->images; i++)
        picture_drop(t->at[i].picture);
    engine_close(t->g);
    session_close(t->l);
}

static void add_text(struct talk *t, uint32_t n, int32_t from)
{
    for (uint32_t i = 0; i < n; i++)
        t->ids[t->n++] = from + (int32_t)(i * 7 % 50);
}

/* An image of stripes, whose colours depend on `kind`. */
static void add_image(struct talk *t, int kind)
{
    struct err e = {0};
    struct image image;
    struct prompt_image *at = &t->at[t->images++];
    assert_int_equal(image_new(&image, 112, 112, &e), 0);
    for (int i = 0; i < 112 * 112 * 3; i++)
        image.rgb[i] = (uint8_t)(i * (kind + 3) / 11);
    if (picture_make(&at->picture, t->l->vision, &image, &e))
        fail_msg("%s", e.text);
    image_free(&image);
    at->first = t->n;
    at->tokens = at->picture->rows;
    for (uint32_t i = 0; i < at->tokens; i++)
        t->ids[t->n++] = t->l->vision->image_token;
}

/* Says the next MADE tokens; returns how many of the prompt were cached. */
static uint32_t say(struct talk *t)
{
    struct err e = {0};
    struct stream *s;
    struct stream_chunk c = {0};
    struct engine_request r = {.prompt = t->ids,
                               .n = t->n,
                               .images = t->at,
                               .image_count = t->images,
                               .most = MADE,
                               .ignore_eog = true,
                               .sampler = t->l->defaults};
    r.sampler.temperature = 0;
    if (engine_submit(t->g, &r, &s, &e))
        fail_msg("%s", e.text);
    while (!c.done) {
        assert_true(stream_look(s, 60, &c));
        for (size_t i = 0; i < c.count; i++)
            t->ids[t->n++] = c.ids[i];
    }
    if (c.err.code)
        fail_msg("%s", c.err.text);
    uint32_t cached = c.cached;
    stream_close(s);
    return cached;
}

static uint64_t encoded(struct talk *t)
{
    struct engine_stats s;
    engine_stats(t->g, &s);
    return s.images;
}

static void first_turn(struct talk *t, int kind)
{
    add_text(t, 10, 5);
    add_image(t, kind);
    add_text(t, 40, 60);
    say(t);
}

static const char *const folders[] = {"gemma3_vl", "qwen3_5_vl"}; /* tokens that see each other; state */

static void turns(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct talk t, fresh;
        open_talk(&t, folders[k], NULL);
        first_turn(&t, 1);
        assert_int_equal(encoded(&t), 1);
        const uint32_t image_end = t.at[0].first + t.at[0].tokens;
        add_text(&t, 20, 100);
        const uint32_t before = t.n;
        assert_true(say(&t) >= image_end);
        assert_int_equal(encoded(&t), 1);
        /* the same conversation without a cache says the same */
        open_talk(&fresh, folders[k], NULL);
        memcpy(fresh.ids, t.ids, before * sizeof *t.ids);
        fresh.n = before;
        fresh.images = 1;
        fresh.at[0] = t.at[0];
        picture_hold(t.at[0].picture);
        assert_int_equal(say(&fresh), 0);
        assert_int_equal(fresh.n, t.n);
        assert_memory_equal(fresh.ids, t.ids, t.n * sizeof *t.ids);
        close_talk(&fresh);
        close_talk(&t);
    }
}

/* Other pixels in the same place are not taken for the first ones. */
static void other_pixels(void **state)
{
    (void)state;
    struct talk a, b;
    open_talk(&a, "gemma3_vl", NULL);
    first_turn(&a, 1);
    b = a;
    b.n = b.images = 0;
    add_text(&b, 10, 5);
    add_image(&b, 2);
    add_text(&b, 40, 60);
    assert_true(say(&b) <= 10);
    assert_int_equal(encoded(&a), 2);
    picture_drop(b.at[0].picture);
    close_talk(&a);
}

static void empty(const char *folder)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        if (f->d_name[0] != '.')
            unlink(path);
    }
    closedir(d);
    rmdir(folder);
}

static void restarts(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        char cache[] = "/tmp/quern-vision-XXXXXX";
        struct talk t;
        int32_t said[MADE];
        assert_non_null(mkdtemp(cache));
        open_talk(&t, folders[k], cache);
        first_turn(&t, 1);
        memcpy(said, t.ids + t.n - MADE, sizeof said);
        close_talk(&t);
        open_talk(&t, folders[k], cache);
        add_text(&t, 10, 5);
        add_image(&t, 1);
        add_text(&t, 40, 60);
        add_text(&t, MADE, 0);
        memcpy(t.ids + t.n - MADE, said, sizeof said);
        add_text(&t, 20, 100);
        assert_true(say(&t) >= t.at[0].first + t.at[0].tokens);
        assert_int_equal(encoded(&t), 0);
        close_talk(&t);
        empty(cache);
    }
}

/* An image that is encoded in slices, while another stream goes on, gives the same as one that is encoded at once. */
static void slices(void **state)
{
    (void)state;
    struct talk whole, t;
    struct err e = {0};
    struct stream *s;
    struct stream_chunk c = {0};
    open_talk(&whole, "gemma3_vl", NULL);
    first_turn(&whole, 1);
    open_talk_with(&t, "gemma3_vl", (struct engine_options){.snapshot = RUNNER_PAGE, .gap = 1e-9});
    int32_t ids[12];
    for (int i = 0; i < 12; i++)
        ids[i] = 20 + i;
    struct engine_request beside = {
        .prompt = ids, .n = 12, .most = 200, .ignore_eog = true, .sampler = t.l->defaults};
    if (engine_submit(t.g, &beside, &s, &e))
        fail_msg("%s", e.text);
    first_turn(&t, 1);
    assert_int_equal(encoded(&t), 1);
    assert_int_equal(t.n, whole.n);
    assert_memory_equal(t.ids, whole.ids, t.n * sizeof *t.ids);
    uint64_t count = 0;
    while (!c.done) {
        assert_true(stream_look(s, 60, &c));
        count += c.count;
    }
    assert_int_equal(count, 200);
    stream_close(s);
    close_talk(&t);
    close_talk(&whole);
}

static void no_echo_of_images(void **state)
{
    (void)state;
    struct talk t;
    struct err e = {0};
    struct stream *s;
    open_talk(&t, "gemma3_vl", NULL);
    first_turn(&t, 1);
    const struct engine_request r = {.prompt = t.ids,
                                     .n = t.n,
                                     .images = t.at,
                                     .image_count = 1,
                                     .echo = true,
                                     .logprobs = true,
                                     .sampler = t.l->defaults};
    assert_int_not_equal(engine_submit(t.g, &r, &s, &e), 0);
    if (!strstr(e.text, "echoed"))
        fail_msg("%s", e.text);
    close_talk(&t);
}

/* No two pictures share a number, however many there are; those that are remembered keep theirs. */
static void numbers(void **state)
{
    (void)state;
    enum { MANY = 70000 };
    struct picture_ids *t = picture_ids_open();
    struct picture p = {.rows = 1};
    int32_t last = 0, first = 0;
    uint8_t digest[PICTURE_DIGEST];
    uint32_t row;
    assert_non_null(t);
    for (uint32_t i = 0; i < MANY; i++) {
        memcpy(p.digest, &i, sizeof i);
        p.rows = 1 + i % 3;
        const int32_t id = picture_ids_take(t, &p);
        assert_true(id < 0 && (!i || id > last));
        first = i ? first : id;
        last = id;
        if (i % 1000 == 0)
            assert_int_equal(picture_ids_take(t, &p), id);
    }
    assert_true(picture_ids_find(t, last, digest, &row));
    assert_memory_equal(digest, p.digest, sizeof digest);
    assert_false(picture_ids_find(t, first, digest, &row)); /* forgotten: it gets a number of its own again */
    memset(p.digest, 0, sizeof p.digest);
    p.rows = 1;
    assert_true(picture_ids_take(t, &p) > last);
    p.digest[31] = 1; /* the range is used up after two such ones */
    p.rows = 1u << 30;
    picture_ids_take(t, &p);
    assert_int_equal(picture_ids_turns(t), 0);
    p.digest[31] = 2;
    assert_int_equal(picture_ids_take(t, &p), INT32_MIN);
    assert_int_equal(picture_ids_turns(t), 1);
    picture_ids_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns),  cmocka_unit_test(other_pixels), cmocka_unit_test(restarts),
        cmocka_unit_test(slices), cmocka_unit_test(numbers),      cmocka_unit_test(no_echo_of_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
