/* Hyper-parameters as a container spells them: keys of a GGUF file (under "ARCHITECTURE.") or members of
 * config.json. One getter serves both: it is given both spellings and reads the one that is there. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct gguf;

struct keys {
    const struct gguf *gguf; /* NULL: config.json */
    const char *prefix;      /* GGUF: the architecture as the file spells it */
    json_t *config;          /* the object to read from */
};

/* gguf: the key without its prefix, or NULL where GGUF has none; one that begins with '.' is the whole key.
 * hf: alternatives "a|b", the first that is there and not null counts; NULL where config.json has none. 1 =
 * there, 0 = not there, -1 = there and wrong (e says the key, what it has, and what was expected). */
int keys_u32(const struct keys *k, const char *gguf, const char *hf, const uint32_t range[2], uint32_t *out,
             struct err *e);
int keys_f32(const struct keys *k, const char *gguf, const char *hf, const double range[2], float *out,
             struct err *e);
int keys_bool(const struct keys *k, const char *gguf, const char *hf, bool *out, struct err *e);
/* Copies at most size - 1 bytes. */
int keys_str(const struct keys *k, const char *gguf, const char *hf, char *out, size_t size, struct err *e);
/* A number for each of n layers: an array of at least n, or one number for all. */
int keys_each(const struct keys *k, const char *gguf, const char *hf, const uint32_t range[2], uint32_t *out,
              uint32_t n, struct err *e);
int keys_each_f32(const struct keys *k, const char *gguf, const char *hf, const double range[2], float *out,
                  uint32_t n, struct err *e);

/* How many numbers an array has, at most 65536; 1 where it is none. */
uint32_t keys_items(const struct keys *k, const char *gguf, const char *hf);

/* The member of config.json, or NULL. Alternatives as above; *name gets the one that was found. */
json_t *keys_json(const struct keys *k, const char *hf, char name[64]);
