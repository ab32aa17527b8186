/* Loads a model's templates and the texts of its special tokens. */
#pragma once

#include "base/err.h"

#include <jansson.h>

struct store;

/* {"default": text, "tool_use": text, ...}: NULL with an error; an empty object where the model has none. */
json_t *chat_load_templates(const struct store *s, struct err *e);
/* {"bos_token": text, ...}: those that the model has. */
json_t *chat_load_tokens(const struct store *s, struct err *e);
