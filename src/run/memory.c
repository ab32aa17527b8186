#include "run/memory.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
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

/* inactive_file of a cgroup's memory.stat: page cache that can be dropped. */
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

/* The limits of a group and of all above it: the smallest applies. */
static void memory_group(struct memory *m, const char *root, char *group, bool v2)
{
    char most[PATH_MAX], used[PATH_MAX], stat[PATH_MAX];
    for (;;) {
        size_t n = strlen(group);
        while (n && group[n - 1] == '/')
            group[--n] = 0;
        int fits = snprintf(most, sizeof most, "%s%s/memory.%s", root, group, v2 ? "max" : "limit_in_bytes") <
                       PATH_MAX &&
                   snprintf(used, sizeof used, "%s%s/memory.%s", root, group,
                            v2 ? "current" : "usage_in_bytes") < PATH_MAX &&
                   snprintf(stat, sizeof stat, "%s%s/memory.stat", root, group) < PATH_MAX;
        if (fits)
            memory_limit(m, most, used, stat);
        char *cut = strrchr(group, '/');
        if (!cut)
            return;
        *cut = 0;
    }
}

/* /proc/self/cgroup: "0::/a/b" of version 2, "5:memory:/a/b" of version 1. */
static void memory_groups(struct memory *m)
{
    char line[PATH_MAX];
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        char *kind = strchr(line, ':'), *group = kind ? strchr(kind + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        if (!kind[1])
            memory_group(m, "/sys/fs/cgroup", group, true);
        else if (!strcmp(kind + 1, "memory"))
            memory_group(m, "/sys/fs/cgroup/memory", group, false);
    }
    if (f)
        fclose(f);
}

void memory_read(struct memory *m)
{
    *m = (struct memory){0};
    memory_machine(m);
    memory_groups(m);
    uint64_t size = 0, resident = 0, page = (uint64_t)sysconf(_SC_PAGESIZE);
    FILE *f = fopen("/proc/self/statm", "re");
    if (f) {
        if (fscanf(f, "%" SCNu64 " %" SCNu64, &size, &resident) == 2)
            m->resident = resident * page;
        fclose(f);
    }
    struct rlimit space;
    if (getrlimit(RLIMIT_AS, &space) || space.rlim_cur == RLIM_INFINITY || space.rlim_cur >= m->total)
        return;
    uint64_t left = space.rlim_cur > size * page ? space.rlim_cur - size * page : 0;
    m->total = space.rlim_cur;
    m->available = left < m->available ? left : m->available;
}

uint64_t memory_for_model(const struct memory *m)
{
    return m->available - m->available / 5;
}
