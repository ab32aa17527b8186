/* Operations that keep a state: convolutions and recurrences. A worker takes some heads or channels of a sequence and
 * follows them through all of its rows, so the state stays in the cache. Each head and each column of a state is
 * computed row by row, whatever the step: where a prompt is cut changes no bit. */
#include "device/cpu/cpu.h"

#include "base/size.h"

#include <math.h>
#include <string.h>

enum {
    STATE_ROWS = 32,     /* rows that are prepared at once */
    STATE_CHANNELS = 64, /* of a convolution, or of a state by channels, for one worker */
    STATE_COLUMNS = 64   /* of a head's state */
};

/* Some of a state: `rows` rows of `cols` floats, `stride` apart in the slot. */
struct state_part {
    uint32_t number; /* of the plan's */
    size_t offset, stride;
    uint32_t rows, cols;
};

struct state_block {
    float *at;
    size_t stride;
};

/* What a worker does with rows [row, row + n) of the step: it changes s. */
typedef void (*state_rows)(struct lane *l, const void *task, struct state_block s, uint32_t row, uint32_t n);

static struct state_block state_slot(const struct lane *l, const struct state_part *p, int32_t slot)
{
    float *at = l->d->state + (size_t)slot * l->d->state_stride + l->p->state[p->number].at + p->offset;
    return (struct state_block){at, p->stride};
}

static void state_copy(const struct state_part *p, struct state_block from, struct state_block to)
{
    for (uint32_t i = 0; i < p->rows; i++)
        memcpy(to.at + i * to.stride, from.at + i * from.stride, p->cols * sizeof *to.at);
}

/* Takes part of a state through a sequence's rows, in the slot that the next row to keep it names. */
static void state_follow(struct lane *l, const struct state_part *p, uint32_t seq, state_rows run,
                         const void *task)
{
    const struct step_seq *q = &l->s->seq[seq];
    struct state_block at = state_slot(l, p, l->s->state_in[seq]);
    for (uint32_t row = q->first, end = q->first + q->rows, n; row < end; row += n) {
        uint32_t kept = row;
        while (kept < end && !l->s->state_out[kept])
            kept++;
        n = kept < end ? kept + 1 - row : end - row;
        struct state_block to = kept < end ? state_slot(l, p, l->s->state_out[kept])
                                           : (struct state_block){l->local->state, p->cols};
        if (to.at != at.at)
            state_copy(p, at, to);
        at = to;
        for (uint32_t i = 0, some; i < n; i += some) {
            some = n - i < STATE_ROWS ? n - i : STATE_ROWS;
            run(l, task, at, row + i, some);
        }
    }
}

/* ---- convolution ---- */

/* Channels [first, first + channels) of a convolution or of a recurrence of channels. */
struct channel_task {
    const void *o;
    uint32_t first, channels;
};

/* Follows `of` channels, which keep `rows` numbers each, through the rows of their sequences: some for each worker. */
static void channels_run(struct lane *l, const void *o, uint32_t of, uint32_t rows, uint32_t state,
                         state_rows run)
{
    uint32_t from, to, parts = (of + STATE_CHANNELS - 1) / STATE_CHANNELS;
    lane_slice(l, l->s->seqs * parts, 1, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        struct channel_task c = {.o = o, .first = i % parts * STATE_CHANNELS};
        c.channels = of - c.first < STATE_CHANNELS ? of - c.first : STATE_CHANNELS;
        struct state_part p = {.number = state, .offset = c.first, .stride = of};
        p.rows = rows, p.cols = c.channels;
        state_follow(l, &p, i / parts, run, &c);
    }
    lane_wait(l);
}

static void conv_rows(struct lane *l, const void *task, struct state_block s, uint32_t row, uint32_t n)
{
    const struct channel_task *c = task;
    const struct op_conv *o = c->o;
    struct conv_tile t = {.n = n, .channels = c->channels, .cols = o->cols, .act = (int)o->act};
    t.x = lane_at(l, o->in, &t.x_stride) + c->first;
    t.x += row * t.x_stride;
    if (o->mul.buffer) {
        t.mul = lane_at(l, o->mul, &t.mul_stride) + c->first;
        t.mul += row * t.mul_stride;
    }
    t.y = lane_at(l, o->out, &t.y_stride) + c->first;
    t.y += row * t.y_stride;
    t.w = lane_vector(l, o->weight) + (size_t)c->first * o->cols;
    t.bias = o->bias ? lane_vector(l, o->bias) + c->first : NULL;
    t.past = s.at;
    t.past_stride = s.stride;
    l->k->conv(&t);
}

void op_conv_run(struct lane *l, const struct op_conv *o)
{
    channels_run(l, o, o->channels, o->cols - 1, o->state, conv_rows);
}

/* ---- recurrences ---- */

/* Columns [first, first + v_dim) of a head; or, where states are vectors, heads [head, head + channels). */
struct scan_task {
    const struct op_scan *o;
    uint32_t head, first, v_dim, channels;
};

/* A head of q or k of one row, with its norm and scale. */
static void scan_key(const struct lane *l, const struct norm *n, const float *x, uint32_t head, float scale,
                     uint32_t dim, float *y)
{
    memcpy(y, x, dim * sizeof *y);
    lane_norm_head(l, n, y, dim, head);
    for (uint32_t i = 0; scale != 1.0f && i < dim; i++)
        y[i] *= scale;
}

/* What S^T q of a row and head is multiplied by. */
static float scan_share(const struct lane *l, const struct op_scan *o, uint32_t head, uint32_t row)
{
    size_t stride, least_stride;
    const float *size = lane_at(l, o->size, &stride) + head,
                *least = lane_at(l, o->least, &least_stride) + head;
    return 1 / (fmaxf(fabsf(size[row * stride]), least[row * least_stride]) + o->size_eps);
}

/* q and k of n rows, (n, k_dim) each. */
static void scan_keys(const struct lane *l, const struct op_scan *o, uint32_t head, uint32_t row, uint32_t n,
                      float *q, float *k)
{
    size_t q_stride, k_stride;
    uint32_t own = o->tiled ? head % o->k_heads : head / (o->heads / o->k_heads);
    const float *from_q = lane_at(l, o->q, &q_stride) + (size_t)own * o->k_dim;
    const float *from_k =
        lane_at(l, o->k, &k_stride) + (size_t)(o->sharing ? own / o->sharing : own) * o->k_dim;
    for (uint32_t r = 0; r < n; r++) {
        const float scale = o->size.buffer ? o->q_scale * scan_share(l, o, own, row + r) : o->q_scale;
        scan_key(l, &o->q_norm, from_q + (row + r) * q_stride, own, scale, o->k_dim, q + r * o->k_dim);
        scan_key(l, &o->k_norm, from_k + (row + r) * k_stride, own, o->k_scale, o->k_dim, k + r * o->k_dim);
    }
}

/* What n rows erase, (n, k_dim), of length 1. */
static void scan_erased(const struct lane *l, const struct op_scan *o, uint32_t head, uint32_t row,
                        uint32_t n, float *e)
{
    size_t stride;
    const float *from = lane_at(l, o->erase, &stride) + (size_t)head * o->k_dim;
    for (uint32_t r = 0; r < n; r++) {
        const float *x = from + (row + r) * stride;
        const float length = sqrtf(l->k->dot(x, x, o->k_dim)), scale = 1 / fmaxf(length, 1e-12f);
        for (uint32_t i = 0; i < o->k_dim; i++)
            e[(size_t)r * o->k_dim + i] = x[i] * scale;
    }
}

/* What a head's state is multiplied by before n rows, and how strongly they write. */
static void scan_factors(const struct lane *l, const struct op_scan *o, uint32_t head, uint32_t row,
                         uint32_t n, float *decay, float *write)
{
    uint32_t each = o->decay_each ? o->k_dim : 1;
    size_t stride = 0, write_stride = 0;
    const float *x = o->decay.buffer ? lane_at(l, o->decay, &stride) + (size_t)head * each : NULL;
    const float *w = o->write.buffer ? lane_at(l, o->write, &write_stride) + head : NULL;
    struct decay_row d = {.kind = o->decay_kind, .n = each, .a = lane_vector(l, o->a)[head]};
    d.bias = o->bias ? lane_vector(l, o->bias) + (size_t)head * each : NULL;
    d.least = o->dt_range[0], d.most = o->dt_range[1], d.bound = o->bound;
    for (uint32_t r = 0; r < n; r++) {
        d.x = x ? x + (row + r) * stride : NULL;
        d.y = decay + (size_t)r * each;
        float dt = l->k->decay(&d);
        const float strength = w ? w[(row + r) * write_stride] : dt;
        write[r] = w && o->delta ? o->write_scale / (1.0f + expf(-strength)) : strength;
    }
}

static void scan_rows(struct lane *l, const void *task, struct state_block s, uint32_t row, uint32_t n)
{
    const struct scan_task *c = task;
    const struct op_scan *o = c->o;
    float *q = l->local->prepared, *k = q + STATE_ROWS * o->k_dim, *write = k + STATE_ROWS * o->k_dim;
    struct scan_tile t = {.q = q, .k = k, .write = write, .n = n, .k_dim = o->k_dim, .v_dim = c->v_dim};
    float *decay = write + STATE_ROWS;
    scan_keys(l, o, c->head, row, n, q, k);
    scan_factors(l, o, c->head, row, n, decay, write);
    t.decay = decay;
    t.decays = o->decay_each ? o->k_dim : 1;
    for (uint32_t i = 0; o->rest && i < n * o->k_dim; i++)
        k[i] *= 1 - decay[i];
    t.delta = o->delta;
    t.before = o->before;
    if (o->erase.buffer) {
        float *e = decay + (size_t)STATE_ROWS * o->k_dim;
        scan_erased(l, o, c->head, row, n, e);
        t.erase = e;
        t.rate = lane_at(l, o->rate, &t.rate_stride) + (size_t)c->head * o->k_dim;
        t.rate += row * t.rate_stride;
    }
    t.skip = o->skip ? lane_vector(l, o->skip)[c->head] : 0;
    t.v = lane_at(l, o->v, &t.v_stride) + (size_t)(o->sharing ? c->head / o->sharing : c->head) * o->v_dim +
          c->first;
    t.v += row * t.v_stride;
    t.y = lane_at(l, o->out, &t.y_stride) + (size_t)c->head * o->v_dim + c->first;
    t.y += row * t.y_stride;
    t.s = s.at;
    t.s_stride = s.stride;
    l->k->scan(&t);
}

static void scan_channel_rows(struct lane *l, const void *task, struct state_block s, uint32_t row,
                              uint32_t n)
{
    const struct scan_task *c = task;
    const struct op_scan *o = c->o;
    float *q = l->local->prepared, *k = q + STATE_ROWS * o->k_dim, *dt = k + STATE_ROWS * o->k_dim;
    struct scan_channels t = {.q = q, .k = k, .dt = dt, .n = n, .k_dim = o->k_dim, .channels = c->channels};
    size_t stride;
    const float *x = lane_at(l, o->decay, &stride) + c->head;
    scan_keys(l, o, c->head, row, n, q, k);
    for (uint32_t r = 0; r < n; r++) {
        struct decay_row d = {.kind = DECAY_SOFTPLUS, .n = c->channels, .x = x + (row + r) * stride};
        d.bias = o->bias ? lane_vector(l, o->bias) + c->head : NULL;
        d.least = o->dt_range[0], d.most = o->dt_range[1];
        d.dt = dt + (size_t)r * c->channels;
        l->k->decay(&d);
    }
    t.a = lane_vector(l, o->a) + (size_t)c->head * o->k_dim;
    t.skip = o->skip ? lane_vector(l, o->skip) + c->head : NULL;
    t.v = lane_at(l, o->v, &t.v_stride) + c->head;
    t.v += row * t.v_stride;
    t.y = lane_at(l, o->out, &t.y_stride) + c->head;
    t.y += row * t.y_stride;
    t.s = s.at;
    l->k->scan_channels(&t);
}

/* A number of `a` for each row of a state: states are vectors. */
static bool scan_by_channel(const struct weights *w, const struct op_scan *o)
{
    return w->all[o->a].rows > 1;
}

static void scan_channels_run(struct lane *l, const struct op_scan *o)
{
    const uint32_t each = o->heads / o->k_heads, some = (each + STATE_CHANNELS - 1) / STATE_CHANNELS,
                   parts = o->k_heads * some;
    uint32_t from, to;
    lane_slice(l, l->s->seqs * parts, 1, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        const uint32_t first = i % some * STATE_CHANNELS; /* of those of a key head */
        struct scan_task c = {.o = o, .head = i % parts / some * each + first, .v_dim = 1};
        c.channels = each - first < STATE_CHANNELS ? each - first : STATE_CHANNELS;
        struct state_part p = {.number = o->state, .offset = (size_t)c.head * o->k_dim, .stride = o->k_dim};
        p.rows = c.channels, p.cols = o->k_dim;
        state_follow(l, &p, i / parts, scan_channel_rows, &c);
    }
}

static void scan_heads_run(struct lane *l, const struct op_scan *o)
{
    uint32_t from, to, parts = (o->v_dim + STATE_COLUMNS - 1) / STATE_COLUMNS, each = o->heads * parts;
    lane_slice(l, l->s->seqs * each, 1, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        struct scan_task c = {.o = o, .head = i % each / parts, .first = i % parts * STATE_COLUMNS};
        c.v_dim = o->v_dim - c.first < STATE_COLUMNS ? o->v_dim - c.first : STATE_COLUMNS;
        struct state_part p = {.number = o->state, .stride = o->v_dim};
        p.offset = (size_t)c.head * o->k_dim * o->v_dim + c.first;
        p.rows = o->k_dim, p.cols = c.v_dim;
        state_follow(l, &p, i / each, scan_rows, &c);
    }
}

void op_scan_run(struct lane *l, const struct op_scan *o)
{
    if (scan_by_channel(l->d->w, o))
        scan_channels_run(l, o);
    else
        scan_heads_run(l, o);
    lane_wait(l);
}

/* ---- recurrences of channels ---- */

/* NULL where the kind has no such input. */
static const float *cell_rows_of(const struct lane *l, struct operand o, uint32_t first, uint32_t row,
                                 size_t *stride)
{
    const float *at = o.buffer ? lane_at(l, o, stride) : NULL;
    return at ? at + first + row * *stride : NULL;
}

static const float *cell_vector(const struct lane *l, weight_id id, uint32_t first)
{
    return id ? lane_vector(l, id) + first : NULL;
}

static void cell_rows(struct lane *l, const void *task, struct state_block s, uint32_t row, uint32_t n)
{
    const struct channel_task *c = task;
    const struct op_cell *o = c->o;
    struct cell_tile t = {.kind = (int)o->kind, .n = n, .channels = c->channels, .pos = l->s->pos + row};
    t.s = s.at, t.s_stride = s.stride;
    t.x = cell_rows_of(l, o->in, c->first, row, &t.x_stride);
    t.gate = cell_rows_of(l, o->gate, c->first, row, &t.gate_stride);
    t.decay = cell_rows_of(l, o->decay, c->first, row, &t.decay_stride);
    t.y = lane_at(l, o->out, &t.y_stride) + c->first;
    t.y += row * t.y_stride;
    t.y_part = o->channels;
    t.a = cell_vector(l, o->a, c->first);
    t.gate_bias = cell_vector(l, o->gate_bias, c->first);
    t.decay_bias = cell_vector(l, o->decay_bias, c->first);
    l->k->cell(&t);
}

void op_cell_run(struct lane *l, const struct op_cell *o)
{
    channels_run(l, o, o->channels, cell_kept(o->kind), o->state, cell_rows);
}

/* ---- memory ---- */

size_t state_local_floats(const struct op *op)
{
    size_t channels = STATE_CHANNELS, columns = STATE_COLUMNS;
    if (op->kind == OP_CONV)
        return channels * (op->conv.cols - 1);
    if (op->kind == OP_CELL)
        return channels * cell_kept(op->cell.kind);
    return op->kind == OP_SCAN ? op->scan.k_dim * (channels > columns ? channels : columns) : 0;
}

size_t state_prepared_floats(const struct op *op)
{
    if (op->kind != OP_SCAN)
        return 0;
    const size_t erased = op->scan.erase.buffer ? op->scan.k_dim : 0;
    return (size_t)STATE_ROWS * (2 * op->scan.k_dim + 1 + size_max(STATE_CHANNELS, op->scan.k_dim) + erased);
}
