#define _GNU_SOURCE
#include "tool/answer.h"

#include "run/image_text.h"
#include "run/memory.h"
#include "tool/interrupt.h"
#include "tool/progress.h"
#include "tool/tool.h"
#include "tool/wrap.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A raw prompt; images stand in front of it unless it says where. */
static int answer_raw(const struct session *l, const struct answer_prompt *p, const struct prompt_request *r,
                      struct ids *out, struct err *e)
{
    struct buf text = {0};
    if (!memmem(p->text, p->n, IMAGE_TEXT_MARK, sizeof IMAGE_TEXT_MARK - 1))
        for (uint32_t i = 0; i < p->picture_count; i++)
            buf_str(&text, IMAGE_TEXT_MARK);
    buf_add(&text, p->text, p->n);
    int failed = text.failed ? err_memory(e, "the prompt", p->n)
                             : session_plain_prompt(l, r, text.data, text.len, false, out, e);
    buf_free(&text);
    return failed;
}

/* The user's message: a text, or images and a text. */
static json_t *answer_message(const struct answer_prompt *p)
{
    json_t *text = json_stringn(p->text, p->n), *parts;
    if (!p->picture_count || !text)
        return text;
    int failed = !(parts = json_array());
    for (uint32_t i = 0; i < p->picture_count; i++)
        failed |= json_array_append_new(parts, json_pack("{s:s}", "type", "image"));
    failed |= json_array_append_new(parts, json_pack("{s:s,s:o}", "type", "text", "text", text));
    if (!failed)
        return parts;
    json_decref(parts);
    return NULL;
}

int answer_prompt_ids(const struct session *l, const struct answer_prompt *p, struct ids *out, struct err *e)
{
    struct prompt_request r = {
        .set = p->set, .pictures = p->pictures, .picture_count = p->picture_count, .images = p->images};
    if (p->raw)
        return answer_raw(l, p, &r, out, e);
    json_t *messages = json_array(), *content = answer_message(p);
    int failed = !content;
    if (p->system)
        failed |=
            json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "system", "content", p->system));
    if (!failed)
        failed = json_array_append_new(messages, json_pack("{s:s,s:O}", "role", "user", "content", content));
    r.messages = messages;
    if (failed)
        err_set(e, ERR_DATA, "the prompt is not valid UTF-8 text; --raw takes any bytes");
    else
        failed = session_prompt(l, &r, out, e);
    json_decref(content);
    json_decref(messages);
    return failed ? -1 : 0;
}

struct reasoning_rule answer_reasoning(const struct session *l, const struct ids *prompt)
{
    return (struct reasoning_rule){
        .counted = true, .open = reasoning_begins(l, prompt), .most = l->reasoning_budget};
}

/* The state of a running request. */
struct progressing {
    const struct answer_options *o;
    struct engine *engine;
    struct progress bar;
    uint64_t read_before; /* tokens of prompts, before this one */
};

/* Through the wrapping, where there is a terminal. */
static void answer_wrap(struct wrap *w, const struct stream_chunk *chunk)
{
    struct buf out = {0};
    w->width = wrap_columns(STDOUT_FILENO); /* it may have changed */
    wrap_feed(w, chunk->text, chunk->text_length, &out);
    if (chunk->done)
        wrap_end(w, &out);
    tool_write(out.data, out.len);
    buf_free(&out);
}

static void answer_show(const struct progressing *p, const struct stream_chunk *chunk)
{
    if (p->o->quiet || (!chunk->text_length && !chunk->done))
        return;
    if (p->o->wrap)
        answer_wrap(p->o->wrap, chunk);
    else
        tool_write(chunk->text, chunk->text_length);
    if (tool_flush()) /* the output is closed: main reports it at the end */
        interrupt_set();
}

static int answer_keep(struct generation *out, const struct stream_chunk *chunk, struct err *e)
{
    buf_add(&out->text, chunk->text, chunk->text_length);
    for (size_t i = 0; i < chunk->count; i++)
        if (ids_add(&out->ids, chunk->ids[i], e))
            return -1;
    return out->text.failed ? err_memory(e, "the text", out->text.len) : 0;
}

/* No chunk for a moment: updates the prompt's progress bar. */
static void answer_wait(struct progressing *p, uint32_t prompt)
{
    struct engine_stats s;
    engine_stats(p->engine, &s);
    if (s.prompt_tokens > p->read_before)
        progress_show(&p->bar, (double)(s.prompt_tokens - p->read_before) / prompt, NULL);
}

/* Reads the stream to its end. */
static int answer_follow(struct progressing *p, struct stream *s, uint32_t prompt, struct generation *out,
                         struct err *e)
{
    const double moment = 0.05; /* seconds: how soon Ctrl-C takes effect */
    struct stream_chunk chunk = {0};
    int failed = 0;
    while (!chunk.done) {
        if (interrupted() || failed)
            stream_cancel(s);
        if (!stream_look(s, moment, &chunk)) {
            if (!out->ids.len)
                answer_wait(p, prompt);
            continue;
        }
        progress_end(&p->bar);
        answer_show(p, &chunk);
        failed = failed || answer_keep(out, &chunk, e);
    }
    out->finish = chunk.finish;
    out->context_full = chunk.context_full;
    out->prompt = chunk.prompt;
    out->cached = chunk.cached;
    out->reasoned = chunk.reasoned;
    out->drafted = chunk.drafted;
    out->accepted = chunk.accepted;
    out->forced = chunk.forced;
    out->first_seconds = chunk.first_seconds;
    out->decode_seconds = chunk.seconds - chunk.first_seconds;
    if (!failed && chunk.err.code) {
        *e = chunk.err;
        failed = -1;
    }
    if (!failed && chunk.finish == FINISH_CANCEL && !out->ids.len)
        failed = err_set(e, ERR_INTERRUPTED, "interrupted");
    return failed;
}

int answer_run(struct engine *g, const struct ids *prompt, const struct answer_options *o,
               struct generation *out, struct err *e)
{
    struct progressing p = {.o = o, .engine = g};
    struct engine_stats before;
    struct stream *s;
    struct engine_request r = {
        .prompt = prompt->data,
        .n = (uint32_t)prompt->len,
        .images = o->images,
        .image_count = o->image_count,
        .sampler = *o->sampler,
        .most = o->most,
        .stop_strings = o->stop_strings,
        .stops = o->stops,
        .constraint = o->constraint,
        .lora = o->lora,
        .reasoning = o->reasoning,
        .ignore_eog = o->ignore_eog,
        .show_special = o->special,
    };
    engine_stats(g, &before);
    p.read_before = before.prompt_tokens;
    if (engine_submit(g, &r, &s, e))
        return -1;
    progress_start(&p.bar, "reading the prompt");
    int failed = answer_follow(&p, s, r.n, out, e);
    progress_end(&p.bar);
    stream_close(s);
    return failed;
}

void generation_free(struct generation *g)
{
    buf_free(&g->text);
    ids_free(&g->ids);
}

static double rate(double n, double seconds)
{
    return seconds > 0 ? n / seconds : 0;
}

void answer_stats(const struct session *l, const struct generation *g)
{
    struct memory m;
    memory_read(&m);
    double after_first = g->ids.len ? (double)g->ids.len - 1 : 0;
    fprintf(stderr,
            "load     %8.0f ms\n"
            "prompt   %8u tokens, %u of them cached, %.1f tok/s\n"
            "first    %8.0f ms to the first token\n"
            "answer   %8zu tokens, %.1f tok/s (%s)\n"
            "drafts   %8u verified, %u accepted (%u of them forced)\n"
            "memory   %8.0f MB resident, keys and values of %u tokens take %.0f MB\n",
            1e3 * l->seconds, g->prompt, g->cached, rate(g->prompt - g->cached, g->first_seconds),
            1e3 * g->first_seconds, g->ids.len, rate(after_first, g->decode_seconds), finish_name(g->finish),
            g->drafted, g->accepted, g->forced, 1e-6 * (double)m.resident, l->runner->pool * RUNNER_PAGE,
            1e-6 * (double)l->kv_bytes);
}
