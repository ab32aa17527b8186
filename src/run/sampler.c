#include "run/sampler.h"

#include "base/four.h"
#include "base/mem.h"
#include "base/noise.h"
#include "device/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name, least, most, initial, whole)                                                             \
    {                                                                                                        \
#name, offsetof(struct sampler_params, name), least, most, initial, whole                            \
    }

const struct sampler_field sampler_fields[] = {
    FIELD(temperature, 0, 100, 0.8, false),
    FIELD(top_k, -1, 1 << 20, 40, true),
    FIELD(top_p, 0, 1, 0.95, false),
    FIELD(min_p, 0, 1, 0.05, false),
    FIELD(typical_p, 0, 1, 1, false),
    FIELD(xtc_probability, 0, 1, 0, false),
    FIELD(xtc_threshold, 0, 1, 0.1, false),
    FIELD(repeat_penalty, 0.01, 100, 1, false),
    FIELD(presence_penalty, -100, 100, 0, false),
    FIELD(frequency_penalty, -100, 100, 0, false),
    FIELD(repeat_last_n, -1, 1 << 30, 64, true),
    FIELD(dry_multiplier, 0, 100, 0, false),
    FIELD(dry_base, 1, 100, 1.75, false),
    FIELD(dry_allowed_length, 0, 1 << 20, 2, true),
    FIELD(dry_last_n, -1, 1 << 30, -1, true),
    FIELD(mirostat, 0, 2, 0, true),
    FIELD(mirostat_tau, 0, 100, 5, false),
    FIELD(mirostat_eta, 0, 1, 0.1, false),
};
const size_t sampler_field_count = sizeof sampler_fields / sizeof *sampler_fields;

struct candidate {
    float logit, p;
    int32_t id;
};

struct sampler_room {
    float *own;          /* (vocab): the logits, where biases or penalties change some */
    struct candidate *c; /* (vocab) */
    uint32_t *seen;      /* (vocab): scratch of the penalties, zero between calls */
    uint32_t *length;    /* (vocab): scratch of DRY, zero between calls */
};

/* Invariant between the links of the chain: c[0..n) are the surviving tokens; `sorted` says whether
 * they stand in descending order of logit. */
struct sampler {
    struct sampler_params params;
    uint32_t vocab;
    struct logit_bias *bias;
    uint8_t *breaker;                  /* (vocab) or NULL: DRY's */
    struct sampler_room *room, *owned; /* owned: it is this sampler's alone */
    uint32_t n;
    bool sorted;
    double all; /* the sum of exp(logit - best) of all tokens, where top-p begins the chain; 0 = of c */
    double mu;  /* mirostat's state */
};

static double *sampler_value(struct sampler_params *p, const struct sampler_field *f)
{
    return (double *)((char *)p + f->offset);
}

void sampler_defaults(struct sampler_params *p)
{
    *p = (struct sampler_params){0};
    for (size_t i = 0; i < sampler_field_count; i++)
        *sampler_value(p, &sampler_fields[i]) = sampler_fields[i].initial;
}

int sampler_check(const struct sampler_params *p, uint32_t vocab, struct err *e)
{
    for (size_t i = 0; i < sampler_field_count; i++) {
        const struct sampler_field *f = &sampler_fields[i];
        double v = *(const double *)((const char *)p + f->offset);
        if (!(v >= f->least && v <= f->most) || (f->whole && v != floor(v)))
            return err_set(e, ERR_USAGE, "%s is %g; it has to be %s from %g to %g", f->name, v,
                           f->whole ? "a whole number" : "a number", f->least, f->most);
    }
    for (size_t i = 0; i < p->biases; i++) {
        if (p->bias[i].id < 0 || (uint32_t)p->bias[i].id >= vocab)
            return err_set(e, ERR_USAGE, "logit_bias names token %d; the vocabulary has 0 to %u",
                           p->bias[i].id, vocab - 1);
        if (!(p->bias[i].bias < INFINITY))
            return err_set(e, ERR_USAGE, "logit_bias of token %d is not a finite number", p->bias[i].id);
    }
    return 0;
}

int sampler_room_open(struct sampler_room **out, uint32_t vocab, struct err *e)
{
    struct sampler_room *r = *out = mem_zalloc(1, sizeof *r);
    if (!r)
        return err_memory(e, "the sampler", sizeof *r);
    r->own = mem_alloc(vocab, sizeof *r->own);
    r->c = mem_alloc(vocab, sizeof *r->c);
    r->seen = mem_zalloc(vocab, sizeof *r->seen);
    r->length = mem_zalloc(vocab, sizeof *r->length);
    if (r->own && r->c && r->seen && r->length)
        return 0;
    sampler_room_close(r);
    *out = NULL;
    return err_memory(e, "the sampler", (unsigned long long)vocab * sizeof *r->c);
}

void sampler_room_close(struct sampler_room *r)
{
    if (!r)
        return;
    mem_free(r->own);
    mem_free(r->c);
    mem_free(r->seen);
    mem_free(r->length);
    mem_free(r);
}

int sampler_open(struct sampler **out, const struct sampler_params *p, uint32_t vocab,
                 struct sampler_room *room, struct err *e)
{
    *out = NULL;
    if (sampler_check(p, vocab, e))
        return -1;
    struct sampler *s = mem_zalloc(1, sizeof *s);
    if (!s)
        return err_memory(e, "the sampler", sizeof *s);
    s->params = *p;
    s->params.top_k = p->top_k < 0 ? 0 : p->top_k;
    s->vocab = vocab;
    s->mu = 2 * p->mirostat_tau;
    s->bias = mem_alloc(p->biases, sizeof *s->bias);
    s->breaker = p->dry_breaker ? mem_alloc(vocab, 1) : NULL;
    if (!s->bias || (p->dry_breaker && !s->breaker) || (!room && sampler_room_open(&s->owned, vocab, e))) {
        sampler_close(s);
        return e->code ? -1 : err_memory(e, "the sampler", vocab);
    }
    s->room = room ? room : s->owned;
    if (p->biases)
        memcpy(s->bias, p->bias, p->biases * sizeof *s->bias);
    s->params.bias = s->bias;
    if (s->breaker)
        memcpy(s->breaker, p->dry_breaker, vocab);
    s->params.dry_breaker = s->breaker;
    *out = s;
    return 0;
}

void sampler_close(struct sampler *s)
{
    if (!s)
        return;
    sampler_room_close(s->owned);
    mem_free(s->bias);
    mem_free(s->breaker);
    mem_free(s);
}

static int sampler_descending(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static void sampler_sort(struct sampler *s)
{
    if (!s->sorted)
        qsort(s->room->c, s->n, sizeof *s->room->c, sampler_descending);
    s->sorted = true;
}

/* Sifts c[at] down a heap of k whose root is the worst. */
static void sampler_sift(struct candidate *c, uint32_t k, uint32_t at)
{
    for (;;) {
        uint32_t worst = at, left = 2 * at + 1, right = left + 1;
        if (left < k && sampler_descending(&c[left], &c[worst]) > 0)
            worst = left;
        if (right < k && sampler_descending(&c[right], &c[worst]) > 0)
            worst = right;
        if (worst == at)
            return;
        struct candidate t = c[at];
        c[at] = c[worst];
        c[worst] = t;
        at = worst;
    }
}

static float sampler_best(const struct sampler *s)
{
    float best = -INFINITY;
    for (uint32_t i = 0; i < s->n; i++)
        best = s->room->c[i].logit > best ? s->room->c[i].logit : best;
    return best;
}

/* Sets p of every candidate to its share of all that the sum is of: of the survivors, where none is given. */
static void sampler_softmax(struct sampler *s, double sum)
{
    float best = sampler_best(s);
    double own = 0;
    for (uint32_t i = 0; i < s->n; i++)
        own += s->room->c[i].p = expf(s->room->c[i].logit - best);
    for (uint32_t i = 0; i < s->n; i++)
        s->room->c[i].p = (float)(s->room->c[i].p / (sum > 0 ? sum : own));
}

/* How many tokens of the history the penalties look at. */
static size_t sampler_window(const struct sampler_params *p, size_t n)
{
    bool off = p->repeat_penalty == 1 && p->presence_penalty == 0 && p->frequency_penalty == 0;
    if (off)
        return 0;
    return p->repeat_last_n < 0 || p->repeat_last_n > (double)n ? n : (size_t)p->repeat_last_n;
}

/* How often each token occurs in the window, applied to its own logits. */
static void sampler_penalise(struct sampler *s, const int32_t *history, size_t n)
{
    const struct sampler_params *p = &s->params;
    size_t last = sampler_window(p, n);
    for (size_t i = n - last; i < n; i++)
        if (history[i] >= 0 && (uint32_t)history[i] < s->vocab)
            s->room->seen[history[i]]++;
    for (size_t i = n - last; i < n; i++) {
        int32_t id = history[i];
        if (id < 0 || (uint32_t)id >= s->vocab || !s->room->seen[id])
            continue;
        float *l = &s->room->own[id];
        *l = (float)(*l > 0 ? *l / p->repeat_penalty : *l * p->repeat_penalty);
        *l -= (float)(p->presence_penalty + p->frequency_penalty * s->room->seen[id]);
        s->room->seen[id] = 0;
    }
}

/* DRY: a token that would continue a repetition of length m gets the penalty multiplier * base^(m - allowed).
 * For every earlier place whose tokens end like the history does, the token that followed there is found with
 * the length of the match. */
static void sampler_dry(struct sampler *s, const int32_t *history, size_t n)
{
    enum { MOST = 64, LOOK = 8192 }; /* longer matches are penalised like MOST: the power is huge by then */
    const struct sampler_params *p = &s->params;
    size_t last = p->dry_last_n < 0 || p->dry_last_n > (double)n ? n : (size_t)p->dry_last_n;
    if (p->dry_multiplier == 0 || last < 2)
        return;
    last = last < LOOK ? last : LOOK;
    const int32_t *h = history + (n - last);
    for (size_t i = 0; i + 1 < last; i++) {
        uint32_t m = 0;
        while (m < MOST && m <= i && h[i - m] == h[last - 1 - m]) {
            int32_t id = h[i - m];
            if (id < 0 || (uint32_t)id >= s->vocab || (p->dry_breaker && p->dry_breaker[id]))
                break;
            m++;
        }
        int32_t next = h[i + 1];
        if (next >= 0 && (uint32_t)next < s->vocab && m > s->room->length[next])
            s->room->length[next] = m;
    }
    for (size_t i = 1; i < last; i++) {
        int32_t id = h[i];
        if (id < 0 || (uint32_t)id >= s->vocab || !s->room->length[id])
            continue;
        double over = (double)s->room->length[id] - p->dry_allowed_length;
        if (over >= 0)
            s->room->own[id] -= (float)(p->dry_multiplier * pow(p->dry_base, over));
        s->room->length[id] = 0;
    }
}

/* Keeps the tokens whose surprise is nearest to the entropy, until they hold typical_p. */
static int sampler_by_shift(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->p < y->p ? -1 : x->p > y->p;
}

static void sampler_typical(struct sampler *s)
{
    double mass = s->params.typical_p, entropy = 0, sum = 0;
    sampler_softmax(s, 0);
    float best = sampler_best(s);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->room->c[i].p > 0)
            entropy -= s->room->c[i].p * log(s->room->c[i].p);
    double total = 0;
    for (uint32_t i = 0; i < s->n; i++)
        total += exp((double)s->room->c[i].logit - best);
    for (uint32_t i = 0; i < s->n; i++)
        s->room->c[i].p = (float)fabs(log(total) - ((double)s->room->c[i].logit - best) - entropy);
    qsort(s->room->c, s->n, sizeof *s->room->c, sampler_by_shift);
    uint32_t keep = 0;
    while (keep < s->n && (sum < mass || !keep))
        sum += exp((double)s->room->c[keep++].logit - best) / total;
    s->n = keep;
    s->sorted = false;
}

static void sampler_top_p(struct sampler *s)
{
    sampler_softmax(s, s->all);
    sampler_sort(s);
    double sum = 0;
    uint32_t keep = 0;
    while (keep < s->n && (sum < s->params.top_p || !keep))
        sum += s->room->c[keep++].p;
    s->n = keep;
}

/* The logit below which min-p drops. */
static float sampler_least(const struct sampler *s)
{
    return sampler_best(s) + logf((float)s->params.min_p);
}

static void sampler_min_p(struct sampler *s)
{
    float least = sampler_least(s);
    uint32_t keep = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->room->c[i].logit >= least)
            s->room->c[keep++] = s->room->c[i];
    s->n = keep;
}

/* With the given chance, drops all but the least probable of the tokens above the threshold. */
static void sampler_xtc(struct sampler *s, uint64_t position)
{
    if (noise_uniform(s->params.seed, position, UINT64_MAX) >= s->params.xtc_probability)
        return;
    sampler_softmax(s, 0);
    sampler_sort(s);
    uint32_t above = 0;
    while (above < s->n && s->room->c[above].p >= s->params.xtc_threshold)
        above++;
    if (above < 2)
        return;
    s->n -= above - 1;
    memmove(s->room->c, s->room->c + above - 1, s->n * sizeof *s->room->c);
}

/* Whether the noise of u is surely less than d, without a logarithm: -ln u >= 1 - u, and e^d is more than the first terms
 * of its series. */
static bool draw_loses(double d, double u)
{
    return d > 0 && (1 - u) * (1 + d * (1 + d / 2 * (1 + d / 3 * (1 + d / 4)))) > 1.001;
}

/* The survivor with the largest logit / T + Gumbel noise. */
static struct candidate sampler_draw(struct sampler *s, double temperature, uint64_t position)
{
    double best = -INFINITY;
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        double l = s->room->c[i].logit / temperature;
        if (l + NOISE_GUMBEL_MOST < best)
            continue;
        double u = noise_uniform(s->params.seed, position, (uint64_t)s->room->c[i].id);
        if (draw_loses(best - l, u))
            continue;
        double v = l - log(-log(u));
        if (v > best) {
            best = v;
            at = i;
        }
    }
    return s->room->c[at];
}

/* Mirostat: cuts so that the surprise of what is drawn stays near tau. Version 1 estimates the cut
 * from the slope of the best 100; version 2 cuts at mu directly. */
static struct candidate sampler_mirostat(struct sampler *s, uint64_t position)
{
    const struct sampler_params *p = &s->params;
    double t = p->temperature;
    for (uint32_t i = 0; i < s->n; i++)
        s->room->c[i].logit = (float)(s->room->c[i].logit / t);
    sampler_softmax(s, 0);
    sampler_sort(s);
    uint32_t keep = 1;
    if (p->mirostat == 1) {
        double num = 0, den = 0;
        for (uint32_t i = 0; i < 99 && i + 1 < s->n && s->room->c[i + 1].p > 0; i++) {
            double x = log((double)(i + 2) / (i + 1)), y = log(s->room->c[i].p / s->room->c[i + 1].p);
            num += x * y;
            den += x * x;
        }
        double slope = den > 0 ? num / den : 1, eps = slope - 1;
        double k = pow(eps * pow(2, s->mu) / (1 - pow((double)s->vocab, -eps)), 1 / slope);
        keep = k >= 1 && k < s->n ? (uint32_t)k : k >= s->n ? s->n : 1;
    } else {
        while (keep < s->n && -log2(s->room->c[keep].p) <= s->mu)
            keep++;
    }
    s->n = keep;
    sampler_softmax(s, 0);
    struct candidate c = sampler_draw(s, 1, position);
    s->mu -= p->mirostat_eta * (-log2(c.p) - p->mirostat_tau);
    return c;
}

/* The logits with bias and penalties: those that were given, where nothing changes one. */
static const float *sampler_adjust(struct sampler *s, const float *logits, const int32_t *history, size_t n)
{
    const struct sampler_params *p = &s->params;
    if (!p->biases && !sampler_window(p, n) && p->dry_multiplier == 0)
        return logits;
    memcpy(s->room->own, logits, s->vocab * sizeof *s->room->own);
    for (size_t i = 0; i < p->biases; i++)
        s->room->own[s->bias[i].id] += s->bias[i].bias;
    sampler_penalise(s, history, n);
    sampler_dry(s, history, n);
    return s->room->own;
}

/* Logits are scanned by blocks: most hold no candidate and are skipped at memory speed. */
enum { BLOCK = 128 };

/* The largest logit of a block; *bad: one of them is NaN or infinite. */
static float block_largest(const float *logits, bool *bad)
{
    four top = (four){0} - INFINITY;
    four_mask odd = {0};
    for (int i = 0; i < BLOCK; i += 8) {
        four a = four_load(logits + i), b = four_load(logits + i + 4);
        top = four_max(four_max(a, b), top);
        odd |= ~(a < INFINITY) | ~(b < INFINITY);
    }
    *bad |= four_any(odd);
    return fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
}

/* Candidates in order of id: the tokens that are allowed and above the bar; of more than k the k best, in no order.
 * Whether all logits are finite numbers, or -inf. */
static bool sampler_gather(struct sampler *s, const float *logits, const uint32_t *mask, uint32_t k,
                           float bar)
{
    bool bad = false;
    s->n = 0;
    s->sorted = false;
    for (uint32_t from = 0; from < s->vocab; from += BLOCK) {
        bool whole = s->vocab - from >= BLOCK;
        if (whole && block_largest(logits + from, &bad) <= bar)
            continue;
        for (uint32_t i = from; i < (whole ? from + BLOCK : s->vocab); i++) {
            bad |= !(logits[i] < INFINITY);
            if (!(logits[i] > bar) || (mask && !(mask[i / 32] >> i % 32 & 1)))
                continue;
            uint32_t at = s->n < k ? s->n++ : 0;
            s->room->c[at] = (struct candidate){.logit = logits[i], .id = (int32_t)i};
            if (s->n < k)
                continue;
            for (uint32_t root = at ? k / 2 : 1; root-- > 0;) /* all of them once, when there are k */
                sampler_sift(s->room->c, k, root);
            bar = s->room->c[0].logit;
        }
    }
    return !bad;
}

/* The sum of exp(logit - best) of the tokens that are allowed. */
static double sampler_exp_sum(const float *logits, uint32_t vocab, const uint32_t *mask, float best)
{
    enum { PART = 256 }; /* floats that are summed before the sum is added as a double */
    float part[PART];
    double sum = 0;
    for (uint32_t from = 0; from < vocab; from += PART) {
        uint32_t n = vocab - from < PART ? vocab - from : PART;
        memcpy(part, logits + from, n * sizeof *part);
        for (uint32_t i = 0; mask && i < n; i++)
            part[i] = mask[(from + i) / 32] >> i % 32 & 1 ? part[i] : -INFINITY;
        sum += (double)cpu_exp_sum(part, n, best);
    }
    return sum;
}

/* The tokens near the best (the only candidate so far) that together hold top_p of the probability, and a few
 * more. */
static void sampler_gather_mass(struct sampler *s, const float *logits, const uint32_t *mask)
{
    const float first = 1, most = 120;            /* nats below the best */
    const double enough = s->params.top_p + 1e-5; /* however shares are rounded */
    float best = s->room->c[0].logit;
    double mass = 0;
    s->all = sampler_exp_sum(logits, s->vocab, mask, best);
    for (float nats = first; mass < enough && nats < 2 * most; nats += nats < 16 ? 1 : nats) {
        sampler_gather(s, logits, mask, UINT32_MAX, nats < most ? best - nats : -INFINITY);
        mass = 0;
        for (uint32_t i = 0; i < s->n; i++)
            mass += expf(s->room->c[i].logit - best) / s->all;
    }
}

/* The chain has nothing before top-p. */
static bool sampler_is_open(const struct sampler_params *p)
{
    return p->temperature > 0 && p->mirostat == 0 && p->top_k == 0 && p->typical_p >= 1;
}

/* The chain begins with top-p: only as many of the best count as hold that much. */
static bool sampler_is_top_p(const struct sampler_params *p)
{
    return sampler_is_open(p) && p->top_p < 1;
}

/* The chain begins with min-p: all that counts is how far a token is from the best. */
static bool sampler_is_min_p(const struct sampler_params *p)
{
    return sampler_is_open(p) && p->top_p >= 1 && p->min_p > 0;
}

/* The number of best tokens that the chain can use at most. */
static uint32_t sampler_most(const struct sampler_params *p)
{
    if (p->temperature == 0 || sampler_is_min_p(p) || sampler_is_top_p(p))
        return 1;
    return p->mirostat == 0 && p->top_k > 0 ? (uint32_t)p->top_k : UINT32_MAX;
}

/* The candidates that the chain begins with: only these are copied. */
static int sampler_fill(struct sampler *s, const float *logits, const int32_t *history, size_t n,
                        const uint32_t *mask, struct err *e)
{
    logits = sampler_adjust(s, logits, history, n);
    if (!sampler_gather(s, logits, mask, sampler_most(&s->params), -INFINITY))
        return err_set(e, ERR_DEVICE, "the model gave a logit that is not a finite number");
    s->all = 0;
    if (s->n && sampler_is_top_p(&s->params))
        sampler_gather_mass(s, logits, mask);
    else if (s->n && sampler_is_min_p(&s->params))
        sampler_gather(s, logits, mask, UINT32_MAX, nextafterf(sampler_least(s), -INFINITY));
    return s->n ? 0 : err_set(e, ERR_DATA, "no token is allowed here: every one is banned");
}

int32_t sampler_pick(struct sampler *s, const float *logits, const int32_t *history, size_t n,
                     uint64_t position, const uint32_t *mask, struct err *e)
{
    const struct sampler_params *p = &s->params;
    if (sampler_fill(s, logits, history, n, mask, e))
        return -1;
    if (p->temperature == 0)
        return s->room->c[0].id;
    if (p->mirostat > 0)
        return sampler_mirostat(s, position).id;
    if (p->top_k > 0)
        sampler_sort(s);
    if (p->typical_p < 1)
        sampler_typical(s);
    if (p->top_p < 1)
        sampler_top_p(s);
    if (p->min_p > 0)
        sampler_min_p(s);
    if (p->xtc_probability > 0)
        sampler_xtc(s, position);
    return sampler_draw(s, p->temperature, position).id;
}

/* Counts the tokens under a penalty; false: there are more than a device takes. A small table, since one of
 * the whole vocabulary does not fit into a cache. */
static bool sampler_count(const int32_t *ids, size_t n, uint32_t vocab, struct step_pick *out)
{
    enum { SLOT_BITS = 9, SLOTS = 1 << SLOT_BITS };
    _Static_assert(SLOTS >= 2 * PICK_SEEN_MOST, "half of the slots stay free");
    uint16_t slot[SLOTS] = {0}; /* 1 + where in out->seen */
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)ids[i], at = id * 0x9e3779b1u >> (32 - SLOT_BITS);
        if (id >= vocab)
            continue;
        while (slot[at] && out->seen[slot[at] - 1].id != ids[i])
            at = (at + 1) % SLOTS;
        if (!slot[at] && out->seen_count == PICK_SEEN_MOST)
            return false;
        if (!slot[at]) {
            out->seen[out->seen_count++] = (struct pick_seen){.id = ids[i]};
            slot[at] = (uint16_t)out->seen_count;
        }
        out->seen[slot[at] - 1].count++;
    }
    return true;
}

bool sampler_on_device(struct sampler *s, const int32_t *history, size_t n, uint64_t position,
                       struct step_pick *out)
{
    const struct sampler_params *p = &s->params;
    size_t last = sampler_window(p, n);
    *out = (struct step_pick){.seen = out->seen};
    if (p->biases || p->mirostat > 0 || p->dry_multiplier > 0 || p->typical_p < 1 || p->xtc_probability > 0)
        return false;
    out->on = sampler_count(history + n - last, last, s->vocab, out);
    out->temperature = p->temperature;
    out->top_k = (uint32_t)p->top_k;
    out->top_p = p->top_p;
    out->min_p = (float)p->min_p;
    out->repeat = p->repeat_penalty;
    out->presence = p->presence_penalty;
    out->frequency = p->frequency_penalty;
    out->seed = p->seed;
    out->position = position;
    return out->on;
}

double sampler_log_sum(const float *logits, uint32_t vocab)
{
    float best = cpu_max(logits, vocab);
    return best + log(sampler_exp_sum(logits, vocab, NULL, best));
}

double sampler_logprob(const float *logits, uint32_t vocab, int32_t id)
{
    return (double)logits[id] - sampler_log_sum(logits, vocab);
}

uint32_t sampler_rank(const float *logits, uint32_t vocab, int32_t id)
{
    uint32_t rank = 1;
    for (uint32_t i = 0; i < vocab; i++)
        rank += logits[i] > logits[id];
    return rank;
}

/* One more of the best, which are in order: where it is one. */
static void top_insert(struct token_prob *out, uint32_t k, int32_t id, float logit)
{
    uint32_t at = k;
    for (; at > 0 && out[at - 1].logprob < logit; at--)
        if (at < k)
            out[at] = out[at - 1];
    if (at < k)
        out[at] = (struct token_prob){.id = id, .logprob = logit};
}

void sampler_top(const float *logits, uint32_t vocab, double log_sum, uint32_t k, struct token_prob *out)
{
    for (uint32_t i = 0; i < k; i++)
        out[i] = (struct token_prob){.id = -1, .logprob = -INFINITY};
    for (uint32_t from = 0; k && from < vocab; from += BLOCK) {
        uint32_t n = vocab - from < BLOCK ? vocab - from : BLOCK;
        bool bad = false;
        if (n == BLOCK && block_largest(logits + from, &bad) <= out[k - 1].logprob)
            continue;
        for (uint32_t i = from; i < from + n; i++)
            top_insert(out, k, (int32_t)i, logits[i]);
    }
    for (uint32_t i = 0; i < k; i++)
        out[i].logprob = (float)(out[i].logprob - log_sum);
}
