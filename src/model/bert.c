/* Encoders: every token sees every other one. bert has learned positions, mpnet also a bias for each distance,
 * nomic-bert and jina-bert-v3 rotary positions; in all of them the norms come after the sums. modern-bert has
 * the norms before, and most of its layers see a window. */
#include "model/families.h"

#include "model/arch.h"

#include <math.h>
#include <string.h>

/* mpnet's distances share 32 buckets: half for keys before the query, half for those after it. The near ones
 * have a bucket each, farther ones share it logarithmically, and from DISTANCE_MOST on all are in the last. */
enum { DISTANCE_MOST = 128, DISTANCE_BUCKETS = 32 };

static uint32_t distance_bucket(int distance)
{
    uint32_t half = DISTANCE_BUCKETS / 2, exact = half / 2,
             n = (uint32_t)(distance < 0 ? -distance : distance);
    uint32_t bucket = n;
    if (n >= exact) {
        float share = logf((float)n / (float)exact) / (float)log((double)DISTANCE_MOST / exact);
        bucket = exact + (uint32_t)(share * (float)(half - exact));
        bucket = bucket < half ? bucket : half - 1;
    }
    return distance > 0 ? half + bucket : bucket;
}

/* The table of op_attn.distance. GGUF has it as it is, safetensors (buckets, heads). */
static weight_id distance_table(struct build *b)
{
    const uint32_t cols = 2 * DISTANCE_MOST + 1, heads = b->h->heads, buckets = b->h->distance_buckets;
    const struct tensor_at at = {"attn_rel_b", LOOKUP_NO_LAYER, LOOKUP_NO_EXPERT};
    const struct tensor *t = bind_tensor(&b->bind, at, ".weight");
    const bool whole = b->h->container == STORE_GGUF;
    const float *from = t ? bind_floats(&b->bind, t, (uint64_t)heads * (whole ? cols : buckets), 0) : NULL;
    float *table = from ? bind_memory(&b->bind, (size_t)heads * cols * sizeof *table) : NULL;
    for (uint32_t h = 0; table && h < heads; h++)
        for (uint32_t i = 0; i < cols; i++)
            table[h * cols + i] =
                whole ? from[h * cols + i] : from[distance_bucket((int)i - DISTANCE_MOST) * heads + h];
    struct bound of = {.name = at.name, .layer = at.layer, .suffix = ".weight"};
    return table ? bind_table(&b->bind, t->name, &of, table, (struct shape){1, cols, heads}) : 0;
}

void bert_build(struct build *b)
{
    const struct hparams *h = b->h;
    weight_id distance = h->distance_buckets ? distance_table(b) : 0;
    struct op_embed *o = build_embed(b);
    if (h->rope_kind == ROPE_NONE)
        o->positions = bind_matrix(&b->bind, "position_embd", LOOKUP_NO_LAYER,
                                   (struct shape){h->context + h->position_offset, h->width, 1});
    o->position_offset = h->position_offset;
    const uint64_t types = bind_rows(&b->bind, "token_types", LOOKUP_NO_LAYER);
    if (types)
        o->types = bind_matrix(&b->bind, "token_types", LOOKUP_NO_LAYER,
                               (struct shape){h->types ? h->types : (uint32_t)types, h->width, 1});
    o->norm = build_norm(b, "token_embd_norm", LOOKUP_NO_LAYER);
    for (uint32_t i = 0; i < h->layers; i++) {
        build_qkv(b, i, (struct norm){0});
        build_attn(b, i)->distance = distance;
        build_out(b, i)->after = build_norm(b, "attn_output_norm", (int)i);
        build_ffn(b, i, (struct norm){0})->after = build_norm(b, "layer_output_norm", (int)i);
    }
    build_logits(b, (struct norm){0});
}

/* Positions begin after those of the padding. */
static int skip_positions(struct hparams *h, uint32_t n, struct err *e)
{
    h->position_offset = n;
    if (h->context <= n)
        return err_set(e, ERR_DATA, "config.json: max_position_embeddings is %u; more than %u is expected",
                       h->context, n);
    h->context -= n;
    return 0;
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
    /* GGUF files have cut the padding's positions off */
    uint32_t pad = 1;
    if (k->gguf || (!strstr(h->spelled, "roberta") && strcmp(h->spelled, "camembert")) ||
        h->rope_kind != ROPE_NONE)
        return 0;
    return keys_u32(k, NULL, "pad_token_id", range, &pad, e) < 0 ? -1 : skip_positions(h, pad + 1, e);
}

int mpnet_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    static const uint32_t range[2] = {DISTANCE_BUCKETS, 65536};
    h->distance_buckets = DISTANCE_BUCKETS;
    if (keys_u32(k, NULL, "relative_attention_num_buckets", range, &h->distance_buckets, e) < 0)
        return -1;
    return k->gguf ? 0 : skip_positions(h, 2, e); /* the padding is token 1, whatever config.json says */
}

/* The first layer has no norm: the embedding's is enough. */
void modernbert_build(struct build *b)
{
    build_embed(b)->norm = build_norm(b, "token_embd_norm", LOOKUP_NO_LAYER);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        bool normed = i || bind_has(&b->bind, "attn_norm", (int)i);
        build_qkv(b, i, normed ? build_norm(b, "attn_norm", (int)i) : (struct norm){0});
        build_attn(b, i);
        build_out(b, i);
        build_ffn(b, i, build_norm(b, "ffn_norm", (int)i));
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
