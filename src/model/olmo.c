/* olmo and nanochat: norms without weights. olmo2: norms after each half, not before, and norms over all of Q and K. */
#include "model/families.h"

void olmo_build(struct build *b)
{
    struct norm bare = {.kind = NORM_LAYER, .eps = b->h->eps};
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        build_qkv(b, i, bare);
        build_attn(b, i);
        build_out(b, i);
        build_ffn(b, i, bare);
    }
    build_logits(b, bare);
}

void nanochat_build(struct build *b)
{
    const struct norm bare = {.kind = NORM_RMS, .eps = b->h->eps};
    build_embed(b)->norm = bare;
    for (uint32_t i = 0; i < b->h->layers; i++) {
        struct op_qkv *o = build_qkv(b, i, bare);
        o->q_norm = o->k_norm = bare;
        o->q_norm.heads = o->heads;
        o->k_norm.heads = o->kv_heads;
        build_attn(b, i);
        build_out(b, i);
        build_ffn(b, i, bare);
    }
    build_logits(b, bare);
}

void olmo2_build(struct build *b)
{
    struct norm none = {0};
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        build_qkv(b, i, none);
        build_attn(b, i);
        build_out(b, i)->post = build_norm(b, "post_attention_norm", (int)i);
        build_ffn(b, i, none)->post = build_norm(b, "post_ffw_norm", (int)i);
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}

/* olmo3: layers that slide rotate without scaling, unless config.json has one for them. */
int olmo2_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    (void)e;
    char name[64];
    if (k->gguf || !json_object_get(keys_json(k, "rope_parameters", name), "sliding_attention"))
        h->rope[1] =
            (struct rope_params){.theta = h->rope[1].theta, .partial = h->rope[1].partial, .apart = true};
    return 0;
}

/* The same in GGUF files; config.json says it. */
int mellum_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    if (k->gguf)
        olmo2_setup(h, k, e);
    return qwen_moe_setup(h, k, e);
}

int olmoe_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    (void)k, (void)e;
    h->clamp_last = true;
    return 0;
}
