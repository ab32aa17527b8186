/* The experts of a layer, as one weight of many matrices each for gate, up and down, from all the
 * ways in which files hold them. */
#include "model/bind.h"

#include "codec/dtype.h"
#include "base/log.h"

#include <string.h>

static struct tensor_at at_layer(const char *name, int layer)
{
    return (struct tensor_at){name, layer, LOOKUP_NO_EXPERT};
}

/* One tensor an expert. */
static struct matrix one_by_one(struct binder *b, const char *name, int layer, struct shape want)
{
    struct matrix none = {0}, m = none;
    struct shape each = {want.rows, want.cols, 1};
    const uint8_t **at = bind_memory(b, want.count * sizeof *at);
    struct matrix_scales *scales = bind_memory(b, want.count * sizeof *scales);
    bool even = want.count > 1, scaled = false;
    for (uint32_t i = 0; i < want.count; i++) {
        struct tensor_at where = {name, layer, (int)i};
        const struct tensor *t = bind_tensor(b, where, ".weight");
        if (!t || bind_check(b, t, each) < 0 || bind_number(b, t) < 0 ||
            bind_scales(b, where, t, &scales[i]) < 0)
            return none;
        if (i == 0 && !matrix_of(&m, t)) {
            err_set(b->e, ERR_DATA, "tensor %s: rows of %u values cannot be of type %s", log_safe(t->name),
                    want.cols, dtype_get(t->type)->name);
            return none;
        }
        if (t->type != m.type) {
            err_set(b->e, ERR_DATA, "tensor %s is of another type than the experts before it",
                    log_safe(t->name));
            return none;
        }
        at[i] = t->data;
        scaled = scaled || scales[i].value;
        even = even && t->data >= at[0] && (size_t)(t->data - at[0]) == i * (size_t)(at[i ? 1 : 0] - at[0]);
    }
    m.count = want.count;
    m.scales = scaled ? scales : NULL;
    if (even && !scaled)
        m.each_bytes = (size_t)(at[1] - at[0]);
    else
        m.each = at;
    return m;
}

/* MXFP4 in two tensors: nibbles (experts, rows, blocks, 16) and exponents (experts, rows, blocks). */
static struct matrix mxfp4(struct binder *b, const char *name, int layer, struct shape want)
{
    struct matrix none = {0};
    const struct tensor *q = bind_tensor(b, at_layer(name, layer), "_blocks");
    const struct tensor *s = bind_tensor(b, at_layer(name, layer), "_scales");
    if (!q || !s)
        return none;
    uint64_t blocks = want.cols / 32, all = (uint64_t)want.count * want.rows * blocks;
    if (want.cols % 32 || q->type != DTYPE_U8 || s->type != DTYPE_U8 || q->values != all * 16 ||
        s->values != all) {
        err_set(b->e, ERR_DATA, "tensor %s: %u x %u x %u values in blocks of 32 are expected",
                log_safe(q->name), want.count, want.rows, want.cols);
        return none;
    }
    struct matrix m = {.name = q->name, .type = DTYPE_MXFP4, .rows = want.rows, .cols = want.cols};
    m.count = want.count;
    m.run = want.rows;
    m.data = q->data;
    m.exponents = s->data;
    m.row_bytes = blocks * 16;
    m.each_bytes = m.row_bytes * want.rows;
    return m;
}

/* Stacked (experts, rows, cols); gpt-oss stacks them transposed. */
static struct matrix stacked(struct binder *b, const char *name, int layer, struct shape want, bool turned)
{
    if (lookup_find(&b->names, at_layer(name, layer), "_blocks"))
        return mxfp4(b, name, layer, want);
    const struct tensor *t = lookup_find(&b->names, at_layer(name, layer), ".weight");
    const uint32_t used = want.count, idle = b->h->identities; /* some files hold weights for those too */
    if (!turned && idle && t && t->shape[2] == used + idle) {
        want.count += idle;
        struct matrix all = bind_find(b, at_layer(name, layer), want);
        all.count = used;
        return all;
    }
    if (!turned)
        return bind_find(b, at_layer(name, layer), want);
    struct matrix m = bind_find(b, at_layer(name, layer), (struct shape){want.cols, want.rows, want.count});
    return m.data ? matrix_turn(&m) : m;
}

/* A vector an expert: number `first` of every `step` in the tensor. */
static weight_id biases(struct binder *b, const char *name, int layer, const struct slice *s,
                        struct shape want)
{
    uint32_t step = s->groups == 1 ? 1 : s->stride;
    if (!lookup_find(&b->names, at_layer(name, layer), ".bias"))
        return 0;
    const struct tensor *t = bind_tensor(b, at_layer(name, layer), ".bias");
    size_t n = (size_t)want.rows * want.count;
    const float *from = t ? bind_floats(b, t, n * step, 0) : NULL;
    float *to = from ? bind_memory(b, n * sizeof *to) : NULL;
    if (!to)
        return 0;
    for (size_t i = 0; i < n; i++)
        to[i] = from[i * step + s->first];
    struct bound of = {.name = s->name, .layer = layer, .suffix = ".bias"};
    return bind_table(b, t->name, &of, to, (struct shape){1, want.rows, want.count});
}

/* Gate and up in one tensor: one after the other, or row by row in turn (gpt-oss in safetensors). */
static void fused(struct binder *b, int layer, struct shape each, bool turned, bool in_turn,
                  struct expert_linears *out)
{
    const char *name = "ffn_gate_up_exps";
    uint32_t n = each.rows;
    struct matrix all = stacked(b, name, layer, (struct shape){2 * n, each.cols, each.count}, turned);
    if (!all.data)
        return;
    struct slice gate = {"ffn_gate_exps", 1, 2 * n, 0, n}, up = {"ffn_up_exps", 1, 2 * n, n, n};
    if (in_turn) {
        gate = (struct slice){gate.name, n, 2, 0, 1};
        up = (struct slice){up.name, n, 2, 1, 1};
    }
    struct matrix g = matrix_take(&all, &gate), u = matrix_take(&all, &up);
    out->gate.weight = bind_add(b, gate.name, layer, &g);
    out->up.weight = bind_add(b, up.name, layer, &u);
    if (in_turn) {
        out->gate.bias = biases(b, name, layer, &gate, each);
        out->up.bias = biases(b, name, layer, &up, each);
    }
}

static struct linear plain(struct binder *b, const char *name, int layer, struct shape want, bool turned)
{
    bool whole = lookup_find(&b->names, at_layer(name, layer), ".weight") ||
                 lookup_find(&b->names, at_layer(name, layer), "_blocks");
    struct matrix m = whole ? stacked(b, name, layer, want, turned) : one_by_one(b, name, layer, want);
    struct linear l = {.weight = bind_add(b, name, layer, &m)};
    l.bias = biases(b, name, layer, &(struct slice){.name = name, .groups = 1}, want);
    return l;
}

weight_id bind_stack(struct binder *b, const char *name, int layer, struct shape want)
{
    return plain(b, name, layer, want, false).weight;
}

/* One by one. */
static bool has_experts(const struct binder *b, const char *name, int layer)
{
    return lookup_find(&b->names, (struct tensor_at){name, layer, 0}, ".weight") != NULL;
}

struct expert_linears bind_experts(struct binder *b, int layer)
{
    const struct hparams *h = b->h;
    struct expert_linears out = {0};
    const uint32_t width = h->expert_width ? h->expert_width : h->width;
    struct shape in = {h->expert_ffn, width, h->experts}, down = {width, h->expert_ffn, h->experts};
    bool folder = h->container == STORE_SAFETENSORS, oai = folder && h->act == ACT_SWIGLU_OAI,
         turned = oai || (folder && h->scale_input); /* gpt-oss and llama 4 hold (in, out) */
    const struct tensor *t = lookup_find(&b->names, at_layer("ffn_down_exps", layer), ".weight");
    bool tall = t && t->shape[2] == 1 && t->shape[1] == (uint64_t)h->experts * h->expert_ffn; /* dbrx */
    if (lookup_find(&b->names, at_layer("ffn_gate_up_exps", layer), ".weight") ||
        lookup_find(&b->names, at_layer("ffn_gate_up_exps", layer), "_blocks")) {
        fused(b, layer, in, turned, oai, &out);
    } else {
        if (bind_has(b, "ffn_gate_exps", layer) || has_experts(b, "ffn_gate_exps", layer))
            out.gate = plain(b, "ffn_gate_exps", layer, in, false);
        out.up = plain(b, "ffn_up_exps", layer, in, false);
    }
    out.down = plain(b, "ffn_down_exps", layer, down, turned || (folder && tall && h->experts > 1));
    return out;
}
