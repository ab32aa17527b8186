/* OpenAI's responses: what a request keeps until it is answered, and what is kept of answers. */
#pragma once

#include "serve/own.h"

struct responses {
    json_t *asked;        /* the request's fields, as the answer repeats them */
    json_t *conversation; /* messages of a chat, without the instructions */
    json_t *output;       /* items that are whole */
    bool store;
    /* of a stream */
    size_t from; /* where the open item begins in what was said */
    json_t *probs,
        *probs_new; /* of the open message: all of its tokens, and those that no event has told yet */
    int sequence;
};

/* The conversation with the answer, and the answer: kept where the request has not refused it. */
void responses_keep(struct request *a, json_t *response);
