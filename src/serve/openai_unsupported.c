/* Fields that other servers support and this one does not: where ignoring one would change the answer, the
 * request is refused. doc/server.md lists all of them. */
#include "base/log.h"
#include "serve/field.h"
#include "serve/openai_request.h"
#include "serve/request.h"

#include <jansson.h>
#include <string.h>

/* Which values of a field ask for nothing. */
enum harmless { HARMLESS_NONE, HARMLESS_FALSE, HARMLESS_TRUE, HARMLESS_EMPTY, HARMLESS_ZERO, HARMLESS_ONE };

static const struct unsupported {
    const char *name;
    enum harmless harmless;
    const char *instead; /* what to do */
} unsupported[] = {
    /* vLLM */
    {"logits_processors", HARMLESS_EMPTY,
     "this server runs no client code; use logit_bias, bad_words or allowed_token_ids"},
    {"prompt_embeds", HARMLESS_EMPTY, "send the prompt as a text or as token ids"},
    {"chat_template", HARMLESS_EMPTY, "the operator chooses the template, with --template"},
    {"guided_whitespace_pattern", HARMLESS_EMPTY, "white space in JSON is as doc/constraints.md says"},
    {"use_beam_search", HARMLESS_FALSE, "best_of takes the likeliest of several answers"},
    /* llama.cpp */
    {"post_sampling_probs", HARMLESS_FALSE, "probabilities are those before sampling; leave it out"},
    {"top_n_sigma", HARMLESS_ZERO, "top_k, top_p and min_p are there"},
    {"dynatemp_range", HARMLESS_ZERO, "the temperature is fixed; send temperature"},
    {"min_keep", HARMLESS_ONE, "leave it out"},
    {"adaptive_target", HARMLESS_ZERO, "mirostat is there"},
    {"n_indent", HARMLESS_ZERO, "leave it out, or send a grammar"},
    {"grammar_lazy", HARMLESS_FALSE,
     "a grammar holds from the first token on; tools have their own triggers"},
    {"parse_tool_calls", HARMLESS_TRUE,
     "calls are always read where there are tools; send none, or tool_choice none"},
    {"n_cmpl", HARMLESS_ONE, "send n to /v1/completions"},
    /* OpenAI */
    {"audio", HARMLESS_EMPTY, "this server writes only text"},
    {"web_search_options", HARMLESS_NONE, "this server has no web search; send a tool of your own"},
};

static bool unsupported_is_harmless(const json_t *v, enum harmless h)
{
    switch (h) {
    case HARMLESS_FALSE:
        return !json_is_true(v);
    case HARMLESS_TRUE:
        return !json_is_false(v);
    case HARMLESS_EMPTY:
        return json_is_string(v)   ? !json_string_length(v)
               : json_is_array(v)  ? !json_array_size(v)
               : json_is_object(v) ? !json_object_size(v)
                                   : false;
    case HARMLESS_ZERO:
    case HARMLESS_ONE:
        return json_is_number(v) && json_number_value(v) <= (h == HARMLESS_ONE);
    default:
        return false;
    }
}

/* An unknown constraint must not be ignored. */
static int unsupported_structure(struct request *a, const json_t *structured)
{
    static const char *const known[] = {"json", "json_object", "regex", "choice", "grammar"},
                             *const passed[] = {"disable_fallback", "disable_any_whitespace", "backend"};
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)structured, name, v)
    {
        bool fine = json_is_null(v) || json_is_false(v) || name[0] == '_';
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            fine |= !strcmp(name, known[i]);
        for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
            fine |= !strcmp(name, passed[i]);
        if (!fine)
            return request_fail(
                a, 400, "structured_outputs",
                "structured_outputs has '%s'; json, json_object, regex, choice and grammar are there",
                log_safe(name));
    }
    return 0;
}

int openai_unsupported(struct request *a, const json_t *body)
{
    const json_t *modalities = json_object_get(body, "modalities");
    if (unsupported_structure(a, json_object_get(body, "structured_outputs")))
        return -1;
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
        const struct unsupported *u = &unsupported[i];
        const json_t *v = json_object_get(body, u->name);
        if (v && !unsupported_is_harmless(v, u->harmless))
            return request_fail(a, 400, u->name, "%s is not supported: %s", u->name, u->instead);
    }
    for (size_t i = 0; i < json_array_size(modalities); i++) {
        const char *one = json_string_value(json_array_get(modalities, i));
        if (!one || strcmp(one, "text") != 0)
            return request_fail(a, 400, "modalities",
                                "modalities can only be [\"text\"]: this server writes only text");
    }
    return 0;
}
