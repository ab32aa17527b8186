#include "device/cuda/blas.h"
#include "device/cuda/timing.h"

#include "base/log.h"
#include "base/mem.h"

#include <dlfcn.h>
#include <string.h>

enum { TYPE_FLOAT = 0, TYPE_HALF = 2, COMPUTE_FLOAT = 68, DESC_TRANS_A = 3, PREF_WORKSPACE = 1, OP_T = 1 };

/* As the library declares them. */
struct lt_algo {
    uint64_t data[8];
};

struct lt_choice {
    struct lt_algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

/* A shape that was seen: its descriptors and the algorithm that the library chose. */
struct blas_shape {
    uint32_t m, n, k;
    uint64_t ldy;
    void *w, *x, *y;
    struct lt_algo algo;
};

enum { SHAPES_MOST = 256 };

struct blas {
    struct gpu *g;
    void *library, *handle, *product, *preference;
    cu_ptr workspace;
    uint64_t workspace_bytes;
    struct blas_shape shape[SHAPES_MOST];
    uint32_t shapes;
    int (*create)(void **);
    int (*destroy)(void *);
    int (*desc_create)(void **, int, int);
    int (*desc_destroy)(void *);
    int (*desc_set)(void *, int, const void *, size_t);
    int (*layout_create)(void **, int, uint64_t, uint64_t, int64_t);
    int (*layout_destroy)(void *);
    int (*pref_create)(void **);
    int (*pref_destroy)(void *);
    int (*pref_set)(void *, int, const void *, size_t);
    int (*heuristic)(void *, void *, void *, void *, void *, void *, void *, int, struct lt_choice *, int *);
    int (*matmul)(void *, void *, const void *, const void *, void *, const void *, void *, const void *,
                  const void *, void *, void *, void *, const struct lt_algo *, void *, size_t, void *);
};

static bool blas_bind(struct blas *b)
{
    const struct {
        const char *name;
        size_t at;
    } all[] = {{"cublasLtCreate", offsetof(struct blas, create)},
               {"cublasLtDestroy", offsetof(struct blas, destroy)},
               {"cublasLtMatmulDescCreate", offsetof(struct blas, desc_create)},
               {"cublasLtMatmulDescDestroy", offsetof(struct blas, desc_destroy)},
               {"cublasLtMatmulDescSetAttribute", offsetof(struct blas, desc_set)},
               {"cublasLtMatrixLayoutCreate", offsetof(struct blas, layout_create)},
               {"cublasLtMatrixLayoutDestroy", offsetof(struct blas, layout_destroy)},
               {"cublasLtMatmulPreferenceCreate", offsetof(struct blas, pref_create)},
               {"cublasLtMatmulPreferenceDestroy", offsetof(struct blas, pref_destroy)},
               {"cublasLtMatmulPreferenceSetAttribute", offsetof(struct blas, pref_set)},
               {"cublasLtMatmulAlgoGetHeuristic", offsetof(struct blas, heuristic)},
               {"cublasLtMatmul", offsetof(struct blas, matmul)}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        void *f = dlsym(b->library, all[i].name);
        if (!f)
            return false;
        memcpy((char *)b + all[i].at, &f, sizeof f);
    }
    return true;
}

static bool blas_start(struct blas *b, uint64_t workspace)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                                        "/usr/local/cuda/lib64/libcublasLt.so"};
    int trans = OP_T;
    struct err e = {0};
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !b->library; i++)
        b->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!b->library || !blas_bind(b) || b->create(&b->handle))
        return false;
    if (b->desc_create(&b->product, COMPUTE_FLOAT, TYPE_FLOAT) ||
        b->desc_set(b->product, DESC_TRANS_A, &trans, sizeof trans) || b->pref_create(&b->preference) ||
        b->pref_set(b->preference, PREF_WORKSPACE, &workspace, sizeof workspace))
        return false;
    b->workspace_bytes = workspace;
    b->workspace = gpu_alloc(b->g, workspace, "cuBLASLt's workspace", &e);
    return b->workspace != 0;
}

struct blas *blas_open(struct gpu *g, uint64_t workspace)
{
    struct blas *b = mem_zalloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->g = g;
    if (!blas_start(b, workspace)) {
        log_debug("cuBLASLt was not found: large products run on built-in kernels");
        blas_close(b);
        return NULL;
    }
    return b;
}

void blas_close(struct blas *b)
{
    if (!b)
        return;
    for (uint32_t i = 0; i < b->shapes; i++) {
        b->layout_destroy(b->shape[i].w);
        b->layout_destroy(b->shape[i].x);
        b->layout_destroy(b->shape[i].y);
    }
    if (b->preference)
        b->pref_destroy(b->preference);
    if (b->product)
        b->desc_destroy(b->product);
    if (b->handle)
        b->destroy(b->handle);
    gpu_free(b->g, b->workspace, b->workspace_bytes);
    mem_free(b); /* the library stays loaded: it has threads and handlers of its own */
}

/* In the library's terms (columns first) y^T (n, m) = w (k, n)^T x^T (k, m). */
static struct blas_shape *shape_of(struct blas *b, const struct blas_product *p, struct err *e)
{
    for (uint32_t i = 0; i < b->shapes; i++) {
        struct blas_shape *s = &b->shape[i];
        if (s->m == p->m && s->n == p->n && s->k == p->k && s->ldy == p->ldy)
            return s;
    }
    if (b->shapes == SHAPES_MOST) { /* forget the oldest */
        b->layout_destroy(b->shape[0].w);
        b->layout_destroy(b->shape[0].x);
        b->layout_destroy(b->shape[0].y);
        memmove(b->shape, b->shape + 1, (SHAPES_MOST - 1) * sizeof b->shape[0]);
        b->shapes--;
    }
    struct blas_shape *s = &b->shape[b->shapes];
    *s = (struct blas_shape){.m = p->m, .n = p->n, .k = p->k, .ldy = p->ldy};
    struct lt_choice best;
    int found = 0;
    int r = b->layout_create(&s->w, TYPE_HALF, p->k, p->n, p->k);
    r = r ? r : b->layout_create(&s->x, TYPE_HALF, p->k, p->m, p->k);
    r = r ? r : b->layout_create(&s->y, TYPE_FLOAT, p->n, p->m, (int64_t)p->ldy);
    r = r ? r : b->heuristic(b->handle, b->product, s->w, s->x, s->y, s->y, b->preference, 1, &best, &found);
    if (r || !found) {
        err_set(e, ERR_DEVICE, "cuBLASLt has no algorithm for (%u, %u) x (%u, %u): status %d", p->m, p->k,
                p->n, p->k, r);
        return NULL;
    }
    s->algo = best.algo;
    b->shapes++;
    return s;
}

int blas_run(struct blas *b, const struct blas_product *p, struct err *e)
{
    const float one = 1.0f, zero = 0.0f;
    struct blas_shape *s = shape_of(b, p, e);
    if (gpu_alive(b->g, e) || !s)
        return -1;
    if (b->g->timing)
        timing_before(b->g, TIMING_BLAS);
    int r =
        b->matmul(b->handle, b->product, &one, (void *)p->w, s->w, (void *)p->x, s->x, &zero, (void *)p->y,
                  s->y, (void *)p->y, s->y, &s->algo, (void *)b->workspace, b->workspace_bytes, b->g->stream);
    if (b->g->timing)
        timing_after(b->g);
    if (r)
        return err_set(e, ERR_DEVICE, "cuBLASLt failed on (%u, %u) x (%u, %u): status %d", p->m, p->k, p->n,
                       p->k, r);
    return 0;
}
