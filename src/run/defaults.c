#include "run/defaults.h"

#include "base/log.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "format/jsonread.h"

#include <stdio.h>
#include <string.h>

/* Our field, and what the two containers call it; generation_config.json may say null. */
static const struct {
    const char *field, *config, *gguf;
} defaults_names[] = {
    {"temperature", "temperature?", "temp"},
    {"top_k", "top_k?", "top_k"},
    {"top_p", "top_p?", "top_p"},
    {"min_p", "min_p?", "min_p"},
    {"typical_p", "typical_p?", NULL},
    {"xtc_probability", NULL, "xtc_probability"},
    {"xtc_threshold", NULL, "xtc_threshold"},
    {"repeat_penalty", "repetition_penalty?", "penalty_repeat"},
    {"repeat_last_n", NULL, "penalty_last_n"},
    {"mirostat", NULL, "mirostat"},
    {"mirostat_tau", NULL, "mirostat_tau"},
    {"mirostat_eta", NULL, "mirostat_eta"},
};

static const struct sampler_field *defaults_field(const char *name)
{
    size_t i = 0;
    while (strcmp(sampler_fields[i].name, name) != 0)
        i++;
    return &sampler_fields[i];
}

/* The value that the model's files give a name, if they do. */
static bool defaults_value(const struct store *s, const char *config, const char *gguf, double *v,
                           struct err *e)
{
    if (s->gguf && gguf) {
        char key[64];
        struct err ignored = {0};
        snprintf(key, sizeof key, "general.sampling.%s", gguf);
        return gguf_get_f64(s->gguf, key, v, &ignored) == 1;
    }
    struct jsonread r = {s->generation, "generation_config.json", e};
    const json_t *j = config ? jsonread_get(&r, s->generation, config, JSONREAD_IS_NUMBER) : NULL;
    *v = json_number_value(j);
    return j;
}

int defaults_sampling(const struct store *s, struct sampler_params *p, struct err *e)
{
    struct jsonread r = {s->generation, "generation_config.json", e};
    for (size_t i = 0; i < sizeof defaults_names / sizeof *defaults_names; i++) {
        const struct sampler_field *f = defaults_field(defaults_names[i].field);
        struct sampler_params trial = *p;
        struct err why = {0};
        double v;
        if (!defaults_value(s, defaults_names[i].config, defaults_names[i].gguf, &v, e))
            continue;
        *(double *)((char *)&trial + f->offset) = v;
        if (sampler_check(&trial, UINT32_MAX, &why))
            log_warn("the model's own sampling default is ignored: %s", why.text);
        else
            *p = trial;
    }
    if (!jsonread_bool(&r, s->generation, "do_sample?", true))
        p->temperature = 0;
    return e->code ? -1 : 0;
}

int defaults_stops(const struct store *s, uint32_t vocab, int32_t **out, size_t *count, struct err *e)
{
    struct jsonread r = {s->generation, "generation_config.json", e};
    const int64_t range[2] = {0, (int64_t)vocab - 1};
    const json_t *eos = jsonread_get(&r, s->generation, "eos_token_id?", JSONREAD_IS_INT | JSONREAD_IS_ARRAY);
    size_t n = json_is_array(eos) ? json_array_size(eos) : eos != NULL;
    *count = 0;
    *out = n ? mem_alloc(n, sizeof **out) : NULL;
    if (n && !*out)
        return err_memory(e, "the stop tokens", n * sizeof **out);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(eos) ? jsonread_item(&r, eos, i, JSONREAD_IS_INT) : eos;
        int64_t id;
        if (jsonread_whole(one, range, &id))
            (*out)[(*count)++] = (int32_t)id;
    }
    return e->code ? -1 : 0;
}
