/* Lowering without a card: everything that it reads, from a stored device profile. */
#pragma once

#include "device/cuda/exec.h"

struct paper_card {
    struct gpu_profile profile;
    struct lower lower;
    struct scratch at;
    struct group_kv kv[PLAN_GROUPS_MOST];
    struct upload weights;
};

/* The stored profile of that name (any case); -1: there is none. */
int profile_stored(const char *name, struct gpu_profile *p, struct err *e);
/* Places weights, KV and scratch at made-up addresses. The caller frees, also after a failure. */
int paper_open(struct paper_card *c, const struct plan *p, const struct weights *w,
               const struct device_shape *shape, bool exact, struct err *e);
void paper_free(struct paper_card *c);
/* The class of a step of `rows` sequences that decode, or of one sequence with `rows` rows; and that step. */
struct step_class paper_step(const struct paper_card *c, uint32_t rows, uint32_t keys, bool prompt,
                             struct launch_step *s);
