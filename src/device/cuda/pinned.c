#include "device/cuda/pinned.h"

#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define PIECE_BYTES ((size_t)64 << 20)

enum { PIECE_NEW, PIECE_BUSY, PIECE_PINNED };

/* Whole pages; pieces do not overlap, and are in order. */
struct pinned_piece {
    uintptr_t from, to;
    _Atomic int state;
};

struct pinned {
    struct gpu *g;
    struct pinned_piece *piece; /* (count) */
    size_t count;
    uint64_t bytes;
    _Atomic bool refused;
};

static int by_address(const void *a, const void *b)
{
    const struct pinned_range *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Adds the pages [from, to); with p->piece NULL they are only counted. */
static void add_pages(struct pinned *p, uintptr_t from, uintptr_t to)
{
    p->bytes += p->piece ? 0 : to - from;
    for (uintptr_t at = from; at < to; at += PIECE_BYTES) {
        if (p->piece) {
            p->piece[p->count].from = at;
            p->piece[p->count].to = to - at < PIECE_BYTES ? to : at + PIECE_BYTES;
        }
        p->count++;
    }
}

/* Ranges that share a page, or follow each other, become one. */
static void add_ranges(struct pinned *p, const struct pinned_range *range, size_t n)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = 0, to = 0;
    p->count = 0;
    for (size_t i = 0; i < n; i++) {
        const uintptr_t begin = (uintptr_t)range[i].from / page * page,
                        end = ((uintptr_t)range[i].from + range[i].bytes + page - 1) / page * page;
        if (begin > to) {
            add_pages(p, from, to);
            from = begin;
        }
        to = end > to ? end : to;
    }
    add_pages(p, from, to);
}

struct pinned *pinned_open(struct gpu *g, struct pinned_range *range, size_t n, uint64_t most)
{
    int can = 0;
    struct pinned *p = mem_zalloc(1, sizeof *p);
    if (!p || !n || g->cu->device_attribute(&can, CU_ATTR_READ_ONLY_PINS, g->card) != CU_OK || !can)
        goto none;
    p->g = g;
    qsort(range, n, sizeof *range, by_address);
    add_ranges(p, range, n);
    if (p->bytes > most || !(p->piece = mem_zalloc(p->count, sizeof *p->piece)))
        goto none;
    add_ranges(p, range, n);
    return p;
none:
    pinned_close(p);
    return NULL;
}

void pinned_close(struct pinned *p)
{
    if (!p)
        return;
    for (size_t i = 0; p->piece && i < p->count; i++)
        if (p->piece[i].state == PIECE_PINNED)
            p->g->cu->host_unregister((void *)p->piece[i].from);
    mem_free(p->piece);
    mem_free(p);
}

uint64_t pinned_bytes(const struct pinned *p)
{
    uint64_t bytes = p && !p->refused ? p->bytes : 0;
    for (size_t i = 0; p && p->refused && i < p->count; i++)
        bytes += p->piece[i].state == PIECE_PINNED ? p->piece[i].to - p->piece[i].from : 0;
    return bytes;
}

/* The piece that an address is in; NULL: it is in none of the ranges that pinned_open was given. */
static struct pinned_piece *piece_of(const struct pinned *p, uintptr_t at)
{
    size_t low = 0, high = p->count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        *(p->piece[middle].from <= at ? &low : &high) = middle;
    }
    return p->piece[low].from <= at && at < p->piece[low].to ? &p->piece[low] : NULL;
}

bool pinned_has(const struct pinned *p, struct pinned_range r)
{
    const uintptr_t end = (uintptr_t)r.from + r.bytes;
    for (uintptr_t at = (uintptr_t)r.from; at < end;) {
        const struct pinned_piece *one = piece_of(p, at);
        if (!one || one->state != PIECE_PINNED)
            return false;
        at = one->to;
    }
    return true;
}

void pinned_take(struct pinned *p, struct pinned_range r)
{
    const uintptr_t end = (uintptr_t)r.from + r.bytes;
    struct pinned_piece *one;
    for (uintptr_t at = (uintptr_t)r.from; at < end && !p->refused && (one = piece_of(p, at)); at = one->to) {
        int new = PIECE_NEW;
        if (!atomic_compare_exchange_strong(&one->state, &new, PIECE_BUSY))
            continue;
        if (p->g->cu->host_register((void *)one->from, one->to - one->from, CU_PIN_READ_ONLY) == CU_OK)
            one->state = PIECE_PINNED;
        else
            p->refused = true;
    }
}

int pinned_send(const struct pinned *p, struct gpu *g, cu_ptr to, struct pinned_range r, struct err *e)
{
    const uintptr_t end = (uintptr_t)r.from + r.bytes;
    for (uintptr_t at = (uintptr_t)r.from, next; at < end; at = next) { /* a copy is of one piece */
        next = piece_of(p, at)->to < end ? piece_of(p, at)->to : end;
        if (gpu_check(g,
                      g->cu->to_device(to + (at - (uintptr_t)r.from), (const void *)at, next - at, g->stream),
                      "uploading weights", e))
            return -1;
    }
    return 0;
}
