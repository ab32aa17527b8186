/* What the GPU's host code says and does when something is wrong: a driver that is missing, too old or without a card, a
 * card that is too old, memory that does not suffice, sizes that do not fit, a card that is lost. Nothing is lost of ours.
 * The driver is gpu/fake_cuda.c; what needs kernels in the program is skipped where there are none. */
#include "test.h"

#include "codec/dtype.h"
#include "base/mem.h"
#include "device/cuda/copies.h"
#include "device/place.h"
#include "device/split.h"
#include "gpu/fake_cuda.h"
#include "quern_gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static struct fake_cuda *fake;

static void reset(void)
{
    *fake =
        (struct fake_cuda){.version = 13000, .cards = 1, .major = 9, .minor = 0, .memory = (size_t)1 << 30};
    driver_set_library(FAKE_CUDA);
}

static int setup(void **state)
{
    (void)state;
    void *lib = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL);
    fake = lib ? dlsym(lib, "fake_cuda_state") : NULL;
    return fake ? 0 : -1;
}

static void need_kernels(void)
{
    if (!gpu_blob(0)) {
        print_message("skipped: this build has no CUDA kernels\n");
        skip();
    }
}

/* Opening fails with this code, and a sentence that has this in it. */
static void refused(const char *spec, const char *says)
{
    struct err e = {0};
    struct device *d = NULL;
    assert_int_equal(device_open(&d, spec, &(struct device_options){0}, &e), -1);
    assert_null(d);
    if (!strstr(e.text, says))
        fail_msg("'%s' says nothing of '%s'", e.text, says);
    assert_true(e.code == ERR_RESOURCE || e.code == ERR_USAGE);
}

static void drivers_and_cards(void **state)
{
    (void)state;
    reset();
    fake->version = 11080;
    refused("cuda", "the NVIDIA driver is too old: it supports CUDA 11.8, at least 12.4 is needed");
    reset();
    fake->cards = 0;
    refused("cuda", "no GPU: the NVIDIA driver is installed, but it finds no card");
    reset();
    fake->major = 7;
    fake->minor = 5;
    refused("cuda", "Fake Card is too old: compute capability 7.5, at least 8.0 is needed");
    reset();
    refused("cuda:3", "there is no cuda:3: this machine has 1 card (cuda:0 to cuda:0)");
    refused("gpu", "there is no device 'gpu'");
    driver_set_library("libcuda-that-is-not-there.so.1");
    refused("cuda", "no NVIDIA driver");
    reset();
    if (!gpu_blob(0))
        refused("cuda", "this build has no CUDA kernels");
    else {
        fake->module_result = CU_NO_BINARY;
        refused("cuda", "this build has no kernels for Fake Card (compute capability 9.0)");
    }
}

/* ---- a small plan ---- */

enum { WIDTH = 64, VOCAB = 96, ROWS = 8 };

struct fixture {
    struct plan p;
    struct weights w;
    float *storage;
    struct kv_config kv;
    struct adapter_mix mix; /* of the step */
};

static weight_id matrix(struct fixture *f, uint32_t rows, uint32_t cols)
{
    struct weight one = {.name = "m", .type = DTYPE_F32, .rows = rows, .cols = cols, .count = 1};
    one.data = (const uint8_t *)f->storage;
    one.row_bytes = cols * sizeof(float);
    one.each_bytes = rows * one.row_bytes;
    return weights_add(&f->w, &one);
}

static void build(struct fixture *f)
{
    *f = (struct fixture){.storage = calloc(VOCAB * WIDTH, sizeof(float))};
    for (uint32_t i = 0; i < VOCAB * WIDTH; i++)
        f->storage[i] = 0.01f * (float)(i % 13) - 0.05f;
    struct operand x = plan_buffer(&f->p, WIDTH), q = plan_buffer(&f->p, WIDTH),
                   a = plan_buffer(&f->p, WIDTH);
    plan_add(&f->p, OP_EMBED, UINT32_MAX)->embed =
        (struct op_embed){.table = matrix(f, VOCAB, WIDTH), .scale = 1, .out = x};
    for (uint32_t l = 0; l < 3; l++) {
        plan_kv(&f->p, l, (struct kv_group){.kv_heads = 1, .k_dim = WIDTH, .v_dim = WIDTH});
        plan_add(&f->p, OP_QKV, l)->qkv = (struct op_qkv){.in = x,
                                                          .q = {.weight = matrix(f, WIDTH, WIDTH)},
                                                          .k = {.weight = matrix(f, WIDTH, WIDTH)},
                                                          .v = {.weight = matrix(f, WIDTH, WIDTH)},
                                                          .heads = 1,
                                                          .kv_heads = 1,
                                                          .k_dim = WIDTH,
                                                          .v_dim = WIDTH,
                                                          .layer = l,
                                                          .out = q};
        plan_add(&f->p, OP_ATTN, l)->attn = (struct op_attn){.in = q,
                                                             .out = a,
                                                             .heads = 1,
                                                             .kv_heads = 1,
                                                             .k_dim = WIDTH,
                                                             .v_dim = WIDTH,
                                                             .layer = l,
                                                             .scale = 1,
                                                             .causal = true};
        plan_add(&f->p, OP_OUT, l)->out = (struct op_out){.in = a,
                                                          .linear = {.weight = matrix(f, WIDTH, WIDTH)},
                                                          .tail = {.scale = 1, .residual = x, .out = x}};
    }
    plan_add(&f->p, OP_LOGITS, UINT32_MAX)->logits =
        (struct op_logits){.in = x, .head = {.weight = matrix(f, VOCAB, WIDTH)}, .scale = 1};
    f->p.out_width = VOCAB;
    f->kv = (struct kv_config){.type = DTYPE_F16, .page_tokens = 32, .pages = {5}};
}

static void drop(struct fixture *f)
{
    plan_free(&f->p);
    weights_free(&f->w);
    free(f->storage);
}

static int fill(struct device *d, struct fixture *f, struct err *e)
{
    return d->ops->load(d, &f->w, NULL, NULL, e) || d->ops->prepare(d, &f->p, &f->kv, ROWS, 2, ROWS, e) ? -1
                                                                                                        : 0;
}

static int step(struct device *d, struct fixture *f, uint32_t rows, const struct step_pick *pick,
                struct err *e)
{
    int32_t ids[64] = {0}, pos[64], out[64];
    for (uint32_t i = 0; i < rows; i++)
        pos[i] = out[i] = (int32_t)i;
    const int32_t table[4] = {1, 2, 3, 4};
    const struct step_seq seq = {.rows = rows, .length = rows};
    const struct step s = {.rows = rows,
                           .seqs = 1,
                           .outs = rows,
                           .ids = ids,
                           .pos = pos,
                           .seq = &seq,
                           .tables = table,
                           .table_width = 4,
                           .out = out,
                           .lora = f->mix.count ? &f->mix : NULL,
                           .pick = pick};
    return d->ops->run(d, &f->p, &s, e);
}

static struct device *open_card(const struct device_options *o)
{
    struct err e = {0};
    struct device *d;
    if (device_open(&d, "cuda", o, &e))
        fail_msg("%s", e.text);
    return d;
}

/* A plan, and a card as good as new. */
static void begin(struct fixture *f)
{
    need_kernels();
    build(f);
    reset();
}

static void all_given_back(void)
{
    assert_int_equal(fake->used, 0);
    assert_int_equal(fake->allocations, 0);
    assert_int_equal(fake->pinned, 0);
}

/* ---- memory ---- */

static void memory_runs_out(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    begin(&f);
    struct device *d = open_card(&(struct device_options){.no_parity = true});
    size_t opened = fake->used;         /* what every card takes at once */
    fake->memory = opened + (16 << 10); /* less than the weights */
    assert_int_equal(fill(d, &f, &e), -1);
    assert_int_equal(e.code, ERR_RESOURCE);
    assert_non_null(strstr(e.text, "the pool of weights needs 0.0 MB of GPU memory, 0.0 MB are free"));
    d->ops->close(d);
    all_given_back();
    reset();
    e = (struct err){0};
    d = open_card(&(struct device_options){.no_parity = true, .memory = opened + (1 << 20)});
    assert_int_equal(fill(d, &f, &e), -1); /* within our own limit, too */
    assert_int_equal(e.code, ERR_RESOURCE);
    assert_non_null(strstr(e.text, "within the limit"));
    d->ops->close(d);
    all_given_back();
    /* every allocation on the card fails once: it is said, and nothing is lost */
    for (size_t room = opened + (1 << 20);; room += 4 << 20) {
        reset();
        e = (struct err){0};
        fake->memory = room;
        d = open_card(&(struct device_options){.no_parity = true, .threads = 1});
        int failed = fill(d, &f, &e);
        assert_int_equal(failed ? e.code : ERR_RESOURCE, ERR_RESOURCE);
        d->ops->close(d);
        all_given_back();
        if (!failed)
            break;
    }
    drop(&f);
}

/* What a device says that it needs is what it takes. */
static void needs_are_what_is_taken(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    struct device_memory need, took;
    begin(&f);
    struct device *d = open_card(&(struct device_options){.no_parity = true, .threads = 1});
    const struct device_shape shape = {&f.kv, ROWS, 2, ROWS};
    assert_int_equal(d->ops->need(d, &f.p, &f.w, &shape, &need, &e), 0);
    size_t before = fake->used;
    assert_int_equal(fill(d, &f, &e), 0);
    d->ops->memory(d, &took);
    assert_int_equal(need.weights, took.weights);
    assert_int_equal(need.kv, took.kv);
    assert_true(need.scratch >=
                took.scratch - before); /* what every card takes when it is opened is not asked for */
    assert_int_equal(fake->used, took.weights + took.kv + took.scratch);
    d->ops->close(d);
    all_given_back();
    drop(&f);
}

/* Memory of KV follows the pages in use; where the card is full nothing changes, and addresses stay. */
static void kv_memory_follows_the_pages(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    struct device_memory m;
    begin(&f);
    f.kv.pages[0] = 2048; /* pages of 32 x 64 halves, twice: 8 KiB a layer, 256 of them in 2 MiB */
    f.kv.least[0] = 256;
    struct device *d = open_card(&(struct device_options){.no_parity = true, .threads = 1});
    const struct device_shape shape = {&f.kv, ROWS, 2, ROWS};
    struct device_memory need;
    assert_int_equal(d->ops->need(d, &f.p, &f.w, &shape, &need, &e), 0);
    assert_int_equal(need.kv, 3 * (8 << 21));
    assert_int_equal(need.kv_least, 3 << 21);
    if (fill(d, &f, &e))
        fail_msg("%s", e.text);
    const size_t start = fake->used;
    d->ops->memory(d, &m);
    assert_int_equal(m.kv, 3 << 21);
    uint8_t page[3 * 8192], back[sizeof page];
    assert_int_equal(d->ops->page_bytes(d, 0), sizeof page);
    for (size_t i = 0; i < sizeof page; i++)
        page[i] = (uint8_t)(i * 7);
    assert_int_equal(d->ops->write_page(d, 0, 255, page, &e), 0);
    const uint32_t sizes[] = {257, 600, 2048, 1400, 256, 280, 256, 2048, 300, 256};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(d->ops->back(d, 0, sizes[i], &e), 0);
        d->ops->memory(d, &m);
        const uint64_t pages = d->ops->back_bytes(d, 0, sizes[i]);
        assert_true(m.kv >= pages && m.kv < pages + (32 << 20)); /* it goes back in pieces */
        assert_int_equal(fake->used - start, m.kv - (3 << 21));
        memset(back, 1, sizeof back); /* new pages are zero, and old ones as they were */
        assert_int_equal(d->ops->read_page(d, 0, (int32_t)sizes[i] - 1, back, &e), 0);
        if (sizes[i] != 256)
            assert_int_equal(back[5] | back[8192], 0);
        assert_int_equal(d->ops->read_page(d, 0, 255, back, &e), 0);
        assert_memory_equal(back, page, sizeof page);
        assert_int_equal(step(d, &f, 1, NULL, &e), 0);
    }
    assert_int_equal(fake->used, start); /* all of it returned */
    /* the card is full: nothing is lost, a step runs */
    fake->memory = fake->used + ((size_t)258 << 20);
    e = (struct err){0};
    assert_int_equal(d->ops->back(d, 0, 2048, &e), -1);
    assert_int_equal(e.code, ERR_RESOURCE);
    assert_int_equal(fake->used, start);
    fake->memory = (size_t)1 << 30;
    fake->alloc_result = CU_OUT_OF_MEMORY; /* others took it meanwhile */
    e = (struct err){0};
    assert_int_equal(d->ops->back(d, 0, 2048, &e), -1);
    assert_int_equal(e.code, ERR_RESOURCE);
    fake->alloc_result = CU_OK;
    assert_int_equal(fake->used, start);
    assert_int_equal(step(d, &f, 1, NULL, &e), 0);
    assert_int_equal(d->ops->back(d, 0, 2048, &e), 0);
    d->ops->close(d);
    all_given_back();
    drop(&f);
}

/* A card that maps no memory has all of it from the start: that is what it needs, and growing takes no more. */
static void kv_memory_that_stays(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    struct device_memory m, need;
    begin(&f);
    fake->cannot_map = 1;
    f.kv.pages[0] = 2048;
    f.kv.least[0] = 256;
    struct device *d = open_card(&(struct device_options){.no_parity = true, .threads = 1});
    assert_int_equal(d->ops->need(d, &f.p, &f.w, &(struct device_shape){&f.kv, ROWS, 2, ROWS}, &need, &e), 0);
    assert_int_equal(need.kv_least, need.kv);
    assert_int_equal(fill(d, &f, &e), 0);
    d->ops->memory(d, &m);
    assert_int_equal(d->ops->back(d, 0, 2048, &e), 0);
    assert_int_equal(d->ops->back_bytes(d, 0, 256), m.kv);
    assert_int_equal(d->ops->back_bytes(d, 0, 2048), m.kv);
    d->ops->close(d);
    all_given_back();
    drop(&f);
}

/* ---- decoded weights ---- */

enum { COPY = 1024 }; /* rows and columns of a weight: 2 MiB as fp16 */

struct copying {
    struct copies c;
    struct fixture f;
    struct mat mat[32];
};

/* Copies of the plan's twelve products, which have that form, where so many MiB are free. */
static void copies_take_places(struct copying *t, uint32_t fmt, uint64_t asked, size_t mib)
{
    struct err e = {0};
    for (uint32_t i = 1; i < t->f.w.count; i++)
        t->mat[i] = (struct mat){.n = COPY, .k = COPY, .fmt = fmt};
    struct gpu *g = gpu_open(0, 0, &e);
    assert_non_null(g);
    fake->memory = fake->used + (mib << 20);
    copies_init(&t->c, g);
    t->c.asked = asked;
    if (copies_open(&t->c, &t->f.p, t->mat, t->f.w.count, &e))
        fail_msg("%s", e.text);
}

static void copies_begin(struct copying *t, uint64_t asked, size_t mib)
{
    begin(&t->f);
    copies_take_places(t, FMT_Q4_K_TILE, asked, mib);
}

static void copies_end(struct copying *t)
{
    struct gpu *g = t->c.g;
    copies_close(&t->c);
    gpu_close(g);
    all_given_back();
    drop(&t->f);
}

/* How many there are: the first ones in the order of the plan. */
static uint32_t copies_there(const struct copying *t)
{
    uint32_t n = 0;
    bool gone = false;
    for (uint32_t i = 0; i < t->f.p.count; i++) {
        const struct op *o = &t->f.p.ops[i];
        const weight_id w[3] = {o->kind == OP_QKV   ? o->qkv.q.weight
                                : o->kind == OP_OUT ? o->out.linear.weight
                                                    : 0,
                                o->kind == OP_QKV ? o->qkv.k.weight : 0,
                                o->kind == OP_QKV ? o->qkv.v.weight : 0};
        for (int k = 0; k < 3 && w[k]; k++) {
            const uint8_t *at = t->c.kept[w[k]].values;
            assert_true(!gone || !at);
            gone = !at;
            n += !gone;
            if (at) { /* side by side, and it can be written to */
                assert_int_equal(at - (const uint8_t *)(uintptr_t)t->c.base, (n - 1) * (2ull << 20));
                ((uint8_t *)t->c.kept[w[k]].values)[(2 << 20) - 1] = 1;
            }
        }
    }
    return n;
}

static void copies_of_nothing(void **state)
{
    (void)state;
    struct copying t;
    begin(&t.f);
    copies_take_places(&t, FMT_F16, 64 << 20, 600); /* they are decoded as they are */
    assert_int_equal(copies_there(&t), 0);
    copies_fill(&t.c);
    assert_int_equal(copies_bytes(&t.c), 0);
    copies_end(&t);
}

static void copies_by_room(void **state)
{
    (void)state;
    struct copying t;
    struct copies c = {.asked = COPIES_AUTO, .bytes = 137ull << 30, .part = 4ull << 30, .returns = true};
    assert_int_equal(copies_share(&c, 100ull << 30), 84ull << 30); /* whole parts of seven eighths */
    assert_int_equal(copies_share(&c, 200ull << 30), 137ull << 30);
    assert_int_equal(copies_share(&c, 16ull << 30), 0); /* too few to matter */
    c.asked = 30ull << 30;
    assert_int_equal(copies_share(&c, 100ull << 30), 32ull << 30);
    assert_int_equal(copies_share(&c, 20ull << 30), 16ull << 30);
    c.asked = COPIES_AUTO;
    c.returns = false;
    assert_int_equal(copies_share(&c, 1000ull << 30), 0);
    assert_int_equal(copies_share(&c, 1096ull << 30), 137ull << 30);
    c.fp8 = true;
    assert_int_equal(copies_share(&c, 200ull << 30), 137ull << 30);

    const struct {
        uint64_t asked;
        size_t mib;
        uint32_t there;
    } cases[] = {{COPIES_AUTO, 600, 12}, {COPIES_AUTO, 256 + 16, 8}, {COPIES_AUTO, 256 + 2, 0},
                 {5 << 20, 600, 2},      {64 << 20, 600, 12},        {64 << 20, 256 + 7, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        copies_begin(&t, cases[i].asked, cases[i].mib);
        assert_int_equal(copies_there(&t), cases[i].there);
        copies_end(&t);
    }
}

struct taker {
    struct gpu *g;
    cu_ptr got;
    atomic_bool done;
};

static void *take_most(void *arg)
{
    struct taker *t = arg;
    struct err e = {0};
    t->got = gpu_alloc(t->g, 260ull << 20, "all that is left", &e);
    atomic_store(&t->done, true);
    return NULL;
}

/* Whatever takes memory of the card gets that of copies: the same model, another one on another thread, KV that grows. They
 * come back once it is free. */
static void copies_make_way(void **state)
{
    (void)state;
    struct copying t;
    struct err e = {0};
    uint64_t room;
    copies_begin(&t, COPIES_AUTO, 256 + 16);
    assert_true(copies_hold(&t.c)); /* lists of before are forgotten, once */
    copies_release(&t.c);
    assert_false(copies_hold(&t.c));
    copies_release(&t.c);
    for (uint32_t i = 0; i < t.f.w.count; i++)
        t.c.made[i] = true;
    assert_int_equal(gpu_room(t.c.g, &room, &e), 0);
    assert_int_equal(room, 272ull << 20); /* as if there were none */
    cu_ptr p = gpu_alloc(t.c.g, 259ull << 20, "a test", &e);
    assert_true(p);
    assert_int_equal(copies_there(&t), 6);
    assert_int_equal(gpu_spare_bytes(0), 12 << 20);
    uint32_t made = 0;
    for (uint32_t i = 0; i < t.f.w.count; i++)
        made += t.c.made[i];
    assert_int_equal(made, 6);
    assert_true(copies_hold(&t.c));
    copies_release(&t.c);
    assert_int_equal(gpu_alloc(t.c.g, 14ull << 20, "too much", &e), 0);
    assert_int_equal(copies_there(&t), 6); /* for nothing none goes */
    gpu_free(t.c.g, p, 259ull << 20);
    copies_fill(&t.c);
    assert_int_equal(copies_there(&t), 8);
    for (uint32_t i = 0, n = 0; i < t.f.w.count; i++)
        assert_true((n += t.c.made[i]) <= 6); /* those that are back are decoded again */

    struct taker other = {.g = gpu_open(0, 0, &e)};
    pthread_t thread;
    fake->memory = fake->used + (256 << 20);
    copies_hold(&t.c); /* a step goes to the card */
    assert_int_equal(pthread_create(&thread, NULL, take_most, &other), 0);
    assert_int_equal(copies_there(&t), 8);
    assert_false(atomic_load(&other.done));
    copies_release(&t.c);
    pthread_join(thread, NULL);
    assert_true(other.got);
    assert_int_equal(copies_there(&t), 6);
    gpu_free(other.g, other.got, 260ull << 20);
    gpu_close(other.g);
    copies_fill(&t.c);

    t.f.kv.pages[0] = 1024; /* 8 MiB a layer, of which 2 at first */
    t.f.kv.least[0] = 256;
    fake->memory = (size_t)1 << 30;
    struct device *d = open_card(&(struct device_options){.no_parity = true, .threads = 1});
    if (fill(d, &t.f, &e))
        fail_msg("%s", e.text);
    copies_fill(&t.c);
    assert_int_equal(copies_there(&t), 12);
    fake->memory = fake->used + (256 << 20);
    assert_int_equal(d->ops->back(d, 0, 512, &e), 0); /* 6 MiB */
    assert_int_equal(copies_there(&t), 9);
    assert_int_equal(d->ops->back(d, 0, 1024, &e), 0);
    assert_int_equal(copies_there(&t), 3);
    d->ops->close(d);
    copies_end(&t);
}

/* A card that maps no memory: copies are all there from the start, or none is, and they stay. */
static void copies_that_stay(void **state)
{
    (void)state;
    struct copying t;
    struct err e = {0};
    for (int i = 0; i < 2; i++) {
        begin(&t.f);
        fake->cannot_map = 1;
        copies_take_places(&t, FMT_Q4_K_TILE, COPIES_AUTO, i ? 200 : 190);
        assert_int_equal(copies_there(&t), i ? 12 : 0);
        assert_int_equal(copies_bytes(&t.c), i ? 24 << 20 : 0);
        assert_int_equal(gpu_spare_bytes(0), 0);
        assert_int_equal(gpu_alloc(t.c.g, 195ull << 20, "too much", &e), 0);
        copies_fill(&t.c);
        assert_int_equal(copies_there(&t), i ? 12 : 0);
        copies_end(&t);
    }
}

/* A limit of the model's own counts copies, and they make way for what it takes within it. */
static void copies_within_a_limit(void **state)
{
    (void)state;
    struct copying t;
    struct err e = {0};
    copies_begin(&t, 64 << 20, 600);
    assert_int_equal(copies_there(&t), 12);
    t.c.g->limit = t.c.g->taken + (20 << 20);
    cu_ptr p = gpu_alloc(t.c.g, 8 << 20, "a test", &e);
    assert_true(p);
    assert_int_equal(copies_there(&t), 6);
    assert_int_equal(gpu_alloc(t.c.g, 13 << 20, "a test", &e), 0);
    assert_int_equal(e.code, ERR_RESOURCE);
    gpu_free(t.c.g, p, 8 << 20);
    copies_end(&t);
}

/* A card that holds a part of it: the rest goes to the CPU, and the two run together. */
static void a_part_on_the_card(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    struct placement p;
    struct device *gpu, *cpu, *d;
    begin(&f);
    const struct device_options o = {.no_parity = true, .threads = 1};
    gpu = open_card(&o);
    struct place_request r = {.plan = &f.p,
                              .weights = &f.w,
                              .main = gpu,
                              .shape = {&f.kv, ROWS, 2, ROWS},
                              .how = PLACE_SOME,
                              .layers = 2};
    assert_int_equal(place_plan(&r, &p, &e), 0);
    assert_int_equal(p.layers, 2);
    assert_int_equal(p.main, 7);
    assert_int_equal(cpu_open(&cpu, &o, &e), 0);
    assert_int_equal(split_open(&d, &(struct split_devices){.main = gpu, .rest = cpu}, &e), 0);
    if (fill(d, &f, &e))
        fail_msg("%s", e.text);
    assert_non_null(d->ops->picks);
    assert_true(d->ops->ahead);
    for (int i = 0; i < 4; i++) /* launches, then a graph */
        if (step(d, &f, 1, NULL, &e) || !d->ops->results(d, &e))
            fail_msg("%s", e.text);
    assert_true(fake->graphs > 0);
    const struct step_pick pick[2] = {{.on = true, .top_p = 1, .repeat = 1}, {.on = false}};
    assert_int_equal(step(d, &f, 2, pick, &e), 0);
    assert_non_null(d->ops->picks(d, &e));
    d->ops->close(d);
    all_given_back();
    drop(&f);
}

/* Steps of some rows send the weights of the CPU's layers to the card; those of one row do not. */
static void weights_are_sent(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    struct placement p;
    struct device *d;
    struct split_devices of = {.stream_rows = 4};
    begin(&f);
    struct device_options o = {.no_parity = true, .threads = 2};
    of.main = open_card(&o);
    struct place_request r = {.plan = &f.p,
                              .weights = &f.w,
                              .main = of.main,
                              .shape = {&f.kv, ROWS, 2, ROWS},
                              .how = PLACE_SOME,
                              .layers = 1};
    assert_int_equal(place_plan(&r, &p, &e), 0);
    assert_int_equal(cpu_open(&of.rest, &o, &e), 0);
    o.streamed = true;
    of.stream = open_card(&o);
    assert_int_equal(split_open(&d, &of, &e), 0);
    if (fill(d, &f, &e))
        fail_msg("%s", e.text);
    int alone = 0, streamed = 0;
    for (int i = 0; i < 9;
         i++) { /* in turns; one fails in the middle, and no more weights are sent after it */
        const uint32_t rows = i % 2 ? 1 : 4 + (uint32_t)i % 3;
        int before = fake->launches;
        if (i == 5) {
            const size_t held = fake->used;
            fake->launch_result = 1;
            assert_int_equal(step(d, &f, 4, NULL, &e), -1);
            fake->launch_result = 0;
            assert_true(fake->used < held); /* what only sending needs is given back */
            e = (struct err){0};
        } else if (step(d, &f, rows, NULL, &e) || !d->ops->results(d, &e))
            fail_msg("%s", e.text);
        if (i == 2)
            streamed = fake->launches - before;
        alone = fake->launches - before;
    }
    assert_true(streamed > alone); /* of the last step */
    d->ops->close(d);
    all_given_back();
    /* without room for it, steps run as before */
    reset();
    o.streamed = false;
    of = (struct split_devices){.main = open_card(&o), .stream_rows = 4};
    assert_int_equal(cpu_open(&of.rest, &o, &e), 0);
    of.stream =
        open_card(&(struct device_options){.streamed = true, .threads = 1, .memory = (uint64_t)36 << 20});
    assert_int_equal(split_open(&d, &of, &e), 0);
    if (fill(d, &f, &e) || step(d, &f, 6, NULL, &e) || !d->ops->results(d, &e))
        fail_msg("%s", e.text);
    d->ops->close(d);
    all_given_back();
    /* nor is there a streaming device where no operation of the CPU's is for it */
    reset();
    for (uint32_t i = 0; i < f.p.count; i++)
        f.p.ops[i].device = f.p.ops[i].kind == OP_EMBED;
    of = (struct split_devices){.main = open_card(&o), .stream_rows = 4};
    assert_int_equal(cpu_open(&of.rest, &o, &e), 0);
    of.stream = open_card(&(struct device_options){.streamed = true, .threads = 1});
    assert_int_equal(split_open(&d, &of, &e), 0);
    if (fill(d, &f, &e) || step(d, &f, 6, NULL, &e) || !d->ops->results(d, &e))
        fail_msg("%s", e.text);
    d->ops->close(d);
    all_given_back();
    drop(&f);
}

/* ---- a step ---- */

static void number_slot(void *arg, weight_id weight, uint32_t *slot)
{
    struct plan *p = arg;
    (void)weight;
    *slot = ++p->slots;
}

/* Weights that stay on the card give their memory to KV, and take it again when KV needs less: also where all keys are on
 * another device. A growth that fails on one device changes nothing on the others. */
static void sent_weights_come_back(void **state)
{
    (void)state;
    for (int keys = 0; keys < 2; keys++) { /* whether the CPU has any */
        struct fixture f;
        struct err e = {0};
        struct device *d;
        struct split_devices of = {.stream_rows = 4};
        begin(&f);
        struct device_options o = {.no_parity = true, .threads = 2, .copies = COPIES_AUTO};
        for (uint32_t i = 0; i < f.p.count; i++)
            f.p.ops[i].device = keys ? f.p.ops[i].layer < 1 : f.p.ops[i].kind == OP_OUT;
        f.kv.pages[0] = 4096;
        f.kv.least[0] = 256;
        of.main = open_card(&o);
        assert_int_equal(cpu_open(&of.rest, &o, &e), 0);
        o.streamed = true;
        of.stream = open_card(&o);
        assert_int_equal(split_open(&d, &of, &e), 0);
        fake->memory = (size_t)4 << 30;
        if (fill(d, &f, &e))
            fail_msg("%s", e.text);
        struct device_memory sum, cpu;
        d->ops->memory(d, &sum);
        of.rest->ops->memory(of.rest, &cpu);
        assert_int_equal(sum.weights + sum.kv + sum.scratch - cpu.weights - cpu.kv - cpu.scratch,
                         fake->used - gpu_spare_bytes(0));
        const uint64_t all = gpu_spare_bytes(0);
        fake->memory = fake->used + ((size_t)258 << 20);
        assert_int_equal(d->ops->back(d, 0, 512, &e), 0);
        const uint64_t less = gpu_spare_bytes(0);
        assert_true(less < all);
        fake->memory = (size_t)4 << 30;
        assert_int_equal(d->ops->back(d, 0, 256, &e), 0);
        assert_int_equal(gpu_spare_bytes(0), all);
        const size_t used = fake->used;
        for (size_t room = 0;; room += 2) {
            fake->memory = used - all + ((size_t)(256 + room) << 20);
            if (!d->ops->back(d, 0, 4096, &e))
                break;
            assert_true(room < 400);
            assert_int_equal(e.code, ERR_RESOURCE);
            assert_int_equal(fake->used - gpu_spare_bytes(0), used - all);
            e = (struct err){0};
        }
        d->ops->close(d);
        all_given_back();
        drop(&f);
    }
}

/* Adapters cost launches only where a sequence has one; one that is not there is refused. */
static void adapters_on_the_card(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    begin(&f);
    for (uint32_t i = 0; i < f.p.count; i++)
        plan_each_slot(&f.p.ops[i], number_slot, &f.p);
    assert_int_equal(f.p.slots, 1 + 3 * 4 + 1);
    f.p.adapters = 1;
    f.p.lora = arena_alloc(&f.p.arena, (f.p.slots + 1) * 2, sizeof *f.p.lora);
    memset(f.p.lora, 0, (f.p.slots + 1) * 2 * sizeof *f.p.lora);
    /* slots 2, 3, 4, 5 are q, k, v and out of the first layer: the adapter changes q and out */
    for (uint32_t slot = 2; slot <= 5; slot += 3)
        f.p.lora[2 * slot + 1] =
            (struct lora_pair){.a = matrix(&f, 4, WIDTH), .b = matrix(&f, 4, WIDTH), .scale = 1};
    struct device *d = open_card(&(struct device_options){.no_parity = true, .threads = 1});
    if (fill(d, &f, &e))
        fail_msg("%s", e.text);
    int before = fake->launches;
    assert_int_equal(step(d, &f, 2, NULL, &e), 0);
    int plain = fake->launches - before;
    f.mix = (struct adapter_mix){.count = 1, .id = {1}, .scale = {1}};
    before = fake->launches;
    assert_int_equal(step(d, &f, 2, NULL, &e), 0);
    /* down and up, twice; rows as floats only where a product has adapters and its input is no float row as it is */
    assert_int_equal(fake->launches - before, plain + 2 * 2);
    f.mix.id[0] = 2;
    assert_int_equal(step(d, &f, 2, NULL, &e), -1);
    assert_string_equal(e.text, "sequence 0 asks for an adapter that does not exist: there are 1");
    d->ops->close(d);
    all_given_back();
    drop(&f);
}

static void wrong_sizes(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    begin(&f);
    struct device *d = open_card(&(struct device_options){.no_parity = true, .threads = 1});
    assert_int_equal(fill(d, &f, &e), 0);
    assert_int_equal(step(d, &f, ROWS + 1, NULL, &e), -1);
    assert_string_equal(e.text,
                        "a step of 9 rows, 1 sequences and 9 results: at most 8, 2 and 8 were prepared");
    e = (struct err){0};
    int launches = fake->launches;
    assert_int_equal(step(d, &f, 1, NULL, &e), 0); /* the next one works */
    assert_true(fake->launches > launches);
    d->ops->close(d);
    all_given_back();
    drop(&f);
}

/* After a sticky fault every call says so, and the code is that of a lost device. */
static void a_card_is_lost(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    begin(&f);
    struct device *d = open_card(&(struct device_options){.no_parity = true, .threads = 1});
    assert_int_equal(fill(d, &f, &e), 0);
    assert_int_equal(step(d, &f, 1, NULL, &e), 0);
    fake->sync_result = CU_ILLEGAL_ADDRESS;
    assert_null(d->ops->results(d, &e));
    assert_int_equal(e.code, ERR_DEVICE);
    assert_non_null(
        strstr(e.text, "device lost: cuda:0 failed while running kernels (CUDA_ERROR_ILLEGAL_ADDRESS"));
    fake->sync_result = CU_OK; /* whatever the driver says later */
    for (int i = 0; i < 3; i++) {
        e = (struct err){0};
        assert_int_equal(step(d, &f, 1, NULL, &e), -1);
        assert_int_equal(e.code, ERR_DEVICE);
        assert_non_null(strstr(e.text, "device lost"));
    }
    e = (struct err){0};
    assert_null(d->ops->results(d, &e));
    assert_int_equal(e.code, ERR_DEVICE);
    d->ops->close(d);
    all_given_back();
    drop(&f);
}

/* A card that computes nonsense (this one computes nothing) is refused at load. */
static void parity_refuses(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    begin(&f);
    struct device *d = open_card(&(struct device_options){.threads = 1});
    assert_int_equal(fill(d, &f, &e), -1);
    assert_int_equal(e.code, ERR_DEVICE);
    assert_non_null(strstr(e.text, "the GPU does not compute m (F32, 96 x 64) as the CPU does"));
    d->ops->close(d);
    all_given_back();
    drop(&f);
}

/* ---- the public header ---- */

static void public_calls(void **state)
{
    (void)state;
    char why[200];
    float bytes[32 * 4] = {0};
    struct quern_gpu_buf x, y;
    need_kernels();
    reset();
    fake->major = 7;
    assert_null(quern_gpu_open(0, 8, 64, why, sizeof why));
    assert_non_null(strstr(why, "too old"));
    reset();
    struct quern_gpu *g = quern_gpu_open(0, 8, 64, why, sizeof why);
    assert_non_null(g);
    assert_int_equal(quern_gpu_find(g, "blk.0"), -1);
    assert_string_equal(quern_gpu_error(g), "no weight 'blk.0' is loaded");
    assert_int_equal(quern_gpu_load(g, "w", "F32", 4, 32, bytes, sizeof bytes, 0), 1);
    assert_int_equal(quern_gpu_load(g, "v", "F32", 4, 32, bytes, sizeof bytes - 4, 0), -1);
    assert_non_null(strstr(quern_gpu_error(g), "v has 508 bytes, 4 rows of 128 = 512 were expected"));
    assert_int_equal(quern_gpu_load(g, "v", "IQ1_S", 4, 256, bytes, sizeof bytes, 0), -1);
    assert_int_equal(quern_gpu_new(g, 31, &x), 0);
    assert_int_equal(quern_gpu_new(g, 4, &y), 0);
    int launches = fake->launches;
    assert_int_equal(quern_gpu_gemm(g, 1, x, 1, y, NULL), -1);
    assert_non_null(strstr(quern_gpu_error(g), "31"));
    assert_int_equal(quern_gpu_gemm(g, 9, x, 1, y, NULL), -1);
    assert_int_equal(fake->launches, launches); /* checked before anything is launched */
    struct quern_gpu_buf big;
    assert_int_equal(quern_gpu_new(g, (uint64_t)1 << 30, &big), -1);
    assert_non_null(strstr(quern_gpu_error(g), "MB are free"));
    quern_gpu_delete(g, &x);
    quern_gpu_delete(g, &y);
    quern_gpu_close(g);
    all_given_back();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drivers_and_cards),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(needs_are_what_is_taken),
        cmocka_unit_test(kv_memory_follows_the_pages),
        cmocka_unit_test(kv_memory_that_stays),
        cmocka_unit_test(copies_of_nothing),
        cmocka_unit_test(copies_by_room),
        cmocka_unit_test(copies_make_way),
        cmocka_unit_test(copies_that_stay),
        cmocka_unit_test(copies_within_a_limit),
        cmocka_unit_test(a_part_on_the_card),
        cmocka_unit_test(weights_are_sent),
        cmocka_unit_test(sent_weights_come_back),
        cmocka_unit_test(adapters_on_the_card),
        cmocka_unit_test(wrong_sizes),
        cmocka_unit_test(a_card_is_lost),
        cmocka_unit_test(parity_refuses),
        cmocka_unit_test(public_calls),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
