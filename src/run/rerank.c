#define _GNU_SOURCE
#include "run/rerank.h"

#include "base/log.h"
#include "base/mem.h"
#include "codec/dtype.h"
#include "format/gguf.h"
#include "format/jsonread.h"
#include "format/modules.h"
#include "lang/chat/chat_load.h"
#include "model/arch.h"
#include "model/lookup.h"
#include "run/pooler.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum rerank_act { RERANK_TANH, RERANK_RELU, RERANK_GELU };

/* out . norm(act(dense . row + dense_bias)) + bias; without dense: out . row + bias */
struct rerank_head {
    uint32_t width;
    enum pooling pooling;
    float *dense;            /* (width, width), or NULL */
    float *dense_bias;       /* (width), or NULL */
    enum rerank_act act;     /* after dense */
    float *norm, *norm_bias; /* (width): LayerNorm, or NULL */
    float eps;
    float *out; /* (width) */
    float bias;
    char *prompt;  /* the text of a pair, with {query}, {document} and {instruction}; NULL: a pair of texts */
    bool messages; /* the chat template takes messages of the roles query and document */
};

/* The parts, by what GGUF calls them, and what folders do. */
static const char *const rerank_dense[] = {"cls",   "classifier.dense",  "head.dense",       "pre_classifier",
                                           "dense", "bert.pooler.dense", "gte.pooler.dense", "pooler.dense",
                                           NULL};
static const char *const rerank_norm[] = {"cls.norm", "head.norm", NULL};
static const char *const rerank_out[] = {"cls.output", "classifier.out_proj", "classifier", "score", NULL};

/* What the decoders that answer "yes" or "no" were trained with. */
static const char rerank_question[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    "Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n";
static const char rerank_instruction[] =
    "Given a web search query, retrieve relevant passages that answer the query";

static const struct tensor *rerank_find(const struct store *s, const char *const *names, const char *suffix)
{
    const struct tensor *t = NULL;
    for (; *names && !t; names++) {
        char name[128];
        snprintf(name, sizeof name, "%s.%s", *names, suffix);
        t = store_find(s, name);
    }
    return t;
}

/* ---- heads with one result ---- */

static int rerank_fill(struct rerank_head *h, const struct store *s, const struct tensor *out, struct err *e)
{
    const struct tensor *dense = rerank_find(s, rerank_dense, "weight"),
                        *dense_bias = rerank_find(s, rerank_dense, "bias"),
                        *norm = rerank_find(s, rerank_norm, "weight"),
                        *norm_bias = rerank_find(s, rerank_norm, "bias"),
                        *bias = rerank_find(s, rerank_out, "bias");
    uint64_t width = h->width;
    if (!(h->out = pooler_floats(out, width, e)))
        return -1;
    if ((dense && !(h->dense = pooler_floats(dense, width * width, e))) ||
        (dense && dense_bias && !(h->dense_bias = pooler_floats(dense_bias, width, e))) ||
        (norm && !(h->norm = pooler_floats(norm, width, e))) ||
        (norm && norm_bias && !(h->norm_bias = pooler_floats(norm_bias, width, e))))
        return -1;
    float *one = bias ? pooler_floats(bias, 1, e) : NULL;
    if (bias && !one)
        return -1;
    h->bias = one ? *one : 0;
    mem_free(one);
    return 0;
}

/* Which row, and what follows the dense layer, by the family. */
static int rerank_family(struct rerank_head *h, const struct session *l, bool *late, struct err *e)
{
    const struct hparams *p = &l->model->h;
    const char *name = p->arch->name;
    struct keys k = {.gguf = l->store->gguf, .prefix = p->spelled, .config = l->store->config};
    bool modern = !strcmp(name, "modern-bert"), euro = !strcmp(name, "eurobert");
    char pooling[16] = "";
    h->pooling = p->causal ? POOLING_LAST : POOLING_CLS;
    h->act = modern || euro ? RERANK_GELU : !strcmp(name, "distilbert") ? RERANK_RELU : RERANK_TANH;
    h->eps = p->eps;
    if ((modern || euro) && keys_str(&k, NULL, "classifier_pooling", pooling, sizeof pooling, e) < 0)
        return -1;
    if (!strcmp(pooling, "mean") || (modern && k.gguf))
        h->pooling = POOLING_MEAN;
    *late = euro && (!*pooling || !strcmp(pooling, "late"));
    return 0;
}

/* ---- "yes" and "no" ---- */

static int rerank_row(const struct session *l, int64_t id, float *row, struct err *e)
{
    struct lookup names;
    const struct hparams *h = &l->model->h;
    lookup_open(&names, l->store, "");
    const struct tensor_at head = {"output", LOOKUP_NO_LAYER, LOOKUP_NO_EXPERT},
                           table = {"token_embd", LOOKUP_NO_LAYER, LOOKUP_NO_EXPERT};
    const struct tensor *t = h->tied ? NULL : lookup_find(&names, head, ".weight");
    t = t ? t : lookup_find(&names, table, ".weight");
    const struct dtype_info *type = t ? dtype_get(t->type) : NULL;
    if (!type || !type->decode || t->shape[0] != h->width || h->width % type->block_values || id < 0 ||
        (uint64_t)id >= t->shape[1])
        return err_set(e, ERR_DATA, "the head has no row for token %lld, whose logit is the score",
                       (long long)id);
    type->decode(t->data + (size_t)id * (t->bytes / t->shape[1]), row, h->width);
    return 0;
}

/* The score is logit(yes) - logit(no); no < 0: logit(yes). */
static int rerank_yes_no(struct rerank_head *h, const struct session *l, int64_t yes, int64_t no,
                         struct err *e)
{
    float *other = mem_zalloc(h->width, sizeof *other);
    h->out = mem_alloc(h->width, sizeof *h->out);
    int failed = !other || !h->out
                     ? err_memory(e, "the head", h->width * sizeof *other)
                     : rerank_row(l, yes, h->out, e) || (no >= 0 && rerank_row(l, no, other, e));
    for (uint32_t i = 0; !failed && i < h->width; i++)
        h->out[i] -= other[i];
    mem_free(other);
    h->pooling = POOLING_LAST;
    return failed ? -1 : 0;
}

/* The two rows of a GGUF's head: yes and no. */
static int rerank_two(struct rerank_head *h, const struct tensor *t, struct err *e)
{
    float *both = pooler_floats(t, 2ull * h->width, e);
    h->out = mem_alloc(h->width, sizeof *h->out);
    if (both && !h->out)
        err_memory(e, "the head", h->width * sizeof *both);
    for (uint32_t i = 0; both && h->out && i < h->width; i++)
        h->out[i] = both[i] - both[h->width + i];
    mem_free(both);
    h->pooling = POOLING_LAST;
    return e->code ? -1 : 0;
}

/* The module LogitScore of a folder: 1 = it has one, with *yes and *no; -1 = an error. */
static int rerank_module(const struct store *s, int64_t *yes, int64_t *no, struct err *e)
{
    struct modules m;
    const double range[2] = {-1, 1 << 26};
    const char *kind;
    bool found = false;
    if (modules_open(&m, s, e))
        return -1;
    for (size_t i = 0; !found && !e->code && (kind = modules_kind(&m, i)); i++) {
        json_t *config = strcmp(kind, "LogitScore") ? NULL : modules_config(&m, i, e);
        struct jsonread r = {config, "LogitScore's config.json", e};
        if (!config)
            continue;
        *yes = (int64_t)jsonread_number(&r, config, "true_token_id", range, -1);
        *no = (int64_t)jsonread_number(&r, config, "false_token_id?", range, -1);
        found = true;
        json_decref(config);
    }
    modules_close(&m);
    return e->code ? -1 : found;
}

/* Published as a plain decoder: its name says what it is. */
static bool rerank_is_named(const struct session *l)
{
    struct gguf_str name = {0};
    struct err ignored = {0};
    static const char word[] = "reranker";
    if (strncmp(l->model->h.arch->name, "qwen3", 5) != 0)
        return false;
    for (const char *at = l->store->path; (at = strcasestr(at, word)); at++)
        return true;
    if (l->store->gguf && gguf_get_str(l->store->gguf, "general.name", &name, &ignored) == 1)
        for (size_t i = 0; i + sizeof word - 1 <= name.n; i++)
            if (!strncasecmp(name.s + i, word, sizeof word - 1))
                return true;
    return false;
}

/* The text around a pair: a template of the file, or the usual one. */
static int rerank_prompt(struct rerank_head *h, const struct session *l, struct err *e)
{
    json_t *all = chat_load_templates(l->store, e);
    const char *own = json_string_value(json_object_get(all, "rerank"));
    const char *chat = json_string_value(json_object_get(all, "default"));
    h->messages = !own && l->chat && chat && strstr(chat, "\"query\"") && strstr(chat, "\"document\"");
    h->prompt = all ? mem_strdup(own ? own : rerank_question) : NULL;
    if (all && !h->prompt)
        err_memory(e, "the prompt", sizeof rerank_question);
    json_decref(all);
    return h->prompt ? 0 : -1;
}

/* ---- open and close ---- */

static int rerank_read(struct rerank_head *h, const struct session *l, bool *is, struct err *e)
{
    const struct tensor *last = rerank_find(l->store, rerank_out, "weight");
    const bool decoder = l->model->h.causal;
    int64_t yes = -1, no = -1;
    bool late = false;
    if (last && last->values == h->width) {
        if (rerank_family(h, l, &late, e))
            return -1;
        *is = !late;
        if (late)
            log_warn("the scores of this model are means of all rows' scores, which is not supported");
        return late ? 0 : rerank_fill(h, l->store, last, e);
    }
    if (!decoder || !l->tokenizer)
        return 0;
    int module = rerank_module(l->store, &yes, &no, e);
    if (module < 0)
        return -1;
    if (!module && !(last && last->values == 2ull * h->width) && rerank_is_named(l)) {
        yes = tokenizer_find(l->tokenizer, "yes", 3);
        no = tokenizer_find(l->tokenizer, "no", 2);
    }
    *is = yes >= 0 || (last && last->values == 2ull * h->width);
    if (!*is)
        return 0;
    return (yes >= 0 ? rerank_yes_no(h, l, yes, no, e) : rerank_two(h, last, e)) || rerank_prompt(h, l, e)
               ? -1
               : 0;
}

int rerank_open(struct rerank_head **out, const struct session *l, struct err *e)
{
    struct rerank_head *h = mem_zalloc(1, sizeof *h);
    bool is = false;
    *out = NULL;
    if (!h)
        return err_memory(e, "the head", sizeof *h);
    h->width = l->model->h.width;
    int failed = rerank_read(h, l, &is, e);
    if (failed || !is)
        rerank_close(h);
    else
        *out = h;
    return failed;
}

void rerank_close(struct rerank_head *h)
{
    if (!h)
        return;
    mem_free(h->dense);
    mem_free(h->dense_bias);
    mem_free(h->norm);
    mem_free(h->norm_bias);
    mem_free(h->out);
    mem_free(h->prompt);
    mem_free(h);
}

enum pooling rerank_pooling(const struct rerank_head *h)
{
    return h->pooling;
}

/* ---- scores ---- */

static double rerank_activate(enum rerank_act act, double x)
{
    return act == RERANK_TANH   ? tanh(x)
           : act == RERANK_RELU ? fmax(x, 0)
                                : 0.5 * x * (1 + erf(x * M_SQRT1_2));
}

static double rerank_dense_at(const struct rerank_head *h, const float *row, uint32_t i)
{
    double v = h->dense_bias ? h->dense_bias[i] : 0;
    for (uint32_t k = 0; k < h->width; k++)
        v += (double)h->dense[(size_t)i * h->width + k] * row[k];
    return rerank_activate(h->act, v);
}

/* With y = act(dense row): LayerNorm and the product in one pass, from sums of y, y y, out w y, out w and out b. */
double rerank_logit(const struct rerank_head *h, const float *row)
{
    double sum = 0, squares = 0, product = 0, weights = 0, rest = h->bias;
    for (uint32_t i = 0; i < h->width; i++) {
        double y = h->dense ? rerank_dense_at(h, row, i) : row[i];
        double w = (double)h->out[i] * (h->norm ? h->norm[i] : 1);
        sum += y;
        squares += y * y;
        product += w * y;
        weights += w;
        rest += h->norm_bias ? (double)h->out[i] * h->norm_bias[i] : 0;
    }
    if (!h->norm)
        return product + rest;
    double mean = sum / h->width, variance = squares / h->width - mean * mean;
    return (product - weights * mean) / sqrt(variance + h->eps) + rest;
}

double rerank_score(const struct rerank_head *h, const float *row)
{
    return 1 / (1 + exp(-rerank_logit(h, row)));
}

/* ---- pairs ---- */

/* bert tells the second text from the first by its type. */
static bool rerank_has_types(const struct model *m)
{
    for (uint32_t i = 0; i < m->plan.count; i++)
        if (m->plan.ops[i].kind == OP_EMBED && m->plan.ops[i].embed.types)
            return m->weights.all[m->plan.ops[i].embed.types].rows > 1;
    return false;
}

/* [CLS] A [SEP] B [SEP] where words are pieces; roberta-like models have the token between them twice. */
static int rerank_encode_pair(const struct session *l, const struct rerank_pair *p, struct ids *out,
                              struct err *e)
{
    const struct tokenizer *t = l->tokenizer;
    struct ids rest = {.most = out->most};
    int failed = tokenizer_encode(t, p->query, strlen(p->query), TOK_ADD, out, e);
    if (!failed && tokenizer_adds_eos(t) && tokenizer_doubles_sep(t))
        failed = ids_add(out, out->data[out->len - 1], e);
    if (!failed)
        failed = tokenizer_encode(t, p->document, strlen(p->document), TOK_ADD, &rest, e);
    int32_t type = rerank_has_types(l->model) ? 1 << STEP_TYPE : 0;
    for (size_t i = tokenizer_adds_bos(t); !failed && i < rest.len; i++)
        failed = ids_add(out, rest.data[i] | type, e);
    out->over |= rest.over;
    ids_free(&rest);
    return failed;
}

/* The prompt, with the pair's texts in their places; only what the prompt itself has may become control tokens. */
static int rerank_encode_prompt(const struct rerank_head *h, const struct session *l,
                                const struct rerank_pair *p, struct ids *out, struct err *e)
{
    const struct {
        const char *name, *text;
    } holes[] = {{"{query}", p->query},
                 {"{document}", p->document},
                 {"{instruction}", p->instruction ? p->instruction : rerank_instruction}};
    struct tok_span spans[16];
    size_t count = 0;
    for (const char *at = h->prompt; *at && count + 2 < sizeof spans / sizeof *spans;) {
        const char *end = at + strlen(at), *text = NULL;
        size_t skip = 0;
        for (size_t i = 0; i < sizeof holes / sizeof *holes; i++) {
            const char *hole = strstr(at, holes[i].name);
            if (hole && hole < end) {
                end = hole;
                text = holes[i].text;
                skip = strlen(holes[i].name);
            }
        }
        if (end > at)
            spans[count++] = (struct tok_span){at, (size_t)(end - at), true};
        if (text && *text)
            spans[count++] = (struct tok_span){text, strlen(text), false};
        at = end + skip;
    }
    return tokenizer_encode_spans(l->tokenizer, spans, count, TOK_SPECIAL, out, e);
}

static int rerank_encode_messages(const struct session *l, const struct rerank_pair *p, struct ids *out,
                                  struct err *e)
{
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "query", "content", p->query, "role",
                                 "document", "content", p->document);
    if (messages && p->instruction)
        json_array_insert_new(messages, 0,
                              json_pack("{s:s, s:s}", "role", "system", "content", p->instruction));
    int failed =
        messages
            ? session_prompt(l, &(struct prompt_request){.messages = messages, .no_generation_prompt = true},
                             out, e)
            : err_memory(e, "the messages", strlen(p->document));
    json_decref(messages);
    return failed;
}

int rerank_encode(const struct rerank_head *h, const struct session *l, const struct rerank_pair *p,
                  struct ids *out, struct err *e)
{
    return h->messages ? rerank_encode_messages(l, p, out, e)
           : h->prompt ? rerank_encode_prompt(h, l, p, out, e)
                       : rerank_encode_pair(l, p, out, e);
}
