/* The contents of a Hugging Face folder: which files hold the tensors, and what must be refused. */
#pragma once

#include "base/err.h"
#include "base/mem.h"

#include <jansson.h>
#include <stddef.h>

struct tensor;

enum folder_kind { FOLDER_SAFETENSORS, FOLDER_SHARDS, FOLDER_GGUF };

struct folder {
    enum folder_kind kind;
    size_t count;
    char **files;    /* (count): paths, in order; for FOLDER_GGUF one */
    json_t *weights; /* FOLDER_SHARDS: weight_map of the index, checked: tensor -> file name */
    struct arena arena;
};

int folder_look(struct folder *f, const char *path, struct err *e);
void folder_free(struct folder *f);

char *folder_join(struct arena *a, const char *folder, const char *file);
/* A PyTorch pickle, by its name or its first bytes. */
int folder_refuse_pickle(const char *path, const unsigned char *data, size_t size, struct err *e);
/* Detects unsupported quantisation, by config.json (may be NULL) and by the names of the tensors. */
int folder_refuse_quant(const json_t *config, const struct tensor *tensors, size_t count, struct err *e);
