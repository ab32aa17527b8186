/* A tokenizer's vocabulary for constraints. */
#include "lang/grammar/constraint.h"

#include "lang/token/tokenizer.h"

static const char *tok_bytes(const void *of, int32_t id, size_t *n)
{
    *n = 0;
    return tokenizer_token_bytes(of, id, n);
}

enum constraint_kind constraint_token_kind(const struct tokenizer *of, int32_t id)
{
    if (tokenizer_is_eog(of, id))
        return CONSTRAINT_END;
    switch (tokenizer_attr(of, id)) {
    case TOK_NORMAL:
    case TOK_USER:
    case TOK_BYTE:
        return CONSTRAINT_TEXT;
    case TOK_CONTROL:
    case TOK_UNKNOWN:
    case TOK_UNUSED:
        break;
    }
    return CONSTRAINT_NEVER;
}

static enum constraint_kind tok_kind(const void *of, int32_t id)
{
    return constraint_token_kind(of, id);
}

struct constraint_vocab *constraint_vocab_tokenizer(const struct tokenizer *t, struct err *e)
{
    struct constraint_source s = {tokenizer_vocab(t), t, tok_bytes, tok_kind};
    return constraint_vocab_open(&s, e);
}
