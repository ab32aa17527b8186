/* A model on disk, GGUF or Hugging Face folder: tensors by name, and the texts beside them. Tensors point
 * into the mapping; nothing is copied or converted here. Read-only and safe to share. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf;

struct tensor {
    const char *name; /* as the container spells it */
    uint32_t type;    /* enum dtype */
    uint32_t dims;    /* 1-4 (0 = a scalar of safetensors) */
    uint64_t
        shape[4];    /* shape[0] is contiguous (GGUF's order, the reverse of PyTorch's); unused ones are 1 */
    uint64_t values; /* product of the shape */
    const uint8_t *data;
    size_t bytes;
};

enum store_kind { STORE_GGUF, STORE_SAFETENSORS };

struct store {
    enum store_kind kind;
    const char *path;   /* as given */
    struct gguf *gguf;  /* STORE_GGUF only */
    json_t *config;     /* config.json of a folder, an object; NULL for GGUF or where there is none */
    json_t *generation; /* generation_config.json, or NULL */
    json_t *metadata;   /* __metadata__ of the first safetensors file, an object of strings, or NULL */
    size_t count;
    const struct tensor *tensors; /* (count), in the order of the file(s) */
    size_t bytes;                 /* of the files that hold tensors */
    void *own;                    /* mappings, index: private to store.c */
};

/* MODEL of the command line that is a path: a .gguf, a .safetensors file, or a folder with safetensors
 * (single, or sharded by model.safetensors.index.json). A folder with exactly one .gguf opens that one.
 * Pickles, and checkpoints quantised with GPTQ, AWQ or bitsandbytes, are refused by name. */
int store_open(struct store **out, const char *path, struct err *e);
void store_close(struct store *s);
const struct tensor *store_find(const struct store *s, const char *name); /* hashed; NULL = not there */
/* Path of a file beside the tensors ("tokenizer.json", "chat_template.jinja"), NULL where there is none, and
 * for a GGUF, which has everything inside. Lives as long as the store. */
const char *store_beside(const struct store *s, const char *file);
/* -1 and ERR_CHANGED: a file's bytes are no longer those that were mapped (base/file.h). */
int store_check(const struct store *s, struct err *e);
bool store_is_changed(const struct store *s); /* without looking */
bool store_is_private(const struct store *s); /* some file could not be mapped shared (struct map) */
/* The file that holds this tensor, and where in it the data begin. */
const char *store_tensor_file(const struct store *s, const struct tensor *t, size_t *offset);
