#define _GNU_SOURCE
#include "device/cuda/sender.h"
#include "device/cuda/copies.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>

/* Stages have their turns in order, pass after pass: `turn` of them have been launched, so that turn % count is the next
 * one. A room can be filled for a turn once the turn that used it last has been launched. */
struct sender {
    struct gpu_spare spare;     /* the first: the memory of stages' own rooms */
    struct gpu *g;              /* the card, whose stream computes */
    struct gpu copies, repacks; /* the same with a stream for copies, and with one for what follows them */
    struct stages stages;
    struct pinned *pinned;    /* or NULL: all weights go through slots */
    uint64_t keep;            /* most bytes for own rooms; COPIES_AUTO: no limit */
    pthread_mutex_t stepping; /* held while a step goes to the card, and while rooms come or go */
    bool stale;               /* lists of launches have places of before */
    struct sender_worker {
        struct sender *of;
        pthread_t thread;
        struct upload_slot slot[UPLOAD_SLOTS];
        bool timed[UPLOAD_SLOTS]; /* what the slot had last is of divided experts */
    } worker[UPLOAD_THREADS];
    int threads; /* that run */
    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t turn;      /* launched */
    uint64_t next_turn; /* whose weights are being sent */
    uint32_t next;      /* its next job */
    uint32_t untaken;   /* of its jobs */
    uint32_t busy;      /* jobs that are taken, and not sent yet */
    uint64_t sent;      /* turns whose jobs are all sent; they end in order */
    uint32_t border;
    bool holding; /* no job is taken */
    bool closing;
    struct err error;
    struct sender_times times;
};

uint64_t sender_bytes(const struct plan *p, const struct weights *w, int threads)
{
    return stages_bytes(p, w) + upload_ring_bytes(threads);
}

const struct mat *sender_mats(const struct sender *s)
{
    return s->stages.mat;
}

/* ---- the threads ---- */

/* Takes off what is not sent of a job, as it is above the border or there already; false: all of it. */
static bool cut_job(const struct stage_room *r, const struct stage_job *j, struct upload_job *out)
{
    const uint32_t end = j->job.matrix + j->job.matrices;
    *out = j->job;
    if (!j->divided)
        return !r->have;
    out->matrix = r->have > j->job.matrix ? r->have : j->job.matrix;
    out->matrices = (r->coming < end ? r->coming : end) - out->matrix;
    return out->matrix < r->coming && out->matrix < end;
}

static const struct stage *stage_at(const struct sender *s, uint64_t turn)
{
    return &s->stages.all[turn % s->stages.count];
}

/* Whether the next turn's room can be filled. At most a pass ahead; before the first step, which may never come, only one
 * stage. */
static bool can_begin(const struct sender *s)
{
    const struct stage_room *r = stage_at(s, s->next_turn)->room;
    const uint64_t ahead = s->turn ? s->stages.count : 1;
    return s->next_turn < s->turn + ahead && (!r || r->turn == TURN_NONE || r->turn < s->turn);
}

/* Begins with the next turn: how many jobs it has. */
static uint32_t begin_next(struct sender *s)
{
    const struct stage *st = stage_at(s, s->next_turn);
    const uint32_t stage = (uint32_t)(st - s->stages.all);
    const uint32_t border = st->divided ? s->border : UINT32_MAX;
    struct stage_room *r = st->room;
    struct upload_job job;
    s->next = s->untaken = 0;
    if (!r)
        return 0;
    if (r->stage != stage)
        r->have = 0;
    r->stage = stage;
    r->turn = s->next_turn;
    r->coming = border > r->have ? border : r->have;
    r->begun = false;
    for (uint32_t i = st->first; i < st->end; i++)
        s->untaken += cut_job(r, &s->stages.jobs[i], &job);
    r->left = s->untaken;
    return s->untaken;
}

/* A stage without weights, or whose weights are here, has nothing to wait for. */
static void end_next(struct sender *s)
{
    struct stage_room *r = stage_at(s, s->next_turn++)->room;
    if (!r)
        return;
    r->have = r->coming;
    r->ended |= !r->left;
}

/* Turns are ready in order. */
static void advance(struct sender *s)
{
    const uint64_t before = s->sent;
    for (struct stage_room *r; s->sent < s->next_turn && (!(r = stage_at(s, s->sent)->room) || r->ended);
         s->sent++)
        if (r)
            r->ended = false;
    if (s->sent > before || s->error.code)
        pthread_cond_broadcast(&s->changed);
}

/* What a thread is to send: a job, or what is left of it, of a turn. */
struct sender_task {
    struct upload_job job;
    struct stage_room *room;
    bool divided;
};

/* The next one; false: the stream is closed. The lock is held. */
static bool take_task(struct sender *s, struct sender_task *t)
{
    for (;;) {
        if (s->closing || s->error.code)
            return false;
        while (!s->holding && !s->untaken && can_begin(s) && !begin_next(s))
            end_next(s);
        advance(s);
        if (!s->holding && s->untaken)
            break;
        pthread_cond_wait(&s->changed, &s->lock);
    }
    const struct stage *st = stage_at(s, s->next_turn);
    const struct stage_job *j = &s->stages.jobs[st->first + s->next++];
    while (!cut_job(st->room, j, &t->job))
        j = &s->stages.jobs[st->first + s->next++];
    t->room = st->room;
    t->divided = j->divided;
    s->busy++;
    if (!--s->untaken)
        end_next(s);
    return true;
}

/* Sends a filled slot; the first job of a turn waits until its room is unused. */
static int send_job(struct sender *s, const struct upload_slot *slot, const struct upload_item *of,
                    struct stage_room *r, struct err *e)
{
    struct gpu *g = &s->repacks;
    if (!r->begun && gpu_check(g, g->cu->stream_wait(g->stream, r->unused, 0), "waiting for a room", e))
        return -1;
    r->begun = true;
    if (upload_send(&s->copies, g, slot, of, e))
        return -1;
    if (--r->left)
        return 0;
    r->ended = true;
    return gpu_check(g, g->cu->event_record(r->ready, g->stream), "sending weights", e);
}

/* Adds the time of the slot's last copy; the copy engine makes one copy at a time. */
static void time_copy(struct sender *s, const struct upload_slot *slot)
{
    float ms = 0;
    if (s->g->cu->event_ms(&ms, slot->begun, slot->copied) == CU_OK)
        s->times.link += 1e-3 * (double)ms;
}

/* Sends through slot i. The lock is held, but for what takes long. */
static void run_task(struct sender_worker *worker, uint32_t i, const struct sender_task *t)
{
    struct sender *s = worker->of;
    const struct upload_slot *slot = &worker->slot[i];
    const struct weight *w = &s->stages.w->all[t->job.weight];
    const struct pinned_range range = upload_range(w, &t->job);
    const bool can = s->pinned && range.bytes, there = can && pinned_has(s->pinned, range);
    struct err e = {0};
    pthread_mutex_unlock(&s->lock);
    int bad = gpu_check(&s->copies, s->g->cu->event_sync(slot->done), "sending weights", &e);
    if (!bad && !there)
        upload_fill(slot, w, &t->job);
    pthread_mutex_lock(&s->lock); /* the stream takes one at a time */
    if (!bad && worker->timed[i])
        time_copy(s, slot);
    worker->timed[i] = t->divided;
    const struct upload_item of = {w, &s->stages.mat[t->job.weight], &t->job, there ? s->pinned : NULL};
    s->times.bytes += upload_sent(w, &t->job);
    if (bad || send_job(s, slot, &of, t->room, &e))
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
    struct sender_task task;
    struct err none = {0};
    gpu_enter(s->g, &none);
    pthread_mutex_lock(&s->lock);
    for (uint32_t turn = 0; take_task(s, &task); turn = (turn + 1) % UPLOAD_SLOTS)
        run_task(worker, turn, &task);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Waits for jobs in flight, then starts again at the first turn that is not launched. The lock is held. */
static void begin_again(struct sender *s)
{
    s->holding = true;
    while (s->busy)
        pthread_cond_wait(&s->changed, &s->lock);
    s->holding = false;
    s->next_turn = s->sent = s->turn;
    s->untaken = 0;
    stages_begin_again(&s->stages);
    pthread_cond_broadcast(&s->changed);
}

/* ---- rooms of their own ---- */

/* Holds everything while rooms come or go: the card has used what it was given, and nothing is on its way. */
static void hold_rooms(struct sender *s)
{
    pthread_mutex_lock(&s->stepping);
    pthread_mutex_lock(&s->lock);
    begin_again(s);
    void *const streams[] = {s->copies.stream, s->repacks.stream, s->g->stream};
    for (int i = 0; i < 3; i++)
        s->g->cu->stream_sync(streams[i]);
}

static void release_rooms(struct sender *s)
{
    s->stale = true;
    atomic_store(&s->spare.bytes, s->stages.kept);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_unlock(&s->stepping);
}

/* On any thread that needs the memory. */
static void sender_give(struct gpu_spare *spare, uint64_t bytes)
{
    struct sender *s = (struct sender *)spare;
    hold_rooms(s);
    stages_give(&s->stages, bytes);
    release_rooms(s);
}

/* Own rooms come and go under gpu_memory_lock alone. */
void sender_fill(struct sender *s)
{
    size_t available = 0, total = 0;
    gpu_memory_lock();
    const uint64_t kept = s->stages.kept, next = stages_next(&s->stages);
    if (next && s->g->cu->mem_info(&available, &total) == CU_OK) {
        const uint64_t share = copies_most(available + kept), most = share < s->keep ? share : s->keep;
        if (kept + next <= most) {
            hold_rooms(s);
            stages_keep(&s->stages, most);
            release_rooms(s);
        }
    }
    gpu_memory_unlock();
}

bool sender_hold(struct sender *s)
{
    pthread_mutex_lock(&s->stepping);
    const bool stale = s->stale;
    s->stale = false;
    return stale;
}

void sender_release(struct sender *s)
{
    pthread_mutex_unlock(&s->stepping);
}

/* ---- opening ---- */

static int start_threads(struct sender *s, int threads, struct err *e)
{
    const size_t widest = upload_widest(s->stages.w);
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
    const struct stages *st = &s->stages;
    const uint32_t jobs = st->all[st->count - 1].end;
    struct pinned_range *range = most ? mem_alloc(jobs ? jobs : 1, sizeof *range) : NULL;
    size_t n = 0;
    for (uint32_t i = 0; range && i < jobs; i++) {
        range[n] = upload_range(&st->w->all[st->jobs[i].job.weight], &st->jobs[i].job);
        n += range[n].bytes > 0;
    }
    s->pinned = range ? pinned_open(s->g, range, n, most) : NULL;
    mem_free(range);
}

uint64_t sender_pinned(const struct sender *s)
{
    return pinned_bytes(s->pinned);
}

uint64_t sender_kept(const struct sender *s)
{
    return atomic_load(&s->spare.bytes);
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
    s->spare.card = g->card;
    s->spare.give = sender_give;
    s->keep = o->copies;
    s->border = UINT32_MAX;
    pthread_mutex_init(&s->stepping, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    gpu_spare_add(&s->spare);
    if (upload_check(w, e) || stages_open(&s->stages, g, p, w, s->keep > 0, e) ||
        gpu_check(g, g->cu->stream_create(&s->copies.stream, CU_STREAM_NON_BLOCKING), "making a stream", e) ||
        gpu_check(g, g->cu->stream_create(&s->repacks.stream, CU_STREAM_NON_BLOCKING), "making a stream", e))
        return -1;
    open_pinned(s, o->pin_most);
    return start_threads(s, upload_threads(o->threads), e);
}

void sender_close(struct sender *s)
{
    if (!s)
        return;
    struct gpu *g = s->g;
    gpu_spare_remove(&s->spare);
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
    g->cu->stream_sync(g->stream);
    stages_close(&s->stages);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->stepping);
    mem_free(s);
}

/* ---- a step ---- */

/* Waits until all weights of the next turn are on their way, and counts it as launched where `skip`. The lock is held. */
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

struct sender_times sender_times(struct sender *s)
{
    pthread_mutex_lock(&s->lock);
    const struct sender_times times = s->times;
    pthread_mutex_unlock(&s->lock);
    return times;
}

/* Turns whose weights are sent already may lack some experts. */
void sender_border(struct sender *s, uint32_t border)
{
    pthread_mutex_lock(&s->lock);
    const bool more = border > s->border;
    s->border = border;
    if (more)
        begin_again(s);
    pthread_mutex_unlock(&s->lock);
}

int sender_begin(struct sender *s, uint32_t op, struct err *e)
{
    const double began = clock_now();
    const uint32_t stage = s->stages.of[op];
    const struct stage *st = &s->stages.all[stage];
    int bad = 0;
    pthread_mutex_lock(&s->lock);
    while (!bad && s->turn % s->stages.count != stage) /* the end of a pass, or a step that failed */
        bad = await_next(s, true, e);
    bad = bad || await_next(s, false, e);
    pthread_mutex_unlock(&s->lock);
    if (st->divided)
        s->times.waited += clock_now() - began;
    if (bad || !st->room)
        return bad;
    return gpu_check(s->g, s->g->cu->stream_wait(s->g->stream, st->room->ready, 0), "waiting for weights", e);
}

/* Waits until the weights are there, to know how long they took: rows come back from the card next, which waits for them,
 * too. */
static int await_weights(struct sender *s, const struct stage_room *r, struct err *e)
{
    const double began = clock_now();
    if (gpu_check(s->g, s->g->cu->event_sync(r->ready), "sending weights", e))
        return -1;
    s->times.waited += clock_now() - began;
    return 0;
}

int sender_end(struct sender *s, uint32_t op, struct err *e)
{
    const struct stage *st = &s->stages.all[s->stages.of[op]];
    if (st->room &&
        (gpu_check(s->g, s->g->cu->event_record(st->room->unused, s->g->stream), "running kernels", e) ||
         (st->divided && await_weights(s, st->room, e))))
        return -1;
    pthread_mutex_lock(&s->lock);
    s->turn++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return 0;
}
