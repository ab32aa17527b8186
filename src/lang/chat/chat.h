/* Chat: messages, tools, documents and keyword arguments to a prompt, by the model's own template. The prompt
 * comes as spans, so that control tokens are looked for only in what the template wrote.
 *
 * Two exceptions to "what comes from a request is data": a message's role counts as the template's own text
 * when it is one of the usual ones (system, developer, user, assistant, tool, function, model, ipython, ...),
 * since templates build control tokens from it; and so do the names of special tokens, which come from the
 * model.
 *
 * A chat is read-only once it is open, and may be used by any number of threads. */
#pragma once

#include "base/err.h"
#include "lang/jinja/jinja.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

struct store;
struct chat;

/* What the template supports, found by rendering small conversations. */
struct chat_caps {
    bool string_content;   /* a text as content comes out */
    bool parts_content;    /* [{"type": "text", "text": ...}] comes out as its text */
    bool object_arguments; /* arguments of a tool call as an object */
    bool string_arguments; /* and as a string of JSON */
    bool calls_with_empty; /* tool calls come out where the content is "" */
    bool calls_with_null;  /* and where it is null */
    bool tools;            /* it mentions tools */
    bool system;           /* a system message comes out */
    bool developer;        /* it mentions the role developer; elsewhere that is the system */
    bool images;           /* it writes a place for {"type": "image"} */
    bool thinking;         /* it mentions enable_thinking or thinking */
    bool effort;           /* it mentions reasoning_effort */
};

struct chat_request {
    const json_t *messages;  /* an array of objects */
    const json_t *tools;     /* an array, or NULL */
    const json_t *documents; /* an array, or NULL */
    const json_t *extra;     /* an object of further names (enable_thinking, ...), or NULL */
    bool no_generation_prompt;
    bool continue_final; /* the prompt ends with the text of the last message, whose turn stays open */
    /* Render the messages exactly as given. Otherwise they are first brought into the form that the template
     * takes: arguments of tool calls that are strings of JSON become objects (or the other way round, where
     * the template needs that), parts become one text where the template does not walk over them, a text
     * becomes a part where it does nothing else, an empty content beside tool calls becomes "" or null as the
     * template wants it, and reasoning is given under its usual names. */
    bool as_given;
    /* Where the template has no place for images: this text stands for them. NULL: there are none. */
    const char *image_mark;
    struct tm now; /* local time */
    struct jinja_limits limits;
};

/* The template of a model, or `override` (its text) in its place. Fails where there is neither. */
int chat_open(struct chat **out, const struct store *s, const char *override, struct err *e);
/* A template alone: nothing but what the request has is supplied, the rest is undefined. */
int chat_open_text(struct chat **out, const char *text, size_t n, struct err *e);
void chat_close(struct chat *c);

int chat_render(const struct chat *c, const struct chat_request *r, struct spans *out, struct err *e);
struct chat_caps chat_capabilities(const struct chat *c);
/* The text of the template that is used where there are tools; "" = none is. */
const char *chat_text(const struct chat *c);
