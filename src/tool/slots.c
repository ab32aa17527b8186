#define _GNU_SOURCE
#include "tool/slots.h"

#include "base/log.h"
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
    if ((device && !strcmp(device, "cpu")) || pipe(ends))
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

uint32_t slots_default(const char *device, uint32_t cpu)
{
    uint64_t card = slots_card_memory(device);
    uint32_t slots = cpu;
    while (slots < SLOTS_MOST && 2ull * slots <= card >> 30)
        slots *= 2;
    if (card)
        log_info("%u requests at once, by the GPU's memory of %.0f GB (--slots)", slots, 1e-9 * (double)card);
    else
        log_info("%u requests at once (--slots)", slots);
    return slots;
}
