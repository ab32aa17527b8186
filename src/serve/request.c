/* An answer's life in the loop: from the request to the worker, then from the engine to the client. */
#include "serve/request.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "run/engine.h"
#include "serve/conn.h"
#include "serve/failure.h"
#include "serve/format.h"
#include "serve/http.h"
#include "serve/message.h"
#include "serve/metrics.h"
#include "serve/models.h"
#include "serve/record.h"
#include "serve/relay.h"
#include "serve/responses_background.h"
#include "serve/resumable.h"
#include "serve/route.h"
#include "serve/server_internal.h"
#include "serve/usage.h"
#include "serve/vectors.h"
#include "serve/worker.h"

#include <jansson.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int request_fail(struct request *a, int status, const char *param, const char *fmt, ...)
{
    struct err e;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e.text, sizeof e.text, fmt, ap);
    va_end(ap);
    return failure_set(&a->failure, status, NULL, param, "%s", e.text);
}

int request_fail_state(struct request *a, const struct err *e)
{
    if (e->code == ERR_FULL)
        return failure_set(&a->failure, 507, "insufficient_storage", NULL, "%s", e->text);
    return request_fail(a, 503, NULL, "%s", e->text);
}

/* Requests with different keys share no prefixes, in memory or in the cache on disk. */
static uint64_t request_salt(const struct request *a)
{
    struct digest d = {0};
    const char *key = a->key ? a->server->o->keys[a->key - 1].text : NULL;
    if (key)
        digest_add(&d, key, strlen(key));
    return d.lo;
}

/* Subtracts the request's sequences from its key's usage. */
static void request_usage_end(struct server *s, uint32_t key, uint32_t sequences, const struct usage *used)
{
    pthread_mutex_lock(&s->mutex);
    usage_end(&s->usage[key], sequences, used->prompt, used->made);
    pthread_mutex_unlock(&s->mutex);
}

int request_admit(struct request *a, uint32_t sequences)
{
    struct server *s = a->server;
    const struct key_limits *most = &s->o->usage;
    if (a->batch) /* it waits until others leave room */
        return 0;
    pthread_mutex_lock(&s->mutex);
    bool fits = usage_grow(&s->usage[a->key], most, sequences - a->sequences);
    if (fits)
        a->sequences = sequences;
    pthread_mutex_unlock(&s->mutex);
    if (fits)
        return 0;
    return failure_set(
        &a->failure, 429, "rate_limit_exceeded", "n",
        "the request asks for %u sequences; this key may have %u at once, all requests together", sequences,
        most->parallel);
}

static struct request *request_new(const struct request_origin *from, struct buf *body)
{
    struct request *a = mem_zalloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->server = from->server;
    a->to = from->to;
    a->client = from->client;
    a->route = from->route;
    a->key = from->key;
    a->owner = a->key ? a->server->o->keys[a->key - 1].owner : 0;
    a->salt = request_salt(a);
    a->body = *body; /* taken over */
    *body = (struct buf){0};
    a->created = time(NULL);
    a->keep = MODELS_KEEP_DEFAULT;
    a->server->request_count++;
    return a;
}

void request_start(struct conn *c)
{
    struct request_origin from = {c->server, c->route, &conn_recipient, c, c->key};
    bool asked = resumable_is_asked(c);
    uint32_t sequences = !c->route->light; /* a reply ends what the connection knows of the request */
    struct resumable *outlives = asked ? resumable_open(c) : NULL;
    if (asked && !outlives) {
        request_usage_end(c->server, c->key, sequences, &(struct usage){0});
        return;
    }
    if (outlives) {
        from.to = &resumable_recipient;
        from.client = outlives;
    }
    struct request *a = request_new(&from, &c->http.body);
    if (!a) {
        if (outlives)
            resumable_undo(outlives, c);
        request_usage_end(c->server, c->key, sequences, &(struct usage){0});
        conn_failf(c, 503, NULL, "out of memory");
        return;
    }
    a->admin = c->admin;
    a->sequences = sequences;
    a->charged = c->charged;
    c->charged = 0;
    for (int i = 0; i < ROUTE_STARS; i++)
        route_part(c, i, a->part[i], sizeof a->part[i]);
    if (!a->body.len && (c->route->light || http_is(&c->http, "GET")))
        a->json = route_query_all(c); /* NULL: the empty body is refused */
    if (c->route->form)
        a->boundary = mem_strdup(c->boundary); /* NULL: no form can be read */
    a->begun = c->started;
    memcpy(a->id, c->id, sizeof a->id);
    if (outlives)
        outlives->request = a; /* the connection's is one that follows it */
    else
        c->request = a;
    worker_add(a);
}

struct request *request_hold(struct conn *c)
{
    const struct request_origin from = {c->server, c->route, &conn_recipient, c, c->key};
    struct buf none = {0};
    struct request *a = request_new(&from, &none);
    if (!a)
        return NULL;
    a->arrived = a->prepared = a->accounted = true;
    memcpy(a->id, c->id, sizeof a->id);
    c->request = a;
    return a;
}

struct request *request_start_batch(const struct request_origin *from, struct buf *body)
{
    struct request *a = request_new(from, body);
    if (!a)
        return NULL;
    a->batch = true;
    a->begun = clock_now();
    server_name(a->id, sizeof a->id, "req-");
    worker_add(a);
    return a;
}

void request_drop_body(struct request *a)
{
    enum { LARGE = 8 << 20 };
    bool shared =
        a->tools || a->stops || a->format_state; /* parts of it are still in use: they count as all of it */
    size_t before = a->charged;
    json_decref(a->json);
    a->json = NULL;
    buf_free(&a->body);
    if (!shared)
        server_charge(a->server, &a->charged, 0);
    if (before > LARGE)
        malloc_trim(0); /* the tree was many small blocks, with others between them */
}

/* Closes the streams first: no wakeup follows. */
void request_free(struct request *a)
{
    struct usage used = request_usage(a);
    relay_leave(a);
    record_post(a);
    record_leave(a);
    request_usage_end(a->server, a->key, a->sequences, &used);
    for (uint32_t i = 0; i < REQUEST_CHOICES; i++) {
        struct choice *c = &a->choices[i];
        stream_close(c->stream);
        output_close(c->parser);
        message_free(&c->message);
        buf_free(&c->ids);
        buf_free(&c->logprobs);
        buf_free(&c->tops);
        buf_free(&c->kept);
        buf_free(&c->ranks);
    }
    worker_forget(a);
    if (a->wait.form)
        /* keep_alive affects all keys: only an admin may set it */
        models_drop(a->server->models, a->wait.form, a->admin ? a->keep : MODELS_KEEP_DEFAULT);
    vectors_free(a->vectors);
    mem_free(a->boundary);
    if (a->drop_task)
        a->drop_task(a->task);
    request_drop_body(a);
    for (uint32_t i = 0; i < a->prompt_count; i++)
        ids_free(&a->prompts[i]);
    for (uint32_t i = 0; i < REQUEST_CHOICES; i++)
        request_images_free(&a->images[i]);
    buf_free(&a->reply);
    buf_free(&a->ending);
    buf_free(&a->prefill);
    ids_free(&a->before);
    ids_free(&a->stop_ids);
    json_decref(a->tools);
    json_decref(a->stops);
    if (format_for(a->route)->forget)
        format_for(a->route)->forget(a->format_state);
    server_charge(a->server, &a->charged, 0);
    a->server->request_count--;
    mem_free(a);
}

void request_abandon(struct request *a)
{
    a->client = NULL;
    atomic_store(&a->gone, true);
    if (a->arrived)
        request_free(a);
    else if (models_unwait(a->server->models, &a->wait)) /* else the worker returns it, and it ends then */
        worker_again(a);
}

/* Ends with a failure: as a reply, or inside of the stream. */
static void request_break(struct request *a)
{
    const struct recipient *to = a->to;
    const struct route *route = a->route;
    void *client = a->client;
    struct failure f = a->failure;
    request_free(a);
    to->fail(client, route, &f);
}

static int request_parse(struct output_parser *r, const struct stream_chunk *chunk, struct message_sink *sink)
{
    output_set_arg(r, sink);
    int failed = output_feed(r, chunk->text, chunk->text_length) ||
                 (chunk->done && output_end(r, chunk->finish == FINISH_LENGTH));
    output_set_arg(r, NULL);
    return failed;
}

static void request_feed(struct request *a, struct choice *c, const struct stream_chunk *chunk,
                         struct buf *out)
{
    if (chunk->err.code && !c->begun) /* it becomes a plain reply */
        return;
    struct message_sink sink = {c, chunk, out};
    if (a->stream && !c->begun && format_for(a->route)->begin)
        format_for(a->route)->begin(a, c, out);
    if (!c->begun && a->echo && a->prefill.len) {
        sink.chunk = NULL; /* none of its tokens is new */
        message_take(
            &sink, &(struct output_piece){.part = OUTPUT_TEXT, .text = a->prefill.data, .n = a->prefill.len});
        sink.chunk = chunk;
    }
    c->begun = true;
    if (!c->parser && chunk->text_length)
        message_take(
            &sink, &(struct output_piece){.part = OUTPUT_TEXT, .text = chunk->text, .n = chunk->text_length});
    if (c->parser && request_parse(c->parser, chunk, &sink))
        request_fail(a, 503, NULL, "out of memory");
    /* tokens whose text is held back, or was no text for the user, have their probabilities all the same */
    if (a->stream && sink.chunk && (a->logprobs || a->token_ids) && chunk->count)
        format_for(a->route)->piece(a, c, &(struct output_piece){.part = OUTPUT_TEXT, .text = ""}, chunk,
                                    out);
}

/* News of one choice. */
static void request_take(struct request *a, struct choice *c, const struct stream_chunk *chunk,
                         struct buf *out)
{
    if (chunk->count && !a->first) {
        a->first = clock_now();
        if (!a->batch)
            metrics_seconds(&a->server->metrics.first, a->first - a->begun);
    }
    if (chunk->count) {
        double now = clock_now();
        if (c->made && !a->batch)
            metrics_seconds(&a->server->metrics.between, (now - c->last) / (double)chunk->count);
        c->last = now;
    }
    c->made += (uint32_t)(chunk->count - chunk->echoed);
    for (size_t i = chunk->echoed; chunk->logprobs && i < chunk->count; i++)
        c->score += (double)chunk->logprobs[i];
    request_feed(a, c, chunk, out);
    if ((a->logprobs || a->prompt_probs || a->token_ids) && !a->stream) {
        buf_add(&c->ids, chunk->ids, chunk->count * sizeof *chunk->ids);
        if (chunk->logprobs)
            buf_add(&c->logprobs, chunk->logprobs, chunk->count * sizeof *chunk->logprobs);
        if (chunk->top)
            buf_add(&c->tops, chunk->top, chunk->count * a->top_stride * sizeof *chunk->top);
        if (chunk->ranks)
            buf_add(&c->ranks, chunk->ranks, chunk->count * sizeof *chunk->ranks);
        if (c->ids.failed || c->logprobs.failed || c->tops.failed || c->ranks.failed)
            request_fail(a, 503, NULL, "out of memory");
    }
    if (a->keep_ids &&
        !buf_add(&c->kept, chunk->ids + chunk->echoed, (chunk->count - chunk->echoed) * sizeof *chunk->ids))
        request_fail(a, 503, NULL, "out of memory");
    if (!chunk->done)
        return;
    c->done = true;
    c->end = *chunk;
    if (chunk->err.code)
        request_fail(a, chunk->err.code == ERR_CHANGED ? 503 : 500, NULL, "the answer failed: %s",
                     chunk->err.text);
    else if (chunk->finish == FINISH_CANCEL)
        request_fail(a, 503, NULL, "the answer was cancelled");
    else if (a->stream)
        format_for(a->route)->end(a, c, out);
}

static double request_mean(const struct choice *c)
{
    return c->made ? c->score / c->made : -INFINITY;
}

/* best_of: the completions with the highest mean log probability come first. */
static void request_rank(struct request *a)
{
    for (uint32_t i = 0; i < a->count && a->count > a->returned * a->prompt_count; i++) {
        struct choice *c = &a->choices[i];
        c->rank = 0;
        for (uint32_t k = 0; k < a->count; k++) {
            const struct choice *o = &a->choices[k];
            double its = request_mean(o), own = request_mean(c);
            c->rank += o->prompt_at == c->prompt_at && (its > own || (its == own && k < i));
        }
    }
}

/* The reply is whole, and stored as far as it is to be. */
static void request_tell(struct request *a)
{
    if (a->failure.status) {
        request_break(a);
        return;
    }
    if (a->stream)
        a->to->end(a->client, a->ending.data, a->ending.failed ? 0 : a->ending.len);
    else
        a->to->reply(a->client, a->count ? &a->ending : &a->reply);
    request_free(a);
}

static void request_finish(struct request *a)
{
    const struct api_format *t = format_for(a->route);
    struct record *r = a->route->light ? NULL : record_new(a);
    if (a->count && !a->batch)
        metrics_seconds(&a->server->metrics.whole, clock_now() - a->begun);
    if (a->stream && t->finish)
        t->finish(a, &a->ending);
    else if (!a->stream && a->count) {
        request_rank(a);
        t->whole(a, &a->ending);
    }
    if (r && t->keep)
        t->keep(a, r);
    a->ended = true;
    if (!r || !record_send(r, r->kept || r->usage.read + r->usage.written))
        request_tell(a);
}

/* Sends a part of the reply. A worker makes the next, as soon as the client reads. */
static void request_part(struct request *a)
{
    a->to->add(a->client, a, a->reply.data, a->reply.len);
    buf_clear(&a->reply);
    if (!a->partial) {
        a->to->end(a->client, NULL, 0);
        request_free(a);
    } else if (!a->to->full(a->client)) {
        a->arrived = false;
        worker_more(a);
    }
}

void request_stop(struct request *a)
{
    for (uint32_t i = 0; i < a->count && a->stream; i++)
        if (!a->choices[i].done)
            format_for(a->route)->end(a, &a->choices[i], &a->ending);
    request_finish(a);
}

void request_chunk(struct request *a)
{
    if (a->follows) {
        relay_feed(a);
        return;
    }
    if (a->detached && a->to == &conn_recipient)
        background_begin(a);
    if (!a->client) {
        request_free(a);
        return;
    }
    if (a->ended) { /* continues when its record is stored */
        if (atomic_load(&a->recorded))
            request_tell(a);
        return;
    }
    if (a->failure.status) {
        request_break(a);
        return;
    }
    if (a->type) {
        request_part(a);
        return;
    }
    if (a->to->full(a->client)) /* continues when the client has read */
        return;
    struct buf out = {0};
    uint32_t done = 0;
    for (uint32_t i = 0; i < a->count; i++) {
        struct choice *c = &a->choices[i];
        struct stream_chunk chunk;
        if (!c->done && stream_look(c->stream, 0, &chunk))
            request_take(a, c, &chunk, &out);
        done += c->done;
    }
    if (out.len && !out.failed)
        a->to->add(a->client, a, out.data, out.len);
    if (out.failed)
        request_fail(a, 503, NULL, "out of memory");
    buf_free(&out);
    if (a->failure.status)
        request_break(a);
    else if (done == a->count)
        request_finish(a);
}
