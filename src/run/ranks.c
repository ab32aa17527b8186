#include "run/ranks.h"

#include "base/cores.h"
#include "base/num.h"
#include "device/shard.h"
#include "device/team.h"

#include <stdio.h>
#include <string.h>

bool ranks_wanted(const struct ranks_options *o)
{
    return o->comm || o->tensor > 1 || o->stages > 1 || o->gpus;
}

/* Cards to choose from where none are named: all, if every rank of this process gets one. */
static uint32_t ranks_cards(const struct runner_options *o)
{
    struct err none = {0};
    const uint32_t all = (o->ranks.tensor ? o->ranks.tensor : 1) * (o->ranks.stages ? o->ranks.stages : 1),
                   ranks = o->ranks.comm ? 1 : all;
    int found = o->ranks.gpus ? 0 : cuda_count(&none);
    bool enough = found > 0 && ((o->device && !strcmp(o->device, "cuda")) || (uint32_t)found >= ranks);
    return enough && (!o->device || !strcmp(o->device, "cuda")) ? (uint32_t)found : 0;
}

bool ranks_on_gpu(const struct runner_options *o)
{
    return o->ranks.gpus || (o->device && !strncmp(o->device, "cuda", 4)) || ranks_cards(o);
}

enum { DEVICE_NAME = 16 };

/* Which device each rank of this process has: a card of the list, card after card, the device that is named, or the CPU. */
static int ranks_devices(const struct runner_options *o, struct team_options *t,
                         char name[COMM_RANKS_MOST][DEVICE_NAME], struct err *e)
{
    const char *list = o->ranks.gpus;
    uint32_t cards[COMM_RANKS_MOST], n = 0;
    for (const char *at = list; at && *at;) {
        size_t len = strcspn(at, ",");
        uint64_t card = 0;
        if (n == COMM_RANKS_MOST || !num_u64(at, len, 1023, &card))
            return err_set(e, ERR_USAGE, "--gpus takes numbers of cards, as 0,1,2,3");
        cards[n++] = (uint32_t)card;
        at += len + (at[len] == ',');
    }
    const uint32_t found = ranks_cards(o);
    for (uint32_t i = 0; i < t->comms; i++) {
        uint32_t k = o->ranks.comm ? o->ranks.local : i;
        if (n || found)
            snprintf(name[i], DEVICE_NAME, "cuda:%u", n ? cards[k % n] : k % found);
        else
            snprintf(name[i], DEVICE_NAME, "%.15s", o->device ? o->device : "cpu");
        t->device[i] = name[i];
    }
    return 0;
}

int ranks_open(struct device **out, struct plan *plan, const struct weights *weights,
               const struct runner_options *o, struct err *e)
{
    char name[COMM_RANKS_MOST][DEVICE_NAME];
    struct team_options t = {.plan = plan,
                             .weights = weights,
                             .tensor = o->ranks.tensor ? o->ranks.tensor : 1,
                             .stages = o->ranks.stages ? o->ranks.stages : 1,
                             .options = o->device_options};
    uint64_t ranks = (uint64_t)t.tensor * t.stages;
    *out = NULL;
    if (ranks > COMM_RANKS_MOST)
        return err_set(e, ERR_USAGE, "%u x %u ranks; the most is %d", t.tensor, t.stages, COMM_RANKS_MOST);
    t.comms = o->ranks.comm ? 1 : (uint32_t)ranks;
    if (ranks_devices(o, &t, name, e))
        return -1;
    if (o->ranks.comm)
        t.comm[0] = o->ranks.comm;
    else if (comm_threads(t.comm, t.comms, e))
        return -1;
    if (!strcmp(name[0], "cpu") && t.comms > 1) { /* ranks share the cores */
        struct cores cores;
        cores_find(&cores);
        int all = t.options.threads ? t.options.threads : cores.n;
        t.options.threads = all > (int)t.comms ? all / (int)t.comms : 1;
        t.options.pin = false;
    }
    return t.comm[0]->rank ? team_serve(&t, e) : team_open(out, &t, e);
}

/* ---- advice ---- */

/* KV of a token on one rank, as F16. */
static uint64_t token_bytes(const struct plan *p)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < p->groups; g++)
        bytes += 2ull * p->group[g].layers * p->group[g].kv_heads * (p->group[g].k_dim + p->group[g].v_dim);
    return bytes;
}

/* Rank 0 never has less than another. */
static int advise_for(const struct plan *plan, const struct weights *weights, uint32_t ranks,
                      struct ranks_advice *out, struct err *e)
{
    struct shard s;
    int failed = plan_shard(plan, weights, 0, ranks, &s, e);
    if (!failed) {
        out->weights = weights_bytes(&s.weights);
        out->token = token_bytes(&s.plan);
    }
    shard_free(&s);
    return failed;
}

int ranks_advise(const struct plan *plan, const struct weights *weights, uint32_t cards, uint64_t memory,
                 uint64_t tokens, struct ranks_advice *out, struct err *e)
{
    *out = (struct ranks_advice){.cards = cards, .memory = memory};
    for (uint32_t n = 1; n <= cards && n <= COMM_RANKS_MOST; n++) {
        if (advise_for(plan, weights, n, out, e))
            return -1;
        /* a tenth for scratch, the driver and what others hold */
        if (out->weights + out->token * tokens <= memory - memory / 10) {
            out->tensor = n;
            return 0;
        }
    }
    return 0;
}
