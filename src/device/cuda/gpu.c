#include "device/cuda/variants.h"

#include "base/log.h"
#include "base/mem.h"
#include "device/cuda/timing.h"
#include "device/device.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* The launch table: kernel, its name in the module, and how much shared memory it asks for. An SM changes its
 * shares of shared memory and L1 only between kernels, so those that follow each other use the same share:
 * SHARED_PERCENT of it. SHARED_MOST are those of which several blocks an SM need all there is. */
enum shared_need { SHARED_USUAL, SHARED_MORE, SHARED_ALL, SHARED_MOST };
enum { SHARED_PERCENT = 50 };

struct kernel_row {
    uint16_t kernel;
    uint8_t module;
    uint8_t shared; /* enum shared_need */
    const char *name;
};

static const struct kernel_row rows[] = {
    {K_GEMM_ROW, MODULE_GEMM_TILE, SHARED_MORE, "gemm_tile_1"},
    {K_GEMM_ROW_ANY, MODULE_GEMM_TILE, SHARED_MORE, "gemm_tile_1_any"},
    {K_GEMM_ONE, MODULE_GEMM_ONE, SHARED_MORE, "gemm_one"},
    {K_GEMM_STAGED, MODULE_GEMM_TILE, SHARED_ALL, "gemm_staged"},
    {K_GEMM_STAGED_FEW, MODULE_GEMM_TILE, SHARED_ALL, "gemm_staged_few"},
    {K_GEMM_EXPERTS, MODULE_GEMM_TILE, SHARED_USUAL, "gemm_experts"},
    {K_GEMM_WIDE, MODULE_GEMM_WIDE, SHARED_ALL, "gemm_wide"},
    {K_GEMM_MANY + 0, MODULE_GEMM_MANY, SHARED_ALL, "gemm_many_32"},
    {K_GEMM_MANY + 1, MODULE_GEMM_MANY, SHARED_ALL, "gemm_many_64"},
    {K_GEMM_MANY + 2, MODULE_GEMM_MANY, SHARED_ALL, "gemm_many_96"},
    {K_GEMM_MANY + 3, MODULE_GEMM_MANY, SHARED_ALL, "gemm_many_128"},
    {K_REPACK, MODULE_WEIGHTS, SHARED_USUAL, "repack"},
    {K_FETCH, MODULE_WEIGHTS, SHARED_USUAL, "fetch"},
    {K_DEQUANT, MODULE_WEIGHTS, SHARED_USUAL, "dequant"},
    {K_DEQUANT_TILE, MODULE_WEIGHTS, SHARED_USUAL, "dequant_tile"},
    {K_FP8, MODULE_WEIGHTS, SHARED_USUAL, "fp8_rows"},
    {K_GEMM_FLOAT, MODULE_WEIGHTS, SHARED_USUAL, "gemm_float"},
    {K_GEMV_TILED, MODULE_WEIGHTS, SHARED_MORE, "gemv_tiled"},
    {K_QUANTISE, MODULE_WEIGHTS, SHARED_USUAL, "quantise_q8_1"},
    {K_GEMV_DP4A, MODULE_WEIGHTS, SHARED_USUAL, "gemv_q4k_dp4a"},
    {K_PROBE, MODULE_WEIGHTS, SHARED_USUAL, "probe_read"},
    {K_NORM_PACK + 0, MODULE_ROWS, SHARED_USUAL, "norm_pack_1"},
    {K_NORM_PACK + 1, MODULE_ROWS, SHARED_USUAL, "norm_pack_2"},
    {K_NORM_PACK + 2, MODULE_ROWS, SHARED_USUAL, "norm_pack_4"},
    {K_NORM_SUM + 0, MODULE_ROWS, SHARED_USUAL, "norm_sum_1"},
    {K_NORM_SUM + 1, MODULE_ROWS, SHARED_USUAL, "norm_sum_2"},
    {K_NORM_SUM + 2, MODULE_ROWS, SHARED_USUAL, "norm_sum_4"},
    {K_NORM_COMBINE + 0, MODULE_ROWS, SHARED_USUAL, "norm_combine_1"},
    {K_NORM_COMBINE + 1, MODULE_ROWS, SHARED_USUAL, "norm_combine_2"},
    {K_NORM_SLOTS + 0, MODULE_ROWS, SHARED_USUAL, "norm_slots_1"},
    {K_NORM_SLOTS + 1, MODULE_ROWS, SHARED_USUAL, "norm_slots_2"},
    {K_NORM_SLOTS + 2, MODULE_ROWS, SHARED_USUAL, "norm_slots_4"},
    {K_ACT_PACK, MODULE_ROWS, SHARED_USUAL, "act_pack"},
    {K_ACT_ROWS, MODULE_ROWS, SHARED_USUAL, "act_rows"},
    {K_TAIL, MODULE_ROWS, SHARED_USUAL, "tail"},
    {K_EMBED, MODULE_ROWS, SHARED_USUAL, "embed"},
    {K_MAP, MODULE_ROWS, SHARED_USUAL, "map_rows"},
    {K_MIX, MODULE_ROWS, SHARED_USUAL, "mix_rows"},
    {K_FINISH, MODULE_ROWS, SHARED_USUAL, "finish_logits"},
    {K_QKV, MODULE_ROWS, SHARED_MORE, "qkv_finish"},
    {K_LATENT, MODULE_ROWS, SHARED_MORE, "latent_finish"},
    {K_ATTN_ANY, MODULE_ATTN, SHARED_USUAL, "attn_any"},
    {K_ATTN_COMBINE, MODULE_ATTN, SHARED_USUAL, "attn_combine"},
    {K_ATTN_DECODE + 0, MODULE_ATTN, SHARED_ALL, "attn_decode_64"},
    {K_ATTN_DECODE + 1, MODULE_ATTN, SHARED_ALL, "attn_decode_96"},
    {K_ATTN_DECODE + 2, MODULE_ATTN, SHARED_ALL, "attn_decode_128"},
    {K_ATTN_DECODE + 3, MODULE_ATTN, SHARED_ALL, "attn_decode_256"},
    {K_ATTN_FEW + 0, MODULE_ATTN, SHARED_MORE, "attn_few_64"},
    {K_ATTN_FEW + 1, MODULE_ATTN, SHARED_MORE, "attn_few_96"},
    {K_ATTN_FEW + 2, MODULE_ATTN, SHARED_MORE, "attn_few_128"},
    {K_ATTN_FEW + 3, MODULE_ATTN, SHARED_MORE, "attn_few_256"},
    {K_ATTN_FAR + 0, MODULE_ATTN, SHARED_ALL, "attn_far_64"},
    {K_ATTN_FAR + 1, MODULE_ATTN, SHARED_ALL, "attn_far_96"},
    {K_ATTN_FAR + 2, MODULE_ATTN, SHARED_ALL, "attn_far_128"},
    {K_ATTN_FAR + 3, MODULE_ATTN, SHARED_ALL, "attn_far_256"},
    {K_ATTN_ROW + 0, MODULE_ATTN, SHARED_MORE, "attn_row_64"},
    {K_ATTN_ROW + 1, MODULE_ATTN, SHARED_MORE, "attn_row_96"},
    {K_ATTN_ROW + 2, MODULE_ATTN, SHARED_MORE, "attn_row_128"},
    {K_ATTN_ROW + 3, MODULE_ATTN, SHARED_MORE, "attn_row_256"},
    {K_ATTN_PREFILL + 0, MODULE_ATTN_PREFILL, SHARED_MOST, "attn_prefill_64"},
    {K_ATTN_PREFILL + 1, MODULE_ATTN_PREFILL, SHARED_MOST, "attn_prefill_96"},
    {K_ATTN_PREFILL + 2, MODULE_ATTN_PREFILL, SHARED_MOST, "attn_prefill_128"},
    {K_ATTN_PREFILL + 3, MODULE_ATTN_PREFILL, SHARED_MOST, "attn_prefill_256"},
    {K_ATTN_WIDE + 0, MODULE_ATTN_WIDE, SHARED_MOST, "attn_wide_64"},
    {K_ATTN_WIDE + 1, MODULE_ATTN_WIDE, SHARED_MOST, "attn_wide_96"},
    {K_ATTN_WIDE + 2, MODULE_ATTN_WIDE, SHARED_MOST, "attn_wide_128"},
    {K_ATTN_JOIN, MODULE_ATTN_PREFILL, SHARED_USUAL, "attn_join"},
    {K_ROUTER + 0, MODULE_MOE, SHARED_USUAL, "moe_router_1"},
    {K_ROUTER + 1, MODULE_MOE, SHARED_USUAL, "moe_router_8"},
    {K_ROUTER + 2, MODULE_MOE, SHARED_USUAL, "moe_router_32"},
    {K_ROUTE, MODULE_MOE, SHARED_USUAL, "moe_route"},
    {K_GROUP, MODULE_MOE, SHARED_MORE, "moe_group"},
    {K_SORT + 0, MODULE_MOE, SHARED_USUAL, "moe_sort_4"},
    {K_SORT + 1, MODULE_MOE, SHARED_USUAL, "moe_sort_8"},
    {K_COMBINE, MODULE_MOE, SHARED_USUAL, "moe_combine"},
    {K_MOE_UP, MODULE_MOE_ROW, SHARED_MORE, "moe_row_up"},
    {K_MOE_UP_4, MODULE_MOE_ROW, SHARED_MORE, "moe_row_up_4"},
    {K_MOE_DOWN, MODULE_MOE_ROW, SHARED_MORE, "moe_row_down"},
    {K_CONV + 0, MODULE_STATE, SHARED_USUAL, "conv_4"},
    {K_CONV + 1, MODULE_STATE, SHARED_USUAL, "conv_8"},
    {K_CONV_STATE, MODULE_STATE, SHARED_USUAL, "conv_state"},
    {K_SCAN + 0, MODULE_STATE, SHARED_USUAL, "scan_1"},
    {K_SCAN + 1, MODULE_STATE, SHARED_USUAL, "scan_2"},
    {K_SCAN + 2, MODULE_STATE, SHARED_USUAL, "scan_4"},
    {K_SCAN + 3, MODULE_STATE, SHARED_USUAL, "scan_8"},
    {K_SCAN + 4, MODULE_STATE, SHARED_USUAL, "scan_16"},
    {K_SCAN + 5, MODULE_STATE, SHARED_USUAL, "scan_32"},
    {K_SCAN_EACH + 0, MODULE_STATE, SHARED_USUAL, "scan_each_1"},
    {K_SCAN_EACH + 1, MODULE_STATE, SHARED_USUAL, "scan_each_2"},
    {K_SCAN_EACH + 2, MODULE_STATE, SHARED_USUAL, "scan_each_4"},
    {K_SCAN_EACH + 3, MODULE_STATE, SHARED_USUAL, "scan_each_8"},
    {K_SCAN_EACH + 4, MODULE_STATE, SHARED_USUAL, "scan_each_16"},
    {K_SCAN_EACH + 5, MODULE_STATE, SHARED_USUAL, "scan_each_32"},
    {K_SCAN_CHANNELS + 0, MODULE_STATE, SHARED_USUAL, "scan_channels_1"},
    {K_SCAN_CHANNELS + 1, MODULE_STATE, SHARED_USUAL, "scan_channels_2"},
    {K_SCAN_CHANNELS + 2, MODULE_STATE, SHARED_USUAL, "scan_channels_4"},
    {K_SCAN_CHANNELS + 3, MODULE_STATE, SHARED_USUAL, "scan_channels_8"},
    {K_SCAN_CHANNELS + 4, MODULE_STATE, SHARED_USUAL, "scan_channels_16"},
    {K_SCAN_CHANNELS + 5, MODULE_STATE, SHARED_USUAL, "scan_channels_32"},
    {K_SCAN_ERASE + 0, MODULE_STATE, SHARED_USUAL, "scan_erase_1"},
    {K_SCAN_ERASE + 1, MODULE_STATE, SHARED_USUAL, "scan_erase_2"},
    {K_SCAN_ERASE + 2, MODULE_STATE, SHARED_USUAL, "scan_erase_4"},
    {K_SCAN_ERASE + 3, MODULE_STATE, SHARED_USUAL, "scan_erase_8"},
    {K_SCAN_ERASE + 4, MODULE_STATE, SHARED_USUAL, "scan_erase_16"},
    {K_SCAN_ERASE + 5, MODULE_STATE, SHARED_USUAL, "scan_erase_32"},
    {K_SCAN_READY + 0, MODULE_SCAN_CHUNK, SHARED_MOST, "scan_ready_64"},
    {K_SCAN_READY + 1, MODULE_SCAN_CHUNK, SHARED_MOST, "scan_ready_128"},
    {K_SCAN_READY + 2, MODULE_SCAN_CHUNK, SHARED_MOST, "delta_ready_64"},
    {K_SCAN_READY + 3, MODULE_SCAN_CHUNK, SHARED_MOST, "delta_ready_128"},
    {K_SCAN_FOLLOW + 0, MODULE_SCAN_CHUNK, SHARED_MOST, "scan_follow_64"},
    {K_SCAN_FOLLOW + 1, MODULE_SCAN_CHUNK, SHARED_MOST, "scan_follow_128"},
    {K_SCAN_FOLLOW + 2, MODULE_SCAN_CHUNK, SHARED_MOST, "delta_follow_64"},
    {K_SCAN_FOLLOW + 3, MODULE_SCAN_CHUNK, SHARED_MOST, "delta_follow_128"},
    {K_CELL + CELL_LRU, MODULE_STATE, SHARED_USUAL, "cell_lru"},
    {K_CELL + CELL_AVERAGE, MODULE_STATE, SHARED_USUAL, "cell_average"},
    {K_CELL + CELL_GATES, MODULE_STATE, SHARED_USUAL, "cell_gates"},
    {K_GATE, MODULE_STATE, SHARED_USUAL, "gate_rows"},
    {K_LORA_DOWN, MODULE_LORA, SHARED_USUAL, "lora_down"},
    {K_LORA_UP, MODULE_LORA, SHARED_USUAL, "lora_up"},
    {K_EACH, MODULE_SMALL, SHARED_USUAL, "rows_each"},
    {K_SOFTMAX, MODULE_SMALL, SHARED_USUAL, "rows_softmax"},
    {K_ROPE, MODULE_SMALL, SHARED_USUAL, "rows_rope"},
    {K_TOP, MODULE_SMALL, SHARED_USUAL, "sample_top"},
    {K_PICK, MODULE_SMALL, SHARED_USUAL, "sample_pick"},
    {K_PICK_ROWS, MODULE_SMALL, SHARED_USUAL, "pick_rows"},
};

/* Products: the form, its module, the stem of its four names. */
struct gemm_row {
    uint8_t fmt, module;
    const char *stem;
};

#define GEMM_ROW(form, type, module, stem, ...) {form, module, stem},
static const struct gemm_row gemms[] = {FORMATS_PLAIN(GEMM_ROW) FORMATS_TILE(GEMM_ROW)
                                            FORMATS_PLANES(GEMM_ROW) FORMATS_NATIVE(GEMM_ROW)};
#undef GEMM_ROW

int gpu_alive(const struct gpu *g, struct err *e)
{
    if (!g->lost)
        return 0;
    return err_set(
        e, ERR_DEVICE,
        "device lost: cuda:%d failed earlier (error %d) and cannot be used by this process any more", g->card,
        g->lost);
}

/* Sticky codes: every later call on the context returns the same code. */
static bool is_sticky(int r)
{
    return r == CU_ECC_UNCORRECTABLE || (r >= CU_ILLEGAL_ADDRESS && r <= CU_LAUNCH_FAILED) || r == 220 ||
           r == 721 || r == 999;
}

int gpu_check(struct gpu *g, int r, const char *doing, struct err *e)
{
    if (r == CU_OK)
        return 0;
    const char *name = NULL;
    g->cu->error_name(r, &name);
    if (is_sticky(r)) {
        g->lost = r;
        return err_set(e, ERR_DEVICE,
                       "device lost: cuda:%d failed while %s (%s, error %d); restart the program", g->card,
                       doing, name ? name : "unknown", r);
    }
    err_set(e, r == CU_OUT_OF_MEMORY ? ERR_RESOURCE : ERR_DEVICE, "cuda:%d failed while %s (%s, error %d)",
            g->card, doing, name ? name : "unknown", r);
    return err_crowded(e);
}

/* The context that this thread uses. */
static _Thread_local void *current;

int gpu_enter(struct gpu *g, struct err *e)
{
    if (gpu_alive(g, e))
        return -1;
    if (current != g->context && gpu_check(g, g->cu->context_set(g->context), "using the card's context", e))
        return -1;
    current = g->context;
    return 0;
}

int cuda_count(struct err *e)
{
    const struct driver *cu = driver_get(e);
    int n = 0;
    if (!cu || cu->device_count(&n) != CU_OK)
        return -1;
    return n;
}

uint64_t cuda_memory_total(int index)
{
    struct err none = {0};
    const struct driver *cu = driver_get(&none);
    int card = 0;
    size_t bytes = 0;
    bool found = cu && cu->device_get(&card, index) == CU_OK && cu->device_memory(&bytes, card) == CU_OK;
    return found ? bytes : 0;
}

static void read_profile(struct gpu *g)
{
    struct gpu_profile *p = &g->profile;
    const struct {
        int what, *to;
    } ask[] = {{CU_ATTR_MAJOR, &p->major},
               {CU_ATTR_MINOR, &p->minor},
               {CU_ATTR_SMS, &p->sms},
               {CU_ATTR_SHARED_BLOCK, &p->shared_block},
               {CU_ATTR_L2_BYTES, &p->l2_bytes},
               {CU_ATTR_CLOCK_KHZ, &p->clock_khz},
               {CU_ATTR_BUS_BITS, &p->bus_bits},
               {CU_ATTR_MEMORY_CLOCK_KHZ, &p->memory_khz},
               {CU_ATTR_ECC, &p->ecc}};
    for (size_t i = 0; i < sizeof ask / sizeof ask[0]; i++)
        if (g->cu->device_attribute(ask[i].to, ask[i].what, g->card) != CU_OK)
            *ask[i].to = 0;
    g->cu->device_name(p->name, sizeof p->name, g->card);
    g->cu->device_memory(&p->memory, g->card);
    p->driver = g->cu->version;
}

static int find_kernel(struct gpu *g, uint32_t kernel, int module, const char *name, enum shared_need shared,
                       struct err *e)
{
    if (gpu_check(g, g->cu->module_function(&g->kernel[kernel], g->module[module], name),
                  "looking up a kernel", e))
        return err_prefix(e, "%s", name);
    if (shared != SHARED_USUAL && gpu_check(g,
                                            g->cu->function_set(g->kernel[kernel], CU_FUNC_DYNAMIC_SHARED,
                                                                (int)gpu_shared_most(&g->profile)),
                                            "setting a kernel up", e))
        return err_prefix(e, "%s", name);
    if (shared != SHARED_ALL) /* a hint */
        g->cu->function_set(g->kernel[kernel], CU_FUNC_SHARED_PERCENT,
                            shared == SHARED_MOST ? 100 : SHARED_PERCENT);
    return 0;
}

/* Modules that are empty but in builds for sm_90a. */
static bool is_hopper(int module)
{
    return module == MODULE_GEMM_WIDE || module == MODULE_GEMM_MANY || module == MODULE_ATTN_WIDE ||
           module == MODULE_SCAN_CHUNK;
}

static int load_kernels(struct gpu *g, struct err *e)
{
    for (int m = 0; m < MODULE_COUNT; m++) {
        int r = g->cu->module_load(&g->module[m], gpu_blob(m));
        if (r == CU_NO_BINARY)
            return err_set(e, ERR_RESOURCE,
                           "this build has no kernels for %s (compute capability %d.%d): build with nvcc on "
                           "that machine, "
                           "or use a package build",
                           g->profile.name, g->profile.major, g->profile.minor);
        if (gpu_check(g, r, "loading kernels", e))
            return -1;
    }
    unsigned wide = 0; /* not by a lookup: one that fails is an error to a sanitizer */
    if (gpu_check(g, g->cu->module_count(&wide, g->module[MODULE_GEMM_WIDE]), "counting kernels", e))
        return -1;
    g->profile.wide = wide > 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if ((g->profile.wide || !is_hopper(rows[i].module)) &&
            find_kernel(g, rows[i].kernel, rows[i].module, rows[i].name, rows[i].shared, e))
            return -1;
    for (size_t i = 0; i < sizeof gemms / sizeof gemms[0]; i++)
        for (int s = 0; s < 4; s++) {
            char name[48];
            snprintf(name, sizeof name, "%s_%d", gemms[i].stem, 8 << s);
            if (find_kernel(g, K_GEMM + 4u * gemms[i].fmt + s, gemms[i].module, name, SHARED_USUAL, e))
                return -1;
        }
    return 0;
}

static uint64_t split_k_bytes(const struct gpu *g)
{
    return 4ull * GPU_COUNTERS +
           (g->profile.wide ? (uint64_t)g->profile.sms * MANY_ROWS * MANY_OUTPUTS * 4 : 0);
}

static int take_meeting(struct gpu *g, struct err *e)
{
    if (!(g->split_k = gpu_alloc(g, split_k_bytes(g), "scratch", e)))
        return -1;
    return gpu_check(g, g->cu->set8(g->split_k, 0, split_k_bytes(g), g->stream), "clearing scratch", e);
}

static int start(struct gpu *g, int index, struct err *e)
{
    int n = 0;
    if (!(g->cu = driver_get(e)))
        return -1;
    if (gpu_check(g, g->cu->device_count(&n), "counting cards", e))
        return -1;
    if (index < 0 || index >= n)
        return err_set(e, ERR_USAGE, "there is no cuda:%d: this machine has %d card%s (cuda:0 to cuda:%d)",
                       index, n, n == 1 ? "" : "s", n - 1);
    if (gpu_check(g, g->cu->device_get(&g->card, index), "opening the card", e))
        return -1;
    read_profile(g);
    if (g->profile.major < 8)
        return err_set(e, ERR_RESOURCE, "%s is too old: compute capability %d.%d, at least 8.0 is needed",
                       g->profile.name, g->profile.major, g->profile.minor);
    if (!gpu_blob(0))
        return err_set(e, ERR_RESOURCE, "this build has no CUDA kernels: it was built without nvcc");
    g->plain_launch = g->profile.major < 9;
    int reads = 0;
    g->fetches = g->cu->device_attribute(&reads, CU_ATTR_READS_PINNED, g->card) == CU_OK && reads;
    current = NULL; /* a context that comes back may have the address of one that has gone */
    /* The primary context: cuBLASLt works in that one. */
    if (gpu_check(g, g->cu->primary_retain(&g->context, g->card), "opening the card's context", e) ||
        gpu_enter(g, e) ||
        gpu_check(g, g->cu->stream_create(&g->stream, CU_STREAM_NON_BLOCKING), "making a stream", e))
        return -1;
    return load_kernels(g, e) || take_meeting(g, e) ? -1 : 0;
}

struct gpu *gpu_open(int index, uint64_t limit, struct err *e)
{
    struct gpu *g = mem_zalloc(1, sizeof *g);
    if (!g) {
        err_memory(e, "a GPU", sizeof *g);
        return NULL;
    }
    g->limit = limit;
    if (start(g, index, e)) {
        gpu_close(g);
        return NULL;
    }
    return g;
}

void gpu_close(struct gpu *g)
{
    struct err none = {0};
    if (!g)
        return;
    if (g->context) {
        gpu_enter(g, &none);
        timing_close(g);
        gpu_free(g, g->split_k, split_k_bytes(g));
        for (int m = 0; m < MODULE_COUNT; m++)
            if (g->module[m])
                g->cu->module_unload(g->module[m]);
        if (g->stream)
            g->cu->stream_destroy(g->stream);
        g->cu->primary_release(g->card);
    }
    mem_free(g);
}

/* ---- memory ---- */

static struct {
    pthread_mutex_t mutex;
    struct gpu_spare *first;
} spares = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void gpu_memory_lock(void)
{
    pthread_mutex_lock(&spares.mutex);
}

void gpu_memory_unlock(void)
{
    pthread_mutex_unlock(&spares.mutex);
}

void gpu_spare_add(struct gpu_spare *s)
{
    gpu_memory_lock();
    s->next = spares.first;
    spares.first = s;
    gpu_memory_unlock();
}

void gpu_spare_remove(struct gpu_spare *s)
{
    gpu_memory_lock();
    struct gpu_spare **at = &spares.first;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    gpu_memory_unlock();
}

uint64_t gpu_spare_bytes(int card)
{
    uint64_t bytes = 0;
    gpu_memory_lock();
    for (struct gpu_spare *s = spares.first; s; s = s->next)
        bytes += s->card == card ? atomic_load(&s->bytes) : 0;
    gpu_memory_unlock();
    return bytes;
}

int gpu_room(struct gpu *g, uint64_t *bytes, struct err *e)
{
    size_t available = 0, total = 0;
    if (gpu_alive(g, e) || gpu_check(g, g->cu->mem_info(&available, &total), "asking for free memory", e))
        return -1;
    const uint64_t room = available + gpu_spare_bytes(g->card);
    *bytes = g->limit && g->limit < g->taken + room ? (g->limit > g->taken ? g->limit - g->taken : 0) : room;
    return 0;
}

void gpu_make_room(struct gpu *g, uint64_t bytes)
{
    size_t available = 0, total = 0;
    const uint64_t own = g->spare ? atomic_load(&g->spare->bytes) : 0, all = g->taken + own + bytes;
    if (own && g->limit && all > g->limit)
        g->spare->give(g->spare, all - g->limit);
    for (struct gpu_spare *s = spares.first; s; s = s->next)
        if (s->card == g->card && atomic_load(&s->bytes) && g->cu->mem_info(&available, &total) == CU_OK &&
            available < bytes)
            s->give(s, bytes - available);
}

/* A limit of this handle's own is no matter of what others hold. */
int gpu_refuse(const struct gpu *g, uint64_t bytes, uint64_t room, const char *what, struct err *e)
{
    err_set(e, ERR_RESOURCE, "%s needs %.1f MB of GPU memory, %.1f MB are free%s", what, 1e-6 * (double)bytes,
            1e-6 * (double)room, g->limit ? " within the limit" : "");
    return g->limit && g->taken + bytes > g->limit ? -1 : err_crowded(e);
}

cu_ptr gpu_alloc(struct gpu *g, uint64_t bytes, const char *what, struct err *e)
{
    uint64_t may;
    cu_ptr p = 0;
    if (gpu_room(g, &may, e))
        return 0;
    bytes = bytes ? bytes : 16;
    if (bytes > may) {
        gpu_refuse(g, bytes, may, what, e);
        return 0;
    }
    gpu_memory_lock();
    gpu_make_room(g, bytes);
    const int r = g->cu->mem_alloc(&p, bytes);
    gpu_memory_unlock();
    if (gpu_check(g, r, "taking memory", e)) {
        err_prefix(e, "%s, %.1f MB of GPU memory", what, (double)bytes / 1e6);
        return 0;
    }
    g->taken += bytes;
    return p;
}

void gpu_free(struct gpu *g, cu_ptr p, uint64_t bytes)
{
    if (!p)
        return;
    g->cu->mem_free(p);
    g->taken -= bytes ? bytes : 16;
}

static struct cu_mem_location gpu_location(const struct gpu *g)
{
    return (struct cu_mem_location){.type = CU_LOCATION_DEVICE, .id = g->card};
}

bool gpu_can_map(struct gpu *g)
{
    const struct cu_mem_prop prop = {.type = CU_MEM_PINNED, .location = gpu_location(g)};
    size_t granule = 0;
    int can = 0;
    return g->cu->device_attribute(&can, CU_ATTR_VIRTUAL_MEMORY, g->card) == CU_OK && can &&
           g->cu->mem_granularity(&granule, &prop, 0) == CU_OK && granule && GPU_GRANULE % granule == 0;
}

int gpu_map(struct gpu *g, cu_ptr at, uint64_t bytes, const char *what, struct err *e)
{
    const struct cu_mem_prop prop = {.type = CU_MEM_PINNED, .location = gpu_location(g)};
    const struct cu_mem_access access = {.location = gpu_location(g), .flags = CU_ACCESS_READ_WRITE};
    uint64_t handle = 0;
    int r = g->cu->mem_create(&handle, bytes, &prop, 0);
    if (r == CU_OUT_OF_MEMORY) {
        err_set(e, ERR_RESOURCE, "%s needs %.1f MB of GPU memory, and none is free", what,
                1e-6 * (double)bytes);
        return err_crowded(e);
    }
    if (gpu_check(g, r, "taking memory", e))
        return -1;
    r = g->cu->mem_map(at, bytes, 0, handle, 0);
    g->cu->mem_release(handle); /* the mapping holds it */
    if (gpu_check(g, r, "mapping memory", e))
        return -1;
    if (gpu_check(g, g->cu->mem_access(at, bytes, &access, 1), "mapping memory", e)) {
        g->cu->mem_unmap(at, bytes);
        return -1;
    }
    return 0;
}

void *gpu_pinned(struct gpu *g, uint64_t bytes, struct err *e)
{
    void *p = NULL;
    if (gpu_check(g, g->cu->host_alloc(&p, bytes ? bytes : 16, 0), "taking pinned memory", e))
        return NULL;
    return p;
}

void gpu_pinned_free(struct gpu *g, void *p)
{
    if (p)
        g->cu->host_free(p);
}

int gpu_launch(struct gpu *g, uint32_t kernel, struct gpu_grid grid, const void *args, struct err *e)
{
    if (gpu_alive(g, e))
        return -1;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return 0;
    const bool early = !g->plain_launch && !g->whole_next,
               percent = !g->plain_launch && g->shared_percent && g->profile.driver >= CU_DRIVER_PERCENT;
    struct cu_launch_attribute how[2] = {
        {.id = CU_LAUNCH_PROGRAMMATIC, .value = {.flag = 1}},
        {.id = CU_LAUNCH_SHARED_PERCENT, .value = {.flag = g->shared_percent}}};
    struct cu_launch c = {.grid = {grid.x, grid.y, grid.z},
                          .block = {grid.threads, 1, 1},
                          .shared = grid.shared,
                          .stream = g->stream,
                          .attributes = early ? how : how + 1,
                          .attribute_count = early + percent};
    void *params[1];
    memcpy(params, &args, sizeof args);
    g->whole_next = false;
    if (g->timing)
        timing_before(g, kernel);
    int r = g->cu->launch(&c, g->kernel[kernel], params, NULL);
    if (g->timing)
        timing_after(g);
    if (r == CU_OK)
        return 0;
    gpu_check(g, r, "launching a kernel", e);
    return err_prefix(e, "%s (%u, %u, %u) x %u, %u bytes shared", gpu_kernel_name(kernel), grid.x, grid.y,
                      grid.z, grid.threads, grid.shared);
}

/* The next kernel may read these bytes before its own wait, so it is launched without programmatic dependent launch. */
int gpu_copy(struct gpu *g, cu_ptr to, const void *from, uint64_t bytes, const char *doing, struct err *e)
{
    const struct fetch_args a = {.from = from, .to = (uint32_t *)to, .words = bytes / 4};
    g->whole_next = true;
    if (gpu_launch(g, K_FETCH, gpu_grid(gpu_blocks(bytes, 16 * 256), 1, 1, 256, 0), &a, e))
        return err_prefix(e, "%s", doing);
    g->whole_next = true;
    return 0;
}

int gpu_fetch(struct gpu *g, cu_ptr to, const void *from, uint64_t bytes, const char *doing, struct err *e)
{
    return g->fetches ? gpu_copy(g, to, from, bytes, doing, e)
                      : gpu_check(g, g->cu->to_device(to, from, bytes, g->stream), doing, e);
}

int gpu_sync(struct gpu *g, struct err *e)
{
    if (gpu_alive(g, e))
        return -1;
    return gpu_check(g, g->cu->stream_sync(g->stream), "running kernels", e);
}

const char *gpu_kernel_name(uint32_t kernel)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].kernel == kernel)
            return rows[i].name;
    for (size_t i = 0; i < sizeof gemms / sizeof gemms[0]; i++)
        if (kernel / 4 == gemms[i].fmt)
            return gemms[i].stem;
    return "?";
}

int gpu_measure(struct gpu *g, struct err *e)
{
    const struct driver *cu = g->cu;
    size_t available = 0, total = 0;
    if (gpu_check(g, cu->mem_info(&available, &total), "asking for free memory", e))
        return -1;
    uint64_t bytes = available / 2 < 2ull << 30 ? available / 2 / 4096 * 4096 : 2ull << 30;
    float best = 0;
    void *from = NULL, *to = NULL;
    cu_ptr room = gpu_alloc(g, bytes, "the bandwidth probe", e);
    if (!room)
        return -1;
    cu->event_create(&from, 0);
    cu->event_create(&to, 0);
    int bad = gpu_check(g, cu->set8(room, 1, bytes, g->stream), "clearing memory", e);
    struct probe_args p = {(const uint8_t *)room, bytes, (uint32_t *)room};
    for (int i = 0; i < 6 && !bad; i++) {
        float ms = 0;
        cu->event_record(from, g->stream);
        bad = gpu_launch(g, K_PROBE, gpu_grid((unsigned)g->profile.sms * 4, 1, 1, 512, 0), &p, e);
        cu->event_record(to, g->stream);
        bad = bad || gpu_sync(g, e) || gpu_check(g, cu->event_ms(&ms, from, to), "timing", e);
        if (!bad && (best == 0 || ms < best))
            best = ms;
    }
    if (!bad)
        g->profile.read_gbs = (double)bytes / 1e6 / best;
    cu->event_destroy(from);
    cu->event_destroy(to);
    gpu_free(g, room, bytes);
    return bad ? -1 : 0;
}

int gpu_measure_link(struct gpu *g, double *bytes_s, struct err *e)
{
    enum { BYTES = 64 << 20 };
    const struct driver *cu = g->cu;
    float best = 0;
    void *from = NULL, *to = NULL, *host = gpu_pinned(g, BYTES, e);
    cu_ptr room = host ? gpu_alloc(g, BYTES, "the link probe", e) : 0;
    cu->event_create(&from, 0);
    cu->event_create(&to, 0);
    int bad = !room;
    for (int i = 0; i < 6 && !bad; i++) {
        float ms = 0;
        cu->event_record(from, g->stream);
        bad = gpu_check(g, cu->to_device(room, host, BYTES, g->stream), "copying", e);
        cu->event_record(to, g->stream);
        bad = bad || gpu_sync(g, e) || gpu_check(g, cu->event_ms(&ms, from, to), "timing", e);
        if (!bad && (best == 0 || ms < best))
            best = ms;
    }
    *bytes_s = best > 0 ? 1e3 * BYTES / best : 0;
    cu->event_destroy(from);
    cu->event_destroy(to);
    gpu_free(g, room, BYTES);
    gpu_pinned_free(g, host);
    return bad ? -1 : 0;
}

double gpu_tensor_ops(int major, int minor)
{
    return major >= 10 ? 8192 : major == 9 ? 4096 : major == 8 && minor == 0 ? 2048 : 1024;
}
