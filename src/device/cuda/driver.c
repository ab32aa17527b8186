#include "device/cuda/driver.h"

#include "base/log.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* Name in the library, place in the table. */
struct symbol {
    const char *name;
    size_t at;
};

#define SYMBOL(field, name)                                                                                  \
    {                                                                                                        \
        name, offsetof(struct driver, field)                                                                 \
    }

static const struct symbol symbols[] = {
    SYMBOL(init, "cuInit"),
    SYMBOL(driver_version, "cuDriverGetVersion"),
    SYMBOL(device_count, "cuDeviceGetCount"),
    SYMBOL(device_get, "cuDeviceGet"),
    SYMBOL(device_name, "cuDeviceGetName"),
    SYMBOL(device_attribute, "cuDeviceGetAttribute"),
    SYMBOL(device_memory, "cuDeviceTotalMem_v2"),
    SYMBOL(error_name, "cuGetErrorName"),
    SYMBOL(error_string, "cuGetErrorString"),
    SYMBOL(primary_retain, "cuDevicePrimaryCtxRetain"),
    SYMBOL(primary_release, "cuDevicePrimaryCtxRelease_v2"),
    SYMBOL(context_set, "cuCtxSetCurrent"),
    SYMBOL(module_load, "cuModuleLoadData"),
    SYMBOL(module_unload, "cuModuleUnload"),
    SYMBOL(module_function, "cuModuleGetFunction"),
    SYMBOL(module_count, "cuModuleGetFunctionCount"),
    SYMBOL(function_set, "cuFuncSetAttribute"),
    SYMBOL(launch, "cuLaunchKernelEx"),
    SYMBOL(mem_info, "cuMemGetInfo_v2"),
    SYMBOL(mem_alloc, "cuMemAlloc_v2"),
    SYMBOL(mem_free, "cuMemFree_v2"),
    SYMBOL(mem_granularity, "cuMemGetAllocationGranularity"),
    SYMBOL(mem_create, "cuMemCreate"),
    SYMBOL(mem_release, "cuMemRelease"),
    SYMBOL(mem_map, "cuMemMap"),
    SYMBOL(mem_unmap, "cuMemUnmap"),
    SYMBOL(mem_access, "cuMemSetAccess"),
    SYMBOL(address_reserve, "cuMemAddressReserve"),
    SYMBOL(address_free, "cuMemAddressFree"),
    SYMBOL(host_alloc, "cuMemHostAlloc"),
    SYMBOL(host_free, "cuMemFreeHost"),
    SYMBOL(host_register, "cuMemHostRegister_v2"),
    SYMBOL(host_unregister, "cuMemHostUnregister"),
    SYMBOL(to_device, "cuMemcpyHtoDAsync_v2"),
    SYMBOL(to_host, "cuMemcpyDtoHAsync_v2"),
    SYMBOL(to_same, "cuMemcpyDtoDAsync_v2"),
    SYMBOL(set8, "cuMemsetD8Async"),
    SYMBOL(stream_create, "cuStreamCreate"),
    SYMBOL(stream_destroy, "cuStreamDestroy_v2"),
    SYMBOL(stream_sync, "cuStreamSynchronize"),
    SYMBOL(stream_wait, "cuStreamWaitEvent"),
    SYMBOL(event_create, "cuEventCreate"),
    SYMBOL(event_destroy, "cuEventDestroy_v2"),
    SYMBOL(event_record, "cuEventRecord"),
    SYMBOL(event_sync, "cuEventSynchronize"),
    SYMBOL(event_ms, "cuEventElapsedTime"),
    SYMBOL(capture_begin, "cuStreamBeginCapture_v2"),
    SYMBOL(capture_end, "cuStreamEndCapture"),
    SYMBOL(graph_instantiate, "cuGraphInstantiateWithFlags"),
    SYMBOL(graph_launch, "cuGraphLaunch"),
    SYMBOL(graph_exec_destroy, "cuGraphExecDestroy"),
    SYMBOL(graph_destroy, "cuGraphDestroy"),
};

static struct driver table;
static int filled;
static const char *library = "libcuda.so.1";

void driver_set_library(const char *file)
{
    library = file;
    filled = 0;
}

static int driver_bind(void *lib, struct err *e)
{
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *f = dlsym(lib, symbols[i].name);
        if (!f)
            return err_set(e, ERR_RESOURCE,
                           "the NVIDIA driver is too old: %s has no %s (driver 550 or later is needed)",
                           library, symbols[i].name);
        memcpy((char *)&table + symbols[i].at, &f, sizeof f);
    }
    return 0;
}

static int driver_start(struct err *e)
{
    int r = table.driver_version(&table.version);
    if (r == CU_OK && table.version < CU_DRIVER_LEAST)
        return err_set(e, ERR_RESOURCE,
                       "the NVIDIA driver is too old: it supports CUDA %d.%d, at least %d.%d is needed",
                       table.version / 1000, table.version % 1000 / 10, CU_DRIVER_LEAST / 1000,
                       CU_DRIVER_LEAST % 1000 / 10);
    r = table.init(0);
    if (r == CU_NO_DEVICE)
        return err_set(e, ERR_RESOURCE, "no GPU: the NVIDIA driver is installed, but it finds no card");
    if (r != CU_OK)
        return err_set(e, ERR_RESOURCE, "the NVIDIA driver cannot be initialised (cuInit returned %d)", r);
    return 0;
}

static const struct driver *driver_fill(struct err *e)
{
    if (filled)
        return &table;
    void *lib = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    if (!lib) {
        err_set(e, ERR_RESOURCE,
                "no NVIDIA driver: %s cannot be loaded (run with --device cpu, or install the driver)",
                library);
        return NULL;
    }
    if (driver_bind(lib, e) || driver_start(e)) {
        dlclose(lib);
        return NULL;
    }
    filled = 1;
    return &table;
}

/* Ranks of one process may open their cards at the same time. */
const struct driver *driver_get(struct err *e)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    const struct driver *d = driver_fill(e);
    pthread_mutex_unlock(&mutex);
    return d;
}
