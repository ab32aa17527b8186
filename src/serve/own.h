/* What the files of the server share. Everything here belongs to the loop's thread, but for what
 * struct answer says. */
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
#define ASK_TOKENS 9e18 /* as a limit of tokens, any number: the answer ends where the context is full */
enum { SERVE_WORKERS = 2, SERVE_CHOICES = 16, SERVE_PARAM = FAILURE_PARAM };

/* Of requests with large bodies one at a time is made ready, so that one worker is always free for the others. */
enum lane_kind { LANE_SHORT, LANE_LONG, LANES };

struct answer;
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
    uint32_t conn_count, answer_count;
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
    struct lane {
        struct answer *first, **end;
    } lanes[LANES];       /* for the workers */
    bool long_running;    /* a worker has one of the long lane */
    struct answer *ready; /* have news for the loop */
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
    struct answer *answer; /* while one is being made */
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
struct said {
    struct buf text, reason;
    struct said_call {
        char *name, *id;
        struct buf arguments; /* a JSON object, or what has come of it */
        bool whole;
    } * calls;
    uint32_t call_count;
    bool full; /* it has had as many calls as are kept: the rest is passed over */
};

struct choice {
    struct answer *answer;
    struct stream *stream;
    struct output_parser *reply; /* NULL = its text is text */
    struct said said;
    int open, blocks; /* of streams made of blocks: the kind that is open, 0 = none; those that are whole */
    /* while news are being taken */
    const struct stream_chunk *news; /* NULL = its tokens have been told */
    struct buf *out;
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
 * whoever it waits for calls work_again: then a worker takes it up once more, where `stage` says. */
struct answer {
    struct server *server;
    struct conn *conn; /* the loop's: NULL = the client has gone */
    bool arrived;      /* the loop's: the worker is through with it */
    const struct route *route;
    uint32_t key;
    bool admin;
    uint64_t salt;   /* of its prefixes */
    struct buf body; /* until it is read */
    size_t charged;  /* its part of the server's request_bytes */
    struct answer *next_todo;
    enum lane_kind lane; /* by the bytes of its body */
    double queued;       /* when it came to the workers */
    atomic_bool gone;    /* set by the loop: nobody wants it any more */
    /* guarded by the server's mutex */
    uint32_t sequences; /* that count against its key's share; at least 1 */
    struct answer *next_ready;
    bool is_ready, prepared;
    bool working, again; /* a worker has it; and is to take it up again */
    /* the workers' */
    bool waits;
    int stage;
    json_t *request; /* the body; freed when a worker is through: the loop never sees it */
    struct model_wait wait;
    struct form *model;      /* the one that it got, and whose user it is */
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
    void *own;           /* what its teller keeps, and forgets */
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
struct teller {
    const char *type;  /* of a stream */
    const char *alive; /* what a stream says when it has had no news for long; NULL = nothing */
    void (*begin)(struct answer *a, struct choice *c, struct buf *out); /* NULL = with nothing */
    /* c->news: the tokens that came with it, where nobody has told them yet */
    void (*piece)(struct answer *a, struct choice *c, const struct output_piece *p, struct buf *out);
    void (*end)(struct answer *a, struct choice *c, struct buf *out); /* of a choice, in a stream */
    void (*finish)(struct answer *a, struct buf *out);                /* of a stream; NULL = with nothing */
    void (*whole)(struct answer *a, struct buf *out);                 /* without a stream */
    void (*error)(const struct failure *f, struct buf *out);          /* a reply */
    void (*broken)(const struct failure *f, struct buf *out);         /* inside of a stream, and its end */
    void (*forget)(void *own);                                        /* NULL = it keeps nothing */
    /* On a worker, before the engine gets it: what of it the reply tells. NULL = nothing */
    int (*asked)(struct answer *a, const struct engine_request *r);
};
extern const struct teller tell_openai, anthropic_teller, responses_teller;

struct route {
    const char *method, *path;         /* without /v1 */
    void (*now)(struct conn *c);       /* answers at once */
    void (*prepare)(struct answer *a); /* or: on a worker */
    bool open;                         /* needs no key */
    bool probe; /* answered on the connections that are kept for probes, too, and whatever Host is named */
    bool admin; /* needs an admin key where there are keys */
    enum route_model {
        ROUTE_WRITER,  /* prepare wants a model that writes */
        ROUTE_CHAT,    /* the same, rather one with a chat template where the request names none */
        ROUTE_VECTORS, /* one that makes vectors */
        ROUTE_WORDS,   /* one with a tokenizer */
        ROUTE_NO_MODEL
    } model;
    const struct teller *teller; /* NULL = OpenAI's */
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
int gate_check(struct conn *c, struct failure *f);
bool gate_key(struct conn *c);

/* ---- work (work.c) ---- */
int work_start(struct server *s, struct err *e);
void work_stop(struct server *s);
void work_add(struct answer *a);
void work_again(struct answer *a); /* from any thread */
/* The model that the request names. -1: there is none, or it is not there yet: the caller returns, and is called again. */
int work_model(struct answer *a, enum route_model model);
void work_wake(void *answer); /* the engine's wake */
struct answer *work_ready(struct server *s);
void work_forget(struct answer *a);

/* ---- answers (answer.c) ---- */
void answer_start(struct conn *c);
/* A worker is through with it: what only the request needed is freed. */
void answer_forget_request(struct answer *a);
void answer_news(struct answer *a);    /* may free it */
void answer_abandon(struct answer *a); /* the client has gone */
/* A worker asks for so many sequences in all; -1 and a failure where the key's share is too small. */
int answer_admit(struct answer *a, uint32_t sequences);
/* Sets the failure, once, and returns -1. param may be NULL. */
int answer_fail(struct answer *a, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- what has been said (said.c) ---- */
void said_take(void *choice, const struct output_piece *p); /* a reply's take */
void said_free(struct said *s);
/* It has ended with calls, all of them whole. */
bool said_called(const struct choice *c);
struct said_call *said_last(const struct choice *c); /* the call that a piece belongs to */
/* stop, length or tool_calls. */
const char *said_finish(const struct choice *c);
/* Text of a model as a JSON string: what is no UTF-8 becomes U+FFFD. */
json_t *said_string(const char *text, size_t n);
json_t *said_arguments(const struct said_call *call); /* as an object */
/* Both take the value over; NULL (memory was out) fails the buffer. */
void said_json(struct buf *out, json_t *value);
void said_event(struct buf *out, json_t *event); /* with its type as the event's name */

/* ---- what a worker does ---- */
void ask_chat(struct answer *a);
void ask_count(struct answer *a);
void ask_completion(struct answer *a);
/* The request goes on as if it had come in OpenAI's shape, which is taken over. */
void ask_as(struct answer *a, json_t *body, void (*ask)(struct answer *a));
/* The body in the form that has tools, where it came with functions. */
int ask_functions(struct answer *a, json_t *body);
/* Does a new turn begin behind the messages, does the last one go on, or neither. */
enum ask_turn { TURN_BEGINS, TURN_GOES_ON, TURN_CLOSED };
int ask_turn(struct answer *a, const json_t *body, enum ask_turn *out);
/* Puts a->before in front of the first prompt. */
int ask_prepend(struct answer *a);
/* Only the prompt of a chat, in prompts[0]. */
int ask_prompt(struct answer *a);
void anthropic_messages(struct answer *a);
void anthropic_count(struct answer *a);
void anthropic_models(struct conn *c);
void anthropic_write_model(struct json *j, const struct served *s, const char *name);
void responses_create(struct answer *a);
void responses_count(struct answer *a);
void responses_get(struct conn *c);
void responses_delete(struct conn *c);
void text_tokenize(struct answer *a);
void text_detokenize(struct answer *a);
void text_template(struct answer *a);
/* -1 and a failure: the model has no chat template. */
int text_can_chat(struct answer *a);
void tokenizer_info(struct answer *a);
/* The body as an object without its nulls, a reference of the caller's own; NULL and a failure. */
json_t *ask_body(struct answer *a);
int ask_messages(struct answer *a, const json_t *messages);
/* A prompt that does not fit: the failure that clients know. */
int ask_too_long(struct answer *a, const struct ids *ids, const char *param);
/* Tokens of a prompt after which counting ends: twice those that fit. */
size_t ask_count_most(const struct answer *a);

void asset_show(struct conn *c);

/* ---- the models (api_models.c) ---- */
void api_models(struct conn *c);
void api_model(struct conn *c);
void api_props(struct conn *c);
void api_slots(struct conn *c);
void api_load(struct answer *a);
void api_unload(struct answer *a);

/* ---- llama.cpp's shapes (api_infill.c) ---- */
extern const struct teller infill_teller;
void api_infill(struct answer *a);
void api_completion(struct answer *a);

/* ---- vectors (api_embed.c, vectors.c) ---- */
void api_embeddings(struct answer *a);
void api_embedding(struct answer *a);
void api_rerank(struct answer *a);
void api_score(struct answer *a);
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
struct probs tell_choice_probs(const struct answer *a, const struct choice *c);
struct probs tell_news_probs(const struct choice *c); /* none where its news have been told */
struct probs tell_answer_probs(const struct answer *a, struct probs p); /* without the prompt's */
/* [{token, logprob, bytes, top_logprobs}] without the token that ends the answer. */
void tell_token_probs(const struct answer *a, struct json *j, const struct probs *p);
/* Each writes one key of an object. p NULL: null. */
void tell_probs(struct answer *a, struct json *j, struct choice *c, const struct probs *p);
void tell_ids(struct json *j, const char *key, const int32_t *ids, size_t n);
void tell_prompt_probs(const struct answer *a, const struct choice *c, struct json *j);
void tell_native_probs(const struct answer *a, struct json *j, const struct probs *p);

/* ---- what is written (tell.c) ---- */

struct usage {
    uint64_t prompt, made, cached, thought;
};
struct usage answer_usage(const struct answer *a);
/* The route's, or OpenAI's. */
const struct teller *tell_for(const struct route *r);
void tell_timings(const struct answer *a, struct json *j);
