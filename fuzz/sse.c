#define _GNU_SOURCE
/* Any bytes as a model's output, as an event stream in every API. Each event is complete, on lines of its
 * own, and JSON; chat's pieces put together are the text. The first byte chooses the API, the second the size
 * of the pieces. */
#include "ready.h"

#include "base/mem.h"
#include "serve/format.h"
#include "serve/message.h"
#include "serve/request.h"
#include "serve/responses.h"
#include "serve/route.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* One event: [event: NAME\n]data: JSON. Its text, where it is a piece of text, is added. */
static void check_event(const char *s, size_t n, bool named, struct buf *text)
{
    const char *line = memchr(s, '\n', n);
    if (named) {
        if (n < 8 || memcmp(s, "event: ", 7) || !line)
            abort();
        n -= (size_t)(line + 1 - s);
        s = line + 1;
    }
    if (n < 6 || memcmp(s, "data: ", 6) || memchr(s, '\n', n) || memchr(s, '\r', n))
        abort();
    if (!named && n == 12 && !memcmp(s, "data: [DONE]", 12))
        return;
    json_t *v = json_loadb(s + 6, n - 6, JSON_ALLOW_NUL, NULL);
    if (!json_is_object(v) || (named && !json_is_string(json_object_get(v, "type"))))
        abort();
    const json_t *delta = json_object_get(json_array_get(json_object_get(v, "choices"), 0), "delta");
    const json_t *content = json_object_get(delta, "content");
    if (content && json_object_get(delta, "tool_calls"))
        abort();
    if (content)
        buf_add(text, json_string_value(content), json_string_length(content));
    json_decref(v);
}

static void check_events(const struct buf *out, bool named, struct buf *text)
{
    const char *at = out->data, *end = out->data + out->len;
    while (at < end) {
        const char *stop = memmem(at, (size_t)(end - at), "\n\n", 2);
        if (!stop)
            abort();
        check_event(at, (size_t)(stop - at), named, text);
        at = stop + 2;
    }
}

static void speak(struct request *a, const char *text, size_t n, size_t piece, struct buf *out)
{
    struct choice *c = &a->choices[0];
    const struct api_format *v = format_for(a->route);
    struct message_sink sink = {.choice = c, .out = out};
    output_set_arg(c->parser, &sink);
    if (v->begin)
        v->begin(a, c, out);
    for (size_t at = 0; at < n; at += piece)
        output_feed(c->parser, text + at, n - at < piece ? n - at : piece);
    output_end(c->parser, false);
    c->done = true;
    c->end.done = true;
    c->end.finish = FINISH_STOP;
    v->end(a, c, out);
    if (v->finish)
        v->finish(a, out);
}

static struct responses *ready_response(void)
{
    struct responses *own = mem_zalloc(1, sizeof *own);
    if (!own)
        abort();
    own->asked = json_object();
    own->probs = json_array();
    own->probs_new = json_array();
    own->output = json_array(); /* nothing is kept of it: what lives longer than a run looks like a leak */
    return own;
}

static bool is_plain(const uint8_t *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] > 127)
            return false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct route routes[] = {
        {.api = API_OPENAI}, {.api = API_ANTHROPIC}, {.api = API_RESPONSES}};
    static json_t *tools;
    if (size < 3 || size > 1 << 11)
        return 0;
    tools = tools ? tools : json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", 0, NULL);
    struct request *a = ready_request(&routes[data[0] % 3], true);
    struct choice *c = &a->choices[0];
    struct buf out = {0}, text = {0}; /* pieces may cut a character here, which the engine's do not */
    struct err e = {0};
    a->chat = a->stream = a->include_usage = true;
    a->count = a->prompt_count = 1;
    if (data[0] % 3 == 2)
        a->format_state = ready_response();
    c->request = a;
    c->parser = output_open(&(struct output_options){.form = &output_forms[data[2] % output_form_count],
                                                     .thought = a->model->session->thought,
                                                     .tools = tools,
                                                     .ruled = data[1] & 64,
                                                     .take = message_take},
                            &e);
    speak(a, (const char *)data + 3, size - 3, 1u + data[1] % 40, &out);
    check_events(&out, data[0] % 3, &text);
    if (data[0] % 3 == 0 && is_plain(data + 3, size - 3) &&
        (text.len != c->message.text.len || (text.len && memcmp(text.data, c->message.text.data, text.len))))
        abort();
    buf_free(&out);
    buf_free(&text);
    ready_drop(a);
    return 0;
}
