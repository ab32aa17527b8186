#include "tool/constrain.h"

#include "base/file.h"
#include "base/log.h"

#include <jansson.h>

enum { CONSTRAIN_FILE_MOST = 4 << 20 };

/* The error of a compiler says what is wrong; this says in which file. */
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

int constrain_read(const struct args *a, struct constraint **out, struct err *e)
{
    const char *schema = args_text(a, "json-schema"), *grammar = args_text(a, "grammar");
    struct buf text = {.max = CONSTRAIN_FILE_MOST};
    *out = NULL;
    if (schema && grammar)
        return err_set(e, ERR_USAGE, "--json-schema and --grammar cannot both hold: give one of them");
    if (!schema && !grammar)
        return 0;
    const char *file = schema ? schema : grammar;
    if (file_read(file, &text, e)) {
        buf_free(&text);
        return -1;
    }
    *out =
        schema ? constrain_schema(&text, e) : constraint_from_gbnf(text.data ? text.data : "", text.len, e);
    buf_free(&text);
    if (!*out)
        constrain_name_file(file, e);
    return *out ? 0 : -1;
}

int constrain_rule(struct constraint *c, struct loaded *l, struct rule **out, struct err *e)
{
    *out = NULL;
    if (!c)
        return 0;
    const struct constraint_vocab *v = loaded_vocab(l, e);
    if (v)
        return rule_open(out, c, v, e);
    constraint_free(c);
    return -1;
}
