/* Models with settings of their own. In models.json a name stands for another MODEL, or for an object:
 *
 *   {"from": "qwen3:8b", "system": "...", "template": "...", "parameters": {"temperature": 0.2, "num_ctx": 8192,
 *    "stop": ["..."], "slots": 2, "reasoning_budget": 512}, "adapters": ["PATH"], "messages": [{"role", "content"}],
 *    "license": "..."}
 *
 * `from` may be such a name itself: what is nearer to the name wins. A Modelfile is the same in Ollama's syntax. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct hub;

/* The settings of a name, merged along `from`; NULL with no error: it has none. */
json_t *preset_read(const struct hub *h, const char *name, struct err *e);
/* Every field has its type. */
int preset_check(const json_t *preset, const char *what, struct err *e);
/* Sets the entry of a name; NULL removes it, and 1 says that there was none. */
int preset_write(const struct hub *h, const char *name, const json_t *entry, struct err *e);
/* The entry as it stands: a text or an object; NULL = there is none. */
json_t *preset_entry(const struct hub *h, const char *name, struct err *e);
/* A name that entries can have: letters, digits and -_.: with at most one slash. */
bool preset_is_name(const char *name);

/* A template in Go's language, as Ollama has them, becomes one in Jinja. */
int preset_template(json_t *preset, struct err *e);
/* A Modelfile's text as a preset; paths that begin with ./, ../ or ~/ are those of `folder`. */
json_t *modelfile_read(const char *text, size_t n, const char *folder, struct err *e);
