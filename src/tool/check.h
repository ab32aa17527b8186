/* How well a model predicts a text, alone or against another model: what 'perplexity' and 'quantize --check' print. */
#pragma once

#include "base/buf.h"
#include "base/json.h"
#include "run/perplexity.h"
#include "tool/args.h"

struct check {
    struct perplexity p;
    uint32_t ctx;
    bool done;
};

/* Options: the text is a->check or a->file; ctx, chunks and those of tool/load.h where the verb has them. against may be
 * NULL. */
int check_run(struct check *c, const char *model, const char *against, const char *text, const struct args *a,
              struct err *e);
void check_json(struct json *j, const struct check *c);
void check_text(struct buf *out, const struct check *c);
void check_free(struct check *c);
