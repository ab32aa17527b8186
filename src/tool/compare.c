/* quern compare: the same prompt through two models, side by side. One model is in memory at a time. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/utf8.h"
#include "tool/answer.h"
#include "tool/interrupt.h"
#include "tool/load.h"
#include "tool/sampling.h"
#include "tool/tool.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

enum { COMPARE_MODELS = 2, COMPARE_TOKENS = 256, COMPARE_COLUMNS = 100, COMPARE_LEAST = 20 };

struct side {
    const char *model;
    struct generation g;
};

static double side_speed(const struct side *s)
{
    double n = (double)s->g.ids.len - 1;
    return n > 0 && s->g.decode_seconds > 0 ? n / s->g.decode_seconds : 0;
}

/* A model without a template gets the raw prompt. */
static int side_ask(struct side *s, struct session *l, const char *text, const struct args *a, struct err *e)
{
    struct sampling sampling;
    struct ids prompt = {0};
    struct answer_prompt p = {.text = text, .n = strlen(text), .system = args_text(a, "system")};
    p.raw = args_flag(a, "raw") || !l->chat;
    struct answer_options o = {.sampler = &sampling.params, .quiet = true};
    o.most = (uint32_t)args_int(a, "predict", COMPARE_TOKENS);
    struct engine *engine = NULL;
    int failed = load_predicts(l->model, l->store->path, e) ||
                 engine_open(&engine, l, &(struct engine_options){.slots = 1}, e) ||
                 sampling_read(a, &l->defaults, &sampling, e) || answer_prompt_ids(l, &p, &prompt, e) ||
                 answer_run(engine, &prompt, &o, &s->g, e);
    if (!failed && s->g.finish == FINISH_CANCEL)
        failed = err_set(e, ERR_INTERRUPTED, "interrupted");
    engine_close(engine);
    ids_free(&prompt);
    return failed ? -1 : 0;
}

static int side_run(struct side *s, const char *text, const struct args *a, struct err *e)
{
    struct session *l = NULL;
    struct session_options o = {0};
    if (load_model(&l, s->model, &o, a, e))
        return -1;
    int failed = side_ask(s, l, text, a, e);
    session_close(l);
    return failed;
}

static void compare_json(struct buf *out, const struct side *sides)
{
    struct json j = {.out = out};
    json_begin(&j, '[');
    for (int i = 0; i < COMPARE_MODELS; i++) {
        const struct side *s = &sides[i];
        json_begin(&j, '{');
        json_key(&j, "model");
        json_str(&j, s->model);
        json_key(&j, "text");
        json_strn(&j, s->g.text.data ? s->g.text.data : "", s->g.text.len);
        json_key(&j, "ids");
        json_begin(&j, '[');
        for (size_t k = 0; k < s->g.ids.len; k++)
            json_int(&j, s->g.ids.data[k]);
        json_end(&j, ']');
        json_key(&j, "finish_reason");
        json_str(&j, finish_name(s->g.finish));
        json_key(&j, "first_token_ms");
        json_num(&j, 1e3 * s->g.first_seconds);
        json_key(&j, "tok_s");
        json_num(&j, side_speed(s));
        json_end(&j, '}');
    }
    json_end(&j, ']');
    buf_char(out, '\n');
}

/* ---- columns ---- */

/* What is left of a text. */
struct lines {
    const char *s;
    size_t n;
};

/* The character at s, and how many cells it takes. */
static int cell(const struct lines *t, size_t at, size_t *bytes)
{
    uint32_t cp;
    *bytes = utf8_decode(t->s + at, t->n - at, &cp);
    if (!*bytes) {
        *bytes = 1;
        return 1;
    }
    return cp < 32 ? 0 : utf8proc_charwidth((utf8proc_int32_t)cp);
}

/* Appends the next line, filled up to `width` cells: words stay whole where they fit. */
static void put_line(struct buf *out, struct lines *t, int width, bool fill)
{
    size_t at = 0, bytes, space = 0;
    int used = 0, at_space = 0;
    while (at < t->n && t->s[at] != '\n') {
        int w = cell(t, at, &bytes);
        if (used + w > width)
            break;
        if (t->s[at] == ' ')
            space = at, at_space = used;
        at += bytes;
        used += w;
    }
    bool whole = at == t->n || t->s[at] == '\n';
    if (!whole && t->s[at] != ' ' && space)
        at = space, used = at_space;
    for (size_t i = 0; i < at; i++) /* control characters are left out */
        buf_char(out, (unsigned char)t->s[i] < 32 ? ' ' : t->s[i]);
    at += at < t->n && (t->s[at] == '\n' || t->s[at] == ' ');
    t->s += at;
    t->n -= at;
    for (; fill && used < width; used++)
        buf_char(out, ' ');
}

static int columns(void)
{
    struct winsize w;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : COMPARE_COLUMNS;
}

static void put_row(struct buf *out, struct lines *left, struct lines *right, int width)
{
    put_line(out, left, width, true);
    buf_str(out, " | ");
    put_line(out, right, width, false);
    buf_char(out, '\n');
}

static void compare_text(struct buf *out, const struct side *sides)
{
    int width = (columns() - 3) / 2;
    width = width < COMPARE_LEAST ? COMPARE_LEAST : width;
    struct lines head[COMPARE_MODELS], body[COMPARE_MODELS], foot[COMPARE_MODELS];
    struct buf end[COMPARE_MODELS] = {0};
    for (int i = 0; i < COMPARE_MODELS; i++) {
        const struct side *s = &sides[i];
        const char *name =
            strrchr(s->model, '/') && strrchr(s->model, '/')[1] ? strrchr(s->model, '/') + 1 : s->model;
        buf_printf(&end[i], "%zu tokens, %.1f tok/s (%s)", s->g.ids.len, side_speed(s),
                   finish_name(s->g.finish));
        head[i] = (struct lines){name, strlen(name)};
        body[i] = (struct lines){s->g.text.data ? s->g.text.data : "", s->g.text.len};
        foot[i] = (struct lines){end[i].data ? end[i].data : "", end[i].len};
    }
    put_row(out, &head[0], &head[1], width);
    for (int i = 0; i < 2 * width + 3; i++)
        buf_char(out, i == width + 1 ? '+' : '-');
    buf_char(out, '\n');
    while (body[0].n || body[1].n)
        put_row(out, &body[0], &body[1], width);
    buf_char(out, '\n');
    put_row(out, &foot[0], &foot[1], width);
    buf_free(&end[0]);
    buf_free(&end[1]);
}

/* Where the two answers diverge, or that they are the same. */
static void compare_parting(struct buf *out, const struct side *sides)
{
    const struct ids *x = &sides[0].g.ids, *y = &sides[1].g.ids;
    size_t n = 0;
    while (n < x->len && n < y->len && x->data[n] == y->data[n])
        n++;
    if (n == x->len && n == y->len)
        buf_printf(out, "the same %zu tokens\n", n);
    else
        buf_printf(out, "the first %zu tokens are the same\n", n);
}

static int compare_verb(const struct args *a, struct err *e)
{
    struct side sides[COMPARE_MODELS] = {{.model = a->words[0]}, {.model = a->words[1]}};
    const char *text = args_text(a, "prompt");
    struct buf out = {0};
    if (!text || !*text)
        return err_set(e, ERR_USAGE, "quern compare wants a prompt: -p TEXT");
    interrupt_catch();
    int failed = 0;
    for (int i = 0; i < COMPARE_MODELS && !failed; i++)
        failed = side_run(&sides[i], text, a, e);
    if (!failed) {
        if (args_flag(a, "json")) {
            compare_json(&out, sides);
        } else {
            compare_text(&out, sides);
            compare_parting(&out, sides);
        }
        failed = tool_print(&out, e);
    }
    for (int i = 0; i < COMPARE_MODELS; i++)
        generation_free(&sides[i].g);
    return failed ? -1 : 0;
}

static const struct arg_option compare_options[] = {
    {"prompt", 'p', ARG_TEXT, "TEXT", "the prompt for both models", 0, 0},
    {"predict", 'n', ARG_INT, "N", "tokens of an answer, at most (256)", 1, 1 << 24},
    {"system", 0, ARG_TEXT, "TEXT", "system message", 0, 0},
    {"raw", 0, ARG_FLAG, NULL, "no chat template: the prompt is the text", 0, 0},
    {"json", 0, ARG_FLAG, NULL,
     "print [{\"model\", \"text\", \"ids\", \"finish_reason\", \"first_token_ms\", \"tok_s\"}]", 0, 0},
    SAMPLING_OPTIONS,
    LOAD_OPTIONS,
    {0},
};

const struct tool_verb tool_compare = {
    .name = "compare",
    .words = "MODEL MODEL",
    .brief = "the same prompt through two models, side by side",
    .more = "  quern compare model-f16.gguf model-q4_k_m.gguf -p 'What is a quern?' --temp 0\n",
    .options = compare_options,
    .least = 2,
    .most = 2,
    .run = compare_verb,
};
