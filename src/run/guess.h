/* Whether to guess ahead, and how far: how often guesses of a kind have come true lately, and what a step with so
 * many rows costs on this device. Plain data, no thread of its own. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { GUESS_MOST = 16, GUESS_ROWS = 64 }; /* guesses of a request in a step; rows whose cost is told apart */

/* Where a guess comes from. Each kind has a luck of its own. */
enum guess_kind {
    GUESS_RULE,  /* the rule allows but one text */
    GUESS_LONG,  /* the text so far, where many tokens agree */
    GUESS_SHORT, /* the same where few do */
    GUESS_MODEL, /* a draft model */
    GUESS_KINDS
};

/* Guesses that were looked at and those that came true; old ones count less and less. */
struct luck {
    double right, seen;
};

void luck_begin(struct luck *of_kinds); /* (GUESS_KINDS): what to expect before anything is known */
void luck_note(struct luck *l, bool right);
double luck_chance(const struct luck *l);

/* Seconds of steps by their rows, as measured. */
struct step_costs {
    double seconds[GUESS_ROWS + 1]; /* 0 = not measured */
    uint32_t seen[GUESS_ROWS + 1];  /* when last, counted in measurements */
    bool tried[GUESS_ROWS + 1];     /* the first step of a size may have more to do: it is not measured */
    uint32_t now;
    bool flat; /* rows are taken to cost nearly nothing, whatever was measured */
};

void costs_note(struct step_costs *c, uint32_t rows, double seconds);
/* What was not measured lies between what was, or goes on as that does. */
double costs_of(const struct step_costs *c, uint32_t rows);

/* The step as it is planned so far. */
struct guess_plan {
    uint32_t rows;
    double tokens; /* that it is expected to give */
    double extra;  /* seconds of draft models beside it */
};

/* How many of at most n guesses are worth their rows, where each comes true with this chance and takes `each` seconds to
 * make. The plan is moved on by those. 0 where they would not gain a twentieth of a
 * token. */
uint32_t guess_worth(struct guess_plan *p, const struct step_costs *c, uint32_t n, double chance,
                     double each);

/* What followed the last place where the text (n ids) ended as it does now: writes up to `most` guesses behind it, and
 * how many tokens agree there. Of several places the one with the most, of equals the last. */
uint32_t guess_repeat(int32_t *ids, uint32_t n, uint32_t most, uint32_t *agree);
