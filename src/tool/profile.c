#include "tool/profile.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { PROFILE_KINDS = OP_INDEX + 1 };

/* One phase: `steps` steps of `rows` rows, each of which sees `keys` keys on average. */
struct phase {
    const char *name;
    const double *seconds; /* (plan.count) */
    const struct profile_kernels *kernels;
    double steps, rows, keys, wall;
};

struct row {
    double seconds, bytes, flops;
};

/* A phase, added up. */
struct sums {
    struct row kind[PROFILE_KINDS], all;
    uint64_t launches;
};

int profile_start(struct profile *p, struct session *l, struct err *e)
{
    size_t n = l->model->plan.count;
    *p = (struct profile){.session = l};
    p->now = mem_zalloc(n, sizeof *p->now);
    p->prompt = mem_zalloc(n, sizeof *p->prompt);
    if (!p->now || !p->prompt)
        return err_memory(e, "the profile", 2 * n * sizeof *p->now);
    l->runner->device->seconds = p->now;
    p->began = clock_now();
    return 0;
}

void profile_take(struct device *d, struct profile_kernels *k)
{
    k->count = d->ops->take_kernels ? d->ops->take_kernels(d, k->all, PROFILE_KERNELS) : 0;
}

void profile_mark(struct profile *p)
{
    size_t bytes = p->session->model->plan.count * sizeof *p->now;
    memcpy(p->prompt, p->now, bytes);
    memset(p->now, 0, bytes);
    profile_take(p->session->runner->device, &p->prompt_kernels);
    p->read = clock_now();
}

void profile_free(struct profile *p)
{
    if (p->session && p->session->runner)
        p->session->runner->device->seconds = NULL;
    mem_free(p->now);
    mem_free(p->prompt);
    *p = (struct profile){0};
}

/* Attention by itself, everything else that has weights together. */
static const char *level_of(int kind)
{
    return kind == OP_ATTN ? "midi" : kind == OP_EMBED ? "micro" : "macro";
}

static struct sums phase_sums(const struct profile *p, const struct phase *f)
{
    const struct model *m = p->session->model;
    struct sums s = {0};
    for (uint32_t i = 0; i < m->plan.count; i++) {
        struct row *r = &s.kind[m->plan.ops[i].kind];
        struct op_cost c = plan_cost(&m->plan, &m->weights, i, f->rows, f->keys);
        double bytes = f->steps * (c.weight_bytes + c.kv_bytes), flops = f->steps * c.flops;
        r->seconds += f->seconds[i];
        r->bytes += bytes;
        r->flops += flops;
        s.all.seconds += f->seconds[i];
        s.all.bytes += bytes;
        s.all.flops += flops;
    }
    for (uint32_t i = 0; i < f->kernels->count; i++)
        s.launches += f->kernels->all[i].calls;
    return s;
}

static double phase_seconds(const struct profile *p, const struct phase *f)
{
    double sum = 0;
    for (uint32_t i = 0; i < p->session->model->plan.count; i++)
        sum += f->seconds[i];
    return sum;
}

/* The two phases of an answer; how many there are. Their walls are those of the steps that were profiled: with a device
 * that runs ahead, a step may end after the token before it is there. */
static int profile_phases(struct profile *p, const struct generation *g, struct phase out[2])
{
    double read = g->prompt - g->cached, chunk = p->session->runner->chunk;
    double chunks = read > chunk ? ceil(read / chunk) : 1, made = (double)g->ids.len - 1;
    if (p->now && p->session->runner->device->seconds) {
        profile_take(p->session->runner->device, &p->kernels);
        p->ended = clock_now();
    }
    out[0] = (struct phase){.name = "prompt",
                            .seconds = p->prompt,
                            .kernels = &p->prompt_kernels,
                            .steps = chunks,
                            .rows = read / chunks,
                            .keys = (g->prompt + g->cached) / 2.0,
                            .wall = p->read - p->began};
    out[1] = (struct phase){.name = "decode",
                            .seconds = p->now,
                            .kernels = &p->kernels,
                            .steps = made,
                            .rows = 1,
                            .keys = g->prompt + made / 2,
                            .wall = p->ended - p->read};
    p->session->runner->device->seconds = NULL; /* kernels are taken once */
    for (int i = 0; i < 2; i++) /* the card has a clock of its own, which may run a little faster */
        out[i].wall = fmax(out[i].wall, phase_seconds(p, &out[i]));
    return made > 0 ? 2 : 1;
}

/* ---- the table ---- */

static void text_row(struct buf *out, const char *name, const char *level, const struct row *r, double wall)
{
    buf_printf(out, "  %-8s %-6s %10.2f %7.1f%% %8.1f %9.1f\n", name, level, 1e3 * r->seconds,
               100 * r->seconds / wall, r->seconds > 0 ? 1e-9 * r->bytes / r->seconds : 0,
               r->seconds > 0 ? 1e-9 * r->flops / r->seconds : 0);
}

void profile_kernels_text(const struct profile_kernels *kernels, double wall, struct buf *out)
{
    buf_printf(out, "  %-16s %8s %10s %9s %8s\n", "kernel", "launches", "ms", "us each", "share");
    for (uint32_t i = 0; i < kernels->count; i++) {
        const struct device_kernel *k = &kernels->all[i];
        buf_printf(out, "  %-16s %8llu %10.2f %9.2f %7.1f%%\n", k->name, (unsigned long long)k->calls,
                   1e3 * k->seconds, 1e6 * k->seconds / (double)k->calls, 100 * k->seconds / wall);
    }
}

static void text_kernels(struct buf *out, const struct phase *f, const struct sums *s)
{
    profile_kernels_text(f->kernels, f->wall, out);
    buf_printf(out,
               "  kernels %.2f ms in %llu launches, of %.2f ms: %.2f ms are launch overhead and waiting\n",
               1e3 * s->all.seconds, (unsigned long long)s->launches, 1e3 * f->wall,
               1e3 * (f->wall - s->all.seconds));
}

static void text_phase(const struct profile *p, const struct phase *f, struct buf *out)
{
    struct sums s = phase_sums(p, f);
    struct row rest = {.seconds = f->wall - s.all.seconds}, all = s.all;
    all.seconds = f->wall;
    buf_printf(out, "%-10s %-6s %10s %8s %8s %9s   (%.0f steps of %.0f rows, %.2f ms each)\n", f->name,
               "level", "ms", "share", "GB/s", "GFLOP/s", f->steps, f->rows, 1e3 * f->wall / f->steps);
    for (int k = 0; k < PROFILE_KINDS; k++)
        if (s.kind[k].seconds > 0)
            text_row(out, plan_op_name((enum op_kind)k), level_of(k), &s.kind[k], f->wall);
    text_row(out, "rest", "", &rest, f->wall); /* sampling, text, launches, waiting for the device */
    text_row(out, "all", "step", &all, f->wall);
    if (f->kernels->count)
        text_kernels(out, f, &s);
}

void profile_text(struct profile *p, const struct generation *g, struct buf *out)
{
    struct phase phases[2];
    int n = profile_phases(p, g, phases);
    for (int i = 0; i < n; i++)
        text_phase(p, &phases[i], out);
}

/* ---- JSON ---- */

static void json_number(struct json *j, const char *key, double value)
{
    json_key(j, key);
    json_num(j, value);
}

static void json_operations(struct json *j, const struct phase *f, const struct sums *s)
{
    json_key(j, "operations");
    json_begin(j, '[');
    for (int k = 0; k < PROFILE_KINDS; k++) {
        const struct row *r = &s->kind[k];
        if (r->seconds <= 0)
            continue;
        json_begin(j, '{');
        json_key(j, "name");
        json_str(j, plan_op_name((enum op_kind)k));
        json_key(j, "level");
        json_str(j, level_of(k));
        json_number(j, "seconds", r->seconds);
        json_number(j, "share", r->seconds / f->wall);
        json_number(j, "bytes", r->bytes);
        json_number(j, "flops", r->flops);
        json_number(j, "gb_s", 1e-9 * r->bytes / r->seconds);
        json_number(j, "gflop_s", 1e-9 * r->flops / r->seconds);
        json_end(j, '}');
    }
    json_end(j, ']');
}

void profile_kernels_json(const struct profile_kernels *kernels, double wall, struct json *j)
{
    json_key(j, "kernels");
    json_begin(j, '[');
    for (uint32_t i = 0; i < kernels->count; i++) {
        const struct device_kernel *k = &kernels->all[i];
        json_begin(j, '{');
        json_key(j, "name");
        json_str(j, k->name);
        json_number(j, "launches", (double)k->calls);
        json_number(j, "seconds", k->seconds);
        json_number(j, "share", k->seconds / wall);
        json_end(j, '}');
    }
    json_end(j, ']');
}

void profile_json(struct profile *p, const struct generation *g, struct buf *out)
{
    struct json j = {.out = out};
    struct phase phases[2];
    int n = profile_phases(p, g, phases);
    json_begin(&j, '[');
    for (int i = 0; i < n; i++) {
        const struct phase *f = &phases[i];
        struct sums s = phase_sums(p, f);
        json_begin(&j, '{');
        json_key(&j, "phase");
        json_str(&j, f->name);
        json_key(&j, "device");
        json_str(&j, p->session->runner->device->ops->name);
        json_number(&j, "steps", f->steps);
        json_number(&j, "rows", f->rows);
        json_number(&j, "seconds", f->wall);
        json_number(&j, "kernel_seconds", s.all.seconds);
        json_number(&j, "overhead_seconds", f->wall - s.all.seconds);
        json_number(&j, "launches", (double)s.launches);
        json_operations(&j, f, &s);
        profile_kernels_json(f->kernels, f->wall, &j);
        json_end(&j, '}');
    }
    json_end(&j, ']');
    buf_char(out, '\n');
}
