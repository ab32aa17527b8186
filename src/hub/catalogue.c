#include "hub/catalogue.h"

#include <stddef.h>
#include <string.h>

static const struct catalogue_row rows[] = {
#include "hub/catalogue.inc"
};
enum { ROWS = sizeof rows / sizeof *rows };

const struct catalogue_row *catalogue_row(int i)
{
    return i >= 0 && i < ROWS ? &rows[i] : NULL;
}

const struct catalogue_row *catalogue_find(const char *name)
{
    const char *latest = strstr(name, ":latest");
    size_t n = latest && !latest[7] ? (size_t)(latest - name) : strlen(name);
    for (int i = 0; i < ROWS; i++)
        if (!strncmp(rows[i].name, name, n) && !rows[i].name[n])
            return &rows[i];
    return NULL;
}
