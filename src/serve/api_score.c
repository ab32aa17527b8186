/* /v1/score, as vLLM has it: how well two texts match, pair by pair. A cross-encoder reads the two as one
 * text; for any other model the score is the cosine of their vectors. Runs on a worker. */
#include "base/json.h"
#include "run/rerank.h"
#include "serve/api.h"
#include "serve/field.h"
#include "serve/refuse.h"
#include "serve/request.h"
#include "serve/vectors.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const struct refusal score_refused[] = {
    {"truncate_prompt_tokens", "texts are never cut; shorten them"},
};

static const struct field score_fields[] = {
    {"use_activation", FIELD_BOOL, 0, 0},
    {"activation", FIELD_BOOL, 0, 0},
    {"softmax", FIELD_BOOL, 0, 0},
    {"instruction", FIELD_TEXT, 0, 0},
};

/* One side of the pairs: a text or a list of texts, by the first of its names that is there. */
struct score_side {
    const char *name;
    const json_t *texts;
    size_t count;
};

static int side_read(struct request *a, const json_t *body, const char *const *names, struct score_side *s)
{
    *s = (struct score_side){.name = names[0]};
    for (; *names && !s->texts; names++)
        if ((s->texts = json_object_get(body, *names)))
            s->name = *names;
    s->count = json_is_array(s->texts) ? json_array_size(s->texts) : 1;
    if (!s->texts)
        return request_fail(a, 400, s->name, "%s is missing", s->name);
    if (!s->count || s->count > VECTORS_TEXTS / 2)
        return request_fail(a, 400, s->name, "%s is %zu items long; it has to be from 1 to %d", s->name,
                            s->count, VECTORS_TEXTS / 2);
    return 0;
}

/* NULL and a failure: it is no text. */
static const char *side_text(struct request *a, const struct score_side *s, size_t i)
{
    const json_t *one = json_is_array(s->texts) ? json_array_get(s->texts, s->count > 1 ? i : 0) : s->texts;
    const char *text = json_is_string(one) ? json_string_value(one) : field_text(one, "text");
    if (!text)
        request_fail(a, 400, s->name, "%s has to be a text, or a list of texts", s->name);
    return text;
}

static int score_sides(struct request *a, const json_t *body, struct score_side s[2])
{
    static const char *const names[2][5] = {{"text_1", "queries", "query", "data_1"},
                                            {"text_2", "documents", "items", "data_2"}};
    if (side_read(a, body, names[0], &s[0]) || side_read(a, body, names[1], &s[1]))
        return -1;
    if (s[0].count != 1 && s[0].count != s[1].count)
        return request_fail(a, 400, s[0].name,
                            "%s has %zu texts and %s has %zu: give one and many, or as many of both",
                            s[0].name, s[0].count, s[1].name, s[1].count);
    return 0;
}

static const struct rerank_head *score_head(const struct request *a)
{
    return embedder_head(a->model->embedder);
}

static int score_read(struct request *a, const json_t *body)
{
    struct score_side s[2];
    struct err e = {0};
    const char *name;
    if (field_check(body, score_fields, sizeof score_fields / sizeof *score_fields, &name, &e))
        return request_fail(a, 400, name, "%s", e.text);
    if (refuse_fields(a, body, score_refused, 1) || score_sides(a, body, s) ||
        !vectors_new(a, s[0].count + s[1].count, score_head(a)))
        return -1;
    for (size_t k = 0; k < 2 && !score_head(a); k++)
        for (size_t i = 0; i < s[k].count; i++) {
            const char *text = side_text(a, &s[k], i);
            if (!text || vectors_add_text(a, text, strlen(text), s[k].name))
                return -1;
        }
    for (size_t i = 0; i < s[1].count && score_head(a); i++) {
        const char *first = side_text(a, &s[0], i), *second = first ? side_text(a, &s[1], i) : NULL;
        if (!second || vectors_add_pair(a, first, second, s[1].name))
            return -1;
    }
    return 0;
}

/* The score of pair i; `firsts` is the number of first texts. */
static double score_of(const struct request *a, size_t i, size_t firsts, bool raw)
{
    const struct vectors *v = a->vectors;
    const float *first = v->out + (firsts > 1 ? i : 0) * v->width, *second = v->out + (firsts + i) * v->width;
    double score = 0;
    if (score_head(a))
        return (raw ? rerank_logit : rerank_score)(score_head(a), v->out + i * v->width);
    for (size_t k = 0; k < v->width; k++)
        score += (double)first[k] * second[k];
    return score;
}

static void score_reply(struct request *a, const json_t *body)
{
    struct json j = {.out = &a->reply};
    struct score_side s[2];
    char id[sizeof a->id + 8];
    bool raw = false;
    for (size_t i = 0; i < sizeof score_fields / sizeof *score_fields; i++)
        raw |= json_is_false(json_object_get(body, score_fields[i].name));
    if (score_sides(a, body, s))
        return;
    snprintf(id, sizeof id, "score-%s", a->id);
    json_begin(&j, '{');
    json_key(&j, "id");
    json_str(&j, id);
    json_key(&j, "object");
    json_str(&j, "list");
    json_key(&j, "created");
    json_int(&j, a->created);
    json_key(&j, "data");
    json_begin(&j, '[');
    for (size_t i = 0; i < s[1].count; i++) {
        json_begin(&j, '{');
        json_key(&j, "index");
        json_uint(&j, i);
        json_key(&j, "object");
        json_str(&j, "score");
        json_key(&j, "score");
        json_num(&j, score_of(a, i, s[0].count, raw));
        json_end(&j, '}');
    }
    json_end(&j, ']');
    vectors_usage(a, &j);
    json_end(&j, '}');
}

void api_score(struct request *a)
{
    if (a->stage) {
        if (vectors_done(a))
            score_reply(a, a->json);
    } else if (!score_read(a, a->json))
        vectors_submit(a, "text_2");
}
