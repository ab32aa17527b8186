/* llama and the many that share its shape: a norm before attention and one before the feed-forward,
 * each added to the stream. What differs (biases, norms of Q and K, windows, experts, multipliers,
 * which layers rotate) is in the hyper-parameters and in which tensors are there. */
#include "model/arch.h"
#include "model/families.h"

#include <math.h>

void llama_build(struct build *b)
{
    const struct arch *a = b->h->arch;
    build_embed_all(b);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        build_qkv(b, i, build_norm(b, "attn_norm", (int)i));
        build_attn(b, i);
        struct tail *attn = build_out(b, i);
        if (a->sandwich)
            attn->post = build_norm(b, "post_attention_norm", (int)i);
        struct tail *ffn = build_ffn(b, i, build_norm(b, a->ffn_norm ? a->ffn_norm : "ffn_norm", (int)i));
        if (a->sandwich)
            ffn->post = build_norm(b, "post_ffw_norm", (int)i);
        build_deepstack(b, i);
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}

/* A base of rope for each layer; 0: it does not rotate. The key in GGUF is ours. */
int layer_bases(struct hparams *h, const struct keys *k, struct err *e)
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
    return got < 0 ? -1 : 0;
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
    return k->gguf ? layer_bases(h, k, e) : 0;
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

int granite_swa_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    return layer_bases(h, k, e) < 0 ? -1 : granite_setup(h, k, e);
}

/* xIELU's numbers are tensors in a folder. */
int apertus_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    static const char *const names[] = {".xielu.alpha_p", ".xielu.alpha_n", ".xielu.beta", ".xielu.eps"};
    float *all = arena_alloc(&h->arena, 5 * (size_t)h->layers, sizeof *all);
    if (!all)
        return err_memory(e, "layers", h->layers * 5 * sizeof *all);
    if (h->act != h->arch->act) /* another activation */
        return 0;
    for (int i = 0; k->gguf && i < 4; i++) {
        float *each = all + 4 * (size_t)h->layers;
        int got = keys_each_f32(k, names[i], NULL, HPARAMS_REAL, each, h->layers, e);
        if (got < 0)
            return -1;
        if (!got)
            return err_set(e, ERR_DATA, "the file has no key %s", names[i] + 1);
        for (uint32_t l = 0; l < h->layers; l++)
            all[4 * l + (uint32_t)i] = each[l];
    }
    h->xielu = k->gguf ? all : NULL;
    return 0;
}

/* Twice the jitter of the router. The key in GGUF is ours. */
int phimoe_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    float jitter = 0.01f;
    if (keys_f32(k, "router_jitter_noise", "router_jitter_noise", HPARAMS_REAL, &jitter, e) < 0)
        return -1;
    h->nearness = 2 * jitter;
    return 0;
}

/* config.json calls it dynamic, but with an alpha the base is scaled once: theta * alpha^(d / (d - 2)). */
int hunyuan_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    char name[64];
    struct keys scaling = {.config = keys_json(k, "rope_parameters|rope_scaling", name)};
    static const double range[2] = {0, 1e9};
    float alpha = 0;
    if (k->gguf || keys_f32(&scaling, NULL, "alpha", range, &alpha, e) < 0 || alpha == 0)
        return e->code ? -1 : 0;
    double dims = h->k_dim ? h->k_dim : h->width / h->heads;
    for (int i = 0; i < 2 && dims > 2; i++) {
        h->rope[i].scaling = SCALING_NONE;
        h->rope[i].theta *= (float)pow(alpha, dims / (dims - 2));
    }
    return 0;
}

/* muP: embeddings times the root of the width; GGUF files mean it unless they say otherwise. */
int afmoe_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    bool scaled = k->gguf != NULL;
    float root = sqrtf((float)h->width);
    if (keys_bool(k, NULL, "mup_enabled", &scaled, e) < 0 ||
        keys_f32(k, "embedding_scale", NULL, HPARAMS_REAL, &root, e) < 0)
        return -1;
    if (scaled)
        h->embed_scale = root;
    return 0;
}

/* MiniCPM scales embeddings, halves of layers and the head's input. GGUF files of the third model have no keys for that;
 * llama.cpp has these numbers. */
int minicpm_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    float embed = 12, depth = 1.4f, base = 256;
    if (keys_f32(k, NULL, "scale_emb", HPARAMS_REAL, &embed, e) < 0 ||
        keys_f32(k, NULL, "scale_depth", HPARAMS_REAL, &depth, e) < 0 ||
        keys_f32(k, NULL, "dim_model_base", HPARAMS_REAL, &base, e) < 0)
        return -1;
    h->embed_scale = h->embed_scale != 1 ? h->embed_scale : embed;
    h->residual_scale = h->residual_scale != 1 ? h->residual_scale : depth / sqrtf((float)h->layers);
    float divisor = (float)h->width / base; /* as GGUF files have it */
    if (keys_f32(k, "logit_scale", NULL, HPARAMS_REAL, &divisor, e) < 0)
        return -1;
    if (divisor == 0)
        return err_set(e, ERR_DATA, "the scale of the logits is 0");
    h->logit_scale = 1 / divisor;
    return h->kv_lora ? deepseek_setup(h, k, e) : 0;
}

/* Layers with a window have twice the key-value heads, sinks, and another base of the rope. */
int mimo_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    static const uint32_t flag[2] = {0, 1};
    char name[64];
    uint32_t window = 0, heads = 0, most = h->kv_heads;
    if (keys_f32(k, "attention.value_scale", "attention_value_scale", HPARAMS_REAL, &h->v_scale, e) < 0)
        return -1;
    if (k->gguf)
        return 0; /* the rest is in keys of every layer */
    uint32_t *slides = arena_alloc(&h->arena, h->layers, sizeof *slides);
    if (!slides)
        return err_memory(e, "layers", h->layers);
    for (uint32_t i = 0; i < h->layers; i++)
        slides[i] = keys_json(k, "layer_types", name) ? h->layer[i].sliding : i && (i + 1) % 6;
    if (keys_each(k, NULL, "hybrid_layer_pattern", flag, slides, h->layers, e) < 0 ||
        keys_u32(k, NULL, "sliding_window_size", HPARAMS_SIZE, &window, e) < 0 ||
        keys_u32(k, NULL, "swa_num_key_value_heads", HPARAMS_SIZE, &heads, e) < 0)
        return -1;
    if (window)
        h->window = window + 1; /* those before the query, and its own */
    if (!keys_json(k, "rope_parameters", name) &&
        keys_f32(k, NULL, "swa_rope_theta", HPARAMS_REAL, &h->rope[1].theta, e) < 0)
        return -1;
    for (uint32_t i = 0; i < h->layers; i++) {
        struct layer_params *l = &h->layer[i];
        l->sliding = slides[i] && h->window;
        if (slides[i])
            l->kv_heads = heads ? heads : 2 * most;
        if (h->heads % l->kv_heads)
            return err_set(e, ERR_DATA, "layer %u has %u key-value heads, which do not divide its %u heads",
                           i, l->kv_heads, h->heads);
        h->kv_heads = l->kv_heads > h->kv_heads ? l->kv_heads : h->kv_heads;
    }
    return 0;
}
