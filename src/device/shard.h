/* One rank's part of a plan that several ranks run together. Every rank runs all operations, with a part of their weights:
 *
 *   qkv, latent, attn, heads   by heads; KV heads are cut with them, or kept by several ranks where there are fewer
 *   out, ffn, moe              by the columns that the last product reads: a rank has a part of every sum
 *   proj, logits               by the rows of the weights: a rank has some of the results
 *   all others                 whole, on every rank
 *
 * Between operations rows are whole on every rank, or cut by heads until an operation needs them whole. A join is what ranks
 * do together: sums, or the parts of a row put side by side. All ranks have the same joins in the same order.
 *
 * Quantised weights are cut at the borders of their blocks; where there are fewer blocks than ranks some ranks have
 * nothing to do. What has no rule (a norm over a row that is cut, experts that are identities) is whole on every rank. */
#pragma once

#include "device/plan.h"

enum join_kind { JOIN_SUM, JOIN_GATHER };

/* Columns of a row. */
struct shard_range {
    uint32_t first, count;
};

struct join {
    uint32_t at; /* before this operation of the rank's plan */
    enum join_kind kind;
    struct operand row; /* where it is on this rank, and where the result goes */
    uint32_t width;     /* of the result */
    bool absent;        /* this rank has no part in it */
    /* JOIN_GATHER: a rank's part has `pieces` pieces side by side, which belong to these columns of the result; (ranks,
     * pieces) */
    uint32_t pieces;
    const struct shard_range *piece;
};

struct shard {
    struct plan plan;
    struct weights weights;
    struct join *join; /* (joins) in the plan's arena */
    uint32_t joins, join_room;
};

/* p and w must outlive the shard, which the caller frees also after a failure. */
int plan_shard(const struct plan *p, const struct weights *w, uint32_t rank, uint32_t ranks,
               struct shard *out, struct err *e);
void shard_free(struct shard *s);
/* The results of a plan that a rank has. */
struct shard_range shard_results(const struct plan *p, uint32_t rank, uint32_t ranks);
/* Whether ranks have different ones; else each has all. */
bool shard_cuts_results(const struct plan *p, uint32_t ranks);
