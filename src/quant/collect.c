#include "quant/collect.h"

#include "base/size.h"
#include "model/bind.h"
#include "quant/gguf_tensors.h"

#include <string.h>

int collect_open(struct collect *c, const struct model *m, bool head, struct err *e)
{
    *c = (struct collect){.model = m};
    c->sums = mem_zalloc(m->weights.count, sizeof *c->sums);
    if (!c->sums)
        return err_memory(e, "the importance matrix", m->weights.count * sizeof *c->sums);
    for (uint32_t i = 1; i < m->weights.count; i++) {
        const struct bound *b = &m->bound[i];
        const struct weight *w = &m->weights.all[i];
        bool product = b->name && !strcmp(b->suffix, ".weight") && w->rows > 1;
        size_t values;
        if (!product || (b->layer < 0 && !(head && !strcmp(b->name, "output"))))
            continue;
        c->sums[i].squares =
            size_mul(w->cols, w->count, &values) ? arena_alloc(&c->arena, values, sizeof(double)) : NULL;
        c->sums[i].rows = arena_alloc(&c->arena, w->count, sizeof(double));
        if (!c->sums[i].squares || !c->sums[i].rows)
            return err_memory(e, "the importance matrix", (uint64_t)w->cols * w->count * sizeof(double));
    }
    return 0;
}

void collect_watch(void *arg, weight_id weight, uint32_t matrix, const float *x, size_t stride, uint32_t rows)
{
    struct collect *c = arg;
    const struct collect_sum *s = &c->sums[weight];
    uint32_t cols = c->model->weights.all[weight].cols;
    if (!s->squares)
        return;
    double *to = s->squares + (size_t)matrix * cols;
    for (uint32_t r = 0; r < rows; r++, x += stride)
        for (uint32_t i = 0; i < cols; i++)
            to[i] += (double)x[i] * x[i];
    s->rows[matrix] += rows;
}

int collect_result(const struct collect *c, struct imatrix *out, struct err *e)
{
    for (uint32_t i = 1; i < c->model->weights.count; i++) {
        const struct weight *w = &c->model->weights.all[i];
        char name[128];
        /* parts of one tensor have the same input: one entry will do */
        if (!c->sums[i].squares || !gguf_tensors_name(&c->model->bound[i], name) || imatrix_find(out, name))
            continue;
        struct imatrix_entry *x = imatrix_add(out, name, w->cols, w->count, e);
        if (!x)
            return -1;
        memcpy(x->sums, c->sums[i].squares, (size_t)w->cols * w->count * sizeof *x->sums);
        memcpy(x->rows, c->sums[i].rows, w->count * sizeof *x->rows);
    }
    return 0;
}

void collect_close(struct collect *c)
{
    mem_free(c->sums);
    arena_free(&c->arena);
}
