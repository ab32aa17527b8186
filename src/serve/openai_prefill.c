/* A conversation whose last message is continued: the answer holds only the new text. The given text counts
 * as written by the model: the parser continues reasoning and calls that it has begun, and a constraint
 * starts with it. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "run/session.h"
#include "serve/field.h"
#include "serve/openai.h"
#include "serve/openai_request.h"
#include "serve/request.h"

#include <jansson.h>
#include <string.h>

/* Whether the answer continues this message by default: an assistant's message with text and without
 * calls. */
static bool prefill_is_open(const json_t *message)
{
    const char *role = field_text(message, "role");
    return role && !strcmp(role, "assistant") && !json_array_size(json_object_get(message, "tool_calls"));
}

int openai_turn(struct request *a, const json_t *body, enum openai_turn *out)
{
    const json_t *messages = json_object_get(body, "messages"),
                 *last = json_array_get(messages, json_array_size(messages) - 1),
                 *goes_on = json_object_get(body, "continue_final_message"),
                 *begins = json_object_get(body, "add_generation_prompt");
    bool open = prefill_is_open(last);
    if (json_is_true(goes_on) && json_is_true(begins))
        return request_fail(
            a, 400, "continue_final_message",
            "continue_final_message and add_generation_prompt cannot both be true: the last message "
            "goes on, or a new one begins");
    if (json_is_true(goes_on) && json_array_size(json_object_get(last, "tool_calls")))
        return request_fail(a, 400, "continue_final_message",
                            "the last message has tool_calls, which end it: it cannot be continued");
    *out = goes_on                         ? json_is_true(goes_on) ? TURN_GOES_ON : TURN_BEGINS
           : open && !json_is_true(begins) ? TURN_GOES_ON
                                           : TURN_BEGINS;
    if (*out == TURN_BEGINS && json_is_false(begins))
        *out = TURN_CLOSED;
    return 0;
}

int prefill_read(struct request *a, const json_t *body, struct buf *out)
{
    const json_t *messages = json_object_get(body, "messages"),
                 *content =
                     json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content"),
                 *part;
    size_t i;
    buf_add(out, json_is_string(content) ? json_string_value(content) : "", json_string_length(content));
    json_array_foreach(content, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        buf_add(out, json_string_value(text), json_string_length(text));
    }
    return out->failed ? request_fail(a, 503, NULL, "out of memory") : 0;
}

static void prefill_ignore(void *arg, const struct output_piece *p)
{
    (void)arg;
    (void)p;
}

int prefill_stand(struct request *a, struct request_draft *q)
{
    const struct session *l = a->model->session;
    struct err e = {0};
    if (!a->prefill.len)
        return 0;
    const struct output_options o = {
        .form = l->form, .thought = l->thought, .tools = a->tools, .take = prefill_ignore};
    struct output_parser *r = output_open(&o, &e);
    int failed = !r || output_go_on(r, a->prefill.data, a->prefill.len);
    if (!failed) {
        size_t call = output_call_begun(r);
        q->thinking = output_reasons(r);
        q->call_begun = call ? a->prefill.data + a->prefill.len - call : NULL;
    }
    output_close(r);
    return failed ? request_fail(a, 503, NULL, "out of memory") : 0;
}

/* The text after the reasoning. */
static const char *prefill_answer(const struct request *a)
{
    const struct output_thought *t = a->model->session->thought;
    const char *answer = a->prefill.data, *next;
    while (t && (next = strstr(answer, t->close))) {
        answer = next + strlen(t->close);
        answer += strspn(answer, " \n\r\t");
    }
    return answer;
}

int prefill_start(struct request *a, struct request_draft *q, bool shaped, const char **lead)
{
    if (!a->prefill.len)
        return 0;
    if (strlen(a->prefill.data) != a->prefill.len)
        return request_fail(
            a, 400, "messages",
            "the last message holds the character U+0000: it cannot be continued under a constraint");
    const char *trigger = a->tools ? output_trigger(a->model->session->form) : NULL,
               *call = q->call_begun ? q->call_begun + strspn(q->call_begun, " \n\r\t") : NULL;
    bool free = !shaped && !q->must; /* else a call without its mark is a text as yet */
    if (call && trigger && (free || !strncmp(call, trigger, strlen(trigger)))) {
        *lead = call;
        q->lead = NULL;
    } else if (shaped && !q->must && !q->thinking)
        *lead = prefill_answer(a);
    return 0;
}
