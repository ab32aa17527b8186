/* A plan that two devices share gives what one device gives, bit by bit: every family, cut at every operation, experts
 * apart, and cut into as many segments as there are. And how many layers are placed where memory is short. */
#include "test.h"

#include "codec/dtype.h"
#include "device/place.h"
#include "device/split.h"
#include "format/store.h"
#include "model/evaluate.h"
#include "model/lora.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TOKENS = 40, CHUNK = 7 };

/* What divides experts in the steps of a run. */
enum { BORDER_MOVES = UINT32_MAX - 1 };

struct opened {
    struct device *moving; /* a device whose border is another one in each step */
    struct store *store;
    struct model *model;
    struct adapter_mix mix; /* of the run */
    int32_t ids[TOKENS];
    float *want, *got; /* (TOKENS, out_width) */
};

static const struct device_options plain = {.threads = 1};

static void open_model(struct opened *o, const char *name)
{
    char folder[300];
    struct err e = {0};
    *o = (struct opened){0};
    snprintf(folder, sizeof folder, "test/data/arch/%s", name);
    if (store_open(&o->store, folder, &e) ||
        model_open(&o->model, o->store, &(struct model_options){.ctx = TOKENS}, &e))
        fail_msg("%s", e.text);
    size_t n = (size_t)TOKENS * o->model->plan.out_width;
    o->want = calloc(n, sizeof *o->want);
    o->got = calloc(n, sizeof *o->got);
    for (uint32_t i = 0; i < TOKENS; i++)
        o->ids[i] = (int32_t)((i * i + 3 * i + 5) % o->model->h.vocab);
}

static void close_model(struct opened *o)
{
    free(o->want);
    free(o->got);
    model_close(o->model);
    store_close(o->store);
}

static void keep_row(void *arg, uint32_t pos, const float *row)
{
    struct opened *o = arg;
    uint32_t width = o->model->plan.out_width;
    if (o->moving && pos % CHUNK == 0) /* of the next step */
        split_fix_border(o->moving, pos * 5 / CHUNK % 7);
    memcpy(o->got + (size_t)pos * width, row, width * sizeof *row);
}

/* With a third device steps of a whole chunk stream the weights of the rest to it; the last, shorter one does not. The rest
 * computes no experts of such steps. */
static struct device *open_split_as(bool streams, const struct device_options *as)
{
    struct err e = {0};
    struct device *d;
    struct split_devices of = {.stream_rows = CHUNK};
    if (cpu_open(&of.main, as, &e) || cpu_open(&of.rest, as, &e) ||
        (streams && cpu_open(&of.stream, as, &e)) || split_open(&d, &of, &e))
        fail_msg("%s", e.text);
    split_fix_border(d, UINT32_MAX);
    return d;
}

static struct device *open_split(bool streams)
{
    return open_split_as(streams, &plain);
}

static int run(struct opened *o, struct device *d, struct err *e)
{
    struct evaluator f = {
        .model = o->model, .device = d, .kv_type = DTYPE_F16, .chunk = CHUNK, .row = keep_row, .arg = o};
    f.lora = o->mix.count ? &o->mix : NULL;
    return evaluate_run(&f, o->ids, TOKENS, e);
}

static void run_devices(struct opened *o, const char *name, const char *how, uint32_t at, bool streams)
{
    struct err e = {0};
    struct device *d = open_split(streams);
    size_t bytes = (size_t)TOKENS * o->model->plan.out_width * sizeof *o->got;
    memset(o->got, 0, bytes);
    if (run(o, d, &e))
        fail_msg("%s, %s %u: %s", name, how, at, e.text);
    if (memcmp(o->got, o->want, bytes))
        fail_msg("%s, %s %u%s: results differ from those of one device", name, how, at,
                 streams ? ", streamed" : "");
    d->ops->close(d);
}

static void run_split(struct opened *o, const char *name, const char *how, uint32_t at)
{
    run_devices(o, name, how, at, false);
    run_devices(o, name, how, at, true);
}

/* Whether a cut before operation i leaves every layer's KV, and choices with those who read them, in one piece. */
static bool may_cut(const struct plan *p, uint32_t i)
{
    for (uint32_t k = i; k < p->count; k++)
        for (uint32_t j = 0; j < i; j++)
            if ((plan_kv_layer(&p->ops[k]) != UINT32_MAX &&
                 plan_kv_layer(&p->ops[k]) == plan_kv_layer(&p->ops[j])) ||
                plan_chooser(p, k) == j)
                return false;
    return true;
}

static void cut_everywhere(struct opened *o, const char *name)
{
    struct plan *p = &o->model->plan;
    struct err e = {0};
    struct device *one;
    assert_int_equal(cpu_open(&one, &plain, &e), 0);
    if (run(o, one, &e))
        fail_msg("%s: %s", name, e.text);
    one->ops->close(one);
    memcpy(o->want, o->got, (size_t)TOKENS * p->out_width * sizeof *o->want);
    for (uint32_t at = 1; at < p->count; at++) {
        if (!may_cut(p, at))
            continue;
        for (uint32_t i = 0; i < p->count; i++)
            p->ops[i].device = i < at; /* the rest first, as a GPU that is too small has it */
        run_split(o, name, "cut at", at);
    }
    bool other = false, experts = false;
    for (uint32_t i = 0; i < p->count; i++) {
        other ^= may_cut(p, i); /* as many segments as there can be */
        p->ops[i].device = other;
        experts |= p->ops[i].kind == OP_MOE;
    }
    run_split(o, name, "segments by turns", 0);
    for (uint32_t i = 0; i < p->count && experts; i++)
        p->ops[i].device = p->ops[i].kind == OP_MOE;
    if (experts)
        run_split(o, name, "experts apart", 0);
}

static void every_family_in_two_parts(void **state)
{
    (void)state;
    DIR *dir = opendir("test/data/arch");
    uint32_t found = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct opened o;
        if (entry->d_name[0] == '.')
            continue;
        open_model(&o, entry->d_name);
        cut_everywhere(&o, entry->d_name);
        close_model(&o);
        found++;
    }
    closedir(dir);
    assert_true(found >= 40);
}

/* The same with an adapter, whose pairs go where their products are. */
static void adapters_in_two_parts(void **state)
{
    static const char *const both[][2] = {
        {"llama", "llama-all"}, {"deepseek-v2", "deepseek-v2"}, {"mixtral", "mixtral"}, {"gpt2", "gpt2"}};
    (void)state;
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        struct opened o;
        struct err e = {0};
        char path[300];
        open_model(&o, both[i][0]);
        snprintf(path, sizeof path, "test/data/lora/%s", both[i][1]);
        if (lora_bind(o.model, &(const char *){path}, 1, &e))
            fail_msg("%s", e.text);
        o.mix = (struct adapter_mix){.count = 1, .id = {1}, .scale = {1}};
        cut_everywhere(&o, both[i][1]);
        close_model(&o);
    }
}

static const struct device_options exact = {.threads = 2, .exact = true};

/* The largest difference of a row of results, as a part of the row's length. */
static double distance(const struct opened *o)
{
    const uint32_t width = o->model->plan.out_width;
    double most = 0;
    for (uint32_t r = 0; r < TOKENS; r++) {
        double d = 0, s = 0;
        for (size_t i = (size_t)r * width; i < (size_t)(r + 1) * width; i++) {
            d += ((double)o->got[i] - o->want[i]) * ((double)o->got[i] - o->want[i]);
            s += (double)o->want[i] * o->want[i];
        }
        most = fmax(most, sqrt(d / s));
    }
    return most;
}

/* Returns how many bytes of weights were sent. */
static uint64_t run_divided(struct opened *o, const char *name, uint32_t border)
{
    struct err e = {0};
    struct device *d = open_split_as(true, &exact);
    memset(o->got, 0, (size_t)TOKENS * o->model->plan.out_width * sizeof *o->got);
    o->moving = border == BORDER_MOVES ? d : NULL;
    split_fix_border(d, border == BORDER_MOVES ? 3 : border);
    if (run(o, d, &e))
        fail_msg("%s, border %u: %s", name, border, e.text);
    o->moving = NULL;
    if (!(distance(o) < 1e-4))
        fail_msg("%s, border %u: results differ by %g from those of one device", name, border, distance(o));
    const uint64_t sent = d->streamed;
    d->ops->close(d);
    return sent;
}

/* Experts that the rest and the streaming device divide, wherever the border is: the choice and its weights are the same on
 * both sides. Only their sums are in another order. */
static void experts_are_divided(void **state)
{
    (void)state;
    DIR *dir = opendir("test/data/arch");
    uint32_t found = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct opened o;
        struct err e = {0};
        struct device *one;
        uint32_t experts = 0;
        if (entry->d_name[0] == '.')
            continue;
        open_model(&o, entry->d_name);
        struct plan *p = &o.model->plan;
        for (uint32_t i = 0; i < p->count; i++) {
            p->ops[i].device = p->ops[i].kind == OP_MOE;
            experts = p->ops[i].device ? p->ops[i].moe.experts : experts;
        }
        if (experts) {
            assert_int_equal(cpu_open(&one, &exact, &e), 0);
            if (run(&o, one, &e))
                fail_msg("%s: %s", entry->d_name, e.text);
            one->ops->close(one);
            memcpy(o.want, o.got, (size_t)TOKENS * p->out_width * sizeof *o.want);
            const uint32_t borders[] = {0, 1, experts / 2, experts - 1, experts, BORDER_MOVES};
            uint64_t sent[sizeof borders / sizeof *borders];
            for (size_t i = 0; i < sizeof borders / sizeof *borders; i++)
                sent[i] = run_divided(&o, entry->d_name, borders[i]);
            for (size_t i = 1; i < 5 && sent[0] != sent[4]; i++)
                assert_true(borders[i] > borders[i - 1] ? sent[i] > sent[i - 1] : sent[i] == sent[i - 1]);
            found += sent[0] != sent[4];            /* not where a norm is behind the sum */
            for (uint32_t i = 0; i < p->count; i++) /* all layers on the rest */
                p->ops[i].device = p->ops[i].kind != OP_LOGITS;
            run_divided(&o, entry->d_name, experts / 2);
        }
        close_model(&o);
    }
    closedir(dir);
    assert_true(found >= 10);
}

static void keys_stay_with_attention(void **state)
{
    (void)state;
    struct opened o;
    struct err e = {0};
    open_model(&o, "llama");
    struct device *d = open_split(false);
    struct plan *p = &o.model->plan;
    for (uint32_t i = 0; i < p->count; i++)
        p->ops[i].device = p->ops[i].kind == OP_ATTN;
    assert_int_equal(run(&o, d, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    assert_string_equal(e.text, "the keys of layer 0 would be on another device than its attention");
    d->ops->close(d);
    close_model(&o);
}

/* A page goes out and comes back with both parts of it. */
static void pages_have_both_parts(void **state)
{
    (void)state;
    struct opened o;
    struct err e = {0};
    open_model(&o, "llama");
    struct plan *p = &o.model->plan;
    for (uint32_t i = 0; i < p->count; i++)
        p->ops[i].device = i < p->count / 2;
    for (uint32_t i = 1; i < p->count; i++)
        if (!may_cut(p, i) && p->ops[i].device != p->ops[i - 1].device)
            p->ops[i].device = p->ops[i - 1].device;
    struct device *one, *d = open_split(false);
    assert_int_equal(cpu_open(&one, &plain, &e), 0);
    if (run(&o, d, &e) || run(&o, one, &e))
        fail_msg("%s", e.text);
    size_t bytes = d->ops->page_bytes(d, 0);
    assert_int_equal(bytes, one->ops->page_bytes(one, 0));
    uint8_t *page = malloc(bytes), *other = malloc(bytes), *back = malloc(bytes);
    const int32_t from = 1, to = 2;
    assert_int_equal(d->ops->read_page(d, 0, 1, page, &e), 0);
    assert_int_equal(d->ops->read_page(d, 0, 2, other, &e), 0);
    assert_memory_not_equal(page, other, bytes);
    assert_int_equal(d->ops->copy_pages(d, 0, &from, &to, 1, &e), 0);
    assert_int_equal(d->ops->read_page(d, 0, 2, back, &e), 0);
    assert_memory_equal(page, back, bytes);
    assert_int_equal(d->ops->write_page(d, 0, 2, other, &e), 0);
    assert_int_equal(d->ops->read_page(d, 0, 2, back, &e), 0);
    assert_memory_equal(other, back, bytes);
    free(page);
    free(other);
    free(back);
    d->ops->close(d);
    one->ops->close(one);
    close_model(&o);
}

/* The last layers and the head are placed first; with less memory there are fewer of them, and never more than fit. */
static void layers_as_they_fit(void **state)
{
    (void)state;
    struct opened o;
    struct err e = {0};
    struct device *main;
    open_model(&o, "qwen3-moe");
    struct plan *p = &o.model->plan;
    const struct kv_config kv = {.type = DTYPE_F16, .page_tokens = 32, .pages = {9, 9, 9, 9, 9, 9, 9, 9}};
    struct place_request r = {
        .plan = p, .weights = &o.model->weights, .shape = {&kv, 64, 2, 2}, .memory = UINT64_MAX};
    struct placement whole, got;
    assert_int_equal(cpu_open(&main, &plain, &e), 0);
    r.main = main;
    assert_int_equal(place_plan(&r, &whole, &e), 0);
    assert_true(whole.of >= 2);
    assert_int_equal(whole.layers, whole.of);
    assert_int_equal(whole.rest, 0);
    uint64_t most = whole.whole.weights + whole.whole.kv + whole.whole.scratch;
    uint32_t last = whole.of;
    for (uint64_t limit = most; limit > most / 40; limit -= most / 40) {
        r.memory = limit;
        assert_int_equal(place_plan(&r, &got, &e), 0);
        assert_true(got.layers <= last);
        assert_true(!got.layers || got.need.weights + got.need.kv + got.need.scratch <= limit);
        assert_int_equal(p->ops[0].device, got.layers < got.of);
        assert_int_equal(p->ops[p->count - 1].device, !got.layers);
        last = got.layers;
    }
    assert_int_equal(last, 0);
    r.how = PLACE_SOME;
    r.layers = 1;
    r.experts_on_rest = true;
    assert_int_equal(place_plan(&r, &got, &e), 0);
    assert_int_equal(got.layers, 1);
    for (uint32_t i = 0; i < p->count; i++) {
        bool early = i == 0 || p->ops[i].layer < got.of - 1;
        assert_int_equal(p->ops[i].device, early || p->ops[i].kind == OP_MOE);
    }
    main->ops->close(main);
    close_model(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_in_two_parts), cmocka_unit_test(adapters_in_two_parts),
        cmocka_unit_test(experts_are_divided),       cmocka_unit_test(keys_stay_with_attention),
        cmocka_unit_test(pages_have_both_parts),     cmocka_unit_test(layers_as_they_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
