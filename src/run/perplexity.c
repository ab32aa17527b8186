#include "run/perplexity.h"

#include "base/mem.h"
#include "run/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tally {
    double sum, squares; /* of -ln p */
    uint64_t count;
};

struct measure {
    struct seq *s;
    const struct perplexity_options *o;
    struct tally own, other, kl;
    uint64_t same;
    float *each; /* (room): the divergence at each position */
};

static int tally_add(struct tally *t, double v, struct err *e)
{
    if (isnan(v))
        return err_set(e, ERR_DEVICE, "the model gave a logit that is not a number");
    t->sum += v;
    t->squares += v * v;
    t->count++;
    return 0;
}

static double tally_mean(const struct tally *t)
{
    return t->sum / (double)t->count;
}

/* One standard deviation of the mean. */
static double tally_error(const struct tally *t)
{
    double mean = tally_mean(t), variance = t->squares / (double)t->count - mean * mean;
    return t->count > 1 && variance > 0 ? sqrt(variance / (double)(t->count - 1)) : 0;
}

/* sum p (ln p - ln q), p of the reference. */
static double kl_divergence(const float *q, const float *p, uint32_t n, bool *same)
{
    double q_sum = sampler_log_sum(q, n), p_sum = sampler_log_sum(p, n), kl = 0;
    uint32_t q_best = 0, p_best = 0;
    for (uint32_t i = 0; i < n; i++) {
        double lp = (double)p[i] - p_sum;
        q_best = q[i] > q[q_best] ? i : q_best;
        p_best = p[i] > p[p_best] ? i : p_best;
        if (lp > -40) /* what is rarer counts for nothing */
            kl += exp(lp) * (lp - ((double)q[i] - q_sum));
    }
    *same = q_best == p_best;
    return kl > 0 ? kl : 0;
}

static const float *run_rows(struct seq *s, const int32_t *ids, uint32_t n, struct err *e)
{
    struct seq_rows rows = {.seq = s, .ids = ids, .n = n, .outs = n};
    return runner_step(s->runner, &rows, 1, e) ? NULL : runner_results(s->runner, e);
}

static uint32_t most_rows(const struct seq *s)
{
    return s->runner->most_outs < s->runner->chunk ? s->runner->most_outs : s->runner->chunk;
}

static int measure_row(struct measure *m, const float *own, const float *other, int32_t next, struct err *e)
{
    uint32_t vocab = m->s->runner->plan->out_width;
    if (tally_add(&m->own, -sampler_logprob(own, vocab, next), e))
        return -1;
    if (!other)
        return 0;
    bool same;
    double kl = kl_divergence(own, other, vocab, &same);
    m->each[m->kl.count] = (float)kl;
    m->same += same;
    return tally_add(&m->other, -sampler_logprob(other, vocab, next), e) || tally_add(&m->kl, kl, e) ? -1 : 0;
}

/* Scores ids[from + 1 .. to]: rows from..to-1 are run with results, as many a step as the runners take. */
static int measure_chunk(struct measure *m, const int32_t *ids, uint32_t from, uint32_t to, struct err *e)
{
    struct seq *other = m->o->other;
    uint32_t vocab = m->s->runner->plan->out_width, most = most_rows(m->s);
    if (other && most_rows(other) < most)
        most = most_rows(other);
    seq_truncate(m->s, 0);
    if (seq_feed(m->s, ids, from, e))
        return -1;
    if (other)
        seq_truncate(other, 0);
    if (other && seq_feed(other, ids, from, e))
        return -1;
    for (uint32_t at = from; at < to;) {
        uint32_t n = to - at < most ? to - at : most;
        const float *a = run_rows(m->s, ids + at, n, e),
                    *b = a && other ? run_rows(other, ids + at, n, e) : NULL;
        if (!a || (other && !b))
            return -1;
        for (uint32_t i = 0; i < n; i++)
            if (measure_row(m, a + (size_t)i * vocab, b ? b + (size_t)i * vocab : NULL, ids[at + i + 1], e))
                return -1;
        at += n;
    }
    return 0;
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static void measure_end(const struct measure *m, struct perplexity *out)
{
    out->value = exp(tally_mean(&m->own));
    out->error = out->value * tally_error(&m->own);
    out->scored = m->own.count;
    struct divergence *d = &out->against;
    uint64_t n = m->kl.count;
    if (!n)
        return;
    qsort(m->each, n, sizeof *m->each, by_size);
    d->mean = tally_mean(&m->kl);
    d->error = tally_error(&m->kl);
    d->median = m->each[n / 2];
    d->p99 = m->each[(size_t)((double)(n - 1) * 0.99)];
    d->most = m->each[n - 1];
    d->same_top = (double)m->same / (double)n;
    d->other = exp(tally_mean(&m->other));
    d->ratio = out->value / d->other;
}

static int measure_all(struct measure *m, const int32_t *ids, uint32_t chunks, struct perplexity *out,
                       struct err *e)
{
    const struct perplexity_options *o = m->o;
    int32_t *chunk = mem_alloc(o->ctx, sizeof *chunk);
    int failed = chunk ? 0 : err_memory(e, "a chunk", o->ctx * sizeof *chunk);
    for (uint32_t c = 0; c < chunks && !failed; c++) {
        if (o->cancel && *o->cancel) {
            failed = err_set(e, ERR_INTERRUPTED, "interrupted");
            break;
        }
        memcpy(chunk, ids + (size_t)c * o->ctx, o->ctx * sizeof *chunk);
        if (o->bos >= 0)
            chunk[0] = o->bos;
        failed = measure_chunk(m, chunk, o->ctx / 2, o->ctx - 1, e);
        out->chunks = c + 1;
        if (o->progress && !failed)
            o->progress(o->arg, c + 1, chunks, exp(tally_mean(&m->own)));
    }
    mem_free(chunk);
    return failed;
}

int perplexity_run(struct seq *s, const int32_t *ids, size_t n, const struct perplexity_options *o,
                   struct perplexity *out, struct err *e)
{
    *out = (struct perplexity){0};
    if (n < 2 * (size_t)o->ctx)
        return err_set(e, ERR_DATA, "the text has %zu tokens; at least %zu are needed for a context of %u", n,
                       2 * (size_t)o->ctx, o->ctx);
    uint32_t chunks = (uint32_t)(n / o->ctx), vocab = s->runner->plan->out_width;
    chunks = o->chunks && o->chunks < chunks ? o->chunks : chunks;
    struct measure m = {.s = s, .o = o};
    if (o->other && o->other->runner->plan->out_width != vocab)
        return err_set(
            e, ERR_DATA,
            "the models have vocabularies of %u and %u tokens; only models with the same can be compared",
            vocab, o->other->runner->plan->out_width);
    if (o->other && !(m.each = mem_alloc((size_t)chunks * o->ctx, sizeof *m.each)))
        return err_memory(e, "divergences", (size_t)chunks * o->ctx * sizeof *m.each);
    out->against.each = m.each;
    int failed = measure_all(&m, ids, chunks, out, e);
    if (!failed)
        measure_end(&m, out);
    return failed;
}

void perplexity_free(struct perplexity *p)
{
    mem_free(p->against.each);
    p->against.each = NULL;
}
