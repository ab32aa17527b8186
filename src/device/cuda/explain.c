#include "device/cuda/explain.h"

#include "base/buf.h"
#include "codec/dtype.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Stored profiles of cards. */
static const struct gpu_profile stored[] = {
    {.name = "H200", .major = 9, .minor = 0, .sms = 132, .shared_block = 232448, .wide = true},
    {.name = "H100", .major = 9, .minor = 0, .sms = 132, .shared_block = 232448, .wide = true},
    {.name = "A100", .major = 8, .minor = 0, .sms = 108, .shared_block = 166912},
    {.name = "RTX 3090", .major = 8, .minor = 6, .sms = 82, .shared_block = 101376},
    {.name = "RTX 4090", .major = 8, .minor = 9, .sms = 128, .shared_block = 101376},
    {.name = "RTX 5090", .major = 12, .minor = 0, .sms = 170, .shared_block = 101376},
};

int profile_stored(const char *name, struct gpu_profile *p, struct err *e)
{
    for (size_t i = 0; i < sizeof stored / sizeof stored[0]; i++)
        if (!strcasecmp(stored[i].name, name)) {
            *p = stored[i];
            return 0;
        }
    return err_set(e, ERR_USAGE, "there is no stored profile of a card '%s'", name);
}

/* Made-up addresses: weights, KV and scratch far apart, none of them 0. */
enum { PAPER_GIB = 30 };
static const cu_ptr paper_weights = 1ull << (PAPER_GIB + 12), paper_kv = 2ull << (PAPER_GIB + 12),
                    paper_scratch = 3ull << (PAPER_GIB + 12), paper_host = 4ull << (PAPER_GIB + 12);

int paper_open(struct paper_card *c, const struct plan *p, const struct weights *w,
               const struct device_shape *shape, bool exact, struct err *e)
{
    struct step_sizes sizes;
    const struct size_limits limits = {&c->profile, shape->rows, shape->seqs};
    const struct scratch_shape rows = {shape->rows, shape->outs, exact, !exact, false};
    c->at.buffer = mem_zalloc(p->buffers + 1, sizeof *c->at.buffer);
    if (!c->at.buffer)
        return err_memory(e, "the table of buffers", p->buffers * sizeof *c->at.buffer);
    if (plan_check(p, w, e) || step_measure(&limits, p, w, &sizes, e) || kv_shape(c->kv, p, shape->kv, e) ||
        upload_place(&c->weights, w, paper_weights, e))
        return -1;
    for (uint32_t i = 0; i < p->groups; i++)
        c->kv[i].base = paper_kv;
    scratch_place(&c->at, p, &sizes, &rows, paper_scratch);
    c->at.results = (float *)paper_host;
    c->lower = (struct lower){.card = &c->profile,
                              .plan = p,
                              .source = w,
                              .mat = c->weights.mat,
                              .width = p->width,
                              .at = &c->at,
                              .kv = c->kv,
                              .page_tokens = shape->kv->page_tokens,
                              .state_floats = state_floats(p),
                              .half = rows.half,
                              .path = exact ? PATH_FLOAT : PATH_PACK};
    lower_ratios(&c->lower, p);
    return 0;
}

void paper_free(struct paper_card *c)
{
    mem_free(c->at.buffer);
    upload_free(&c->weights);
}

struct step_class paper_step(const struct paper_card *c, uint32_t rows, uint32_t keys, bool prompt,
                             struct launch_step *s)
{
    const uint32_t seqs = prompt ? 1 : rows, each = prompt ? rows : 1;
    struct step_class class = lower_class(&c->lower, rows, seqs);
    *s = (struct launch_step){.meta = {.rows = rows, .seqs = seqs, .outs = seqs, .width = 1},
                              .keys = keys_rounded(keys > each ? keys : each)};
    for (uint32_t r = 0; r < c->lower.ratios; r++) {
        const uint32_t queries = each * c->lower.ratio[r];
        if (queries <= DECODE_QUERIES) {
            class.decode = 1;
            continue;
        }
        class.tiles |= 1u << r;
        s->tiles[r] = seqs * gpu_blocks(queries, TILE_QUERIES);
    }
    class.seqs = class.decode ? seqs : 0;
    class.keys = class.decode ? s->keys : 0;
    class.single = seqs == rows;
    class.chunks = c->at.chunks && each >= CHUNK_LEAST;
    return class;
}

/* ---- printing ---- */

/* The profile that is asked for, that of the card at hand, or else the first stored one; says which. */
static int find_profile(const struct cuda_explain *how, struct gpu_profile *p, struct buf *out, struct err *e)
{
    struct err none = {0};
    if (how->profile) {
        buf_printf(out, "launches on %s", how->profile);
        return profile_stored(how->profile, p, e);
    }
    struct gpu *g = gpu_open(0, 0, &none);
    *p = g ? g->profile : stored[0];
    buf_printf(out, g ? "launches on %s" : "launches on %s (a stored profile: there is no card here)",
               p->name);
    gpu_close(g);
    return 0;
}

/* The launches of operations [from, to); *at: the first that is not printed yet. */
static void print_ops(const struct plan *p, struct launch_list *list, uint32_t from, uint32_t to,
                      uint32_t *at, struct buf *out)
{
    for (uint32_t i = from; i < to; i++) {
        const char *why = lower_refuses(&p->ops[i]);
        buf_printf(out, why ? "  %s: on the CPU, %s\n" : "  %s\n", plan_op_name(p->ops[i].kind), why);
        for (; *at < list->count && list->all[*at].op == i; ++*at)
            launch_print(&list->all[*at], out);
    }
}

/* Layers one after the other that have the same launches. */
struct same_layers {
    struct buf text;
    uint32_t first, last; /* UINT32_MAX: outside the layers */
};

static void print_layers(struct same_layers *s, struct buf *out)
{
    if (s->text.len && s->first != UINT32_MAX) {
        buf_printf(out, s->first == s->last ? "layer %u\n" : "layers %u", s->first);
        if (s->first != s->last)
            buf_printf(out, " to %u\n", s->last);
    }
    buf_add(out, s->text.data, s->text.len);
    buf_clear(&s->text);
}

static void print_list(const struct plan *p, struct launch_list *list, struct buf *out)
{
    struct same_layers same = {.first = UINT32_MAX};
    struct buf text = {0};
    uint32_t at = 0;
    for (uint32_t i = 0, next; i < p->count; i = next) {
        const uint32_t layer = p->ops[i].layer;
        for (next = i; next < p->count && p->ops[next].layer == layer; next++)
            ;
        buf_clear(&text);
        print_ops(p, list, i, next, &at, &text);
        const bool again = layer != UINT32_MAX && same.first != UINT32_MAX && text.len == same.text.len &&
                           !memcmp(text.data, same.text.data, text.len);
        if (!again) {
            print_layers(&same, out);
            buf_add(&same.text, text.data, text.len);
            same.first = layer;
        }
        same.last = layer;
    }
    print_layers(&same, out);
    buf_free(&same.text);
    buf_free(&text);
}

int cuda_explain(const struct plan *p, const struct weights *w, const struct cuda_explain *how,
                 struct buf *out, struct err *e)
{
    struct paper_card c = {0};
    struct launch_list list = {0};
    struct launch_step step;
    struct kv_config kv = {.type = how->exact ? DTYPE_F32 : DTYPE_F16, .page_tokens = 16};
    const uint32_t seqs = how->prompt ? 1 : how->rows;
    for (uint32_t i = 0; i < p->groups; i++)
        kv.pages[i] = 1;
    const struct device_shape shape = {.kv = &kv, .rows = how->rows, .seqs = seqs, .outs = seqs};
    int bad = find_profile(how, &c.profile, out, e) || paper_open(&c, p, w, &shape, how->exact, e);
    if (!bad) {
        const struct step_class class = paper_step(&c, how->rows, how->keys, how->prompt, &step);
        bad = lower_plan(&c.lower, &class, &list, e);
    }
    if (!bad) {
        const struct launch_limits limits = {.card = &c.profile, .part_floats = c.at.part_floats};
        for (uint32_t i = 0; i < list.count;) {
            launch_bind(&list.all[i], &step, &limits);
            if (launch_empty(&list.all[i]))
                launch_remove(&list, i);
            else
                i++;
        }
        buf_printf(out, ": %u %s, %u keys, %u launches\n", how->rows,
                   how->prompt      ? "rows of a prompt"
                   : how->rows == 1 ? "sequence that decodes"
                                    : "sequences that decode",
                   how->keys, list.count);
        print_list(p, &list, out);
    }
    launch_free(&list);
    paper_free(&c);
    return bad ? -1 : 0;
}
