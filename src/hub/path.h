/* Paths and small files of the caches: create, list, write atomically, remove. */
#pragma once

#include "base/err.h"
#include "base/mem.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int path_make(char out[PATH_MAX], struct err *e, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool path_is_file(const char *path); /* or a link to one */
bool path_is_folder(const char *path);
uint64_t path_bytes(const char *path); /* of the file; 0 where there is none */
/* The folder of a file, with all above it. */
int path_make_folders(const char *file, struct err *e);
/* The whole file at once: a temporary name, fsync, rename. */
int path_write(const char *path, const char *text, size_t n, struct err *e);
/* A name from outside that becomes a path below a folder of ours: "a/b.gguf", and nothing that leads out of it. */
bool path_is_inside(const char *name);

/* The files below a folder, as names relative to it, sorted. */
struct path_list {
    struct arena arena;
    const char **names; /* (count) */
    size_t count;
};
enum { PATH_LIST_MOST = 65536, PATH_DEPTH = 8 };

int path_list_add(struct path_list *l, const char *name, size_t n, struct err *e);
void path_list_sort(struct path_list *l);
/* A folder that is not there is an empty list. Links to files count as files. */
int path_list_read(struct path_list *l, const char *folder, struct err *e);
/* The entries of the folder itself, files and folders, without hidden ones. */
int path_list_entries(struct path_list *l, const char *folder, struct err *e);
void path_list_free(struct path_list *l);
bool path_list_has(const struct path_list *l, const char *name); /* l is sorted */

/* The last word of a path. */
const char *path_base(const char *path);
/* The last word of where a link leads; false for what is no link. */
bool path_link_base(const char *path, char *out, size_t size);

/* A folder and all that is below it; links are removed, never followed. */
int path_remove(const char *path, struct err *e);
