/* Reads hyper-parameters: one table of fields for both containers, then the derived values: rope, layers, the
 * family's own. */
#include "model/hparams.h"

#include "base/log.h"
#include "format/gguf.h"
#include "format/jsonread.h"
#include "model/act.h"
#include "model/arch.h"
#include "model/pooling.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const uint32_t HPARAMS_SIZE[2] = {1, 1u << 24};
const uint32_t HPARAMS_COUNT[2] = {0, 1u << 24};
const double HPARAMS_REAL[2] = {-1e9, 1e9};
static const double POSITIVE[2] = {1e-30, 1e12};

struct hparam_field {
    enum hparam_kind kind;
    size_t offset; /* within struct hparams */
    const char *gguf, *hf;
    uint32_t least, most;                                     /* HPARAM_U32 */
    enum { FIELD_OPTIONAL, FIELD_SHOWN, FIELD_REQUIRED } use; /* SHOWN and REQUIRED: hparams_scan reads it */
};

#define AT(member) offsetof(struct hparams, member)
#define MOST       (1u << 24)

static const struct hparam_field fields[] = {
    {HPARAM_U32, AT(width), "embedding_length", "hidden_size|n_embd|d_model|dim|embedding_dim", 1, 1u << 20,
     FIELD_REQUIRED},
    {HPARAM_U32, AT(layers), "block_count", "num_hidden_layers|n_layer|num_layers|n_layers|num_blocks", 1,
     1024, FIELD_REQUIRED},
    {HPARAM_U32, AT(heads), "attention.head_count", "num_attention_heads|n_head|num_heads|n_heads", 0, 65536,
     FIELD_REQUIRED},
    {HPARAM_U32, AT(context), "context_length",
     "max_position_embeddings|n_positions|max_trained_positions|n_ctx|max_sequence_length|max_seq_len|seq_"
     "length|model_"
     "max_length",
     1, 1u << 28, FIELD_REQUIRED},
    {HPARAM_U32, AT(vocab), "vocab_size", "vocab_size", 1, 1u << 26, FIELD_SHOWN},
    {HPARAM_U32, AT(k_dim), "attention.key_length", "head_dim|hidden_size_per_head", 1, 65536, FIELD_SHOWN},
    {HPARAM_U32, AT(v_dim), "attention.value_length", "v_head_dim", 1, 65536, FIELD_SHOWN},
    {HPARAM_U32, AT(rope_dims), "rope.dimension_count", "rotary_dim", 0, 65536, FIELD_OPTIONAL},
    {HPARAM_F32, AT(eps), "attention.layer_norm_rms_epsilon",
     "rms_norm_eps|layer_norm_eps|layer_norm_epsilon|norm_epsilon|norm_eps|layernorm_epsilon", 0, 0,
     FIELD_OPTIONAL},
    {HPARAM_F32, AT(eps), "attention.layer_norm_epsilon", NULL, 0, 0, FIELD_OPTIONAL},
    {HPARAM_U32, AT(window), "attention.sliding_window",
     "sliding_window|local_attention|attention_chunk_size|attention_window_size", 0, 1u << 28,
     FIELD_OPTIONAL},
    {HPARAM_F32, AT(attn_softcap), "attn_logit_softcapping", "attn_logit_softcapping|gate_soft_cap", 0, 0,
     FIELD_OPTIONAL},
    {HPARAM_F32, AT(logit_softcap), "final_logit_softcapping",
     "final_logit_softcapping|logits_soft_cap|output_logit_soft_cap", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(logit_scale), "logit_scale", "logit_scale|logits_scaling", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(residual_scale), "residual_scale", "residual_multiplier", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(embed_scale), "embedding_scale", "embedding_multiplier", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(attn_scale), "attention.scale", "attention_multiplier", 0, 0, FIELD_OPTIONAL},
    {HPARAM_BOOL, AT(scale_by_layer), "attention.scale_by_layer", "scale_attn_by_inverse_layer_idx", 0, 0,
     FIELD_OPTIONAL},
    {HPARAM_F32, AT(clamp_qkv), "attention.clamp_kqv", "clip_qkv", 0, 0, FIELD_OPTIONAL},
    {HPARAM_BOOL, AT(parallel), "use_parallel_residual", "use_parallel_residual", 0, 0, FIELD_OPTIONAL},
    {HPARAM_BOOL, AT(tied), NULL, "tie_embedding|tie_word_embeddings", 0, 0, FIELD_OPTIONAL},
    {HPARAM_BOOL, AT(causal), "attention.causal", NULL, 0, 0, FIELD_SHOWN},
    {HPARAM_BOOL, AT(alibi), NULL, "alibi", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(alibi_bias), "attention.max_alibi_bias", NULL, 0, 0, FIELD_OPTIONAL},
    {HPARAM_U32, AT(types), ".tokenizer.ggml.token_type_count", "type_vocab_size", 0, 65536, FIELD_OPTIONAL},
    {HPARAM_U32, AT(experts), "expert_count",
     "num_local_experts|num_experts|n_routed_experts|moe_num_experts", 0, 65536, FIELD_SHOWN},
    {HPARAM_U32, AT(experts_used), "expert_used_count",
     "num_experts_per_tok|num_experts_per_token|moe_topk|moe_k|top_k_experts", 0, 65536, FIELD_OPTIONAL},
    {HPARAM_U32, AT(expert_ffn), "expert_feed_forward_length", "moe_intermediate_size|expert_ffn_hidden_size",
     0, MOST, FIELD_OPTIONAL},
    {HPARAM_U32, AT(expert_width), "moe_latent_size", "moe_latent_size", 0, MOST, FIELD_OPTIONAL},
    {HPARAM_U32, AT(identities), "expert_identity_count", "zero_expert_num", 0, 65536, FIELD_OPTIONAL},
    {HPARAM_U32, AT(index_heads), "attention.indexer.head_count", "index_n_heads", 0, 65536, FIELD_OPTIONAL},
    {HPARAM_U32, AT(index_dim), "attention.indexer.key_length", "index_head_dim", 0, 1024, FIELD_OPTIONAL},
    {HPARAM_U32, AT(index_used), "attention.indexer.top_k", "index_topk", 0, MOST, FIELD_OPTIONAL},
    {HPARAM_U32, AT(shared_ffn), "expert_shared_feed_forward_length",
     "shared_expert_intermediate_size|shared_intermediate_size", 0, MOST, FIELD_OPTIONAL},
    {HPARAM_U32, AT(shared_experts), "expert_shared_count",
     "n_shared_experts|num_shared_experts|num_shared_expert|moe_num_shared_experts", 0, 65536,
     FIELD_OPTIONAL},
    {HPARAM_U32, AT(expert_groups), "expert_group_count", "n_group|num_expert_group", 0, 65536,
     FIELD_OPTIONAL},
    {HPARAM_U32, AT(expert_groups_used), "expert_group_used_count", "topk_group", 0, 65536, FIELD_OPTIONAL},
    {HPARAM_BOOL, AT(normalise), "expert_weights_norm", "norm_topk_prob|route_norm|moe_renormalize", 0, 0,
     FIELD_OPTIONAL},
    {HPARAM_F32, AT(weight_scale), "expert_weights_scale",
     "routed_scaling_factor|route_scale|router_scaling_factor", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(least_sum), "expert_weights_norm_min", "moe_norm_min", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(act_alpha), "swiglu_alpha", "swiglu_alpha", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(act_limit), "swiglu_limit", "swiglu_limit", 0, 0, FIELD_OPTIONAL},
    {HPARAM_U32, AT(q_lora), "attention.q_lora_rank", "q_lora_rank", 0, MOST, FIELD_OPTIONAL},
    {HPARAM_U32, AT(kv_lora), "attention.kv_lora_rank", "kv_lora_rank", 0, MOST, FIELD_OPTIONAL},
    {HPARAM_U32, AT(nope_dim), NULL, "qk_nope_head_dim", 0, 65536, FIELD_OPTIONAL},
    {HPARAM_U32, AT(ssm.conv), "ssm.conv_kernel",
     "conv_kernel|mamba_d_conv|linear_conv_kernel_dim|conv1d_width", 0, 1024, FIELD_OPTIONAL},
    {HPARAM_U32, AT(ssm.inner), "ssm.inner_size", "mamba_d_ssm|lru_width|attention_hidden_size", 0, MOST,
     FIELD_OPTIONAL},
    {HPARAM_U32, AT(ssm.state), "ssm.state_size",
     "state_size|mamba_d_state|ssm_state_size|linear_key_head_dim", 0, 1024, FIELD_OPTIONAL},
    {HPARAM_U32, AT(ssm.heads), "ssm.time_step_rank",
     "mamba_n_heads|mamba_num_heads|n_mamba_heads|linear_num_value_heads", 0, MOST, FIELD_OPTIONAL},
    {HPARAM_U32, AT(ssm.groups), "ssm.group_count",
     "mamba_n_groups|mamba_ngroups|n_groups|linear_num_key_heads", 0, 65536, FIELD_OPTIONAL},
    {HPARAM_U32, AT(ssm.conv), "shortconv.l_cache", "conv_L_cache", 0, 1024, FIELD_OPTIONAL},
    {HPARAM_F32, AT(ssm.dt_range[0]), "ssm.time_step_min", NULL, 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(ssm.dt_range[1]), "ssm.time_step_max", NULL, 0, 0, FIELD_OPTIONAL},
    {HPARAM_BOOL, AT(ssm.norms), "ssm.dt_b_c_rms", NULL, 0, 0, FIELD_OPTIONAL},
    {HPARAM_BOOL, AT(ssm.norm_first), "ssm.norm_before_gate", "mamba_norm_before_gate", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(ssm.write_scale), "ssm.write_scale", NULL, 0, 0, FIELD_OPTIONAL},
    {HPARAM_U32, AT(ssm.kda_dim), "kda.head_dim", "linear_head_dim", 0, 1024, FIELD_OPTIONAL},
    {HPARAM_BOOL, AT(ssm.safe), "kda.safe_gate", "kda_safe_gate", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(ssm.bound), "kda.gate_lower_bound", "kda_lower_bound", 0, 0, FIELD_OPTIONAL},
    {HPARAM_U32, AT(ssm.every), "full_attention_interval",
     "attn_layer_period|full_attention_interval|layer_group_size", 0, 1024, FIELD_OPTIONAL},
    {HPARAM_F32, AT(ssm.eps), "wkv.norm_epsilon", NULL, 0, 0, FIELD_OPTIONAL},
    {HPARAM_U32, AT(shared_blocks), "shared_block_count", "num_mem_blocks", 0, 1024, FIELD_OPTIONAL},
    {HPARAM_BOOL, AT(shared_rope), "attention.shared_rope", "use_mem_rope", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(residual_mix[0][0]), "residual_mix.attention.stream",
     "full_attn_alpha_factor|layernorm_full_attention_alpha", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(residual_mix[0][1]), "residual_mix.attention.branch",
     "full_attn_beta_factor|layernorm_full_attention_beta", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(residual_mix[1][0]), "residual_mix.recurrent.stream",
     "linear_attn_alpha_factor|layernorm_linear_attention_alpha", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(residual_mix[1][1]), "residual_mix.recurrent.branch",
     "linear_attn_beta_factor|layernorm_linear_attention_beta", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(residual_mix[2][0]), "residual_mix.feed_forward.stream",
     "mlp_alpha_factor|layernorm_mlp_alpha", 0, 0, FIELD_OPTIONAL},
    {HPARAM_F32, AT(residual_mix[2][1]), "residual_mix.feed_forward.branch",
     "mlp_beta_factor|layernorm_mlp_beta", 0, 0, FIELD_OPTIONAL},
};

/* One number, or one for each layer. */
static const struct hparam_field kv_heads_field = {
    HPARAM_U32, AT(kv_heads), "attention.head_count_kv", "num_key_value_heads|num_kv_heads|n_head_kv", 0,
    65536,      FIELD_SHOWN};
static const struct hparam_field ffn_field = {
    HPARAM_U32,
    AT(ffn),
    "feed_forward_length",
    "block_ff_dim|ffn_hidden_size|intermediate_size|n_inner|ffn_dim|d_ff|hidden_dim",
    0,
    MOST,
    FIELD_SHOWN};

static int read_fields(struct hparams *h, const struct keys *k, struct err *e)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct hparam_field *f = &fields[i];
        void *at = (char *)h + f->offset;
        uint32_t range[2] = {f->least, f->most};
        int got = f->kind == HPARAM_U32   ? keys_u32(k, f->gguf, f->hf, range, at, e)
                  : f->kind == HPARAM_F32 ? keys_f32(k, f->gguf, f->hf, HPARAMS_REAL, at, e)
                                          : keys_bool(k, f->gguf, f->hf, at, e);
        if (got < 0)
            return -1;
        if (!got && f->use == FIELD_REQUIRED && k->gguf)
            return err_set(e, ERR_DATA, "the file has no key %s.%s", log_safe(k->prefix), f->gguf);
        if (!got && f->use == FIELD_REQUIRED)
            return err_set(e, ERR_DATA, "config.json has no %.*s", (int)strcspn(f->hf, "|"), f->hf);
    }
    return 0;
}

void hparams_write(const struct hparams *h, const struct hparams_sink *s)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct hparam_field *f = &fields[i];
        const void *at = (const char *)h + f->offset;
        const float *real = at;
        bool factor =
            f->offset == AT(logit_scale) || f->offset == AT(residual_scale) || f->offset == AT(embed_scale) ||
            f->offset == AT(weight_scale) || f->offset == AT(ssm.write_scale) ||
            (f->offset >= AT(residual_mix) && f->offset < AT(residual_mix) + sizeof h->residual_mix);
        bool says = f->kind == HPARAM_U32   ? *(const uint32_t *)at != 0
                    : f->kind == HPARAM_F32 ? *real != 0 && !(factor && *real == 1)
                                            : *(const bool *)at;
        if (f->gguf && says)
            s->put(s->arg, f->gguf, f->kind, at);
    }
}

/* A model without attention has no heads: one of the whole width then, which no layer uses. */
static int read_heads(struct hparams *h, struct err *e)
{
    if (!h->heads && !h->arch->hybrid)
        return err_set(e, ERR_DATA, "attention has no heads");
    h->heads = h->heads ? h->heads : 1;
    return 0;
}

const char *hparams_act_name(enum act_kind kind)
{
    return act_name(kind);
}

/* An activation by its name; 1 = it is there. out NULL: any name will do. */
static int act_key(const struct keys *k, const char *gguf, const char *config, enum act_kind *out,
                   struct err *e)
{
    char name[64];
    int got = keys_str(k, gguf, config, name, sizeof name, e);
    if (got <= 0 || !out || act_named(name, out))
        return got;
    return err_set(
        e, ERR_DATA,
        "config.json: the activation \"%s\" is not known; silu, gelu, gelu_new, relu and relu2 are",
        log_safe(name));
}

static int read_act(struct hparams *h, const struct keys *k, struct err *e)
{
    h->act = h->arch->act;
    /* config.json says "silu" of gpt-oss and means its own */
    if (act_key(k, "hidden_activation",
                "hidden_activation|mlp_hidden_act|hidden_act|activation_function|activation",
                h->act == ACT_SWIGLU_OAI ? NULL : &h->act, e) < 0)
        return -1;
    h->ssm.act = h->arch->conv_is_act && !k->gguf ? h->act : ACT_SILU;
    return act_key(k, "ssm.activation", "mamba_hidden_act|hidden_mamba_act", &h->ssm.act, e) < 0 ? -1 : 0;
}

/* Heads, sizes of heads and feed-forward, layer by layer. */
static int read_layers(struct hparams *h, const struct keys *k, struct err *e)
{
    const uint32_t heads_range[2] = {kv_heads_field.least, kv_heads_field.most};
    uint32_t *each = arena_alloc(&h->arena, h->layers, sizeof *each);
    h->layer = arena_alloc(&h->arena, h->layers, sizeof *h->layer);
    if (!each || !h->layer)
        return err_memory(e, "layers", h->layers * sizeof *h->layer);
    const char *kv = h->arch->hf_kv_heads ? h->arch->hf_kv_heads : kv_heads_field.hf;
    for (uint32_t i = 0; i < h->layers; i++)
        each[i] = h->heads;
    if (keys_each(k, kv_heads_field.gguf, kv, heads_range, each, h->layers, e) < 0)
        return -1;
    if (h->arch->plain_heads && !k->gguf)
        h->k_dim = h->v_dim = 0;
    h->kv_heads = 0;
    for (uint32_t i = 0; i < h->layers; i++) {
        if (!each[i] && !h->arch->hybrid)
            return err_set(e, ERR_DATA, "layer %u has no key-value heads", i);
        if (each[i] && h->heads % each[i] && !(h->arch->hybrid && h->heads == 1)) /* keys of no attention */
            return err_set(e, ERR_DATA, "layer %u has %u key-value heads, which do not divide its %u heads",
                           i, each[i], h->heads);
        h->layer[i].kv_heads = each[i];
        h->layer[i].rope = true;
        h->layer[i].kv = i;
        h->kv_heads = each[i] > h->kv_heads ? each[i] : h->kv_heads;
        each[i] = h->ffn ? h->ffn : 4 * h->width;
    }
    if (keys_each(k, ffn_field.gguf, ffn_field.hf, HPARAMS_COUNT, each, h->layers, e) < 0)
        return -1;
    h->ffn = 0;
    for (uint32_t i = 0; i < h->layers; i++) {
        h->layer[i].ffn = each[i];
        h->ffn = each[i] > h->ffn ? each[i] : h->ffn;
    }
    return 0;
}

/* Which layers see a window only: an array of flags or names, or a period. */
static int read_sliding(struct hparams *h, const struct keys *k, struct err *e)
{
    bool use = true;
    uint32_t first = 0;
    if (keys_bool(k, NULL, "use_sliding_window", &use, e) < 0 ||
        keys_u32(k, NULL, "max_window_layers", HPARAMS_COUNT, &first, e) < 0)
        return -1;
    if (!use)
        h->window = 0;
    h->window_pattern = h->arch->window_pattern;
    char name[160];
    struct jsonread r = {k->config, "config.json", e};
    json_t *types = k->gguf ? NULL : jsonread_get(&r, k->config, "layer_types?", JSONREAD_IS_ARRAY);
    const struct gguf_key *flags = NULL;
    if (k->gguf) {
        snprintf(name, sizeof name, "%s.attention.sliding_window_pattern", k->prefix);
        flags = gguf_find(k->gguf, name);
        if (flags && flags->type == GGUF_ARRAY &&
            gguf_get_array(k->gguf, name, flags->item == GGUF_BOOL ? GGUF_BOOL : GGUF_I64, 0, &flags, e) < 0)
            return -1;
        if (flags && (flags->type != GGUF_ARRAY || flags->count < h->layers))
            flags = NULL;
    }
    if (!flags && !types &&
        keys_u32(k, "attention.sliding_window_pattern",
                 "sliding_window_pattern|_sliding_window_pattern|global_attn_every_n_layers", HPARAMS_COUNT,
                 &h->window_pattern, e) < 0)
        return -1;
    for (uint32_t i = 0; i < h->layers; i++) {
        uint32_t p = h->window_pattern;
        bool full = p && i % p == (h->arch->full_first ? 0 : p - 1);
        bool on = !full && (h->arch->windows_first && !k->gguf ? i < first : i >= first);
        if (types) {
            const char *type = json_string_value(jsonread_item(&r, types, i, JSONREAD_IS_STRING));
            if (!type)
                return -1;
            bool chunked = !strcmp(type, "chunked_attention");
            if (!chunked && strcmp(type, "sliding_attention") && strcmp(type, "full_attention") &&
                strcmp(type, "indexed_attention") && !h->arch->hybrid)
                return err_set(
                    e, ERR_DATA,
                    "config.json: layer_types[%u] is \"%s\"; full_attention or sliding_attention is expected",
                    i, log_safe(type));
            on = chunked || !strcmp(type, "sliding_attention") || !strcmp(type, "hybrid_sliding");
        } else if (flags) {
            on = gguf_item_i64(flags, i) != 0;
        }
        h->layer[i].sliding = h->window && on;
        if (h->window && h->arch->rope_if_sliding)
            h->layer[i].rope = h->layer[i].sliding;
    }
    return e->code ? -1 : 0;
}

static const float *read_factors(struct hparams *h, const struct keys *k, const char *name, struct err *e)
{
    struct jsonread r = {k->config, "config.json", e};
    json_t *a = jsonread_get(&r, k->config, name, JSONREAD_IS_ARRAY);
    size_t n = json_array_size(a);
    if (e->code)
        return NULL;
    if (!n || n > 65536 || (h->rope[0].factors && n != h->rope[0].factors)) {
        err_set(e, ERR_DATA,
                "config.json: longrope wants the arrays short_factor and long_factor, of equal length");
        return NULL;
    }
    float *f = arena_alloc(&h->arena, n, sizeof *f);
    if (!f) {
        err_memory(e, "rope factors", n * sizeof *f);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        json_t *one = jsonread_item(&r, a, i, JSONREAD_IS_NUMBER);
        f[i] = (float)json_number_value(one);
        if (!(f[i] > 0)) {
            err_set(e, ERR_DATA, "config.json: %s[%zu] is not a positive number", name, i);
            return NULL;
        }
    }
    h->rope[0].factors = (uint32_t)n;
    return f;
}

/* The scaling's own numbers; k reads from the object that holds them (or from the GGUF). */
static int read_scaling(struct hparams *h, const struct keys *k, struct rope_params *r, struct err *e)
{
    static const struct {
        const char *name;
        enum rope_scaling scaling;
    } known[] = {
        {"none", SCALING_NONE},         {"default", SCALING_NONE},
        {"linear", SCALING_LINEAR},     {"dynamic", SCALING_DYNAMIC},
        {"yarn", SCALING_YARN},         {"llama3", SCALING_LLAMA3},
        {"longrope", SCALING_LONGROPE}, {"su", SCALING_LONGROPE},
        {"mrope", SCALING_NONE},        {"proportional", SCALING_PROPORTIONAL},
    };
    char type[32] = "";
    if (keys_str(k, "rope.scaling.type", "rope_type|type", type, sizeof type, e) < 0)
        return -1;
    size_t i = 0, n = sizeof known / sizeof *known;
    while (type[0] && i < n && strcmp(type, known[i].name))
        i++;
    if (i == n)
        return err_set(e, ERR_DATA,
                       "rope scaling \"%s\" is not known; linear, dynamic, yarn, llama3 and longrope are",
                       log_safe(type));
    if (type[0])
        r->scaling = known[i].scaling;
    if (keys_f32(k, "rope.freq_base", "rope_theta", POSITIVE, &r->theta, e) < 0 ||
        keys_f32(k, "rope.scaling.factor", "factor", HPARAMS_REAL, &r->factor, e) < 0 ||
        keys_u32(k, "rope.scaling.original_context_length", "original_max_position_embeddings", HPARAMS_COUNT,
                 &r->original, e) < 0 ||
        keys_f32(k, "rope.scaling.attn_factor", "attention_factor", HPARAMS_REAL, &r->attention_factor, e) <
            0 ||
        keys_f32(k, "rope.scaling.yarn_beta_fast", "beta_fast", HPARAMS_REAL, &r->beta_fast, e) < 0 ||
        keys_f32(k, "rope.scaling.yarn_beta_slow", "beta_slow", HPARAMS_REAL, &r->beta_slow, e) < 0 ||
        keys_f32(k, NULL, "mscale", HPARAMS_REAL, &r->mscale, e) < 0 ||
        keys_f32(k, "rope.scaling.yarn_log_multiplier", "mscale_all_dim", HPARAMS_REAL, &r->mscale_all_dim,
                 e) < 0 ||
        keys_bool(k, "rope.scaling.yarn_truncate", "truncate", &r->truncate, e) < 0 ||
        keys_f32(k, "rope.scaling.low_freq_factor", "low_freq_factor", HPARAMS_REAL, &r->low_freq, e) < 0 ||
        keys_f32(k, "rope.scaling.high_freq_factor", "high_freq_factor", HPARAMS_REAL, &r->high_freq, e) <
            0 ||
        keys_f32(k, NULL, "partial_rotary_factor", HPARAMS_REAL, &r->partial, e) < 0 ||
        keys_f32(k, NULL, "short_mscale", HPARAMS_REAL, &r->short_mscale, e) < 0 ||
        keys_f32(k, NULL, "long_mscale", HPARAMS_REAL, &r->long_mscale, e) < 0 ||
        keys_f32(k, "attention.temperature_scale", "llama_4_scaling_beta", HPARAMS_REAL, &h->q_scale.beta,
                 e) < 0 ||
        keys_u32(k, "attention.temperature_length", NULL, HPARAMS_COUNT, &h->q_scale.length, e) < 0)
        return -1;
    if (k->gguf && !type[0] && r->factor > 0)
        r->scaling = SCALING_LINEAR;
    int dynamic = keys_f32(k, "rope.scaling.dynamic_factor", NULL, POSITIVE, &r->factor, e);
    if (dynamic < 0)
        return -1;
    if (dynamic)
        r->scaling = SCALING_DYNAMIC;
    if (!k->gguf && r->scaling == SCALING_LONGROPE) {
        r->short_factor = read_factors(h, k, "short_factor", e);
        r->long_factor = r->short_factor ? read_factors(h, k, "long_factor", e) : NULL;
        r->factors = h->rope[0].factors;
        return r->long_factor ? 0 : -1;
    }
    return 0;
}

/* Positions of text are the same in all sections; only images tell them apart. */
static int read_sections(struct hparams *h, const struct keys *k, struct err *e)
{
    static const uint32_t most[2] = {0, 1024};
    char found[64];
    if (k->gguf) {
        h->rope_in_turns = !strncmp(h->arch->name, "qwen3", 5);
        return keys_items(k, "rope.dimension_sections", NULL) < 3
                   ? 0
                   : keys_each(k, "rope.dimension_sections", NULL, most, h->rope_sections, 3, e);
    }
    json_t *rope = keys_json(k, "rope_parameters|rope_scaling", found);
    struct keys in = {.config = rope};
    if (!json_array_size(json_object_get(rope, "mrope_section")))
        return 0;
    h->rope_in_turns = !strncmp(h->arch->name, "qwen3", 5); /* also where config.json does not say it */
    return keys_bool(&in, NULL, "mrope_interleaved", &h->rope_in_turns, e) < 0
               ? -1
               : keys_each(&in, NULL, "mrope_section", most, h->rope_sections, 3, e);
}

static int read_rope(struct hparams *h, const struct keys *k, struct err *e)
{
    if (read_sections(h, k, e) < 0)
        return -1;
    struct rope_params *full = &h->rope[0], *local = &h->rope[1];
    *full =
        (struct rope_params){.theta = 10000, .beta_fast = 32, .beta_slow = 1, .truncate = true, .partial = 1};
    if (k->gguf) {
        if (keys_f32(k, "rope.scale_linear", NULL, HPARAMS_REAL, &full->factor, e) < 0 ||
            read_scaling(h, k, full, e) < 0)
            return -1;
        *local = *full;
        return keys_f32(k, "rope.freq_base_swa", NULL, POSITIVE, &local->theta, e) < 0 ||
                       keys_u32(k, "rope.dimension_count_swa", NULL, HPARAMS_SIZE, &local->dims, e) < 0
                   ? -1
                   : 0;
    }
    /* The older spelling first: rope_theta beside rope_scaling; then rope_parameters, maybe one for each kind of layer. */
    static const char local_base[] = "rope_local_base_freq|local_rope_theta";
    char name[64];
    if (keys_f32(k, NULL, "rope_theta|rotary_emb_base|global_rope_theta", POSITIVE, &full->theta, e) < 0 ||
        keys_f32(k, NULL, "partial_rotary_factor|rotary_pct|rope_pct|rotary_emb_fraction", HPARAMS_REAL,
                 &full->partial, e) < 0)
        return -1;
    struct jsonread r = {k->config, "config.json", e};
    json_t *both = jsonread_get(&r, k->config, "rope_parameters?", JSONREAD_IS_OBJECT),
           *old = jsonread_get(&r, k->config, "rope_scaling?", JSONREAD_IS_OBJECT),
           *global = jsonread_get(&r, both, "full_attention?", JSONREAD_IS_OBJECT),
           *slide = jsonread_get(&r, both, "sliding_attention?", JSONREAD_IS_OBJECT);
    global = global ? global : jsonread_get(&r, both, "hybrid?", JSONREAD_IS_OBJECT);
    slide = slide ? slide : jsonread_get(&r, both, "hybrid_sliding?", JSONREAD_IS_OBJECT);
    if (e->code)
        return -1;
    *local = *full;
    struct keys in = {.config = global ? global : both ? both : old};
    if (in.config && read_scaling(h, &in, full, e) < 0)
        return -1;
    if (!slide && !global)
        *local = *full;
    in.config = slide;
    if (slide && read_scaling(h, &in, local, e) < 0)
        return -1;
    /* phi3 keeps it outside the scaling's object, where it counts more. */
    for (int i = 0; i < 2; i++)
        if (h->rope[i].scaling != SCALING_NONE &&
            keys_u32(k, NULL, "original_max_position_embeddings", HPARAMS_COUNT, &h->rope[i].original, e) < 0)
            return -1;
    if (!slide && keys_json(k, local_base, name)) {
        *local = (struct rope_params){.theta = full->theta, .partial = full->partial};
        return keys_f32(k, NULL, local_base, POSITIVE, &local->theta, e) < 0 ? -1 : 0;
    }
    return 0;
}

/* GGUF: the scaling of layers that slide, where it is not what files of the family leave unsaid. */
static int read_local(struct hparams *h, const struct keys *k, struct err *e)
{
    char prefix[80], type[32];
    snprintf(prefix, sizeof prefix, "%s.swa", h->spelled);
    struct keys own = {.gguf = k->gguf, .prefix = prefix};
    int got = k->gguf ? keys_str(&own, "rope.scaling.type", NULL, type, sizeof type, e) : 0;
    if (got <= 0)
        return got;
    struct rope_params *r = &h->rope[1];
    *r = (struct rope_params){.theta = r->theta,
                              .dims = r->dims,
                              .partial = r->partial,
                              .beta_fast = 32,
                              .beta_slow = 1,
                              .truncate = true,
                              .apart = true};
    return read_scaling(h, &own, r, e);
}

static int read_gating(struct hparams *h, const struct keys *k, struct err *e)
{
    static const uint32_t range[2] = {0, 3};
    uint32_t func = 0;
    bool on = true;
    char name[32] = "";
    h->gating = h->arch->gating;
    if (keys_bool(k, NULL, "enable_moe_block", &on, e) < 0)
        return -1;
    if (!on)
        h->experts = h->experts_used = 0;
    if (keys_u32(k, "expert_gating_func", NULL, range, &func, e) < 0 ||
        keys_str(k, NULL, "scoring_func|score_func|score_function", name, sizeof name, e) < 0)
        return -1;
    if (func == 1 || !strcmp(name, "softmax"))
        h->gating = GATING_SOFTMAX;
    else if (func == 2 || !strcmp(name, "sigmoid"))
        h->gating = GATING_SIGMOID;
    else if (func == 3)
        h->gating = GATING_SOFTMAX_TOPK;
    else if (name[0])
        return err_set(e, ERR_DATA, "config.json: scoring_func is \"%s\"; softmax or sigmoid is expected",
                       log_safe(name));
    if (h->least_sum < 1e-9f)
        h->least_sum = 0; /* a guard against a division by 0 */
    if (h->experts && (!h->expert_ffn || (h->arch->expert_is_ffn && !k->gguf)))
        h->expert_ffn = h->ffn;
    uint64_t shared = (uint64_t)h->shared_experts * h->expert_ffn;
    if (shared > MOST)
        return err_set(e, ERR_DATA, "%u shared experts of width %u are more than can be", h->shared_experts,
                       h->expert_ffn);
    if (!h->shared_ffn)
        h->shared_ffn = (uint32_t)shared;
    if (h->experts && (!h->experts_used || h->experts_used > h->experts + h->identities))
        return err_set(e, ERR_DATA, "%u of %u experts are used for a token; from 1 to all is expected",
                       h->experts_used, h->experts);
    if (h->expert_groups > 1 && !h->expert_groups_used)
        h->expert_groups_used = 1; /* where a file does not say it */
    if (h->experts && h->expert_groups > 1 &&
        (h->experts % h->expert_groups || h->expert_groups_used > h->expert_groups))
        return err_set(e, ERR_DATA, "%u experts in %u groups of which %u are used: that does not divide",
                       h->experts, h->expert_groups, h->expert_groups_used);
    return 0;
}

/* Dimensions of a head that rotate. */
static uint32_t rotating(const struct hparams *h, const struct rope_params *r)
{
    return (uint32_t)(h->k_dim * (h->arch->partial_rope ? (double)r->partial : 1.0) + 1e-6);
}

/* Defaults that follow from the other fields. */
static int settle(struct hparams *h, struct err *e)
{
    bool given = h->rope_dims != 0;
    if (!h->k_dim && h->width % h->heads)
        return err_set(e, ERR_DATA,
                       "a width of %u is not a multiple of %u heads, and no size of a head is given",
                       h->width, h->heads);
    if (!h->k_dim)
        h->k_dim = h->width / h->heads;
    if (!h->v_dim)
        h->v_dim = h->k_dim;
    if (!given)
        h->rope_dims = rotating(h, &h->rope[0]);
    if (!given && h->container == STORE_SAFETENSORS && h->rope[1].partial != h->rope[0].partial &&
        !h->rope[1].dims)
        h->rope[1].dims = rotating(h, &h->rope[1]);
    for (int i = 0; i < 2; i++) {
        uint32_t dims = i && h->rope[1].dims ? h->rope[1].dims : h->rope_dims;
        if (dims % 2 || dims > h->k_dim)
            return err_set(e, ERR_DATA, "%u dimensions of a head rotate; an even number up to %u is expected",
                           dims, h->k_dim);
    }
    uint64_t widest = h->k_dim > h->nope_dim + h->v_dim ? h->k_dim : h->nope_dim + h->v_dim;
    if (widest * h->heads > MOST)
        return err_set(e, ERR_DATA, "%u heads of %llu dimensions are more than can be", h->heads,
                       (unsigned long long)widest);
    if (h->attn_scale == 0)
        h->attn_scale = (float)(1 / sqrt(h->k_dim));
    for (uint32_t i = 0; i < h->layers; i++) {
        h->layer[i].k_dim = h->layer[i].k_dim ? h->layer[i].k_dim : h->k_dim;
        h->layer[i].v_dim = h->layer[i].v_dim ? h->layer[i].v_dim : h->v_dim;
    }
    if (!(h->eps >= 0 && h->eps < 1))
        return err_set(e, ERR_DATA, "the epsilon of the norms is %g; a number from 0 to 1 is expected",
                       (double)h->eps);
    if (h->logit_scale == 0)
        return err_set(e, ERR_DATA, "the scale of the logits is 0");
    return 0;
}

/* GGUF counts the layers behind the last that predict further tokens. */
static int drop_nextn(struct hparams *h, const struct keys *k, struct err *e)
{
    uint32_t more = 0;
    if (keys_u32(k, "nextn_predict_layers", NULL, HPARAMS_COUNT, &more, e) < 0)
        return -1;
    if (more >= h->layers)
        return err_set(e, ERR_DATA, "%u of %u layers predict further tokens; fewer are expected", more,
                       h->layers);
    h->layers -= more;
    return 0;
}

/* Queries that grow with the position do so in steps of the original context. */
static void settle_query_scale(struct hparams *h)
{
    if (h->q_scale.beta != 0 && !h->q_scale.length)
        h->q_scale.length = h->rope[0].original;
    for (uint32_t i = 0; i < h->layers; i++)
        h->layer[i].scales_q = h->q_scale.beta != 0 && h->q_scale.length;
}

static int read_all(struct hparams *h, const struct keys *k, const struct store *s, struct err *e)
{
    h->rope_kind = k->gguf ? h->arch->gguf_rope : h->arch->hf_rope;
    h->normalise = h->arch->normalise;
    h->alibi_bias = h->arch->alibi;
    h->causal = !h->arch->encoder;
    h->embed_scale = h->residual_scale = h->logit_scale = h->weight_scale = h->v_scale = 1;
    h->eps = 1e-5f;
    h->act_alpha = 1.702f;
    h->act_limit = 7;
    h->ssm.write_scale = 1;
    for (int i = 0; i < 6; i++)
        h->residual_mix[i / 2][i % 2] = 1;
    if (read_fields(h, k, e) < 0 || drop_nextn(h, k, e) < 0 || read_heads(h, e) < 0 ||
        read_act(h, k, e) < 0 || read_layers(h, k, e) < 0 || read_sliding(h, k, e) < 0 ||
        read_rope(h, k, e) < 0 || pooling_read(h, k, s, e) < 0 || read_gating(h, k, e) < 0)
        return -1;
    settle_query_scale(h);
    if (h->arch->setup && h->arch->setup(h, k, e) < 0)
        return -1;
    return read_local(h, k, e) < 0 ? -1 : settle(h, e);
}

static int read_gguf(struct hparams *h, const struct store *s, struct err *e)
{
    struct gguf_str name;
    int got = gguf_get_str(s->gguf, "general.architecture", &name, e);
    if (got < 0)
        return -1;
    if (!got)
        return err_set(e, ERR_DATA, "the file has no key general.architecture");
    snprintf(h->spelled, sizeof h->spelled, "%.*s", (int)(name.n < 63 ? name.n : 63), name.s);
    h->arch = arch_by_gguf(h->spelled);
    if (!h->arch)
        return arch_unknown(h->spelled, s->kind, e);
    struct keys k = {.gguf = s->gguf, .prefix = h->spelled};
    if (read_all(h, &k, s, e) < 0)
        return -1;
    /* The vocabulary size: from the embedding, or without tensors from the list of tokens. */
    const struct tensor *t = store_find(s, "token_embd.weight");
    const struct gguf_key *tokens = gguf_find(s->gguf, "tokenizer.ggml.tokens");
    if (t)
        h->vocab = (uint32_t)(t->shape[1] < (1u << 26) ? t->shape[1] : 0);
    else if (!h->vocab && tokens)
        h->vocab = (uint32_t)(tokens->count < (1u << 26) ? tokens->count : 0);
    return 0;
}

/* nemotron-h says it by its list of layers alone. */
static void count_layers(json_t *config)
{
    const json_t *types = json_object_get(config, "layers_block_type"),
                 *letters = json_object_get(config, "hybrid_override_pattern");
    size_t n = json_is_array(types) ? json_array_size(types) : json_string_length(letters);
    if (n && !json_object_get(config, "num_hidden_layers"))
        json_object_set_new(config, "num_hidden_layers", json_integer((json_int_t)n));
}

static int read_config(struct hparams *h, const struct store *s, struct err *e)
{
    if (!s->config)
        return err_set(e, ERR_DATA, "%s: there is no config.json beside the tensors", log_safe(s->path));
    struct jsonread r = {s->config, "config.json", e};
    json_t *text = jsonread_get(&r, s->config, "text_config?", JSONREAD_IS_OBJECT),
           *config = text ? text : s->config;
    const char *type = jsonread_str(&r, config, "model_type?", NULL);
    if (!type)
        type = jsonread_str(&r, s->config, "model_type?", NULL);
    json_t *classes = jsonread_get(&r, config, "architectures?", JSONREAD_IS_ARRAY);
    const char *class = json_array_size(classes)
                            ? json_string_value(jsonread_item(&r, classes, 0, JSONREAD_IS_STRING))
                            : NULL;
    if (e->code)
        return -1;
    snprintf(h->spelled, sizeof h->spelled, "%s", type ? type : class ? class : "(none)");
    h->arch = arch_by_config(type, class);
    if (!h->arch)
        return arch_unknown(h->spelled, s->kind, e);
    h->arch = arch_variant(h->arch, config);
    json_t *merged = json_copy(config);
    json_t *defaults = json_loads(h->arch->defaults ? h->arch->defaults : "{}", 0, NULL);
    int ok = -1;
    count_layers(merged);
    /* A null member stays null: it means "none". */
    if (!merged || !defaults || json_object_update_missing(merged, defaults) < 0) {
        err_memory(e, "config.json", 0);
    } else {
        struct keys k = {.config = merged};
        ok = read_all(h, &k, s, e);
        if (!ok && !h->vocab)
            ok = err_set(e, ERR_DATA, "config.json has no vocab_size");
    }
    json_decref(defaults);
    json_decref(merged);
    return ok;
}

int hparams_read(struct hparams *h, const struct store *s, struct err *e)
{
    *h = (struct hparams){.container = s->kind};
    int ok = s->kind == STORE_GGUF ? read_gguf(h, s, e) : read_config(h, s, e);
    if (ok < 0)
        hparams_free(h);
    return ok;
}

/* What differs from layer to layer is an array: the largest counts. */
static int scan_field(struct hparams *h, const struct keys *k, const struct hparam_field *f, struct err *e)
{
    void *at = (char *)h + f->offset;
    if (f->kind == HPARAM_BOOL)
        return keys_bool(k, f->gguf, f->hf, at, e);
    const uint32_t range[2] = {0, f->most}, items = keys_items(k, f->gguf, f->hf);
    uint32_t *each = arena_alloc(&h->arena, items ? items : 1, sizeof *each), *most = at;
    if (!each)
        return err_memory(e, "hyper-parameters", items * sizeof *each);
    int got = keys_each(k, f->gguf, f->hf, range, each, items, e);
    for (uint32_t i = 0; got > 0 && i < items; i++)
        *most = each[i] > *most ? each[i] : *most;
    return got;
}

static int scan_kv_heads(struct hparams *h, const struct keys *k, struct err *e)
{
    const uint32_t range[2] = {0, kv_heads_field.most}, n = h->layers ? h->layers : 1;
    bool single = false;
    uint32_t *each = arena_alloc(&h->arena, n, sizeof *each);
    h->layer = arena_alloc(&h->arena, n, sizeof *h->layer);
    if (!each || !h->layer)
        return err_memory(e, "layers", n * sizeof *h->layer);
    if (keys_bool(k, NULL, "multi_query", &single, e) < 0)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        each[i] = single ? 1 : h->heads;
    if (keys_each(k, kv_heads_field.gguf, kv_heads_field.hf, range, each, n, e) < 0)
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        h->layer[i].kv_heads = each[i];
        h->layer[i].kv = i;
        h->kv_heads = each[i] > h->kv_heads ? each[i] : h->kv_heads;
    }
    return 0;
}

static int scan_all(struct hparams *h, const struct keys *k, struct err *e)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].use != FIELD_OPTIONAL && scan_field(h, k, &fields[i], e) < 0)
            return -1;
    if (scan_field(h, k, &ffn_field, e) < 0 || scan_field(h, k, &kv_heads_field, e) < 0 ||
        scan_kv_heads(h, k, e) < 0)
        return -1;
    if (!h->k_dim && h->heads)
        h->k_dim = h->width / h->heads;
    if (!h->v_dim)
        h->v_dim = h->k_dim;
    for (uint32_t i = 0; i < h->layers; i++)
        h->layer[i].k_dim = h->k_dim, h->layer[i].v_dim = h->v_dim;
    return 0;
}

int hparams_scan(struct hparams *h, const struct store *s, struct err *e)
{
    struct err unknown = {0};
    if (!hparams_read(h, s, &unknown))
        return 0;
    *h = (struct hparams){.container = s->kind, .causal = true};
    int bad;
    if (s->gguf) {
        struct gguf_str name = {0};
        bad = gguf_get_str(s->gguf, "general.architecture", &name, e) < 0 ? -1 : 0;
        snprintf(h->spelled, sizeof h->spelled, "%.*s", (int)(name.n < 63 ? name.n : 63),
                 name.n ? name.s : "");
        bad = bad || scan_all(h, &(struct keys){.gguf = s->gguf, .prefix = h->spelled}, e) ? -1 : 0;
    } else {
        const json_t *text = json_object_get(s->config, "text_config");
        json_t *merged = json_is_object(text) ? json_copy((json_t *)text) : json_object();
        bad = merged && (!s->config || !json_object_update_missing(merged, s->config))
                  ? scan_all(h, &(struct keys){.config = merged}, e)
                  : err_memory(e, "config.json", 0);
        json_decref(merged);
    }
    if (bad)
        hparams_free(h);
    return bad;
}

void hparams_free(struct hparams *h)
{
    arena_free(&h->arena);
    h->layer = NULL;
}

uint32_t hparams_kv_values(const struct hparams *h, uint32_t layer)
{
    const struct layer_params *l = &h->layer[layer];
    return l->kv != layer || !l->kv_heads ? 0
           : h->kv_lora                   ? h->kv_lora + h->rope_dims + h->index_dim
                                          : l->kv_heads * (l->k_dim + l->v_dim);
}
