/* What the GPU's test and benchmark share: random weights, small plans, steps over paged KV. Needs libc
 * only, so that it builds on a machine with a card and nothing else. */
#pragma once

#include "codec/dtype.h"
#include "base/err.h"
#include "device/device.h"

#include <stdbool.h>
#include <stdint.h>

enum { RIG_SEQS = 128 };

struct rig {
    struct plan plan;
    struct weights weights;
    struct kv_config kv;
    struct device *device;
    uint32_t max_rows, max_seqs;
    /* the step being built */
    struct step step;
    int32_t *ids, *pos, *out, *tables;
    struct step_seq seq[RIG_SEQS];
    struct adapter_mix mix[RIG_SEQS];
    uint32_t length[RIG_SEQS]; /* tokens in KV */
    int32_t slot[RIG_SEQS];    /* of state; 0: none yet */
    int32_t *state_out, state_in[RIG_SEQS];
    uint32_t turn; /* steps so far: a sequence's state stays in its slot in every second */
    uint32_t table_width;
    uint32_t vocab;
};

uint32_t rig_random(void);
float rig_uniform(float most);
void rig_seed(uint64_t seed);

/* A matrix (or `count`) of random values of about `size`, encoded as `type`. */
weight_id rig_matrix(struct rig *r, uint32_t type, uint32_t rows, uint32_t cols, uint32_t count, float size);
weight_id rig_vector(struct rig *r, uint32_t n, float mean, float spread);
struct linear rig_linear(struct rig *r, uint32_t type, uint32_t rows, uint32_t cols, bool bias);
struct norm rig_norm(struct rig *r, enum norm_kind kind, uint32_t n);
/* Weights that point into one slab of random blocks: for benchmarks, where the bytes need only be plausible. */
weight_id rig_slab(struct rig *r, uint32_t type, uint32_t rows, uint32_t cols, uint32_t count);

/* Every product of the plan gets pairs of so many adapters; sequences then have none, one or two of the first three. */
void rig_adapt(struct rig *r, uint32_t adapters);

/* Opens (NULL: the one that is there), loads and prepares; tokens is the longest sequence. */
int rig_open(struct rig *r, const char *device, const struct device_options *o, uint32_t kv_type,
             uint32_t tokens, struct err *e);
void rig_close(struct rig *r); /* the device only */
void rig_free(struct rig *r);

/* Cuts a sequence back to the middle row of its last step, whose state was kept. */
void rig_back(struct rig *r, uint32_t seq, uint32_t rows);
/* A step: begin, add rows of sequences in any order, run. `all`: every row is wanted, else each sequence's last. */
void rig_begin(struct rig *r);
void rig_add(struct rig *r, uint32_t seq, uint32_t rows, bool all);
const float *rig_run(struct rig *r, struct err *e);

/* |a - b| / |b|; anything not finite is an error of 1e9. */
double rig_distance(const float *a, const float *b, size_t n);
