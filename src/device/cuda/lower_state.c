/* Layers that keep a state: projections, convolutions, recurrences, and gated inputs of products. */
#include "device/cuda/build.h"

/* act of finished results, in place. */
static void put_act_of(struct lowering *b, enum act_kind act, const struct product *p)
{
    const uint32_t n = mat_of(b, p->weight)->n;
    struct launch *l = lowering_add(b, K_ACT_ROWS, ARGS_ACT, gpu_grid(0, 1, 1, ACT_THREADS, 0), "activation");
    lowering_grid_rows(l, GRID_X, 1);
    l->a.act =
        (struct act_args){.up = p->y, .ld = p->ldy, .k = n, .act = act, .out = {.rows = p->y, .ldr = p->ldy}};
    l->reads[0] = l->writes[0] = p->to;
}

/* Products side by side in the columns of one buffer, GEMM_SEGS with the same scale at a time. */
void lower_proj(struct lowering *b, const struct op_proj *o)
{
    const struct input in = {.x = buffer_at(b, o->in),
                             .ldx = buffer_ld(b, o->in),
                             .from = buffer_span(o->in),
                             .k = mat_of(b, o->linear[0].weight)->k,
                             .norm = &o->norm};
    struct operand to = o->out;
    for (uint32_t i = 0; i < o->count;) {
        const uint32_t from = i;
        struct product_set s = {.after = {.scale = o->scale[i]}};
        weight_id all[GEMM_SEGS];
        for (; i < o->count && s.n < GEMM_SEGS && o->scale[i] == s.after.scale; i++) {
            const struct linear *l = &o->linear[i];
            all[s.n] = l->weight;
            s.p[s.n++] = (struct product){l->weight,        l->bias,          l->adapter,
                                          buffer_at(b, to), buffer_ld(b, to), buffer_span(to)};
            to.col += mat_of(b, l->weight)->n;
        }
        s.path = path_of(b, all, s.n);
        s.order = order_of(b, s.p, s.n);
        const struct lora_rows lora = lower_input(b, &s, &in);
        lower_finished(b, &s, &lora);
        for (uint32_t j = 0; j < s.n; j++)
            if (o->act[from + j] != ACT_NONE)
                put_act_of(b, o->act[from + j], &s.p[j]);
    }
}

/* Keys of a column of state: padded, so that lanes move four at once. */
static uint32_t scan_keys(const struct op_scan *o)
{
    return (o->k_dim + 3) / 4 * 4;
}

/* Floats that an operation keeps of a sequence: a convolution its last columns, (cols - 1, channels), a recurrence
 * (heads, v_dim, keys) or (cell_kept, channels). */
static uint64_t kept_floats(const struct op *o)
{
    const uint64_t n = o->kind == OP_CONV   ? (uint64_t)(o->conv.cols - 1) * o->conv.channels
                       : o->kind == OP_SCAN ? (uint64_t)o->scan.heads * o->scan.v_dim * scan_keys(&o->scan)
                       : o->kind == OP_CELL ? (uint64_t)o->cell.channels * cell_kept(o->cell.kind)
                                            : 0;
    return (n + 3) / 4 * 4;
}

/* Where an operation's part of a slot begins. */
static uint64_t state_offset(const struct plan *p, uint32_t number)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (plan_state_of(&p->ops[i]) == number)
            break;
        at += kept_floats(&p->ops[i]);
    }
    return at;
}

uint64_t state_floats(const struct plan *p)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < p->count; i++)
        all += kept_floats(&p->ops[i]);
    return all;
}

static struct state_view state_of(const struct lowering *b, uint32_t number)
{
    return (struct state_view){.base = b->l->state + state_offset(b->l->plan, number),
                               .stride = b->l->state_floats};
}

static struct launch *put_conv(struct lowering *b, const struct op_conv *o, uint32_t kernel,
                               const struct conv_args *a, const char *why)
{
    struct launch *l = lowering_add(
        b, kernel, ARGS_CONV, gpu_grid(gpu_blocks(o->channels, CONV_THREADS), 0, 1, CONV_THREADS, 0), why);
    l->a.conv = *a;
    l->reads[0] = buffer_span(o->in);
    l->reads[1] = buffer_span(o->mul);
    l->reads[2] = span_of(PLACE_STATE);
    return l;
}

void lower_conv(struct lowering *b, const struct op_conv *o)
{
    const struct conv_args a = {.x = buffer_at(b, o->in),
                                .ldx = buffer_ld(b, o->in),
                                .mul = buffer_at(b, o->mul),
                                .ldm = buffer_ld(b, o->mul),
                                .y = buffer_at(b, o->out),
                                .ldy = buffer_ld(b, o->out),
                                .w = vector_of(b, o->weight),
                                .ldw = mat_of(b, o->weight)->stride / sizeof(float),
                                .bias = vector_of(b, o->bias),
                                .act = o->act,
                                .channels = o->channels,
                                .cols = o->cols,
                                .keep = b->c->single,
                                .state = state_of(b, o->state)};
    struct launch *l = put_conv(b, o, o->cols <= 4 ? K_CONV : K_CONV + 1, &a, "causal convolution");
    lowering_grid_rows(l, GRID_Y, CONV_ROWS);
    l->writes[0] = buffer_span(o->out);
    if (b->c->single) {
        l->writes[1] = span_of(PLACE_STATE);
        return;
    }
    l = put_conv(b, o, K_CONV_STATE, &a, "the columns that rows leave to the next step");
    lowering_grid_rows(l, GRID_SEQS, 1);
    l->writes[0] = span_of(PLACE_STATE);
}

/* Which of the kernels for 1, 2, 4 ... 32 lanes a column. */
static uint32_t scan_lanes(uint32_t k_dim)
{
    uint32_t i = 0;
    while ((uint32_t)SCAN_EACH << i < k_dim)
        i++;
    return i;
}

static struct scan_args scan_args_of(const struct lowering *b, const struct op_scan *o, bool by_channel)
{
    return (struct scan_args){.q = buffer_at(b, o->q),
                              .k = buffer_at(b, o->k),
                              .v = buffer_at(b, o->v),
                              .decay = buffer_at(b, o->decay),
                              .write = buffer_at(b, o->write),
                              .erase = buffer_at(b, o->erase),
                              .rate = buffer_at(b, o->rate),
                              .out = buffer_at(b, o->out),
                              .ldq = buffer_ld(b, o->q),
                              .ldk = buffer_ld(b, o->k),
                              .ldv = buffer_ld(b, o->v),
                              .ldd = buffer_ld(b, o->decay),
                              .ldw = buffer_ld(b, o->write),
                              .lde = buffer_ld(b, o->erase),
                              .ldr = buffer_ld(b, o->rate),
                              .size = buffer_at(b, o->size),
                              .lds = buffer_ld(b, o->size),
                              .least = buffer_at(b, o->least),
                              .ldl = buffer_ld(b, o->least),
                              .size_eps = o->size_eps,
                              .ldo = buffer_ld(b, o->out),
                              .q_norm = norm_of(b, &o->q_norm),
                              .k_norm = norm_of(b, &o->k_norm),
                              .q_scale = o->q_scale,
                              .k_scale = o->k_scale,
                              .heads = o->heads,
                              .k_heads = o->k_heads,
                              .k_dim = o->k_dim,
                              .v_dim = o->v_dim,
                              .keys = scan_keys(o),
                              .sharing = o->sharing ? o->sharing : 1,
                              .tiled = o->tiled,
                              .delta = o->delta,
                              .decay_each = o->decay_each,
                              .by_channel = by_channel,
                              .before = o->before,
                              .rest = o->rest,
                              .decay_kind = o->decay_kind,
                              .a = vector_of(b, o->a),
                              .lda = mat_of(b, o->a)->stride / sizeof(float),
                              .bias = vector_of(b, o->bias),
                              .skip = vector_of(b, o->skip),
                              .dt_least = o->dt_range[0],
                              .dt_most = o->dt_range[1],
                              .bound = o->bound,
                              .write_scale = o->write_scale,
                              .rows_most = UINT32_MAX,
                              .chunks = b->l->at->chunks,
                              .state = state_of(b, o->state)};
}

static struct launch *put_scan(struct lowering *b, const struct op_scan *o, uint32_t kernel,
                               const struct scan_args *a, struct gpu_grid grid, const char *why)
{
    struct launch *l = lowering_add(b, kernel, ARGS_SCAN, grid, why);
    l->a.scan = *a;
    l->reads[0] = buffer_span(o->v);
    l->reads[1] = buffer_span(o->decay.buffer ? o->decay : o->write);
    return l;
}

/* Sequences of many rows, in chunks. */
static void put_chunks(struct lowering *b, const struct op_scan *o, struct scan_args a)
{
    const uint32_t keys = scan_chunk_keys(o->k_dim), kind = (keys > 64) + (o->delta ? 2 : 0);
    a.rows_least = CHUNK_LEAST;
    struct launch *l =
        put_scan(b, o, K_SCAN_READY + kind, &a, gpu_grid(0, o->heads, 1, READY_THREADS, READY_SHARED(keys)),
                 "chunks of the recurrence as matrices");
    lowering_grid_rows(l, GRID_X, CHUNK_LEAST);
    l->writes[0] = span_of(PLACE_CHUNKS);
    l = put_scan(
        b, o, K_SCAN_FOLLOW + kind, &a,
        gpu_grid(o->heads * gpu_blocks(o->v_dim, CHUNK_COLUMNS), 0, 1, FOLLOW_THREADS, FOLLOW_SHARED(keys)),
        "the recurrence, 64 rows at a time");
    lowering_grid_rows(l, GRID_SEQS, 1);
    l->reads[2] = span_of(PLACE_STATE);
    l->reads[3] = span_of(PLACE_CHUNKS);
    l->writes[0] = buffer_span(o->out);
    l->writes[1] = span_of(PLACE_STATE);
}

void lower_scan(struct lowering *b, const struct op_scan *o)
{
    const bool by_channel = mat_of(b, o->a)->n > 1,
               chunks = b->c->chunks && b->l->at->chunks && b->l->path == PATH_PACK && lower_has_chunks(o);
    const uint32_t lanes = scan_lanes(o->k_dim), columns = SCAN_THREADS >> lanes,
                   kernel = by_channel        ? K_SCAN_CHANNELS
                            : o->erase.buffer ? K_SCAN_ERASE
                            : o->decay_each   ? K_SCAN_EACH
                                              : K_SCAN,
                   blocks = by_channel ? o->k_heads * gpu_blocks(o->heads / o->k_heads, columns)
                                       : o->heads * gpu_blocks(o->v_dim, columns);
    struct scan_args a = scan_args_of(b, o, by_channel);
    if (chunks) {
        put_chunks(b, o, a);
        if (b->c->chunks == 1)
            return;
        a.rows_most = CHUNK_LEAST - 1;
    }
    struct launch *l = put_scan(b, o, kernel + lanes, &a, gpu_grid(blocks, 0, 1, SCAN_THREADS, 0),
                                chunks ? "the recurrence, sequences of few rows"
                                       : "the recurrence, columns of the state in registers");
    lowering_grid_rows(l, GRID_SEQS, 1);
    l->reads[2] = span_of(PLACE_STATE);
    l->reads[3] = buffer_span(o->size);
    l->writes[0] = buffer_span(o->out);
    l->writes[1] = span_of(PLACE_STATE);
}

void lower_cell(struct lowering *b, const struct op_cell *o)
{
    struct launch *l = lowering_add(b, K_CELL + o->kind, ARGS_CELL,
                                    gpu_grid(gpu_blocks(o->channels, CELL_THREADS), 0, 1, CELL_THREADS, 0),
                                    "the recurrence, a channel a thread");
    lowering_grid_rows(l, GRID_SEQS, 1);
    l->a.cell = (struct cell_args){.x = buffer_at(b, o->in),
                                   .gate = buffer_at(b, o->gate),
                                   .decay = buffer_at(b, o->decay),
                                   .ldx = buffer_ld(b, o->in),
                                   .ldg = buffer_ld(b, o->gate),
                                   .ldd = buffer_ld(b, o->decay),
                                   .y = buffer_at(b, o->out),
                                   .ldy = buffer_ld(b, o->out),
                                   .a = vector_of(b, o->a),
                                   .gate_bias = vector_of(b, o->gate_bias),
                                   .decay_bias = vector_of(b, o->decay_bias),
                                   .channels = o->channels,
                                   .state = state_of(b, o->state)};
    l->reads[0] = buffer_span(o->gate);
    l->reads[1] = buffer_span(o->in);
    l->reads[2] = span_of(PLACE_STATE);
    l->reads[3] = buffer_span(o->decay);
    l->writes[0] = buffer_span(o->out);
    l->writes[1] = span_of(PLACE_STATE);
}

void lower_normed(struct lowering *b, const struct op_map *o)
{
    struct launch *l = lowering_add(
        b, K_GATE, ARGS_GATE, gpu_grid(gpu_blocks(o->norm.heads, 8), 0, 1, 256, 0), "norm of each slice");
    lowering_grid_rows(l, GRID_Y, 1);
    l->a.gate = (struct gate_args){.x = buffer_at(b, o->in),
                                   .ldx = buffer_ld(b, o->in),
                                   .out = buffer_at(b, o->out),
                                   .ldo = buffer_ld(b, o->out),
                                   .norm = norm_of(b, &o->norm),
                                   .k = o->width};
    l->reads[0] = buffer_span(o->in);
    l->writes[0] = buffer_span(o->out);
}

struct input lower_gated(struct lowering *b, const struct op_out *o, uint32_t k)
{
    const uint32_t slices = o->norm.heads > 1 ? gpu_blocks(o->norm.heads, 8) : 1;
    struct launch *l = lowering_add(b, K_GATE, ARGS_GATE, gpu_grid(slices, 0, 1, 256, 0),
                                    "gate and norm in front of a product");
    lowering_grid_rows(l, GRID_Y, 1);
    l->a.gate = (struct gate_args){.x = buffer_at(b, o->in),
                                   .ldx = buffer_ld(b, o->in),
                                   .gate = buffer_at(b, o->gate.in),
                                   .ldg = buffer_ld(b, o->gate.in),
                                   .out = b->l->at->z,
                                   .ldo = k,
                                   .norm = norm_of(b, &o->norm),
                                   .k = k,
                                   .gate_heads = o->gate.heads,
                                   .act = o->gate.act,
                                   .first = o->gate.first};
    l->reads[0] = buffer_span(o->in);
    l->reads[1] = buffer_span(o->gate.in);
    l->writes[0] = span_of(PLACE_Z);
    return (struct input){.x = b->l->at->z, .ldx = k, .from = span_of(PLACE_Z), .k = k};
}
