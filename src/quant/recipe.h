/* Recipes: which type each tensor gets in a file of a mixed type such as Q4_K_M. They are llama.cpp's, name
 * by name, so that a file made here and one made there hold the same types. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct recipe {
    const char *name;
    uint32_t file_type; /* general.file_type */
    uint32_t base;      /* enum dtype: what most tensors get */
};

/* What the choice depends on. */
struct recipe_model {
    const char *arch; /* as in general.architecture */
    uint32_t layers, heads, kv_heads, experts;
    bool importance; /* there is an importance matrix */
};

struct recipe_tensor {
    const char *name; /* GGUF's */
    uint32_t dims;    /* without trailing ones */
    uint64_t cols;
    uint32_t kept;   /* enum dtype: its type where the recipe does not apply */
    uint32_t type;   /* the result */
    uint32_t wanted; /* the type it would get if its rows fitted the blocks; the same where they do */
};

/* Types that could not be used, since a row is no multiple of their blocks, and their replacements. */
enum { RECIPE_INSTEAD = 16 };
struct recipe_instead {
    struct recipe_swap {
        uint32_t wanted, type; /* enum dtype */
        uint64_t cols;         /* of a row of the first such tensor */
        uint32_t tensors;
    } all[RECIPE_INSTEAD];
    size_t count;
};
void recipe_add_instead(struct recipe_instead *to, uint32_t wanted, uint32_t type, uint64_t cols);
struct buf;
/* "30 tensors are Q4_0 instead of Q2_K (rows of 576 values, blocks of 256), 1 is ..." */
void recipe_write_instead(const struct recipe_instead *from, struct buf *out);

/* By name, upper or lower case; NULL with an error that lists the names. */
const struct recipe *recipe_find(const char *name, struct err *e);
/* Fills in the types of all tensors of a model, which have to be in the order of recipe_before. pure: the base type for
 * all that can have it. */
void recipe_choose(const struct recipe *r, const struct recipe_model *m, struct recipe_tensor *t, size_t n,
                   bool pure);
/* A type that rows of `cols` values can have: this one, or its replacement. */
uint32_t recipe_fits(uint32_t type, uint64_t cols);
/* Whether the recipe applies to this tensor. */
bool recipe_takes(const struct recipe_tensor *t);
/* The order of tensors: those of no layer first, then by layer, then by name. */
int recipe_before(const char *a, const char *b);
