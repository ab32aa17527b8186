/* What an answer has to be: response_format, and the fields by which clients of llama.cpp and vLLM say the same. All of
 * them become one value and its kind. */
#include "format/jsonread.h"
#include "serve/field.h"
#include "serve/limit.h"
#include "serve/openai_request.h"
#include "serve/request.h"

#include <jansson.h>
#include <string.h>

struct wanted_field {
    const char *name;
    enum want_kind kind;
};

static const struct wanted_field wanted_fields[] = {
    {"json_schema", WANT_SCHEMA},     {"guided_json", WANT_SCHEMA}, {"grammar", WANT_GRAMMAR},
    {"guided_grammar", WANT_GRAMMAR}, {"guided_regex", WANT_REGEX}, {"guided_choice", WANT_CHOICE},
};
/* of structured_outputs */
static const struct wanted_field wanted_structured[] = {
    {"json", WANT_SCHEMA}, {"grammar", WANT_GRAMMAR}, {"regex", WANT_REGEX}, {"choice", WANT_CHOICE}};

static bool wanted_is_texts(const json_t *list)
{
    bool good = json_array_size(list) > 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        good &= json_string_length(json_array_get(list, i)) > 0;
    return good;
}

/* A schema that came as a text. */
static json_t *wanted_parse(struct request *a, const json_t *text, const char *field)
{
    const struct jsonread_limits most = {
        .text = limit_of(LIMIT_SCHEMA), .memory = OPENAI_MEMORY, .depth = (int)limit_of(LIMIT_DEPTH)};
    struct err e = {0};
    json_t *v = jsonread_value(json_string_value(text), json_string_length(text), &most, field, &e);
    if (!v)
        request_fail(a, e.code == ERR_RESOURCE ? 503 : 400, field, "%s", e.text);
    return v;
}

/* Sets the output format from one of the fields. */
static int wanted_take(struct request *a, struct wanted *w, enum want_kind kind, json_t *value,
                       const char *field)
{
    static const char *const words[] = {[WANT_SCHEMA] = "a JSON schema",
                                        [WANT_GRAMMAR] = "a grammar as text",
                                        [WANT_REGEX] = "a regular expression as text",
                                        [WANT_CHOICE] = "a list of texts, none of them empty"};
    bool text = json_is_string(value);
    if (!value || (text && !json_string_length(value)))
        return 0; /* some clients send "" for none */
    if (w->kind)
        return request_fail(a, 400, field, "%s and %s both say what the answer has to be", w->field, field);
    if (!(kind == WANT_SCHEMA   ? text || json_is_object(value) || json_is_boolean(value)
          : kind == WANT_CHOICE ? wanted_is_texts(value)
                                : text))
        return request_fail(a, 400, field, "%s has to be %s", field, words[kind]);
    if (json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY) > limit_of(LIMIT_SCHEMA))
        return request_fail(a, 400, field, "%s is larger than %llu bytes", field,
                            (unsigned long long)limit_of(LIMIT_SCHEMA));
    json_t *own = kind == WANT_SCHEMA && text ? wanted_parse(a, value, field) : json_incref(value);
    if (!own)
        return -1;
    *w = (struct wanted){kind, own, field};
    return 0;
}

static int wanted_any_object(struct request *a, struct wanted *w, const char *field)
{
    json_t *schema = json_pack("{s:s}", "type", "object");
    int failed =
        schema ? wanted_take(a, w, WANT_SCHEMA, schema, field) : request_fail(a, 503, NULL, "out of memory");
    json_decref(schema);
    return failed;
}

static int wanted_of_format(struct request *a, struct wanted *w, const json_t *format)
{
    static const char field[] = "response_format";
    const char *type = field_text(format, "type");
    json_t *schema = json_object_get(format, "schema"), *named = json_object_get(format, "json_schema");
    if (!format || (type && !strcmp(type, "text")))
        return 0;
    if (type && !strcmp(type, "json_object"))
        return schema ? wanted_take(a, w, WANT_SCHEMA, schema, field) : wanted_any_object(a, w, field);
    if (!type || strcmp(type, "json_schema") != 0)
        return request_fail(a, 400, field,
                            "response_format.type has to be 'text', 'json_object' or 'json_schema'");
    if (json_object_get(named, "schema"))
        schema = json_object_get(named, "schema");
    return schema ? wanted_take(a, w, WANT_SCHEMA, schema, field)
                  : request_fail(a, 400, field, "response_format.json_schema.schema is missing");
}

int openai_wanted(struct request *a, const json_t *body, struct wanted *w)
{
    const json_t *structured = json_object_get(body, "structured_outputs");
    int failed = wanted_of_format(a, w, json_object_get(body, "response_format"));
    for (size_t i = 0; !failed && i < sizeof wanted_fields / sizeof *wanted_fields; i++)
        failed = wanted_take(a, w, wanted_fields[i].kind, json_object_get(body, wanted_fields[i].name),
                             wanted_fields[i].name);
    for (size_t i = 0; !failed && i < sizeof wanted_structured / sizeof *wanted_structured; i++)
        failed = wanted_take(a, w, wanted_structured[i].kind,
                             json_object_get(structured, wanted_structured[i].name), "structured_outputs");
    if (!failed && field_bool(structured, "json_object") > 0)
        failed = wanted_any_object(a, w, "structured_outputs");
    return failed;
}
