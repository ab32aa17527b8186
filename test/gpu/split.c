/* On a card: a plan that the GPU and the CPU share gives what the GPU gives alone, cut after every layer, with the
 * experts apart, and with experts that both divide at every kind of border; and the tokens that the card chooses are those
 * of the plain oracle. `gpu_split quick` is a short form, for compute-sanitizer, `gpu_split picks` the part of it that races
 * could be in. Ends with 'N passed, N failed'. */
#include "oracle.h"
#include "rig.h"

#include "base/clock.h"
#include "base/mem.h"
#include "device/split.h"
#include "quern_gpu.h"

#include <stdio.h>

enum { WIDTH = 256, HEADS = 4, KV_HEADS = 2, DIM = 64, FFN = 512, EXPERTS = 8, LAYERS = 4, STEPS = 8 };

static int passed, failed;
static bool quick;

static void verdict(bool good, const char *what, double error)
{
    good ? passed++ : failed++;
    printf("%s %s: %.2e\n", good ? "ok  " : "FAIL", what, error);
    fflush(stdout);
}

static bool stop_at(const char *what, const struct err *e)
{
    failed++;
    printf("FAIL %s: %s\n", what, e->text);
    fflush(stdout);
    return false;
}

/* ---- a plan with plain and expert layers ---- */

static void add_layer(struct rig *r, uint32_t layer, struct operand x, struct operand q, struct operand a)
{
    struct tail tail = {.scale = 1, .residual = x, .out = x};
    plan_kv(&r->plan, layer, (struct kv_group){.kv_heads = KV_HEADS, .k_dim = DIM, .v_dim = DIM});
    plan_add(&r->plan, OP_QKV, layer)->qkv =
        (struct op_qkv){.in = x,
                        .norm = rig_norm(r, NORM_RMS, WIDTH),
                        .q = rig_linear(r, DTYPE_Q4_K, HEADS * DIM, WIDTH, false),
                        .k = rig_linear(r, DTYPE_Q4_K, KV_HEADS * DIM, WIDTH, false),
                        .v = rig_linear(r, DTYPE_Q6_K, KV_HEADS * DIM, WIDTH, false),
                        .heads = HEADS,
                        .kv_heads = KV_HEADS,
                        .k_dim = DIM,
                        .v_dim = DIM,
                        .layer = layer,
                        .out = q};
    plan_add(&r->plan, OP_ATTN, layer)->attn = (struct op_attn){.in = q,
                                                                .out = a,
                                                                .heads = HEADS,
                                                                .kv_heads = KV_HEADS,
                                                                .k_dim = DIM,
                                                                .v_dim = DIM,
                                                                .layer = layer,
                                                                .scale = 0.125f,
                                                                .causal = true};
    plan_add(&r->plan, OP_OUT, layer)->out = (struct op_out){
        .in = a, .linear = rig_linear(r, DTYPE_Q4_K, WIDTH, HEADS * DIM, false), .tail = tail};
    if (layer % 2 == 0) {
        plan_add(&r->plan, OP_FFN, layer)->ffn =
            (struct op_ffn){.in = x,
                            .norm = rig_norm(r, NORM_RMS, WIDTH),
                            .gate = rig_linear(r, DTYPE_Q4_K, FFN, WIDTH, false),
                            .up = rig_linear(r, DTYPE_Q4_K, FFN, WIDTH, false),
                            .down = rig_linear(r, DTYPE_Q6_K, WIDTH, FFN, false),
                            .act = ACT_SILU,
                            .tail = tail};
        return;
    }
    plan_add(&r->plan, OP_MOE, layer)->moe =
        (struct op_moe){.in = x,
                        .norm = rig_norm(r, NORM_RMS, WIDTH),
                        .router = rig_linear(r, DTYPE_F32, EXPERTS, WIDTH, false),
                        .gate = {.weight = rig_matrix(r, DTYPE_Q8_0, FFN, WIDTH, EXPERTS, 0.1f)},
                        .up = {.weight = rig_matrix(r, DTYPE_Q8_0, FFN, WIDTH, EXPERTS, 0.1f)},
                        .down = {.weight = rig_matrix(r, DTYPE_Q8_0, WIDTH, FFN, EXPERTS, 0.1f)},
                        .act = ACT_SILU,
                        .experts = EXPERTS,
                        .used = 2,
                        .normalise = true,
                        .weight_scale = 1,
                        .tail = tail};
}

static void build(struct rig *r, uint32_t vocab, uint32_t layers)
{
    struct operand x = plan_buffer(&r->plan, WIDTH), q = plan_buffer(&r->plan, HEADS * DIM),
                   a = plan_buffer(&r->plan, HEADS * DIM);
    r->vocab = 301;
    plan_add(&r->plan, OP_EMBED, UINT32_MAX)->embed =
        (struct op_embed){.table = rig_matrix(r, DTYPE_F16, 301, WIDTH, 1, 1), .scale = 1, .out = x};
    for (uint32_t l = 0; l < layers; l++)
        add_layer(r, l, x, q, a);
    plan_add(&r->plan, OP_LOGITS, UINT32_MAX)->logits =
        (struct op_logits){.in = x,
                           .norm = rig_norm(r, NORM_RMS, WIDTH),
                           .head = {.weight = rig_matrix(r, DTYPE_F16, vocab, WIDTH, 1, 0.4f)},
                           .scale = 1};
    r->plan.out_width = vocab;
    r->max_rows = 160;
    r->max_seqs = 64;
}

static void build_step(struct rig *r, int step)
{
    rig_begin(r);
    if (step == 0)
        rig_add(r, 0, 150, false);
    else if (step == 1) {
        rig_add(r, 1, 20, true);
        rig_add(r, 0, 1, true);
    } else if (step < 5)
        rig_add(r, 0, 1, true);
    else
        for (uint32_t i = 0; i < 2; i++)
            rig_add(r, i, 1, true);
}

/* ---- split ---- */

/* Steps of more than one row send the weights of the CPU's operations to the card. */
static bool streams;

/* All steps; results one after the other. spec NULL: the GPU and the CPU share the plan. */
static float *run_steps(struct rig *r, const char *spec, bool exact, size_t *count, struct err *e)
{
    struct device_options o = {.exact = exact, .no_parity = quick};
    struct split_devices of = {.stream_rows = 2};
    float *all = mem_alloc((size_t)256 * r->plan.out_width, sizeof *all);
    *count = 0;
    if (!all)
        return NULL;
    struct device_options sent = o;
    sent.streamed = true;
    if (!spec && (device_open(&of.main, "cuda", &o, e) || cpu_open(&of.rest, &o, e) ||
                  (streams && device_open(&of.stream, "cuda", &sent, e)) || split_open(&r->device, &of, e)))
        goto end;
    if (rig_open(r, spec, &o, exact ? DTYPE_F32 : DTYPE_F16, 256, e))
        goto end;
    for (int s = 0; s < STEPS; s++) {
        build_step(r, s);
        const float *y = rig_run(r, e);
        if (!y)
            goto end;
        size_t n = (size_t)r->step.outs * r->plan.out_width;
        memcpy(all + *count, y, n * sizeof *all);
        *count += n;
    }
end:
    rig_close(r);
    if (e->code) {
        mem_free(all);
        all = NULL;
    }
    return all;
}

static void check_split(struct rig *r, const char *what, const float *want, bool exact)
{
    char name[96];
    size_t n;
    struct err e = {0};
    snprintf(name, sizeof name, "%s%s%s", what, exact ? ", exact" : "", streams ? ", streamed" : "");
    float *got = run_steps(r, NULL, exact, &n, &e);
    if (!got) {
        stop_at(name, &e);
        return;
    }
    double error = rig_distance(got, want, n);
    verdict(error < (exact ? 2e-5 : 2e-2), name, error);
    mem_free(got);
}

static void check_both(struct rig *r, const char *what, const float *want, bool exact)
{
    check_split(r, what, want, exact);
    streams = true;
    check_split(r, what, want, exact);
    streams = false;
}

static void check_splits(bool exact)
{
    struct rig r = {0};
    struct err e = {0};
    size_t n;
    char name[64];
    rig_seed(3);
    build(&r, 301, LAYERS);
    float *want = run_steps(&r, "cuda", exact, &n, &e);
    if (!want) {
        stop_at("the GPU alone", &e);
        return;
    }
    for (uint32_t cut = 1; cut <= LAYERS; cut++) {
        for (uint32_t i = 0; i < r.plan.count; i++)
            r.plan.ops[i].device = i == 0 || r.plan.ops[i].layer < cut;
        snprintf(name, sizeof name, "%u of %d layers on the CPU", cut, LAYERS);
        check_both(&r, name, want, exact);
    }
    for (uint32_t i = 0; i < r.plan.count; i++)
        r.plan.ops[i].device = r.plan.ops[i].kind == OP_MOE;
    check_both(&r, "experts on the CPU", want, exact);
    for (uint32_t i = 0; i < r.plan.count; i++)
        r.plan.ops[i].device = i + 1 == r.plan.count;
    check_split(&r, "the head on the CPU", want, exact);
    mem_free(want);
    rig_free(&r);
}

/* ---- experts that are divided ---- */

enum { DIVIDED = 16, DIVIDED_USED = 4, DIVIDED_ROWS = 512 };

enum expert_kind { EXPERTS_PLAIN, EXPERTS_GROUPS, EXPERTS_INPUT, EXPERTS_IDENTITY, EXPERT_KINDS };
static const char *const kind_name[EXPERT_KINDS] = {"softmax", "sigmoid by groups, shared expert",
                                                    "weights of inputs", "identities"};

static weight_id divided_matrix(struct rig *r, uint32_t rows, uint32_t cols, enum expert_kind kind)
{
    static const uint32_t type[EXPERT_KINDS] = {DTYPE_Q4_K, DTYPE_Q8_0, DTYPE_Q6_K, DTYPE_F16};
    return rig_matrix(r, type[kind], rows, cols, DIVIDED, 0.1f);
}

static void add_divided(struct rig *r, uint32_t layer, struct operand x, enum expert_kind kind)
{
    struct op_moe o = {.in = x,
                       .norm = rig_norm(r, NORM_RMS, WIDTH),
                       .gate = {.weight = divided_matrix(r, FFN, WIDTH, kind)},
                       .up = {.weight = divided_matrix(r, FFN, WIDTH, kind)},
                       .down = {.weight = divided_matrix(r, WIDTH, FFN, kind)},
                       .act = ACT_SILU,
                       .experts = DIVIDED,
                       .used = DIVIDED_USED,
                       .normalise = kind != EXPERTS_INPUT,
                       .weight_scale = 1,
                       .tail = {.scale = 0.5f, .residual = x, .out = x}};
    o.identities = kind == EXPERTS_IDENTITY ? 5 : 0;
    o.router = rig_linear(r, DTYPE_F32, DIVIDED + o.identities, WIDTH, kind == EXPERTS_PLAIN);
    o.scale_input = kind == EXPERTS_INPUT;
    if (kind == EXPERTS_GROUPS) {
        o.gating = GATING_SIGMOID;
        o.groups = 4;
        o.groups_used = 2;
        o.group_pair = true;
        o.select_bias = rig_vector(r, DIVIDED, 0, 0.1f);
        o.shared_gate = rig_linear(r, DTYPE_Q8_0, FFN, WIDTH, false);
        o.shared_up = rig_linear(r, DTYPE_Q8_0, FFN, WIDTH, false);
        o.shared_down = rig_linear(r, DTYPE_Q8_0, WIDTH, FFN, false);
        o.shared_router = rig_matrix(r, DTYPE_F32, 1, WIDTH, 1, 0.1f);
    }
    plan_add(&r->plan, OP_MOE, layer)->moe = o;
}

/* A layer of attention and feed-forward between layers of experts. */
static void build_divided(struct rig *r, enum expert_kind kind)
{
    struct operand x = plan_buffer(&r->plan, WIDTH), q = plan_buffer(&r->plan, HEADS * DIM),
                   a = plan_buffer(&r->plan, HEADS * DIM);
    r->vocab = 301;
    plan_add(&r->plan, OP_EMBED, UINT32_MAX)->embed =
        (struct op_embed){.table = rig_matrix(r, DTYPE_F16, 301, WIDTH, 1, 1), .scale = 1, .out = x};
    add_divided(r, 0, x, kind);
    add_layer(r, 2, x, q, a);
    for (uint32_t l = 3; l < 6; l++)
        add_divided(r, l, x, kind);
    plan_add(&r->plan, OP_LOGITS, UINT32_MAX)->logits =
        (struct op_logits){.in = x, .norm = rig_norm(r, NORM_RMS, WIDTH), .scale = 1};
    r->plan.out_width = WIDTH;
    r->max_rows = DIVIDED_ROWS;
    r->max_seqs = 16;
}

static const uint32_t divided_rows[] = {1, 2, 3, 16, 17, 64, 100, 512};
enum { DIVIDED_STEPS = sizeof divided_rows / sizeof *divided_rows + 1, BORDER_MOVES = 99, BORDER_FREE = 100 };

static int open_divided(struct device **out, uint32_t border, const struct device_options *o, struct err *e)
{
    struct split_devices of = {.stream_rows = 1};
    struct device_options sent = *o;
    sent.streamed = true;
    sent.threads = 2;
    sent.pin_most = border % 2 ? UINT64_MAX : 0; /* weights go either way, and are sent again or stay */
    sent.copies = border == 5 || border == BORDER_MOVES ? 0 : COPIES_AUTO;
    if (device_open(&of.main, "cuda", o, e) || cpu_open(&of.rest, o, e) ||
        device_open(&of.stream, "cuda", &sent, e) || split_open(out, &of, e))
        return -1;
    if (border != BORDER_FREE)
        split_fix_border(*out, border);
    return 0;
}

/* Prompts of each length, and one more chunk of the first; the card alone where alone. The bytes that were
 * streamed. */
static float *run_divided(struct rig *r, bool alone, uint32_t border, bool exact, uint64_t *sent,
                          struct err *e)
{
    struct device_options o = {.exact = exact, .no_parity = true};
    const size_t width = r->plan.out_width;
    float *all = mem_zalloc(DIVIDED_STEPS * DIVIDED_ROWS, width * sizeof *all);
    if (!all || (!alone && open_divided(&r->device, border, &o, e)) ||
        rig_open(r, alone ? "cuda" : NULL, &o, exact ? DTYPE_F32 : DTYPE_F16, 1024, e))
        goto end;
    for (uint32_t s = 0; s < DIVIDED_STEPS; s++) {
        rig_begin(r);
        rig_add(r, s + 1 < DIVIDED_STEPS ? s : 0, s + 1 < DIVIDED_STEPS ? divided_rows[s] : 40, true);
        if (border == BORDER_MOVES)
            split_fix_border(r->device, (s * 7 + 3) % (DIVIDED + 1));
        const float *y = rig_run(r, e);
        if (!y)
            break;
        memcpy(all + s * DIVIDED_ROWS * width, y, r->step.outs * width * sizeof *all);
    }
    *sent = r->device->streamed;
end:
    rig_close(r);
    if (e->code) {
        mem_free(all);
        all = NULL;
    }
    return all;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How far rows are apart at most, but for one of 20, and one more: where two experts are close, a row may have chosen
 * another. */
static double rows_apart(const float *a, const float *b, uint32_t rows, size_t width)
{
    double each[DIVIDED_ROWS];
    for (uint32_t i = 0; i < rows; i++)
        each[i] = rig_distance(a + i * width, b + i * width, width);
    qsort(each, rows, sizeof *each, by_value);
    return each[rows > 4 ? rows - 2 - rows / 20 : rows - 1];
}

static void check_border(struct rig *r, const char *what, const float *want, uint32_t border, bool exact)
{
    const size_t width = r->plan.out_width, n = DIVIDED_ROWS * width;
    char name[128];
    struct err e = {0};
    uint64_t sent = 0;
    float *got = run_divided(r, false, border, exact, &sent, &e);
    snprintf(name, sizeof name, "%s, border %u%s", what, border, exact ? ", exact" : "");
    if (!got) {
        stop_at(name, &e);
        return;
    }
    double most = 0;
    for (uint32_t s = 0; s < DIVIDED_STEPS; s++) {
        const uint32_t rows = s + 1 < DIVIDED_STEPS ? divided_rows[s] : 40;
        const double d = exact ? rig_distance(got + s * n, want + s * n, n)
                               : rows_apart(got + s * n, want + s * n, rows, width);
        most = d <= most ? most : d;
    }
    verdict(most < (exact ? 2e-5 : 1e-2) && sent, name, most);
    mem_free(got);
}

static void check_divided(enum expert_kind kind, bool exact)
{
    static const uint32_t borders[] = {5, BORDER_FREE, 0, 1, DIVIDED - 1, DIVIDED, BORDER_MOVES};
    const size_t count = quick ? 2 : sizeof borders / sizeof *borders;
    struct rig r = {0};
    struct err e = {0};
    uint64_t sent = 0;
    rig_seed(11 + (uint64_t)kind);
    build_divided(&r, kind);
    float *want = run_divided(&r, true, 0, exact, &sent, &e);
    if (!want) {
        stop_at("the GPU alone", &e);
        return;
    }
    for (int place = 0; place < (quick ? 1 : 2); place++) { /* experts on the CPU, and all layers */
        char name[96];
        for (uint32_t i = 0; i < r.plan.count; i++)
            r.plan.ops[i].device = place ? i + 1 < r.plan.count : r.plan.ops[i].kind == OP_MOE;
        snprintf(name, sizeof name, "%s%s", kind_name[kind], place ? ", all layers on the CPU" : "");
        for (size_t i = 0; i < count; i++)
            check_border(&r, name, want, borders[i], exact);
    }
    mem_free(want);
    rig_free(&r);
}

/* ---- choices ---- */

enum { ROWS = 32 };

static void make_picks(struct step_pick *pick, struct pick_seen *seen, uint32_t vocab, uint32_t turn)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        uint32_t k = turn * ROWS + i;
        struct step_pick *p = &pick[i];
        *p = (struct step_pick){.on = k % 7 != 6,
                                .temperature = k % 4 == 0 ? 0 : 0.3 + 0.4 * (k % 5),
                                .top_k = k % 3 == 0   ? 0
                                         : k % 3 == 1 ? 40
                                                      : 1 + 300 * (k % 11),
                                .top_p = k % 2 ? 1 : 0.5 + 0.09 * (k % 6),
                                .min_p = k % 5 ? 0 : 0.05f,
                                .repeat = 1,
                                .seed = 77 + k,
                                .position = 1000 + k,
                                .seen = seen + i * PICK_SEEN_MOST};
        if (k % 3 != 2)
            continue;
        p->repeat = 1.3;
        p->presence = 0.5;
        p->frequency = 0.2;
        p->seen_count = 1 + k % PICK_SEEN_MOST;
        for (uint32_t s = 0; s < p->seen_count; s++)
            p->seen[s] = (struct pick_seen){(int32_t)((k + 3 * s) % vocab), 1 + s % 5}; /* each once */
    }
}

/* The same step with and without choices: tokens as the oracle's, and the other rows' numbers as before. */
static bool check_choices(struct rig *r, uint32_t turns, uint32_t *wrong, struct err *e)
{
    struct step_pick pick[ROWS];
    size_t width = r->plan.out_width;
    float *numbers = mem_alloc(ROWS * width, sizeof *numbers);
    struct oracle_token *room = mem_alloc(width, sizeof *room);
    struct pick_seen *seen = mem_alloc(ROWS, PICK_SEEN_MOST * sizeof *seen);
    *wrong = 0;
    for (uint32_t t = 0; t < turns && !e->code; t++) {
        rig_begin(r);
        for (uint32_t i = 0; i < ROWS; i++)
            rig_add(r, i, 1, true);
        const float *y = rig_run(r, e);
        if (!y)
            break;
        memcpy(numbers, y, ROWS * width * sizeof *y);
        make_picks(pick, seen, (uint32_t)width, t);
        r->step.pick = pick;
        y = rig_run(r, e);
        const int32_t *ids = y ? r->device->ops->picks(r->device, e) : NULL;
        for (uint32_t i = 0; ids && i < ROWS; i++) {
            const float *row = numbers + i * width;
            bool same = pick[i].on ? ids[i] == oracle_pick(row, (uint32_t)width, &pick[i], room)
                                   : !memcmp(y + i * width, row, width * sizeof *row);
            if (!same)
                printf("turn %u row %u: on %d, %d chosen\n", t, i, pick[i].on, ids[i]);
            *wrong += !same;
        }
    }
    mem_free(numbers);
    mem_free(room);
    mem_free(seen);
    return !e->code;
}

/* Seconds of a step with results to the host, and with choices on the card. */
static void price_choices(struct rig *r, struct err *e)
{
    static const char *const names[] = {"numbers to the host", "greedy", "the default chain", "top-p alone"};
    struct pick_seen seen[ROWS];
    struct step_pick pick[ROWS];
    for (int kind = 0; kind < 4; kind++) {
        for (uint32_t i = 0; i < ROWS; i++)
            pick[i] = (struct step_pick){.on = true,
                                         .temperature = kind == 1 ? 0 : 0.8,
                                         .top_k = kind == 2 ? 40 : 0,
                                         .top_p = 0.95,
                                         .min_p = kind == 2 ? 0.05f : 0,
                                         .repeat = 1,
                                         .seen = seen,
                                         .seed = i};
        double start = 0;
        for (int n = 0; n < 24 && !e->code; n++) {
            if (n == 4)
                start = clock_now();
            rig_begin(r);
            for (uint32_t i = 0; i < ROWS; i++)
                rig_add(r, i, 1, true);
            r->step.pick = kind ? pick : NULL;
            rig_run(r, e);
        }
        printf("a step of %d rows, %u numbers each, %s: %.0f us\n", ROWS, r->plan.out_width, names[kind],
               1e6 * (clock_now() - start) / 20);
    }
}

static void check_picks(uint32_t vocab)
{
    struct rig r = {0};
    struct err e = {0};
    char name[64];
    uint32_t wrong, turns = quick ? 2 : 20;
    rig_seed(5);
    build(&r, vocab, 1);
    snprintf(name, sizeof name, "%u choices of %u tokens", turns * ROWS, vocab);
    if (rig_open(&r, "cuda", &(struct device_options){.no_parity = true}, DTYPE_F16, 256, &e) ||
        !check_choices(&r, turns, &wrong, &e))
        stop_at(name, &e);
    else
        verdict(!wrong, name, wrong);
    if (!quick && !e.code)
        price_choices(&r, &e);
    rig_close(&r);
    rig_free(&r);
}

/* ---- the public header: norms of heads, sinks, and every type of KV ---- */

enum { PUB_M = 5, PUB_QN = HEADS * DIM, PUB_KN = KV_HEADS * DIM, PUB_N = PUB_QN + 2 * PUB_KN };

struct public_case {
    float x[PUB_M][WIDTH], w[PUB_N][WIDTH], norm[2][DIM], sinks[HEADS];
    double y[PUB_M][PUB_N]; /* q, k, v */
    float out[PUB_M][PUB_QN];
};

static void fill_floats(float *to, size_t n, float mean, float spread)
{
    for (size_t i = 0; i < n; i++)
        to[i] = mean + rig_uniform(spread);
}

static void norm_head(double *v, const float *w)
{
    double sum = 0;
    for (int i = 0; i < DIM; i++)
        sum += v[i] * v[i];
    for (int i = 0; i < DIM; i++)
        v[i] *= w[i] / sqrt(sum / DIM + 1e-5);
}

/* Attention of one head of row r, in double. */
static void reference_head(const struct public_case *c, int r, int h, double *out)
{
    double score[PUB_M], sum = 0, most = c->sinks[h];
    const int kv = h / (HEADS / KV_HEADS);
    for (int t = 0; t <= r; t++) {
        score[t] = 0;
        for (int i = 0; i < DIM; i++)
            score[t] += 0.125 * c->y[r][h * DIM + i] * c->y[t][PUB_QN + kv * DIM + i];
        most = score[t] > most ? score[t] : most;
    }
    sum = exp(c->sinks[h] - most);
    memset(out, 0, DIM * sizeof *out);
    for (int t = 0; t <= r; t++) {
        double e = exp(score[t] - most);
        sum += e;
        for (int i = 0; i < DIM; i++)
            out[i] += e * c->y[t][PUB_QN + PUB_KN + kv * DIM + i];
    }
    for (int i = 0; i < DIM; i++)
        out[i] /= sum;
}

static double public_error(struct public_case *c)
{
    double d = 0, size = 0, out[DIM];
    for (int r = 0; r < PUB_M; r++) {
        for (int n = 0; n < PUB_N; n++) {
            c->y[r][n] = 0;
            for (int k = 0; k < WIDTH; k++)
                c->y[r][n] += (double)c->x[r][k] * c->w[n][k];
        }
        for (int h = 0; h < HEADS + KV_HEADS; h++)
            norm_head(&c->y[r][h * DIM], c->norm[h >= HEADS]);
    }
    for (int r = 0; r < PUB_M; r++)
        for (int h = 0; h < HEADS; h++) {
            reference_head(c, r, h, out);
            for (int i = 0; i < DIM; i++) {
                d += (c->out[r][h * DIM + i] - out[i]) * (c->out[r][h * DIM + i] - out[i]);
                size += out[i] * out[i];
            }
        }
    return sqrt(d / size);
}

static struct quern_gpu_buf put_floats(struct quern_gpu *g, const float *from, uint64_t n)
{
    struct quern_gpu_buf b = {0};
    if (!quern_gpu_new(g, n, &b))
        quern_gpu_write(g, b, from, n);
    return b;
}

static void check_public(enum quern_gpu_kv_type type, const char *name, double bound)
{
    static struct public_case c;
    char why[200];
    struct quern_gpu_kv *kv = NULL;
    struct quern_gpu *g = quern_gpu_open(0, 16, 4 * WIDTH, why, sizeof why);
    if (!g) {
        failed++;
        printf("FAIL %s: %s\n", name, why);
        return;
    }
    fill_floats(&c.x[0][0], PUB_M * WIDTH, 0, 1);
    fill_floats(&c.w[0][0], PUB_N * WIDTH, 0, 0.2f);
    fill_floats(&c.norm[0][0], 2 * DIM, 1, 0.3f);
    fill_floats(c.sinks, HEADS, 0.5f, 1);
    const size_t row = WIDTH * sizeof(float);
    struct quern_gpu_qkv p = {
        .q = quern_gpu_load(g, "q", "F32", PUB_QN, WIDTH, c.w[0], PUB_QN * row, 0),
        .k = quern_gpu_load(g, "k", "F32", PUB_KN, WIDTH, c.w[PUB_QN], PUB_KN * row, 0),
        .v = quern_gpu_load(g, "v", "F32", PUB_KN, WIDTH, c.w[PUB_QN + PUB_KN], PUB_KN * row, 0),
        .q_norm = put_floats(g, c.norm[0], DIM),
        .k_norm = put_floats(g, c.norm[1], DIM),
        .eps = 1e-5f};
    struct quern_gpu_heads h = {.heads = HEADS, .kv_heads = KV_HEADS, .dim = DIM, .scale = 0.125f};
    h.sinks = put_floats(g, c.sinks, HEADS);
    struct quern_gpu_buf x = put_floats(g, c.x[0], PUB_M * WIDTH),
                         q = put_floats(g, c.out[0], PUB_M * PUB_QN),
                         y = put_floats(g, c.out[0], PUB_M * PUB_QN);
    int bad = quern_gpu_kv_new(g, KV_HEADS, DIM, 64, type, &kv) ||
              quern_gpu_qkv(g, &p, &h, kv, x, PUB_M, 0, q) ||
              quern_gpu_attention(g, &h, kv, q, PUB_M, 0, y) || quern_gpu_read(g, y, c.out, PUB_M * PUB_QN);
    if (bad) {
        failed++;
        printf("FAIL %s: %s\n", name, quern_gpu_error(g));
    } else {
        double error = public_error(&c);
        verdict(error < bound, name, error);
    }
    quern_gpu_kv_delete(g, kv);
    quern_gpu_close(g);
}

int main(int argc, char **argv)
{
    bool picks = argc > 1 && !strcmp(argv[1], "picks");
    quick = picks || (argc > 1 && !strcmp(argv[1], "quick"));
    if (!picks) {
        check_splits(true);
        check_splits(false);
        for (int kind = 0; kind < EXPERT_KINDS; kind++)
            for (int exact = 1; exact >= 0; exact--)
                check_divided((enum expert_kind)kind, exact);
    }
    check_picks(1003);
    check_picks(quick ? 5000 : 128256);
    check_public(QUERN_GPU_KV_F16, "heads normed, with sinks, KV of F16", 5e-3);
    check_public(QUERN_GPU_KV_F32, "heads normed, with sinks, KV of F32", 5e-3);
    check_public(QUERN_GPU_KV_BF16, "heads normed, with sinks, KV of BF16", 2e-2);
    check_public(QUERN_GPU_KV_Q8_0, "heads normed, with sinks, KV of Q8_0", 2e-2);
    check_public(QUERN_GPU_KV_F8, "heads normed, with sinks, KV of F8", 8e-2);
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}
