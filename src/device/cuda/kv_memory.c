#include "device/cuda/kv_memory.h"

#include "base/mem.h"

static struct cu_mem_location card_of(const struct gpu *g)
{
    return (struct cu_mem_location){.type = CU_LOCATION_DEVICE, .id = g->card};
}

static bool can_map(struct gpu *g)
{
    const struct cu_mem_prop prop = {.type = CU_MEM_PINNED, .location = card_of(g)};
    size_t granule = 0;
    int can = 0;
    return g->cu->device_attribute(&can, CU_ATTR_VIRTUAL_MEMORY, g->card) == CU_OK && can &&
           g->cu->mem_granularity(&granule, &prop, 0) == CU_OK && granule && KV_GRANULE % granule == 0;
}

int kv_memory_open(struct kv_memory *m, struct gpu *g, uint64_t layer_bytes, uint32_t layers, struct err *e)
{
    *m = (struct kv_memory){.layer_bytes = layer_bytes, .layers = layers};
    const uint64_t bytes = layer_bytes * layers;
    if (!bytes)
        return 0;
    if (!can_map(g)) {
        m->backed = layer_bytes;
        if (!(m->base = gpu_alloc(g, bytes, "KV", e)))
            return -1;
        return gpu_check(g, g->cu->set8(m->base, 0, bytes, g->stream), "clearing KV", e);
    }
    if (!(m->begins = mem_zalloc(layer_bytes / KV_GRANULE, sizeof *m->begins)))
        return err_memory(e, "the table of KV memory", layer_bytes / KV_GRANULE);
    if (gpu_check(g, g->cu->address_reserve(&m->base, bytes, KV_GRANULE, 0, 0), "reserving addresses for KV",
                  e))
        return -1;
    m->held = true;
    return 0;
}

uint64_t kv_memory_bytes(const struct kv_memory *m)
{
    return m->backed * m->layers;
}

/* Maps [from, to) of one layer. */
static int map_layer(struct kv_memory *m, struct gpu *g, uint32_t layer, uint64_t from, uint64_t to,
                     struct err *e)
{
    const struct cu_mem_prop prop = {.type = CU_MEM_PINNED, .location = card_of(g)};
    const struct cu_mem_access access = {.location = card_of(g), .flags = CU_ACCESS_READ_WRITE};
    const cu_ptr at = m->base + layer * m->layer_bytes + from;
    uint64_t handle = 0;
    int r = g->cu->mem_create(&handle, to - from, &prop, 0);
    if (r == CU_OUT_OF_MEMORY)
        return err_set(e, ERR_RESOURCE, "KV needs %.1f MB of GPU memory, and none is free",
                       1e-6 * (double)(to - from));
    if (gpu_check(g, r, "taking memory for KV", e))
        return -1;
    r = g->cu->mem_map(at, to - from, 0, handle, 0);
    g->cu->mem_release(handle); /* the mapping holds it */
    if (gpu_check(g, r, "mapping KV", e))
        return -1;
    g->taken += to - from;
    /* keys past a sequence's end are masked, but their values are multiplied by zero: they must be finite */
    if (gpu_check(g, g->cu->mem_access(at, to - from, &access, 1), "mapping KV", e) ||
        gpu_check(g, g->cu->set8(at, 0, to - from, g->stream), "clearing KV", e)) {
        g->cu->mem_unmap(at, to - from);
        g->taken -= to - from;
        return -1;
    }
    return 0;
}

static void unmap(struct kv_memory *m, struct gpu *g, uint32_t layers, uint64_t from, uint64_t to)
{
    for (uint32_t l = 0; l < layers; l++) {
        g->cu->mem_unmap(m->base + l * m->layer_bytes + from, to - from);
        g->taken -= to - from;
    }
}

static int grow(struct kv_memory *m, struct gpu *g, uint64_t to, struct err *e)
{
    const uint64_t from = m->backed, more = (to - from) * m->layers, leave = from ? KV_LEAVE : 0;
    uint64_t room;
    if (gpu_room(g, &room, e))
        return -1;
    if (room < leave || more > room - leave)
        return err_set(e, ERR_RESOURCE, "KV needs %.1f MB of GPU memory, %.1f MB are free%s",
                       1e-6 * (double)more, 1e-6 * (double)room, g->limit ? " within the limit" : "");
    for (uint32_t l = 0; l < m->layers; l++)
        if (map_layer(m, g, l, from, to, e)) {
            unmap(m, g, l, from, to);
            return -1;
        }
    m->begins[from / KV_GRANULE] = 1;
    m->backed = to;
    return 0;
}

/* Mappings are released whole: those that begin at `to` or later. */
static int shrink(struct kv_memory *m, struct gpu *g, uint64_t to, struct err *e)
{
    while (to < m->backed && !m->begins[to / KV_GRANULE])
        to += KV_GRANULE;
    if (to >= m->backed)
        return 0;
    if (gpu_sync(g, e)) /* a step may still read it */
        return -1;
    unmap(m, g, m->layers, to, m->backed);
    for (uint64_t i = to; i < m->backed; i += KV_GRANULE)
        m->begins[i / KV_GRANULE] = 0;
    m->backed = to;
    return 0;
}

int kv_memory_back(struct kv_memory *m, struct gpu *g, uint64_t bytes, struct err *e)
{
    uint64_t want = kv_granules(bytes);
    want = want < m->layer_bytes ? want : m->layer_bytes;
    if (!m->begins || want == m->backed)
        return 0;
    return want < m->backed ? shrink(m, g, want, e) : grow(m, g, want, e);
}

void kv_memory_close(struct kv_memory *m, struct gpu *g)
{
    if (m->begins && m->backed)
        unmap(m, g, m->layers, 0, m->backed);
    if (m->held)
        g->cu->address_free(m->base, m->layer_bytes * m->layers);
    else if (!m->begins)
        gpu_free(g, m->base, m->layer_bytes * m->layers);
    mem_free(m->begins);
    *m = (struct kv_memory){0};
}
