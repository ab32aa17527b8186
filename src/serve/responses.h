/* OpenAI's responses API: the state of a request, and the store of responses. The state belongs to its request and goes
 * with it from the worker to the loop's thread; the store is the server's, under its mutex. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct conn;
struct request;

struct responses {
    json_t *asked;        /* the request's fields, as the answer repeats them */
    json_t *conversation; /* messages of a chat, without the instructions */
    json_t *output;       /* complete items */
    bool store;
    /* of a stream */
    size_t from; /* where the open item begins in the message */
    json_t *probs,
        *probs_new; /* of the open message: all of its tokens, and those that no event has sent yet */
    int sequence;
};

void responses_create(struct request *a);
void responses_count(struct request *a);
void responses_get(struct conn *c);
void responses_delete(struct conn *c);

/* The conversation with the answer, and the answer: kept where the request has not refused it. */
void responses_keep(struct request *a, json_t *response);
