#include "run/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* One number from a file that holds nothing else; most where there is none ("max"). */
static uint64_t memory_number(const char *path, uint64_t most)
{
    uint64_t v = most;
    FILE *f = fopen(path, "re");
    if (!f)
        return most;
    if (fscanf(f, "%" SCNu64, &v) != 1)
        v = most;
    fclose(f);
    return v;
}

static void memory_machine(struct memory *m)
{
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        uint64_t kib;
        if (sscanf(line, "MemTotal: %" SCNu64, &kib) == 1)
            m->total = kib << 10;
        else if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            m->available = kib << 10;
    }
    if (f)
        fclose(f);
}

/* inactive_file of a cgroup's memory.stat: page cache that it can give up. */
static uint64_t memory_cache(const char *path)
{
    char line[128];
    uint64_t v, sum = 0;
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "inactive_file %" SCNu64, &v) == 1 || sscanf(line, "active_file %" SCNu64, &v) == 1)
            sum += v;
    }
    if (f)
        fclose(f);
    return sum;
}

static void memory_limit(struct memory *m, const char *most, const char *used, const char *stat)
{
    uint64_t limit = memory_number(most, UINT64_MAX);
    if (limit >= m->total)
        return;
    uint64_t now = memory_number(used, 0), cache = memory_cache(stat);
    now = now > cache ? now - cache : 0;
    uint64_t left = limit > now ? limit - now : 0;
    m->total = limit;
    m->available = left < m->available ? left : m->available;
}

void memory_read(struct memory *m)
{
    *m = (struct memory){0};
    memory_machine(m);
    memory_limit(m, "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
                 "/sys/fs/cgroup/memory.stat");
    memory_limit(m, "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                 "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat");
    uint64_t size, resident;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f) {
        if (fscanf(f, "%" SCNu64 " %" SCNu64, &size, &resident) == 2)
            m->resident = resident * (uint64_t)sysconf(_SC_PAGESIZE);
        fclose(f);
    }
}
