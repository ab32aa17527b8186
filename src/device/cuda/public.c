/* quern_gpu.h: opening, buffers, weights, products. */
#include "device/cuda/public.h"

#include "codec/dtype.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int public_fail(struct quern_gpu *g, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    g->error.code = ERR_USAGE;
    vsnprintf(g->error.text, sizeof g->error.text, fmt, list);
    va_end(list);
    return -1;
}

int public_start(struct quern_gpu *g)
{
    g->error = (struct err){0};
    return gpu_enter(g->g, &g->error);
}

int public_room(struct quern_gpu *g, struct quern_gpu_buf b, uint64_t want, const char *what, const char *how)
{
    if (!b.at)
        return public_fail(g, "%s is a null pointer", what);
    if (b.floats != want)
        return public_fail(g, "%s has %llu floats, %s = %llu", what, (unsigned long long)b.floats, how,
                           (unsigned long long)want);
    return 0;
}

int public_rows(struct quern_gpu *g, int m)
{
    if (m >= 1 && (uint32_t)m <= g->most_rows)
        return 0;
    return public_fail(g, "%d rows: 1 to %u were prepared for", m, g->most_rows);
}

const struct public_weight *public_get(struct quern_gpu *g, int handle)
{
    if (handle >= 1 && (uint32_t)handle <= g->weights)
        return &g->weight[handle - 1];
    public_fail(g, "weight %d is not loaded: handles go from 1 to %u", handle, g->weights);
    return NULL;
}

float *public_at(struct quern_gpu_buf b)
{
    return (float *)b.at;
}

const char *quern_gpu_error(const struct quern_gpu *g)
{
    return g->error.text;
}

const void *quern_gpu_kernels(unsigned number)
{
    return number < MODULE_COUNT ? gpu_blob((enum gpu_module)number) : NULL;
}

/* ---- opening ---- */

static void *take(uint64_t *at, cu_ptr base, uint64_t bytes)
{
    uint64_t from = *at;
    *at += (bytes + 255) / 256 * 256;
    return (void *)(base + from);
}

static uint64_t place_scratch(struct quern_gpu *g)
{
    uint64_t at = 0, rows = g->most_rows, width = g->most_width;
    cu_ptr base = g->scratch;
    struct scratch *s = &g->at;
    s->pack = take(&at, base, (rows + 63) / 64 * 8 * ((width + 255) / 256) * PACK_BYTES);
    s->half_scale = take(&at, base, rows * 4);
    s->out_scale = take(&at, base, rows * 4);
    s->q8 = take(&at, base, (width + 31) / 32 * 36);
    s->y = take(&at, base, rows * width * 2 * 4);
    s->x = g->b = take(&at, base, rows * width * 4);
    g->c = take(&at, base, rows * width * 4);
    s->part_floats = (uint64_t)PUBLIC_PARTS * DECODE_QUERIES * 256;
    s->part = take(&at, base, s->part_floats * 4);
    s->part_ml =
        take(&at, base, s->part_floats / 64 * 2 * 4); /* heads on the tensor cores have at least 64 values */
    g->ids = take(&at, base, rows * 256 * 4);
    g->values = take(&at, base, rows * 256 * 4);
    s->max_rows = g->most_rows;
    return at;
}

static int take_scratch(struct quern_gpu *g)
{
    struct gpu *c = g->g;
    if (!(g->mat = mem_zalloc(1 + PUBLIC_VECTORS, sizeof *g->mat)))
        return err_memory(&g->error, "the table of weights", sizeof *g->mat);
    g->scratch_bytes = place_scratch(g);
    g->ring_ints = 4 * g->most_rows + 64;
    if (!(g->scratch = gpu_alloc(c, g->scratch_bytes, "scratch", &g->error)) ||
        !(g->ring = gpu_alloc(c, 4ull * PUBLIC_RING * g->ring_ints, "scratch", &g->error)) ||
        !(g->ring_host = gpu_pinned(c, 4ull * PUBLIC_RING * g->ring_ints, &g->error)))
        return -1;
    place_scratch(g);
    g->at.counters = gpu_counters(c);
    g->at.sums = gpu_parts(c);
    g->lower = (struct lower){.card = &c->profile, .at = &g->at, .page_tokens = KV_PAGE};
    g->replay = (struct replay){.g = c, .limits = {.card = &c->profile, .part_floats = g->at.part_floats}};
    if (gpu_check(c, c->cu->set8(g->scratch, 0, g->scratch_bytes, c->stream), "clearing scratch",
                  &g->error) ||
        gpu_check(c, c->cu->event_create(&g->event[0], 0), "making an event", &g->error) ||
        gpu_check(c, c->cu->event_create(&g->event[1], 0), "making an event", &g->error))
        return -1;
    return gpu_sync(c, &g->error);
}

struct quern_gpu *quern_gpu_open(int card, int most_rows, int most_width, char *why, size_t why_bytes)
{
    struct err e = {0};
    struct quern_gpu *g = NULL;
    if (most_rows < 1 || most_rows > 4096 || most_width < 1 || most_width > 1 << 18)
        err_set(&e, ERR_USAGE, "%d rows of %d floats: 1 to 4096 rows of 1 to 262144 were expected", most_rows,
                most_width);
    else if (!(g = mem_zalloc(1, sizeof *g)))
        err_memory(&e, "a GPU", sizeof *g);
    else {
        g->most_rows = (uint32_t)most_rows;
        g->most_width = (uint32_t)most_width;
        if (!(g->g = gpu_open(card, 0, &e)) || take_scratch(g)) {
            if (g->error.code)
                e = g->error;
            quern_gpu_close(g);
            g = NULL;
        }
    }
    if (why && why_bytes)
        snprintf(why, why_bytes, "%s", e.text);
    return g;
}

void quern_gpu_close(struct quern_gpu *g)
{
    if (!g)
        return;
    struct err none = {0};
    if (g->g) {
        gpu_enter(g->g, &none);
        g->g->cu->stream_sync(g->g->stream);
        for (uint32_t i = 0; i < g->weights; i++)
            gpu_free(g->g, (cu_ptr)g->weight[i].mat.base, g->weight[i].bytes);
        gpu_free(g->g, g->scratch, g->scratch_bytes);
        gpu_free(g->g, g->ring, 4ull * PUBLIC_RING * g->ring_ints);
        gpu_pinned_free(g->g, g->ring_host);
        for (int i = 0; i < 2; i++)
            if (g->event[i])
                g->g->cu->event_destroy(g->event[i]);
        gpu_close(g->g);
    }
    for (uint32_t i = 0; i < g->weights; i++)
        mem_free(g->weight[i].name);
    mem_free(g->weight);
    mem_free(g->mat);
    launch_free(&g->list);
    mem_free(g);
}

int quern_gpu_sync(struct quern_gpu *g)
{
    return public_start(g) || gpu_sync(g->g, &g->error) ? -1 : 0;
}

int quern_gpu_measure(struct quern_gpu *g)
{
    return public_start(g) || gpu_measure(g->g, &g->error) ? -1 : 0;
}

void quern_gpu_get_facts(struct quern_gpu *g, struct quern_gpu_facts *f)
{
    const struct gpu_profile *p = &g->g->profile;
    size_t available = 0, total = 0;
    g->g->cu->mem_info(&available, &total);
    *f = (struct quern_gpu_facts){.major = p->major,
                                  .minor = p->minor,
                                  .sms = p->sms,
                                  .driver = p->driver,
                                  .shared_bytes = p->shared_block,
                                  .l2_bytes = p->l2_bytes,
                                  .clock_khz = p->clock_khz,
                                  .memory = p->memory,
                                  .free = available,
                                  .weights = g->weight_bytes,
                                  .scratch = g->scratch_bytes,
                                  .read_gbs = p->read_gbs};
    memcpy(f->name, p->name, sizeof f->name);
}

/* ---- buffers ---- */

int quern_gpu_new(struct quern_gpu *g, uint64_t floats, struct quern_gpu_buf *out)
{
    size_t bytes;
    if (public_start(g))
        return -1;
    if (!floats || !size_mul(floats, 4, &bytes))
        return public_fail(g, "a buffer of %llu floats", (unsigned long long)floats);
    *out = (struct quern_gpu_buf){gpu_alloc(g->g, bytes, "a buffer", &g->error), floats};
    return out->at ? 0 : -1;
}

void quern_gpu_delete(struct quern_gpu *g, struct quern_gpu_buf *b)
{
    struct err none = {0};
    gpu_enter(g->g, &none);
    gpu_free(g->g, b->at, b->floats * 4);
    *b = (struct quern_gpu_buf){0, 0};
}

int quern_gpu_write(struct quern_gpu *g, struct quern_gpu_buf to, const void *from, uint64_t floats)
{
    if (public_start(g))
        return -1;
    if (!from || !to.at || floats > to.floats)
        return public_fail(g, "writing %llu floats into a buffer of %llu", (unsigned long long)floats,
                           (unsigned long long)to.floats);
    return gpu_check(g->g, g->g->cu->to_device(to.at, from, floats * 4, g->g->stream), "writing a buffer",
                     &g->error);
}

int quern_gpu_read(struct quern_gpu *g, struct quern_gpu_buf from, void *to, uint64_t floats)
{
    if (public_start(g))
        return -1;
    if (!to || !from.at || floats > from.floats)
        return public_fail(g, "reading %llu floats from a buffer of %llu", (unsigned long long)floats,
                           (unsigned long long)from.floats);
    if (gpu_check(g->g, g->g->cu->to_host(to, from.at, floats * 4, g->g->stream), "reading a buffer",
                  &g->error))
        return -1;
    return gpu_sync(g->g, &g->error);
}

/* ---- weights ---- */

int quern_gpu_find(struct quern_gpu *g, const char *name)
{
    for (uint32_t i = 0; i < g->weights; i++)
        if (!strcmp(g->weight[i].name, name))
            return (int)i + 1;
    return public_fail(g, "no weight '%s' is loaded", log_safe(name));
}

static int fill_weight(struct quern_gpu *g, struct public_weight *w, const void *bytes, size_t count,
                       uint64_t row_bytes)
{
    struct gpu *c = g->g;
    cu_ptr file = gpu_alloc(c, count, "a weight on its way", &g->error);
    struct repack_args a = {.src = (const uint8_t *)file,
                            .dst = (uint8_t *)w->mat.base,
                            .row_bytes = row_bytes,
                            .bytes = w->bytes,
                            .fmt = w->mat.fmt,
                            .n = w->mat.n,
                            .k = w->mat.k};
    int bad =
        !file ||
        gpu_check(c, c->cu->to_device(file, bytes, count, c->stream), "uploading a weight", &g->error) ||
        gpu_launch(c, K_REPACK, gpu_grid(gpu_blocks(w->bytes, 16 * 256), 1, 1, 256, 0), &a, &g->error) ||
        gpu_sync(c, &g->error);
    gpu_free(c, file, count);
    return bad ? -1 : 0;
}

int quern_gpu_load(struct quern_gpu *g, const char *name, const char *type, uint32_t n, uint32_t k,
                   const void *bytes, size_t byte_count, int flags)
{
    size_t row = 0, all = 0;
    if (public_start(g))
        return -1;
    int dtype = type ? dtype_find(type) : -1;
    if (!name || !bytes || dtype < 0)
        return public_fail(g, !name || !bytes ? "name or bytes is a null pointer" : "there is no type '%s'",
                           type ? log_safe(type) : "");
    uint32_t fmt = dtype == DTYPE_Q4_K && flags & QUERN_GPU_NATIVE ? FMT_Q4_K : layout_for((uint32_t)dtype);
    if (fmt == FMT_NONE)
        return public_fail(g, "%s has no kernel on the GPU", type);
    if (!n || !k || k > g->most_width || !dtype_row_bytes((uint32_t)dtype, k, &row) ||
        !size_mul(row, n, &all))
        return public_fail(g, "%s (%u, %u): K must be a multiple of the block of %u and at most %u",
                           log_safe(name), n, k, dtype_get((uint32_t)dtype)->block_values, g->most_width);
    if (all != byte_count)
        return public_fail(g, "%s has %zu bytes, %u rows of %zu = %zu were expected", log_safe(name),
                           byte_count, n, row, all);
    struct public_weight *grown = mem_realloc(g->weight, g->weights + 1, sizeof *grown);
    g->weight = grown ? grown : g->weight;
    struct mat *mats = mem_realloc(g->mat, g->weights + 2 + PUBLIC_VECTORS, sizeof *mats);
    g->mat = mats ? mats : g->mat;
    if (!grown || !mats)
        return err_memory(&g->error, "the table of weights", sizeof *grown);
    struct public_weight w = {.name = mem_strdup(name), .bytes = layout_bytes(fmt, n, k)};
    w.mat = (struct mat){
        .stride = layout_stride(fmt, k), .each = w.bytes, .fmt = fmt, .n = n, .k = k, .count = 1};
    w.mat.base = w.name ? (const uint8_t *)gpu_alloc(g->g, w.bytes, name, &g->error) : NULL;
    if (!w.mat.base || fill_weight(g, &w, bytes, byte_count, row)) {
        gpu_free(g->g, (cu_ptr)w.mat.base, w.bytes);
        mem_free(w.name);
        return -1;
    }
    g->weight[g->weights++] = w;
    g->mat[g->weights] = w.mat;
    g->weight_bytes += w.bytes;
    return (int)g->weights;
}

/* ---- operations: plans of one or a few, through the same lowering as a model's ---- */

struct launch *public_launch(struct quern_gpu *g, uint32_t kernel, enum launch_args args,
                             struct gpu_grid grid)
{
    struct launch *l = launch_add(&g->list);
    l->kernel = (uint16_t)kernel;
    l->args = (uint8_t)args;
    l->grid = grid;
    return l;
}

int public_replay(struct quern_gpu *g, const struct launch_step *s)
{
    if (g->list.failed)
        return err_memory(&g->error, "the list of launches", sizeof *g->list.all);
    return replay_list(&g->replay, &g->list, s, 0, &g->error);
}

void public_call(struct public_call *c, struct quern_gpu *g)
{
    *c = (struct public_call){.g = g, .lower = g->lower, .buffers = 1};
}

struct operand public_operand(struct public_call *c, float *at, uint32_t width)
{
    c->buffer[c->buffers] = at;
    c->width[c->buffers] = width;
    return (struct operand){c->buffers++, 0};
}

weight_id public_vector(struct public_call *c, struct quern_gpu_buf v)
{
    if (!v.at)
        return 0;
    const weight_id id = c->g->weights + 1 + c->vectors++;
    c->g->mat[id] = (struct mat){
        .base = (const uint8_t *)v.at, .fmt = FMT_F32, .n = 1, .k = (uint32_t)v.floats, .count = 1};
    return id;
}

struct op *public_op(struct public_call *c, enum op_kind kind)
{
    c->op[c->ops].kind = kind;
    return &c->op[c->ops++];
}

int public_run(struct public_call *c, uint32_t m)
{
    struct quern_gpu *g = c->g;
    struct kv_place place = {0, 0};
    struct plan plan = {.ops = c->op,
                        .count = c->ops,
                        .width = c->width,
                        .buffers = c->buffers,
                        .kv = &place,
                        .groups = 1,
                        .layers = 1};
    struct scratch at = g->at;
    at.buffer = c->buffer;
    c->lower.plan = &plan;
    c->lower.mat = g->mat;
    c->lower.width = c->width;
    c->lower.at = &at;
    c->lower.kv = &c->group;
    lower_ratios(&c->lower, &plan);
    c->step.meta.rows = m;
    struct step_class class = lower_class(&c->lower, m, 0);
    class.seqs = 1;
    class.keys = c->step.keys;
    class.tiles = c->many;
    class.decode = !c->many;
    class.single = m == 1;
    return replay_plan(&g->replay, &c->lower, &class, &c->step, &g->list, &g->error);
}

/* ---- products ---- */

/* y = W x as the options want it. */
static int run_product(struct quern_gpu *g, int weight, const float *x, uint32_t m, float *y,
                       const struct quern_gpu_options *o)
{
    const struct mat *w = &g->mat[weight];
    const int per = o->per_block ? o->per_block : 4;
    struct public_call c;
    public_call(&c, g);
    const struct operand in = public_operand(&c, (float *)x, w->k), out = public_operand(&c, y, w->n);
    if (o->variant == QUERN_GPU_FLOAT) {
        public_op(&c, OP_HEADS)->heads = (struct op_heads){.in = in, .out = out, .weight = (weight_id)weight};
        return public_run(&c, m);
    }
    if (per != 1 && per != 2 && per != 4 && per != 8)
        return public_fail(g, "%d outputs a block: 1, 2, 4 or 8 were expected", per);
    c.lower.path = o->variant == QUERN_GPU_AUTO      ? PATH_PACK
                   : o->variant == QUERN_GPU_INTEGER ? PATH_INTEGER
                                                     : PATH_TILED;
    c.lower.per_block = (uint32_t)per;
    /* 12,288 floats of x fit; longer rows come in chunks of 32 KiB by themselves */
    c.lower.whole = o->variant == QUERN_GPU_TILED && w->k <= 12288;
    public_op(&c, OP_OUT)->out = (struct op_out){
        .in = in, .linear = {.weight = (weight_id)weight}, .tail = {.scale = 1.0f, .out = out}};
    return public_run(&c, m);
}

int quern_gpu_gemm(struct quern_gpu *g, int weight, struct quern_gpu_buf x, int m, struct quern_gpu_buf y,
                   const struct quern_gpu_options *o)
{
    static const struct quern_gpu_options by_table = {QUERN_GPU_AUTO, 0};
    const struct public_weight *w;
    char how[64];
    o = o ? o : &by_table;
    if (public_start(g) || public_rows(g, m) || !(w = public_get(g, weight)))
        return -1;
    snprintf(how, sizeof how, "M*K = %d*%u", m, w->mat.k);
    if (public_room(g, x, (uint64_t)m * w->mat.k, "the input", how))
        return -1;
    snprintf(how, sizeof how, "M*N = %d*%u", m, w->mat.n);
    if (public_room(g, y, (uint64_t)m * w->mat.n, "the output", how))
        return -1;
    bool one_row =
        o->variant == QUERN_GPU_TILED || o->variant == QUERN_GPU_CHUNKED || o->variant == QUERN_GPU_INTEGER;
    if (one_row && m != 1)
        return public_fail(g, "this variant takes one row, not %d", m);
    if (o->variant == QUERN_GPU_INTEGER && w->mat.fmt != FMT_Q4_K)
        return public_fail(g, "the integer variant takes Q4_K loaded with QUERN_GPU_NATIVE, %s is not",
                           w->name);
    public_begin(g);
    int bad = run_product(g, weight, public_at(x), (uint32_t)m, public_at(y), o);
    return public_end(g, (struct public_cost){"gemm", 0, 2.0 * m * w->mat.n * w->mat.k, (double)w->bytes},
                      bad);
}

int quern_gpu_quantise(struct quern_gpu *g, struct quern_gpu_buf x, int m, int k, struct quern_gpu_buf *to)
{
    char how[64];
    if (public_start(g))
        return -1;
    if (m < 1 || k < 32 || k % 32)
        return public_fail(g, "K = %d is not a multiple of the block of 32", k);
    uint64_t blocks = (uint64_t)m * (uint32_t)k / 32;
    snprintf(how, sizeof how, "M*K = %d*%d", m, k);
    if (public_room(g, x, (uint64_t)m * (uint32_t)k, "the input", how))
        return -1;
    if (!to->at && quern_gpu_new(g, blocks * 9, to))
        return -1;
    if (to->floats < blocks * 9)
        return public_fail(g, "the output has %llu floats, %llu blocks of 36 bytes need %llu",
                           (unsigned long long)to->floats, (unsigned long long)blocks,
                           (unsigned long long)blocks * 9);
    struct q8_args q = {public_at(x), (uint8_t *)to->at, blocks};
    public_begin(g);
    g->list.count = 0;
    public_launch(g, K_QUANTISE, ARGS_Q8, gpu_grid(gpu_blocks(blocks, 8), 1, 1, 256, 0))->a.q8 = q;
    int bad = public_replay(g, &(struct launch_step){0});
    return public_end(g, (struct public_cost){"quantise", 2, 0, (double)x.floats * 4}, bad);
}
