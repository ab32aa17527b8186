/* Repacked weights: their memory, and when the file's pages are dropped. */
#include "device/cpu/cpu.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/size.h"

#include <sys/mman.h>

/* Large pages: a hundred thousand faults would cost more than all the rest. */
enum { PACKED_ALIGN = 2 << 20 };

static uint32_t packed_panels(const struct weight *w)
{
    return (w->rows + KERNEL_PANEL - 1) / KERNEL_PANEL;
}

/* The shape of one repacked weight, or none: only weights of products with rounded activations are
 * repacked. */
static bool packed_shape(const struct cpu *d, weight_id id, struct packed *p, size_t *data, size_t *done)
{
    const struct weight *w = &d->w->all[id];
    size_t panels;
    *p = (struct packed){0};
    if (w->rows < KERNEL_PANEL || !cpu_packs(d, id))
        return false;
    p->panel_bytes = d->k->packed_bytes ? d->k->packed_bytes(w->type, w->cols) : 0;
    p->slabs = (w->cols + KERNEL_SLAB - 1) / KERNEL_SLAB;
    if (!p->panel_bytes || !size_mul(packed_panels(w), w->count, &panels) ||
        !size_mul(panels, p->panel_bytes, data) || !size_mul(panels, p->slabs, done))
        return false;
    return true;
}

/* All of them one after another: once to count, once to place. */
static bool packed_place(struct cpu *d, size_t *data, size_t *done)
{
    *data = *done = 0;
    for (uint32_t i = 1; i < d->w->count; i++) {
        struct packed *p = &d->packed[i];
        size_t bytes, flags;
        if (!packed_shape(d, i, p, &bytes, &flags))
            continue;
        p->data = d->packed_data ? d->packed_data + *data : NULL;
        p->done = d->packed_done ? d->packed_done + *done : NULL;
        if (!size_add(*data, bytes, data) || !size_add(*done, flags, done))
            return false;
    }
    return true;
}

void cpu_packed_open(struct cpu *d)
{
    size_t data, done;
    d->packed = mem_zalloc(d->w->count, sizeof *d->packed);
    if (!d->packed || !packed_place(d, &data, &done) || !data) {
        cpu_packed_close(d);
        return;
    }
    /* Neither is touched before the first use: unused weights cost nothing. */
    d->packed_data = mem_aligned(PACKED_ALIGN, data);
    d->packed_done = mem_zalloc(done, 1);
    if (!d->packed_data || !d->packed_done) {
        cpu_packed_close(d);
        return;
    }
    madvise(d->packed_data, data, MADV_HUGEPAGE);
    packed_place(d, &data, &done);
}

void cpu_packed_close(struct cpu *d)
{
    mem_free(d->packed);
    mem_free(d->packed_data);
    mem_free(d->packed_done);
    d->packed = NULL;
    d->packed_data = d->packed_done = NULL;
}

/* On first use the file's pages of a piece of about this size are dropped after it is repacked: so a worker
 * has at most one piece in memory twice. */
enum { PACKED_PIECE = 4 << 20, PACKED_ROWS = 8 };

bool lane_find_packed(const struct lane *l, const struct cpu_product *p, uint32_t lines, struct matmul *job,
                      uint32_t *piece)
{
    const struct weight *w = lane_weight(l, p->linear.weight);
    struct packed *packed = l->d->packed ? &l->d->packed[p->linear.weight] : NULL;
    if (!packed || !packed->data || p->n0 % KERNEL_PANEL || (p->n1 % KERNEL_PANEL && p->n1 != w->rows))
        return false;
    job->packed = packed;
    job->panel = (size_t)p->matrix * packed_panels(w) + p->n0 / KERNEL_PANEL;
    /* Prompts do not repack: the first step that only decodes does. It costs more than many products, so an expert, which
     * few tokens want, is left as it is while a single line wants it and the file's layout is as fast. */
    const bool seldom = w->count > 1 && lines == 1 && l->k->streams(w->type);
    job->repack = l->s->rows <= PACKED_ROWS * l->s->seqs && !seldom;
    if (!job->repack || packed->done[job->panel * packed->slabs])
        return false;
    const size_t panels = PACKED_PIECE / (KERNEL_PANEL * w->row_bytes);
    *piece = (uint32_t)size_max(panels, 1) * KERNEL_PANEL;
    return true;
}

void lane_forget_weight(const struct lane *l, const struct cpu_product *p, uint32_t n0, uint32_t n1)
{
    const struct weight *w = lane_weight(l, p->linear.weight);
    map_forget(w->data + p->matrix * w->each_bytes + (p->n0 + n0) * w->row_bytes, (n1 - n0) * w->row_bytes);
}
