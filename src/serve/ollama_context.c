/* Ollama's older way to continue a conversation: /api/generate returns the ids of prompt and answer as
 * `context`, and takes them as the start of the next prompt. */
#include "serve/field.h"
#include "serve/ollama.h"

int ollama_context_read(struct request *a, const json_t *body)
{
    const json_t *list = json_object_get(body, "context"), *v;
    int64_t vocab = a->model->loaded->model->plan.out_width;
    struct err e = {0};
    size_t i;
    json_array_foreach(list, i, v)
    {
        int64_t id;
        if (!field_whole(v, 0, vocab - 1, &id))
            return request_fail(a, 400, "context", "context[%zu] has to be a token id below %lld", i,
                                (long long)vocab);
        if (ids_add(&a->before, (int32_t)id, &e))
            return request_fail(a, 503, NULL, "%s", e.text);
    }
    return 0;
}

int openai_prepend(struct request *a)
{
    struct ids *prompt = &a->prompts[0], all = a->before;
    const struct tokenizer *t = a->model->loaded->tokenizer;
    struct err e = {0};
    if (!all.len)
        return 0;
    /* BOS only once */
    size_t from = prompt->len && tokenizer_adds_bos(t) && prompt->data[0] == tokenizer_id(t, TOK_BOS);
    a->before = (struct ids){0};
    for (size_t i = from; i < prompt->len; i++)
        if (ids_add(&all, prompt->data[i], &e)) {
            ids_free(&all);
            return request_fail(a, 503, NULL, "%s", e.text);
        }
    ids_free(prompt);
    *prompt = all;
    return 0;
}

void ollama_context_write(const struct request *a, struct json *j)
{
    const struct choice *c = &a->choices[0];
    const int32_t *made = (const int32_t *)(const void *)c->kept.data;
    json_key(j, "context");
    json_begin(j, '[');
    for (size_t i = 0; i < a->prompts[0].len; i++)
        json_int(j, a->prompts[0].data[i]);
    for (size_t i = 0; i < c->kept.len / sizeof *made; i++)
        json_int(j, made[i]);
    json_end(j, ']');
}
