/* Steps of a card, on the host's side: what they ask for fits, and a graph is of the step that it is replayed for. The
 * driver is gpu/fake_cuda.c. */
#include "test.h"

#include "base/mem.h"
#include "codec/dtype.h"
#include "device/cuda/exec.h"
#include "gpu/fake_cuda.h"
#include "quern_gpu.h"

#include <dlfcn.h>
#include <string.h>

enum { ROWS = 512, WIDTH = 64, VOCAB = 96 };

static struct fake_cuda *fake;

static int setup(void **state)
{
    (void)state;
    void *lib = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL);
    fake = lib ? dlsym(lib, "fake_cuda_state") : NULL;
    return fake ? 0 : -1;
}

/* A plan, its weights, and a step of up to ROWS rows. */
struct fixture {
    struct plan plan;
    struct weights weights;
    float *zeros;
    struct kv_config kv;
    struct device *device;
    int32_t id[ROWS], pos[ROWS], out[ROWS], table[ROWS], state_in[ROWS], state_out[ROWS];
    struct step_seq seq[ROWS];
    struct step_span span[ROWS];
    struct step step;
};

static weight_id matrix(struct fixture *f, uint32_t rows, uint32_t cols, uint32_t type)
{
    struct weight w = {.name = "w", .type = type, .rows = rows, .cols = cols, .count = 1};
    w.data = (const uint8_t *)f->zeros;
    w.row_bytes = (size_t)cols * (type == DTYPE_F32 ? 4 : 2);
    w.each_bytes = rows * w.row_bytes;
    return weights_add(&f->weights, &w);
}

static struct fixture *begin(void)
{
    if (!gpu_blob(0)) {
        print_message("skipped: this build has no CUDA kernels\n");
        skip();
    }
    *fake = (struct fake_cuda){.version = 13000, .cards = 1, .major = 9, .memory = (size_t)2 << 30};
    driver_set_library(FAKE_CUDA);
    struct fixture *f = mem_zalloc(1, sizeof *f);
    f->zeros = mem_zalloc(1 << 20, sizeof *f->zeros);
    f->kv = (struct kv_config){.type = DTYPE_F16, .page_tokens = 32, .pages = {64}, .states = 8};
    f->step = (struct step){.ids = f->id,
                            .pos = f->pos,
                            .out = f->out,
                            .tables = f->table,
                            .table_width = 4,
                            .seq = f->seq,
                            .state_in = f->state_in,
                            .state_out = f->state_out};
    return f;
}

static void end(struct fixture *f)
{
    if (f->device)
        f->device->ops->close(f->device);
    plan_free(&f->plan);
    weights_free(&f->weights);
    mem_free(f->zeros);
    mem_free(f);
}

static void add_logits(struct fixture *f, struct operand in)
{
    plan_add(&f->plan, OP_LOGITS, UINT32_MAX)->logits =
        (struct op_logits){.in = in, .head = {.weight = matrix(f, VOCAB, WIDTH, DTYPE_F32)}, .scale = 1};
    f->plan.out_width = VOCAB;
}

/* One product between the embedding and the head. */
static struct operand add_dense(struct fixture *f)
{
    const struct operand x = plan_buffer(&f->plan, WIDTH);
    plan_add(&f->plan, OP_EMBED, UINT32_MAX)->embed =
        (struct op_embed){.table = matrix(f, VOCAB, WIDTH, DTYPE_F32), .scale = 1, .out = x};
    plan_add(&f->plan, OP_OUT, 0)->out =
        (struct op_out){.in = x,
                        .linear = {.weight = matrix(f, WIDTH, WIDTH, DTYPE_F32)},
                        .tail = {.scale = 1, .residual = x, .out = x}};
    return x;
}

static int open_device(struct fixture *f, const char *name, const struct device_options *o, uint32_t outs,
                       struct err *e)
{
    struct device_options with = *o;
    with.no_parity = true;
    with.threads = 1;
    return device_open(&f->device, name, &with, e) ||
                   f->device->ops->load(f->device, &f->weights, NULL, NULL, e) ||
                   f->device->ops->prepare(f->device, &f->plan, &f->kv, ROWS, outs, outs, e)
               ? -1
               : 0;
}

/* The rows of sequences, each from its beginning; a result of each. */
static int run(struct fixture *f, const uint32_t *rows, uint32_t seqs, struct err *e)
{
    uint32_t n = 0;
    memset(f->state_out, 0, sizeof f->state_out);
    for (uint32_t i = 0; i < seqs; i++) {
        f->seq[i] = (struct step_seq){.first = n, .rows = rows[i], .length = rows[i]};
        for (uint32_t k = 0; k < rows[i]; k++)
            f->pos[n + k] = (int32_t)k;
        n += rows[i];
        f->out[i] = (int32_t)n - 1;
        f->state_out[n - 1] = (int32_t)(i % 7) + 1;
    }
    f->step.rows = n;
    f->step.seqs = f->step.outs = seqs;
    return f->device->ops->run(f->device, &f->plan, &f->step, e) || !f->device->ops->results(f->device, e)
               ? -1
               : 0;
}

static int launches_of(struct fixture *f, const uint32_t *rows, uint32_t seqs)
{
    struct err e = {0};
    const int before = fake->launches;
    if (run(f, rows, seqs, &e))
        fail_msg("%s", e.text);
    return fake->launches - before;
}

/* Steps with equally many rows and sequences, of which one has a sequence that is too short for chunks. */
static void test_graphs_of_recurrences(void **state)
{
    (void)state;
    struct fixture *f = begin();
    struct err e = {0};
    const uint32_t alike[] = {65, 65, 65}, mixed[] = {97, 97, 1};
    const struct operand x = plan_buffer(&f->plan, 4 * WIDTH), y = plan_buffer(&f->plan, WIDTH);
    plan_add(&f->plan, OP_EMBED, UINT32_MAX)->embed =
        (struct op_embed){.table = matrix(f, VOCAB, 4 * WIDTH, DTYPE_F32), .scale = 1, .out = x};
    struct op_scan scan = {.q = x,
                           .k = {x.buffer, WIDTH},
                           .v = {x.buffer, 2 * WIDTH},
                           .decay = {x.buffer, 3 * WIDTH},
                           .out = y,
                           .heads = 1,
                           .k_heads = 1,
                           .k_dim = WIDTH,
                           .v_dim = WIDTH,
                           .decay_kind = DECAY_EXP,
                           .q_scale = 1,
                           .k_scale = 1,
                           .write_scale = 1};
    scan.a = matrix(f, 1, 1, DTYPE_F32);
    scan.state = plan_keep(&f->plan, 0, 1, WIDTH, WIDTH);
    plan_add(&f->plan, OP_SCAN, 0)->scan = scan;
    add_logits(f, y);
    if (open_device(f, "cuda", &(struct device_options){0}, 4, &e))
        fail_msg("%s", e.text);
    launches_of(f, alike, 3);
    launches_of(f, alike, 3);
    assert_int_equal(launches_of(f, alike, 3), 0); /* a graph */
    assert_true(launches_of(f, mixed, 3) > 0);
    end(f);
}

/* Rows of an image see each other, and the step has their spans in front of its page tables. */
static void test_graphs_of_spans(void **state)
{
    (void)state;
    struct fixture *f = begin();
    struct err e = {0};
    const uint32_t rows[] = {4};
    const struct operand x = plan_buffer(&f->plan, WIDTH), q = plan_buffer(&f->plan, WIDTH),
                         a = plan_buffer(&f->plan, WIDTH), given = plan_buffer(&f->plan, WIDTH);
    f->plan.given = given.buffer;
    plan_add(&f->plan, OP_EMBED, UINT32_MAX)->embed =
        (struct op_embed){.table = matrix(f, VOCAB, WIDTH, DTYPE_F32), .given = given, .scale = 1, .out = x};
    plan_kv(&f->plan, 0, (struct kv_group){.kv_heads = 1, .k_dim = WIDTH, .v_dim = WIDTH});
    plan_add(&f->plan, OP_QKV, 0)->qkv = (struct op_qkv){.in = x,
                                                         .q = {.weight = matrix(f, WIDTH, WIDTH, DTYPE_F32)},
                                                         .k = {.weight = matrix(f, WIDTH, WIDTH, DTYPE_F32)},
                                                         .v = {.weight = matrix(f, WIDTH, WIDTH, DTYPE_F32)},
                                                         .heads = 1,
                                                         .kv_heads = 1,
                                                         .k_dim = WIDTH,
                                                         .v_dim = WIDTH,
                                                         .out = q};
    plan_add(&f->plan, OP_ATTN, 0)->attn = (struct op_attn){.in = q,
                                                            .out = a,
                                                            .heads = 1,
                                                            .kv_heads = 1,
                                                            .k_dim = WIDTH,
                                                            .v_dim = WIDTH,
                                                            .scale = 1,
                                                            .causal = true,
                                                            .span = SPAN_ALSO};
    add_logits(f, a);
    if (open_device(f, "cuda", &(struct device_options){0}, 2, &e))
        fail_msg("%s", e.text);
    f->step.span = f->span;
    launches_of(f, rows, 1);
    launches_of(f, rows, 1);
    assert_int_equal(launches_of(f, rows, 1), 0);
    for (uint32_t i = 0; i < rows[0]; i++) {
        f->id[i] = -1;
        f->span[i] = (struct step_span){0, rows[0]};
    }
    assert_true(launches_of(f, rows, 1) > 0);
    end(f);
}

/* Parts of a plan, each timed: the data of a step, which come first, count for its first operation. */
static void test_times_of_parts(void **state)
{
    (void)state;
    struct fixture *f = begin();
    struct err e = {0};
    const uint32_t rows[] = {4};
    double seconds[4] = {0};
    add_logits(f, add_dense(f));
    assert_int_equal(f->plan.count, 3);
    if (open_device(f, "cuda", &(struct device_options){0}, 2, &e))
        fail_msg("%s", e.text);
    for (uint32_t from = 0; from < 3; from += 2) {
        f->device->seconds = seconds + from;
        f->step.from = from;
        f->step.to = from ? 3 : 2;
        launches_of(f, rows, 1);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(seconds[i] > 0, i < f->step.to);
    }
    end(f);
}

/* Rows go from one device of a card to another by a kernel, whether or not kernels can read memory of the host. */
static void test_rows_within_a_card(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct fixture *f = begin();
        struct err e = {0};
        const struct operand x = add_dense(f);
        static const float host[4 * WIDTH];
        add_logits(f, x);
        f->plan.part = true;
        fake->cannot_read = i;
        if (open_device(f, "cuda", &(struct device_options){0}, 2, &e))
            fail_msg("%s", e.text);
        struct device *other = f->device;
        if (open_device(f, "cuda", &(struct device_options){0}, 2, &e))
            fail_msg("%s", e.text);
        const int launches = fake->launches, sends = fake->sends;
        assert_int_equal(other->ops->write_rows(other, x.buffer, 4, host, &e), 0);
        assert_int_equal(fake->launches - launches, i ? 0 : 1);
        assert_int_equal(fake->sends - sends, i ? 1 : 0);
        assert_int_equal(f->device->ops->take_rows(f->device, x.buffer, 4, other, &e), 0);
        assert_int_equal(fake->launches - launches, i ? 1 : 2);
        assert_int_equal(fake->sends - sends, i ? 1 : 0);
        other->ops->close(other);
        end(f);
    }
}

/* Clients say how many tokens have a penalty. Without pages there is no other room in the step's block. */
static void test_penalties_fit(void **state)
{
    (void)state;
    enum { OUTS = 100 };
    static struct step_pick pick[OUTS];
    static struct pick_seen seen[PICK_SEEN_MOST];
    static uint32_t rows[OUTS];
    for (uint32_t count = 120; count <= PICK_SEEN_MOST; count += 8) {
        struct fixture *f = begin();
        struct err e = {0};
        f->kv.pages[0] = 0;
        f->step.table_width = 1;
        add_logits(f, add_dense(f));
        if (open_device(f, "cuda", &(struct device_options){0}, OUTS, &e))
            fail_msg("%s", e.text);
        for (uint32_t i = 0; i < OUTS; i++) {
            rows[i] = 1;
            pick[i] =
                (struct step_pick){.on = true, .seen = seen, .seen_count = count, .top_p = 1, .repeat = 1.1};
        }
        f->step.pick = pick;
        if (run(f, rows, OUTS, &e))
            fail_msg("%u under a penalty: %s", count, e.text);
        const struct cuda_device *card = (const struct cuda_device *)f->device;
        assert_true(card->meta_used <= card->meta_bytes);
        end(f);
    }
}

/* A position behind the table of those that the model has learnt; a type of tokens that it has not; a token beyond a table
 * that is smaller than the vocabulary's. */
static void test_rows_of_tables(void **state)
{
    (void)state;
    static const char *const names[] = {"cpu", "cuda"};
    static const struct {
        int32_t id, pos;
        const char *want;
    } cases[] = {{1, 7, NULL},
                 {VOCAB - 1, 0, NULL},
                 {1, 8, "position 8 is beyond the 8 that the model has learnt"},
                 {1, 1000000, "position 1000000 is beyond the 8 that the model has learnt"},
                 {VOCAB, 0, "there is no token 96: the vocabulary has 96"},
                 {1 | 1 << STEP_TYPE, 0, NULL},
                 {1 | 2 << STEP_TYPE, 0, "there is no type 2 of tokens: the model has 2"}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        struct fixture *f = begin();
        struct err e = {0};
        const struct operand x = plan_buffer(&f->plan, WIDTH), z = plan_buffer(&f->plan, WIDTH);
        plan_add(&f->plan, OP_EMBED, UINT32_MAX)->embed =
            (struct op_embed){.table = matrix(f, VOCAB, WIDTH, DTYPE_F32),
                              .positions = matrix(f, 8, WIDTH, DTYPE_F32),
                              .types = matrix(f, 2, WIDTH, DTYPE_F32),
                              .scale = 1,
                              .out = x};
        plan_add(&f->plan, OP_EMBED, UINT32_MAX)->embed =
            (struct op_embed){.table = matrix(f, VOCAB / 2, WIDTH, DTYPE_F32),
                              .types = matrix(f, 2, WIDTH, DTYPE_F32),
                              .scale = 1,
                              .out = z};
        add_logits(f, x);
        assert_int_equal(plan_positions(&f->plan, &f->weights), 8);
        if (open_device(f, names[i % 2], &(struct device_options){0}, 1, &e))
            fail_msg("%s", e.text);
        f->id[0] = cases[i / 2].id;
        f->pos[0] = cases[i / 2].pos;
        f->seq[0] = (struct step_seq){.rows = 1, .length = (uint32_t)cases[i / 2].pos + 1};
        f->step.rows = f->step.seqs = f->step.outs = 1;
        f->step.table_width = 4;
        const int bad = f->device->ops->run(f->device, &f->plan, &f->step, &e);
        assert_int_equal(bad, cases[i / 2].want ? -1 : 0);
        assert_string_equal(e.text, cases[i / 2].want ? cases[i / 2].want : "");
        end(f);
    }
}

/* Rows of which sixteen do not fit into a slot. */
static void test_wide_rows(void **state)
{
    (void)state;
    struct fixture *f = begin();
    struct err e = {0};
    matrix(f, 4, 140000, DTYPE_F32);
    assert_int_equal(upload_check(&f->weights, &e), 0);
    const weight_id widest = matrix(f, 64, 131072, DTYPE_F32);
    assert_int_equal(upload_check(&f->weights, &e), 0);
    assert_int_equal(upload_jobs(&f->weights, widest, NULL), 4);
    matrix(f, 64, 131104, DTYPE_F32);
    assert_int_equal(upload_check(&f->weights, &e), -1);
    assert_string_equal(e.text, "w has rows of 131104 values: the GPU takes 131072 of its type");
    end(f);
}

/* Handles of two cards, used by one thread in turn. */
static void test_two_cards(void **state)
{
    (void)state;
    struct fixture *f = begin();
    struct quern_gpu_buf at[2];
    struct quern_gpu *g[2];
    char why[256];
    fake->cards = 2;
    for (int i = 0; i < 2; i++)
        if (!(g[i] = quern_gpu_open(i, 8, 1024, why, sizeof why)))
            fail_msg("%s", why);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(quern_gpu_new(g[i % 2], 1024, &at[i % 2]), 0);
        assert_int_equal(fake->allocated_on, i % 2);
        quern_gpu_delete(g[i % 2], &at[i % 2]);
    }
    for (int i = 0; i < 2; i++)
        quern_gpu_close(g[i]);
    end(f);
}

/* cuBLASLt, where it is installed, does not give back all it takes when the driver behind it is not a real one. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libcublasLt";
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_of_recurrences),
        cmocka_unit_test(test_graphs_of_spans),
        cmocka_unit_test(test_times_of_parts),
        cmocka_unit_test(test_rows_within_a_card),
        cmocka_unit_test(test_penalties_fit),
        cmocka_unit_test(test_rows_of_tables),
        cmocka_unit_test(test_wide_rows),
        cmocka_unit_test(test_two_cards),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
