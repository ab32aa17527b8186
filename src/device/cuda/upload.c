#include "device/cuda/upload.h"

#include "codec/dtype.h"
#include "codec/half.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/cores.h"
#include "base/pool.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

enum { SLOT_BYTES = 8 << 20, SLOTS = UPLOAD_SLOTS, THREADS_MOST = UPLOAD_THREADS, ALIGN = 256 };

struct loader {
    struct upload *u;
    const struct weights *w;
    struct upload_job *jobs;
    uint32_t job_count, next, finished;
    struct upload_slot slot[THREADS_MOST][SLOTS];
    size_t widest; /* columns */
    pthread_mutex_t lock;
    void (*progress)(void *, double);
    void *arg;
    struct err error;
};

bool cuda_has_type(uint32_t dtype)
{
    return layout_for(dtype) != FMT_NONE;
}

uint32_t upload_fmt(const struct weight *w)
{
    uint32_t fmt = layout_for(w->type);
    if (w->type == DTYPE_F32 && w->rows == 1)
        return FMT_F32;
    return fmt == FMT_NONE ? FMT_F16 : fmt;
}

/* Vectors are stored without padding, so that those of experts can be indexed. */
static bool is_vector(const struct weight *w)
{
    return w->type == DTYPE_F32 && w->rows == 1;
}

static uint64_t each_bytes(const struct weight *w)
{
    return is_vector(w) ? (uint64_t)w->cols * 4 : layout_bytes(upload_fmt(w), w->rows, w->cols);
}

uint64_t upload_room(const struct weight *w)
{
    return (each_bytes(w) * w->count + 2 * ALIGN - 1) / ALIGN * ALIGN;
}

/* The earlier weight with the same bytes (tied embeddings); 0: none. */
static uint32_t same_as(const struct weights *w, uint32_t i)
{
    for (uint32_t j = 1; j < i; j++) {
        const struct weight *a = &w->all[i], *b = &w->all[j];
        if (a->data == b->data && a->type == b->type && a->rows == b->rows && a->cols == b->cols &&
            a->count == b->count && a->row_bytes == b->row_bytes)
            return j;
    }
    return 0;
}

uint64_t upload_bytes(const struct weights *w)
{
    uint64_t n = 0;
    for (uint32_t i = 1; i < w->count; i++)
        n += same_as(w, i) ? 0 : upload_room(&w->all[i]);
    return n;
}

int upload_threads(int wanted)
{
    struct cores cores;
    cores_find(&cores);
    int n = wanted ? wanted : cores.n;
    return n < THREADS_MOST ? n : THREADS_MOST;
}

uint64_t upload_ring_bytes(int threads)
{
    return (uint64_t)upload_threads(threads) * SLOTS * SLOT_BYTES;
}

struct mat upload_mat(const struct weight *w, cu_ptr at)
{
    return (struct mat){.base = (const uint8_t *)at,
                        .stride = layout_stride(upload_fmt(w), w->cols),
                        .each = each_bytes(w),
                        .fmt = upload_fmt(w),
                        .n = w->rows,
                        .k = w->cols,
                        .count = w->count};
}

int upload_place(struct upload *u, const struct weights *w, cu_ptr pool, struct err *e)
{
    uint64_t at = 0;
    u->pool = pool;
    u->count = w->count;
    if (!(u->mat = mem_zalloc(w->count + 1, sizeof *u->mat)))
        return err_memory(e, "the table of weights", w->count * sizeof *u->mat);
    for (uint32_t i = 1; i < w->count; i++) {
        const struct weight *a = &w->all[i];
        uint32_t same = same_as(w, i);
        if (same) {
            u->mat[i] = u->mat[same];
            continue;
        }
        u->mat[i] = upload_mat(a, u->pool + at);
        if (layout_for(a->type) == FMT_NONE) {
            u->converted++;
            u->decoded[a->type]++;
        }
        at += upload_room(a);
    }
    return 0;
}

static size_t source_row(const struct weight *w)
{
    size_t n = 0;
    if (layout_for(w->type) == FMT_NONE)
        return 2 * (size_t)w->cols;
    return dtype_row_bytes(w->type, w->cols, &n) ? n : 0;
}

/* A slot has whole matrices, or whole tiles of rows. */
int upload_check(const struct weights *w, struct err *e)
{
    for (uint32_t i = 1; i < w->count; i++) {
        const struct weight *a = &w->all[i];
        const uint32_t rows = a->rows < TILE_ROWS ? a->rows : TILE_ROWS;
        if (source_row(a) > SLOT_BYTES / rows)
            return err_set(e, ERR_DATA, "%s has rows of %u values: the GPU takes %zu of its type",
                           log_safe(a->name), a->cols, (size_t)a->cols * (SLOT_BYTES / rows) / source_row(a));
    }
    return 0;
}

/* Whole matrices of a weight that fit into a slot. */
static uint64_t slot_matrices(const struct weight *w)
{
    return SLOT_BYTES / (source_row(w) * w->rows);
}

uint32_t upload_jobs(const struct weights *w, uint32_t weight, struct upload_job *jobs)
{
    const struct weight *a = &w->all[weight];
    const uint64_t rows = SLOT_BYTES / source_row(a) / TILE_ROWS * TILE_ROWS, whole = slot_matrices(a);
    uint32_t n = 0;
    for (uint32_t m = 0, some; m < a->count; m += some) {
        some = whole > a->count - m ? a->count - m : whole > 1 ? (uint32_t)whole : 1;
        for (uint64_t r = 0; r < a->rows; r += whole ? a->rows : rows) {
            const uint64_t left = a->rows - r;
            if (jobs)
                jobs[n] = (struct upload_job){weight, m, (uint32_t)r,
                                              (uint32_t)(whole || left < rows ? left : rows), some};
            n++;
        }
    }
    return n;
}

/* Cuts the weights into jobs; with jobs NULL only counts them. */
static uint32_t make_jobs(const struct weights *w, struct upload_job *jobs)
{
    uint32_t n = 0;
    for (uint32_t i = 1; i < w->count; i++)
        if (!same_as(w, i))
            n += upload_jobs(w, i, jobs ? jobs + n : NULL);
    return n;
}

/* Rows of one matrix. */
static void fill_rows(const struct upload_slot *s, const struct weight *w, const uint8_t *from, uint8_t *to,
                      uint32_t rows)
{
    const size_t row = source_row(w);
    if (layout_for(w->type) == FMT_NONE) {
        const struct dtype_info *info = dtype_get(w->type);
        for (uint32_t r = 0; r < rows; r++) {
            info->decode(from + r * w->row_bytes, s->decoded, w->cols);
            uint16_t *half = (uint16_t *)(to + r * row);
            for (uint32_t i = 0; i < w->cols; i++)
                half[i] = fp16_from_f32(s->decoded[i]);
        }
    } else if (row == w->row_bytes) {
        memcpy(to, from, rows * row);
    } else {
        for (uint32_t r = 0; r < rows; r++)
            memcpy(to + r * row, from + r * w->row_bytes, row);
    }
}

void upload_fill(const struct upload_slot *s, const struct weight *w, const struct upload_job *j)
{
    const uint8_t *from = w->data + j->matrix * w->each_bytes + j->first * w->row_bytes;
    for (uint32_t m = 0; m < j->matrices; m++)
        fill_rows(s, w, from + m * w->each_bytes, s->host + m * j->rows * source_row(w), j->rows);
}

/* It depends on the weight alone, so that a job that is cut shorter has a part of its range. Where matrices are apart from
 * each other, jobs that may have several have none. */
struct pinned_range upload_range(const struct weight *w, const struct upload_job *j)
{
    const bool apart = w->count > 1 && w->each_bytes != w->rows * w->row_bytes;
    const bool alike = !is_vector(w) && layout_for(w->type) != FMT_NONE && w->row_bytes == source_row(w) &&
                       (!apart || slot_matrices(w) <= 1);
    return (struct pinned_range){w->data + j->matrix * w->each_bytes + j->first * w->row_bytes,
                                 alike ? (size_t)j->matrices * j->rows * w->row_bytes : 0};
}

uint64_t upload_sent(const struct weight *w, const struct upload_job *j)
{
    return (uint64_t)j->matrices * j->rows * source_row(w);
}

/* A copy that another stream waits for. */
static int send_bytes(struct gpu *g, struct gpu *then, const struct upload_slot *s,
                      const struct upload_item *of, size_t bytes, struct err *e)
{
    const struct driver *cu = g->cu;
    if (g->stream != then->stream &&
        gpu_check(g, cu->event_record(s->begun, g->stream), "uploading weights", e))
        return -1;
    if (of->pinned
            ? pinned_send(of->pinned, g, s->device, upload_range(of->weight, of->job), e)
            : gpu_check(g, cu->to_device(s->device, s->host, bytes, g->stream), "uploading weights", e))
        return -1;
    return g->stream != then->stream &&
                   (gpu_check(g, cu->event_record(s->copied, g->stream), "uploading weights", e) ||
                    gpu_check(g, cu->stream_wait(then->stream, s->copied, 0), "uploading weights", e))
               ? -1
               : 0;
}

int upload_send(struct gpu *g, struct gpu *repack, const struct upload_slot *s, const struct upload_item *of,
                struct err *e)
{
    const struct weight *w = of->weight;
    const struct mat *m = of->mat;
    const struct upload_job *j = of->job;
    const size_t row = source_row(w), bytes = j->rows * row;
    cu_ptr to = (cu_ptr)m->base + j->matrix * m->each;
    if (is_vector(w)) {
        if (gpu_check(g, g->cu->to_device(to, s->host, j->matrices * bytes, repack->stream),
                      "uploading weights", e))
            return -1;
        return gpu_check(g, g->cu->event_record(s->done, repack->stream), "uploading weights", e);
    }
    to += (uint64_t)(layout_is_tile(m->fmt) ? j->first / TILE_ROWS : j->first) * m->stride;
    struct repack_args a = {.src = (const uint8_t *)s->device,
                            .dst = (uint8_t *)to,
                            .row_bytes = row,
                            .bytes = layout_bytes(m->fmt, j->rows, w->cols),
                            .src_each = bytes,
                            .dst_each = m->each,
                            .fmt = m->fmt,
                            .n = j->rows,
                            .k = w->cols};
    struct gpu_grid grid = gpu_grid(gpu_blocks(a.bytes, 16 * 256), j->matrices, 1, 256, 0);
    return send_bytes(g, repack, s, of, j->matrices * bytes, e) ||
                   gpu_launch(repack, K_REPACK, grid, &a, e) ||
                   gpu_check(g, g->cu->event_record(s->done, repack->stream), "uploading weights", e)
               ? -1
               : 0;
}

static void load_worker(void *arg, int worker, int workers)
{
    struct loader *l = arg;
    struct gpu *g = l->u->g;
    (void)workers;
    if (worker >= THREADS_MOST)
        return;
    struct err none = {0};
    gpu_enter(g, &none);
    for (uint32_t turn = 0;; turn = (turn + 1) % SLOTS) {
        struct upload_slot *s = &l->slot[worker][turn];
        struct err e = {0};
        pthread_mutex_lock(&l->lock);
        uint32_t i = l->error.code ? l->job_count : l->next++;
        pthread_mutex_unlock(&l->lock);
        if (i >= l->job_count)
            return;
        int bad = gpu_check(g, g->cu->event_sync(s->done), "uploading weights", &e);
        if (!bad)
            upload_fill(s, &l->w->all[l->jobs[i].weight], &l->jobs[i]);
        pthread_mutex_lock(&l->lock); /* the stream takes one at a time */
        if (!bad)
            bad = upload_send(g, g, s,
                              &(struct upload_item){.weight = &l->w->all[l->jobs[i].weight],
                                                    .mat = &l->u->mat[l->jobs[i].weight],
                                                    .job = &l->jobs[i]},
                              &e);
        if (bad && !l->error.code)
            l->error = e;
        double done = (double)++l->finished / l->job_count;
        if (worker == 0 && l->progress)
            l->progress(l->arg, done);
        pthread_mutex_unlock(&l->lock);
    }
}

int upload_slot_open(struct upload_slot *s, struct gpu *g, size_t widest, struct err *e)
{
    if (!(s->host = gpu_pinned(g, SLOT_BYTES, e)) ||
        !(s->device = gpu_alloc(g, SLOT_BYTES, "the upload ring", e)) ||
        gpu_check(g, g->cu->event_create(&s->begun, 0), "making an event", e) ||
        gpu_check(g, g->cu->event_create(&s->copied, 0), "making an event", e) ||
        /* who waits for it leaves its core to others */
        gpu_check(g, g->cu->event_create(&s->done, CU_EVENT_NO_TIMING | CU_EVENT_SLEEP), "making an event",
                  e))
        return -1;
    s->decoded = mem_alloc(widest, sizeof(float));
    return s->decoded ? 0 : err_memory(e, "the upload ring", widest * sizeof(float));
}

void upload_slot_close(struct upload_slot *s, struct gpu *g)
{
    gpu_pinned_free(g, s->host);
    gpu_free(g, s->device, SLOT_BYTES);
    void *const events[] = {s->begun, s->copied, s->done};
    for (int i = 0; i < 3; i++)
        if (events[i])
            g->cu->event_destroy(events[i]);
    mem_free(s->decoded);
}

static int open_slots(struct loader *l, int threads, struct err *e)
{
    for (int t = 0; t < threads; t++)
        for (int i = 0; i < SLOTS; i++)
            if (upload_slot_open(&l->slot[t][i], l->u->g, l->widest, e))
                return -1;
    return 0;
}

static void close_slots(struct loader *l)
{
    for (int t = 0; t < THREADS_MOST; t++)
        for (int i = 0; i < SLOTS; i++)
            upload_slot_close(&l->slot[t][i], l->u->g);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

size_t upload_widest(const struct weights *w)
{
    size_t widest = 1;
    for (uint32_t i = 1; i < w->count; i++)
        widest = w->all[i].cols > widest ? w->all[i].cols : widest;
    return widest;
}

static int load_all(struct loader *l, int threads, struct err *e)
{
    struct upload *u = l->u;
    struct pool *pool = NULL;
    l->widest = upload_widest(l->w);
    l->job_count = make_jobs(l->w, NULL);
    if (!(l->jobs = mem_alloc(l->job_count ? l->job_count : 1, sizeof *l->jobs)))
        return err_memory(e, "the upload's list", l->job_count * sizeof *l->jobs);
    make_jobs(l->w, l->jobs);
    threads = upload_threads(threads);
    if (open_slots(l, threads, e) || !(pool = pool_open(threads, false, e)))
        return -1;
    double from = now();
    pool_run(pool, load_worker, l);
    pool_close(pool);
    if (l->error.code) {
        *e = l->error;
        return -1;
    }
    int bad = gpu_sync(u->g, e);
    u->seconds = now() - from;
    return bad;
}

int upload_weights(struct upload *u, struct gpu *g, const struct weights *w, int threads,
                   void (*progress)(void *, double), void *arg, struct err *e)
{
    *u = (struct upload){.g = g};
    if (upload_check(w, e))
        return -1;
    u->bytes = upload_bytes(w);
    const cu_ptr pool = gpu_alloc(g, u->bytes, "the pool of weights", e);
    if (!pool || upload_place(u, w, pool, e))
        return -1;
    struct loader *l = mem_zalloc(1, sizeof *l);
    if (!l)
        return err_memory(e, "the upload", sizeof *l);
    l->u = u;
    l->w = w;
    l->progress = progress;
    l->arg = arg;
    pthread_mutex_init(&l->lock, NULL);
    int bad = load_all(l, threads, e);
    close_slots(l);
    pthread_mutex_destroy(&l->lock);
    mem_free(l->jobs);
    mem_free(l);
    return bad;
}

void upload_free(struct upload *u)
{
    if (u->g)
        gpu_free(u->g, u->pool, u->bytes);
    mem_free(u->mat);
    *u = (struct upload){0};
}
