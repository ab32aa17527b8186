/* What a token of a tokenizer is for constraints. */
#include "lang/grammar/constraint.h"

#include "lang/token/tokenizer.h"

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
