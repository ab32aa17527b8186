/* How many rows of batch requests a step may have beside those of other requests: as many as make it slower by no more than
 * a twentieth. That depends on the device, so it is measured: in a trial, steps with and without such rows alternate, and
 * their medians are compared. After a good trial the next has twice as many rows. After a bad one there is a pause, each
 * time a longer one, so that few steps are slow. What was found is checked again now and then. Plain data, no thread of its
 * own. */
#pragma once

#include "run/speculate.h"

#include <stdint.h>

struct batch_room {
    uint32_t rows;           /* that are affordable */
    uint32_t grow, check;    /* steps until a trial of more rows, of the same */
    uint32_t pause;          /* steps after the last bad trial; 0 = it was good */
    uint32_t tried;          /* rows of the trial that is running; 0 = none is */
    uint32_t left;           /* steps of this trial */
    struct cost with, alone; /* of its steps */
};

/* Rows of batch requests in the next step, where `ready` are to be had. */
uint32_t batch_room_ask(struct batch_room *b, uint32_t ready);
/* Seconds of a step with this number of them, in which all other requests decoded. */
void batch_room_note(struct batch_room *b, uint32_t rows, double seconds);
