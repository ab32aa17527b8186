/* quern doctor: what this machine offers to quern, what will be used, and why; with MODEL, whether it fits
 * and computes correctly. */
#include "base/buf.h"
#include "base/cores.h"
#include "base/json.h"
#include "base/num.h"
#include "base/pool.h"
#include "device/cpu/kernels.h"
#include "device/cpu/probe.h"
#include "device/cuda/variants.h"
#include "device/device.h"
#include "tool/doctor_model.h"
#include "tool/doctor_system.h"
#include "tool/load.h"
#include "tool/tool.h"

#include <string.h>

enum { CARDS_MOST = 16, CHOICES = 20 };

static const struct arg_option options[] = {
    {"json", 0, ARG_FLAG, NULL, "print one JSON value", 0, 0},
    {"cards", 0, ARG_TEXT, "NxSIZE",
     "say how MODEL goes onto these cards, as 8x141G (default: those at hand)", 0, 0},
    LOAD_OPTIONS,
    {0},
};

/* The kernel for a product of some shape, and why that one. */
struct doctor_choice {
    const char *type, *kernel;
    uint32_t n, k, rows, blocks;
    char why[96];
};

struct card {
    int index;
    struct gpu_profile profile;
    bool plain_launch;
    size_t available, total;
    struct doctor_choice choice[CHOICES];
};

struct findings {
    int cores;
    const char *tier;
    struct probe probe;
    struct doctor_system system;
    struct err no_gpu; /* why there is none */
    struct card card[CARDS_MOST];
    int cards;
    bool with_model;
    struct doctor_model model;
};

/* ---- probing ---- */

/* The products of an 8B model's shapes: which kernel takes how many rows, and why. */
static void look_at_choices(const struct gpu *g, struct doctor_choice *out)
{
    static const struct {
        uint32_t fmt, n, k;
        const char *type;
    } shapes[] = {{FMT_Q4_K_TILE, 4096, 4096, "Q4_K"},
                  {FMT_Q4_K_TILE, 28672, 4096, "Q4_K"},
                  {FMT_Q8_0, 4096, 4096, "Q8_0"},
                  {FMT_F16, 4096, 4096, "F16"}};
    static const uint32_t rows[] = {1, 8, 16, 32, 64};
    for (size_t i = 0; i < CHOICES; i++) {
        size_t s = i / 5, r = i % 5;
        const struct gpu_many many = {.m = rows[r], .k = shapes[s].k, .units = shapes[s].n / MANY_UNIT};
        const bool wide = gpu_is_many(&g->profile, shapes[s].fmt, &many);
        struct gpu_gemm how = wide ? gpu_gemm_many(&g->profile, &many)
                                   : gpu_gemm_choose(&g->profile, shapes[s].fmt, rows[r],
                                                     shapes[s].n / TILE_ROWS, shapes[s].k, false);
        bool one = rows[r] == 1 && layout_is_tile(shapes[s].fmt);
        out[i] = (struct doctor_choice){.type = shapes[s].type,
                                        .kernel = gpu_kernel_name(one ? (uint32_t)K_GEMM_ROW : how.kernel),
                                        .n = shapes[s].n,
                                        .k = shapes[s].k,
                                        .rows = rows[r],
                                        .blocks = how.grid.x * how.grid.y * how.grid.z};
        if (wide && how.stream_k)
            snprintf(out[i].why, sizeof out[i].why, "%u warpgroups of 64 outputs by wgmma, stream-K",
                     how.grid.threads / 128);
        else if (wide && how.split < 2)
            snprintf(out[i].why, sizeof out[i].why, "%u warpgroups of 64 outputs by wgmma",
                     how.grid.threads / 128);
        else if (wide)
            snprintf(out[i].why, sizeof out[i].why,
                     "%u warpgroups of 64 outputs by wgmma, %u blocks share their columns",
                     how.grid.threads / 128, how.split);
        else if (how.kernel == K_GEMM_STAGED)
            snprintf(out[i].why, sizeof out[i].why,
                     "columns of x staged in shared memory for all warps (compute capability 9.0)");
        else if (how.split > 1)
            snprintf(out[i].why, sizeof out[i].why, "%u warps share 16 outputs, to fill %d multiprocessors",
                     how.split, g->profile.sms);
        else
            snprintf(out[i].why, sizeof out[i].why,
                     "a warp has 16 outputs: there are enough of them for %d multiprocessors",
                     g->profile.sms);
    }
}

static int look_at_card(int index, struct card *c, struct err *e)
{
    struct gpu *g = gpu_open(index, 0, e);
    if (!g)
        return -1;
    int failed = gpu_measure(g, e);
    c->index = index;
    c->profile = g->profile;
    c->plain_launch = g->plain_launch;
    g->cu->mem_info(&c->available, &c->total);
    look_at_choices(g, c->choice);
    gpu_close(g);
    return failed;
}

/* The cards that are asked for: one by its name, else all. */
static int look_at_cards(struct findings *f, const char *device, struct err *e)
{
    uint64_t only = 0;
    bool one = device != NULL;
    if (one && !strcmp(device, "cpu"))
        return 0;
    if (one && strcmp(device, "cuda") &&
        (strncmp(device, "cuda:", 5) || !num_u64(device + 5, strlen(device + 5), 1023, &only)))
        return err_set(e, ERR_USAGE, "doctor looks at cpu, cuda or cuda:N, not at '%s'", device);
    int n = cuda_count(&f->no_gpu);
    if (n < 0 && one)
        return err_set(e, f->no_gpu.code, "%s", f->no_gpu.text);
    n = one ? (int)only + 1 : n < CARDS_MOST ? n : CARDS_MOST;
    for (int i = (int)only; i < n; i++) {
        struct err why = {0};
        if (!look_at_card(i, &f->card[f->cards], &why))
            f->cards++;
        else if (one)
            return err_set(e, why.code, "%s", why.text);
        else
            f->no_gpu = why;
    }
    return 0;
}

static int look_at_cpu(struct findings *f, const struct args *a, struct err *e)
{
    struct cores cores;
    cores_find(&cores);
    const struct kernels *k = kernels_get(args_text(a, "tier"), e);
    struct pool *pool = k ? pool_open((int)args_int(a, "threads", 0), false, e) : NULL;
    int failed = !pool || probe_run(pool, &f->probe, e);
    pool_close(pool);
    f->cores = cores.n;
    f->tier = k ? k->tier : NULL;
    return failed ? -1 : 0;
}

/* ---- output ---- */

static void text_card(const struct card *c, struct buf *out)
{
    const struct gpu_profile *p = &c->profile;
    buf_printf(out, "cuda:%d  %s, compute capability %d.%d, driver for CUDA %d.%d\n", c->index, p->name,
               p->major, p->minor, p->driver / 1000, p->driver % 1000 / 10);
    buf_printf(out, "  %d multiprocessors at %.0f MHz, %.1f MB L2, %d KB shared memory a block\n", p->sms,
               p->clock_khz / 1e3, p->l2_bytes / 1e6, p->shared_block >> 10);
    buf_printf(out, "  memory %.1f GB, %.1f GB free, ECC %s, %d bits at %.0f MHz\n", (double)c->total / 1e9,
               (double)c->available / 1e9, p->ecc ? "on" : "off", p->bus_bits, p->memory_khz / 1e3);
    buf_printf(out, "  reads at %.0f GB/s, measured now\n", p->read_gbs);
    buf_printf(out, "  launches: %s\n",
               c->plain_launch ? "one after the other (below compute capability 9.0)"
                               : "each prepares while the one before ends (compute capability 9.0)");
    buf_printf(out, "  products:\n");
    for (int i = 0; i < CHOICES; i++) {
        const struct doctor_choice *k = &c->choice[i];
        buf_printf(out, "    %-4s %5u x %-5u %2u rows  %-12s %4u blocks, %s\n", k->type, k->n, k->k, k->rows,
                   k->kernel, k->blocks, k->why);
    }
}

static void text(const struct findings *f, struct buf *out)
{
    buf_printf(
        out,
        "cpu     %d cores, kernels for %s; measured now: reads at %.1f GB/s, int8 %.0f GOP/s, float %.0f "
        "GFLOP/s\n",
        f->cores, f->tier, 1e-9 * f->probe.read, 1e-9 * f->probe.int8, 1e-9 * f->probe.float32);
    doctor_system_text(&f->system, out);
    if (f->no_gpu.code)
        buf_printf(out, "cuda    none: %s\n", f->no_gpu.text);
    for (int i = 0; i < f->cards; i++)
        text_card(&f->card[i], out);
    if (f->with_model)
        doctor_model_text(&f->model, out);
}

static void json_number(struct json *j, const char *key, double value)
{
    json_key(j, key);
    json_num(j, value);
}

static void json_text(struct json *j, const char *key, const char *value)
{
    json_key(j, key);
    json_str(j, value);
}

static void json_card(const struct card *c, struct json *j)
{
    const struct gpu_profile *p = &c->profile;
    json_begin(j, '{');
    json_number(j, "index", c->index);
    json_text(j, "name", p->name);
    json_number(j, "capability", p->major + 0.1 * p->minor);
    json_number(j, "driver", p->driver);
    json_number(j, "multiprocessors", p->sms);
    json_number(j, "clock_mhz", p->clock_khz / 1e3);
    json_number(j, "l2", p->l2_bytes);
    json_number(j, "memory", (double)c->total);
    json_number(j, "free", (double)c->available);
    json_number(j, "read_gb_s", p->read_gbs);
    json_key(j, "products");
    json_begin(j, '[');
    for (int i = 0; i < CHOICES; i++) {
        const struct doctor_choice *k = &c->choice[i];
        json_begin(j, '{');
        json_text(j, "type", k->type);
        json_number(j, "n", k->n);
        json_number(j, "k", k->k);
        json_number(j, "rows", k->rows);
        json_text(j, "kernel", k->kernel);
        json_number(j, "blocks", k->blocks);
        json_text(j, "why", k->why);
        json_end(j, '}');
    }
    json_end(j, ']');
    json_end(j, '}');
}

static void json(const struct findings *f, struct buf *out)
{
    struct json j = {.out = out};
    json_begin(&j, '{');
    json_key(&j, "cpu");
    json_begin(&j, '{');
    json_number(&j, "cores", f->cores);
    json_text(&j, "tier", f->tier);
    json_number(&j, "read_gb_s", 1e-9 * f->probe.read);
    json_number(&j, "int8_gop_s", 1e-9 * f->probe.int8);
    json_number(&j, "float_gflop_s", 1e-9 * f->probe.float32);
    json_end(&j, '}');
    json_key(&j, "cuda");
    json_begin(&j, '[');
    for (int i = 0; i < f->cards; i++)
        json_card(&f->card[i], &j);
    json_end(&j, ']');
    doctor_system_json(&f->system, &j);
    json_text(&j, "no_gpu", f->no_gpu.code ? f->no_gpu.text : NULL);
    json_key(&j, "model");
    if (f->with_model)
        doctor_model_json(&f->model, &j);
    else
        json_nil(&j);
    json_end(&j, '}');
    buf_char(out, '\n');
}

static int run(const struct args *a, struct err *e)
{
    static struct findings f; /* large: the cards */
    struct buf out = {0};
    f = (struct findings){.with_model = a->count > 0};
    load_alone();
    if (look_at_cards(&f, args_text(a, "device"), e) || look_at_cpu(&f, a, e) ||
        doctor_system_look(&f.system, f.cards ? f.cards : -1, e) ||
        (f.with_model && doctor_examine(a, a->words[0], f.cards > 0, &f.model, e)))
        return -1;
    args_flag(a, "json") ? json(&f, &out) : text(&f, &out);
    return tool_print(&out, e);
}

const struct tool_verb tool_doctor = {
    .name = "doctor",
    .words = "[MODEL]",
    .brief = "what this machine offers, what will be used, and why",
    .more =
        "With MODEL: whether it fits, which device holds which layer, and whether the GPU computes it as the "
        "CPU does.\n"
        "  quern doctor\n"
        "  quern doctor --device cuda:0\n"
        "  quern doctor model.gguf --device cuda --json\n",
    .options = options,
    .least = 0,
    .most = 1,
    .run = run,
};
