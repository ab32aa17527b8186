/* What the files of the server share. Everything here belongs to the loop's thread, but for what
 * struct request says. */
#pragma once

#include "base/buf.h"
#include "run/engine.h"
#include "run/session.h"
#include "serve/failure.h"
#include "serve/http.h"
#include "serve/limit.h"
#include "serve/metrics.h"
#include "serve/models.h"
#include "serve/server.h"
#include "serve/tls.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { SERVER_STUCK = 60 /* seconds in which an engine that has work takes a step */ };
enum { CONN_ADDRESSES = 256 };
#define OPENAI_TOKENS 9e18 /* as a limit of tokens, any number: the answer ends where the context is full */
enum { SERVE_WORKERS = 2, SERVE_CHOICES = 16, SERVE_PARAM = FAILURE_PARAM };

/* Of requests with large bodies one at a time is made ready, so that one worker is always free for the others. */
enum lane_kind { LANE_SHORT, LANE_LONG, LANES };

struct request;
struct conn;
struct json;
struct route;
struct vectors;

/* The last responses, for those that go on from them. Guarded by the server's mutex. */
enum { SHELF_ENTRIES = 256 };
struct shelf {
    struct shelf_entry {
        char id[48];
        uint32_t key; /* whose it is */
        size_t bytes;
        json_t *conversation, *response;
    } entries[SHELF_ENTRIES];
    uint32_t next; /* the oldest one's place */
    size_t bytes;
};
void shelf_free(struct shelf *s);

struct server {
    const struct server_options *o;
    struct models *models;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *tick, *term, *intr, *hup, *bell;
    int bell_fd, listen_fd;
    bool loopback;   /* only this machine can reach us */
    struct tls *tls; /* NULL = plain */
    bool draining, interrupted;
    double drain_until, notified;
    struct conn *conns;
    uint32_t conn_count, request_count;
    uint32_t conn_most;                       /* connections; above, the idle are evicted */
    uint32_t conn_by_address[CONN_ADDRESSES]; /* how many, by a hash of the client's address */
    bool accept_paused;                       /* no descriptor was left: the next tick tries again */
    double accept_warned;                     /* when that was last logged; 0 = never */
    atomic_size_t
        request_bytes; /* of all requests: bodies, and the JSON that was read from them; any thread's */
    time_t started;
    struct metrics metrics;
    /* guarded by the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t work;
    struct key_usage usage[USAGE_KEYS];
    struct worker_lane {
        struct request *first, **end;
    } lanes[LANES];        /* for the workers */
    bool long_running;     /* a worker has one of the long lane */
    struct request *ready; /* have news for the loop */
    struct shelf shelf;
    bool closing;
    pthread_t workers[SERVE_WORKERS];
    int worker_count;
};

struct conn {
    struct server *server;
    struct bufferevent *bev;
    struct conn *next, **link;
    struct http http;
    struct request *request; /* while one is being made */
    const struct route *route;
    double since;     /* when this phase began */
    double started;   /* when the request was whole */
    double last_sent; /* for keep-alive in streams */
    int phase;
    size_t charged; /* its part of the server's request_bytes */
    bool continued; /* "100 Continue" has been sent */
    bool streaming; /* in a reply without a known length */
    bool closing;   /* no more requests; ends when the output has gone */
    bool lingering; /* all is sent; waits for the other side to end */
    bool origin_ok;
    uint32_t retry;  /* of the reply: seconds after which to try again; 0 = 1 */
    bool reserve;    /* beyond conn_most: kept for probes */
    uint8_t address; /* its place in the server's conn_by_address */
    uint32_t key;    /* which one it came with, from 1; 0 = none */
    bool admin;      /* may load and unload models, and see every key's counters */
    char id[40];     /* of the request */
};

/* What an answer has said so far, taken apart. */
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

struct choice {
    struct request *request;
    struct stream *stream;
    struct output_parser *parser; /* NULL = its text is text */
    struct message message;
    int open, blocks;   /* of streams made of blocks: the kind that is open, 0 = none; those that are whole */
    uint32_t prompt_at; /* which prompt */
    uint32_t rank;      /* among the answers to it */
    double score;       /* ln p of its tokens, in all; where somebody asks */
    bool begun, done;
    bool told_prompt;       /* of a stream: its first event has gone out */
    uint32_t made, thought; /* tokens; those of reasoning, about */
    double last;            /* when its last tokens came */
    size_t offset;          /* characters of tokens so far, for completions' text_offset */
    struct buf ids, logprobs, tops, ranks;
    struct stream_chunk end; /* its last news, without the pointers */
    struct buf kept;         /* the ids of its tokens, where the answer keeps them */
};

/* A request that takes longer than a moment. First it belongs to a worker (`prepared` is false), then to
 * the loop. A worker that has to wait for something else (the model, vectors) leaves it with `waits`, and
 * whoever it waits for calls worker_again: then a worker takes it up once more, where `stage` says. */
struct request {
    struct server *server;
    struct conn *conn; /* the loop's: NULL = the client has gone */
    bool arrived;      /* the loop's: the worker is through with it */
    const struct route *route;
    uint32_t key;
    bool admin;
    uint64_t salt;   /* of its prefixes */
    struct buf body; /* until it is read */
    size_t charged;  /* its part of the server's request_bytes */
    struct request *next_todo;
    enum lane_kind lane; /* by the bytes of its body */
    double queued;       /* when it came to the workers */
    atomic_bool gone;    /* set by the loop: nobody wants it any more */
    /* guarded by the server's mutex */
    uint32_t sequences; /* that count against its key's share; at least 1 */
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
    double keep;             /* for how long the model is to stay */
    struct vectors *vectors; /* what is being embedded */
    /* what a worker makes: a failure, a whole reply, or choices */
    struct failure failure;
    struct buf reply;
    bool chat, stream, include_usage, logprobs, echo;
    json_t *tools;       /* that the model may call; NULL = none */
    struct buf prefill;  /* the text of the last message, where the answer goes on from it */
    json_t *stops;       /* the stop strings: a text, a list, or NULL */
    struct ids before;   /* what the prompt begins with, until it does */
    bool keep_ids;       /* the ids of the answer are kept for its teller */
    void *format_state;  /* what its format keeps, and forgets */
    bool endless;        /* end tokens are text like others */
    uint32_t tops;       /* alternatives to each token that are told */
    uint32_t top_stride; /* that the engine gives: at least as many */
    bool prompt_probs;   /* the prompt's probabilities are told, with so many alternatives */
    uint32_t prompt_tops;
    bool echoed;        /* the engine gives the prompt's tokens first */
    bool token_ids;     /* the ids of prompt and answer are told */
    bool ids_as_text;   /* where tokens are named, their ids stand for their texts */
    bool no_reasoning;  /* reasoning is made, and not told */
    bool raw_reasoning; /* reasoning is part of the text */
    bool functions;     /* calls are told in the form of the older functions */
    struct ids stop_ids;
    bool keep_stop; /* what stops the answer is part of it */
    uint32_t told;  /* answers to each prompt that the client gets: those of the first ranks */
    struct ids prompts[SERVE_CHOICES];
    uint32_t prompt_count;
    struct choice choices[SERVE_CHOICES];
    uint32_t count;
    double begun; /* when its request was whole */
    double got;   /* when it had its model */
    double first; /* when its first token came */
    char id[40];  /* of the request */
    time_t created;
};

/* How an answer is written: one for each API. All append to `out`. A stream is begin, pieces and end for every choice,
 * and one finish. */
struct api_format {
    const char *type;  /* of a stream */
    const char *alive; /* what a stream says when it has had no news for long; NULL = nothing */
    void (*begin)(struct request *a, struct choice *c, struct buf *out); /* NULL = with nothing */
    /* chunk: the tokens that came with the piece; NULL = an earlier piece had them */
    void (*piece)(struct request *a, struct choice *c, const struct output_piece *p,
                  const struct stream_chunk *chunk, struct buf *out);
    void (*end)(struct request *a, struct choice *c, struct buf *out); /* of a choice, in a stream */
    void (*finish)(struct request *a, struct buf *out);                /* of a stream; NULL = with nothing */
    void (*whole)(struct request *a, struct buf *out);                 /* without a stream */
    void (*error)(const struct failure *f, struct buf *out);           /* a reply */
    void (*broken)(const struct failure *f, struct buf *out);          /* inside of a stream, and its end */
    void (*forget)(void *state);                                       /* NULL = it keeps nothing */
    /* On a worker, before the engine gets it: what of it the reply tells. NULL = nothing */
    int (*asked)(struct request *a, const struct engine_request *r);
};
extern const struct api_format openai_api, anthropic_api, responses_api;

struct route {
    const char *method, *path;          /* without /v1 */
    void (*now)(struct conn *c);        /* answers at once */
    void (*prepare)(struct request *a); /* or: on a worker */
    bool open;                          /* needs no key */
    bool probe; /* answered on the connections that are kept for probes, too, and whatever Host is named */
    bool admin; /* needs an admin key where there are keys */
    enum route_model {
        ROUTE_WRITER,  /* prepare wants a model that writes */
        ROUTE_CHAT,    /* the same, rather one with a chat template where the request names none */
        ROUTE_VECTORS, /* one that makes vectors */
        ROUTE_WORDS,   /* one with a tokenizer */
        ROUTE_NO_MODEL
    } model;
    const struct api_format *format; /* NULL = OpenAI's */
};

/* ---- connections (conn.c) ---- */
void conn_open(struct server *s, evutil_socket_t fd, const struct sockaddr *from);
/* Closes the connection that has been idle for the longest time, one of the address that has most of them. Those with a
 * request running stay. false: all have one. */
bool conn_evict(struct server *s);
void conn_free(struct conn *c);
/* A few times a second: deadlines. */
void conn_tick(struct conn *c, double now);
/* A whole reply, and on to the next request. */
void conn_reply(struct conn *c, int status, const char *type, const struct buf *body);
void conn_fail(struct conn *c, const struct failure *f);
void conn_failf(struct conn *c, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* An event stream. */
void conn_stream_begin(struct conn *c, const char *type);
void conn_stream_add(struct conn *c, const char *data, size_t n);
void conn_stream_end(struct conn *c);
bool conn_is_full(const struct conn *c); /* the client reads too slowly: wait */
void conn_close_when_sent(struct conn *c);
/* The client speaks Anthropic's API: by the route, or by the header that its clients send. */
bool conn_is_anthropic(const struct conn *c);

/* The part of request_bytes that a connection or an answer has becomes `bytes`. false: it would grow, and all together
 * would be above the limit; then nothing changes. Any thread's. */
bool server_charge(struct server *s, size_t *charged, size_t bytes);

/* ---- routes (route.c) ---- */
void route_json(struct conn *c, int status, struct buf *out); /* frees it */
/* What stands for the * of the route's path, decoded; false: it is no name. */
bool route_rest(const struct conn *c, char *out, size_t size);
/* A value of the query, decoded; false: there is none. */
bool route_query(const struct conn *c, const char *name, char *out, size_t size);
void route_request(struct conn *c);
extern const struct route *const route_table;
extern const size_t route_count;
/* Why the request may not come in; 0 = it may. */
int auth_check(struct conn *c, struct failure *f);
bool auth_key(struct conn *c);

/* ---- work (work.c) ---- */
int worker_start(struct server *s, struct err *e);
void worker_stop(struct server *s);
void worker_add(struct request *a);
void worker_again(struct request *a); /* from any thread */
/* The model that the request names. -1: there is none, or it is not there yet: the caller returns, and is called again. */
int worker_model(struct request *a, enum route_model model);
void worker_wake(void *request); /* the engine's wake */
struct request *worker_ready(struct server *s);
void worker_forget(struct request *a);

/* ---- answers (answer.c) ---- */
void request_start(struct conn *c);
/* A worker is through with it: what only the request needed is freed. */
void request_drop_body(struct request *a);
void request_chunk(struct request *a);   /* may free it */
void request_abandon(struct request *a); /* the client has gone */
/* A worker asks for so many sequences in all; -1 and a failure where the key's share is too small. */
int request_admit(struct request *a, uint32_t sequences);
/* Sets the failure, once, and returns -1. param may be NULL. */
int request_fail(struct request *a, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- what has been said (said.c) ---- */
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

/* ---- what a worker does ---- */
void openai_chat(struct request *a);
void openai_count(struct request *a);
void openai_completion(struct request *a);
/* The request goes on as if it had come in OpenAI's shape, which is taken over. */
void openai_as(struct request *a, json_t *body, void (*ask)(struct request *a));
/* The body in the form that has tools, where it came with functions. */
int openai_functions(struct request *a, json_t *body);
/* Does a new turn begin behind the messages, does the last one go on, or neither. */
enum openai_turn { TURN_BEGINS, TURN_GOES_ON, TURN_CLOSED };
int openai_turn(struct request *a, const json_t *body, enum openai_turn *out);
/* Puts a->before in front of the first prompt. */
int openai_prepend(struct request *a);
/* Only the prompt of a chat, in prompts[0]. */
int openai_prompt(struct request *a);
void anthropic_messages(struct request *a);
void anthropic_count(struct request *a);
void anthropic_models(struct conn *c);
void anthropic_write_model(struct json *j, const struct served *s, const char *name);
void responses_create(struct request *a);
void responses_count(struct request *a);
void responses_get(struct conn *c);
void responses_delete(struct conn *c);
void text_tokenize(struct request *a);
void text_detokenize(struct request *a);
void text_template(struct request *a);
/* -1 and a failure: the model has no chat template. */
int text_can_chat(struct request *a);
void tokenizer_info(struct request *a);
/* The body as an object without its nulls, a reference of the caller's own; NULL and a failure. */
json_t *openai_body(struct request *a);
int openai_messages(struct request *a, const json_t *messages);
/* A prompt that does not fit: the failure that clients know. */
int openai_too_long(struct request *a, const struct ids *ids, const char *param);
/* Tokens of a prompt after which counting ends: twice those that fit. */
size_t openai_count_most(const struct request *a);

void asset_show(struct conn *c);

/* ---- the models (api_models.c) ---- */
void api_models(struct conn *c);
void api_model(struct conn *c);
void api_props(struct conn *c);
void api_slots(struct conn *c);
void api_load(struct request *a);
void api_unload(struct request *a);

/* ---- llama.cpp's shapes (api_infill.c) ---- */
extern const struct api_format infill_api;
void api_infill(struct request *a);
void api_completion(struct request *a);

/* ---- vectors (api_embed.c, vectors.c) ---- */
void api_embeddings(struct request *a);
void api_embedding(struct request *a);
void api_rerank(struct request *a);
void api_score(struct request *a);
void vectors_free(struct vectors *v);

/* ---- tokens with their probabilities (openai_logprobs.c) ---- */
/* Of one piece of news, or of a whole answer. */
struct probs {
    const int32_t *ids;
    const float *logprobs;
    const struct token_prob *tops; /* (count, answer.top_stride) */
    const uint32_t *ranks;
    size_t count, echoed; /* echoed: the first of them are the prompt's */
};
struct probs openai_write_choice_probs(const struct request *a, const struct choice *c);
struct probs openai_write_chunk_probs(const struct stream_chunk *chunk);         /* NULL = none */
struct probs openai_write_answer_probs(const struct request *a, struct probs p); /* without the prompt's */
/* [{token, logprob, bytes, top_logprobs}] without the token that ends the answer. */
void openai_write_token_probs(const struct request *a, struct json *j, const struct probs *p);
/* Each writes one key of an object. p NULL: null. */
void openai_write_probs(struct request *a, struct json *j, struct choice *c, const struct probs *p);
void openai_write_ids(struct json *j, const char *key, const int32_t *ids, size_t n);
void openai_write_prompt_probs(const struct request *a, const struct choice *c, struct json *j);
void openai_write_native_probs(const struct request *a, struct json *j, const struct probs *p);

/* ---- what is written (tell.c) ---- */

struct usage {
    uint64_t prompt, made, cached, thought;
};
struct usage request_usage(const struct request *a);
/* The route's, or OpenAI's. */
const struct api_format *format_for(const struct route *r);
void openai_write_timings(const struct request *a, struct json *j);
