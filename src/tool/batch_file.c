#define _GNU_SOURCE
#include "tool/batch_file.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/jsonread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BATCH_REPLY_MOST = 1 << 30 };  /* bytes of a line of an output */
static const double SYNC_SECONDS = 1; /* between two writes to the disk */

static struct digest batch_digest(const char *id)
{
    struct digest d = {0};
    digest_add(&d, id, strlen(id));
    return d;
}

static int batch_order(const void *a, const void *b)
{
    const struct digest *x = &((const struct batch_entry *)a)->id, *y = &((const struct batch_entry *)b)->id;
    if (x->hi != y->hi)
        return x->hi < y->hi ? -1 : 1;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* ---- the input ---- */

static int batch_add(struct batch_file *f, const struct batch_entry *l, struct err *e)
{
    if (f->count == f->room) {
        size_t room = f->room ? 2 * f->room : 1024;
        struct batch_entry *more = mem_realloc(f->lines, room, sizeof *more);
        if (!more)
            return err_memory(e, "the lines of the batch", room * sizeof *more);
        f->lines = more;
        f->room = room;
    }
    f->lines[f->count++] = *l;
    return 0;
}

/* The line at *at, without its end; empty ones are skipped. NULL = there are no more. */
static const char *batch_text(const char *data, size_t size, size_t *at, size_t *n)
{
    while (*at < size) {
        const char *line = data + *at, *end = memchr(line, '\n', size - *at);
        *n = end ? (size_t)(end - line) : size - *at;
        *at += *n + (end != NULL);
        *n -= *n && line[*n - 1] == '\r';
        if (*n)
            return line;
    }
    return NULL;
}

static size_t batch_number(const char *data, const char *line)
{
    size_t number = 1;
    for (const char *p = data; (p = memchr(p, '\n', (size_t)(line - p))); p++)
        number++;
    return number;
}

static int batch_twice(const struct batch_file *f, size_t first, size_t second, struct err *e)
{
    const char *data = (const char *)f->in.data;
    size_t a = batch_number(data, data + first), b = batch_number(data, data + second);
    return err_set(e, ERR_DATA, "%s: lines %zu and %zu have the same custom_id: each has to have its own",
                   log_safe(f->path), a < b ? a : b, a < b ? b : a);
}

static int batch_by_place(const void *a, const void *b, void *lines)
{
    const struct batch_entry *all = lines;
    size_t x = all[*(const size_t *)a].at, y = all[*(const size_t *)b].at;
    return x < y ? -1 : x > y;
}

/* Sorts the lines by their ids, which have to differ, and keeps the order of the file. */
static int batch_sort(struct batch_file *f, struct err *e)
{
    if (!(f->order = mem_alloc(f->count, sizeof *f->order)))
        return err_memory(e, "the lines of the batch", f->count * sizeof *f->order);
    qsort(f->lines, f->count, sizeof *f->lines, batch_order);
    for (size_t i = 0; i < f->count; i++) {
        f->order[i] = i;
        if (i && !batch_order(&f->lines[i - 1], &f->lines[i]))
            return batch_twice(f, f->lines[i - 1].at, f->lines[i].at, e);
    }
    qsort_r(f->order, f->count, sizeof *f->order, batch_by_place, f->lines);
    return 0;
}

static int batch_index(struct batch_file *f, struct err *e)
{
    const char *data = (const char *)f->in.data, *line;
    size_t at = 0, n;
    while ((line = batch_text(data, f->in.size, &at, &n))) {
        struct batch_line *l = mem_zalloc(1, sizeof *l);
        if (!l)
            return err_memory(e, "a line of the batch", sizeof *l);
        int failed = batch_read_line(line, n, NULL, l, e);
        struct batch_entry entry = {.at = (size_t)(line - data), .n = n};
        if (!failed)
            entry.id = batch_digest(l->custom_id);
        else
            err_prefix(e, "%s, line %zu", log_safe(f->path), batch_number(data, line));
        batch_line_free(l);
        if (failed || batch_add(f, &entry, e))
            return -1;
    }
    return f->count ? batch_sort(f, e) : err_set(e, ERR_DATA, "%s has no lines", log_safe(f->path));
}

/* ---- the outputs ---- */

static struct batch_entry *batch_find(const struct batch_file *f, const char *id)
{
    const struct batch_entry want = {.id = batch_digest(id)};
    return bsearch(&want, f->lines, f->count, sizeof want, batch_order);
}

/* Marks the line of the batch that this line of an output is the reply to. 1: it is no line of an output. */
static int batch_mark(struct batch_file *f, const struct batch_output *o, const char *line, size_t n,
                      struct err *e)
{
    struct err ignored = {0};
    struct jsonread_size size;
    jsonread_measure(line, n, &size);
    const struct jsonread_limits most = {
        .text = BATCH_REPLY_MOST, .memory = size.memory, .depth = JSONREAD_DEPTH, .nul = true};
    json_t *reply = jsonread_object(line, n, &most, "the line", &ignored);
    const char *id = json_string_value(json_object_get(reply, "custom_id"));
    struct batch_entry *entry = id ? batch_find(f, id) : NULL;
    int failed = !id ? 1 : 0;
    if (id && !entry)
        failed = err_set(e, ERR_DATA, "%s has a reply to '%s', which is not in %s: give another output",
                         log_safe(o->path), log_safe(id), log_safe(f->path));
    else if (id && entry->done)
        failed = err_set(e, ERR_DATA, "%s has a second reply to '%s'", log_safe(o->path), log_safe(id));
    json_decref(reply);
    if (!failed) {
        entry->done = true;
        f->done++;
        f->failed += o == &f->errors;
    }
    return failed;
}

/* Reads what an earlier run has written. What follows the last whole line is cut. */
static int batch_resume(struct batch_file *f, struct batch_output *o, struct err *e)
{
    struct map m;
    size_t at = 0, n;
    if (map_open(&m, o->path, e))
        return -1;
    const char *data = (const char *)m.data, *line;
    int failed = 0;
    while (!failed && (size_t)o->size < m.size && memchr(data + o->size, '\n', m.size - (size_t)o->size) &&
           (line = batch_text(data, m.size, &at, &n))) {
        failed = batch_mark(f, o, line, n, e);
        o->size = failed ? o->size : (off_t)at;
    }
    size_t number = failed > 0 ? batch_number(data, data + o->size) : 0;
    bool last = at == m.size;
    map_close(&m);
    if (failed > 0 && !last)
        return err_set(e, ERR_DATA, "%s, line %zu: no reply of a batch: give another output",
                       log_safe(o->path), number);
    if (failed < 0)
        return -1;
    if (ftruncate(o->fd, o->size))
        return err_set(e, ERR_FULL, "cannot write %s: %s", log_safe(o->path), strerror(errno));
    return 0;
}

/* Opens an output, and reads what it has. make: also where there is none. */
static int batch_open_output(struct batch_file *f, struct batch_output *o, bool make, struct err *e)
{
    struct stat out, in;
    o->fd = open(o->path, O_RDWR | O_APPEND | O_CLOEXEC | (make ? O_CREAT : 0), 0666);
    if (o->fd < 0 && errno == ENOENT && !make)
        return 0;
    if (o->fd < 0)
        return err_set(e, ERR_FULL, "cannot write %s: %s", log_safe(o->path), strerror(errno));
    if (fstat(o->fd, &out) || fstat(f->in.fd, &in) || !S_ISREG(out.st_mode))
        return err_set(e, ERR_USAGE, "%s is no regular file: the output is the record of what is done",
                       log_safe(o->path));
    if (out.st_dev == in.st_dev && out.st_ino == in.st_ino)
        return err_set(e, ERR_USAGE, "%s is the input: give another output", log_safe(o->path));
    if (flock(o->fd, LOCK_EX | LOCK_NB))
        return err_set(e, ERR_RESOURCE, "another process writes %s", log_safe(o->path));
    return batch_resume(f, o, e);
}

int batch_file_open(struct batch_file *f, const char *in, const char *out, const char *errors, struct err *e)
{
    *f = (struct batch_file){.path = in, .in.fd = -1, .out = {out, -1}, .errors = {errors, -1}};
    if (map_open(&f->in, in, e))
        return -1;
    if (batch_index(f, e) || batch_open_output(f, &f->out, true, e) ||
        batch_open_output(f, &f->errors, false, e))
        return -1;
    f->before = f->done;
    progress_start(&f->progress, "lines");
    return 0;
}

static int batch_sync(struct batch_output *o, struct err *e)
{
    bool dirty = o->dirty;
    o->dirty = false;
    return dirty && fsync(o->fd)
               ? err_set(e, ERR_FULL, "cannot write %s: %s", log_safe(o->path), strerror(errno))
               : 0;
}

int batch_file_close(struct batch_file *f, struct err *e)
{
    progress_end(&f->progress);
    int failed = batch_sync(&f->out, e) | batch_sync(&f->errors, e);
    if (f->out.fd >= 0)
        close(f->out.fd);
    if (f->errors.fd >= 0)
        close(f->errors.fd);
    map_close(&f->in);
    mem_free(f->lines);
    mem_free(f->order);
    return failed ? -1 : 0;
}

/* ---- the feed ---- */

int batch_file_next(void *arg, struct batch_line *l, struct err *e)
{
    struct batch_file *f = arg;
    while (f->next < f->count && f->lines[f->order[f->next]].done)
        f->next++;
    if (f->next == f->count)
        return -1;
    const struct batch_entry *line = &f->lines[f->order[f->next++]];
    l->number = (int64_t)(line - f->lines);
    if (!batch_read_line((const char *)f->in.data + line->at, line->n, NULL, l, e))
        return 1;
    return err_prefix(e, "%s has changed", log_safe(f->path));
}

/* A whole line, or nothing. */
static int batch_write(struct batch_output *o, const struct buf *line, struct err *e)
{
    size_t at = 0;
    while (at < line->len) {
        ssize_t n = write(o->fd, line->data + at, line->len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int why = n < 0 ? errno : ENOSPC;
            int ignored = ftruncate(o->fd, o->size);
            (void)ignored; /* a torn line is cut by the next run */
            return err_set(e, ERR_FULL, "cannot write %s: %s; the same command goes on from here",
                           log_safe(o->path), strerror(why));
        }
        at += (size_t)n;
    }
    o->size += (off_t)line->len;
    o->dirty = true;
    return 0;
}

int batch_file_done(void *arg, struct batch_line *l, struct err *e)
{
    struct batch_file *f = arg;
    struct batch_output *o = l->status == 200 ? &f->out : &f->errors;
    struct buf line = {.max = BATCH_REPLY_MOST};
    char note[64];
    if (o->fd < 0 && batch_open_output(f, o, true, e))
        return -1;
    batch_write_line(l, &line);
    int failed = line.failed ? err_memory(e, "a line of the output", line.len) : batch_write(o, &line, e);
    buf_free(&line);
    if (failed)
        return -1;
    f->lines[l->number].done = true;
    f->done++;
    f->failed += l->status != 200;
    double now = clock_now();
    if (now - f->synced > SYNC_SECONDS) {
        f->synced = now;
        failed = batch_sync(&f->out, e) | batch_sync(&f->errors, e);
    }
    snprintf(note, sizeof note, "%zu of %zu", f->done, f->count);
    progress_show(&f->progress, (double)f->done / (double)f->count, note);
    return failed ? -1 : 0;
}
