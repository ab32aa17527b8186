/* Writes a model as a GGUF file of other types: tensor by tensor, piece by piece, on all cores. Only a few
 * pieces are in memory at a time, so a model may be larger than memory. */
#pragma once

#include "codec/dtype.h"
#include "base/err.h"
#include "format/store.h"
#include "quant/imatrix.h"
#include "quant/recipe.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct quantize_override {
    const char *pattern; /* a regular expression that is found somewhere in a tensor's name */
    uint32_t type;       /* enum dtype */
};

struct quantize_options {
    const struct recipe *recipe;
    bool pure;  /* the recipe's base type for every tensor that it takes */
    bool tower; /* of a folder, the tower for images instead of the text model; as if pure */
    const struct quantize_override *overrides;
    size_t override_count;
    struct imatrix *imatrix;  /* NULL = none */
    const char *imatrix_file; /* its name, for the keys */
    uint64_t split;           /* bytes of a file; 0 = one file */
    int threads;              /* 0 = all cores */
    void (*progress)(void *arg, double share);
    void *arg;
    const volatile int *cancel; /* may be NULL */
    /* gguf_writer's */
    int (*allow)(void *arg, const char *path, struct err *e);
    void *allow_arg;
};

struct quantize_result {
    uint64_t tensors, values, before, after; /* bytes of tensors */
    uint64_t file_bytes;
    uint32_t files;
    uint32_t types[DTYPE_MOST]; /* how many tensors have which type */
    struct recipe_instead instead;
};

int quantize_run(const struct store *s, const char *out, const struct quantize_options *o,
                 struct quantize_result *r, struct err *e);
