#define _GNU_SOURCE
#include "hub/fetch.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "hub/hub.h"
#include "hub/partial_download.h"
#include "hub/sha.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FETCH_LANES = 64 };

/* A connection's work: a piece from where its bytes end. */
struct fetch_lane {
    struct http_request request;
    struct download *of;
    bool held; /* `piece` is this lane's, running or waiting for its next attempt */
    bool running;
    uint32_t piece;
    uint64_t at;    /* where the next byte goes */
    uint64_t began; /* at, when the attempt began */
    bool news;      /* it brought bytes that were not there */
    int failures;   /* attempts in a row that brought no byte */
    double not_before;
};

struct download {
    struct hub_http *h;
    struct fetch *f;
    struct partial_download part;
    struct fetch_lane *lanes; /* (count) */
    int count;
    bool whole;       /* the server does not support ranges: one lane, everything from the first byte */
    uint64_t counted; /* of part.done, what so_far.done has already */
};

/* The end of what a lane's attempt may bring. */
static uint64_t fetch_end(const struct fetch_lane *l)
{
    const struct partial_download *p = &l->of->part;
    return l->of->whole ? p->size : (uint64_t)l->piece * PARTIAL_PIECE + partial_piece_bytes(p, l->piece);
}

/* Checks the first bytes of a reply against the request. 1 = it matches, 0 = it does not, but another attempt
 * may. */
static int fetch_check(struct fetch_lane *l, struct err *e)
{
    struct download *d = l->of;
    const struct http_reply *r = &l->request.reply;
    uint64_t size = d->f->size, of = r->status == 206 ? r->range_of : r->length;
    if (of != HTTP_UNKNOWN && of != size)
        return err_set(e, ERR_UNREACHABLE,
                       "%s: the server sends a file of %llu bytes where %llu were announced",
                       log_safe(d->f->file), (unsigned long long)of, (unsigned long long)size);
    if (*d->f->etag && *r->etag && strcmp(r->etag, d->f->etag))
        return err_set(e, ERR_UNREACHABLE, "%s has changed on the server while it was fetched: try again",
                       log_safe(d->f->file));
    if (r->status == 206) {
        if (r->range_from == l->at && r->range_to != HTTP_UNKNOWN && r->range_to < fetch_end(l))
            return 1;
        return err_set(e, ERR_UNREACHABLE,
                       "%s: the server sends another range than the one that was asked for",
                       log_safe(d->f->file));
    }
    d->whole = true; /* a 200: the file from its first byte, whatever was asked for */
    return l->at == 0 && l == d->lanes;
}

static int fetch_take(void *arg, const void *data, size_t n, struct err *e)
{
    struct fetch_lane *l = arg;
    struct download *d = l->of;
    if (l->at == l->began) {
        int good = fetch_check(l, e);
        if (good <= 0)
            return -1;
    }
    if (n > fetch_end(l) - l->at)
        return err_set(e, ERR_UNREACHABLE, "%s: the server sends more bytes than it announced",
                       log_safe(d->f->file));
    uint64_t before = d->part.done;
    if (partial_write(&d->part, l->at, data, n, e))
        return -1;
    l->news |= d->part.done > before;
    l->at += n;
    d->f->fetched += n;
    return 0;
}

/* The first piece that is not whole and that no lane holds. */
static bool fetch_claim(struct download *d, struct fetch_lane *l)
{
    for (uint32_t i = 0; i < d->part.pieces; i++) {
        bool taken = d->part.counts[i] == partial_piece_bytes(&d->part, i);
        for (int k = 0; k < d->count && !taken; k++)
            taken = d->lanes[k].held && d->lanes[k].piece == i;
        if (!taken) {
            l->held = true;
            l->piece = i;
            l->failures = 0;
            return true;
        }
    }
    return false;
}

static int fetch_launch(struct download *d, struct fetch_lane *l, struct err *e)
{
    if (!l->held && !fetch_claim(d, l))
        return 0;
    l->at = d->whole ? 0 : (uint64_t)l->piece * PARTIAL_PIECE + d->part.counts[l->piece];
    l->began = l->at;
    l->news = false;
    l->request.from = l->at;
    l->request.to = d->whole ? 0 : fetch_end(l);
    if (http_start(d->h, &l->request, e))
        return -1;
    l->running = true;
    return 0;
}

/* Starts what may run now; gives the milliseconds until the next one may, at most a second. */
static int fetch_launch_all(struct download *d, int *wait, struct err *e)
{
    double now = clock_now();
    *wait = 1000;
    for (int i = 0; i < (d->whole ? 1 : d->count); i++) {
        struct fetch_lane *l = &d->lanes[i];
        if (l->running)
            continue;
        if (l->held && l->not_before > now)
            *wait = (int)size_min((size_t)*wait, (size_t)((l->not_before - now) * 1000) + 1);
        else if (fetch_launch(d, l, e))
            return -1;
    }
    return 0;
}

static int fetch_give_up(const struct download *d, const struct err *why, struct err *e)
{
    return err_set(e, why->code, "%s; %llu of %llu bytes are kept, and the same command resumes the download",
                   why->text, (unsigned long long)d->part.done, (unsigned long long)d->f->size);
}

/* An attempt that brought bytes is no failure: its bytes are kept, and the next one continues from there. */
static int fetch_ended(struct download *d, struct fetch_lane *l, struct err *e)
{
    struct err why = {0};
    l->running = false;
    enum http_verdict v = http_judge(d->h, &l->request, &why);
    if (v == HTTP_FOLLOW)
        return fetch_launch(d, l, e);
    if (v == HTTP_FAILED)
        return fetch_give_up(d, &why, e);
    /* All its bytes are there, however the connection ended; or it has found no support for ranges, and leaves the work to
     * the first lane. */
    if (l->at == fetch_end(l) || (d->whole && l != d->lanes)) {
        l->held = false;
        return 0;
    }
    l->failures = l->news ? 0 : l->failures + 1;
    if (v == HTTP_DONE)
        err_set(&why, ERR_UNREACHABLE, "%s: the server ends before the end", log_safe(d->f->file));
    if (l->failures > d->h->hub->retries)
        return fetch_give_up(d, &why, e);
    log_debug("%s: %s; going on at byte %llu", d->f->file, why.text, (unsigned long long)l->at);
    l->not_before =
        l->failures || l->request.reply.retry_after ? clock_now() + http_delay(&l->request, l->failures) : 0;
    return 0;
}

/* Reports the progress; whether the client ends the pull. */
static int fetch_tell(const struct hub *hub, const struct hub_progress *p, struct err *e)
{
    return hub->progress && hub->progress(hub->progress_arg, p)
               ? err_set(e, ERR_INTERRUPTED, "%s: the download was interrupted", log_safe(p->file))
               : 0;
}

static int fetch_count(struct download *d, struct err *e)
{
    d->f->so_far->done += d->part.done - d->counted;
    d->counted = d->part.done;
    return fetch_tell(d->h->hub, d->f->so_far, e);
}

static int fetch_loop(struct download *d, struct err *e)
{
    int wait = 0;
    while (d->part.done < d->part.size) {
        if (fetch_launch_all(d, &wait, e))
            return -1;
        for (struct http_request *r; (r = http_next(d->h, wait, e)); wait = 0)
            if (fetch_ended(d, r->arg, e))
                return -1;
        if (e->code || fetch_count(d, e))
            return -1;
    }
    return 0;
}

static int fetch_lanes(struct download *d, struct err *e)
{
    const struct hub *hub = d->h->hub;
    d->count = (int)size_min(size_min((size_t)hub->connections, FETCH_LANES), size_max(d->part.pieces, 1));
    if (!(d->lanes = mem_zalloc((size_t)d->count, sizeof *d->lanes)))
        return err_memory(e, "a download", (size_t)d->count * sizeof *d->lanes);
    for (int i = 0; i < d->count; i++) {
        d->lanes[i].of = d;
        d->lanes[i].request.take = fetch_take;
        d->lanes[i].request.arg = &d->lanes[i];
        if (http_aim(&d->lanes[i].request, d->f->url, e))
            return -1;
    }
    return 0;
}

/* The checksum of the part's first `size` bytes: 1 = right, 0 = wrong. */
static int fetch_verify(struct download *d, char got[SHA_HEX], struct err *e)
{
    enum { STEP = 1 << 20 };
    const struct hub *hub = d->h->hub;
    struct fetch *f = d->f;
    struct hub_progress tell = {.file = f->file, .total = f->size, .checking = true};
    struct sha s;
    bool git = strlen(f->checksum) == 40;
    uint8_t *step = mem_alloc(STEP, 1);
    if (!step)
        return err_memory(e, "a checksum", STEP);
    sha_start(&s, git ? SHA_1 : SHA_256);
    if (git) {
        char head[32];
        int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)f->size);
        sha_add(&s, head, (size_t)n + 1); /* with its NUL */
    }
    ssize_t n = 1;
    int stopped = 0;
    for (uint64_t at = 0; at < f->size && n > 0 && !stopped; at += n > 0 ? (uint64_t)n : 0) {
        n = pread(d->part.fd, step, size_min(STEP, f->size - at), (off_t)at);
        sha_add(&s, step, n > 0 ? (size_t)n : 0);
        tell.done = at;
        stopped = fetch_tell(hub, &tell, e);
    }
    mem_free(step);
    if (stopped)
        return -1;
    if (n <= 0)
        return err_set(e, ERR_CHANGED, "cannot read %s back: %s", log_safe(d->part.path), strerror(errno));
    sha_end(&s, got);
    return !strcmp(got, f->checksum);
}

/* 0, -1, or 1: the bytes that were there before spoilt it, and are gone. */
static int fetch_finish(struct download *d, struct err *e)
{
    char got[SHA_HEX] = "";
    int right = *d->f->checksum ? fetch_verify(d, got, e) : 1;
    if (right < 0)
        return -1;
    if (right)
        return partial_finish(&d->part, d->f->path, e);
    unlink(d->part.path);
    d->f->so_far->done -= d->counted;
    if (d->part.resumed)
        return 1;
    return err_set(
        e, ERR_DATA,
        "%s: the bytes that came have the checksum %s, and not %s: they are thrown away; the server, or "
        "something on the way, spoils them",
        log_safe(d->f->file), got, d->f->checksum);
}

static int fetch_once(struct hub_http *h, struct fetch *f, struct err *e)
{
    struct download d = {.h = h, .f = f, .part.fd = -1};
    int result = partial_open(&d.part, f->part, f->size, e) || fetch_lanes(&d, e) ? -1 : 0;
    if (!result)
        result = fetch_count(&d, e) || fetch_loop(&d, e) ? -1 : 0;
    for (int i = 0; i < d.count && d.lanes; i++)
        http_stop(h, &d.lanes[i].request);
    if (!result)
        result = fetch_finish(&d, e);
    mem_free(d.lanes);
    partial_close(&d.part);
    return result;
}

int fetch_file(struct hub_http *h, struct fetch *f, struct err *e)
{
    int result = fetch_once(h, f, e);
    if (result == 1) {
        log_warn("%s: the rest of an earlier attempt has a wrong checksum; fetching the file again",
                 log_safe(f->file));
        result = fetch_once(h, f, e);
    }
    return result ? -1 : 0;
}
