/* Lists of tools, in OpenAI's form, and how they reach a model whose template does not know them: in words. */
#pragma once

#include "base/err.h"
#include "lang/chat/chat.h"

#include <jansson.h>
#include <stdbool.h>

/* Whether each is a function with a name and, if any, a schema. tools may be NULL. */
int tools_check(const json_t *tools, struct err *e);
/* Whether one of them has "strict": true. */
bool tools_strict(const json_t *tools);
/* New messages with the tools in words: the list first, calls and results as text. For templates without
 * chat_caps.tools. NULL: no memory. */
json_t *tools_spell(const struct chat *c, const json_t *messages, const json_t *tools);

/* Freed with mem_free; NULL: no memory. A unique id of letters and digits for a call, of nine of them or more; and a copy of
 * a name or an id that a model wrote, as valid UTF-8. */
char *tools_call_id(bool nine);
char *tools_call_text(const char *text);
