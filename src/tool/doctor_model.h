/* quern doctor MODEL: whether a model fits, which device holds which layer, whether the GPU computes its
 * weights as the CPU does, and whether whole prompts give the same results, single and batched. */
#pragma once

#include "base/buf.h"
#include "base/json.h"
#include "run/ranks.h"
#include "tool/args.h"

/* How two devices agree over some steps. */
struct agreement {
    uint32_t rows, same;  /* results compared; those with the same best token */
    uint32_t near;        /* others whose two best are within 0.02 */
    double largest, size; /* difference of two numbers; the largest number there is */
};

struct doctor_model {
    char where[1024];  /* lines: which layers are on which device */
    bool fits, on_gpu; /* loaded; with a GPU in it */
    struct err why;    /* why not */
    uint32_t layers, of, ctx;
    uint32_t texts;                          /* that there are keys and values for, each of ctx tokens */
    uint64_t weights, kv, memory, available; /* bytes; memory and available: of the machine */
    uint64_t gpu_need, gpu_free;             /* of all of it, where a GPU was asked */
    bool gated;                              /* the parity gate was run (no --no-parity) */
    bool compared;
    struct agreement single, batched;
    double load_seconds;
    struct ranks_advice ranks; /* cards 0: there are none, and none were named */
};

/* An error concerns the model's file or the command line; the findings are in `out`. */
int doctor_examine(const struct args *a, const char *model, bool gpu, struct doctor_model *out,
                   struct err *e);
void doctor_model_text(const struct doctor_model *m, struct buf *out);
void doctor_model_json(const struct doctor_model *m, struct json *j);
