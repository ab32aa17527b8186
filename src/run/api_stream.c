/* The public library: streams, their pieces, and whole answers. */
#define _GNU_SOURCE
#include "run/api.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "lang/chat/tools.h"

#include <math.h>
#include <string.h>

enum { API_CALLS = 256 };

/* ---- pieces ---- */

static struct api_call *api_begin_call(struct quern_stream *s, const struct output_piece *p)
{
    struct api_call *all = mem_more(s->calls, s->call_count, &s->call_room, sizeof *all);
    if (!all)
        return NULL;
    s->calls = all;
    struct api_call *c = &all[s->call_count++];
    *c = (struct api_call){.name = tools_call_text(p->name),
                           .id = p->id ? tools_call_text(p->id) : tools_call_id(s->short_ids)};
    return c->name && c->id ? c : NULL;
}

void api_stream_take(void *arg, const struct output_piece *p)
{
    struct quern_stream *s = arg;
    bool call = p->part == OUTPUT_CALL;
    if (call && (p->name ? s->call_count == API_CALLS || !api_begin_call(s, p) : !s->call_count)) {
        s->failed |= s->call_count < API_CALLS;
        return;
    }
    struct api_piece *all = mem_more(s->piece, s->pieces, &s->piece_room, sizeof *all);
    if (!all) {
        s->failed = true;
        return;
    }
    s->piece = all;
    all[s->pieces++] = (struct api_piece){.part = p->part,
                                          .more = p->more,
                                          .begins = call && p->name,
                                          .at = s->all.len,
                                          .n = p->n,
                                          .call = s->call_count - call};
    if (call)
        s->calls[s->call_count - 1].whole = !p->more;
    if (p->part == OUTPUT_TEXT)
        buf_add(&s->text, p->text, p->n);
    s->failed |= !buf_add(&s->all, p->text, p->n) || s->text.failed;
}

/* The pieces as the client sees them. */
static bool api_pieces(struct quern_stream *s, struct quern_chunk *out)
{
    static const int parts[] = {
        [OUTPUT_TEXT] = QUERN_TEXT, [OUTPUT_REASON] = QUERN_REASONING, [OUTPUT_CALL] = QUERN_CALL};
    struct quern_piece *pieces = mem_realloc(s->out_pieces, s->pieces + 1, sizeof *pieces);
    if (!pieces)
        return false;
    s->out_pieces = pieces;
    for (size_t i = 0; i < s->pieces; i++) {
        const struct api_piece *p = &s->piece[i];
        pieces[i] = (struct quern_piece){.part = parts[p->part],
                                         .more = p->more,
                                         .text = s->all.data ? s->all.data + p->at : "",
                                         .text_length = p->n,
                                         .name = p->begins ? s->calls[p->call].name : NULL,
                                         .id = p->begins ? s->calls[p->call].id : NULL};
    }
    out->pieces = pieces;
    out->piece_count = s->pieces;
    out->text = s->text.data && s->text.len ? s->text.data : "";
    out->text_length = s->text.len;
    return true;
}

/* Takes a chunk's text apart. */
static int api_parse(struct quern_stream *s, const struct stream_chunk *n, struct quern_chunk *out,
                     struct err *e)
{
    if (s->begun) { /* pieces that the prompt began belong to the first chunk */
        s->pieces = 0;
        buf_clear(&s->text);
        buf_clear(&s->all);
    }
    s->begun = true;
    bool failed = output_feed(s->parser, n->text, n->text_length) ||
                  (n->done && output_end(s->parser, n->finish != FINISH_STOP));
    if (failed || s->failed || !api_pieces(s, out))
        return err_memory(e, "the answer", n->text_length);
    if (n->done && n->finish == FINISH_STOP && s->call_count && s->calls[s->call_count - 1].whole)
        out->finish_reason = "tool_calls";
    return 0;
}

/* ---- streams ---- */

struct quern_stream *quern_submit(struct quern_model *m, const struct quern_request *request,
                                  struct quern_error *error)
{
    struct err e = {0};
    struct quern_request own;
    struct quern_stream *s = mem_zalloc(1, sizeof *s);
    api_request_read(request, &own);
    if (!s)
        err_memory(&e, "a request", sizeof *s);
    else {
        s->model = m;
        s->arg = own.arg;
        if (!api_request_submit(s, &own, &e)) {
            pthread_mutex_lock(&m->mutex);
            s->opened = true;
            if (s->queued)
                pthread_cond_signal(&m->news);
            pthread_mutex_unlock(&m->mutex);
            return s;
        }
    }
    api_fail(&e, error);
    quern_stream_close(s);
    return NULL;
}

int quern_next(struct quern_stream *s, double seconds, struct quern_chunk *chunk, struct quern_error *error)
{
    struct stream_chunk n;
    struct err e = {0};
    *chunk = (struct quern_chunk){.text = ""};
    if (!stream_look(s->stream, seconds, &n))
        return 0;
    _Static_assert(sizeof(struct quern_probability) == sizeof(struct token_prob),
                   "one is given for the other");
    *chunk = (struct quern_chunk){
        .text = n.text,
        .text_length = n.text_length,
        .ids = n.ids,
        .logprobs = n.logprobs,
        .top = (const struct quern_probability *)n.top,
        .count = n.count,
        .echoed = n.echoed,
        .done = n.done,
        .finish_reason = n.done ? finish_name(n.finish) : NULL,
        .prompt_tokens = n.prompt,
        .cached_tokens = n.cached,
        .queued_seconds = n.queued_seconds,
        .first_seconds = n.first_seconds,
        .seconds = n.seconds,
    };
    int failed = n.err.code ? -1 : s->parser ? api_parse(s, &n, chunk, &e) : 0;
    if (failed)
        return api_fail(n.err.code ? &n.err : &e, error);
    return 1;
}

void quern_cancel(struct quern_stream *s)
{
    stream_cancel(s->stream);
}

/* Takes it from the list of those that have chunks. */
static void api_unready(struct quern_stream *s)
{
    struct quern_model *m = s->model;
    pthread_mutex_lock(&m->mutex);
    struct quern_stream **at = &m->ready;
    while (s->queued && *at && *at != s)
        at = &(*at)->next;
    if (s->queued && *at) {
        *at = s->next;
        m->ready_end = s->next ? m->ready_end : at;
    }
    pthread_mutex_unlock(&m->mutex);
}

void quern_stream_close(struct quern_stream *s)
{
    if (!s)
        return;
    stream_close(s->stream); /* from here on nothing wakes it */
    api_unready(s);
    output_close(s->parser);
    json_decref(s->tools);
    for (size_t i = 0; i < s->call_count; i++) {
        mem_free(s->calls[i].name);
        mem_free(s->calls[i].id);
    }
    mem_free(s->calls);
    mem_free(s->piece);
    mem_free(s->out_pieces);
    buf_free(&s->text);
    buf_free(&s->all);
    mem_free(s);
}

/* ---- those that have chunks ---- */

void api_stream_wake(void *arg)
{
    struct quern_stream *s = arg;
    struct quern_model *m = s->model;
    pthread_mutex_lock(&m->mutex);
    if (!s->queued) {
        s->queued = true;
        s->next = NULL;
        *m->ready_end = s;
        m->ready_end = &s->next;
        if (s->opened)
            pthread_cond_signal(&m->news);
    }
    pthread_mutex_unlock(&m->mutex);
}

/* The first stream that may be returned; the mutex is held. */
static struct quern_stream *api_take_ready(struct quern_model *m)
{
    struct quern_stream **at = &m->ready;
    while (*at && !(*at)->opened)
        at = &(*at)->next;
    struct quern_stream *s = *at;
    if (s) {
        *at = s->next;
        m->ready_end = s->next ? m->ready_end : at;
        s->queued = false;
    }
    return s;
}

size_t quern_ready(struct quern_model *m, double seconds, struct quern_event *events, size_t most)
{
    double until = clock_now() + (seconds > 0 ? seconds : 0);
    struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)(1e9 * (until - floor(until)))};
    size_t n = 0;
    int late = 0;
    pthread_mutex_lock(&m->mutex);
    while (!n && !m->interrupted) {
        for (struct quern_stream *s; n < most && (s = api_take_ready(m)); n++)
            events[n] = (struct quern_event){s, s->arg};
        if (n || late || !most)
            break;
        late = seconds < 0 ? pthread_cond_wait(&m->news, &m->mutex)
                           : pthread_cond_timedwait(&m->news, &m->mutex, &at);
    }
    m->interrupted = m->interrupted && n;
    pthread_mutex_unlock(&m->mutex);
    return n;
}

void quern_interrupt(struct quern_model *m)
{
    pthread_mutex_lock(&m->mutex);
    m->interrupted = true;
    pthread_cond_signal(&m->news);
    pthread_mutex_unlock(&m->mutex);
}

/* ---- whole answers ---- */

struct api_whole {
    struct buf text, reasoning, logprobs;
    struct ids ids;
    struct buf *arguments; /* (count): of each call */
    size_t count, room;
};

static void api_whole_piece(struct api_whole *w, const struct quern_piece *p)
{
    if (p->part == QUERN_REASONING)
        buf_add(&w->reasoning, p->text, p->text_length);
    if (p->part != QUERN_CALL)
        return;
    if (p->name) {
        struct buf *all = mem_more(w->arguments, w->count, &w->room, sizeof *all);
        w->text.failed |= !all;
        if (!all)
            return;
        w->arguments = all;
        all[w->count++] = (struct buf){0};
    }
    if (w->count)
        w->text.failed |= !buf_add(&w->arguments[w->count - 1], p->text, p->text_length);
}

static void api_whole_add(struct api_whole *w, const struct quern_chunk *c, struct err *e)
{
    buf_add(&w->text, c->text, c->text_length);
    for (size_t i = c->echoed; i < c->count && !e->code; i++)
        ids_add(&w->ids, c->ids[i], e);
    if (c->logprobs)
        buf_add(&w->logprobs, c->logprobs + c->echoed, (c->count - c->echoed) * sizeof *c->logprobs);
    for (size_t i = 0; i < c->piece_count; i++)
        api_whole_piece(w, &c->pieces[i]);
}

/* The calls as in OpenAI's API; NULL where there are none. */
static char *api_whole_calls(struct api_whole *w, const struct quern_stream *s)
{
    struct buf out = {0};
    struct json j = {.out = &out};
    if (!w->count)
        return NULL;
    json_begin(&j, '[');
    for (size_t i = 0; i < w->count && i < s->call_count; i++) {
        json_begin(&j, '{');
        json_key(&j, "id"), json_str(&j, s->calls[i].id);
        json_key(&j, "type"), json_str(&j, "function");
        json_key(&j, "function");
        json_begin(&j, '{');
        json_key(&j, "name"), json_str(&j, s->calls[i].name);
        json_key(&j, "arguments"), json_strn(&j, w->arguments[i].data, w->arguments[i].len);
        json_end(&j, '}');
        json_end(&j, '}');
    }
    json_end(&j, ']');
    w->text.failed |= out.failed;
    return out.data;
}

/* On a failure of memory the answer is empty. */
static int api_whole_end(struct api_whole *w, const struct quern_stream *s, const struct quern_chunk *last,
                         struct quern_answer *a)
{
    if (!w->text.data)
        buf_str(&w->text, "");
    *a = (struct quern_answer){.text = w->text.data,
                               .text_length = w->text.len,
                               .ids = w->ids.data,
                               .id_count = w->ids.len,
                               .prompt_tokens = last->prompt_tokens,
                               .cached_tokens = last->cached_tokens,
                               .finish_reason = last->finish_reason,
                               .first_seconds = last->first_seconds,
                               .seconds = last->seconds,
                               .reasoning = w->reasoning.data,
                               .tool_calls = api_whole_calls(w, s),
                               .logprobs = (float *)(void *)w->logprobs.data};
    if (!w->text.failed && !w->reasoning.failed && !w->logprobs.failed)
        return 0;
    quern_answer_free(a);
    return -1;
}

int quern_generate(struct quern_model *m, const struct quern_request *request, struct quern_answer *answer,
                   struct quern_error *error)
{
    struct err e = {0};
    struct api_whole w = {0};
    struct quern_chunk chunk = {0};
    struct quern_request own;
    api_request_read(request, &own);
    struct quern_stream *s = quern_submit(m, &own, error);
    *answer = (struct quern_answer){0};
    if (!s)
        return -1;
    int failed = 0;
    while (!failed && !chunk.done) {
        failed = quern_next(s, -1, &chunk, error) < 0;
        api_whole_add(&w, &chunk, &e);
        if (chunk.text_length && own.text && own.text(own.arg, chunk.text, chunk.text_length))
            quern_cancel(s);
    }
    bool ended = !failed;
    failed = api_whole_end(&w, s, &chunk, answer) || e.code || failed;
    if (failed && ended)
        api_fail(&(struct err){.code = ERR_RESOURCE, .text = "out of memory: the answer"}, error);
    if (failed)
        quern_answer_free(answer);
    for (size_t i = 0; i < w.count; i++)
        buf_free(&w.arguments[i]);
    mem_free(w.arguments);
    quern_stream_close(s);
    return failed ? -1 : 0;
}

void quern_answer_free(struct quern_answer *a)
{
    mem_free(a->text);
    mem_free(a->ids);
    mem_free(a->reasoning);
    mem_free(a->tool_calls);
    mem_free(a->logprobs);
    *a = (struct quern_answer){0};
}
