/* Models that the Hub knows: GET ENDPOINT/api/models?search=WORD. */
#pragma once

#include "base/err.h"
#include "hub/hub.h"

#include <jansson.h>

enum { SEARCH_MOST = 20 };

/* A list of {"id", "downloads", "likes"} of repositories with GGUF files, the most used first; NULL and an error. */
json_t *search_hub(const struct hub *h, const char *word, struct err *e);
