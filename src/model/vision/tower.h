/* A tower for images with its projector: weights and the plan of both, as struct model has them for text. The plan takes
 * rows that the host writes (plan.given): the pixels of a patch, and beside them its learned position. A step without
 * fold runs up to the merge; a second one, of fewer rows, merges and projects (plan_fold).
 *
 * Rows are patches in the order in which they are merged: the merge x merge patches of a row of the text follow each
 * other. A class row is the last one. Built once, then read-only. */
#pragma once

#include "model/model.h"
#include "model/vision/params.h"

struct tower {
    struct model model; /* of the tower: its hyper-parameters are in `v` */
    struct vision_params v;
    uint32_t pixels; /* values of a patch: (3, frames, patch, patch) */
    uint32_t frames; /* how often a row has the image: as often as the kernel has frames */
    const float
        *positions; /* learned ones, (v.positions, width); of gemma4 (2, v.positions, width); NULL = none */
    const float *class_row; /* (width): what stands for the position of the class row */
    const float *newline;   /* (out_width): the row behind each line (llava-next); NULL = none */
    uint32_t folded;        /* patches of a row: merge x merge */
};

/* The store may be that of the text model (a folder) or an mmproj file. head_dim: the size that heads are padded to, given
 * their own (cuda_head_dim); NULL: they are not. */
int tower_open(struct tower **out, const struct store *s, uint32_t (*head_dim)(uint32_t dim), struct err *e);
void tower_close(struct tower *t);
