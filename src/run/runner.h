/* One model on one device: the device, its KV pages, and steps over a flat batch of rows from any number of
 * sequences. Used by one thread only. Nothing is allocated once it is open and its sequences are made: a step
 * only fills arrays that are there. */
#pragma once

#include "base/err.h"
#include "device/device.h"
#include "device/place.h"
#include "run/memory.h"
#include "run/pages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Several ranks that run the model together (device/team.h). */
struct ranks_options {
    uint32_t tensor, stages; /* ranks of a layer, and stages of layers; 0 = 1 */
    struct comm *
        comm; /* where ranks are processes: this one's, which the runner takes over; NULL: threads of this one */
    const char *gpus; /* "0,1,2": the card of each rank; NULL: none is named */
    uint32_t local;   /* this process's number on its machine, for the choice of a card */
};

struct runner_options {
    const char *device; /* "cpu", "cuda", "cuda:N"; NULL = the GPU where there is one, else the CPU */
    struct device_options device_options;
    enum place_how gpu; /* which layers a GPU gets */
    uint32_t gpu_layers;
    bool cpu_experts; /* experts stay on the CPU */
    uint32_t ctx;     /* tokens a sequence may have */
    uint32_t seqs;    /* sequences at once; 0 = 1 */
    uint32_t
        whole; /* image tokens that have to be in one step: a step has room for them whatever `chunk` is */
    uint32_t chunk;      /* rows a step; 0 = RUNNER_CHUNK, on a GPU RUNNER_CHUNK_GPU or RUNNER_CHUNK_ALONE */
    uint32_t rows_least; /* a step has room for these whatever `chunk` is */
    uint32_t outs;       /* results a step; 0 = one per sequence */
    uint32_t pages;      /* of KV in all, exactly; 0 = as much as the two below say */
    uint64_t kv_bytes;   /* size of KV; 0 = what is free, at most enough for every sequence */
    uint64_t kv_free;    /* that the CPU has for KV; 0 = no bound. A GPU says itself what is free */
    uint32_t kv_type;    /* enum dtype; F32 where device_options.exact */
    /* Rows from which on weights that are not on the GPU are sent there; 0 = by measurement. */
    uint32_t stream_rows;
    /* Experts of each operation whose weights are sent, while the CPU computes the others; by measurement, unless fixed. */
    bool sent_fixed;
    uint32_t sent_experts;
    bool no_pin;   /* weights that are sent are copied first: their own memory is not pinned */
    bool no_keep;  /* and they do not stay on the card */
    bool kv_whole; /* all pages have memory from the start */
    /* Of a plan that keeps state: slots beside those of the sequences, for the prefix tree and for draft tokens;
     * 0 = none. Where memory is short there are fewer. */
    uint32_t snapshots;
    uint64_t state_bytes; /* size of all slots; 0 = as `snapshots` says */
    struct ranks_options ranks;
    /* Where all of the model would fit on the GPU, if others gave `bytes` more of it back: true if some of that was given
     * back. May be NULL. */
    bool (*make_room)(void *arg, uint64_t bytes);
    void *make_room_arg;
    void (*progress)(void *arg, double share); /* while weights load; may be NULL */
    void *progress_arg;
};

/* Slots of state that always have memory: the empty one, and two of one sequence. */
enum { RUNNER_STATES_LEAST = 3 };
/* Tokens that a sequence can always be cut back by, also where windows have moved on: for rejected draft
 * tokens. */
enum { RUNNER_PAGE = 32, RUNNER_CHUNK = 512, RUNNER_CHUNK_GPU = 1024, RUNNER_BACK = 32, RUNNER_STATES = 64 };
/* Rows of a step on a GPU while no stream generates, where scratch for them is at most this part of the memory: a step
 * sends or decodes weights once, however many rows it has. */
enum { RUNNER_CHUNK_ALONE = 2048, RUNNER_ALONE_PART = 32 };

struct runner {
    struct device *device;
    const struct plan *plan;
    struct placement placement; /* of == 0: no GPU was considered */
    uint32_t ctx, chunk, most_seqs, most_outs, table_width;
    uint32_t kv_type;
    uint32_t pool;                        /* pages of each group, fewer where there is a window */
    struct device_options device_options; /* as given */
    uint64_t pinned;                      /* bytes of weights that may be pinned for the GPU */
    struct pages pages[PLAN_GROUPS_MOST];
    uint32_t least
        [PLAN_GROUPS_MOST]; /* pages that always have memory: with them one sequence can run to its end */
    /* KV is to hold `to` bytes, not `from`: false where that is more than there is room for. NULL = yes. */
    bool (*resize)(void *arg, uint64_t from, uint64_t to);
    void *resize_arg;
    /* Until then only less memory is asked for than was refused a moment ago, in bytes. */
    double grow_after;
    uint64_t refused;
    struct pages states;   /* slots of state; none where the plan keeps none */
    uint32_t states_least; /* of these, as above */
    /* the step under construction */
    int32_t *ids, *pos, *out, *tables;
    int32_t *state_in, *state_out; /* (most_seqs), (chunk) */
    struct step_seq *step_seq;
    /* of a model that sees: given rows, (chunk, width of plan.given); positions by axis, where rotations have them; spans,
     * where attention does */
    float *given;
    int32_t *axes;
    struct step_span *span;
    struct adapter_mix *lora; /* (most_seqs) */
    struct step_pick *pick;   /* (most_outs) */
    uint32_t seqs;            /* sequences that exist */
    double began;             /* when the device was given the last step */
    /* Whether the weights are unchanged since they were loaded: called after a step, before its results are
     * used. */
    int (*intact)(void *arg, struct err *e); /* NULL = yes */
    void *intact_arg;
    void (*watch)(void *arg, const struct step *s); /* gets each step before it runs; NULL = none */
    void *watch_arg;
};

/* How far the prefix tree has followed a sequence. Used by the tree only; reset when the sequence is cut
 * before that. */
struct seq_mark {
    uint32_t tokens, node;
    uint64_t born;
};

/* The state after the first `at` tokens of a sequence. */
struct seq_state {
    uint32_t at;
    int32_t slot;
    bool snapshot; /* for the prefix tree, which gets it with the page of its last token */
};

/* An image in a sequence: of the tokens [first, first + tokens) those with negative ids are its rows, in order. Where
 * positions have axes it takes a grid of them: rows and columns count from the same position, and the text behind it goes
 * on after the longer side. */
struct seq_image {
    uint32_t first, tokens;
    uint32_t cols, rows; /* of the grid */
    const float *data;   /* (rows of the image, width of plan.given); NULL: none of them will be computed */
};

/* A sequence: ids[0..len) have their keys and values in the pages of its tables, except those that no window
 * reaches any more: it has what rows from position `floor` on can see.
 *
 * Where the plan keeps state, it also has the state after all of its tokens, and may have states before that:
 * those are the places that it can be cut back to. A slot that it shares is never overwritten. */
struct seq {
    struct runner *runner;
    int32_t *ids; /* (ctx) */
    uint32_t len, floor;
    struct seq_state state[RUNNER_STATES]; /* (states), ascending; the last one is at `len` */
    uint32_t states;
    int32_t *table[PLAN_GROUPS_MOST]; /* (table_width) each; 0 where there is no page */
    uint32_t gone[PLAN_GROUPS_MOST];  /* how many of the first pages have been released */
    struct adapter_mix lora;          /* set while it is empty: what it holds was computed with these */
    const struct seq_image *image; /* (images), ascending: the caller's, of tokens that it has or will get */
    uint32_t images;
    struct seq_mark mark;
};

/* A sequence's part in a step: n new ids, and for how many of them, counted from the last, the
 * results are wanted. */
struct seq_rows {
    struct seq *seq;
    const int32_t *ids;
    uint32_t n, outs;
    const struct step_pick *pick; /* (outs): the device chooses tokens (runner_can_pick); NULL: it does not */
    /* Where the plan keeps state: */
    uint32_t back;        /* by how many of these rows the sequence can be cut back after the step */
    bool hold;            /* it can still be cut back to where it could be before the step */
    const uint32_t *snap; /* (snaps): positions where a snapshot is wanted, as far as slots are free */
    uint32_t snaps;
};

/* plan and weights must outlive the runner, which sets in the plan where its operations run. */
int runner_open(struct runner **out, struct plan *plan, const struct weights *weights,
                const struct runner_options *o, struct err *e);
void runner_close(struct runner *r);

/* Weights of the CPU that prompts send to a GPU, and what else takes its memory: the weights once more where it repacks
 * them, its KV, and what other models of this process have pinned. */
struct runner_pins {
    uint64_t weights, kv, pinned;
    bool repacked;
    struct memory memory;
};
/* Bytes that may be pinned: those of all these weights where that leaves an eighth of the memory, or none. */
uint64_t runner_pin_most(const struct runner_pins *p);

/* Bytes of `pages` pages of KV; 0: of the pages for all sequences. */
uint64_t runner_kv_bytes(const struct plan *plan, const struct runner_options *o, uint32_t pages);
/* Pages for one full sequence: the minimum, unless the options set fewer. */
uint32_t runner_pages_least(const struct runner_options *o);
/* Tokens that there are pages for by default, in layers with this window; 0: in layers without one. */
uint64_t runner_kv_tokens(uint32_t window, uint32_t ctx, uint32_t seqs);
/* Bytes of one slot of state; 0 where the plan keeps none. */
uint64_t runner_state_bytes(const struct plan *plan);
/* How many pages of a group one sequence can hold at once. */
uint32_t runner_held_most(const struct runner *r, uint32_t group);

/* Numbers of pages, by group, and of slots of state. */
struct page_need {
    uint32_t of[PLAN_GROUPS_MOST], states;
};
/* Backs the needed number of free pages with memory, as far as there is some. */
void runner_grow(struct runner *r, const struct page_need *need);
/* Slots of state that are free, or could have memory now. */
uint32_t runner_states_free(const struct runner *r);
/* A free one, with memory; 0: there is none. */
int32_t runner_take_state(struct runner *r);
/* Returns the memory behind the last page in use. */
void runner_shrink(struct runner *r);
/* Bytes of KV memory that pages hold now, at most. */
uint64_t runner_held_bytes(const struct runner *r);

struct seq *seq_open(struct runner *r, struct err *e);
void seq_close(struct seq *s);
/* Drops everything from position `len` on; all of it where that is before the floor. Where the plan keeps state,
 * everything after the last state that it has up to `len`. */
void seq_truncate(struct seq *s, uint32_t len);
/* Releases the pages that no row from position `floor` on can see. A step does this itself. */
void seq_slide(struct seq *s, uint32_t floor);
/* The same with the floor that the next step will have. */
void seq_leave_behind(struct seq *s);

/* The state after all tokens becomes a snapshot for the prefix tree. */
void seq_want_snapshot(struct seq *s);
/* The prefix tree has snapshot i: the sequence drops it, unless it is the state after all tokens. Whether it did. */
bool seq_release_snapshot(struct seq *s, uint32_t i);
/* The sequence shares this slot, which holds its state at a position up to `len`. */
void seq_set_state(struct seq *s, uint32_t at, int32_t slot);

/* How many pages of each group n more tokens would take. */
uint32_t seq_need(const struct seq *s, uint32_t n);
/* How many slots of state a part would take, without its snapshots. */
uint32_t seq_need_states(const struct seq_rows *part);

/* How many of the n tokens `ids` that come next one step may have, at most `most`: where the tokens of an image see each
 * other, it has all of a run of them or none. 0: the next run is longer. */
uint32_t seq_whole(const struct seq *s, const int32_t *ids, uint32_t n, uint32_t most);
/* The length of the run of image tokens at the start of `ids`. */
uint32_t seq_run(const struct seq *s, const int32_t *ids, uint32_t n);
/* Runs one step. At most chunk rows in all, one part per sequence. On success the ids belong to their
 * sequences; on an error no sequence has changed, except that a failed device may have spoiled a state: then
 * the sequence is cut back. An asynchronous device (device_ops.ahead) is still
 * computing when this returns: runner_results and runner_picks wait. */
int runner_step(struct runner *r, const struct seq_rows *parts, uint32_t count, struct err *e);
/* (sum of outs, plan.out_width), in the order of the parts; valid until the next step. */
const float *runner_results(struct runner *r, struct err *e);
/* Whether the device chooses tokens itself; then what the last step chose, one for each result. */
bool runner_can_pick(const struct runner *r);
const int32_t *runner_picks(struct runner *r, struct err *e);
/* A whole prompt in chunks: afterwards runner_results has the last row's result. */
int seq_feed(struct seq *s, const int32_t *ids, uint32_t n, struct err *e);
