/* The tensors of a GGUF file that is to be written, and where their values come from: the tensors of another
 * GGUF file unchanged, or those that the loader has bound in a Hugging Face folder, under GGUF's names and in
 * its layouts. */
#pragma once

#include "base/err.h"
#include "base/mem.h"
#include "format/names.h"
#include "model/matrix.h"
#include "model/model.h"
#include "quant/recipe.h"

enum { OUT_PARTS = 5 };

struct out {
    const char *name;
    uint32_t dims; /* without trailing ones, at least 1 */
    uint64_t shape[4];
    struct matrix part[OUT_PARTS]; /* one after the other along the rows */
    uint32_t parts;
    bool complete;   /* no part is missing */
    uint32_t kept;   /* enum dtype, the default where no recipe applies */
    bool fixed;      /* it stays that, whatever the recipe */
    uint32_t type;   /* what it gets */
    uint32_t wanted; /* what it would get if its rows fitted the blocks */
};

struct gguf_tensors {
    struct out *all; /* (count), in the order of recipe_before */
    size_t count, room;
    struct names index; /* by name, until they are sorted */
    struct arena arena;
};

/* The store has to outlive the list. */
int gguf_tensors_from_gguf(struct gguf_tensors *o, const struct store *s, struct err *e);
/* m is described (model_options.describe) and has to outlive the list. */
int gguf_tensors_from_model(struct gguf_tensors *o, const struct model *m, struct err *e);
void gguf_tensors_free(struct gguf_tensors *o);

/* One more, a float of no source yet; NULL where there is no memory. Then, once all are there, their order. */
struct out *gguf_tensors_add(struct gguf_tensors *o, const char *name, struct err *e);
/* A vector of our own, which has to outlive the list. */
int gguf_tensors_add_vector(struct gguf_tensors *o, const char *name, const float *data, uint32_t n,
                            struct err *e);
void gguf_tensors_count_dims(struct out *t);
void gguf_tensors_sort(struct gguf_tensors *o);

/* GGUF's name of a bound weight; false for tables of our own. */
struct bound;
bool gguf_tensors_name(const struct bound *b, char name[128]);
