/* The search for the best integers of a block, in three moves:
 *
 *   1. each group alone: from a row of trial scales, round, solve for the real scale and minimum that suit
 *      those codes best (least squares), and keep what leaves the smallest error;
 *   2. for a given d and dmin, the integer scale and minimum of each group: those on both sides of its own;
 *   3. solve for the d and dmin that suit all codes so found, round them, and do 2 again.
 *
 * The values are first brought near 1 by a power of two, so that no sum can overflow. The order of all sums
 * is fixed, so that the result is too. */
#include "base/fit.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/half.h"

enum {
    FIT_LANES = 4,
    FIT_TRIALS = 11, /* scales tried for a group */
    FIT_STARTS = 3,  /* largest factors from which d is searched */
    FIT_ROUNDS = 4   /* times that moves 2 and 3 are made from there, at most */
};

/* value = scale * level - min */
struct line {
    float scale, min;
};

/* A group rounded by a line: sums of w times level, level^2, x * level, and the error squared. */
struct sums {
    float l, ll, xl, ee;
};

/* The whole block, times 2^-exponent, and each group's own best. */
struct search {
    const struct fit_form *form;
    int exponent;
    float first, last;        /* levels */
    float middle[FIT_LEVELS]; /* between level i and i + 1 */
    float x[FIT_VALUES], w[FIT_VALUES];
    float sum_w[FIT_GROUPS], sum_x[FIT_GROUPS]; /* of w and of w * x, by group */
    struct line own[FIT_GROUPS];
    float drift[FIT_GROUPS]; /* how a group's best minimum moves with its scale */
};

/* A full answer but for the codes, which follow from it. */
struct choice {
    float d, dmin, error;
    int scale[FIT_GROUPS], min[FIT_GROUPS];
    struct sums sums[FIT_GROUPS];
};

/* Four floats at a time, in whatever registers the machine has. */
typedef float lanes __attribute__((vector_size(16)));
typedef int32_t lane_bits __attribute__((vector_size(16)));

static inline lanes lanes_load(const float *p)
{
    lanes v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline lanes lanes_pick(lane_bits mask, lanes yes, lanes no)
{
    return (lanes)((mask & (lane_bits)yes) | (~mask & (lane_bits)no));
}

static inline float lanes_sum(lanes a)
{
    return (a[0] + a[2]) + (a[1] + a[3]);
}

/* The level nearest to each of t. */
static inline lanes nearest(const struct search *s, lanes t)
{
    const struct fit_form *f = s->form;
    lanes first = s->first - (lanes){0}, last = s->last - (lanes){0};
    if (!f->levels) {
        const float magic = 0x1.8p23f; /* a float near it has the step 1: the sum is rounded to integers */
        t = lanes_pick(t > first, t, first);
        t = lanes_pick(t < last, t, last);
        return (t + magic) - magic;
    }
    for (int i = 0; i < f->most - f->least; i++)
        first = lanes_pick(t > s->middle[i], f->levels[i + 1] - (lanes){0}, first);
    return first;
}

/* Rounds group g by a line. The levels are stored where level is not NULL. */
static struct sums group_round(const struct search *s, int g, struct line at, float *level)
{
    const int len = s->form->len;
    const float *x = s->x + g * len, *w = s->w + g * len;
    const float inverse = fabsf(at.scale) > FLT_MIN ? 1 / at.scale : 0;
    lanes sl = {0}, sll = {0}, sxl = {0}, see = {0};
    for (int i = 0; i < len; i += FIT_LANES) {
        lanes xi = lanes_load(x + i), wi = lanes_load(w + i);
        lanes l = nearest(s, (xi + at.min) * inverse), wl = wi * l, e = at.scale * l - at.min - xi;
        sl += wl;
        sll += wl * l;
        sxl += wl * xi;
        see += wi * e * e;
        if (level)
            memcpy(level + i, &l, sizeof l);
    }
    return (struct sums){lanes_sum(sl), lanes_sum(sll), lanes_sum(sxl), lanes_sum(see)};
}

/* The line that suits the levels of a group best. */
static struct line group_solve(const struct search *s, int g, const struct sums *a)
{
    const float w = s->sum_w[g], x = s->sum_x[g], det = w * a->ll - a->l * a->l;
    struct line r = {a->ll > 0 ? a->xl / a->ll : 0, 0};
    if (s->form->min_most) {
        float scale = (w * a->xl - x * a->l) / det;
        bool flat =
            !(det > 1e-6f * w * a->ll && scale > 0); /* all levels alike: what is left is their mean */
        struct line free = {flat ? 0 : scale, flat ? -x / w : (scale * a->l - x) / w};
        if (free.min > 0 || s->form->min_signed)
            r = free;
    }
    return r;
}

/* The nearest factor that a block can keep; not zero, from which nothing leads away. */
static float factor_round(const struct search *s, float v, uint16_t *bits)
{
    float unit = ldexpf(1, s->exponent), back = ldexpf(1, -s->exponent);
    if (s->form->power) {
        int e = v > 0 && v < 0x1p100f ? ilogbf(v * 1.41421356f) + s->exponent + 127 : 0;
        e = e < 0 ? 0 : e > 254 ? 254 : e;
        *bits = (uint16_t)e;
        return f8_e8m0_to_f32((uint8_t)e) * back;
    }
    *bits = fp16_from_f32(v * unit);
    if ((*bits & 0x7fff) > 0x7bff)
        *bits = (*bits & 0x8000) | 0x7bff;
    if ((*bits & 0x7fff) == 0 && v != 0)
        *bits |= 1;
    return fp16_to_f32(*bits) * back;
}

struct best {
    struct line at;
    struct sums sums;
};

/* Rounds by a line and by the one that suits the levels so found, which becomes *best if it is better. */
static void group_try(const struct search *s, int g, struct line at, struct best *best)
{
    /* In a larger block a small scale is worth something, as the largest decides how coarse all others are:
     * of lines nearly alike the first one stays. A group that is the block can be judged as it will be kept. */
    bool alone = s->form->groups == 1;
    struct sums a = group_round(s, g, at, NULL);
    at = group_solve(s, g, &a);
    if (alone) {
        uint16_t bits;
        at = (struct line){factor_round(s, at.scale, &bits), factor_round(s, at.min, &bits)};
    }
    a = group_round(s, g, at, NULL);
    if (a.ee < best->sums.ee * (alone ? 1 : 0.99f))
        *best = (struct best){at, a};
}

/* Move 1. */
static void group_fit(struct search *s, int g)
{
    const struct fit_form *f = s->form;
    const float *x = s->x + g * f->len;
    float low = f->min_signed ? x[0] : 0, high = low;
    for (int i = 0; i < f->len; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    float span = high - low, far = high > -low ? high : f->power ? -low : low;
    float step = (s->last - s->first) / (float)(f->most - f->least);
    struct best best = {.sums.ee = FLT_MAX};
    for (int k = 0; k < FIT_TRIALS; k++) {
        /* Small scales first: from the farthest value 1.5 steps beyond the last level to one step inside. */
        float beyond = step * (1.5f - 2.5f * (float)k / (FIT_TRIALS - 1));
        if (f->min_most) {
            /* As it comes, and with zero, near which most values lie, made a level. */
            float scale = span / (s->last + beyond);
            group_try(s, g, (struct line){scale, -low}, &best);
            group_try(s, g, (struct line){scale, scale * nearbyintf(-low / (scale + FLT_MIN))}, &best);
        } else {
            group_try(s, g, (struct line){far / (s->last + beyond), 0}, &best);
            if (!f->power)
                group_try(s, g, (struct line){far / (s->first - beyond), 0}, &best);
        }
    }
    s->own[g] = best.at;
    s->drift[g] = best.sums.l / s->sum_w[g];
}

/* The integer at or below v / unit, within bounds. */
static int factor_below(float v, float unit, int least, int most)
{
    float t = v / unit;
    if (!(t > (float)least))
        return least;
    return t < (float)most ? (int)floorf(t) : most;
}

/* Move 2: fills in all but d and dmin, which are given. Gives up where the error comes to `limit`. */
static void settle(const struct search *s, struct choice *c, float limit)
{
    const struct fit_form *f = s->form;
    c->error = 0;
    for (int g = 0; g < f->groups; g++) {
        struct line own = s->own[g];
        int scale = factor_below(own.scale, c->d, f->scale_least, f->scale_most);
        c->sums[g].ee = FLT_MAX;
        for (int k = scale; k <= scale + 1 && k <= f->scale_most; k++) {
            float step = c->d * (float)k, least = own.min + (step - own.scale) * s->drift[g];
            int min = factor_below(least, c->dmin, f->min_signed, f->min_most);
            for (int m = min; m <= min + 1 && m <= f->min_most; m++) {
                struct sums a = group_round(s, g, (struct line){step, c->dmin * (float)m}, NULL);
                if (a.ee < c->sums[g].ee) {
                    c->sums[g] = a;
                    c->scale[g] = k;
                    c->min[g] = m;
                }
            }
        }
        c->error += c->sums[g].ee;
        if (c->error >= limit)
            return;
    }
}

/* Move 3: the d and dmin that suit the levels of a choice. */
static struct line factor_solve(const struct search *s, const struct choice *c)
{
    float a = 0, b = 0, m = 0, p = 0, r = 0;
    for (int g = 0; g < s->form->groups; g++) {
        float k = (float)c->scale[g], n = (float)c->min[g];
        a += k * k * c->sums[g].ll;
        b += k * n * c->sums[g].l;
        m += n * n * s->sum_w[g];
        p += k * c->sums[g].xl;
        r += n * s->sum_x[g];
    }
    float det = a * m - b * b;
    if (det > 1e-6f * a * m) {
        float d = (p * m - b * r) / det;
        return (struct line){d, (d * b - r) / m};
    }
    return (struct line){a > 0 ? p / a : 0, 0};
}

/* Moves 2 and 3 from given factors; *best becomes the outcome if it is better. */
static void search_from(const struct search *s, struct line from, struct choice *best)
{
    uint16_t bits;
    struct choice c = {.error = FLT_MAX};
    for (int i = 0; i < FIT_ROUNDS; i++) {
        c.d = factor_round(s, from.scale, &bits);
        c.dmin = factor_round(s, from.min, &bits);
        settle(s, &c, best->error);
        if (!(c.error < best->error))
            return;
        *best = c;
        from = factor_solve(s, &c);
    }
}

/* Fills x, w and exponent from outside floats; false when all values are zero. */
static bool search_load(struct search *s, const float *x, const float *weight)
{
    const struct fit_form *f = s->form;
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
    float back = ldexpf(1, -s->exponent);
    for (int i = 0; i < n; i++) {
        s->x[i] *= back;
        /* Even what does not matter must not be free to go anywhere. */
        s->w[i] = heaviest > FLT_MIN ? fmaxf(s->w[i] / heaviest, 1e-6f) : 1;
    }
    for (int i = 0; i < n; i++) {
        s->sum_w[i / f->len] += s->w[i];
        s->sum_x[i / f->len] += s->w[i] * s->x[i];
    }
    s->first = f->levels ? f->levels[0] : (float)f->least;
    s->last = f->levels ? f->levels[f->most - f->least] : (float)f->most;
    for (int i = 0; f->levels && i < f->most - f->least; i++)
        s->middle[i] = 0.5f * (f->levels[i] + f->levels[i + 1]);
    return true;
}

static void fill(const struct search *s, const struct choice *c, struct fit *out)
{
    const struct fit_form *f = s->form;
    float level[FIT_VALUES];
    factor_round(s, c->d, &out->d);
    factor_round(s, c->dmin, &out->dmin);
    for (int g = 0; g < f->groups; g++) {
        struct line at = {c->d * (float)c->scale[g], c->dmin * (float)c->min[g]};
        group_round(s, g, at, level + g * f->len);
        out->scale[g] = (int8_t)c->scale[g];
        out->min[g] = (uint8_t)c->min[g];
    }
    for (int i = 0; i < f->groups * f->len; i++) {
        int q = f->levels ? 0 : (int)level[i];
        while (f->levels && f->levels[q] < level[i])
            q++;
        out->q[i] = (int8_t)(f->levels ? q + f->least : q);
    }
}

void fit_block(const struct fit_form *f, const float *x, const float *weight, struct fit *out)
{
    struct search s = {.form = f};
    memset(out, 0, sizeof *out);
    if (!search_load(&s, x, weight))
        return;
    struct line most = {0, 0};
    for (int g = 0; g < f->groups; g++) {
        group_fit(&s, g);
        most.scale = fabsf(s.own[g].scale) > fabsf(most.scale) ? s.own[g].scale : most.scale;
        most.min = fabsf(s.own[g].min) > fabsf(most.min) ? s.own[g].min : most.min;
    }
    struct choice best = {.error = FLT_MAX};
    if (f->min_most)
        most.min /= (float)f->min_most;
    for (int k = 0; k < FIT_STARTS && f->groups > 1; k++) {
        search_from(&s, (struct line){most.scale / (float)(f->scale_most - k), most.min}, &best);
        if (f->scale_least < 0)
            search_from(&s, (struct line){most.scale / (float)(f->scale_least + k), most.min}, &best);
    }
    if (f->groups == 1)
        search_from(&s, most, &best);
    if (f->power) { /* there is nothing between two factors */
        search_from(&s, (struct line){most.scale / 2, 0}, &best);
        search_from(&s, (struct line){most.scale * 2, 0}, &best);
    }
    fill(&s, &best, out);
}
