#include "tool/profile.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PROFILE_KINDS = OP_LOGITS + 1 };

/* One phase: so many steps of `rows` rows, each of which sees `keys` keys on average. */
struct phase {
    const char *name;
    const double *seconds; /* (plan.count) */
    double steps, rows, keys, wall;
};

struct row {
    double seconds, bytes, flops;
};

int profile_start(struct profile *p, struct loaded *l, struct err *e)
{
    size_t n = l->model->plan.count;
    *p = (struct profile){.loaded = l};
    p->now = mem_zalloc(n, sizeof *p->now);
    p->prompt = mem_zalloc(n, sizeof *p->prompt);
    if (!p->now || !p->prompt)
        return err_memory(e, "the profile", 2 * n * sizeof *p->now);
    l->runner->device->seconds = p->now;
    return 0;
}

void profile_mark(struct profile *p)
{
    size_t bytes = p->loaded->model->plan.count * sizeof *p->now;
    memcpy(p->prompt, p->now, bytes);
    memset(p->now, 0, bytes);
}

void profile_free(struct profile *p)
{
    if (p->loaded && p->loaded->runner)
        p->loaded->runner->device->seconds = NULL;
    mem_free(p->now);
    mem_free(p->prompt);
    *p = (struct profile){0};
}

static void profile_line(const char *name, const struct row *r, double wall)
{
    fprintf(stderr, "  %-8s %10.2f %7.1f%% %8.1f %9.1f\n", name, 1e3 * r->seconds, 100 * r->seconds / wall,
            r->seconds > 0 ? 1e-9 * r->bytes / r->seconds : 0,
            r->seconds > 0 ? 1e-9 * r->flops / r->seconds : 0);
}

static void profile_phase(const struct profile *p, const struct phase *f)
{
    const struct model *m = p->loaded->model;
    struct row kind[PROFILE_KINDS] = {0}, all = {0};
    for (uint32_t i = 0; i < m->plan.count; i++) {
        struct row *r = &kind[m->plan.ops[i].kind];
        struct op_cost c = plan_cost(&m->plan, &m->weights, i, f->rows, f->keys);
        r->seconds += f->seconds[i];
        r->bytes += f->steps * (c.weight_bytes + c.kv_bytes);
        r->flops += f->steps * c.flops;
    }
    fprintf(stderr, "%-10s %10s %8s %8s %9s   (%.0f steps of %.0f rows)\n", f->name, "ms", "share", "GB/s",
            "GFLOP/s", f->steps, f->rows);
    for (int k = 0; k < PROFILE_KINDS; k++) {
        if (kind[k].seconds > 0)
            profile_line(plan_op_name((enum op_kind)k), &kind[k], f->wall);
        all.seconds += kind[k].seconds;
        all.bytes += kind[k].bytes;
        all.flops += kind[k].flops;
    }
    struct row rest = {.seconds = f->wall - all.seconds};
    profile_line("rest", &rest, f->wall); /* sampling, text, waiting for the device */
    all.seconds = f->wall;
    profile_line("all", &all, f->wall);
}

void profile_print(const struct profile *p, const struct generation *g)
{
    double read = g->prompt - g->cached, chunk = p->loaded->runner->chunk;
    double chunks = read > chunk ? ceil(read / chunk) : 1, made = (double)g->ids.len - 1;
    struct phase prompt = {.name = "prompt",
                           .seconds = p->prompt,
                           .steps = chunks,
                           .rows = read / chunks,
                           .keys = (g->prompt + g->cached) / 2.0,
                           .wall = g->prompt_seconds};
    struct phase decode = {.name = "decode",
                           .seconds = p->now,
                           .steps = made,
                           .rows = 1,
                           .keys = g->prompt + made / 2,
                           .wall = g->decode_seconds};
    profile_phase(p, &prompt);
    if (made > 0)
        profile_phase(p, &decode);
}
