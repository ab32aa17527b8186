/* quern doctor's report on the system: the CPU's kernel tiers, memory, folders, libraries, and how to fix
 * what is missing. */
#pragma once

#include "base/err.h"
#include "run/memory.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

struct buf;
struct json;

enum { DOCTOR_FOLDERS = 3, DOCTOR_TIERS_MOST = 8, DOCTOR_ADVICE = 8 };

struct doctor_folder {
    const char *what;     /* "hub", "own", "config" */
    char path[PATH_MAX];  /* from the environment; need not exist */
    bool there, writable; /* writable: or can be made */
    uint64_t room;        /* bytes that are free where it is, or would be */
};

struct doctor_system {
    char cpu[128]; /* its maker's name for it */
    struct {
        const char *name;
        bool has;
    } tiers[DOCTOR_TIERS_MOST];
    int tier_count;
    struct memory memory;
    uint64_t lockable; /* --mlock limit in bytes; UINT64_MAX = unlimited */
    struct doctor_folder folders[DOCTOR_FOLDERS];
    char endpoint[512];
    bool token, offline;
    char curl[128]; /* libcurl's version; "" = it is not there */
    int nvidia;     /* NVIDIA cards on the bus, with or without a driver */
    char advice[DOCTOR_ADVICE][256];
    int advices;
};

/* cards: how many a driver shows, or -1. */
int doctor_system_look(struct doctor_system *s, int cards, struct err *e);
void doctor_system_text(const struct doctor_system *s, struct buf *out);
/* The keys of an object that is open. */
void doctor_system_json(const struct doctor_system *s, struct json *j);
