/* Ollama's replies: a line of JSON for each piece, and one at the end with counts and durations in nanoseconds. */
#include "base/clock.h"
#include "serve/ollama.h"

static void ollama_begin(const struct answer *a, struct json *j)
{
    json_begin(j, '{');
    json_key(j, "model");
    json_str(j, a->model->of->name);
    ollama_time(j, "created_at", 0);
}

static void ollama_text(struct json *j, bool chat, const char *text, size_t n)
{
    if (!chat) {
        json_key(j, "response");
        json_strn(j, text, n);
        return;
    }
    json_key(j, "message");
    json_begin(j, '{');
    json_key(j, "role");
    json_str(j, "assistant");
    json_key(j, "content");
    json_strn(j, text, n);
    json_end(j, '}');
}

static void ollama_counts(const struct answer *a, struct json *j)
{
    const struct choice *c = &a->choices[0];
    const struct {
        const char *name;
        double seconds;
    } rows[] = {
        {"total_duration", clock_now() - a->begun},
        {"load_duration", a->got - a->begun},
        {"prompt_eval_duration", c->end.first_seconds - c->end.queued_seconds},
        {"eval_duration", c->end.seconds - c->end.first_seconds},
    };
    json_key(j, "done");
    json_bool(j, true);
    json_key(j, "done_reason");
    json_str(j, c->end.finish == FINISH_LENGTH ? "length" : "stop");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_key(j, rows[i].name);
        json_uint(j, rows[i].seconds > 0 ? (uint64_t)(1e9 * rows[i].seconds) : 0);
    }
    json_key(j, "prompt_eval_count");
    json_uint(j, a->prompts[0].len);
    json_key(j, "eval_count");
    json_uint(j, c->made);
}

static bool ollama_is_chat(const struct answer *a)
{
    return a->route->teller == &ollama_chat_teller;
}

static void ollama_chunk(struct answer *a, struct choice *c, const struct stream_news *news, struct buf *out)
{
    struct json j = {.out = out};
    if (!news->text_length)
        return;
    c->begun = true;
    ollama_begin(a, &j);
    ollama_text(&j, ollama_is_chat(a), news->text, news->text_length);
    json_key(&j, "done");
    json_bool(&j, false);
    json_end(&j, '}');
    buf_char(out, '\n');
}

static void ollama_last(struct answer *a, const char *text, size_t n, struct buf *out)
{
    struct json j = {.out = out};
    ollama_begin(a, &j);
    ollama_text(&j, ollama_is_chat(a), text, n);
    ollama_counts(a, &j);
    json_end(&j, '}');
}

static void ollama_end(struct answer *a, struct choice *c, struct buf *out)
{
    (void)c;
    ollama_last(a, "", 0, out);
    buf_char(out, '\n');
}

static void ollama_finish(struct answer *a, struct buf *out)
{
    (void)a, (void)out; /* the line of the choice was the last */
}

static void ollama_whole(struct answer *a, struct buf *out)
{
    const struct buf *text = &a->choices[0].text;
    ollama_last(a, text->data ? text->data : "", text->len, out);
}

static void ollama_error(const struct failure *f, struct buf *out)
{
    struct json j = {.out = out};
    json_begin(&j, '{');
    json_key(&j, "error");
    json_str(&j, f->err.text);
    json_end(&j, '}');
}

static void ollama_broken(const struct failure *f, struct buf *out)
{
    ollama_error(f, out);
    buf_char(out, '\n');
}

#define OLLAMA_TELLER                                                                                        \
    {                                                                                                        \
        .type = "application/x-ndjson", .chunk = ollama_chunk, .end = ollama_end, .finish = ollama_finish,   \
        .whole = ollama_whole, .error = ollama_error, .broken = ollama_broken                                \
    }
const struct teller ollama_chat_teller = OLLAMA_TELLER, ollama_generate_teller = OLLAMA_TELLER,
                    ollama_teller = OLLAMA_TELLER;
