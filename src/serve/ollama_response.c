/* Ollama's replies: a line of JSON for each piece, and one at the end with counts and durations in nanoseconds. */
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "format/jsonread.h"
#include "run/engine.h"
#include "serve/failure.h"
#include "serve/format.h"
#include "serve/message.h"
#include "serve/ollama.h"
#include "serve/openai_logprobs.h"
#include "serve/request.h"
#include "serve/route.h"

#include <jansson.h>

static void ollama_begin(const struct request *a, struct json *j)
{
    json_begin(j, '{');
    json_key(j, "model");
    json_str(j, a->called);
    ollama_time(j, "created_at", 0);
}

/* Of a piece or of all that was said; a call's arguments are an object here. */
struct ollama_content {
    const char *text, *thinking;
    size_t n, thinking_n;
    const struct message_call *calls;
    uint32_t call_count;
};

static void ollama_calls(struct json *j, const struct ollama_content *s)
{
    json_key(j, "tool_calls");
    json_begin(j, '[');
    for (uint32_t i = 0; i < s->call_count; i++) {
        json_t *arguments = message_arguments(&s->calls[i]);
        json_begin(j, '{');
        json_key(j, "function");
        json_begin(j, '{');
        json_key(j, "name");
        json_str(j, s->calls[i].name);
        json_key(j, "arguments");
        jsonread_write(j, arguments);
        json_end(j, '}');
        json_end(j, '}');
        json_decref(arguments);
    }
    json_end(j, ']');
}

static void ollama_text(struct json *j, bool chat, const struct ollama_content *s)
{
    if (chat) {
        json_key(j, "message");
        json_begin(j, '{');
        json_key(j, "role");
        json_str(j, "assistant");
    }
    json_key(j, chat ? "content" : "response");
    json_strn(j, s->text ? s->text : "", s->n);
    if (s->thinking_n) {
        json_key(j, "thinking");
        json_strn(j, s->thinking, s->thinking_n);
    }
    if (chat && s->call_count)
        ollama_calls(j, s);
    if (chat)
        json_end(j, '}');
}

static void ollama_counts(const struct request *a, struct json *j)
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

static bool ollama_is_chat(const struct request *a)
{
    return a->route->api == API_OLLAMA_CHAT;
}

/* Of the tokens of a piece, or of all; they go with text. */
static void ollama_probs(const struct request *a, struct json *j, const struct probs *p)
{
    if (!a->logprobs || !p->count)
        return;
    json_key(j, "logprobs");
    openai_write_token_probs(a, j, p);
}

static void ollama_piece(struct request *a, struct choice *c, const struct output_piece *p,
                         const struct stream_chunk *chunk, struct buf *out)
{
    struct json j = {.out = out};
    struct ollama_content s = {0};
    if (p->part == OUTPUT_CALL && p->more) /* this API sends a call as a whole */
        return;
    if (p->part == OUTPUT_CALL)
        s = (struct ollama_content){.calls = message_last(c), .call_count = 1};
    else if (p->part == OUTPUT_TEXT)
        s = (struct ollama_content){.text = p->text, .n = p->n};
    else
        s = (struct ollama_content){.thinking = p->text, .thinking_n = p->n};
    ollama_begin(a, &j);
    ollama_text(&j, ollama_is_chat(a), &s);
    struct probs probs = openai_write_chunk_probs(chunk);
    if (p->part == OUTPUT_TEXT)
        ollama_probs(a, &j, &probs);
    json_key(&j, "done");
    json_bool(&j, false);
    json_end(&j, '}');
    buf_char(out, '\n');
}

static void ollama_last(struct request *a, const struct ollama_content *s, struct buf *out)
{
    struct json j = {.out = out};
    ollama_begin(a, &j);
    ollama_text(&j, ollama_is_chat(a), s);
    if (!a->stream) {
        struct probs probs = openai_write_choice_probs(a, &a->choices[0]);
        ollama_probs(a, &j, &probs);
    }
    ollama_counts(a, &j);
    if (a->keep_ids)
        ollama_context_write(a, &j);
    json_end(&j, '}');
}

static void ollama_end(struct request *a, struct choice *c, struct buf *out)
{
    (void)c;
    ollama_last(a, &(struct ollama_content){0}, out);
    buf_char(out, '\n');
}

static void ollama_whole(struct request *a, struct buf *out)
{
    const struct message *s = &a->choices[0].message;
    ollama_last(a,
                &(struct ollama_content){.text = s->text.data,
                                         .n = s->text.len,
                                         .thinking = s->reason.data,
                                         .thinking_n = s->reason.len,
                                         .calls = s->calls,
                                         .call_count = s->call_count},
                out);
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

const struct api_format ollama_api = {
    .type = "application/x-ndjson",
    .piece = ollama_piece,
    .end = ollama_end,
    .whole = ollama_whole,
    .error = ollama_error,
    .broken = ollama_broken,
};
