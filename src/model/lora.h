/* Low-rank adapters (LoRA): pairs of small matrices beside a model's own, from a GGUF file of llama.cpp's
 * kind or a folder of PEFT's. Their names and layouts are mapped as the model's are: a fused module is cut
 * where the plan cuts it, rows of Q and K are put into the order of the model's container. The base weights
 * stay unchanged: a device adds the products of the pairs of a sequence's adapters.
 *
 * Called by the opener of a model, before a device sees it. */
#pragma once

#include "base/err.h"
#include "format/store.h"
#include "model/model.h"

#include <stdint.h>

/* PATH of an adapter: a .gguf, a .safetensors file or a folder that holds adapter_model.safetensors. */
int lora_open_store(struct store **out, const char *path, struct err *e);
/* Adapters 1..count of the model's plan, once for all of them. The stores must outlive the model. */
int lora_bind(struct model *m, struct store *const *stores, uint32_t count, struct err *e);
