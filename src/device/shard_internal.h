/* What the rules of shard.c are made of: cuts, parts of weights, joins, rows that are cut. */
#pragma once

#include "device/shard.h"

/* A row, or a part of one, that is cut by heads: rank r has heads [head[r], head[r + 1]) of `each` columns side by side
 * from the operand on. */
struct by_heads {
    struct operand at;
    uint32_t each;
    const uint32_t *head; /* (ranks + 1) */
};

enum { CUT_ROWS_MOST = 16, SCRATCH_MOST = 16 };

struct sharder {
    const struct plan *from;
    const struct weights *source;
    struct shard *to;
    uint32_t rank, ranks;
    weight_id *number; /* (source.count): of whole weights in the shard; 0 = not there yet */
    bool cut_group[PLAN_GROUPS_MOST];
    struct by_heads row[CUT_ROWS_MOST]; /* rows that are cut now */
    uint32_t rows;
    struct operand scratch[SCRATCH_MOST]; /* rows that wait for a join, one of each width */
    uint32_t scratches;
    uint32_t slots; /* of adapters, so far */
    bool failed;
};

/* Matrices, rows and columns of a weight; a count of 0: all. */
struct weight_part {
    struct shard_range count, rows, cols;
};

/* Cuts n things, in units, into a part for each rank: the first ones may have a unit more. (ranks + 1) */
uint32_t *shard_cut(struct sharder *s, uint32_t n, uint32_t unit);
/* KV heads of a rank. Where there are fewer than ranks, neighbours have the same one. */
struct shard_range shard_kv(const struct sharder *s, uint32_t kv_heads, uint32_t rank);
/* The heads that go with them. */
uint32_t *shard_cut_heads(struct sharder *s, uint32_t heads, uint32_t kv_heads);
/* A part of a weight as a weight of its own; 0 of 0. */
weight_id take_part(struct sharder *s, weight_id id, struct weight_part p);
void take_whole(void *arg, weight_id *id);
void take_id(struct sharder *s, weight_id *id);
void take_norm(struct sharder *s, struct norm *n);
/* Of a norm over equal slices of a row of `width`: those of `heads`. */
void take_norm_heads(struct sharder *s, struct norm *n, uint32_t width, struct shard_range heads);
void take_slot(void *arg, weight_id weight, uint32_t *slot);
void count_slot(void *arg, weight_id weight, uint32_t *slot);
void take_linear(struct sharder *s, struct linear *l);
/* Some of a product's results. */
void take_rows(struct sharder *s, struct linear *l, struct shard_range rows);
/* A part of all of its sums; rank 0 adds the bias. */
void take_cols(struct sharder *s, struct linear *l, struct shard_range cols);
/* Some of its matrices, and of its adapters'. */
weight_id take_count(struct sharder *s, weight_id id, uint32_t *slot, struct shard_range count);
/* The least number that both divide. */
uint32_t multiple(uint32_t a, uint32_t b);
/* Columns of a product that stay together: a block of the weight, and of what adapters read them with. */
uint32_t unit_cols(const struct sharder *s, const struct linear *l);
/* This rank's part of a cut, times `each`. */
struct shard_range shard_mine(const struct sharder *s, const uint32_t *cut, uint32_t each);
struct op *add_op(struct sharder *s, const struct op *like);
struct join *add_join(struct sharder *s, enum join_kind kind, struct operand row, uint32_t width);
/* Joins the parts of `pieces` ranges of columns: range i begins at column first[i], and is cut[i] times each[i]. */
void add_gather(struct sharder *s, struct operand row, uint32_t width, uint32_t pieces,
                const uint32_t *const *cut, const uint32_t *first, const uint32_t *each);
/* The row that is cut and begins here; NULL: there is none. */
struct by_heads *cut_row(struct sharder *s, struct operand at);
/* All rows of this buffer are whole from here on. */
void need_whole(struct sharder *s, struct operand at);
/* An operation will write `width` columns: what was cut there is gone, or is joined where a part of it stays. */
void will_write(struct sharder *s, struct operand at, uint32_t width);
void is_cut(struct sharder *s, struct operand at, uint32_t each, const uint32_t *head);
void need_inputs(struct sharder *s, const struct op *op);
/* A row of this width that waits for a join. */
struct operand scratch_row(struct sharder *s, uint32_t width);
/* Whether this rank has none of it. */
bool shard_empty(const struct sharder *s, const uint32_t *cut);
