/* A tower while it is built: for the files that write its plan. */
#pragma once

#include "model/bind.h"
#include "model/vision/tower.h"

struct tower_build {
    struct tower *t;
    const struct vision_params *v;
    struct plan *p;
    struct binder bind;
    bool gguf;
    struct operand in, x, q, a, y; /* given rows, stream, q, attention, a branch before its scale */
    uint32_t dim;                  /* of a head, padded */
    struct rope rope;
    bool clips;                /* products clip what goes in and what comes out (tower_clipped.c) */
    struct operand n, g, h, c; /* of such layers: normed rows, results of two products, a clipped input */
    struct operand
        features; /* rows of several layers side by side, for the projector; buffer 0: only the last */
};

static inline struct tensor_at tower_at(const char *name)
{
    return (struct tensor_at){name, LOOKUP_NO_LAYER, LOOKUP_NO_EXPERT};
}

/* The norm of a row of n values; NORM_NONE where the file has none. */
struct norm tower_norm(struct tower_build *b, const char *name, int layer, uint32_t n, float eps);
struct norm tower_need_norm(struct tower_build *b, const char *name, int layer, uint32_t n);
struct op_map *tower_map(struct tower_build *b, uint32_t layer, struct operand in, struct operand out,
                         uint32_t width);
/* Q, K and V of a layer, and the norms of their heads. */
void tower_heads(struct tower_build *b, uint32_t layer, struct op_qkv *o);
void tower_head_norms(struct tower_build *b, uint32_t layer, struct op_qkv *o);
/* All layers use the pages of layer 0 one after the other. */
struct op_attn tower_attn(const struct tower_build *b, uint32_t layer);

/* What follows the last layer. saved: rows of the layers of deepstack, a buffer for each. (tower_project.c) */
void tower_project(struct tower_build *b, const struct operand *saved);

/* Towers of gemma4 may clip what goes into a product and what comes out of it, to numbers beside its weight.
 * (tower_clipped.c) */
bool tower_has_clips(const struct store *s);
void tower_clipped_layer(struct tower_build *b, uint32_t layer);
