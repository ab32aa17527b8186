/* What adapters (LoRA) add to products: y += scale * B (A x), for each row with the adapters of its sequence. The pairs of
 * all slots lie in a table on the card; which rows have which adapters comes with the step. */
#pragma once

#include "device/cuda/exec.h"

/* One product. Areas: those whose A x are kept at the same time have different ones. */
struct lora_job {
    uint32_t slot, area;
    uint32_t m;
    uint32_t heads, x_step, y_step; /* > 0: as in struct float_args */
    float *y;                       /* of lora_up */
    uint64_t ldy;
    float scale;
    const float *row_scale; /* y still lacks this factor; or NULL */
};

enum { LORA_AREAS = 3 };

/* Floats of scratch: for A x, and whether float rows are wanted at all. */
struct lora_sizes {
    uint32_t rank; /* the largest */
    uint64_t low;  /* of a row */
};
struct lora_sizes lora_measure(const struct plan *p, const struct weights *w);
/* Puts the table of pairs on the card. */
int lora_prepare(struct cuda_device *d, const struct plan *p, struct err *e);
const struct lora_entry *lora_entries(const struct cuda_device *d, uint32_t slot);
/* A x, of the rows that d->lora_in says, before the product; then B of it, once the product is in y. */
int lora_down(struct cuda_device *d, const struct lora_job *j, struct err *e);
int lora_up(struct cuda_device *d, const struct lora_job *j, struct err *e);
