#include "run/job.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>
#include <time.h>

double engine_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct stream *stream_open(struct engine *g, bool logprobs, uint32_t most)
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
    s->engine = g;
    s->owners = 1;
    if (logprobs) {
        s->logprobs = mem_alloc(most, sizeof *s->logprobs);
        s->out_logprobs = mem_alloc(most, sizeof *s->out_logprobs);
    }
    return s;
}

static void stream_release(struct stream *s)
{
    pthread_mutex_lock(&s->mutex);
    bool last = --s->owners == 0;
    pthread_mutex_unlock(&s->mutex);
    if (!last)
        return;
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->news);
    buf_free(&s->text);
    buf_free(&s->out_text);
    ids_free(&s->ids);
    ids_free(&s->out_ids);
    mem_free(s->logprobs);
    mem_free(s->out_logprobs);
    mem_free(s);
}

void stream_cancel(struct stream *s)
{
    s->cancel = 1;
}

void stream_close(struct stream *s)
{
    if (!s)
        return;
    stream_cancel(s);
    stream_release(s);
}

/* Waits on the condition until there is news or the time is up. The mutex is held. */
static void stream_wait(struct stream *s, double seconds)
{
    double until = engine_clock() + seconds;
    struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)(1e9 * (until - floor(until)))};
    while (!s->fresh) {
        int r = seconds < 0 ? pthread_cond_wait(&s->news, &s->mutex)
                            : pthread_cond_timedwait(&s->news, &s->mutex, &at);
        if (r)
            return;
    }
}

bool stream_look(struct stream *s, double seconds, struct stream_news *out)
{
    pthread_mutex_lock(&s->mutex);
    if (!s->fresh && seconds != 0)
        stream_wait(s, seconds);
    bool any = s->fresh;
    s->fresh = false;
    if (any) {
        buf_clear(&s->out_text);
        buf_add(&s->out_text, s->text.data ? s->text.data + s->seen_text : "", s->text.len - s->seen_text);
        s->out_ids.len = 0;
        for (size_t i = s->seen_ids; i < s->ids.len; i++) {
            ids_add(&s->out_ids, s->ids.data[i], NULL);
            if (s->logprobs && s->out_logprobs)
                s->out_logprobs[i - s->seen_ids] = s->logprobs[i];
        }
        s->seen_text = s->text.len;
        s->seen_ids = s->ids.len;
        *out = s->state;
        out->text = s->out_text.data;
        out->text_length = s->out_text.len;
        out->ids = s->out_ids.data;
        out->count = s->out_ids.len;
        out->logprobs = s->out_logprobs;
    }
    pthread_mutex_unlock(&s->mutex);
    return any;
}

/* Copies of what the request points to: the client's may go as soon as it is submitted. */
static int job_copy(struct job *j, const struct engine_request *r)
{
    j->request = *r;
    j->request.prompt = NULL;
    for (uint32_t i = 0; i < r->n; i++)
        if (ids_add(&j->ids, r->prompt[i], NULL))
            return -1;
    j->stop_strings = mem_zalloc(r->stops, sizeof *j->stop_strings);
    for (size_t i = 0; j->stop_strings && i < r->stops; i++)
        if (!(j->stop_strings[i] = mem_strdup(r->stop_strings[i])))
            return -1;
    j->request.stop_strings = (const char *const *)j->stop_strings;
    j->stop = (struct stop){.strings = j->request.stop_strings, .count = r->stops};
    return j->stop_strings ? 0 : -1;
}

struct job *job_open(struct engine *g, const struct engine_request *r, struct err *e)
{
    struct job *j = mem_zalloc(1, sizeof *j);
    if (j && !job_copy(j, r) && (j->stream = stream_open(g, r->logprobs, r->most + 1))) {
        j->submitted = engine_clock();
        j->stream->state.prompt = r->n;
        return j;
    }
    if (j)
        job_close(j);
    err_memory(e, "a request", sizeof *j + r->n * sizeof *r->prompt);
    return NULL;
}

void job_close(struct job *j)
{
    for (size_t i = 0; j->stop_strings && i < j->request.stops; i++)
        mem_free(j->stop_strings[i]);
    mem_free(j->stop_strings);
    ids_free(&j->ids);
    stop_free(&j->stop);
    buf_free(&j->piece);
    sampler_close(j->sampler);
    seq_close(j->seq);
    if (j->stream)
        stream_release(j->stream);
    mem_free(j);
}

void job_publish(struct job *j)
{
    struct stream *s = j->stream;
    pthread_mutex_lock(&s->mutex);
    s->fresh = true;
    pthread_cond_broadcast(&s->news);
    pthread_mutex_unlock(&s->mutex);
    if (j->request.wake)
        j->request.wake(j->request.arg);
}

/* Text that is ready goes to the stream. */
static void job_emit(struct job *j, bool last)
{
    struct stream *s = j->stream;
    pthread_mutex_lock(&s->mutex);
    stop_feed(&j->stop, j->piece.data ? j->piece.data : "", j->piece.len, &s->text);
    if (last)
        stop_flush(&j->stop, &s->text);
    pthread_mutex_unlock(&s->mutex);
}

int job_token(struct job *j, const struct loaded *l, int32_t id, float logprob, struct err *e)
{
    struct stream *s = j->stream;
    if (ids_add(&j->ids, id, e))
        return -1;
    if (!j->made++)
        j->first = engine_clock();
    pthread_mutex_lock(&s->mutex);
    int failed = ids_add(&s->ids, id, e);
    if (!failed && s->logprobs)
        s->logprobs[s->ids.len - 1] = logprob;
    pthread_mutex_unlock(&s->mutex);
    if (failed)
        return -1;
    bool end = !j->request.ignore_eog && tokenizer_is_eog(l->tokenizer, id);
    for (size_t i = 0; i < l->stops && !j->request.ignore_eog; i++)
        end |= l->stop_ids[i] == id;
    if (end)
        return 1;
    buf_clear(&j->piece);
    if (tok_decoder_feed(&j->decoder, id, &j->piece, e))
        return -1;
    job_emit(j, false);
    return j->stop.hit;
}

void job_finish(struct job *j, enum finish_kind finish, const struct err *e)
{
    struct stream *s = j->stream;
    double now = engine_clock();
    buf_clear(&j->piece);
    if (j->decoder.t)
        tok_decoder_flush(&j->decoder, &j->piece);
    job_emit(j, true);
    pthread_mutex_lock(&s->mutex);
    s->state.done = true;
    s->state.finish = finish;
    if (e)
        s->state.err = *e;
    s->state.queued_seconds = (j->started > 0 ? j->started : now) - j->submitted;
    s->state.first_seconds = j->first > 0 ? j->first - j->submitted : 0;
    s->state.seconds = now - j->submitted;
    pthread_mutex_unlock(&s->mutex);
    job_publish(j);
    j->state = JOB_DONE;
}
