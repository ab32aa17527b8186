/* The adapters of a session, by the names that requests use: those it was opened with, and those that come and go
 * while an engine runs it (engine_load_adapter). An adapter that is dropped has no name from then on, and leaves its
 * place in the plan when the last request that has it has ended. All functions may be called by any thread, unless they
 * say otherwise. */
#pragma once

#include "base/digest.h"
#include "base/err.h"
#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct lora;
struct session;
struct session_options;

enum {
    SESSION_ADAPTERS = 64, /* places of adapters, at most */
    ADAPTER_NAME = 128
};

/* Place i of the table is place i + 1 of the plan. */
struct session_adapter {
    char name[ADAPTER_NAME]; /* "" = the place is free, or its adapter is coming or leaving */
    char file[ADAPTER_NAME]; /* that it was read from, without the folders */
    uint32_t id;    /* for requests; another one for each adapter that is at this place one after the other */
    float scale;    /* of requests that name it without one */
    float standing; /* of requests that name no adapter; 0 = they do not have it */
    bool fixed;     /* it was there when the session was opened, and stays */
    bool taken, leaving;
    uint32_t users;       /* requests that wait or run with it */
    uint64_t bytes;       /* in memory */
    struct digest digest; /* of its tensors */
};

struct adapters {
    pthread_mutex_t lock;    /* of the table */
    pthread_mutex_t loading; /* one comes at a time */
    struct session_adapter all[SESSION_ADAPTERS];
    uint32_t places;  /* that the plan has */
    uint64_t most;    /* bytes of those that come while it runs */
    atomic_bool left; /* some may leave their places */
};

/* For session_open and session_close. */
void adapters_init(struct adapters *t);
/* The options' own adapters; `more`: and places for others. */
int adapters_open(struct session *l, const struct session_options *o, bool more, struct err *e);
void adapters_close(struct adapters *t);

/* What a request asks for: "NAME[:SCALE]", several with commas between; "" = none, NULL = the standing ones. The ids are for
 * engine_submit. */
int session_adapt(struct session *l, const char *text, struct adapter_mix *out, struct err *e);
/* The salt of prefixes for these adapters: different for other adapters, the same in every process. Of a mix that is held,
 * or while no adapter is dropped. */
uint64_t session_salt(const struct session *l, const struct adapter_mix *mix, uint64_t salt);
/* Holds the adapters of session_adapt, and puts their places in the plan for their ids; -1: one was dropped meanwhile. */
int session_hold(struct session *l, struct adapter_mix *mix, struct err *e);
void session_release(struct session *l, const struct adapter_mix *held);

/* A copy of the table; returns how many places there are. Those that requests can name have a name. */
uint32_t session_list_adapters(struct session *l, struct session_adapter out[SESSION_ADAPTERS]);
/* The place of an adapter, from 0; -1: there is none of this name. */
int session_find_adapter(struct session *l, const char *name);
/* What requests have that name no adapter: these at these scales, and no other. */
int session_stand(struct session *l, const struct adapter_mix *mix, struct err *e);

/* The name that "NAME=PATH[:SCALE]" or "PATH[:SCALE]" gives an adapter; false: none that can be. */
bool adapter_name(const char *text, char out[ADAPTER_NAME]);

/* An adapter that comes while the session is in use. */
struct adapter_source {
    const char *name, *path, *file; /* file: what listings say */
    float scale;
};
/* For the engine: reads it, has it attached by the engine's thread (attach), and gives it its name. */
int session_load_adapter(struct session *l, const struct adapter_source *s,
                         int (*attach)(void *arg, uint32_t place, struct lora *a, struct err *e), void *arg,
                         struct err *e);
/* For the engine: it has no name any more. *users: requests that still have it. */
int session_drop_adapter(struct session *l, const char *name, uint32_t *users, struct err *e);
/* On the engine's thread, between steps: adapters that were dropped and that no request has leave the plan. */
void session_sweep_adapters(struct session *l);
