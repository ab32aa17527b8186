#define _GNU_SOURCE
#include "device/cuda/sender.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>

struct sender_job {
    struct upload_job job;
    bool divided; /* of experts: those below the border are sent */
};

/* What a room has, or gets. */
struct sender_room {
    cu_ptr at;
    void *ready, *unused; /* events: the weights are there; they have been used */
    void *from, *to;      /* events: its copies begin; they are done */
    uint64_t number;      /* of the operation */
    uint32_t have,
        coming; /* border below which its experts are here, all of them; and after the jobs that are taken now */
    uint32_t left; /* jobs that are not sent yet */
    bool ended;    /* all are, but some of an operation before it are not */
    bool timed;    /* `from` is recorded */
};

/* Operations are numbered on from pass to pass: `turn` of them have been launched, so that turn % count is the next one. A
 * job of operation number t may be sent once number t - rooms has been launched. */
struct sender {
    struct gpu *g;              /* the card, whose stream computes */
    struct gpu copies, repacks; /* the same with a stream for copies, and with one for what follows them */
    const struct weights *w;
    struct mat *mat;       /* (weights.count) */
    struct pinned *pinned; /* or NULL: all weights go through slots */
    struct sender_room room[SENDER_ROOMS_MOST];
    uint64_t room_bytes;
    uint32_t rooms;
    uint32_t count; /* operations, with empty ones at the end so that an operation always has the same room */
    struct sender_job *jobs; /* (first[count]), in order of operations */
    uint32_t *first;         /* (count + 1): the jobs of an operation */
    bool *divided;           /* (count): it has some that are */
    struct sender_worker {
        struct sender *of;
        pthread_t thread;
        struct upload_slot slot[UPLOAD_SLOTS];
    } worker[UPLOAD_THREADS];
    int threads; /* that run */
    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t turn;    /* operations launched */
    uint64_t next_op; /* the number of the operation that is being sent */
    uint32_t next;    /* its next job */
    uint32_t untaken; /* of its jobs */
    uint32_t busy;    /* jobs that are taken, and not sent yet */
    uint64_t begun;   /* numbers of operations of which a job has been sent */
    uint64_t sent;    /* operations whose jobs are all sent; they end in order */
    uint32_t border;
    bool holding; /* no job is taken */
    bool closing;
    struct err error;
    /* of the thread that runs steps */
    struct sender_times times;
};

/* ---- places ---- */

struct placing {
    const struct weights *w;
    const struct op *op;
    struct mat *mat; /* or NULL: only measured */
    cu_ptr room;
    uint64_t bytes;
    uint32_t jobs;
    struct upload_job *part; /* room for the jobs of a weight */
    struct sender_job *to;   /* or NULL */
    bool divided;            /* some of them are */
};

static void place_weight(void *arg, weight_id *id)
{
    struct placing *p = arg;
    const struct weight *w = &p->w->all[*id];
    const bool divided = plan_is_divided(p->op, *id);
    if (p->mat)
        p->mat[*id] = upload_mat(w, p->room + p->bytes);
    p->bytes += upload_room(w);
    p->divided |= divided;
    const uint32_t n = upload_jobs(p->w, *id, p->to ? p->part : NULL);
    for (uint32_t i = 0; p->to && i < n; i++)
        p->to[p->jobs + i] = (struct sender_job){p->part[i], divided};
    p->jobs += n;
}

static uint64_t largest_op(const struct plan *p, const struct weights *w)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        struct placing at = {.w = w, .op = &p->ops[i]};
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

/* Takes off what is not sent of a job, as it is above the border or there already; false: all of it. */
static bool cut_job(const struct sender_room *r, const struct sender_job *j, struct upload_job *out)
{
    const uint32_t end = j->job.matrix + j->job.matrices;
    *out = j->job;
    if (!j->divided)
        return !r->have;
    out->matrix = r->have > j->job.matrix ? r->have : j->job.matrix;
    out->matrices = (r->coming < end ? r->coming : end) - out->matrix;
    return out->matrix < r->coming && out->matrix < end;
}

static struct sender_room *room_of(struct sender *s, uint64_t number)
{
    return &s->room[number % s->rooms];
}

/* Begins with the next operation: how many jobs it has. */
static uint32_t begin_next(struct sender *s)
{
    const uint32_t op = (uint32_t)(s->next_op % s->count);
    struct sender_room *r = room_of(s, s->next_op);
    struct upload_job job;
    if (r->number != s->next_op)
        r->have = 0;
    r->number = s->next_op;
    r->coming = s->border > r->have ? s->border : r->have;
    s->next = s->untaken = 0;
    for (uint32_t i = s->first[op]; i < s->first[op + 1]; i++)
        s->untaken += cut_job(r, &s->jobs[i], &job);
    r->left = s->untaken;
    return s->untaken;
}

/* An operation without weights, or whose weights are here, has nothing to wait for. */
static void end_next(struct sender *s)
{
    struct sender_room *r = room_of(s, s->next_op++);
    r->have = r->coming;
    r->ended |= !r->left;
}

/* Operations are ready in order. */
static void advance(struct sender *s)
{
    const uint64_t before = s->sent;
    while (s->sent < s->next_op && room_of(s, s->sent)->ended)
        room_of(s, s->sent++)->ended = false;
    if (s->sent > before || s->error.code)
        pthread_cond_broadcast(&s->changed);
}

/* The next job and the number of its operation; false: the stream is closed. The lock is held. */
static bool take_job(struct sender *s, struct upload_job *job, uint64_t *number)
{
    for (;;) {
        if (s->closing || s->error.code)
            return false;
        while (!s->holding && !s->untaken && s->next_op < s->turn + s->rooms && !begin_next(s))
            end_next(s);
        advance(s);
        if (!s->holding && s->untaken)
            break;
        pthread_cond_wait(&s->changed, &s->lock);
    }
    *number = s->next_op;
    const struct sender_room *r = room_of(s, s->next_op);
    const uint32_t first = s->first[s->next_op % s->count];
    while (!cut_job(r, &s->jobs[first + s->next++], job))
        ;
    s->busy++;
    if (!--s->untaken)
        end_next(s);
    return true;
}

/* Sends a filled slot, in the order of rooms: the first job of an operation waits until its room is unused. */
static int send_job(struct sender *s, const struct upload_slot *slot, const struct upload_item *of,
                    uint64_t number, struct err *e)
{
    struct gpu *g = &s->repacks;
    struct sender_room *r = room_of(s, number);
    for (; s->begun <= number; s->begun++)
        if (s->begun >= s->rooms &&
            gpu_check(g, g->cu->stream_wait(g->stream, room_of(s, s->begun)->unused, 0), "waiting for a room",
                      e))
            return -1;
    if (!r->timed && gpu_check(g, g->cu->event_record(r->from, s->copies.stream), "sending weights", e))
        return -1;
    r->timed = true;
    if (upload_send(&s->copies, g, slot, of, e))
        return -1;
    if (--r->left)
        return 0;
    r->ended = true;
    r->timed = false;
    return gpu_check(g, g->cu->event_record(r->to, s->copies.stream), "sending weights", e) ||
                   gpu_check(g, g->cu->event_record(r->ready, g->stream), "sending weights", e)
               ? -1
               : 0;
}

/* Sends one job. The lock is held, but for what takes long. */
static void run_job(struct sender *s, const struct upload_slot *slot, const struct upload_job *job,
                    uint64_t number)
{
    const struct weight *w = &s->w->all[job->weight];
    const struct pinned_range range = upload_range(w, job);
    const bool can = s->pinned && range.bytes, there = can && pinned_has(s->pinned, range);
    struct err e = {0};
    pthread_mutex_unlock(&s->lock);
    int bad = gpu_check(&s->copies, s->g->cu->event_sync(slot->done), "sending weights", &e);
    if (!bad && !there)
        upload_fill(slot, w, job);
    pthread_mutex_lock(&s->lock); /* the stream takes one at a time */
    const struct upload_item of = {w, &s->mat[job->weight], job, there ? s->pinned : NULL};
    if (bad || send_job(s, slot, &of, number, &e))
        s->error = s->error.code ? s->error : e;
    if (!--s->busy && s->holding)
        pthread_cond_broadcast(&s->changed);
    advance(s);
    if (can && !there) { /* for the steps that follow */
        pthread_mutex_unlock(&s->lock);
        pinned_take(s->pinned, range);
        pthread_mutex_lock(&s->lock);
    }
}

static void *sender_thread(void *arg)
{
    struct sender_worker *worker = arg;
    struct sender *s = worker->of;
    struct upload_job job;
    uint64_t number;
    struct err none = {0};
    gpu_enter(s->g, &none);
    pthread_mutex_lock(&s->lock);
    for (uint32_t turn = 0; take_job(s, &job, &number); turn = (turn + 1) % UPLOAD_SLOTS)
        run_job(s, &worker->slot[turn], &job, number);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- opening ---- */

static int make_tables(struct sender *s, const struct plan *p, struct err *e)
{
    struct placing all = {.w = s->w};
    for (uint32_t i = 0; i < p->count; i++) {
        all.op = &p->ops[i];
        plan_each_sent(&p->ops[i], place_weight, &all);
    }
    const size_t jobs = all.jobs ? all.jobs : 1;
    struct upload_job *part = mem_alloc(jobs, sizeof *part);
    s->jobs = mem_alloc(jobs, sizeof *s->jobs);
    s->first = mem_zalloc(s->count + 1, sizeof *s->first);
    s->divided = mem_zalloc(s->count, sizeof *s->divided);
    s->mat = mem_zalloc(s->w->count + 1, sizeof *s->mat);
    const bool whole = part && s->jobs && s->first && s->divided && s->mat;
    for (uint32_t i = 0; whole && i < s->count; i++) {
        struct placing at = {.w = s->w,
                             .op = p->ops + (i < p->count ? i : 0),
                             .mat = s->mat,
                             .room = s->room[i % s->rooms].at,
                             .part = part,
                             .to = s->jobs + s->first[i]};
        if (i < p->count)
            plan_each_sent(&p->ops[i], place_weight, &at);
        s->first[i + 1] = s->first[i] + at.jobs;
        s->divided[i] = at.divided;
    }
    mem_free(part);
    return whole ? 0 : err_memory(e, "the list of streamed weights", jobs * sizeof *s->jobs);
}

static int take_rooms(struct sender *s, struct err *e)
{
    struct gpu *g = s->g;
    for (uint32_t i = 0; i < s->rooms; i++) {
        struct sender_room *r = &s->room[i];
        r->number = UINT64_MAX;
        if (!(r->at = gpu_alloc(g, s->room_bytes, "streamed weights", e)) ||
            gpu_check(g, g->cu->event_create(&r->ready, CU_EVENT_NO_TIMING), "making an event", e) ||
            gpu_check(g, g->cu->event_create(&r->unused, CU_EVENT_NO_TIMING), "making an event", e) ||
            gpu_check(g, g->cu->event_create(&r->from, 0), "making an event", e) ||
            gpu_check(g, g->cu->event_create(&r->to, 0), "making an event", e))
            return -1;
    }
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

/* What may be pinned is all that jobs send, or nothing. */
static void open_pinned(struct sender *s, uint64_t most)
{
    const uint32_t jobs = s->first[s->count];
    struct pinned_range *range = most ? mem_alloc(jobs ? jobs : 1, sizeof *range) : NULL;
    size_t n = 0;
    for (uint32_t i = 0; range && i < jobs; i++) {
        range[n] = upload_range(&s->w->all[s->jobs[i].job.weight], &s->jobs[i].job);
        n += range[n].bytes > 0;
    }
    s->pinned = range ? pinned_open(s->g, range, n, most) : NULL;
    mem_free(range);
}

uint64_t sender_pinned(const struct sender *s)
{
    return pinned_bytes(s->pinned);
}

int sender_open(struct sender **out, struct gpu *g, const struct plan *p, const struct weights *w,
                const struct device_options *o, struct err *e)
{
    struct sender *s = mem_zalloc(1, sizeof *s);
    *out = s;
    if (!s)
        return err_memory(e, "streamed weights", sizeof *s);
    s->g = g;
    s->copies = s->repacks = *g;
    s->copies.stream = s->repacks.stream = NULL;
    s->w = w;
    s->border = UINT32_MAX;
    s->room_bytes = largest_op(p, w);
    s->rooms = rooms_for(s->room_bytes);
    s->count = (p->count + s->rooms - 1) / s->rooms * s->rooms;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (upload_check(w, e) || take_rooms(s, e) || make_tables(s, p, e))
        return -1;
    open_pinned(s, o->pin_most);
    return start_threads(s, upload_threads(o->threads), e);
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
    pinned_close(s->pinned);
    for (uint32_t i = 0; i < s->rooms; i++) {
        void *const events[] = {s->room[i].ready, s->room[i].unused, s->room[i].from, s->room[i].to};
        gpu_free(g, s->room[i].at, s->room_bytes);
        for (size_t k = 0; k < sizeof events / sizeof *events; k++)
            if (events[k])
                g->cu->event_destroy(events[k]);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    mem_free(s->jobs);
    mem_free(s->first);
    mem_free(s->divided);
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

struct sender_times sender_times(const struct sender *s)
{
    return s->times;
}

/* Operations that are sent already are looked at once more: they may lack some experts. */
void sender_border(struct sender *s, uint32_t border)
{
    pthread_mutex_lock(&s->lock);
    if (border > s->border) {
        s->holding = true;
        while (s->busy)
            pthread_cond_wait(&s->changed, &s->lock);
        s->holding = false;
        s->next_op = s->sent = s->turn;
        s->untaken = 0;
        for (uint32_t i = 0; i < s->rooms; i++)
            s->room[i].ended = s->room[i].timed = false;
    }
    s->border = border;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

int sender_begin(struct sender *s, uint32_t op, struct err *e)
{
    const double began = clock_now();
    int bad = 0;
    pthread_mutex_lock(&s->lock);
    while (!bad && s->turn % s->count != op) /* the end of a pass, or a step that failed */
        bad = await_next(s, true, e);
    bad = bad || await_next(s, false, e);
    pthread_mutex_unlock(&s->lock);
    if (s->divided[op])
        s->times.waited += clock_now() - began;
    return bad ? -1
               : gpu_check(s->g, s->g->cu->stream_wait(s->g->stream, s->room[op % s->rooms].ready, 0),
                           "waiting for weights", e);
}

/* Waits until the weights are there, to know how long they took: rows come back from the card next, which waits for them,
 * too. */
static int time_weights(struct sender *s, const struct sender_room *r, struct err *e)
{
    const struct driver *cu = s->g->cu;
    const double began = clock_now();
    float ms = 0;
    if (gpu_check(s->g, cu->event_sync(r->ready), "sending weights", e))
        return -1;
    s->times.waited += clock_now() - began;
    if (cu->event_ms(&ms, r->from, r->to) == CU_OK)
        s->times.link += 1e-3 * (double)ms;
    return 0;
}

int sender_end(struct sender *s, uint32_t op, struct err *e)
{
    const struct sender_room *r = &s->room[op % s->rooms];
    if (gpu_check(s->g, s->g->cu->event_record(r->unused, s->g->stream), "running kernels", e) ||
        (s->divided[op] && time_weights(s, r, e)))
        return -1;
    pthread_mutex_lock(&s->lock);
    s->turn++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return 0;
}
