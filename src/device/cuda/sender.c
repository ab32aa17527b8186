#define _GNU_SOURCE
#include "device/cuda/sender.h"

#include "base/mem.h"

#include <pthread.h>

/* Operations are numbered on from pass to pass: `turn` of them have been launched, so that turn % count is the next one. A
 * job of operation number t may be sent once number t - rooms has been launched. */
struct sender {
    struct gpu *g;              /* the card, whose stream computes */
    struct gpu copies, repacks; /* the same with a stream for copies, and with one for what follows them */
    const struct weights *w;
    struct mat *mat; /* (weights.count) */
    cu_ptr room[SENDER_ROOMS_MOST];
    uint64_t room_bytes;
    uint32_t rooms;
    uint32_t count; /* operations, with empty ones at the end so that an operation always has the same room */
    struct upload_job *jobs; /* (first[count]), in order of operations */
    uint32_t *first;         /* (count + 1): the jobs of an operation */
    void *ready[SENDER_ROOMS_MOST],
        *unused[SENDER_ROOMS_MOST]; /* events: the weights are there; they have been used */
    struct sender_worker {
        struct sender *of;
        pthread_t thread;
        struct upload_slot slot[UPLOAD_SLOTS];
    } worker[UPLOAD_THREADS];
    int threads; /* that run */
    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t turn;          /* operations launched */
    uint64_t next, next_op; /* the next job, counted on from pass to pass, and the number of its operation */
    uint64_t begun;         /* numbers of operations of which a job has been sent */
    uint32_t left[SENDER_ROOMS_MOST]; /* jobs that are not sent yet, of the operation in this room */
    uint64_t sent;                    /* operations whose jobs are all sent; they end in order */
    bool ended[SENDER_ROOMS_MOST];    /* of those behind it, which are sent already */
    bool closing;
    struct err error;
};

/* ---- places ---- */

struct placing {
    const struct weights *w;
    struct mat *mat; /* or NULL: only measured */
    cu_ptr room;
    uint64_t bytes;
    uint32_t jobs;
    struct upload_job *to; /* or NULL */
};

static void place_weight(void *arg, weight_id *id)
{
    struct placing *p = arg;
    const struct weight *w = &p->w->all[*id];
    if (p->mat)
        p->mat[*id] = upload_mat(w, p->room + p->bytes);
    p->bytes += upload_room(w);
    p->jobs += upload_jobs(p->w, *id, p->to ? p->to + p->jobs : NULL);
}

static uint64_t largest_op(const struct plan *p, const struct weights *w)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        struct placing at = {.w = w};
        plan_each_sent(&p->ops[i], place_weight, &at);
        most = at.bytes > most ? at.bytes : most;
    }
    return most;
}

/* More rooms where operations are small: then the large ones among them are sent while others compute, too. */
static uint32_t rooms_for(uint64_t largest)
{
    uint64_t fit = largest ? SENDER_BYTES / largest : SENDER_ROOMS_LEAST;
    return fit < SENDER_ROOMS_LEAST  ? SENDER_ROOMS_LEAST
           : fit > SENDER_ROOMS_MOST ? SENDER_ROOMS_MOST
                                     : (uint32_t)fit;
}

uint64_t sender_bytes(const struct plan *p, const struct weights *w, int threads)
{
    const uint64_t largest = largest_op(p, w);
    return rooms_for(largest) * largest + upload_ring_bytes(threads);
}

const struct mat *sender_mats(const struct sender *s)
{
    return s->mat;
}

/* ---- the threads ---- */

static uint32_t jobs_of(const struct sender *s, uint64_t number)
{
    const uint32_t op = (uint32_t)(number % s->count);
    return s->first[op + 1] - s->first[op];
}

/* An operation without weights has nothing to wait for. */
static void skip_empty(struct sender *s)
{
    while (s->next_op < s->turn + s->rooms && !jobs_of(s, s->next_op))
        s->ended[s->next_op++ % s->rooms] = true;
}

/* Operations are ready in order. */
static void advance(struct sender *s)
{
    const uint64_t before = s->sent;
    while (s->sent < s->next_op && s->ended[s->sent % s->rooms])
        s->ended[s->sent++ % s->rooms] = false;
    if (s->sent > before || s->error.code)
        pthread_cond_broadcast(&s->changed);
}

/* The next job and the number of its operation; false: the stream is closed. The lock is held. */
static bool take_job(struct sender *s, struct upload_job *job, uint64_t *number)
{
    for (;;) {
        if (s->closing || s->error.code)
            return false;
        skip_empty(s);
        advance(s);
        if (s->next_op < s->turn + s->rooms)
            break;
        pthread_cond_wait(&s->changed, &s->lock);
    }
    *number = s->next_op;
    const uint32_t op = (uint32_t)(*number % s->count);
    if (!s->next)
        s->left[*number % s->rooms] = jobs_of(s, *number);
    *job = s->jobs[s->first[op] + s->next];
    if (++s->next == jobs_of(s, *number)) {
        s->next = 0;
        s->next_op++;
    }
    return true;
}

/* Sends a filled slot, in the order of rooms: the first job of an operation waits until its room is unused. */
static int send_job(struct sender *s, const struct upload_slot *slot, const struct upload_job *job,
                    uint64_t number, struct err *e)
{
    struct gpu *g = &s->repacks;
    const uint32_t room = (uint32_t)(number % s->rooms);
    for (; s->begun <= number; s->begun++)
        if (s->begun >= s->rooms &&
            gpu_check(g, g->cu->stream_wait(g->stream, s->unused[s->begun % s->rooms], 0),
                      "waiting for a room", e))
            return -1;
    if (upload_send(&s->copies, g, slot,
                    &(struct upload_item){&s->w->all[job->weight], &s->mat[job->weight], job}, e))
        return -1;
    if (--s->left[room])
        return 0;
    s->ended[room] = true;
    return gpu_check(g, g->cu->event_record(s->ready[room], g->stream), "sending weights", e);
}

static void *sender_thread(void *arg)
{
    struct sender_worker *worker = arg;
    struct sender *s = worker->of;
    const struct driver *cu = s->g->cu;
    struct upload_job job;
    uint64_t number;
    cu->context_set(s->g->context);
    pthread_mutex_lock(&s->lock);
    for (uint32_t turn = 0; take_job(s, &job, &number); turn = (turn + 1) % UPLOAD_SLOTS) {
        struct upload_slot *slot = &worker->slot[turn];
        struct err e = {0};
        pthread_mutex_unlock(&s->lock);
        int bad = gpu_check(&s->copies, cu->event_sync(slot->done), "sending weights", &e);
        if (!bad)
            upload_fill(slot, &s->w->all[job.weight], &job);
        pthread_mutex_lock(&s->lock); /* the stream takes one at a time */
        if (bad || send_job(s, slot, &job, number, &e))
            s->error = s->error.code ? s->error : e;
        advance(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- opening ---- */

static int make_tables(struct sender *s, const struct plan *p, struct err *e)
{
    struct placing all = {.w = s->w};
    for (uint32_t i = 0; i < p->count; i++)
        plan_each_sent(&p->ops[i], place_weight, &all);
    s->jobs = mem_alloc(all.jobs ? all.jobs : 1, sizeof *s->jobs);
    s->first = mem_zalloc(s->count + 1, sizeof *s->first);
    s->mat = mem_zalloc(s->w->count + 1, sizeof *s->mat);
    if (!s->jobs || !s->first || !s->mat)
        return err_memory(e, "the list of streamed weights", all.jobs * sizeof *s->jobs);
    for (uint32_t i = 0; i < s->count; i++) {
        struct placing at = {
            .w = s->w, .mat = s->mat, .room = s->room[i % s->rooms], .to = s->jobs + s->first[i]};
        if (i < p->count)
            plan_each_sent(&p->ops[i], place_weight, &at);
        s->first[i + 1] = s->first[i] + at.jobs;
    }
    return 0;
}

static int take_rooms(struct sender *s, struct err *e)
{
    struct gpu *g = s->g;
    for (uint32_t i = 0; i < s->rooms; i++)
        if (!(s->room[i] = gpu_alloc(g, s->room_bytes, "streamed weights", e)) ||
            gpu_check(g, g->cu->event_create(&s->ready[i], CU_EVENT_NO_TIMING), "making an event", e) ||
            gpu_check(g, g->cu->event_create(&s->unused[i], CU_EVENT_NO_TIMING), "making an event", e))
            return -1;
    return gpu_check(g, g->cu->stream_create(&s->copies.stream, CU_STREAM_NON_BLOCKING), "making a stream",
                     e) ||
                   gpu_check(g, g->cu->stream_create(&s->repacks.stream, CU_STREAM_NON_BLOCKING),
                             "making a stream", e)
               ? -1
               : 0;
}

static int start_threads(struct sender *s, int threads, struct err *e)
{
    const size_t widest = upload_widest(s->w);
    for (int t = 0; t < threads; t++) {
        s->worker[t].of = s;
        for (int i = 0; i < UPLOAD_SLOTS; i++)
            if (upload_slot_open(&s->worker[t].slot[i], s->g, widest, e))
                return -1;
    }
    for (; s->threads < threads; s->threads++)
        if (pthread_create(&s->worker[s->threads].thread, NULL, sender_thread, &s->worker[s->threads]))
            return err_set(e, ERR_RESOURCE, "cannot start a thread that sends weights");
    return 0;
}

int sender_open(struct sender **out, struct gpu *g, const struct plan *p, const struct weights *w,
                int threads, struct err *e)
{
    struct sender *s = mem_zalloc(1, sizeof *s);
    *out = s;
    if (!s)
        return err_memory(e, "streamed weights", sizeof *s);
    s->g = g;
    s->copies = s->repacks = *g;
    s->copies.stream = s->repacks.stream = NULL;
    s->w = w;
    s->room_bytes = largest_op(p, w);
    s->rooms = rooms_for(s->room_bytes);
    s->count = (p->count + s->rooms - 1) / s->rooms * s->rooms;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    return take_rooms(s, e) || make_tables(s, p, e) || start_threads(s, upload_threads(threads), e) ? -1 : 0;
}

void sender_close(struct sender *s)
{
    if (!s)
        return;
    struct gpu *g = s->g;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    for (int t = 0; t < s->threads; t++)
        pthread_join(s->worker[t].thread, NULL);
    void *const streams[] = {s->copies.stream, s->repacks.stream};
    for (int i = 0; i < 2; i++)
        if (streams[i]) {
            g->cu->stream_sync(streams[i]);
            g->cu->stream_destroy(streams[i]);
        }
    for (int t = 0; t < UPLOAD_THREADS; t++)
        for (int i = 0; i < UPLOAD_SLOTS; i++)
            upload_slot_close(&s->worker[t].slot[i], g);
    for (uint32_t i = 0; i < s->rooms; i++) {
        gpu_free(g, s->room[i], s->room_bytes);
        if (s->ready[i])
            g->cu->event_destroy(s->ready[i]);
        if (s->unused[i])
            g->cu->event_destroy(s->unused[i]);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    mem_free(s->jobs);
    mem_free(s->first);
    mem_free(s->mat);
    mem_free(s);
}

/* ---- a step ---- */

/* Waits until all weights of the next operation are on their way, and counts it as launched where `skip`. The lock is
 * held. */
static int await_next(struct sender *s, bool skip, struct err *e)
{
    while (s->sent <= s->turn && !s->error.code)
        pthread_cond_wait(&s->changed, &s->lock);
    if (s->error.code) {
        *e = s->error;
        return -1;
    }
    if (skip) {
        s->turn++;
        pthread_cond_broadcast(&s->changed);
    }
    return 0;
}

int sender_begin(struct sender *s, uint32_t op, struct err *e)
{
    int bad = 0;
    pthread_mutex_lock(&s->lock);
    while (!bad && s->turn % s->count != op) /* the end of a pass, or a step that failed */
        bad = await_next(s, true, e);
    bad = bad || await_next(s, false, e);
    pthread_mutex_unlock(&s->lock);
    return bad ? -1
               : gpu_check(s->g, s->g->cu->stream_wait(s->g->stream, s->ready[op % s->rooms], 0),
                           "waiting for weights", e);
}

int sender_end(struct sender *s, uint32_t op, struct err *e)
{
    if (gpu_check(s->g, s->g->cu->event_record(s->unused[op % s->rooms], s->g->stream), "running kernels", e))
        return -1;
    pthread_mutex_lock(&s->lock);
    s->turn++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return 0;
}
