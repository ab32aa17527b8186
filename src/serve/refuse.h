/* Unsupported fields that would change the answer: a request that has one is refused, never answered without
 * it. Tables are constant; the functions run on the worker that reads the request. */
#pragma once

#include <jansson.h>
#include <stddef.h>

struct request;

struct refusal {
    const char *name; /* of the field */
    const char *why;  /* what is unsupported, for the error */
};

/* null, false, "", [] and {} ask for nothing. -1 and a failure: the body has one of these fields. */
int refuse_fields(struct request *a, const json_t *body, const struct refusal *table, size_t count);
/* A tool of a type that only the API's own servers run. */
int refuse_tool(struct request *a, size_t at, const char *type);
