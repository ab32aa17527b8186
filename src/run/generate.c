#include "run/generate.h"

#include "base/clock.h"
#include "base/mem.h"
#include "run/stop.h"

const char *finish_name(enum finish_kind f)
{
    return f == FINISH_STOP ? "stop" : f == FINISH_LENGTH ? "length" : "cancelled";
}

void generation_free(struct generation *g)
{
    buf_free(&g->text);
    ids_free(&g->ids);
}

struct writer {
    const struct generate_options *o;
    struct generation *g;
    struct tok_decoder decoder;
    struct stop stop;
    struct rule_walk walk;
    struct buf piece; /* scratch of one token */
};

/* Hands out what has been added to g->text since `from`. */
static void writer_emit(struct writer *w, size_t from)
{
    if (w->o->text && w->g->text.len > from)
        w->o->text(w->o->arg, w->g->text.data + from, w->g->text.len - from);
}

/* One more token's text; true when a stop string has come. */
static int writer_token(struct writer *w, int32_t id, bool *stopped, struct err *e)
{
    buf_clear(&w->piece);
    if (!w->decoder.t)
        return 0;
    if (tok_decoder_feed(&w->decoder, id, &w->piece, e))
        return -1;
    size_t from = w->g->text.len;
    *stopped = stop_feed(&w->stop, w->piece.data ? w->piece.data : "", w->piece.len, &w->g->text);
    writer_emit(w, from);
    return w->piece.failed || w->g->text.failed || w->stop.held.failed
               ? err_memory(e, "the text", w->g->text.len)
               : 0;
}

static void writer_finish(struct writer *w)
{
    size_t from = w->g->text.len;
    buf_clear(&w->piece);
    if (w->decoder.t)
        tok_decoder_flush(&w->decoder, &w->piece);
    stop_feed(&w->stop, w->piece.data ? w->piece.data : "", w->piece.len, &w->g->text);
    stop_flush(&w->stop, &w->g->text);
    writer_emit(w, from);
    stop_free(&w->stop);
    rule_walk_close(&w->walk);
    buf_free(&w->piece);
}

/* One more token in the sequence; where the device can, it chooses the next one itself, and *picked says so. */
static int generate_step(struct seq *s, const struct writer *w, struct sampler *sampler, int32_t id,
                         bool *picked, struct err *e)
{
    struct pick_seen seen[PICK_SEEN_MOST];
    struct step_pick pick = {.seen = seen};
    struct seq_rows row = {.seq = s, .ids = &id, .n = 1, .outs = 1};
    s->ids[s->len] = id; /* what the choice after it looks back on */
    *picked = !w->o->rule && runner_can_pick(s->runner) &&
              sampler_on_device(sampler, s->ids, s->len + 1, s->len + 1, &pick);
    row.pick = *picked ? &pick : NULL;
    return runner_step(s->runner, &row, 1, e);
}

/* The next token: the device's choice, or ours from its numbers. */
static int32_t generate_token(struct seq *s, struct sampler *sampler, bool picked, const uint32_t *mask,
                              struct err *e)
{
    const int32_t *ids = picked ? runner_picks(s->runner, e) : NULL;
    const float *logits = picked ? NULL : runner_results(s->runner, e);
    if (ids && *ids < 0)
        err_set(e, ERR_DEVICE, "the model gave a logit that is not a finite number");
    return ids ? *ids : logits ? sampler_pick(sampler, logits, s->ids, s->len, s->len, mask, e) : -1;
}

/* Samples until something ends it. The sequence holds the prompt, and its last result is at hand. */
static int generate_loop(struct seq *s, const struct loaded *l, struct sampler *sampler, struct writer *w,
                         struct err *e)
{
    const struct generate_options *o = w->o;
    struct generation *g = w->g;
    double start = clock_now();
    bool picked = false;
    for (uint32_t made = 0;;) {
        const uint32_t *mask;
        int whole = rule_walk_next(&w->walk, &mask, e);
        g->finish = FINISH_STOP;
        if (whole)
            return whole < 0 ? -1 : 0;
        int32_t id = generate_token(s, sampler, picked, mask, e);
        if (id < 0 || ids_add(&g->ids, id, e) || rule_walk_accept(&w->walk, id, e))
            return -1;
        if (!made++) {
            g->first_seconds = g->prompt_seconds + clock_now() - start;
            start = clock_now();
        }
        /* under a rule an end token is the end of the text */
        bool stopped = (!o->ignore_eog || o->rule) && loaded_ends(l, id);
        if (!stopped && writer_token(w, id, &stopped, e))
            return -1;
        g->decode_seconds = clock_now() - start;
        g->finish = stopped ? FINISH_STOP : FINISH_LENGTH;
        if (stopped || made == o->most)
            return 0;
        if (s->len == s->runner->ctx) {
            g->context_full = true;
            return 0;
        }
        if (o->feed.cancel && *o->feed.cancel) {
            g->finish = FINISH_CANCEL;
            return 0;
        }
        if (generate_step(s, w, sampler, id, &picked, e))
            return -1;
    }
}

int generate(struct seq *s, const struct loaded *l, const int32_t *prompt, uint32_t n,
             const struct generate_options *o, struct generation *g, struct err *e)
{
    struct sampler *sampler;
    if (!n)
        return err_set(e, ERR_USAGE, "the prompt is empty: there is nothing to go on from");
    if (n > s->runner->ctx)
        return err_set(
            e, ERR_RESOURCE,
            "the prompt has %u tokens and the context holds %u: %u too many (--ctx makes it larger)", n,
            s->runner->ctx, n - s->runner->ctx);
    if (sampler_open(&sampler, &o->sampler, s->runner->plan->out_width, e))
        return -1;
    double start = clock_now();
    uint32_t common = seq_common(s, prompt, n);
    common = common < n ? common : n - 1; /* the last token is computed again: its result is wanted */
    seq_truncate(s, common);
    g->prompt = n;
    g->cached = common;
    struct writer w = {
        .o = o, .g = g, .decoder = {.t = l->tokenizer, .skip_special = !o->show_special, .started = true}};
    w.stop = (struct stop){.strings = o->stop_strings, .count = o->stops};
    int r = rule_walk_open(&w.walk, o->rule, s->runner->plan->out_width, e) ||
                    seq_feed(s, prompt + common, n - common, &o->feed, e)
                ? -1
                : 0;
    g->prompt_seconds = clock_now() - start;
    if (!r)
        r = generate_loop(s, l, sampler, &w, e);
    else if (e->code == ERR_INTERRUPTED && o->feed.cancel && *o->feed.cancel)
        g->finish = FINISH_CANCEL;
    writer_finish(&w);
    sampler_close(sampler);
    return r;
}
