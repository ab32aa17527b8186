#define _GNU_SOURCE
#include "tool/answer.h"

#include "base/log.h"
#include "run/memory.h"
#include "tool/progress.h"
#include "tool/tool.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile int interrupted;

static void answer_on_interrupt(int signal)
{
    (void)signal;
    if (interrupted)
        _exit(ERR_INTERRUPTED);
    interrupted = 1;
}

void answer_catch_interrupts(void)
{
    struct sigaction act = {.sa_handler = answer_on_interrupt};
    sigaction(SIGINT, &act, NULL);
}

void answer_forget_interrupt(void)
{
    interrupted = 0;
}

bool answer_interrupted(void)
{
    return interrupted;
}

int answer_prompt_ids(const struct loaded *l, const struct answer_prompt *p, struct ids *out, struct err *e)
{
    if (p->raw)
        return tokenizer_encode(l->tokenizer, p->text, p->n, TOK_SPECIAL | TOK_ADD, out, e);
    json_t *messages = json_array();
    int failed = 0;
    if (p->system)
        failed =
            json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "system", "content", p->system));
    failed |=
        json_array_append_new(messages, json_pack("{s:s,s:s%}", "role", "user", "content", p->text, p->n));
    if (failed)
        err_set(e, ERR_DATA, "the prompt is not valid UTF-8 text; --raw takes any bytes");
    else
        failed = loaded_prompt(l, &(struct prompt_request){.messages = messages, .set = p->set}, out, e);
    json_decref(messages);
    return failed ? -1 : 0;
}

struct stream {
    const struct answer_options *o;
    struct progress bar;
};

static void stream_text(void *arg, const char *text, size_t n)
{
    struct stream *s = arg;
    if (s->o->quiet)
        return;
    tool_write(text, n);
    if (tool_flush()) /* nobody reads any more: main says so at the end */
        interrupted = 1;
}

static void stream_prompt(void *arg, uint32_t done, uint32_t of)
{
    struct stream *s = arg;
    progress_show(&s->bar, (double)done / of, NULL);
    if (done < of)
        return;
    progress_end(&s->bar);
    if (s->o->prompt_done)
        s->o->prompt_done(s->o->arg);
}

int answer_run(struct loaded *l, struct seq *s, const struct ids *prompt, const struct answer_options *o,
               struct generation *g, struct err *e)
{
    struct stream stream = {.o = o};
    struct generate_options options = {
        .sampler = *o->sampler,
        .most = o->most,
        .stop_strings = o->stop_strings,
        .stops = o->stops,
        .rule = o->rule,
        .ignore_eog = o->ignore_eog,
        .show_special = o->special,
        .text = stream_text,
        .arg = &stream,
        .feed = {.progress = stream_prompt, .arg = &stream, .cancel = &interrupted},
    };
    interrupted = 0;
    progress_start(&stream.bar, "reading the prompt");
    int r = generate(s, l, prompt->data, (uint32_t)prompt->len, &options, g, e);
    progress_end(&stream.bar);
    return r;
}

static double rate(double n, double seconds)
{
    return seconds > 0 ? n / seconds : 0;
}

void answer_stats(const struct loaded *l, const struct generation *g)
{
    struct memory m;
    memory_read(&m);
    double after_first = g->ids.len ? (double)g->ids.len - 1 : 0;
    fprintf(stderr,
            "load     %8.0f ms\n"
            "prompt   %8u tokens, %u of them cached, %.1f tok/s\n"
            "first    %8.0f ms to the first token\n"
            "answer   %8zu tokens, %.1f tok/s (%s)\n"
            "memory   %8.0f MB resident, %u tokens of context take %.0f MB\n",
            1e3 * l->seconds, g->prompt, g->cached, rate(g->prompt - g->cached, g->prompt_seconds),
            1e3 * g->first_seconds, g->ids.len, rate(after_first, g->decode_seconds), finish_name(g->finish),
            1e-6 * (double)m.resident, l->runner->ctx, 1e-6 * (double)l->kv_bytes * l->runner->ctx);
}
