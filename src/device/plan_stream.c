/* The plan of a step that sends weights of the rest through the main device. */
#include "device/plan.h"

#include "base/mem.h"

#include <string.h>

enum { REST = 1, STREAMED = 2 };

struct streamer {
    const struct plan *from;
    struct plan_streamed *to;
    const char *(*refuses)(const struct op *op);
    struct operand products; /* (widest q, k and v) */
    struct operand partial;  /* (widest result of divided experts): what the rest has computed of it */
    int ways;                /* that there are */
    uint32_t pages; /* the operation that writes the rest's pages, until attention of its layer; 0 = none */
    bool failed;
};

void plan_each_sent(const struct op *op, void (*visit)(void *arg, weight_id *id), void *arg)
{
    struct op sent = *op;
    if (op->kind == OP_QKV && op->qkv.given.buffer)
        sent.qkv.q = sent.qkv.k = sent.qkv.v = (struct linear){0};
    plan_each_weight(&sent, visit, arg);
}

bool plan_is_divided(const struct op *op, weight_id id)
{
    const struct op_moe *o = &op->moe;
    return op->kind == OP_MOE && o->side == MOE_BELOW &&
           (id == o->gate.weight || id == o->up.weight || id == o->down.weight);
}

/* A weight of its own for an operation on the streaming device. */
static void own_weight(void *arg, weight_id *id)
{
    struct streamer *s = arg;
    const struct weight copy = s->to->weights.all[*id];
    *id = weights_add(&s->to->weights, &copy);
    s->failed |= !*id;
}

/* Sets of ways (enum stream_way), as bits. */
enum {
    ALWAYS = (1 << STREAM_WAYS) - 1,
    FRESH = 1 << STREAM_FRESH | 1 << (STREAM_FRESH | STREAM_WHOLE),
    CACHED = ALWAYS & ~FRESH, /* some keys were there before the step */
    WHOLE = 1 << STREAM_WHOLE | 1 << (STREAM_WHOLE | STREAM_FRESH),
    DIVIDED = ALWAYS & ~WHOLE
};

static void stream_go(struct streamer *s, uint32_t op, int ways)
{
    for (int i = 0; i < STREAM_WAYS; i++)
        if (ways & s->ways & 1 << i)
            s->to->way[i].op[s->to->way[i].count++] = op;
}

/* Appends an operation that takes the place of operation `origin`, and runs it next on these ways. */
static void stream_add(struct streamer *s, uint32_t origin, const struct op *like, uint32_t device, int ways)
{
    struct plan *p = &s->to->plan;
    struct op *op = plan_add(p, like->kind, like->layer);
    *op = *like;
    op->device = device;
    if (device == STREAMED) {
        const struct linear q = op->qkv.q, k = op->qkv.k, v = op->qkv.v;
        plan_each_weight(op, own_weight, s);
        if (op->kind == OP_QKV) /* its products are given: these weights are not sent */
            op->qkv.q = q, op->qkv.k = k, op->qkv.v = v;
    }
    if (p->failed)
        return;
    s->to->origin[p->count - 1] = origin;
    stream_go(s, p->count - 1, ways);
}

/* Another operation with the weights of the one that was added last, for steps that divide nothing. */
static void stream_like(struct streamer *s, uint32_t origin, const struct op *like)
{
    struct plan *p = &s->to->plan;
    if (p->failed)
        return;
    const struct op last = p->ops[p->count - 1];
    struct op *op = plan_add(p, like->kind, like->layer);
    *op = last;
    op->moe.side = like->moe.side;
    op->moe.tail = like->moe.tail;
    if (p->failed)
        return;
    s->to->origin[p->count - 1] = origin;
    stream_go(s, p->count - 1, WHOLE);
}

static uint32_t linear_rows(const struct weights *w, const struct linear *l)
{
    return l->weight ? w->all[l->weight].rows : 0;
}

static void stream_qkv(struct streamer *s, uint32_t i)
{
    const struct op *op = &s->from->ops[i];
    const struct linear *const part[] = {&op->qkv.q, &op->qkv.k, &op->qkv.v};
    struct op given = *op;
    uint32_t col = 0;
    for (int k = 0; k < 3 && part[k]->weight && !op->qkv.given.buffer; k++) {
        struct op out = {.kind = OP_OUT, .layer = op->layer};
        out.out = (struct op_out){.in = op->qkv.in,
                                  .norm = op->qkv.norm,
                                  .linear = *part[k],
                                  .tail = {.scale = 1, .out = {s->products.buffer, col}}};
        col += linear_rows(&s->to->weights, part[k]);
        stream_add(s, i, &out, STREAMED, ALWAYS);
    }
    if (!given.qkv.given.buffer)
        given.qkv.given = s->products;
    if (s->ways & FRESH)
        stream_add(s, i, &given, STREAMED, FRESH);
    stream_add(s, i, &given, REST, CACHED);
    s->pages = s->to->plan.count - 1;
}

static void stream_attn(struct streamer *s, uint32_t i)
{
    const struct op *op = &s->from->ops[i];
    if (s->ways & FRESH)
        stream_add(s, i, op, STREAMED, FRESH);
    stream_add(s, i, op, REST, CACHED);
    if (s->pages) /* the rest's pages, while the card goes on */
        stream_go(s, s->pages, FRESH);
    s->pages = 0;
}

/* Whether the experts' sum may be made in two parts. */
static bool can_divide(const struct streamer *s, const struct op *op)
{
    return op->kind == OP_MOE && !op->moe.tail.post.kind && !op->moe.tail.after.kind &&
           !(s->refuses && s->refuses(op));
}

/* The rest goes first: it computes while weights are on their way, and its device returns when it is done. */
static void stream_moe(struct streamer *s, uint32_t i)
{
    struct op whole = s->from->ops[i], above = whole, below = whole;
    above.moe.side = MOE_ABOVE;
    above.moe.shared_gate = above.moe.shared_up = above.moe.shared_down = (struct linear){0};
    above.moe.shared_router = above.moe.shared_router_adapter = 0;
    above.moe.tail.out = s->partial;
    below.moe.side = MOE_BELOW;
    below.moe.tail.residual = s->partial;
    stream_add(s, i, &above, REST, DIVIDED);
    stream_add(s, i, &below, STREAMED, DIVIDED);
    stream_like(s, i, &whole);
}

static void stream_op(struct streamer *s, uint32_t i)
{
    const struct op *op = &s->from->ops[i];
    if (op->device != REST || op->kind == OP_EMBED || op->kind == OP_LOGITS)
        stream_go(s, i, ALWAYS);
    else if (op->kind == OP_QKV)
        stream_qkv(s, i);
    else if (op->kind == OP_ATTN)
        stream_attn(s, i);
    else if (can_divide(s, op))
        stream_moe(s, i);
    else if ((op->kind == OP_PROJ || op->kind == OP_OUT || op->kind == OP_FFN || op->kind == OP_MOE) &&
             !(s->refuses && s->refuses(op)))
        stream_add(s, i, op, STREAMED, ALWAYS);
    else /* once more, so that it follows those before it */
        stream_add(s, i, op, REST, ALWAYS);
}

/* Whether the streaming device can compute attention of all layers of the rest. */
static bool can_be_fresh(const struct streamer *s)
{
    bool can = true;
    for (uint32_t i = 0; i < s->from->count; i++) {
        const struct op *op = &s->from->ops[i];
        if (op->device == REST && plan_kv_layer(op) != UINT32_MAX)
            can &= (op->kind == OP_QKV || op->kind == OP_ATTN) && !(s->refuses && s->refuses(op)) &&
                   (op->kind != OP_QKV || (op->qkv.k.weight && op->qkv.v.weight));
    }
    return can;
}

static uint32_t widest_divided(const struct streamer *s, const struct weights *w)
{
    uint32_t widest = 0;
    for (uint32_t i = 0; i < s->from->count; i++) {
        const struct op *op = &s->from->ops[i];
        if (op->device != REST || !can_divide(s, op))
            continue;
        const uint32_t n = linear_rows(w, &op->moe.down);
        widest = n > widest ? n : widest;
    }
    return widest;
}

static uint32_t widest_products(const struct plan *p, const struct weights *w)
{
    uint32_t widest = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct op_qkv *o = &p->ops[i].qkv;
        if (p->ops[i].kind != OP_QKV || p->ops[i].device != REST)
            continue;
        uint32_t n = linear_rows(w, &o->q) + linear_rows(w, &o->k) + linear_rows(w, &o->v);
        widest = n > widest ? n : widest;
    }
    return widest;
}

int plan_stream(const struct plan *p, const struct weights *w, const char *(*refuses)(const struct op *op),
                struct plan_streamed *out, struct err *e)
{
    const size_t most = 6 * (size_t)p->count; /* an operation becomes five at most */
    bool whole = true;
    struct streamer s = {.from = p, .to = out, .refuses = refuses};
    *out = (struct plan_streamed){.plan = *p};
    out->plan.arena = (struct arena){0};
    out->plan.ops = NULL;
    out->plan.count = out->plan.room = 0;
    for (int i = 0; i < STREAM_WAYS; i++)
        whole &= (out->way[i].op = mem_alloc(most, sizeof *out->way[i].op)) != NULL;
    whole &= (out->origin = mem_alloc(most, sizeof *out->origin)) != NULL;
    for (uint32_t i = 1; i < w->count && !s.failed; i++)
        s.failed = !weights_add(&out->weights, &w->all[i]);
    const uint32_t products = widest_products(p, w), partial = widest_divided(&s, w);
    if (products)
        s.products = plan_buffer(&out->plan, products);
    if (partial)
        s.partial = plan_buffer(&out->plan, partial);
    s.ways = (can_be_fresh(&s) ? ALWAYS : CACHED) & (partial ? ALWAYS : DIVIDED);
    for (uint32_t i = 0; whole && !s.failed && i < p->count; i++) {
        *plan_add(&out->plan, p->ops[i].kind, p->ops[i].layer) = p->ops[i];
        out->origin[i] = i;
    }
    for (uint32_t i = 0; whole && !s.failed && !out->plan.failed && i < p->count; i++)
        stream_op(&s, i);
    if (!whole || s.failed || out->plan.failed) {
        plan_stream_free(out);
        return err_memory(e, "the plan of streamed weights", most * sizeof *out->origin);
    }
    return 0;
}

void plan_stream_free(struct plan_streamed *s)
{
    arena_free(&s->plan.arena);
    weights_free(&s->weights);
    for (int i = 0; i < STREAM_WAYS; i++)
        mem_free(s->way[i].op);
    mem_free(s->origin);
    *s = (struct plan_streamed){0};
}
