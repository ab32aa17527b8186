#include "tool/speculate.h"

#include "base/log.h"
#include "tool/load.h"

#include <string.h>

enum { SPECULATE_TEXT = 16, SPECULATE_MODEL = 8 };

int speculate_read(const struct args *a, struct engine_options *g, struct session_options *o, struct err *e)
{
    const char *how = args_text(a, "speculate"), *model = args_text(a, "draft");
    bool off = how && !strcmp(how, "off"), ngram = how && !strcmp(how, "ngram"),
         always = how && !strcmp(how, "always");
    if (how && !off && !ngram && !always && strcmp(how, "auto") != 0)
        return err_set(e, ERR_USAGE, "--speculate is auto, ngram, always or off, not '%s'", log_safe(how));
    if (model && (off || ngram))
        return err_set(e, ERR_USAGE, "--speculate %s does without --draft: give one of them", how);
    g->draft = off ? 0 : (uint32_t)args_int(a, "draft-n", model ? SPECULATE_MODEL : SPECULATE_TEXT);
    g->draft_always = ngram || always;
    uint32_t streams = o->runner.seqs ? o->runner.seqs : 1;
    o->runner.outs = g->draft ? streams + g->draft : 0;
    o->runner.snapshots = engine_snapshots(streams);
    return 0;
}

int speculate_load(const struct args *a, const char *model, struct engine_options *g, const struct session *l,
                   struct err *e)
{
    struct session_options o = {
        .runner = {.ctx = l->runner->ctx, .seqs = l->runner->most_seqs, .pages = l->runner->pool}};
    o.runner.snapshots = o.runner.seqs * g->draft; /* it is cut back by as many tokens */
    if (!model)
        return 0;
    return load_model(&g->draft_model, model, &o, a, e) ||
                   load_predicts(g->draft_model->model, g->draft_model->store->path, e)
               ? -1
               : 0;
}
