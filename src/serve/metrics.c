#include "serve/metrics.h"
#include "base/buf.h"
#include "serve/models.h"
#include "serve/route.h"
#include "serve/server_internal.h"
#include "serve/usage.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

static const int metrics_codes[METRICS_CODES - 1] = {200, 204, 304, 400, 401, 403, 404, 405, 408, 409, 411,
                                                     413, 414, 415, 417, 429, 431, 500, 501, 503, 505, 507};
static const double metrics_bounds[METRICS_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
                                                       0.1,   0.25,   0.5,   0.75, 1,     2.5,  5,
                                                       10,    20,     30,    60,   120,   300,  600};

void metrics_request(struct metrics *m, uint32_t route, int code)
{
    uint32_t i = 0;
    while (i < METRICS_CODES - 1 && metrics_codes[i] != code)
        i++;
    m->requests[route < METRICS_ROUTES ? route : METRICS_ROUTES - 1][i]++;
}

void metrics_seconds(struct histogram *h, double seconds)
{
    uint32_t i = 0;
    while (i < METRICS_BUCKETS && seconds > metrics_bounds[i])
        i++;
    h->counts[i]++;
    h->count++;
    h->sum += seconds;
}

/* labels: "a=\"b\",", or "" */
static void metrics_bucket(struct buf *out, const char *name, const char *labels, double bound,
                           uint64_t count)
{
    buf_printf(out, "%s_bucket{%sle=\"%g\"} %llu\n", name, labels, bound, (unsigned long long)count);
}

static void metrics_total(struct buf *out, const char *name, const char *labels, double sum, uint64_t count)
{
    int n = (int)strlen(labels) - (*labels != 0); /* without the comma */
    const char *open = *labels ? "{" : "", *close = *labels ? "}" : "";
    buf_printf(out, "%s_bucket{%sle=\"+Inf\"} %llu\n", name, labels, (unsigned long long)count);
    buf_printf(out, "%s_sum%s%.*s%s %.6f\n", name, open, n, labels, close, sum);
    buf_printf(out, "%s_count%s%.*s%s %llu\n", name, open, n, labels, close, (unsigned long long)count);
}

static void metrics_histogram(struct buf *out, const char *name, const char *labels, const char *help,
                              const struct histogram *h)
{
    uint64_t below = 0;
    buf_printf(out, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name);
    for (uint32_t i = 0; i < METRICS_BUCKETS; i++)
        metrics_bucket(out, name, labels, metrics_bounds[i], below += h->counts[i]);
    metrics_total(out, name, labels, h->sum, h->count);
}

static void metrics_requests(struct buf *out, const struct metrics *m)
{
    buf_str(out, "# HELP quern_requests_total Requests by route and status.\n"
                 "# TYPE quern_requests_total counter\n");
    for (uint32_t r = 0; r <= route_count && r < METRICS_ROUTES; r++)
        for (uint32_t i = 0; i < METRICS_CODES; i++)
            if (m->requests[r][i])
                buf_printf(out, "quern_requests_total{route=\"%s\",code=\"%d\"} %llu\n",
                           r < route_count ? route_table[r].path : "other",
                           i < METRICS_CODES - 1 ? metrics_codes[i] : 0,
                           (unsigned long long)m->requests[r][i]);
}

/* Memory of the models on each device, as of their load. */
static void metrics_devices(struct buf *out, const struct models_stats *m)
{
    static const struct {
        const char *name, *help;
        size_t at;
    } rows[] = {
        {"weights", "Bytes of weights on a device.", offsetof(struct device_memory, weights)},
        {"kv", "Bytes for keys and values on a device.", offsetof(struct device_memory, kv)},
        {"scratch", "Bytes for the steps on a device.", offsetof(struct device_memory, scratch)},
        {"memory", "Bytes that a device has.", offsetof(struct device_memory, total)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        buf_printf(out, "# HELP quern_device_%s_bytes %s\n# TYPE quern_device_%s_bytes gauge\n", rows[i].name,
                   rows[i].help, rows[i].name);
        for (uint32_t d = 0; d < m->device_count; d++)
            buf_printf(
                out, "quern_device_%s_bytes{device=\"%s\"} %llu\n", rows[i].name, m->devices[d].name,
                (unsigned long long)*(const uint64_t *)((const char *)&m->devices[d].memory + rows[i].at));
    }
}

/* What is one number each. */
static void metrics_numbers(const struct server *s, const struct models_stats *stats, struct buf *out)
{
    const struct models_stats m = *stats;
    const struct engine_stats e = m.engine;
    const struct {
        const char *name, *kind, *help;
        uint64_t value;
    } rows[] = {
        {"quern_running", "gauge", "Requests being generated.", e.running},
        {"quern_waiting", "gauge", "Requests in the queue.", e.waiting},
        {"quern_batch_running", "gauge", "Of these, requests of batches being generated.", e.batch_running},
        {"quern_batch_waiting", "gauge", "Of these, requests of batches in the queue.", e.batch_waiting},
        {"quern_connections", "gauge", "Open connections.", s->conn_count},
        {"quern_answers", "gauge", "Requests in progress.", s->request_count},
        {"quern_request_bytes", "gauge", "Bytes of bodies and of their parsed JSON.", s->request_bytes},
        {"quern_submitted_total", "counter", "Generations submitted.", e.submitted},
        {"quern_finished_total", "counter", "Generations finished.", e.finished},
        {"quern_cancelled_total", "counter", "Generations cancelled.", e.cancelled},
        {"quern_failed_total", "counter", "Generations that failed.", e.failed},
        {"quern_refused_total", "counter", "Generations refused because the queue was full.", e.refused},
        {"quern_prompt_tokens_total", "counter", "Tokens of prompts computed.", e.prompt_tokens},
        {"quern_cached_tokens_total", "counter", "Tokens of prompts found in the cache.", e.cached_tokens},
        {"quern_generated_tokens_total", "counter", "Tokens generated.", e.made_tokens},
        {"quern_drafted_tokens_total", "counter", "Draft tokens verified.", e.drafted},
        {"quern_accepted_tokens_total", "counter", "Draft tokens accepted.", e.accepted},
        {"quern_forced_tokens_total", "counter", "Accepted draft tokens that a constraint forced.", e.forced},
        {"quern_steps_total", "counter", "Steps of the engine.", e.steps},
        {"quern_step_microseconds_total", "counter", "Time in steps.", e.step_us},
        {"quern_host_microseconds_total", "counter", "Time between steps while there was work.", e.host_us},
        {"quern_preempted_total", "counter", "Requests preempted because memory was short.", e.preempted},
        {"quern_images_encoded_total", "counter",
         "Images encoded by towers; an image that is cached is not encoded again.", e.images},
        {"quern_kv_pages", "gauge", "Pages for keys and values.", e.pages},
        {"quern_kv_pages_free", "gauge", "Free pages.", e.pages_free},
        {"quern_kv_window_pages", "gauge", "Pages of layers with a sliding window.", e.window_pages},
        {"quern_kv_window_pages_free", "gauge", "Free pages of layers with a sliding window.",
         e.window_pages_free},
        {"quern_state_slots", "gauge", "Slots of recurrent state.", e.states},
        {"quern_state_slots_free", "gauge", "Free slots of recurrent state.", e.states_free},
        {"quern_state_snapshots", "gauge", "Snapshots of recurrent state.", e.prefix.snapshots},
        {"quern_state_snapshots_evicted_total", "counter", "Snapshots of recurrent state evicted.",
         e.prefix.evicted_snapshots},
        {"quern_prefix_pages", "gauge", "Whole pages of text in the prefix trees.", e.prefix.pages},
        {"quern_prefix_hits_total", "counter", "Prompts with a cached prefix.", e.prefix.hits},
        {"quern_prefix_misses_total", "counter", "Prompts without a cached prefix.", e.prefix.misses},
        {"quern_constraint_hits_total", "counter", "Constraints found in the cache.", e.constraints.hits},
        {"quern_constraint_misses_total", "counter", "Constraints compiled.", e.constraints.misses},
        {"quern_constraint_bytes", "gauge", "Bytes of cached constraints.", e.constraints.bytes},
        {"quern_models_loaded", "gauge", "Models in memory.", m.loaded},
        {"quern_models_bytes", "gauge", "Bytes of models in memory.", m.bytes},
        {"quern_model_loads_total", "counter", "Loads of models.", m.loads},
        {"quern_model_unloads_total", "counter", "Unloads of models.", m.unloads},
        {"quern_model_failures_total", "counter", "Failed loads of models.", m.failures},
        {"quern_embedded_texts_total", "counter", "Texts made into vectors.", m.embedder.texts},
        {"quern_embedded_tokens_total", "counter", "Tokens of texts made into vectors.", m.embedder.tokens},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %llu\n", rows[i].name, rows[i].help, rows[i].name,
                   rows[i].kind, rows[i].name, (unsigned long long)rows[i].value);
}

static void metrics_write_quern(const struct server *s, const struct models_stats *m, struct buf *out)
{
    buf_printf(out,
               "# HELP quern_build_info The program.\n# TYPE quern_build_info gauge\n"
               "quern_build_info{version=\"%s\"} 1\n",
               QUERN_VERSION);
    buf_printf(out,
               "# HELP process_start_time_seconds When the server started.\n"
               "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %lld\n",
               (long long)s->started);
    metrics_numbers(s, m, out);
    metrics_devices(out, m);
    metrics_requests(out, &s->metrics);
    metrics_histogram(out, "quern_first_token_seconds", "", "Seconds until the first token.",
                      &s->metrics.first);
    metrics_histogram(out, "quern_token_seconds", "", "Seconds between tokens.", &s->metrics.between);
    metrics_histogram(out, "quern_answer_seconds", "", "Seconds until the end of a generation.",
                      &s->metrics.whole);
}

/* ---- the names of vLLM, which routers and dashboards of fleets read ---- */

/* A text as the value of a label. */
static void metrics_value(struct buf *out, const char *text)
{
    for (; *text; text++)
        if (*text == '\n')
            buf_str(out, "\\n");
        else {
            if (*text == '"' || *text == '\\')
                buf_str(out, "\\");
            buf_add(out, text, 1);
        }
}

struct metrics_count {
    const struct server *of;
    size_t count;
};

struct metrics_names {
    struct buf *out;
    bool any;
};

static void metrics_adapter(void *arg, const char *name)
{
    struct metrics_names *n = arg;
    buf_str(n->out, n->any ? "," : "");
    metrics_value(n->out, name);
    n->any = true;
}

static void metrics_count_adapter(void *arg, const struct served *s, const char *name)
{
    const struct server *of = ((struct metrics_count *)arg)->of;
    (void)s;
    ((struct metrics_count *)arg)->count += models_adapter(of->models, name) != NULL;
}

static void metrics_info(struct buf *out, const struct server *s, const struct engine_stats *e,
                         const char *labels)
{
    struct timespec now;
    struct metrics_count n = {.of = s};
    clock_gettime(CLOCK_REALTIME, &now);
    models_lock(s->models);
    models_each(s->models, metrics_count_adapter, &n);
    models_unlock(s->models);
    buf_printf(out,
               "# HELP vllm:cache_config_info Pages for keys and values.\n"
               "# TYPE vllm:cache_config_info gauge\n"
               "vllm:cache_config_info{%sblock_size=\"%d\",num_gpu_blocks=\"%u\"} 1\n"
               "# HELP vllm:lora_requests_info Adapters of requests; the value is the time.\n"
               "# TYPE vllm:lora_requests_info gauge\n"
               "vllm:lora_requests_info{%smax_lora=\"%zu\",running_lora_adapters=\"",
               labels, RUNNER_PAGE, e->blocks, labels, n.count);
    models_busy_adapters(s->models, false, metrics_adapter, &(struct metrics_names){.out = out});
    buf_str(out, "\",waiting_lora_adapters=\"");
    models_busy_adapters(s->models, true, metrics_adapter, &(struct metrics_names){.out = out});
    buf_printf(out, "\"} %lld.%06ld\n", (long long)now.tv_sec, now.tv_nsec / 1000);
}

static void metrics_ends(struct buf *out, const struct engine_stats *e, const char *labels)
{
    const struct {
        const char *reason;
        uint64_t count;
    } rows[] = {{"stop", e->finished - e->full_length}, {"length", e->full_length}, {"abort", e->cancelled}};
    buf_str(out, "# HELP vllm:request_success_total Generations ended, by reason.\n"
                 "# TYPE vllm:request_success_total counter\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        buf_printf(out, "vllm:request_success_total{%sfinished_reason=\"%s\"} %llu\n", labels, rows[i].reason,
                   (unsigned long long)rows[i].count);
}

static void metrics_sizes(struct buf *out, const struct step_rows *z, const char *labels)
{
    static const char name[] = "vllm:iteration_tokens_total";
    uint64_t below = 0;
    buf_printf(out, "# HELP %s Tokens of a step.\n# TYPE %s histogram\n", name, name);
    for (uint32_t i = 0; i < STEP_SIZES; i++)
        metrics_bucket(out, name, labels, step_rows_bound(i), below += z->steps[i]);
    metrics_total(out, name, labels, (double)z->rows, below + z->steps[STEP_SIZES]);
}

static void metrics_vllm_numbers(struct buf *out, const struct engine_stats *e, const char *labels)
{
    double used = e->pages - e->pages_free - e->pages_idle;
    const struct {
        const char *name, *kind, *help;
        double value;
    } rows[] = {
        {"num_requests_running", "gauge", "Requests being generated.", e->running},
        {"num_requests_waiting", "gauge", "Requests in the queue.", e->waiting},
        {"kv_cache_usage_perc", "gauge", "Share of the pages for keys and values that requests use.",
         e->pages ? used / e->pages : 0},
        {"prefix_cache_queries_total", "counter", "Tokens of prompts.", (double)e->prefix.prompt_tokens},
        {"prefix_cache_hits_total", "counter", "Tokens of prompts found in the cache.",
         (double)e->prefix.hit_tokens},
        {"prompt_tokens_total", "counter", "Tokens of prompts.", (double)e->prefix.prompt_tokens},
        {"generation_tokens_total", "counter", "Tokens generated.", (double)e->made_tokens},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        buf_printf(out, "# HELP vllm:%s %s\n# TYPE vllm:%s %s\nvllm:%s{%.*s} %.17g\n", rows[i].name,
                   rows[i].help, rows[i].name, rows[i].kind, rows[i].name, (int)strlen(labels) - 1, labels,
                   rows[i].value);
}

/* All models together, under the name of the first. */
static void metrics_write_vllm(const struct server *s, const struct models_stats *m, struct buf *out)
{
    struct buf labels = {0};
    const struct engine_stats *e = &m->engine;
    models_lock(s->models);
    const struct served *first = models_first(s->models);
    buf_str(&labels, "model_name=\"");
    metrics_value(&labels, first ? first->name : "");
    models_unlock(s->models);
    buf_add(&labels, "\",", 3); /* with its end */
    out->failed |= labels.failed;
    if (!labels.failed) {
        metrics_vllm_numbers(out, e, labels.data);
        metrics_info(out, s, e, labels.data);
        metrics_ends(out, e, labels.data);
        metrics_sizes(out, &e->sizes, labels.data);
        metrics_histogram(out, "vllm:time_to_first_token_seconds", labels.data,
                          "Seconds until the first token.", &s->metrics.first);
        metrics_histogram(out, "vllm:inter_token_latency_seconds", labels.data, "Seconds between tokens.",
                          &s->metrics.between);
        metrics_histogram(out, "vllm:e2e_request_latency_seconds", labels.data,
                          "Seconds until the end of a generation.", &s->metrics.whole);
    }
    buf_free(&labels);
}

bool metrics_read_style(const char *word, unsigned *style)
{
    static const char *const words[] = {"", "quern", "vllm", "both"}; /* by METRICS_QUERN and METRICS_VLLM */
    unsigned i = sizeof words / sizeof *words - 1;
    while (i && strcmp(words[i], word) != 0)
        i--;
    *style = i ? i : *style;
    return i;
}

void metrics_write(struct server *s, unsigned style, struct buf *out)
{
    struct models_stats m;
    models_stats(s->models, &m);
    if (style & METRICS_QUERN)
        metrics_write_quern(s, &m, out);
    if (style & METRICS_VLLM)
        metrics_write_vllm(s, &m, out);
}

void metrics_write_keys(struct server *s, uint32_t key, struct buf *out)
{
    pthread_mutex_lock(&s->mutex);
    usage_write(s->usage, key, out);
    pthread_mutex_unlock(&s->mutex);
}
