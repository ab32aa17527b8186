/* What is sent for each step (sender.h), and where it goes. A stage is consecutive operations with the same weights;
 * a step runs one of them. Its weights go to a room: one of a few that stages use in turn, or one of its own, whose
 * weights stay from step to step. Own rooms take memory that is free, and give it back (struct gpu_spare). */
#pragma once

#include "device/cuda/upload.h"

enum { ROOMS_LEAST = 3, ROOMS_MOST = 8, STAGE_NONE = UINT32_MAX };
#define TURN_NONE   UINT64_MAX
#define ROOMS_BYTES ((uint64_t)1 << 30) /* of all that are used in turn, unless three need more */

struct stage_room {
    cu_ptr at;
    void *ready, *unused; /* events: the weights are there; they have been used */
    uint32_t stage;       /* whose weights it has, or gets; STAGE_NONE */
    uint64_t turn;        /* for which of the sender's turns */
    /* Experts below `have` are here, those below `coming` once the jobs that are taken now are sent. Of a stage that is not
     * divided: 0, or UINT32_MAX. */
    uint32_t have, coming;
    uint32_t left; /* jobs that are not sent yet */
    bool begun;    /* one is: the room was unused by then */
    bool ended;    /* all are, but some of a turn before it are not */
};

struct stage_job {
    struct upload_job job;
    bool divided; /* of experts: those below the border are sent */
};

struct stage {
    uint32_t op;             /* the first one */
    uint32_t first, end;     /* its jobs */
    uint64_t bytes;          /* on the card */
    bool divided;            /* some of its jobs are */
    struct stage_room *room; /* NULL: it has no weights */
    struct stage_room own;
};

struct stages {
    struct gpu *g;
    const struct plan *plan;
    const struct weights *w;
    uint32_t count;
    struct stage *all;      /* (count) */
    uint32_t *of;           /* (plan.count): the stage of an operation */
    struct stage_job *jobs; /* in order of stages */
    struct mat *mat;        /* (weights.count): the places */
    struct stage_room room[ROOMS_MOST];
    uint32_t rooms;
    uint64_t room_bytes;
    cu_ptr own; /* addresses of all own rooms; 0: there are none */
    uint64_t own_bytes;
    uint32_t
        *order; /* (count): stages in the order in which they get rooms of their own, which spreads them */
    uint32_t owners; /* the first of `order`: those with weights have one */
    uint64_t kept;   /* bytes of these rooms */
};

/* Bytes that the rooms for this plan take that are used in turn. */
uint64_t stages_bytes(const struct plan *p, const struct weights *w);
/* keeps: stages may get rooms of their own. */
int stages_open(struct stages *s, struct gpu *g, const struct plan *p, const struct weights *w, bool keeps,
                struct err *e);
void stages_close(struct stages *s);
/* No room is for any turn; what is in them stays. Nothing may be on its way to a room, here and below. */
void stages_begin_again(struct stages *s);
/* Gives stages rooms of their own as long as these take at most `most` bytes, and there is memory. The
 * places of all weights may be others afterwards, here and below. */
void stages_keep(struct stages *s, uint64_t most);
/* Takes own rooms back that have at least `bytes` together. The card has used them. */
void stages_give(struct stages *s, uint64_t bytes);
/* Bytes of the next room that stages_keep would give; 0: there is none. */
uint64_t stages_next(const struct stages *s);
