#include "device/cuda/stages.h"

#include "base/mem.h"

struct placing {
    const struct weights *w;
    const struct op *op;
    struct mat *mat; /* or NULL: only measured */
    cu_ptr room;
    uint64_t bytes;
    uint32_t jobs;
    struct stage_job *to;    /* or NULL */
    struct upload_job *part; /* with it: room for the jobs of a weight */
    bool divided;            /* some of them are */
};

static void place_weight(void *arg, weight_id *id)
{
    struct placing *p = arg;
    const struct weight *w = &p->w->all[*id];
    const bool divided = plan_is_divided(p->op, *id);
    if (p->mat)
        p->mat[*id] = upload_mat(w, p->room + p->bytes);
    p->bytes += upload_room(w);
    p->divided |= divided;
    const uint32_t n = upload_jobs(p->w, *id, p->to ? p->part : NULL);
    for (uint32_t i = 0; p->to && i < n; i++)
        p->to[p->jobs + i] = (struct stage_job){p->part[i], divided};
    p->jobs += n;
}

static struct placing measure(const struct plan *p, const struct weights *w, uint32_t op)
{
    struct placing at = {.w = w, .op = &p->ops[op]};
    plan_each_sent(&p->ops[op], place_weight, &at);
    return at;
}

static uint64_t largest_op(const struct plan *p, const struct weights *w)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const uint64_t bytes = measure(p, w, i).bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* More rooms where operations are small: then the large ones among them are sent while others compute, too. */
static uint32_t rooms_for(uint64_t largest)
{
    uint64_t fit = largest ? ROOMS_BYTES / largest : ROOMS_LEAST;
    return fit < ROOMS_LEAST ? ROOMS_LEAST : fit > ROOMS_MOST ? ROOMS_MOST : (uint32_t)fit;
}

uint64_t stages_bytes(const struct plan *p, const struct weights *w)
{
    const uint64_t largest = largest_op(p, w);
    return rooms_for(largest) * largest;
}

/* ---- stages ---- */

static void find_first(void *arg, weight_id *id)
{
    weight_id *first = arg;
    *first = *first ? *first : *id;
}

/* An operation's first weight that is sent; 0: there is none. Every weight belongs to one stage. */
static weight_id first_sent(const struct op *op)
{
    weight_id first = 0;
    plan_each_sent(op, find_first, &first);
    return first;
}

static void find_stages(struct stages *s)
{
    weight_id before = 0;
    for (uint32_t i = 0; i < s->plan->count; i++) {
        const weight_id first = first_sent(&s->plan->ops[i]);
        if (!first || first != before)
            s->all[s->count++] = (struct stage){.op = i, .own = {.stage = STAGE_NONE, .turn = TURN_NONE}};
        s->of[i] = s->count - 1;
        before = first;
    }
}

/* Numbers in the order of their bits from behind: any first ones of them are spread over all. */
static void spread(uint32_t *order, uint32_t count)
{
    uint32_t bits = 0, n = 0;
    while (1u << bits < count)
        bits++;
    for (uint32_t i = 0; i < 1u << bits; i++) {
        uint32_t back = 0;
        for (uint32_t b = 0; b < bits; b++)
            back |= (i >> b & 1) << (bits - 1 - b);
        if (back < count)
            order[n++] = back;
    }
}

static int make_tables(struct stages *s, struct err *e)
{
    const uint32_t ops = s->plan->count;
    uint32_t jobs = 0;
    for (uint32_t i = 0; i < ops; i++)
        jobs += measure(s->plan, s->w, i).jobs;
    s->all = mem_zalloc(ops, sizeof *s->all);
    s->of = mem_zalloc(ops, sizeof *s->of);
    s->order = mem_zalloc(ops, sizeof *s->order);
    s->mat = mem_zalloc(s->w->count + 1, sizeof *s->mat);
    s->jobs = mem_zalloc(jobs + 1, sizeof *s->jobs);
    struct upload_job *part = mem_alloc(jobs + 1, sizeof *part);
    const bool whole = s->all && s->of && s->order && s->mat && s->jobs && part;
    if (whole)
        find_stages(s);
    for (uint32_t i = 0, at = 0; whole && i < s->count; i++) {
        struct stage *st = &s->all[i];
        struct placing to = {.w = s->w, .op = &s->plan->ops[st->op], .to = s->jobs + at, .part = part};
        plan_each_sent(to.op, place_weight, &to);
        st->first = at;
        st->end = at += to.jobs;
        st->bytes = to.bytes;
        st->divided = to.divided;
    }
    if (whole)
        spread(s->order, s->count);
    mem_free(part);
    return whole ? 0 : err_memory(e, "the list of streamed weights", (jobs + 1) * sizeof *s->jobs);
}

/* ---- rooms ---- */

static bool has_own(const struct stage *st)
{
    return st->room == &st->own;
}

/* Places all weights in the rooms of their stages. Those without one of their own take turns. */
static void place_all(struct stages *s)
{
    uint32_t turn = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        struct stage *st = &s->all[i];
        if (!st->bytes)
            continue;
        if (!has_own(st))
            st->room = &s->room[turn++ % s->rooms];
        struct placing at = {.w = s->w, .op = &s->plan->ops[st->op], .mat = s->mat, .room = st->room->at};
        plan_each_sent(at.op, place_weight, &at);
    }
}

static int open_events(struct stage_room *r, struct gpu *g, struct err *e)
{
    r->stage = STAGE_NONE;
    r->turn = TURN_NONE;
    return gpu_check(g, g->cu->event_create(&r->ready, CU_EVENT_NO_TIMING), "making an event", e) ||
                   gpu_check(g, g->cu->event_create(&r->unused, CU_EVENT_NO_TIMING), "making an event", e)
               ? -1
               : 0;
}

static void close_events(struct stage_room *r, struct gpu *g)
{
    if (r->ready)
        g->cu->event_destroy(r->ready);
    if (r->unused)
        g->cu->event_destroy(r->unused);
}

/* Addresses for a room of each stage, without memory; none where the card cannot map memory. */
static int open_own(struct stages *s, struct err *e)
{
    struct gpu *g = s->g;
    for (uint32_t i = 0; i < s->count; i++)
        s->own_bytes += gpu_granules(s->all[i].bytes);
    if (!s->own_bytes || !gpu_can_map(g))
        return 0;
    if (gpu_check(g, g->cu->address_reserve(&s->own, s->own_bytes, GPU_GRANULE, 0, 0),
                  "reserving addresses for streamed weights", e))
        return -1;
    cu_ptr at = s->own;
    for (uint32_t i = 0; i < s->count; i++) {
        struct stage *st = &s->all[i];
        st->own.at = at;
        at += gpu_granules(st->bytes);
        if (st->bytes && open_events(&st->own, g, e))
            return -1;
    }
    return 0;
}

int stages_open(struct stages *s, struct gpu *g, const struct plan *p, const struct weights *w, bool keeps,
                struct err *e)
{
    const uint64_t largest = largest_op(p, w);
    *s = (struct stages){.g = g, .plan = p, .w = w, .rooms = rooms_for(largest), .room_bytes = largest};
    if (make_tables(s, e))
        return -1;
    for (uint32_t i = 0; i < s->rooms; i++)
        if (!(s->room[i].at = gpu_alloc(g, largest, "streamed weights", e)) || open_events(&s->room[i], g, e))
            return -1;
    if (keeps && open_own(s, e))
        return -1;
    place_all(s);
    return 0;
}

void stages_close(struct stages *s)
{
    struct gpu *g = s->g;
    if (!g)
        return;
    for (uint32_t i = 0; i < s->rooms; i++) {
        gpu_free(g, s->room[i].at, s->room_bytes);
        close_events(&s->room[i], g);
    }
    stages_give(s, s->kept);
    for (uint32_t i = 0; i < s->count; i++)
        close_events(&s->all[i].own, g);
    if (s->own)
        g->cu->address_free(s->own, s->own_bytes);
    mem_free(s->all);
    mem_free(s->of);
    mem_free(s->order);
    mem_free(s->jobs);
    mem_free(s->mat);
}

static void forget_turn(struct stage_room *r)
{
    r->turn = TURN_NONE;
    r->ended = false;
}

void stages_begin_again(struct stages *s)
{
    for (uint32_t i = 0; i < s->rooms; i++)
        forget_turn(&s->room[i]);
    for (uint32_t i = 0; i < s->count; i++)
        forget_turn(&s->all[i].own);
}

/* ---- rooms of their own ---- */

void stages_keep(struct stages *s, uint64_t most)
{
    struct err none = {0};
    for (; s->own && s->owners < s->count; s->owners++) {
        struct stage *st = &s->all[s->order[s->owners]];
        const uint64_t bytes = gpu_granules(st->bytes);
        if (!bytes)
            continue;
        if (s->kept + bytes > most || gpu_map(s->g, st->own.at, bytes, "streamed weights", &none))
            break;
        s->kept += bytes;
        st->own.stage = STAGE_NONE; /* nothing is there yet */
        st->room = &st->own;
    }
    place_all(s);
}

void stages_give(struct stages *s, uint64_t bytes)
{
    for (uint64_t given = 0; given < bytes && s->owners;) {
        struct stage *st = &s->all[s->order[--s->owners]];
        if (!st->bytes)
            continue;
        given += gpu_granules(st->bytes);
        s->kept -= gpu_granules(st->bytes);
        s->g->cu->mem_unmap(st->own.at, gpu_granules(st->bytes));
        st->room = NULL;
    }
    place_all(s);
}

uint64_t stages_next(const struct stages *s)
{
    for (uint32_t i = s->owners; s->own && i < s->count; i++)
        if (s->all[s->order[i]].bytes)
            return gpu_granules(s->all[s->order[i]].bytes);
    return 0;
}
