#include "device/cuda/lora.h"

#include "base/mem.h"

struct lora_sizes lora_measure(const struct plan *p, const struct weights *w)
{
    struct lora_sizes s = {.rank = plan_rank(p, w)};
    uint32_t heads = LORA_AREAS;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct op *o = &p->ops[i];
        uint32_t n = o->kind == OP_LATENT  ? o->latent.heads
                     : o->kind == OP_HEADS ? w->all[o->heads.weight].count
                                           : 0;
        heads = n > heads ? n : heads;
    }
    s.low = (uint64_t)heads * ADAPTERS_MIXED * s.rank;
    return s;
}

int lora_prepare(struct cuda_device *d, const struct plan *p, struct err *e)
{
    const size_t count = (size_t)(p->slots + 1) * (p->adapters + 1), bytes = count * sizeof *d->lora_table;
    if (!p->lora)
        return 0;
    struct lora_entry *host = mem_zalloc(count, sizeof *host);
    if (!host)
        return err_memory(e, "the table of adapters", bytes);
    for (size_t i = 0; i < count; i++)
        if (p->lora[i].a)
            host[i] = (struct lora_entry){.a = d->weights.mat[p->lora[i].a],
                                          .b = d->weights.mat[p->lora[i].b],
                                          .scale = p->lora[i].scale};
    int bad = gpu_check(d->g, d->g->cu->to_device((cu_ptr)d->lora_table, host, bytes, d->g->stream),
                        "sending adapters", e) ||
              gpu_sync(d->g, e);
    mem_free(host);
    return bad ? -1 : 0;
}

const struct lora_entry *lora_entries(const struct cuda_device *d, uint32_t slot)
{
    return d->lora_table + (size_t)slot * (d->plan->adapters + 1);
}

/* The largest rank of the slot's pairs; 0: there are none, and nothing to do. */
static uint32_t rank_of(const struct cuda_device *d, uint32_t slot)
{
    uint32_t rank = 0;
    for (uint32_t i = 1; slot && i <= d->plan->adapters; i++) {
        const struct lora_pair *pair = plan_lora(d->plan, slot, i);
        if (pair && d->source->all[pair->b].rows > rank)
            rank = d->source->all[pair->b].rows;
    }
    return rank;
}

static struct lora_args args_of(const struct cuda_device *d, const struct lora_job *j, uint32_t rank)
{
    const struct lora_in *in = &d->lora_in;
    struct lora_args a = {.entry = lora_entries(d, j->slot),
                          .mix = d->mix,
                          .row_seq = d->meta.row_seq,
                          .x = in->x,
                          .ldx = in->ldx,
                          .x_row = in->x_row,
                          .row = in->row,
                          .expert = in->expert,
                          .first = in->first,
                          .m = j->m,
                          .rank = rank,
                          .heads = j->heads,
                          .x_step = j->x_step,
                          .y_step = j->y_step,
                          .y = j->y,
                          .ldy = j->ldy,
                          .scale = j->scale,
                          .row_scale = j->row_scale};
    a.low = d->lora_low + (uint64_t)j->area * d->lora_rows * ADAPTERS_MIXED * d->lora_rank;
    return a;
}

int lora_down(struct cuda_device *d, const struct lora_job *j, struct err *e)
{
    const uint32_t rank = rank_of(d, j->slot), heads = j->heads ? j->heads : 1;
    if (!rank)
        return 0;
    const struct lora_args a = args_of(d, j, rank);
    return gpu_launch(d->g, K_LORA_DOWN, gpu_grid(gpu_blocks(rank, 8), gpu_blocks(j->m, 8), heads, 256, 0),
                      &a, e);
}

int lora_up(struct cuda_device *d, const struct lora_job *j, struct err *e)
{
    const uint32_t rank = rank_of(d, j->slot), heads = j->heads ? j->heads : 1;
    if (!rank)
        return 0;
    uint32_t n = 0;
    for (uint32_t i = 1; i <= d->plan->adapters && !n; i++) {
        const struct lora_pair *pair = plan_lora(d->plan, j->slot, i);
        n = pair ? d->source->all[pair->b].cols : 0;
    }
    const struct lora_args a = args_of(d, j, rank);
    return gpu_launch(d->g, K_LORA_UP, gpu_grid(gpu_blocks(n, 256), gpu_blocks(j->m, 8), heads, 256, 0), &a,
                      e);
}
