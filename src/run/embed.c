#include "run/embed.h"

#include <math.h>
#include <string.h>

enum pooling embed_pooling(const struct hparams *h)
{
    if (h->pooling != POOLING_NONE)
        return h->pooling;
    return h->causal ? POOLING_LAST : POOLING_MEAN;
}

uint32_t embed_outs(enum pooling pooling, uint32_t at, uint32_t n, uint32_t of)
{
    if (pooling == POOLING_LAST)
        return at + n == of;
    return pooling == POOLING_CLS && at ? 0 : n;
}

void embed_add(enum pooling pooling, const float *results, size_t rows, size_t width, float *out)
{
    size_t n = pooling == POOLING_CLS && rows ? 1 : rows;
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < width; i++)
            out[i] += results[r * width + i];
}

int embed_scale(float *out, size_t width, struct err *e)
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

int embed_ids(struct session *l, struct seq *s, const struct ids *ids, float *out, struct err *e)
{
    uint32_t most = l->runner->chunk, n = (uint32_t)ids->len;
    enum pooling pooling = embed_pooling(&l->model->h);
    if (!ids->len)
        return err_set(e, ERR_USAGE, "the text is empty: there is nothing to embed");
    if (ids->len > most)
        return err_set(e, ERR_RESOURCE, "the text has %zu tokens and the context holds %u: %zu too many",
                       ids->len, most, ids->len - most);
    seq_truncate(s, 0);
    struct seq_rows rows = {.seq = s, .ids = ids->data, .n = n, .outs = embed_outs(pooling, 0, n, n)};
    const float *results = runner_step(l->runner, &rows, 1, e) ? NULL : runner_results(l->runner, e);
    if (!results)
        return -1;
    memset(out, 0, l->model->h.width * sizeof *out);
    embed_add(pooling, results, rows.outs, l->model->h.width, out);
    return embed_scale(out, l->model->h.width, e);
}
