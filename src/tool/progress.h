/* A progress bar on stderr: only on a terminal, only after a short delay, and erased when the work is
 * done. */
#pragma once

#include <stdbool.h>

struct progress {
    const char *label;
    bool on;    /* stderr is a terminal */
    bool drawn; /* there is a bar to wipe */
    double start, last;
    double from; /* the share that the work began at; below 0 = not known yet */
};

void progress_start(struct progress *p, const char *label);
/* share: 0 to 1; note may be NULL. */
void progress_show(struct progress *p, double share, const char *note);
void progress_end(struct progress *p);
