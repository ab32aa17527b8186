#include "device/cuda/copies.h"

#include "base/log.h"
#include "base/mem.h"

uint64_t copies_most(uint64_t room)
{
    const uint64_t most = room > COPIES_LEAVE ? room - COPIES_LEAVE : 0;
    return most < room / 8 * 7 ? most : room / 8 * 7;
}

uint64_t copies_share(const struct copies *c, uint64_t room)
{
    const bool by_itself = c->asked == COPIES_AUTO && !c->fp8;
    if (by_itself && !c->returns)
        return c->bytes <= room / 8 ? c->bytes : 0;
    uint64_t most = room > COPIES_LEAVE ? room - COPIES_LEAVE : 0;
    if (by_itself) {
        most = copies_most(room);
        most = most < c->bytes / 8 ? 0 : most; /* not worth its trouble */
    }
    uint64_t wanted = c->bytes;
    if (c->asked < wanted)
        wanted = (c->asked + c->part - 1) / c->part * c->part;
    wanted = wanted < c->bytes ? wanted : c->bytes;
    return wanted <= most ? wanted : most / c->part * c->part;
}

/* Which copies lie in the part that has memory. */
static void copies_set(struct copies *c, uint64_t backed)
{
    const uint64_t most = backed < c->asked ? backed : c->asked;
    c->backed = backed;
    atomic_store(&c->spare.bytes, c->returns ? backed : 0);
    for (uint32_t i = 0; i < c->count; i++) {
        const bool there = c->place[i].at.values && c->place[i].end <= most;
        c->kept[i] = there ? c->place[i].at : (struct kept_weight){0};
        c->made[i] = c->made[i] && there;
    }
    c->stale = true;
}

/* On any thread: what takes memory has locked the list of those that spare it, so that none closes meanwhile. */
static void copies_give(struct gpu_spare *s, uint64_t bytes)
{
    struct copies *c = (struct copies *)s;
    pthread_mutex_lock(&c->mutex);
    const uint64_t had = c->backed;
    const uint64_t keep = had > bytes ? (had - bytes) / c->part * c->part : 0;
    if (had)
        c->g->cu->stream_sync(c->g->stream); /* a step may still read them */
    for (uint64_t at = keep; at < had; at += c->part)
        c->g->cu->mem_unmap(c->base + at, had - at < c->part ? had - at : c->part);
    copies_set(c, keep);
    pthread_mutex_unlock(&c->mutex);
}

void copies_init(struct copies *c, struct gpu *g)
{
    *c = (struct copies){.g = g, .spare = {.card = g->card, .give = copies_give}};
    pthread_mutex_init(&c->mutex, NULL);
}

struct copy_placing {
    struct copies *c;
    const struct mat *mat;
    uint64_t used, scales;
};

static void copies_place(void *arg, weight_id id)
{
    struct copy_placing *p = arg;
    const struct mat *w = &p->mat[id];
    struct copy_place *at = &p->c->place[id];
    const bool fp8 = p->c->fp8;
    if (at->end || (fp8 ? w->n % 16 != 0 : w->fmt == FMT_F16)) /* cuBLASLt takes fp8 in whole sixteens */
        return;
    at->at.values = (void *)(p->c->base + p->used);
    p->used += (uint64_t)w->n * ((w->k + 31) / 32 * 32) * (fp8 ? 1 : 2);
    at->end = p->used;
    if (!fp8)
        return;
    at->at.scale = (float *)(p->c->scales + p->scales);
    p->scales += (w->n + 3) / 4 * 16;
}

/* Places all copies from the addresses in `c` on; without any it only counts their bytes. */
static void copies_place_all(struct copies *c, const struct plan *p, const struct mat *mat)
{
    struct copy_placing all = {.c = c, .mat = mat};
    for (uint32_t i = 0; i < c->count; i++)
        c->place[i] = (struct copy_place){0};
    lower_each_half(p, copies_place, &all);
    c->bytes = gpu_granules(all.used);
    c->part = gpu_granules(c->bytes / COPIES_PARTS);
    c->scales_bytes = all.scales;
}

static int copies_tables(struct copies *c, uint32_t count, struct err *e)
{
    c->count = count;
    c->place = mem_zalloc(count, sizeof *c->place);
    c->kept = mem_zalloc(count, sizeof *c->kept);
    c->made = mem_zalloc(count, sizeof *c->made);
    return c->place && c->kept && c->made
               ? 0
               : err_memory(e, "the table of decoded weights", count * sizeof *c->place);
}

/* What copies could have: what nothing else holds. */
static uint64_t copies_room(const struct copies *c)
{
    size_t available = 0, total = 0;
    struct gpu *g = c->g;
    if (g->cu->mem_info(&available, &total) != CU_OK)
        return 0;
    const uint64_t room = available + copies_bytes(c), left = g->limit > g->taken ? g->limit - g->taken : 0;
    return g->limit && left < room ? left : room;
}

void copies_fill(struct copies *c)
{
    struct err none = {0};
    if (!c->bytes || !c->returns)
        return;
    gpu_memory_lock();
    const uint64_t share = copies_share(c, copies_room(c));
    pthread_mutex_lock(&c->mutex);
    uint64_t at = c->backed;
    while (at < share) {
        const uint64_t part = share - at < c->part ? share - at : c->part;
        if (gpu_map(c->g, c->base + at, part, "a decoded weight", &none))
            break;
        at += part;
    }
    if (at != c->backed)
        copies_set(c, at);
    pthread_mutex_unlock(&c->mutex);
    gpu_memory_unlock();
}

/* Addresses for all copies, or where memory cannot be mapped, memory for some. */
static int copies_take(struct copies *c, uint64_t share, struct err *e)
{
    if (c->scales_bytes && !(c->scales = gpu_alloc(c->g, c->scales_bytes, "scales of weights", e)))
        return -1;
    if (c->returns)
        return gpu_check(c->g, c->g->cu->address_reserve(&c->base, c->bytes, GPU_GRANULE, 0, 0),
                         "reserving addresses for decoded weights", e);
    if (!(c->base = gpu_alloc(c->g, share, "decoded weights", e)))
        return -1;
    c->backed = share;
    return 0;
}

int copies_open(struct copies *c, const struct plan *p, const struct mat *mat, uint32_t count, struct err *e)
{
    if (copies_tables(c, count, e))
        return -1;
    copies_place_all(c, p, mat);
    if (!c->bytes) /* all weights are F16 */
        return 0;
    c->returns = gpu_can_map(c->g);
    const uint64_t room = copies_room(c), share = copies_share(c, room),
                   wanted = c->asked < c->bytes ? c->asked : c->bytes;
    if ((c->fp8 || c->asked != COPIES_AUTO) && share < wanted / c->part * c->part)
        log_warn("%s: %.1f GB are needed, %.1f GB are free", c->fp8 ? "--prefill fp8" : "--gpu-copies",
                 1e-9 * (double)wanted, 1e-9 * (double)room);
    if (!share) {
        c->bytes = 0;
        return 0;
    }
    if (copies_take(c, share, e)) {
        c->bytes = 0;
        return -1;
    }
    copies_place_all(c, p, mat);
    copies_set(c, c->backed);
    c->g->spare = &c->spare;
    gpu_spare_add(&c->spare);
    copies_fill(c);
    return 0;
}

void copies_close(struct copies *c)
{
    if (c->bytes) {
        gpu_spare_remove(&c->spare);
        c->g->spare = NULL;
        if (c->returns) {
            copies_give(&c->spare, c->backed);
            c->g->cu->address_free(c->base, c->bytes);
        } else
            gpu_free(c->g, c->base, c->backed);
    }
    gpu_free(c->g, c->scales, c->scales_bytes);
    mem_free(c->place);
    mem_free(c->kept);
    mem_free(c->made);
    pthread_mutex_destroy(&c->mutex);
}

bool copies_hold(struct copies *c)
{
    pthread_mutex_lock(&c->mutex);
    const bool stale = c->stale;
    c->stale = false;
    return stale;
}

void copies_release(struct copies *c)
{
    pthread_mutex_unlock(&c->mutex);
}

uint64_t copies_bytes(const struct copies *c)
{
    return c->returns ? atomic_load(&c->spare.bytes) : c->backed;
}
