#include "tool/doctor_model.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "run/memory.h"
#include "tool/load.h"
#include "tool/tool.h"

#include <math.h>
#include <string.h>

enum { SEQS = 4, PROMPT = 24, DECODES = 8, OUTS = SEQS * (PROMPT + SEQS), CTX = 512 };

/* The same steps on two runners. */
struct pair {
    struct runner *r[2]; /* examined, reference */
    struct seq *seq[2][SEQS];
    int32_t ids[SEQS][PROMPT + SEQS];
    uint32_t seqs;
};

static uint32_t best_of(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static void agree_row(struct agreement *a, const float *got, const float *want, uint32_t n)
{
    uint32_t x = best_of(got, n), y = best_of(want, n);
    a->rows++;
    a->same += x == y;
    a->near += x != y && fabsf(want[x] - want[y]) <= 0.02f;
    for (uint32_t i = 0; i < n; i++) {
        a->largest = fmax(a->largest, fabs((double)got[i] - want[i]));
        a->size = fmax(a->size, fabs((double)want[i]));
    }
}

/* One step of n ids a sequence on both; results are compared, and the reference's best tokens are the next ids. */
static int pair_step(struct pair *p, uint32_t n, struct agreement *a, struct err *e)
{
    const float *result[2];
    uint32_t width = p->r[0]->plan->out_width, row = 0;
    for (int d = 0; d < 2; d++) {
        struct seq_rows parts[SEQS];
        for (uint32_t i = 0; i < p->seqs; i++) {
            uint32_t own = n > 1 ? n + i : 1; /* prompts of different lengths */
            parts[i] = (struct seq_rows){.seq = p->seq[d][i], .ids = p->ids[i], .n = own, .outs = own};
        }
        if (runner_step(p->r[d], parts, p->seqs, e) || !(result[d] = runner_results(p->r[d], e)))
            return -1;
    }
    for (uint32_t i = 0; i < p->seqs; i++)
        for (uint32_t k = 0, own = n > 1 ? n + i : 1; k < own; k++, row++) {
            const float *want = result[1] + (size_t)row * width;
            agree_row(a, result[0] + (size_t)row * width, want, width);
            p->ids[i][0] = (int32_t)best_of(want, width);
        }
    return 0;
}

static int pair_run(struct runner *examined, struct runner *reference, uint32_t seqs, struct agreement *a,
                    struct err *e)
{
    struct pair p = {.r = {examined, reference}, .seqs = seqs};
    int failed = 0;
    for (uint32_t i = 0; i < seqs; i++) {
        for (uint32_t k = 0; k < PROMPT + SEQS; k++)
            p.ids[i][k] = (int32_t)((k * k * 7919u + i * 104729u + 17u) % examined->plan->out_width);
        for (int d = 0; d < 2; d++)
            failed |= !(p.seq[d][i] = seq_open(p.r[d], e));
    }
    for (int s = 0; s <= DECODES && !failed; s++)
        failed = pair_step(&p, s ? 1 : PROMPT, a, e);
    for (uint32_t i = 0; i < seqs; i++)
        for (int d = 0; d < 2; d++)
            seq_close(p.seq[d][i]);
    return failed ? -1 : 0;
}

/* reference: on the CPU, in exact arithmetic, with room for what is compared. What nothing is compared with holds one
 * text. */
static int doctor_load(const struct args *a, const char *model, const char *device, bool reference,
                       struct session **out, struct err *e)
{
    struct session_options o = {.no_text = true};
    struct store *store;
    if (load_options(a, &o, e) || tool_open(&store, model, e))
        return -1;
    o.runner.device = device;
    if (reference) {
        o.runner.ctx = CTX;
        o.runner.device_options.exact = true;
    }
    bool compared = reference || strcmp(device, "cpu") != 0;
    o.runner.seqs = compared ? SEQS : 1;
    o.runner.outs = compared ? OUTS : 1;
    return session_open(out, store, &o, e);
}

static void doctor_fill(struct doctor_model *m, const struct session *l)
{
    struct buf text = {0};
    struct device_memory memory;
    const struct placement *p = &l->runner->placement;
    const struct device *device = l->runner->device;
    device->ops->describe(device, &text);
    device->ops->memory(device, &memory);
    if (text.data)
        snprintf(m->where, sizeof m->where, "%s", text.data);
    buf_free(&text);
    m->fits = true;
    m->on_gpu = p->of > 0;
    m->gated = !l->runner->device_options.no_parity;
    m->layers = p->layers;
    m->of = p->of;
    m->gpu_need = p->whole.weights + p->whole.kv + p->whole.scratch;
    m->gpu_free = p->whole.free;
    m->ctx = l->runner->ctx;
    m->texts = l->runner->most_seqs;
    m->kv = memory.kv;
    m->weights = weights_bytes(&l->model->weights);
    m->load_seconds = l->seconds;
}

/* --cards 8x141G, or the cards of this machine. */
static int doctor_cards(const struct args *a, uint32_t *cards, uint64_t *memory, struct err *e)
{
    const char *said = args_text(a, "cards"), *by = said ? strchr(said, 'x') : NULL;
    uint64_t n = 0;
    struct err none = {0};
    int found = said ? 0 : cuda_count(&none);
    *cards = found > 0 ? (uint32_t)found : 0;
    *memory = *cards ? cuda_memory_total(0) : 0;
    if (!said)
        return 0;
    if (!by || !num_u64(said, (size_t)(by - said), 64, &n) || !n ||
        !num_bytes(by + 1, strlen(by + 1), memory))
        return err_set(e, ERR_USAGE, "--cards takes a number and a size, as 8x141G, not '%s'",
                       log_safe(said));
    *cards = (uint32_t)n;
    return 0;
}

int doctor_examine(const struct args *a, const char *model, bool gpu, struct doctor_model *out, struct err *e)
{
    struct session *l = NULL, *cpu = NULL;
    struct memory memory;
    *out = (struct doctor_model){0};
    memory_read(&memory);
    out->memory = memory.total;
    out->available = memory.available;
    const char *device = args_text(a, "device");
    int failed = doctor_load(a, model, device ? device : gpu ? "cuda" : "cpu", false, &l, &out->why);
    /* an error of the file or of the command line is not a finding */
    if (failed && out->why.code != ERR_RESOURCE && out->why.code != ERR_DEVICE) {
        *e = out->why;
        return -1;
    }
    if (!failed) {
        uint32_t cards;
        uint64_t card_memory;
        doctor_fill(out, l);
        if (doctor_cards(a, &cards, &card_memory, e) ||
            (cards && ranks_advise(&l->model->plan, &l->model->weights, cards, card_memory, l->runner->ctx,
                                   &out->ranks, e))) {
            session_close(l);
            return -1;
        }
        if (out->on_gpu && l->model->plan.groups && !doctor_load(a, model, "cpu", true, &cpu, e))
            out->compared = !pair_run(l->runner, cpu->runner, 1, &out->single, e) &&
                            !pair_run(l->runner, cpu->runner, SEQS, &out->batched, e);
    }
    session_close(cpu);
    session_close(l);
    return e->code ? -1 : 0;
}

/* ---- output ---- */

static void text_agreement(struct buf *out, const char *what, const struct agreement *a)
{
    buf_printf(out,
               "  %s: %u of %u best tokens as the CPU's in exact arithmetic (%u more within 0.02), numbers "
               "within %.2g of %.3g\n",
               what, a->same, a->rows, a->near, a->largest, a->size);
}

static void text_ranks(struct buf *out, const struct ranks_advice *r, uint32_t ctx)
{
    if (!r->cards)
        return;
    buf_printf(out, "  on %u card%s of %.1f GB: ", r->cards, r->cards > 1 ? "s" : "",
               1e-9 * (double)r->memory);
    if (r->tensor == 1)
        buf_printf(out, "one holds it");
    else if (r->tensor)
        buf_printf(out, "--tensor-parallel %u", r->tensor);
    else
        buf_printf(out, "they do not hold it; a smaller --ctx or --quant helps, or layers on the CPU "
                        "(--gpu-layers auto)");
    buf_printf(out, "; the fullest has %.2f GB of weights, and %u tokens take %.2f GB there\n",
               1e-9 * (double)r->weights, ctx, 1e-9 * (double)r->token * ctx);
}

void doctor_model_text(const struct doctor_model *m, struct buf *out)
{
    buf_printf(out, "model   ");
    if (!m->fits) {
        buf_printf(out, "is not loaded: %s\n", m->why.text);
        return;
    }
    buf_printf(out, "fits: weights %.2f GB, KV of ", 1e-9 * (double)m->weights);
    if (m->texts > 1)
        buf_printf(out, "%u texts of ", m->texts);
    buf_printf(out, "%u tokens %.2f GB, of %.1f GB of memory (%.1f available)\n", m->ctx,
               1e-9 * (double)m->kv, 1e-9 * (double)m->memory, 1e-9 * (double)m->available);
    text_ranks(out, &m->ranks, m->ctx);
    for (const char *line = m->where, *end; (end = strchr(line, '\n')); line = end + 1)
        buf_printf(out, "  %.*s\n", (int)(end - line), line);
    if (!m->on_gpu)
        return;
    buf_printf(out, "  %u of %u layers on the GPU", m->layers, m->of);
    if (m->gpu_need)
        buf_printf(out, ": all of it needs %.2f GB there, %.2f GB are free", 1e-9 * (double)m->gpu_need,
                   1e-9 * (double)m->gpu_free);
    buf_printf(out, "\n  parity gate: %s; loaded in %.2f s\n",
               m->gated ? "every weight that was tried is computed as the CPU does" : "not run (--no-parity)",
               m->load_seconds);
    if (m->compared) {
        text_agreement(out, "one prompt", &m->single);
        text_agreement(out, "four together", &m->batched);
    }
}

static void json_number(struct json *j, const char *key, double value)
{
    json_key(j, key);
    json_num(j, value);
}

static void json_agreement(struct json *j, const char *key, const struct agreement *a)
{
    json_key(j, key);
    json_begin(j, '{');
    json_number(j, "results", a->rows);
    json_number(j, "same_best", a->same);
    json_number(j, "within_0.02", a->near);
    json_number(j, "largest_difference", a->largest);
    json_number(j, "largest", a->size);
    json_end(j, '}');
}

void doctor_model_json(const struct doctor_model *m, struct json *j)
{
    json_begin(j, '{');
    json_key(j, "fits");
    json_bool(j, m->fits);
    json_key(j, "why");
    json_str(j, m->fits ? NULL : m->why.text);
    json_key(j, "where");
    json_str(j, m->where);
    json_number(j, "weights", (double)m->weights);
    json_number(j, "context", m->ctx);
    json_number(j, "texts", m->texts);
    json_number(j, "kv", (double)m->kv);
    json_number(j, "memory", (double)m->memory);
    json_number(j, "available", (double)m->available);
    if (m->ranks.cards) {
        json_key(j, "ranks");
        json_begin(j, '{');
        json_number(j, "cards", m->ranks.cards);
        json_number(j, "card_memory", (double)m->ranks.memory);
        json_number(j, "tensor_parallel", m->ranks.tensor);
        json_number(j, "weights", (double)m->ranks.weights);
        json_number(j, "kv_token", (double)m->ranks.token);
        json_end(j, '}');
    }
    json_key(j, "gpu");
    json_bool(j, m->on_gpu);
    if (m->on_gpu) {
        json_key(j, "parity_gate");
        json_bool(j, m->gated);
        json_number(j, "gpu_layers", m->layers);
        json_number(j, "layers", m->of);
        json_number(j, "gpu_need", (double)m->gpu_need);
        json_number(j, "gpu_free", (double)m->gpu_free);
    }
    if (m->compared) {
        json_agreement(j, "single", &m->single);
        json_agreement(j, "batched", &m->batched);
    }
    json_end(j, '}');
}
