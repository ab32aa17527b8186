#define _GNU_SOURCE
#include "hub/partial_download.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct partial_mark {
    char magic[8];
    uint64_t size;
    uint32_t piece, pieces;
    uint64_t zero;
};
_Static_assert(sizeof(struct partial_mark) == 32, "the tail's layout is part of the file");

static struct partial_mark partial_mark(const struct partial_download *p)
{
    return (struct partial_mark){
        .magic = "quernpt", .size = p->size, .piece = PARTIAL_PIECE, .pieces = p->pieces};
}

uint64_t partial_piece_bytes(const struct partial_download *p, uint32_t piece)
{
    uint64_t from = (uint64_t)piece * PARTIAL_PIECE;
    return p->size - from < PARTIAL_PIECE ? p->size - from : PARTIAL_PIECE;
}

static int partial_put(const struct partial_download *p, const void *data, size_t n, uint64_t at,
                       struct err *e)
{
    for (const char *from = data; n;) {
        ssize_t put = pwrite(p->fd, from, n, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return err_set(e, ERR_RESOURCE, "cannot write %s: %s", log_safe(p->path),
                           put ? strerror(errno) : "nothing was taken");
        from += put, at += (uint64_t)put, n -= (size_t)put;
    }
    return 0;
}

static bool partial_get(const struct partial_download *p, void *data, size_t n, uint64_t at)
{
    for (char *to = data; n;) {
        ssize_t got = pread(p->fd, to, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        to += got, at += (uint64_t)got, n -= (size_t)got;
    }
    return true;
}

static size_t partial_tail(const struct partial_download *p)
{
    return sizeof(struct partial_mark) + p->pieces * sizeof *p->counts;
}

/* The counts, from the tail where there is one, else from the length. */
static void partial_recall(struct partial_download *p, uint64_t length)
{
    struct partial_mark there, mine = partial_mark(p);
    bool tail = length == p->size + partial_tail(p) && partial_get(p, &there, sizeof there, p->size) &&
                !memcmp(&there, &mine, sizeof mine) &&
                partial_get(p, p->counts, p->pieces * sizeof *p->counts, p->size + sizeof mine);
    for (uint32_t i = 0; i < p->pieces; i++) {
        uint64_t most = partial_piece_bytes(p, i), from = (uint64_t)i * PARTIAL_PIECE;
        if (!tail)
            p->counts[i] = length > p->size || length < from ? 0 : (uint32_t)size_min(most, length - from);
        else if (p->counts[i] > most)
            p->counts[i] = 0;
        p->done += p->counts[i];
    }
    p->resumed = p->done > 0;
}

static int partial_start(struct partial_download *p, struct err *e)
{
    struct stat st;
    if (fstat(p->fd, &st) || !S_ISREG(st.st_mode))
        return err_set(e, ERR_RESOURCE, "%s is no file that can be written", log_safe(p->path));
    partial_recall(p, (uint64_t)st.st_size);
    struct partial_mark mine = partial_mark(p);
    if (ftruncate(p->fd, (off_t)(p->size + partial_tail(p))))
        return err_set(e, ERR_RESOURCE, "cannot make %s as long as the file will be (%llu bytes): %s",
                       log_safe(p->path), (unsigned long long)p->size, strerror(errno));
    return partial_put(p, &mine, sizeof mine, p->size, e) ||
                   partial_put(p, p->counts, p->pieces * sizeof *p->counts, p->size + sizeof mine, e)
               ? -1
               : 0;
}

int partial_open(struct partial_download *p, const char *path, uint64_t size, struct err *e)
{
    uint64_t pieces = size / PARTIAL_PIECE + (size % PARTIAL_PIECE != 0);
    *p = (struct partial_download){.fd = -1, .size = size, .pieces = (uint32_t)pieces};
    if (pieces > UINT32_MAX / 8)
        return err_set(e, ERR_DATA, "a file of %llu bytes is more than can be", (unsigned long long)size);
    snprintf(p->path, sizeof p->path, "%s", path);
    if (!(p->counts = mem_zalloc(p->pieces + 1, sizeof *p->counts)))
        return err_memory(e, "a download", pieces * sizeof *p->counts);
    p->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (p->fd < 0)
        err_set(e, ERR_RESOURCE, "cannot write %s: %s", log_safe(path), strerror(errno));
    if (p->fd < 0 || partial_start(p, e)) {
        partial_close(p);
        return -1;
    }
    return 0;
}

void partial_close(struct partial_download *p)
{
    if (p->fd >= 0)
        close(p->fd);
    mem_free(p->counts);
    *p = (struct partial_download){.fd = -1};
}

int partial_write(struct partial_download *p, uint64_t at, const void *data, size_t n, struct err *e)
{
    if (partial_put(p, data, n, at, e))
        return -1;
    for (uint64_t end = at + n; at < end;) {
        uint32_t piece = (uint32_t)(at / PARTIAL_PIECE);
        uint64_t from = (uint64_t)piece * PARTIAL_PIECE, to = size_min(end, from + PARTIAL_PIECE);
        uint32_t count = (uint32_t)(to - from);
        if (at - from <= p->counts[piece] && count > p->counts[piece]) { /* a gap is not there */
            p->done += count - p->counts[piece];
            p->counts[piece] = count;
            if (partial_put(p, &count, sizeof count,
                            p->size + sizeof(struct partial_mark) + piece * sizeof count, e))
                return -1;
        }
        at = to;
    }
    return 0;
}

uint64_t partial_missing(const char *path, uint64_t size)
{
    struct stat st;
    uint64_t there = stat(path, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
    return there < size ? size - there : 0;
}

int partial_finish(struct partial_download *p, const char *to, struct err *e)
{
    if (ftruncate(p->fd, (off_t)p->size) || fsync(p->fd))
        return err_set(e, ERR_RESOURCE, "cannot finish %s: %s", log_safe(p->path), strerror(errno));
    if (rename(p->path, to))
        return err_set(e, ERR_RESOURCE, "cannot rename %s to %s: %s", log_safe(p->path), log_safe(to),
                       strerror(errno));
    return 0;
}
