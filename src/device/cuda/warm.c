/* Products of cuBLASLt before steps ask for them: the library looks for an algorithm for each shape, and loads its kernel
 * when that first runs, some milliseconds each, which a prompt whose number of rows is new would wait for. */
#include "device/cuda/exec.h"

/* The next number of rows that cuBLASLt is called with (launch_blas_rows). */
static uint32_t next_rows(uint32_t m)
{
    return launch_blas_rows(m + 1);
}

/* Runs the first product of a step of m rows whose shape is new: on whatever scratch holds. 0: there is none. */
static int warm_rows(struct cuda_device *d, uint32_t m, struct err *e)
{
    struct list_slot *s = &d->cache.list[LISTS_MOST - 1];
    struct step_class c = lower_class(&d->lower, m, m < d->max_outs ? m : d->max_outs);
    const struct launch_step step = {.meta = {.rows = m, .outs = m < d->max_outs ? m : d->max_outs}};
    c.seqs = c.keys = c.tiles = 1;
    s->used = 0;
    if (lower_plan(&d->lower, &c, &s->list, e))
        return -1;
    for (uint32_t i = 0; i < s->list.count; i++) {
        struct launch *l = &s->list.all[i];
        if (l->args != ARGS_BLAS)
            continue;
        launch_bind(l, &step, &d->replay.limits);
        if (!l->a.blas.m || blas_knows(d->replay.blas, &l->a.blas))
            continue;
        return blas_run(d->replay.blas, &l->a.blas, e) || gpu_sync(d->g, e) ? -1 : 1;
    }
    return 0;
}

bool exec_warm(struct cuda_device *d)
{
    struct err none = {0};
    int did = 0;
    if (!d->replay.blas || d->sender || !d->at.decoded_bytes || gpu_enter(d->g, &none))
        return false;
    if (copies_hold(&d->copies))
        cache_forget(&d->cache, d->g);
    while (!did && d->warm_rows < d->max_rows) {
        const uint32_t m = next_rows(d->warm_rows);
        did = warm_rows(d, m < d->max_rows ? m : d->max_rows, &none);
        d->warm_rows = did ? d->warm_rows : m;
    }
    copies_release(&d->copies);
    d->warm_rows = did < 0 ? d->max_rows : d->warm_rows; /* a step will say why */
    return did > 0;
}
