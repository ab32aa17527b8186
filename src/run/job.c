#include "run/job.h"

#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>
#include <time.h>

const char *finish_name(enum finish_kind f)
{
    return f == FINISH_STOP ? "stop" : f == FINISH_LENGTH ? "length" : "cancelled";
}

static void stream_free(struct stream *s)
{
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->news);
    buf_free(&s->text);
    buf_free(&s->out_text);
    ids_free(&s->ids);
    mem_free(s->logprobs);
    mem_free(s->top);
    mem_free(s->ranks);
    mem_free(s->logits);
    mem_free(s);
}

/* Bytes reserved for the text: most outputs need no more. */
static size_t stream_text_room(const struct engine_request *r)
{
    return 8 * (size_t)r->most + 64;
}

static size_t stream_token_room(const struct engine_request *r)
{
    return (size_t)r->most + (r->echo ? r->n : 0);
}

static struct stream *stream_open(const struct engine_request *r, uint32_t vocab)
{
    struct stream *s = mem_zalloc(1, sizeof *s);
    if (!s)
        return NULL;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->news, &monotonic);
    pthread_condattr_destroy(&monotonic);
    s->owners = 1;
    s->wake = r->wake;
    s->arg = r->arg;
    s->tops = r->top_logprobs;
    s->state.prompt = r->n;
    s->ids.cap = stream_token_room(r);
    s->ids.data = mem_alloc(s->ids.cap, sizeof *s->ids.data);
    bool whole = s->ids.data && buf_reserve(&s->text, stream_text_room(r));
    if (r->logprobs)
        whole &= (s->logprobs = mem_alloc(s->ids.cap, sizeof *s->logprobs)) != NULL;
    if (s->tops)
        whole &= (s->top = mem_alloc(s->ids.cap, s->tops * sizeof *s->top)) != NULL;
    if (r->logit_rows)
        whole &= (s->logits = mem_alloc(r->logit_rows, vocab * sizeof *s->logits)) != NULL;
    if (r->ranks)
        whole &= (s->ranks = mem_alloc(s->ids.cap, sizeof *s->ranks)) != NULL;
    if (whole)
        return s;
    stream_free(s);
    return NULL;
}

static void stream_release(struct stream *s, bool by_client)
{
    pthread_mutex_lock(&s->mutex);
    s->closed |= by_client;
    bool last = --s->owners == 0;
    pthread_mutex_unlock(&s->mutex);
    if (last)
        stream_free(s);
}

void stream_cancel(struct stream *s)
{
    atomic_store(&s->cancel, true);
}

void stream_close(struct stream *s)
{
    if (!s)
        return;
    stream_cancel(s);
    stream_release(s, true);
}

/* Waits on the condition until there is a chunk or the timeout expires. The mutex is held. */
static void stream_wait(struct stream *s, double seconds)
{
    double until = clock_now() + seconds;
    struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)(1e9 * (until - floor(until)))};
    while (!s->fresh) {
        int r = seconds < 0 ? pthread_cond_wait(&s->news, &s->mutex)
                            : pthread_cond_timedwait(&s->news, &s->mutex, &at);
        if (r)
            return;
    }
}

bool stream_look(struct stream *s, double seconds, struct stream_chunk *out)
{
    pthread_mutex_lock(&s->mutex);
    if (!s->fresh && seconds != 0)
        stream_wait(s, seconds);
    bool any = s->fresh;
    s->fresh = false;
    if (any) {
        *out = s->state;
        buf_clear(&s->out_text);
        if (buf_add(&s->out_text, s->text.data + s->seen_text, s->text.len - s->seen_text))
            s->seen_text = s->text.len;
        else if (!out->err.code)
            err_memory(&out->err, "the text", s->text.len - s->seen_text);
        out->text = s->out_text.data ? s->out_text.data : "";
        out->text_length = s->out_text.len;
        out->ids = s->ids.data + s->seen_ids;
        out->count = s->ids.len - s->seen_ids;
        out->logprobs = s->logprobs ? s->logprobs + s->seen_ids : NULL;
        out->ranks = s->ranks ? s->ranks + s->seen_ids : NULL;
        out->top = s->top ? s->top + s->seen_ids * s->tops : NULL;
        out->echoed = s->seen_ids < s->echoed ? s->echoed - s->seen_ids : 0;
        s->seen_ids = s->ids.len;
    }
    pthread_mutex_unlock(&s->mutex);
    return any;
}

float *stream_take_logits(struct stream *s)
{
    pthread_mutex_lock(&s->mutex);
    bool whole = s->state.done && !s->state.err.code && s->state.finish == FINISH_LENGTH;
    float *logits = whole ? s->logits : NULL;
    s->logits = whole ? NULL : s->logits;
    pthread_mutex_unlock(&s->mutex);
    return logits;
}

/* Copies what the request points to: the client may free its own once the request is submitted. */
static int job_copy(struct job *j, const struct engine_request *r)
{
    size_t room = (size_t)r->n + r->most;
    j->request = *r;
    j->request.prompt = NULL;
    j->request.images = NULL;
    j->request.constraint = NULL;                                       /* the walk has its own reference */
    j->request.tokens = (struct token_rules){.least = r->tokens.least}; /* the filter has the rest */
    j->request.stops = 0;
    j->ids = (struct ids){.data = mem_alloc(room, sizeof *j->ids.data), .len = r->n, .cap = room};
    j->stop_strings = mem_zalloc(r->stops, sizeof *j->stop_strings);
    if (!j->ids.data || speculate_index_open(&j->index, room) || !j->stop_strings ||
        !buf_reserve(&j->piece, 512))
        return -1;
    memcpy(j->ids.data, r->prompt, r->n * sizeof *r->prompt);
    size_t longest = 0;
    for (size_t i = 0; i < r->stops; i++) {
        if (!(j->stop_strings[i] = mem_strdup(r->stop_strings[i])))
            return -1;
        size_t n = strlen(r->stop_strings[i]);
        longest = n > longest ? n : longest;
        j->request.stops++;
    }
    j->request.stop_strings = (const char *const *)j->stop_strings;
    j->stop = (struct stop){.strings = j->request.stop_strings, .count = r->stops, .keep = r->keep_stop};
    return !r->stops || buf_reserve(&j->stop.held, longest + 512) ? 0 : -1;
}

/* A token, and the logits that it was taken from; NULL: it is the first token. */
static void job_note(struct job *j, uint32_t vocab, int32_t id, const float *logits)
{
    struct stream *s = j->stream;
    double sum = logits && (s->logprobs || s->top) ? sampler_log_sum(logits, vocab) : NAN;
    pthread_mutex_lock(&s->mutex);
    size_t at = s->ids.len++;
    s->ids.data[at] = id;
    if (s->logprobs)
        s->logprobs[at] = logits ? (float)(logits[id] - sum) : NAN;
    if (s->ranks)
        s->ranks[at] = logits ? sampler_rank(logits, vocab, id) : 0;
    struct token_prob *top = s->top ? s->top + at * s->tops : NULL;
    if (top && logits)
        sampler_top(logits, vocab, sum, s->tops, top);
    for (uint32_t i = 0; top && !logits && i < s->tops; i++)
        top[i] = (struct token_prob){.id = -1};
    s->echoed += !j->made; /* the output begins after the echoed prompt */
    pthread_mutex_unlock(&s->mutex);
}

/* A conversation's next prompt may write the end of this one otherwise: with the answer there is no reasoning, for example.
 * The end begins with the last control token, if that is near; where there is none, with the last token. */
static uint32_t job_turn(const struct session *l, const struct engine_request *r)
{
    enum { TURN_MOST = 32 };
    for (uint32_t i = r->n; l->tokenizer && i-- > 1 && r->n - i <= TURN_MOST;)
        if (r->prompt[i] < tokenizer_vocab(l->tokenizer) &&
            tokenizer_attr(l->tokenizer, r->prompt[i]) == TOK_CONTROL)
            return i;
    return r->n - 1;
}

/* Memory for the output is touched only as it grows. A token of the prompt is kept by the job, by its stream
 * where it is echoed, and by the client. */
enum { JOB_PAGES = 8 << 10, JOB_TOKEN = 3 * sizeof(int32_t) };

struct job *job_open(const struct session *l, const struct engine_request *r, struct err *e)
{
    uint32_t vocab = l->model->plan.out_width;
    struct job *j = mem_zalloc(1, sizeof *j);
    int failed = !j || job_copy(j, r) || !(j->stream = stream_open(r, vocab))
                     ? err_memory(e, "a request", sizeof *j + (r->n + r->most) * sizeof *r->prompt)
                     : job_images_open(&j->images, l->tower, r, j->ids.data, e) ||
                           sampler_open(&j->sampler, &r->sampler, vocab, l->sampler_room, e) ||
                           constraint_walk_open(&j->walk, r->constraint, vocab, e) ||
                           token_filter_open(&j->filter, &r->tokens, l, e) ||
                           reasoning_open(&j->reasoning, &r->reasoning, l, e);
    if (failed) {
        if (j)
            job_close(j);
        return NULL;
    }
    j->prompt = j->scored = r->n;
    j->turn = job_turn(l, r);
    j->bytes = sizeof *j + sizeof *j->stream + JOB_PAGES + JOB_TOKEN * (size_t)r->n;
    for (uint32_t i = 0; i < r->image_count; i++)
        j->bytes += picture_bytes(r->images[i].picture);
    if (r->echo) {
        j->scored = 1;
        job_note(j, vocab, j->ids.data[0], NULL);
    }
    if (r->logit_rows)
        j->scored = r->n - r->logit_rows + 1;
    j->submitted = clock_now();
    j->decoder = (struct tok_decoder){.t = l->tokenizer, .skip_special = !r->show_special, .started = true};
    return j;
}

void job_close(struct job *j)
{
    for (size_t i = 0; i < j->request.stops; i++)
        mem_free(j->stop_strings[i]);
    mem_free(j->stop_strings);
    ids_free(&j->ids);
    job_images_close(&j->images);
    speculate_index_close(&j->index);
    stop_free(&j->stop);
    buf_free(&j->piece);
    sampler_close(j->sampler);
    constraint_walk_close(&j->walk);
    token_filter_close(j->filter);
    reasoning_close(j->reasoning);
    seq_close(j->seq);
    seq_close(j->draft_seq);
    if (j->stream)
        stream_release(j->stream, false);
    mem_free(j);
}

/* The mutex is held, so that a closed stream's callback is never called. */
static void stream_publish(struct stream *s)
{
    s->fresh = true;
    pthread_cond_broadcast(&s->news);
    if (s->wake && !s->closed)
        s->wake(s->arg);
}

void job_publish(struct job *j)
{
    pthread_mutex_lock(&j->stream->mutex);
    stream_publish(j->stream);
    pthread_mutex_unlock(&j->stream->mutex);
}

/* Appends the text of a token to the stream. */
static int job_text(struct job *j, int32_t id, struct err *e)
{
    struct stream *s = j->stream;
    buf_clear(&j->piece);
    if (tok_decoder_feed(&j->decoder, id, &j->piece, e))
        return -1;
    j->line |= j->piece.len && memchr(j->piece.data, '\n', j->piece.len);
    pthread_mutex_lock(&s->mutex);
    if (j->made <= j->request.tokens.least) /* no stop string counts yet */
        buf_add(&s->text, j->piece.data, j->piece.len);
    else
        stop_feed(&j->stop, j->piece.data, j->piece.len, &s->text);
    bool failed = s->text.failed;
    pthread_mutex_unlock(&s->mutex);
    if (failed || j->piece.failed || j->stop.held.failed)
        return err_memory(e, "the text", j->piece.len);
    return 0;
}

uint32_t job_first_result(const struct job *j)
{
    return (j->scored < j->prompt ? j->scored : (uint32_t)j->ids.len) - 1;
}

void job_score(struct job *j, uint32_t vocab, const float *logits, uint32_t rows)
{
    for (uint32_t i = 0; i < rows && j->scored < j->prompt; i++, logits += vocab)
        if (j->stream->logits) {
            job_keep_logits(j, vocab, logits);
            j->scored++;
        } else
            job_note(j, vocab, j->ids.data[j->scored++], logits);
}

void job_keep_logits(struct job *j, uint32_t vocab, const float *logits)
{
    if (j->stream->logits && j->rows < j->request.logit_rows)
        memcpy(j->stream->logits + (size_t)j->rows++ * vocab, logits, vocab * sizeof *logits);
}

int job_token(struct job *j, const struct session *l, int32_t id, const float *logits, struct err *e)
{
    /* where a constraint is in force, an end token ends the text, whatever the request says */
    bool end = session_ends(l, id),
         ends = end && !(j->request.ignore_eog && constraint_walk_is_open(&j->walk));
    if (end == ends && constraint_walk_accept(&j->walk, id, e))
        return -1;
    j->ids.data[j->ids.len++] = id;
    if (!j->made++)
        j->first = clock_now();
    job_note(j, l->model->plan.out_width, id, logits);
    reasoning_accept(j->reasoning, id);
    if (ends)
        return 1;
    bool stops = token_filter_ends(j->filter, id);
    if (stops && !j->request.keep_stop)
        return 1;
    if (l->tokenizer && job_text(j, id, e))
        return -1;
    return stops || j->stop.hit;
}

bool job_needs_logits(struct job *j)
{
    /* with draft tokens, what the constraint allows after the first is not known yet */
    bool ruled = j->walk.state && (j->draft || !constraint_walk_allows_all(&j->walk));
    return ruled || j->request.logprobs || j->request.top_logprobs || j->request.logit_rows ||
           token_filter_acts(j->filter, j->made);
}

void job_finish(struct job *j, const struct job_end *end)
{
    struct stream *s = j->stream;
    double now = clock_now();
    buf_clear(&j->piece);
    if (j->decoder.t)
        tok_decoder_flush(&j->decoder, &j->piece);
    pthread_mutex_lock(&s->mutex);
    stop_feed(&j->stop, j->piece.data, j->piece.len, &s->text);
    stop_flush(&j->stop, &s->text);
    s->state.done = true;
    s->state.finish = end->finish;
    s->state.context_full = end->context_full;
    s->state.stopped = j->stop.hit ? (uint32_t)j->stop.which + 1 : 0;
    s->state.cached = j->cached;
    s->state.reasoned = reasoning_count(j->reasoning);
    s->state.drafted = j->drafted;
    s->state.accepted = j->accepted;
    s->state.forced = j->forced;
    if (end->err)
        s->state.err = *end->err;
    s->state.queued_seconds = (j->started > 0 ? j->started : now) - j->submitted;
    s->state.first_seconds = j->first > 0 ? j->first - j->submitted : 0;
    s->state.seconds = now - j->submitted;
    stream_publish(s);
    pthread_mutex_unlock(&s->mutex);
}
