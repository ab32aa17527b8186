/* A weight described over the bytes of the file that hold it: which rows, in which order, transposed or not,
 * with which scales. Values are read lazily, so a model can be described without memory, and then be loaded,
 * quantised or written piece by piece. Read-only once it is made: any thread may read.
 *
 * Value (one, r, c) of the weight, (count, rows, cols), is at
 *
 *     o = first + r / run * stride + r % run          the r-th row that counts
 *     row skip + (turned ? c : o), column (turned ? o : c), of matrix `one`
 */
#pragma once

#include "base/err.h"
#include "device/plan.h"
#include "format/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool;

/* Scales of FP8: value[r / row_span * cols + c / col_span] for row r and column c of the stored matrix. */
struct matrix_scales {
    const float *value;
    uint64_t cols, row_span, col_span;
};

/* From number `from` on, (a, b, unit) taken as (b, a, unit); unit 0: in order. */
struct matrix_swap {
    uint32_t from, a, b, unit;
};

struct matrix {
    const char *name;             /* of the tensor, for messages */
    uint32_t type;                /* enum dtype of the stored values */
    uint32_t rows, cols, count;   /* as the model takes it */
    const uint8_t *data;          /* NULL = there is none */
    const uint8_t *const *each;   /* (count): where each matrix begins; NULL: each_bytes apart from data on */
    size_t row_bytes, each_bytes; /* of the stored matrix */
    uint32_t skip, first, run, stride;
    bool turned;
    uint32_t pairs; /* rows of a head of this size, whose halves are taken in turn; 0 = in order */
    struct matrix_swap row_swap, col_swap;
    float gain;                         /* of all values; 0 = 1 */
    const struct matrix_scales *scales; /* one, or with `each` one for each; NULL = none */
    uint32_t
        quarter; /* > 0: 2 bits a value (bitnet). Row r is in row r % quarter, from bit 2 (r / quarter) on, plus 1 */
    const uint8_t *exponents; /* MXFP4 in two tensors: data holds the nibbles; NULL = whole blocks */
};

/* All of a tensor: (shape[2] * shape[3], shape[1], shape[0]). False where its rows are no whole blocks. */
bool matrix_of(struct matrix *m, const struct tensor *t);
/* Rows [group * stride + first, + len) of each of `groups` groups, one after the other. */
struct slice {
    const char *name; /* canonical, of the part */
    uint32_t groups, stride, first, len;
};
struct matrix matrix_take(const struct matrix *m, const struct slice *s);
struct matrix matrix_turn(const struct matrix *m);

/* True where the file's layout can be used directly; *w then is the view. */
bool matrix_lies(const struct matrix *m, struct weight *w);
/* Its default type in memory. */
uint32_t matrix_type(const struct matrix *m);

/* What is made of a matrix: packed rows of a type, piece by piece, on all cores. */
struct matrix_out {
    const struct matrix *m;
    uint32_t type;
    const float *importance; /* (importances, cols) for the encoder, or NULL */
    uint32_t importances;    /* 1, or one row for each matrix */
};
struct matrix_sink {
    /* A piece of item `item`: n bytes from byte `at` of it on. Called by many threads. */
    int (*put)(void *arg, uint32_t item, size_t at, const uint8_t *bytes, size_t n, struct err *e);
    void (*progress)(void *arg, double share); /* by one thread; may be NULL */
    void *arg;
};
/* cols has to be whole blocks of the type, and the type has to have an encoder or to be the stored one. */
int matrix_stream(struct pool *p, const struct matrix_out *items, uint32_t count, const struct matrix_sink *s,
                  struct err *e);
/* Bytes of item; false on overflow or where rows are no whole blocks. */
bool matrix_bytes(const struct matrix *m, uint32_t type, size_t *row, size_t *all);
