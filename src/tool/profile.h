/* A profile of one request at three levels: the step, its operations, and (on a GPU) the kernels they launch.
 * The table of `quern run --profile`, and its JSON. */
#pragma once

#include "base/buf.h"
#include "base/json.h"
#include "run/session.h"

enum { PROFILE_KERNELS = 64 };

struct profile_kernels {
    struct device_kernel all[PROFILE_KERNELS];
    uint32_t count;
};

/* What a phase took, and the steps that ran in it. */
struct profile_phase {
    double *seconds; /* (plan.count): what the device adds to */
    struct profile_kernels kernels;
    double steps, rows, keys; /* of all rows; keys: that all of them see */
    double wall, images;      /* images: what their encoder took */
};

enum { PROFILE_PROMPT, PROFILE_DECODE, PROFILE_PHASES };

struct profile {
    struct session *session;
    uint32_t prompt, at; /* tokens of the prompt; the phase that runs */
    struct profile_phase phase[PROFILE_PHASES];
    double began, images; /* when the phase began, and what images had taken until then */
};

/* prompt: tokens of the only request that runs. */
int profile_start(struct profile *p, struct session *l, uint32_t prompt, struct err *e);
void profile_end(struct profile *p); /* the request is done */
/* The result: a table, or one JSON value. */
void profile_text(const struct profile *p, struct buf *out);
void profile_json(const struct profile *p, struct buf *out);
void profile_free(struct profile *p);

/* What the device's kernels took since the last call; its `seconds` have to be there. */
void profile_take(struct device *d, struct profile_kernels *k);
/* Their table, and the key "kernels"; wall: the seconds that shares are of. */
void profile_kernels_text(const struct profile_kernels *kernels, double wall, struct buf *out);
void profile_kernels_json(const struct profile_kernels *kernels, double wall, struct json *j);
