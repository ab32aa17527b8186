/* Where the experts of a step are divided while weights are sent to the card (plan_stream): the weights of those below the
 * border are sent, and the rest computes the others meanwhile. Both should take the same time. What they take is measured in
 * every step, so the border follows the machine, the number of rows, and what else runs beside it.
 *
 * A step that sends s of E experts of each operation takes the larger of
 *     link * s                    the link is never idle
 *     cpu * (E - s) + other       operations go one after the other: what else they do is in `other`
 *
 * Where s < E, rows also pass to the rest and back, which is in `other`. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { BORDER_CLASSES = 16 }; /* of steps, by powers of two of their rows */

struct border {
    uint32_t experts, used; /* of the operations that divide theirs; 0: there are none */
    bool fixed;             /* it is always `at`: for tests, and to compare */
    uint32_t at;
    struct border_class {
        bool known;
        /* Seconds in all operations: of an expert on the link; of one on the rest, for each unit of border_work; of what
         * is in neither, where s < E. */
        double link, cpu, other;
        uint32_t divided; /* steps that had experts on the rest, counted up to a limit */
    } class[BORDER_CLASSES];
};

/* What a step took. */
struct border_step {
    uint32_t rows, at;
    double seconds;
    double link, cpu; /* while weights were on the link; in operations that compute experts on the rest */
    double waited;    /* for weights */
};

uint32_t border_choose(const struct border *b, uint32_t rows);
void border_learn(struct border *b, const struct border_step *s);
