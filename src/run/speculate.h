/* When to draft tokens, and how many: by the recent accept rate of each kind of draft, and by the cost of a
 * step with a number of rows on this device. Plain data, no thread of its own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SPECULATE_MOST = 16,
    SPECULATE_ROWS = 64
}; /* draft tokens of a request in a step; numbers of rows whose costs are measured */

/* The source of draft tokens. Each kind has its own accept rate. */
enum speculate_kind {
    SPECULATE_CONSTRAINT, /* the constraint allows one text only */
    SPECULATE_LONG,       /* a repetition in the text where many tokens match */
    SPECULATE_SHORT,      /* the same where few match */
    SPECULATE_MODEL,      /* a draft model */
    SPECULATE_KINDS
};

/* Draft tokens verified and accepted; old ones decay. */
struct accept_rate {
    double right, seen;
};

void accept_rate_begin(
    struct accept_rate *of_kinds); /* (SPECULATE_KINDS): the prior, before anything is known */
void accept_rate_note(struct accept_rate *l, bool right);
double accept_rate_chance(const struct accept_rate *l);

/* Pauses of a draft model, which costs time: where it does not pay, it pauses for a number of tokens, each
 * time for longer. */
struct pause {
    uint32_t left, last;
};

/* Draft tokens were accepted: the next pause is a short one. */
void pause_forget(struct pause *p);

enum { COST_LAST = 5 };

/* A recent cost in seconds: the median of the last few measurements, so that a disturbed step has no effect.
 * One measurement does not count, and of two the shorter counts: the first may include a warm-up. */
struct cost {
    double last[COST_LAST];
    uint32_t count;
};

void cost_note(struct cost *p, double seconds);
double cost_of(const struct cost *p); /* 0 = not known */

/* Seconds of steps by their rows. */
struct step_costs {
    double seconds[SPECULATE_ROWS + 1]; /* all are 0 while nothing is known */
    struct cost of[SPECULATE_ROWS + 1]; /* as measured */
    uint32_t seen[SPECULATE_ROWS + 1];  /* when last, counted in measurements */
    uint32_t now;
    double row; /* what one of many rows takes, measured on prompts; 0 = not known */
    bool flat;  /* rows are assumed to cost nearly nothing, whatever was measured */
};

void step_costs_note(struct step_costs *c, uint32_t rows, double seconds);
/* Sizes that were not measured are interpolated. Beyond them a step is bound by memory, or by arithmetic at a
 * prompt's speed. That is a lower bound, so the size is tried, and then it is measured. */
double step_costs_of(const struct step_costs *c, uint32_t rows);

/* The step as it is planned so far. */
struct speculate_plan {
    uint32_t rows;
    double tokens; /* that it is expected to give */
    double extra;  /* seconds of draft models beside it */
};

/* How many of at most n draft tokens pay for their rows, where each is accepted with this probability and
 * takes `each` seconds to draft. Adds them to the plan. 0 where they would gain less than a twentieth of a
 * token. */
uint32_t speculate_worth(struct speculate_plan *p, const struct step_costs *c, uint32_t n, double chance,
                         double each);
/* A draft model for one request. */
struct speculate_maker {
    struct accept_rate *accept_rate;
    struct pause *pause;
    struct cost *cost; /* of a draft token */
    double first;      /* its assumed cost in seconds until it is measured */
};

/* The same for the draft model. Where no draft token pays, a pause begins; meanwhile its accept rate decays
 * towards the prior, so that it is tried again. */
uint32_t speculate_ask(struct speculate_plan *p, const struct step_costs *c, uint32_t n,
                       const struct speculate_maker *m);
/* Whether the gain covers the cost of the catch-up: `seconds` now, against a gain with every token that is
 * left. The more pauses it has had, the fewer tokens are counted. */
bool speculate_worth_reading(const struct step_costs *c, uint32_t n, const struct speculate_maker *m,
                             double seconds, uint32_t left);
/* Expected tokens a second of the plan. */
double speculate_rate(const struct speculate_plan *p, const struct step_costs *c);

/* An index of n-grams of a text, by hash: lists of positions, the last one first. */
struct speculate_index {
    uint32_t *last;   /* (1 << bits); 0 = none */
    uint32_t *before; /* (room) */
    uint32_t bits, n; /* places before n are known */
};

/* For a text of at most `room` tokens; -1: no memory. */
int speculate_index_open(struct speculate_index *x, size_t room);
void speculate_index_close(struct speculate_index *x);
/* What followed the last place where the text (n ids, which only grows) ended as it does now: appends up to
 * `most` draft tokens, and sets how many tokens match there. Of several places the one with the longest
 * match, of equals the last. */
uint32_t speculate_repeat(struct speculate_index *x, int32_t *ids, uint32_t n, uint32_t most,
                          uint32_t *agree);
