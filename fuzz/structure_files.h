/* For the targets whose readers take paths: a folder in memory, and the files of a document in it. */
#pragma once

#include "structure.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

static char structure_path[64];

static void structure_clean(const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *d; dir && (d = readdir(dir));) {
        char inside[512];
        snprintf(inside, sizeof inside, "%s/%s", path, d->d_name);
        if (d->d_name[0] != '.' && unlink(inside))
            structure_clean(inside);
    }
    if (dir)
        closedir(dir);
    rmdir(path);
}

static void structure_end(void)
{
    structure_clean(structure_path);
}

static const char *structure_folder(void)
{
    char *path = structure_path;
    if (!path[0]) {
        atexit(structure_end);
        snprintf(path, sizeof structure_path, "%s/quern-fuzz-%d",
                 access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", (int)getpid());
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
