/* Opening a model: read the hyper-parameters, let the family bind its weights and write its plan, check it. */
#include "model/model.h"

#include "base/log.h"
#include "base/mem.h"
#include "model/arch.h"
#include "model/build.h"
#include "model/lora.h"

#include <string.h>

/* An unused tensor of a layer may mean that the architecture is misidentified. */
static void warn_unused(const struct binder *b, const struct store *s)
{
    static const char *const known[] = {"rotary_emb.", "attn.bias", "masked_bias", "attention.bias",
                                        "rope_freqs",  "_decay",    "slope_rate"};
    char layers[128];
    int n = s->kind == STORE_GGUF ? snprintf(layers, sizeof layers, "blk.")
                                  : snprintf(layers, sizeof layers, "%s%s", b->names.root, b->names.stack);
    for (size_t i = 0; i < s->count; i++) {
        const char *name = s->tensors[i].name;
        bool fine = b->used[i] || strncmp(name, layers, (size_t)n) != 0;
        for (size_t j = 0; !fine && j < sizeof known / sizeof *known; j++)
            fine = strstr(name, known[j]) != NULL;
        unsigned long layer = fine ? 0 : strtoul(name + n, NULL, 10);
        if (!fine && layer < b->h->layers) { /* beyond: layers for predicting several tokens */
            log_warn("%s: tensor %s is not used by architecture %s; the results may be wrong",
                     log_safe(s->path), log_safe(name), b->h->arch->name);
            return;
        }
    }
}

static int build_plan(struct model *m, const struct model_options *o, struct err *e)
{
    struct build b = {.h = &m->h, .p = &m->plan, .ctx = o->ctx ? o->ctx : m->h.context, .images = o->images};
    int ok = -1;
    if (binder_open(&b.bind, m->store, &m->h, &m->weights, e) == 0) {
        b.bind.conv1d = m->h.arch->conv1d && m->store->kind == STORE_SAFETENSORS;
        build_begin(&b);
        m->h.arch->build(&b);
        if (m->plan.failed)
            err_memory(e, "the plan", 0);
        ok = e->code ? -1 : plan_check(&m->plan, &m->weights, e);
    }
    m->owned = b.bind.owned;
    m->bound = b.bind.bound;
    m->converted = b.bind.owned_bytes;
    if (ok == 0)
        warn_unused(&b.bind, m->store);
    binder_close(&b.bind);
    return ok;
}

int model_open(struct model **out, const struct store *s, const struct model_options *o, struct err *e)
{
    struct err own = {0};
    struct model *m = mem_zalloc(1, sizeof *m);
    if (!m)
        return err_memory(e, "the model", sizeof *m);
    m->store = s;
    static const struct model_options usual;
    o = o ? o : &usual;
    if (hparams_read(&m->h, s, &own) < 0 || build_plan(m, o, &own) < 0 ||
        (!o->describe && model_make(m, &o->make, &own) < 0)) {
        model_close(m);
        err_set(e, own.code, "%s: %s", log_safe(s->path), own.text);
        return -1;
    }
    *out = m;
    return 0;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    for (uint32_t i = 1; m->lora && i <= m->plan.adapters; i++)
        lora_close(m->lora[i]);
    mem_free(m->lora);
    plan_free(&m->plan);
    weights_free(&m->weights);
    owned_free(m->owned);
    mem_free(m->bound);
    hparams_free(&m->h);
    mem_free(m);
}
