#define _GNU_SOURCE
#include "tool/slots.h"

#include "base/log.h"
#include "base/num.h"
#include "device/device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS_MOST = 128 };

/* Bytes of the card that models go to; 0: there is none. A child asks: the driver must not be open in a process that
 * forks. */
static uint64_t slots_card_memory(const char *device)
{
    const char *index = device ? strchr(device, ':') : NULL;
    uint64_t bytes = 0;
    int ends[2];
    if (pipe(ends))
        return 0;
    pid_t child = fork();
    if (!child) {
        bytes = cuda_memory_total(index ? (int)strtol(index + 1, NULL, 10) : 0);
        _exit(write(ends[1], &bytes, sizeof bytes) != sizeof bytes);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], &bytes, sizeof bytes) != sizeof bytes)
        bytes = 0;
    close(ends[0]);
    if (child > 0)
        waitpid(child, NULL, 0);
    return bytes;
}

/* Whether the options leave the card out (run/runner.c does the same). */
static bool slots_on_cpu(const struct args *a)
{
    const char *device = args_text(a, "device"), *layers = args_text(a, "gpu-layers");
    uint64_t n = 1;
    return (device && !strcmp(device, "cpu")) || (!device && args_text(a, "tier")) ||
           (layers && num_u64(layers, strlen(layers), 1 << 20, &n) && !n);
}

uint32_t slots_default(const struct args *a, uint32_t cpu)
{
    const char *memory = args_text(a, "gpu-memory");
    uint64_t card = slots_on_cpu(a) ? 0 : slots_card_memory(args_text(a, "device")), limit = 0;
    const bool limited = card && memory && num_bytes(memory, strlen(memory), &limit) && limit && limit < card;
    uint64_t bytes = limited ? limit : card;
    uint32_t slots = cpu;
    while (slots < SLOTS_MOST && 2ull * slots <= bytes >> 30)
        slots *= 2;
    if (card)
        log_info("%u requests at once, by %s of %.*f GB (--slots)", slots,
                 limited ? "--gpu-memory" : "the GPU's memory", bytes < 10000000000 ? 1 : 0,
                 1e-9 * (double)bytes);
    else
        log_info("%u requests at once (--slots)", slots);
    return slots;
}
