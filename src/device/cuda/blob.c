/* The compiled kernels, as bytes of this program. With QUERN_KERNELS_BESIDE the program has none of its own: in a wheel it
 * takes those of the library there, elsewhere it has none. */
#define _GNU_SOURCE
#include "device/cuda/gpu.h"

#if defined(QUERN_KERNELS_BESIDE)
#include "quern.h"
#include "quern_gpu.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static __typeof__(quern_gpu_kernels) *kernels_beside;

static void *symbol(void *library, const char *name)
{
    return library ? dlsym(library, name) : NULL;
}

/* FOLDER/libquern.so.1 for the program FOLDER/bin/quern, if it has the same version. */
static void find_beside(void)
{
    static const char file[] = "/libquern.so.1";
    char path[PATH_MAX + sizeof file];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    path[n > 0 ? n : 0] = 0;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(path, '/');
        if (!slash)
            return;
        *slash = 0;
    }
    memcpy(path + strlen(path), file, sizeof file);
    void *library = access(path, R_OK) ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *version = symbol(library, "quern_version"), *kernels = symbol(library, "quern_gpu_kernels");
    __typeof__(quern_version) *get = NULL;
    memcpy(&get, &version, sizeof get);
    if (get && kernels && !strcmp(get(), QUERN_VERSION))
        memcpy(&kernels_beside, &kernels, sizeof kernels_beside);
}

const void *gpu_blob(enum gpu_module module)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_beside);
    return kernels_beside ? kernels_beside(module) : NULL;
}
#elif defined(QUERN_CUDA_KERNELS)
#define BLOB(name)                                                                                           \
    __asm__(".section .rodata\n.balign 64\nquern_blob_" #name ":\n.incbin \"" QUERN_CUDA_KERNELS "/" #name   \
            ".fatbin\"\n.byte 0\n.previous\n");                                                              \
    extern const unsigned char quern_blob_##name[]

BLOB(gemm_tile);
BLOB(gemm_wide);
BLOB(gemm_many);
BLOB(gemm_one);
BLOB(gemm_plain);
BLOB(gemm_nibble);
BLOB(gemm_super);
BLOB(weights);
BLOB(rows);
BLOB(attn);
BLOB(attn_prefill);
BLOB(attn_wide);
BLOB(moe);
BLOB(moe_row);
BLOB(lora);
BLOB(state);
BLOB(scan_chunk);
BLOB(small);

const void *gpu_blob(enum gpu_module module)
{
    static const void *const all[MODULE_COUNT] = {
        [MODULE_GEMM_TILE] = quern_blob_gemm_tile,
        [MODULE_GEMM_WIDE] = quern_blob_gemm_wide,
        [MODULE_GEMM_MANY] = quern_blob_gemm_many,
        [MODULE_GEMM_ONE] = quern_blob_gemm_one,
        [MODULE_GEMM_PLAIN] = quern_blob_gemm_plain,
        [MODULE_GEMM_NIBBLE] = quern_blob_gemm_nibble,
        [MODULE_GEMM_SUPER] = quern_blob_gemm_super,
        [MODULE_WEIGHTS] = quern_blob_weights,
        [MODULE_ROWS] = quern_blob_rows,
        [MODULE_ATTN] = quern_blob_attn,
        [MODULE_ATTN_PREFILL] = quern_blob_attn_prefill,
        [MODULE_ATTN_WIDE] = quern_blob_attn_wide,
        [MODULE_MOE] = quern_blob_moe,
        [MODULE_MOE_ROW] = quern_blob_moe_row,
        [MODULE_LORA] = quern_blob_lora,
        [MODULE_STATE] = quern_blob_state,
        [MODULE_SCAN_CHUNK] = quern_blob_scan_chunk,
        [MODULE_SMALL] = quern_blob_small,
    };
    return all[module];
}
#else
const void *gpu_blob(enum gpu_module module)
{
    (void)module;
    return NULL;
}
#endif
