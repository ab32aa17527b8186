/* The models behind one port. Each has up to two instances in memory, loaded on first use: one that generates
 * text (an engine) and one that makes vectors (an embedder). An instance is the unit that is loaded, counted
 * and unloaded:
 *
 *   AWAY -> WANTED -> LOADING -> READY -> LEAVING -> AWAY
 *
 * One thread loads and unloads, one instance at a time, first come, first served; neither the event loop nor
 * a worker ever waits for it. A caller that needs an instance that is not READY queues a `struct model_wait`
 * and gets a callback. When memory is short, the least recently used instance is evicted. An instance in use
 * becomes LEAVING: it takes no new users and is unloaded after the last one, so two busy models with room for
 * one take turns. */
#pragma once

#include "run/embedder.h"
#include "run/engine.h"
#include "run/session.h"
#include "serve/failure.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct kv_publisher;

enum { MODELS_DEVICES = 4 };
enum instance_kind { INSTANCE_WRITER, INSTANCE_VECTORS, INSTANCES };
enum instance_state { INSTANCE_AWAY, INSTANCE_WANTED, INSTANCE_LOADING, INSTANCE_READY, INSTANCE_LEAVING };

#define MODELS_KEEP_FOREVER (-1.0)
#define MODELS_KEEP_DEFAULT (-2.0) /* the value of the options */

/* The users of a READY or LEAVING instance read `of`, `loaded`, `engine` and `embedder`; all else is guarded
 * by the mutex of struct models. */
struct instance {
    struct served *of;
    enum instance_kind kind;
    enum instance_state state;
    struct session *session;
    struct engine *engine;     /* INSTANCE_WRITER */
    struct embedder *embedder; /* INSTANCE_VECTORS */
    uint32_t users;
    struct models *all; /* that it belongs to */
    uint64_t bytes;  /* while in memory: what it holds now, as the device reports it; KV grows with its use */
    uint64_t least;  /* what it held when it was loaded last; 0 = never */
    char device[32]; /* the device that it was loaded on, whose own name goes with it, and its memory there */
    struct device_memory memory;
    double progress;  /* while LOADING: the share of its weights that is there */
    double keep;      /* seconds that it stays after its last use; < 0 = for ever */
    double last_used; /* on the monotonic clock */
    struct model_wait *waiting, **waiting_end;
    uint32_t waiters;
    struct instance *next_wanted;
};

/* Facts from the header of a file, read without loading the model. */
struct served_facts {
    bool known;               /* false: the file could not be read */
    char family[64];          /* the architecture */
    const char *type;         /* of the file: "Q4_K_M" */
    uint32_t context;         /* tokens that a request can have */
    uint32_t trained;         /* the context that the model was trained with */
    uint32_t width;           /* of a vector */
    uint64_t parameters;      /* values of all weights */
    uint64_t bytes;           /* of the files */
    uint64_t kv_bytes;        /* of a token, about, in layers that see all */
    uint64_t kv_window_bytes; /* and in those that see a window */
    uint32_t window;
    uint64_t state_bytes;     /* of a sequence's recurrent state */
    bool encoder;             /* makes vectors only */
    bool can_chat;            /* has a template */
    bool can_call, can_think; /* the template supports tools, reasoning */
    bool can_see;             /* it has a tower for images */
    bool can_insert;          /* supports fill-in-the-middle: known after the first load */
    time_t modified;
};

struct served {
    char *name, *path;
    bool removable; /* as in the list */
    bool listed;    /* false: removed from the list; takes no new users */
    bool stale;     /* the file has changed: the next load reads its facts again */
    double failed;  /* when its last load failed, on the monotonic clock; 0 = it did not */
    struct served_facts facts;
    struct instance instances[INSTANCES];
    struct served *next;
};

/* A queued request for an instance. Owned by the caller, from models_take until `ready` is called. */
struct model_wait {
    struct instance *form;  /* the instance, held for the caller; NULL: `failure` has the reason */
    struct failure failure; /* models_take clears it */
    struct err why;         /* the reason of a failed load, for the operator: with paths */
    double since;
    bool patient; /* waits as long as it takes */
    struct model_wait *next;
    /* Called by another thread, once, without a lock held. */
    void (*ready)(struct model_wait *w);
};

struct model_list {
    struct model_item {
        char *name, *path;
        bool removable; /* clients may remove it: it came through one */
    } * items;          /* (count) */
    size_t count;
};

struct models_options {
    uint64_t memory; /* bytes that all models together may take; 0 = what is free when the program starts */
    double keep;     /* seconds that an idle model stays loaded; MODELS_KEEP_FOREVER */
    double patience; /* seconds that a request waits for its model */
    uint32_t ctx;    /* 0 = the model's own, at most SESSION_CTX */
    struct engine_options engine;
    uint32_t texts; /* that one step embeds */
    /* Both run on the thread of the models, or in models_open. The list: what there is, in order; on an error the old one
     * stays. */
    int (*list)(void *arg, struct model_list *out, struct err *e);
    int (*open)(void *arg, struct session **out, const char *path, const struct session_options *o,
                struct err *e);
    void *arg;
    const char *const *adapters; /* (adapter_count): names of the first model with an adapter */
    size_t adapter_count;
    const char *const *aliases; /* (alias_count): further names of the first model */
    size_t alias_count;
    const char *chat_template;      /* of all models; NULL = each has its own */
    struct kv_publisher *publisher; /* of the events of prefix trees; NULL = none */
};

/* An adapter by the name that requests may use for its model. */
struct served_adapter {
    char name[ADAPTER_NAME], file[ADAPTER_NAME];
    char *base;     /* its model's name; NULL = the first model */
    char *path;     /* where a load of the model finds it; NULL = it comes with the model */
    bool ready;     /* false: it is being loaded, or only its standing scale is kept here */
    float standing; /* in requests that name no adapter */
    struct served_adapter *next;
};

struct models {
    const struct models_options *o;
    uint64_t room; /* bytes */
    pthread_t thread;
    bool running;
    atomic_uint users; /* of all instances: requests of no batch that run or wait (engine_options) */
    /* guarded by the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* for the thread */
    struct served *all, **all_end;
    struct served_adapter *adapters, **adapters_end;
    struct instance *wanted, **wanted_end;
    bool closing, rescan;
    struct models_stats {
        uint64_t loads, unloads, failures; /* of instances */
        uint32_t loaded;
        uint64_t bytes;             /* in memory now */
        struct engine_stats engine; /* of all engines, unloaded ones included */
        struct embedder_stats embedder;
        struct models_device { /* memory of the instances on each device; total: the device's memory */
            char name[32];
            struct device_memory memory;
        } devices[MODELS_DEVICES];
        uint32_t device_count;
    } stats;
};

int models_open(struct models **out, const struct models_options *o, struct err *e);
/* No more loads: every queued wait fails. Users keep their instances. */
void models_shut(struct models *m);
/* Call it after the last user has released its instance. */
void models_close(struct models *m);

enum taken { TAKEN_NONE, TAKEN_NOW, TAKEN_LATER };
/* The instance of the model of this name ("name:latest" too; NULL or "": the first suitable model). NONE: the
 * failure is set; LATER: w->ready will be called. INSTANCE_WRITER of an encoder is refused; `any`: then its
 * vectors. */
struct model_want {
    const char *name;
    enum instance_kind kind;
    bool any;  /* only the tokenizer is needed */
    bool chat; /* where none is named: rather one with a chat template */
};
enum taken models_take(struct models *m, const struct model_want *want, struct model_wait *w);
/* Releases an instance. keep: seconds that it stays loaded while idle, or MODELS_KEEP_DEFAULT. */
void models_drop(struct models *m, struct instance *f, double keep);
/* Cancels a wait; false: `ready` has been called or is about to be. */
bool models_unwait(struct models *m, struct model_wait *w);
/* Fails the waits that have timed out, and unloads models whose files have changed. Call it about once a
 * second. */
void models_expire(struct models *m, double now);
/* Unloads a model as soon as it is idle (NULL: all). Returns the number of instances; -1: no such model. */
int models_stop(struct models *m, const char *name);
void models_rescan(struct models *m);
/* For the start of a server with a named model: begins to load the first one. true: w->ready will be called; then, or
 * at once, models_preloaded says whether it is loaded. */
bool models_preload(struct models *m, struct model_wait *w);
int models_preloaded(struct models *m, struct model_wait *w, struct err *e);

/* The list of models. Between lock and unlock the list and the states do not change; names are never
 * freed. */
const struct served *models_lock(struct models *m);
void models_unlock(struct models *m);
/* Call with the lock held. Aliases and adapters are names of the first model. */
const struct served *models_find(struct models *m, const char *name);
/* The name to report for the model that was found by this name: the alias, or its own name. */
const char *models_called(const struct models *m, const struct served *s, const char *name);
const struct served *models_first(struct models *m);
/* Every name that a client may use, in order: of models, aliases, adapters. Locked. */
void models_each(struct models *m, void (*take)(void *arg, const struct served *s, const char *name),
                 void *arg);
const char *models_state(const struct served *s); /* "loaded", ... */
/* About how many of its bytes are on a card: KV grows in proportion to what each device had at the load. Locked. */
uint64_t instance_on_card(const struct instance *f);
void models_stats(struct models *m, struct models_stats *out);
/* Why only a restart helps: an engine with work makes no progress, or a device fails every step. NULL = nothing is wrong. */
const char *models_fault(struct models *m);
/* Why no request can be served now; NULL = they can. */
const char *models_unable(struct models *m);

/* ---- adapters (models_adapters.c) ---- */
/* The adapter of this name, NULL = none; and the model that it is for. Call both with the lock held. */
const struct served_adapter *models_adapter(const struct models *m, const char *name);
const struct served *models_adapted(struct models *m, const struct served_adapter *a);
bool models_adapts(struct models *m,
                   const char *name); /* whether it is one; without the lock. NULL is none */
/* Adds an adapter to a model that the caller holds, and to what loads of it add. */
int models_load_adapter(struct models *m, struct instance *f, const struct adapter_source *s,
                        struct failure *why);
/* Requests find it no more. *users: how many still have it. */
int models_drop_adapter(struct models *m, const char *name, uint32_t *users, struct failure *why);
/* Sets what requests have that name no adapter, and keeps it for loads of the model. */
int models_stand(struct models *m, struct instance *f, const struct adapter_mix *mix, struct failure *why);
/* The names of adapters that some request has that runs, or that waits. */
void models_busy_adapters(struct models *m, bool waiting, void (*take)(void *arg, const char *name),
                          void *arg);

/* ---- the list (models_list.c) ---- */
int model_list_add(struct model_list *l, const char *name, const char *path, struct err *e);
void model_list_free(struct model_list *l);
/* All models of a folder: files *.gguf (of a split one the first) and folders with safetensors. */
int model_list_folder(struct model_list *l, const char *folder, struct err *e);
/* The last part of a path without ".gguf" and the number of a split. */
char *model_name(const char *path);
int served_facts_read(struct served_facts *f, const char *path, const struct models_options *o,
                      struct err *e);
