/* Adapters over HTTP: vLLM's /v1/load_lora_adapter and /v1/unload_lora_adapter, llama.cpp's /lora-adapters. On a worker. */
#pragma once

#include "device/device.h"

#include <jansson.h>

struct request;

/* [{"id" from 0, or "name", "scale"}] as llama.cpp has it. -1: the request has failed. */
int adapters_mix(struct request *a, const json_t *list, struct adapter_mix *out);

void adapters_load(struct request *a);
void adapters_unload(struct request *a);
void adapters_list(struct request *a);
void adapters_stand(struct request *a);
