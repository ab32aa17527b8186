#define _GNU_SOURCE
#include "run/prefill.h"

#include "lang/chat/output.h"

#include <string.h>

bool prefill_is_open(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && !strcmp(role, "assistant") && !json_array_size(json_object_get(message, "tool_calls"));
}

int prefill_read(const json_t *messages, struct buf *out, struct err *e)
{
    const json_t *content =
                     json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content"),
                 *part;
    size_t i;
    buf_add(out, json_is_string(content) ? json_string_value(content) : "", json_string_length(content));
    json_array_foreach(content, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        buf_add(out, json_string_value(text), json_string_length(text));
    }
    return out->failed ? err_memory(e, "the last message", out->len) : 0;
}

static void prefill_ignore(void *arg, const struct output_piece *p)
{
    (void)arg;
    (void)p;
}

int prefill_stand(const struct session *l, const json_t *tools, const struct buf *text,
                  struct prefill_state *out, struct err *e)
{
    const struct output_options o = {
        .form = l->form, .thought = l->thought, .tools = tools, .take = prefill_ignore};
    struct output_parser *r = output_open(&o, e);
    int failed = !r || output_go_on(r, text->data, text->len);
    if (!failed) {
        size_t call = output_call_begun(r);
        out->thinking = output_reasons(r);
        out->call_begun = call ? text->data + text->len - call : NULL;
    }
    output_close(r);
    return failed ? err_memory(e, "the last message", text->len) : 0;
}

/* The text after the reasoning. */
static const char *prefill_answer(const struct output_thought *t, const char *answer)
{
    for (const char *next; t && (next = strstr(answer, t->close));) {
        answer = next + strlen(t->close);
        answer += strspn(answer, " \n\r\t");
    }
    return answer;
}

int prefill_lead(const struct session *l, const struct output_want *w, const struct buf *text,
                 const char *call_begun, const char **lead, const char **append, struct err *e)
{
    const char *trigger = w->tools ? output_trigger(l->form) : NULL,
               *call = call_begun ? call_begun + strspn(call_begun, " \n\r\t") : NULL;
    *lead = *append = w->must && !w->thinking ? trigger : NULL;
    if (!text->len)
        return 0;
    if (strlen(text->data) != text->len)
        return err_set(
            e, ERR_USAGE,
            "the last message holds the character U+0000: it cannot be continued under a constraint");
    bool free = !w->kind && !w->must; /* else a call without its mark is a text as yet */
    if (call && trigger && (free || !strncmp(call, trigger, strlen(trigger)))) {
        *lead = call;
        *append = NULL;
    } else if (w->kind && !w->must && !w->thinking)
        *lead = prefill_answer(l->thought, text->data);
    return 0;
}
