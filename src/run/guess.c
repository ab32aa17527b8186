#include "run/guess.h"

enum {
    GUESS_AGREE = 3,       /* tokens that have to agree before what followed them is guessed again */
    GUESS_AGREE_MOST = 16, /* more are not counted */
    COSTS_STALE = 512      /* measurements after which a cost is forgotten */
};

void luck_begin(struct luck *of_kinds)
{
    static const struct luck first[GUESS_KINDS] = {
        [GUESS_RULE] = {3.6, 4}, [GUESS_LONG] = {3.2, 4}, [GUESS_SHORT] = {1.2, 4}, [GUESS_MODEL] = {2.8, 4}};
    for (int i = 0; i < GUESS_KINDS; i++)
        of_kinds[i] = first[i];
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

void costs_note(struct step_costs *c, uint32_t rows, double seconds)
{
    c->now++;
    if (!rows || rows > GUESS_ROWS)
        return;
    if (!c->tried[rows]) {
        c->tried[rows] = true;
        return;
    }
    double *known = &c->seconds[rows];
    if (*known > 0 && c->now - c->seen[rows] > COSTS_STALE)
        *known = 0;
    /* a step that was disturbed says little: dearer ones count less than cheaper ones */
    *known = *known > 0 ? *known + (seconds < *known ? 0.5 : 0.1) * (seconds - *known) : seconds;
    c->seen[rows] = c->now;
}

static bool costs_known(const struct step_costs *c, uint32_t rows)
{
    return c->seconds[rows] > 0 && c->now - c->seen[rows] <= COSTS_STALE;
}

/* The fewest rows from `rows` on, upwards or downwards, whose cost is known; 0 = there are none. */
static uint32_t costs_find(const struct step_costs *c, uint32_t rows, int way)
{
    while (rows && rows <= GUESS_ROWS && !costs_known(c, rows))
        rows += (uint32_t)way;
    return rows <= GUESS_ROWS ? rows : 0;
}

double costs_of(const struct step_costs *c, uint32_t rows)
{
    const double first = 0.25; /* of what a row costs on average: one more, where nothing else is known */
    if (c->flat)
        return 1 + rows / 64.0;
    if (rows > GUESS_ROWS)
        return costs_of(c, GUESS_ROWS) * rows / GUESS_ROWS;
    uint32_t below = costs_find(c, rows, -1), above = costs_find(c, rows, 1), least = costs_find(c, 1, 1);
    if (!below || above == below)
        return above ? c->seconds[above] : 0;
    double low = c->seconds[below];
    if (above)
        return low + (c->seconds[above] - low) * (rows - below) / (above - below);
    double more = below > least ? (low - c->seconds[least]) / (below - least) : first * low / below;
    return low + (more > 0 ? more : 0) * (rows - below);
}

uint32_t guess_worth(struct guess_plan *p, const struct step_costs *c, uint32_t n, double chance, double each)
{
    const double least = 0.05; /* of a token: what is measured is not that sure */
    double base = costs_of(c, p->rows) + p->extra, best = p->tokens + least, come = 1, gain = 0, most = 0;
    uint32_t k = 0;
    for (uint32_t i = 1; i <= n && base > 0; i++) {
        come *= chance;
        gain += come;
        double rate = (p->tokens + gain) * base / (costs_of(c, p->rows + i) + p->extra + i * each);
        if (rate > best) {
            best = rate;
            most = gain;
            k = i;
        }
    }
    p->rows += k;
    p->tokens += most;
    p->extra += k * each;
    return k;
}

/* Tokens before `at` and before `n` that agree. */
static uint32_t guess_agree(const int32_t *ids, uint32_t at, uint32_t n)
{
    uint32_t k = 0;
    while (k < at && k < GUESS_AGREE_MOST && ids[at - 1 - k] == ids[n - 1 - k])
        k++;
    return k;
}

uint32_t guess_repeat(int32_t *ids, uint32_t n, uint32_t most, uint32_t *agree)
{
    uint32_t from = 0, best = GUESS_AGREE - 1;
    for (uint32_t at = n ? n - 1 : 0; at > best && best < GUESS_AGREE_MOST; at--) {
        if (ids[at - 1] != ids[n - 1])
            continue;
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
