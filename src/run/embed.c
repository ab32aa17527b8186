#include "run/embed.h"

#include <math.h>
#include <string.h>

/* What to pool where the file does not say: encoders are averaged, decoders have it all in the last row. */
static enum pooling embed_pooling(const struct hparams *h)
{
    if (h->pooling != POOLING_NONE)
        return h->pooling;
    return h->causal ? POOLING_LAST : POOLING_MEAN;
}

static void embed_pool(const float *rows, size_t n, size_t width, enum pooling pooling, float *out)
{
    size_t from = pooling == POOLING_LAST ? n - 1 : 0;
    size_t to = pooling == POOLING_CLS ? 1 : n;
    memset(out, 0, width * sizeof *out);
    for (size_t r = from; r < to; r++)
        for (size_t i = 0; i < width; i++)
            out[i] += rows[r * width + i];
    double squares = 0;
    for (size_t i = 0; i < width; i++)
        squares += (double)out[i] * out[i];
    float scale = squares > 0 ? (float)(1 / sqrt(squares)) : 0;
    for (size_t i = 0; i < width; i++)
        out[i] *= scale;
}

int embed_ids(struct loaded *l, struct seq *s, const struct ids *ids, float *out, struct err *e)
{
    uint32_t most = l->runner->chunk;
    if (!ids->len)
        return err_set(e, ERR_USAGE, "the text is empty: there is nothing to embed");
    if (ids->len > most)
        return err_set(e, ERR_RESOURCE, "the text has %zu tokens and the context holds %u: %zu too many",
                       ids->len, most, ids->len - most);
    seq_truncate(s, 0);
    struct seq_rows rows = {.seq = s, .ids = ids->data, .n = (uint32_t)ids->len, .outs = (uint32_t)ids->len};
    const float *results = runner_step(l->runner, &rows, 1, e) ? NULL : runner_results(l->runner, e);
    if (!results)
        return -1;
    embed_pool(results, ids->len, l->model->h.width, embed_pooling(&l->model->h), out);
    return 0;
}
