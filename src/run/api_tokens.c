/* The public library: vectors, logits, and text to tokens and back. */
#define _GNU_SOURCE
#include "run/api.h"

#include "base/log.h"
#include "base/mem.h"
#include "run/embed.h"

#include <string.h>

/* ---- vectors ---- */

struct api_wait {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool done;
};

static void api_wait_done(void *arg)
{
    struct api_wait *w = arg;
    pthread_mutex_lock(&w->mutex);
    w->done = true;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->mutex);
}

/* Submits the texts and waits for their vectors. */
static int api_embed_ids(struct quern_model *m, const struct ids *texts, size_t count, float *out,
                         struct err *e)
{
    struct api_wait w = {.done = false};
    struct embed_job job = {.texts = texts, .count = count, .out = out, .done = api_wait_done, .arg = &w};
    pthread_mutex_init(&w.mutex, NULL);
    pthread_cond_init(&w.cond, NULL);
    int failed = embedder_submit(m->embedder, &job, e);
    if (!failed) {
        pthread_mutex_lock(&w.mutex);
        while (!w.done)
            pthread_cond_wait(&w.cond, &w.mutex);
        pthread_mutex_unlock(&w.mutex);
        failed = job.err.code ? err_set(e, job.err.code, "%s", job.err.text) : 0;
    }
    pthread_cond_destroy(&w.cond);
    pthread_mutex_destroy(&w.mutex);
    return failed;
}

static int api_embed(struct quern_model *m, const char *const *texts, const size_t *lengths, size_t count,
                     const char *name, float **vectors, struct err *e)
{
    *vectors = NULL;
    if (!m->embedder)
        return err_set(e, ERR_USAGE, "the model was not opened for embeddings: set `embed`");
    if (!count)
        return err_set(e, ERR_USAGE, "there are no texts to embed");
    const struct pooler *p = embedder_pooler(m->embedder);
    const char *prompt = pooler_prompt(p, name);
    if (!prompt)
        return err_set(e, ERR_USAGE, "the model has no prompt called '%s'", log_safe(name));
    struct ids *ids = mem_zalloc(count, sizeof *ids);
    *vectors = mem_alloc(count, p->out_width * sizeof **vectors);
    int failed = !ids || !*vectors ? err_memory(e, "vectors", count * p->out_width * sizeof **vectors) : 0;
    for (size_t i = 0; i < count && !failed; i++)
        failed = embed_encode(m->session, prompt, texts[i], lengths[i], &ids[i], e);
    failed = failed || api_embed_ids(m, ids, count, *vectors, e);
    for (size_t i = 0; ids && i < count; i++)
        ids_free(&ids[i]);
    mem_free(ids);
    if (!failed)
        return 0;
    mem_free(*vectors);
    *vectors = NULL;
    return -1;
}

long quern_embed_many(struct quern_model *m, const char *const *texts, const size_t *lengths, size_t count,
                      const char *prompt, float **vectors, struct quern_error *error)
{
    struct err e = {0};
    return api_embed(m, texts, lengths, count, prompt, vectors, &e)
               ? api_fail(&e, error)
               : (long)embedder_pooler(m->embedder)->out_width;
}

long quern_embed(struct quern_model *m, const char *text, size_t n, float **vector, struct quern_error *error)
{
    return quern_embed_many(m, &text, &n, 1, NULL, vector, error);
}

/* ---- logits ---- */

static int api_logits(struct quern_model *m, struct engine_request *r, const char *lora, float **out,
                      struct err *e)
{
    struct stream *s;
    struct stream_chunk c = {0};
    r->sampler = m->session->defaults;
    r->prompt_only = true;
    if (session_adapt(m->session, lora, &r->lora, e) || engine_submit(m->engine, r, &s, e))
        return -1;
    while (!c.done)
        stream_look(s, -1, &c);
    *out = stream_take_logits(s);
    stream_close(s);
    if (c.err.code)
        return err_set(e, c.err.code, "%s", c.err.text);
    return *out ? 0 : err_set(e, ERR_INTERRUPTED, "the model was closed before the logits were there");
}

long quern_logits(struct quern_model *m, const int32_t *ids, size_t n, size_t first, const char *lora,
                  float **logits, struct quern_error *error)
{
    struct err e = {0};
    *logits = NULL;
    if (!m->engine)
        err_set(&e, ERR_USAGE, "the model is open for embeddings only: it has no logits");
    else if (first >= n || n > m->session->runner->ctx)
        err_set(&e, ERR_USAGE, "%zu tokens from %zu on: there have to be some, at most %u", n, first,
                m->session->runner->ctx);
    else {
        struct engine_request r = {.prompt = ids, .n = (uint32_t)n, .logit_rows = (uint32_t)(n - first)};
        if (!api_logits(m, &r, lora, logits, &e))
            return (long)(n - first);
    }
    return api_fail(&e, error);
}

/* ---- tokens ---- */

/* Gives the ids to the caller, or fails. */
static long api_ids(struct ids *from, int failed, const struct err *e, int32_t **ids,
                    struct quern_error *error)
{
    *ids = NULL;
    if (!failed) {
        *ids = from->data;
        return (long)from->len;
    }
    ids_free(from);
    return api_fail(e, error);
}

long quern_tokenize(struct quern_model *m, const char *text, size_t n, int special, int32_t **ids,
                    struct quern_error *error)
{
    struct err e = {0};
    struct ids out = {0};
    int failed =
        tokenizer_encode(m->session->tokenizer, text, n, special ? TOK_SPECIAL | TOK_ADD : 0, &out, &e);
    return api_ids(&out, failed, &e, ids, error);
}

long quern_prompt(struct quern_model *m, const struct quern_request *request, int32_t **ids,
                  struct quern_error *error)
{
    struct err e = {0};
    struct ids out = {0};
    struct quern_request own;
    api_request_read(request, &own);
    int failed = api_request_prompt(m, &own, &out, &e);
    return api_ids(&out, failed, &e, ids, error);
}

long quern_detokenize(struct quern_model *m, const int32_t *ids, size_t n, int special, char **text,
                      struct quern_error *error)
{
    struct err e = {0};
    struct buf out = {0};
    *text = NULL;
    int failed = tokenizer_decode(m->session->tokenizer, ids, n, !special, &out, &e);
    if (!failed && (out.failed || !buf_str(&out, "")))
        failed = err_memory(&e, "the text", out.len);
    if (failed) {
        buf_free(&out);
        return api_fail(&e, error);
    }
    *text = out.data;
    return (long)out.len;
}
