/* The keys tokenizer.ggml.* of a GGUF file. */
#pragma once

#include "format/gguf_write.h"
#include "lang/token/tokenizer.h"

/* vocab: rows of the embedding, as many tokens are written. An error where GGUF cannot say what this tokenizer does. */
int tokenizer_write(const struct tokenizer *t, struct gguf_writer *w, uint32_t vocab, struct err *e);
