#include "run/embed.h"

#include "base/mem.h"

#include <string.h>

int embed_encode(const struct session *l, const char *prompt, const char *text, size_t n, struct ids *out,
                 struct err *e)
{
    const struct tok_span spans[] = {{prompt, strlen(prompt), true}, {text, n, true}};
    return tokenizer_encode_spans(l->tokenizer, *prompt ? spans : spans + 1, *prompt ? 2 : 1, TOK_ADD, out,
                                  e);
}

/* The results of the rows that this pooling needs. */
static const float *embed_step(struct session *l, struct seq *s, enum pooling kind, const struct ids *ids,
                               uint32_t *outs, struct err *e)
{
    uint32_t most = l->runner->chunk, n = (uint32_t)ids->len;
    if (!ids->len) {
        err_set(e, ERR_USAGE, "the text is empty: there is nothing to embed");
        return NULL;
    }
    if (ids->len > most) {
        err_set(e, ERR_RESOURCE, "the text has %zu tokens and the context holds %u: %zu too many", ids->len,
                most, ids->len - most);
        return NULL;
    }
    seq_truncate(s, 0);
    struct seq_rows rows = {.seq = s, .ids = ids->data, .n = n, .outs = pooler_outs(kind, 0, n, n)};
    *outs = rows.outs;
    return runner_step(l->runner, &rows, 1, e) ? NULL : runner_results(l->runner, e);
}

const float *embed_rows(struct session *l, struct seq *s, const struct ids *ids, struct err *e)
{
    uint32_t outs;
    return embed_step(l, s, POOLING_MEAN, ids, &outs, e);
}

int embed_ids(struct session *l, struct seq *s, const struct pooler *p, const struct ids *ids, float *out,
              struct err *e)
{
    uint32_t outs;
    const float *results = embed_step(l, s, p->kind, ids, &outs, e);
    float *sum = results ? mem_zalloc(p->width, sizeof *sum) : NULL;
    if (!results)
        return -1;
    if (!sum)
        return err_memory(e, "a vector", p->width * sizeof *sum);
    pooler_add(p->kind, results, outs, (uint32_t)ids->len - outs, p->width, sum);
    int failed = pooler_finish(p, (uint32_t)ids->len, sum, out, e);
    mem_free(sum);
    return failed;
}
