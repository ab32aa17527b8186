/* What GGUF holds otherwise than a folder of a hybrid model does. */
#pragma once

#include "model/bind.h"
#include "model/hparams.h"

/* The shape of a small tensor of recurrent layers, from that of a plain vector or matrix. */
void gguf_hybrid_shape(const struct hparams *h, const char *name, uint64_t shape[4]);
/* qwen3.5: the value heads of a key head lie side by side in a folder, and are dealt out in GGUF. */
void gguf_tile_values(const struct hparams *h, const struct bound *b, struct matrix *m);
/* falcon-h1: the factor that GGUF has in a weight, of which this is part `part`; 0 = none. */
float gguf_gain(const struct hparams *h, const struct bound *b, uint32_t part);
