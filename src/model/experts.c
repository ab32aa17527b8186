/* The experts of a layer, as one weight of many matrices each for gate, up and down, from all the
 * ways in which files hold them. */
#include "model/bind.h"

#include "base/dtype.h"
#include "base/log.h"

#include <string.h>

static struct tensor_at at_layer(const char *name, int layer)
{
    return (struct tensor_at){name, layer, LOOKUP_NO_EXPERT};
}

/* One tensor an expert: a view where they lie at equal distances, else gathered. */
static struct weight one_by_one(struct binder *b, const char *name, int layer, struct shape want)
{
    struct weight w = {.rows = want.rows, .cols = want.cols, .count = want.count};
    struct shape each = {want.rows, want.cols, 1};
    const uint8_t *first = NULL;
    bool even = true;
    for (uint32_t i = 0; i < want.count; i++) {
        const struct tensor *t = bind_tensor(b, (struct tensor_at){name, layer, (int)i}, ".weight");
        if (!t || bind_check(b, t, each) < 0)
            return (struct weight){0};
        if (i == 0) {
            w.name = t->name, w.type = t->type, first = t->data;
        } else if (t->type != w.type) {
            err_set(b->e, ERR_DATA, "tensor %s is of another type than the experts before it",
                    log_safe(t->name));
            return (struct weight){0};
        } else if (i == 1) {
            w.each_bytes = (size_t)(t->data - first);
            even = t->data > first;
        } else {
            even = even && t->data == first + i * w.each_bytes;
        }
    }
    bool fp8 = bind_is_fp8(w.type);
    if (!dtype_row_bytes(fp8 ? DTYPE_BF16 : w.type, want.cols, &w.row_bytes))
        return (struct weight){0};
    w.data = first;
    if (want.count > 1 && even && !fp8)
        return w;
    w.each_bytes = w.row_bytes * want.rows;
    uint8_t *bytes = bind_memory(b, w.each_bytes * want.count);
    for (uint32_t i = 0; bytes && i < want.count; i++) {
        struct tensor_at at = {name, layer, (int)i};
        const struct tensor *t = bind_tensor(b, at, ".weight");
        if (fp8)
            bind_decode_fp8(b, at, t, (uint16_t *)(void *)(bytes + i * w.each_bytes));
        else
            memcpy(bytes + i * w.each_bytes, t->data, w.each_bytes);
    }
    w.type = fp8 ? DTYPE_BF16 : w.type;
    w.data = b->e->code ? NULL : bytes;
    return w;
}

/* gpt-oss keeps MXFP4 as two tensors: nibbles in order, (experts, rows, blocks, 16), and scales
 * (experts, rows, blocks). A block of ours is the scale, then 16 bytes whose low nibbles are the first
 * 16 values and whose high nibbles the other 16:
 *
 *     theirs  byte i: values 2i (low), 2i+1 (high)       ours  byte i: values i (low), i+16 (high)   */
static struct weight mxfp4(struct binder *b, const char *name, int layer, struct shape want)
{
    struct weight none = {0};
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
    uint8_t *bytes = bind_memory(b, all * 17);
    for (uint64_t i = 0; bytes && i < all; i++) {
        uint8_t *to = bytes + i * 17, value[32];
        to[0] = s->data[i];
        for (int j = 0; j < 16; j++) {
            value[2 * j] = q->data[i * 16 + j] & 15;
            value[2 * j + 1] = q->data[i * 16 + j] >> 4;
        }
        for (int j = 0; j < 16; j++)
            to[1 + j] = (uint8_t)(value[j] | value[j + 16] << 4);
    }
    struct weight w = {
        .name = q->name, .type = DTYPE_MXFP4, .rows = want.rows, .cols = want.cols, .count = want.count};
    w.data = bytes;
    w.row_bytes = blocks * 17;
    w.each_bytes = w.row_bytes * want.rows;
    return bytes ? w : none;
}

/* Stacked (experts, rows, cols); gpt-oss stacks them transposed. */
static struct weight stacked(struct binder *b, const char *name, int layer, struct shape want, bool turned)
{
    struct weight w;
    if (lookup_find(&b->names, at_layer(name, layer), "_blocks"))
        return mxfp4(b, name, layer, want);
    if (!turned)
        return bind_find(b, at_layer(name, layer), want);
    w = bind_find(b, at_layer(name, layer), (struct shape){want.cols, want.rows, want.count});
    return w.data ? bind_transpose(b, &w) : w;
}

/* A vector an expert: number `first` of every `step` in the tensor. */
static weight_id biases(struct binder *b, const char *name, int layer, struct shape want, uint32_t first,
                        uint32_t step)
{
    if (!lookup_find(&b->names, at_layer(name, layer), ".bias"))
        return 0;
    const struct tensor *t = bind_tensor(b, at_layer(name, layer), ".bias");
    size_t n = (size_t)want.rows * want.count;
    const float *from = t ? bind_floats(b, t, n * step, 0) : NULL;
    float *to = from ? bind_memory(b, n * sizeof *to) : NULL;
    if (!to)
        return 0;
    for (size_t i = 0; i < n; i++)
        to[i] = from[i * step + first];
    struct weight w = {.name = t->name, .type = DTYPE_F32, .rows = 1, .cols = want.rows, .count = want.count};
    w.data = (const uint8_t *)to;
    w.row_bytes = w.each_bytes = want.rows * sizeof *to;
    return bind_add(b, &w);
}

/* Gate and up in one tensor: one after the other, or row by row in turn (gpt-oss in safetensors). */
static void fused(struct binder *b, int layer, struct shape each, bool in_turn, struct expert_linears *out)
{
    const char *name = "ffn_gate_up_exps";
    struct weight w = stacked(b, name, layer, (struct shape){2 * each.rows, each.cols, each.count}, in_turn);
    if (!w.data)
        return;
    struct weight gate = w, up = w;
    gate.rows = up.rows = each.rows;
    up.data += (in_turn ? 1 : each.rows) * w.row_bytes;
    if (in_turn)
        gate.row_bytes = up.row_bytes = 2 * w.row_bytes;
    out->gate.weight = bind_add(b, &gate);
    out->up.weight = bind_add(b, &up);
    if (in_turn) {
        out->gate.bias = biases(b, name, layer, each, 0, 2);
        out->up.bias = biases(b, name, layer, each, 1, 2);
    }
}

static struct linear plain(struct binder *b, const char *name, int layer, struct shape want, bool turned)
{
    bool whole = lookup_find(&b->names, at_layer(name, layer), ".weight") ||
                 lookup_find(&b->names, at_layer(name, layer), "_blocks");
    struct weight w = whole ? stacked(b, name, layer, want, turned) : one_by_one(b, name, layer, want);
    struct linear l = {.weight = bind_add(b, &w)};
    l.bias = biases(b, name, layer, want, 0, 1);
    return l;
}

struct expert_linears bind_experts(struct binder *b, int layer)
{
    const struct hparams *h = b->h;
    struct expert_linears out = {0};
    struct shape in = {h->expert_ffn, h->width, h->experts}, down = {h->width, h->expert_ffn, h->experts};
    bool oai = h->act == ACT_SWIGLU_OAI && h->container == STORE_SAFETENSORS;
    if (lookup_find(&b->names, at_layer("ffn_gate_up_exps", layer), ".weight") ||
        lookup_find(&b->names, at_layer("ffn_gate_up_exps", layer), "_blocks")) {
        fused(b, layer, in, oai, &out);
    } else {
        out.gate = plain(b, "ffn_gate_exps", layer, in, false);
        out.up = plain(b, "ffn_up_exps", layer, in, false);
    }
    out.down = plain(b, "ffn_down_exps", layer, down, oai);
    return out;
}
