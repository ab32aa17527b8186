/* Measures the machine's limits: every worker runs the same short loop at once; the best of a few rounds
 * counts, as other work on the machine can only slow a round down. */
#include "device/cpu/probe.h"
#include "device/cpu/tiers.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"

#include <string.h>
#include <sys/mman.h>

enum { PROBE_BYTES = 256 << 20, PROBE_ALIGN = 2 << 20, PROBE_ROUNDS = 5, PROBE_WORKERS = 256 };

/* Plain C, for a machine without vectors: what the scalar tier is measured by. */
static uint64_t read_plain(const void *p, size_t bytes)
{
    const uint64_t *v = p;
    uint64_t sum[4] = {0};
    for (size_t i = 0; i < bytes / 8; i += 4)
        for (int j = 0; j < 4; j++)
            sum[j] ^= v[i + j];
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

static float float32_plain(long steps)
{
    volatile float seed = 0.999f;
    float a = seed, sum[8] = {0};
    for (long s = 0; s < steps; s++)
        for (int i = 0; i < 8; i++)
            sum[i] = sum[i] * a + a;
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

struct probe_job {
    struct probe_kernels k;
    const uint8_t *memory;
    float (*loop)(long steps); /* NULL: read */
    long steps;
    volatile uint64_t sink[PROBE_WORKERS];
};

static void probe_work(void *arg, int worker, int workers)
{
    struct probe_job *job = arg;
    long from, to;
    if (job->loop) {
        job->sink[worker % PROBE_WORKERS] = (uint64_t)job->loop(job->steps);
        return;
    }
    pool_slice(PROBE_BYTES, 4096, worker, workers, &from, &to);
    job->sink[worker % PROBE_WORKERS] = job->k.read(job->memory + from, (size_t)(to - from));
}

/* Units of work a second, when all workers together do `work` a round. */
static double probe_rate(struct pool *p, struct probe_job *job, float (*loop)(long), double work)
{
    double best = 0;
    job->loop = loop;
    for (int i = 0; i < PROBE_ROUNDS; i++) {
        double start = clock_now();
        pool_run(p, probe_work, job);
        double rate = work / (clock_now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

static void probe_choose(struct probe_kernels *k)
{
    struct err e = {0};
    const char *tier = kernels_get(NULL, &e)->tier;
    *k = (struct probe_kernels){.read = read_plain, .float32 = float32_plain, .float32_round = 16};
    for (const struct tier *t = kernel_tiers; t->name; t++)
        if (!strcmp(tier, t->name))
            t->probe(k);
}

int probe_run(struct pool *p, struct probe *out, struct err *e)
{
    static const long steps = 400000;
    struct probe_job job = {.steps = steps};
    double times = (double)steps * pool_size(p);
    uint8_t *memory = mem_aligned(PROBE_ALIGN, PROBE_BYTES);
    if (!memory)
        return err_memory(e, "the probe of the machine", PROBE_BYTES);
    madvise(memory, PROBE_BYTES, MADV_HUGEPAGE); /* as repacked weights have it */
    memset(memory, 1, PROBE_BYTES);
    job.memory = memory;
    probe_choose(&job.k);
    *out = (struct probe){0};
    out->read = probe_rate(p, &job, NULL, PROBE_BYTES);
    out->float32 = probe_rate(p, &job, job.k.float32, times * job.k.float32_round);
    out->int8 = job.k.int8 ? probe_rate(p, &job, job.k.int8, times * job.k.int8_round) : out->float32;
    out->bf16 = job.k.bf16 ? probe_rate(p, &job, job.k.bf16, times * job.k.bf16_round) : 0;
    mem_free(memory);
    return 0;
}
