#define _GNU_SOURCE
#include "run/session.h"

#include "base/clock.h"
#include "codec/dtype.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/buf.h"
#include "base/num.h"
#include "device/device.h"
#include "model/lora.h"
#include "quant/load.h"
#include "run/defaults.h"
#include "run/image_text.h"
#include "run/memory.h"
#include "run/preset.h"
#include "run/reasoning.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>

/* Where the rotary scaling depends on the context, the length that the model was first trained with: short
 * texts have the best quality there. */
uint32_t session_context(const struct hparams *h)
{
    const struct rope_params *r = &h->rope[0];
    uint32_t ctx = h->context && h->context < SESSION_CTX ? h->context : SESSION_CTX;
    bool depends = r->scaling == SCALING_LONGROPE || r->scaling == SCALING_DYNAMIC;
    return depends && r->original && r->original < ctx ? r->original : ctx;
}

/* A context no larger than the table of positions, where the model has one: no step could go beyond it. */
static void session_positions(const struct session *l, uint32_t *ctx)
{
    const uint32_t most = plan_positions(&l->model->plan, &l->model->weights);
    if (*ctx <= most)
        return;
    log_warn("a context of %u tokens is more than the %u positions that the model has learnt: it is %u", *ctx,
             most, most);
    *ctx = most;
}

/* Makes the final rows the result, in place of logits. */
static void session_hide_head(struct model *m)
{
    for (uint32_t i = 0; i < m->plan.count; i++)
        if (m->plan.ops[i].kind == OP_LOGITS) {
            struct op_logits *o = &m->plan.ops[i].logits;
            o->head = (struct linear){0}; /* its scale and its cap are not for rows */
            o->scale = 1;
            o->softcap = 0;
        }
    m->plan.out_width = m->h.width;
}

/* The tower runs where the text model does; a card that is shared with the CPU has the tower, too. */
static int session_vision(struct session *l, const struct session_options *o, struct err *e)
{
    struct err none = {0};
    const char *device = o->runner.device ? o->runner.device : cuda_count(&none) > 0 ? "cuda" : "cpu";
    const struct vision_options with = {
        .mmproj = o->mmproj, .device = device, .device_options = o->runner.device_options};
    if (o->hidden || o->no_images)
        return 0;
    if (vision_open(&l->tower, l->store, &with, e))
        return -1;
    l->vision = l->tower ? &l->tower->tower->v : NULL;
    return 0;
}

static int session_model(struct session *l, uint32_t *ctx, const struct session_options *o, struct err *e)
{
    if (!*ctx) {
        struct hparams h;
        if (hparams_read(&h, l->store, e))
            return -1;
        *ctx = session_context(&h);
        hparams_free(&h);
    }
    if (session_vision(l, o, e))
        return -1;
    struct model_options m = {.ctx = *ctx, .describe = o->quant != NULL, .images = vision_images(l->tower)};
    m.make.threads = o->runner.device_options.threads;
    m.make.progress = o->runner.progress;
    m.make.arg = o->runner.progress_arg;
    if (model_open(&l->model, l->store, &m, e) || (o->quant && quant_load(l->model, o->quant, &m.make, e)))
        return -1;
    session_positions(l, ctx);
    if (o->hidden)
        session_hide_head(l->model);
    return vision_fits(l->tower, l->model, e);
}

static void digest_weight(struct digest *d, const struct weight *w)
{
    const uint32_t shape[] = {w->type, w->rows, w->cols, w->count};
    size_t bytes = 0;
    dtype_row_bytes(w->type, w->cols, &bytes);
    digest_add(d, shape, sizeof shape);
    bool packed = w->row_bytes == bytes;
    for (uint32_t m = 0; m < w->count; m++)
        for (uint32_t r = 0; r < w->rows; r += packed ? w->rows : 1)
            digest_add(d, w->data + m * w->each_bytes + r * w->row_bytes, packed ? w->rows * bytes : bytes);
}

struct digest session_digest(const struct session *l)
{
    struct digest d = {0};
    const struct runner *r = l->runner;
    const struct device_options *o = &r->device_options;
    struct buf text = {0};
    plan_print(&l->model->plan, &l->model->weights, &text);
    buf_printf(&text, "%s %s kv %u page %d exact %d activations %d fixed %d", r->device->ops->name,
               cpu_tier(o->tier), r->kv_type, RUNNER_PAGE, o->exact, o->activations, o->deterministic);
    for (uint32_t g = 0; g < r->plan->groups; g++)
        buf_printf(&text, " %zu", r->device->ops->page_bytes(r->device, g));
    if (r->plan->states)
        buf_printf(&text, " state %zu", r->device->ops->state_bytes(r->device));
    digest_add(&d, text.data, text.len);
    const uint32_t own = l->model->own_weights; /* adapters are in the salt */
    for (uint32_t i = 1; i < (own ? own : l->model->weights.count); i++)
        digest_weight(&d, &l->model->weights.all[i]);
    for (uint32_t i = 1; l->tower && i < l->tower->tower->model.weights.count;
         i++) /* rows of images are its work */
        digest_weight(&d, &l->tower->tower->model.weights.all[i]);
    buf_free(&text);
    return d;
}

static bool session_on_cpu(const struct runner_options *r)
{
    struct err none = {0};
    return r->device ? !strcmp(r->device, "cpu") : cuda_count(&none) <= 0;
}

/* Refuses a model that can never fit, with both figures, and sets how much free memory is for KV. Repacked
 * weights are anonymous memory, which the system cannot drop as it can the file's pages: weights are repacked
 * only where there is room. */
static int session_fits(struct session *l, struct runner_options *r, bool made, struct err *e)
{
    struct memory m;
    memory_read(&m);
    double kv = r->kv_bytes ? (double)r->kv_bytes
                            : (double)runner_kv_bytes(&l->model->plan, r,
                                                      r->pages ? r->pages : runner_pages_least(r));
    if (l->model->plan.states)
        kv += (double)(r->state_bytes ? r->state_bytes
                                      : runner_state_bytes(&l->model->plan) * (r->seqs ? r->seqs : 1));
    double weights = (made ? 0 : (double)l->store->bytes) + (double)l->model->converted;
    if (m.total && session_on_cpu(r) && weights + kv > (double)m.total)
        return err_set(
            e, ERR_RESOURCE,
            "the model needs %.2f GB (weights %.2f, a context of %u tokens %.2f) and there are %.2f GB of "
            "memory; a smaller model, or --ctx, helps",
            1e-9 * (weights + kv), 1e-9 * weights, r->ctx, 1e-9 * kv, 1e-9 * (double)m.total);
    double room = (double)memory_for_model(&m) - weights;
    if (kv > room)
        r->device_options.no_repack = true;
    r->kv_free = room > 1 ? (uint64_t)room : 1;
    return 0;
}

static int session_text(struct session *l, const char *chat_template, struct err *e)
{
    if (tokenizer_open(&l->tokenizer, l->store, e))
        return -1;
    if (chat_open(&l->chat, l->store, chat_template, &l->chat_why))
        l->chat = NULL;
    /* a template that was asked for has to work; the model's own may be missing until it is needed */
    if (!l->chat && chat_template) {
        *e = l->chat_why;
        return -1;
    }
    return 0;
}

/* Is it a control token that calls or reasoning are written with? */
static bool session_is_mark(const struct session *l, int32_t id)
{
    size_t n = 0;
    if (tokenizer_attr(l->tokenizer, id) != TOK_CONTROL)
        return false;
    const char *text = tokenizer_token_bytes(l->tokenizer, id, &n);
    return output_has_mark(l->form, l->thought, text, n);
}

/* How the model writes calls and reasoning: what was asked for, or what the template says. */
static int session_reply(struct session *l, const struct session_options *o, struct err *e)
{
    const char *text = l->chat ? chat_text(l->chat) : "";
    bool none = o->reasoning && !strcmp(o->reasoning, "none");
    /* a template without tools gets them as text, which asks for the general form */
    bool knows = l->chat && chat_capabilities(l->chat).tools;
    l->form = o->tool_parser ? output_form_named(o->tool_parser, e) : output_form_find(knows ? text : "");
    l->thought = none           ? NULL
                 : o->reasoning ? output_thought_named(o->reasoning, e)
                                : output_thought_find(text);
    if (!l->form || (!l->thought && !none))
        return -1;
    for (int32_t id = 0; id < tokenizer_vocab(l->tokenizer) && !l->marks_hidden; id++)
        l->marks_hidden = session_is_mark(l, id);
    return 0;
}

static uint64_t session_kv_bytes(const struct runner *r)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < r->plan->groups; g++) /* without page 0, which is trash */
        bytes += (uint64_t)(r->pages[g].count - 1) * r->device->ops->page_bytes(r->device, g);
    return bytes;
}

static int session_intact(void *arg, struct err *e)
{
    const struct session *l = arg;
    return store_check(l->store, e);
}

bool session_is_changed(const struct session *l)
{
    return store_is_changed(l->store) && l->runner->intact;
}

/* A step has room for the image tokens that have to be in one. */
static int session_whole(const struct session *l, struct runner_options *r)
{
    r->whole = vision_images(l->tower).whole;
    return 0;
}

int session_open(struct session **out, struct store *store, const struct session_options *o, struct err *e)
{
    double start = clock_now();
    struct runner_options r = o->runner;
    struct session *l = mem_zalloc(1, sizeof *l);
    *out = NULL;
    if (o->lock) /* locking would take the room for it at once */
        r.device_options.no_repack = true;
    if (!l) {
        store_close(store);
        return err_memory(e, "the model", sizeof *l);
    }
    l->store = store;
    r.no_pin |= store_is_private(store);
    pthread_mutex_init(&l->lock, NULL);
    adapters_init(&l->adapters);
    sampler_defaults(&l->defaults);
    l->reasoning_budget = o->reasoning_limited ? o->reasoning_budget : REASONING_UNLIMITED;
    if (defaults_sampling(store, &l->defaults, e) || preset_apply(l, o->preset, e) ||
        constraint_cache_open(&l->constraints, CONSTRAINT_CACHE_BYTES, e) || session_model(l, &r.ctx, o, e) ||
        adapters_open(l, o, session_on_cpu(&r), e) || session_fits(l, &r, o->quant != NULL, e) ||
        (!o->no_text && (session_text(l, o->chat_template, e) || session_reply(l, o, e))) ||
        session_whole(l, &r) || runner_open(&l->runner, &l->model->plan, &l->model->weights, &r, e) ||
        defaults_stops(store, l->model->h.vocab, &l->stop_ids, &l->stops, e) ||
        sampler_room_open(&l->sampler_room, l->model->plan.out_width, e) || session_intact(l, e)) {
        session_close(l);
        return -1;
    }
    l->kv_bytes = session_kv_bytes(l->runner);
    if (!device_is_cuda(l->runner->device)) { /* a GPU needs no mapped file */
        l->runner->intact = session_intact;
        l->runner->intact_arg = l;
    }
    if (o->lock && mlockall(MCL_CURRENT))
        log_warn("the model cannot be locked in memory (--mlock): %s; 'ulimit -l' prints the limit",
                 strerror(errno));
    l->seconds = clock_now() - start;
    *out = l;
    return 0;
}

void session_close(struct session *l)
{
    if (!l)
        return;
    runner_close(l->runner);
    vision_close(l->tower);
    sampler_room_close(l->sampler_room);
    constraint_cache_close(l->constraints);
    constraint_vocab_close(l->vocab);
    constraint_vocab_close(l->call_vocab);
    pthread_mutex_destroy(&l->lock);
    chat_close(l->chat);
    tokenizer_close(l->tokenizer);
    model_close(l->model);
    adapters_close(&l->adapters);
    store_close(l->store);
    json_decref(l->preset);
    mem_free(l->preset_stops);
    mem_free(l->stop_ids);
    mem_free(l);
}

bool session_ends(const struct session *l, int32_t id)
{
    for (size_t i = 0; i < l->stops; i++)
        if (l->stop_ids[i] == id)
            return true;
    return l->tokenizer && tokenizer_is_eog(l->tokenizer, id);
}

static const char *session_token_bytes(const void *of, int32_t id, size_t *n)
{
    const struct session *l = of;
    *n = 0;
    return id < tokenizer_vocab(l->tokenizer) ? tokenizer_token_bytes(l->tokenizer, id, n) : "";
}

static enum constraint_kind session_token_kind(const void *of, int32_t id)
{
    const struct session *l = of;
    if (session_ends(l, id))
        return CONSTRAINT_END;
    /* the head may have more rows than the tokenizer has tokens */
    return id < tokenizer_vocab(l->tokenizer) ? constraint_token_kind(l->tokenizer, id) : CONSTRAINT_NEVER;
}

static enum constraint_kind session_mark_kind(const void *of, int32_t id)
{
    const struct session *l = of;
    enum constraint_kind kind = session_token_kind(of, id);
    bool mark = kind == CONSTRAINT_NEVER && id < tokenizer_vocab(l->tokenizer) && session_is_mark(l, id);
    return mark ? CONSTRAINT_TEXT : kind;
}

/* Created on first use. */
static const struct constraint_vocab *
session_make_vocab(struct session *l, struct constraint_vocab **v,
                   enum constraint_kind (*kind)(const void *of, int32_t id), struct err *e)
{
    if (!l->tokenizer) {
        err_set(e, ERR_USAGE, "a constraint needs a tokenizer, and this model was opened without one");
        return NULL;
    }
    pthread_mutex_lock(&l->lock);
    if (!*v)
        *v = constraint_vocab_open(&(struct constraint_source){.count = (int32_t)l->model->plan.out_width,
                                                               .of = l,
                                                               .bytes = session_token_bytes,
                                                               .kind = kind},
                                   e);
    pthread_mutex_unlock(&l->lock);
    return *v;
}

const struct constraint_vocab *session_vocab(struct session *l, struct err *e)
{
    return session_make_vocab(l, &l->vocab, session_token_kind, e);
}

const struct constraint_vocab *session_call_vocab(struct session *l, struct err *e)
{
    return l->marks_hidden ? session_make_vocab(l, &l->call_vocab, session_mark_kind, e)
                           : session_vocab(l, e);
}

/* Text with pictures to ids, and the places of the pictures. */
static int session_encode(const struct session *l, const struct prompt_request *r, const struct image_text *t,
                          unsigned flags, struct ids *out, struct err *e)
{
    return tokenizer_encode_spans(l->tokenizer, t->spans, t->count, flags, out, e) ||
                   picture_place(r->images, r->pictures, r->picture_count, out->data, out->len,
                                 image_token(l), e)
               ? -1
               : 0;
}

/* The template wrote BOS and the like itself: nothing is added. */
static int session_encode_spans(const struct session *l, const struct prompt_request *r,
                                const struct spans *spans, const char *mark, struct ids *out, struct err *e)
{
    if (r->picture_count) {
        struct image_text t;
        if (image_text_chat(&t, l, spans, mark, r->pictures, r->picture_count, e))
            return -1;
        int failed = session_encode(l, r, &t, TOK_SPECIAL, out, e);
        image_text_free(&t);
        return failed;
    }
    struct tok_span *parts = mem_alloc(spans->count, sizeof *parts);
    for (size_t i = 0; parts && i < spans->count; i++)
        parts[i] = (struct tok_span){spans->items[i].text, spans->items[i].n, spans->items[i].from_template};
    int failed = parts ? tokenizer_encode_spans(l->tokenizer, parts, spans->count, TOK_SPECIAL, out, e)
                       : err_memory(e, "the prompt", spans->count * sizeof *parts);
    mem_free(parts);
    return failed;
}

static int session_sees(const struct session *l, const struct prompt_request *r, struct err *e)
{
    return r->picture_count && !l->vision ? err_set(e, ERR_DATA, "this model reads only text, no images") : 0;
}

int session_prompt(const struct session *l, const struct prompt_request *r, struct ids *out, struct err *e)
{
    struct spans spans = {0};
    time_t now = time(NULL);
    uint64_t random = 0;
    char mark[64]; /* unknown to whoever wrote the messages */
    struct chat_request request = {.messages = r->messages,
                                   .tools = r->tools,
                                   .extra = r->set,
                                   .no_generation_prompt = r->no_generation_prompt,
                                   .continue_final = r->continue_final,
                                   .image_mark = r->picture_count ? mark : NULL};
    if (!l->chat) {
        *e = l->chat_why;
        return -1;
    }
    if (session_sees(l, r, e))
        return -1;
    if (r->picture_count && getrandom(&random, sizeof random, 0) != sizeof random)
        return err_set(e, ERR_RESOURCE, "the system gives no random number");
    snprintf(mark, sizeof mark, "quern-image-%016llx", (unsigned long long)random);
    localtime_r(&now, &request.now);
    json_t *all = l->preset ? preset_messages(l, r->messages) : NULL;
    if (l->preset && !all)
        return err_memory(e, "the messages", 64);
    request.messages = all ? all : r->messages;
    int bad = chat_render(l->chat, &request, &spans, e);
    json_decref(all);
    if (bad)
        return -1;
    int failed = session_encode_spans(l, r, &spans, mark, out, e);
    spans_free(&spans);
    return failed;
}

int session_plain_prompt(const struct session *l, const struct prompt_request *r, const char *text, size_t n,
                         bool bare, struct ids *out, struct err *e)
{
    struct image_text t;
    unsigned flags = TOK_SPECIAL | (bare ? 0 : TOK_ADD);
    if (!r->picture_count)
        return tokenizer_encode(l->tokenizer, text, n, flags, out, e);
    if (session_sees(l, r, e) || image_text_plain(&t, l, text, n, r->pictures, r->picture_count, e))
        return -1;
    int failed = session_encode(l, r, &t, flags, out, e);
    image_text_free(&t);
    return failed;
}
