/* What the files of the engine share: the engine itself. engine.c has the clients' side, the queue and
 * the thread; engine_step.c has what happens in a step, engine_draft.c what it guesses ahead. */
#pragma once

#include "run/job.h"

static inline uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The queue, the statistics and `closing` are shared with the clients, under the mutex; everything else
 * is the thread's own, or does not change. */
struct engine {
    struct session *loaded;
    struct engine_options o;
    uint32_t room; /* tokens that one request can have: the context, or fewer where the pages are few */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work;
    struct job *waiting, **waiting_end; /* first come, first served */
    uint64_t waiting_bytes;
    uint32_t turned_away; /* requests refused for whom no place has become free since */
    double pace;     /* seconds between the ends of two requests while others wait, smoothed; 0 = not known */
    double last_end; /* when a request ended, or the first began to wait */
    bool closing;
    struct engine_stats stats;
    /* the thread's own */
    struct job **running; /* (slots), in order of admission */
    uint32_t count;
    bool crowded; /* nobody is admitted until a request has ended: there are no pages */
    struct prefix *prefix;
    struct seq_rows *parts; /* (slots): the step */
    struct job **owner;     /* (slots): whose part it is */
    struct step_pick *pick; /* (the runner's most_outs): how the device chooses tokens; NULL: it does not */
    struct pick_seen *seen; /* (most_outs, PICK_SEEN_MOST) */
    double done; /* when the device was done with the last step; 0 = then there was nothing to do */
    bool news;   /* somebody has tokens that its client has not been told of */
    struct accept_rate accept_rate[SPECULATE_KINDS]; /* of all requests: what a new one begins with */
    struct step_costs costs;
    struct cost draft_guess, draft_row; /* of the draft model: a guess, a row that it reads */
    double draft_share;                 /* its weights in relation to the model's */
};

/* Gives the job what is known of its tokens before the first whose result is wanted; how many it holds then. */
uint32_t engine_match(struct engine *g, struct job *j);
/* The first of the queue starts, if there is a slot and room for its tokens. */
bool engine_admit(struct engine *g);
/* One step over everything that runs. */
void engine_step(struct engine *g);
/* Ends a running job, and leaves what it computed to the prefix tree. */
void engine_end(struct engine *g, struct job *j, const struct job_end *end);
/* Takes the youngest running job back into the queue, at its front: it keeps its tokens. */
void engine_preempt(struct engine *g);
/* Guesses for everybody who decodes. */
void engine_guess(struct engine *g);
/* So many of the job's guesses were right, and its sequence holds just those. */
void engine_learn(struct engine *g, struct job *j, uint32_t right);
/* A step took so long. */
void engine_learn_cost(struct engine *g, uint32_t parts, double seconds);
int engine_check_draft(const struct session *l, const struct session *draft, uint32_t slots, uint32_t room,
                       struct err *e);
