#include "run/speculate.h"

#include "base/mem.h"

#include <math.h>

enum {
    SPECULATE_AGREE = 3,       /* tokens that have to match before what followed them is drafted */
    SPECULATE_AGREE_MOST = 16, /* more are not counted */
    INDEX_BITS_LEAST = 6,      /* of a hash of tokens */
    INDEX_BITS_MOST = 16,
    SPECULATE_AHEAD =
        256,          /* tokens that are assumed to be still to come where a draft model has to read first */
    COSTS_STALE = 16, /* measurements of other sizes after which one of a size expires */
    COSTS_SURE = 8,   /* more measurements of a size than this do not last longer */
    PAUSE_FIRST = 8,  /* tokens */
    PAUSE_MOST = 1 << 20
};

static const struct accept_rate accept_rate_first[SPECULATE_KINDS] = {[SPECULATE_CONSTRAINT] = {3.6, 4},
                                                                      [SPECULATE_LONG] = {3.2, 4},
                                                                      [SPECULATE_SHORT] = {1.2, 4},
                                                                      [SPECULATE_MODEL] = {3.2, 4}};

void accept_rate_begin(struct accept_rate *of_kinds)
{
    for (int i = 0; i < SPECULATE_KINDS; i++)
        of_kinds[i] = accept_rate_first[i];
}

void accept_rate_note(struct accept_rate *l, bool right)
{
    const double keep = 0.95;
    l->right = keep * l->right + right;
    l->seen = keep * l->seen + 1;
}

double accept_rate_chance(const struct accept_rate *l)
{
    return l->right / l->seen;
}

void pause_forget(struct pause *p)
{
    p->last /= 2;
}

void cost_note(struct cost *p, double seconds)
{
    p->last[p->count++ % COST_LAST] = seconds;
}

double cost_of(const struct cost *p)
{
    uint32_t n = p->count < COST_LAST ? p->count : COST_LAST;
    double sorted[COST_LAST] = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at && sorted[at - 1] > p->last[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = p->last[i];
    }
    return n > 1 ? sorted[(n - 1) / 2] : 0;
}

/* A few measurements only may be disturbed: they expire soon, and the size is tried again. */
static bool costs_known(const struct step_costs *c, uint32_t rows)
{
    uint32_t times = c->of[rows].count;
    uint32_t sure = times < COSTS_SURE ? times : COSTS_SURE;
    return times > 1 && c->now - c->seen[rows] <= COSTS_STALE * sure;
}

/* The measured costs, made monotonic: fewer rows never cost more. A measurement that contradicts this was
 * disturbed, or is old. */
static void costs_measured(struct step_costs *c)
{
    double most = INFINITY;
    for (uint32_t rows = SPECULATE_ROWS; rows; rows--) {
        double known = costs_known(c, rows) ? cost_of(&c->of[rows]) : INFINITY;
        most = known < most ? known : most;
        c->seconds[rows] = known < INFINITY ? most : 0;
    }
}

/* Extrapolates the cost of `rows` rows, where only fewer have been measured, or only more. */
static double costs_beyond(const struct step_costs *c, uint32_t from, uint32_t rows)
{
    const uint32_t first = 7; /* more rows that are assumed to be free, until a prompt is measured */
    double known = c->seconds[from], most = known / from; /* a row never costs more than its share */
    double row = c->row <= 0 ? known / (from + first) : c->row < most ? c->row : most;
    if (rows < from)
        return known - row * (from - rows);
    return known > row * rows ? known : row * rows;
}

/* Interpolates between the measured sizes, and extrapolates beyond them. */
static void costs_draw(struct step_costs *c)
{
    uint32_t below = 0;
    for (uint32_t rows = 1; rows <= SPECULATE_ROWS; rows++) {
        if (!(c->seconds[rows] > 0))
            continue;
        double step = (c->seconds[rows] - c->seconds[below]) / (rows - below);
        for (uint32_t r = below + 1; r < rows; r++)
            c->seconds[r] = below ? c->seconds[below] + step * (r - below) : costs_beyond(c, rows, r);
        below = rows;
    }
    for (uint32_t r = below + 1; below && r <= SPECULATE_ROWS; r++)
        c->seconds[r] = costs_beyond(c, below, r);
}

void step_costs_note(struct step_costs *c, uint32_t rows, double seconds)
{
    c->now++;
    if (!rows || rows > SPECULATE_ROWS)
        return;
    cost_note(&c->of[rows], seconds);
    c->seen[rows] = c->now;
    costs_measured(c);
    costs_draw(c);
}

double step_costs_of(const struct step_costs *c, uint32_t rows)
{
    if (c->flat)
        return 1 + rows / 64.0;
    return rows <= SPECULATE_ROWS ? c->seconds[rows] : c->seconds[SPECULATE_ROWS] * rows / SPECULATE_ROWS;
}

double speculate_rate(const struct speculate_plan *p, const struct step_costs *c)
{
    return p->tokens / (step_costs_of(c, p->rows) + p->extra);
}

uint32_t speculate_worth(struct speculate_plan *p, const struct step_costs *c, uint32_t n, double chance,
                         double each)
{
    const double least = 0.05; /* of a token: measurements are no more precise than that */
    struct speculate_plan with = *p, best = *p;
    double most = speculate_rate(p, c) * (1 + least / p->tokens), come = 1;
    bool known = step_costs_of(c, p->rows) > 0;
    for (uint32_t i = 1; i <= n && known; i++) {
        come *= chance;
        with = (struct speculate_plan){with.rows + 1, with.tokens + come, with.extra + each};
        if (speculate_rate(&with, c) <= most)
            continue;
        most = speculate_rate(&with, c);
        best = with;
    }
    uint32_t k = best.rows - p->rows;
    *p = best;
    return k;
}

static double speculate_price(const struct speculate_maker *m)
{
    double known = cost_of(m->cost);
    return known > 0 ? known : m->first;
}

static void speculate_rest(const struct speculate_maker *m)
{
    const struct accept_rate *first = &accept_rate_first[SPECULATE_MODEL];
    struct pause *p = m->pause;
    p->last = p->last < PAUSE_MOST ? 2 * p->last + PAUSE_FIRST : PAUSE_MOST;
    p->left = p->last;
    *m->accept_rate = (struct accept_rate){
        first->seen * (accept_rate_chance(m->accept_rate) + accept_rate_chance(first)) / 2, first->seen};
    *m->cost = (struct cost){0};
}

uint32_t speculate_ask(struct speculate_plan *p, const struct step_costs *c, uint32_t n,
                       const struct speculate_maker *m)
{
    if (m->pause->left) {
        m->pause->left--;
        return 0;
    }
    uint32_t k = speculate_worth(p, c, n, accept_rate_chance(m->accept_rate), speculate_price(m));
    if (!k && step_costs_of(c, p->rows) > 0)
        speculate_rest(m);
    return k;
}

bool speculate_worth_reading(const struct step_costs *c, uint32_t n, const struct speculate_maker *m,
                             double seconds, uint32_t left)
{
    struct speculate_plan p = {.rows = 1, .tokens = 1};
    speculate_worth(&p, c, n, accept_rate_chance(m->accept_rate), speculate_price(m));
    uint32_t ahead = SPECULATE_AHEAD / (1 + m->pause->last / PAUSE_FIRST);
    return c->flat ||
           seconds < (ahead < left ? ahead : left) * (step_costs_of(c, 1) - 1 / speculate_rate(&p, c));
}

/* How many tokens before `at` and before `n` are equal. */
static uint32_t speculate_agree(const int32_t *ids, uint32_t at, uint32_t n)
{
    uint32_t k = 0;
    while (k < at && k < SPECULATE_AGREE_MOST && ids[at - 1 - k] == ids[n - 1 - k])
        k++;
    return k;
}

int speculate_index_open(struct speculate_index *x, size_t room)
{
    *x = (struct speculate_index){.bits = INDEX_BITS_LEAST};
    while (x->bits < INDEX_BITS_MOST && room >> x->bits)
        x->bits++;
    x->last = mem_zalloc((size_t)1 << x->bits, sizeof *x->last);
    x->before = mem_alloc(room, sizeof *x->before);
    return x->last && x->before ? 0 : -1;
}

void speculate_index_close(struct speculate_index *x)
{
    mem_free(x->last);
    mem_free(x->before);
}

/* The list of positions after the same tokens as before `end`, by hash: it may hold others. */
static uint32_t *speculate_places(const struct speculate_index *x, const int32_t *end)
{
    uint64_t h = 0;
    for (int i = 1; i <= SPECULATE_AGREE; i++)
        h = (h ^ h >> 32 ^ (uint32_t)end[-i]) * 0x9e3779b97f4a7c15u;
    return &x->last[h >> (64 - x->bits)];
}

uint32_t speculate_repeat(struct speculate_index *x, int32_t *ids, uint32_t n, uint32_t most, uint32_t *agree)
{
    uint32_t from = 0, best = SPECULATE_AGREE - 1;
    for (; x->n < n; x->n++) {
        uint32_t *last = x->n < SPECULATE_AGREE ? NULL : speculate_places(x, ids + x->n);
        if (!last)
            continue;
        x->before[x->n] = *last;
        *last = x->n;
    }
    for (uint32_t at = n < SPECULATE_AGREE ? 0 : *speculate_places(x, ids + n);
         at && best < SPECULATE_AGREE_MOST; at = x->before[at]) {
        uint32_t k = speculate_agree(ids, at, n);
        if (k > best) {
            best = k;
            from = at;
        }
    }
    *agree = from ? best : 0;
    uint32_t i = 0;
    for (; from && i < most && ids[from + i] >= 0; i++) /* a row of an image is no guess */
        ids[n + i] = ids[from + i]; /* may copy draft tokens themselves: a text that repeats in a loop */
    return i;
}
