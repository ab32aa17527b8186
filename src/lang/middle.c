#include "lang/middle.h"

#include <string.h>

static int middle_add(const struct tokenizer *t, enum tok_role role, const char *text, struct ids *out,
                      struct err *e)
{
    int32_t id = tokenizer_id(t, role);
    if (id >= 0 && ids_add(out, id, e))
        return -1;
    return text ? tokenizer_encode(t, text, strlen(text), 0, out, e) : 0;
}

/* Other files, each with its name; the last name is that of the file to be filled in. */
static int middle_files(const struct tokenizer *t, const struct middle *m, struct ids *out, struct err *e)
{
    if (!m->count || tokenizer_id(t, TOK_FIM_SEP) < 0)
        return 0;
    if (middle_add(t, TOK_FIM_REP, "project\n", out, e))
        return -1;
    for (size_t i = 0; i < m->count; i++)
        if (middle_add(t, TOK_FIM_SEP, m->files[i].name, out, e) || tokenizer_encode(t, "\n", 1, 0, out, e) ||
            tokenizer_encode(t, m->files[i].text, strlen(m->files[i].text), 0, out, e) ||
            tokenizer_encode(t, "\n", 1, 0, out, e))
            return -1;
    return middle_add(t, TOK_FIM_SEP, "file\n", out, e);
}

int middle_prompt(const struct tokenizer *t, const struct middle *m, struct ids *out, struct err *e)
{
    if (tokenizer_id(t, TOK_FIM_PRE) < 0 || tokenizer_id(t, TOK_FIM_SUF) < 0 ||
        tokenizer_id(t, TOK_FIM_MID) < 0)
        return err_set(e, ERR_USAGE, "this model cannot fill in the middle: it has no tokens for that");
    if (tokenizer_adds_bos(t) && middle_add(t, TOK_BOS, NULL, out, e))
        return -1;
    return middle_files(t, m, out, e) || middle_add(t, TOK_FIM_PRE, m->prefix, out, e) ||
                   middle_add(t, TOK_FIM_SUF, m->suffix, out, e) ||
                   middle_add(t, TOK_FIM_MID, m->begun, out, e)
               ? -1
               : 0;
}
