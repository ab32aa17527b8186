/* Images of odd sizes become the tiles that the transformers library makes, bit by bit (test/e2e/make_prepare.py). */
#include "test.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "hub/sha.h"
#include "media/decode.h"
#include "model/vision/preprocess.h"

#include <stdio.h>
#include <string.h>

#define CLIP_MEAN                                                                                            \
    {                                                                                                        \
        0.48145466f, 0.4578275f, 0.40821073f                                                                 \
    }
#define CLIP_STD                                                                                             \
    {                                                                                                        \
        0.26862954f, 0.26130258f, 0.27577711f                                                                \
    }
#define HALF                                                                                                 \
    {                                                                                                        \
        0.5f, 0.5f, 0.5f                                                                                     \
    }
#define ALL     .resize = true, .rescale = true, .normalise = true, .scale = 1 / 255.0
#define BY_CLIP ALL, .mean = CLIP_MEAN, .std = CLIP_STD
#define BY_HALF ALL, .mean = HALF, .std = HALF

static const struct {
    const char *name;
    struct vision_params v;
} models[] = {
    {"gemma3",
     {.patch = 14,
      .merge = 4,
      .pixels = {.sizing = SIZING_EXACT, .filter = FILTER_BILINEAR, .width = 112, .height = 112, BY_HALF}}},
    {"gemma4",
     {.patch = 16,
      .merge = 3,
      .pixels = {.sizing = SIZING_TOKENS,
                 .filter = FILTER_BICUBIC,
                 .max_tokens = 70,
                 .resize = true,
                 .rescale = true,
                 .scale = 1 / 255.0}}},
    {"qwen3",
     {.patch = 16,
      .merge = 2,
      .pixels = {.sizing = SIZING_PIXELS,
                 .filter = FILTER_BICUBIC,
                 .min_pixels = 1024,
                 .max_pixels = 200000,
                 BY_HALF}}},
    {"qwen2",
     {.patch = 14,
      .merge = 2,
      .pixels = {.sizing = SIZING_PIXELS,
                 .filter = FILTER_BICUBIC,
                 .min_pixels = 3136,
                 .max_pixels = 100352,
                 BY_CLIP}}},
    {"idefics3",
     {.patch = 14,
      .merge = 2,
      .pixels = {.sizing = SIZING_SPLIT,
                 .filter = FILTER_LANCZOS,
                 .split = true,
                 .longest = 224,
                 .tile = 56,
                 BY_HALF}}},
    {"unsplit",
     {.patch = 14,
      .merge = 2,
      .pixels = {.sizing = SIZING_SPLIT, .filter = FILTER_LANCZOS, .longest = 224, .tile = 56, BY_HALF}}},
    {"pixtral",
     {.patch = 14,
      .merge = 2,
      .pixels = {.sizing = SIZING_LONGEST, .filter = FILTER_BICUBIC, .longest = 224, BY_CLIP}}},
    {"llava",
     {.patch = 14,
      .merge = 1,
      .pixels = {.sizing = SIZING_CROP,
                 .filter = FILTER_BICUBIC,
                 .crop = true,
                 .shortest = 56,
                 .width = 56,
                 .height = 56,
                 BY_CLIP}}},
    {"small",
     {.patch = 14,
      .merge = 1,
      .pixels = {.sizing = SIZING_CROP,
                 .filter = FILTER_BICUBIC,
                 .crop = true,
                 .width = 61,
                 .height = 60,
                 .rescale = true,
                 .normalise = true,
                 .scale = 1 / 255.0,
                 .mean = CLIP_MEAN,
                 .std = CLIP_STD}}},
    {"pan",
     {.patch = 14,
      .merge = 4,
      .pixels = {.sizing = SIZING_EXACT,
                 .filter = FILTER_BILINEAR,
                 .width = 112,
                 .height = 112,
                 .pan = true,
                 .pan_least = 20,
                 .pan_most = 4,
                 .pan_ratio = 1.2,
                 BY_HALF}}},
    {"square",
     {.patch = 14,
      .merge = 1,
      .pixels = {.sizing = SIZING_CROP,
                 .filter = FILTER_BICUBIC,
                 .crop = true,
                 .square = true,
                 .shortest = 60,
                 .width = 56,
                 .height = 56,
                 BY_CLIP}}},
    {"both",
     {.patch = 14,
      .merge = 1,
      .pixels = {.sizing = SIZING_CROP,
                 .filter = FILTER_BICUBIC,
                 .resized_width = 84,
                 .resized_height = 56,
                 BY_CLIP}}},
    {"anyres",
     {.patch = 14,
      .merge = 1,
      .pixels = {.sizing = SIZING_ANYRES,
                 .filter = FILTER_BICUBIC,
                 .crop = true,
                 .shortest = 56,
                 .width = 56,
                 .height = 56,
                 .tile = 56,
                 .grid = {{56, 112}, {112, 56}, {112, 112}, {168, 56}, {56, 168}},
                 .grids = 5,
                 BY_CLIP}}},
    {"internvl",
     {.patch = 14,
      .merge = 2,
      .pixels = {.sizing = SIZING_GRID,
                 .filter = FILTER_BICUBIC,
                 .thumbnail = true,
                 .tile = 56,
                 .min_tiles = 1,
                 .max_tiles = 6,
                 BY_CLIP}}},
};

static const struct vision_params *find(const char *name)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (!strcmp(models[i].name, name))
            return &models[i].v;
    fail_msg("%s", name);
    return NULL;
}

static struct image picture(int w, int h)
{
    struct image image;
    struct err e = {0};
    assert_int_equal(image_new(&image, w, h, &e), 0);
    uint8_t *at = image.rgb;
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++) {
            *at++ = (uint8_t)((x * 7 + y * 3) ^ (x * y >> 4));
            *at++ = (uint8_t)((x * x + y * 5) >> 3);
            *at++ = (uint8_t)((x * 11 + y * y) >> 2);
        }
    return image;
}

static void hash(const struct vision_prepared *p, char hex[SHA_HEX])
{
    struct sha s;
    sha_start(&s, SHA_256);
    for (uint32_t i = 0; i < p->tiles; i++)
        sha_add(&s, p->tile[i].pixels, (size_t)3 * p->tile[i].width * p->tile[i].height * sizeof(float));
    sha_end(&s, hex);
}

/* pixtral's processor fails where a side becomes 0; here it becomes one patch. */
static bool refused(const char *name, const struct image *image)
{
    struct vision_prepared p = {0};
    struct err e = {0};
    int rc = vision_prepare(&p, find(name), image, &e);
    if (!strcmp(name, "pixtral"))
        rc = !(rc == 0 && p.tiles == 1 && (p.tile[0].width == 28 || p.tile[0].height == 28)) ? 0 : -1;
    else if (!strstr(e.text, "at most 200 times"))
        rc = 0;
    vision_prepared_free(&p);
    return rc;
}

static bool same(const char *line)
{
    char name[32], want[SHA_HEX], got[SHA_HEX] = "";
    unsigned n[7];
    int w, h, more;
    struct vision_prepared p = {0};
    struct vision_layout l = {0};
    struct err e = {0};
    assert_int_equal(sscanf(line, "%31s %d %d %n", name, &w, &h, &more), 3);
    struct image image = picture(w, h);
    if (!strncmp(line + more, "refused", 7)) {
        bool ok = refused(name, &image);
        image_free(&image);
        return ok;
    }
    assert_int_equal(sscanf(line + more, "%u %u %u %u %u %64s", &n[0], &n[1], &n[2], &n[3], &n[4], want), 6);
    if (!vision_prepare(&p, find(name), &image, &e) && !vision_layout(&l, find(name), w, h, &e))
        hash(&p, got);
    bool ok = p.tiles == n[0] && p.tile[0].width == n[1] && p.tile[0].height == n[2] && p.grid_cols == n[3] &&
              p.grid_rows == n[4] && l.tiles == n[0] && l.width == n[1] && l.height == n[2] &&
              l.grid_cols == n[3] && !strcmp(got, want);
    if (!ok)
        fprintf(stderr, "%s: %u tiles of %u x %u, %u x %u, %s\n", line, l.tiles, l.width, l.height,
                l.grid_cols, l.grid_rows, e.code ? e.text : got);
    vision_prepared_free(&p);
    image_free(&image);
    return ok;
}

static void test_same(void **state)
{
    (void)state;
    FILE *f = fopen("test/data/images/prepare.txt", "r");
    char line[256];
    int n = 0, bad = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        n++;
        bad += !same(line);
    }
    fclose(f);
    assert_int_equal(bad, 0);
    assert_true(n >= 100);
}

static void test_memory(void **state)
{
    (void)state;
    static const char *const names[] = {"llava", "idefics3", "internvl", "gemma3", "pan", "square", "anyres"};
    struct image image = picture(100, 60);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int failed = -1;
        for (long n = 1; failed; n++) {
            struct vision_prepared p = {0};
            struct err e = {0};
            mem_fail_at(n);
            failed = vision_prepare(&p, find(names[i]), &image, &e);
            mem_fail_at(0);
            assert_true(!failed || !p.tile);
            vision_prepared_free(&p);
            assert_true(n < 200);
        }
    }
    image_free(&image);
}

/* An extreme image of a model that crops: only the middle is computed. */
static void test_extreme(void **state)
{
    (void)state;
    struct image image = picture(1, 65535);
    struct vision_prepared p = {0};
    struct err e = {0};
    struct vision_params v = *find("llava");
    v.pixels.shortest = v.pixels.width = v.pixels.height = 336;
    assert_int_equal(vision_prepare(&p, &v, &image, &e), 0);
    assert_int_equal(p.tile[0].width, 336);
    vision_prepared_free(&p);
    image_free(&image);
}

/* FOLDER IMAGE: the digest of what the processor of a model's folder makes of a file, for test_random_towers.py. */
static int print_digest(const char *folder, const char *file)
{
    struct store *s = NULL;
    struct vision_params v;
    struct vision_prepared p = {0};
    struct image image = {0};
    struct buf bytes = {.max = 1 << 24};
    struct err e = {0};
    char hex[SHA_HEX];
    if (store_open(&s, folder, &e) == 0 && vision_read(&v, s, &e) == 0 && file_read(file, &bytes, &e) == 0 &&
        image_decode(&image, bytes.data, bytes.len, &IMAGE_LIMITS, &e) == 0 &&
        vision_prepare(&p, &v, &image, &e) == 0) {
        hash(&p, hex);
        printf("%s\n", hex);
    } else {
        fprintf(stderr, "%s\n", e.text);
    }
    vision_prepared_free(&p);
    image_free(&image);
    buf_free(&bytes);
    store_close(s);
    return e.code != 0;
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return print_digest(argv[1], argv[2]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same), cmocka_unit_test(test_memory),
                                       cmocka_unit_test(test_extreme)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
