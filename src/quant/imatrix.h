/* Importance matrices: for each matrix product of a model, the mean squares of its inputs over some text.
 * Encoders weight the errors of a column with them. Files are llama.cpp's: GGUF with the tensors NAME.in_sum2
 * and NAME.counts, which are written, and the older ones, which are only read:
 *
 *     i32 entries | entries x {i32 n, name, i32 calls, i32 values, f32 x values: mean squares x calls} | ...
 */
#pragma once

#include "base/err.h"
#include "base/mem.h"
#include "format/names.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct imatrix_entry {
    const char *name; /* of the tensor, GGUF's */
    uint32_t cols;
    uint32_t count; /* matrices: 1, or the experts */
    double *sums;   /* (count, cols): squares */
    double *rows;   /* (count): how many were added */
};

struct imatrix {
    struct imatrix_entry *all; /* (count) */
    size_t count, room;
    struct names index;
    struct arena arena;
    const char *dataset; /* name of the text, or NULL */
    uint32_t chunks, chunk_size;
};

int imatrix_read(struct imatrix *m, const char *path, struct err *e);
/* The same from bytes in memory. */
int imatrix_parse(struct imatrix *m, const uint8_t *data, size_t size, struct err *e);
int imatrix_write(const struct imatrix *m, const char *path, struct err *e);
void imatrix_free(struct imatrix *m);

/* The entry of a tensor; NULL = none. */
const struct imatrix_entry *imatrix_find(const struct imatrix *m, const char *name);
/* A new entry of zeros; NULL on failure. */
struct imatrix_entry *imatrix_add(struct imatrix *m, const char *name, uint32_t cols, uint32_t count,
                                  struct err *e);
struct importance {
    const float *mean; /* (rows, cols) mean squares; NULL where there are none */
    uint32_t rows;     /* 1, or one for each matrix */
};
/* For a tensor of `count` matrices with `cols` columns. An entry of another shape is an error. Owned by the matrix. */
int imatrix_importance(struct imatrix *m, const char *name, uint32_t cols, uint32_t count,
                       struct importance *out, struct err *e);
