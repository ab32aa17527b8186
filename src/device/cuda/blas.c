#include "device/cuda/blas.h"
#include "device/cuda/timing.h"

#include "base/log.h"
#include "base/mem.h"

#include <dlfcn.h>
#include <string.h>

enum { TYPE_FLOAT = 0, TYPE_HALF = 2, TYPE_E4M3 = 28, COMPUTE_FLOAT = 68, PREF_WORKSPACE = 1, OP_T = 1 };
enum {
    DESC_TRANS_A = 3,
    DESC_SCALE_A = 17,
    DESC_SCALE_B = 18,
    DESC_FAST_SUM = 25,
    DESC_MODE_A = 31,
    DESC_MODE_B = 32
};
enum { SCALE_ROWS = 3 }; /* a float for each row of a matrix */

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
    bool fp8;
    void *w, *x, *y;
    struct lt_algo algo;
};

enum { SHAPES_MOST = 512 };

struct blas {
    struct gpu *g;
    void *library, *handle, *product, *product8, *preference;
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

static void drop_shape(struct blas *b, struct blas_shape *s)
{
    void *const all[] = {s->w, s->x, s->y};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i])
            b->layout_destroy(all[i]);
}

/* The product of fp8; older libraries know no scales of rows. */
static int start_fp8(struct blas *b)
{
    const int trans = OP_T, mode = SCALE_ROWS;
    const int8_t fast = 1; /* sums of fewer bits: far below the rounding to fp8 */
    if (b->product8)
        return 0;
    int r = b->desc_create(&b->product8, COMPUTE_FLOAT, TYPE_FLOAT);
    r = r ? r : b->desc_set(b->product8, DESC_TRANS_A, &trans, sizeof trans);
    r = r ? r : b->desc_set(b->product8, DESC_FAST_SUM, &fast, sizeof fast);
    r = r ? r : b->desc_set(b->product8, DESC_MODE_A, &mode, sizeof mode);
    return r ? r : b->desc_set(b->product8, DESC_MODE_B, &mode, sizeof mode);
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
    for (uint32_t i = 0; i < b->shapes; i++)
        drop_shape(b, &b->shape[i]);
    if (b->product8)
        b->desc_destroy(b->product8);
    if (b->preference)
        b->pref_destroy(b->preference);
    if (b->product)
        b->desc_destroy(b->product);
    if (b->handle)
        b->destroy(b->handle);
    gpu_free(b->g, b->workspace, b->workspace_bytes);
    mem_free(b); /* the library stays loaded: it has threads and handlers of its own */
}

static struct blas_shape *known_shape(struct blas *b, const struct blas_product *p)
{
    for (uint32_t i = 0; i < b->shapes; i++) {
        struct blas_shape *s = &b->shape[i];
        if (s->m == p->m && s->n == p->n && s->k == p->k && s->ldy == p->ldy && s->fp8 == (p->w_scale != 0))
            return s;
    }
    return NULL;
}

bool blas_knows(struct blas *b, const struct blas_product *p)
{
    return known_shape(b, p);
}

/* In the library's terms (columns first) y^T (n, m) = w (k, n)^T x^T (k, m). */
static struct blas_shape *shape_of(struct blas *b, const struct blas_product *p, struct err *e)
{
    struct blas_shape *s = known_shape(b, p);
    if (s)
        return s;
    if (b->shapes == SHAPES_MOST) { /* forget the oldest */
        drop_shape(b, &b->shape[0]);
        memmove(b->shape, b->shape + 1, (SHAPES_MOST - 1) * sizeof b->shape[0]);
        b->shapes--;
    }
    s = &b->shape[b->shapes];
    *s = (struct blas_shape){.m = p->m, .n = p->n, .k = p->k, .ldy = p->ldy, .fp8 = p->w_scale != 0};
    struct lt_choice best;
    int found = 0;
    const int type = s->fp8 ? TYPE_E4M3 : TYPE_HALF;
    int r = b->layout_create(&s->w, type, p->k, p->n, p->k);
    r = r ? r : b->layout_create(&s->x, type, p->k, p->m, p->k);
    r = r ? r : b->layout_create(&s->y, TYPE_FLOAT, p->n, p->m, (int64_t)p->ldy);
    r = r ? r
          : b->heuristic(b->handle, s->fp8 ? b->product8 : b->product, s->w, s->x, s->y, s->y, b->preference,
                         1, &best, &found);
    if (r || !found) {
        drop_shape(b, s);
        err_set(e, ERR_DEVICE, "cuBLASLt has no algorithm for (%u, %u) x (%u, %u)%s: status %d", p->m, p->k,
                p->n, p->k, s->fp8 ? " in fp8" : "", r);
        return NULL;
    }
    s->algo = best.algo;
    b->shapes++;
    return s;
}

/* Where the scales of a product in fp8 are. */
static int set_scales(struct blas *b, const struct blas_product *p)
{
    int r = start_fp8(b);
    r = r ? r : b->desc_set(b->product8, DESC_SCALE_A, &p->w_scale, sizeof p->w_scale);
    return r ? r : b->desc_set(b->product8, DESC_SCALE_B, &p->x_scale, sizeof p->x_scale);
}

bool blas_has_fp8(struct blas *b)
{
    struct err none = {0};
    const cu_ptr some = b->workspace; /* aligned; nothing is read */
    const struct blas_product p = {some, some, some, some, some, 512, 1024, 1024, 1024};
    return !set_scales(b, &p) && shape_of(b, &p, &none);
}

int blas_run(struct blas *b, const struct blas_product *p, struct err *e)
{
    const float one = 1.0f, zero = 0.0f;
    const bool fp8 = p->w_scale != 0;
    if (gpu_alive(b->g, e))
        return -1;
    int r = fp8 ? set_scales(b, p) : 0;
    if (r)
        return err_set(e, ERR_DEVICE, "cuBLASLt takes no scales of rows: status %d", r);
    const struct blas_shape *s = shape_of(b, p, e);
    if (!s)
        return -1;
    if (b->g->timing)
        timing_before(b->g, TIMING_BLAS);
    r = b->matmul(b->handle, fp8 ? b->product8 : b->product, &one, (void *)p->w, s->w, (void *)p->x, s->x,
                  &zero, (void *)p->y, s->y, (void *)p->y, s->y, &s->algo, (void *)b->workspace,
                  b->workspace_bytes, b->g->stream);
    if (b->g->timing)
        timing_after(b->g);
    if (r)
        return err_set(e, ERR_DEVICE, "cuBLASLt failed on (%u, %u) x (%u, %u): status %d", p->m, p->k, p->n,
                       p->k, r);
    return 0;
}
