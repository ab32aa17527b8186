#include "device/place.h"

/* What the driver and its graphs take beside our own allocations. */
#define PLACE_SPARE ((uint64_t)192 << 20)

static uint32_t place_layers(const struct plan *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->ops[i].layer != UINT32_MAX && p->ops[i].layer >= n)
            n = p->ops[i].layer + 1;
    return n;
}

/* Keys, choices of keys and the operations that use them belong on one device: where one of these is on the rest,
 * all are. */
static void place_keys(struct plan *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t chooser = plan_chooser(p, i);
        if (chooser != UINT32_MAX && p->ops[i].device)
            p->ops[chooser].device = p->ops[i].device;
    }
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t chooser = plan_chooser(p, i);
        if (chooser != UINT32_MAX)
            p->ops[i].device = p->ops[chooser].device;
    }
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t layer = plan_kv_layer(&p->ops[i]);
        for (uint32_t k = 0; layer != UINT32_MAX && p->ops[i].device && k < p->count; k++)
            if (plan_kv_layer(&p->ops[k]) == layer)
                p->ops[k].device = p->ops[i].device;
    }
}

/* The last n of all layers, and what follows them, on the main device; what comes before the first layer goes with it. */
static void place_last(const struct place_request *r, uint32_t n, uint32_t all)
{
    const struct device_ops *main = r->main->ops;
    struct plan *p = r->plan;
    bool begun = false;
    for (uint32_t i = 0; i < p->count; i++) {
        struct op *op = &p->ops[i];
        begun |= op->layer != UINT32_MAX;
        uint32_t layer = op->layer != UINT32_MAX ? op->layer : begun ? all : 0;
        op->device = !n || layer < all - n || (r->experts_on_rest && op->kind == OP_MOE) ||
                     (main->refuses && main->refuses(op));
    }
    place_keys(p);
}

/* What the main device's part would take. */
static int place_need(const struct place_request *r, struct device_memory *m, struct err *e)
{
    struct plan part;
    struct weights own;
    int failed = plan_cut(r->plan, r->weights, 0, &part, &own, e) ||
                 r->main->ops->need(r->main, &part, &own, &r->shape, m, e);
    plan_free(&part);
    weights_free(&own);
    return failed ? -1 : 0;
}

uint64_t place_room(const struct device_memory *m, uint64_t limit)
{
    uint64_t room = m->free > PLACE_SPARE ? m->free - PLACE_SPARE : 0;
    return limit && limit < room ? limit : room;
}

/* Where all layers fit, KV of all pages need not: it takes memory as sequences grow. */
static bool place_fits(const struct device_memory *m, const struct place_request *r, bool all)
{
    return m->weights + m->scratch + (all ? m->kv_least : m->kv + r->spare) <= place_room(m, r->memory);
}

/* The most layers that fit; what n layers need only grows with n. */
static int place_most(const struct place_request *r, struct placement *out, struct err *e)
{
    uint32_t fit = 0, over = out->of + 1;
    for (uint32_t n = out->of; fit + 1 < over; n = fit + (over - fit) / 2) {
        struct device_memory m;
        place_last(r, n, out->of);
        if (place_need(r, &m, e))
            return -1;
        if (n == out->of)
            out->whole = m;
        *(place_fits(&m, r, n == out->of) ? &fit : &over) = n;
    }
    out->layers = fit;
    return 0;
}

int place_plan(const struct place_request *r, struct placement *out, struct err *e)
{
    *out = (struct placement){.of = place_layers(r->plan)};
    out->layers = r->how == PLACE_SOME && r->layers < out->of ? r->layers : out->of;
    if (r->how == PLACE_FIT && place_most(r, out, e))
        return -1;
    place_last(r, out->layers, out->of);
    for (uint32_t i = 0; i < r->plan->count; i++)
        *(r->plan->ops[i].device ? &out->rest : &out->main) += 1;
    return out->main ? place_need(r, &out->need, e) : 0;
}
