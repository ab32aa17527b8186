/* Templates of Modelfiles in Go's language, as Ollama has them, translated into Jinja: fields (.System, .Prompt, .Response,
 * .Messages with .Role, .Content, .ToolCalls; .Tools), if, else, range, with, variables, trim markers, comparisons, and, or,
 * not, len, index, slice, json. A template without .Messages describes one turn, and is run for each. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>

/* Whether a template is in Go's language, and not in Jinja's. */
bool go_template_is(const char *text);
/* The same in Jinja; NULL and an error that says what is not known. */
json_t *go_template(const char *text, struct err *e);
