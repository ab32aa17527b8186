/* The choice of a token as run/sampler.h defines it, plainly: sort everything, then link by link. What devices choose
 * is compared with it. Needs libc only. */
#pragma once

#include "base/noise.h"
#include "device/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct oracle_token {
    float v;
    int32_t id;
};

static inline int oracle_order(const void *a, const void *b)
{
    const struct oracle_token *x = a, *y = b;
    return x->v != y->v ? (x->v < y->v ? 1 : -1) : (x->id > y->id) - (x->id < y->id);
}

static inline uint32_t oracle_top_p(const struct oracle_token *c, uint32_t n, double mass)
{
    double total = 0, sum = 0;
    uint32_t keep = 0;
    for (uint32_t i = 0; i < n; i++)
        total += exp((double)c[i].v - c[0].v);
    while (keep < n && (!keep || sum < mass * total))
        sum += exp((double)c[keep++].v - c[0].v);
    return keep;
}

/* room: (n). */
static inline int32_t oracle_pick(const float *logits, uint32_t n, const struct step_pick *p,
                                  struct oracle_token *room)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!(logits[i] < INFINITY))
            return -1;
        room[i] = (struct oracle_token){logits[i], (int32_t)i};
    }
    for (uint32_t i = 0; i < p->seen_count; i++) {
        float *v = &room[p->seen[i].id].v;
        *v = (float)(*v > 0 ? *v / p->repeat : *v * p->repeat);
        *v -= (float)(p->presence + p->frequency * p->seen[i].count);
    }
    qsort(room, n, sizeof *room, oracle_order);
    while (n && room[n - 1].v == -INFINITY)
        n--;
    if (!n)
        return -1;
    if (p->temperature == 0)
        return room[0].id;
    n = p->top_k && p->top_k < n ? p->top_k : n;
    n = p->top_p < 1 ? oracle_top_p(room, n, p->top_p) : n;
    while (p->min_p > 0 && room[n - 1].v < room[0].v + logf(p->min_p))
        n--;
    double best = -INFINITY;
    int32_t id = -1;
    for (uint32_t i = 0; i < n; i++) {
        double u = noise_uniform(p->seed, p->position, (uint64_t)room[i].id);
        double v = room[i].v / p->temperature - log(-log(u));
        if (v > best) {
            best = v;
            id = room[i].id;
        }
    }
    return id;
}
