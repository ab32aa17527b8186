#include "lang/chat/fim.h"

#include <string.h>

static int fim_add(const struct tokenizer *t, enum tok_role role, const char *text, struct ids *out,
                   struct err *e)
{
    int32_t id = tokenizer_id(t, role);
    if (id >= 0 && ids_add(out, id, e))
        return -1;
    return text ? tokenizer_encode(t, text, strlen(text), 0, out, e) : 0;
}

/* Other files, each with its name; the last name is that of the file to be filled in. */
static int fim_files(const struct tokenizer *t, const struct fim *m, struct ids *out, struct err *e)
{
    if (!m->count || tokenizer_id(t, TOK_FIM_SEP) < 0)
        return 0;
    if (fim_add(t, TOK_FIM_REP, "project\n", out, e))
        return -1;
    for (size_t i = 0; i < m->count; i++)
        if (fim_add(t, TOK_FIM_SEP, m->files[i].name, out, e) || tokenizer_encode(t, "\n", 1, 0, out, e) ||
            tokenizer_encode(t, m->files[i].text, strlen(m->files[i].text), 0, out, e) ||
            tokenizer_encode(t, "\n", 1, 0, out, e))
            return -1;
    return fim_add(t, TOK_FIM_SEP, "file\n", out, e);
}

int fim_prompt(const struct tokenizer *t, const struct fim *m, struct ids *out, struct err *e)
{
    if (tokenizer_id(t, TOK_FIM_PRE) < 0 || tokenizer_id(t, TOK_FIM_SUF) < 0 ||
        tokenizer_id(t, TOK_FIM_MID) < 0)
        return err_set(e, ERR_USAGE, "this model cannot fill in the middle: it has no tokens for that");
    if (tokenizer_adds_bos(t) && fim_add(t, TOK_BOS, NULL, out, e))
        return -1;
    return fim_files(t, m, out, e) || fim_add(t, TOK_FIM_PRE, m->prefix, out, e) ||
                   fim_add(t, TOK_FIM_SUF, m->suffix, out, e) || fim_add(t, TOK_FIM_MID, m->begun, out, e)
               ? -1
               : 0;
}
