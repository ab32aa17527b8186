/* The facts about a model that `quern info` shows, from either container. 0 and "" = not given. */
#pragma once

#include "codec/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct store;

struct facts {
    char architecture[64], name[256], license[128], tokenizer[32];
    bool template;
    uint64_t parameters;        /* values of all tensors */
    uint64_t weights;           /* their bytes */
    uint64_t types[DTYPE_MOST]; /* tensors of each type */
    uint64_t context, layers, width, heads, kv_heads, head_dim, ffn, experts, vocab;
    uint64_t kv_per_token; /* bytes of keys and values in F16; 0 for an encoder */
    uint64_t kv_sliding;   /* of these, in layers that see a window only */
    uint64_t state;        /* bytes of recurrent state of a sequence */
    uint32_t window;
    char problem
        [512]; /* why the model cannot be run: an unknown family, a tensor that is missing; "" = it can */
};

/* -1 where a key has the wrong type or a senseless value. */
int facts_read(struct facts *f, const struct store *s, struct err *e);
