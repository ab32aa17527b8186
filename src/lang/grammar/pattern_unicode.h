/* General categories of Unicode, as ranges of code points. */
#pragma once

#include "lang/grammar/grammar.h"

/* Adds a category ("Lu"), or all that begin with a letter ("L", "Letter"). False when there is none of that
 * name. */
bool pattern_category(struct grammar *g, const char *name, size_t n, struct ranges *out);
