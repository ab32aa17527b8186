/* The public header, over the layers below. */
#include "quern.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "run/generate.h"
#include "run/loaded.h"

#include <string.h>

enum { API_STOPS = 16 };

struct quern_model {
    struct loaded *loaded;
    struct seq *seq;
};

const char *quern_version(void)
{
    return QUERN_VERSION;
}

void quern_free(void *p)
{
    mem_free(p);
}

/* Hands an error over to the caller, who may not want it. */
static int api_fail(const struct err *e, struct quern_error *out)
{
    if (out) {
        _Static_assert(sizeof out->text == sizeof e->text, "the two texts are copied whole");
        out->code = (int)e->code;
        memcpy(out->text, e->text, sizeof out->text);
    }
    return -1;
}

struct quern_model *quern_open(const char *path, const struct quern_options *options,
                               struct quern_error *error)
{
    static const struct quern_options none;
    const struct quern_options *o = options ? options : &none;
    struct err e = {0};
    struct store *store;
    struct quern_model *m = mem_zalloc(1, sizeof *m);
    struct loaded_options lo = {
        .runner = {.device = o->device,
                   .ctx = o->ctx,
                   .kv_type = DTYPE_F16,
                   .device_options = {.threads = o->threads, .exact = o->exact != 0}},
        .chat_template = o->chat_template,
    };
    if (!m)
        err_memory(&e, "the model", sizeof *m);
    else if (!store_open(&store, path, &e) && !loaded_open(&m->loaded, store, &lo, &e))
        m->seq = seq_open(m->loaded->runner, &e);
    if (!e.code)
        return m;
    api_fail(&e, error);
    quern_close(m);
    return NULL;
}

void quern_close(struct quern_model *m)
{
    if (!m)
        return;
    seq_close(m->seq);
    loaded_close(m->loaded);
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
        return tokenizer_encode(m->loaded->tokenizer, r->raw, strlen(r->raw), TOK_SPECIAL | TOK_ADD, out, e);
    json_t *messages = api_messages(r, e);
    if (!messages)
        return -1;
    int failed = loaded_prompt(m->loaded, &(struct prompt_request){.messages = messages}, out, e);
    json_decref(messages);
    return failed;
}

struct relay {
    const struct quern_request *request;
    volatile int cancel;
};

static void api_text(void *arg, const char *text, size_t n)
{
    struct relay *r = arg;
    if (r->request->text && r->request->text(r->request->arg, text, n))
        r->cancel = 1;
}

static void api_sampler(const struct quern_model *m, const struct quern_request *r, struct sampler_params *p)
{
    *p = m->loaded->defaults;
    p->seed = r->seed;
    p->temperature = r->greedy ? 0 : r->temperature != 0 ? r->temperature : p->temperature;
    p->top_p = r->top_p != 0 ? r->top_p : p->top_p;
    p->min_p = r->min_p != 0 ? r->min_p : p->min_p;
    p->top_k = r->top_k ? r->top_k : p->top_k;
}

/* Moves the generation into the answer, which takes over its memory. */
static void api_answer(struct generation *g, struct quern_answer *a)
{
    *a = (struct quern_answer){
        .text = g->text.data ? g->text.data : mem_strdup(""),
        .text_length = g->text.len,
        .ids = g->ids.data,
        .id_count = g->ids.len,
        .prompt_tokens = g->prompt,
        .cached_tokens = g->cached,
        .finish_reason = finish_name(g->finish),
        .prompt_seconds = g->prompt_seconds,
        .decode_seconds = g->decode_seconds,
    };
    *g = (struct generation){0};
}

int quern_generate(struct quern_model *m, const struct quern_request *request, struct quern_answer *answer,
                   struct quern_error *error)
{
    struct err e = {0};
    struct ids prompt = {0};
    struct generation g = {0};
    struct relay relay = {.request = request};
    struct generate_options o = {
        .most = request->max_tokens,
        .stop_strings = request->stop,
        .stop_ids = m->loaded->stop_ids,
        .stop_id_count = m->loaded->stops,
        .text = api_text,
        .arg = &relay,
        .feed = {.cancel = &relay.cancel},
    };
    api_sampler(m, request, &o.sampler);
    while (request->stop && request->stop[o.stops] && *request->stop[o.stops] && o.stops < API_STOPS)
        o.stops++;
    int failed = api_prompt(m, request, &prompt, &e) ||
                 generate(m->seq, m->loaded->tokenizer, prompt.data, (uint32_t)prompt.len, &o, &g, &e);
    if (!failed)
        api_answer(&g, answer);
    generation_free(&g);
    ids_free(&prompt);
    return failed ? api_fail(&e, error) : 0;
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
    if (tokenizer_encode(m->loaded->tokenizer, text, n, special ? TOK_SPECIAL | TOK_ADD : 0, &out, &e)) {
        ids_free(&out);
        return api_fail(&e, error);
    }
    *ids = out.data;
    return (long)out.len;
}
