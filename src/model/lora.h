/* Low-rank adapters (LoRA): pairs of small matrices beside a model's own, from a GGUF file of llama.cpp's
 * kind or a folder of PEFT's. Their names and layouts are mapped as the model's are: a fused module is cut
 * where the plan cuts it, rows of Q and K are put into the order of the model's container. The base weights
 * stay unchanged: a device adds the products of the pairs of a sequence's adapters.
 *
 * A plan has places for adapters, from 1. They are reserved before a device sees the plan; adapters are put there and taken
 * away then, or between steps of a device that can do with that (device_ops.adapts). */
#pragma once

#include "base/err.h"
#include "format/store.h"
#include "model/model.h"

#include <stdint.h>

struct lora;

/* PATH of an adapter: a .gguf, a .safetensors file or a folder that holds adapter_model.safetensors. */
int lora_open_store(struct store **out, const char *path, struct err *e);
/* Places 1..places in the plan, once; rank: the largest of adapters that come when a device has the plan, 0 = none will. */
int lora_reserve(struct model *m, uint32_t places, uint32_t rank, struct err *e);
/* Reads an adapter for this model, which has places, into memory of its own: the store may be closed. Any thread, while no
 * other one attaches an adapter. */
int lora_open(struct lora **out, const struct model *m, const struct store *s, struct err *e);
uint64_t lora_bytes(const struct lora *a);
uint32_t lora_most_rank(const struct lora *a);
void lora_close(struct lora *a); /* one that is not attached */
/* Puts it at a free place. The model owns it then, and closes it where this fails. Allocates nothing. */
int lora_attach(struct model *m, uint32_t place, struct lora *a, struct err *e);
void lora_detach(struct model *m, uint32_t place); /* and closes it */
/* All of these: reserves as many places, and attaches them in this order. */
int lora_bind(struct model *m, const char *const *paths, uint32_t count, struct err *e);
