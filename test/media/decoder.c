/* The process that decodes: the same pixels, and an end at every limit. */
#include "test.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "media/decoder.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct decoder *decoder;

static void take(struct buf *b, const char *name)
{
    char path[256];
    struct err e = {0};
    snprintf(path, sizeof path, "test/data/images/%s", name);
    assert_int_equal(file_read(path, b, &e), 0);
}

static void *same_pixels(void *arg)
{
    static const char *const names[] = {"progressive.jpg", "interlaced-alpha.png", "lossy-alpha.webp",
                                        "clear.gif"};
    struct buf b = {.max = 1 << 20};
    struct image here = {0}, there = {0};
    struct err e = {0};
    take(&b, names[(size_t)arg % 4]);
    assert_int_equal(image_decode(&here, b.data, b.len, &IMAGE_LIMITS, &e), 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(decoder_run(decoder, &there, b.data, b.len, &IMAGE_LIMITS, &e), 0);
        assert_int_equal(here.width, there.width);
        assert_int_equal(here.height, there.height);
        assert_memory_equal(here.rgb, there.rgb, (size_t)here.width * (size_t)here.height * 3);
        image_free(&there);
    }
    image_free(&here);
    buf_free(&b);
    return NULL;
}

static void test_same(void **state)
{
    (void)state;
    pthread_t t[8];
    for (size_t i = 0; i < 8; i++)
        pthread_create(&t[i], NULL, same_pixels, (void *)i);
    for (size_t i = 0; i < 8; i++)
        pthread_join(t[i], NULL);
}

static void refused(const char *bytes, size_t n, struct image_limits limits, const char *words)
{
    struct image image = {0};
    struct err e = {0};
    assert_int_equal(decoder_run(decoder, &image, bytes, n, &limits, &e), -1);
    assert_null(image.rgb);
    assert_int_equal(e.code, ERR_DATA);
    if (!strstr(e.text, words))
        fail_msg("'%s' without '%s'", e.text, words);
}

static void test_limits(void **state)
{
    (void)state;
    struct buf b = {.max = 1 << 20};
    struct image_limits limits = IMAGE_LIMITS;
    take(&b, "baseline.jpg");
    limits.pixels = 37 * 23 - 1;
    refused(b.data, b.len, limits, "37 x 23 pixels; at most 850 in all");
    limits = IMAGE_LIMITS;
    limits.bytes = b.len - 1;
    refused(b.data, b.len, limits, "at most");
    refused(b.data, b.len - 300, IMAGE_LIMITS, "ends before");
    refused("", 0, IMAGE_LIMITS, "no image");
    buf_clear(&b);
    take(&b, "bad-bomb.png");
    refused(b.data, b.len, IMAGE_LIMITS, "60000 x 60000 pixels");
    buf_free(&b);
}

/* ---- a JPEG of 64 million pixels whose scans change nothing, thousands of them ---- */

struct bits {
    struct buf *b;
    unsigned value, count;
};

static void bits_add(struct bits *w, unsigned value, unsigned n)
{
    while (n--) {
        w->value = w->value << 1 | (value >> n & 1);
        if (++w->count == 8) {
            buf_char(w->b, (char)w->value);
            if ((w->value & 255) == 255)
                buf_char(w->b, 0);
            w->value = w->count = 0;
        }
    }
}

static void add_scan(struct buf *b)
{
    static const uint8_t head[] = {0xff, 0xda, 0, 8, 1, 1, 0, 1, 63, 0};
    struct bits w = {b, 0, 0};
    buf_add(b, head, sizeof head);
    for (int i = 0; i < 31; i++) { /* one code, "0": a run of 2^14 and 14 bits more empty blocks */
        bits_add(&w, 0, 1);
        bits_add(&w, 0x3fff, 14);
    }
    bits_add(&w, 0x7f, 7);
}

static void test_seconds(void **state)
{
    (void)state;
    static const uint8_t head[] = {
        0xff, 0xd8, 0xff, 0xc2, 0,    11, 8, 0x1f, 0x40, 0x1f, 0x40, 1, 1, 0x11, 0, /* 8000 x 8000 */
        0xff, 0xc4, 0,    20,   0x10, 1,  0, 0,    0,    0,    0,    0, 0, 0,    0, 0, 0, 0, 0, 0, 0, 0xe0};
    struct buf b = {.max = 4 << 20};
    struct image_limits limits = IMAGE_LIMITS;
    limits.seconds = 1;
    buf_add(&b, head, sizeof head);
    buf_add(&b, "\xff\xdb\0\x43\0", 5); /* the quantisation table: all 1 */
    for (int i = 0; i < 64; i++)
        buf_char(&b, 1);
    for (int i = 0; i < 20000; i++)
        add_scan(&b);
    buf_add(&b, "\xff\xd9", 2);
    assert_false(b.failed);
    double start = clock_now();
    refused(b.data, b.len, limits, "took longer than 1 s");
    assert_true(clock_now() - start < 60);
    buf_free(&b);
}

static int setup(void **state)
{
    (void)state;
    struct err e = {0};
    return decoder_start(&decoder, &e);
}

static int teardown(void **state)
{
    (void)state;
    decoder_stop(decoder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same), cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_seconds)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
