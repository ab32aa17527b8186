#include "device/cuda/kv_memory.h"

#include "base/mem.h"

/* Memory is mapped in pieces of this size, and goes back in whole pieces: at most so much of a group is held beyond its
 * pages. */
#define KV_PIECE ((uint64_t)32 << 20)

int kv_memory_open(struct kv_memory *m, struct gpu *g, uint64_t bytes, struct err *e)
{
    *m = (struct kv_memory){.bytes = gpu_granules(bytes)};
    if (!bytes)
        return 0;
    if (!gpu_can_map(g)) {
        m->backed = m->bytes;
        if (!(m->base = gpu_alloc(g, m->bytes, "KV", e)))
            return -1;
        return gpu_check(g, g->cu->set8(m->base, 0, m->bytes, g->stream), "clearing KV", e);
    }
    if (!(m->begins = mem_zalloc(m->bytes / GPU_GRANULE, sizeof *m->begins)))
        return err_memory(e, "the table of KV memory", m->bytes / GPU_GRANULE);
    if (gpu_check(g, g->cu->address_reserve(&m->base, m->bytes, GPU_GRANULE, 0, 0),
                  "reserving addresses for KV", e))
        return -1;
    m->held = true;
    return 0;
}

static void unmap(struct kv_memory *m, struct gpu *g, uint64_t from, uint64_t to)
{
    g->cu->mem_unmap(m->base + from, to - from);
    g->taken -= to - from;
}

/* In pieces, each of which can go alone: how far it came. */
static uint64_t map(struct kv_memory *m, struct gpu *g, uint64_t from, uint64_t to, struct err *e)
{
    while (from < to) {
        const uint64_t piece = to - from < KV_PIECE ? to - from : KV_PIECE;
        if (gpu_map(g, m->base + from, piece, "KV", e))
            break;
        from += piece;
    }
    return from;
}

static int grow(struct kv_memory *m, struct gpu *g, uint64_t to, struct err *e)
{
    const uint64_t from = m->backed, more = to - from, leave = from ? KV_LEAVE : 0;
    uint64_t room;
    if (gpu_room(g, &room, e))
        return -1;
    if (room < leave || more > room - leave)
        return gpu_refuse(g, more, room, "KV", e);
    gpu_memory_lock();
    gpu_make_room(g, more + leave);
    const uint64_t got = map(m, g, from, to, e);
    gpu_memory_unlock();
    g->taken += got - from;
    if (got < to) {
        if (got > from)
            unmap(m, g, from, got);
        return -1;
    }
    /* keys past a sequence's end are masked, but their values are multiplied by zero: they must be finite */
    if (gpu_check(g, g->cu->set8(m->base + from, 0, more, g->stream), "clearing KV", e)) {
        unmap(m, g, from, to);
        return -1;
    }
    for (uint64_t at = from; at < to; at += KV_PIECE)
        m->begins[at / GPU_GRANULE] = 1;
    m->backed = to;
    return 0;
}

/* Mappings are released whole: those that begin at `to` or later. */
static int shrink(struct kv_memory *m, struct gpu *g, uint64_t to, struct err *e)
{
    while (to < m->backed && !m->begins[to / GPU_GRANULE])
        to += GPU_GRANULE;
    if (to >= m->backed)
        return 0;
    if (gpu_sync(g, e)) /* a step may still read it */
        return -1;
    unmap(m, g, to, m->backed);
    for (uint64_t i = to; i < m->backed; i += GPU_GRANULE)
        m->begins[i / GPU_GRANULE] = 0;
    m->backed = to;
    return 0;
}

int kv_memory_back(struct kv_memory *m, struct gpu *g, uint64_t bytes, struct err *e)
{
    uint64_t want = gpu_granules(bytes);
    want = want < m->bytes ? want : m->bytes;
    if (!m->begins || want == m->backed)
        return 0;
    return want < m->backed ? shrink(m, g, want, e) : grow(m, g, want, e);
}

void kv_memory_close(struct kv_memory *m, struct gpu *g)
{
    if (m->begins && m->backed)
        unmap(m, g, 0, m->backed);
    if (m->held)
        g->cu->address_free(m->base, m->bytes);
    else if (!m->begins)
        gpu_free(g, m->base, m->bytes);
    mem_free(m->begins);
    *m = (struct kv_memory){0};
}
