#define _GNU_SOURCE
#include "fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A card as good as any, for programs that only find this library. */
struct fake_cuda fake_cuda_state = {.version = 13000, .cards = 1, .major = 9, .memory = (size_t)1 << 30};

#define S  fake_cuda_state
#define OK 0

/* A block remembers its size, so that what is given back can be counted. */
struct block {
    size_t bytes;
    char pad[256 - sizeof(size_t)];
};

int cuInit(unsigned f);
int cuInit(unsigned f)
{
    (void)f;
    return S.cards ? OK : 100;
}

int cuDriverGetVersion(int *v);
int cuDriverGetVersion(int *v)
{
    *v = S.version;
    return OK;
}

int cuDeviceGetCount(int *n);
int cuDeviceGetCount(int *n)
{
    *n = S.cards;
    return OK;
}

int cuDeviceGet(int *d, int i);
int cuDeviceGet(int *d, int i)
{
    *d = i;
    return OK;
}

int cuDeviceGetName(char *name, int n, int d);
int cuDeviceGetName(char *name, int n, int d)
{
    (void)d;
    snprintf(name, (size_t)n, "Fake Card");
    return OK;
}

int cuDeviceGetAttribute(int *v, int what, int d);
int cuDeviceGetAttribute(int *v, int what, int d)
{
    (void)d;
    *v = what == 102 && S.cannot_map   ? 0
         : what == 91 && S.cannot_read ? 0
         : what == 75                  ? S.major
         : what == 76                  ? S.minor
         : what == 16                  ? 4
         : what == 97                  ? 200 << 10
                                       : 1000000;
    return OK;
}

int cuDeviceTotalMem_v2(size_t *n, int d);
int cuDeviceTotalMem_v2(size_t *n, int d)
{
    (void)d;
    *n = S.memory;
    return OK;
}

int cuGetErrorName(int r, const char **s);
int cuGetErrorName(int r, const char **s)
{
    *s = r == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : r == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_FAKE";
    return OK;
}

int cuGetErrorString(int r, const char **s);
int cuGetErrorString(int r, const char **s)
{
    return cuGetErrorName(r, s);
}

/* What hands out something that is only handed back. */
#define MAKES(name, ...)                                                                                     \
    int name(void **out, ##__VA_ARGS__);                                                                     \
    int name(void **out, ##__VA_ARGS__)

static char thing;

/* A context of each card, and which one a thread uses. */
static char contexts[8];
static _Thread_local char *current;

MAKES(cuDevicePrimaryCtxRetain, int d)
{
    *out = &contexts[d];
    return OK;
}

int cuCtxSetCurrent(void *context);
int cuCtxSetCurrent(void *context)
{
    current = context;
    return OK;
}

MAKES(cuModuleLoadData, const void *image)
{
    (void)image;
    *out = &thing;
    return S.module_result;
}

MAKES(cuModuleGetFunction, void *m, const char *name)
{
    (void)m;
    (void)name;
    *out = &thing;
    return OK;
}

int cuModuleGetFunctionCount(unsigned *n, void *m);
int cuModuleGetFunctionCount(unsigned *n, void *m)
{
    (void)m;
    *n = 1;
    return OK;
}

MAKES(cuStreamCreate, unsigned f)
{
    (void)f;
    *out = &thing;
    return OK;
}

MAKES(cuEventCreate, unsigned f)
{
    (void)f;
    *out = calloc(1, sizeof(float));
    return *out ? OK : 2;
}

int cuEventDestroy_v2(void *e);
int cuEventDestroy_v2(void *e)
{
    free(e);
    return OK;
}

MAKES(cuGraphInstantiateWithFlags, void *graph, unsigned long long f)
{
    (void)graph;
    (void)f;
    S.graphs++;
    *out = &thing;
    return OK;
}

MAKES(cuMemHostAlloc, size_t bytes, unsigned f)
{
    (void)f;
    S.pinned++;
    *out = calloc(bytes, 1);
    return *out ? OK : 2;
}

/* What takes one thing and does nothing with it. */
#define NOTHING(name, type)                                                                                  \
    int name(type a);                                                                                        \
    int name(type a)                                                                                         \
    {                                                                                                        \
        (void)a;                                                                                             \
        return OK;                                                                                           \
    }

int cuMemHostRegister_v2(void *p, size_t bytes, unsigned f);
int cuMemHostRegister_v2(void *p, size_t bytes, unsigned f)
{
    (void)p;
    (void)bytes;
    (void)f;
    if (S.register_result)
        return S.register_result;
    S.pinned++;
    return OK;
}

int cuMemHostUnregister(void *p);
int cuMemHostUnregister(void *p)
{
    (void)p;
    S.pinned--;
    return OK;
}

NOTHING(cuDevicePrimaryCtxRelease_v2, int)
NOTHING(cuModuleUnload, void *)
NOTHING(cuStreamDestroy_v2, void *)
NOTHING(cuEventSynchronize, void *)
NOTHING(cuGraphExecDestroy, void *)
NOTHING(cuGraphDestroy, void *)

int cuMemFreeHost(void *p);
int cuMemFreeHost(void *p)
{
    S.pinned--;
    free(p);
    return OK;
}

int cuFuncSetAttribute(void *f, int what, int v);
int cuFuncSetAttribute(void *f, int what, int v)
{
    (void)f;
    (void)what;
    (void)v;
    return OK;
}

int cuLaunchKernelEx(const void *how, void *f, void **args, void **extra);
int cuLaunchKernelEx(const void *how, void *f, void **args, void **extra)
{
    (void)f;
    (void)extra;
    if (S.launched)
        S.launched(how, args[0]); /* the grid comes first there */
    S.launches++;
    return S.launch_result;
}

int cuMemGetInfo_v2(size_t *available, size_t *total);
int cuMemGetInfo_v2(size_t *available, size_t *total)
{
    *available = S.memory - S.used;
    *total = S.memory;
    return OK;
}

int cuMemAlloc_v2(uint64_t *p, size_t bytes);
int cuMemAlloc_v2(uint64_t *p, size_t bytes)
{
    struct block *b = bytes <= S.memory - S.used && !S.alloc_result
                          ? aligned_alloc(256, sizeof *b + (bytes + 255) / 256 * 256)
                          : NULL;
    if (!b)
        return S.alloc_result ? S.alloc_result : 2;
    memset(b, 0, sizeof *b + bytes);
    b->bytes = bytes;
    S.used += bytes;
    S.allocations++;
    S.allocated_on = current ? (int)(current - contexts) : -1;
    *p = (uint64_t)(uintptr_t)(b + 1);
    return OK;
}

int cuMemFree_v2(uint64_t p);
int cuMemFree_v2(uint64_t p)
{
    struct block *b = (struct block *)(uintptr_t)p - 1;
    S.used -= b->bytes;
    S.allocations--;
    free(b);
    return OK;
}

/* Addresses are reserved without memory behind them; what is mapped is counted once its handle exists. */
int cuMemGetAllocationGranularity(size_t *n, const void *prop, int which);
int cuMemGetAllocationGranularity(size_t *n, const void *prop, int which)
{
    (void)prop;
    (void)which;
    *n = (size_t)2 << 20;
    return OK;
}

int cuMemAddressReserve(uint64_t *p, size_t bytes, size_t align, uint64_t at, unsigned long long flags);
int cuMemAddressReserve(uint64_t *p, size_t bytes, size_t align, uint64_t at, unsigned long long flags)
{
    (void)align;
    (void)at;
    (void)flags;
    void *got = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *p = (uint64_t)(uintptr_t)got;
    S.allocations++;
    return got == MAP_FAILED ? 2 : OK;
}

int cuMemAddressFree(uint64_t p, size_t bytes);
int cuMemAddressFree(uint64_t p, size_t bytes)
{
    S.allocations--;
    return munmap((void *)(uintptr_t)p, bytes) ? 1 : OK;
}

int cuMemCreate(uint64_t *handle, size_t bytes, const void *prop, unsigned long long flags);
int cuMemCreate(uint64_t *handle, size_t bytes, const void *prop, unsigned long long flags)
{
    (void)prop;
    (void)flags;
    if (bytes > S.memory - S.used || S.alloc_result)
        return S.alloc_result ? S.alloc_result : 2;
    S.used += bytes;
    *handle = bytes;
    return OK;
}

/* The mapping holds the memory from here on, or it is lost: a caller that fails to map leaks. */
int cuMemRelease(uint64_t handle);
int cuMemRelease(uint64_t handle)
{
    (void)handle;
    return OK;
}

int cuMemMap(uint64_t p, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags);
int cuMemMap(uint64_t p, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags)
{
    (void)p;
    (void)flags;
    S.maps++;
    return offset || handle != bytes ? 1 : OK;
}

int cuMemSetAccess(uint64_t p, size_t bytes, const void *access, size_t n);
int cuMemSetAccess(uint64_t p, size_t bytes, const void *access, size_t n)
{
    (void)access;
    (void)n;
    if (mprotect((void *)(uintptr_t)p, bytes, PROT_READ | PROT_WRITE))
        return 1;
    memset((void *)(uintptr_t)p, 0xff, bytes); /* what a card has there: anything */
    return OK;
}

int cuMemUnmap(uint64_t p, size_t bytes);
int cuMemUnmap(uint64_t p, size_t bytes)
{
    S.used -= bytes;
    return mprotect((void *)(uintptr_t)p, bytes, PROT_NONE) ? 1 : OK;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s)
{
    (void)s;
    S.sends++;
    memcpy((void *)(uintptr_t)to, from, n);
    return OK;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s)
{
    (void)s;
    memcpy(to, (const void *)(uintptr_t)from, n);
    return OK;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s);
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s)
{
    (void)s;
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, n);
    return OK;
}

int cuMemsetD8Async(uint64_t to, unsigned char v, size_t n, void *s);
int cuMemsetD8Async(uint64_t to, unsigned char v, size_t n, void *s)
{
    (void)s;
    memset((void *)(uintptr_t)to, v, n);
    return OK;
}

int cuStreamSynchronize(void *s);
int cuStreamSynchronize(void *s)
{
    (void)s;
    return S.sync_result;
}

int cuStreamWaitEvent(void *s, void *e, unsigned f);
int cuStreamWaitEvent(void *s, void *e, unsigned f)
{
    (void)s;
    (void)e;
    (void)f;
    return OK;
}

int cuEventRecord(void *e, void *s);
int cuEventRecord(void *e, void *s)
{
    (void)s;
    const unsigned n = S.records++;
    *(float *)e = FAKE_TICK_MS * (float)(n % 2 ? n + 4 : n);
    return OK;
}

int cuEventElapsedTime(float *ms, void *a, void *b);
int cuEventElapsedTime(float *ms, void *a, void *b)
{
    const float d = *(const float *)b - *(const float *)a;
    *ms = d < 0 ? -d : d; /* < 0: one event alone was recorded before them, of a copy */
    return OK;
}

int cuStreamBeginCapture_v2(void *s, int mode);
int cuStreamBeginCapture_v2(void *s, int mode)
{
    (void)s;
    (void)mode;
    return OK;
}

int cuStreamEndCapture(void *s, void **graph);
int cuStreamEndCapture(void *s, void **graph)
{
    (void)s;
    *graph = &thing;
    return OK;
}

int cuGraphLaunch(void *exec, void *s);
int cuGraphLaunch(void *exec, void *s)
{
    (void)exec;
    (void)s;
    return S.launch_result;
}
