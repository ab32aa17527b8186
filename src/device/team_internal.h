/* One rank of a team, and what rank 0 tells the others. */
#pragma once

#include "device/shard.h"
#include "device/team.h"

enum order_kind {
    ORDER_END,
    ORDER_PREPARE,
    ORDER_MEET, /* all are prepared */
    ORDER_RUN,
    ORDER_ROWS, /* a: buffer, b: rows */
    ORDER_BACK, /* a: group, b: pages */
    ORDER_COPY, /* a: group, b: pages; from and to of each */
    ORDER_READ_PAGE,
    ORDER_WRITE_PAGE, /* a: group, b: page; the bytes of all ranks */
    ORDER_READ_STATE,
    ORDER_WRITE_STATE, /* b: slot; the bytes of all stages */
};

struct rank_order {
    uint32_t kind, a, b, seconds;
    uint64_t bytes; /* that follow */
};

struct order_prepare {
    struct kv_config kv;
    uint32_t rows, seqs, outs;
};

/* What a rank answers to every order but ORDER_RUN. */
struct answer {
    uint32_t code;
    char text[252];
};

/* And to ORDER_PREPARE. */
struct rank_facts {
    uint64_t page_bytes[PLAN_GROUPS_MOST], state_bytes;
    uint64_t weights, scratch, kv, total, free;
};

struct member {
    struct comm *comm;
    struct comm_group stage_ranks;
    uint32_t tensor, stages, stage;
    const struct plan *plan; /* the whole one */
    const struct weights *weights;
    struct device *device;
    int index; /* of the card */
    /* of ORDER_PREPARE */
    struct plan part; /* of this stage */
    struct weights part_weights;
    struct shard shard;
    uint32_t *in, *out; /* (ins), (outs): buffers that come from the stage before, and go to the next one */
    uint32_t ins, outs;
    struct rank_facts facts;
    struct order_prepare limit; /* what it is prepared for */
    bool prepared;
    float *rows;          /* (limit.rows, the widest row that passes between ranks) */
    float *gather;        /* the same, with the parts of all ranks one after the other */
    float *results;       /* (limit.outs, out_width of the shard), where this is the last stage */
    struct step_seq *seq; /* of a batch of a step: (limit.seqs), */
    int32_t *wanted;      /* (limit.outs), */
    int32_t *tables;      /* (table_room) */
    size_t table_room;
    bool met;      /* the cards of this stage sum rows themselves */
    uint8_t *data; /* (data_room): what came with the last order */
    size_t data_room;
};

int member_open(struct member *m, const struct team_options *o, uint32_t i, struct err *e);
void member_close(struct member *m);
int member_prepare(struct member *m, const struct order_prepare *o, struct err *e);
/* Cards of a stage agree whether they sum rows among themselves. */
int member_meet(struct member *m, struct err *e);
/* All of the plan that is this rank's, with the joins; the results of the last stage are in m->results. */
int member_run(struct member *m, const struct step *s, struct err *e);
bool member_is_last(const struct member *m);

/* Steps are run in batches of rows [from, batch_end). */
uint32_t batch_end(const struct member *m, const struct step *s, uint32_t from);
/* The step of such a batch, in memory of m; *results: how many results there are before it. */
int batch_step(struct member *m, const struct step *s, uint32_t from, uint32_t to, struct step *out,
               uint32_t *results, struct err *e);

/* A step as bytes. */
size_t team_step_bytes(const struct plan *p, const struct step *s);
void team_step_pack(const struct plan *p, const struct step *s, uint8_t *out);
/* False where the bytes are no step, or one that is beyond what was prepared. The step points into them. */
bool team_step_unpack(const struct plan *p, const struct order_prepare *l, const uint8_t *in, size_t n,
                      struct step *s);
/* Refuses tokens, positions and adapters that the plan does not have. */
int team_step_check(const struct plan *p, const struct weights *w, const struct step *s, struct err *e);

/* The loop of a rank other than 0. */
int member_serve(struct member *m, struct err *e);
/* On every rank: the answers of all to rank 0. */
int member_answer(struct member *m, const struct answer *own, struct answer *all, struct err *e);
/* Checks that all ranks have the same program and the same model; fails on every rank where they have not. */
int member_agree(struct member *m, const struct device_options *o, struct err *e);
