/* deepseek v2 and v3: latent attention, with the up-projections of keys absorbed into the queries
 * and those of values into the outputs, so that the cache holds one latent row a token; then experts
 * in groups beside shared ones. From v3.2 on a small attention chooses the keys; a layer without one uses the choice
 * of the layer before. longcat has pairs of such layers, and experts beside each pair. */
#include "model/families.h"

#include "base/mem.h"
#include "model/arch.h"
#include "model/rope.h"

#include <math.h>
#include <string.h>

int deepseek_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    static const uint32_t dim[2] = {1, 65536};
    bool in_pairs = true;
    char method[32] = "";
    uint32_t rope = h->rope_dims, head = h->k_dim;
    if (!h->kv_lora)
        return err_set(e, ERR_DATA, "latent attention wants a kv_lora_rank, and there is none");
    if (keys_u32(k, "rope.dimension_count", "qk_rope_head_dim", dim, &rope, e) < 0 ||
        keys_u32(k, "attention.key_length_mla", NULL, dim, &head, e) < 0 ||
        keys_u32(k, "attention.value_length_mla", NULL, dim, &h->v_dim, e) < 0 ||
        keys_bool(k, NULL, "rope_interleave", &in_pairs, e) < 0 ||
        keys_str(k, NULL, "topk_method", method, sizeof method, e) < 0)
        return -1;
    if (!k->gguf && !in_pairs)
        h->rope_kind = ROPE_HALVES;
    if (k->gguf)
        h->nope_dim = head > rope ? head - rope : 0;
    if (!h->v_dim)
        h->v_dim = h->width / h->heads; /* minicpm3 has no other number */
    if (!h->nope_dim || !rope || rope % 2 || !h->v_dim)
        return err_set(e, ERR_DATA,
                       "latent attention: a head has %u plain and %u rotating dimensions and %u of values; "
                       "all above 0 are expected",
                       h->nope_dim, rope, h->v_dim);
    if (!strcmp(method, "greedy"))
        h->expert_groups = 0;
    if (!k->gguf && !strcmp(h->arch->name, "deepseek2"))
        h->normalise = false; /* v2's code does not look at norm_topk_prob */
    /* The share of YaRN's factor that falls on all dimensions, squared, is in the scale of q.k. */
    struct rope_params *r = &h->rope[0];
    if (k->gguf) {
        h->normalise = h->arch->hybrid && h->arch->normalise; /* files of others say it only where it is so */
        if (keys_bool(k, "expert_weights_norm", NULL, &h->normalise, e) < 0)
            return -1;
        r->mscale_all_dim *= 10; /* the key holds 0.1 m */
        r->mscale = r->mscale_all_dim != 1 ? r->mscale_all_dim : 1;
    }
    float m = 1;
    if (r->scaling == SCALING_YARN && r->mscale_all_dim != 0)
        m = rope_mscale(rope_stretch(h, r), r->mscale_all_dim);
    h->attn_scale = m * m / sqrtf((float)(h->nope_dim + rope));
    /* What attention sees: one key of latent + rope, whose first part is the value. */
    h->rope_dims = rope;
    h->k_dim = h->kv_lora + rope;
    for (uint32_t i = 0; i < h->layers; i++) {
        h->layer[i].kv_heads = 1;
        h->layer[i].k_dim = h->k_dim;
    }
    h->kv_heads = 1;
    return 0;
}

/* llama.cpp's converter leaves out the keys of the queries' scale, which all models of the family have. */
int mistral4_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    h->group_pair = true;
    if (k->gguf && h->q_scale.beta == 0 && h->rope[0].original) {
        h->q_scale = (struct query_scale){.beta = 0.1f, .length = h->rope[0].original};
        for (uint32_t i = 0; i < h->layers; i++)
            h->layer[i].scales_q = true;
    }
    return deepseek_setup(h, k, e);
}

/* k_b (heads, latent, nope) and v_b (heads, v_dim, latent), from their own tensors or cut from kv_b,
 * (heads, nope + v_dim, latent). */
static void up_projections(struct build *b, int layer, weight_id *k_b, weight_id *v_b)
{
    const struct hparams *h = b->h;
    struct binder *w = &b->bind;
    if (bind_has(w, "attn_k_b", layer)) {
        *k_b = bind_matrix(w, "attn_k_b", layer, (struct shape){h->kv_lora, h->nope_dim, h->heads});
        *v_b = bind_matrix(w, "attn_v_b", layer, (struct shape){h->v_dim, h->kv_lora, h->heads});
        return;
    }
    uint32_t rows = h->nope_dim + h->v_dim;
    struct matrix both = bind_find(w, (struct tensor_at){"attn_kv_b", layer, LOOKUP_NO_EXPERT},
                                   (struct shape){rows * h->heads, h->kv_lora, 1});
    if (!both.data)
        return;
    both.count = h->heads;
    both.each_bytes = rows * both.row_bytes;
    struct matrix k = matrix_take(&both, &(struct slice){.groups = 1, .len = h->nope_dim});
    struct matrix v = matrix_take(&both, &(struct slice){.groups = 1, .first = h->nope_dim, .len = h->v_dim});
    k = matrix_turn(&k);
    *k_b = bind_add(w, "attn_k_b", layer, &k);
    *v_b = bind_add(w, "attn_v_b", layer, &v);
}

/* A norm within the latents: transformers has this epsilon whatever config.json says, and GGUF has no key for it. */
static struct norm latent_norm(struct build *b, const char *name, int layer, uint32_t dim)
{
    struct norm n = build_head_norm(b, name, layer, 0, dim);
    n.eps = 1e-6f;
    return n;
}

/* The choice of keys, from the same input as the latents. */
static void choose(struct build *b, uint32_t layer, struct op_latent from)
{
    const struct hparams *h = b->h;
    struct binder *w = &b->bind;
    const int il = (int)layer;
    const uint32_t keys = h->layers + layer; /* a place for keys beside those of layers */
    struct op_index *o = &plan_add(b->p, OP_INDEX, layer)->index;
    *o = (struct op_index){
        .in = from.in, .norm = from.norm, .q_a = from.q_a, .q_norm = from.q_norm, .layer = keys};
    o->heads = h->index_heads, o->dim = h->index_dim, o->used = h->index_used;
    o->q_b = bind_linear(w, "indexer.attn_q_b", il, h->index_heads * h->index_dim, h->q_lora);
    o->k = bind_linear(w, "indexer.attn_k", il, h->index_dim, h->width);
    o->weights = bind_linear(w, "indexer.proj", il, h->index_heads, h->width);
    o->k_norm = (struct norm){.kind = NORM_LAYER, .eps = 1e-6f};
    o->k_norm.weight = bind_vector(w, "indexer.k_norm", il, ".weight", h->index_dim, 0);
    o->k_norm.bias = bind_optional(w, "indexer.k_norm", il, ".bias", h->index_dim);
    o->rope = from.rope;
    o->rope.kind = h->arch->index_rope;
    plan_kv(b->p, keys, (struct kv_group){.kv_heads = 1, .k_dim = h->index_dim});
}

void build_latent(struct build *b, uint32_t layer, struct norm in)
{
    const struct hparams *h = b->h;
    struct binder *w = &b->bind;
    int il = (int)layer;
    uint32_t q_rows = h->heads * (h->nope_dim + h->rope_dims);
    struct operand latent = build_mix(b, 0, h->heads * h->kv_lora);
    weight_id k_b = 0, v_b = 0;
    up_projections(b, il, &k_b, &v_b);

    struct op_latent *o = &plan_add(b->p, OP_LATENT, layer)->latent;
    *o = (struct op_latent){.in = b->x, .k_b = k_b, .layer = layer, .out = b->q, .rope = b->rope[0]};
    o->heads = h->heads, o->nope = h->nope_dim, o->latent = h->kv_lora;
    o->norm = b->gate.norm = in;
    o->rope.dims = h->rope_dims; /* also where none of them rotates */
    build_gate(b, layer);
    if (bind_has(w, "attn_q_a", il)) {
        o->q_a = bind_linear(w, "attn_q_a", il, h->q_lora, h->width);
        o->q_norm = latent_norm(b, "attn_q_a_norm", il, h->q_lora);
        o->q_b = bind_linear(w, "attn_q_b", il, q_rows, h->q_lora);
    } else {
        o->q_b = bind_linear(w, "attn_q", il, q_rows, h->width);
    }
    o->kv_a = bind_linear(w, "attn_kv_a_mqa", il, h->kv_lora + h->rope_dims, h->width);
    o->kv_norm = latent_norm(b, "attn_kv_a_norm", il, h->kv_lora);
    if (h->layer[layer].scales_q)
        o->q_scale = h->q_scale;
    if (h->arch->paired) { /* longcat scales both latents by sqrt(width / rank) */
        o->q_norm.weight = build_scaled(b, o->q_norm.weight, sqrtf((float)h->width / (float)h->q_lora));
        o->kv_norm.weight = build_scaled(b, o->kv_norm.weight, sqrtf((float)h->width / (float)h->kv_lora));
    }
    plan_kv(b->p, layer, (struct kv_group){.kv_heads = 1, .k_dim = h->k_dim});
    if (h->index_heads && o->q_a.weight && bind_has(w, "indexer.attn_q_b", il))
        choose(b, layer, *o);

    struct op_attn *a = build_attn(b, layer);
    a->chosen = h->index_heads != 0;
    a->out = latent;
    a->v_dim = h->kv_lora;
    a->v_in_k = true;

    struct op_heads *v = &plan_add(b->p, OP_HEADS, layer)->heads;
    *v = (struct op_heads){.in = latent, .out = b->a, .weight = v_b};
}

void deepseek_build(struct build *b)
{
    const struct hparams *h = b->h;
    build_embed(b);
    for (uint32_t i = 0; i < h->layers; i++) {
        build_latent(b, i, build_norm(b, "attn_norm", (int)i));
        build_out(b, i);
        build_ffn(b, i, build_norm(b, "ffn_norm", (int)i));
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}

/* Two halves are one layer in the file, which has their experts' router once. */
int longcat_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    uint32_t pairs = h->layers / 2;
    if (!k->gguf && keys_u32(k, NULL, "num_layers", HPARAMS_SIZE, &pairs, e) < 0)
        return -1;
    if (!pairs || pairs > 512)
        return err_set(e, ERR_DATA, "%u pairs of layers; 1 to 512 are expected", pairs);
    struct layer_params one = h->layer[0];
    h->layers = 2 * pairs;
    h->layer = arena_alloc(&h->arena, h->layers, sizeof *h->layer);
    if (!h->layer)
        return err_memory(e, "layers", h->layers);
    for (uint32_t i = 0; i < h->layers; i++) {
        h->layer[i] = one;
        h->layer[i].kv = i;
    }
    return deepseek_setup(h, k, e);
}

/* Files may have matrices for experts that give their input. */
static void pass_over_identities(struct build *b, int layer)
{
    static const char *const names[] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    for (uint32_t i = 0; i < 3 * b->h->identities; i++) {
        struct tensor_at at = {names[i % 3], layer, (int)(b->h->experts + i / 3)};
        const struct tensor *t = lookup_find(&b->bind.names, at, ".weight");
        if (t)
            bind_mark(&b->bind, t);
    }
}

void longcat_build(struct build *b)
{
    const struct hparams *h = b->h;
    b->bind.names.paired = h->container == STORE_SAFETENSORS;
    build_embed(b);
    for (uint32_t i = 0; i < h->layers; i++) {
        build_latent(b, i, build_norm(b, "attn_norm", (int)i));
        build_out(b, i);
        struct norm in = build_norm(b, "ffn_norm", (int)i);
        if (i % 2 == 0) {
            struct op_moe *moe = build_moe(b, i, in);
            moe->tail = (struct tail){.scale = 1, .out = b->y};
            moe->router.bias = 0; /* its code does not use the one that a file may have */
            pass_over_identities(b, (int)i);
        }
        build_dense(b, i, in);
        if (i % 2)
            build_map(b, i, b->y, b->x, h->width)->residual = b->x;
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}
