/* Output files of a command. A file that the command reads is never replaced, under any of its names (links,
 * relative paths, parts of a split model, files of a model's folder); another existing file only with
 * --force. */
#pragma once

#include "base/err.h"
#include "tool/args.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct store;

struct output_file_input {
    dev_t device;
    ino_t inode;
};

struct output_file {
    bool force;
    struct output_file_input *inputs; /* (count) */
    size_t count, room;
};

/* Row for a verb's option table. */
#define OUTPUT_OPTIONS                                                                                       \
    {                                                                                                        \
        "force", 0, ARG_FLAG, NULL, "replace the output where it exists already", 0, 0                       \
    }

/* Adds an input: a file, or a folder with its files. A missing one (or NULL) is ignored. */
int output_file_reads(struct output_file *o, const char *path, struct err *e);
int output_file_reads_store(struct output_file *o, const struct store *s, struct err *e);
int output_file_reads_model(struct output_file *o, const char *model,
                            struct err *e); /* MODEL of the command line */
/* May this file be written? o is a struct output_file. */
int output_file_allow(void *o, const char *path, struct err *e);
void output_file_free(struct output_file *o);
/* Writes a small file: whole, or not at all where it cannot be opened. */
int output_file_write(const char *path, const char *data, size_t n, struct err *e);
