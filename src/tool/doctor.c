/* quern doctor: what this machine offers to quern, what will be used, and why. */
#include "base/buf.h"
#include "base/json.h"
#include "base/num.h"
#include "base/pool.h"
#include "device/cpu/kernels.h"
#include "device/cuda/gpu.h"
#include "tool/tool.h"

#include <string.h>

static const struct arg_option options[] = {
    {"device", 0, ARG_TEXT, "DEVICE", "look at cuda:N only (default: every card)", 0, 0},
    {0},
};

/* The products of an 8B model's shapes: which kernel takes how many rows, and why. */
static void print_variants(const struct gpu *g, struct buf *out)
{
    static const struct {
        uint32_t fmt, n, k;
        const char *type;
    } shapes[] = {{FMT_Q4_K_TILE, 4096, 4096, "Q4_K"},
                  {FMT_Q4_K_TILE, 28672, 4096, "Q4_K"},
                  {FMT_Q8_0, 4096, 4096, "Q8_0"},
                  {FMT_F16, 4096, 4096, "F16"}};
    static const uint32_t rows[] = {1, 8, 16, 32, 64};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            const bool wide = gpu_is_wide(g, shapes[s].fmt, rows[r]);
            struct gpu_gemm how =
                wide ? gpu_gemm_wide(g, shapes[s].n / 64, shapes[s].k, false)
                     : gpu_gemm_choose(g, shapes[s].fmt, rows[r], shapes[s].n / TILE_ROWS, shapes[s].k);
            bool one = rows[r] == 1 && layout_is_tile(shapes[s].fmt);
            buf_printf(out, "    %-4s %5u x %-5u %2u rows  %-12s %4u blocks, ", shapes[s].type, shapes[s].n,
                       shapes[s].k, rows[r], gpu_kernel_name(one ? (uint32_t)K_GEMM_ROW : how.kernel),
                       how.grid.x * how.grid.y);
            if (wide)
                buf_printf(out, "%u warpgroups of 64 outputs by wgmma, %u blocks share their columns\n",
                           how.grid.threads / 128, how.split);
            else if (how.kernel == K_GEMM_STAGED)
                buf_printf(out,
                           "columns of x staged in shared memory for all warps (compute capability 9.0)\n");
            else if (how.split > 1)
                buf_printf(out, "%u warps share 16 outputs, to fill %d multiprocessors\n", how.split,
                           g->profile.sms);
            else
                buf_printf(out, "a warp has 16 outputs: there are enough of them for %d multiprocessors\n",
                           g->profile.sms);
        }
}

static int print_card(int index, struct buf *out, struct err *e)
{
    struct gpu *g = gpu_open(index, 0, e);
    if (!g)
        return -1;
    const struct gpu_profile *p = &g->profile;
    int bad = gpu_measure(g, e);
    size_t available = 0, total = 0;
    g->cu->mem_info(&available, &total);
    buf_printf(out, "cuda:%d  %s, compute capability %d.%d, driver for CUDA %d.%d\n", index, p->name,
               p->major, p->minor, p->driver / 1000, p->driver % 1000 / 10);
    buf_printf(out, "  %d multiprocessors at %.0f MHz, %.1f MB L2, %d KB shared memory a block\n", p->sms,
               p->clock_khz / 1e3, p->l2_bytes / 1e6, p->shared_block >> 10);
    buf_printf(out, "  memory %.1f GB, %.1f GB free, ECC %s, %d bits at %.0f MHz\n", (double)total / 1e9,
               (double)available / 1e9, p->ecc ? "on" : "off", p->bus_bits, p->memory_khz / 1e3);
    if (!bad)
        buf_printf(out, "  reads at %.0f GB/s, measured now\n", p->read_gbs);
    buf_printf(out, "  launches: %s\n",
               g->plain_launch ? "one after the other (below compute capability 9.0)"
                               : "each prepares while the one before ends (compute capability 9.0)");
    buf_printf(out, "  products:\n");
    print_variants(g, out);
    gpu_close(g);
    return bad;
}

static int run(const struct args *a, struct err *e)
{
    struct buf out = {0};
    struct err why = {0};
    const char *device = args_text(a, "device");
    uint64_t only = 0;
    bool one = device != NULL;
    if (one && (strncmp(device, "cuda:", 5) || !num_u64(device + 5, strlen(device + 5), 1023, &only)) &&
        strcmp(device, "cuda"))
        return err_set(e, ERR_USAGE, "doctor looks at cuda or cuda:N, not at '%s'", device);
    const struct kernels *k = kernels_get(NULL, e);
    if (!k)
        return -1;
    buf_printf(&out, "cpu     %d cores, kernels for %s\n", pool_cores(), k->tier);
    int cards = gpu_count(&why), bad = 0;
    if (cards < 0 && one)
        return err_set(e, why.code, "%s", why.text);
    if (cards < 0)
        buf_printf(&out, "cuda    none: %s\n", why.text);
    for (int i = one ? (int)only : 0; !bad && i < (one ? (int)only + 1 : cards); i++)
        bad = print_card(i, &out, e);
    if (bad) {
        buf_free(&out);
        return -1;
    }
    return tool_print(&out, e);
}

const struct tool_verb tool_doctor = {
    .name = "doctor",
    .words = "",
    .brief = "what this machine offers, what will be used, and why",
    .more = "  quern doctor\n"
            "  quern doctor --device cuda:0\n",
    .options = options,
    .least = 0,
    .most = 0,
    .run = run,
};
