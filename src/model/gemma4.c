/* gemma 4: plain norms, a norm of V without weights, heads of two sizes, and in the last layers keys and values that earlier
 * layers of the same kind have made. Its small models add numbers that each layer has of every token; its largest has
 * experts beside the dense feed-forward. gemma 3n (gemma3n.c) shares the per-layer numbers and the shared keys. */
#include "model/gemma4.h"

#include "model/arch.h"
#include "model/families.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int gemma4_share(struct hparams *h, const struct keys *k, struct err *e)
{
    uint32_t shared = 0;
    if (keys_u32(k, "attention.shared_kv_layers", "num_kv_shared_layers", HPARAMS_COUNT, &shared, e) < 0 ||
        keys_u32(k, "embedding_length_per_layer_input", "hidden_size_per_layer_input", HPARAMS_COUNT,
                 &h->per_layer, e) < 0)
        return -1;
    if (shared >= h->layers || (uint64_t)h->per_layer * h->layers > HPARAMS_SIZE[1])
        return err_set(e, ERR_DATA, "%u of %u layers share keys, %u numbers a layer: that cannot be", shared,
                       h->layers, h->per_layer);
    for (uint32_t i = h->layers - shared; i < h->layers; i++) {
        uint32_t from = h->layers - shared;
        while (from && h->layer[from - 1].sliding != h->layer[i].sliding)
            from--;
        if (!from)
            return err_set(e, ERR_DATA, "layer %u shares keys, and no layer of its kind has any", i);
        h->layer[i].kv = from - 1;
    }
    return 0;
}

/* Newer files have the sizes of layers that differ one by one; *full gets that of full layers. */
static int read_each(struct hparams *h, const struct keys *k, uint32_t *full, struct err *e)
{
    char name[64];
    json_t *each = k->gguf ? NULL : keys_json(k, "per_layer_config", name);
    const int digits = snprintf(name, sizeof name, "%u", h->layers - 1);
    for (uint32_t i = 0; each && i < h->layers; i++) {
        struct layer_params *l = &h->layer[i];
        snprintf(name, sizeof name, "%0*u", digits, i); /* as long as that of the last layer */
        struct keys in = {.config = json_object_get(each, name)};
        snprintf(name, sizeof name, "%u", i);
        in.config = in.config ? in.config : json_object_get(each, name);
        l->k_dim = h->k_dim;
        if (in.config && (keys_u32(&in, NULL, "head_dim", HPARAMS_SIZE, &l->k_dim, e) < 0 ||
                          keys_u32(&in, NULL, "num_key_value_heads", HPARAMS_SIZE, &l->kv_heads, e) < 0))
            return -1;
        l->v_dim = l->k_dim;
        *full = l->sliding ? *full : l->k_dim;
        if (h->heads % l->kv_heads || l->k_dim > 65536)
            return err_set(e, ERR_DATA, "per_layer_config: layer %u has %u key-value heads of %u values", i,
                           l->kv_heads, l->k_dim);
    }
    return 0;
}

int gemma4_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    bool k_is_v = false, wide = false;
    char both[16] = "";
    uint32_t sliding = h->k_dim, full = h->k_dim, heads = 0;
    if (keys_u32(k, "attention.key_length_swa", NULL, HPARAMS_SIZE, &sliding, e) < 0 ||
        keys_u32(k, NULL, "global_head_dim", HPARAMS_SIZE, &full, e) < 0 ||
        keys_u32(k, NULL, "num_global_key_value_heads", HPARAMS_SIZE, &heads, e) < 0 ||
        keys_bool(k, NULL, "attention_k_eq_v", &k_is_v, e) < 0 ||
        keys_bool(k, NULL, "use_double_wide_mlp", &wide, e) < 0 ||
        keys_str(k, NULL, "use_bidirectional_attention", both, sizeof both, e) < 0)
        return -1;
    if (!strcmp(both, "all"))
        return err_set(
            e, ERR_DATA,
            "config.json: use_bidirectional_attention is \"all\"; only causal gemma4 models can be run");
    h->attn_scale = 1;
    h->embed_scale = sqrtf((float)h->width);
    if (!k->gguf && h->window)
        h->layer[h->layers - 1].sliding = false; /* whatever the pattern says */
    if (gemma4_share(h, k, e) < 0)
        return -1;
    for (uint32_t i = 0; i < h->layers; i++) {
        struct layer_params *l = &h->layer[i];
        l->k_dim = l->v_dim = l->sliding ? sliding : full;
        if (!l->sliding && k_is_v && heads)
            l->kv_heads = heads;
        if (wide && l->kv != i)
            l->ffn *= 2;
        h->ffn = l->ffn > h->ffn ? l->ffn : h->ffn;
        if (h->heads % l->kv_heads)
            return err_set(e, ERR_DATA, "layer %u has %u key-value heads, which do not divide its %u heads",
                           i, l->kv_heads, h->heads);
    }
    if (read_each(h, k, &full, e) < 0)
        return -1;
    h->rope[0].dims = full;
    h->rope[1].dims = sliding;
    h->k_dim = h->v_dim = h->rope_dims = sliding > full ? sliding : full;
    return 0;
}

struct operand gemma4_inputs(struct build *b)
{
    const struct hparams *h = b->h;
    const uint32_t n = h->per_layer * h->layers;
    const float half = sqrtf(0.5f);
    struct operand to = plan_buffer(b->p, n);
    uint64_t rows = bind_rows(&b->bind, "per_layer_token_embd", LOOKUP_NO_LAYER);
    struct op_embed *e = &plan_add(b->p, OP_EMBED, UINT32_MAX)->embed;
    *e = (struct op_embed){.scale = sqrtf((float)h->per_layer) * half, .out = to};
    e->table = bind_matrix(&b->bind, "per_layer_token_embd", LOOKUP_NO_LAYER,
                           (struct shape){rows < HPARAMS_SIZE[1] ? (uint32_t)rows : 0, n, 1});
    struct op_out *o = &plan_add(b->p, OP_OUT, UINT32_MAX)->out;
    *o = (struct op_out){.in = b->x, .tail = {.scale = half, .residual = to, .out = to}};
    o->linear = bind_linear(&b->bind, "per_layer_model_proj", LOOKUP_NO_LAYER, n, h->width);
    /* The product is scaled by width^-1/2 first: that is an epsilon `width` times as large. */
    o->tail.post = build_head_norm(b, "per_layer_proj_norm", LOOKUP_NO_LAYER, h->layers, h->per_layer);
    o->tail.post.eps *= (float)h->width;
    return to;
}

struct op_out *gemma4_add_input(struct build *b, uint32_t layer, struct operand inputs)
{
    const struct hparams *h = b->h;
    struct operand gate = build_mix(b, 0, h->per_layer);
    inputs.col = layer * h->per_layer;
    struct op_out *o = &plan_add(b->p, OP_OUT, layer)->out;
    *o = (struct op_out){.in = b->x, .tail = {.scale = 1, .out = gate}};
    o->linear = bind_linear(&b->bind, "inp_gate", (int)layer, h->per_layer, h->width);
    struct op_map *m = build_map(b, layer, gate, gate, h->per_layer);
    m->act = h->act;
    m->by = inputs;
    o = &plan_add(b->p, OP_OUT, layer)->out;
    *o = (struct op_out){.in = gate, .tail = {.scale = 1, .residual = b->x, .out = b->x}};
    o->linear = bind_linear(&b->bind, "proj", (int)layer, h->width, h->per_layer);
    o->tail.post = build_norm(b, "post_norm", (int)layer);
    return o;
}

/* x += norm(norm(dense) + norm(experts)) */
static void experts_beside(struct build *b, uint32_t layer)
{
    const struct hparams *h = b->h;
    const int il = (int)layer;
    struct op_ffn *dense = build_dense(b, layer, build_norm(b, "ffn_norm", il));
    dense->tail = (struct tail){.scale = 1, .out = b->y, .post = build_norm(b, "post_ffw_norm_1", il)};
    struct op_moe *o = build_moe(b, layer, build_norm(b, "pre_ffw_norm_2", il));
    o->tail = (struct tail){.scale = 1, .residual = b->y, .out = b->y};
    o->tail.post = build_norm(b, "post_ffw_norm_2", il);
    o->tail.after = build_norm(b, "post_ffw_norm", il);
    o->router_norm = (struct norm){.kind = NORM_RMS, .eps = h->eps};
    o->router_norm.weight = build_scaled(b, bind_vector(&b->bind, "ffn_gate_inp.scale", il, "", h->width, 0),
                                         1 / sqrtf((float)h->width));
    o->expert_scale = bind_optional(&b->bind, "ffn_down_exps.scale", il, "", h->experts);
    build_map(b, layer, b->y, b->x, h->width)->residual = b->x;
}

void gemma4_build(struct build *b)
{
    const struct hparams *h = b->h;
    build_embed(b);
    struct operand inputs = h->per_layer ? gemma4_inputs(b) : (struct operand){0};
    for (uint32_t i = 0; i < h->layers; i++) {
        const int il = (int)i;
        struct op_qkv *q = build_qkv(b, i, build_norm(b, "attn_norm", il));
        if (q->k.weight)
            q->v_norm = (struct norm){.kind = NORM_RMS, .eps = h->eps, .heads = q->kv_heads};
        build_attn(b, i);
        build_out(b, i)->post = build_norm(b, "post_attention_norm", il);
        if (h->experts && bind_has(&b->bind, "ffn_gate_inp", il))
            experts_beside(b, i);
        else
            build_dense(b, i, build_norm(b, "ffn_norm", il))->tail.post = build_norm(b, "post_ffw_norm", il);
        if (h->per_layer)
            gemma4_add_input(b, i, inputs);
        weight_id scalar = bind_optional(&b->bind, "layer_output_scale", il, ".weight", 1);
        float scale = scalar ? *(const float *)(const void *)b->bind.weights->all[scalar].data : 1;
        if (scale != 1)
            build_map(b, i, b->x, b->x, h->width)->scale = scale;
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
