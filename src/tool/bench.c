/* quern bench: how fast a model runs on this machine, beside the machine's limits, probed in the same run. */
#include "base/clock.h"
#include "codec/dtype.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "device/cpu/cpu.h"
#include "device/cpu/probe.h"
#include "device/cuda/gpu.h"
#include "tool/bench_engine.h"
#include "tool/bench_images.h"
#include "tool/bench_kernels.h"
#include "tool/images.h"
#include "tool/load.h"
#include "tool/progress.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <math.h>
#include <string.h>

enum { BENCH_LIST = 16, BENCH_REPEATS_MOST = 100 };

static const struct arg_option bench_options[] = {
    {"prompt", 'p', ARG_TEXT, "N,N", "prompts to read, in tokens (default: 512; 0 = none)", 0, 0},
    {"predict", 'n', ARG_TEXT, "N,N", "tokens to generate (default: 64; 0 = none)", 0, 0},
    {"depth", 'd', ARG_TEXT, "N,N", "tokens already in the context (default: 0)", 0, 0},
    {"batch", 'b', ARG_TEXT, "N,N", "streams at once when generating (default: 1)", 0, 0},
    {"logits", 0, ARG_FLAG, NULL,
     "copy all logits to the host after each step (default: a card chooses tokens)", 0, 0},
    {"sent-experts", 0, ARG_INT, "N",
     "with --cpu-moe: experts of a layer that prompts send to the card (default: by measurement)", 0,
     1 << 16},
    {"repeat", 'r', ARG_INT, "N", "how often each is measured (default: 5)", 1, BENCH_REPEATS_MOST},
    {"streams", 0, ARG_TEXT, "N,N", "instead: N concurrent requests through the engine", 0, 0},
    {"read", 0, ARG_INT, "N",
     "with --streams: how long a running one waits while a prompt of N tokens is read", 1, 1 << 20},
    {"image", 0, ARG_TEXT, "FILE",
     "instead: how long the model's tower takes for this image; may be repeated", 0, 0},
    IMAGES_TOWER,
    {"profile", 0, ARG_FLAG, NULL, "with --image: where the time goes, of one image more", 0, 0},
    {"kernels", 0, ARG_FLAG, NULL, "instead: every row of the kernel tables, without a model", 0, 0},
    {"type", 0, ARG_TEXT, "T", "with --kernels: weights of this type alone (Q4_K)", 0, 0},
    {"json", 0, ARG_FLAG, NULL, "print one JSON array", 0, 0},
    {"threads", 't', ARG_TEXT, "N,N", "threads (default: all available cores)", 0, 0},
    LOAD_BUT_THREADS,
    {0},
};

struct list {
    uint32_t item[BENCH_LIST];
    int count;
};

/* One line of the table. */
struct bench_test {
    bool decode;
    uint32_t n, depth, batch;
    double tok_s, spread;      /* median, and (p75 - p25) / median */
    double gb_s, gop_s, share; /* share of the machine's limit with this number of threads */
    double link, rest,
        card; /* of two devices: shares of the link's bandwidth, of the CPU's and of the card's limits */
    double streamed,
        sent; /* bytes of the CPU's weights in a step: computed with on the card; sent for that */
    int threads;
    struct probe probe;
};

struct bench {
    const struct args *a;
    struct session *session;
    struct seq **seqs; /* (batches) */
    uint32_t batches;  /* the largest batch */
    int32_t *ids;      /* (longest + batches) random ones; the text of stream i begins at ids[i] */
    int repeats;
    bool picks; /* the device chooses tokens, as it does for a user: only ids leave it */
    struct list prompt, predict, depth, batch, threads;
    struct probe probe;      /* of the threads that are being measured */
    struct probe card_probe; /* of the card where it shares the model with the CPU */
    double link;             /* bytes a second to the card */
    char device[32];         /* what runs it */
    const char *card;        /* what was asked for */
    struct bench_test *tests;
    int count;
};

static int bench_list(const struct args *a, const char *name, const char *otherwise, struct list *out,
                      struct err *e)
{
    const char *text = args_text(a, name);
    text = text ? text : otherwise;
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        uint64_t v;
        if (out->count == BENCH_LIST || !num_u64(at, n, 1 << 20, &v))
            return err_set(e, ERR_USAGE,
                           "--%s wants up to %d numbers from 0 to %d with commas between, not '%s'", name,
                           BENCH_LIST, 1 << 20, log_safe(text));
        out->item[out->count++] = (uint32_t)v;
        at += n;
        if (!*at)
            return 0;
    }
}

static uint32_t bench_most(const struct list *l)
{
    uint32_t most = 0;
    for (int i = 0; i < l->count; i++)
        most = l->item[i] > most ? l->item[i] : most;
    return most;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Bytes and operations of one step, from the plan: of the main device, and of the rest. */
struct step_cost {
    double bytes[2], flops[2];
};

static struct step_cost bench_cost(const struct bench *b, struct step_shape shape)
{
    const struct model *m = b->session->model;
    struct step_cost s = {0};
    for (uint32_t i = 0; i < m->plan.count; i++) {
        struct op_cost c = plan_cost(&m->plan, &m->weights, i, shape);
        s.bytes[m->plan.ops[i].device != 0] += c.weight_bytes + c.kv_bytes;
        s.flops[m->plan.ops[i].device != 0] += c.flops;
    }
    return s;
}

/* Puts every sequence of the batch at the depth where the test begins. */
static int bench_rewind(struct bench *b, const struct bench_test *t, struct err *e)
{
    for (uint32_t i = 0; i < t->batch; i++) {
        struct seq *s = b->seqs[i];
        seq_truncate(s, t->depth);
        if (s->len < t->depth && seq_feed(s, b->ids + i + s->len, t->depth - s->len, e))
            return -1;
    }
    return 0;
}

/* One row of each stream of the batch, and its result: a token where the device chooses it, else logits. */
static int bench_step(struct bench *b, const struct bench_test *t, uint32_t k, struct seq_rows *parts,
                      struct err *e)
{
    static const struct step_pick best = {.on = true, .top_p = 1, .repeat = 1};
    struct runner *r = b->session->runner;
    for (uint32_t i = 0; i < t->batch; i++)
        parts[i] = (struct seq_rows){.seq = b->seqs[i],
                                     .ids = &b->ids[i + t->depth + k],
                                     .n = 1,
                                     .outs = 1,
                                     .pick = b->picks ? &best : NULL};
    if (runner_step(r, parts, t->batch, e))
        return -1;
    return (b->picks ? (const void *)runner_picks(r, e) : (const void *)runner_results(r, e)) ? 0 : -1;
}

/* One measurement, in seconds; < 0: an error. */
static double bench_once(struct bench *b, const struct bench_test *t, struct err *e)
{
    struct seq_rows *parts = mem_alloc(t->batch, sizeof *parts);
    if (!parts)
        return err_memory(e, "a batch", t->batch * sizeof *parts);
    int failed = bench_rewind(b, t, e);
    double start = clock_now();
    if (!failed && !t->decode)
        failed = seq_feed(b->seqs[0], b->ids + t->depth, t->n, e);
    for (uint32_t k = 0; k < t->n && t->decode && !failed; k++)
        failed = bench_step(b, t, k, parts, e);
    double seconds = clock_now() - start;
    mem_free(parts);
    return failed ? -1 : seconds;
}

/* Operations a second that products of most of the weights can have: of floats, of pairs of bf16, or of bytes. */
static double bench_wall(const struct bench *b)
{
    const struct device_options *o = &b->session->runner->device_options;
    const struct weights *w = &b->session->model->weights;
    bool floats = o->exact, wide = o->activations ? o->activations == 16 : cpu_small(w);
    uint64_t bytes[3] = {0}; /* F32, of 16 bits, the rest */
    for (uint32_t i = 1; i < w->count; i++) {
        uint32_t type = w->all[i].type;
        bytes[type == DTYPE_F32 ? 0 : kernel_bf16(type) ? 1 : 2] += weight_bytes(&w->all[i]);
    }
    bool halves = bytes[1] > bytes[0] && bytes[1] > bytes[2];
    floats = floats || (bytes[0] > bytes[1] && bytes[0] > bytes[2]) || (halves && (wide || !b->probe.bf16));
    if (device_is_cuda(b->session->runner->device))
        return b->probe.int8;
    return floats ? b->probe.float32 : halves ? b->probe.bf16 : b->probe.int8;
}

/* Two devices that share a model: decode waits for one, then for the other; prompts send weights of the CPU to the card
 * where that is faster, and the link, the card or the CPU, which computes with those that are not sent, is the limit.
 * `seconds` of a step. */
static void bench_walls(const struct bench *b, struct bench_test *t, const struct step_cost *c,
                        double seconds)
{
    if (t->decode) {
        t->card = c->bytes[0] / b->card_probe.read / seconds;
        t->rest = c->bytes[1] / b->probe.read / seconds;
    } else {
        const double moved = c->bytes[1] > 0 ? fmin(1, t->streamed / c->bytes[1]) : 0;
        t->card = (c->flops[0] + moved * c->flops[1]) / b->card_probe.int8 / seconds;
        t->rest = (1 - moved) * c->flops[1] / bench_wall(b) / seconds;
        t->link = t->sent / b->link / seconds;
    }
    t->share = t->streamed > 0 ? fmax(t->link, fmax(t->card, t->rest)) : t->card + t->rest;
}

static int bench_measure(struct bench *b, struct bench_test *t, struct progress *bar, struct err *e)
{
    const struct device *device = b->session->runner->device;
    double seconds[BENCH_REPEATS_MOST];
    char note[64];
    snprintf(note, sizeof note, "%s %u", t->decode ? "decode" : "prefill", t->n);
    if (bench_once(b, t, e) < 0) /* warms up */
        return -1;
    const uint64_t sent = device->sent, streamed = device->streamed;
    for (int i = 0; i < b->repeats; i++) {
        progress_show(bar, (double)i / b->repeats, note);
        if ((seconds[i] = bench_once(b, t, e)) < 0)
            return -1;
    }
    qsort(seconds, (size_t)b->repeats, sizeof *seconds, by_value);
    double median = seconds[b->repeats / 2], chunk = b->session->runner->chunk;
    double steps = t->decode ? t->n : t->n > chunk ? t->n / chunk : 1;
    t->tok_s = t->n * t->batch / median;
    t->spread = (seconds[b->repeats * 3 / 4] - seconds[b->repeats / 4]) / median;
    const struct step_cost cost = bench_cost(
        b, (struct step_shape){
               .rows = t->decode ? t->batch : t->n / steps, .seqs = t->batch, .keys = t->depth + t->n / 2.0});
    t->gb_s = 1e-9 * (cost.bytes[0] + cost.bytes[1]) * steps / median;
    t->gop_s = 1e-9 * (cost.flops[0] + cost.flops[1]) * steps / median;
    if (b->link > 0) {
        t->sent = (double)(device->sent - sent) / b->repeats / steps;
        t->streamed = (double)(device->streamed - streamed) / b->repeats / steps;
        bench_walls(b, t, &cost, median / steps);
        return 0;
    }
    /* the limit: bytes when generating, operations when reading */
    double limit = 1e-9 * (t->decode ? b->probe.read : bench_wall(b));
    t->share = limit > 0 ? (t->decode ? t->gb_s : t->gop_s) / limit : 0;
    return 0;
}

static void bench_json(const struct bench *b, struct buf *out)
{
    struct json j = {.out = out};
    json_begin(&j, '[');
    for (int i = 0; i < b->count; i++) {
        const struct bench_test *t = &b->tests[i];
        json_begin(&j, '{');
        json_key(&j, "test");
        json_str(&j, t->decode ? "decode" : "prefill");
        json_key(&j, "n");
        json_uint(&j, t->n);
        json_key(&j, "depth");
        json_uint(&j, t->depth);
        json_key(&j, "batch");
        json_uint(&j, t->batch);
        json_key(&j, "threads");
        json_int(&j, t->threads);
        json_key(&j, "device");
        json_str(&j, b->device);
        json_key(&j, "result");
        json_str(&j, b->picks && t->decode ? "token" : "logits");
        json_key(&j, "tok_s");
        json_num(&j, t->tok_s);
        json_key(&j, "spread");
        json_num(&j, t->spread);
        json_key(&j, "gb_s");
        json_num(&j, t->gb_s);
        json_key(&j, "gop_s");
        json_num(&j, t->gop_s);
        json_key(&j, "share");
        json_num(&j, t->share);
        if (b->link > 0) {
            json_key(&j, "link_share");
            json_num(&j, t->link);
            json_key(&j, "cpu_share");
            json_num(&j, t->rest);
            json_key(&j, "card_share");
            json_num(&j, t->card);
            json_key(&j, "sent_gb");
            json_num(&j, 1e-9 * t->sent);
            json_key(&j, "streamed_gb");
            json_num(&j, 1e-9 * t->streamed);
        }
        json_end(&j, '}');
    }
    json_end(&j, ']');
    buf_char(out, '\n');
}

static void bench_table(const struct bench *b, struct buf *out)
{
    bool decodes = false;
    for (int i = 0; i < b->count; i++)
        decodes |= b->tests[i].decode;
    for (int i = 0; i < b->count; i++) {
        const struct bench_test *t = &b->tests[i];
        if (!i || t->threads != t[-1].threads)
            buf_printf(out,
                       "%s, %d threads; probed: read %.1f GB/s, int8 %.0f GOP/s, float %.0f GFLOP/s, bf16 "
                       "%.0f GFLOP/s\n"
                       "%-8s %6s %7s %6s %10s %8s %8s %8s %s\n",
                       b->device, t->threads, 1e-9 * t->probe.read, 1e-9 * t->probe.int8,
                       1e-9 * t->probe.float32, 1e-9 * t->probe.bf16, "test", "n", "depth", "batch", "tok/s",
                       "spread", "GB/s", "GOP/s", "share of the limit");
        if (!i && b->link > 0)
            buf_printf(out, "(card: read %.1f GB/s, fp16 %.0f GFLOP/s; link to it %.1f GB/s)\n",
                       1e-9 * b->card_probe.read, 1e-9 * b->card_probe.int8, 1e-9 * b->link);
        if (!i && b->picks && decodes)
            buf_printf(out, "(decode: the card chooses tokens, and only ids leave it; --logits copies all "
                            "logits to the host)\n");
        buf_printf(out, "%-8s %6u %7u %6u %10.2f %7.1f%% %8.2f %8.1f %5.1f%% of %s",
                   t->decode ? "decode" : "prefill", t->n, t->depth, t->batch, t->tok_s, 100 * t->spread,
                   t->gb_s, t->gop_s, 100 * t->share, t->decode ? "the read bandwidth" : "the arithmetic");
        if (b->link > 0)
            buf_printf(out, ": link %.1f%%, CPU %.1f%%, card %.1f%%", 100 * t->link, 100 * t->rest,
                       100 * t->card);
        if (t->streamed > 0)
            buf_printf(out, "; of the CPU's weights %.2f GB a step on the card, %.2f GB sent",
                       1e-9 * t->streamed, 1e-9 * t->sent);
        buf_char(out, '\n');
    }
}

static int bench_open(struct bench *b, int threads, struct err *e)
{
    struct session_options o = {.no_text = true, .runner.device_options.threads = threads};
    uint32_t longest = bench_most(&b->prompt), made = bench_most(&b->predict);
    longest = longest > made ? longest : made;
    b->batches = bench_most(&b->batch);
    if (!b->batches || !longest)
        return err_set(e, ERR_USAGE, "there is nothing to measure: %s",
                       b->batches ? "--prompt and --predict are 0" : "--batch is 0");
    longest += bench_most(&b->depth);
    o.runner.sent_fixed = args_int(b->a, "sent-experts", -1) >= 0;
    o.runner.sent_experts = (uint32_t)args_int(b->a, "sent-experts", 0);
    o.runner.ctx = longest + 1;
    o.runner.seqs = o.runner.rows_least = b->batches;
    if (load_model(&b->session, b->a->count ? b->a->words[0] : NULL, &o, b->a, e))
        return -1;
    b->seqs = mem_zalloc(b->batches, sizeof *b->seqs);
    b->ids = mem_alloc((size_t)longest + b->batches, sizeof *b->ids);
    if (!b->seqs || !b->ids)
        return err_memory(e, "the benchmark", ((size_t)longest + b->batches) * sizeof *b->ids);
    const struct model *m = b->session->model;
    b->picks =
        runner_can_pick(b->session->runner) && m->plan.out_width == m->h.vocab && !args_flag(b->a, "logits");
    uint32_t x = 1;
    for (uint32_t i = 0; i < longest + b->batches; i++) {
        x = x * 1664525 + 1013904223;
        b->ids[i] = (int32_t)((x >> 8) % m->h.vocab);
    }
    for (uint32_t i = 0; i < b->batches; i++)
        if (!(b->seqs[i] = seq_open(b->session->runner, e)))
            return -1;
    return 0;
}

static void bench_close(struct bench *b)
{
    for (uint32_t i = 0; b->seqs && i < b->batches; i++)
        seq_close(b->seqs[i]);
    mem_free(b->seqs);
    mem_free(b->ids);
    session_close(b->session);
    b->seqs = NULL;
    b->ids = NULL;
    b->session = NULL;
}

/* One more line of the table, measured. */
static int bench_add(struct bench *b, struct bench_test t, int threads, struct progress *bar, struct err *e)
{
    t.threads = threads;
    t.probe = b->probe;
    if (!t.n || !t.batch)
        return 0;
    b->tests[b->count] = t;
    return bench_measure(b, &b->tests[b->count++], bar, e);
}

/* Every combination of the lists, with the threads that the model was opened with. */
static int bench_combine(struct bench *b, int threads, struct progress *bar, struct err *e)
{
    int failed = 0;
    for (int d = 0; d < b->depth.count; d++) {
        uint32_t depth = b->depth.item[d];
        for (int i = 0; i < b->prompt.count && !failed; i++)
            failed = bench_add(b, (struct bench_test){.n = b->prompt.item[i], .depth = depth, .batch = 1},
                               threads, bar, e);
        for (int i = 0; i < b->predict.count * b->batch.count && !failed; i++)
            failed = bench_add(b,
                               (struct bench_test){.decode = true,
                                                   .n = b->predict.item[i / b->batch.count],
                                                   .depth = depth,
                                                   .batch = b->batch.item[i % b->batch.count]},
                               threads, bar, e);
    }
    return failed;
}

/* The card's limits: measured read bandwidth, and arithmetic (fp16 with float sums) from the clock. */
static int bench_probe_card(const struct bench *b, struct probe *to, double *link, struct err *e)
{
    const char *colon = b->card ? strchr(b->card, ':') : NULL;
    uint64_t index = 0;
    if (colon)
        num_u64(colon + 1, strlen(colon + 1), 1023, &index);
    struct gpu *g = gpu_open((int)index, 0, e);
    if (!g || gpu_measure(g, e)) {
        gpu_close(g);
        return -1;
    }
    const struct gpu_profile *p = &g->profile;
    *to = (struct probe){.read = 1e9 * p->read_gbs};
    to->int8 = 1e3 * p->clock_khz * p->sms * gpu_tensor_ops(p->major, p->minor);
    int failed = link ? gpu_measure_link(g, link, e) : 0;
    gpu_close(g);
    return failed;
}

/* The limits, with the model's number of threads; of both devices where they share a model, and of the link between them. */
static int bench_probe(struct bench *b, int *threads, struct err *e)
{
    struct pool *pool = pool_open(*threads, false, e);
    if (!pool)
        return -1;
    *threads = pool_size(pool);
    const struct device *device = b->session->runner->device;
    bool card = !device_is_cpu(device), alone = device_is_cuda(device);
    int failed = alone ? 0 : probe_run(pool, &b->probe, e);
    pool_close(pool);
    if (failed || !card)
        return failed;
    return alone ? bench_probe_card(b, &b->probe, NULL, e) : bench_probe_card(b, &b->card_probe, &b->link, e);
}

static int bench_threads(struct bench *b, int threads, struct err *e)
{
    struct progress bar;
    int failed = bench_open(b, threads, e);
    if (!failed) {
        snprintf(b->device, sizeof b->device, "%s", b->session->runner->device->ops->name);
        b->card = args_text(b->a, "device");
        failed = bench_probe(b, &threads, e);
    }
    progress_start(&bar, "measuring");
    failed = failed || bench_combine(b, threads, &bar, e);
    progress_end(&bar);
    bench_close(b);
    return failed ? -1 : 0;
}

static int bench_all(struct bench *b, struct err *e)
{
    struct buf out = {0};
    if (bench_list(b->a, "prompt", "512", &b->prompt, e) ||
        bench_list(b->a, "predict", "64", &b->predict, e) || bench_list(b->a, "depth", "0", &b->depth, e) ||
        bench_list(b->a, "batch", "1", &b->batch, e) || bench_list(b->a, "threads", "0", &b->threads, e))
        return -1;
    b->repeats = (int)args_int(b->a, "repeat", 5);
    size_t lines = (size_t)b->threads.count * b->depth.count *
                   (b->prompt.count + (size_t)b->predict.count * b->batch.count);
    b->tests = mem_zalloc(lines, sizeof *b->tests);
    if (!b->tests)
        return err_memory(e, "the benchmark", lines * sizeof *b->tests);
    for (int i = 0; i < b->threads.count; i++)
        if (bench_threads(b, (int)b->threads.item[i], e))
            return -1;
    if (args_flag(b->a, "json"))
        bench_json(b, &out);
    else
        bench_table(b, &out);
    return tool_print(&out, e);
}

/* Requests at once: the first of each list counts. */
static int bench_streams(const struct args *a, struct err *e)
{
    struct list streams = {0}, prompt = {0}, predict = {0}, threads = {0};
    if (bench_list(a, "streams", "1", &streams, e) || bench_list(a, "threads", "0", &threads, e) ||
        bench_list(a, "prompt", "16", &prompt, e) || bench_list(a, "predict", "64", &predict, e))
        return -1;
    if (!prompt.item[0] || !predict.item[0])
        return err_set(e, ERR_USAGE, "--streams needs a --prompt and a --predict that are not 0");
    struct bench_engine o = {.streams = streams.item,
                             .count = streams.count,
                             .prompt = prompt.item[0],
                             .predict = predict.item[0],
                             .threads = (int)threads.item[0],
                             .read = (uint32_t)args_int(a, "read", 0)};
    return bench_engine(a, &o, e);
}

static int bench_table_of_kernels(const struct args *a, struct err *e)
{
    static struct kernel_bench k; /* large: the lines */
    struct list threads = {0};
    const char *type = args_text(a, "type");
    if (bench_list(a, "threads", "0", &threads, e))
        return -1;
    k = (struct kernel_bench){.only = type ? dtype_find(type) : -1,
                              .threads = (int)threads.item[0],
                              .device = args_text(a, "device"),
                              .tier = args_text(a, "tier")};
    if (type && k.only < 0)
        return err_set(e, ERR_USAGE, "there is no type '%s'", log_safe(type));
    return bench_kernels(&k, args_flag(a, "json"), e);
}

/* Options that mean something only beside another one. */
static int bench_check(const struct args *a, struct err *e)
{
    if (args_int(a, "read", 0) && !args_text(a, "streams"))
        return err_set(e, ERR_USAGE, "--read is for --streams");
    if (args_flag(a, "profile") && !args_text(a, "image"))
        return err_set(e, ERR_USAGE, "--profile is for --image; 'quern run --profile' is for text");
    if (args_text(a, "type") && !args_flag(a, "kernels"))
        return err_set(e, ERR_USAGE, "--type is for --kernels");
    return 0;
}

static int bench_run(const struct args *a, struct err *e)
{
    struct bench b = {.a = a};
    if (bench_check(a, e))
        return -1;
    if (args_flag(a, "kernels"))
        return bench_table_of_kernels(a, e);
    if (args_text(a, "streams"))
        return bench_streams(a, e);
    if (args_text(a, "image")) {
        struct list threads = {0};
        return bench_list(a, "threads", "0", &threads, e)
                   ? -1
                   : bench_images(a, (int)threads.item[0], (int)args_int(a, "repeat", 5), e);
    }
    int failed = bench_all(&b, e);
    mem_free(b.tests);
    return failed ? -1 : 0;
}

const struct tool_verb tool_bench = {
    .name = "bench",
    .words = "[MODEL]",
    .brief = "measure reading and generating, beside the machine's limits",
    .more = "Lists make a table of all combinations:\n"
            "  quern bench model.gguf -p 512,2048 -n 128 -b 1,4,8 -d 0,4096\n"
            "  quern bench model.gguf --streams 1,16 --read 8000\n"
            "  quern bench mmproj.gguf --image photo.jpg --device cuda\n"
            "  quern bench --kernels --type Q4_K --json\n",
    .options = bench_options,
    .least = 0,
    .most = 1,
    .run = bench_run,
};
