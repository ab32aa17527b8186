/* OpenAI's responses API: the state of a request, and the store of responses. */
#pragma once

#include "serve/own.h"

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

/* Stores the conversation with its answer, and the response, unless the request set store to false. */
void responses_keep(struct request *a, json_t *response);
