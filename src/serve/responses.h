/* OpenAI's responses API: the state of a request, and what is stored of it. The state belongs to its request and goes with
 * it from the worker to the loop's thread. */
#pragma once

#include "save/threads.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct background;
struct conn;
struct record;
struct request;

/* Items as they are stored; their texts are owned. */
struct stored_items {
    struct thread_item *all; /* (count) */
    size_t count, room, bytes;
};

struct responses {
    json_t *asked;  /* the request's fields, as the answer repeats them */
    json_t *output; /* complete items */
    json_t *final;  /* the response, once it has ended */
    struct stored_items input;
    char previous[THREAD_ID], conversation[THREAD_ID]; /* that it goes on from; "" = none */
    bool store, background, cancelled;
    struct background *runs; /* in the background, once the loop has it */
    /* of a stream */
    size_t from; /* where the open item begins in the message */
    json_t *probs,
        *probs_new; /* of the open message: all of its tokens, and those that no event has sent yet */
    int sequence;
};

/* A worker's. */
void responses_create(struct request *a);
void responses_count(struct request *a);
void responses_read(struct request *a);
void responses_remove(struct request *a);
void responses_cancel_ended(struct request *a);
void responses_input_items(struct request *a);

/* The loop's: of one that runs in the background, or on to a worker (responses_background.c). */
void responses_get(struct conn *c);
void responses_delete(struct conn *c);
void responses_cancel(struct conn *c);

/* Items (responses_items.c): adds the item to the messages of a chat; -1 and a failure. */
int responses_item(struct request *a, const json_t *item, size_t at, json_t *to);
int responses_items_add(struct stored_items *to, const json_t *item); /* -1: out of memory */
void responses_items_free(struct stored_items *l);

/* The response as it is now: queued, in_progress, completed, incomplete, cancelled (responses_response.c). */
json_t *responses_make(const struct request *a, const char *status);
/* What is stored of it (responses_store.c): at its end in its record, of one in the background at its beginning, too. */
void responses_keep(struct request *a, struct record *r);
int responses_keep_begun(struct request *a);
/* The end of one that failed in the background. */
void responses_keep_failed(struct background *b, const json_t *response);
