/* Decoding and resizing against PIL's results (test/e2e/make_images.py writes them). */
#include "test.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "hub/sha.h"
#include "media/decode.h"

#include <stdio.h>
#include <string.h>

#define FOLDER "test/data/images/"

static int load(struct image *out, const char *name, struct err *e)
{
    struct buf b = {.max = 1 << 20};
    char path[256];
    snprintf(path, sizeof path, FOLDER "%s", name);
    int failed =
        file_read(path, &b, e) || image_decode(out, b.data ? b.data : "", b.len, &IMAGE_LIMITS, e) ? -1 : 0;
    buf_free(&b);
    return failed;
}

static void hash(const struct image *image, char hex[SHA_HEX])
{
    struct sha s;
    sha_start(&s, SHA_256);
    sha_add(&s, image->rgb, (size_t)image->width * (size_t)image->height * 3);
    sha_end(&s, hex);
}

/* Lines of expect.txt that begin with this word: false and a message where one does not hold. */
static int each(const char *word, bool (*holds)(const char *line))
{
    FILE *f = fopen(FOLDER "expect.txt", "r");
    char line[512];
    int n = 0, bad = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, word, strlen(word))) {
            line[strcspn(line, "\n")] = 0;
            n++;
            bad += !holds(line + strlen(word) + 1);
        }
    fclose(f);
    assert_int_equal(bad, 0);
    return n;
}

static bool decodes(const char *line)
{
    char name[64], want[SHA_HEX], got[SHA_HEX] = "";
    int w, h;
    struct image image = {0};
    struct err e = {0};
    assert_int_equal(sscanf(line, "%63s %d %d %64s", name, &w, &h, want), 4);
    if (!load(&image, name, &e))
        hash(&image, got);
    bool same = image.width == w && image.height == h && !strcmp(got, want);
    if (!same)
        fprintf(stderr, "%s: %d x %d, not %d x %d, or other pixels: %s\n", name, image.width, image.height, w,
                h, e.text);
    image_free(&image);
    return same;
}

static bool resizes(const char *line)
{
    char name[64], want[SHA_HEX], got[SHA_HEX] = "";
    int w, h, filter;
    struct image image = {0}, out = {0};
    struct err e = {0};
    assert_int_equal(sscanf(line, "%63s %d %d %d %64s", name, &w, &h, &filter, want), 5);
    assert_int_equal(load(&image, name, &e), 0);
    assert_int_equal(image_resize(&out, &image, w, h, (enum image_filter)filter, &e), 0);
    hash(&out, got);
    if (w > 3 && h > 3) { /* a part is the same pixels */
        struct image part, cut;
        const struct image_part p = {w, h, w / 3, h / 4, w / 2, h / 2};
        assert_int_equal(image_resize_part(&part, &image, &p, (enum image_filter)filter, &e), 0);
        assert_int_equal(image_crop(&cut, &out, p.x, p.y, p.part_width, p.part_height, &e), 0);
        assert_memory_equal(part.rgb, cut.rgb, (size_t)p.part_width * (size_t)p.part_height * 3);
        image_free(&part);
        image_free(&cut);
    }
    if (strcmp(got, want) != 0)
        fprintf(stderr, "resize %s differs\n", line);
    image_free(&image);
    image_free(&out);
    return !strcmp(got, want);
}

static bool refuses(const char *line)
{
    char name[64];
    int words;
    struct image image = {0};
    struct err e = {0};
    assert_int_equal(sscanf(line, "%63s %n", name, &words), 1);
    bool refused = load(&image, name, &e) && !image.rgb && strstr(e.text, line + words);
    if (!refused)
        fprintf(stderr, "%s: '%s' without '%s'\n", name, e.text, line + words);
    image_free(&image);
    return refused;
}

static void test_decode(void **state)
{
    (void)state;
    assert_true(each("decode", decodes) > 40);
}

static void test_resize(void **state)
{
    (void)state;
    assert_true(each("resize", resizes) > 100);
}

static void test_refuse(void **state)
{
    (void)state;
    assert_true(each("bad", refuses) > 15);
}

/* Every allocation of ours may fail, and nothing leaks or is left in the result. */
static void test_memory(void **state)
{
    (void)state;
    static const char *const names[] = {"cmyk.jpg", "turned6.jpg", "interlaced.png", "clear.gif",
                                        "alpha.webp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int failed = -1;
        for (long n = 2; failed; n++) { /* the first one is the test's own */
            struct image image = {0};
            struct err e = {0};
            mem_fail_at(n);
            failed = load(&image, names[i], &e);
            mem_fail_at(0);
            assert_true(!failed || !image.rgb);
            image_free(&image);
            assert_true(n < 100);
        }
    }
}

static void test_crop(void **state)
{
    (void)state;
    uint8_t rgb[2 * 2 * 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    const struct image image = {2, 2, rgb};
    struct image out;
    struct err e = {0};
    assert_int_equal(image_crop(&out, &image, -1, 1, 4, 2, &e), 0);
    const uint8_t want[4 * 2 * 3] = {0, 0, 0, 7, 8, 9, 10, 11, 12};
    assert_memory_equal(out.rgb, want, sizeof want);
    image_free(&out);
    assert_int_equal(image_crop(&out, &image, 5, 5, 1, 1, &e), 0);
    assert_memory_equal(out.rgb, "\0\0\0", 3);
    image_free(&out);
    assert_int_equal(image_new(&out, 0, 1, &e), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_decode), cmocka_unit_test(test_resize),
                                       cmocka_unit_test(test_refuse), cmocka_unit_test(test_memory),
                                       cmocka_unit_test(test_crop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
