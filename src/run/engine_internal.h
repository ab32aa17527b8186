/* The engine's state, shared by its files: engine.c has the clients' side, the queue and the thread,
 * engine_step.c the step, engine_draft.c the draft tokens. */
#pragma once

#include "run/batch_room.h"
#include "run/job.h"

static inline uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

enum { ENGINE_SNAPS = 32 }; /* snapshots of a request in a step */

/* First come, first served. */
struct job_queue {
    struct job *first, **end;
    uint64_t bytes;
};

enum { QUEUE_USERS, QUEUE_BATCH, QUEUES }; /* by engine_request.batch */

/* An adapter that the thread is to attach between two steps. */
struct engine_order {
    uint32_t place;
    struct lora *adapter;
    struct err err;
    int failed;
    bool done;
};

/* The queues, the order, the statistics and `closing` are shared with the clients, under the mutex; everything else is
 * used by the thread only, or does not change. */
struct engine {
    struct session *session;
    struct engine_options o;
    uint32_t room; /* tokens that one request can have: the context, or fewer where the pages are few */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work, ordered;
    struct job_queue waiting[QUEUES];
    uint32_t turned_away; /* requests refused, minus those that have ended since */
    double pace;     /* seconds between the ends of two requests while others wait, smoothed; 0 = not known */
    double last_end; /* when a request ended, or the first began to wait */
    struct engine_order *order; /* NULL = none */
    bool closing;
    bool shed; /* an idle engine is to return the memory of cached prefixes */
    struct engine_stats stats;
    /* used by the thread only */
    struct job **running;  /* (slots), in order of admission; those of batches behind the others */
    uint32_t count, users; /* of them; how many are of no batch */
    bool computing;        /* a step is being computed: no job of it may be preempted */
    struct batch_room batch_room;
    bool beside; /* in this step, all others decode: batches have batch_rows beside them */
    uint32_t batch_rows;
    uint32_t image_turns; /* of picture_ids_turns, when the tree was last cleared for them */
    bool crowded;         /* pages are short: no request is admitted until one has ended */
    struct prefix *prefix;
    struct kv_events *events; /* of it; NULL = none */
    struct seq_rows *parts;   /* (slots): the step */
    uint32_t *snaps;          /* (slots, ENGINE_SNAPS): its snapshots */
    uint32_t spare;           /* slots of state for draft tokens in this step */
    struct job **owner;       /* (slots): whose part it is */
    struct step_pick *pick;   /* (the runner's most_outs): how the device chooses tokens; NULL: it does not */
    struct pick_seen *seen;   /* (most_outs, PICK_SEEN_MOST) */
    double done; /* when the device was done with the last step; 0 = then there was nothing to do */
    bool news;   /* a job has tokens that are not published yet */
    struct accept_rate accept_rate[SPECULATE_KINDS]; /* of all requests: the initial rate of a new one */
    struct step_costs costs;
    struct cost draft_token, draft_row; /* of the draft model: a draft token, a row that it reads */
    double draft_share;                 /* its weights in relation to the model's */
};

/* The first jobs of those that run, which a step is made for: all, where all are of batches. */
static inline uint32_t engine_front(const struct engine *g)
{
    return g->users ? g->users : g->count;
}

/* Gives the job the cached pages of its tokens, up to the first whose result is wanted; returns how many it
 * holds then. */
uint32_t engine_match(struct engine *g, struct job *j);
/* Starts the first job of the queue, if there is a slot and room for its tokens. For one of no batch, jobs of batches are
 * preempted. */
bool engine_admit(struct engine *g);
/* One step over everything that runs. */
void engine_step(struct engine *g);
/* Ends a running job, and adds its pages to the prefix tree. */
void engine_end(struct engine *g, struct job *j, const struct job_end *end);
/* Preempts the youngest running job, those of batches first: it goes to the front of the queue and keeps its tokens. */
void engine_preempt(struct engine *g);
/* Drafts tokens for every job that decodes. */
void engine_speculate(struct engine *g);
/* `right` of the job's draft tokens were accepted; the sequence is cut to those. */
void engine_learn(struct engine *g, struct job *j, uint32_t right);
/* Records how long a step took. */
void engine_learn_cost(struct engine *g, uint32_t parts, double seconds);
int engine_check_draft(const struct session *l, const struct session *draft, uint32_t slots, uint32_t room,
                       struct err *e);
