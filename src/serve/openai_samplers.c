/* llama.cpp's list of samplers, its other names of fields, and what breaks a repetition for DRY. */
#define _GNU_SOURCE
#include "base/log.h"
#include "base/mem.h"
#include "run/session.h"
#include "serve/field.h"
#include "serve/openai_request.h"
#include "serve/request.h"

#include <jansson.h>
#include <string.h>

/* A link of our chain (run/sampler.h), in its order, and the values with which it does nothing. */
static const struct sampler_link {
    const char *names[3];
    char letter;
    struct {
        size_t offset;
        double value;
    } off[3];
} chain[] = {
#define OFF(field, value)                                                                                    \
    {                                                                                                        \
        offsetof(struct sampler_params, field), value                                                        \
    }
    {{"penalties"}, 'e', {OFF(repeat_penalty, 1), OFF(presence_penalty, 0), OFF(frequency_penalty, 0)}},
    {{"dry"}, 'd', {OFF(dry_multiplier, 0)}},
    {{"top_k"}, 'k', {OFF(top_k, 0)}},
    {{"typ_p", "typical_p", "typical"}, 'y', {OFF(typical_p, 1)}},
    {{"top_p", "nucleus"}, 'p', {OFF(top_p, 1)}},
    {{"min_p"}, 'm', {OFF(min_p, 0)}},
    {{"xtc"}, 'x', {OFF(xtc_probability, 0)}},
    {{"temperature", "temp"}, 't', {OFF(temperature, 1)}},
};
enum { LINKS = sizeof chain / sizeof *chain };
/* top_n_sigma does nothing by itself; infill only joins tokens that begin alike, and editors send it. */
static const char *const passed_over[] = {"top_n_sigma", "infill"};

/* The link of this name; LINKS = ignored; -1 = unknown. */
static int samplers_find(const char *name)
{
    for (int i = 0; i < LINKS; i++)
        for (int k = 0; k < 3 && chain[i].names[k]; k++)
            if (!strcmp(name, chain[i].names[k]))
                return i;
    for (size_t i = 0; i < sizeof passed_over / sizeof *passed_over; i++)
        if (!strcmp(name, passed_over[i]))
            return LINKS;
    return -1;
}

static int samplers_letter(char letter)
{
    for (int i = 0; i < LINKS; i++)
        if (chain[i].letter == letter)
            return i;
    return letter == 's' || letter == 'i' ? LINKS : -1;
}

/* What the list does not name is switched off. */
static int samplers_choose(struct request *a, const json_t *samplers, struct sampler_params *p)
{
    const char *letters = json_string_value(samplers);
    size_t n = letters ? strlen(letters) : json_array_size(samplers);
    bool on[LINKS] = {false};
    int last = -1;
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(samplers, i));
        int at = letters ? samplers_letter(letters[i]) : name ? samplers_find(name) : -1;
        if (at < 0)
            return request_fail(a, 400, "samplers",
                                "samplers[%zu] is unknown; the samplers are penalties, dry, top_k, typ_p, "
                                "top_p, min_p, xtc, temperature",
                                i);
        if (at == LINKS)
            continue;
        if (at < last)
            return request_fail(a, 400, "samplers",
                                "samplers come in the order penalties, dry, top_k, typ_p, top_p, min_p, "
                                "xtc, temperature; samplers[%zu] does not",
                                i);
        on[last = at] = true;
    }
    for (int i = 0; i < LINKS; i++)
        for (int k = 0; k < 3 && !on[i] && (!k || chain[i].off[k].offset); k++)
            *(double *)((char *)p + chain[i].off[k].offset) = chain[i].off[k].value;
    return 0;
}

static int samplers_breakers(struct request *a, struct request_draft *q, const json_t *list)
{
    const struct tokenizer *t = a->model->session->tokenizer;
    const uint32_t vocab = a->model->session->model->plan.out_width;
    if (!json_array_size(list) || q->request.sampler.dry_multiplier <= 0)
        return 0;
    q->dry_breaker = mem_zalloc(vocab, 1);
    if (!q->dry_breaker)
        return request_fail(a, 503, NULL, "out of memory");
    for (size_t k = 0; k < json_array_size(list); k++) {
        const json_t *text = json_array_get(list, k);
        if (!json_string_length(text))
            return request_fail(a, 400, "dry_sequence_breakers",
                                "dry_sequence_breakers has to be a list of texts, none of them empty");
        for (int32_t i = 0; i < tokenizer_vocab(t) && (uint32_t)i < vocab; i++) {
            size_t n;
            const char *bytes = tokenizer_token_bytes(t, i, &n);
            q->dry_breaker[i] |=
                n && memmem(bytes, n, json_string_value(text), json_string_length(text)) != NULL;
        }
    }
    q->request.sampler.dry_breaker = q->dry_breaker;
    return 0;
}

int openai_samplers(struct request *a, struct request_draft *q)
{
    static const struct field fields[] = {{"samplers", FIELD_TEXT | FIELD_LIST, 0, 32},
                                          {"dry_sequence_breakers", FIELD_LIST, 0, 64},
                                          {"dry_penalty_last_n", FIELD_INT, -1, 1 << 30}};
    struct sampler_params *p = &q->request.sampler;
    const json_t *samplers = json_object_get(q->body, "samplers");
    struct err e = {0};
    const char *name;
    if (field_check(q->body, fields, sizeof fields / sizeof *fields, &name, &e))
        return request_fail(a, 400, name, "%s", e.text);
    p->dry_last_n = (double)field_int(q->body, "dry_penalty_last_n", (int64_t)p->dry_last_n);
    if (samplers && samplers_choose(a, samplers, p))
        return -1;
    return samplers_breakers(a, q, json_object_get(q->body, "dry_sequence_breakers"));
}
