/* Older families with a norm before each half: learned positions, ALiBi, sizes that files state in their own way. */
#include "model/families.h"

#include "model/arch.h"

#include <math.h>
#include <string.h>

int gpt2_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    bool scaled = true;
    if (keys_bool(k, NULL, "scale_attn_weights", &scaled, e) < 0)
        return -1;
    if (!scaled)
        h->attn_scale = 1;
    return 0;
}

/* Layers whose scores are divided by their number. */
void gpt2_build(struct build *b)
{
    llama_build(b);
    for (uint32_t i = 0; b->h->scale_by_layer && i < b->p->count; i++)
        if (b->p->ops[i].kind == OP_ATTN)
            b->p->ops[i].attn.scale /= (float)(b->p->ops[i].layer + 1);
}

/* Scores are not scaled. Layers are global or local: a list of lists and how often each comes, or one name a layer. */
int gpt_neo_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    char name[64];
    h->attn_scale = 1;
    if (k->gguf)
        return 0;
    json_t *each = keys_json(k, "attention_layers", name), *types = keys_json(k, "attention_types", name),
           *run;
    size_t i, j;
    uint32_t n = 0;
    if (keys_u32(k, NULL, "window_size", HPARAMS_SIZE, &h->window, e) < 0)
        return -1;
    json_array_foreach(types, i, run)
    {
        const json_t *names = json_array_get(run, 0);
        json_int_t times = json_integer_value(json_array_get(run, 1));
        for (; times > 0 && n < h->layers; times--)
            for (j = 0; j < json_array_size(names) && n < h->layers; j++) {
                const char *kind = json_string_value(json_array_get(names, j));
                h->layer[n++].sliding = kind && !strcmp(kind, "local");
            }
    }
    for (i = 0; json_array_size(each) >= h->layers && i < h->layers; i++) {
        const char *kind = json_string_value(json_array_get(each, i));
        h->layer[n = (uint32_t)i].sliding = kind && !strcmp(kind, "local");
    }
    for (; !each && !types && n < h->layers; n++)
        h->layer[n].sliding = n % 2;
    return 0;
}

/* Positions begin at 2; a GGUF has cut off the rows before. */
int opt_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    bool before = true, scaled = false;
    uint32_t embed = h->width;
    if (keys_bool(k, NULL, "do_layer_norm_before", &before, e) < 0 ||
        keys_bool(k, NULL, "scale_embedding", &scaled, e) < 0 ||
        keys_u32(k, NULL, "word_embed_proj_dim", HPARAMS_SIZE, &embed, e) < 0)
        return -1;
    if (!before || embed != h->width)
        return err_set(
            e, ERR_DATA,
            "config.json: do_layer_norm_before is false, or word_embed_proj_dim is not the width, as in "
            "opt-350m, which cannot be run");
    h->position_offset = k->gguf ? 0 : 2;
    if (!k->gguf && !strcmp(h->arch->name, "biogpt"))
        h->eps = 1e-5f; /* whatever config.json says */
    if (scaled)
        h->embed_scale = sqrtf((float)h->width);
    return 0;
}

int bloom_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    bool normed = false;
    (void)h;
    if (keys_bool(k, NULL, "apply_residual_connection_post_layernorm", &normed, e) < 0)
        return -1;
    return normed
               ? err_set(
                     e, ERR_DATA,
                     "config.json: apply_residual_connection_post_layernorm is true; bloom models that add "
                     "to what their norms have made cannot be run")
               : 0;
}

/* Its numbers are in objects of their own. */
int mpt_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    char name[64];
    struct keys attn = {.config = k->gguf ? NULL : keys_json(k, "attn_config", name)};
    bool alibi = true, norm = false;
    if (!attn.config)
        return 0;
    h->alibi_bias = 8;
    h->clamp_qkv = 0;
    if (keys_bool(&attn, NULL, "alibi", &alibi, e) < 0 || keys_bool(&attn, NULL, "qk_ln", &norm, e) < 0 ||
        keys_f32(&attn, NULL, "alibi_bias_max", HPARAMS_REAL, &h->alibi_bias, e) < 0 ||
        keys_f32(&attn, NULL, "clip_qkv", HPARAMS_REAL, &h->clamp_qkv, e) < 0 ||
        keys_f32(&attn, NULL, "softmax_scale", HPARAMS_REAL, &h->attn_scale, e) < 0)
        return -1;
    if (!alibi)
        h->alibi_bias = 0;
    return 0;
}

int dbrx_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    char name[64];
    struct keys attn = {.config = k->gguf ? NULL : keys_json(k, "attn_config", name)};
    struct keys ffn = {.config = k->gguf ? NULL : keys_json(k, "ffn_config", name)};
    uint32_t kv = h->heads;
    h->normalise = true;
    if (!k->gguf) {
        h->experts = h->experts_used = 1;
        h->clamp_qkv = 0;
    }
    if (keys_u32(&attn, NULL, "kv_n_heads", HPARAMS_SIZE, &kv, e) < 0 ||
        keys_f32(&attn, NULL, "clip_qkv", HPARAMS_REAL, &h->clamp_qkv, e) < 0 ||
        keys_f32(&attn, NULL, "rope_theta", HPARAMS_REAL, &h->rope[0].theta, e) < 0 ||
        keys_u32(&ffn, NULL, "ffn_hidden_size", HPARAMS_SIZE, &h->ffn, e) < 0 ||
        keys_u32(&ffn, NULL, "moe_num_experts", HPARAMS_SIZE, &h->experts, e) < 0 ||
        keys_u32(&ffn, NULL, "moe_top_k", HPARAMS_SIZE, &h->experts_used, e) < 0)
        return -1;
    h->expert_ffn = h->ffn;
    for (uint32_t i = 0; !k->gguf && i < h->layers; i++) {
        h->layer[i].kv_heads = kv;
        h->layer[i].ffn = h->ffn;
    }
    if (!k->gguf && (h->heads % kv || h->experts_used > h->experts))
        return err_set(e, ERR_DATA, "config.json: %u key-value heads of %u, or %u experts of %u", kv,
                       h->heads, h->experts_used, h->experts);
    return 0;
}

/* One key-value head, or as many as heads. */
int starcoder_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    bool single = true;
    if (k->gguf)
        return 0;
    if (keys_bool(k, NULL, "multi_query", &single, e) < 0)
        return -1;
    for (uint32_t i = 0; i < h->layers; i++)
        h->layer[i].kv_heads = h->kv_heads = single ? 1 : h->heads;
    return gpt2_setup(h, k, e);
}

/* The file has the widths of gate and up together. */
int qwen_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    (void)k, (void)e;
    h->ffn /= 2;
    for (uint32_t i = 0; i < h->layers; i++)
        h->layer[i].ffn /= 2;
    return 0;
}

/* 7B rotates, 13B has ALiBi: only the number of layers tells. */
int baichuan_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    (void)k, (void)e;
    if (h->layers == 32)
        return 0;
    h->rope_kind = ROPE_NONE;
    h->alibi_bias = h->layers == 40 ? 8 : 0;
    return 0;
}

int jais_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    (void)k, (void)e;
    h->attn_scale = (float)h->heads / (float)h->width;
    return 0;
}

/* Ling and Ring. */
int bailing_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    bool norm_head = false;
    static const uint32_t range[2] = {0, 1u << 24};
    if (keys_bool(k, NULL, "norm_head", &norm_head, e) < 0 ||
        keys_u32(k, NULL, "moe_shared_expert_intermediate_size", range, &h->shared_ffn, e) < 0)
        return -1;
    if (norm_head)
        return err_set(
            e, ERR_DATA,
            "config.json: norm_head is true; such models can be run as GGUF files, which hold the normed "
            "head");
    return 0;
}

/* The dense half is as wide as the stream. */
int arctic_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    (void)k, (void)e;
    h->expert_ffn = h->ffn;
    h->ffn = h->width;
    for (uint32_t i = 0; i < h->layers; i++)
        h->layer[i].ffn = h->width;
    return 0;
}

/* Experts of the layer's input, beside attention and a dense feed-forward: y = x + attn, y += ffn(y) + moe(x). */
void arctic_build(struct build *b)
{
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        struct operand x = b->x;
        build_qkv(b, i, build_norm(b, "attn_norm", (int)i));
        build_attn(b, i);
        build_out(b, i)->out = b->y;
        b->x = b->y;
        build_dense(b, i, build_norm(b, "ffn_norm", (int)i));
        b->y = x;
        struct norm experts = build_norm(b, "ffn_norm_exps", (int)i);
        build_ffn(b, i, experts);
        b->p->ops[b->p->count - 1].moe.in = x;
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
