/* quern serve: serves models over HTTP until a signal ends it. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "device/device.h"
#include "hub/hub.h"
#include "hub/public_address.h"
#include "hub/url_fetcher.h"
#include "media/decoder.h"
#include "save/state.h"
#include "serve/kv_publisher.h"
#include "serve/limit.h"
#include "serve/manager.h"
#include "serve/metrics.h"
#include "serve/notify.h"
#include "serve/page.h"
#include "serve/sandbox.h"
#include "serve/server.h"
#include "tool/images.h"
#include "tool/load.h"
#include "tool/serve_extra.h"
#include "tool/serve_keys.h"
#include "tool/slots.h"
#include "tool/speculate.h"
#include "tool/state_folder.h"
#include "tool/tool.h"

#include <errno.h>
#include <limits.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    SERVE_SLOTS = 4, /* on a CPU, and the fewest on a GPU */
    SERVE_TEXTS = 32,
    SERVE_KEEP = 300,
    SERVE_KEEP_RESPONSES = 30 * 86400,
    SERVE_WORDS = 256,
    SERVE_HOSTS = 64,
    SERVE_NAMES = 64,
    SERVE_MCP = 32
};

static const struct arg_option serve_options[] = {
    {"host", 0, ARG_TEXT, "H", "address to listen on (default: 127.0.0.1, this machine only)", 0, 0},
    {"port", 0, ARG_INT, "N", "port (default: 8080; 0 = any that is free)", 0, 65535},
    {"socket", 0, ARG_TEXT, "PATH", "a Unix socket instead of an address and a port", 0, 0},
    {"tls-cert", 0, ARG_TEXT, "FILE", "speak TLS with this certificate (PEM, with its chain)", 0, 0},
    {"tls-key", 0, ARG_TEXT, "FILE", "and this key (PEM)", 0, 0},
    {"name", 0, ARG_TEXT, "NAME", "the model's name for clients (default: the file's name); may be repeated",
     0, 0},
    {"models-dir", 0, ARG_TEXT, "DIR", "serve every model in this folder, too", 0, 0},
    {"keep-alive", 0, ARG_TEXT, "T",
     "unload a model after this idle time: 90s, 5m, 1h, -1 = never (default: 5m; -1 with a single model)", 0,
     0},
    {"memory", 0, ARG_BYTES, "SIZE", "memory limit for all models together (default: free memory)", 1 << 20,
     1e18},
    {"load-wait", 0, ARG_NUM, "S", "seconds that a request waits for its model (default: 120)", 0, 86400},
    {"metrics-port", 0, ARG_INT, "N",
     "serve /metrics and probes at a port of their own, too, without a key (0 = any that is free)", 0, 65535},
    {"metrics-host", 0, ARG_TEXT, "H", "and at this address (default: 127.0.0.1)", 0, 0},
    {"metrics-style", 0, ARG_TEXT, "S", "names of the series: quern, vllm or both (default: quern)", 0, 0},
    {"kv-events", 0, ARG_TEXT, "ENDPOINT",
     "publish which prefixes are cached, over ZeroMQ: tcp://*:5557 is bound, tcp://HOST:5557 connected to", 0,
     0},
    {"kv-events-host", 0, ARG_TEXT, "H",
     "the host in its topics, kv@HOST@MODEL (default: the machine's name)", 0, 0},
    {"kv-events-replay", 0, ARG_TEXT, "ENDPOINT", "where subscribers ask for events that they have missed", 0,
     0},
    {"slots", 0, ARG_INT, "N",
     "requests generated at once (default: 4; on a GPU 4, 8, ... 128, at most its memory in GiB)", 1, 256},
    {"queue", 0, ARG_INT, "N", "queue length, in requests (default: 512)", 1, 1 << 16},
    {"api-key-file", 0, ARG_TEXT, "FILE",
     "keys, one a line: KEY [TOKENS-A-DAY [TOKENS-A-MONTH [NAME]]] (or one in QUERN_API_KEY)", 0, 0},
    {"admin-key-file", 0, ARG_TEXT, "FILE",
     "keys that may also load and unload models and see every key's counters (or one in QUERN_ADMIN_KEY)", 0,
     0},
    {"key-parallel", 0, ARG_INT, "N", "concurrent sequences of a key; n: 4 counts as 4 (default: no limit)",
     1, 1 << 16},
    {"key-rate", 0, ARG_NUM, "N", "rate limit of a key, in requests a minute (default: none)", 0.01, 1e9},
    {"log-format", 0, ARG_TEXT, "F", "text, or json: one object a line, and one for every request", 0, 0},
    {"no-key", 0, ARG_FLAG, NULL,
     "serve beyond this machine without a key, behind a proxy that checks access; needs --allowed-host", 0,
     0},
    {"allowed-host", 0, ARG_TEXT, "NAME", "a host name that clients use; may be repeated", 0, 0},
    {"allowed-origin", 0, ARG_TEXT, "ORIGIN",
     "web pages of this origin may send requests: https://chat.example, app://obsidian.md, "
     "vscode-webview://*; may be "
     "repeated",
     0, 0},
    {"mcp", 0, ARG_TEXT, "NAME=URL",
     "an MCP server (streamable HTTP) whose tools the chat page may use; the browser connects to it; may be "
     "repeated",
     0, 0},
    {"grace", 0, ARG_NUM, "S", "seconds that running requests get at shutdown (default: 30)", 0, 86400},
    STATE_OPTIONS,
    {"no-state", 0, ARG_FLAG, NULL, "keep responses, conversations and usage in memory only", 0, 0},
    {"keep-responses", 0, ARG_TEXT, "T",
     "keep stored responses and conversations for this time after their last use (default: 30d)", 0, 0},
    {"manage", 0, ARG_FLAG, NULL,
     "clients may pull, create, copy and delete models (default: those with an admin key)", 0, 0},
    {"adapter-dir", 0, ARG_TEXT, "DIR",
     "admin keys may load adapters of this folder while the server runs (/v1/load_lora_adapter)", 0, 0},
    {"no-sandbox", 0, ARG_FLAG, NULL,
     "keep the rights to files, calls and the network that the server does not need", 0, 0},
    IMAGES_TOWER,
    {"image-urls", 0, ARG_FLAG, NULL,
     "fetch images that requests name by http and https URLs, from public addresses only (default: data: "
     "URLs only)",
     0, 0},
    {"limit", 0, ARG_TEXT, "NAME=N",
     "a limit of requests, such as body=64M ('list' prints them all); may be repeated", 0, 0},
    {"template", 0, ARG_TEXT, "FILE", "a chat template instead of the model's own", 0, 0},
    {"tool-parser", 0, ARG_TEXT, "NAME", "how models write tool calls (default: from their templates)", 0, 0},
    {"reasoning", 0, ARG_TEXT, "NAME", "how models mark reasoning, or 'none' (default: from their templates)",
     0, 0},
    LOAD_REASONING,
    SPECULATE_OPTIONS,
    LOAD_CACHE,
    LOAD_LORA,
    LOAD_OPTIONS,
    {0},
};

struct serve {
    const struct args *a;
    struct server_options o;
    struct models_options m;
    struct models *models;
    struct serve_keys keys;
    struct buf chat_template;
    const char *hosts[SERVE_HOSTS], *origins[SERVE_HOSTS];
    struct mcp_server mcp[SERVE_MCP];
    char *paths[SERVE_WORDS];       /* of the models that were named */
    const char *names[SERVE_NAMES]; /* of --name: the first is the model's own, the others are aliases */
    const char *adapters[SESSION_ADAPTERS];
    char adapter_names[SESSION_ADAPTERS][ADAPTER_NAME];
    char adapter_dir[PATH_MAX];   /* "" = none */
    char *draft;                  /* the file of --draft; NULL = none */
    json_t *presets[SERVE_WORDS]; /* settings of the models that were named; NULL = none */
    struct serve_extra extra;     /* models that came while it runs */
    struct sandbox sandbox;
    struct state *state;
    char state_folder[PATH_MAX]; /* "" = in memory */
    bool manages;                /* there is a manager */
    bool state_chosen;           /* without it the server does not start */
};

/* Also on SIGHUP. */
static int serve_keys(void *arg, struct err *e)
{
    struct serve *s = arg;
    if (serve_keys_read(&s->keys, s->a, e))
        return -1;
    s->o.keys = s->keys.all;
    s->o.key_count = s->keys.count;
    return 0;
}

/* ---- models ---- */

/* The file of a named model, found (or fetched) once: the sandbox is closed when the list is reloaded. */
static const char *serve_path(struct serve *s, int i, const char *model, struct err *e)
{
    char path[PATH_MAX];
    if (!s->paths[i])
        s->presets[i] = tool_preset(model, e);
    if (e->code)
        return NULL;
    if (!s->paths[i] && !tool_model_path(model, path, sizeof path, e) && !(s->paths[i] = mem_strdup(path)))
        err_memory(e, "a model's path", strlen(path));
    return s->paths[i];
}

static void serve_change(void *arg, const struct model_change *c)
{
    struct serve *s = arg;
    serve_extra_change(&s->extra, c);
}

/* Those of the command line, then those of the folder. */
static int serve_list(void *arg, struct model_list *out, struct err *e)
{
    struct serve *s = arg;
    const char *folder = args_text(s->a, "models-dir"), *name = s->names[0];
    int count = s->a->count || folder ? s->a->count : 1;
    if (name && (count != 1 || folder))
        return err_set(e, ERR_USAGE, "--name is for one model; these are called as their files are");
    for (int i = 0; i < count; i++) {
        const char *model = s->a->count ? s->a->words[i] : HUB_DEFAULT, *path = serve_path(s, i, model, e);
        char *own = name ? mem_strdup(name) : model_name(model);
        int failed = !path ? -1
                     : own ? model_list_add(out, own, path, e)
                           : err_memory(e, "the model's name", strlen(model));
        mem_free(own);
        if (failed)
            return -1;
    }
    return (folder && model_list_folder(out, folder, e)) || serve_extra_list(&s->extra, out, e) ? -1 : 0;
}

/* The settings of a model by the name that clients use; a new reference, or NULL. */
static json_t *serve_preset(struct serve *s, const char *name)
{
    json_t *found = NULL;
    int count = s->a->count ? s->a->count : 1;
    for (int i = 0; i < count && !found; i++) {
        char *own =
            s->names[0] ? mem_strdup(s->names[0]) : model_name(s->a->count ? s->a->words[i] : HUB_DEFAULT);
        found = own && name && !strcmp(own, name) ? json_incref(s->presets[i]) : NULL;
        mem_free(own);
    }
    return found ? found : serve_extra_preset(&s->extra, name);
}

static int serve_open_with(struct serve *s, struct session **out, const char *path,
                           struct session_options *own, struct err *e)
{
    /* room for draft tokens; a draft model serves one model, and stays loaded when that one is unloaded */
    struct engine_options *g = &s->m.engine;
    if ((!own->hidden && speculate_read(s->a, g, own, e)) || load_model(out, path, own, s->a, e))
        return -1;
    if (own->hidden || g->draft_model || !speculate_load(s->a, s->draft, g, *out, e))
        return 0;
    session_close(*out);
    *out = NULL;
    return -1;
}

static int serve_open(void *arg, struct session **out, const char *path, const struct session_options *o,
                      struct err *e)
{
    struct serve *s = arg;
    struct session_options own = *o;
    own.chat_template = s->chat_template.data;
    own.tool_parser = args_text(s->a, "tool-parser");
    own.reasoning = args_text(s->a, "reasoning");
    if (s->o.adapter_dir && !own.hidden) {
        own.lora_places = (uint32_t)limit_of(LIMIT_ADAPTERS);
        own.lora_rank = (uint32_t)limit_of(LIMIT_ADAPTER_RANK);
        own.lora_bytes = limit_of(LIMIT_ADAPTER_BYTES);
    }
    json_t *preset = serve_preset(s, o->name);
    own.preset = preset;
    const json_t *ctx = json_object_get(json_object_get(preset, "parameters"), "num_ctx"),
                 *slots = json_object_get(json_object_get(preset, "parameters"), "slots");
    if (json_is_number(ctx) && !args_int(s->a, "ctx", 0))
        own.runner.ctx = (uint32_t)json_number_value(ctx);
    if (json_is_number(slots) && !own.hidden)
        own.runner.seqs = (uint32_t)json_number_value(slots);
    int failed = serve_open_with(s, out, path, &own, e);
    json_decref(preset);
    return failed;
}
/* "90", "90s", "5m", "1h", "-1" for ever. */
static int serve_keep(struct serve *s, struct err *e)
{
    const char *text = args_text(s->a, "keep-alive");
    bool one = s->a->count <= 1 && !args_text(s->a, "models-dir");
    s->m.keep = one ? MODELS_KEEP_FOREVER : SERVE_KEEP;
    if (text && !num_duration(text, strlen(text), &s->m.keep))
        return err_set(e, ERR_USAGE, "--keep-alive takes a time such as 90s, 5m or 1h, or -1, not '%s'",
                       log_safe(text));
    return 0;
}

/* All values of an option that may be repeated. */
static int serve_list_option(const struct serve *s, const char *option, const char **out, size_t *count,
                             struct err *e)
{
    int at = 0;
    for (const char *name; (name = args_next(s->a, option, &at));) {
        if (*count == SERVE_HOSTS)
            return err_set(e, ERR_USAGE, "more than %d of --%s", SERVE_HOSTS, option);
        out[(*count)++] = name;
    }
    return 0;
}

static int serve_metrics(struct serve *s, struct err *e)
{
    const char *host = args_text(s->a, "metrics-host"), *style = args_text(s->a, "metrics-style");
    s->o.metrics_host = host ? host : "127.0.0.1";
    s->o.metrics_port = (int)args_int(s->a, "metrics-port", -1);
    s->o.metrics_style = METRICS_QUERN;
    if (host && s->o.metrics_port < 0)
        return err_set(e, ERR_USAGE, "--metrics-host needs --metrics-port");
    if (style && !metrics_read_style(style, &s->o.metrics_style))
        return err_set(e, ERR_USAGE, "--metrics-style is quern, vllm or both, not '%s'", log_safe(style));
    return 0;
}

static int serve_mcp(struct serve *s, struct err *e)
{
    int at = 0;
    s->o.mcp = s->mcp;
    for (const char *text; (text = args_next(s->a, "mcp", &at)); s->o.mcp_count++) {
        if (s->o.mcp_count == SERVE_MCP)
            return err_set(e, ERR_USAGE, "more than %d of --mcp", SERVE_MCP);
        if (mcp_read(text, s->mcp, s->o.mcp_count, e))
            return -1;
    }
    return 0;
}

static int serve_read(struct serve *s, struct err *e)
{
    const char *file = args_text(s->a, "template"), *host = args_text(s->a, "host");
    const char *format = args_text(s->a, "log-format");
    s->o.host = host ? host : "127.0.0.1";
    s->o.port = (int)args_int(s->a, "port", 8080);
    s->o.grace = args_num(s->a, "grace", 30);
    s->o.no_key = args_flag(s->a, "no-key");
    s->o.socket = args_text(s->a, "socket");
    s->o.tls_cert = args_text(s->a, "tls-cert");
    s->o.tls_key = args_text(s->a, "tls-key");
    s->o.notify = notify_open(getenv("NOTIFY_SOCKET"));
    s->o.usage =
        (struct key_limits){(uint32_t)args_int(s->a, "key-parallel", 0), args_num(s->a, "key-rate", 0)};
    if (s->o.socket && (host || args_int(s->a, "port", -1) >= 0))
        return err_set(e, ERR_USAGE, "--socket excludes --host and --port");
    if (format && strcmp(format, "json") != 0 && strcmp(format, "text") != 0)
        return err_set(e, ERR_USAGE, "--log-format is text or json, not '%s'", log_safe(format));
    log_set_json(format && !strcmp(format, "json"));
    s->o.allowed_host = s->hosts;
    s->o.allowed_origin = s->origins;
    if (serve_list_option(s, "allowed-host", s->hosts, &s->o.allowed_hosts, e) ||
        serve_list_option(s, "allowed-origin", s->origins, &s->o.allowed_origins, e) || serve_mcp(s, e))
        return -1;
    if (file && file_read(file, &s->chat_template, e))
        return -1;
    s->o.reload = serve_keys;
    s->o.arg = s;
    return serve_metrics(s, e) || serve_keys(s, e) || server_check(&s->o, e) ? -1 : 0;
}

/* The names of --lora NAME=PATH, by which clients may call the model; one without a name is chosen by its number. And the
 * folder of those that come later. */
static int serve_adapters(struct serve *s, struct err *e)
{
    int at = 0;
    for (const char *lora; (lora = args_next(s->a, "lora", &at));) {
        if (s->a->count > 1 || args_text(s->a, "models-dir"))
            return err_set(e, ERR_USAGE, "--lora is for one model");
        if (!strchr(lora, '=') || s->m.adapter_count == SESSION_ADAPTERS)
            continue;
        char *name = s->adapter_names[s->m.adapter_count];
        if (adapter_name(lora, name))
            s->adapters[s->m.adapter_count++] = name;
    }
    s->m.adapters = s->adapters;
    const char *folder = args_text(s->a, "adapter-dir");
    struct stat st;
    if (folder && (!realpath(folder, s->adapter_dir) || stat(folder, &st)))
        return err_set(e, ERR_USAGE, "--adapter-dir %s: %s", log_safe(folder), strerror(errno));
    if (folder && !S_ISDIR(st.st_mode))
        return err_set(e, ERR_USAGE, "--adapter-dir %s is not a folder", log_safe(folder));
    s->o.adapter_dir = folder ? s->adapter_dir : NULL;
    return 0;
}

/* Every --name, once. */
static int serve_names(struct serve *s, struct err *e)
{
    int at = 0;
    size_t n = 0;
    for (const char *name; (name = args_next(s->a, "name", &at));) {
        size_t i = 0;
        while (i < n && strcmp(s->names[i], name) != 0)
            i++;
        if (!*name || i == SERVE_NAMES)
            return err_set(e, ERR_USAGE, "--name takes a name that is not empty, at most %d times",
                           SERVE_NAMES);
        if (i == n)
            s->names[n++] = name;
    }
    s->m.aliases = s->names + 1;
    s->m.alias_count = n > 1 ? n - 1 : 0;
    return 0;
}

static int serve_read_models(struct serve *s, struct err *e)
{
    s->m.memory = (uint64_t)args_int(s->a, "memory", 0);
    s->m.patience = args_num(s->a, "load-wait", 120);
    s->m.ctx = (uint32_t)args_int(s->a, "ctx", 0);
    s->m.texts = SERVE_TEXTS;
    s->m.engine = (struct engine_options){.slots = (uint32_t)args_int(s->a, "slots", 0),
                                          .queue = (uint32_t)args_int(s->a, "queue", 0),
                                          .queue_bytes = limit_of(LIMIT_QUEUED)};
    if (args_text(s->a, "draft") && (s->a->count > 1 || args_text(s->a, "models-dir")))
        return err_set(e, ERR_USAGE, "--draft is for one model");
    if (load_cache(s->a, &s->m.engine, e) || serve_adapters(s, e) || serve_names(s, e))
        return -1;
    s->m.chat_template = s->chat_template.data;
    s->m.list = serve_list;
    s->m.open = serve_open;
    s->m.arg = s;
    return serve_keep(s, e);
}

/* ---- the sandbox ---- */

/* The GPU's driver: its libraries may be elsewhere, and it caches compiled kernels in a folder, if that
 * exists. */
static void serve_use_gpu(struct serve *s)
{
    const char *folders = getenv("LD_LIBRARY_PATH"), *cache = getenv("CUDA_CACHE_PATH"),
               *home = getenv("HOME");
    char path[PATH_MAX];
    sandbox_use(&s->sandbox, SANDBOX_GPU, NULL);
    for (size_t n; folders && *folders; folders += n + (folders[n] == ':')) {
        n = strcspn(folders, ":");
        if (n && n < sizeof path && snprintf(path, sizeof path, "%.*s", (int)n, folders) > 0)
            sandbox_use(&s->sandbox, SANDBOX_GPU, path);
    }
    if (!cache && home && (size_t)snprintf(path, sizeof path, "%s/.nv", home) < sizeof path)
        cache = path;
    if (cache)
        sandbox_use(&s->sandbox, SANDBOX_GPU_CACHE, cache);
}

/* May models go to a GPU? The first program after a start of the machine makes the driver's nodes in /dev, which the sandbox
 * would refuse: then a child does it. */
static bool serve_may_use_gpu(const struct serve *s)
{
    const char *device = args_text(s->a, "device");
    if (device && !strcmp(device, "cpu"))
        return false;
    if (!access("/proc/driver/nvidia", F_OK) && access("/dev/nvidia-uvm", F_OK)) {
        pid_t child = fork();
        if (!child)
            _exit(cuda_count(NULL) > 0 ? 0 : 1);
        if (child > 0)
            waitpid(child, NULL, 0);
    }
    return device || !access("/dev/nvidiactl", F_OK) || !access("/dev/dxg", F_OK);
}

/* Models that were named, the draft model, adapters, folders of models. */
static int serve_use_models(struct serve *s, struct err *e)
{
    const char *draft = args_text(s->a, "draft"), *folder = args_text(s->a, "models-dir");
    char path[PATH_MAX];
    int count = s->a->count || folder ? s->a->count : 1, at = 0;
    for (int i = 0; i < count; i++) {
        const char *file = serve_path(s, i, s->a->count ? s->a->words[i] : HUB_DEFAULT, e);
        if (!file)
            return -1;
        sandbox_use(&s->sandbox, SANDBOX_MODELS, file);
    }
    if (draft && tool_model_path(draft, path, sizeof path, e))
        return -1;
    if (draft && !(s->draft = mem_strdup(path)))
        return err_memory(e, "a path", strlen(path));
    if (args_text(s->a, "mmproj") && (s->a->count > 1 || folder))
        return err_set(e, ERR_USAGE, "--mmproj is for one model");
    sandbox_use(&s->sandbox, SANDBOX_MODELS, args_text(s->a, "mmproj"));
    sandbox_use(&s->sandbox, SANDBOX_MODELS, s->draft);
    sandbox_use(&s->sandbox, SANDBOX_MODELS, folder);
    sandbox_use(&s->sandbox, SANDBOX_MODELS, s->o.adapter_dir);
    const char *name;
    json_t *entry;
    json_object_foreach(s->extra.all, name, entry)
    {
        sandbox_use(&s->sandbox, SANDBOX_MODELS, json_string_value(json_object_get(entry, "path")));
    }
    struct hub h;
    if (s->manages && !tool_hub(&h, e)) { /* models that will come */
        sandbox_use(&s->sandbox, SANDBOX_MODELS, h.cache);
        sandbox_use(&s->sandbox, SANDBOX_MODELS, h.own);
    }
    for (int i = 0; i < count; i++) {
        const json_t *adapters = json_object_get(s->presets[i], "adapters");
        for (size_t k = 0; k < json_array_size(adapters); k++)
            sandbox_use(&s->sandbox, SANDBOX_MODELS, json_string_value(json_array_get(adapters, k)));
    }
    for (const char *lora; (lora = args_next(s->a, "lora", &at));) {
        const char *equals = strchr(lora, '=');
        snprintf(path, sizeof path, "%s", equals ? equals + 1 : lora);
        char *colon = strrchr(path, ':'); /* a scale, or a part of the name: then the file is there with it */
        if (colon && access(path, F_OK))
            *colon = 0;
        sandbox_use(&s->sandbox, SANDBOX_MODELS, path);
    }
    return 0;
}

/* ---- the state ---- */

/* The folder, made before the sandbox closes. */
static int serve_state_folder(struct serve *s, struct err *e)
{
    struct err own = {0};
    const char *keep = args_text(s->a, "keep-responses");
    s->o.keep_responses = SERVE_KEEP_RESPONSES;
    if (keep && (!num_duration(keep, strlen(keep), &s->o.keep_responses) || s->o.keep_responses < 0))
        return err_set(e, ERR_USAGE, "--keep-responses takes a time such as 12h or 30d, not '%s'",
                       log_safe(keep));
    if (args_flag(s->a, "no-state")) {
        if (args_text(s->a, "state-dir"))
            return err_set(e, ERR_USAGE, "--state-dir and --no-state exclude each other");
        return 0;
    }
    if (state_folder(s->a, s->state_folder, &s->state_chosen, e))
        return -1;
    if (!s->state_folder[0])
        return 0;
    if (!state_make_folder(s->state_folder, &own)) {
        serve_extra_keep(&s->extra, s->state_folder);
        return 0;
    }
    if (s->state_chosen)
        return err_set(e, own.code, "%s", own.text);
    log_warn("%s; responses, conversations and usage are kept in memory only", own.text);
    s->state_folder[0] = 0;
    return 0;
}

static int serve_state(struct serve *s, struct err *e)
{
    enum { MEMORY_MOST = 256 << 20 };
    struct err own = {0};
    uint64_t most = limit_of(LIMIT_STATE);
    if (s->state_folder[0] && !state_open(&s->state, &(struct state_options){s->state_folder, most}, &own)) {
        log_info("state: %s", log_safe(s->state_folder));
        return 0;
    }
    if (own.code && s->state_chosen)
        return err_set(e, own.code, "%s", own.text);
    if (own.code)
        log_warn("%s; responses, conversations and usage are kept in memory only", own.text);
    serve_extra_forget(&s->extra);
    return state_open(&s->state, &(struct state_options){NULL, most < MEMORY_MOST ? most : MEMORY_MOST}, e);
}

/* All paths that a server reads, at the start or on SIGHUP. */
static int serve_sandbox(struct serve *s, struct err *e)
{
    static const struct {
        const char *option;
        enum sandbox_feature feature;
    } files[] = {{"api-key-file", SANDBOX_KEYS},    {"admin-key-file", SANDBOX_KEYS},
                 {"tls-cert", SANDBOX_CERTIFICATE}, {"tls-key", SANDBOX_CERTIFICATE},
                 {"socket", SANDBOX_SOCKET},        {"cache-dir", SANDBOX_CACHE}};
    const char *cache = s->m.engine.cache_dir;
    if (serve_use_models(s, e))
        return -1;
    if (args_flag(s->a, "no-sandbox")) {
        log_info("sandbox: off (--no-sandbox): files, calls and network are open");
        return 0;
    }
    if (cache)
        mkdir(cache, 0700); /* a Landlock rule needs an existing folder */
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (args_text(s->a, files[i].option))
            sandbox_use(&s->sandbox, files[i].feature, args_text(s->a, files[i].option));
    if (s->state_folder[0])
        sandbox_use(&s->sandbox, SANDBOX_STATE, s->state_folder);
    if (serve_may_use_gpu(s))
        serve_use_gpu(s);
    return sandbox_enter(&s->sandbox, e);
}

/* 1: the limits were only asked for, and are printed. */
static int serve_limits(const struct serve *s, struct err *e)
{
    int at = 0;
    for (const char *word; (word = args_next(s->a, "limit", &at));) {
        if (strcmp(word, "list") != 0) {
            if (limit_set(word, e))
                return -1;
            continue;
        }
        printf("%-16s %12s  %s\n", "limit", "usually", "of what");
        for (const struct limit_row *r = limit_rows; r < limit_rows + LIMIT_COUNT; r++)
            printf("%-16s %12llu  %s\n", r->name, (unsigned long long)r->usual, r->help);
        return 1;
    }
    return 0;
}

/* A folder without a model is an error at the start; on a reload it may be empty. */
static int serve_check_folder(const struct serve *s, struct err *e)
{
    const char *folder = args_text(s->a, "models-dir");
    struct model_list found = {0};
    if (!folder)
        return 0;
    int failed = model_list_folder(&found, folder, e);
    if (!failed && !found.count)
        failed =
            err_set(e, ERR_DATA, "--models-dir %s has no model: no *.gguf and no folder with safetensors",
                    log_safe(folder));
    model_list_free(&found);
    return failed;
}

static int serve_publisher(struct serve *s, struct err *e)
{
    char machine[256] = "";
    const char *host = args_text(s->a, "kv-events-host");
    struct kv_publisher_options o = {.endpoint = args_text(s->a, "kv-events"),
                                     .replay = args_text(s->a, "kv-events-replay")};
    if (!o.endpoint)
        return host || o.replay
                   ? err_set(e, ERR_USAGE, "--kv-events-host and --kv-events-replay need --kv-events")
                   : 0;
    if (load_is_follower()) /* rank 0 has the prefix tree */
        return 0;
    gethostname(machine, sizeof machine - 1);
    o.host = host ? host : machine;
    return kv_publisher_start(&s->m.publisher, &o, e);
}

/* The processes for images and events: forked before there are secrets, threads or a sandbox. */
static int serve_helpers(struct serve *s, struct err *e)
{
    const char *admin = getenv("QUERN_ADMIN_KEY");
    struct hub h;
    s->manages = args_flag(s->a, "manage") || args_text(s->a, "admin-key-file") || (admin && *admin);
    if (s->manages && (tool_hub(&h, e) || manager_start(&s->o.manager, &h, e)))
        return -1;
    s->o.change_models = serve_change;
    return serve_publisher(s, e) || decoder_start(&s->o.decoder, e) ||
                   (args_flag(s->a, "image-urls") && url_fetcher_start(&s->o.fetcher, address_is_public, e))
               ? -1
               : 0;
}

/* ---- ranks ---- */

struct rank_wait {
    struct model_wait wait;
    sem_t ready;
};

static void rank_ready(struct model_wait *w)
{
    sem_post(&((struct rank_wait *)w)->ready);
}

/* Rank 0 has the server: this process opens the model and computes until that ends. */
static int serve_rank(struct serve *s, struct err *e)
{
    struct rank_wait r = {.wait.ready = rank_ready};
    sem_init(&r.ready, 0, 0);
    if (models_open(&s->models, &s->m, e))
        return -1;
    if (models_preload(s->models, &r.wait))
        while (sem_wait(&r.ready))
            continue;
    return models_preloaded(s->models, &r.wait, e);
}

static int serve_all(struct serve *s, struct err *e)
{
    int limits = serve_limits(s, e);
    if (limits)
        return limits < 0 ? -1 : 0;
    struct server_sockets at;
    /* a named model is loaded now, so that an error shows at the start */
    s->o.preload = s->a->count || !args_text(s->a, "models-dir");
    if (serve_helpers(s, e) || serve_read(s, e) || serve_read_models(s, e) || serve_check_folder(s, e))
        return -1;
    if (!s->m.engine.slots)
        s->m.engine.slots = slots_default(s->a, SERVE_SLOTS);
    if (load_join(e))
        return -1;
    if (load_rank())
        return serve_rank(s, e);
    if (server_bind(&s->o, &at, e))
        return -1;
    if (serve_state_folder(s, e) || serve_sandbox(s, e) || serve_state(s, e) ||
        models_open(&s->models, &s->m, e)) {
        server_unbind(&s->o, &at);
        return -1;
    }
    s->o.state = s->state;
    return server_run(s->models, &s->o, &at, e);
}

static int serve_run(const struct args *a, struct err *e)
{
    struct serve *s = mem_zalloc(1, sizeof *s);
    if (!s)
        return err_memory(e, "the server", sizeof *s);
    s->a = a;
    s->o.notify = -1;
    s->chat_template.max = 4 << 20;
    mem_give_back();
    int result = serve_extra_open(&s->extra, e) ? -1 : serve_all(s, e);
    models_close(s->models);
    kv_publisher_stop(s->m.publisher); /* after the last event */
    state_close(s->state);
    session_close(s->m.engine.draft_model);
    for (int i = 0; i < SERVE_WORDS; i++) {
        mem_free(s->paths[i]);
        json_decref(s->presets[i]);
    }
    serve_extra_close(&s->extra);
    mem_free(s->draft);
    sandbox_free(&s->sandbox);
    decoder_stop(s->o.decoder);
    url_fetcher_stop(s->o.fetcher);
    manager_stop(s->o.manager);
    serve_keys_free(&s->keys);
    buf_free(&s->chat_template);
    mem_free(s);
    return result;
}

const struct tool_verb tool_serve = {
    .name = "serve",
    .words = "[MODEL...]",
    .brief = "serve models over HTTP, with OpenAI's API",
    .more = "Programs that speak OpenAI's API take http://127.0.0.1:8080/v1 as their base URL.\n"
            "  quern serve\n"
            "  quern serve model.gguf --port 9000 --slots 8\n"
            "  quern serve --models-dir ~/models --keep-alive 10m\n"
            "  quern serve model.gguf --host 0.0.0.0 --api-key-file keys.txt\n",
    .options = serve_options,
    .least = 0,
    .most = SERVE_WORDS,
    .run = serve_run,
};
