#define _GNU_SOURCE
#include "run/image_text.h"

#include "base/buf.h"
#include "run/session.h"

#include <string.h>

/* The words of a family. `place` is what its chat template writes for an image; the rest is what the processor puts there.
 * A template that writes begin and end itself keeps them. */
struct image_words {
    const char *place, *token, *begin, *end;
    const char *around;      /* in front and behind, in a chat */
    bool by_template;        /* begin and end are the template's */
    const char *line, *last; /* behind each row of the image's tokens, and behind the last one */
};

static const struct image_words image_words[] = {
    [VISION_LLAVA] = {.place = "<image>", .token = "<image>"},
    [VISION_LLAVA_NEXT] = {.place = "<image>", .token = "<image>"},
    [VISION_GEMMA3] = {.place = "<start_of_image>",
                       .token = "<image_soft_token>",
                       .begin = "<start_of_image>",
                       .end = "<end_of_image>",
                       .around = "\n\n"},
    [VISION_GEMMA4] = {.place = "<|image|>", .token = "<|image|>", .begin = "<|image>", .end = "<image|>"},
    [VISION_IDEFICS3] = {.place = "<image>", .token = "<image>"},
    [VISION_PIXTRAL] = {.place = "[IMG]", .token = "[IMG]", .line = "[IMG_BREAK]", .last = "[IMG_END]"},
    [VISION_QWEN2] = {.place = "<|image_pad|>",
                      .token = "<|image_pad|>",
                      .begin = "<|vision_start|>",
                      .end = "<|vision_end|>",
                      .by_template = true},
    [VISION_QWEN2_5] = {.place = "<|image_pad|>",
                        .token = "<|image_pad|>",
                        .begin = "<|vision_start|>",
                        .end = "<|vision_end|>",
                        .by_template = true},
    [VISION_QWEN3] = {.place = "<|image_pad|>",
                      .token = "<|image_pad|>",
                      .begin = "<|vision_start|>",
                      .end = "<|vision_end|>",
                      .by_template = true},
    [VISION_INTERNVL] = {.place = "<IMG_CONTEXT>",
                         .token = "<IMG_CONTEXT>",
                         .begin = "<img>",
                         .end = "</img>"},
};

static const struct image_words *words_of(const struct session *l)
{
    return &image_words[l->vision->family];
}

int32_t image_token(const struct session *l)
{
    const char *token = words_of(l)->token;
    return l->vision->image_token >= 0 ? l->vision->image_token
                                       : tokenizer_find(l->tokenizer, token, strlen(token));
}

/* ---- what stands for one image ---- */

static void add_tokens(struct buf *b, const char *token, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        buf_str(b, token);
}

/* idefics3: each tile by its row and column, then the whole. */
static void write_tiles(struct buf *b, const char *token, const struct picture *p)
{
    static const char around[] = "<fake_token_around_image>";
    uint32_t each = p->rows / p->prepared.tiles;
    for (uint32_t row = 0; row < p->prepared.grid_rows; row++) {
        for (uint32_t col = 0; col < p->prepared.grid_cols; col++) {
            buf_printf(b, "%s<row_%u_col_%u>", around, row + 1, col + 1);
            add_tokens(b, token, each);
        }
        buf_str(b, "\n");
    }
    buf_printf(b, "%s%s<global-img>", p->prepared.grid_rows ? "\n" : "", around);
    add_tokens(b, token, each);
    buf_str(b, around);
}

static void write_lines(struct buf *b, const struct image_words *w, const char *token,
                        const struct vision_params *v, const struct picture *p)
{
    uint32_t cols = p->prepared.tile[0].width / (v->patch * v->merge), lines = cols ? p->rows / cols : 0;
    for (uint32_t i = 0; i < lines; i++) {
        add_tokens(b, token, cols);
        buf_str(b, i + 1 < lines ? w->line : w->last);
    }
}

/* gemma3 with crops: a sentence around the whole and each of them. */
static void write_crops(struct buf *b, const struct image_words *w, const char *token,
                        const struct picture *p)
{
    const uint32_t each = p->rows / p->prepared.tiles;
    for (uint32_t i = 0; i < p->prepared.tiles; i++) {
        buf_str(b, i == 0   ? "Here is the original image "
                   : i == 1 ? " and here are some crops to help you see better "
                            : " ");
        buf_printf(b, "%s%s", w->around, w->begin);
        add_tokens(b, token, each);
        buf_printf(b, "%s%s", w->end, w->around);
    }
}

/* chat: in the place of what a template wrote; else everything is ours to write. */
static void write_image(struct buf *b, const struct session *l, const char *token, const struct picture *p,
                        bool chat)
{
    const struct image_words *w = words_of(l);
    bool wraps = w->begin && !(chat && w->by_template);
    if (l->vision->family == VISION_GEMMA3 && p->prepared.tiles > 1) {
        write_crops(b, w, token, p);
        return;
    }
    if (chat && w->around)
        buf_str(b, w->around);
    if (wraps)
        buf_str(b, w->begin);
    if (l->vision->family == VISION_IDEFICS3)
        write_tiles(b, token, p);
    else if (w->line)
        write_lines(b, w, token, l->vision, p);
    else
        add_tokens(b, token, p->rows);
    if (wraps)
        buf_str(b, w->end);
    if (chat && w->around)
        buf_str(b, w->around);
}

/* ---- the text ---- */

/* The text that is cut at the places of images, on its way into spans. */
struct image_cut {
    struct image_text *out;
    const struct session *l;
    struct picture *const *pictures;
    uint32_t count, at; /* places so far, more than count where there are too many */
    const char *token;  /* the image token's text */
    struct err *e;
};

static int cut_add(struct image_cut *c, const char *text, size_t n, bool trusted)
{
    struct image_text *t = c->out;
    if (!n)
        return 0;
    void *spans = mem_more(t->spans, t->count, &t->room, sizeof *t->spans);
    if (!spans)
        return err_memory(c->e, "the prompt", t->count * sizeof *t->spans);
    t->spans = spans;
    t->spans[t->count++] = (struct tok_span){text, n, trusted};
    return 0;
}

static int cut_image(struct image_cut *c, bool chat)
{
    struct buf b = {0};
    if (c->at++ >= c->count)
        return 0;
    write_image(&b, c->l, c->token, c->pictures[c->at - 1], chat);
    char *text = b.failed ? NULL : arena_strndup(&c->out->arena, b.data, b.len);
    size_t n = b.len;
    buf_free(&b);
    return text ? cut_add(c, text, n, true) : err_memory(c->e, "the prompt", n);
}

/* A text with an image wherever `place` is. */
static int cut_text(struct image_cut *c, const char *text, size_t n, bool trusted, const char *place,
                    bool chat)
{
    size_t skip = place ? strlen(place) : 0;
    for (const char *at; place && (at = memmem(text, n, place, skip));) {
        if (cut_add(c, text, (size_t)(at - text), trusted) || cut_image(c, chat))
            return -1;
        n -= (size_t)(at - text) + skip;
        text = at + skip;
    }
    return cut_add(c, text, n, trusted);
}

static int cut_start(struct image_cut *c)
{
    size_t n;
    int32_t id = image_token(c->l);
    *c->out = (struct image_text){0};
    const char *piece = id >= 0 ? tokenizer_piece(c->l->tokenizer, id, &n) : NULL;
    c->token = piece && n ? arena_strndup(&c->out->arena, piece, n) : NULL;
    return c->token ? 0
                    : err_set(c->e, ERR_DATA, "the model's vocabulary has no token for images (%s)",
                              words_of(c->l)->token);
}

static int cut_end(struct image_cut *c, int failed, const char *what)
{
    if (!failed && c->at != c->count)
        failed = err_set(c->e, ERR_DATA, "%s %u places for %u images", what, c->at, c->count);
    if (failed)
        image_text_free(c->out);
    return failed;
}

int image_text_chat(struct image_text *out, const struct session *l, const struct spans *spans,
                    const char *mark, struct picture *const *pictures, uint32_t count, struct err *e)
{
    struct image_cut c = {.out = out, .l = l, .pictures = pictures, .count = count, .e = e};
    int failed = cut_start(&c);
    for (size_t i = 0; !failed && i < spans->count; i++) {
        const struct jinja_span *s = &spans->items[i];
        failed = cut_text(&c, s->text, s->n, s->from_template, s->from_template ? words_of(l)->place : mark,
                          s->from_template);
    }
    return cut_end(&c, failed, "the model's chat template writes");
}

int image_text_plain(struct image_text *out, const struct session *l, const char *text, size_t n,
                     struct picture *const *pictures, uint32_t count, struct err *e)
{
    struct image_cut c = {.out = out, .l = l, .pictures = pictures, .count = count, .e = e};
    int failed = cut_start(&c) || cut_text(&c, text, n, true, IMAGE_TEXT_MARK, false) ? -1 : 0;
    return cut_end(&c, failed, "the prompt has " IMAGE_TEXT_MARK " in");
}

void image_text_free(struct image_text *t)
{
    mem_free(t->spans);
    arena_free(&t->arena);
    *t = (struct image_text){0};
}
