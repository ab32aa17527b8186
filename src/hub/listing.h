/* What a repository on the Hub holds: GET ENDPOINT/api/models/REPO/revision/REVISION. */
#pragma once

#include "base/err.h"
#include "hub/hub.h"
#include "hub/http.h"
#include "hub/path.h"

struct listing {
    char commit[64];
    struct path_list files; /* sorted; every name is path_is_inside */
};

int listing_fetch(struct listing *l, struct hub_http *h, const struct hub_name *n, struct err *e);
/* Parses the reply's text; the fuzzer calls it, too. */
int listing_read(struct listing *l, const char *text, size_t n, struct err *e);
void listing_free(struct listing *l);
/* Where a file of a commit is fetched from. */
int listing_url(const struct hub *h, const char *repo, const char *commit, const char *file,
                char out[HTTP_URL_MOST], struct err *e);
