/* The interface between models and devices, lower half: a device runs plans. One device object serves one
 * model: it holds that model's weights in its own layout (the CPU uses the mapped file), its KV pages and its
 * scratch. Used by one thread only. All memory is taken in load and prepare of struct device_ops: run
 * allocates nothing. */
#pragma once

#include "base/err.h"
#include "device/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct pool;

/* options.copies: as many as fit into what is free; they make way for everything else (device/cuda/copies.h, stages.h). */
#define COPIES_AUTO UINT64_MAX

struct device_options {
    int threads;        /* CPU: 0 = all cores that may be used */
    bool pin;           /* CPU: every thread stays on one core */
    int index;          /* CUDA: which card */
    int activations;    /* CPU: bits of an activation in integer products, 8 or 16; 0 = by the model's size */
    bool deterministic; /* CPU: a row's result is bit-identical whatever rows are beside it */
    bool no_repack;     /* CPU: use the file's layout; never repack */
    bool exact;         /* float activations and F32 KV: the oracle's arithmetic */
    const char *tier;   /* CPU: most this kernel tier (kernels_tier names them); NULL = the best */
    uint64_t memory;    /* CUDA: bytes it may use; 0 = what is free */
    bool fp8;           /* CUDA: products of many rows in fp8 (e4m3): faster, and less exact */
    bool no_parity;     /* CUDA: skip the parity gate */
    /* CUDA: bytes for decoded copies of weights (fp16), for many rows; 0 = none. With `streamed`: for weights that stay. */
    uint64_t copies;
    /* CUDA: weights stay in host memory; each operation's are sent to the card when it runs. */
    bool streamed;
    uint64_t pin_most; /* at most this many bytes of them are pinned there; 0 = none */
};

/* How KV is stored. Page 0 of every group is trash: padded rows write there, and it is never read. */
struct kv_config {
    uint32_t type;        /* enum dtype: F16, F32, BF16, Q8_0, F8_E4M3 (CUDA) */
    uint32_t page_tokens; /* 16 or 32 */
    uint32_t pages[PLAN_GROUPS_MOST];
    uint32_t least[PLAN_GROUPS_MOST]; /* of these, the first ones that have memory from the start; 0 = all */
    uint32_t states;                  /* slots of state, with slot 0; 0 where the plan keeps none */
    uint32_t states_least;            /* of these, as above */
};

/* The slots of state, where `back` names a group. */
enum { GROUP_STATES = PLAN_GROUPS_MOST };

struct step_seq {
    uint32_t first, rows; /* its rows in the batch, contiguous and in order of position */
    uint32_t length;      /* tokens in KV once this step is done */
};

enum { ADAPTERS_MIXED = 4 };

/* The adapters of a sequence: `count` of them, each times its scale. What is unused is zero. */
struct adapter_mix {
    uint32_t count;
    uint32_t id[ADAPTERS_MIXED]; /* 1.. of the plan's */
    float scale[ADAPTERS_MIXED];
};

enum { PICK_SEEN_MOST = 256 };

/* How often a token occurs in what the penalties look at. */
struct pick_seen {
    int32_t id;
    uint32_t count;
};

/* How the device chooses the token of a result itself, so that only ids leave it. Links and order are those of
 * run/sampler.h: penalties, top-k, top-p, min-p, temperature, draw by the noise of (seed, position, token). */
struct step_pick {
    bool on;            /* false: the numbers of this result are wanted on the host */
    double temperature; /* 0: the best */
    uint32_t top_k;     /* 0 = off */
    double top_p;       /* 1 = off */
    float min_p;        /* 0 = off */
    double repeat, presence, frequency;
    struct pick_seen *seen; /* (seen_count), each token once */
    uint32_t seen_count;    /* at most PICK_SEEN_MOST */
    uint64_t seed, position;
};

/* One step: a flat batch of rows from any number of sequences. Everything is host memory that the
 * device copies before run returns. */
/* The types of an encoder's tokens (op_embed.types): the second text of a pair has type 1. */
enum { STEP_TYPE = 27 };
static inline uint32_t step_token(int32_t id)
{
    return (uint32_t)id & ((1u << STEP_TYPE) - 1);
}
static inline uint32_t step_type(int32_t id)
{
    return (uint32_t)id >> STEP_TYPE;
}

/* Keys [from, to) of a row's sequence; to 0: none. */
struct step_span {
    uint32_t from, to;
};

struct step {
    uint32_t rows, seqs, outs;
    const int32_t *ids; /* (rows): tokens; for an encoder with the text's type from bit STEP_TYPE on */
    const int32_t *pos; /* (rows) */
    /* (rows, PLAN_AXES): the positions that rotations with axes use (time, height, width); NULL: pos for each axis. */
    const int32_t *axes;
    /* (rows): for attention with spans (op_attn.span), ascending within a sequence; rows that a span joins are in one
     * step. NULL: no row has one. */
    const struct step_span *span;
    const struct step_seq *seq; /* (seqs) */
    /* Position p of sequence s in group g lies in page tables[(g*seqs + s)*table_width + p/page_tokens],
     * slot p % page_tokens. Pages wholly before a window may be 0. */
    const int32_t *tables;
    uint32_t table_width;
    /* A slot holds the state of one sequence at one position (plan.state). Of each sequence the slot before its first row,
     * (seqs), 0 = the empty state; of each row the slot that gets the state after it, (rows), 0 = none. Both may be the
     * same slot; a slot that one sequence reads no other writes. NULL where the plan keeps no state. */
    const int32_t *state_in, *state_out;
    const int32_t *out;             /* (outs): rows whose result is wanted, ascending */
    const struct adapter_mix *lora; /* (seqs), or NULL: no sequence has an adapter */
    const struct step_pick *pick; /* (outs) for a device that has `picks`; NULL: all numbers go to the host */
    /* Operations [from, to) of the plan alone, for a device that shares a plan with another; to 0: all of them. */
    uint32_t from, to;
    uint32_t border; /* of experts that two devices divide (op_moe.side) */
};

struct device_memory {
    uint64_t weights, scratch, total;
    uint64_t free;     /* with what copies would give back */
    uint64_t kv;       /* memory that KV holds now; as a need: with all pages */
    uint64_t kv_least; /* as a need: with those that have memory from the start */
    uint64_t on_card;  /* what cards hold now of weights, KV and scratch */
};

/* What a device is prepared for: KV, and the most rows, sequences and results of a step. */
struct device_shape {
    const struct kv_config *kv;
    uint32_t rows, seqs, outs;
};

/* What a kernel took in the steps that were profiled. */
struct device_kernel {
    const char *name;
    uint64_t calls;
    double seconds;
};
void device_sort_kernels(struct device_kernel *all, uint32_t n); /* the longest first */

/* Ranks whose cards sum rows among themselves. */
enum { MEETING_ID = 128 };
struct device_meeting {
    uint8_t id[MEETING_ID]; /* from the first rank */
    uint32_t rank, ranks;
};

struct device;

struct device_ops {
    const char *name; /* "cpu", "cuda", "cuda+cpu"; of ranks "cpu x 2" */
    bool ahead;       /* run returns before the step is done: results and picks wait for it */
    bool adapts;      /* pairs of the plan's adapters may change between steps, within plan.rank */
    /* NULL where this device can run the operation, else why not (its plan may have none of these); absent: it runs
     * all. */
    const char *(*refuses)(const struct op *op);
    /* Takes the weights (upload, repack). `weights` and its bytes must outlive the device. progress may be NULL. */
    int (*load)(struct device *d, const struct weights *w, void (*progress)(void *, double), void *arg,
                struct err *e);
    /* What load and prepare would take for these (weights, kv, scratch), and what there is (total, free).
     * Allocates nothing; call it before load. */
    int (*need)(struct device *d, const struct plan *p, const struct weights *w, const struct device_shape *s,
                struct device_memory *m, struct err *e);
    /* Allocates scratch and KV for plans of this shape, and the most rows, sequences and results of a
     * step. */
    int (*prepare)(struct device *d, const struct plan *p, const struct kv_config *kv, uint32_t max_rows,
                   uint32_t max_seqs, uint32_t max_outs, struct err *e);
    int (*run)(struct device *d, const struct plan *p, const struct step *s, struct err *e);
    /* The results of the last run: (outs, plan.out_width) floats on the host, valid until the next run. */
    const float *(*results)(struct device *d, struct err *e);
    /* Of the last run with step.pick: (outs) tokens, -1 where the numbers were not finite; undefined where
     * `on` was false. `results` then has the numbers of those rows alone. NULL: this device chooses no
     * tokens. */
    const int32_t *(*picks)(struct device *d, struct err *e);
    /* The first rows of a buffer of the plan, (rows, width) floats, to and from host memory: what passes from one
     * device of a split to the other. */
    int (*read_rows)(struct device *d, uint32_t buffer, uint32_t rows, float *host, struct err *e);
    int (*write_rows)(struct device *d, uint32_t buffer, uint32_t rows, const float *host, struct err *e);
    /* Copies rows from a device of the same kind and card that has the same buffers, after all that it was given to run. */
    int (*take_rows)(struct device *d, uint32_t buffer, uint32_t rows, struct device *from, struct err *e);
    /* Where this device's buffers are host memory: a buffer, and all of them with their size. Others are NULL. */
    float *(*host_rows)(struct device *d, uint32_t buffer);
    void *(*host_memory)(struct device *d, size_t *bytes);
    /* Meets the devices of other ranks, which call it at the same time (the first one has an identity from
     * cuda_meeting_id); from then on sum_rows sums the first rows of a buffer over all of them, without the host. NULL:
     * rows are summed on the host. */
    int (*meet)(struct device *d, const struct device_meeting *m, struct err *e);
    int (*sum_rows)(struct device *d, uint32_t buffer, uint32_t rows, struct err *e);
    /* Pins host memory: rows are copied to and from it directly. A hint, until close or the next call (NULL: none). */
    void (*pin)(struct device *d, void *memory, size_t bytes);
    /* Gives the first `pages` pages of a group memory (kv_config.least had it from the start), and takes it from the others,
     * which lose what they held; of GROUP_STATES the first slots. Between steps. ERR_RESOURCE: there is none left, and
     * nothing has changed. */
    int (*back)(struct device *d, uint32_t group, uint32_t pages, struct err *e);
    /* What that takes, at most. */
    uint64_t (*back_bytes)(const struct device *d, uint32_t group, uint32_t pages);
    /* Copies whole pages of a group, all its layers: from[i] -> to[i]. */
    int (*copy_pages)(struct device *d, uint32_t group, const int32_t *from, const int32_t *to, uint32_t n,
                      struct err *e);
    /* One page of one group to and from host memory (page_bytes long): for the cache on disk and for preemption. */
    size_t (*page_bytes)(const struct device *d, uint32_t group);
    int (*read_page)(struct device *d, uint32_t group, int32_t page, void *host, struct err *e);
    int (*write_page)(struct device *d, uint32_t group, int32_t page, const void *host, struct err *e);
    /* One slot of state to and from host memory (state_bytes long). */
    size_t (*state_bytes)(const struct device *d);
    int (*read_state)(struct device *d, int32_t slot, void *host, struct err *e);
    int (*write_state)(struct device *d, int32_t slot, const void *host, struct err *e);
    void (*memory)(const struct device *d, struct device_memory *m);
    /* Between steps, while there is nothing else to do: some milliseconds of work that a later step would begin with. false:
     * none is left. NULL: there is never any. */
    bool (*warm)(struct device *d);
    /* What is on which device, for printing: "cuda:0 NVIDIA H200, weights 4.9 GB, ..."; one line a device. */
    void (*describe)(const struct device *d, struct buf *out);
    /* Where the time of profiled steps (seconds below) went since the last call, kernel by kernel, the
     * longest first; how many. NULL: this device does not measure it. */
    uint32_t (*take_kernels)(struct device *d, struct device_kernel *out, uint32_t most);
    void (*close)(struct device *d);
};

struct device {
    const struct device_ops *ops;
    /* bytes of the CPU's weights with which steps have computed on a card so far, and those that were sent for that: the
     * card may have some from before */
    uint64_t streamed, sent;
    /* Of steps so far whose experts are divided with another device: seconds that weights took on the link, and that steps
     * waited for them. */
    double link, waited;
    /* While not NULL, run adds the seconds of operation step.from + i to seconds[i]; ranks add those of the whole step to
     * seconds[0]. */
    double *seconds;
    /* While not NULL, called once for each product with its input, (rows, cols) floats: which weight, and which of its
     * matrices. By many threads, but never two for the same matrix. Only the CPU, and only with `exact`. */
    void (*watch)(void *arg, weight_id weight, uint32_t matrix, const float *x, size_t stride, uint32_t rows);
    void *watch_arg;
};

/* Whether all of the model is on cards, or nothing is. */
bool device_is_cuda(const struct device *d);
bool device_is_cpu(const struct device *d);
/* Whether several ranks run the model (device/team.h). */
bool device_is_ranks(const struct device *d);
/* For run: every adapter that a sequence asks for is one of the plan's. */
int device_check_lora(const struct plan *p, const struct step *s, struct err *e);
/* For run: every slot that the step names is one of `states`. */
int device_check_states(const struct plan *p, const struct step *s, uint32_t states, struct err *e);
/* For run: tokens, their types and their positions are rows of the tables that the plan embeds. */
int device_check_ids(const struct plan *p, const struct weights *w, const struct step *s, struct err *e);
/* For run: folded operations have rows that fit, and spans lie within their sequences, in order. */
int device_check_rows(const struct plan *p, const struct step *s, uint32_t max_rows, struct err *e);
/* spec: "cpu", "cuda", "cuda:N". */
int device_open(struct device **out, const char *spec, const struct device_options *o, struct err *e);
int cpu_open(struct device **out, const struct device_options *o, struct err *e);
int cuda_open(struct device **out, const struct device_options *o, struct err *e);

/* ---- what other layers ask a kind of device, without opening one ---- */

/* The best kernel tier of this CPU up to `most` (NULL = no limit); "" where there is none. */
const char *cpu_tier(const char *most);
/* Whether a model is so small that rounding its activations to 8 bits, or to bf16 for weights of 16 bits, upsets it. */
bool cpu_small(const struct weights *w);
/* Kernels for the sampler: the largest of x; and x = exp(x - max) in place, which returns the sum. */
float cpu_max(const float *x, uint32_t n);
float cpu_exp_sum(float *x, uint32_t n, float max);
/* How many cards there are; -1 and the reason where there is no driver. */
int cuda_count(struct err *e);
/* An identity for a meeting of cards; false: this machine has nothing that sums over cards (NCCL). */
bool cuda_meeting_id(uint8_t id[MEETING_ID]);
/* Bytes of a card's memory; 0: there is no such card. */
uint64_t cuda_memory_total(int index);
/* Whether the GPU has kernels for this type of weights; others it decodes to F16 at load. */
bool cuda_has_type(uint32_t dtype);
/* The size, at least dim, of heads that attention of many rows is fastest with: padding smaller ones with zeros pays. */
uint32_t cuda_head_dim(uint32_t dim);
/* For which step cuda_explain lists launches. */
struct cuda_explain {
    const char *profile; /* of a stored device profile ("H200"); NULL: the card at hand, else that one */
    uint32_t rows,
        keys; /* rows: sequences that decode, or with `prompt` tokens of one; keys: in KV once it is done */
    bool prompt;
    bool exact;
};
/* The launches that a card runs the plan with, operation by operation, with the reason for each. Needs no card. */
int cuda_explain(const struct plan *p, const struct weights *w, const struct cuda_explain *how,
                 struct buf *out, struct err *e);
/* For describe: the name, what of the plan is there, and what it takes. */
void device_say(const struct device *d, const char *name, const struct plan *p, struct buf *out);
