/* Tensors by canonical name, which is GGUF's: "attn_q" of layer 3 is blk.3.attn_q.weight there and
 * model.layers.3.self_attn.q_proj.weight in a Hugging Face file. One table maps them for all families. */
#pragma once

#include <stdbool.h>

#include "format/store.h"

#include <stddef.h>
#include <stdint.h>

enum { LOOKUP_NO_LAYER = -1, LOOKUP_NO_EXPERT = -1 };

/* A canonical name, and what it is in Hugging Face files: alternatives "a|b". */
struct lookup_row {
    const char *name, *hf;
};

/* The decoder's prefix in the names: "model." + "layers." in most files; in an adapter's, all of that comes
 * after the wrap "base_model.model.". */
struct lookup {
    const struct store *store;
    const char *wrap;
    char root[64], stack[32];
    bool paired;                   /* two layers of ours are one in the file (longcat) */
    const struct lookup_row *rows; /* (count) */
    size_t count;
    bool tower; /* of images: layers are v.blk.N in a GGUF file */
};

struct tensor_at {
    const char *name; /* canonical */
    int layer;        /* or LOOKUP_NO_LAYER */
    int expert;       /* or LOOKUP_NO_EXPERT */
};

void lookup_open(struct lookup *n, const struct store *s, const char *wrap);
/* The tensors of a tower for images, and of its projector (lookup_tower.c). */
void lookup_open_tower(struct lookup *n, const struct store *s);
/* suffix: ".weight", ".bias", ... NULL where the file has no such tensor. */
const struct tensor *lookup_find(const struct lookup *n, struct tensor_at at, const char *suffix);
/* The tensor's name in this file's own terms; for messages. */
const char *lookup_expected(const struct lookup *n, struct tensor_at at, const char *suffix, char out[256]);
