#include "device/cuda/passes.h"

#include <string.h>

static bool is_product(const struct launch *l)
{
    return l->args == ARGS_GEMM && !l->a.gemm.tile;
}

static uint32_t form_of(const struct launch *l)
{
    return l->a.gemm.seg[0].w.fmt;
}

static bool forms_fit(uint32_t a, uint32_t b)
{
    return a == b || (layout_is_tile(a) && layout_is_tile(b));
}

/* ---- products that share their input ---- */

/* The pack of both is the same: nothing is between them. */
static bool may_merge(const struct launch *a, const struct launch *b)
{
    const struct gemm_args *x = &a->a.gemm, *y = &b->a.gemm;
    return a->args == ARGS_GEMM && b->args == ARGS_GEMM && x->tile == y->tile && a->m == b->m &&
           x->segs + y->segs <= GEMM_SEGS && x->x == y->x && a->order == b->order && x->k == y->k &&
           x->scale == y->scale && !x->residual && !y->residual && forms_fit(form_of(a), form_of(b));
}

static bool same_norm(const struct norm_args *a, const struct norm_args *b)
{
    return a->kind == b->kind && a->heads == b->heads && a->w == b->w && a->b == b->b && a->eps == b->eps;
}

static bool same_pack(const struct launch *a, const struct launch *b)
{
    const struct pack_args *x = &a->a.pack, *y = &b->a.pack;
    return a->args == ARGS_PACK && b->args == ARGS_PACK && a->m == b->m && a->rows.of == b->rows.of &&
           a->kernel == b->kernel && x->x == y->x && x->k == y->k && same_norm(&x->norm, &y->norm) &&
           span_same(a->writes[0], b->writes[0]);
}

void pass_pack_once(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    (void)l;
    (void)c;
    for (uint32_t i = 0; i + 2 < list->count; i++) {
        const struct launch *a = &list->all[i], *p = a + 1, *b = a + 2;
        if (a->m == 1 && is_product(p) && same_pack(a, b) && !launch_writes(p, a->reads[0]) &&
            !launch_writes(p, a->writes[0]))
            launch_remove(list, i + 2);
    }
}

void pass_merge_products(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    (void)l;
    (void)c;
    for (uint32_t i = 0; i + 1 < list->count;) {
        struct launch *a = &list->all[i], *b = a + 1;
        if (!may_merge(a, b)) {
            i++;
            continue;
        }
        for (uint32_t s = 0; s < b->a.gemm.segs; s++)
            a->a.gemm.seg[a->a.gemm.segs++] = b->a.gemm.seg[s];
        if (!span_same(a->writes[0], b->writes[0]))
            a->writes[1] = b->writes[0];
        a->why = "products that share their input";
        launch_remove(list, i + 1);
    }
}

/* ---- gate, up and activation ---- */

static bool takes_both(const struct launch *l, const struct gemm_args *g, enum launch_place to)
{
    return l->args == ARGS_ACT && l->a.act.gate == g->seg[0].y && l->a.act.up == g->seg[1].y &&
           launch_writes(l, (struct span){.place = (uint8_t)to});
}

/* What the adapters of the next product read is then the product's own result. */
static void redirect_adapters(struct launch_list *list, uint32_t i, const float *x, uint64_t ldx)
{
    const struct span rows = {.place = PLACE_LORA_X};
    for (; i < list->count && !launch_writes(&list->all[i], rows); i++) {
        struct launch *l = &list->all[i];
        if (l->args != ARGS_LORA || !span_same(l->reads[0], rows))
            continue;
        l->a.lora.x = x;
        l->a.lora.ldx = ldx;
        l->reads[0] = (struct span){.place = PLACE_Y};
    }
}

void pass_pair_activation(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    (void)l;
    (void)c;
    for (uint32_t i = 0; i + 1 < list->count; i++) {
        struct gemm_args *g = &list->all[i].a.gemm;
        if (list->all[i].args != ARGS_GEMM || g->segs != 2 ||
            (!g->tile && layout_plain_bytes(g->seg[0].w.fmt) && list->all[i].order != PACK_ROWS &&
             !(list->all[i].m == 1 && gpu_is_one(&g->seg[0].w) && gpu_is_one(&g->seg[1].w))))
            continue;
        const bool adapters = takes_both(&list->all[i + 1], g, PLACE_LORA_X);
        const uint32_t at = i + 1 + adapters, f = g->seg[0].w.n;
        if (at >= list->count || !takes_both(&list->all[at], g, PLACE_PACK))
            continue;
        struct launch *act = &list->all[at];
        g->paired = 1;
        g->act = act->a.act.act;
        g->alpha = act->a.act.alpha;
        g->limit = act->a.act.limit;
        g->seg[0].ldy = f;
        list->all[i].why = g->tile ? "gate and up of experts in turns, the activation in the product"
                                   : "gate and up in turns, the activation in the product";
        act->a.act.gate = NULL;
        act->a.act.up = g->seg[0].y;
        act->a.act.ld = f;
        act->a.act.act = ACT_NONE;
        act->why = "input packed as fp16";
        if (adapters) {
            redirect_adapters(list, at + 1, g->seg[0].y, f);
            launch_remove(list, i + 1);
        }
    }
}

/* ---- one row ---- */

/* What a launch packs: one row of x, normed or not. */
struct row_input {
    const float *x;
    uint32_t k;
    struct norm_args norm;
};

/* Whether a norm, if there is one, is a factor of the whole row: a product multiplies its results with that, and need not
 * hold the row until it is known. */
static bool packs_row(const struct launch *l, const struct step_class *c, struct row_input *in)
{
    if (!launch_writes(l, (struct span){.place = PLACE_PACK}) || l->m != 1 || l->rows.of == ROWS_PAIRS ||
        (l->rows.of == ROWS_RESULTS && c->rows != 1))
        return false;
    if (l->args == ARGS_PACK)
        *in = (struct row_input){l->a.pack.x, l->a.pack.k, l->a.pack.norm};
    else if (l->args == ARGS_ACT && !l->a.act.gate && l->a.act.act == ACT_NONE && !l->a.act.xielu)
        *in = (struct row_input){.x = l->a.act.up, .k = l->a.act.k};
    else
        return false;
    const uint32_t most = norm_is_factor(&in->norm) ? GEMM_ROW_MOST : GEMM_NORM_MOST;
    return in->k <= most && ((uintptr_t)in->x & 15) == 0;
}

/* Whether a product of one row can make its input itself: by gemm_one, or by gemm_tile_1. */
static bool is_small(const struct gemm_args *g)
{
    bool small = true;
    for (uint32_t s = 0; s < g->segs; s++)
        small = small && gpu_is_one(&g->seg[s].w);
    return small;
}

static bool takes_row(const struct gemm_args *g)
{
    bool tiles = g->k % 8 == 0;
    for (uint32_t s = 0; s < g->segs; s++)
        tiles = tiles && layout_is_tile(g->seg[s].w.fmt);
    return tiles || is_small(g);
}

/* Whether a product of one row may read x while its blocks write. */
static bool apart(const struct gemm_args *g, const struct row_input *in)
{
    for (uint32_t s = 0; s < g->segs; s++)
        if (g->seg[s].y < in->x + in->k && in->x < g->seg[s].y + g->seg[s].w.n)
            return false;
    return true;
}

/* Launch i packs a row. The products that read the pack make it themselves, up to the first that cannot; before that one
 * the launch is still needed. */
static void fuse_row(struct launch_list *list, uint32_t i, const struct row_input *in)
{
    const struct span pack = {.place = PLACE_PACK};
    uint32_t fused = 0, j = i + 1;
    for (; j < list->count && !launch_writes(&list->all[j], pack); j++) {
        struct launch *p = &list->all[j];
        if (!launch_reads(p, pack))
            continue;
        if (!is_product(p) || !takes_row(&p->a.gemm) || !apart(&p->a.gemm, in))
            break;
        p->a.gemm.in = (struct gemm_in){.x = in->x, .norm = in->norm};
        p->reads[0] = list->all[i].reads[0];
        p->why = p->a.gemm.paired
                     ? "one row: norms its input itself; gate and up in turns, and the activation"
                 : in->norm.kind == NORM_NONE ? "one row: packs its input itself"
                                              : "one row: norms its input itself";
        fused++;
    }
    const bool needed = j < list->count && launch_reads(&list->all[j], pack);
    if (!fused)
        return;
    const struct launch moved = list->all[i];
    if (needed)
        *launch_insert(list, j) = moved;
    launch_remove(list, i);
}

void pass_row_input(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    struct row_input in;
    (void)l;
    for (uint32_t i = 0; i < list->count; i++)
        if (packs_row(&list->all[i], c, &in))
            fuse_row(list, i, &in);
}

/* ---- one row of a recurrent layer ---- */

static bool is_row_product(const struct launch *l)
{
    if (!is_product(l) || !l->a.gemm.in.x || l->m != 1 || l->a.gemm.k % TILE_COLS)
        return false;
    for (uint32_t s = 0; s < l->a.gemm.segs; s++)
        if (!layout_is_tile(l->a.gemm.seg[s].w.fmt))
            return false;
    return true;
}

/* Whether slices of a gated row are within a warp's columns. */
static bool may_gate(const struct gate_args *g)
{
    const uint32_t slice = g->norm.kind == NORM_NONE ? 0 : g->k / (g->norm.heads > 1 ? g->norm.heads : 1);
    return (g->norm.kind == NORM_NONE || (g->norm.kind == NORM_RMS && !g->norm.b)) && g->gate &&
           ((uintptr_t)g->gate & 15) == 0 && ((uintptr_t)g->x & 15) == 0 && !(slice & (slice - 1)) &&
           (!slice || (slice >= GATE_SLICE_LEAST && slice <= GATE_SLICE_MOST)) &&
           (!g->gate_heads || g->k / g->gate_heads % 8 == 0);
}

static bool read_after(const struct launch_list *list, uint32_t i, struct span what)
{
    for (; i < list->count && !launch_writes(&list->all[i], what); i++)
        if (launch_reads(&list->all[i], what))
            return true;
    return false;
}

void pass_gate_input(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    (void)l;
    (void)c;
    for (uint32_t i = 0; i + 1 < list->count; i++) {
        const struct launch *gate = &list->all[i];
        const struct gate_args *g = &gate->a.gate;
        struct launch *p = &list->all[i + 1];
        const struct row_input x = {.x = g->x, .k = g->k}, by = {.x = g->gate, .k = g->k};
        if (gate->args != ARGS_GATE || !is_row_product(p) || p->a.gemm.in.x != g->out ||
            p->a.gemm.in.norm.kind != NORM_NONE || !may_gate(g) || !apart(&p->a.gemm, &x) ||
            !apart(&p->a.gemm, &by) || read_after(list, i + 2, gate->writes[0]))
            continue;
        const uint32_t slices = g->norm.heads > 1 ? g->norm.heads : 1;
        p->a.gemm.in = (struct gemm_in){.x = g->x, .norm = g->norm};
        p->a.gemm.in.gate = (struct gemm_gate){.gate = g->gate,
                                               .act = g->act,
                                               .heads = g->gate_heads,
                                               .first = g->first,
                                               .slice = g->norm.kind == NORM_NONE ? 0 : g->k / slices};
        p->reads[0] = gate->reads[0];
        p->reads[LAUNCH_READS - 1] = gate->reads[1];
        p->why = "one row: gates and norms its input itself";
        launch_remove(list, i);
    }
}

/* Whether blocks may write the convolution's results while others still read the row, or its gate. */
static bool conv_apart(const struct gemm_args *g, const struct conv_args *a)
{
    const float *const in[] = {g->in.x, g->in.gate.gate};
    for (int i = 0; i < 2; i++)
        if (in[i] && a->y < in[i] + g->k && in[i] < a->y + a->channels)
            return false;
    return true;
}

void pass_conv_results(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    (void)l;
    for (uint32_t i = 0; i + 1 < list->count && c->single && c->rows == 1; i++) {
        struct launch *p = &list->all[i];
        const struct launch *conv = p + 1;
        const struct conv_args *a = &conv->a.conv;
        if (conv->args != ARGS_CONV || !a->keep || a->mul || a->cols > GEMM_CONV_COLS || !is_row_product(p) ||
            p->a.gemm.paired)
            continue;
        uint32_t s = 0;
        while (s < p->a.gemm.segs && (p->a.gemm.seg[s].y != a->x || p->a.gemm.seg[s].w.n != a->channels))
            s++;
        if (s == p->a.gemm.segs || !conv_apart(&p->a.gemm, a))
            continue;
        p->a.gemm.conv = (struct gemm_conv){.w = a->w,
                                            .bias = a->bias,
                                            .y = a->y,
                                            .state = a->state.base,
                                            .ldw = a->ldw,
                                            .stride = a->state.stride,
                                            .seg = s,
                                            .act = a->act,
                                            .channels = a->channels,
                                            .cols = a->cols};
        p->writes[1] = conv->writes[0];
        p->why = "one row: norms its input itself, and convolves results";
        launch_remove(list, i + 1);
    }
}

/* Whether an operation behind `op` reads the buffer before it is written again. */
static bool read_later(const struct plan *p, uint32_t op, uint32_t buffer)
{
    for (uint32_t k = op + 1; k < p->count; k++) {
        const struct op_io io = plan_io(&p->ops[k]);
        for (int i = 0; i < IO_READS; i++)
            if (io.read[i].buffer == buffer)
                return true;
        if (io.out.buffer == buffer)
            return false;
    }
    return false;
}

void pass_join_parts(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    (void)c;
    for (uint32_t i = 0; i + 1 < list->count; i++) {
        const struct attn_args *a = &list->all[i].a.attn;
        struct launch *p = &list->all[i + 1];
        if (list->all[i].kernel != K_ATTN_COMBINE || !is_product(p) || p->a.gemm.in.x != a->out ||
            a->splits > GEMM_PARTS_MOST || p->a.gemm.in.norm.kind != NORM_NONE ||
            read_later(l->plan, p->op, list->all[i].writes[0].buffer))
            continue;
        p->a.gemm.in.parts = (struct gemm_parts){.part = a->part,
                                                 .ml = a->part_ml,
                                                 .sinks = a->sinks,
                                                 .splits = a->splits,
                                                 .window = a->window,
                                                 .queries = a->part_queries,
                                                 .group = a->heads / a->kv.heads,
                                                 .dim = a->kv.v_dim};
        p->reads[0] = (struct span){.place = PLACE_PARTS};
        p->why = "one row: joins attention's parts and packs them itself";
        launch_remove(list, i);
    }
}

/* ---- attention and the product behind it ---- */

void pass_attention_packs(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    (void)l;
    for (uint32_t i = 0; i + 1 < list->count && !c->tiles; i++) {
        struct launch *a = &list->all[i], *rows = a + 1;
        const struct attn_args *x = &a->a.attn;
        const bool joins = a->kernel == K_ATTN_COMBINE;
        if (a->args != ARGS_ATTN || !x->part_queries || (!joins && x->splits > 1) ||
            rows->args != ARGS_PACK ||
            (!launch_writes(rows, (struct span){.place = PLACE_PACK}) &&
             !launch_writes(rows, (struct span){.place = PLACE_HALF})))
            continue;
        const struct pack_args *p = &rows->a.pack;
        /* a block that has all keys has whole heads, which it can pack only where they make whole columns */
        if (p->x != x->out || p->norm.kind != NORM_NONE || p->k != x->heads * x->kv.v_dim ||
            (!joins && x->heads / x->kv.heads * x->kv.v_dim % 256))
            continue;
        a->a.attn.pack = p->out;
        if (p->out.half)
            a->a.attn.pack.pack = (uint8_t *)p->out.half;
        a->writes[1] = rows->writes[0];
        a->why = joins ? "joins the parts of blocks that shared keys, packs the rows"
                       : "few queries, few keys: a block has all, and packs the rows";
        if (joins)
            list->all[i - 1].a.attn.pack = a->a.attn.pack;
        launch_remove(list, i + 1);
    }
}

enum { HEADS_SPLITS_MOST = 1 };

void pass_finish_heads(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    for (uint32_t i = 0; i + 1 < list->count && c->single; i++) {
        const struct launch *heads = &list->all[i];
        struct launch *a = &list->all[i + 1];
        const struct qkv_args *q = &heads->a.qkv;
        /* blocks that share keys would repeat it; with more stages, one block less fits on an SM */
        const bool few = a->kernel >= K_ATTN_FEW && a->kernel < K_ATTN_FEW + 4 &&
                         a->a.attn.splits <= HEADS_SPLITS_MOST &&
                         gpu_finishes_heads(l->card, (uint64_t)q->kv.heads * c->seqs);
        if (heads->args != ARGS_QKV || a->args != ARGS_ATTN || !few || a->a.attn.q != q->out ||
            q->k_heads != q->kv.heads || q->kv.base != a->a.attn.kv.base ||
            read_later(l->plan, a->op, heads->writes[0].buffer))
            continue;
        a->kernel = (uint16_t)(K_ATTN_ROW + (a->kernel - K_ATTN_FEW));
        a->args = ARGS_ATTN_ROW;
        const uint32_t warps = q->heads / q->kv.heads + 2;
        a->grid.threads = 32 * warps > a->grid.threads ? 32 * warps : a->grid.threads;
        a->a.attn_row.qkv = *q;
        a->reads[0] = heads->reads[0];
        a->why = "a row a sequence: finishes its heads itself";
        launch_remove(list, i);
    }
}

/* ---- sums and norms ---- */

static bool sums_for(const struct launch *tail, const struct launch *rows)
{
    const struct tail_args *t = &tail->a.tail;
    const struct pack_args *p = &rows->a.pack;
    const struct launch_rows *a = &tail->rows, *b = &rows->rows;
    return tail->args == ARGS_TAIL && rows->args == ARGS_PACK && t->post.kind == NORM_NONE &&
           t->after.kind == NORM_NONE && p->x == t->out && p->ldx == t->ldo && p->k == t->n && !p->x_row &&
           !p->slot && a->of == ROWS_STEP && b->of == ROWS_STEP && a->first == b->first && a->most == b->most;
}

static void sum_in(const struct launch *tail, struct launch *rows)
{
    const struct tail_args *a = &tail->a.tail;
    rows->a.pack.sum = (struct pack_sum){.y = a->y,
                                         .ldy = a->ldy,
                                         .row_scale = a->row_scale,
                                         .bias = a->bias,
                                         .residual = a->residual,
                                         .ldr = a->ldr,
                                         .scale = a->scale};
    rows->kernel += K_NORM_SUM - K_NORM_PACK;
    rows->reads[0] = tail->reads[0];
    rows->reads[1] = tail->reads[1];
    rows->writes[1] = tail->writes[0];
    rows->why = "scale, bias and residual behind the product, and the next one's input";
}

/* The sum of experts is over all of the step's rows: layers of more than that come in parts. */
static bool combines_for(const struct launch *sum, const struct launch *rows)
{
    const struct combine_args *c = &sum->a.combine;
    const struct pack_args *p = &rows->a.pack;
    const struct launch_rows *a = &sum->rows, *b = &rows->rows;
    return sum->args == ARGS_COMBINE && rows->args == ARGS_PACK && rows->kernel >= K_NORM_PACK &&
           rows->kernel <= K_NORM_PACK + 1 && p->x == c->out && p->ldx == c->ldo && p->k == c->n &&
           !p->x_row && !p->slot && a->of == ROWS_STEP && b->of == ROWS_STEP && !a->first && !b->first &&
           sum->m == rows->m && sum->m <= a->most && sum->m <= b->most;
}

static void combine_in(const struct launch *sum, struct launch *rows)
{
    const struct pack_combine_args both = {.pack = rows->a.pack, .from = sum->a.combine};
    rows->a.pack_combine = both;
    rows->args = ARGS_PACK_COMBINE;
    rows->kernel += K_NORM_COMBINE - K_NORM_PACK;
    memcpy(rows->reads, sum->reads, sizeof rows->reads);
    rows->writes[1] = sum->writes[0];
    rows->why = "weighted sum of the experts, and the next product's input";
}

void pass_sum_rows(struct launch_list *list)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        struct launch *t = &list->all[i], *next = t + 1;
        const bool last = i + 1 == list->count;
        if (!last && sums_for(t, next))
            sum_in(t, next);
        else if (!last && combines_for(t, next))
            combine_in(t, next);
        else if (count++ != i)
            list->all[count - 1] = *t;
    }
    list->count = count;
}

/* ---- results ---- */

void pass_direct_results(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    (void)c;
    for (uint32_t i = 1; i < list->count; i++) {
        struct launch *p = &list->all[i - 1];
        if (list->all[i].args != ARGS_RESULTS || !is_product(p) ||
            !launch_writes(p, (struct span){.place = PLACE_LOGITS}))
            continue;
        p->a.gemm.seg[0].y = l->at->results;
        p->writes[0] = (struct span){.place = PLACE_HOST};
        launch_remove(list, i);
    }
}

/* ---- kernels ---- */

/* Rows [row, ...) of a product of many. */
static void cut_at(struct launch *l, uint32_t row)
{
    struct gemm_args *g = &l->a.gemm;
    l->m = l->m - row < GEMM_ROWS_MOST ? l->m - row : GEMM_ROWS_MOST;
    l->rows.first += row;
    l->rows.most = GEMM_ROWS_MOST;
    g->x += (uint64_t)(row / PACK_STREAMS) * ((g->k + 255) / 256) * PACK_BYTES;
    g->residual = g->residual ? g->residual + row * g->ldr : NULL;
    for (uint32_t s = 0; s < g->segs; s++)
        g->seg[s].y += row * g->seg[s].ldy;
}

void pass_cut_rows(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    (void)l;
    (void)c;
    for (uint32_t i = 0; i < list->count; i++) {
        const uint32_t m = list->all[i].m;
        if (!is_product(&list->all[i]) || m <= GEMM_ROWS_MOST || list->all[i].order == PACK_ROWS)
            continue;
        const struct launch whole = list->all[i];
        for (uint32_t row = 0; row < m; row += GEMM_ROWS_MOST) {
            struct launch *part = row ? launch_insert(list, ++i) : &list->all[i];
            *part = whole;
            cut_at(part, row);
        }
    }
}

static uint32_t strips_of(const struct gemm_args *g, uint32_t outputs)
{
    uint32_t strips = 0;
    for (uint32_t s = 0; s < g->segs; s++)
        strips += (g->seg[s].w.n + outputs - 1) / outputs;
    return strips;
}

static const char *reason(const struct launch *l, const struct gpu_gemm *how)
{
    if (l->a.gemm.tile)
        return how->kernel == K_GEMM_WIDE ? "by wgmma" : "a warp has a strip of 16 outputs";
    if (how->kernel >= K_GEMM_MANY && how->kernel < K_GEMM_MANY + MANY_KERNELS)
        return how->stream_k    ? "many rows: wgmma, stream-K: blocks have equal shares of all columns"
               : how->split > 1 ? "many rows: wgmma, blocks share columns"
                                : "many rows: wgmma";
    if (how->kernel == K_GEMM_STAGED || how->kernel == K_GEMM_STAGED_FEW)
        return "columns of x staged in shared memory";
    if (how->kernel == K_GEMM_ONE)
        return "a small weight: a warp has an output";
    if (how->split == 1)
        return "a warp has a strip of 16 outputs";
    return l->m == 1 && how->split == GEMM_DEEP ? "one row, few strips: 16 warps share one"
                                                : "warps share a strip, to fill the card";
}

/* Tiles of rows, each with the matrix of its expert. */
static struct gpu_gemm choose_experts(const struct lower *l, struct launch *p)
{
    struct gemm_args *g = &p->a.gemm;
    const bool cores = p->order == PACK_CORES;
    const uint32_t unit = cores ? 64 : TILE_ROWS;
    return gpu_gemm_experts(l->card, form_of(p), 8 * g->groups, p->m, strips_of(g, unit) * unit, g->k,
                            g->paired, cores);
}

static struct gpu_gemm choose_many(const struct lower *l, struct launch *p)
{
    const struct gemm_args *g = &p->a.gemm;
    const struct gpu_many many = {
        .m = p->m, .k = g->k, .units = strips_of(g, MANY_UNIT), .paired = g->paired};
    struct gpu_gemm how = gpu_gemm_many(l->card, &many), shared;
    if (l->options.stream_k && gpu_gemm_many_stream_k(l->card, &many, gpu_many_rows(p->m, MANY_STREAM_K),
                                                      MANY_WARPS / 4, l->options.stream_k, &shared))
        how = shared;
    p->grid_rows = GRID_X;
    p->each = (uint8_t)how.rows;
    return how;
}

/* A product of one row without a gate, parts to join or a convolution. */
static bool is_plain(const struct gemm_args *g)
{
    return !g->in.parts.part && !g->in.gate.gate && !g->conv.w && norm_is_factor(&g->in.norm);
}

void pass_choose_kernels(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    (void)c;
    for (uint32_t i = 0; i < list->count; i++) {
        struct launch *p = &list->all[i];
        struct gemm_args *g = &p->a.gemm;
        if (p->args != ARGS_GEMM)
            continue;
        const bool one = g->in.x && is_small(g);
        struct gpu_gemm how =
            one       ? gpu_gemm_one(l->card, g->paired ? g->seg[0].w.n : strips_of(g, 1), g->k)
            : g->tile ? choose_experts(l, p)
            : p->order == PACK_ROWS
                ? choose_many(l, p)
                : gpu_gemm_choose(l->card, form_of(p), p->m, strips_of(g, TILE_ROWS), g->k, g->paired);
        g->split = how.split;
        g->stages = how.stages;
        g->strips = 0;
        for (uint32_t s = 0; s < g->segs; s++) {
            g->seg[s].first = g->strips;
            g->strips += (g->seg[s].w.n + how.outputs - 1) / how.outputs;
        }
        if (one && g->paired)
            g->strips = g->seg[0].w.n;
        p->how = reason(p, &how);
        if (g->in.x && !one) {
            how.kernel = is_plain(g) ? K_GEMM_ROW : K_GEMM_ROW_ANY;
            how.grid.shared = (g->k + 255) / 256 * ROW_COLUMN;
        }
        p->kernel = (uint16_t)how.kernel;
        p->grid = how.grid;
    }
}

/* What kernels may read before they wait. The sorting starts its successor, which packs rows for slots, only after its own
 * wait: x is complete then. The packing does the same, so the list of tiles is complete for every later launch. x and the
 * list change again only in launches that wait for all of these. */
void pass_tiles_there(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    const struct span route = {.place = PLACE_ROUTE};
    (void)l;
    (void)c;
    for (uint32_t i = 0; i + 1 < list->count; i++) {
        struct launch *sort = &list->all[i], *rows = sort + 1;
        struct pack_args *p = &rows->a.pack;
        if ((sort->args != ARGS_GROUP && sort->args != ARGS_SORT) || rows->args != ARGS_PACK || !p->slot)
            continue;
        struct group_args *g = sort->args == ARGS_SORT ? &sort->a.sort.group : &sort->a.group;
        g->late = p->x_there = 1;
        for (uint32_t j = i + 2; j < list->count && !launch_writes(&list->all[j], route); j++)
            if (list->all[j].args == ARGS_GEMM && list->all[j].a.gemm.tile)
                list->all[j].a.gemm.tile_there = 1;
    }
}

/* Kernels that a benchmark wants left out. */
static void leave_out(const struct lower *l, struct launch_list *list)
{
    for (uint32_t i = 0; l->options.without && i < list->count;)
        if (l->options.without[list->all[i].kernel])
            launch_remove(list, i);
        else
            i++;
}

void passes_run(const struct lower *l, const struct step_class *c, struct launch_list *list)
{
    if (!l->options.no_fuse)
        pass_pack_once(l, c, list);
    pass_merge_products(l, c, list);
    if (!l->options.no_fuse) {
        pass_pair_activation(l, c, list);
        pass_row_input(l, c, list);
        pass_join_parts(l, c, list);
        pass_gate_input(l, c, list);
        pass_conv_results(l, c, list);
    }
    pass_attention_packs(l, c, list);
    if (!l->options.no_fuse)
        pass_finish_heads(l, c, list);
    pass_direct_results(l, c, list);
    pass_cut_rows(l, c, list);
    pass_choose_kernels(l, c, list);
    leave_out(l, list);
    if (!l->options.no_fuse)
        pass_tiles_there(l, c, list);
}
