/* What ranks do together, made of moves between two of them. */
#include "comm/comm.h"

#include "base/mem.h"
#include "base/size.h"

#include <string.h>

/* Up to this many floats every rank sends all of its numbers to all others: one trip. Beyond it each sums a slice. */
enum { SUM_AT_ONCE = 16 << 10 };

struct comm_group comm_all(const struct comm *c)
{
    return (struct comm_group){0, c->size, c->rank};
}

static int comm_do(struct comm *c, const struct comm_move *moves, uint32_t n, struct err *e)
{
    return n ? c->ops->exchange(c, moves, n, e) : 0;
}

int comm_reserve(struct comm *c, size_t floats, struct err *e)
{
    size_t n;
    if (!size_mul(floats, c->size, &n))
        return err_set(e, ERR_RESOURCE, "a sum of %zu numbers is too long", floats);
    if (n <= c->room)
        return 0;
    float *more = mem_realloc(c->scratch, n, sizeof *more);
    if (!more)
        return err_memory(e, "sums of ranks", (unsigned long long)n * sizeof *more);
    c->scratch = more;
    c->room = n;
    return 0;
}

/* y = the parts of all ranks, in their order. */
static void sum_parts(float *y, const float *const *part, uint32_t parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float s = part[0][i];
        for (uint32_t k = 1; k < parts; k++)
            s += part[k][i];
        y[i] = s;
    }
}

static int sum_at_once(struct comm *c, struct comm_group g, float *x, size_t n, struct err *e)
{
    struct comm_move move[2 * COMM_RANKS_MOST];
    const float *part[COMM_RANKS_MOST];
    uint32_t moves = 0;
    for (uint32_t i = 0; i < g.count; i++) {
        part[i] = i == g.me ? x : c->scratch + i * n;
        if (i == g.me)
            continue;
        move[moves++] = (struct comm_move){g.first + i, true, x, n * sizeof *x};
        move[moves++] = (struct comm_move){g.first + i, false, c->scratch + i * n, n * sizeof *x};
    }
    if (comm_do(c, move, moves, e))
        return -1;
    sum_parts(x, part, g.count, n);
    return 0;
}

/* Each rank sums its slice of all, then all get all slices. */
static int sum_slices(struct comm *c, struct comm_group g, float *x, size_t n, struct err *e)
{
    struct comm_move move[2 * COMM_RANKS_MOST];
    const float *part[COMM_RANKS_MOST];
    size_t at[COMM_RANKS_MOST + 1];
    uint32_t moves = 0;
    for (uint32_t i = 0; i <= g.count; i++)
        at[i] = n * i / g.count;
    const size_t mine = at[g.me + 1] - at[g.me];
    for (uint32_t i = 0; i < g.count; i++) {
        part[i] = i == g.me ? x + at[i] : c->scratch + i * mine;
        if (i == g.me)
            continue;
        move[moves++] = (struct comm_move){g.first + i, true, x + at[i], (at[i + 1] - at[i]) * sizeof *x};
        move[moves++] = (struct comm_move){g.first + i, false, c->scratch + i * mine, mine * sizeof *x};
    }
    if (comm_do(c, move, moves, e))
        return -1;
    sum_parts(x + at[g.me], part, g.count, mine);
    for (uint32_t i = 0; i <= g.count; i++)
        at[i] *= sizeof *x;
    return comm_all_gather(c, g, x, at, e);
}

int comm_all_reduce(struct comm *c, struct comm_group g, float *x, size_t n, struct err *e)
{
    if (g.count < 2 || !n)
        return 0;
    if (n > c->room / c->size)
        return err_set(e, ERR_USAGE, "a sum of %zu numbers, and there is room for %zu", n, c->room / c->size);
    return n <= SUM_AT_ONCE ? sum_at_once(c, g, x, n, e) : sum_slices(c, g, x, n, e);
}

int comm_all_gather(struct comm *c, struct comm_group g, void *parts, const size_t *at, struct err *e)
{
    struct comm_move move[2 * COMM_RANKS_MOST];
    uint32_t moves = 0;
    uint8_t *data = parts;
    for (uint32_t i = 0; i < g.count; i++) {
        if (i == g.me)
            continue;
        if (at[g.me + 1] > at[g.me])
            move[moves++] = (struct comm_move){g.first + i, true, data + at[g.me], at[g.me + 1] - at[g.me]};
        if (at[i + 1] > at[i])
            move[moves++] = (struct comm_move){g.first + i, false, data + at[i], at[i + 1] - at[i]};
    }
    return comm_do(c, move, moves, e);
}

int comm_gather(struct comm *c, struct comm_group g, const void *mine, void *parts, const size_t *at,
                struct err *e)
{
    struct comm_move move[COMM_RANKS_MOST];
    uint32_t moves = 0;
    for (uint32_t i = 1; i < g.count; i++) {
        size_t bytes = at[i + 1] - at[i];
        if (!bytes || (g.me && i != g.me))
            continue;
        move[moves++] = g.me ? (struct comm_move){g.first, true, (void *)mine, bytes}
                             : (struct comm_move){g.first + i, false, (uint8_t *)parts + at[i], bytes};
    }
    return comm_do(c, move, moves, e);
}

int comm_broadcast(struct comm *c, struct comm_group g, void *data, size_t bytes, struct err *e)
{
    struct comm_move move[COMM_RANKS_MOST];
    uint32_t moves = 0;
    if (!bytes)
        return 0;
    if (g.me)
        move[moves++] = (struct comm_move){g.first, false, data, bytes};
    for (uint32_t i = 1; i < g.count && !g.me; i++)
        move[moves++] = (struct comm_move){g.first + i, true, data, bytes};
    return comm_do(c, move, moves, e);
}

int comm_barrier(struct comm *c, struct comm_group g, struct err *e)
{
    uint8_t byte[COMM_RANKS_MOST] = {0};
    size_t at[COMM_RANKS_MOST + 1];
    for (uint32_t i = 0; i <= g.count; i++)
        at[i] = i;
    return comm_all_gather(c, g, byte, at, e);
}

int comm_send(struct comm *c, uint32_t to, const void *data, size_t bytes, struct err *e)
{
    const struct comm_move move = {to, true, (void *)data, bytes};
    return bytes ? comm_do(c, &move, 1, e) : 0;
}

int comm_recv(struct comm *c, uint32_t from, void *data, size_t bytes, struct err *e)
{
    const struct comm_move move = {from, false, data, bytes};
    return bytes ? comm_do(c, &move, 1, e) : 0;
}

int comm_watch(struct comm *c, struct err *e)
{
    return c->ops->watch ? c->ops->watch(c, e) : 0;
}

void comm_abort(struct comm *c, const char *why)
{
    c->ops->abort(c, why);
}

void comm_close(struct comm *c)
{
    if (!c)
        return;
    mem_free(c->scratch);
    c->ops->close(c);
}
