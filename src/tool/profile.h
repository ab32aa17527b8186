/* A profile of one request at three levels: the step, its operations, and (on a GPU) the kernels they launch.
 * The table of `quern run --profile`, and its JSON. */
#pragma once

#include "base/buf.h"
#include "base/json.h"
#include "run/session.h"
#include "tool/answer.h"

enum { PROFILE_KERNELS = 64 };

struct profile_kernels {
    struct device_kernel all[PROFILE_KERNELS];
    uint32_t count;
};

struct profile {
    struct session *session;
    double *now;    /* (plan.count): what the device adds to */
    double *prompt; /* (plan.count): what stood there when the prompt was done */
    struct profile_kernels prompt_kernels, kernels;
    double began, read,
        ended; /* when it started, when the prompt was done, and when all was: steps lie within */
};

int profile_start(struct profile *p, struct session *l, struct err *e);
void profile_mark(struct profile *p); /* the prompt is done */
/* The result: a table, or one JSON value. */
void profile_text(struct profile *p, const struct generation *g, struct buf *out);
void profile_json(struct profile *p, const struct generation *g, struct buf *out);
void profile_free(struct profile *p);

/* What the device's kernels took since the last call; its `seconds` have to be there. */
void profile_take(struct device *d, struct profile_kernels *k);
/* Their table, and the key "kernels"; wall: the seconds that shares are of. */
void profile_kernels_text(const struct profile_kernels *kernels, double wall, struct buf *out);
void profile_kernels_json(const struct profile_kernels *kernels, double wall, struct json *j);
