/* Selects the files of a repository that make up the model: the GGUF of one type, all parts of a split one,
 * or the safetensors with the texts beside them. Works on names alone, for the Hub's listing and for a
 * snapshot. */
#pragma once

#include "base/err.h"
#include "hub/path.h"

#include <stdbool.h>
#include <stddef.h>

#define PICK_INDEX "model.safetensors.index.json"

enum pick_kind {
    PICK_NONE,       /* nothing that quern opens */
    PICK_GGUF,       /* files: the parts, in order */
    PICK_SAFETENSORS /* files: weights, or the index whose shards are still to be read, and the texts beside */
};

struct pick {
    enum pick_kind kind;
    struct path_list files; /* in the order in which they are to be opened; names[0] is the first GGUF part */
    bool indexed;           /* the index says which other files hold tensors */
};

/* quant: "" = Q4_K_M, else the first. If it is missing, the error lists the available ones. */
int pick_files(struct pick *p, const struct path_list *all, const char *quant, struct err *e);
void pick_free(struct pick *p);

/* The type in a file's name ("x-Q4_K_M-00001-of-00003.gguf" -> "Q4_K_M"), else the name without its ending. */
void pick_quant(const char *file, char *out, size_t size);
/* A GGUF that holds (the first part of) a language model. */
bool pick_is_first(const char *file);
/* "…-00001-of-00003.gguf": how many parts; 1 for a file that is no split's first. */
unsigned pick_parts(const char *file);
/* The name of part i (from 1) of the split that `first` begins. */
void pick_part(const char *first, unsigned i, char *out, size_t size);
