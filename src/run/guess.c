#include "run/guess.h"

#include "base/mem.h"

#include <math.h>

enum {
    GUESS_AGREE = 3,       /* tokens that have to agree before what followed them is guessed again */
    GUESS_AGREE_MOST = 16, /* more are not counted */
    INDEX_BITS_LEAST = 6,  /* of a hash of tokens */
    INDEX_BITS_MOST = 16,
    GUESS_AHEAD = 256, /* tokens that are taken to be still to come where a draft model has to read first */
    COSTS_STALE = 16,  /* measurements of others after which one of a size is forgotten */
    COSTS_SURE = 8,    /* more than so many of a size do not last longer */
    PAUSE_FIRST = 8,   /* tokens */
    PAUSE_MOST = 1 << 20
};

static const struct luck luck_first[GUESS_KINDS] = {
    [GUESS_RULE] = {3.6, 4}, [GUESS_LONG] = {3.2, 4}, [GUESS_SHORT] = {1.2, 4}, [GUESS_MODEL] = {3.2, 4}};

void luck_begin(struct luck *of_kinds)
{
    for (int i = 0; i < GUESS_KINDS; i++)
        of_kinds[i] = luck_first[i];
}

void luck_note(struct luck *l, bool right)
{
    const double keep = 0.95;
    l->right = keep * l->right + right;
    l->seen = keep * l->seen + 1;
}

double luck_chance(const struct luck *l)
{
    return l->right / l->seen;
}

void pause_forget(struct pause *p)
{
    p->last /= 2;
}

void price_note(struct price *p, double seconds)
{
    p->last[p->count++ % PRICE_LAST] = seconds;
}

double price_of(const struct price *p)
{
    uint32_t n = p->count < PRICE_LAST ? p->count : PRICE_LAST;
    double sorted[PRICE_LAST] = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at && sorted[at - 1] > p->last[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = p->last[i];
    }
    return n > 1 ? sorted[(n - 1) / 2] : 0;
}

/* What was tried a few times only may have been disturbed: it is soon forgotten, and tried again. */
static bool costs_known(const struct step_costs *c, uint32_t rows)
{
    uint32_t times = c->of[rows].count;
    uint32_t sure = times < COSTS_SURE ? times : COSTS_SURE;
    return times > 1 && c->now - c->seen[rows] <= COSTS_STALE * sure;
}

/* What was measured, but that fewer rows never cost more than many do: what says so was disturbed, or is old. */
static void costs_measured(struct step_costs *c)
{
    double most = INFINITY;
    for (uint32_t rows = GUESS_ROWS; rows; rows--) {
        double known = costs_known(c, rows) ? price_of(&c->of[rows]) : INFINITY;
        most = known < most ? known : most;
        c->seconds[rows] = known < INFINITY ? most : 0;
    }
}

/* The cost of so many rows, where only fewer have been measured, or only more. */
static double costs_beyond(const struct step_costs *c, uint32_t from, uint32_t rows)
{
    const uint32_t first = 7; /* so many more rows are taken to cost nothing, where no prompt has told */
    double known = c->seconds[from], most = known / from; /* a row never costs more than its share */
    double row = c->row <= 0 ? known / (from + first) : c->row < most ? c->row : most;
    if (rows < from)
        return known - row * (from - rows);
    return known > row * rows ? known : row * rows;
}

/* Fills what lies between the measured sizes, and beyond them. */
static void costs_draw(struct step_costs *c)
{
    uint32_t below = 0;
    for (uint32_t rows = 1; rows <= GUESS_ROWS; rows++) {
        if (!(c->seconds[rows] > 0))
            continue;
        double step = (c->seconds[rows] - c->seconds[below]) / (rows - below);
        for (uint32_t r = below + 1; r < rows; r++)
            c->seconds[r] = below ? c->seconds[below] + step * (r - below) : costs_beyond(c, rows, r);
        below = rows;
    }
    for (uint32_t r = below + 1; below && r <= GUESS_ROWS; r++)
        c->seconds[r] = costs_beyond(c, below, r);
}

void costs_note(struct step_costs *c, uint32_t rows, double seconds)
{
    c->now++;
    if (!rows || rows > GUESS_ROWS)
        return;
    price_note(&c->of[rows], seconds);
    c->seen[rows] = c->now;
    costs_measured(c);
    costs_draw(c);
}

double costs_of(const struct step_costs *c, uint32_t rows)
{
    if (c->flat)
        return 1 + rows / 64.0;
    return rows <= GUESS_ROWS ? c->seconds[rows] : c->seconds[GUESS_ROWS] * rows / GUESS_ROWS;
}

double guess_rate(const struct guess_plan *p, const struct step_costs *c)
{
    return p->tokens / (costs_of(c, p->rows) + p->extra);
}

uint32_t guess_worth(struct guess_plan *p, const struct step_costs *c, uint32_t n, double chance, double each)
{
    const double least = 0.05; /* of a token: what is measured is not that sure */
    struct guess_plan with = *p, best = *p;
    double most = guess_rate(p, c) * (1 + least / p->tokens), come = 1;
    bool known = costs_of(c, p->rows) > 0;
    for (uint32_t i = 1; i <= n && known; i++) {
        come *= chance;
        with = (struct guess_plan){with.rows + 1, with.tokens + come, with.extra + each};
        if (guess_rate(&with, c) <= most)
            continue;
        most = guess_rate(&with, c);
        best = with;
    }
    uint32_t k = best.rows - p->rows;
    *p = best;
    return k;
}

double guess_price(const struct guess_maker *m)
{
    double known = price_of(m->price);
    return known > 0 ? known : m->first;
}

static void guess_rest(const struct guess_maker *m)
{
    const struct luck *first = &luck_first[GUESS_MODEL];
    struct pause *p = m->pause;
    p->last = p->last < PAUSE_MOST ? 2 * p->last + PAUSE_FIRST : PAUSE_MOST;
    p->left = p->last;
    *m->luck = (struct luck){first->seen * (luck_chance(m->luck) + luck_chance(first)) / 2, first->seen};
    *m->price = (struct price){0};
}

uint32_t guess_ask(struct guess_plan *p, const struct step_costs *c, uint32_t n, const struct guess_maker *m)
{
    if (m->pause->left) {
        m->pause->left--;
        return 0;
    }
    uint32_t k = guess_worth(p, c, n, luck_chance(m->luck), guess_price(m));
    if (!k && costs_of(c, p->rows) > 0)
        guess_rest(m);
    return k;
}

bool guess_worth_reading(const struct step_costs *c, uint32_t n, const struct guess_maker *m, double seconds,
                         uint32_t left)
{
    struct guess_plan p = {.rows = 1, .tokens = 1};
    guess_worth(&p, c, n, luck_chance(m->luck), guess_price(m));
    uint32_t ahead = GUESS_AHEAD / (1 + m->pause->last / PAUSE_FIRST);
    return c->flat || seconds < (ahead < left ? ahead : left) * (costs_of(c, 1) - 1 / guess_rate(&p, c));
}

/* Tokens before `at` and before `n` that agree. */
static uint32_t guess_agree(const int32_t *ids, uint32_t at, uint32_t n)
{
    uint32_t k = 0;
    while (k < at && k < GUESS_AGREE_MOST && ids[at - 1 - k] == ids[n - 1 - k])
        k++;
    return k;
}

int guess_index_open(struct guess_index *x, size_t room)
{
    *x = (struct guess_index){.bits = INDEX_BITS_LEAST};
    while (x->bits < INDEX_BITS_MOST && room >> x->bits)
        x->bits++;
    x->last = mem_zalloc((size_t)1 << x->bits, sizeof *x->last);
    x->before = mem_alloc(room, sizeof *x->before);
    return x->last && x->before ? 0 : -1;
}

void guess_index_close(struct guess_index *x)
{
    mem_free(x->last);
    mem_free(x->before);
}

/* Where the list of the places stands after which the same tokens come as before `end`; and some others. */
static uint32_t *guess_places(const struct guess_index *x, const int32_t *end)
{
    uint64_t h = 0;
    for (int i = 1; i <= GUESS_AGREE; i++)
        h = (h ^ h >> 32 ^ (uint32_t)end[-i]) * 0x9e3779b97f4a7c15u;
    return &x->last[h >> (64 - x->bits)];
}

uint32_t guess_repeat(struct guess_index *x, int32_t *ids, uint32_t n, uint32_t most, uint32_t *agree)
{
    uint32_t from = 0, best = GUESS_AGREE - 1;
    for (; x->n < n; x->n++) {
        uint32_t *last = x->n < GUESS_AGREE ? NULL : guess_places(x, ids + x->n);
        if (!last)
            continue;
        x->before[x->n] = *last;
        *last = x->n;
    }
    for (uint32_t at = n < GUESS_AGREE ? 0 : *guess_places(x, ids + n); at && best < GUESS_AGREE_MOST;
         at = x->before[at]) {
        uint32_t k = guess_agree(ids, at, n);
        if (k > best) {
            best = k;
            from = at;
        }
    }
    *agree = from ? best : 0;
    for (uint32_t i = 0; from && i < most; i++)
        ids[n + i] = ids[from + i]; /* may run into the guesses themselves: a text that goes round */
    return from ? most : 0;
}
