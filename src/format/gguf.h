/* GGUF files, versions 2 and 3, little-endian. Everything is checked when the file is opened: counts,
 * lengths, types, shapes, offsets, overlap, unique names. After that the tables are valid, and keys and
 * tensors point into the mapping. Read-only and safe to share. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tensor; /* format/store.h */

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

struct gguf_str {
    const char *s; /* not NUL-terminated */
    size_t n;
};

struct gguf_key {
    const char *name;    /* NUL-terminated copy */
    enum gguf_type type; /* GGUF_ARRAY: an array of `item` */
    enum gguf_type item; /* of an array; otherwise the same as type */
    uint64_t count;      /* of an array; otherwise 1 */
    const uint8_t *data; /* the items, in the mapping, validated to `bytes`; strings with their lengths */
    size_t bytes;
};

struct gguf;

/* Opens `path`, and all the parts when it is the first of a split (name-00001-of-0000N.gguf). */
int gguf_open(struct gguf **out, const char *path, struct err *e);
/* The same over bytes in memory, one part (tests, fuzzing). The bytes must outlive the result. */
int gguf_parse(struct gguf **out, const uint8_t *data, size_t size, struct err *e);
void gguf_close(struct gguf *g);

uint32_t gguf_version(const struct gguf *g);
size_t gguf_key_count(const struct gguf *g);
const struct gguf_key *gguf_key_at(const struct gguf *g, size_t i);
const struct gguf_key *gguf_find(const struct gguf *g, const char *name); /* NULL = not there */

/* Typed getters: 1 = there, 0 = not there, -1 = there with another type or out of range (e says which key,
 * what it has and what was expected). Integers of any width are taken where they fit. */
int gguf_get_u64(const struct gguf *g, const char *name, uint64_t least, uint64_t most, uint64_t *out,
                 struct err *e);
int gguf_get_f64(const struct gguf *g, const char *name, double *out,
                 struct err *e); /* floats, also integers */
int gguf_get_bool(const struct gguf *g, const char *name, bool *out, struct err *e);
int gguf_get_str(const struct gguf *g, const char *name, struct gguf_str *out, struct err *e);
/* An array whose items are of class `item`: GGUF_STRING, GGUF_F32 (any float), GGUF_I64 (any integer),
 * GGUF_BOOL. Checks the class and, when count > 0, the length. */
int gguf_get_array(const struct gguf *g, const char *name, enum gguf_type item, uint64_t count,
                   const struct gguf_key **out, struct err *e);

/* Items of an array of numbers or booleans; i < count. An unsigned one above INT64_MAX gives INT64_MAX. */
int64_t gguf_item_i64(const struct gguf_key *k, uint64_t i);
double gguf_item_f64(const struct gguf_key *k, uint64_t i);
/* Items of an array of strings, in order: start with at = 0, returns false after the last. */
bool gguf_next_str(const struct gguf_key *k, size_t *at, struct gguf_str *out);
/* Items of an array of arrays, in the same way. */
bool gguf_next_array(const struct gguf_key *k, size_t *at, struct gguf_key *out);
/* "u32", "string": the name of a type in messages and listings. */
const char *gguf_type_name(enum gguf_type t);
size_t gguf_type_size(enum gguf_type t); /* 0 = not of one size */
bool gguf_is_integer(enum gguf_type t);

size_t gguf_tensor_count(const struct gguf *g);
const struct tensor *gguf_tensor_at(const struct gguf *g, size_t i);           /* consecutive in memory */
const struct tensor *gguf_find_tensor(const struct gguf *g, const char *name); /* NULL = not there */
/* Whether the bytes of its files are still those that were mapped (base/file.h). */
int gguf_check(const struct gguf *g, struct err *e);
bool gguf_is_changed(const struct gguf *g);
bool gguf_is_private(const struct gguf *g);   /* some of them could not be mapped shared */
size_t gguf_file_bytes(const struct gguf *g); /* of all parts */
/* The file that holds this tensor, and where in it the data begin. */
const char *gguf_tensor_file(const struct gguf *g, const struct tensor *t, size_t *offset);
