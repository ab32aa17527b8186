/* The search for the best integers of a block, in three steps:
 *
 *   1. each group alone: from a row of trial scales, round, solve for the real scale and minimum that suit
 *      those codes best (least squares), and keep what leaves the smallest error;
 *   2. for a given d and dmin, the integer scale and minimum of each group: those on both sides of its own;
 *   3. solve for the d and dmin that suit all codes so found, round them, and do 2 again.
 *
 * Sixteen trials are made at a time, one in each lane of a vector, over the values of a group one by one. So
 * there is nothing to add up across lanes, and the result is the same whatever the registers: a file for each
 * set of instructions includes this. The values are first brought near 1 by a power of two, so that no sum
 * can overflow. */
#pragma once

#include "codec/search.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "codec/half.h"

enum {
    SEARCH_LANES = 16,
    SEARCH_ROUNDS = 2, /* repetitions of step 2 */
    SEARCH_PAIRS = 8   /* trial scales of a group, each in two ways */
};

typedef float lanes __attribute__((vector_size(4 * SEARCH_LANES)));
typedef int32_t lane_bits __attribute__((vector_size(4 * SEARCH_LANES)));

/* By lane: value = scale * level - min */
struct search_lines {
    lanes scale, min;
};

/* A group rounded by a line: sums of w times level, level^2, x * level, and the error squared. */
struct lane_sums {
    lanes l, ll, xl, ee;
};

/* The whole block, times 2^-exponent, and each group's own best. */
struct search_state {
    const struct search_form *form;
    int exponent;
    float unit, back;            /* 2^exponent and its inverse */
    float first, last;           /* levels */
    float middle[SEARCH_LEVELS]; /* between level i and i + 1 */
    float x[SEARCH_VALUES], w[SEARCH_VALUES];
    float sum_w[SEARCH_GROUPS], sum_x[SEARCH_GROUPS]; /* of w and of w * x, by group */
    float scale[SEARCH_GROUPS], min[SEARCH_GROUPS];   /* the line of each group by itself */
    float drift[SEARCH_GROUPS];                       /* how its best minimum moves with its scale */
};

/* A full result without the codes, which follow from it. */
struct search_choice {
    float d, dmin, error;
    int scale[SEARCH_GROUPS], min[SEARCH_GROUPS];
};

#define SEARCH_INLINE static inline __attribute__((always_inline))

SEARCH_INLINE lanes lanes_all(float v)
{
    return v - (lanes){0};
}

SEARCH_INLINE lanes lanes_pick(lane_bits mask, lanes yes, lanes no)
{
    return (lanes)((mask & (lane_bits)yes) | (~mask & (lane_bits)no));
}

/* a where it is larger (smaller), else b, which stands in for what is no number, too. A file with an instruction for
 * that defines them. */
#ifndef LANES_MAX
#define LANES_MAX(a, b) lanes_pick((a) > (b), a, b)
#define LANES_MIN(a, b) lanes_pick((a) < (b), a, b)
#endif

/* Lanes i and i ^ 8 change places; i and i ^ 4. */
SEARCH_INLINE lanes lanes_swap_8(lanes v)
{
    return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
}

SEARCH_INLINE lanes lanes_swap_4(lanes v)
{
    return __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
}

SEARCH_INLINE lanes lanes_abs(lanes v)
{
    return (lanes)((lane_bits)v & 0x7fffffff);
}

/* The level nearest to each of t. */
SEARCH_INLINE lanes nearest(const struct search_state *s, lanes t)
{
    const struct search_form *f = s->form;
    lanes first = lanes_all(s->first), last = lanes_all(s->last);
    if (!f->levels) {
        const float magic = 0x1.8p23f; /* a float near it has the step 1: the sum is rounded to integers */
        return (LANES_MIN(LANES_MAX(t, first), last) + magic) - magic;
    }
    for (int i = 0; i < f->most - f->least; i++)
        first = lanes_pick(t > s->middle[i], lanes_all(f->levels[i + 1]), first);
    return first;
}

SEARCH_INLINE lanes inverse_of(lanes scale)
{
    lane_bits some = lanes_abs(scale) > FLT_MIN;
    return lanes_pick(some, 1 / lanes_pick(some, scale, lanes_all(1)), lanes_all(0));
}

enum { WANT_SUMS = 1, WANT_ERROR = 2 };

/* Rounds group g by a line in each lane, and adds up what is wanted (l always). */
SEARCH_INLINE void group_round(const struct search_state *s, int g, const struct search_lines *at,
                               struct lane_sums *out, int want)
{
    const int len = s->form->len;
    const float *x = s->x + g * len, *w = s->w + g * len;
    const lanes inverse = inverse_of(at->scale), offset = at->min * inverse;
    struct lane_sums a = {0};
    for (int i = 0; i < len; i++) {
        lanes l = nearest(s, x[i] * inverse + offset), wl = w[i] * l;
        a.l += wl;
        if (want & WANT_SUMS) {
            a.ll += wl * l;
            a.xl += wl * x[i];
        }
        if (want & WANT_ERROR) {
            lanes e = at->scale * l - at->min - x[i];
            a.ee += w[i] * (e * e);
        }
    }
    *out = a;
}

/* The line that suits the levels of a group best. */
SEARCH_INLINE void group_solve(const struct search_state *s, int g, const struct lane_sums *a,
                               struct search_lines *out)
{
    lanes zero = {0}, one = lanes_all(1);
    const float w = s->sum_w[g], x = s->sum_x[g];
    lane_bits some = a->ll > 0;
    out->scale = lanes_pick(some, a->xl / lanes_pick(some, a->ll, one), zero);
    out->min = zero;
    if (!s->form->min_most)
        return;
    lanes det = w * a->ll - a->l * a->l;
    lane_bits solid = det > 1e-6f * w * a->ll;
    lanes scale = (w * a->xl - x * a->l) / lanes_pick(solid, det, one);
    solid &= scale > 0; /* otherwise all levels are alike: what is left is their mean */
    scale = lanes_pick(solid, scale, zero);
    lanes min = (scale * a->l - x) / w;
    lane_bits free = s->form->min_signed ? (lane_bits)(zero == zero) : (lane_bits)(min > 0);
    out->scale = lanes_pick(free, scale, out->scale);
    out->min = lanes_pick(free, min, zero);
}

/* The nearest factor that a block can keep; not zero, from which nothing leads away. */
SEARCH_INLINE float factor_round(const struct search_state *s, float v, uint16_t *bits)
{
    if (s->form->power) {
        int e = v > 0 && v < 0x1p100f ? ilogbf(v * 1.41421356f) + s->exponent + 127 : 0;
        e = e < 0 ? 0 : e > 254 ? 254 : e;
        *bits = (uint16_t)e;
        return f8_e8m0_to_f32((uint8_t)e) * s->back;
    }
    uint32_t b = fp16_from_f32(v * s->unit), mag = b & 0x7fffu;
    mag = bits_below(0x7bffu, mag, 0x7bffu, mag);
    mag = bits_below(mag, 1, v != 0, mag);
    *bits = (uint16_t)((b & 0x8000u) | mag);
    return fp16_to_f32(*bits) * s->back;
}

SEARCH_INLINE void factors_round(const struct search_state *s, lanes *v)
{
    for (int i = 0; i < SEARCH_LANES; i++) {
        uint16_t bits;
        (*v)[i] = factor_round(s, (*v)[i], &bits);
    }
}

/* The trial lines of a group, those with small scales first: from the farthest value 1.5 steps beyond the last
 * level to one step inside. */
SEARCH_INLINE void group_trials(const struct search_state *s, int g, float shift, struct search_lines *out)
{
    const struct search_form *f = s->form;
    const float *x = s->x + g * f->len;
    float low = f->min_signed ? x[0] : 0, high = low;
    for (int i = 0; i < f->len; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    float span = high - low, far = high > -low ? high : f->power ? -low : low;
    float step = (s->last - s->first) / (float)(f->most - f->least);
    static const lanes share = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7}; /* of SEARCH_PAIRS - 1 */
    static const lane_bits second = {0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1};
    lanes beyond = step * (1.5f - 2.5f / (SEARCH_PAIRS - 1) * (share + shift));
    *out = (struct search_lines){.min = lanes_all(0)};
    if (f->min_most) { /* as it comes, and with zero, near which most values lie, made a level */
        const float magic = 0x1.8p23f;
        out->scale = span / (s->last + beyond);
        lanes whole = (-low / (out->scale + FLT_MIN) + magic) - magic;
        out->min = lanes_pick(second, out->scale * whole, lanes_all(-low));
    } else if (f->power) { /* factors are positive: twice as many trials */
        out->scale = far / (s->last + beyond -
                            lanes_pick(second, lanes_all(1.25f / (SEARCH_PAIRS - 1) * step), lanes_all(0)));
    } else {
        out->scale = far / lanes_pick(second, s->first - beyond, s->last + beyond);
    }
}

/* One row of trials. *least is the smallest error so far, which a better line replaces. */
SEARCH_INLINE void group_try(struct search_state *s, int g, float shift, float *least)
{
    /* In a larger block a small scale is better, as the largest decides how coarse all others are: of lines
     * nearly alike the first one is taken. A group that is the block can be judged as it will be kept. */
    bool alone = s->form->groups == 1;
    struct search_lines at;
    struct lane_sums a;
    group_trials(s, g, shift, &at);
    group_round(s, g, &at, &a, WANT_SUMS);
    group_solve(s, g, &a, &at);
    if (alone) {
        factors_round(s, &at.scale);
        factors_round(s, &at.min);
    }
    group_round(s, g, &at, &a, WANT_ERROR);
    float smallest = FLT_MAX;
    for (int i = 0; i < SEARCH_LANES; i++)
        smallest = a.ee[i] < smallest ? a.ee[i] : smallest;
    if (!(smallest < *least))
        return;
    int best = 0;
    while (best < SEARCH_LANES - 1 && !(a.ee[best] <= smallest * (alone ? 1 : 1.01f)))
        best++;
    *least = smallest;
    s->scale[g] = at.scale[best];
    s->min[g] = at.min[best];
    s->drift[g] = a.l[best] / s->sum_w[g];
}

/* Step 1: with twice the trials where there are no further steps. */
SEARCH_INLINE void group_search(struct search_state *s, int g)
{
    float least = INFINITY;
    s->scale[g] = s->min[g] = s->drift[g] = 0;
    group_try(s, g, 0, &least);
    if (s->form->groups == 1)
        group_try(s, g, s->form->power ? 0.25f : 0.5f, &least);
}

/* The integer at or below v / unit, within bounds, by lane. */
SEARCH_INLINE lanes factor_below(lanes v, lanes unit, int least, int most)
{
    const float magic = 0x1.8p23f;
    lanes t = v * inverse_of(unit), low = lanes_all((float)least), high = lanes_all((float)most);
    t = LANES_MIN(LANES_MAX(t, low), high);
    lanes whole = (t + magic) - magic;
    return whole - lanes_pick(whole > t, lanes_all(1), lanes_all(0));
}

/* Several searches at once: lane c * starts + j tries candidate c of search j, which are the scale at or below its own
 * and the next, and the same for the minimum. */
struct searches {
    int starts;
    lanes next_scale, next_min; /* by candidate: 0 or 1 */
    lanes d, dmin, error;
    lanes a, b, m, p, r; /* for step 3 */
    lanes scale[SEARCH_GROUPS], min[SEARCH_GROUPS];
};

/* The result of a candidate. */
struct outcome {
    lanes k, n; /* factors */
    struct lane_sums sums;
};

SEARCH_INLINE void take_better(struct outcome *own, const struct outcome *other)
{
    lane_bits better = other->sums.ee < own->sums.ee;
    own->k = lanes_pick(better, other->k, own->k);
    own->n = lanes_pick(better, other->n, own->n);
    own->sums.l = lanes_pick(better, other->sums.l, own->sums.l);
    own->sums.ll = lanes_pick(better, other->sums.ll, own->sums.ll);
    own->sums.xl = lanes_pick(better, other->sums.xl, own->sums.xl);
    own->sums.ee = lanes_pick(better, other->sums.ee, own->sums.ee);
}

/* Every lane gets the best candidate of its search. */
SEARCH_INLINE void take_best(struct outcome *o, int starts)
{
    struct lane_sums *a = &o->sums;
    struct outcome other = {
        lanes_swap_8(o->k),
        lanes_swap_8(o->n),
        {lanes_swap_8(a->l), lanes_swap_8(a->ll), lanes_swap_8(a->xl), lanes_swap_8(a->ee)}};
    take_better(o, &other);
    if (starts == 8)
        return;
    other =
        (struct outcome){lanes_swap_4(o->k),
                         lanes_swap_4(o->n),
                         {lanes_swap_4(a->l), lanes_swap_4(a->ll), lanes_swap_4(a->xl), lanes_swap_4(a->ee)}};
    take_better(o, &other);
}

/* Step 2 for group g. */
SEARCH_INLINE void settle_group(const struct search_state *s, struct searches *t, int g)
{
    const struct search_form *f = s->form;
    struct outcome o = {.n = lanes_all(0)};
    o.k = factor_below(lanes_all(s->scale[g]), t->d, f->scale_least, f->scale_most) + t->next_scale;
    o.k = LANES_MIN(o.k, lanes_all((float)f->scale_most));
    struct search_lines at = {.scale = t->d * o.k};
    if (f->min_most) {
        lanes least = s->min[g] + (at.scale - s->scale[g]) * s->drift[g];
        o.n = factor_below(least, t->dmin, f->min_signed, f->min_most) + t->next_min;
        o.n = LANES_MIN(o.n, lanes_all((float)f->min_most));
    }
    at.min = t->dmin * o.n;
    group_round(s, g, &at, &o.sums, WANT_SUMS | WANT_ERROR);
    take_best(&o, t->starts);
    t->error += o.sums.ee;
    t->a += o.k * o.k * o.sums.ll;
    t->b += o.k * o.n * o.sums.l;
    t->m += o.n * o.n * s->sum_w[g];
    t->p += o.k * o.sums.xl;
    t->r += o.n * s->sum_x[g];
    t->scale[g] = o.k;
    t->min[g] = o.n;
}

/* Step 3: the d and dmin that suit the levels of a search. */
SEARCH_INLINE void factor_solve(struct searches *t)
{
    lanes zero = {0}, one = lanes_all(1), det = t->a * t->m - t->b * t->b;
    lane_bits solid = det > 1e-6f * t->a * t->m, some = t->a > 0;
    lanes d = (t->p * t->m - t->b * t->r) / lanes_pick(solid, det, one);
    lanes dmin = (d * t->b - t->r) / lanes_pick(solid, t->m, one);
    t->d = lanes_pick(solid, d, lanes_pick(some, t->p / lanes_pick(some, t->a, one), zero));
    t->dmin = lanes_pick(solid, dmin, zero);
}

/* Steps 2 and 3 from given factors in lanes 0 .. starts - 1; *best is the best outcome. */
SEARCH_INLINE void search_from(const struct search_state *s, struct searches *t, struct search_choice *best)
{
    const struct search_form *f = s->form;
    for (int round = 0; round < SEARCH_ROUNDS; round++) {
        factors_round(s, &t->d);
        if (f->min_most)
            factors_round(s, &t->dmin);
        t->error = t->a = t->b = t->m = t->p = t->r = lanes_all(0);
        for (int g = 0; g < f->groups; g++)
            settle_group(s, t, g);
        for (int j = 0; j < t->starts; j++) {
            if (!(t->error[j] < best->error))
                continue;
            *best = (struct search_choice){.d = t->d[j], .dmin = t->dmin[j], .error = t->error[j]};
            for (int g = 0; g < f->groups; g++) {
                best->scale[g] = (int)t->scale[g][j];
                best->min[g] = (int)t->min[g][j];
            }
        }
        factor_solve(t);
    }
}

/* Fills x, w and exponent from outside floats; false when all values are zero. */
SEARCH_INLINE bool search_load(struct search_state *s, const float *x, const float *weight)
{
    const struct search_form *f = s->form;
    int n = f->groups * f->len;
    float most = 0, heaviest = 0;
    for (int i = 0; i < n; i++) {
        float v = isnan(x[i]) ? 0 : x[i], w = weight ? weight[i] : 1;
        s->x[i] = v > FLT_MAX ? FLT_MAX : v < -FLT_MAX ? -FLT_MAX : v;
        s->w[i] = w > 0 && w <= FLT_MAX ? w : 0;
        most = fabsf(s->x[i]) > most ? fabsf(s->x[i]) : most;
        heaviest = s->w[i] > heaviest ? s->w[i] : heaviest;
    }
    if (most == 0)
        return false;
    int e = ilogbf(most);
    s->exponent = e > 126 ? 126 : e < -126 ? -126 : e;
    s->unit = ldexpf(1, s->exponent);
    s->back = ldexpf(1, -s->exponent);
    for (int g = 0, i = 0; g < f->groups; g++) {
        s->sum_w[g] = s->sum_x[g] = 0;
        for (int k = 0; k < f->len; k++, i++) {
            s->x[i] *= s->back;
            /* Not zero: it would leave a value unbounded. */
            float w = heaviest > FLT_MIN ? s->w[i] / heaviest : 1;
            s->w[i] = w > 1e-6f ? w : 1e-6f;
            s->sum_w[g] += s->w[i];
            s->sum_x[g] += s->w[i] * s->x[i];
        }
    }
    s->first = f->levels ? f->levels[0] : (float)f->least;
    s->last = f->levels ? f->levels[f->most - f->least] : (float)f->most;
    for (int i = 0; f->levels && i < f->most - f->least; i++)
        s->middle[i] = 0.5f * (f->levels[i] + f->levels[i + 1]);
    return true;
}

SEARCH_INLINE void fill(const struct search_state *s, const struct search_choice *c,
                        struct search_result *out)
{
    const struct search_form *f = s->form;
    factor_round(s, c->d, &out->d);
    factor_round(s, c->dmin, &out->dmin);
    for (int g = 0; g < f->groups; g++) {
        lanes scale = lanes_all(c->d * (float)c->scale[g]), min = lanes_all(c->dmin * (float)c->min[g]);
        lanes inverse = inverse_of(scale), offset = min * inverse;
        out->scale[g] = (int8_t)c->scale[g];
        out->min[g] = (uint8_t)c->min[g];
        for (int i = g * f->len; i < (g + 1) * f->len; i += SEARCH_LANES) {
            lanes v;
            memcpy(&v, s->x + i, sizeof v);
            lanes level = nearest(s, v * inverse + offset);
            for (int k = 0; k < SEARCH_LANES; k++) {
                int q = f->levels ? 0 : (int)level[k];
                while (f->levels && f->levels[q] < level[k])
                    q++;
                out->q[i + k] = (int8_t)(f->levels ? q + f->least : q);
            }
        }
    }
}

/* Where the searches begin: the largest scale of a group gets the largest factor, or one or two less; with both
 * signs where factors have one. */
SEARCH_INLINE void begin(const struct search_state *s, struct searches *t)
{
    const struct search_form *f = s->form;
    float scale = 0, min = 0;
    for (int g = 0; g < f->groups; g++) {
        scale = fabsf(s->scale[g]) > fabsf(scale) ? s->scale[g] : scale;
        min = fabsf(s->min[g]) > fabsf(min) ? s->min[g] : min;
    }
    t->starts = f->min_most ? 4 : 8;
    for (int i = 0; i < SEARCH_LANES; i++) {
        int j = i % t->starts, c = i / t->starts;
        int less = f->scale_least < 0 ? j / 2 : j,
            most = f->scale_least < 0 && j % 2 ? f->scale_least : f->scale_most;
        float factor = (float)(most > 0 ? most - less : most + less);
        if (f->groups == 1) /* there is nothing between two powers */
            factor = j < 3 ? ldexpf(1, j - 1) : 1;
        t->d[i] = scale / factor;
        t->dmin[i] = f->min_most ? min / (float)f->min_most : 0;
        t->next_scale[i] = (float)(c & 1);
        t->next_min[i] = (float)(c >> 1);
    }
}

SEARCH_INLINE void search_run(const struct search_form *f, const float *x, const float *weight,
                              struct search_result *out)
{
    struct search_state s;
    struct searches t;
    s.form = f;
    memset(out, 0, sizeof *out);
    if (!search_load(&s, x, weight))
        return;
    for (int g = 0; g < f->groups; g++)
        group_search(&s, g);
    struct search_choice best = {.error = FLT_MAX};
    if (f->groups == 1 && !f->power) { /* its line is the result */
        best = (struct search_choice){.d = s.scale[0], .dmin = s.min[0], .scale = {1}, .min = {f->min_most}};
    } else {
        begin(&s, &t);
        search_from(&s, &t, &best);
    }
    fill(&s, &best, out);
}
