/* Models of recurrent layers alone. */
#include "model/families.h"

#include "base/log.h"

int mamba2_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    uint32_t expand = 0;
    if (keys_u32(k, NULL, "num_heads", HPARAMS_SIZE, &h->ssm.heads, e) < 0 ||
        keys_u32(k, NULL, "expand", HPARAMS_SIZE, &expand, e) < 0)
        return -1;
    if (expand)
        h->ssm.inner = expand * h->width;
    for (uint32_t i = 0; i < h->layers; i++)
        h->layer[i] = (struct layer_params){.recurrent = true};
    return 0;
}

void mamba2_build(struct build *b)
{
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++)
        build_mamba2(b, i, build_norm(b, "attn_norm", (int)i));
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
