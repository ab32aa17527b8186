/* Ollama's older way to go on with a text: /api/generate gives the ids of prompt and answer back as `context`, and takes
 * them as the beginning of the next prompt. */
#include "base/json.h"
#include "run/session.h"
#include "serve/field.h"
#include "serve/ollama.h"
#include "serve/request.h"

#include <jansson.h>

int ollama_context_read(struct request *a, const json_t *body)
{
    const json_t *list = json_object_get(body, "context"), *v;
    int64_t vocab = a->model->session->model->plan.out_width;
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
