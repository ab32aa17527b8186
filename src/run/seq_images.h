/* What a step of a model that sees has beside token ids: rows of images, positions on several axes, spans of keys. For the
 * runner. */
#pragma once

#include "run/runner.h"

/* The arrays of a step; freed by step_free_images, also after a failure. */
int step_take_images(struct runner *r, struct err *e);
void step_free_images(struct runner *r);
/* The rows of a part: its images' own rows, positions, and which keys they see. */
void part_fill_images(const struct seq_rows *p, struct step *st);
/* Writes the rows that images give to the device, before the step. */
int step_give_images(struct runner *r, const struct step *st, struct err *e);
