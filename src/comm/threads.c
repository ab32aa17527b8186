/* Ranks that are threads of one process. A mailbox for every ordered pair: the sender leaves a pointer, the receiver copies
 * from it and takes it away, and the sender waits for that. */
#include "comm/comm.h"

#include "base/mem.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { SPIN = 2000 }; /* looks before a rank sleeps */

struct mailbox {
    _Atomic(const void *) data; /* NULL: empty */
    size_t bytes;
};

struct shared {
    pthread_mutex_t lock;
    pthread_cond_t moved; /* a mailbox was filled or emptied */
    atomic_uint sleepers;
    atomic_bool aborted;
    char why[512];
    uint32_t size, open;
    struct mailbox box[]; /* (size, size): from, to */
};

struct thread_comm {
    struct comm base;
    struct shared *all;
};

static struct mailbox *box_of(struct shared *s, uint32_t from, uint32_t to)
{
    return &s->box[from * s->size + to];
}

static void wake(struct shared *s)
{
    if (!atomic_load(&s->sleepers))
        return;
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

/* Whether the mailbox is empty, or full; waits until it is so. False: the team was aborted. */
static bool await(struct shared *s, struct mailbox *b, bool full)
{
    for (int i = 0; i < SPIN; i++) {
        if ((atomic_load(&b->data) != NULL) == full)
            return true;
        if (i % 64 == 63)
            sched_yield();
    }
    pthread_mutex_lock(&s->lock);
    atomic_fetch_add(&s->sleepers, 1);
    while ((atomic_load(&b->data) != NULL) != full && !atomic_load(&s->aborted))
        pthread_cond_wait(&s->moved, &s->lock);
    atomic_fetch_sub(&s->sleepers, 1);
    pthread_mutex_unlock(&s->lock);
    return (atomic_load(&b->data) != NULL) == full;
}

static int fail(const struct shared *s, struct err *e)
{
    return err_set(e, ERR_DEVICE, "%s", s->why[0] ? s->why : "another rank has stopped");
}

static int threads_exchange(struct comm *c, const struct comm_move *moves, uint32_t count, struct err *e)
{
    struct shared *s = ((struct thread_comm *)c)->all;
    for (uint32_t i = 0; i < count; i++) {
        struct mailbox *b = box_of(s, c->rank, moves[i].peer);
        if (!moves[i].send)
            continue;
        b->bytes = moves[i].bytes;
        atomic_store(&b->data, moves[i].data);
    }
    wake(s);
    for (uint32_t i = 0; i < count; i++) {
        struct mailbox *b = box_of(s, moves[i].peer, c->rank);
        if (moves[i].send)
            continue;
        if (!await(s, b, true))
            return fail(s, e);
        if (b->bytes != moves[i].bytes)
            return err_set(e, ERR_DEVICE, "rank %u sent %zu bytes to rank %u, which expects %zu",
                           moves[i].peer, b->bytes, c->rank, moves[i].bytes);
        memcpy(moves[i].data, atomic_load(&b->data), moves[i].bytes);
        atomic_store(&b->data, NULL);
        wake(s);
    }
    for (uint32_t i = 0; i < count; i++)
        if (moves[i].send && !await(s, box_of(s, c->rank, moves[i].peer), false))
            return fail(s, e);
    return 0;
}

static void threads_abort(struct comm *c, const char *why)
{
    struct shared *s = ((struct thread_comm *)c)->all;
    pthread_mutex_lock(&s->lock);
    if (!atomic_load(&s->aborted))
        snprintf(s->why, sizeof s->why, "rank %u: %s", c->rank, why);
    atomic_store(&s->aborted, true);
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

static void threads_close(struct comm *c)
{
    struct shared *s = ((struct thread_comm *)c)->all;
    pthread_mutex_lock(&s->lock);
    bool last = --s->open == 0;
    pthread_mutex_unlock(&s->lock);
    if (last) {
        pthread_cond_destroy(&s->moved);
        pthread_mutex_destroy(&s->lock);
        mem_free(s);
    }
    mem_free(c);
}

int comm_threads(struct comm **out, uint32_t n, struct err *e)
{
    static const struct comm_ops ops = {
        .name = "threads", .exchange = threads_exchange, .abort = threads_abort, .close = threads_close};
    if (!n || n > COMM_RANKS_MOST)
        return err_set(e, ERR_USAGE, "%u ranks; 1 to %d was expected", n, COMM_RANKS_MOST);
    struct shared *s = mem_zalloc(1, sizeof *s + (size_t)n * n * sizeof *s->box);
    bool whole = s != NULL;
    for (uint32_t i = 0; i < n; i++) {
        struct thread_comm *c = mem_zalloc(1, sizeof *c);
        whole &= c != NULL;
        if (c)
            *c = (struct thread_comm){.base = {.ops = &ops, .rank = i, .size = n}, .all = s};
        out[i] = c ? &c->base : NULL;
    }
    if (whole) {
        pthread_mutex_init(&s->lock, NULL);
        pthread_cond_init(&s->moved, NULL);
        s->size = s->open = n;
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        mem_free(out[i]);
        out[i] = NULL;
    }
    mem_free(s);
    return err_memory(e, "ranks", n * sizeof *s->box);
}
