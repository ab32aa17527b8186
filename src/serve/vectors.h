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
    bool scored;
    uint64_t tokens; /* of all texts */
    bool cut;        /* texts that are too long are truncated; else they are refused */
    struct embed_job job;
};

/* Allocates room for `most` texts, owned by the request; NULL and a failure. scored: see embed_job. */
struct vectors *vectors_new(struct request *a, size_t most, bool scored);
void vectors_free(struct vectors *v);
/* Adds a text after the prompt of the request's `prompt_name` (what the tokenizer adds is added), or a list of ids;
 * param is what an error calls it. */
int vectors_add_text(struct request *a, const char *text, size_t n, const char *param);
/* The same after the model's prompt for queries, or for documents. */
int vectors_add_role(struct request *a, const char *text, bool query, const char *param);
/* A query and a document as one text, as the reranker reads them. */
int vectors_add_pair(struct request *a, const char *first, const char *second, const char *param);
/* A text, a list of texts, ids, or lists of ids: the field `param` of a request. cut: texts that are too long
 * are truncated, else they are refused. */
int vectors_read(struct request *a, const json_t *input, const char *param, bool cut);
/* `dimensions` of a request: at most the model's width; shortened vectors are normalized again. The second
 * function returns the resulting width. */
int vectors_check_width(struct request *a, const json_t *body);
size_t vectors_narrow(struct request *a, const json_t *body);
/* Submits all texts to the embedder; the request comes back with its stage one higher. */
void vectors_submit(struct request *a, const char *param);
/* `model` and `usage` of a reply. */
void vectors_usage(const struct request *a, struct json *j);
/* Whether the embedder succeeded; if not, the failure is set. */
bool vectors_done(struct request *a);
