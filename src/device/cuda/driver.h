/* The CUDA driver, found at run time: libcuda.so.1 by dlopen, and of its interface what we call,
 * declared here, so that the program builds without the CUDA toolkit and starts without a GPU.
 * One table for the process; it is filled once and then read-only. */
#pragma once

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef uint64_t cu_ptr; /* device memory */

enum cu_result {
    CU_OK = 0,
    CU_OUT_OF_MEMORY = 2,
    CU_NO_DEVICE = 100,
    CU_NO_BINARY = 209,
    CU_ECC_UNCORRECTABLE = 214,
    CU_ILLEGAL_ADDRESS = 700,
    CU_ALREADY_REGISTERED = 712,
    CU_LAUNCH_FAILED = 719
};

enum cu_attribute {
    CU_ATTR_CLOCK_KHZ = 13,
    CU_ATTR_SMS = 16,
    CU_ATTR_ECC = 32,
    CU_ATTR_MEMORY_CLOCK_KHZ = 36,
    CU_ATTR_BUS_BITS = 37,
    CU_ATTR_L2_BYTES = 38,
    CU_ATTR_MAJOR = 75,
    CU_ATTR_MINOR = 76,
    CU_ATTR_READS_PINNED = 91, /* by the host's address, also what is registered */
    CU_ATTR_SHARED_BLOCK = 97, /* with opt-in */
    CU_ATTR_VIRTUAL_MEMORY = 102,
    CU_ATTR_READ_ONLY_PINS = 113
};

enum { CU_FUNC_DYNAMIC_SHARED = 8, CU_FUNC_SHARED_PERCENT = 9 };
enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_SLEEP = 1, CU_EVENT_NO_TIMING = 2, CU_CAPTURE_THREAD = 1 };
enum { CU_PIN_READ_ONLY = 8 };
enum { CU_LAUNCH_PROGRAMMATIC = 6, CU_LAUNCH_SHARED_PERCENT = 14 };
enum { CU_MEM_PINNED = 1, CU_LOCATION_DEVICE = 1, CU_ACCESS_READ_WRITE = 3 };
enum { CU_DRIVER_LEAST = 12040 };   /* programmatic launches inside captured graphs */
enum { CU_DRIVER_PERCENT = 12060 }; /* CU_LAUNCH_SHARED_PERCENT */

struct cu_launch_attribute {
    int32_t id;
    char pad[4];
    union {
        char room[64];
        int32_t flag;
    } value;
};

struct cu_launch {
    unsigned grid[3], block[3];
    unsigned shared;
    void *stream;
    struct cu_launch_attribute *attributes;
    unsigned attribute_count;
};

/* Memory that is mapped behind reserved addresses. */
struct cu_mem_location {
    int32_t type, id;
};

struct cu_mem_prop {
    int32_t type, handle_types;
    struct cu_mem_location location;
    void *reserved;
    uint8_t flags[8];
};

struct cu_mem_access {
    struct cu_mem_location location;
    int32_t flags;
};

struct driver {
    int version; /* as cuDriverGetVersion says: 13000 */
    int (*init)(unsigned);
    int (*driver_version)(int *);
    int (*device_count)(int *);
    int (*device_get)(int *, int);
    int (*device_name)(char *, int, int);
    int (*device_attribute)(int *, int, int);
    int (*device_memory)(size_t *, int);
    int (*error_name)(int, const char **);
    int (*error_string)(int, const char **);
    int (*primary_retain)(void **, int);
    int (*primary_release)(int);
    int (*context_set)(void *);
    int (*module_load)(void **, const void *);
    int (*module_unload)(void *);
    int (*module_function)(void **, void *, const char *);
    int (*module_count)(unsigned *, void *);
    int (*function_set)(void *, int, int);
    int (*launch)(const struct cu_launch *, void *, void **, void **);
    int (*mem_info)(size_t *, size_t *);
    int (*mem_alloc)(cu_ptr *, size_t);
    int (*mem_free)(cu_ptr);
    int (*mem_granularity)(size_t *, const struct cu_mem_prop *, int);
    int (*mem_create)(uint64_t *, size_t, const struct cu_mem_prop *, unsigned long long);
    int (*mem_release)(uint64_t);
    int (*mem_map)(cu_ptr, size_t, size_t, uint64_t, unsigned long long);
    int (*mem_unmap)(cu_ptr, size_t);
    int (*mem_access)(cu_ptr, size_t, const struct cu_mem_access *, size_t);
    int (*address_reserve)(cu_ptr *, size_t, size_t, cu_ptr, unsigned long long);
    int (*address_free)(cu_ptr, size_t);
    int (*host_alloc)(void **, size_t, unsigned);
    int (*host_free)(void *);
    int (*host_register)(void *, size_t, unsigned);
    int (*host_unregister)(void *);
    int (*to_device)(cu_ptr, const void *, size_t, void *);
    int (*to_host)(void *, cu_ptr, size_t, void *);
    int (*to_same)(cu_ptr, cu_ptr, size_t, void *);
    int (*set8)(cu_ptr, unsigned char, size_t, void *);
    int (*stream_create)(void **, unsigned);
    int (*stream_destroy)(void *);
    int (*stream_sync)(void *);
    int (*stream_wait)(void *, void *, unsigned);
    int (*event_create)(void **, unsigned);
    int (*event_destroy)(void *);
    int (*event_record)(void *, void *);
    int (*event_sync)(void *);
    int (*event_ms)(float *, void *, void *);
    int (*capture_begin)(void *, int);
    int (*capture_end)(void *, void **);
    int (*graph_instantiate)(void **, void *, unsigned long long);
    int (*graph_launch)(void *, void *);
    int (*graph_exec_destroy)(void *);
    int (*graph_destroy)(void *);
};

/* The table, or NULL and the reason: no driver, one that is too old, or no card. */
const struct driver *driver_get(struct err *e);
/* For tests: another file instead of libcuda.so.1; resets what was found so far. */
void driver_set_library(const char *file);
