/* Prompts with images: every family's words around the image tokens, in chats and in plain texts. */
#include "test.h"

#include "base/mem.h"
#include "run/image_text.h"
#include "run/session.h"

#include <stdio.h>
#include <string.h>

static struct session session;
static struct vision_params params;

/* A family whose images become tiles of `side` pixels: rows of one pixel of a patch of 1. */
static void see(enum vision_family family, const char *template)
{
    struct err e = {0};
    chat_close(session.chat);
    session.chat = NULL;
    params = (struct vision_params){.family = family,
                                    .patch = 1,
                                    .merge = 1,
                                    .image_token = -1,
                                    .pixels = {.sizing = SIZING_EXACT, .filter = FILTER_NEAREST}};
    if (template)
        assert_int_equal(chat_open_text(&session.chat, template, strlen(template), &e), 0);
}

static struct picture *picture(int width, int height)
{
    struct image image;
    struct picture *p;
    struct err e = {0};
    assert_int_equal(image_new(&image, width, height, &e), 0);
    memset(image.rgb, width, (size_t)width * (size_t)height * 3);
    assert_int_equal(picture_make(&p, &params, &image, &e), 0);
    image_free(&image);
    return p;
}

static void is_text(const struct ids *ids, const char *want)
{
    struct buf text = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_decode(session.tokenizer, ids->data, ids->len, false, &text, &e), 0);
    assert_string_equal(text.data, want);
    buf_free(&text);
}

/* The prompt of one message with two images. */
static void chat(const char *want, int width, int height)
{
    struct picture *pictures[] = {picture(width, height), picture(1, 1)};
    struct prompt_image images[2] = {0};
    struct ids ids = {0};
    struct err e = {0};
    json_t *messages = json_pack("[{s:s,s:[{s:s},{s:s,s:s},{s:s}]}]", "role", "user", "content", "type",
                                 "image", "type", "text", "text", "a<image>b", "type", "image");
    const struct prompt_request r = {
        .messages = messages, .pictures = pictures, .picture_count = 2, .images = images};
    if (session_prompt(&session, &r, &ids, &e))
        fail_msg("%s", e.text);
    is_text(&ids, want);
    for (int i = 0; i < 2; i++) {
        uint32_t found = 0;
        assert_ptr_equal(images[i].picture, pictures[i]);
        assert_int_equal(ids.data[images[i].first], image_token(&session));
        assert_int_equal(ids.data[images[i].first + images[i].tokens - 1], image_token(&session));
        for (uint32_t k = 0; k < images[i].tokens; k++)
            found += ids.data[images[i].first + k] == image_token(&session);
        assert_int_equal(found, pictures[i]->rows);
        picture_drop(pictures[i]);
    }
    assert_true(images[0].first + images[0].tokens <= images[1].first);
    json_decref(messages);
    ids_free(&ids);
}

#define PARTS(place)                                                                                         \
    "{% for m in messages %}{% for c in m.content %}{% if c.type == 'image' %}" place                        \
    "{% else %}{{ c.text }}{% endif %}{% endfor %}{% endfor %}"

static void test_families(void **state)
{
    (void)state;
    see(VISION_LLAVA, PARTS("<image>."));
    chat("<image><image>.a<image>b<image>.", 2, 1);
    see(VISION_GEMMA3, PARTS("<start_of_image>"));
    chat("\n\n<start_of_image><image_soft_token><image_soft_token><end_of_image>\n\na<image>b\n\n<start_of_"
         "image>"
         "<image_soft_token><end_of_image>\n\n",
         2, 1);
    see(VISION_GEMMA4, PARTS("<|image|>"));
    chat("<|image><|image|><|image|><image|>a<image>b<|image><|image|><image|>", 1, 2);
    see(VISION_PIXTRAL, PARTS("[IMG]"));
    chat("[IMG][IMG][IMG_BREAK][IMG][IMG][IMG_BREAK][IMG][IMG][IMG_END]a<image>b[IMG][IMG_END]", 2, 3);
    see(VISION_QWEN3, PARTS("<|vision_start|><|image_pad|><|vision_end|>"));
    chat("<|vision_start|><|image_pad|><|image_pad|><|vision_end|>a<image>b<|vision_start|><|image_pad|><|"
         "vision_end|>",
         2, 1);
    see(VISION_INTERNVL, PARTS("<IMG_CONTEXT>\n"));
    chat("<img><IMG_CONTEXT><IMG_CONTEXT></img>\na<image>b<img><IMG_CONTEXT></img>\n", 2, 1);
    see(VISION_IDEFICS3, PARTS("<image>"));
    chat("<fake_token_around_image><global-img><image><image><fake_token_around_image>a<image>b<fake_token_"
         "around_image>"
         "<global-img><image><fake_token_around_image>",
         2, 1);
}

/* A template that knows no images: they stand where they were among the parts. */
static void test_other_templates(void **state)
{
    (void)state;
    see(VISION_QWEN2, "{% for m in messages %}[{{ m.content }}]{% endfor %}");
    chat("[<|vision_start|><|image_pad|><|image_pad|><|vision_end|>a<image>b<|vision_start|><|image_pad|><|"
         "vision_end|>]",
         2, 1);
    see(VISION_PIXTRAL, "{% for m in messages %}{% for c in m.content if c.type == 'text' %}{{ c.text }}{% "
                        "endfor %}{% endfor %}");
    chat("[IMG][IMG][IMG_END]a<image>b[IMG][IMG_END]", 2, 1);
}

static void test_tiles(void **state)
{
    (void)state;
    see(VISION_IDEFICS3, PARTS("<image>"));
    params.pixels = (struct vision_pixels){.sizing = SIZING_SPLIT,
                                           .filter = FILTER_LANCZOS,
                                           .resize = true,
                                           .split = true,
                                           .longest = 4,
                                           .tile = 2};
    params.merge = 2;
    chat("<fake_token_around_image><row_1_col_1><image><fake_token_around_image><row_1_col_2><image>\n"
         "\n<fake_token_around_image><global-img><image><fake_token_around_image>a<image>b"
         "<fake_token_around_image><row_1_col_1><image><fake_token_around_image><row_1_col_2><image>\n"
         "<fake_token_around_image><row_2_col_1><image><fake_token_around_image><row_2_col_2><image>\n"
         "\n<fake_token_around_image><global-img><image><fake_token_around_image>",
         9, 4);
}

static int plain(const char *text, uint32_t count, struct ids *ids, struct err *e)
{
    struct picture *pictures[] = {picture(2, 1), picture(1, 1)};
    struct prompt_image images[2];
    const struct prompt_request r = {.pictures = pictures, .picture_count = count, .images = images};
    int failed = session_plain_prompt(&session, &r, text, strlen(text), true, ids, e);
    picture_drop(pictures[0]);
    picture_drop(pictures[1]);
    return failed;
}

static void test_plain(void **state)
{
    (void)state;
    struct ids ids = {0};
    struct err e = {0};
    see(VISION_GEMMA3, NULL);
    assert_int_equal(plain("Look at <__media__>: <__media__>", 2, &ids, &e), 0);
    is_text(&ids, "Look at <start_of_image><image_soft_token><image_soft_token><end_of_image>: "
                  "<start_of_image><image_soft_token><end_of_image>");
    ids_free(&ids);
    ids = (struct ids){0};
    assert_int_equal(plain("Look at <__media__>", 2, &ids, &e), -1);
    assert_non_null(strstr(e.text, "1 places for 2 images"));
    ids_free(&ids);
    ids = (struct ids){0};
    e = (struct err){0};
    /* the tokens themselves would be rows without a picture */
    assert_int_equal(plain("<image_soft_token><__media__>", 1, &ids, &e), -1);
    assert_non_null(strstr(e.text, "3 image tokens"));
    ids_free(&ids);
}

/* Pixels and their preparation make the identity. */
static void test_digest(void **state)
{
    (void)state;
    see(VISION_GEMMA3, NULL);
    struct picture *a = picture(2, 3), *b = picture(2, 3), *c = picture(3, 2);
    assert_memory_equal(a->digest, b->digest, PICTURE_DIGEST);
    assert_memory_not_equal(a->digest, c->digest, PICTURE_DIGEST);
    params.pixels.rescale = true;
    params.pixels.scale = 0.5;
    struct picture *d = picture(2, 3);
    assert_memory_not_equal(a->digest, d->digest, PICTURE_DIGEST);
    picture_drop(picture_hold(a));
    picture_drop(a);
    picture_drop(b);
    picture_drop(c);
    picture_drop(d);
}

static int setup(void **state)
{
    (void)state;
    struct err e = {0};
    session.vision = &params;
    return tokenizer_open_file(&session.tokenizer, "test/data/vision/tokenizer.json", &e);
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_close(session.tokenizer);
    chat_close(session.chat);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_families),
                                       cmocka_unit_test(test_other_templates), cmocka_unit_test(test_tiles),
                                       cmocka_unit_test(test_plain), cmocka_unit_test(test_digest)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
