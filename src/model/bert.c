/* Encoders: bert with learned positions, nomic-bert with rotary ones and a gated feed-forward. Every token
 * sees every other, and the norms come after the sums. */
#include "model/families.h"

#include "model/arch.h"

#include <string.h>

void bert_build(struct build *b)
{
    const struct hparams *h = b->h;
    struct op_embed *o = build_embed(b);
    if (h->rope_kind == ROPE_NONE)
        o->positions = bind_matrix(&b->bind, "position_embd", LOOKUP_NO_LAYER,
                                   (struct shape){h->context + h->position_offset, h->width, 1});
    o->position_offset = h->position_offset;
    if (bind_has(&b->bind, "token_types", LOOKUP_NO_LAYER))
        o->types =
            bind_matrix(&b->bind, "token_types", LOOKUP_NO_LAYER, (struct shape){h->types, h->width, 1});
    o->norm = build_norm(b, "token_embd_norm", LOOKUP_NO_LAYER);
    for (uint32_t i = 0; i < h->layers; i++) {
        build_qkv(b, i, (struct norm){0});
        build_attn(b, i);
        build_out(b, i)->after = build_norm(b, "attn_output_norm", (int)i);
        build_ffn(b, i, (struct norm){0})->after = build_norm(b, "layer_output_norm", (int)i);
    }
    build_logits(b, (struct norm){0});
}

int bert_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    static const uint32_t range[2] = {0, 1u << 20};
    char kind[32] = "";
    if (keys_str(k, NULL, "position_embedding_type", kind, sizeof kind, e) < 0)
        return -1;
    if (kind[0] && strcmp(kind, "absolute") && h->rope_kind == ROPE_NONE)
        return err_set(e, ERR_DATA, "config.json: position_embedding_type is \"%.31s\"; absolute is expected",
                       kind);
    /* roberta's positions begin after the padding's, GGUF files have cut those off */
    if (!k->gguf && strstr(h->spelled, "roberta")) {
        uint32_t pad = 1;
        if (keys_u32(k, NULL, "pad_token_id", range, &pad, e) < 0)
            return -1;
        h->position_offset = pad + 1;
        if (h->context <= h->position_offset)
            return err_set(
                e, ERR_DATA,
                "config.json: max_position_embeddings is %u; more than pad_token_id + 1 is expected",
                h->context);
        h->context -= h->position_offset;
    }
    if (!h->types)
        h->types = 2;
    return 0;
}
