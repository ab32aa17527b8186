/* How replies are written: one table of functions for each API. The functions get all that they need, and append to `out`.
 * They run in the loop, except for `asked`. */
#pragma once

#include "lang/chat/output.h"

#include <stdint.h>

struct buf;
struct choice;
struct engine_request;
struct failure;
struct record;
struct request;
struct route;
struct stream_chunk;

/* A stream is begin, pieces and end for every choice, and one finish. */
struct api_format {
    const char *type;  /* of a stream */
    const char *alive; /* what a stream says when it has had no chunk for long; NULL = nothing */
    void (*begin)(struct request *a, struct choice *c, struct buf *out); /* NULL = with nothing */
    /* chunk: the tokens that came with the piece; NULL = an earlier piece had them */
    void (*piece)(struct request *a, struct choice *c, const struct output_piece *p,
                  const struct stream_chunk *chunk, struct buf *out);
    void (*end)(struct request *a, struct choice *c, struct buf *out); /* of a choice, in a stream */
    void (*finish)(struct request *a, struct buf *out);                /* of a stream; NULL = with nothing */
    void (*whole)(struct request *a, struct buf *out);                 /* without a stream */
    /* Adds to the record of an answer what is kept of it; after finish or whole. NULL = nothing */
    void (*keep)(struct request *a, struct record *r);
    void (*error)(const struct failure *f, struct buf *out);  /* a reply */
    void (*broken)(const struct failure *f, struct buf *out); /* inside of a stream, and its end */
    void (*forget)(void *state);                              /* NULL = it keeps nothing */
    /* On a worker, before the engine gets it: keeps what the reply repeats of the request. NULL = nothing */
    int (*asked)(struct request *a, const struct engine_request *r);
};

/* Which API a route belongs to. */
enum api {
    API_OPENAI, /* where a route says nothing */
    API_ANTHROPIC,
    API_RESPONSES,
    API_INFILL, /* llama.cpp's */
    API_OLLAMA,
    API_OLLAMA_CHAT, /* the same, with messages instead of texts */
    API_COUNT
};

/* The rows of the table: openai_response.c, anthropic_response.c, responses_response.c, infill_response.c,
 * ollama_response.c. */
extern const struct api_format openai_api, anthropic_api, responses_api, infill_api, ollama_api;
const struct api_format *format_of(enum api api);
/* The route's; OpenAI's where there is no route. */
const struct api_format *format_for(const struct route *r);

/* Tokens of a request. */
struct usage {
    uint64_t prompt, made, cached, thought;
};
struct usage request_usage(const struct request *a);
