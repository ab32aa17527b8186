/* The public library: models. Requests are in api_request.c, streams in api_stream.c, vectors and tokens in
 * api_tokens.c. */
#define _GNU_SOURCE
#include "run/api.h"

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "codec/dtype.h"
#include "hub/hub.h"
#include "model/arch.h"

#include <string.h>

enum { API_DRAFTS = 8, API_SHARES = 1000 };

const char *quern_version(void)
{
    return QUERN_VERSION;
}

int quern_abi(void)
{
    return QUERN_ABI;
}

void quern_free(void *p)
{
    mem_free(p);
}

int api_fail(const struct err *e, struct quern_error *out)
{
    if (out) {
        _Static_assert(sizeof out->text == sizeof e->text, "the two texts are copied whole");
        out->code = (int)e->code;
        memcpy(out->text, e->text, sizeof out->text);
    }
    return -1;
}

/* ---- messages ---- */

static struct {
    void (*write)(void *arg, int level, const char *line);
    void *arg;
} api_log;

static void api_log_line(void *arg, enum log_level level, const char *line)
{
    (void)arg;
    api_log.write(api_log.arg, (int)level, line);
}

void quern_log(void (*write)(void *arg, int level, const char *line), void *arg, int level)
{
    log_set_sink(NULL, NULL);
    api_log.write = write;
    api_log.arg = arg;
    log_set_level(level < LOG_ERROR ? LOG_ERROR : level > LOG_DEBUG ? LOG_DEBUG : (enum log_level)level);
    if (write)
        log_set_sink(api_log_line, NULL);
}

/* ---- opening ---- */

void quern_options_init(struct quern_options *options, size_t size)
{
    static const struct quern_options fresh = QUERN_OPTIONS;
    size_t n = size < sizeof fresh ? size : sizeof fresh;
    memset(options, 0, size);
    memcpy(options, &fresh, n);
    options->size = size;
}

/* Options with fewer fields, as those of this version. */
static void api_options_read(const struct quern_options *given, struct quern_options *out)
{
    *out = (struct quern_options)QUERN_OPTIONS;
    size_t n = given && given->size ? given->size : sizeof *out;
    if (given)
        memcpy(out, given, n < sizeof *out ? n : sizeof *out);
}

static int api_pulls(void *arg, const struct hub_progress *p)
{
    const struct quern_options *o = arg;
    return o->progress(o->progress_arg, p->checking ? "checking" : "fetching", p->done, p->total);
}

static void api_loads(void *arg, double share)
{
    const struct quern_options *o = arg;
    o->progress(o->progress_arg, "loading", (uint64_t)(share * API_SHARES), API_SHARES);
}

/* A path or a name to an open model; what is missing is fetched. */
static int api_store(struct store **out, const char *model, struct quern_options *o, struct err *e)
{
    struct hub h;
    struct hub_name n;
    struct hub_pulled pulled;
    char found[PATH_MAX];
    if (hub_read(&h, e) || name_read(&n, &h, model, e))
        return -1;
    h.offline |= o->offline != 0;
    h.progress = o->progress ? api_pulls : NULL;
    h.progress_arg = o;
    int here = hub_find(&h, &n, found, e);
    if (!here && !h.offline)
        log_info("%s is not here: fetching it", name_text(&n));
    if (here < 0 || (!here && hub_pull(&h, &n, &pulled, e)))
        return -1;
    return store_open(out, here ? found : pulled.path, e);
}

static void api_session_options(const struct quern_options *o, struct session_options *out)
{
    *out = (struct session_options){
        .runner = {.device = o->device,
                   .ctx = o->ctx,
                   .seqs = o->streams,
                   .kv_type = DTYPE_F16,
                   .no_pin = true, /* the memory is the application's */
                   .device_options = {.threads = o->threads,
                                      .deterministic = o->deterministic != 0,
                                      .exact = o->exact != 0},
                   .progress = o->progress ? api_loads : NULL,
                   .progress_arg = (void *)(uintptr_t)o},
        .chat_template = o->chat_template,
        .no_images = true,
        .mmproj = o->mmproj,
        .lora = o->lora,
    };
    while (o->lora && o->lora[out->loras])
        out->loras++;
}

/* For vectors alone. */
static int api_open_embedder(struct quern_model *m, struct store *store, const struct hparams *h,
                             const struct quern_options *o, struct err *e)
{
    struct session_options s;
    api_session_options(o, &s);
    s.hidden = true;
    embedder_runner(&s.runner, !h->arch->encoder, o->ctx ? o->ctx : session_context(h),
                    o->streams ? o->streams : 1);
    return session_open(&m->session, store, &s, e) || embedder_open(&m->embedder, m->session, NULL, e) ? -1
                                                                                                       : 0;
}

/* What images need, before there is a model in memory. Without it a model that was not opened for its images reads text. */
static int api_open_eyes(struct quern_model *m, const struct store *store, const struct quern_options *o,
                         bool *none, struct err *e)
{
    *none = !o->mmproj && !vision_found(store);
    if (*none || !api_decoder_open(&m->decoder, e))
        return 0;
    if (o->mmproj)
        return -1;
    log_warn("%s; the model reads only text", e->text);
    *e = (struct err){0};
    *none = true;
    return 0;
}

static int api_open_engine(struct quern_model *m, struct store *store, struct quern_options *o, struct err *e)
{
    struct session_options s;
    uint32_t drafts = o->draft || !o->draft_model ? o->draft : API_DRAFTS;
    api_session_options(o, &s);
    s.runner.snapshots = engine_snapshots(o->streams);
    s.runner.outs = drafts ? RUNNER_CHUNK : 0;
    if (api_open_eyes(m, store, o, &s.no_images, e)) {
        store_close(store);
        return -1;
    }
    if (session_open(&m->session, store, &s, e))
        return -1;
    s.no_images = true;
    s.mmproj = NULL;
    s.runner.ctx = m->session->runner->ctx;
    s.runner.outs = 0;
    s.chat_template = NULL;
    s.loras = 0;
    s.runner.snapshots = (o->streams ? o->streams : 1) * drafts; /* it is cut back by as many tokens */
    if (o->draft_model && (api_store(&store, o->draft_model, o, e) || session_open(&m->draft, store, &s, e)))
        return -1;
    return engine_open(&m->engine, m->session,
                       &(struct engine_options){.queue = o->queue,
                                                .draft = drafts,
                                                .draft_model = m->draft,
                                                .cache_dir = o->cache_dir,
                                                .cache_bytes = o->cache_bytes},
                       e);
}

static int api_open(struct quern_model *m, const char *model, struct quern_options *o, struct err *e)
{
    struct store *store;
    struct hparams h;
    if (api_store(&store, model, o, e))
        return -1;
    if (hparams_read(&h, store, e)) {
        store_close(store);
        return -1;
    }
    int failed =
        o->embed || h.arch->encoder ? api_open_embedder(m, store, &h, o, e) : api_open_engine(m, store, o, e);
    hparams_free(&h);
    return failed;
}

struct quern_model *quern_open(const char *model, const struct quern_options *options,
                               struct quern_error *error)
{
    struct quern_options own;
    struct err e = {0};
    struct quern_model *m = mem_zalloc(1, sizeof *m);
    if (!m)
        err_memory(&e, "the model", sizeof *m);
    else {
        pthread_condattr_t monotonic;
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_mutex_init(&m->mutex, NULL);
        pthread_cond_init(&m->news, &monotonic);
        pthread_condattr_destroy(&monotonic);
        m->ready_end = &m->ready;
        api_options_read(options, &own);
        if (!api_open(m, model, &own, &e))
            return m;
    }
    api_fail(&e, error);
    quern_close(m);
    return NULL;
}

void quern_close(struct quern_model *m)
{
    if (!m)
        return;
    engine_close(m->engine);
    embedder_close(m->embedder);
    session_close(m->draft);
    session_close(m->session);
    api_decoder_close(m->decoder);
    pthread_cond_destroy(&m->news);
    pthread_mutex_destroy(&m->mutex);
    mem_free(m);
}

/* ---- what it is ---- */

static const char *api_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

char *quern_info(struct quern_model *m)
{
    const struct session *l = m->session;
    struct buf out = {0};
    struct json j = {.out = &out};
    json_begin(&j, '{');
    json_key(&j, "path"), json_str(&j, l->store->path);
    json_key(&j, "name"), json_str(&j, api_base_name(l->store->path));
    json_key(&j, "architecture"), json_str(&j, l->model->h.arch->name);
    json_key(&j, "device"), json_str(&j, l->runner->device->ops->name);
    json_key(&j, "context"), json_uint(&j, l->runner->ctx);
    json_key(&j, "vocabulary"), json_uint(&j, l->model->h.vocab);
    json_key(&j, "width"),
        json_uint(&j, m->embedder ? embedder_pooler(m->embedder)->out_width : l->model->h.width);
    json_key(&j, "generates"), json_bool(&j, m->engine != NULL);
    json_key(&j, "chats"), json_bool(&j, m->engine && l->chat);
    json_key(&j, "tools"), json_bool(&j, m->engine && l->chat && chat_capabilities(l->chat).tools);
    json_key(&j, "reasoning"), json_bool(&j, m->engine && l->thought);
    json_key(&j, "images"), json_bool(&j, m->engine && l->vision);
    json_key(&j, "streams"), json_uint(&j, l->runner->most_seqs);
    json_key(&j, "adapters");
    json_begin(&j, '[');
    for (uint32_t i = 0; i < l->adapters.places; i++) {
        const struct session_adapter *a = &l->adapters.all[i]; /* which stay */
        json_begin(&j, '{');
        json_key(&j, "name"), json_str(&j, a->name);
        json_key(&j, "scale"), json_f32(&j, a->scale);
        json_end(&j, '}');
    }
    json_end(&j, ']');
    json_end(&j, '}');
    if (!out.failed)
        return out.data;
    buf_free(&out);
    return NULL;
}
