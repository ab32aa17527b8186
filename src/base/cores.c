#define _GNU_SOURCE
#include "base/cores.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_MOST = 4096 };

/* Reads whole numbers from a small kernel file; returns their count (0: no such file). */
static int read_numbers(const char *path, long *v, int most)
{
    FILE *f = fopen(path, "re");
    int n = 0;
    if (!f)
        return 0;
    while (n < most && fscanf(f, "%ld", &v[n]) == 1)
        n++;
    fclose(f);
    return n;
}

/* ---- physical cores ---- */

/* The number of the core of a CPU; -1 if unknown. */
static long core_of(const char *root, int cpu)
{
    static const char *const facts[] = {"physical_package_id", "core_id"};
    long id[2];
    for (int i = 0; i < 2; i++) {
        char path[PATH_MOST];
        snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/%s", root, cpu, facts[i]);
        if (read_numbers(path, &id[i], 1) != 1 || id[i] < 0 || id[i] > 0xffff)
            return -1;
    }
    return id[0] << 16 | id[1];
}

static void cores_physical(const char *root, const int *cpus, int count, struct cores *c)
{
    long seen[CORES_MOST];
    for (int i = 0; i < count && c->n < CORES_MOST; i++) {
        long core = core_of(root, cpus[i]);
        bool known = false;
        for (int j = 0; core >= 0 && j < c->n && !known; j++)
            known = seen[j] == core;
        if (!known) {
            seen[c->n] = core;
            c->cpu[c->n++] = cpus[i];
        }
    }
}

/* ---- quotas ---- */

static int quota_cores(long quota, long period)
{
    if (quota <= 0 || period <= 0)
        return CORES_MOST;
    long n = (quota + period - 1) / period;
    return n > CORES_MOST ? CORES_MOST : (int)n;
}

/* The quota of one folder: cpu.max holds "QUOTA PERIOD" or "max PERIOD"; version 1 has a file for each. */
static int quota_of(const char *folder, bool first_version)
{
    char path[2 * PATH_MOST];
    long v[2] = {-1, 0};
    if (!first_version) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        return read_numbers(path, v, 2) == 2 ? quota_cores(v[0], v[1]) : CORES_MOST;
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (read_numbers(path, v, 1) != 1)
        return CORES_MOST;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    return read_numbers(path, v + 1, 1) == 1 ? quota_cores(v[0], v[1]) : CORES_MOST;
}

/* The least quota from `group` ("/a/b") up to the mount itself: in a container the mount is the group. */
static int quota_up(const char *mount, const char *group, bool first_version)
{
    char folder[PATH_MOST];
    int n = snprintf(folder, sizeof folder, "%s%s", mount, group);
    if (n < 0 || (size_t)n >= sizeof folder)
        return quota_of(mount, first_version);
    int least = CORES_MOST;
    for (size_t end = strlen(folder);; end--) {
        if (folder[end] && folder[end] != '/')
            continue;
        folder[end] = 0;
        int here = quota_of(folder, first_version);
        least = here < least ? here : least;
        if (end <= strlen(mount))
            return least;
    }
}

/* Is "cpu" one of these names, "cpu,cpuacct"? */
static bool names_cpu(const char *names)
{
    for (const char *p = names; p; p = strchr(p, ',')) {
        p += *p == ',';
        if (!strncmp(p, "cpu", 3) && (p[3] == ',' || !p[3]))
            return true;
    }
    return false;
}

/* Lines of /proc/self/cgroup are ID:CONTROLLERS:/GROUP, of version 2 "0::/GROUP". */
static int cores_quota(const char *root)
{
    char path[PATH_MOST], mount[PATH_MOST], line[PATH_MOST];
    int least = CORES_MOST;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group || group[1] != '/')
            continue;
        *group++ = 0;
        const bool first_version = names[1];
        if (first_version && !names_cpu(names + 1))
            continue;
        snprintf(mount, sizeof mount, "%.3000s/sys/fs/cgroup%s", root, first_version ? "/cpu" : "");
        int here = quota_up(mount, group[1] ? group : "", first_version);
        least = here < least ? here : least;
    }
    if (f)
        fclose(f);
    return least;
}

void cores_find_below(const char *root, const int *cpus, int count, struct cores *c)
{
    *c = (struct cores){0};
    cores_physical(root, cpus, count, c);
    int quota = cores_quota(root);
    c->n = c->n < quota ? c->n : quota;
    c->n = c->n < 1 ? 1 : c->n;
}

void cores_find(struct cores *c)
{
    int cpus[CORES_MOST], count = 0;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        for (; count < online && count < CORES_MOST; count++)
            cpus[count] = count;
    } else {
        for (int i = 0; i < CPU_SETSIZE && count < CORES_MOST; i++)
            if (CPU_ISSET(i, &set))
                cpus[count++] = i;
    }
    cores_find_below("", cpus, count, c);
}
