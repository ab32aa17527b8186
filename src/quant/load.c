#include "quant/load.h"

#include "base/buf.h"
#include "codec/dtype.h"
#include "base/log.h"
#include "model/arch.h"
#include "model/bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A weight that the recipe decides on. */
struct load_candidate {
    char name[128];
    uint32_t id;
};

static int by_name(const void *a, const void *b)
{
    const struct load_candidate *x = a, *y = b;
    return recipe_before(x->name, y->name);
}

/* Floating-point types that models are published in, not quantised blocks. */
static bool plain(uint32_t type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16 || type == DTYPE_F8_E4M3 ||
           type == DTYPE_F8_E5M2;
}

static size_t list(const struct model *m, struct load_candidate *all)
{
    size_t n = 0;
    for (uint32_t i = 1; i < m->weights.count; i++) {
        const struct bound *b = &m->bound[i];
        char layer[24] = "";
        if (!b->name || !plain(b->m.type) || m->weights.all[i].rows == 1)
            continue;
        if (b->layer >= 0)
            snprintf(layer, sizeof layer, "blk.%d.", b->layer);
        snprintf(all[n].name, sizeof all[n].name, "%s%s%s", layer, b->name, b->suffix);
        all[n++].id = i;
    }
    qsort(all, n, sizeof *all, by_name);
    return n;
}

/* By weight_id, in `types`. */
static void choose(const struct model *m, const struct recipe *r, const struct load_candidate *all, size_t n,
                   struct recipe_tensor *t, uint32_t *types)
{
    const struct hparams *h = &m->h;
    struct recipe_model about = {.arch = h->arch->written ? h->arch->written : h->arch->name,
                                 .layers = h->layers};
    about.heads = h->heads, about.kv_heads = h->layer[0].kv_heads, about.experts = h->experts;
    for (size_t i = 0; i < n; i++) {
        const struct weight *w = &m->weights.all[all[i].id];
        t[i] = (struct recipe_tensor){.name = all[i].name, .dims = w->count > 1 ? 3 : 2, .cols = w->cols};
        t[i].kept = MODEL_AS_IT_IS;
    }
    recipe_choose(r, &about, t, n, false);
    struct recipe_instead instead = {0};
    struct buf text = {0};
    for (size_t i = 0; i < n; i++) {
        types[all[i].id] = t[i].type;
        recipe_add_instead(&instead, t[i].wanted, t[i].type, t[i].cols);
    }
    recipe_write_instead(&instead, &text);
    if (instead.count && text.data)
        log_warn("--quant %s: %s", r->name, text.data);
    buf_free(&text);
}

int quant_load(struct model *m, const struct recipe *r, const struct model_make *how, struct err *e)
{
    uint32_t count = m->weights.count;
    struct load_candidate *all = mem_alloc(count, sizeof *all);
    struct recipe_tensor *t = mem_alloc(count, sizeof *t);
    uint32_t *types = mem_alloc(count, sizeof *types);
    int failed = all && t && types ? 0 : err_memory(e, "the list of weights", count * sizeof *all);
    if (!failed) {
        memset(types, 0xff, count * sizeof *types);
        choose(m, r, all, list(m, all), t, types);
        struct model_make make = *how;
        make.types = types;
        failed = model_make(m, &make, e);
    }
    mem_free(all);
    mem_free(t);
    mem_free(types);
    return failed;
}
