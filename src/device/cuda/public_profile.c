/* quern_gpu.h: graphs and the profile. */
#include "device/cuda/public.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"

#include <string.h>
#include <time.h>

struct quern_gpu_graph {
    void *exec;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void public_begin(struct quern_gpu *g)
{
    if (g->profiling && !g->recording)
        g->g->cu->event_record(g->event[0], g->g->stream);
}

static struct public_row *row_of(struct quern_gpu *g, struct public_cost op)
{
    for (uint32_t i = 0; i < g->rows; i++)
        if (!strcmp(g->row[i].name, op.name))
            return &g->row[i];
    if (g->rows == PUBLIC_PROFILE)
        return NULL;
    g->row[g->rows] = (struct public_row){.name = op.name, .level = op.level};
    return &g->row[g->rows++];
}

int public_end(struct quern_gpu *g, struct public_cost op, int result)
{
    float ms = 0;
    struct public_row *r;
    if (result || !g->profiling || g->recording || !(r = row_of(g, op)))
        return result ? -1 : 0;
    g->g->cu->event_record(g->event[1], g->g->stream);
    if (gpu_sync(g->g, &g->error))
        return -1;
    g->g->cu->event_ms(&ms, g->event[0], g->event[1]);
    r->calls++;
    r->seconds += 1e-3 * ms;
    r->flops += op.flops;
    r->bytes += op.bytes;
    return 0;
}

int quern_gpu_profile(struct quern_gpu *g, enum quern_gpu_profile on)
{
    if (public_start(g))
        return -1;
    g->profiling = on == QUERN_GPU_PROFILE_ON;
    if (g->profiling) {
        g->rows = 0;
        g->wall_from = now();
    }
    return 0;
}

static const char *const level_name[] = {"macro", "midi", "micro"};

static double kernel_seconds(const struct quern_gpu *g)
{
    double s = 0;
    for (uint32_t i = 0; i < g->rows; i++)
        s += g->row[i].seconds;
    return s;
}

static size_t hand_over(struct buf *b, char *to, size_t bytes)
{
    size_t n = b->failed ? 0 : b->len;
    if (bytes) {
        size_t fit = n < bytes - 1 ? n : bytes - 1;
        if (fit)
            memcpy(to, b->data, fit);
        to[fit] = 0;
    }
    buf_free(b);
    return n;
}

size_t quern_gpu_profile_table(struct quern_gpu *g, char *to, size_t bytes)
{
    struct buf b = {0};
    double sum = kernel_seconds(g), wall = now() - g->wall_from;
    buf_printf(&b, "%-6s %-12s %8s %10s %10s %10s %7s\n", "level", "operation", "calls", "ms", "GFLOP/s",
               "GB/s", "share");
    for (int level = 0; level < 3; level++)
        for (uint32_t i = 0; i < g->rows; i++) {
            const struct public_row *r = &g->row[i];
            if (r->level == level && r->seconds > 0)
                buf_printf(&b, "%-6s %-12s %8llu %10.3f %10.1f %10.1f %6.1f%%\n", level_name[level], r->name,
                           (unsigned long long)r->calls, 1e3 * r->seconds, r->flops / r->seconds / 1e9,
                           r->bytes / r->seconds / 1e9, 100 * r->seconds / (sum > 0 ? sum : 1));
        }
    buf_printf(&b, "kernels %.3f ms of %.3f ms: %.3f ms are launch overhead\n", 1e3 * sum, 1e3 * wall,
               1e3 * (wall - sum));
    return hand_over(&b, to, bytes);
}

size_t quern_gpu_profile_json(struct quern_gpu *g, char *to, size_t bytes)
{
    struct buf b = {0};
    struct json j = {.out = &b};
    double sum = kernel_seconds(g), wall = now() - g->wall_from;
    json_begin(&j, '{');
    json_key(&j, "wall_seconds");
    json_num(&j, wall);
    json_key(&j, "kernel_seconds");
    json_num(&j, sum);
    json_key(&j, "overhead_seconds");
    json_num(&j, wall - sum);
    json_key(&j, "operations");
    json_begin(&j, '[');
    for (uint32_t i = 0; i < g->rows; i++) {
        const struct public_row *r = &g->row[i];
        json_begin(&j, '{');
        json_key(&j, "name");
        json_str(&j, r->name);
        json_key(&j, "level");
        json_str(&j, level_name[r->level]);
        json_key(&j, "calls");
        json_uint(&j, r->calls);
        json_key(&j, "seconds");
        json_num(&j, r->seconds);
        json_key(&j, "flops");
        json_num(&j, r->flops);
        json_key(&j, "bytes");
        json_num(&j, r->bytes);
        json_end(&j, '}');
    }
    json_end(&j, ']');
    json_end(&j, '}');
    return hand_over(&b, to, bytes);
}

int quern_gpu_record(struct quern_gpu *g)
{
    if (public_start(g))
        return -1;
    if (g->recording)
        return public_fail(g, "a recording is under way already");
    if (gpu_check(g->g, g->g->cu->capture_begin(g->g->stream, CU_CAPTURE_THREAD), "recording a graph",
                  &g->error))
        return -1;
    g->recording = true;
    return 0;
}

int quern_gpu_record_end(struct quern_gpu *g, struct quern_gpu_graph **out)
{
    void *graph = NULL;
    *out = NULL;
    if (!g->recording)
        return public_fail(g, "nothing is being recorded");
    g->recording = false;
    if (public_start(g) ||
        gpu_check(g->g, g->g->cu->capture_end(g->g->stream, &graph), "recording a graph", &g->error))
        return -1;
    struct quern_gpu_graph *made = mem_zalloc(1, sizeof *made);
    if (!made ||
        gpu_check(g->g, g->g->cu->graph_instantiate(&made->exec, graph, 0), "building a graph", &g->error)) {
        mem_free(made);
        made = NULL;
    }
    g->g->cu->graph_destroy(graph);
    *out = made;
    return made ? 0 : -1;
}

int quern_gpu_replay(struct quern_gpu *g, struct quern_gpu_graph *graph)
{
    if (public_start(g))
        return -1;
    if (!graph)
        return public_fail(g, "the graph is a null pointer");
    return gpu_check(g->g, g->g->cu->graph_launch(graph->exec, g->g->stream), "replaying a graph", &g->error);
}

void quern_gpu_graph_delete(struct quern_gpu *g, struct quern_gpu_graph *graph)
{
    struct err none = {0};
    gpu_enter(g->g, &none);
    if (graph)
        g->g->cu->graph_exec_destroy(graph->exec);
    mem_free(graph);
}
