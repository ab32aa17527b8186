#include "run/rerank.h"

#include "codec/dtype.h"
#include "base/log.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>

/* out . tanh(dense . row + dense_bias) + bias; without dense: out . row + bias */
struct rerank_head {
    uint32_t width;
    float *dense;      /* (width, width), or NULL */
    float *dense_bias; /* (width), or NULL */
    float *out;        /* (width) */
    float bias;
};

/* Of the same part, what GGUF calls it, and what the two kinds of folders do. */
static const char *const rerank_dense[] = {"cls", "classifier.dense", "bert.pooler.dense", "pooler.dense",
                                           NULL};
static const char *const rerank_out[] = {"cls.output", "classifier.out_proj", "classifier", NULL};

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

/* The tensor in F32; it must have `values` values. */
static float *rerank_read(const struct tensor *t, uint64_t values, struct err *e)
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

static int rerank_fill(struct rerank_head *h, const struct store *s, const struct tensor *out, struct err *e)
{
    const struct tensor *dense = rerank_find(s, rerank_dense, "weight"),
                        *dense_bias = rerank_find(s, rerank_dense, "bias"),
                        *bias = rerank_find(s, rerank_out, "bias");
    uint64_t width = h->width;
    if (!(h->out = rerank_read(out, width, e)))
        return -1;
    if (dense && !(h->dense = rerank_read(dense, width * width, e)))
        return -1;
    if (dense && dense_bias && !(h->dense_bias = rerank_read(dense_bias, width, e)))
        return -1;
    float *one = bias ? rerank_read(bias, 1, e) : NULL;
    if (bias && !one)
        return -1;
    h->bias = one ? *one : 0;
    mem_free(one);
    return 0;
}

int rerank_open(struct rerank_head **out, const struct store *s, uint32_t width, struct err *e)
{
    const struct tensor *last = rerank_find(s, rerank_out, "weight");
    *out = NULL;
    if (!last || last->values != width) /* none, or a classifier with several classes */
        return 0;
    struct rerank_head *h = mem_zalloc(1, sizeof *h);
    if (!h)
        return err_memory(e, "the head", sizeof *h);
    h->width = width;
    if (rerank_fill(h, s, last, e)) {
        rerank_close(h);
        return -1;
    }
    *out = h;
    return 0;
}

void rerank_close(struct rerank_head *h)
{
    if (!h)
        return;
    mem_free(h->dense);
    mem_free(h->dense_bias);
    mem_free(h->out);
    mem_free(h);
}

double rank_logit(const struct rerank_head *h, const float *row)
{
    double sum = h->bias;
    for (uint32_t i = 0; i < h->width; i++) {
        double v = h->dense ? (h->dense_bias ? h->dense_bias[i] : 0) : row[i];
        for (uint32_t k = 0; h->dense && k < h->width; k++)
            v += (double)h->dense[(size_t)i * h->width + k] * row[k];
        sum += (double)h->out[i] * (h->dense ? tanh(v) : v);
    }
    return sum;
}

double rerank_score(const struct rerank_head *h, const float *row)
{
    return 1 / (1 + exp(-rank_logit(h, row)));
}
