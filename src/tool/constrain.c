#include "tool/constrain.h"

#include "base/file.h"
#include "base/log.h"

#include <jansson.h>
#include <string.h>

enum { CONSTRAIN_FILE_MOST = 4 << 20, CONSTRAIN_CHOICES = 256 };

/* Adds the file's name to a compiler's error. */
static void constrain_name_file(const char *file, struct err *e)
{
    struct err inner = *e;
    *e = (struct err){0};
    err_set(e, inner.code, "%s: %s", log_safe(file), inner.text);
}

static struct constraint *constrain_schema(const struct buf *text, struct err *e)
{
    json_error_t why;
    json_t *schema =
        json_loadb(text->data ? text->data : "", text->len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    if (!schema) {
        err_set(e, ERR_DATA, "not JSON: %s in line %d", why.text, why.line);
        return NULL;
    }
    struct constraint *c = constraint_from_schema(schema, e);
    json_decref(schema);
    return c;
}

/* --json-schema and --grammar name a file. */
static struct constraint *constrain_file(const char *file, bool is_schema, struct err *e)
{
    struct buf text = {.max = CONSTRAIN_FILE_MOST};
    struct constraint *c = NULL;
    if (!file_read(file, &text, e)) {
        c = is_schema ? constrain_schema(&text, e)
                      : constraint_from_gbnf(text.data ? text.data : "", text.len, e);
        if (!c)
            constrain_name_file(file, e);
    }
    buf_free(&text);
    return c;
}

static struct constraint *constrain_choices(const struct args *a, struct err *e)
{
    const char *texts[CONSTRAIN_CHOICES];
    size_t n = 0;
    int at = 0;
    for (const char *text; (text = args_next(a, "choice", &at));) {
        if (n == CONSTRAIN_CHOICES) {
            err_set(e, ERR_USAGE, "more than %d of --choice", CONSTRAIN_CHOICES);
            return NULL;
        }
        texts[n++] = text;
    }
    return constraint_from_choices(texts, n, e);
}

int constrain_read(const struct args *a, struct constraint **out, struct err *e)
{
    const char *schema = args_text(a, "json-schema"), *grammar = args_text(a, "grammar"),
               *regex = args_text(a, "regex"), *choice = args_text(a, "choice");
    bool object = args_flag(a, "json-object");
    int given = !!schema + !!grammar + !!regex + !!choice + object;
    *out = NULL;
    if (!given)
        return 0;
    if (given > 1)
        return err_set(e, ERR_USAGE,
                       "--json-schema, --json-object, --grammar, --regex and --choice cannot hold together: "
                       "give one of them");
    if (schema || grammar)
        *out = constrain_file(schema ? schema : grammar, schema, e);
    else if (regex)
        *out = constraint_from_regex(regex, strlen(regex), e);
    else
        *out = choice ? constrain_choices(a, e) : constraint_from_json_object(e);
    return *out ? 0 : -1;
}

int constrain_ref(struct constraint *c, struct session *l, struct constraint_ref **out, struct err *e)
{
    *out = NULL;
    if (!c)
        return 0;
    const struct constraint_vocab *v = session_vocab(l, e);
    if (v)
        return constraint_ref_open(out, c, v, e);
    constraint_free(c);
    return -1;
}
