/* Families that compute attention and feed-forward side by side from the same stream:
 * phi2, cohere, falcon, gpt-neox and, in some sizes, stablelm. */
#include "model/families.h"

#include "base/log.h"

/* One norm for both halves. */
static void one_norm(struct build *b)
{
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        struct norm n = build_norm(b, "attn_norm", (int)i);
        build_parallel(b, i, n, n);
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}

void phi2_build(struct build *b)
{
    one_norm(b);
}

void cohere_build(struct build *b)
{
    one_norm(b);
}

void stablelm_build(struct build *b)
{
    if (bind_has(&b->bind, "ffn_norm", 0))
        llama_build(b);
    else
        one_norm(b);
}

int neox_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    h->parallel = true;
    return keys_bool(k, "use_parallel_residual", "use_parallel_residual", &h->parallel, e) < 0 ? -1 : 0;
}

void neox_build(struct build *b)
{
    if (!b->h->parallel) {
        llama_build(b);
        return;
    }
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++)
        build_parallel(b, i, build_norm(b, "attn_norm", (int)i), build_norm(b, "ffn_norm", (int)i));
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}

int falcon_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    bool grouped = false, single = true;
    if (h->alibi)
        return err_set(e, ERR_DATA,
                       "config.json: alibi is true; falcon models with ALiBi positions cannot be run");
    if (k->gguf)
        return 0;
    if (keys_bool(k, NULL, "new_decoder_architecture", &grouped, e) < 0 ||
        keys_bool(k, NULL, "multi_query", &single, e) < 0)
        return -1;
    for (uint32_t i = 0; !grouped && i < h->layers; i++)
        h->layer[i].kv_heads = h->kv_heads = single ? 1 : h->heads;
    return 0;
}

/* 7B has one norm, 40B one for each half; a few small ones are not parallel at all. */
void falcon_build(struct build *b)
{
    if (bind_has(&b->bind, "ffn_norm", 0)) {
        llama_build(b);
        return;
    }
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        struct norm ffn = build_norm(b, "attn_norm", (int)i), attn = ffn;
        if (bind_has(&b->bind, "attn_norm_2", (int)i))
            attn = build_norm(b, "attn_norm_2", (int)i);
        build_parallel(b, i, attn, ffn);
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
