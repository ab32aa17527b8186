#include "tool/profile.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { PROFILE_KINDS = OP_INDEX + 1 };

struct row {
    double seconds, bytes, flops;
};

/* A phase, added up. */
struct sums {
    struct row kind[PROFILE_KINDS], all;
    bool ranks; /* their steps as a whole, as kind[0] */
    uint64_t launches;
    double kernels, cpu; /* seconds on a card; of operations on the CPU */
};

static double image_seconds(const struct profile *p)
{
    return p->session->tower ? p->session->tower->seconds : 0;
}

static double phase_seconds(const struct profile *p, const struct profile_phase *f)
{
    double sum = 0;
    for (uint32_t i = 0; i < p->session->model->plan.count; i++)
        sum += f->seconds[i];
    return sum;
}

/* Ends the phase that runs. The card has a clock of its own, which may run a little faster. */
static void phase_end(struct profile *p)
{
    struct profile_phase *f = &p->phase[p->at];
    const double now = clock_now(), images = image_seconds(p);
    profile_take(p->session->runner->device, &f->kernels);
    f->images = images - p->images;
    f->wall = fmax(now - p->began, phase_seconds(p, f) + f->images);
    p->began = now;
    p->images = images;
}

/* On the engine's thread, before a step: one that goes beyond the prompt decodes. */
static void profile_step(void *arg, const struct step *s)
{
    struct profile *p = arg;
    if (p->at == PROFILE_PROMPT && s->seq[0].length > p->prompt) {
        phase_end(p);
        p->at = PROFILE_DECODE;
        p->session->runner->device->seconds = p->phase[p->at].seconds;
    }
    struct profile_phase *f = &p->phase[p->at];
    f->steps++;
    f->rows += s->rows;
    for (uint32_t i = 0; i < s->seqs; i++)
        f->keys += s->seq[i].rows * (s->seq[i].length - (s->seq[i].rows - 1) / 2.0);
}

int profile_start(struct profile *p, struct session *l, uint32_t prompt, struct err *e)
{
    size_t n = l->model->plan.count;
    *p = (struct profile){.session = l, .prompt = prompt};
    for (int i = 0; i < PROFILE_PHASES; i++)
        if (!(p->phase[i].seconds = mem_zalloc(n, sizeof *p->phase[i].seconds)))
            return err_memory(e, "the profile", n * sizeof *p->phase[i].seconds);
    l->runner->device->seconds = p->phase[PROFILE_PROMPT].seconds;
    l->runner->watch = profile_step;
    l->runner->watch_arg = p;
    p->images = image_seconds(p);
    p->began = clock_now();
    return 0;
}

static void profile_stop(struct profile *p)
{
    p->session->runner->device->seconds = NULL;
    p->session->runner->watch = NULL;
}

void profile_end(struct profile *p)
{
    phase_end(p);
    profile_stop(p);
}

void profile_take(struct device *d, struct profile_kernels *k)
{
    k->count = d->ops->take_kernels ? d->ops->take_kernels(d, k->all, PROFILE_KERNELS) : 0;
}

void profile_free(struct profile *p)
{
    if (p->session && p->session->runner)
        profile_stop(p);
    for (int i = 0; i < PROFILE_PHASES; i++)
        mem_free(p->phase[i].seconds);
    *p = (struct profile){0};
}

static const char *name_of(const struct sums *s, int kind)
{
    return s->ranks ? "ranks" : plan_op_name((enum op_kind)kind);
}

/* Attention by itself, everything else that has weights together. */
static const char *level_of(const struct sums *s, int kind)
{
    return s->ranks ? "step" : kind == OP_ATTN ? "midi" : kind == OP_EMBED ? "micro" : "macro";
}

static struct sums phase_sums(const struct profile *p, const struct profile_phase *f)
{
    const struct model *m = p->session->model;
    const double rows = f->steps > 0 ? f->rows / f->steps : 0, keys = f->rows > 0 ? f->keys / f->rows : 0;
    struct sums s = {.ranks = device_is_ranks(p->session->runner->device)};
    for (uint32_t i = 0; i < m->plan.count; i++) {
        struct row *r = &s.kind[s.ranks ? 0 : m->plan.ops[i].kind];
        struct op_cost c = plan_cost(&m->plan, &m->weights, i, (struct step_shape){rows, 1, keys});
        double bytes = f->steps * (c.weight_bytes + c.kv_bytes), flops = f->steps * c.flops;
        r->seconds += f->seconds[i];
        r->bytes += bytes;
        r->flops += flops;
        s.all.seconds += f->seconds[i];
        s.all.bytes += bytes;
        s.all.flops += flops;
    }
    for (uint32_t i = 0; i < f->kernels.count; i++) {
        s.launches += f->kernels.all[i].calls;
        s.kernels += f->kernels.all[i].seconds;
    }
    s.cpu = s.ranks || device_is_cuda(p->session->runner->device) ? 0 : fmax(s.all.seconds - s.kernels, 0);
    return s;
}

static const char *phase_name(int i)
{
    return i == PROFILE_PROMPT ? "prompt" : "decode";
}

static bool phase_ran(const struct profile *p, int i)
{
    return i == PROFILE_PROMPT || p->phase[i].steps > 0;
}

static double phase_rest(const struct profile_phase *f, const struct sums *s)
{
    return f->wall - s->all.seconds - f->images;
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

static void text_kernels(struct buf *out, const struct profile_phase *f, const struct sums *s)
{
    profile_kernels_text(&f->kernels, f->wall, out);
    buf_printf(out, "  kernels %.2f ms in %llu launches, ", 1e3 * s->kernels,
               (unsigned long long)s->launches);
    if (s->cpu > 0)
        buf_printf(out, "operations of the CPU %.2f ms, ", 1e3 * s->cpu);
    if (f->images > 0)
        buf_printf(out, "images %.2f ms, ", 1e3 * f->images);
    buf_printf(out, "of %.2f ms: %.2f ms are launch overhead and waiting\n", 1e3 * f->wall,
               1e3 * phase_rest(f, s));
}

static void text_phase(const struct profile *p, int at, struct buf *out)
{
    const struct profile_phase *f = &p->phase[at];
    struct sums s = phase_sums(p, f);
    struct row rest = {.seconds = phase_rest(f, &s)}, images = {.seconds = f->images}, all = s.all;
    all.seconds = f->wall;
    buf_printf(out, "%-10s %-6s %10s %8s %8s %9s   (steps: %.0f, rows: %.0f, %.2f ms each step)\n",
               phase_name(at), "level", "ms", "share", "GB/s", "GFLOP/s", f->steps, f->rows,
               f->steps > 0 ? 1e3 * f->wall / f->steps : 0);
    if (f->images > 0)
        text_row(out, "image", "", &images, f->wall);
    for (int k = 0; k < PROFILE_KINDS; k++)
        if (s.kind[k].seconds > 0)
            text_row(out, name_of(&s, k), level_of(&s, k), &s.kind[k], f->wall);
    text_row(out, "rest", "", &rest, f->wall); /* sampling, text, launches, waiting for the device */
    text_row(out, "all", "step", &all, f->wall);
    if (f->kernels.count)
        text_kernels(out, f, &s);
}

void profile_text(const struct profile *p, struct buf *out)
{
    for (int i = 0; i < PROFILE_PHASES; i++)
        if (phase_ran(p, i))
            text_phase(p, i, out);
}

/* ---- JSON ---- */

static void json_number(struct json *j, const char *key, double value)
{
    json_key(j, key);
    json_num(j, value);
}

static void json_operations(struct json *j, const struct profile_phase *f, const struct sums *s)
{
    json_key(j, "operations");
    json_begin(j, '[');
    for (int k = 0; k < PROFILE_KINDS; k++) {
        const struct row *r = &s->kind[k];
        if (r->seconds <= 0)
            continue;
        json_begin(j, '{');
        json_key(j, "name");
        json_str(j, name_of(s, k));
        json_key(j, "level");
        json_str(j, level_of(s, k));
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

static void json_phase(const struct profile *p, int at, struct json *j)
{
    const struct profile_phase *f = &p->phase[at];
    struct sums s = phase_sums(p, f);
    json_begin(j, '{');
    json_key(j, "phase");
    json_str(j, phase_name(at));
    json_key(j, "device");
    json_str(j, p->session->runner->device->ops->name);
    json_number(j, "steps", f->steps);
    json_number(j, "rows", f->steps > 0 ? f->rows / f->steps : 0);
    json_number(j, "seconds", f->wall);
    json_number(j, "kernel_seconds", s.kernels);
    json_number(j, "cpu_seconds", s.cpu);
    json_number(j, "image_seconds", f->images);
    json_number(j, "overhead_seconds", phase_rest(f, &s));
    json_number(j, "launches", (double)s.launches);
    json_operations(j, f, &s);
    profile_kernels_json(&f->kernels, f->wall, j);
    json_end(j, '}');
}

void profile_json(const struct profile *p, struct buf *out)
{
    struct json j = {.out = out};
    json_begin(&j, '[');
    for (int i = 0; i < PROFILE_PHASES; i++)
        if (phase_ran(p, i))
            json_phase(p, i, &j);
    json_end(&j, ']');
    buf_char(out, '\n');
}
