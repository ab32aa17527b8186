/* gemma 1, 2 and 3, and the encoder made of gemma 3: embeddings scaled by sqrt(width), norms stored as w - 1 in
 * safetensors; from gemma 2 on a second norm after each half, before the sum. The plan is llama's. */
#include "model/families.h"

#include <math.h>
#include <string.h>

#include "model/arch.h"

int gemma_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    bool both_ways = false;
    char text[8] = "";
    if (keys_bool(k, NULL, "use_bidirectional_attention", &both_ways, e) < 0)
        return -1;
    if (both_ways && !h->arch->encoder)
        return err_set(
            e, ERR_DATA,
            "config.json: use_bidirectional_attention is true; only causal gemma models can be run");
    if (!k->gguf && !strcmp(h->arch->name, "gemma") &&
        keys_str(k, NULL, "hidden_activation|hidden_act", text, sizeof text, e) == 1 && !strcmp(text, "gelu"))
        h->act = ACT_GELU_TANH; /* the first files have gelu and mean this */
    if (h->arch->encoder)
        h->logit_softcap = 0; /* it has no logits */
    if (!k->gguf && (!strcmp(h->arch->name, "gemma3") || h->arch->encoder))
        h->attn_softcap = 0; /* whatever config.json says: gemma 3 has none */
    h->embed_scale = sqrtf((float)h->width);
    float scalar = 0;
    int got = keys_f32(k, NULL, "query_pre_attn_scalar", HPARAMS_REAL, &scalar, e);
    if (got < 0)
        return -1;
    /* GGUF has no key: the two models of 27B divide by width / heads, the others by the head's size. */
    bool largest = k->gguf && (!strcmp(h->arch->name, "gemma2") ? h->layers == 46 : h->layers == 62);
    if (k->gguf && largest && strcmp(h->arch->name, "gemma"))
        scalar = (float)(h->width / h->heads);
    if (k->gguf && !strcmp(h->arch->name, "gemma2")) { /* defaults of files without the keys; 0 is none */
        h->attn_softcap = 50;
        h->logit_softcap = 30;
        if (keys_f32(k, "attn_logit_softcapping", NULL, HPARAMS_REAL, &h->attn_softcap, e) < 0 ||
            keys_f32(k, "final_logit_softcapping", NULL, HPARAMS_REAL, &h->logit_softcap, e) < 0)
            return -1;
    }
    if (scalar > 0)
        h->attn_scale = 1 / sqrtf(scalar);
    if (k->gguf && (!strcmp(h->arch->name, "gemma3") || h->arch->encoder)) {
        h->rope[1] = (struct rope_params){.theta = 10000, .apart = true};
        return keys_f32(k, "rope.freq_base_swa", NULL, HPARAMS_REAL, &h->rope[1].theta, e) < 0 ? -1 : 0;
    }
    return 0;
}
