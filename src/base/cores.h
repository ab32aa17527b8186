/* The cores that this process may compute on: one CPU of each physical core in its affinity (a second
 * hardware thread adds no arithmetic units), at most the CPU quota of its cgroup and of all its parents. */
#pragma once

enum { CORES_MOST = 1024 };

struct cores {
    int n;               /* at least 1 */
    int cpu[CORES_MOST]; /* (n): where to pin a worker */
};

void cores_find(struct cores *c);
/* The same with /sys and /proc below `root`, and these CPUs as the affinity: for tests. */
void cores_find_below(const char *root, const int *cpus, int count, struct cores *c);
