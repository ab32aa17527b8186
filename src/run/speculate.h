/* Whether to guess ahead, and how far: how often guesses of a kind have come true lately, and what a step with so
 * many rows costs on this device. Plain data, no thread of its own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SPECULATE_MOST = 16,
    SPECULATE_ROWS = 64
}; /* guesses of a request in a step; rows whose cost is told apart */

/* Where a guess comes from. Each kind has a luck of its own. */
enum speculate_kind {
    SPECULATE_RULE,  /* the rule allows but one text */
    SPECULATE_LONG,  /* the text so far, where many tokens agree */
    SPECULATE_SHORT, /* the same where few do */
    SPECULATE_MODEL, /* a draft model */
    SPECULATE_KINDS
};

/* Guesses that were looked at and those that came true; old ones count less and less. */
struct accept_rate {
    double right, seen;
};

void accept_rate_begin(
    struct accept_rate *of_kinds); /* (SPECULATE_KINDS): what to expect before anything is known */
void accept_rate_note(struct accept_rate *l, bool right);
double accept_rate_chance(const struct accept_rate *l);

/* A draft model's guesses cost something to look at. Where they do not pay they are left alone for so many tokens, each
 * time for longer. */
struct pause {
    uint32_t left, last;
};

/* Guesses came true: the next pause is a short one. */
void pause_forget(struct pause *p);

enum { COST_LAST = 5 };

/* What something has taken lately: the median of the last few times, so that a step that was disturbed says nothing.
 * Once says nothing, and of two times the shorter one counts: the first may have had more to do. */
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
    double row; /* what one of many rows takes, as prompts tell; 0 = not known */
    bool flat;  /* rows are taken to cost nearly nothing, whatever was measured */
};

void step_costs_note(struct step_costs *c, uint32_t rows, double seconds);
/* What was not measured lies between what was. Beyond that a step waits for memory, or for arithmetic at a prompt's
 * speed: which is the least that it can cost, so it is tried, and then it is known. */
double step_costs_of(const struct step_costs *c, uint32_t rows);

/* The step as it is planned so far. */
struct speculate_plan {
    uint32_t rows;
    double tokens; /* that it is expected to give */
    double extra;  /* seconds of draft models beside it */
};

/* How many of at most n guesses are worth their rows, where each comes true with this chance and takes `each` seconds to
 * make. The plan is moved on by those. 0 where they would not gain a twentieth of a
 * token. */
uint32_t speculate_worth(struct speculate_plan *p, const struct step_costs *c, uint32_t n, double chance,
                         double each);
/* A draft model for one request. */
struct speculate_maker {
    struct accept_rate *accept_rate;
    struct pause *pause;
    struct cost *cost; /* of a guess */
    double first;      /* seconds that one is taken to take until that is known */
};

double speculate_price(const struct speculate_maker *m);
/* The same for its guesses. Where none are worth it a pause begins; meanwhile what is known of it fades towards what was
 * expected at first: it is tried again. */
uint32_t speculate_ask(struct speculate_plan *p, const struct step_costs *c, uint32_t n,
                       const struct speculate_maker *m);
/* Whether it gains as much as it costs to bring it up to date first: so many seconds now, something with every token of
 * those that are left. The more pauses it has had, the fewer it is trusted to gain by. */
bool speculate_worth_reading(const struct step_costs *c, uint32_t n, const struct speculate_maker *m,
                             double seconds, uint32_t left);
/* Tokens a second that are expected of it. */
double speculate_rate(const struct speculate_plan *p, const struct step_costs *c);

/* Where the same few tokens have stood in a text, by their hash: lists of places, the last one first. */
struct speculate_index {
    uint32_t *last;   /* (1 << bits); 0 = none */
    uint32_t *before; /* (room) */
    uint32_t bits, n; /* places before n are known */
};

/* For a text of at most so many tokens; -1: no memory. */
int speculate_index_open(struct speculate_index *x, size_t room);
void speculate_index_close(struct speculate_index *x);
/* What followed the last place where the text (n ids, which only grows) ended as it does now: writes up to `most` guesses
 * behind it, and how many tokens agree there. Of several places the one with the most, of equals the last. */
uint32_t speculate_repeat(struct speculate_index *x, int32_t *ids, uint32_t n, uint32_t most,
                          uint32_t *agree);
