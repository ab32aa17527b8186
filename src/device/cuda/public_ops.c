/* quern_gpu.h: operations on rows, FFN, attention, a whole layer. */
#include "device/cuda/public.h"

#include "base/log.h"
#include "base/mem.h"
#include "device/cuda/build.h"

#include <stdio.h>
#include <string.h>

static int same_size(struct quern_gpu *g, struct quern_gpu_buf x, struct quern_gpu_buf y, const char *what)
{
    if (!x.at || !x.floats)
        return public_fail(g, "the input is a null pointer");
    return public_room(g, y, x.floats, what, "as many as the input");
}

/* One launch of a small kernel. */
static int run_rows(struct quern_gpu *g, uint32_t kernel, struct gpu_grid grid, const struct rows_args *a)
{
    g->list.count = 0;
    public_launch(g, kernel, ARGS_EACH, grid)->a.each = *a;
    return public_replay(g, &(struct launch_step){0});
}

static int run_each(struct quern_gpu *g, struct rows_args a, const char *name)
{
    public_begin(g);
    int bad = run_rows(g, K_EACH, gpu_grid(gpu_blocks(a.n * a.m, 256), 1, 1, 256, 0), &a);
    return public_end(g, (struct public_cost){name, 2, (double)a.n * a.m, 8.0 * (double)a.n * a.m}, bad);
}

int quern_gpu_act(struct quern_gpu *g, enum quern_gpu_act act, struct quern_gpu_buf x, struct quern_gpu_buf y)
{
    if (public_start(g) || same_size(g, x, y, "the output"))
        return -1;
    if (act < QUERN_GPU_SILU || act > QUERN_GPU_GELU_TANH)
        return public_fail(g, "there is no activation %d", act);
    struct rows_args a = {.x = public_at(x), .y = public_at(y), .n = x.floats, .m = 1, .kind = (uint32_t)act};
    return run_each(g, a, "act");
}

int quern_gpu_swiglu(struct quern_gpu *g, struct quern_gpu_buf gate, struct quern_gpu_buf up,
                     struct quern_gpu_buf y)
{
    if (public_start(g) || same_size(g, gate, up, "up") || same_size(g, gate, y, "the output"))
        return -1;
    struct rows_args a = {.x = public_at(gate),
                          .w = public_at(up),
                          .y = public_at(y),
                          .n = gate.floats,
                          .m = 1,
                          .kind = ROWS_SWIGLU};
    return run_each(g, a, "swiglu");
}

int quern_gpu_add(struct quern_gpu *g, struct quern_gpu_buf a, struct quern_gpu_buf b, struct quern_gpu_buf y)
{
    if (public_start(g) || same_size(g, a, b, "the second operand") || same_size(g, a, y, "the output"))
        return -1;
    struct rows_args r = {
        .x = public_at(a), .w = public_at(b), .y = public_at(y), .n = a.floats, .m = 1, .kind = ROWS_ADD};
    return run_each(g, r, "add");
}

int quern_gpu_bias(struct quern_gpu *g, struct quern_gpu_buf x, int m, struct quern_gpu_buf bias,
                   struct quern_gpu_buf y)
{
    if (public_start(g) || same_size(g, x, y, "the output"))
        return -1;
    if (m < 1 || x.floats % (uint32_t)m)
        return public_fail(g, "%llu floats are no %d rows", (unsigned long long)x.floats, m);
    if (public_room(g, bias, x.floats / (uint32_t)m, "the bias", "a row"))
        return -1;
    struct rows_args a = {.x = public_at(x),
                          .w = public_at(bias),
                          .y = public_at(y),
                          .n = bias.floats,
                          .m = (uint32_t)m,
                          .kind = ROWS_BIAS};
    return run_each(g, a, "bias");
}

int quern_gpu_softmax(struct quern_gpu *g, struct quern_gpu_buf x, int m, struct quern_gpu_buf y)
{
    if (public_start(g) || same_size(g, x, y, "the output"))
        return -1;
    if (m < 1 || x.floats % (uint32_t)m)
        return public_fail(g, "%llu floats are no %d rows", (unsigned long long)x.floats, m);
    struct rows_args a = {
        .x = public_at(x), .y = public_at(y), .n = x.floats / (uint32_t)m, .m = (uint32_t)m};
    public_begin(g);
    int bad = run_rows(g, K_SOFTMAX, gpu_grid((unsigned)m, 1, 1, 256, 0), &a);
    return public_end(g, (struct public_cost){"softmax", 2, 5.0 * (double)x.floats, 8.0 * (double)x.floats},
                      bad);
}

/* Rows of n, each cut into slices of `slice` that are normed by themselves. */
static int run_norm(struct quern_gpu *g, struct quern_gpu_buf x, uint32_t rows, uint32_t slice,
                    struct norm_args norm, struct quern_gpu_buf y)
{
    struct pack_args a = {.x = public_at(x),
                          .ldx = slice,
                          .k = slice,
                          .norm = norm,
                          .out = {.rows = public_at(y), .ldr = slice}};
    if (slice > 32768)
        return public_fail(g, "rows of %u: at most 32768 can be normed", slice);
    public_begin(g);
    const struct span to = {.place = PLACE_BUFFER};
    struct lowering b = {
        .l = &g->lower, .list = &g->list, .m = rows, .rows = {.of = ROWS_STEP, .most = rows}};
    g->list.count = 0;
    lower_rows(&b, &a, to, to, "norm");
    int bad = public_replay(g, &(struct launch_step){.meta = {.rows = rows}});
    return public_end(g, (struct public_cost){"norm", 2, 4.0 * (double)x.floats, 8.0 * (double)x.floats},
                      bad);
}

static int norm_sizes(struct quern_gpu *g, struct quern_gpu_buf x, int m, int n, struct quern_gpu_buf y)
{
    char how[64];
    if (public_start(g))
        return -1;
    if (m < 1 || n < 1)
        return public_fail(g, "%d rows of %d", m, n);
    snprintf(how, sizeof how, "M*N = %d*%d", m, n);
    return public_room(g, x, (uint64_t)m * (uint32_t)n, "the input", how) || same_size(g, x, y, "the output")
               ? -1
               : 0;
}

int quern_gpu_rms_norm(struct quern_gpu *g, struct quern_gpu_buf x, int m, int n, struct quern_gpu_buf w,
                       float eps, int heads, struct quern_gpu_buf y)
{
    if (norm_sizes(g, x, m, n, y))
        return -1;
    if (heads < 0 || (heads && n % heads))
        return public_fail(g, "rows of %d do not divide into %d heads", n, heads);
    uint32_t slice = (uint32_t)(heads ? n / heads : n);
    if (public_room(g, w, slice, "the weight", heads ? "a head" : "a row"))
        return -1;
    struct norm_args norm = {.kind = NORM_RMS, .w = public_at(w), .w_len = slice, .eps = eps};
    return run_norm(g, x, (uint32_t)(x.floats / slice), slice, norm, y);
}

int quern_gpu_layer_norm(struct quern_gpu *g, struct quern_gpu_buf x, int m, int n, struct quern_gpu_buf w,
                         struct quern_gpu_buf b, float eps, struct quern_gpu_buf y)
{
    if (norm_sizes(g, x, m, n, y) || public_room(g, w, (uint64_t)n, "the weight", "a row") ||
        (b.at && public_room(g, b, (uint64_t)n, "the bias", "a row")))
        return -1;
    struct norm_args norm = {
        .kind = NORM_LAYER, .w = public_at(w), .b = public_at(b), .w_len = (uint32_t)n, .eps = eps};
    return run_norm(g, x, (uint32_t)m, (uint32_t)n, norm, y);
}

int quern_gpu_rope(struct quern_gpu *g, struct quern_gpu_buf x, int m, const struct quern_gpu_rope_options *o,
                   struct quern_gpu_buf freqs, struct quern_gpu_buf positions, struct quern_gpu_buf y)
{
    if (public_start(g) || same_size(g, x, y, "the output"))
        return -1;
    if (!o || m < 1 || o->heads < 1 || o->dims < 2 || o->dims % 2 || o->first < 0 ||
        o->first + o->dims > o->dim)
        return public_fail(g, "rotation of dimensions that a head does not have");
    if (m > 65535)
        return public_fail(g, "%d rows: 65535 are the most at once", m);
    if (public_room(g, x, (uint64_t)m * (uint32_t)o->heads * (uint32_t)o->dim, "the input", "M*heads*dim") ||
        public_room(g, freqs, (uint64_t)o->dims / 2, "freqs", "dims/2") ||
        public_room(g, positions, (uint64_t)m, "positions", "M"))
        return -1;
    struct rows_args a = {.x = public_at(x),
                          .w = public_at(freqs),
                          .y = public_at(y),
                          .m = (uint32_t)m,
                          .kind = (uint32_t)o->kind,
                          .pos = (const int32_t *)positions.at,
                          .factor = o->factor,
                          .heads = (uint32_t)o->heads,
                          .dim = (uint32_t)o->dim,
                          .rope_dims = (uint32_t)o->dims,
                          .rope_first = (uint32_t)o->first};
    public_begin(g);
    int bad = run_rows(g, K_ROPE, gpu_grid(a.heads, a.m, 1, 128, 0), &a);
    return public_end(g, (struct public_cost){"rope", 2, 6.0 * (double)x.floats, 8.0 * (double)x.floats},
                      bad);
}

static void put_top(struct quern_gpu *g, struct quern_gpu_buf x, uint32_t m, uint32_t k, int32_t *ids,
                    float *values)
{
    struct sample_args a = {.logits = public_at(x),
                            .n = (uint32_t)(x.floats / m),
                            .m = m,
                            .top_k = k,
                            .ids = ids,
                            .values = values};
    a.ld = a.n;
    public_launch(g, K_TOP, ARGS_SAMPLE, gpu_grid(m, 1, 1, 1024, 0))->a.sample = a;
}

static int top_sizes(struct quern_gpu *g, struct quern_gpu_buf x, int m, int k)
{
    if (public_start(g))
        return -1;
    if (!x.at || m < 1 || x.floats % (uint32_t)m)
        return public_fail(g, "%llu floats are no %d rows", (unsigned long long)x.floats, m);
    if (k < 1 || k > 256 || (uint64_t)k > x.floats / (uint32_t)m)
        return public_fail(g, "the best %d of %llu: 1 to 256 were expected", k,
                           (unsigned long long)(x.floats / (uint32_t)m));
    return 0;
}

int quern_gpu_top(struct quern_gpu *g, struct quern_gpu_buf x, int m, int k, struct quern_gpu_buf ids,
                  struct quern_gpu_buf values)
{
    if (top_sizes(g, x, m, k) || public_room(g, ids, (uint64_t)m * (uint32_t)k, "ids", "M*k") ||
        (values.at && public_room(g, values, (uint64_t)m * (uint32_t)k, "values", "M*k")))
        return -1;
    public_begin(g);
    g->list.count = 0;
    put_top(g, x, (uint32_t)m, (uint32_t)k, (int32_t *)ids.at, public_at(values));
    int bad = public_replay(g, &(struct launch_step){0});
    return public_end(g, (struct public_cost){"top", 2, 0, 4.0 * k * (double)x.floats}, bad);
}

int quern_gpu_sample(struct quern_gpu *g, struct quern_gpu_buf logits, int m,
                     const struct quern_gpu_sampling *s, struct quern_gpu_buf noise, struct quern_gpu_buf ids)
{
    int k = s && s->top_k > 0 && s->top_k < 256 ? s->top_k : 256;
    if (m > 0 && logits.floats / (uint32_t)m < (uint64_t)k)
        k = (int)(logits.floats / (uint32_t)m);
    if (top_sizes(g, logits, m, k) || public_rows(g, m))
        return -1;
    if (!s || !(s->temperature > 0))
        return public_fail(g, "a temperature above 0 was expected (for the best token: quern_gpu_top)");
    if (public_room(g, noise, (uint64_t)m, "noise", "M") || public_room(g, ids, (uint64_t)m, "ids", "M"))
        return -1;
    struct sample_args a = {.logits = (const float *)g->ids,
                            .m = (uint32_t)m,
                            .top_k = (uint32_t)k,
                            .temperature = s->temperature,
                            .top_p = s->top_p > 0 ? s->top_p : 1.0f,
                            .min_p = s->min_p,
                            .noise = public_at(noise),
                            .ids = (int32_t *)ids.at,
                            .values = g->values};
    public_begin(g);
    g->list.count = 0;
    put_top(g, logits, (uint32_t)m, (uint32_t)k, g->ids, g->values);
    public_launch(g, K_PICK, ARGS_SAMPLE, gpu_grid(gpu_blocks(a.m, 32), 1, 1, 32, 0))->a.sample = a;
    int bad = public_replay(g, &(struct launch_step){0});
    return public_end(g, (struct public_cost){"sample", 2, 0, 4.0 * (double)logits.floats}, bad);
}

/* ---- FFN ---- */

struct ffn_weights {
    const struct public_weight *gate, *up, *down;
};

static int ffn_check(struct quern_gpu *g, const struct quern_gpu_ffn *f, int m, struct ffn_weights *w)
{
    if (!f)
        return public_fail(g, "the FFN is a null pointer");
    if (public_rows(g, m) || !(w->up = public_get(g, f->up)) || !(w->down = public_get(g, f->down)))
        return -1;
    w->gate = f->gate ? public_get(g, f->gate) : NULL;
    if (f->gate && !w->gate)
        return -1;
    const struct mat *u = &w->up->mat, *d = &w->down->mat;
    if (d->k != u->n || (w->gate && (w->gate->mat.n != u->n || w->gate->mat.k != u->k)))
        return public_fail(g, "gate, up and down do not fit: up is (%u, %u), down (%u, %u)", u->n, u->k, d->n,
                           d->k);
    if (f->integer &&
        (m != 1 || u->fmt != FMT_Q4_K || d->fmt != FMT_Q4_K || (w->gate && w->gate->mat.fmt != FMT_Q4_K)))
        return public_fail(g, "the integer path takes one row and Q4_K loaded with QUERN_GPU_NATIVE");
    return 0;
}

static void add_ffn(struct public_call *c, const struct quern_gpu_ffn *f, struct operand x, struct norm norm,
                    struct tail tail)
{
    public_op(c, OP_FFN)->ffn = (struct op_ffn){.in = x,
                                                .norm = norm,
                                                .gate = {.weight = (weight_id)f->gate},
                                                .up = {.weight = (weight_id)f->up},
                                                .down = {.weight = (weight_id)f->down},
                                                .act = (enum act_kind)f->act,
                                                .tail = tail};
}

int quern_gpu_ffn(struct quern_gpu *g, const struct quern_gpu_ffn *f, struct quern_gpu_buf x, int m,
                  struct quern_gpu_buf y)
{
    struct ffn_weights w;
    if (public_start(g) || ffn_check(g, f, m, &w) ||
        public_room(g, x, (uint64_t)m * w.up->mat.k, "the input", "M*K") ||
        public_room(g, y, (uint64_t)m * w.down->mat.n, "the output", "M*N"))
        return -1;
    if (x.at == y.at)
        return public_fail(g, "input and output of an FFN must differ");
    double flops = 2.0 * m * w.up->mat.n * ((w.gate ? 2.0 : 1.0) * w.up->mat.k + w.down->mat.n);
    double bytes = (double)(w.up->bytes + w.down->bytes + (w.gate ? w.gate->bytes : 0));
    public_begin(g);
    struct public_call c;
    public_call(&c, g);
    const struct operand in = public_operand(&c, public_at(x), w.up->mat.k),
                         out = public_operand(&c, public_at(y), w.down->mat.n);
    add_ffn(&c, f, in, (struct norm){0}, (struct tail){.scale = 1.0f, .out = out});
    c.lower.path = f->integer ? PATH_INTEGER : PATH_PACK;
    int bad = public_run(&c, (uint32_t)m);
    return public_end(g, (struct public_cost){"ffn", 0, flops, bytes}, bad);
}

int quern_gpu_ffn_host(struct quern_gpu *g, const struct quern_gpu_ffn *f, const float *x, int m, float *y)
{
    struct ffn_weights w;
    if (public_start(g) || ffn_check(g, f, m, &w))
        return -1;
    if (!x || !y)
        return public_fail(g, "the input or the output is a null pointer");
    uint64_t in = (uint64_t)m * w.up->mat.k, out = (uint64_t)m * w.down->mat.n;
    struct quern_gpu_buf from = {(uint64_t)g->c, in}, to = {(uint64_t)g->b, out};
    return quern_gpu_write(g, from, x, in) || quern_gpu_ffn(g, f, from, m, to) ||
                   quern_gpu_read(g, to, y, out)
               ? -1
               : 0;
}

/* ---- attention ---- */

struct quern_gpu_kv {
    struct group_kv group;
    const int32_t *table; /* of its pages, behind them */
    uint32_t tokens;
};

int quern_gpu_kv_new(struct quern_gpu *g, int kv_heads, int dim, int tokens, enum quern_gpu_kv_type type,
                     struct quern_gpu_kv **out)
{
    static const uint32_t types[] = {[QUERN_GPU_KV_F16] = KV_F16,
                                     [QUERN_GPU_KV_F32] = KV_F32,
                                     [QUERN_GPU_KV_BF16] = KV_BF16,
                                     [QUERN_GPU_KV_Q8_0] = KV_Q8_0,
                                     [QUERN_GPU_KV_F8] = KV_F8};
    *out = NULL;
    if (public_start(g))
        return -1;
    if ((unsigned)type > QUERN_GPU_KV_F8)
        return public_fail(g, "there is no type of KV %d", (int)type);
    if (kv_heads < 1 || dim < 1 || dim > 1024 || tokens < 1 || (type == QUERN_GPU_KV_Q8_0 && dim % 32))
        return public_fail(g, "KV of %d heads of %d values for %d tokens", kv_heads, dim, tokens);
    uint32_t pages = ((uint32_t)tokens + KV_PAGE - 1) / KV_PAGE,
             row = kv_row_bytes(types[type], (uint32_t)dim);
    struct quern_gpu_kv *kv = mem_zalloc(1, sizeof *kv);
    int32_t *table = mem_alloc(pages, sizeof *table);
    if (!kv || !table) {
        mem_free(kv);
        mem_free(table);
        return err_memory(&g->error, "KV", pages * sizeof *table);
    }
    struct group_kv *k = &kv->group;
    *k = (struct group_kv){.shape = {.kv_heads = (uint32_t)kv_heads,
                                     .k_dim = (uint32_t)dim,
                                     .v_dim = (uint32_t)dim,
                                     .layers = 1},
                           .page_bytes = 2ull * KV_PAGE * (uint32_t)kv_heads * row,
                           .type = types[type],
                           .k_row = row,
                           .v_row = row};
    kv->tokens = pages * KV_PAGE;
    k->layer_bytes = k->page_bytes;
    k->bytes = (k->page_bytes + sizeof *table) * pages;
    for (uint32_t i = 0; i < pages; i++)
        table[i] = (int32_t)i;
    k->base = gpu_alloc(g->g, k->bytes, "KV", &g->error);
    kv->table = (const int32_t *)(k->base + k->page_bytes * pages);
    int bad = !k->base ||
              gpu_check(g->g, g->g->cu->set8(k->base, 0, k->bytes, g->g->stream), "clearing KV", &g->error) ||
              gpu_check(g->g, g->g->cu->to_device((cu_ptr)kv->table, table, 4ull * pages, g->g->stream),
                        "preparing KV", &g->error) ||
              gpu_sync(g->g, &g->error);
    mem_free(table);
    if (bad) {
        quern_gpu_kv_delete(g, kv);
        return -1;
    }
    *out = kv;
    return 0;
}

void quern_gpu_kv_delete(struct quern_gpu *g, struct quern_gpu_kv *kv)
{
    struct err none = {0};
    gpu_enter(g->g, &none);
    if (kv)
        gpu_free(g->g, kv->group.base, kv->group.bytes);
    mem_free(kv);
}

/* The data of a call on one sequence: rows at positions [at, at + m), and the tiles of many queries. */
static int put_meta(struct public_call *c, const struct quern_gpu_kv *kv, uint32_t m, uint32_t at,
                    uint32_t ratio)
{
    struct quern_gpu *g = c->g;
    if (g->ring_at == PUBLIC_RING && !g->recording) { /* all blocks are on their way: wait for them once */
        if (gpu_sync(g->g, &g->error))
            return -1;
        g->ring_at = 0;
    }
    if (g->ring_at == PUBLIC_RING)
        return public_fail(g, "a recording holds at most %d attention calls", PUBLIC_RING);
    int32_t *host = g->ring_host + (uint64_t)g->ring_at * g->ring_ints;
    cu_ptr there = g->ring + 4ull * g->ring_at * g->ring_ints;
    const int32_t *device = (const int32_t *)there;
    uint32_t n = 0;
    g->ring_at++;
    for (uint32_t i = 0; i < m; i++) {
        host[i] = (int32_t)(at + i);
        host[m + i] = 0; /* sequence of the row */
    }
    host[2 * m] = 0;
    host[2 * m + 1] = (int32_t)m;
    host[2 * m + 2] = (int32_t)(at + m);
    for (uint32_t f = 0; f < m * ratio; f += TILE_QUERIES, n++) {
        if (2 * m + 4 + 2 * n + 2 > g->ring_ints)
            return public_fail(g, "%u rows with %u heads a KV head are too many at once", m, ratio);
        host[2 * m + 4 + 2 * n] = 0;
        host[2 * m + 4 + 2 * n + 1] = (int32_t)f;
    }
    if (gpu_check(g->g, g->g->cu->to_device(there, host, 4ull * (2 * m + 4 + 2 * n), g->g->stream),
                  "sending positions", &g->error))
        return -1;
    const bool many = m * ratio > DECODE_QUERIES;
    c->group = kv->group;
    c->step = (struct launch_step){.meta = {.pos = device,
                                            .row_seq = device + m,
                                            .seq_first = device + 2 * m,
                                            .seq_rows = device + 2 * m + 1,
                                            .seq_len = device + 2 * m + 2,
                                            .tables = kv->table,
                                            .tiles = device + 2 * m + 4,
                                            .rows = m,
                                            .seqs = 1,
                                            .width = kv->tokens / KV_PAGE},
                                   .tiles = {many ? n : 0},
                                   .keys = at + m};
    c->many = many;
    return 0;
}

static int heads_check(struct quern_gpu *g, const struct quern_gpu_heads *h, const struct quern_gpu_kv *kv,
                       int m, int at)
{
    if (public_start(g) || public_rows(g, m))
        return -1;
    if (!h || !kv)
        return public_fail(g, "heads or KV is a null pointer");
    if (h->heads < 1 || h->kv_heads < 1 || h->heads % h->kv_heads ||
        (uint32_t)h->kv_heads != kv->group.shape.kv_heads || (uint32_t)h->dim != kv->group.shape.k_dim ||
        h->window < 0)
        return public_fail(g, "%d heads over %d KV heads of %d values do not fit KV of %u heads of %u",
                           h->heads, h->kv_heads, h->dim, kv->group.shape.kv_heads, kv->group.shape.k_dim);
    if (h->sinks.at && public_room(g, h->sinks, (uint64_t)h->heads, "the sinks", "one a head"))
        return -1;
    if (at < 0 || (uint64_t)at + (uint32_t)m > kv->tokens)
        return public_fail(g, "positions %d to %d: KV has room for %u", at, at + m - 1, kv->tokens);
    return 0;
}

static void add_attn(struct public_call *c, const struct quern_gpu_heads *h, struct operand q,
                     struct operand y)
{
    public_op(c, OP_ATTN)->attn = (struct op_attn){.in = q,
                                                   .out = y,
                                                   .heads = (uint32_t)h->heads,
                                                   .kv_heads = (uint32_t)h->kv_heads,
                                                   .k_dim = (uint32_t)h->dim,
                                                   .v_dim = (uint32_t)h->dim,
                                                   .window = (uint32_t)h->window,
                                                   .scale = h->scale,
                                                   .softcap = h->softcap,
                                                   .sinks = public_vector(c, h->sinks),
                                                   .causal = true};
}

int quern_gpu_attention(struct quern_gpu *g, const struct quern_gpu_heads *h, struct quern_gpu_kv *kv,
                        struct quern_gpu_buf q, int m, int at, struct quern_gpu_buf y)
{
    if (heads_check(g, h, kv, m, at) ||
        public_room(g, q, (uint64_t)m * (uint32_t)(h->heads * h->dim), "q", "M*heads*dim") ||
        public_room(g, y, q.floats, "the output", "M*heads*dim"))
        return -1;
    double keys = at + m / 2.0;
    public_begin(g);
    struct public_call c;
    const uint32_t width = (uint32_t)(h->heads * h->dim);
    public_call(&c, g);
    add_attn(&c, h, public_operand(&c, public_at(q), width), public_operand(&c, public_at(y), width));
    int bad = put_meta(&c, kv, (uint32_t)m, (uint32_t)at, (uint32_t)(h->heads / h->kv_heads)) ||
              public_run(&c, (uint32_t)m);
    return public_end(g,
                      (struct public_cost){"attention", 1, 4.0 * (double)q.floats * keys,
                                           2.0 * keys * kv->group.shape.kv_heads * kv->group.k_row},
                      bad);
}

static int qkv_check(struct quern_gpu *g, const struct quern_gpu_qkv *p, const struct quern_gpu_heads *h)
{
    const struct public_weight *w[3] = {public_get(g, p->q), public_get(g, p->k), public_get(g, p->v)};
    const uint32_t qn = (uint32_t)(h->heads * h->dim), kn = (uint32_t)(h->kv_heads * h->dim),
                   n[3] = {qn, kn, kn};
    if (!w[0] || !w[1] || !w[2])
        return -1;
    for (int i = 0; i < 3; i++)
        if (w[i]->mat.n != n[i] || w[i]->mat.k != w[0]->mat.k)
            return public_fail(g, "%s is (%u, %u), %u outputs were expected", w[i]->name, w[i]->mat.n,
                               w[i]->mat.k, n[i]);
    if ((uint64_t)qn + 2 * kn > 2ull * g->most_width)
        return public_fail(g, "%u outputs of Q, K and V: at most %u were prepared for", qn + 2 * kn,
                           2 * g->most_width);
    if (p->freqs.at && p->freqs.floats * 2 > (uint64_t)h->dim)
        return public_fail(g, "more frequencies than pairs in a head");
    return 0;
}

static struct norm rms(struct public_call *c, struct quern_gpu_buf w, float eps, int heads)
{
    return (struct norm){.kind = w.at ? NORM_RMS : NORM_NONE,
                         .weight = public_vector(c, w),
                         .eps = eps,
                         .heads = (uint32_t)heads};
}

static void add_qkv(struct public_call *c, const struct quern_gpu_qkv *p, const struct quern_gpu_heads *h,
                    struct operand x, struct operand q)
{
    public_op(c, OP_QKV)->qkv =
        (struct op_qkv){.in = x,
                        .norm = rms(c, p->norm, p->eps, 0),
                        .q = {.weight = (weight_id)p->q, .bias = public_vector(c, p->q_bias)},
                        .k = {.weight = (weight_id)p->k, .bias = public_vector(c, p->k_bias)},
                        .v = {.weight = (weight_id)p->v, .bias = public_vector(c, p->v_bias)},
                        .q_norm = rms(c, p->q_norm, p->eps, h->heads),
                        .k_norm = rms(c, p->k_norm, p->eps, h->kv_heads),
                        .rope = {.kind = p->freqs.at ? (enum rope_kind)p->rope : ROPE_NONE,
                                 .dims = (uint32_t)(2 * p->freqs.floats),
                                 .freqs = public_vector(c, p->freqs),
                                 .factor = 1.0f},
                        .heads = (uint32_t)h->heads,
                        .kv_heads = (uint32_t)h->kv_heads,
                        .k_dim = (uint32_t)h->dim,
                        .v_dim = (uint32_t)h->dim,
                        .out = q};
}

int quern_gpu_qkv(struct quern_gpu *g, const struct quern_gpu_qkv *p, const struct quern_gpu_heads *h,
                  struct quern_gpu_kv *kv, struct quern_gpu_buf x, int m, int at, struct quern_gpu_buf q)
{
    if (heads_check(g, h, kv, m, at))
        return -1;
    const struct public_weight *w = p ? public_get(g, p->q) : NULL;
    if (!w)
        return p ? -1 : public_fail(g, "the weights of Q, K and V are a null pointer");
    if (public_room(g, x, (uint64_t)m * w->mat.k, "the input", "M*K") ||
        public_room(g, q, (uint64_t)m * (uint32_t)(h->heads * h->dim), "q", "M*heads*dim") ||
        (p->q_norm.at && public_room(g, p->q_norm, (uint64_t)h->dim, "the norm of Q", "a head")) ||
        (p->k_norm.at && public_room(g, p->k_norm, (uint64_t)h->dim, "the norm of K", "a head")))
        return -1;
    if (qkv_check(g, p, h))
        return -1;
    public_begin(g);
    struct public_call c;
    public_call(&c, g);
    add_qkv(&c, p, h, public_operand(&c, public_at(x), w->mat.k),
            public_operand(&c, public_at(q), (uint32_t)(h->heads * h->dim)));
    int bad = put_meta(&c, kv, (uint32_t)m, (uint32_t)at, (uint32_t)(h->heads / h->kv_heads)) ||
              public_run(&c, (uint32_t)m);
    double outputs = h->dim * (h->heads + 2.0 * h->kv_heads);
    return public_end(
        g,
        (struct public_cost){"qkv", 0, 2.0 * m * outputs * w->mat.k, (double)w->bytes * outputs / w->mat.n},
        bad);
}

int quern_gpu_layer(struct quern_gpu *g, const struct quern_gpu_layer *l, struct quern_gpu_kv *kv,
                    struct quern_gpu_buf x, int m, int at)
{
    struct ffn_weights f;
    const struct public_weight *out;
    if (!l)
        return public_fail(g, "the layer is a null pointer");
    if (heads_check(g, &l->heads, kv, m, at) || !(out = public_get(g, l->out)) ||
        ffn_check(g, &l->ffn, m, &f))
        return -1;
    const uint32_t width = out->mat.n, qn = (uint32_t)(l->heads.heads * l->heads.dim);
    if (out->mat.k != qn || f.up->mat.k != width || f.down->mat.n != width || qn > g->most_width ||
        l->ffn.integer)
        return public_fail(g, "the layer's weights do not fit: out is (%u, %u), up takes %u, down gives %u",
                           width, out->mat.k, f.up->mat.k, f.down->mat.n);
    if (public_room(g, x, (uint64_t)m * width, "x", "M*width") ||
        public_room(g, l->ffn_norm, width, "the FFN's norm", "a row"))
        return -1;
    if (qkv_check(g, &l->qkv, &l->heads))
        return -1;
    public_begin(g);
    struct public_call c;
    public_call(&c, g);
    const struct operand rows = public_operand(&c, public_at(x), width), q = public_operand(&c, g->b, qn),
                         a = public_operand(&c, g->c, qn);
    const struct tail tail = {.scale = 1.0f, .residual = rows, .out = rows};
    add_qkv(&c, &l->qkv, &l->heads, rows, q);
    add_attn(&c, &l->heads, q, a);
    public_op(&c, OP_OUT)->out =
        (struct op_out){.in = a, .linear = {.weight = (weight_id)l->out}, .tail = tail};
    add_ffn(&c, &l->ffn, rows, rms(&c, l->ffn_norm, l->eps, 0), tail);
    int bad = put_meta(&c, kv, (uint32_t)m, (uint32_t)at, (uint32_t)(l->heads.heads / l->heads.kv_heads)) ||
              public_run(&c, (uint32_t)m);
    return public_end(
        g, (struct public_cost){"layer", 0, 0, (double)(out->bytes + f.up->bytes + f.down->bytes)}, bad);
}
