/* The public header, over the layers below. */
#include "quern.h"

#include "codec/dtype.h"
#include "base/mem.h"
#include "run/embed.h"
#include "run/engine.h"

#include <pthread.h>
#include <string.h>

enum { API_STOPS = 16, API_DRAFTS = 8 };

struct quern_model {
    struct session *session, *draft; /* draft: NULL = none */
    struct engine *engine;           /* NULL with `embed`: then the sequence, under the mutex */
    struct seq *seq;
    struct pooler pooler; /* of the sequence's rows */
    pthread_mutex_t mutex;
};

/* struct quern_stream is only the public name of the engine's streams. */
static struct stream *api_stream(struct quern_stream *s)
{
    return (struct stream *)s;
}

const char *quern_version(void)
{
    return QUERN_VERSION;
}

void quern_free(void *p)
{
    mem_free(p);
}

/* Copies an error to the caller; the caller's pointer may be NULL. */
static int api_fail(const struct err *e, struct quern_error *out)
{
    if (out) {
        _Static_assert(sizeof out->text == sizeof e->text, "the two texts are copied whole");
        out->code = (int)e->code;
        memcpy(out->text, e->text, sizeof out->text);
    }
    return -1;
}

static int api_open(struct quern_model *m, const char *path, const struct quern_options *o, struct err *e)
{
    struct store *store;
    struct session_options lo = {
        .runner = {.device = o->device,
                   .ctx = o->ctx,
                   .seqs = o->streams,
                   .kv_type = DTYPE_F16,
                   .device_options = {.threads = o->threads,
                                      .deterministic = o->deterministic != 0,
                                      .exact = o->exact != 0}},
        .chat_template = o->chat_template,
        .hidden = o->embed != 0,
        .lora = o->lora,
    };
    while (o->lora && o->lora[lo.loras])
        lo.loras++;
    if (!o->embed)
        lo.runner.snapshots = engine_snapshots(o->streams);
    if (o->embed) /* a whole text is one step */
        lo.runner.chunk = lo.runner.outs = UINT32_MAX;
    else if (o->draft || o->draft_model)
        lo.runner.outs = RUNNER_CHUNK;
    if (store_open(&store, path, e) || session_open(&m->session, store, &lo, e))
        return -1;
    if (o->embed)
        return pooler_open(&m->pooler, m->session->store, &m->session->model->h, e) ||
                       !(m->seq = seq_open(m->session->runner, e))
                   ? -1
                   : 0;
    lo.runner.ctx = m->session->runner->ctx;
    lo.runner.outs = 0;
    lo.chat_template = NULL;
    lo.loras = 0;
    uint32_t drafts = o->draft || !o->draft_model ? o->draft : API_DRAFTS;
    lo.runner.snapshots = (o->streams ? o->streams : 1) * drafts; /* it is cut back by as many tokens */
    if (o->draft_model && (store_open(&store, o->draft_model, e) || session_open(&m->draft, store, &lo, e)))
        return -1;
    return engine_open(&m->engine, m->session,
                       &(struct engine_options){.queue = o->queue,
                                                .draft = drafts,
                                                .draft_model = m->draft,
                                                .cache_dir = o->cache_dir,
                                                .cache_bytes = o->cache_bytes},
                       e);
}

struct quern_model *quern_open(const char *path, const struct quern_options *options,
                               struct quern_error *error)
{
    static const struct quern_options none;
    struct err e = {0};
    struct quern_model *m = mem_zalloc(1, sizeof *m);
    if (!m)
        err_memory(&e, "the model", sizeof *m);
    else {
        pthread_mutex_init(&m->mutex, NULL);
        if (!api_open(m, path, options ? options : &none, &e))
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
    seq_close(m->seq);
    pooler_close(&m->pooler);
    session_close(m->draft);
    session_close(m->session);
    pthread_mutex_destroy(&m->mutex);
    mem_free(m);
}

/* The messages of a request as JSON; NULL and an error where they are none. */
static json_t *api_messages(const struct quern_request *r, struct err *e)
{
    json_error_t why;
    json_t *messages;
    if (r->messages) {
        messages = json_loads(r->messages, JSON_REJECT_DUPLICATES, &why);
        if (!messages)
            err_set(e, ERR_USAGE, "messages is not JSON: %s at byte %d", why.text, why.position);
        else if (!json_is_array(messages)) {
            err_set(e, ERR_USAGE, "messages is not a JSON array");
            json_decref(messages);
            messages = NULL;
        }
        return messages;
    }
    messages = json_array();
    int failed = 0;
    if (r->system)
        failed =
            json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "system", "content", r->system));
    failed |= json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", r->prompt));
    if (!failed)
        return messages;
    err_set(e, ERR_USAGE, "the prompt is not valid UTF-8 text");
    json_decref(messages);
    return NULL;
}

static int api_prompt(struct quern_model *m, const struct quern_request *r, struct ids *out, struct err *e)
{
    if (!r->messages + !r->prompt + !r->raw != 2)
        return err_set(e, ERR_USAGE, "one of messages, prompt and raw has to be given");
    if (r->raw)
        return tokenizer_encode(m->session->tokenizer, r->raw, strlen(r->raw), TOK_SPECIAL | TOK_ADD, out, e);
    json_t *messages = api_messages(r, e);
    if (!messages)
        return -1;
    int failed = session_prompt(m->session, &(struct prompt_request){.messages = messages}, out, e);
    json_decref(messages);
    return failed;
}

static void api_sampler(const struct quern_model *m, const struct quern_request *r, struct sampler_params *p)
{
    *p = m->session->defaults;
    p->seed = r->seed;
    p->temperature = r->greedy ? 0 : r->temperature != 0 ? r->temperature : p->temperature;
    p->top_p = r->top_p != 0 ? r->top_p : p->top_p;
    p->min_p = r->min_p != 0 ? r->min_p : p->min_p;
    p->top_k = r->top_k ? r->top_k : p->top_k;
}

static struct constraint *api_language(const struct quern_request *r, struct err *e)
{
    json_error_t why;
    if (r->grammar)
        return constraint_from_gbnf(r->grammar, strlen(r->grammar), e);
    json_t *schema = json_loads(r->json_schema, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    if (!schema) {
        err_set(e, ERR_USAGE, "json_schema is not JSON: %s in line %d", why.text, why.line);
        return NULL;
    }
    struct constraint *c = constraint_from_schema(schema, e);
    json_decref(schema);
    return c;
}

/* The constraint that the request asks for, or NULL. */
static int api_constraint(struct quern_model *m, const struct quern_request *r, struct constraint_ref **out,
                          struct err *e)
{
    *out = NULL;
    if (!r->json_schema && !r->grammar)
        return 0;
    if (r->json_schema && r->grammar)
        return err_set(e, ERR_USAGE, "json_schema and grammar cannot both hold: give one of them");
    const struct constraint_vocab *v = session_vocab(m->session, e);
    struct buf text = {0}; /* of one kind and of the other */
    buf_printf(&text, "%s %s", r->grammar ? "grammar" : "schema", r->grammar ? r->grammar : r->json_schema);
    const struct constraint_cache_key key = {v, text.data, text.len};
    int failed = !v ? -1 : text.failed ? err_memory(e, "a constraint", text.len) : 0;
    if (!failed && !(*out = constraint_cache_find(m->session->constraints, &key))) {
        struct constraint *c = api_language(r, e);
        failed = c ? constraint_ref_open(out, c, v, e) : -1;
        if (!failed)
            constraint_cache_keep(m->session->constraints, &key, *out);
    }
    buf_free(&text);
    return failed;
}

static struct stream *api_submit(struct quern_model *m, const struct quern_request *request, struct err *e)
{
    struct ids prompt = {0};
    struct constraint_ref *constraint = NULL;
    struct stream *s = NULL;
    struct engine_request r = {.most = request->max_tokens,
                               .stop_strings = request->stop,
                               .logprobs = request->logprobs != 0,
                               .echo = request->echo != 0,
                               .prompt_only = request->prompt_only != 0,
                               .seconds = request->seconds,
                               .salt = request->salt};
    if (!m->engine) {
        err_set(e, ERR_USAGE, "the model was opened for embeddings: open it without `embed`");
        return NULL;
    }
    api_sampler(m, request, &r.sampler);
    while (request->stop && request->stop[r.stops] && r.stops < API_STOPS)
        r.stops++;
    if (!api_prompt(m, request, &prompt, e) && !api_constraint(m, request, &constraint, e) &&
        !session_adapt(m->session, request->lora, &r.lora, e)) {
        r.prompt = prompt.data;
        r.n = (uint32_t)prompt.len;
        r.constraint = constraint;
        engine_submit(m->engine, &r, &s, e);
    }
    constraint_ref_drop(constraint);
    ids_free(&prompt);
    return s;
}

struct quern_stream *quern_submit(struct quern_model *m, const struct quern_request *request,
                                  struct quern_error *error)
{
    struct err e = {0};
    struct stream *s = api_submit(m, request, &e);
    if (!s)
        api_fail(&e, error);
    return (struct quern_stream *)s;
}

int quern_next(struct quern_stream *s, double seconds, struct quern_chunk *news, struct quern_error *error)
{
    struct stream_chunk n;
    *news = (struct quern_chunk){.text = ""};
    if (!stream_look(api_stream(s), seconds, &n))
        return 0;
    *news = (struct quern_chunk){
        .text = n.text,
        .text_length = n.text_length,
        .ids = n.ids,
        .logprobs = n.logprobs,
        .count = n.count,
        .echoed = n.echoed,
        .done = n.done,
        .finish_reason = n.done ? finish_name(n.finish) : NULL,
        .prompt_tokens = n.prompt,
        .cached_tokens = n.cached,
        .queued_seconds = n.queued_seconds,
        .first_seconds = n.first_seconds,
        .seconds = n.seconds,
    };
    return n.err.code ? api_fail(&n.err, error) : 1;
}

void quern_cancel(struct quern_stream *s)
{
    stream_cancel(api_stream(s));
}

void quern_stream_close(struct quern_stream *s)
{
    stream_close(api_stream(s));
}

int quern_generate(struct quern_model *m, const struct quern_request *request, struct quern_answer *answer,
                   struct quern_error *error)
{
    struct err e = {0};
    struct buf text = {0};
    struct ids ids = {0};
    struct quern_chunk news = {0};
    struct stream *s = api_submit(m, request, &e);
    if (!s)
        return api_fail(&e, error);
    int failed = 0;
    while (!failed && !news.done) {
        failed = quern_next((struct quern_stream *)s, -1, &news, error) < 0;
        buf_add(&text, news.text, news.text_length);
        for (size_t i = news.echoed; i < news.count && !e.code; i++)
            ids_add(&ids, news.ids[i], &e);
        if (news.text_length && request->text && request->text(request->arg, news.text, news.text_length))
            stream_cancel(s);
    }
    stream_close(s);
    if (!failed && (text.failed || e.code))
        failed = api_fail(&(struct err){.code = ERR_RESOURCE, .text = "out of memory: the answer"}, error);
    if (failed) {
        buf_free(&text);
        ids_free(&ids);
        return -1;
    }
    *answer = (struct quern_answer){.text = text.data,
                                    .text_length = text.len,
                                    .ids = ids.data,
                                    .id_count = ids.len,
                                    .prompt_tokens = news.prompt_tokens,
                                    .cached_tokens = news.cached_tokens,
                                    .finish_reason = news.finish_reason,
                                    .first_seconds = news.first_seconds,
                                    .seconds = news.seconds};
    return 0;
}

long quern_embed(struct quern_model *m, const char *text, size_t n, float **vector, struct quern_error *error)
{
    struct err e = {0};
    struct ids ids = {0};
    uint32_t width = m->pooler.out_width;
    if (!m->seq) {
        err_set(&e, ERR_USAGE, "the model was not opened for embeddings: set `embed`");
        return api_fail(&e, error);
    }
    int failed = embed_encode(m->session, pooler_prompt(&m->pooler, NULL), text, n, &ids, &e);
    if (!failed && !(*vector = mem_alloc(width, sizeof **vector)))
        failed = err_memory(&e, "a vector", width * sizeof **vector);
    if (!failed) {
        pthread_mutex_lock(&m->mutex);
        failed = embed_ids(m->session, m->seq, &m->pooler, &ids, *vector, &e);
        pthread_mutex_unlock(&m->mutex);
        if (failed)
            mem_free(*vector);
    }
    ids_free(&ids);
    return failed ? api_fail(&e, error) : (long)width;
}

void quern_answer_free(struct quern_answer *a)
{
    mem_free(a->text);
    mem_free(a->ids);
    *a = (struct quern_answer){0};
}

long quern_tokenize(struct quern_model *m, const char *text, size_t n, int special, int32_t **ids,
                    struct quern_error *error)
{
    struct err e = {0};
    struct ids out = {0};
    if (tokenizer_encode(m->session->tokenizer, text, n, special ? TOK_SPECIAL | TOK_ADD : 0, &out, &e)) {
        ids_free(&out);
        return api_fail(&e, error);
    }
    *ids = out.data;
    return (long)out.len;
}
