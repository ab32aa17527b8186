#include "device/cuda/nccl.h"

#include "base/log.h"
#include "base/mem.h"
#include "device/cuda/gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

/* As the library declares them. */
enum { NCCL_FLOAT = 7, NCCL_SUM = 0 };
struct nccl_id {
    char bytes[MEETING_ID];
};

struct nccl_calls {
    int (*version)(int *);
    int (*identity)(struct nccl_id *);
    int (*init)(void **, int, struct nccl_id, int);
    int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
    int (*destroy)(void *);
    const char *(*text)(int);
    bool found;
};

struct nccl {
    struct gpu *g;
    void *comm;
};

static struct nccl_calls calls;

static void nccl_load(void)
{
    static const struct {
        const char *name;
        size_t at;
    } all[] = {{"ncclGetVersion", offsetof(struct nccl_calls, version)},
               {"ncclGetUniqueId", offsetof(struct nccl_calls, identity)},
               {"ncclCommInitRank", offsetof(struct nccl_calls, init)},
               {"ncclAllReduce", offsetof(struct nccl_calls, all_reduce)},
               {"ncclCommDestroy", offsetof(struct nccl_calls, destroy)},
               {"ncclGetErrorString", offsetof(struct nccl_calls, text)}};
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    int version = 0;
    for (size_t i = 0; library && i < sizeof all / sizeof *all; i++) {
        void *f = dlsym(library, all[i].name);
        if (!f)
            return;
        memcpy((char *)&calls + all[i].at, &f, sizeof f);
    }
    calls.found = library && !calls.version(&version);
    if (calls.found)
        log_debug("NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static bool nccl_found(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, nccl_load);
    return calls.found;
}

static int nccl_fail(int r, const char *what, struct err *e)
{
    return err_set(e, ERR_DEVICE, "NCCL: %s: %s", what, calls.text(r));
}

bool nccl_identity(uint8_t id[MEETING_ID])
{
    struct nccl_id own = {{0}};
    if (!nccl_found() || calls.identity(&own))
        return false;
    memcpy(id, own.bytes, MEETING_ID);
    return true;
}

struct nccl *nccl_open(struct gpu *g, const struct device_meeting *m, struct err *e)
{
    struct nccl_id id;
    memcpy(id.bytes, m->id, MEETING_ID);
    if (!nccl_found()) {
        err_set(e, ERR_DEVICE, "NCCL (libnccl.so.2) is not installed");
        return NULL;
    }
    struct nccl *n = mem_zalloc(1, sizeof *n);
    if (!n) {
        err_memory(e, "sums over cards", sizeof *n);
        return NULL;
    }
    n->g = g;
    int r = gpu_enter(g, e) ? -1 : calls.init(&n->comm, (int)m->ranks, id, (int)m->rank);
    if (!r)
        return n;
    if (r > 0)
        nccl_fail(r, "ranks cannot meet", e);
    mem_free(n);
    return NULL;
}

int nccl_sum(struct nccl *n, float *x, size_t count, struct err *e)
{
    int r = calls.all_reduce(x, x, count, NCCL_FLOAT, NCCL_SUM, n->comm, n->g->stream);
    return r ? nccl_fail(r, "a sum failed", e) : 0;
}

void nccl_close(struct nccl *n)
{
    if (!n)
        return;
    calls.destroy(n->comm);
    mem_free(n);
}
