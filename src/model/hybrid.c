/* Families in which recurrent layers replace attention in some layers or in all, or stand beside it. Which ones is in
 * the keys; the rest of a block is usual. */
#include "model/families.h"

#include "base/log.h"
#include "format/gguf.h"
#include "format/jsonread.h"
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- which layers ---- */

static void set_layer(struct hparams *h, uint32_t i, bool attention, bool recurrent)
{
    h->layer[i].recurrent = recurrent;
    if (!attention)
        h->layer[i].kv_heads = 0;
}

static int layer_by_name(struct hparams *h, uint32_t i, const char *name, struct err *e)
{
    static const struct {
        const char *name;
        bool attention, recurrent;
    } known[] = {
        {"full_attention", true, false},
        {"attention", true, false},
        {"sliding_attention", true, false},
        {"linear_attention", false, true},
        {"mamba", false, true},
        {"recurrent", false, true},
        {"mamba2", false, true},
        {"conv", false, true},
        {"hybrid", true, true},
        {"mlp", false, false},
        {"moe", false, false},
    };
    for (size_t n = 0; n < sizeof known / sizeof *known; n++)
        if (!strcmp(name, known[n].name)) {
            set_layer(h, i, known[n].attention, known[n].recurrent);
            return 0;
        }
    return err_set(e, ERR_DATA, "config.json: layer %u is of the type \"%s\", which is not known", i,
                   log_safe(name));
}

/* An array of names (of block_types in turn), or of numbers where 1 is attention; 0: config.json has neither. */
static int layers_by_list(struct hparams *h, const struct keys *k, struct err *e)
{
    struct jsonread r = {k->config, "config.json", e};
    char found[64];
    json_t *list = keys_json(k, "layers_block_type|layer_types|attn_type_list|block_types", found);
    if (!json_array_size(list))
        return 0;
    const size_t period = strcmp(found, "block_types") ? SIZE_MAX : json_array_size(list);
    for (uint32_t i = 0; i < h->layers; i++) {
        if (json_is_integer(json_array_get(list, i))) {
            bool full = json_integer_value(json_array_get(list, i)) == 1;
            set_layer(h, i, full, !full);
            continue;
        }
        const char *name = json_string_value(jsonread_item(&r, list, i % period, JSONREAD_IS_STRING));
        if (!name || layer_by_name(h, i, name, e) < 0)
            return -1;
    }
    return 1;
}

/* nemotron-h: "M-M*-", a letter for each layer. */
static int layers_by_letter(struct hparams *h, const struct keys *k, struct err *e)
{
    char found[64];
    const char *text = json_string_value(keys_json(k, "hybrid_override_pattern", found));
    if (!text)
        return 0;
    if (strlen(text) < h->layers || strspn(text, "M-*E|") != strlen(text))
        return err_set(
            e, ERR_DATA,
            "config.json: hybrid_override_pattern has not one of M, -, * and E for each of %u layers",
            h->layers);
    for (uint32_t i = 0; i < h->layers; i++)
        set_layer(h, i, text[i] == '*', text[i] == 'M');
    return 1;
}

/* The numbers of the layers with attention, counted from `first`; others are recurrent. */
static int layers_by_number(struct hparams *h, json_t *list, uint32_t first)
{
    bool *full = arena_alloc(&h->arena, h->layers, sizeof *full);
    if (!json_is_array(list) || !full)
        return 0;
    memset(full, 0, h->layers * sizeof *full);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t n = json_integer_value(json_array_get(list, i)) - first;
        if (n >= 0 && n < h->layers)
            full[n] = true;
    }
    for (uint32_t i = 0; i < h->layers; i++)
        set_layer(h, i, full[i], !full[i]);
    return 1;
}

/* Attention in every n-th layer: the last of a period, or the one at an offset. */
static int layers_by_period(struct hparams *h, const struct keys *k, struct err *e)
{
    uint32_t n = h->ssm.every, at = UINT32_MAX;
    if (keys_u32(k, NULL, "attn_layer_offset", HPARAMS_COUNT, &at, e) < 0)
        return -1;
    for (uint32_t i = 0; n && i < h->layers; i++) {
        bool full = i % n == (at == UINT32_MAX ? n - 1 : at);
        set_layer(h, i, full, !full);
    }
    return n ? 1 : 0;
}

/* Delta nets: those with a decay are recurrent; 0: the file is of another kind, or has no tensors. */
static int layers_by_tensor(struct hparams *h, const struct keys *k)
{
    char name[32];
    if (h->arch->mixer != build_delta || !gguf_tensor_count(k->gguf))
        return 0;
    for (uint32_t i = 0; i < h->layers; i++) {
        snprintf(name, sizeof name, "blk.%u.ssm_a", i);
        const bool decays = gguf_find_tensor(k->gguf, name);
        set_layer(h, i, !decays, decays);
    }
    return 1;
}

/* GGUF: layers without attention have no key-value heads; or their tensors say it, or a period, 4 where it is not said. */
static int layers_of_gguf(struct hparams *h, const struct keys *k, struct err *e)
{
    bool some = false;
    for (uint32_t i = 0; i < h->layers; i++) {
        some |= !h->layer[i].kv_heads;
        h->layer[i].recurrent = !h->layer[i].kv_heads;
    }
    if (some || layers_by_tensor(h, k) || layers_by_period(h, k, e))
        return e->code ? -1 : 0;
    for (uint32_t i = 0; i < h->layers && h->arch->attention_every; i++) {
        bool full = i % h->arch->attention_every == h->arch->attention_every - 1;
        set_layer(h, i, full, !full);
    }
    return 0;
}

/* The period of the layers as they are; 0 = none. */
static uint32_t period(const struct hparams *h)
{
    uint32_t n = 1;
    while (n < h->layers && h->layer[n - 1].recurrent)
        n++;
    for (uint32_t i = 0; i < h->layers; i++)
        if (h->layer[i].recurrent != (i % n != n - 1))
            return 0;
    return n;
}

static int find_mixers(struct hparams *h, const struct keys *k, struct err *e)
{
    char found[64];
    if (k->gguf)
        return layers_of_gguf(h, k, e);
    json_t *kimi = keys_json(k, "linear_attn_config", found);
    int got = layers_by_list(h, k, e);
    if (!got)
        got = layers_by_letter(h, k, e);
    if (!got)
        got = layers_by_number(h, keys_json(k, "attn_layer_indices|full_attn_idxs", found), 0);
    if (!got)
        got = layers_by_number(h, json_object_get(kimi, "full_attn_layers"), 1);
    if (!got)
        got = layers_by_period(h, k, e);
    const bool none = json_is_null(json_object_get(k->config, "attn_layer_indices")), /* bamba */
        all = json_is_null(json_object_get(k->config, "full_attn_idxs"));             /* lfm2 */
    if (!got && !none && !all)
        return err_set(e, ERR_DATA, "config.json does not say which layers have attention");
    for (uint32_t i = 0; i < h->layers && !got; i++)
        set_layer(h, i, all, none);
    return got < 0 ? -1 : 0;
}

static int read_mixers(struct hparams *h, const struct keys *k, struct err *e)
{
    int bad = find_mixers(h, k, e);
    h->ssm.every = period(h);
    return bad;
}

/* ---- sizes ---- */

/* A bound of dt: a number; what JSON cannot say as one is infinity, which is none. */
static float dt_bound(json_t *v)
{
    return json_is_number(v) ? (float)json_number_value(v) : 0;
}

/* mamba 2's sizes in config.json; a GGUF file has them as they are. */
static int read_mamba2(struct hparams *h, const struct keys *k, struct err *e)
{
    struct ssm_params *s = &h->ssm;
    uint32_t expand = 0, head = 0;
    char found[64];
    json_t *limit = keys_json(k, "time_step_limit|mamba_dt_limit", found),
           *size = keys_json(k, "mamba_d_head|mamba_head_dim|mamba_headdim", found);
    s->eps = s->eps != 0 ? s->eps : h->eps;
    if (json_is_integer(size) && keys_u32(k, NULL, found, HPARAMS_SIZE, &head, e) < 0)
        return -1;
    if (keys_u32(k, NULL, "mamba_expand|expand", HPARAMS_SIZE, &expand, e) < 0)
        return -1;
    if (!s->inner)
        s->inner = head && s->heads ? head * s->heads : expand * h->width;
    if (json_array_size(limit) == 2 && !k->gguf) {
        s->dt_range[0] = dt_bound(json_array_get(limit, 0));
        s->dt_range[1] = dt_bound(json_array_get(limit, 1));
    }
    if (!s->inner || !s->heads || s->inner % s->heads || !s->groups || s->heads % s->groups || !s->state ||
        s->conv < 2)
        return err_set(
            e, ERR_DATA,
            "recurrent layers of %u heads in %u groups, %u wide, with states of %u and %u columns of "
            "convolution: that does not divide",
            s->heads, s->groups, s->inner, s->state, s->conv);
    return 0;
}

int hybrid_mamba2_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    return read_mixers(h, k, e) < 0 || read_mamba2(h, k, e) < 0 ? -1 : 0;
}

/* mamba 2 alone. */
int mamba2_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    uint32_t head = 0;
    if (keys_u32(k, NULL, "num_heads", HPARAMS_SIZE, &h->ssm.heads, e) < 0 ||
        keys_u32(k, NULL, "head_dim", HPARAMS_SIZE, &head, e) < 0)
        return -1;
    if (!k->gguf)
        h->ssm.inner = head * h->ssm.heads;
    h->k_dim = h->v_dim = 0;
    for (uint32_t i = 0; i < h->layers; i++)
        set_layer(h, i, false, true);
    return read_mamba2(h, k, e);
}

static int read_mamba(struct hparams *h, const struct keys *k, struct err *e)
{
    struct ssm_params *s = &h->ssm;
    uint32_t expand = 0;
    char found[64];
    json_t *rank = keys_json(k, "time_step_rank|mamba_dt_rank", found);
    s->eps = s->eps != 0 ? s->eps : h->eps;
    s->heads = k->gguf ? s->heads : (h->width + 15) / 16;
    if ((json_is_integer(rank) && keys_u32(k, NULL, found, HPARAMS_SIZE, &s->heads, e) < 0) ||
        keys_u32(k, NULL, "mamba_expand|expand", HPARAMS_SIZE, &expand, e) < 0)
        return -1;
    if (!s->inner)
        s->inner = expand * h->width;
    if (!s->inner || !s->state || s->conv < 2 || !s->heads)
        return err_set(e, ERR_DATA, "recurrent layers of width %u, state %u and rank %u: above 0 is expected",
                       s->inner, s->state, s->heads);
    return 0;
}

/* mamba 1 alone. falcon-mamba norms dt, B and C without weights, by an epsilon that GGUF does not hold. */
int mamba_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    if (keys_u32(k, NULL, "intermediate_size", HPARAMS_SIZE, &h->ssm.inner, e) < 0 ||
        keys_f32(k, NULL, "mixer_rms_eps", HPARAMS_REAL, &h->ssm.eps, e) < 0)
        return -1;
    h->ssm.norms |= !strcmp(h->spelled, "falcon_mamba");
    if (h->ssm.norms && h->ssm.eps == 0)
        h->ssm.eps = 1e-6f;
    for (uint32_t i = 0; i < h->layers; i++)
        set_layer(h, i, false, true);
    return read_mamba(h, k, e);
}

int jamba_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    h->rope_dims = 0;
    for (uint32_t i = 0; i < h->layers; i++)
        h->layer[i].rope = false;
    return read_mixers(h, k, e) < 0 || read_mamba(h, k, e) < 0 ? -1 : 0;
}

/* Layers of a period: all but the middle one are recurrent; all but the last where there are few. */
static int plamo2_layers(struct hparams *h, const struct keys *k, struct err *e)
{
    uint32_t step = 2;
    bool on = true;
    if (keys_u32(k, NULL, "mamba_step", HPARAMS_SIZE, &step, e) < 0 ||
        keys_bool(k, NULL, "mamba_enabled", &on, e) < 0)
        return -1;
    for (uint32_t i = 0; i < h->layers; i++) {
        bool full = !on || (h->layers <= step / 2 ? i == h->layers - 1 : i % step == step / 2);
        set_layer(h, i, full, !full);
    }
    return 0;
}

int plamo2_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    struct ssm_params *s = &h->ssm;
    if (k->gguf ? layers_of_gguf(h, k, e) < 0 : plamo2_layers(h, k, e) < 0)
        return -1;
    if (!k->gguf)
        s->inner = s->heads * h->k_dim;
    s->groups = 1;
    int bad = read_mamba2(h, k, e);
    s->groups = 0; /* as GGUF says it: B and C do not pass through the convolution */
    return bad;
}

int granite_hybrid_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    char positions[32] = "";
    if (granite_setup(h, k, e) < 0 ||
        keys_str(k, NULL, "position_embedding_type", positions, sizeof positions, e) < 0)
        return -1;
    for (uint32_t i = 0; i < h->layers; i++) {
        if (!k->gguf && strcmp(positions, "rope"))
            h->layer[i].rope = false;
        if (!h->experts && h->shared_ffn)
            h->layer[i].ffn = h->shared_ffn;
    }
    return hybrid_mamba2_setup(h, k, e);
}

/* One mixer a layer, attention without positions. */
int nemotron_h_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    if (keys_u32(k, NULL, "moe_shared_expert_intermediate_size", HPARAMS_COUNT, &h->shared_ffn, e) < 0 ||
        hybrid_mamba2_setup(h, k, e) < 0)
        return -1;
    if (!k->gguf) { /* the definition does not read time_step_limit */
        h->ssm.dt_range[0] = 0.001f;
        h->ssm.dt_range[1] = 0;
        if (keys_f32(k, NULL, "time_step_min|mamba_dt_min", HPARAMS_REAL, &h->ssm.dt_range[0], e) < 0)
            return -1;
    }
    h->window = 0;    /* read by nothing, too */
    h->rope_dims = 0; /* a key of GGUF files all the same, which may be larger than a head */
    for (uint32_t i = 0; i < h->layers; i++) {
        struct layer_params *l = &h->layer[i];
        l->rope = l->sliding = false;
        if (k->gguf && l->ffn)
            l->recurrent = false;
        if (l->recurrent || l->kv_heads)
            l->ffn = 0;
    }
    return 0;
}

static int read_floats(const struct keys *k, const char *name, float *out, uint32_t n, struct err *e)
{
    char found[64];
    json_t *list = keys_json(k, name, found);
    if (list && json_array_size(list) != n)
        return err_set(e, ERR_DATA, "config.json: %s has not %u numbers", name, n);
    for (uint32_t i = 0; list && i < n; i++)
        out[i] = (float)json_number_value(json_array_get(list, i));
    return list ? 1 : 0;
}

/* Attention and mamba 2 of the same input in every layer. GGUF files have the multipliers in their weights. */
int falcon_h1_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    struct ssm_params *s = &h->ssm;
    float key = 1, head = 1;
    s->in_scale = s->out_scale = h->attn_in_scale = h->attn_out_scale = 1;
    h->ffn_scale[0] = h->ffn_scale[1] = 1;
    for (uint32_t i = 0; i < h->layers; i++)
        h->layer[i].recurrent = true;
    int got = k->gguf ? 0 : read_floats(k, "ssm_multipliers", s->scale, 5, e);
    if (got < 0 || (!k->gguf && read_floats(k, "mlp_multipliers", h->ffn_scale, 2, e) < 0) ||
        keys_f32(k, NULL, "ssm_in_multiplier", HPARAMS_REAL, &s->in_scale, e) < 0 ||
        keys_f32(k, NULL, "ssm_out_multiplier", HPARAMS_REAL, &s->out_scale, e) < 0 ||
        keys_f32(k, NULL, "attention_in_multiplier", HPARAMS_REAL, &h->attn_in_scale, e) < 0 ||
        keys_f32(k, NULL, "attention_out_multiplier", HPARAMS_REAL, &h->attn_out_scale, e) < 0 ||
        keys_f32(k, NULL, "key_multiplier", HPARAMS_REAL, &key, e) < 0 ||
        keys_f32(k, NULL, "lm_head_multiplier", HPARAMS_REAL, &head, e) < 0)
        return -1;
    s->scaled = got > 0;
    h->logit_scale *= head;
    if (!h->k_dim)
        h->k_dim = h->width / h->heads;
    h->attn_scale = key / sqrtf((float)h->k_dim);
    return read_mamba2(h, k, e);
}

/* Sizes of delta rules. */
static int read_delta(struct hparams *h, const struct keys *k, struct err *e)
{
    struct ssm_params *s = &h->ssm;
    uint32_t value = 0;
    if (keys_u32(k, NULL, "linear_value_head_dim", HPARAMS_SIZE, &value, e) < 0)
        return -1;
    if (!k->gguf)
        s->inner = value * s->heads;
    s->eps = s->eps != 0 ? s->eps : h->eps;
    s->tiled = k->gguf && h->arch->tiled_values;
    if (!s->inner || !s->heads || s->inner % s->heads || !s->groups || s->heads % s->groups || !s->state ||
        s->conv < 2)
        return err_set(e, ERR_DATA,
                       "linear attention of %u and %u heads, %u and %u wide: that does not divide", s->groups,
                       s->heads, s->state, s->inner);
    return 0;
}

int qwen_hybrid_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    if (h->experts && qwen_moe_setup(h, k, e) < 0)
        return -1;
    return read_mixers(h, k, e) < 0 || read_delta(h, k, e) < 0 ? -1 : 0;
}

int olmo_hybrid_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    bool negative = false;
    if (keys_bool(k, NULL, "linear_allow_neg_eigval", &negative, e) < 0)
        return -1;
    if (!k->gguf)
        h->ssm.write_scale = negative ? 2 : 1;
    h->ssm.eps = 1e-5f;
    char found[64];
    json_t *rope = keys_json(k, "rope_parameters|rope_scaling|rope_theta", found);
    if (json_is_null(json_object_get(rope, "rope_theta")))
        rope = NULL;
    for (uint32_t i = 0; !k->gguf && !rope && i < h->layers; i++)
        h->layer[i].rope = false;
    if (k->gguf && layer_bases(h, k, e) < 0)
        return -1;
    return read_mixers(h, k, e) < 0 || read_delta(h, k, e) < 0 ? -1 : 0;
}

/* The factor of the embedding is rounded to bfloat16, and config.json counts both halves of the feed-forward. */
int recurrent_gemma_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    struct ssm_params *s = &h->ssm;
    s->inner = s->inner ? s->inner : h->width;
    if (!k->gguf) {
        union {
            float value;
            uint32_t bits;
        } root = {.value = sqrtf((float)h->width)};
        root.bits = (root.bits + 0x7fff + (root.bits >> 16 & 1)) & 0xffff0000;
        h->embed_scale = root.value;
    }
    for (uint32_t i = 0; !k->gguf && i < h->layers; i++)
        h->layer[i].ffn /= 2;
    if (s->inner % h->heads || s->conv < 2)
        return err_set(e, ERR_DATA, "recurrent layers of %u channels in %u blocks: that does not divide",
                       s->inner, h->heads);
    return read_mixers(h, k, e);
}

int lfm2_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    bool adjust = false;
    uint32_t multiple = 256;
    float factor = 1;
    if (keys_bool(k, NULL, "block_auto_adjust_ff_dim", &adjust, e) < 0 ||
        keys_u32(k, NULL, "block_multiple_of", HPARAMS_SIZE, &multiple, e) < 0 ||
        keys_f32(k, NULL, "block_ffn_dim_multiplier", HPARAMS_REAL, &factor, e) < 0)
        return -1;
    if (h->ssm.conv < 2)
        return err_set(e, ERR_DATA, "convolutions of %u columns; 2 or more is expected", h->ssm.conv);
    for (uint32_t i = 0; adjust && i < h->layers; i++) {
        uint32_t ffn = (uint32_t)((double)factor * (2 * (uint64_t)h->layer[i].ffn / 3));
        h->layer[i].ffn = (ffn + multiple - 1) / multiple * multiple;
    }
    return read_mixers(h, k, e);
}

/* KDA: heads of one size; latent attention, without positions but with the room for them. */
int kimi_linear_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    struct ssm_params *s = &h->ssm;
    char found[64], how[32] = "";
    struct keys in = {.config = keys_json(k, "linear_attn_config", found)};
    if (!k->gguf || !s->heads)
        s->heads = h->heads;
    if (!s->kda_dim)
        s->kda_dim = h->k_dim;
    if (keys_u32(k, NULL, "short_conv_kernel_size|linear_conv_kernel_dim", HPARAMS_SIZE, &s->conv, e) < 0 ||
        keys_u32(k, NULL, "linear_num_heads", HPARAMS_SIZE, &s->heads, e) < 0 ||
        (in.config && (keys_u32(&in, NULL, "head_dim", HPARAMS_SIZE, &s->kda_dim, e) < 0 ||
                       keys_u32(&in, NULL, "num_heads", HPARAMS_SIZE, &s->heads, e) < 0 ||
                       keys_u32(&in, NULL, "short_conv_kernel_size", HPARAMS_SIZE, &s->conv, e) < 0)) ||
        keys_str(k, NULL, "moe_router_activation_func", how, sizeof how, e) < 0)
        return -1;
    if (!s->safe)
        s->bound = 0;
    if (s->safe && !(s->bound < 0))
        return err_set(e, ERR_DATA, "the bound of the decay is %g; a number below 0 is expected",
                       (double)s->bound);
    if (!strcmp(how, "softmax"))
        h->gating = GATING_SOFTMAX;
    s->state = s->kda_dim;
    s->inner = s->heads * s->state;
    s->groups = s->heads;
    h->tied = false; /* whatever config.json says */
    if (read_mixers(h, k, e) < 0 || deepseek_setup(h, k, e) < 0)
        return -1;
    for (uint32_t i = 0; i < h->layers; i++)
        h->layer[i].kv_heads = h->layer[i].recurrent ? 0 : 1;
    if (!s->inner || s->conv < 2)
        return err_set(e, ERR_DATA, "linear attention of %u heads of %u: above 0 is expected", s->heads,
                       s->state);
    return 0;
}

/* h = norm(x) a + f b, then the next norm: as a norm does not see a factor but by its epsilon, x + f b / a is the same. */
int minimax_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    h->ssm.eps = 1e-6f;
    for (int i = 0; i < 3; i++) {
        float *a = &h->residual_mix[i][0];
        if (k->gguf && h->residual_scale != 1)
            *a = h->residual_scale;
        if (!(*a > 0))
            return err_set(e, ERR_DATA, "the factor of the residual is %g; a number above 0 is expected",
                           (double)*a);
    }
    h->residual_scale = 1;
    for (uint32_t i = 0; i < h->layers && !k->gguf; i++)
        h->layer[i].sliding = h->window; /* of those with attention, whatever their type is called */
    return read_mixers(h, k, e);
}

/* config.json has factors of the width. */
int xlstm_setup(struct hparams *h, const struct keys *k, struct err *e)
{
    struct ssm_params *s = &h->ssm;
    static const double most[2] = {0, 64};
    float keys = 0, values = 0, ffn = 0;
    uint32_t unit = 1;
    bool biased = false;
    if (keys_bool(k, NULL, "use_bias", &biased, e) < 0)
        return -1;
    if (biased)
        return err_set(e, ERR_DATA, "config.json: use_bias is true; norms with biases are not supported");
    if (keys_f32(k, NULL, "qk_dim_factor", most, &keys, e) < 0 ||
        keys_f32(k, NULL, "v_dim_factor", most, &values, e) < 0 ||
        keys_f32(k, NULL, "ffn_proj_factor", most, &ffn, e) < 0 ||
        keys_f32(k, NULL, "eps", HPARAMS_REAL, &s->eps, e) < 0 ||
        keys_u32(k, NULL, "ffn_round_up_to_multiple_of", HPARAMS_SIZE, &unit, e) < 0)
        return -1;
    if (!k->gguf) {
        const uint32_t wide = (uint32_t)((double)h->width * (double)keys);
        s->heads = s->groups = h->heads;
        s->inner = (uint32_t)((double)h->width * (double)values);
        s->state = wide % h->heads ? 0 : wide / h->heads;
        h->ffn = (uint32_t)floor(((double)h->width * (double)ffn + unit - 1) / unit) * unit;
    }
    if (!s->heads || s->groups != s->heads || !s->state || s->state > 1024 || !s->inner ||
        s->inner % s->heads || !h->ffn)
        return err_set(e, ERR_DATA, "%u heads of %u keys and %u values in all: that does not divide",
                       s->heads, s->state, s->inner);
    h->k_dim = h->v_dim = 0;
    for (uint32_t i = 0; i < h->layers; i++) {
        set_layer(h, i, false, true);
        h->layer[i].ffn = h->ffn;
    }
    return 0;
}

/* ---- plans ---- */

/* The norm before the feed-forward. falcon-h1's has no suffix in GGUF. */
static struct norm ffn_norm(struct build *b, uint32_t layer)
{
    const char *name = b->h->arch->ffn_norm ? b->h->arch->ffn_norm : "ffn_norm";
    struct norm n = build_norm(b, name, (int)layer);
    if (!strcmp(b->h->arch->name, "falcon-h1"))
        build_bare(b, n.weight);
    return n;
}

static void attention(struct build *b, uint32_t layer, struct norm in)
{
    if (b->h->kv_lora) {
        build_latent(b, layer, in);
    } else {
        build_qkv(b, layer, in);
        build_attn(b, layer);
    }
    build_out(b, layer);
}

/* A recurrent layer or attention, then a feed-forward block. */
void hybrid_build(struct build *b)
{
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        struct norm in = build_norm(b, "attn_norm", (int)i);
        if (b->h->layer[i].recurrent)
            b->h->arch->mixer(b, i, in);
        else
            attention(b, i, in);
        build_ffn(b, i, ffn_norm(b, i));
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}

/* A norm whose files hold w less a number of its place. */
static struct norm plamo2_norm(struct build *b, const char *name, int layer, float add)
{
    struct norm n = {.kind = NORM_RMS, .eps = b->h->eps};
    n.weight = bind_vector(&b->bind, name, layer, ".weight", b->h->width,
                           b->h->container == STORE_SAFETENSORS ? add : 0);
    return n;
}

/* A norm before and behind each half. */
void plamo2_build(struct build *b)
{
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        struct norm in = plamo2_norm(b, "attn_norm", (int)i, 1),
                    post = plamo2_norm(b, "post_attention_norm", (int)i, 1.0f / 5);
        build_bare(b, post.weight);
        if (b->h->layer[i].recurrent) {
            build_plamo2(b, i, in)->tail.post = post;
        } else {
            build_qkv(b, i, in);
            build_attn(b, i);
            build_out(b, i)->post = post;
        }
        in = plamo2_norm(b, "ffn_norm", (int)i, 1);
        post = plamo2_norm(b, "post_ffw_norm", (int)i, 1 / (5 * sqrtf(5)));
        build_bare(b, post.weight);
        build_ffn(b, i, in)->post = post;
    }
    build_logits(b, plamo2_norm(b, "output_norm", LOOKUP_NO_LAYER, 1));
}

/* lfm2 calls its last norm that of the embedding. */
void lfm2_build(struct build *b)
{
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        struct norm in = build_norm(b, "attn_norm", (int)i);
        if (b->h->layer[i].recurrent)
            build_shortconv(b, i, in);
        else
            attention(b, i, in);
        build_ffn(b, i, build_norm(b, "ffn_norm", (int)i));
    }
    bool usual = bind_has(&b->bind, "output_norm", LOOKUP_NO_LAYER);
    build_logits(b, build_norm(b, usual ? "output_norm" : "token_embd_norm", LOOKUP_NO_LAYER));
}

/* Experts that take and give fewer numbers than the stream has: a product before them, and one behind. The router and the
 * shared expert see the stream. */
static void latent_experts(struct build *b, uint32_t layer, struct norm in)
{
    const uint32_t width = b->h->width, low = b->h->expert_width;
    struct operand from = build_mix(b, MIX_LOW, low), to = build_mix(b, MIX_OUT, low), sum = b->x;
    struct linear down = bind_linear(&b->bind, "ffn_latent_down", (int)layer, low, width),
                  up = bind_linear(&b->bind, "ffn_latent_up", (int)layer, width, low);
    plan_add(b->p, OP_PROJ, layer)->proj =
        (struct op_proj){.in = b->x, .norm = in, .out = from, .linear = {down}, .scale = {1}, .count = 1};
    struct op_moe *o = build_moe(b, layer, (struct norm){0});
    const struct op_moe made = *o;
    o->in = from;
    o->router_in = b->x;
    o->router_norm = in;
    o->shared_gate = o->shared_up = o->shared_down = (struct linear){0};
    o->tail = (struct tail){.scale = 1, .out = to};
    if (made.shared_up.weight) {
        sum = b->y;
        plan_add(b->p, OP_FFN, layer)->ffn =
            (struct op_ffn){.in = b->x,
                            .norm = in,
                            .gate = made.shared_gate,
                            .up = made.shared_up,
                            .down = made.shared_down,
                            .act = b->h->act,
                            .tail = {.scale = 1, .residual = b->x, .out = sum}};
    }
    plan_add(b->p, OP_OUT, layer)->out =
        (struct op_out){.in = to, .linear = up, .tail = {.scale = 1, .residual = sum, .out = b->x}};
}

/* One mixer a layer: recurrent, attention or feed-forward. Models of recurrent layers alone are so too. */
void single_mixer_build(struct build *b)
{
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        struct norm in = build_norm(b, "attn_norm", (int)i);
        if (b->h->layer[i].recurrent)
            b->h->arch->mixer(b, i, in);
        else if (b->h->layer[i].kv_heads)
            attention(b, i, in);
        else if (b->h->expert_width && bind_has(&b->bind, "ffn_latent_down", (int)i))
            latent_experts(b, i, in);
        else
            build_ffn(b, i, in);
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}

/* A norm whose rows are times a factor. */
static struct norm scaled_norm(struct build *b, struct norm n, float factor)
{
    const struct weight *w = &b->bind.weights->all[n.weight];
    float *scaled = factor != 1 && n.weight ? bind_memory(&b->bind, w->cols * sizeof *scaled) : NULL;
    if (!scaled)
        return n;
    const float *from = (const float *)(const void *)w->data;
    for (uint32_t i = 0; i < w->cols; i++)
        scaled[i] = from[i] * factor;
    n.weight = bind_table(&b->bind, "scaled norm", NULL, scaled, (struct shape){1, w->cols, 1});
    return n;
}

/* falcon-h1's feed-forward: the gate is scaled before its activation. */
static void scaled_ffn(struct build *b, uint32_t layer, struct norm in)
{
    const struct hparams *h = b->h;
    int il = (int)layer;
    uint32_t ffn = h->layer[layer].ffn;
    struct operand hidden = build_mix(b, 0, 2 * ffn);
    struct op_proj *o = &plan_add(b->p, OP_PROJ, layer)->proj;
    *o = (struct op_proj){.in = b->x, .norm = in, .out = hidden, .count = 2, .scale = {h->ffn_scale[0], 1}};
    o->linear[0] = bind_linear(&b->bind, "ffn_gate", il, ffn, h->width);
    o->linear[1] = bind_linear(&b->bind, "ffn_up", il, ffn, h->width);
    struct op_out *out = &plan_add(b->p, OP_OUT, layer)->out;
    *out = (struct op_out){.in = {hidden.buffer, ffn}, .gate = {.in = hidden, .act = h->act}};
    out->linear = bind_linear(&b->bind, "ffn_down", il, h->width, ffn);
    out->tail = (struct tail){.scale = h->ffn_scale[1], .residual = b->x, .out = b->x};
}

void falcon_h1_build(struct build *b)
{
    const struct hparams *h = b->h;
    build_embed(b);
    for (uint32_t i = 0; i < h->layers; i++) {
        struct norm in = build_norm(b, "attn_norm", (int)i);
        struct op_out *o = build_mamba2(b, i, scaled_norm(b, in, h->ssm.in_scale));
        o->tail.scale *= h->ssm.out_scale;
        o->tail.out = b->y;
        build_qkv(b, i, scaled_norm(b, in, h->attn_in_scale));
        build_attn(b, i);
        struct tail *t = build_out(b, i);
        t->scale *= h->attn_out_scale;
        t->residual = t->out = b->y;
        struct operand old = b->x;
        b->x = b->y;
        b->y = old;
        if (h->container == STORE_GGUF)
            build_ffn(b, i, ffn_norm(b, i));
        else
            scaled_ffn(b, i, ffn_norm(b, i));
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}

/* olmo: attention's block norms its results, a recurrent one its inputs. */
void olmo_hybrid_build(struct build *b)
{
    build_embed(b);
    for (uint32_t i = 0; i < b->h->layers; i++) {
        int il = (int)i;
        if (b->h->layer[i].recurrent) {
            build_delta(b, i, build_norm(b, "attn_norm", il));
            build_ffn(b, i, build_norm(b, "ffn_norm", il));
            continue;
        }
        build_qkv(b, i, (struct norm){0});
        build_attn(b, i);
        bool usual = bind_has(&b->bind, "post_attention_norm", il);
        struct norm post = build_norm(b, usual ? "post_attention_norm" : "ffn_norm", il);
        build_out(b, i)->post = post;
        post = build_norm(b, "post_ffw_norm", il);
        build_ffn(b, i, (struct norm){0})->post = post;
    }
    build_logits(b, build_norm(b, "output_norm", LOOKUP_NO_LAYER));
}

/* A tail whose sum is a + f[1] / f[0] y, and the norm that follows it. */
static void minimax_tail(struct tail *t, const float f[2], struct norm next)
{
    t->scale = f[1] / f[0];
    t->after = next;
    t->after.eps /= f[0] * f[0];
}

void minimax_build(struct build *b)
{
    const struct hparams *h = b->h;
    struct norm first = build_norm(b, "attn_norm", 0);
    build_embed(b)->norm = first;
    for (uint32_t i = 0; i < h->layers; i++) {
        bool full = h->layer[i].kv_heads, last = i + 1 == h->layers;
        struct norm between = build_norm(b, "ffn_norm", (int)i);
        struct norm next =
            build_norm(b, last ? "output_norm" : "attn_norm", last ? LOOKUP_NO_LAYER : (int)i + 1);
        if (full) {
            build_qkv(b, i, (struct norm){0});
            build_attn(b, i);
            minimax_tail(build_out(b, i), h->residual_mix[0], between);
        } else {
            minimax_tail(&build_lightning(b, i, (struct norm){0})->tail, h->residual_mix[1], between);
        }
        minimax_tail(build_ffn(b, i, (struct norm){0}), h->residual_mix[2], next);
    }
    build_logits(b, (struct norm){0});
}
