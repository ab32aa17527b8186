#include "run/perplexity.h"

#include "base/mem.h"
#include "run/sampler.h"

#include <math.h>
#include <string.h>

struct tally {
    double sum, squares; /* of -ln p */
    uint64_t count;
};

/* Scores ids[from + 1 .. to]: rows from..to-1 are run with results, as many a step as the runner takes. */
static int perplexity_score(struct seq *s, const int32_t *ids, uint32_t from, uint32_t to, struct tally *t,
                            struct err *e)
{
    struct runner *r = s->runner;
    uint32_t vocab = r->plan->out_width;
    uint32_t most = r->most_outs < r->chunk ? r->most_outs : r->chunk;
    for (uint32_t at = from; at < to;) {
        uint32_t n = to - at < most ? to - at : most;
        struct seq_rows rows = {.seq = s, .ids = ids + at, .n = n, .outs = n};
        const float *logits = runner_step(r, &rows, 1, e) ? NULL : runner_results(r, e);
        if (!logits)
            return -1;
        for (uint32_t i = 0; i < n; i++) {
            double nll = -sampler_logprob(logits + (size_t)i * vocab, vocab, ids[at + i + 1]);
            if (isnan(nll))
                return err_set(e, ERR_DEVICE, "the model gave a logit that is not a number");
            t->sum += nll;
            t->squares += nll * nll;
            t->count++;
        }
        at += n;
    }
    return 0;
}

static void perplexity_value(const struct tally *t, struct perplexity *out)
{
    double mean = t->sum / (double)t->count, variance = t->squares / (double)t->count - mean * mean;
    out->value = exp(mean);
    out->error = t->count > 1 && variance > 0 ? out->value * sqrt(variance / (double)(t->count - 1)) : 0;
    out->scored = t->count;
}

int perplexity_run(struct seq *s, const int32_t *ids, size_t n, const struct perplexity_options *o,
                   struct perplexity *out, struct err *e)
{
    *out = (struct perplexity){0};
    if (n < 2 * (size_t)o->ctx)
        return err_set(e, ERR_DATA, "the text has %zu tokens; at least %zu are needed for a context of %u", n,
                       2 * (size_t)o->ctx, o->ctx);
    uint32_t chunks = (uint32_t)(n / o->ctx), first = o->ctx / 2;
    chunks = o->chunks && o->chunks < chunks ? o->chunks : chunks;
    int32_t *chunk = mem_alloc(o->ctx, sizeof *chunk);
    if (!chunk)
        return err_memory(e, "a chunk", o->ctx * sizeof *chunk);
    struct tally t = {0};
    int failed = 0;
    for (uint32_t c = 0; c < chunks && !failed; c++) {
        if (o->cancel && *o->cancel) {
            failed = err_set(e, ERR_INTERRUPTED, "interrupted");
            break;
        }
        memcpy(chunk, ids + (size_t)c * o->ctx, o->ctx * sizeof *chunk);
        if (o->bos >= 0)
            chunk[0] = o->bos;
        seq_truncate(s, 0);
        failed = seq_feed(s, chunk, first, NULL, e) || perplexity_score(s, chunk, first, o->ctx - 1, &t, e);
        if (failed)
            break;
        perplexity_value(&t, out);
        out->chunks = c + 1;
        if (o->progress)
            o->progress(o->arg, c + 1, chunks, out->value);
    }
    mem_free(chunk);
    return failed ? -1 : 0;
}
