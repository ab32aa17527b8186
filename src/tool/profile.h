/* Where the time of an answer went, operation by operation: the table of `quern run --profile`. */
#pragma once

#include "run/generate.h"
#include "run/loaded.h"

struct profile {
    struct loaded *loaded;
    double *now;    /* (plan.count): what the device adds to */
    double *prompt; /* (plan.count): what stood there when the prompt was done */
};

int profile_start(struct profile *p, struct loaded *l, struct err *e);
void profile_mark(struct profile *p);                                    /* the prompt is done */
void profile_print(const struct profile *p, const struct generation *g); /* to stderr */
void profile_free(struct profile *p);
