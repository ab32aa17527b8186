#include "tool/load.h"

#include "base/buf.h"
#include "codec/dtype.h"
#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "comm/job.h"
#include "model/arch.h"
#include "run/preset.h"
#include "run/ranks.h"
#include "tool/progress.h"
#include "tool/tool.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --kv; a device refuses types that it does not support. */
static int load_kv(const struct args *a, uint32_t *type, struct err *e)
{
    static const struct {
        const char *name;
        uint32_t type;
    } types[] = {{"f16", DTYPE_F16},
                 {"f32", DTYPE_F32},
                 {"bf16", DTYPE_BF16},
                 {"q8_0", DTYPE_Q8_0},
                 {"f8", DTYPE_F8_E4M3}};
    const char *said = args_text(a, "kv");
    *type = DTYPE_F16;
    for (size_t i = 0; said && i < sizeof types / sizeof *types; i++)
        if (!strcasecmp(said, types[i].name)) {
            *type = types[i].type;
            return 0;
        }
    return said ? err_set(e, ERR_USAGE, "--kv is f16, f32, bf16, q8_0 or f8, not '%s'", log_safe(said)) : 0;
}

int load_gpu(const struct args *a, struct runner_options *r, struct err *e)
{
    const char *layers = args_text(a, "gpu-layers"), *memory = args_text(a, "gpu-memory");
    uint64_t n = 0;
    r->gpu = PLACE_FIT;
    if (layers && !strcmp(layers, "all"))
        r->gpu = PLACE_ALL;
    else if (layers && strcmp(layers, "auto")) {
        if (!num_u64(layers, strlen(layers), 1 << 20, &n))
            return err_set(e, ERR_USAGE, "--gpu-layers is a number, all or auto, not '%s'", log_safe(layers));
        r->gpu = PLACE_SOME;
        r->gpu_layers = (uint32_t)n;
    }
    r->cpu_experts = args_flag(a, "cpu-moe");
    const char *prefill = args_text(a, "prefill");
    if (prefill && strcmp(prefill, "f16") && strcmp(prefill, "fp8"))
        return err_set(e, ERR_USAGE, "--prefill is f16 or fp8, not '%s'", log_safe(prefill));
    r->device_options.fp8 = prefill && !strcmp(prefill, "fp8");
    if (r->device_options.fp8 && !args_int(a, "gpu-copies", -1))
        return err_set(e, ERR_USAGE, "--prefill fp8 keeps decoded weights, and --gpu-copies 0 allows none");
    /* models that share a limit take what they need */
    const bool shared = args_has(a, "memory") && args_int(a, "memory", 0);
    r->no_pin = args_flag(a, "no-pinned-weights") || shared;
    r->no_keep = shared;
    const int64_t copies = args_int(a, "gpu-copies", shared && !r->device_options.fp8 ? 0 : -1);
    r->device_options.copies = copies < 0 ? COPIES_AUTO : (uint64_t)copies;
    r->device_options.no_parity = args_flag(a, "no-parity");
    if (memory &&
        (!num_bytes(memory, strlen(memory), &r->device_options.memory) || !r->device_options.memory))
        return err_set(e, ERR_USAGE, "--gpu-memory is a size, as 8G or 500M, not '%s'", log_safe(memory));
    return 0;
}

/* The job of this process: one model takes the comm over. */
static struct rank_job load_job;
static struct comm *load_comm;
static bool load_is_alone;

static const char *load_environment(const char *name)
{
    return getenv(name);
}

int load_join(struct err *e)
{
    if (load_job.kind != JOB_NONE || load_is_alone)
        return 0;
    if (job_read(&load_job, load_environment, e))
        return -1;
    if (load_job.kind == JOB_NONE)
        return 0;
    if (load_job.rank)
        log_set_level(LOG_ERROR); /* rank 0 speaks for all */
    if (job_join(&load_comm, &load_job, e))
        return -1;
    if (load_job.rank) { /* Ctrl-C and the like are for rank 0, which ends the others in order */
        signal(SIGINT, SIG_IGN);
        signal(SIGTERM, SIG_IGN);
    }
    return 0;
}

bool load_is_follower(void)
{
    struct rank_job j;
    struct err none = {0};
    return !job_read(&j, load_environment, &none) && j.rank;
}

void load_alone(void)
{
    load_is_alone = true;
}

uint32_t load_rank(void)
{
    return load_job.rank;
}

void load_served(const struct err *e)
{
    if (load_job.rank && !e->code)
        exit(0);
}

int load_ranks(const struct args *a, struct runner_options *r, struct err *e)
{
    struct ranks_options *k = &r->ranks;
    uint32_t cards = 0, others = 0;
    if (load_join(e))
        return -1;
    if (load_job.kind != JOB_NONE && !load_comm) /* another model has them: this one runs here alone */
        return 0;
    k->gpus = args_text(a, "gpus");
    k->stages = (uint32_t)args_int(a, "pipeline", 1);
    for (const char *at = k->gpus; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        cards++;
    others = load_comm ? load_job.size : cards;
    k->tensor = (uint32_t)args_int(a, "tensor-parallel", others > k->stages ? others / k->stages : 1);
    if (others && k->tensor * k->stages != others)
        return err_set(e, ERR_USAGE,
                       "--tensor-parallel %u and --pipeline %u make %u ranks, and there are %u %s", k->tensor,
                       k->stages, k->tensor * k->stages, others, load_comm ? "processes" : "cards in --gpus");
    if (ranks_wanted(k) && (r->cpu_experts || r->gpu == PLACE_SOME))
        return err_set(e, ERR_USAGE,
                       "--%s is for one GPU without ranks (--gpus, --tensor-parallel, --pipeline)",
                       r->cpu_experts ? "cpu-moe" : "gpu-layers N");
    if (load_comm && comm_watch(load_comm, e))
        return -1;
    k->comm = load_comm;
    k->local = load_job.local;
    load_comm = NULL;
    return 0;
}

int load_options(const struct args *a, struct session_options *o, struct err *e)
{
    struct runner_options *r = &o->runner;
    const char *quant = args_text(a, "quant");
    if (quant && !(o->quant = recipe_find(quant, e)))
        return err_prefix(e, "--quant");
    r->device = r->device ? r->device : args_text(a, "device");
    r->ctx = (uint32_t)args_int(a, "ctx", r->ctx);
    if (!r->device_options.threads)
        r->device_options.threads = (int)args_int(a, "threads", 0);
    r->device_options.pin = args_flag(a, "pin");
    r->device_options.activations = (int)args_int(a, "activations", 0);
    r->device_options.exact = r->device_options.exact || args_flag(a, "exact");
    r->device_options.deterministic = args_flag(a, "deterministic");
    r->device_options.no_repack = args_flag(a, "no-repack");
    r->device_options.tier = args_text(a, "tier");
    r->kv_bytes = (uint64_t)args_int(a, "kv-memory", 0);
    r->state_bytes = (uint64_t)args_int(a, "state-memory", 0);
    if (!o->mmproj && args_has(a, "mmproj"))
        o->mmproj = args_text(a, "mmproj");
    if (args_has(a, "reasoning-budget")) {
        int64_t budget = args_int(a, "reasoning-budget", -1);
        o->reasoning_limited = budget >= 0;
        o->reasoning_budget = budget >= 0 ? (uint32_t)budget : 0;
    }
    o->lock = args_flag(a, "mlock");
    map_into_memory(args_flag(a, "no-mmap"));
    return load_kv(a, &r->kv_type, e) || load_gpu(a, r, e) || load_ranks(a, r, e) ? -1 : 0;
}

/* The size of the KV cache, where it differs from the need of one sequence. */
static void load_report_room(const struct session *l, const struct runner_options *o)
{
    const struct runner *r = l->runner;
    uint64_t tokens = (uint64_t)r->pool * RUNNER_PAGE, wanted = (uint64_t)r->most_seqs * r->ctx;
    if (r->states.count && o->snapshots)
        log_info("recurrent states have %.0f MB: %u slots, for %u streams and for snapshots",
                 1e-6 * (double)runner_state_bytes(r->plan) * (r->states.count - 1), r->states.count - 1,
                 r->most_seqs);
    if (!r->plan->groups || o->pages || (r->most_seqs == 1 && tokens >= wanted))
        return;
    log_info("keys and values have %.0f MB: room for %llu tokens%s%s", 1e-6 * (double)l->kv_bytes,
             (unsigned long long)tokens, tokens < wanted && !o->kv_bytes ? ", as memory is short" : "",
             tokens < wanted ? "; requests that need more wait for each other" : "");
}

/* Which layers are on which device, and which ranks there are, unless all is on one CPU. */
static void load_report(const struct runner *r)
{
    struct buf text = {0};
    if (!r->placement.of && !device_is_ranks(r->device))
        return;
    r->device->ops->describe(r->device, &text);
    for (char *line = text.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        log_info("%s", line);
    }
    buf_free(&text);
}

int load_predicts(const struct model *m, const char *path, struct err *e)
{
    if (!m->h.arch->encoder)
        return 0;
    return err_set(e, ERR_DATA, "%s is an encoder (%s): it predicts no tokens; 'quern embed' is for it",
                   log_safe(path), m->h.arch->name);
}

/* A bar in the terminal, and whom else the caller has asked to tell. */
struct load_bar {
    struct progress bar;
    void (*also)(void *arg, double share);
    void *arg;
};

static void load_show(void *arg, double share)
{
    struct load_bar *b = arg;
    progress_show(&b->bar, share, NULL);
    if (b->also)
        b->also(b->arg, share);
}

int load_cache(const struct args *a, struct engine_options *o, struct err *e)
{
    const char *size = args_text(a, "cache-disk");
    uint32_t every = (uint32_t)args_int(a, "snapshot-every", ENGINE_SNAPSHOT);
    o->snapshot = (every + RUNNER_PAGE - 1) / RUNNER_PAGE * RUNNER_PAGE;
    o->cache_dir = args_text(a, "cache-dir");
    if (size && !o->cache_dir)
        return err_set(e, ERR_USAGE, "--cache-disk needs --cache-dir");
    if (size && (!num_bytes(size, strlen(size), &o->cache_bytes) || !o->cache_bytes))
        return err_set(e, ERR_USAGE, "--cache-disk: '%s' is not a size such as 500M or 8G", log_safe(size));
    return 0;
}

/* Every --lora. */
static int load_adapters(const struct args *a, const char *lora[SESSION_ADAPTERS], size_t *count,
                         struct err *e)
{
    int at = 0;
    for (const char *one; (one = args_next(a, "lora", &at)); lora[(*count)++] = one)
        if (*count == SESSION_ADAPTERS)
            return err_set(e, ERR_USAGE, "more than %d of --lora", SESSION_ADAPTERS);
    return 0;
}

int load_mix(const struct session *l, struct adapter_mix *out, struct err *e)
{
    const struct adapters *t = &l->adapters;
    *out = (struct adapter_mix){0};
    if (t->places > ADAPTERS_MIXED)
        return err_set(e, ERR_USAGE, "%u adapters at once; the most is %d", t->places, ADAPTERS_MIXED);
    for (; out->count < t->places; out->count++) {
        out->id[out->count] = t->all[out->count].id;
        out->scale[out->count] = t->all[out->count].scale;
    }
    return 0;
}

struct seq *load_seq(const struct session *l, struct err *e)
{
    struct adapter_mix mix;
    struct seq *s = load_mix(l, &mix, e) ? NULL : seq_open(l->runner, e);
    if (s)
        s->lora = mix;
    return s;
}

int load_model(struct session **out, const char *model, struct session_options *o, const struct args *a,
               struct err *e)
{
    struct load_bar bar = {.also = o->runner.progress, .arg = o->runner.progress_arg};
    struct store *store;
    const char *lora[SESSION_ADAPTERS];
    if (load_options(a, o, e))
        return -1;
    struct session_options with = *o;
    with.lora = lora;
    if (load_adapters(a, lora, &with.loras, e))
        return -1;
    json_t *preset = o->preset ? json_incref((json_t *)(uintptr_t)o->preset) : tool_preset(model, e);
    if (e->code || (preset && preset_options(preset, &with, lora, e)) || tool_open(&store, model, e)) {
        json_decref(preset);
        return -1;
    }
    progress_start(&bar.bar, "loading");
    with.runner.progress = load_show;
    with.runner.progress_arg = &bar;
    int r = session_open(out, store, &with, e);
    progress_end(&bar.bar);
    json_decref(preset);
    if (r)
        load_served(e);
    if (!r) {
        load_report((*out)->runner);
        load_report_room(*out, &with.runner);
        if (with.runner.device_options.fp8 && device_is_cpu((*out)->runner->device))
            log_warn("--prefill fp8 has no effect on a CPU");
    }
    uint32_t made_for = r ? 0 : (*out)->model->h.context;
    if (made_for && (*out)->runner->ctx > made_for)
        log_warn("a context of %u tokens is more than the %u that the model was made for",
                 (*out)->runner->ctx, made_for);
    return r;
}
