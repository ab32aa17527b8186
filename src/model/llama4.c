/* llama 4: layers see a chunk, and every fourth sees all without positions, its queries scaled by theirs; experts in
 * every layer or every second one, chosen by a sigmoid that scales what goes into the expert. */
#include "model/arch.h"
#include "model/families.h"

int llama4_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    /* llama.cpp's GGUF files have no keys for these; their models have these numbers. The keys in GGUF are ours. */
    bool tuned = true, norms = h->experts != 128;
    char name[64];
    uint32_t dense = h->ffn;
    h->q_scale.beta = h->q_scale.beta != 0 ? h->q_scale.beta : 0.1f;
    h->q_scale.length = k->gguf && h->q_scale.length ? h->q_scale.length : 8192;
    h->q_scale.offset = 1;
    h->chunked = h->scale_input = true;
    if (smollm3_setup(h, k, e) < 0 ||
        keys_bool(k, "attention.temperature_tuning", "attn_temperature_tuning", &tuned, e) < 0 ||
        keys_f32(k, NULL, "attn_scale", HPARAMS_REAL, &h->q_scale.beta, e) < 0 ||
        keys_u32(k, NULL, "floor_scale", HPARAMS_SIZE, &h->q_scale.length, e) < 0 ||
        keys_bool(k, "attention.use_qk_norm", "use_qk_norm", &norms, e) < 0 ||
        keys_u32(k, NULL, "intermediate_size_mlp", HPARAMS_SIZE, &dense, e) < 0)
        return -1;
    if (!k->gguf)
        h->expert_ffn = h->ffn;
    h->shared_ffn = h->expert_ffn;
    h->ffn = dense;
    if (k->gguf && !h->window &&
        keys_u32(k, "attention.sliding_window", NULL, HPARAMS_COUNT, &h->window, e) == 0)
        h->window = 8192;
    bool types = !k->gguf && keys_json(k, "layer_types", name);
    for (uint32_t i = 0; i < h->layers; i++) {
        struct layer_params *l = &h->layer[i];
        if (k->gguf && !h->window)
            l->rope = true;
        l->ffn = dense;
        l->sliding = h->window && (types ? l->sliding : l->rope);
        l->scales_q = tuned && !l->rope;
    }
    h->qk_norm = norms;
    return 0;
}

void llama4_build(struct build *b)
{
    const struct hparams *h = b->h;
    build_embed(b);
    for (uint32_t i = 0; i < h->layers; i++) {
        struct op_qkv *o = build_qkv(b, i, build_norm(b, "attn_norm", (int)i));
        struct norm plain = {.kind = NORM_RMS, .eps = h->eps};
        if (h->qk_norm && h->layer[i].rope) {
            o->q_norm = o->k_norm = plain;
            o->q_norm.heads = o->heads;
            o->k_norm.heads = o->kv_heads;
        }
        build_attn(b, i);
        build_out(b, i);
        build_ffn(b, i, build_norm(b, "ffn_norm", (int)i));
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
