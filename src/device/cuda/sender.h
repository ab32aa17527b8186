/* Weights that stay in host memory. A stage's (stages.h) are sent to the card when it runs: the card reads them from the
 * file's memory where that is pinned (pinned.h), else threads copy them into pinned slots. A stream of its own sends them,
 * another repacks them, and some stages ahead of the one that computes they wait in their room. The stages of a plan are
 * run in order, again and again.
 *
 * Stages that have rooms of their own are sent once. That memory is a cache: it is what nothing else needs, and any
 * thread of the process that needs it takes it (gpu_make_room); then these stages use the rooms of the others.
 *
 * Of experts that are divided (op_moe.side) those below the border are sent, to the places that they have among all. The
 * border may be another in every step. Stages whose weights are here already have those below the border of then: where
 * it has risen, what they lack is sent, too. */
#pragma once

#include "device/cuda/stages.h"

struct sender;

/* Bytes that the rooms and slots for this plan take on the card. */
uint64_t sender_bytes(const struct plan *p, const struct weights *w, int threads);
/* Places every weight in its room (mat: (weights.count)), and starts the threads. */
int sender_open(struct sender **out, struct gpu *g, const struct plan *p, const struct weights *w,
                const struct device_options *o, struct err *e);
void sender_close(struct sender *s);
const struct mat *sender_mats(const struct sender *s);
/* Bytes of host memory that are pinned by and by, beside the slots. */
uint64_t sender_pinned(const struct sender *s);
/* Bytes of the card that stages have for themselves now, and more of them where there is memory again. Between steps. */
uint64_t sender_kept(const struct sender *s);
void sender_fill(struct sender *s);
/* Around putting a step on the stream. true: forget all lists first, as weights have other places. */
bool sender_hold(struct sender *s);
void sender_release(struct sender *s);
/* What steps took so far because of experts that are divided, in seconds: weights were on the link, and were waited for. And
 * all bytes that were sent. */
struct sender_times {
    double link, waited;
    uint64_t bytes;
};
struct sender_times sender_times(struct sender *s);
/* Before the operations of a step: where its border is. */
void sender_border(struct sender *s, uint32_t border);
/* Before operation `op` is launched: its weights are there when the card comes to it. After: their room can be used
 * again. */
int sender_begin(struct sender *s, uint32_t op, struct err *e);
int sender_end(struct sender *s, uint32_t op, struct err *e);
