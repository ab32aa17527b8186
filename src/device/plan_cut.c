/* Cutting a plan into the parts that different devices run. */
#include "device/plan.h"

#include "codec/dtype.h"
#include "base/mem.h"

#include <string.h>

struct op_io plan_io(const struct op *op)
{
    switch (op->kind) {
    case OP_EMBED:
        return (struct op_io){{op->embed.given}, op->embed.out};
    case OP_QKV:
        return (struct op_io){{op->qkv.given.buffer ? op->qkv.given : op->qkv.in}, op->qkv.out};
    case OP_LATENT:
        return (struct op_io){{op->latent.in}, op->latent.out};
    case OP_ATTN:
        return (struct op_io){{op->attn.in}, op->attn.out};
    case OP_HEADS:
        return (struct op_io){{op->heads.in}, op->heads.out};
    case OP_OUT:
        return (struct op_io){{op->out.in, op->out.tail.residual, op->out.gate.in}, op->out.tail.out};
    case OP_FFN:
        return (struct op_io){{op->ffn.in, op->ffn.tail.residual}, op->ffn.tail.out};
    case OP_MOE:
        return (struct op_io){{op->moe.in, op->moe.tail.residual, op->moe.router_in}, op->moe.tail.out};
    case OP_LOGITS:
        return (struct op_io){{op->logits.in}, {0}};
    case OP_PROJ:
        return (struct op_io){{op->proj.in}, op->proj.out};
    case OP_CONV:
        return (struct op_io){{op->conv.in, op->conv.mul}, op->conv.out};
    case OP_SCAN:
        return (struct op_io){{op->scan.q, op->scan.k, op->scan.v, op->scan.decay, op->scan.write,
                               op->scan.erase, op->scan.rate, op->scan.size, op->scan.least},
                              op->scan.out};
    case OP_CELL:
        return (struct op_io){{op->cell.in, op->cell.gate, op->cell.decay}, op->cell.out};
    case OP_MAP:
        return (struct op_io){{op->map.in, op->map.residual, op->map.like, op->map.by}, op->map.out};
    case OP_MIX:
        return (struct op_io){{op->mix.base, op->mix.in, op->mix.coef}, op->mix.out};
    case OP_INDEX:
        return (struct op_io){{op->index.in}, {0}};
    }
    return (struct op_io){0};
}

bool plan_by_columns(const struct plan *p, uint32_t buffer)
{
    for (uint32_t i = 0; i < p->count; i++) {
        struct op_io io = plan_io(&p->ops[i]);
        if (io.out.buffer == buffer && io.out.col)
            return true;
        for (int k = 0; k < IO_READS; k++)
            if (io.read[k].buffer == buffer && io.read[k].col)
                return true;
    }
    return false;
}

uint32_t plan_kv_layer(const struct op *op)
{
    return op->kind == OP_QKV      ? (op->qkv.k.weight ? op->qkv.layer : UINT32_MAX)
           : op->kind == OP_LATENT ? op->latent.layer
           : op->kind == OP_ATTN   ? op->attn.layer
           : op->kind == OP_INDEX  ? op->index.layer
                                   : UINT32_MAX;
}

uint32_t plan_chooser(const struct plan *p, uint32_t op)
{
    if (p->ops[op].kind != OP_ATTN || !p->ops[op].attn.chosen)
        return UINT32_MAX;
    while (op-- > 0)
        if (p->ops[op].kind == OP_INDEX)
            return op;
    return UINT32_MAX;
}

uint32_t plan_positions(const struct plan *p, const struct weights *w)
{
    uint32_t most = UINT32_MAX;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct op_embed *o = &p->ops[i].embed;
        if (p->ops[i].kind != OP_EMBED || !o->positions)
            continue;
        const uint32_t rows = w->all[o->positions].rows,
                       own = rows > o->position_offset ? rows - o->position_offset : 0;
        most = own < most ? own : most;
    }
    return most;
}

uint32_t plan_state_of(const struct op *op)
{
    return op->kind == OP_CONV   ? op->conv.state
           : op->kind == OP_SCAN ? op->scan.state
           : op->kind == OP_CELL ? op->cell.state
                                 : UINT32_MAX;
}

/* ---- every weight of an operation ---- */

struct visitor {
    void (*visit)(void *arg, weight_id *id);
    void *arg;
};

static void visit_id(const struct visitor *v, weight_id *id)
{
    if (*id)
        v->visit(v->arg, id);
}

static void visit_linear(const struct visitor *v, struct linear *l)
{
    visit_id(v, &l->weight);
    visit_id(v, &l->bias);
}

static void visit_norm(const struct visitor *v, struct norm *n)
{
    visit_id(v, &n->weight);
    visit_id(v, &n->bias);
}

static void visit_tail(const struct visitor *v, struct tail *t)
{
    visit_norm(v, &t->post);
    visit_norm(v, &t->after);
}

static void visit_qkv(const struct visitor *v, struct op_qkv *o)
{
    visit_norm(v, &o->norm);
    visit_linear(v, &o->q);
    visit_linear(v, &o->k);
    visit_linear(v, &o->v);
    visit_norm(v, &o->q_norm);
    visit_norm(v, &o->k_norm);
    visit_norm(v, &o->v_norm);
    visit_id(v, &o->rope.freqs);
}

static void visit_latent(const struct visitor *v, struct op_latent *o)
{
    visit_norm(v, &o->norm);
    visit_norm(v, &o->q_norm);
    visit_norm(v, &o->kv_norm);
    visit_linear(v, &o->q_a);
    visit_linear(v, &o->q_b);
    visit_linear(v, &o->kv_a);
    visit_id(v, &o->k_b);
    visit_id(v, &o->rope.freqs);
}

static void visit_moe(const struct visitor *v, struct op_moe *o)
{
    struct linear *const all[] = {&o->router,      &o->gate,      &o->up,         &o->down,
                                  &o->shared_gate, &o->shared_up, &o->shared_down};
    visit_norm(v, &o->norm);
    visit_norm(v, &o->router_norm);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        visit_linear(v, all[i]);
    visit_id(v, &o->select_bias);
    visit_id(v, &o->expert_scale);
    visit_id(v, &o->shared_router);
    visit_tail(v, &o->tail);
}

static void visit_scan(const struct visitor *v, struct op_scan *o)
{
    visit_norm(v, &o->q_norm);
    visit_norm(v, &o->k_norm);
    visit_id(v, &o->a);
    visit_id(v, &o->bias);
    visit_id(v, &o->skip);
}

static void visit_index(const struct visitor *v, struct op_index *o)
{
    struct linear *const all[] = {&o->q_a, &o->q_b, &o->k, &o->weights};
    visit_norm(v, &o->norm);
    visit_norm(v, &o->q_norm);
    visit_norm(v, &o->k_norm);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        visit_linear(v, all[i]);
    visit_id(v, &o->rope.freqs);
}

void plan_each_weight(struct op *op, void (*visit)(void *arg, weight_id *id), void *arg)
{
    const struct visitor v = {visit, arg};
    switch (op->kind) {
    case OP_EMBED:
        visit_id(&v, &op->embed.table);
        visit_id(&v, &op->embed.positions);
        visit_id(&v, &op->embed.types);
        visit_norm(&v, &op->embed.norm);
        break;
    case OP_QKV:
        visit_qkv(&v, &op->qkv);
        break;
    case OP_LATENT:
        visit_latent(&v, &op->latent);
        break;
    case OP_ATTN:
        visit_id(&v, &op->attn.sinks);
        visit_id(&v, &op->attn.distance);
        break;
    case OP_HEADS:
        visit_id(&v, &op->heads.weight);
        break;
    case OP_OUT:
        visit_norm(&v, &op->out.norm);
        visit_linear(&v, &op->out.linear);
        visit_tail(&v, &op->out.tail);
        break;
    case OP_FFN:
        visit_norm(&v, &op->ffn.norm);
        visit_linear(&v, &op->ffn.gate);
        visit_linear(&v, &op->ffn.up);
        visit_linear(&v, &op->ffn.down);
        visit_id(&v, &op->ffn.xielu);
        visit_norm(&v, &op->ffn.inner);
        visit_tail(&v, &op->ffn.tail);
        break;
    case OP_MOE:
        visit_moe(&v, &op->moe);
        break;
    case OP_LOGITS:
        visit_norm(&v, &op->logits.norm);
        visit_linear(&v, &op->logits.head);
        break;
    case OP_PROJ:
        visit_norm(&v, &op->proj.norm);
        for (uint32_t i = 0; i < op->proj.count; i++)
            visit_linear(&v, &op->proj.linear[i]);
        break;
    case OP_CONV:
        visit_id(&v, &op->conv.weight);
        visit_id(&v, &op->conv.bias);
        break;
    case OP_SCAN:
        visit_scan(&v, &op->scan);
        break;
    case OP_CELL:
        visit_id(&v, &op->cell.a);
        visit_id(&v, &op->cell.gate_bias);
        visit_id(&v, &op->cell.decay_bias);
        break;
    case OP_MAP:
        visit_norm(&v, &op->map.norm);
        visit_id(&v, &op->map.times);
        visit_id(&v, &op->map.plus);
        break;
    case OP_MIX:
        visit_id(&v, &op->mix.fixed);
        break;
    case OP_INDEX:
        visit_index(&v, &op->index);
        break;
    }
}

/* ---- every product of an operation ---- */

enum { SLOTS_MOST = 8 };

/* Products of an operation: their weights, and where their slots are. */
struct slots {
    weight_id weight[SLOTS_MOST];
    uint32_t *slot[SLOTS_MOST];
    uint32_t n;
};

static void slots_add(struct slots *s, weight_id weight, uint32_t *slot)
{
    s->weight[s->n] = weight;
    s->slot[s->n++] = slot;
}

static void slots_linear(struct slots *s, struct linear *l)
{
    slots_add(s, l->weight, &l->adapter);
}

static void slots_moe(struct slots *s, struct op_moe *o)
{
    struct linear *const all[] = {&o->router,      &o->gate,      &o->up,         &o->down,
                                  &o->shared_gate, &o->shared_up, &o->shared_down};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        slots_linear(s, all[i]);
    slots_add(s, o->shared_router, &o->shared_router_adapter);
}

static void slots_of(struct slots *s, struct op *op)
{
    switch (op->kind) {
    case OP_EMBED:
        slots_add(s, op->embed.table, &op->embed.adapter);
        break;
    case OP_QKV:
        slots_linear(s, &op->qkv.q);
        slots_linear(s, &op->qkv.k);
        slots_linear(s, &op->qkv.v);
        break;
    case OP_LATENT:
        slots_linear(s, &op->latent.q_a);
        slots_linear(s, &op->latent.q_b);
        slots_linear(s, &op->latent.kv_a);
        slots_add(s, op->latent.k_b, &op->latent.k_b_adapter);
        break;
    case OP_HEADS:
        slots_add(s, op->heads.weight, &op->heads.adapter);
        break;
    case OP_OUT:
        slots_linear(s, &op->out.linear);
        break;
    case OP_FFN:
        slots_linear(s, &op->ffn.gate);
        slots_linear(s, &op->ffn.up);
        slots_linear(s, &op->ffn.down);
        break;
    case OP_MOE:
        slots_moe(s, &op->moe);
        break;
    case OP_LOGITS:
        slots_linear(s, &op->logits.head);
        break;
    case OP_PROJ:
        for (uint32_t i = 0; i < op->proj.count; i++)
            slots_linear(s, &op->proj.linear[i]);
        break;
    case OP_ATTN:
    case OP_CONV:
    case OP_SCAN:
    case OP_CELL:
        break;
    case OP_INDEX:
        slots_linear(s, &op->index.q_a);
        slots_linear(s, &op->index.q_b);
        slots_linear(s, &op->index.k);
        slots_linear(s, &op->index.weights);
        break;
    case OP_MAP:
    case OP_MIX:
        break;
    }
}

void plan_each_slot(struct op *op, void (*visit)(void *arg, weight_id weight, uint32_t *slot), void *arg)
{
    struct slots s = {.n = 0};
    slots_of(&s, op);
    for (uint32_t i = 0; i < s.n; i++)
        if (s.weight[i])
            visit(arg, s.weight[i], s.slot[i]);
}

/* ---- the cut ---- */

struct renumber {
    const struct weights *from;
    struct weights *to;
    weight_id *number; /* (from.count): the number in `to`; 0 = not there yet */
    bool failed;
};

static void renumber_weight(void *arg, weight_id *id)
{
    struct renumber *r = arg;
    if (!r->number[*id])
        r->number[*id] = weights_add(r->to, &r->from->all[*id]);
    *id = r->number[*id];
    r->failed |= !*id;
}

/* Takes the pairs of a product along, which keeps its slot. */
struct cut_lora {
    const struct plan *from;
    struct plan *to;
    struct renumber *weights;
};

static void cut_slot(void *arg, weight_id weight, uint32_t *slot)
{
    const struct cut_lora *c = arg;
    (void)weight;
    for (uint32_t i = 1; *slot && i <= c->from->adapters; i++) {
        size_t at = (size_t)*slot * (c->from->adapters + 1) + i;
        struct lora_pair *pair = &c->to->lora[at];
        *pair = c->from->lora[at];
        if (!pair->a)
            continue;
        renumber_weight(c->weights, &pair->a);
        renumber_weight(c->weights, &pair->b);
    }
}

/* The layer's place in its group of the part: those that are there count up in order. */
static void cut_kv(const struct plan *p, struct plan *part, uint32_t layer)
{
    if (layer == UINT32_MAX || part->kv[layer].group != UINT32_MAX)
        return;
    uint32_t group = p->kv[layer].group;
    part->kv[layer] = (struct kv_place){.group = group, .index = part->group[group].layers++};
}

/* The states of the part's own operations, one after the other; the others are empty, so that numbers stay. */
static void cut_state(const struct plan *p, struct plan *part, uint32_t number)
{
    if (number == UINT32_MAX || part->state[number].heads)
        return;
    part->state[number] = p->state[number];
    part->state[number].at = part->state_values;
    part->state_values += (size_t)p->state[number].heads * p->state[number].rows * p->state[number].cols;
}

int plan_cut(const struct plan *p, const struct weights *w, uint32_t device, struct plan *part,
             struct weights *own, struct err *e)
{
    struct renumber r = {w, own, mem_zalloc(w->count, sizeof *r.number), false};
    *part = (struct plan){.width = p->width,
                          .fold = p->fold,
                          .given = p->given,
                          .buffers = p->buffers,
                          .layers = p->layers,
                          .groups = p->groups,
                          .part = true};
    *own = (struct weights){0};
    memcpy(part->group, p->group, sizeof part->group);
    part->out_width = p->out_width;
    part->kv = arena_alloc(&part->arena, p->layers ? p->layers : 1, sizeof *part->kv);
    part->states = p->states;
    part->state = arena_alloc(&part->arena, p->states ? p->states : 1, sizeof *part->state);
    size_t pairs = p->lora ? (size_t)(p->slots + 1) * (p->adapters + 1) : 0;
    if (pairs) {
        part->slots = p->slots;
        part->adapters = p->adapters;
        part->lora = arena_alloc(&part->arena, pairs, sizeof *part->lora);
    }
    if (!r.number || !part->kv || !part->state || (pairs && !part->lora)) {
        mem_free(r.number);
        return err_memory(e, "a part of the plan", w->count * sizeof *r.number);
    }
    if (pairs)
        memset(part->lora, 0, pairs * sizeof *part->lora);
    memset(part->state, 0, p->states * sizeof *part->state);
    for (uint32_t g = 0; g < part->groups; g++)
        part->group[g].layers = 0;
    for (uint32_t i = 0; i < p->layers; i++)
        part->kv[i].group = UINT32_MAX;
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->ops[i].device != device)
            continue;
        struct op *op = plan_add(part, p->ops[i].kind, p->ops[i].layer);
        *op = p->ops[i];
        plan_each_weight(op, renumber_weight, &r);
        if (pairs)
            plan_each_slot(op, cut_slot, &(struct cut_lora){p, part, &r});
        cut_kv(p, part, plan_kv_layer(op));
        cut_state(p, part, plan_state_of(op));
    }
    mem_free(r.number);
    return part->failed || r.failed ? err_memory(e, "a part of the plan", p->count * sizeof *p->ops) : 0;
}

uint64_t weight_bytes(const struct weight *w)
{
    size_t row = 0;
    dtype_row_bytes(w->type, w->cols, &row);
    return (uint64_t)row * w->rows * w->count;
}

uint64_t weights_bytes(const struct weights *w)
{
    uint64_t bytes = 0;
    for (uint32_t i = 1; i < w->count; i++)
        bytes += weight_bytes(&w->all[i]);
    return bytes;
}
