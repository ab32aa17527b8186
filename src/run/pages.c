#include "run/pages.h"

#include "base/mem.h"

#include <assert.h>

/* ---- the heap: free[i] is lower than its children 2 i + 1 and 2 i + 2 ---- */

static void heap_add(struct pages *p, int32_t page)
{
    uint32_t i = p->unused++;
    for (uint32_t up; i && p->free[up = (i - 1) / 2] > page; i = up)
        p->free[i] = p->free[up];
    p->free[i] = page;
}

static int32_t heap_take(struct pages *p)
{
    int32_t first = p->free[0], last = p->free[--p->unused];
    uint32_t i = 0;
    for (uint32_t down; (down = 2 * i + 1) < p->unused; i = down) {
        down += down + 1 < p->unused && p->free[down + 1] < p->free[down];
        if (p->free[down] > last)
            break;
        p->free[i] = p->free[down];
    }
    p->free[i] = last;
    return first;
}

/* ---- pages ---- */

int pages_open(struct pages *p, uint32_t count, uint32_t backed, struct err *e)
{
    *p = (struct pages){.count = count};
    p->free = mem_alloc(count, sizeof *p->free);
    p->refs = mem_zalloc(count, sizeof *p->refs);
    p->kept = mem_zalloc(count, sizeof *p->kept);
    if (!p->free || !p->refs || !p->kept) {
        pages_close(p);
        return err_memory(e, "the table of KV pages", (unsigned long long)count * 8);
    }
    pages_back(p, backed ? backed : count);
    return 0;
}

void pages_close(struct pages *p)
{
    mem_free(p->free);
    mem_free(p->refs);
    mem_free(p->kept);
    *p = (struct pages){0};
}

int32_t pages_take(struct pages *p)
{
    if (!p->unused)
        return 0;
    int32_t page = heap_take(p);
    p->refs[page] = 1;
    return page;
}

/* One reference more or less, and one of the tree's. */
static void pages_change(struct pages *p, int32_t page, int refs, int kept)
{
    p->idle -= p->kept[page] && p->refs[page] == p->kept[page];
    p->refs[page] = (uint16_t)(p->refs[page] + refs);
    p->kept[page] = (uint16_t)(p->kept[page] + kept);
    assert(p->kept[page] <= p->refs[page]);
    p->idle += p->kept[page] && p->refs[page] == p->kept[page];
    if (!p->refs[page])
        heap_add(p, page);
}

void pages_share(struct pages *p, int32_t page)
{
    assert(page > 0 && p->refs[page] > 0 && p->refs[page] < UINT16_MAX);
    pages_change(p, page, 1, 0);
}

void pages_drop(struct pages *p, int32_t page)
{
    if (!page)
        return;
    assert(p->refs[page] > 0);
    pages_change(p, page, -1, 0);
}

void pages_keep(struct pages *p, int32_t page)
{
    assert(page > 0 && p->refs[page] > 0 && p->refs[page] < UINT16_MAX);
    pages_change(p, page, 1, 1);
}

void pages_leave(struct pages *p, int32_t page)
{
    if (!page)
        return;
    assert(p->kept[page] > 0);
    pages_change(p, page, -1, -1);
}

uint32_t pages_last(const struct pages *p)
{
    uint32_t last = p->backed ? p->backed - 1 : 0;
    while (last && !p->refs[last])
        last--;
    return last;
}

void pages_back(struct pages *p, uint32_t backed)
{
    p->backed = backed < p->count ? backed : p->count;
    assert(pages_last(p) < p->backed || !p->backed);
    p->unused = 0;
    for (uint32_t i = 1; i < p->backed; i++) /* ascending: a heap as it is */
        if (!p->refs[i])
            p->free[p->unused++] = (int32_t)i;
}
