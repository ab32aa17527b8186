/* A request for vectors on its way: its texts as ids, then a vector for each. A worker reads the request, the
 * embedder computes, and a worker writes the reply. */
#pragma once

#include "run/embedder.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json;
struct request;

enum { VECTORS_TEXTS = 2048 };

struct vectors {
    struct ids *texts; /* (count) */
    size_t count;
    float *out; /* (count, width) */
    size_t width;
    uint64_t tokens; /* of all texts */
    bool cut;        /* texts that are too long are truncated; else they are refused */
    struct embed_job job;
};

/* Allocates room for `most` texts, owned by the request; NULL and a failure. */
struct vectors *vectors_new(struct request *a, size_t most);
void vectors_free(struct vectors *v);
/* Adds a text (what the tokenizer adds is added), or a list of ids; param is what an error calls it. */
int vectors_add_text(struct request *a, const char *text, size_t n, const char *param);
int vectors_add_ids(struct request *a, const json_t *list, const char *param);
/* Two texts as one, as an encoder reads pairs. */
int vectors_add_pair(struct request *a, const char *first, const char *second, const char *param);
/* A text, a list of texts, ids, or lists of ids: the field `param` of a request. cut: texts that are too long
 * are truncated, else they are refused. */
int vectors_read(struct request *a, const json_t *input, const char *param, bool cut);
/* `dimensions` of a request: at most the model's width; shortened vectors are normalized again. The second
 * function returns the resulting width. */
int vectors_check_width(struct request *a, const json_t *body);
size_t vectors_narrow(struct request *a, const json_t *body);
/* Submits all texts to the embedder; the request comes back with its stage one higher. first: see
 * embed_job. */
void vectors_submit(struct request *a, const char *param, bool first);
/* `model` and `usage` of a reply. */
void vectors_usage(const struct request *a, struct json *j);
/* Whether the embedder succeeded; if not, the failure is set. */
bool vectors_done(struct request *a);
