/* Rights that a process gives up permanently: files, ports and signals (Landlock), system calls (seccomp).
 * Both apply to the calling thread and to what it starts; calls also to other threads, files where that is asked for.
 * serve/sandbox.h lists what a server keeps. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- files, ports, signals ---- */

struct confine_rule {
    const char *path; /* a file, or a folder and all below it; a missing one is skipped */
    enum confine_access {
        CONFINE_READ,   /* read, list */
        CONFINE_WRITE,  /* and make, change and remove files and folders; no links, sockets or devices */
        CONFINE_DEVICE, /* read, write, truncate, ioctl */
        CONFINE_REMOVE, /* remove files */
        CONFINE_LINKS,  /* as CONFINE_WRITE, and make symbolic links */
    } access;
};

struct confine_files {
    const struct confine_rule *rules; /* (count) */
    size_t count;
    bool read_all; /* only operations that change a file need a rule */
    bool network;  /* TCP stays open */
    int *
        others; /* with it, also threads that run already; gets the number of those that could not be reached */
};

/* TCP ports can be neither bound nor connected to (version 4), and processes outside get no signals (6). Returns the version
 * of Landlock that holds, 0 where the kernel has none or refuses. */
int confine_files(const struct confine_files *f);

/* ---- calls ---- */

/* A call that is allowed if its argument `arg` (from 1) is `value`, or has a bit of it. */
struct confine_call {
    uint16_t number;
    uint8_t arg;
    bool bits;
    uint32_t value;
};
struct confine_calls {
    const uint16_t *calls; /* (count): always allowed */
    size_t count;
    const struct confine_call *tested; /* (tested_count) */
    size_t tested_count;
};

/* What any other call returns: ENOSYS for calls of Linux 5.1 and later, so that libc takes the older way, else EPERM. */
int confine_errno(uint32_t number);
/* Allows the calls of all lists and refuses the rest. `listener` (or NULL) gets a descriptor that reports
 * each refused call (-1: none), see seccomp_unotify(2). False where the kernel refuses. */
bool confine_calls(const struct confine_calls *lists, size_t count, int *listener);
