/* Parts of weights, joins between ranks, and which rows are cut: what the rules of shard.c are made of. */
#include "device/shard_internal.h"

#include "base/mem.h"
#include "codec/dtype.h"

#include <string.h>

/* ---- cuts ---- */

/* Cuts n things, in units, into a part for each rank: the first ones may have a unit more. */
uint32_t *shard_cut(struct sharder *s, uint32_t n, uint32_t unit)
{
    uint32_t *cut = arena_alloc(&s->to->plan.arena, s->ranks + 1, sizeof *cut);
    uint32_t units = n / unit;
    s->failed |= !cut;
    for (uint32_t r = 0; cut && r < s->ranks; r++) /* what is no unit of its own goes to rank 0 */
        cut[r + 1] = cut[r] + (r ? 0 : n % unit) + (units / s->ranks + (r < units % s->ranks)) * unit;
    return cut;
}

/* KV heads of a rank. Where there are fewer than ranks, neighbours have the same one. */
struct shard_range shard_kv(const struct sharder *s, uint32_t kv_heads, uint32_t rank)
{
    uint32_t each = kv_heads / s->ranks, more = kv_heads % s->ranks;
    if (kv_heads < s->ranks)
        return (struct shard_range){(uint32_t)((uint64_t)rank * kv_heads / s->ranks), 1};
    return (struct shard_range){rank * each + (rank < more ? rank : more), each + (rank < more)};
}

/* The heads that go with them. */
uint32_t *shard_cut_heads(struct sharder *s, uint32_t heads, uint32_t kv_heads)
{
    uint32_t *cut = arena_alloc(&s->to->plan.arena, s->ranks + 1, sizeof *cut), each = heads / kv_heads;
    s->failed |= !cut;
    for (uint32_t r = 0; cut && r < s->ranks; r++) {
        struct shard_range kv = shard_kv(s, kv_heads, r);
        uint32_t same = 1, before = 0;
        for (uint32_t k = 0; kv_heads < s->ranks && k < s->ranks; k++) {
            same += k != r && shard_kv(s, kv_heads, k).first == kv.first;
            before += k < r && shard_kv(s, kv_heads, k).first == kv.first;
        }
        uint32_t all = kv.count * each, more = before + 1 < all % same ? before + 1 : all % same;
        cut[r + 1] = kv.first * each + all / same * (before + 1) + more;
    }
    return cut;
}

bool shard_empty(const struct sharder *s, const uint32_t *cut)
{
    return cut[s->rank] == cut[s->rank + 1];
}

/* ---- weights ---- */

static uint32_t block_of(const struct sharder *s, weight_id id)
{
    const struct dtype_info *t = dtype_get(s->source->all[id].type);
    return t ? t->block_values : 1;
}

void take_whole(void *arg, weight_id *id)
{
    struct sharder *s = arg;
    if (!s->number[*id])
        s->number[*id] = weights_add(&s->to->weights, &s->source->all[*id]);
    *id = s->number[*id];
    s->failed |= !*id;
}

weight_id take_part(struct sharder *s, weight_id id, struct weight_part p)
{
    if (!id)
        return 0;
    struct weight w = s->source->all[id];
    size_t skip = 0;
    if (p.cols.count && p.cols.first)
        s->failed |= !dtype_row_bytes(w.type, p.cols.first, &skip);
    w.data += p.count.first * w.each_bytes + p.rows.first * w.row_bytes + skip;
    w.count = p.count.count ? p.count.count : w.count;
    w.rows = p.rows.count ? p.rows.count : w.rows;
    w.cols = p.cols.count ? p.cols.count : w.cols;
    const struct weight *all = &s->source->all[id];
    if (w.count == all->count && w.rows == all->rows && w.cols == all->cols) {
        take_whole(s, &id); /* another operation may have it, too */
        return id;
    }
    weight_id own = weights_add(&s->to->weights, &w);
    s->failed |= !own;
    return own;
}

void take_id(struct sharder *s, weight_id *id)
{
    if (*id)
        take_whole(s, id);
}

void take_norm(struct sharder *s, struct norm *n)
{
    take_id(s, &n->weight);
    take_id(s, &n->bias);
}

/* Of a norm over equal slices of a row of `width`: those of `heads`. Its weight is one for all, or has a part for each. */
void take_norm_heads(struct sharder *s, struct norm *n, uint32_t width, struct shard_range heads)
{
    weight_id *const both[] = {&n->weight, &n->bias};
    uint32_t slice = n->heads ? width / n->heads : width;
    for (int i = 0; i < 2; i++)
        if (*both[i] && n->heads > 1 && s->source->all[*both[i]].cols == width)
            *both[i] = take_part(s, *both[i],
                                 (struct weight_part){.cols = {heads.first * slice, heads.count * slice}});
        else
            take_id(s, both[i]);
    n->heads = n->heads ? heads.count : 0;
}

/* ---- adapters ---- */

/* Pairs of a product of which this is a part, in a slot of their own. With `rest` also the row of B that is added whatever
 * the input is. */
static uint32_t take_pairs(struct sharder *s, uint32_t slot, struct weight_part a, struct weight_part b,
                           bool rest)
{
    struct plan *p = &s->to->plan;
    if (!slot || !p->lora)
        return 0;
    uint32_t own = ++s->slots;
    for (uint32_t i = 1; i <= p->adapters; i++) {
        const struct lora_pair *pair = plan_lora(s->from, slot, i);
        struct weight_part low = b;
        if (!pair)
            continue;
        if (!rest && s->source->all[pair->b].rows > s->source->all[pair->a].rows)
            low.rows = (struct shard_range){0, s->source->all[pair->a].rows};
        p->lora[(size_t)own * (p->adapters + 1) + i] =
            (struct lora_pair){take_part(s, pair->a, a), take_part(s, pair->b, low), pair->scale};
    }
    return own;
}

void take_slot(void *arg, weight_id weight, uint32_t *slot)
{
    (void)weight;
    *slot = take_pairs(arg, *slot, (struct weight_part){0}, (struct weight_part){0}, true);
}

void count_slot(void *arg, weight_id weight, uint32_t *slot)
{
    (void)weight;
    *(uint32_t *)arg += *slot != 0;
}

/* ---- products ---- */

void take_linear(struct sharder *s, struct linear *l)
{
    take_id(s, &l->weight);
    take_id(s, &l->bias);
    l->adapter = take_pairs(s, l->adapter, (struct weight_part){0}, (struct weight_part){0}, true);
}

/* Some of its results. */
void take_rows(struct sharder *s, struct linear *l, struct shard_range rows)
{
    if (!l->weight)
        return;
    l->weight = take_part(s, l->weight, (struct weight_part){.rows = rows});
    l->bias = take_part(s, l->bias, (struct weight_part){.cols = rows});
    l->adapter = take_pairs(s, l->adapter, (struct weight_part){0}, (struct weight_part){.cols = rows}, true);
}

/* Its part of every sum; rank 0 adds the bias. */
void take_cols(struct sharder *s, struct linear *l, struct shard_range cols)
{
    l->weight = take_part(s, l->weight, (struct weight_part){.cols = cols});
    if (s->rank)
        l->bias = 0;
    take_id(s, &l->bias);
    l->adapter =
        take_pairs(s, l->adapter, (struct weight_part){.cols = cols}, (struct weight_part){0}, !s->rank);
}

weight_id take_count(struct sharder *s, weight_id id, uint32_t *slot, struct shard_range count)
{
    *slot = take_pairs(s, *slot, (struct weight_part){.count = count}, (struct weight_part){.count = count},
                       true);
    return take_part(s, id, (struct weight_part){.count = count});
}

uint32_t multiple(uint32_t a, uint32_t b)
{
    uint32_t x = a, y = b;
    while (y) {
        uint32_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

/* Columns of a product that stay together: a block of the weight, and of what adapters read them with. */
uint32_t unit_cols(const struct sharder *s, const struct linear *l)
{
    uint32_t unit = block_of(s, l->weight);
    for (uint32_t i = 1; l->adapter && i <= s->from->adapters; i++) {
        const struct lora_pair *pair = plan_lora(s->from, l->adapter, i);
        unit = pair ? multiple(unit, block_of(s, pair->a)) : unit;
    }
    return unit;
}

struct shard_range shard_mine(const struct sharder *s, const uint32_t *cut, uint32_t each)
{
    return (struct shard_range){cut[s->rank] * each, (cut[s->rank + 1] - cut[s->rank]) * each};
}

/* ---- operations and joins ---- */

struct op *add_op(struct sharder *s, const struct op *like)
{
    struct op *op = plan_add(&s->to->plan, like->kind, like->layer);
    *op = *like;
    op->device = 0;
    return op;
}

struct join *add_join(struct sharder *s, enum join_kind kind, struct operand row, uint32_t width)
{
    static _Thread_local struct join lost;
    struct shard *to = s->to;
    if (to->joins == to->join_room) {
        uint32_t room = to->join_room ? 2 * to->join_room : 64;
        struct join *more = arena_alloc(&to->plan.arena, room, sizeof *more);
        if (!more) {
            s->failed = true;
            return &lost;
        }
        if (to->joins)
            memcpy(more, to->join, to->joins * sizeof *more);
        to->join = more;
        to->join_room = room;
    }
    struct join *j = &to->join[to->joins++];
    *j = (struct join){.at = to->plan.count, .kind = kind, .row = row, .width = width};
    return j;
}

/* The parts of `pieces` ranges of columns, cut[i] each, of which range i begins at column first[i] of the result. */
void add_gather(struct sharder *s, struct operand row, uint32_t width, uint32_t pieces,
                const uint32_t *const *cut, const uint32_t *first, const uint32_t *each)
{
    struct shard_range *piece = arena_alloc(&s->to->plan.arena, (size_t)s->ranks * pieces, sizeof *piece);
    uint32_t own = 0;
    if (!piece) {
        s->failed = true;
        return;
    }
    for (uint32_t r = 0; r < s->ranks; r++)
        for (uint32_t i = 0; i < pieces; i++) {
            piece[r * pieces + i] =
                (struct shard_range){first[i] + cut[i][r] * each[i], (cut[i][r + 1] - cut[i][r]) * each[i]};
            own += r == s->rank ? piece[r * pieces + i].count : 0;
        }
    struct join *j = add_join(s, JOIN_GATHER, row, width);
    j->pieces = pieces;
    j->piece = piece;
    j->absent = !own;
}

/* ---- rows that are cut by heads ---- */

struct by_heads *cut_row(struct sharder *s, struct operand at)
{
    for (uint32_t i = 0; i < s->rows; i++)
        if (s->row[i].at.buffer == at.buffer && s->row[i].at.col == at.col)
            return &s->row[i];
    return NULL;
}

static void drop_row(struct sharder *s, uint32_t i)
{
    s->row[i] = s->row[--s->rows];
}

static void join_row(struct sharder *s, uint32_t i)
{
    struct by_heads b = s->row[i];
    const uint32_t first = 0;
    drop_row(s, i);
    add_gather(s, b.at, b.head[s->ranks] * b.each, 1, &b.head, &first, &b.each);
}

/* All rows of this buffer are whole from here on. */
void need_whole(struct sharder *s, struct operand at)
{
    for (uint32_t i = s->rows; at.buffer && i-- > 0;)
        if (s->row[i].at.buffer == at.buffer)
            join_row(s, i);
}

/* An operation will write `width` columns: what was cut there is gone, or is joined where a part of it stays. */
void will_write(struct sharder *s, struct operand at, uint32_t width)
{
    for (uint32_t i = s->rows; i-- > 0;) {
        const struct by_heads *b = &s->row[i];
        uint64_t from = b->at.col, to = from + (uint64_t)b->head[s->ranks] * b->each;
        if (b->at.buffer != at.buffer || at.col >= to || (uint64_t)at.col + width <= from)
            continue;
        if (at.col <= from && (uint64_t)at.col + width >= to)
            drop_row(s, i);
        else
            join_row(s, i);
    }
}

void is_cut(struct sharder *s, struct operand at, uint32_t each, const uint32_t *head)
{
    if (s->rows == CUT_ROWS_MOST)
        join_row(s, 0);
    s->row[s->rows++] = (struct by_heads){at, each, head};
}

void need_inputs(struct sharder *s, const struct op *op)
{
    struct op_io io = plan_io(op);
    for (int i = 0; i < IO_READS; i++)
        need_whole(s, io.read[i]);
}

/* A row of this width that waits for a join. */
struct operand scratch_row(struct sharder *s, uint32_t width)
{
    for (uint32_t i = 0; i < s->scratches; i++)
        if (s->to->plan.width[s->scratch[i].buffer] == width)
            return s->scratch[i];
    struct operand o = plan_buffer(&s->to->plan, width);
    if (s->scratches < SCRATCH_MOST)
        s->scratch[s->scratches++] = o;
    return o;
}
