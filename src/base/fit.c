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
    FIT_LANES = 8,
    FIT_TRIALS = 11, /* scales tried for a group */
    FIT_ROUNDS = 4   /* times that moves 2 and 3 are made, at most */
};

/* value = scale * level - min */
struct line {
    float scale, min;
};

/* A group rounded by a line: sums of w times 1, level, level^2, x, x * level, and the error squared. */
struct sums {
    float w, l, ll, x, xl, ee;
};

/* The whole block, times 2^-exponent, and each group's own best. */
struct search {
    const struct fit_form *form;
    int exponent;
    float first, last;        /* levels */
    float middle[FIT_LEVELS]; /* between level i and i + 1 */
    float x[FIT_VALUES], w[FIT_VALUES];
    struct line own[FIT_GROUPS];
    float drift[FIT_GROUPS]; /* how a group's best minimum moves with its scale */
};

/* A full answer but for the codes, which follow from it. */
struct choice {
    float d, dmin, error;
    int scale[FIT_GROUPS], min[FIT_GROUPS];
    struct sums sums[FIT_GROUPS];
};

struct lanes {
    float v[FIT_LANES];
};

static float lanes_sum(const struct lanes *a)
{
    const float *v = a->v;
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/* The levels nearest to each of t. */
static inline struct lanes nearest(const struct search *s, struct lanes t)
{
    const struct fit_form *f = s->form;
    struct lanes r;
    if (!f->levels) {
        const float magic = 0x1.8p23f; /* a float near it has the step 1: the sum is rounded to integers */
        for (int k = 0; k < FIT_LANES; k++) {
            float v = t.v[k] > s->first ? t.v[k] : s->first;
            v = v < s->last ? v : s->last;
            r.v[k] = (v + magic) - magic;
        }
        return r;
    }
    for (int k = 0; k < FIT_LANES; k++)
        r.v[k] = s->first;
    for (int i = 0; i < f->most - f->least; i++)
        for (int k = 0; k < FIT_LANES; k++)
            r.v[k] = t.v[k] > s->middle[i] ? f->levels[i + 1] : r.v[k];
    return r;
}

/* Rounds group g by a line. The levels are stored where level is not NULL. */
static struct sums group_round(const struct search *s, int g, struct line at, float *level)
{
    const int len = s->form->len;
    const float *x = s->x + g * len, *w = s->w + g * len;
    const float inverse = fabsf(at.scale) > FLT_MIN ? 1 / at.scale : 0;
    struct lanes sw = {{0}}, sl = {{0}}, sll = {{0}}, sx = {{0}}, sxl = {{0}}, see = {{0}}, t;
    for (int i = 0; i < len; i += FIT_LANES) {
        for (int k = 0; k < FIT_LANES; k++)
            t.v[k] = (x[i + k] + at.min) * inverse;
        t = nearest(s, t);
        for (int k = 0; k < FIT_LANES; k++) {
            float l = t.v[k], wl = w[i + k] * l, e = at.scale * l - at.min - x[i + k];
            sw.v[k] += w[i + k];
            sl.v[k] += wl;
            sll.v[k] += wl * l;
            sx.v[k] += w[i + k] * x[i + k];
            sxl.v[k] += wl * x[i + k];
            see.v[k] += w[i + k] * e * e;
        }
        if (level)
            memcpy(level + i, t.v, sizeof t.v);
    }
    return (struct sums){lanes_sum(&sw), lanes_sum(&sl),  lanes_sum(&sll),
                         lanes_sum(&sx), lanes_sum(&sxl), lanes_sum(&see)};
}

/* The line that suits the levels of a group best, and the error that it leaves with them. `at` is the line
 * by which they were rounded. */
static struct line group_solve(const struct search *s, const struct sums *a, struct line at, float *error)
{
    const struct fit_form *f = s->form;
    struct line r = {a->ll > 0 ? a->xl / a->ll : 0, 0};
    float det = a->w * a->ll - a->l * a->l;
    if (f->min_most && det > 1e-6f * a->w * a->ll) {
        float scale = (a->w * a->xl - a->x * a->l) / det, min = (scale * a->l - a->x) / a->w;
        if (scale > 0 && (min > 0 || f->min_signed))
            r = (struct line){scale, min};
    }
    /* The error at the minimum of a parabola, from the error elsewhere. Where the minimum of the group was
     * forced to zero r is not that: it is then judged too well, and the next rounding says so. */
    float ds = r.scale - at.scale, dm = r.min - at.min;
    *error = a->ee - (ds * ds * a->ll - 2 * ds * dm * a->l + dm * dm * a->w);
    return r;
}

struct best {
    struct line at;
    float error;
};

static void group_try(const struct search *s, int g, struct line at, struct best *best)
{
    float error;
    struct sums a = group_round(s, g, at, NULL);
    at = group_solve(s, &a, at, &error);
    if (error < best->error)
        *best = (struct best){at, error};
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
    float span = high - low, far = high > -low ? high : low;
    float step = (s->last - s->first) / (float)(f->most - f->least);
    struct best best = {{0, 0}, FLT_MAX};
    for (int k = 0; k < FIT_TRIALS; k++) {
        /* The farthest value lies from a step inside the last level to one beyond it. */
        float beyond = step * (-1 + 2 * (float)k / (FIT_TRIALS - 1));
        if (f->min_most) {
            group_try(s, g, (struct line){span / (s->last + beyond), -low}, &best);
        } else {
            group_try(s, g, (struct line){fabsf(far) / (s->last + beyond), 0}, &best);
            if (!f->power)
                group_try(s, g, (struct line){far / (s->first - beyond), 0}, &best);
        }
    }
    struct sums a = group_round(s, g, best.at, NULL);
    s->own[g] = group_solve(s, &a, best.at, &best.error);
    s->drift[g] = a.l / a.w;
}

/* The nearest factor that a block can keep; not zero, from which nothing leads away. */
static float factor_round(const struct search *s, float v, uint16_t *bits)
{
    float unit = ldexpf(1, s->exponent), back = ldexpf(1, -s->exponent);
    if (s->form->power) {
        int e = v > 0 ? ilogbf(v * 1.41421356f) + s->exponent + 127 : 0;
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

/* The integer at or below v / unit, within bounds. */
static int factor_below(float v, float unit, int least, int most)
{
    float t = v / unit;
    if (!(t > (float)least))
        return least;
    return t < (float)most ? (int)floorf(t) : most;
}

/* Move 2: fills in all but d and dmin, which are given. */
static void settle(const struct search *s, struct choice *c)
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
        m += n * n * c->sums[g].w;
        p += k * c->sums[g].xl;
        r += n * c->sums[g].x;
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
        float before = c.error;
        c.d = factor_round(s, from.scale, &bits);
        c.dmin = factor_round(s, from.min, &bits);
        settle(s, &c);
        if (c.error < best->error)
            *best = c;
        if (!(c.error < before))
            return;
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
    if (f->power)
        for (int k = -1; k <= 1; k++)
            search_from(&s, (struct line){ldexpf(most.scale, k), 0}, &best);
    search_from(&s, (struct line){most.scale / (float)f->scale_most, most.min}, &best);
    if (f->scale_least < 0)
        search_from(&s, (struct line){most.scale / (float)f->scale_least, most.min}, &best);
    fill(&s, &best, out);
}
