#include "run/pages.h"

#include "base/mem.h"

#include <assert.h>

int pages_open(struct pages *p, uint32_t count, struct err *e)
{
    *p = (struct pages){.count = count};
    p->stack = mem_alloc(count, sizeof *p->stack);
    p->refs = mem_zalloc(count, sizeof *p->refs);
    if (!p->stack || !p->refs) {
        pages_close(p);
        return err_memory(e, "the table of KV pages", (unsigned long long)count * 6);
    }
    for (uint32_t i = count - 1; i > 0; i--)
        p->stack[p->unused++] = (int32_t)i;
    return 0;
}

void pages_close(struct pages *p)
{
    mem_free(p->stack);
    mem_free(p->refs);
    *p = (struct pages){0};
}

int32_t pages_take(struct pages *p)
{
    if (!p->unused)
        return 0;
    int32_t page = p->stack[--p->unused];
    p->refs[page] = 1;
    return page;
}

void pages_share(struct pages *p, int32_t page)
{
    assert(page > 0 && p->refs[page] > 0 && p->refs[page] < UINT16_MAX);
    p->refs[page]++;
}

void pages_drop(struct pages *p, int32_t page)
{
    if (!page)
        return;
    assert(p->refs[page] > 0);
    if (!--p->refs[page])
        p->stack[p->unused++] = page;
}
