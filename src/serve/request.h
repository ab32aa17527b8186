/* A request that takes longer than a moment, and its choices: the answers that an engine makes to it. */
#pragma once

#include "base/buf.h"
#include "run/engine.h"
#include "serve/failure.h"
#include "serve/images.h"
#include "serve/message.h"
#include "serve/models.h"
#include "serve/worker.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { REQUEST_CHOICES = 16 };

struct conn;
struct instance;
struct output_parser;
struct record;
struct relay;
struct request;
struct route;
struct server;
struct stream;
struct vectors;

/* Who gets the reply of a request: a connection (conn.c), a line of a batch (batch.c), or a
 * stream that outlives its connection (resumable.c). The loop's. `end`, `reply` and
 * `fail` are the last that it hears of the request. */
struct recipient {
    bool (*full)(const void *client); /* it reads too slowly: wait */
    void (*add)(void *client, const struct request *a, const char *data, size_t n); /* to a stream */
    void (*end)(void *client, const char *data, size_t n);                          /* of a stream */
    void (*reply)(void *client, const struct buf *body);                            /* the whole of it */
    void (*fail)(void *client, const struct route *r, const struct failure *f);
};

/* One answer to one prompt. A worker makes it; from then on it is the loop's. */
struct choice {
    struct request *request;
    struct stream *stream;
    struct output_parser *parser; /* NULL = its text is text */
    struct message message;
    int open, blocks;   /* of streams made of blocks: the kind that is open, 0 = none; those that are whole */
    uint32_t prompt_at; /* which prompt */
    uint32_t rank;      /* among the answers to it */
    double score;       /* ln p of its tokens, in all; where more answers are made than are written */
    bool begun, done;
    bool prompt_sent; /* of a stream: its first event has gone out */
    uint32_t made;    /* tokens */
    double last;      /* when its last tokens came */
    size_t offset;    /* characters of tokens so far, for completions' text_offset */
    struct buf ids, logprobs, tops, ranks;
    struct stream_chunk end; /* its last chunk, without the pointers */
    struct buf kept;         /* the ids of its tokens, where the request keeps them */
};

/* The life of a request, and who owns it:
 *
 *   queued     request_start makes it of a whole HTTP request and takes the body over. The loop gives it to the workers
 *              (worker_add); it is in a lane until one of them takes it.
 *   parsed     a worker owns it: it reads the JSON, takes the model, and calls the route's prepare. A worker that has to
 *              wait for something else (the model, vectors) leaves it with `waits`; what it waits for calls worker_again,
 *              and a worker takes it up once more, where `stage` says. In the end there is a failure, a whole reply, or
 *              choices that were submitted to the engine. The JSON is freed, and `prepared` gives it to the loop.
 *   running    the loop owns it. The engine's thread only calls worker_wake; the loop then takes the chunks
 *              (request_chunk).
 *   streaming  the same, once the head of a stream has been sent: the format writes each piece as it comes.
 *   done       all choices have ended, or there is a failure. The rest of the reply waits for its record (record.h); then
 *              the loop writes it and frees the request.
 *
 * A client that leaves sets `gone` (request_abandon): the loop frees it at once where it owns it, else when the worker gives
 * it back. */
struct request {
    struct server *server;
    const struct recipient *to;
    void *client;          /* of `to`, and the loop's: NULL = it has gone */
    bool arrived;          /* the loop's: the worker is through with it */
    bool batch;            /* runs only in what others leave */
    bool detached;         /* set by a worker: it goes on without its client (responses_background.c) */
    struct relay *follows; /* the loop's: its reply is one that others read, too */
    struct request *next_follower;
    size_t fed; /* bytes of its events that were sent */
    const struct route *route;
    uint32_t key;
    int64_t owner; /* the key, as the state knows it */
    bool admin;
    uint64_t salt;              /* of its prefixes */
    struct buf body;            /* until it is read */
    char part[ROUTE_STARS][64]; /* what stands for the stars of its path */
    char *boundary;             /* of a form; NULL = it is none */
    size_t charged;             /* its part of the server's request_bytes */
    struct request *next_todo;
    enum lane_kind lane; /* by the bytes of its body */
    double queued;       /* when it came to the workers */
    atomic_bool gone;    /* set by the loop: the client has gone */
    /* the loop's: the reply is whole, and waits until its record is stored */
    bool ended, accounted; /* accounted: its usage has been counted */
    struct buf ending;
    atomic_bool recorded; /* set by the writer */
    /* guarded by the server's mutex */
    struct record *record; /* that it waits for */
    uint32_t sequences;    /* that count against its key's share; at least 1 */
    struct request *next_ready;
    bool is_ready, prepared;
    bool working, again; /* a worker has it; and is to take it up again */
    /* the workers' */
    bool waits;
    int stage;
    json_t *json; /* the body; freed when a worker is through: the loop never sees it */
    struct model_wait wait;
    struct instance *model;  /* the one that it got, and whose user it is */
    const char *called;      /* the name that it was asked for by */
    bool adapted;            /* that was the name of an adapter */
    double keep;             /* for how long the model is to stay */
    struct vectors *vectors; /* what is being embedded */
    /* what a worker makes: a failure, a whole reply, or choices */
    struct failure failure;
    struct buf reply;
    /* a reply in parts, of this type: `reply` is one of them; partial: a worker makes the next when it is sent */
    const char *type;
    bool partial;
    void *task; /* what its route keeps between its stages; drop_task frees it */
    void (*drop_task)(void *task);
    bool chat, stream, include_usage, logprobs, echo;
    json_t *tools;       /* that the model may call; NULL = none */
    struct buf prefill;  /* the text of the last message, where the answer goes on from it */
    json_t *stops;       /* the stop strings: a text, a list, or NULL */
    struct ids before;   /* what the prompt begins with, until it does */
    bool keep_ids;       /* the ids of the answer are kept for its format */
    void *format_state;  /* what its format keeps, and forgets */
    bool endless;        /* end tokens are text like others */
    uint32_t tops;       /* alternatives to each token that are written */
    uint32_t top_stride; /* that the engine gives: at least as many */
    bool prompt_probs;   /* the prompt's probabilities are written, with prompt_tops alternatives */
    uint32_t prompt_tops;
    bool echoed;        /* the engine gives the prompt's tokens first */
    bool token_ids;     /* the ids of prompt and answer are written */
    bool ids_as_text;   /* where tokens are named, their ids stand for their texts */
    bool no_reasoning;  /* reasoning is made, and not written */
    bool raw_reasoning; /* reasoning is part of the text */
    bool functions;     /* calls are written in the form of the older functions */
    struct ids stop_ids;
    bool keep_stop;    /* what stops the answer is part of it */
    uint32_t returned; /* answers to each prompt that the client gets: those of the first ranks */
    struct ids prompts[REQUEST_CHOICES];
    struct request_images images[REQUEST_CHOICES]; /* of each prompt */
    uint32_t prompt_count;
    struct choice choices[REQUEST_CHOICES];
    uint32_t count;
    double begun; /* when its request was whole */
    double got;   /* when it had its model */
    double first; /* when its first token came */
    char id[40];  /* of the request */
    time_t created;
};

/* The loop's. */
void request_start(struct conn *c);
/* A request of a batch: the body is taken over. NULL: no memory. */
struct request_origin {
    struct server *server;
    const struct route *route;
    const struct recipient *to;
    void *client;
    uint32_t key;
};
struct request *request_start_batch(const struct request_origin *from, struct buf *body);
void request_chunk(struct request *a);   /* takes what has come of it; may free it */
void request_abandon(struct request *a); /* the client has gone */
/* A request of the connection that the loop itself answers, later; NULL: no memory. */
struct request *request_hold(struct conn *c);
void request_stop(struct request *a); /* ends now, with what it has */
void request_free(struct request *a);

/* A worker's. */
/* It is through with the request: what only the reading of it needed is freed. */
void request_drop_body(struct request *a);
/* The request needs this number of sequences in all; -1 and a failure where the key's share is too small. */
int request_admit(struct request *a, uint32_t sequences);

/* The owner's. Sets the failure, once, and returns -1. param may be NULL. */
int request_fail(struct request *a, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same for an error of the state: 507 where there is no room, else 503. */
int request_fail_state(struct request *a, const struct err *e);
