/* quern embed: texts as vectors. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "run/embed.h"
#include "tool/load.h"
#include "tool/tool.h"

#include <string.h>

static const struct arg_option embed_options[] = {
    {"file", 'f', ARG_TEXT, "FILE", "embed each line of a file ('-': standard input) instead", 0, 0},
    {"json", 0, ARG_FLAG, NULL, "print one JSON array of arrays", 0, 0},
    LOAD_LORA,
    LOAD_OPTIONS,
    {0},
};

struct embed_command {
    struct session *session;
    struct seq *seq;
    float *vector;
    struct buf out;
    struct json json;
    bool as_json;
};

static int embed_one(struct embed_command *m, const char *text, size_t n, struct err *e)
{
    struct ids ids = {0};
    int failed = tokenizer_encode(m->session->tokenizer, text, n, TOK_ADD, &ids, e) ||
                 embed_ids(m->session, m->seq, &ids, m->vector, e);
    ids_free(&ids);
    if (failed)
        return -1;
    uint32_t width = m->session->model->h.width;
    if (m->as_json)
        json_begin(&m->json, '[');
    for (uint32_t i = 0; i < width; i++) {
        if (m->as_json)
            json_f32(&m->json, m->vector[i]);
        else
            buf_printf(&m->out, "%s%.7g", i ? " " : "", (double)m->vector[i]);
    }
    if (m->as_json)
        json_end(&m->json, ']');
    else
        buf_char(&m->out, '\n');
    return 0;
}

static int embed_lines(struct embed_command *m, const char *path, struct err *e)
{
    struct buf text = {0};
    int failed = file_read(path, &text, e);
    for (size_t at = 0; !failed && at < text.len;) {
        const char *end = memchr(text.data + at, '\n', text.len - at);
        size_t n = end ? (size_t)(end - text.data) - at : text.len - at;
        failed = embed_one(m, text.data + at, n, e);
        at += n + 1;
    }
    buf_free(&text);
    return failed;
}

static int embed_all(struct embed_command *m, const struct args *a, struct err *e)
{
    const char *file = args_text(a, "file");
    struct session_options o = {.hidden = true};
    if ((a->count > 1) == (file != NULL))
        return err_set(e, ERR_USAGE, "quern embed wants texts after MODEL, or --file FILE");
    /* a whole text is one step: the chunk and the results are as large as the context */
    o.runner.chunk = o.runner.outs = UINT32_MAX;
    if (load_model(&m->session, a->words[0], &o, a, e))
        return -1;
    m->seq = load_seq(m->session, e);
    m->vector = mem_alloc(m->session->model->h.width, sizeof *m->vector);
    if (!m->seq || !m->vector)
        return err_memory(e, "a vector", m->session->model->h.width * sizeof *m->vector);
    m->as_json = args_flag(a, "json");
    m->json.out = &m->out;
    if (m->as_json)
        json_begin(&m->json, '[');
    int failed = file ? embed_lines(m, file, e) : 0;
    for (int i = 1; i < a->count && !failed; i++)
        failed = embed_one(m, a->words[i], strlen(a->words[i]), e);
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
