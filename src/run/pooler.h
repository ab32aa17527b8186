/* From the rows of a text to its vector, as the model's files say: pooling (mean, first or last row, ...), then
 * Dense layers (modules of a sentence-transformers folder, dense_2 and dense_3 of a GGUF), then length 1. Also the
 * prompts that such a folder names: texts that are put before a query or a document.
 *
 * Read-only once it is open: any thread. */
#pragma once

#include "base/err.h"
#include "format/store.h"
#include "model/hparams.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dense;

struct pooler {
    enum pooling kind;
    uint32_t width;      /* of a row */
    uint32_t out_width;  /* of a vector */
    struct dense *dense; /* (layers) */
    uint32_t layers;
    bool plain;         /* vectors keep their length */
    json_t *prompts;    /* {name: text}, or NULL */
    const char *prompt; /* the name of the default one, or NULL */
};

int pooler_open(struct pooler *p, const struct store *s, const struct hparams *h, struct err *e);
void pooler_close(struct pooler *p);

/* Rows [at, at + n) of a text of `of` rows: for how many of them, counted from the last, results are needed. */
uint32_t pooler_outs(enum pooling kind, uint32_t at, uint32_t n, uint32_t of);
/* Adds the results of such a part, (rows, width), to sum, (width), which is 0 at first; the first of them is row
 * `at` of the text. */
void pooler_add(enum pooling kind, const float *results, uint32_t rows, uint32_t at, uint32_t width,
                float *sum);
/* The pooled row of a text of n rows, in place. */
void pooler_divide(enum pooling kind, uint32_t n, uint32_t width, float *sum);
/* The vector, (out_width), of a text of n rows. Changes sum. An error if a value is NaN or infinite. */
int pooler_finish(const struct pooler *p, uint32_t n, float *sum, float *out, struct err *e);
/* Scales to length 1. An error if a value is NaN or infinite. */
int pooler_scale(float *out, size_t width, struct err *e);

/* The text of a prompt. name NULL: the default one. NULL: there is none of this name. */
const char *pooler_prompt(const struct pooler *p, const char *name);
/* The prompt of a query or of a document, by its usual names; the default one where there is none. */
const char *pooler_role(const struct pooler *p, bool query);

/* The tensor in F32, of `values` values. NULL and an error: it has others, or no memory. */
float *pooler_floats(const struct tensor *t, uint64_t values, struct err *e);
