/* Models by the short names that people know, such as llama3.2 and qwen3:8b: the rows of catalogue.inc. */
#pragma once

struct catalogue_row {
    const char *name, *repo, *quant; /* quant "" = the repository's default */
    const char *source, *date;       /* the page that names the repository, and when it was read */
};

/* "name:latest" is "name". NULL = there is none. */
const struct catalogue_row *catalogue_find(const char *name);
/* One after the other from i = 0; NULL after the last. */
const struct catalogue_row *catalogue_row(int i);
