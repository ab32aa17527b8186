/* Many requests on one model. One thread owns the runner, the prefix tree and all that changes; clients
 * submit requests from any thread and read each one's stream from theirs.
 *
 * A step mixes one row of every running stream with a bounded chunk of a prompt, so that no stream waits
 * longer than a chunk. When pages run out, idle pages of the prefix tree are evicted; then the youngest
 * request is preempted: it goes back to the queue with its tokens, and its pages are recomputed later.
 *
 * Requests of batches run in what the others leave: they wait in a queue of their own, are preempted first (also for a
 * slot), and have rows in a step beside others only as far as that does not slow it (batch_room.h). */
#pragma once

#include "base/err.h"
#include "run/kv_events.h"
#include "run/session.h"
#include "run/prefix.h"
#include "run/picture.h"
#include "run/reasoning.h"
#include "run/constraint_ref.h"
#include "run/token_filter.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct engine;
struct stream;

struct engine_options {
    uint32_t slots;       /* streams at once; at most the runner's sequences; 0 = as many */
    uint32_t queue;       /* queue length; 0 = ENGINE_QUEUE */
    uint64_t queue_bytes; /* of queued requests, mostly prompts; one may always wait; 0 = ENGINE_QUEUE_MIB */
    double gap;           /* seconds that a running stream may wait for a chunk; 0 = 0.15 */
    /* Most draft tokens of a request in a step: from the constraint, where it allows one text only, and from
     * repetitions in the text; 0 = none. How many are drafted depends on the measured cost of steps and the
     * accept rate. */
    uint32_t draft;
    bool draft_always; /* draft whenever possible, whatever steps cost */
    /* With `draft`: the draft model. It has the same vocabulary, a sequence for every slot and pages for all
     * of them. The engine has exclusive use of it. NULL = none. */
    struct session *draft_model;
    /* The prefix tree's pages are kept in this folder, too, across restarts; NULL = in memory only. */
    const char *cache_dir;
    uint64_t cache_bytes; /* at most; 0 = 4 GiB */
    /* Of a model that keeps state: tokens between two snapshots of a long text, a multiple of RUNNER_PAGE; 0 =
     * ENGINE_SNAPSHOT. */
    uint32_t snapshot;
    /* Requests of no batch in all engines and embedders that share the machine: while others have some, this one does no
     * step for batches alone. NULL = it is the only one. */
    atomic_uint *users;
    struct kv_events_options events; /* of the prefix tree */
    bool guard;                      /* for tests: an allocation inside a step is fatal */
};

/* Seconds without a request after which memory of KV that holds nothing is returned. */
enum { ENGINE_IDLE = 5 };
enum { ENGINE_CACHE_GIB = 4, ENGINE_QUEUE = 512, ENGINE_QUEUE_MIB = 128, ENGINE_SNAPSHOT = 1024 };

/* For runner_options.snapshots: what an engine with this many streams uses. */
uint32_t engine_snapshots(uint32_t streams);

/* The cache on disk that these options ask for, for prefix_open; NULL where they ask for none. */
int engine_open_disk(struct prefix_disk **out, const struct session *l, const struct engine_options *o,
                     struct err *e);

enum { ENGINE_TOP_MOST = 20 };

enum finish_kind {
    FINISH_STOP,   /* a stop token or a stop string */
    FINISH_LENGTH, /* as many tokens as were asked for, or the context is full */
    FINISH_CANCEL
};
const char *finish_name(enum finish_kind f);

struct engine_request {
    const int32_t *prompt; /* (n), copied */
    uint32_t n;
    const struct prompt_image
        *images; /* (image_count), in the prompt's order; copied, the pictures are held */
    uint32_t image_count;
    struct sampler_params sampler;
    uint32_t most;                   /* tokens; 0 = until the context is full */
    const char *const *stop_strings; /* (stops), copied */
    size_t stops;
    bool keep_stop;            /* the stop string or stop token that ends it is part of the text */
    struct token_rules tokens; /* its lists are copied */
    struct reasoning_rule reasoning;
    bool ignore_eog, show_special;
    bool logprobs;         /* ln p of each token */
    uint32_t top_logprobs; /* and of this many best ones; at most ENGINE_TOP_MOST */
    bool echo;  /* with logprobs: the prompt's tokens come first, with theirs. Its prefix is not shared */
    bool ranks; /* with echo: and how many tokens were at least as likely */
    bool prompt_only; /* the prompt is read, and no token is generated */
    /* With prompt_only: the logits after the last `logit_rows` tokens of the prompt are kept for stream_take_logits. What
     * is before them may come from the cache. */
    uint32_t logit_rows;
    struct constraint_ref *constraint; /* the constraint on the output; NULL = none; shared, not taken over */
    uint64_t salt;                     /* requests share prefixes only with those of the same salt */
    struct adapter_mix lora; /* of session_adapt; requests share prefixes only with those of the same */
    /* Once its first token is older than this, it ends as soon as it has a whole line; 0 = it does not. */
    double write_seconds;
    bool batch;     /* runs only in what other requests leave */
    double seconds; /* deadline after submission; 0 = none */
    /* Called by the engine's thread when there is a new chunk, never after the stream was closed. It must
     * neither block nor call the engine or the stream. May be NULL. */
    void (*wake)(void *arg);
    void *arg;
};

/* A chunk: what has come since the last call. Pointers are valid until the next call or the close. */
struct stream_chunk {
    const char *text;
    size_t text_length;
    const int32_t *ids;    /* (count) */
    const float *logprobs; /* (count), where asked for; NAN of the prompt's first token */
    const uint32_t *ranks; /* (count), where asked for: 1 = the likeliest */
    const struct token_prob
        *top;             /* (count, top_logprobs), where asked for; no ids for the prompt's first token */
    size_t count, echoed; /* echoed: how many of them are the prompt's */
    bool done;            /* this is the last chunk */
    enum finish_kind finish;
    bool context_full;
    uint32_t stopped; /* the stop string that ended it, from 1; 0 = none did */
    struct err err;   /* code != 0: it failed */
    uint32_t prompt, cached;
    uint32_t reasoned; /* tokens of reasoning in all, where the request counts them; in the last chunk */
    uint32_t drafted, accepted, forced;            /* as in the statistics below */
    double queued_seconds, first_seconds, seconds; /* waiting; until the first token; in all */
};

/* The session must outlive the engine, which has exclusive use of it. */
int engine_open(struct engine **out, struct session *l, const struct engine_options *o, struct err *e);
/* Ends what runs (as cancelled) and waits for the thread. Streams stay readable until they are closed. */
void engine_close(struct engine *g);

/* ERR_RESOURCE when the queue is full. Thread-safe, as all below. */
int engine_submit(struct engine *g, const struct engine_request *r, struct stream **out, struct err *e);
/* Estimated seconds until the queue has room for a request that was just refused. Requests refused earlier
 * come first; the rate is that at which requests have ended while others waited. From 1 to
 * ENGINE_RETRY_MOST. */
enum { ENGINE_RETRY_MOST = 60 };
uint32_t engine_retry(struct engine *g);
/* Waits up to `seconds` for a chunk (0: does not wait, < 0: no limit). false: none came. */
bool stream_look(struct stream *s, double seconds, struct stream_chunk *out);
/* The logits that were asked for, (logit_rows, vocabulary), once it is done; the caller frees them with mem_free. NULL:
 * none were, or it has not ended well. */
float *stream_take_logits(struct stream *s);
void stream_cancel(struct stream *s); /* takes effect within a step */
void stream_close(struct stream *s);  /* cancels, if it runs */

/* Steps by their rows: steps[i] have at most step_rows_bound(i) of them, and more than the bound before; the last are
 * larger. */
enum { STEP_SIZES = 13 };
struct step_rows {
    uint64_t steps[STEP_SIZES + 1], rows; /* rows: of all steps */
};
static inline uint32_t step_rows_bound(uint32_t i) /* 1, 8, 16, 32, ... */
{
    return i ? 4u << i : 1;
}

/* submitted = finished + cancelled + failed + running + waiting. prompt_tokens are rows of prompts that
 * were computed (again after a preemption), cached_tokens those that were not, because they were known. */
struct engine_stats {
    uint32_t running, waiting;
    uint32_t batch_running, batch_waiting; /* of these, requests of batches */
    uint64_t submitted, finished, cancelled, failed, refused;
    uint64_t full_length;                    /* of the finished ones, those that ended by their length */
    uint32_t lora_running[SESSION_ADAPTERS], /* requests with each adapter */
        lora_waiting[SESSION_ADAPTERS];
    uint64_t prompt_tokens, cached_tokens, made_tokens, steps, preempted;
    uint64_t step_us,
        host_us; /* time in steps of the device, and time between steps, when the device waits for the host */
    uint64_t drafted, accepted, forced; /* draft tokens: verified, accepted, accepted from a constraint */
    uint64_t images;                    /* that the tower has encoded */
    uint32_t pages, pages_free;         /* of all groups */
    uint32_t pages_idle;                /* of those that are not free: held by cached prefixes only */
    uint32_t blocks;                    /* pages of text that the prefix tree can hold */
    uint32_t window_pages, window_pages_free; /* of these, of groups with a window */
    uint32_t states, states_free;             /* slots of state */
    double last_step;                         /* when it ended, on the monotonic clock */
    uint32_t failing;                         /* steps in a row that the device has failed */
    struct step_rows sizes;
    struct prefix_stats prefix;
    struct constraint_cache_stats constraints; /* the cache of constraints */
};
void engine_stats(struct engine *g, struct engine_stats *out);
/* Adds an adapter while requests run: it is read by the caller's thread, and attached between two steps. */
int engine_load_adapter(struct engine *g, const struct adapter_source *s, struct err *e);
/* New requests do not find it; *users: how many still have it. */
int engine_drop_adapter(struct engine *g, const char *name, uint32_t *users, struct err *e);
/* Others need memory: as soon as it is idle the engine drops its cached prefixes and returns their memory. Any thread. */
void engine_shed(struct engine *g);
