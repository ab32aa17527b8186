/* One product of a panel or more, for bench/instructions, which counts what it executes:
 *   product TYPE TIER ROWS PANELS TIMES repacked|file */
#include "base/mem.h"
#include "device/cpu/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { K = 1024, M_MOST = 16, N_MOST = 2 * KERNEL_PANEL };

static uint32_t number(const char *text)
{
    return (uint32_t)strtoul(text, NULL, 10);
}

static void multiply(const struct kernels *k, struct matmul *job, unsigned times)
{
    static float x[M_MOST * K], y[M_MOST * N_MOST], d[M_MOST * K / 32];
    static int32_t s[M_MOST * K / 32];
    static int8_t q[M_MOST * K];
    for (size_t i = 0; i < (size_t)job->m * K; i++)
        x[i] = (float)i;
    k->quantise(x, job->m * K, q, d, s);
    job->q8 = (struct q8_rows){q, d, s, K, K / 32};
    job->y = y;
    job->y_stride = N_MOST;
    for (unsigned i = 0; i < times; i++)
        k->matmul_q8[job->type](job);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    const struct kernels *k = argc == 7 ? kernels_get(argv[2], &e) : NULL;
    const int type = argc == 7 ? dtype_find(argv[1]) : -1;
    if (!k || type < 0 || !k->matmul_q8[type]) {
        fprintf(stderr, "product TYPE TIER ROWS PANELS TIMES repacked|file %s\n", e.text);
        return 64;
    }
    const struct dtype_info *t = dtype_get((uint32_t)type);
    struct matmul job = {.type = (uint32_t)type, .k = K, .m = number(argv[3]), .repack = true};
    job.n1 = KERNEL_PANEL * number(argv[4]);
    job.row_bytes = (size_t)(K / t->block_values) * t->block_bytes;
    if (job.m < 1 || job.m > M_MOST || job.n1 < 1 || job.n1 > N_MOST)
        return 64;
    uint8_t *w = mem_aligned(64, N_MOST * job.row_bytes);
    struct packed packed = {.panel_bytes = k->packed_bytes(job.type, K), .slabs = K / KERNEL_SLAB};
    packed.data = mem_aligned(64, N_MOST / KERNEL_PANEL * (packed.panel_bytes + 1));
    packed.done = mem_zalloc(N_MOST / KERNEL_PANEL, packed.slabs);
    job.scratch = mem_aligned(64, k->scratch_bytes);
    memset(w, 0x35, N_MOST * job.row_bytes); /* no kernel branches by values */
    job.w = w;
    job.packed = !strcmp(argv[6], "repacked") && packed.panel_bytes ? &packed : NULL;
    multiply(k, &job, number(argv[5]));
    void *all[] = {w, packed.data, packed.done, job.scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
    return 0;
}
