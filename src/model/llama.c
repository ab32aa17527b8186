/* llama and the many that share its shape: a norm before attention and one before the feed-forward,
 * each added to the stream. What differs (biases, norms of Q and K, windows, experts, multipliers,
 * which layers rotate) is in the hyper-parameters and in which tensors are there. */
#include "model/families.h"

void llama_build(struct build *b)
{
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        build_qkv(b, i, build_norm(b, "attn_norm", (int)i));
        build_attn(b, i);
        build_out(b, i);
        build_ffn(b, i, build_norm(b, "ffn_norm", (int)i));
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}

/* Every fourth layer has no positions. */
int smollm3_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    static const uint32_t flag[2] = {0, 1};
    uint32_t step = 4;
    if (keys_u32(k, NULL, "no_rope_layer_interval", HPARAMS_SIZE, &step, e) < 0)
        return -1;
    uint32_t *on = arena_alloc(&h->arena, h->layers, sizeof *on);
    if (!on)
        return err_memory(e, "layers", h->layers);
    for (uint32_t i = 0; i < h->layers; i++)
        on[i] = (i + 1) % step != 0;
    if (keys_each(k, NULL, "no_rope_layers", flag, on, h->layers, e) < 0)
        return -1;
    for (uint32_t i = 0; i < h->layers; i++)
        h->layer[i].rope = on[i];
    return 0;
}

/* Older GGUF files omit the sizes of the experts. */
int qwen_moe_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    uint32_t said = 0;
    int got = keys_u32(k, "expert_feed_forward_length", "moe_intermediate_size", HPARAMS_SIZE, &said, e);
    if (got < 0)
        return -1;
    if (!got && h->experts_used)
        h->expert_ffn = h->ffn / h->experts_used;
    if (!h->shared_ffn)
        h->shared_ffn = h->ffn;
    return 0;
}

/* The files hold the divisor of the logits. */
int granite_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    bool rope = true;
    if (keys_bool(k, "rope.scaling.finetuned", NULL, &rope, e) < 0)
        return -1;
    for (uint32_t i = 0; !rope && i < h->layers; i++)
        h->layer[i].rope = false;
    if (h->logit_scale != 0)
        h->logit_scale = 1 / h->logit_scale;
    return 0;
}

/* A base of rope for each layer; 0: it does not rotate. The key in GGUF is ours. */
int granite_swa_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    static const double range[2] = {0, 1e12};
    float *each = arena_alloc(&h->arena, h->layers, sizeof *each);
    if (!each)
        return err_memory(e, "layers", h->layers * sizeof *each);
    int got = keys_each_f32(k, "rope.freq_base_layers", "layer_rope_theta", range, each, h->layers, e);
    for (uint32_t i = 0; got > 0 && i < h->layers; i++) {
        h->layer[i].theta = each[i];
        h->layer[i].rope = each[i] > 0;
    }
    return got < 0 ? -1 : granite_setup(h, k, e);
}

/* gpt-oss, seed_oss, glm4moe: the second norm has another name in GGUF. */
void gpt_oss_build(struct build *b)
{
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        build_qkv(b, i, build_norm(b, "attn_norm", (int)i));
        build_attn(b, i);
        build_out(b, i);
        build_ffn(b, i, build_norm(b, "post_attention_norm", (int)i));
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
