#define _GNU_SOURCE
#include "format/gguf_write.h"

#include "codec/dtype.h"
#include "base/log.h"
#include "base/size.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- keys ---- */

static void put_u32(struct buf *b, uint32_t v)
{
    buf_add(b, &v, sizeof v);
}

static void put_u64(struct buf *b, uint64_t v)
{
    buf_add(b, &v, sizeof v);
}

static void put_text(struct buf *b, const char *s, size_t n)
{
    put_u64(b, n);
    buf_add(b, s, n);
}

/* Name and type; false where the key is there already. */
static bool put_key(struct gguf_writer *w, const char *name, enum gguf_type type)
{
    char *kept = arena_strndup(&w->arena, name, strlen(name));
    int there = kept ? names_add(&w->key_set, kept, (uint32_t)w->key_count) : -1;
    if (there < 0)
        w->keys.failed = true;
    if (there)
        return false;
    w->key_count++;
    put_text(&w->keys, name, strlen(name));
    put_u32(&w->keys, type);
    return true;
}

void gguf_put_u32(struct gguf_writer *w, const char *name, uint32_t v)
{
    if (put_key(w, name, GGUF_U32))
        put_u32(&w->keys, v);
}

void gguf_put_f32(struct gguf_writer *w, const char *name, float v)
{
    if (put_key(w, name, GGUF_F32))
        buf_add(&w->keys, &v, sizeof v);
}

void gguf_put_bool(struct gguf_writer *w, const char *name, bool v)
{
    if (put_key(w, name, GGUF_BOOL))
        buf_char(&w->keys, (char)v);
}

void gguf_put_str(struct gguf_writer *w, const char *name, const char *s, size_t n)
{
    if (put_key(w, name, GGUF_STRING))
        put_text(&w->keys, s, n);
}

void gguf_put_copy(struct gguf_writer *w, const struct gguf_key *k)
{
    if (!put_key(w, k->name, k->type))
        return;
    if (k->type == GGUF_ARRAY) {
        put_u32(&w->keys, k->item);
        put_u64(&w->keys, k->count);
    }
    buf_add(&w->keys, k->data, k->bytes);
}

void gguf_put_items(struct gguf_writer *w, const char *name, enum gguf_type item, const void *data,
                    uint64_t n)
{
    size_t size = gguf_type_size(item), bytes;
    if (!put_key(w, name, GGUF_ARRAY))
        return;
    put_u32(&w->keys, item);
    put_u64(&w->keys, n);
    if (size_mul(n, size, &bytes))
        buf_add(&w->keys, data, bytes);
    else
        w->keys.failed = true;
}

bool gguf_put_strings(struct gguf_writer *w, const char *name, uint64_t n)
{
    if (!put_key(w, name, GGUF_ARRAY))
        return false;
    put_u32(&w->keys, GGUF_STRING);
    put_u64(&w->keys, n);
    return true;
}

void gguf_add_string(struct gguf_writer *w, const char *s, size_t n)
{
    put_text(&w->keys, s, n);
}

/* ---- tensors ---- */

int gguf_add_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t dims,
                    const uint64_t shape[4], struct err *e)
{
    struct gguf_out *more = mem_more(w->tensors, w->count, &w->room, sizeof *more);
    if (!more)
        return err_memory(e, "the list of tensors", (w->count + 1) * sizeof *more);
    w->tensors = more;
    struct gguf_out *t = &w->tensors[w->count];
    *t = (struct gguf_out){.type = type, .dims = dims, .shape = {1, 1, 1, 1}};
    t->name = arena_strndup(&w->arena, name, strlen(name));
    int there = t->name ? names_add(&w->tensor_set, t->name, (uint32_t)w->count) : -1;
    if (there)
        return there < 0 ? err_memory(e, "the list of tensors", w->count)
                         : err_set(e, ERR_DATA, "two tensors would be called %s", log_safe(name));
    bool fits = dtype_row_bytes(type, shape[0], &t->bytes);
    t->shape[0] = shape[0];
    for (uint32_t i = 1; i < dims && fits; i++) {
        t->shape[i] = shape[i];
        fits = size_mul(t->bytes, shape[i], &t->bytes);
    }
    if (!fits)
        return err_set(e, ERR_DATA, "tensor %s: rows of %llu values cannot be of type %s", log_safe(name),
                       (unsigned long long)shape[0], dtype_get(type)->name);
    w->count++;
    return 0;
}

static uint64_t padded(uint64_t n)
{
    return (n + GGUF_ALIGN - 1) & ~(uint64_t)(GGUF_ALIGN - 1);
}

/* Computes each tensor's file and offset. */
static uint32_t place(struct gguf_writer *w, uint64_t split)
{
    uint32_t file = 0;
    uint64_t at = 0;
    for (size_t i = 0; i < w->count; i++) {
        struct gguf_out *t = &w->tensors[i];
        if (split && at && at + t->bytes > split) {
            file++;
            at = 0;
        }
        t->file = file;
        t->offset = at;
        at = padded(at + t->bytes);
    }
    return file + 1;
}

static int name_files(struct gguf_writer *w, const char *path, struct err *e)
{
    size_t stem = strlen(path);
    if (w->file_count > 1 && stem > 5 && !strcmp(path + stem - 5, ".gguf"))
        stem -= 5;
    w->files = arena_alloc(&w->arena, w->file_count, sizeof *w->files);
    for (uint32_t i = 0; w->files && i < w->file_count; i++)
        w->files[i].fd = -1;
    for (uint32_t i = 0; w->files && i < w->file_count; i++) {
        struct gguf_out_file *f = &w->files[i];
        char end[40] = "";
        if (w->file_count > 1)
            snprintf(end, sizeof end, "-%05u-of-%05u.gguf", i + 1, w->file_count);
        size_t size = stem + sizeof end + 24;
        f->path = arena_alloc(&w->arena, size, 1);
        f->temporary = arena_alloc(&w->arena, size, 1);
        if (!f->path || !f->temporary)
            return err_memory(e, "a path", size);
        snprintf(f->path, size, "%.*s%s", (int)stem, path, end);
        snprintf(f->temporary, size, "%s.%ld.part", f->path, (long)getpid());
    }
    for (size_t i = w->count; w->files && i-- > 0;) {
        w->files[w->tensors[i].file].first = i;
        w->files[w->tensors[i].file].count++;
    }
    return w->files ? 0 : err_memory(e, "the list of files", w->file_count * sizeof *w->files);
}

static int write_all(const struct gguf_out_file *f, const void *data, size_t n, uint64_t at, struct err *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pwrite(f->fd, (const char *)data + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return err_set(e, errno == ENOSPC || errno == EDQUOT ? ERR_RESOURCE : ERR_CHANGED,
                           "cannot write %s: %s", log_safe(f->path), strerror(errno));
        done += (size_t)got;
    }
    return 0;
}

/* The header of file i: all keys in the first, only the split's own in the others. */
static int write_header(struct gguf_writer *w, uint32_t i, struct err *e)
{
    struct gguf_out_file *f = &w->files[i];
    struct buf out = {0};
    struct gguf_writer own = {0}; /* of the split's keys */
    if (w->file_count > 1) {
        uint16_t no = (uint16_t)i, count = (uint16_t)w->file_count;
        int32_t tensors = (int32_t)w->count;
        gguf_put_copy(&own, &(struct gguf_key){"split.no", GGUF_U16, GGUF_U16, 1, (uint8_t *)&no, sizeof no});
        gguf_put_copy(
            &own, &(struct gguf_key){"split.count", GGUF_U16, GGUF_U16, 1, (uint8_t *)&count, sizeof count});
        gguf_put_copy(&own, &(struct gguf_key){"split.tensors.count", GGUF_I32, GGUF_I32, 1,
                                               (uint8_t *)&tensors, sizeof tensors});
    }
    buf_add(&out, "GGUF", 4);
    put_u32(&out, 3);
    put_u64(&out, f->count);
    put_u64(&out, own.key_count + (i ? 0 : w->key_count));
    if (!i)
        buf_add(&out, w->keys.data, w->keys.len);
    buf_add(&out, own.keys.data, own.keys.len);
    for (size_t k = 0; k < f->count; k++) {
        const struct gguf_out *t = &w->tensors[f->first + k];
        put_text(&out, t->name, strlen(t->name));
        put_u32(&out, t->dims);
        buf_add(&out, t->shape, t->dims * sizeof *t->shape);
        put_u32(&out, t->type);
        put_u64(&out, t->offset);
    }
    static const char zeros[GGUF_ALIGN];
    buf_add(&out, zeros, padded(out.len) - out.len);
    f->data_at = out.len;
    f->size = f->data_at;
    if (f->count) {
        const struct gguf_out *last = &w->tensors[f->first + f->count - 1];
        f->size += padded(last->offset + last->bytes);
    }
    int failed = out.failed || own.keys.failed || w->keys.failed ? err_memory(e, "the header", out.len)
                                                                 : write_all(f, out.data, out.len, 0, e);
    buf_free(&out);
    gguf_writer_close(&own);
    return failed;
}

/* Allocates the whole size first: a full disk is reported before the work. */
static int reserve(const struct gguf_out_file *f, struct err *e)
{
    if (ftruncate(f->fd, (off_t)f->size) ||
        (fallocate(f->fd, 0, 0, (off_t)f->size) && (errno == ENOSPC || errno == EFBIG || errno == EDQUOT)))
        return err_set(e, ERR_RESOURCE, "cannot make room for %s (%.2f GB): %s", log_safe(f->path),
                       1e-9 * (double)f->size, strerror(errno));
    return 0;
}

/* A rename would replace a device or a FIFO. */
static int may_write(const struct gguf_writer *w, const char *path, struct err *e)
{
    struct stat st;
    if (w->allow && w->allow(w->allow_arg, path, e))
        return -1;
    return !stat(path, &st) && !S_ISREG(st.st_mode)
               ? err_set(e, ERR_USAGE, "%s is not a file: name one for the output", log_safe(path))
               : 0;
}

int gguf_begin(struct gguf_writer *w, const char *path, uint64_t split, struct err *e)
{
    w->file_count = place(w, split);
    if (w->file_count > UINT16_MAX)
        return err_set(e, ERR_USAGE, "%u files would be needed; at most %u can be", w->file_count,
                       UINT16_MAX);
    if (name_files(w, path, e))
        return -1;
    for (uint32_t i = 0; i < w->file_count; i++)
        if (may_write(w, w->files[i].path, e))
            return -1;
    for (uint32_t i = 0; i < w->file_count; i++) {
        struct gguf_out_file *f = &w->files[i];
        f->fd = open(f->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd < 0)
            return err_set(e, ERR_USAGE, "cannot write %s: %s", log_safe(f->temporary), strerror(errno));
        if (write_header(w, i, e) || reserve(f, e))
            return -1;
    }
    return 0;
}

int gguf_put_data(struct gguf_writer *w, size_t tensor, size_t at, const uint8_t *bytes, size_t n,
                  struct err *e)
{
    const struct gguf_out *t = &w->tensors[tensor];
    const struct gguf_out_file *f = &w->files[t->file];
    return write_all(f, bytes, n, f->data_at + t->offset + at, e);
}

int gguf_commit(struct gguf_writer *w, struct err *e)
{
    for (uint32_t i = 0; i < w->file_count; i++)
        if (fsync(w->files[i].fd))
            return err_set(e, ERR_CHANGED, "cannot write %s: %s", log_safe(w->files[i].path),
                           strerror(errno));
    /* the first part last: once it exists, all parts exist */
    for (uint32_t i = w->file_count; i-- > 0;)
        if (rename(w->files[i].temporary, w->files[i].path))
            return err_set(e, ERR_CHANGED, "cannot rename %s: %s", log_safe(w->files[i].temporary),
                           strerror(errno));
    w->committed = true;
    return 0;
}

void gguf_writer_close(struct gguf_writer *w)
{
    for (uint32_t i = 0; w->files && i < w->file_count; i++) {
        struct gguf_out_file *f = &w->files[i];
        if (f->fd >= 0)
            close(f->fd);
        if (f->fd >= 0 && !w->committed)
            unlink(f->temporary);
    }
    buf_free(&w->keys);
    names_free(&w->key_set);
    names_free(&w->tensor_set);
    mem_free(w->tensors);
    arena_free(&w->arena);
    *w = (struct gguf_writer){0};
}
