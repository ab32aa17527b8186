/* Files: a read-only mapping of a regular file, and small files read whole. Folders, FIFOs, devices
 * and loops of links are refused at once, without blocking. */
#pragma once

#include "base/err.h"

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct watch;

/* How files are opened for reading, and folders for listing. A sandboxed process (serve/sandbox.h) asks
 * another process: it sets an opener before its threads start. Code that reads a file whose path comes from a
 * user, a request or a model uses file_fd, file_folder, or the functions below. */
struct file_opener {
    /* Both return -1 and errno where they fail; from any thread. */
    int (*open)(void *arg, const char *path, bool folder); /* a descriptor */
    int (*remove)(void *arg, const char *path);
    void *arg;
};
void file_set_opener(const struct file_opener *o); /* kept, not copied; NULL: open(2) */
DIR *file_folder(const char *path);                /* opendir; never blocks at a FIFO */
int file_remove(const char *path);                 /* unlink */

struct map {
    const uint8_t *data;
    size_t size;
    int fd;              /* kept open for the life of the mapping */
    struct watch *watch; /* base/watch.h: whether its bytes are still the same */
    bool is_private;     /* it could not be mapped shared: a driver that pins it would copy all of it first */
};

/* An empty file maps to size 0 and data NULL. All errors are ERR_DATA but those of the system. */
int map_open(struct map *m, const char *path, struct err *e);
void map_close(struct map *m);
/* Copies the first n bytes (the header) into this process's memory, where they stay valid. */
void map_own(const struct map *m, size_t n);
/* -1 and ERR_CHANGED: the file's bytes are no longer those that were mapped. Call it after computing with
 * them and before using the result. Usually one fstat; it may read the whole file. Any thread. */
int map_check(const struct map *m, struct err *e);
bool map_is_changed(const struct map *m); /* the result of the last check */
/* Releases the whole pages of a mapped file in [p, p + n); they are read again on the next access. Other
 * memory is unchanged. From any thread. */
void map_forget(const void *p, size_t n);
/* From now on (for the whole process) map_open reads files into memory instead of mapping them. */
void map_into_memory(bool on);

/* Appends the whole file to b (whose max bounds it). "-" is standard input. */
int file_read(const char *path, struct buf *b, struct err *e);
