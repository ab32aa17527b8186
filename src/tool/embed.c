/* quern embed: texts as vectors. */
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/embed.h"
#include "tool/images.h"
#include "tool/load.h"
#include "tool/tool.h"

#include <string.h>

static const struct arg_option embed_options[] = {
    {"file", 'f', ARG_TEXT, "FILE", "embed each line of a file ('-': standard input) instead", 0, 0},
    {"tokens", 0, ARG_TEXT, "IDS", "embed these token ids instead: 1,2,3 (no tokenizer is needed)", 0, 0},
    {"pooling", 0, ARG_TEXT, "KIND",
     "none (a row for each token), mean, first or last (default: as the model says)", 0, 0},
    {"prompt", 0, ARG_TEXT, "NAME",
     "put this prompt of the model's files before each text: query, document, ...", 0, 0},
    {"no-normalize", 0, ARG_FLAG, NULL, "keep the vectors' own length", 0, 0},
    IMAGES_OPTIONS,
    {"rows", 0, ARG_FLAG, NULL, "of images: the rows that the text model gets, after the projector", 0, 0},
    {"json", 0, ARG_FLAG, NULL, "print one JSON array of arrays", 0, 0},
    LOAD_LORA,
    LOAD_OPTIONS,
    {0},
};

struct embed_command {
    struct session *session;
    struct seq *seq;
    struct pooler pooler;
    const char *prompt;
    float *vector; /* (pooler.out_width) */
    struct buf out;
    struct json json;
    bool as_json, rows; /* rows: of each token */
};

static void embed_print(struct embed_command *m, const float *v, uint32_t n)
{
    if (m->as_json)
        json_begin(&m->json, '[');
    for (uint32_t i = 0; i < n; i++) {
        if (m->as_json)
            json_f32(&m->json, v[i]);
        else
            buf_printf(&m->out, "%s%.7g", i ? " " : "", (double)v[i]);
    }
    if (m->as_json)
        json_end(&m->json, ']');
    else
        buf_char(&m->out, '\n');
}

static int embed_rows_of(struct embed_command *m, const struct ids *ids, struct err *e)
{
    const uint32_t width = m->pooler.width;
    const float *rows = embed_rows(m->session, m->seq, ids, e);
    float *row = rows ? mem_alloc(width, sizeof *row) : NULL;
    int failed = !rows ? -1 : !row ? err_memory(e, "a row", width * sizeof *row) : 0;
    for (size_t i = 0; !failed && i < ids->len; i++) {
        memcpy(row, rows + i * width, width * sizeof *row);
        failed = m->pooler.plain ? 0 : pooler_scale(row, width, e);
        embed_print(m, row, width);
    }
    mem_free(row);
    return failed;
}

static int embed_one(struct embed_command *m, const struct ids *ids, struct err *e)
{
    if (m->rows)
        return embed_rows_of(m, ids, e);
    if (embed_ids(m->session, m->seq, &m->pooler, ids, m->vector, e))
        return -1;
    embed_print(m, m->vector, m->pooler.out_width);
    return 0;
}

static int embed_text(struct embed_command *m, const char *text, size_t n, struct err *e)
{
    struct ids ids = {0};
    int failed = embed_encode(m->session, m->prompt, text, n, &ids, e) || embed_one(m, &ids, e);
    ids_free(&ids);
    return failed ? -1 : 0;
}

static int embed_tokens(struct embed_command *m, const char *text, struct err *e)
{
    uint32_t count, vocab = m->session->model->h.vocab;
    int32_t *tokens = tool_tokens(text, &count, e);
    int failed = tokens ? 0 : -1;
    for (uint32_t i = 0; !failed && i < count; i++)
        if ((uint32_t)tokens[i] >= vocab)
            failed =
                err_set(e, ERR_USAGE, "token %u is %d; the vocabulary has 0 to %u", i, tokens[i], vocab - 1);
    struct ids ids = {.data = tokens, .len = count};
    failed = failed || embed_one(m, &ids, e);
    mem_free(tokens);
    return failed ? -1 : 0;
}

static int embed_lines(struct embed_command *m, const char *path, struct err *e)
{
    struct buf text = {0};
    int failed = file_read(path, &text, e);
    for (size_t at = 0; !failed && at < text.len;) {
        const char *end = memchr(text.data + at, '\n', text.len - at);
        size_t n = end ? (size_t)(end - text.data) - at : text.len - at;
        failed = embed_text(m, text.data + at, n, e);
        at += n + 1;
    }
    buf_free(&text);
    return failed;
}

/* --pooling, --prompt and --no-normalize. A pooling of the user's ends with the pooled row: the model's Dense layers
 * belong to its own pooling. */
static int embed_setup(struct embed_command *m, const struct args *a, struct err *e)
{
    static const struct {
        const char *name;
        enum pooling kind;
    } known[] = {
        {"none", POOLING_NONE}, {"mean", POOLING_MEAN}, {"first", POOLING_CLS}, {"last", POOLING_LAST}};
    const char *pooling = args_text(a, "pooling"), *prompt = args_text(a, "prompt");
    struct pooler *p = &m->pooler;
    if (pooler_open(p, m->session->store, &m->session->model->h, e))
        return -1;
    p->plain = args_flag(a, "no-normalize");
    size_t i = 0, n = sizeof known / sizeof *known;
    while (pooling && i < n && strcmp(pooling, known[i].name) != 0)
        i++;
    if (i == n)
        return err_set(e, ERR_USAGE, "--pooling: '%s' is not known; none, mean, first and last are",
                       log_safe(pooling));
    m->rows = pooling && known[i].kind == POOLING_NONE;
    if (pooling && !m->rows && known[i].kind != p->kind) {
        p->kind = known[i].kind;
        p->out_width = p->width;
        p->layers = 0;
    }
    m->prompt = pooler_prompt(p, prompt);
    if (!m->prompt)
        return err_set(e, ERR_USAGE, "--prompt: the model's files have no prompt '%s'", log_safe(prompt));
    return 0;
}

/* The rows of images: a tower is enough, the text model is not loaded. */
static int embed_images(struct embed_command *m, const struct args *a, struct err *e)
{
    struct session_options o = {0};
    struct images images = {0};
    struct store *s = NULL;
    struct vision *v = NULL;
    if (!args_flag(a, "rows"))
        return err_set(e, ERR_USAGE,
                       "an image has no vector of its own here; --rows prints the rows of its tower");
    int failed = images_load(&images, a, e) || load_options(a, &o, e) || tool_open(&s, a->words[0], e);
    const struct vision_options with = {.mmproj = args_text(a, "mmproj"),
                                        .device = o.runner.device,
                                        .device_options = o.runner.device_options};
    failed = failed || vision_open(&v, s, &with, e) || images_prepare(&images, v ? &v->tower->v : NULL, e);
    m->as_json = args_flag(a, "json");
    m->json.out = &m->out;
    if (m->as_json)
        json_begin(&m->json, '[');
    for (uint32_t i = 0; !failed && i < images.count; i++) {
        struct picture_rows *rows = vision_encode(v, images.picture[i], e);
        failed = !rows;
        for (uint32_t r = 0; rows && r < rows->rows; r++) /* without those of deepstack */
            embed_print(m, rows->data + (size_t)r * rows->width, v->tower->v.out_width);
        vision_drop(rows);
    }
    if (m->as_json) {
        json_end(&m->json, ']');
        buf_char(&m->out, '\n');
    }
    vision_close(v);
    images_free(&images);
    if (s)
        store_close(s);
    return failed ? -1 : 0;
}

static int embed_all(struct embed_command *m, const struct args *a, struct err *e)
{
    const char *file = args_text(a, "file"), *tokens = args_text(a, "tokens");
    if (args_text(a, "image"))
        return embed_images(m, a, e);
    struct session_options o = {.hidden = true, .no_text = tokens != NULL};
    if ((a->count > 1) + (file != NULL) + (tokens != NULL) != 1)
        return err_set(e, ERR_USAGE, "quern embed wants texts after MODEL, or --file FILE, or --tokens IDS");
    /* a whole text is one step: the chunk and the results are as large as the context */
    o.runner.chunk = o.runner.outs = UINT32_MAX;
    if (load_model(&m->session, a->words[0], &o, a, e) || embed_setup(m, a, e))
        return -1;
    m->seq = load_seq(m->session, e);
    m->vector = mem_alloc(m->pooler.out_width, sizeof *m->vector);
    if (!m->seq || !m->vector)
        return err_memory(e, "a vector", m->pooler.out_width * sizeof *m->vector);
    m->as_json = args_flag(a, "json");
    m->json.out = &m->out;
    if (m->as_json)
        json_begin(&m->json, '[');
    int failed = file ? embed_lines(m, file, e) : tokens ? embed_tokens(m, tokens, e) : 0;
    for (int i = 1; i < a->count && !failed; i++)
        failed = embed_text(m, a->words[i], strlen(a->words[i]), e);
    if (m->as_json) {
        json_end(&m->json, ']');
        buf_char(&m->out, '\n');
    }
    return failed;
}

static int embed_run(const struct args *a, struct err *e)
{
    struct embed_command m = {0};
    int failed = embed_all(&m, a, e) || tool_print(&m.out, e);
    buf_free(&m.out);
    mem_free(m.vector);
    pooler_close(&m.pooler);
    seq_close(m.seq);
    session_close(m.session);
    return failed ? -1 : 0;
}

const struct tool_verb tool_embed = {
    .name = "embed",
    .words = "MODEL [TEXT]...",
    .brief = "turn texts into vectors of length 1",
    .options = embed_options,
    .least = 1,
    .most = 1024,
    .run = embed_run,
};
