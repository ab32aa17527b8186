/* For the targets whose readers take paths: a folder in memory, and the files of a document in it. */
#pragma once

#include "structure.h"

#include <sys/stat.h>
#include <unistd.h>

static const char *structure_folder(void)
{
    static char path[64];
    if (!path[0]) {
        snprintf(path, sizeof path, "%s/quern-fuzz-%d", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm",
                 (int)getpid());
        mkdir(path, 0700);
    }
    return path;
}

static void structure_file(const char *name, const void *data, size_t n)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", structure_folder(), name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f))
        abort();
}

/* Every member of the document that names one of the files; the others are taken away. */
static void structure_files(const json_t *doc, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char path[160];
        const json_t *v = json_object_get(doc, names[i]);
        struct buf text = {0};
        snprintf(path, sizeof path, "%s/%s", structure_folder(), names[i]);
        if (!v) {
            unlink(path);
            continue;
        }
        structure_write(v, &text);
        structure_file(names[i], text.data ? text.data : "", text.len);
        buf_free(&text);
    }
}
