/* Weights that are sent for each step: when an operation is launched, all that it needs are in their places, whatever the
 * border of divided experts was before. The driver is gpu/fake_cuda.c, and repacking here copies the first bytes of each
 * matrix. */
#include "test.h"

#include "codec/dtype.h"
#include "base/mem.h"
#include "device/cuda/sender.h"
#include "gpu/fake_cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

enum {
    SHAPES = 5,
    OPS = 2 * SHAPES + 1,
    EXPERTS = 20,
    ROWS = 256,
    COLS = 512,
    LONG_ROWS = 12288,
    STAMP = 8,
    OP_BYTES = 240 << 20
};

static struct fake_cuda *fake;
static _Atomic uint64_t repacked; /* matrices */

static void repack(const unsigned grid[3], const void *args)
{
    const struct repack_args *a = args;
    for (unsigned m = 0; m < grid[1]; m++)
        memcpy(a->dst + m * a->dst_each, a->src + m * a->src_each, STAMP);
    repacked += grid[1];
}

static int setup(void **state)
{
    (void)state;
    void *lib = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL);
    fake = lib ? dlsym(lib, "fake_cuda_state") : NULL;
    return fake ? 0 : -1;
}

struct fixture {
    struct plan plan;
    struct weights weights;
    uint8_t *bytes;
    struct gpu *gpu;
    struct sender *sender;
};

/* Every matrix begins with bytes of its own. Weights of an operation lie over each other; `apart` times as far from one
 * matrix to the next as it is long. */
static weight_id matrix(struct fixture *f, uint32_t op, uint32_t rows, uint32_t count, uint32_t apart)
{
    struct weight w = {.name = "w", .type = DTYPE_F16, .rows = rows, .cols = COLS, .count = count};
    uint8_t *at = f->bytes + (size_t)op * OP_BYTES + 16ull * f->weights.count;
    w.data = at;
    w.row_bytes = 2 * COLS;
    w.each_bytes = w.row_bytes * rows * apart;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t stamp = 0x9e3779b97f4a7c15u * (64 * f->weights.count + i + 1);
        memcpy(at + i * w.each_bytes, &stamp, STAMP);
    }
    return weights_add(&f->weights, &w);
}

/* Rows of `up`, and how far apart its matrices are, and those of `gate`. */
struct shape {
    uint32_t rows, apart;
};

static const struct shape small[SHAPES] = {
    {4 * ROWS, 1}, /* several in a job */
    {4 * ROWS, 2}, /* the same, where gate and up are in one tensor: a job's bytes are not one run */
    {0, 0},        /* no experts */
    {4 * ROWS, 1}, {4 * ROWS, 1},
};

static const struct shape large[SHAPES] = {
    {4 * ROWS, 1},  {4 * ROWS, 2}, {0, 0}, {20 * ROWS, 2}, /* one in a job */
    {16 * ROWS, 1},                                        /* 84 MB: more than is pinned at once */
};

static const struct shape dense[SHAPES] = {0};

static void build(struct fixture *f, const struct shape shapes[SHAPES])
{
    *f = (struct fixture){.bytes = mem_zalloc(OPS, OP_BYTES)};
    for (uint32_t i = 0; i < OPS; i++)
        if (!shapes[i % SHAPES].rows) { /* one that is sent whole, in pieces of a matrix */
            plan_add(&f->plan, OP_OUT, 0)->out.linear.weight = matrix(f, i, LONG_ROWS, 1, 1);
        } else {
            struct op_moe *o = &plan_add(&f->plan, OP_MOE, 0)->moe;
            o->side = i % SHAPES == 3 ? MOE_ALL : MOE_BELOW;
            o->experts = EXPERTS;
            o->gate.weight = matrix(f, i, ROWS, EXPERTS, shapes[i % SHAPES].apart);
            o->up.weight = matrix(f, i, shapes[i % SHAPES].rows, EXPERTS, shapes[i % SHAPES].apart);
            o->down.weight = matrix(f, i, ROWS, EXPERTS, 1);
            o->router.weight = matrix(f, i, EXPERTS, 1, 1);
        }
}

struct look {
    struct fixture *f;
    const struct op *op;
    uint32_t border;
};

/* That what the operation needs is there. */
static void look_at(void *arg, weight_id *id)
{
    const struct look *l = arg;
    const struct weight *w = &l->f->weights.all[*id];
    const struct mat *m = &sender_mats(l->f->sender)[*id];
    const uint32_t n = plan_is_divided(l->op, *id) && l->border < w->count ? l->border : w->count;
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(m->base + i * m->each, w->data + i * w->each_bytes, STAMP) != 0)
            fail_msg("border %u: matrix %u of weight %u is not there", l->border, i, *id);
}

static void pass(struct fixture *f, uint32_t border, uint32_t from)
{
    struct err e = {0};
    sender_hold(f->sender);
    sender_border(f->sender, border);
    for (uint32_t i = from; i < f->plan.count; i++) {
        struct look l = {f, &f->plan.ops[i], border};
        if (sender_begin(f->sender, i, &e))
            fail_msg("%s", e.text);
        plan_each_sent(l.op, look_at, &l);
        if (sender_end(f->sender, i, &e))
            fail_msg("%s", e.text);
    }
    sender_release(f->sender);
}

static void begin(struct fixture *f, const struct shape shapes[SHAPES], int threads, uint64_t pin,
                  int refusal)
{
    struct err e = {0};
    if (!gpu_blob(0)) {
        print_message("skipped: this build has no CUDA kernels\n");
        skip();
    }
    *fake = (struct fake_cuda){.version = 13000,
                               .cards = 1,
                               .major = 9,
                               .memory = (size_t)4 << 30,
                               .launched = repack,
                               .register_result = refusal};
    driver_set_library(FAKE_CUDA);
    build(f, shapes);
    const struct device_options o = {.threads = threads, .pin_most = pin, .copies = COPIES_AUTO};
    if (!(f->gpu = gpu_open(0, 0, &e)) || sender_open(&f->sender, f->gpu, &f->plan, &f->weights, &o, &e))
        fail_msg("%s", e.text);
}

static void end(struct fixture *f)
{
    sender_close(f->sender);
    gpu_close(f->gpu);
    assert_int_equal(fake->used, 0);
    assert_int_equal(fake->pinned, 0);
    plan_free(&f->plan);
    weights_free(&f->weights);
    mem_free(f->bytes);
}

/* The same border, others in any order, and steps that leave operations out. */
static void borders_change(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        struct fixture f;
        uint32_t random = 7;
        begin(&f, small, threads, threads == 2 ? UINT64_MAX : 0, 0);
        for (int i = 0; i < 16; i++) {
            random = random * 1664525 + 1013904223;
            pass(&f, i < 4 ? EXPERTS : random >> 16, 0);
            pass(&f, (random >> 8) % (EXPERTS + 2), random >> 24 & 1);
        }
        for (uint32_t border = 0; border <= EXPERTS; border++) /* a job is cut at every place */
            pass(&f, border, 0);
        end(&f);
    }
}

/* As an allocation does. */
static void take_memory(struct gpu *g, uint64_t bytes)
{
    gpu_memory_lock();
    gpu_make_room(g, bytes);
    gpu_memory_unlock();
}

static uint64_t sent_bytes(const struct fixture *f)
{
    return sender_times(f->sender).bytes;
}

/* Of stages that share a room, what is below the border is sent in every pass; those that count may be a pass ahead. The
 * others are sent once. */
static void less_is_sent(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, small, 2, 0, 0);
    for (int i = 0; i < 3; i++)
        pass(&f, 5, 0);
    const uint64_t before = repacked;
    for (int i = 0; i < 10; i++)
        pass(&f, 5, 0);
    /* eight rooms, eleven stages: the first three and the last three take turns */
    const uint64_t whole = 3 * EXPERTS + 1, below = 3 * 5 + 1, pieces = 2, each = 4 * below + whole + pieces;
    assert_in_range(repacked - before, 9 * each, 11 * each);
    end(&f);
}

/* A stage with a room of its own is sent once, and what it lacks when the border rises. */
static void own_rooms(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, small, 2, 0, 0);
    pass(&f, 5, 0);
    assert_int_equal(sender_kept(f.sender), 0);
    sender_fill(f.sender);
    assert_true(sender_hold(f.sender)); /* weights have other places now */
    sender_release(f.sender);
    const uint64_t all = sender_kept(f.sender);
    assert_true(all > 200 << 20);
    pass(&f, 5, 0);
    pass(&f, 5, 0);
    uint64_t before = sent_bytes(&f);
    for (int i = 0; i < 3; i++)
        pass(&f, 5, i % 2);
    assert_int_equal(sent_bytes(&f), before);
    pass(&f, EXPERTS, 0);
    const uint64_t risen = sent_bytes(&f);
    assert_true(risen > before);
    pass(&f, 7, 0);
    pass(&f, EXPERTS, 0);
    assert_int_equal(sent_bytes(&f), risen);
    end(&f);
}

/* Where no experts are divided the border is 0: weights stay nevertheless, also those that come to a room again. */
static void own_rooms_of_dense_layers(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, dense, 2, 0, 0);
    sender_fill(f.sender);
    for (int i = 0; i < 2; i++) {
        pass(&f, 0, 0);
        pass(&f, 0, 0);
        const uint64_t before = sent_bytes(&f);
        for (int k = 0; k < 3; k++)
            pass(&f, 0, 0);
        assert_int_equal(sent_bytes(&f), before);
        take_memory(f.gpu, fake->memory);
        pass(&f, 0, 0);
        sender_fill(f.sender);
    }
    end(&f);
}

/* Before the first step one stage is sent, and again to a room of its own: a model may have no prompts. */
static void little_is_sent_before_the_first_step(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, dense, 3, UINT64_MAX, 0);
    const int slots = fake->pinned;
    sender_fill(f.sender);
    const struct timespec tick = {.tv_nsec = 50000000};
    const uint64_t each = 2ull * COLS * LONG_ROWS;
    for (int i = 0; sent_bytes(&f) < each && i < 600; i++)
        nanosleep(&tick, NULL);
    nanosleep(&tick, NULL); /* for more of them, if it was wrong */
    assert_in_range(sent_bytes(&f), each, 2 * each);
    assert_true(fake->pinned - slots <= 2);
    pass(&f, 0, 0);
    pass(&f, 0, 0);
    assert_in_range(sent_bytes(&f), OPS * each, (OPS + 1) * each);
    end(&f);
}

/* Own rooms are given back where memory is needed, and come again where there is some. */
static void own_rooms_are_given_back(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, small, 3, 0, 0);
    sender_fill(f.sender);
    const uint64_t all = sender_kept(f.sender);
    for (int i = 0; i < 6; i++) {
        pass(&f, EXPERTS, 0);
        pass(&f, 3, 0);
        const uint64_t kept = sender_kept(f.sender), free = fake->memory - fake->used;
        take_memory(f.gpu, free + 1);
        assert_true(sender_kept(f.sender) < kept);
        assert_int_equal(fake->memory - fake->used, free + kept - sender_kept(f.sender));
        pass(&f, 4, 0);
        pass(&f, EXPERTS, 0);
        if (i == 3) {
            take_memory(f.gpu, fake->memory);
            assert_int_equal(sender_kept(f.sender), 0);
        }
        if (i >= 2)
            sender_fill(f.sender);
        if (i >= 2)
            assert_int_equal(sender_kept(f.sender), all);
    }
    end(&f);
}

/* What fits is kept, and the others take turns; `most` bounds it, and 0 is none. */
static void own_rooms_that_fit(void **state)
{
    (void)state;
    uint64_t sent[3], kept[3];
    for (int i = 0; i < 3; i++) {
        struct fixture f;
        begin(&f, large, 2, 0, 0);
        const uint64_t least = fake->used;
        fake->memory = least + (i == 0 ? 0 : (uint64_t)(i == 1 ? 340 : 4000) << 20);
        sender_fill(f.sender);
        kept[i] = sender_kept(f.sender);
        assert_true(kept[i] <= fake->memory - least);
        for (int k = 0; k < 3; k++)
            pass(&f, EXPERTS, 0);
        const uint64_t before = sent_bytes(&f);
        for (int k = 0; k < 10; k++)
            pass(&f, EXPERTS, 0);
        sent[i] = sent_bytes(&f) - before;
        end(&f);
    }
    assert_int_equal(kept[0], 0);
    assert_true(kept[1] > 0 && kept[1] < kept[2]);
    assert_true(sent[0] > sent[1] && sent[1] > 0);
    assert_int_equal(sent[2], 0);
}

static _Atomic bool takes;

static void *keep_taking(void *arg)
{
    struct fixture *f = arg;
    struct err none = {0};
    gpu_enter(f->gpu, &none);
    for (uint64_t bytes = 1; takes; bytes = bytes * 5 % 4093)
        take_memory(f->gpu, bytes << 20);
    return NULL;
}

/* Another thread takes the memory while steps run. */
static void own_rooms_are_taken(void **state)
{
    (void)state;
    struct fixture f;
    pthread_t other;
    uint32_t random = 3;
    begin(&f, small, 3, 0, 0);
    takes = true;
    assert_int_equal(pthread_create(&other, NULL, keep_taking, &f), 0);
    for (int i = 0; i < 60; i++) {
        random = random * 1664525 + 1013904223;
        sender_fill(f.sender);
        pass(&f, (random >> 8) % (EXPERTS + 2), random >> 24 & 1);
    }
    takes = false;
    pthread_join(other, NULL);
    end(&f);
}

/* Two operations with the same weights, one after the other: a step runs one of them. */
static void two_of_a_stage(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    begin(&f, small, 2, 0, 0);
    sender_close(f.sender);
    struct plan twice = {0};
    for (uint32_t i = 0; i < OPS; i++)
        for (int k = 0; k < 2; k++)
            *plan_add(&twice, f.plan.ops[i].kind, 0) = f.plan.ops[i];
    const struct device_options o = {.threads = 2};
    if (sender_open(&f.sender, f.gpu, &twice, &f.weights, &o, &e))
        fail_msg("%s", e.text);
    for (uint32_t n = 0; n < 4; n++)
        for (uint32_t i = 0; i < OPS; i++) {
            const uint32_t op = 2 * i + (n >> (i % 2) & 1);
            struct look l = {&f, &twice.ops[op], UINT32_MAX};
            assert_int_equal(sender_begin(f.sender, op, &e), 0);
            plan_each_sent(l.op, look_at, &l);
            assert_int_equal(sender_end(f.sender, op, &e), 0);
        }
    end(&f);
    plan_free(&twice);
}

/* All that is one run of bytes in a job is pinned once it has been sent, in pieces, and given back; or nothing, where it is
 * too much or the driver refuses. */
static void weights_are_pinned(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        struct fixture f;
        const int slots = 2 * UPLOAD_SLOTS;
        begin(&f, large, 2, way == 1 ? 1 << 20 : UINT64_MAX, way == 2 ? 801 : 0);
        for (int i = 0; i < 4; i++)
            pass(&f, EXPERTS, 0);
        /* up of the first operation, where the others lie, too; down of the second; the third; down and each of up of the
         * fourth, the first of which is down's; two pieces of the last; all that again, and the first once more */
        const int pieces = 2 * (1 + 1 + 1 + EXPERTS + 2) + 1;
        assert_int_equal(fake->pinned, slots + (way ? 0 : pieces));
        assert_true(way ? !sender_pinned(f.sender) : sender_pinned(f.sender) > 200 << 20);
        end(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(borders_change),     cmocka_unit_test(less_is_sent),
        cmocka_unit_test(own_rooms),          cmocka_unit_test(own_rooms_of_dense_layers),
        cmocka_unit_test(own_rooms_that_fit), cmocka_unit_test(own_rooms_are_given_back),
        cmocka_unit_test(two_of_a_stage),     cmocka_unit_test(own_rooms_are_taken),
        cmocka_unit_test(weights_are_pinned), cmocka_unit_test(little_is_sent_before_the_first_step),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
