#define _GNU_SOURCE
#include "run/kv_events.h"

#include "base/digest.h"
#include "base/mem.h"
#include "base/msgpack.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>

enum {
    EVENTS_MOST = 256,                                  /* of a message */
    EVENT_BYTES = 64 + 5 * RUNNER_PAGE,                 /* of one, at most */
    EVENTS_BYTES = 64 + EVENTS_MOST * (EVENT_BYTES + 9) /* of a message */
};

struct kv_event {
    enum { EVENT_STORED, EVENT_REMOVED, EVENT_CLEARED } kind;
    uint32_t adapter;
    uint64_t hash, parent;
    int32_t ids[RUNNER_PAGE];
};

struct kv_events {
    struct kv_events_options o;
    uint64_t secret; /* of the process: clients cannot choose tokens so that hashes are equal */
    uint32_t count;
    struct kv_event events[EVENTS_MOST];
    struct buf message;
};

int kv_events_open(struct kv_events **out, const struct kv_events_options *o, struct err *e)
{
    *out = NULL;
    if (!o->send)
        return 0;
    struct kv_events *k = mem_zalloc(1, sizeof *k);
    if (!k || !buf_reserve(&k->message, EVENTS_BYTES)) {
        mem_free(k);
        return err_memory(e, "the events of the prefix tree", sizeof *k + EVENTS_BYTES);
    }
    k->o = *o;
    if (getrandom(&k->secret, sizeof k->secret, GRND_NONBLOCK) < 0)
        k->secret = (uint64_t)time(NULL);
    kv_events_cleared(k); /* a replica of the same name may have ended before */
    *out = k;
    return 0;
}

void kv_events_close(struct kv_events *k)
{
    if (!k)
        return;
    kv_events_flush(k);
    buf_free(&k->message);
    mem_free(k);
}

uint64_t kv_events_hash(const struct kv_events *k, uint64_t parent, uint64_t salt,
                        const int32_t ids[RUNNER_PAGE])
{
    struct digest d = {parent ? parent : salt, k ? k->secret + !parent : 0};
    digest_add(&d, ids, RUNNER_PAGE * sizeof *ids);
    uint64_t hash = d.lo ^ d.hi;
    return hash ? hash : 1;
}

static struct kv_event *events_next(struct kv_events *k)
{
    if (k->count == EVENTS_MOST)
        kv_events_flush(k);
    return &k->events[k->count++];
}

void kv_events_stored(struct kv_events *k, uint64_t hash, uint64_t parent, const int32_t ids[RUNNER_PAGE],
                      uint32_t adapter)
{
    if (!k)
        return;
    struct kv_event *v = events_next(k);
    *v = (struct kv_event){.kind = EVENT_STORED, .hash = hash, .parent = parent, .adapter = adapter};
    memcpy(v->ids, ids, sizeof v->ids);
}

void kv_events_removed(struct kv_events *k, uint64_t hash)
{
    if (k)
        *events_next(k) = (struct kv_event){.kind = EVENT_REMOVED, .hash = hash};
}

void kv_events_cleared(struct kv_events *k)
{
    if (!k)
        return;
    k->count = 0; /* what came before does not matter any more */
    *events_next(k) = (struct kv_event){.kind = EVENT_CLEARED};
}

/* How many events from this one on are one event of several blocks. */
static uint32_t event_run(const struct kv_events *k, uint32_t at)
{
    const struct kv_event *first = &k->events[at];
    uint32_t n = 1;
    for (const struct kv_event *v; at + n < k->count; n++) {
        v = &k->events[at + n];
        bool chained = v[-1].hash == v->parent && v->adapter == first->adapter;
        if (v->kind != first->kind || v->kind == EVENT_CLEARED || (v->kind == EVENT_STORED && !chained))
            break;
    }
    return n;
}

static void event_hashes(struct buf *out, const struct kv_event *v, uint32_t n)
{
    msgpack_array(out, n);
    for (uint32_t i = 0; i < n; i++)
        msgpack_uint(out, v[i].hash);
}

static void event_write(struct buf *out, const struct kv_event *v, uint32_t n)
{
    if (v->kind == EVENT_CLEARED) {
        msgpack_array(out, 1);
        msgpack_str(out, "AllBlocksCleared");
        return;
    }
    msgpack_array(out, v->kind == EVENT_STORED ? 6 : 2);
    msgpack_str(out, v->kind == EVENT_STORED ? "BlockStored" : "BlockRemoved");
    event_hashes(out, v, n);
    if (v->kind == EVENT_REMOVED)
        return;
    if (v->parent)
        msgpack_uint(out, v->parent);
    else
        msgpack_nil(out);
    msgpack_array(out, n * RUNNER_PAGE);
    for (uint32_t i = 0; i < n * RUNNER_PAGE; i++)
        msgpack_uint(out, (uint32_t)v[i / RUNNER_PAGE].ids[i % RUNNER_PAGE]); /* an image's are no tokens */
    msgpack_uint(out, RUNNER_PAGE);
    if (v->adapter)
        msgpack_uint(out, v->adapter);
    else
        msgpack_nil(out);
}

void kv_events_flush(struct kv_events *k)
{
    if (!k || !k->count)
        return;
    struct timespec now;
    uint32_t runs = 0;
    clock_gettime(CLOCK_REALTIME, &now);
    for (uint32_t i = 0; i < k->count; i += event_run(k, i))
        runs++;
    buf_clear(&k->message);
    msgpack_array(&k->message, 3);
    msgpack_double(&k->message, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    msgpack_array(&k->message, runs);
    for (uint32_t i = 0, n; i < k->count; i += n)
        event_write(&k->message, &k->events[i], n = event_run(k, i));
    msgpack_uint(&k->message, 0);
    k->count = 0;
    k->o.send(k->o.arg, k->message.data, k->message.len);
}
