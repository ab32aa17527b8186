/* The tower for images of a Hugging Face folder as an mmproj file: llama.cpp's names, layouts and keys. */
#pragma once

#include "format/gguf_write.h"
#include "model/vision/params.h"
#include "quant/gguf_tensors.h"

/* The store has to outlive the list. recipe: what matrices will get. */
int gguf_tower_tensors(struct gguf_tensors *o, const struct store *s, const struct vision_params *v,
                       const struct recipe *recipe, struct err *e);
int gguf_tower_keys(struct gguf_writer *w, const struct store *s, const struct vision_params *v,
                    struct err *e);
/* Reads the keys of the file at `path` again. An error where the tower would not be the folder's, a warning where images
 * would be prepared otherwise: an mmproj file cannot say all that a folder can. */
int gguf_tower_check(const char *path, const struct vision_params *v, struct err *e);
