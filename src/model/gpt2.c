/* gpt2: learned positions. */
#include "model/families.h"

void gpt2_build(struct build *b)
{
    struct op_embed *o = build_embed(b);
    o->positions = bind_matrix(&b->bind, "position_embd", LOOKUP_NO_LAYER,
                               (struct shape){b->h->context, b->h->width, 1});
    for (uint32_t i = 0; i < b->h->layers; i++) {
        build_qkv(b, i, build_norm(b, "attn_norm", (int)i));
        build_attn(b, i);
        build_out(b, i);
        build_ffn(b, i, build_norm(b, "ffn_norm", (int)i));
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
