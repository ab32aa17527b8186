#include "run/pooler.h"

#include "base/log.h"
#include "base/mem.h"
#include "codec/dtype.h"
#include "format/jsonread.h"
#include "format/modules.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum dense_act { DENSE_IDENTITY, DENSE_TANH, DENSE_RELU, DENSE_GELU, DENSE_SILU, DENSE_SIGMOID };

/* y = act(W x + b), plus x or R x where it has a residual */
struct dense {
    uint32_t in, out;
    float *weight;   /* (out, in) */
    float *bias;     /* (out), or NULL */
    float *residual; /* (out, in), or NULL */
    bool adds_input;
    enum dense_act act;
};

enum { DENSE_MOST = 16 };

/* ---- numbers ---- */

float *pooler_floats(const struct tensor *t, uint64_t values, struct err *e)
{
    const struct dtype_info *type = dtype_get(t->type);
    if (t->values != values || !type || !type->decode) {
        err_set(e, ERR_DATA, "the tensor %s has %llu values of type %s; %llu numbers were expected",
                log_safe(t->name), (unsigned long long)t->values, type ? type->name : "?",
                (unsigned long long)values);
        return NULL;
    }
    float *out = mem_alloc(values, sizeof *out);
    if (out)
        type->decode(t->data, out, values);
    else
        err_memory(e, "the head", values * sizeof *out);
    return out;
}

/* Sixteen sums side by side: the compiler makes vectors of them. */
static float pooler_dot(const float *a, const float *b, uint32_t n)
{
    enum { LANES = 16 };
    float sum[LANES] = {0}, all = 0;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++)
            sum[k] += a[i + k] * b[i + k];
    for (; i < n; i++)
        all += a[i] * b[i];
    for (uint32_t k = 0; k < LANES; k++)
        all += sum[k];
    return all;
}

/* y = W x + b, W (out, in). b may be NULL. */
static void pooler_product(const float *w, const float *b, const float *x, uint32_t in, uint32_t out,
                           float *y)
{
    for (uint32_t i = 0; i < out; i++)
        y[i] = pooler_dot(w + (size_t)i * in, x, in) + (b ? b[i] : 0);
}

int pooler_scale(float *out, size_t width, struct err *e)
{
    double squares = 0;
    for (size_t i = 0; i < width; i++)
        squares += (double)out[i] * out[i];
    if (!isfinite(squares))
        return err_set(e, ERR_DATA, "the vector is not finite: the model's results hold NaN or infinity");
    float scale = squares > 0 ? (float)(1 / sqrt(squares)) : 0;
    for (size_t i = 0; i < width; i++)
        out[i] *= scale;
    return 0;
}

/* ---- pooling ---- */

/* What to pool where the files do not say: the mean for encoders, the last row for decoders. */
static enum pooling pooler_kind(const struct hparams *h)
{
    if (h->pooling != POOLING_NONE)
        return h->pooling;
    return h->causal ? POOLING_LAST : POOLING_MEAN;
}

uint32_t pooler_outs(enum pooling kind, uint32_t at, uint32_t n, uint32_t of)
{
    if (kind == POOLING_LAST)
        return at + n == of;
    return kind == POOLING_CLS && at ? 0 : n;
}

void pooler_add(enum pooling kind, const float *results, uint32_t rows, uint32_t at, uint32_t width,
                float *sum)
{
    uint32_t n = kind == POOLING_CLS && rows ? 1 : rows;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < width; i++) {
            float x = results[(size_t)r * width + i];
            if (kind == POOLING_MAX)
                sum[i] = (at + r == 0) || x > sum[i] || isnan(x) ? x : sum[i];
            else
                sum[i] += kind == POOLING_WEIGHTED ? x * (float)(at + r + 1) : x;
        }
}

void pooler_divide(enum pooling kind, uint32_t n, uint32_t width, float *sum)
{
    double by = kind == POOLING_MEAN        ? n
                : kind == POOLING_MEAN_SQRT ? sqrt(n)
                : kind == POOLING_WEIGHTED  ? n / 2.0 * (n + 1.0)
                                            : 1;
    for (uint32_t i = 0; i < width; i++)
        sum[i] = (float)(sum[i] / by);
}

static float dense_activate(enum dense_act act, float x)
{
    switch (act) {
    case DENSE_TANH:
        return tanhf(x);
    case DENSE_RELU:
        return x > 0 ? x : 0;
    case DENSE_GELU:
        return 0.5f * x * (1 + erff(x * (float)M_SQRT1_2));
    case DENSE_SILU:
        return x / (1 + expf(-x));
    case DENSE_SIGMOID:
        return 1 / (1 + expf(-x));
    case DENSE_IDENTITY:
        return x;
    }
    return x;
}

static void dense_run(const struct dense *d, const float *x, float *y)
{
    pooler_product(d->weight, d->bias, x, d->in, d->out, y);
    for (uint32_t i = 0; i < d->out; i++) {
        y[i] = dense_activate(d->act, y[i]);
        if (d->residual)
            y[i] += pooler_dot(d->residual + (size_t)i * d->in, x, d->in);
        else if (d->adds_input)
            y[i] += x[i];
    }
}

int pooler_finish(const struct pooler *p, uint32_t n, float *sum, float *out, struct err *e)
{
    uint32_t most = p->width;
    pooler_divide(p->kind, n, p->width, sum);
    for (uint32_t i = 0; i < p->layers; i++)
        most = p->dense[i].out > most ? p->dense[i].out : most;
    float *room = p->layers ? mem_alloc(2 * (size_t)most, sizeof *room) : NULL, *x = sum;
    if (p->layers && !room)
        return err_memory(e, "a vector", 2 * most * sizeof *room);
    for (uint32_t i = 0; i < p->layers; i++) {
        float *y = room + (i % 2 ? most : 0);
        dense_run(&p->dense[i], x, y);
        x = y;
    }
    memcpy(out, x, p->out_width * sizeof *out);
    mem_free(room);
    return p->plain ? 0 : pooler_scale(out, p->out_width, e);
}

/* ---- Dense layers ---- */

static int dense_named(const char *name, enum dense_act *act, struct err *e)
{
    static const struct {
        const char *name;
        enum dense_act act;
    } known[] = {
        {"Identity", DENSE_IDENTITY}, {"Tanh", DENSE_TANH}, {"ReLU", DENSE_RELU},
        {"GELU", DENSE_GELU},         {"SiLU", DENSE_SILU}, {"Sigmoid", DENSE_SIGMOID},
    };
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(dot ? dot + 1 : name, known[i].name)) {
            *act = known[i].act;
            return 0;
        }
    return err_set(e, ERR_DATA,
                   "the activation \"%s\" of a Dense layer is not known; Identity, Tanh, ReLU, "
                   "GELU, SiLU and Sigmoid are",
                   log_safe(name));
}

/* A matrix of `in` columns; *rows is set. */
static float *dense_matrix(const struct tensor *t, uint32_t in, uint32_t *rows, struct err *e)
{
    if (t->shape[0] != in || t->shape[1] < 1 || t->shape[1] > 1u << 20 || t->values != in * t->shape[1]) {
        err_set(e, ERR_DATA, "the tensor %s has rows of %llu values; %u were expected", log_safe(t->name),
                (unsigned long long)t->shape[0], in);
        return NULL;
    }
    *rows = (uint32_t)t->shape[1];
    return pooler_floats(t, t->values, e);
}

/* The next layer, from the tensors of a store. */
static int dense_add(struct pooler *p, const struct store *s, const char *name, struct err *e)
{
    char full[64];
    struct dense *d = &p->dense[p->layers];
    snprintf(full, sizeof full, "%s.weight", name);
    const struct tensor *w = store_find(s, full);
    if (!w)
        return err_set(e, ERR_DATA, "a Dense layer has no tensor %s", full);
    if (p->layers == DENSE_MOST)
        return err_set(e, ERR_DATA, "there are more than %d Dense layers", DENSE_MOST);
    *d = (struct dense){.in = p->out_width};
    p->layers++;
    if (!(d->weight = dense_matrix(w, d->in, &d->out, e)))
        return -1;
    snprintf(full, sizeof full, "%s.bias", name);
    const struct tensor *b = store_find(s, full);
    if (b && !(d->bias = pooler_floats(b, d->out, e)))
        return -1;
    p->out_width = d->out;
    return 0;
}

static int dense_module(struct pooler *p, const struct modules *m, size_t i, const json_t *config,
                        struct err *e)
{
    struct jsonread r = {config, "a Dense layer's config.json", e};
    const char *act = jsonread_str(&r, config, "activation_function", "Tanh");
    bool residual = jsonread_bool(&r, config, "use_residual", false);
    const char *path = e->code ? NULL : modules_file(m, i, "model.safetensors", e);
    struct store *s = NULL;
    if (e->code)
        return -1;
    if (!path)
        return err_set(e, ERR_DATA, "module %zu, a Dense layer, has no model.safetensors", i);
    int failed = store_open(&s, path, e) || dense_add(p, s, "linear", e);
    if (!failed) {
        struct dense *d = &p->dense[p->layers - 1];
        const struct tensor *t = residual ? store_find(s, "residual.weight") : NULL;
        d->adds_input = residual && !t;
        if (t)
            d->residual = pooler_floats(t, (uint64_t)d->in * d->out, e);
        if (d->adds_input && d->in != d->out)
            err_set(e, ERR_DATA, "module %zu, a Dense layer, has no tensor residual.weight", i);
        failed = dense_named(act, &d->act, e) || e->code;
    }
    store_close(s);
    return failed ? -1 : 0;
}

static int pooler_module(struct pooler *p, const struct modules *m, size_t i, struct err *e)
{
    static const char *const passed[] = {"Transformer", "Pooling", "Normalize", "Dropout", "LogitScore"};
    const char *kind = modules_kind(m, i);
    for (size_t k = 0; k < sizeof passed / sizeof *passed; k++)
        if (!strcmp(kind, passed[k]))
            return 0;
    if (strcmp(kind, "Dense") != 0)
        return err_set(
            e, ERR_DATA,
            "modules.json: module %zu is a \"%s\"; Transformer, Pooling, Dense and Normalize are known", i,
            log_safe(kind));
    json_t *config = modules_config(m, i, e);
    if (!config)
        return e->code ? -1 : err_set(e, ERR_DATA, "module %zu, a Dense layer, has no config.json", i);
    int failed = dense_module(p, m, i, config, e);
    json_decref(config);
    return failed;
}

static int pooler_layers(struct pooler *p, const struct store *s, struct err *e)
{
    if (!(p->dense = mem_zalloc(DENSE_MOST, sizeof *p->dense)))
        return err_memory(e, "Dense layers", DENSE_MOST * sizeof *p->dense);
    if (s->kind == STORE_GGUF)
        return (store_find(s, "dense_2.weight") && dense_add(p, s, "dense_2", e)) ||
                       (store_find(s, "dense_3.weight") && dense_add(p, s, "dense_3", e))
                   ? -1
                   : 0;
    struct modules m;
    if (modules_open(&m, s, e))
        return -1;
    int failed = 0;
    for (size_t i = 0; !failed && modules_kind(&m, i); i++)
        failed = pooler_module(p, &m, i, e);
    modules_close(&m);
    return failed;
}

/* ---- prompts ---- */

static int pooler_prompts(struct pooler *p, const struct store *s, struct err *e)
{
    static const char file[] = "config_sentence_transformers.json";
    const char *path = store_beside(s, file);
    json_t *config = path ? jsonread_file(path, &jsonread_config, e) : NULL;
    if (!config)
        return path ? -1 : 0;
    struct jsonread r = {config, file, e};
    json_t *all = jsonread_get(&r, config, "prompts?", JSONREAD_IS_OBJECT), *one;
    const char *name, *chosen = jsonread_str(&r, config, "default_prompt_name?", NULL);
    json_object_foreach(all, name, one) jsonread_member(&r, all, name, JSONREAD_IS_STRING);
    p->prompts = json_incref(all);
    json_object_foreach(all, name, one) if (chosen && !strcmp(name, chosen)) p->prompt = name;
    json_decref(config);
    return e->code ? -1 : 0;
}

const char *pooler_prompt(const struct pooler *p, const char *name)
{
    if (!name && !p->prompt)
        return "";
    return json_string_value(json_object_get(p->prompts, name ? name : p->prompt));
}

const char *pooler_role(const struct pooler *p, bool query)
{
    static const char *const names[2][3] = {{"document", "passage", "corpus"}, {"query", "query", "query"}};
    const char *text = NULL;
    for (size_t i = 0; !text && i < 3; i++)
        text = pooler_prompt(p, names[query][i]);
    return text ? text : pooler_prompt(p, NULL);
}

/* ---- open and close ---- */

int pooler_open(struct pooler *p, const struct store *s, const struct hparams *h, struct err *e)
{
    *p = (struct pooler){.kind = pooler_kind(h), .width = h->width, .out_width = h->width};
    if (!pooler_layers(p, s, e) && !pooler_prompts(p, s, e))
        return 0;
    pooler_close(p);
    return -1;
}

void pooler_close(struct pooler *p)
{
    for (uint32_t i = 0; i < p->layers; i++) {
        mem_free(p->dense[i].weight);
        mem_free(p->dense[i].bias);
        mem_free(p->dense[i].residual);
    }
    mem_free(p->dense);
    json_decref(p->prompts);
    *p = (struct pooler){0};
}
