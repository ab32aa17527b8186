/* Any bytes as what a rank hears from others: the greeting of a connection, and the orders of rank 0 with all that
 * follows them, which a rank with a tiny model obeys on a CPU until one of them fails or the bytes end. The first byte
 * chooses the model and how it is cut, or the greeting. What is refused has an error message. */
#include "base/log.h"
#include "base/mem.h"
#include "codec/dtype.h"
#include "comm/greet.h"
#include "device/team_internal.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Rank 1 of two; rank 0 says what the input has. */
struct script {
    struct comm base;
    const uint8_t *data;
    size_t left;
    bool aborted, prepares; /* prepares: an order has changed what the rank is prepared for */
};

/* Takes little memory whatever rank 0 asks for. */
static void make_small(struct order_prepare *o)
{
    enum { MOST = 64 };
    o->rows %= MOST;
    o->seqs %= MOST;
    o->outs %= MOST;
    o->kv.states %= MOST;
    for (uint32_t i = 0; i < PLAN_GROUPS_MOST; i++)
        o->kv.pages[i] %= MOST;
}

static int script_exchange(struct comm *c, const struct comm_move *moves, uint32_t count, struct err *e)
{
    struct script *s = (struct script *)c;
    for (uint32_t i = 0; i < count; i++) {
        if (moves[i].send)
            continue;
        if (moves[i].bytes > s->left)
            return err_set(e, ERR_DEVICE, "the input has ended");
        memcpy(moves[i].data, s->data, moves[i].bytes);
        if (moves[i].bytes == sizeof(struct order_prepare)) {
            make_small(moves[i].data);
            s->prepares = true;
        }
        s->data += moves[i].bytes;
        s->left -= moves[i].bytes;
    }
    return 0;
}

static void script_abort(struct comm *c, const char *why)
{
    ((struct script *)c)->aborted = why[0];
}

static void script_close(struct comm *c)
{
    (void)c;
}

static const struct comm_ops script_ops = {
    .name = "script", .exchange = script_exchange, .abort = script_abort, .close = script_close};

/* A rank for each way to cut a model: heads, windows, experts and states. */
struct cut {
    const char *model;
    uint32_t tensor, stages;
    struct script comm;
    struct member member;
    bool ready;
};

static struct cut cuts[] = {{.model = "llama", .tensor = 2, .stages = 1},
                            {.model = "llama", .tensor = 1, .stages = 2},
                            {.model = "gemma3", .tensor = 1, .stages = 2},
                            {.model = "mixtral", .tensor = 2, .stages = 1},
                            {.model = "jamba", .tensor = 2, .stages = 1}};
enum { CUTS = sizeof cuts / sizeof *cuts };

static void fail(const struct err *e)
{
    fprintf(stderr, "%s\n", e->text);
    abort();
}

static void cut_prepare(struct cut *c)
{
    static const struct order_prepare shape = {
        .kv = {.type = DTYPE_F16, .page_tokens = 16, .pages = {9, 9, 9, 9}, .states = 5},
        .rows = 24,
        .seqs = 4,
        .outs = 6};
    struct err e = {0};
    if (member_prepare(&c->member, &shape, &e))
        fail(&e);
    c->comm.prepares = false;
}

/* Opened once: what an input leaves in KV and rows does not matter. */
static void cut_open(struct cut *c)
{
    struct err e = {0};
    struct store *store = NULL;
    struct model *model = NULL;
    char path[256];
    snprintf(path, sizeof path, "%s/arch/%s", FUZZ_DATA, c->model);
    if (store_open(&store, path, &e) ||
        model_open(&model, store, &(struct model_options){.ctx = 128, .make = {.threads = 1}}, &e) ||
        team_stages(&model->plan, &model->weights, c->stages, &e))
        fail(&e);
    c->comm.base = (struct comm){.ops = &script_ops, .rank = 1, .size = 2};
    struct team_options o = {.plan = &model->plan,
                             .weights = &model->weights,
                             .tensor = c->tensor,
                             .stages = c->stages,
                             .comm = {&c->comm.base},
                             .comms = 1,
                             .device = {"cpu"},
                             .options = {.threads = 1, .exact = true}};
    if (member_open(&c->member, &o, 0, &e))
        fail(&e);
    cut_prepare(c);
    c->ready = true;
}

static void obey(struct cut *c, const uint8_t *data, size_t size)
{
    struct err e = {0};
    if (!c->ready)
        cut_open(c);
    if (c->comm.prepares)
        cut_prepare(c);
    c->comm.data = data;
    c->comm.left = size;
    c->comm.aborted = false;
    if (member_serve(&c->member, &e) && !e.text[0])
        abort();
    if (c->comm.aborted && !e.code)
        abort();
}

static void greet(const uint8_t *data, size_t size)
{
    const struct rank_job job = {.kind = JOB_TCP, .rank = 0, .size = 4, .key = "stone"};
    struct greeting g = {0};
    char reply[GREET_REPLY] = {0};
    memcpy(&g, data, size < sizeof g ? size : sizeof g);
    const char *refuse = greet_refuse(&g, &job, reply);
    if (refuse && *refuse && (refuse != reply || !memchr(reply, 0, sizeof reply)))
        abort();
    if (!refuse && (g.rank == 0 || g.rank > 3 || g.size != 4 || memcmp(g.key, "stone", 6)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || size > 1 << 14)
        return 0;
    log_set_level(LOG_ERROR);
    if (data[0] % (CUTS + 1) == CUTS)
        greet(data + 1, size - 1);
    else
        obey(&cuts[data[0] % (CUTS + 1)], data + 1, size - 1);
    return 0;
}
