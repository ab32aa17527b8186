/* The keys of a GGUF file to write: copied from another GGUF file, or converted from a folder's config.json
 * and tokenizer. */
#pragma once

#include "base/err.h"
#include "format/gguf_write.h"
#include "model/model.h"

/* All keys but those of a split and of the types. */
void keys_from_gguf(struct gguf_writer *w, const struct gguf *g);
/* general.name: the last part of the folder's path. */
void gguf_keys_name(struct gguf_writer *w, const struct store *s);
/* Hyper-parameters, tokenizer (where there is one) and chat template of a folder. Warns of settings that GGUF
 * has no key for. */
int keys_from_model(struct gguf_writer *w, const struct model *m, struct err *e);
