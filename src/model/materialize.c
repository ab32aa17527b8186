/* Materializes weights: those whose layout in the file cannot be used directly, and those that get another
 * type. */
#include "model/model.h"

#include "codec/dtype.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "model/bind.h"

#include <string.h>

/* Below this size, threads cost more than they save. */
#define MAKE_ALONE ((size_t)8 << 20)

struct materializer {
    const struct model_make *o;
    struct matrix_out *items; /* (count) */
    uint8_t **to;             /* (count): where each one goes */
    uint32_t count;
    size_t bytes;
};

static int materialize_put(void *arg, uint32_t item, size_t at, const uint8_t *bytes, size_t n, struct err *e)
{
    const struct materializer *k = arg;
    (void)e;
    memcpy(k->to[item] + at, bytes, n);
    return 0;
}

static void materialize_progress(void *arg, double share)
{
    const struct materializer *k = arg;
    if (k->o->progress)
        k->o->progress(k->o->arg, share);
}

/* Takes memory for weight i and notes what has to be done. */
static int materialize_add(struct materializer *k, struct model *m, uint32_t i, uint32_t type, struct err *e)
{
    const struct bound *b = &m->bound[i];
    struct weight *w = &m->weights.all[i];
    size_t row, all;
    if (!matrix_bytes(&b->m, type, &row, &all))
        return err_set(e, ERR_DATA, "tensor %s: rows of %u values cannot be of type %s", log_safe(b->m.name),
                       b->m.cols, dtype_get(type)->name);
    uint8_t *bytes = owned_add(&m->owned, all, e);
    if (!bytes)
        return -1;
    k->items[k->count] = (struct matrix_out){.m = &b->m, .type = type};
    if (k->o->importance) {
        k->items[k->count].importance = k->o->importance[i];
        k->items[k->count].importances = k->o->importances[i];
    }
    k->to[k->count++] = bytes;
    k->bytes += all;
    w->type = type;
    w->data = bytes;
    w->row_bytes = row;
    w->each_bytes = row * w->rows;
    return 0;
}

static int materialize_run(struct materializer *k, struct err *e)
{
    struct matrix_sink sink = {.put = materialize_put, .progress = materialize_progress, .arg = k};
    bool alone = k->bytes < MAKE_ALONE || k->o->threads == 1;
    struct pool *p = alone ? NULL : pool_open(k->o->threads, false, e);
    int failed = (!alone && !p) || matrix_stream(p, k->items, k->count, &sink, e);
    if (p)
        pool_close(p);
    return failed ? -1 : 0;
}

int model_make(struct model *m, const struct model_make *o, struct err *e)
{
    uint32_t n = m->weights.count;
    struct materializer k = {
        .o = o, .items = mem_alloc(n + 1, sizeof *k.items), .to = mem_alloc(n + 1, sizeof *k.to)};
    int failed = !k.items || !k.to ? err_memory(e, "the list of weights", n * sizeof *k.items) : 0;
    for (uint32_t i = 1; i < n && !failed; i++) {
        const struct bound *b = &m->bound[i];
        bool keep = !o->types || o->types[i] == MODEL_AS_IT_IS;
        if (!keep || !b->lies)
            failed = materialize_add(&k, m, i, keep ? matrix_type(&b->m) : o->types[i], e);
    }
    if (!failed && k.count)
        failed = materialize_run(&k, e);
    m->converted += k.bytes;
    mem_free(k.items);
    mem_free(k.to);
    return failed ? -1 : 0;
}
