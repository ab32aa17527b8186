/* What a choice says, taken apart into text, reasoning and calls. It belongs to the thread that owns the request: the loop,
 * once the engine has it. */
#pragma once

#include "base/buf.h"
#include "lang/chat/output.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct choice;
struct stream_chunk;

struct message {
    struct buf text, reason;
    struct message_call {
        char *name, *id;
        struct buf arguments; /* a JSON object, or what has come of it */
        bool whole;
    } * calls;
    uint32_t call_count;
    bool full; /* it has had as many calls as are kept: the rest is passed over */
};

/* Where the pieces of one chunk go. It lives while the chunk is taken apart. */
struct message_sink {
    struct choice *choice;
    const struct stream_chunk *chunk; /* NULL = its tokens have been written */
    struct buf *out;                  /* of a stream */
};

void message_take(void *sink, const struct output_piece *p); /* an output parser's take */
void message_free(struct message *s);
/* It has ended with calls, all of them whole. */
bool message_called(const struct choice *c);
struct message_call *message_last(const struct choice *c); /* the call that a piece belongs to */
/* stop, length or tool_calls. */
const char *message_finish(const struct choice *c);
/* Text of a model as a JSON string: what is no UTF-8 becomes U+FFFD. */
json_t *message_string(const char *text, size_t n);
json_t *message_arguments(const struct message_call *call); /* as an object */
/* Both take the value over; NULL (memory was out) fails the buffer. */
void message_json(struct buf *out, json_t *value);
void message_event(struct buf *out, json_t *event); /* with its type as the event's name */
