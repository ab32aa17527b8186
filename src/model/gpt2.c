/* gpt2: learned positions. */
#include "model/families.h"

int gpt2_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    bool scaled = true;
    if (keys_bool(k, NULL, "scale_attn_weights", &scaled, e) < 0 ||
        keys_bool(k, NULL, "scale_attn_by_inverse_layer_idx", &h->scale_by_layer, e) < 0)
        return -1;
    if (!scaled)
        h->attn_scale = 1;
    return 0;
}

void gpt2_build(struct build *b)
{
    struct op_embed *o = build_embed(b);
    o->positions = bind_matrix(&b->bind, "position_embd", LOOKUP_NO_LAYER,
                               (struct shape){b->h->context, b->h->width, 1});
    for (uint32_t i = 0; i < b->h->layers; i++) {
        build_qkv(b, i, build_norm(b, "attn_norm", (int)i));
        struct op_attn *attn = build_attn(b, i);
        if (b->h->scale_by_layer)
            attn->scale /= (float)(i + 1);
        build_out(b, i);
        build_ffn(b, i, build_norm(b, "ffn_norm", (int)i));
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
