/* Writing GGUF files, version 3: declare keys and tensors; gguf_begin computes the layout of one file or
 * several; then many threads write the bytes of tensors in any order. Until gguf_commit the data is in
 * temporary files beside the final names; gguf_writer_close removes them. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "format/names.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GGUF_ALIGN = 32 };

struct gguf_out {
    const char *name;
    uint32_t type, dims;
    uint64_t shape[4]; /* shape[0] is contiguous */
    size_t bytes;
    uint32_t file;
    uint64_t offset; /* within the data of its file */
};

struct gguf_out_file {
    char *path, *temporary;
    int fd;              /* -1 = not open */
    size_t first, count; /* its tensors */
    uint64_t data_at, size;
};

struct gguf_writer {
    struct buf keys;      /* as they go into the file */
    struct names key_set; /* names in use */
    uint64_t key_count;
    struct gguf_out *tensors; /* (count) */
    size_t count, room;
    struct names tensor_set;
    struct gguf_out_file *files; /* (file_count), after gguf_begin */
    uint32_t file_count;
    struct arena arena;
    bool committed;
    /* gguf_begin calls it for each final name: may it be written; NULL = yes. */
    int (*allow)(void *arg, const char *path, struct err *e);
    void *allow_arg;
};

/* Keys: a name that is there already keeps its first value. Memory failures show in gguf_begin. */
void gguf_put_u32(struct gguf_writer *w, const char *name, uint32_t v);
void gguf_put_f32(struct gguf_writer *w, const char *name, float v);
void gguf_put_bool(struct gguf_writer *w, const char *name, bool v);
void gguf_put_str(struct gguf_writer *w, const char *name, const char *s, size_t n);
void gguf_put_copy(struct gguf_writer *w, const struct gguf_key *k);
/* Arrays: of n items of a size of their own; and of strings, which are added one by one
 * afterwards, unless it says false: the key was there. */
void gguf_put_items(struct gguf_writer *w, const char *name, enum gguf_type item, const void *data,
                    uint64_t n);
bool gguf_put_strings(struct gguf_writer *w, const char *name, uint64_t n);
void gguf_add_string(struct gguf_writer *w, const char *s, size_t n);

/* Declares the next tensor; its number is the count before. */
int gguf_add_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t dims,
                    const uint64_t shape[4], struct err *e);

/* Opens the temporaries and writes the headers. split > 0: no file has more bytes of tensors than that, if one
 * tensor alone has not; several are called NAME-00001-of-0000N.gguf. */
int gguf_begin(struct gguf_writer *w, const char *path, uint64_t split, struct err *e);
int gguf_put_data(struct gguf_writer *w, size_t tensor, size_t at, const uint8_t *bytes, size_t n,
                  struct err *e);
/* On disk, then under the final names. */
int gguf_commit(struct gguf_writer *w, struct err *e);
void gguf_writer_close(struct gguf_writer *w);
