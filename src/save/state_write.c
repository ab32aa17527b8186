/* The writer: all writes that wait in one transaction. */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/log.h"
#include "save/sql.h"
#include "save/state_internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

enum {
    QUEUE_MOST = 8192,       /* writes */
    QUEUE_BYTES = 256 << 20, /* of their contents */
    GROUP_MOST = 512,        /* writes of a transaction */
    GROUP_BYTES = 32 << 20,
    DISK_RESERVE = 4 << 20, /* bytes that the disk keeps for what was accepted before */
};
static const double FULL_SECONDS = 1; /* after which a write is tried again */

/* ---- the transaction ---- */

static void write_fail(struct state_write *list, const struct err *e)
{
    for (struct state_write *w = list; w; w = w->next)
        w->err = *e;
}

/* One of the group. -1: SQLite has ended the whole transaction. */
static int write_one(sqlite3 *db, struct state_write *w, struct err *e)
{
    struct err own = {0};
    w->err = (struct err){0};
    if (sql_run(db, "SAVEPOINT one", e))
        return -1;
    if (w->run(w, db, &own)) {
        w->err = own.code ? own : (struct err){.code = ERR_RESOURCE, .text = "the write failed"};
        if (sqlite3_get_autocommit(db) || sql_run(db, "ROLLBACK TO one", e)) {
            *e = w->err;
            return -1;
        }
    }
    return sql_run(db, "RELEASE one", e);
}

static int write_group(struct state *s, struct state_write *list)
{
    struct err e = {0};
    int failed = sql_run(s->db, "BEGIN IMMEDIATE", &e);
    for (struct state_write *w = list; w && !failed; w = w->next)
        failed = write_one(s->db, w, &e);
    failed = failed || sql_run(s->db, "COMMIT", &e);
    if (!failed)
        return 0;
    if (!sqlite3_get_autocommit(s->db))
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    write_fail(list, &e);
    return -1;
}

/* The first error of a list; code 0 = none. */
static struct err write_error(const struct state_write *list, enum err_code code)
{
    for (; list; list = list->next)
        if (list->err.code == code)
            return list->err;
    return (struct err){0};
}

static void write_note(struct state *s, const struct state_write *list)
{
    struct err full = write_error(list, ERR_FULL), damaged = write_error(list, ERR_DATA);
    uint64_t pages =
        (uint64_t)(sql_number(s->db, "PRAGMA page_count", 0) - sql_number(s->db, "PRAGMA freelist_count", 0));
    atomic_store(&s->used, pages * (uint64_t)sql_number(s->db, "PRAGMA page_size", 4096));
    if (damaged.code)
        state_damage(s, damaged.text);
    pthread_mutex_lock(&s->mutex);
    if (full.code && !s->full.code)
        log_error("%s: nothing more is accepted that would be stored (507) until there is room", full.text);
    else if (!full.code && s->full.code)
        log_info("the state folder has room again");
    s->full = full;
    s->full_at = clock_now();
    s->disk_seen = 0;
    pthread_mutex_unlock(&s->mutex);
}

/* Where a group fails as a whole, one of it may be the reason: then each for itself. */
static void write_all(struct state *s, struct state_write *list)
{
    if (!s->folder[0])
        pthread_mutex_lock(&s->alone);
    if (write_group(s, list) && list->next)
        for (struct state_write *w = list, *next; w; w = next) {
            next = w->next;
            w->next = NULL;
            write_group(s, w);
            w->next = next;
        }
    write_note(s, list);
    if (!s->folder[0])
        pthread_mutex_unlock(&s->alone);
}

/* ---- the queue ---- */

/* The first ones of the queue, up to the bounds of a group. The mutex is held. */
static struct state_write *write_take(struct state *s)
{
    struct state_write *list = s->first, **at = &s->first;
    size_t bytes = 0;
    for (int n = 0; *at && n < GROUP_MOST && (!n || bytes + (*at)->bytes <= GROUP_BYTES); n++) {
        bytes += (*at)->bytes;
        s->queued--;
        at = &(*at)->next;
    }
    s->queued_bytes -= bytes;
    s->first = *at;
    if (!s->first)
        s->end = &s->first;
    *at = NULL;
    return list;
}

void *state_writer(void *state)
{
    struct state *s = state;
    for (;;) {
        pthread_mutex_lock(&s->mutex);
        while (!s->first && !atomic_load(&s->closing))
            pthread_cond_wait(&s->work, &s->mutex);
        struct state_write *list = s->first ? write_take(s) : NULL;
        pthread_mutex_unlock(&s->mutex);
        if (!list)
            return NULL;
        write_all(s, list);
        for (struct state_write *next; list; list = next) {
            next = list->next;
            if (list->done)
                list->done(list);
        }
    }
}

int state_write(struct state *s, struct state_write *w, struct err *e)
{
    if (atomic_load(&s->damaged))
        return err_set(e, ERR_DATA, "the database of the server is damaged: it has to be restarted");
    w->next = NULL;
    w->err = (struct err){0};
    pthread_mutex_lock(&s->mutex);
    bool closing = atomic_load(&s->closing),
         room = !s->queued || (s->queued < QUEUE_MOST && s->queued_bytes + w->bytes <= QUEUE_BYTES);
    if (room && !closing) {
        *s->end = w;
        s->end = &w->next;
        s->queued++;
        s->queued_bytes += w->bytes;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->mutex);
    return closing ? err_set(e, ERR_RESOURCE, "the server is ending")
           : room  ? 0
                   : err_set(e, ERR_RESOURCE, "too much waits to be written to the disk; try again later");
}

/* A write that a thread waits for. */
struct write_wait {
    struct state_write write, *inner;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool over;
};

static int wait_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    struct write_wait *own = (struct write_wait *)w;
    return own->inner->run(own->inner, db, e);
}

static void wait_done(struct state_write *w)
{
    struct write_wait *own = (struct write_wait *)w;
    pthread_mutex_lock(&own->mutex);
    own->over = true;
    pthread_cond_signal(&own->cond);
    pthread_mutex_unlock(&own->mutex);
}

int state_write_wait(struct state *s, struct state_write *w, struct err *e)
{
    struct write_wait own = {.write = {.run = wait_run, .done = wait_done, .bytes = w->bytes},
                             .inner = w,
                             .mutex = PTHREAD_MUTEX_INITIALIZER,
                             .cond = PTHREAD_COND_INITIALIZER};
    if (state_write(s, &own.write, e))
        return -1;
    pthread_mutex_lock(&own.mutex);
    while (!own.over)
        pthread_cond_wait(&own.cond, &own.mutex);
    pthread_mutex_unlock(&own.mutex);
    w->err = own.write.err;
    return w->err.code ? err_set(e, w->err.code, "%s", w->err.text) : 0;
}

static int flush_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    (void)w, (void)db, (void)e;
    return 0;
}

void state_flush(struct state *s)
{
    struct err e = {0};
    struct state_write w = {.run = flush_run};
    if (s)
        state_write_wait(s, &w, &e);
}

/* ---- room ---- */

uint64_t state_bytes(struct state *s)
{
    return atomic_load(&s->used);
}

int state_check(struct state *s, struct err *e)
{
    double now = clock_now();
    if (atomic_load(&s->damaged))
        return err_set(e, ERR_DATA, "the database of the server is damaged: it has to be restarted");
    if (s->most && atomic_load(&s->used) >= s->most)
        return err_set(e, ERR_FULL, "the state folder has reached its limit (--limit state)");
    pthread_mutex_lock(&s->mutex);
    struct err full = now - s->full_at < FULL_SECONDS ? s->full : (struct err){0};
    struct statvfs disk;
    if (s->folder[0] && now - s->disk_seen >= FULL_SECONDS) {
        s->disk_free = statvfs(s->folder, &disk) ? UINT64_MAX : (uint64_t)disk.f_bavail * disk.f_frsize;
        s->disk_seen = now;
    }
    bool room = !s->folder[0] || s->disk_free >= DISK_RESERVE;
    pthread_mutex_unlock(&s->mutex);
    if (full.code)
        return err_set(e, full.code, "%s", full.text);
    return room ? 0
                : err_set(e, ERR_FULL, "the disk of the state folder is full: less than %d MiB are free",
                          DISK_RESERVE >> 20);
}
