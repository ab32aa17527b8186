#include "quant/gguf_keys.h"

#include "base/log.h"
#include "lang/chat/chat_load.h"
#include "lang/token/tok_write.h"
#include "model/arch.h"
#include "model/bind.h"
#include "model/families.h"
#include "model/rope.h"
#include "model/vision/params.h"

#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void keys_from_gguf(struct gguf_writer *w, const struct gguf *g)
{
    for (size_t i = 0; i < gguf_key_count(g); i++) {
        const struct gguf_key *k = gguf_key_at(g, i);
        if (strncmp(k->name, "split.", 6) && strcmp(k->name, "general.alignment"))
            gguf_put_copy(w, k);
    }
}

/* ---- hyper-parameters ---- */

struct keys_out {
    struct gguf_writer *w;
    const struct model *m;
    const struct hparams *h;
    const char *arch; /* as written */
};

static const char *spell(const struct keys_out *k, const char *key, char name[160])
{
    if (key[0] == '.')
        snprintf(name, 160, "%s", key + 1);
    else
        snprintf(name, 160, "%s.%s", k->arch, key);
    return name;
}

static void put_u32(const struct keys_out *k, const char *key, uint32_t v)
{
    char name[160];
    gguf_put_u32(k->w, spell(k, key, name), v);
}

static void put_f32(const struct keys_out *k, const char *key, float v)
{
    char name[160];
    gguf_put_f32(k->w, spell(k, key, name), v);
}

static void put_bool(const struct keys_out *k, const char *key, bool v)
{
    char name[160];
    gguf_put_bool(k->w, spell(k, key, name), v);
}

static bool is_arch(const struct keys_out *k, const char *name)
{
    return !strcmp(k->arch, name);
}

static bool starts(const struct keys_out *k, const char *name)
{
    return !strncmp(k->arch, name, strlen(name));
}

static bool has_wkv(const struct hparams *h)
{
    return h->arch->build == rwkv7_build || h->arch->build == rwkv6_build;
}

/* Keys that mean something only in some families. */
static bool wanted(const struct keys_out *k, const char *key)
{
    const struct hparams *h = k->h;
    if (!strcmp(key, "attention.scale"))
        return !h->kv_lora && fabsf(h->attn_scale * sqrtf((float)h->k_dim) - 1) > 1e-6f;
    if (!strcmp(key, "embedding_scale"))
        return !starts(k, "gemma") && /* theirs is the square root of the width */
               !is_arch(k, "falcon-h1");
    if (!strcmp(key, "swiglu_alpha") ||
        !strcmp(key, "swiglu_limit")) /* ours, where they are not the usual ones */
        return h->act == ACT_SWIGLU_OAI && (h->act_alpha != 1.702f || h->act_limit != 7);
    if (strstr(key, "_logit_softcapping"))
        return !is_arch(k, "gemma2"); /* written below, also where they are 0 */
    if (!strcmp(key, "rope.dimension_count"))
        return h->rope_kind != ROPE_NONE || h->kv_lora;
    if (!strcmp(key, "shortconv.l_cache"))
        return starts(k, "lfm2");
    if (!strcmp(key, "wkv.norm_epsilon"))
        return (has_wkv(h) && fabsf(h->ssm.eps - 64e-5f) > 1e-9f) || is_arch(k, "xlstm");
    if ((!strncmp(key, "ssm.", 4) || !strncmp(key, "attention.", 10)) && has_wkv(h))
        return false;
    if (!strcmp(key, "full_attention_interval"))
        return h->arch->attention_every;
    if (is_arch(k, "falcon-h1") && (!strcmp(key, "logit_scale") || !strcmp(key, "attention.scale")))
        return false; /* in the weights */
    if (!strcmp(key, ".tokenizer.ggml.token_type_count"))
        return h->arch->encoder;
    if (!strncmp(key, "expert_", 7))
        return h->experts;
    if (!strcmp(key, "embedding_scale") && is_arch(k, "afmoe"))
        return false; /* written below, also where it is 1 */
    return strcmp(key, "attention.causal") && strcmp(key, "attention.layer_norm_rms_epsilon") &&
           strcmp(key, "attention.layer_norm_epsilon") && strcmp(key, "attention.sliding_window");
}

static void put_field(void *arg, const char *key, enum hparam_kind kind, const void *value)
{
    const struct keys_out *k = arg;
    const bool head = !strcmp(key, "attention.key_length") || !strcmp(key, "attention.value_length") ||
                      !strcmp(key, "rope.dimension_count");
    if (!wanted(k, key))
        return;
    if (kind == HPARAM_U32 && head && is_arch(k, "gemma4"))
        put_u32(k, key, k->h->rope[0].dims); /* of full layers; the others have keys of their own */
    else if (kind == HPARAM_U32)
        put_u32(k, key, *(const uint32_t *)value);
    else if (kind == HPARAM_F32)
        put_f32(k, key, *(const float *)value);
    else
        put_bool(k, key, *(const bool *)value);
}

/* One number where all layers have the same, else one for each. */
static int put_layers(const struct keys_out *k, const char *key, bool ffn, struct err *e)
{
    const struct hparams *h = k->h;
    int32_t *each = mem_alloc(h->layers, sizeof *each);
    bool same = true;
    if (!each)
        return err_memory(e, "layers", h->layers);
    for (uint32_t i = 0; i < h->layers; i++) {
        each[i] = (int32_t)(ffn ? h->layer[i].ffn : h->layer[i].kv_heads);
        if (!ffn && h->arch->attention_every &&
            h->ssm.every) /* which layers have none follows from the interval */
            each[i] = (int32_t)h->kv_heads;
        same = same && each[i] == each[0];
    }
    char name[160];
    if (same)
        put_u32(k, key, (uint32_t)each[0]);
    else
        gguf_put_items(k->w, spell(k, key, name), GGUF_I32, each, h->layers);
    mem_free(each);
    return 0;
}

/* Which layers have a sliding window: no key where it is the family's default, else a period, else one flag a
 * layer; families of which programs expect flags always have them. */
static int put_window(const struct keys_out *k, struct err *e)
{
    static const struct {
        const char *arch;
        bool flags;
    } known[] = {{"gemma2", false}, {"gemma3", false},      {"gemma3n", false}, {"gemma-embedding", false},
                 {"gemma4", true},  {"modern-bert", false}, {"cohere2", false}, {"gpt-oss", false},
                 {"olmo2", false},  {"phi3", false},        {"exaone4", false}, {"exaone-moe", false},
                 {"mimo2", true}};
    const struct hparams *h = k->h;
    uint32_t slides = 0, p = 0;
    bool habit = false, want_flags = false;
    for (uint32_t i = 0; i < h->layers; i++) {
        slides += h->layer[i].sliding;
        if (!p && !h->layer[i].sliding)
            p = i + 1;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known && !habit; i++) {
        habit = is_arch(k, known[i].arch);
        want_flags = habit && known[i].flags;
    }
    if (!slides && !(h->window && h->arch->rope_if_sliding)) /* without a window all layers rotate there */
        return 0;
    if (!habit)
        log_warn(
            "layers see a window of %u tokens only, which other programs do not read from GGUF files of %s",
            h->window, k->arch);
    put_u32(k, "attention.sliding_window", h->window);
    bool period = true;
    p = p ? p : h->arch->window_pattern;
    uint8_t *flags = mem_alloc(h->layers, 1);
    if (!flags)
        return err_memory(e, "layers", h->layers);
    for (uint32_t i = 0; i < h->layers; i++) {
        flags[i] = h->layer[i].sliding;
        period = period && flags[i] == (!p || i % p != (h->arch->full_first ? 0 : p - 1));
    }
    char name[160];
    if (!period || want_flags)
        gguf_put_items(k->w, spell(k, "attention.sliding_window_pattern", name), GGUF_BOOL, flags, h->layers);
    else if (p != h->arch->window_pattern)
        put_u32(k, "attention.sliding_window_pattern", p);
    mem_free(flags);
    return 0;
}

/* YaRN's and longrope's factor of cos and sin, as llama.cpp multiplies it onto its own. */
static int put_factor(const struct keys_out *k, const struct rope_params *r, struct err *e)
{
    const struct hparams *h = k->h;
    const uint32_t dims = r->dims ? r->dims : h->rope_dims;
    float factor, *freqs = mem_alloc(dims / 2 + 1, sizeof *freqs);
    if (!freqs)
        return err_memory(e, "the rope", dims);
    int failed = rope_table(h, r, dims, h->context, &(struct rope_divisors){0}, freqs, &factor, e);
    mem_free(freqs);
    if (r->scaling == SCALING_YARN && !(h->kv_lora && r->mscale_all_dim != 0))
        factor /= rope_mscale(rope_stretch(h, r), 1);
    if (!failed && fabsf(factor - 1) > 1e-6f)
        put_f32(k, "rope.scaling.attn_factor", factor);
    return failed;
}

/* A base for each layer, where they differ or others do not rotate than the family's usual ones: the key is ours, other
 * programs read the common base. */
static int put_layer_bases(const struct keys_out *k, struct err *e)
{
    const struct hparams *h = k->h;
    const bool fourth = is_arch(k, "smollm3") || is_arch(k, "llama4");
    char name[160];
    float *each = mem_alloc(h->layers, sizeof *each);
    bool own = false;
    if (!each)
        return err_memory(e, "layers", h->layers);
    for (uint32_t i = 0; i < h->layers; i++) {
        const struct layer_params *l = &h->layer[i];
        own = own || l->theta != 0 || (fourth && l->rope != ((i + 1) % 4 != 0)) ||
              (is_arch(k, "olmo-hybrid") && !l->rope);
        each[i] = !l->rope ? 0 : l->theta != 0 ? l->theta : h->rope[l->sliding].theta;
    }
    for (uint32_t i = 0; i < h->layers; i++)
        if (h->layer[i].theta != 0 && h->layer[i].rope &&
            h->rope[h->layer[i].sliding].scaling == SCALING_LLAMA3) {
            mem_free(each);
            return err_set(e, ERR_DATA,
                           "layers have bases of their own, scaled as llama3: a GGUF file cannot say that");
        }
    if (own)
        gguf_put_items(k->w, spell(k, "rope.freq_base_layers", name), GGUF_F32, each, h->layers);
    mem_free(each);
    return 0;
}

/* Whether two scale positions alike. */
static bool same_scaling(const struct rope_params *a, const struct rope_params *b)
{
    return a->scaling == b->scaling &&
           (a->scaling == SCALING_NONE ||
            (a->factor == b->factor && a->original == b->original &&
             a->attention_factor == b->attention_factor && a->beta_fast == b->beta_fast &&
             a->beta_slow == b->beta_slow && a->mscale == b->mscale &&
             a->mscale_all_dim == b->mscale_all_dim && a->truncate == b->truncate &&
             a->low_freq == b->low_freq && a->high_freq == b->high_freq &&
             a->short_mscale == b->short_mscale && a->long_mscale == b->long_mscale &&
             a->factors == b->factors &&
             !(a->factors && (memcmp(a->short_factor, b->short_factor, a->factors * sizeof(float)) ||
                              memcmp(a->long_factor, b->long_factor, a->factors * sizeof(float))))));
}

static int put_scaling(const struct keys_out *k, const struct rope_params *r, struct err *e)
{
    static const char *const names[] = {
        [SCALING_NONE] = "none",     [SCALING_LINEAR] = "linear",     [SCALING_YARN] = "yarn",
        [SCALING_LLAMA3] = "llama3", [SCALING_LONGROPE] = "longrope", [SCALING_DYNAMIC] = ""};
    const struct hparams *h = k->h;
    char name[160];
    gguf_put_str(k->w, spell(k, "rope.scaling.type", name), names[r->scaling], strlen(names[r->scaling]));
    if (r->scaling == SCALING_NONE)
        return 0;
    if (r->scaling != SCALING_LONGROPE)
        put_f32(k, "rope.scaling.factor", rope_stretch(h, r));
    if (r->original)
        put_u32(k, "rope.scaling.original_context_length", r->original);
    if (r->scaling == SCALING_LLAMA3) {
        put_f32(k, "rope.scaling.low_freq_factor", r->low_freq);
        put_f32(k, "rope.scaling.high_freq_factor", r->high_freq);
    }
    if (r->scaling == SCALING_YARN) {
        put_f32(k, "rope.scaling.yarn_beta_fast", r->beta_fast);
        put_f32(k, "rope.scaling.yarn_beta_slow", r->beta_slow);
        if (!r->truncate) {
            put_bool(k, "rope.scaling.yarn_truncate", false);
            log_warn(
                "YaRN's ramp is not cut to whole dimensions here, for which only this program has a key: "
                "logits of others differ a little");
        }
        if (h->kv_lora)
            put_f32(k, "rope.scaling.yarn_log_multiplier", 0.1f * r->mscale_all_dim);
    }
    return r->scaling == SCALING_LINEAR ? 0 : put_factor(k, r, e);
}

/* Layers that slide, where they scale positions in another way than a reader takes for granted: in keys of our own. */
static int put_local(const struct keys_out *k, struct err *e)
{
    const struct hparams *h = k->h;
    const struct rope_params *full = &h->rope[0], *local = &h->rope[1];
    static const struct rope_params plain;
    bool resets =
        is_arch(k, "gemma3") || is_arch(k, "gemma-embedding") || is_arch(k, "olmo2") || is_arch(k, "mellum");
    bool slides = false;
    for (uint32_t i = 0; i < h->layers; i++)
        slides |= h->layer[i].sliding && h->layer[i].rope;
    /* A table of divisors is for full layers, and for others that are alike. */
    const bool table = full->scaling == SCALING_LLAMA3 || full->scaling == SCALING_LONGROPE ||
                       full->scaling == SCALING_PROPORTIONAL;
    const bool lost = table && (local->theta != full->theta || local->dims != full->dims);
    resets |= lost && full->scaling != SCALING_LONGROPE;
    if (!slides || (same_scaling(local, resets ? &plain : full) && (resets || !lost)))
        return 0;
    if (local->scaling == SCALING_DYNAMIC || local->scaling == SCALING_LONGROPE ||
        local->scaling == SCALING_PROPORTIONAL)
        return err_set(e, ERR_DATA,
                       "layers that slide scale their positions by a table or by the length of the text, and "
                       "not as the others do: a GGUF file cannot say that");
    log_warn("layers that slide scale their positions in their own way, which other programs do not read");
    char arch[80];
    snprintf(arch, sizeof arch, "%s.swa", k->arch);
    struct keys_out own = *k;
    own.arch = arch;
    return put_scaling(&own, local, e);
}

static int put_rope(const struct keys_out *k, struct err *e)
{
    const struct hparams *h = k->h;
    const struct rope_params *r = &h->rope[0], *local = &h->rope[1];
    if (h->rope_kind == ROPE_NONE)
        return 0;
    put_f32(k, "rope.freq_base", r->theta);
    if (h->window && (local->theta != r->theta || is_arch(k, "gemma3") || is_arch(k, "gemma-embedding")))
        put_f32(k, "rope.freq_base_swa", local->theta);
    if (h->window && local->dims)
        put_u32(k, "rope.dimension_count_swa", local->dims);
    if (put_local(k, e))
        return -1;
    if (r->scaling == SCALING_DYNAMIC) {
        put_f32(k, "rope.scaling.dynamic_factor", rope_stretch(h, r));
        log_warn("the scaling of positions depends on the length of the text here, which other programs do "
                 "not read: "
                 "texts within %u tokens are the same there",
                 h->context);
    }
    return r->scaling == SCALING_NONE || r->scaling == SCALING_DYNAMIC || r->scaling == SCALING_LLAMA3 ||
                   r->scaling == SCALING_PROPORTIONAL
               ? 0
               : put_scaling(k, r, e);
}

/* Latent attention: GGUF has the sizes of what the cache holds, and those of the heads apart. */
static void put_latent(const struct keys_out *k)
{
    const struct hparams *h = k->h;
    put_u32(k, "attention.value_length", h->kv_lora);
    put_u32(k, "attention.key_length_mla", h->nope_dim + h->rope_dims);
    put_u32(k, "attention.value_length_mla", h->v_dim);
}

static void put_experts(const struct keys_out *k)
{
    const struct hparams *h = k->h;
    static const uint32_t func[] = {[GATING_SOFTMAX] = 1, [GATING_SIGMOID] = 2, [GATING_SOFTMAX_TOPK] = 3};
    uint32_t dense = h->layers;
    for (uint32_t i = 1; i < k->m->weights.count; i++) {
        const struct bound *b = &k->m->bound[i];
        if (b->name && !strcmp(b->name, "ffn_gate_inp") && b->layer >= 0 && (uint32_t)b->layer < dense)
            dense = (uint32_t)b->layer;
    }
    if (dense)
        put_u32(k, "leading_dense_block_count", dense);
    put_bool(k, "expert_weights_norm", h->normalise);
    if (is_arch(k, "deepseek2") || h->gating == GATING_SIGMOID)
        put_u32(k, "expert_gating_func", func[h->gating]);
    if (is_arch(k, "deepseek2"))
        put_f32(k, "expert_weights_scale", h->weight_scale);
}

/* xIELU's numbers, as files hold them: p and n before softplus, n without b. */
static int put_xielu(const struct keys_out *k, struct err *e)
{
    static const char *const names[] = {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"};
    const struct plan *p = &k->m->plan;
    float *each = mem_zalloc(4 * (size_t)k->h->layers, sizeof *each);
    bool found = false;
    if (!each)
        return err_memory(e, "layers", k->h->layers);
    for (uint32_t i = 0; i < p->count; i++) {
        const struct op *op = &p->ops[i];
        if (op->kind != OP_FFN || !op->ffn.xielu)
            continue;
        const float *c = (const float *)(const void *)k->m->weights.all[op->ffn.xielu].data;
        const double raw[4] = {log(expm1(c[0])), log(expm1(c[1] - c[2])), c[2], c[3]};
        for (uint32_t j = 0; j < 4; j++)
            each[j * k->h->layers + op->layer] = (float)raw[j];
        found = true;
    }
    for (uint32_t j = 0; found && j < 4; j++)
        gguf_put_items(k->w, names[j], GGUF_F32, each + j * k->h->layers, k->h->layers);
    mem_free(each);
    return 0;
}

/* Warns of settings that GGUF has no key for. */
static void warn_unsaid(const struct keys_out *k)
{
    const struct hparams *h = k->h;
    if (starts(k, "gemma") && h->attn_scale != 1 && wanted(k, "attention.scale"))
        log_warn("the scale of attention is not the usual one of %s: other programs do not read it from a "
                 "GGUF file",
                 k->arch);
}

static bool layers_rotate(const struct hparams *h)
{
    bool any = false;
    for (uint32_t i = 0; i < h->layers; i++)
        any |= h->layer[i].rope;
    return any;
}

/* Layers that use the keys of others, per-layer inputs, heads of two sizes (gemma 4 and 3n). */
static int put_shared(const struct keys_out *k, struct err *e)
{
    const struct hparams *h = k->h;
    uint32_t shared = 0;
    for (uint32_t i = 0; i < h->layers; i++)
        shared += h->layer[i].kv != i;
    put_u32(k, "attention.shared_kv_layers", shared);
    put_u32(k, "embedding_length_per_layer_input", h->per_layer);
    if (h->rope[1].dims) {
        put_u32(k, "attention.key_length_swa", h->rope[1].dims);
        put_u32(k, "attention.value_length_swa", h->rope[1].dims);
    }
    if (!h->streams)
        return 0;
    put_u32(k, "altup.num_inputs", h->streams);
    put_u32(k, "altup.active_idx", h->stream);
    if (!h->stream_scaled)
        put_bool(k, "altup.correct_scale", false); /* ours */
    char name[160];
    float *each = mem_alloc(h->layers, sizeof *each);
    if (!each)
        return err_memory(e, "layers", h->layers);
    for (uint32_t i = 0; i < h->layers; i++)
        each[i] = h->layer[i].sparsity;
    gguf_put_items(k->w, spell(k, "activation_sparsity_scale", name), GGUF_F32, each, h->layers);
    mem_free(each);
    return 0;
}

/* What llama.cpp knows by the number of experts. */
static void put_llama4(const struct keys_out *k)
{
    const struct hparams *h = k->h;
    bool tuned = false, all = true;
    for (uint32_t i = 0; i < h->layers; i++) {
        tuned |= h->layer[i].scales_q;
        all &= h->layer[i].rope;
    }
    if (!tuned && !all)
        put_bool(k, "attention.temperature_tuning", false);
    if (h->qk_norm != (h->experts != 128))
        put_bool(k, "attention.use_qk_norm", h->qk_norm);
}

/* RWKV: the ranks of its low-rank products, which tensors say, and how many rows of a layer the next one sees. */
static void put_wkv(const struct keys_out *k)
{
    static const struct {
        const char *tensor, *key;
        uint32_t share; /* how many have the tensor's rows; 5 are RWKV 6's */
    } ranks[] = {{"time_mix_w1", "time_mix_extra_dim", 5},
                 {"time_mix_decay_w1", "time_decay_extra_dim", 1},
                 {"time_mix_w1", "attention.decay_lora_rank", 1},
                 {"time_mix_a1", "attention.iclr_lora_rank", 1},
                 {"time_mix_v1", "attention.value_residual_mix_lora_rank", 1},
                 {"time_mix_g1", "attention.gate_lora_rank", 1}};
    const bool six = k->h->arch->build == rwkv6_build;
    const size_t first = six ? 0 : 2, end = six ? 2 : sizeof ranks / sizeof *ranks;
    const uint32_t last = k->h->layers - 1;
    for (size_t i = first; i < end; i++)
        for (uint32_t id = 1; id < k->m->weights.count; id++)
            if (k->m->bound[id].name && k->m->bound[id].layer == (int)last &&
                !strcmp(k->m->bound[id].name, ranks[i].tensor))
                put_u32(k, ranks[i].key, k->m->weights.all[id].rows / ranks[i].share);
    put_u32(k, "wkv.head_size", k->h->ssm.state);
    put_u32(k, "attention.head_count", 0);
    put_u32(k, "token_shift_count", k->h->arch->norm == NORM_LAYER ? 2 : 1);
}

/* How many layers add rows of the tower to their own. */
static int put_deepstack(const struct keys_out *k, struct err *e)
{
    struct vision_params v = {0};
    if (vision_present(k->m->store) && vision_read(&v, k->m->store, e))
        return -1;
    put_u32(k, "n_deepstack_layers", v.deepstacks);
    return 0;
}

static int put_hparams(const struct keys_out *k, struct err *e)
{
    const struct hparams *h = k->h;
    warn_unsaid(k);
    put_f32(k,
            h->arch->norm == NORM_LAYER || starts(k, "nemotron_h") ? "attention.layer_norm_epsilon"
                                                                   : "attention.layer_norm_rms_epsilon",
            h->eps);
    char name[160];
    const char *act = h->act != h->arch->act ? hparams_act_name(h->act) : NULL;
    if (act)
        gguf_put_str(k->w, spell(k, "hidden_activation", name), act, strlen(act));
    if (h->ssm.act != ACT_SILU && h->arch->hybrid && (act = hparams_act_name(h->ssm.act)))
        gguf_put_str(k->w, spell(k, "ssm.activation", name), act, strlen(act));
    if (starts(k, "qwen35") || h->rope_sections[0])
        gguf_put_items(k->w, spell(k, "rope.dimension_sections", name), GGUF_I32, h->rope_sections, 4);
    if (starts(k, "qwen3vl") && put_deepstack(k, e))
        return -1;
    if (starts(k, "granite") || starts(k, "minicpm")) /* the file has the divisor */
        put_f32(k, "logit_scale", 1 / h->logit_scale);
    else if (starts(k, "cohere") || starts(k, "command"))
        put_f32(k, "logit_scale", h->logit_scale);
    if (is_arch(k, "gemma2")) {
        put_f32(k, "attn_logit_softcapping", h->attn_softcap);
        put_f32(k, "final_logit_softcapping", h->logit_softcap);
    }
    if (is_arch(k, "granitehybrid"))
        put_bool(k, "rope.scaling.finetuned", layers_rotate(h));
    if (is_arch(k, "gptneox"))
        put_bool(k, "use_parallel_residual", h->parallel);
    if (h->arch->encoder) {
        put_bool(k, "attention.causal", false);
        put_u32(k, "pooling_type", h->pooling);
    }
    if (h->q_scale.beta != 0) {
        put_f32(k, "attention.temperature_scale", h->q_scale.beta);
        put_u32(k, "attention.temperature_length", h->q_scale.length);
    }
    if (h->v_scale != 1)
        put_f32(k, "attention.value_scale", h->v_scale);
    if (is_arch(k, "afmoe"))
        put_f32(k, "embedding_scale", h->embed_scale);
    if (is_arch(k, "llama4"))
        put_llama4(k);
    if (h->nearness > 0 && fabsf(h->nearness - 0.02f) > 1e-6f)
        put_f32(k, "router_jitter_noise", h->nearness / 2);
    if ((is_arch(k, "gemma4") || is_arch(k, "gemma3n")) && put_shared(k, e))
        return -1;
    if ((h->arch->build == rwkv4_build || h->arch->build == rwkv6_build) && h->ssm.every)
        put_u32(k, "rescale_every_n_layers", h->ssm.every);
    if (has_wkv(h))
        put_wkv(k);
    if (is_arch(k, "plamo2"))
        put_u32(k, "ssm.group_count", 0);
    if (h->kv_lora)
        put_latent(k);
    if (h->experts)
        put_experts(k);
    if (put_layers(k, "attention.head_count_kv", false, e) || put_layers(k, "feed_forward_length", true, e) ||
        put_window(k, e) || put_rope(k, e) || put_layer_bases(k, e) || put_xielu(k, e))
        return -1;
    hparams_write(h, &(struct hparams_sink){put_field, (void *)(uintptr_t)k});
    return 0;
}

/* ---- text ---- */

static int put_templates(struct gguf_writer *w, const struct store *s, struct err *e)
{
    json_t *all = chat_load_templates(s, e), *one;
    const char *name;
    if (!all)
        return -1;
    json_object_foreach(all, name, one)
    {
        char key[160];
        bool usual = !strcmp(name, "default");
        snprintf(key, sizeof key, "tokenizer.chat_template%s%.100s", usual ? "" : ".", usual ? "" : name);
        gguf_put_str(w, key, json_string_value(one), json_string_length(one));
    }
    json_decref(all);
    return 0;
}

static bool has_tokenizer(const struct store *s)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer.model", "vocab.json",
                                        "vocab.txt",      "tekken.json",     "tokenizer.model.v3"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (store_beside(s, files[i]))
            return true;
    return false;
}

static int put_text(struct gguf_writer *w, const struct model *m, struct err *e)
{
    struct tokenizer *t;
    if (!has_tokenizer(m->store)) {
        log_warn("%s has no tokenizer, and so has the file that is written", log_safe(m->store->path));
        gguf_put_str(w, "tokenizer.ggml.model", "none", 4);
        return 0;
    }
    if (tokenizer_open(&t, m->store, e))
        return -1;
    int failed = tokenizer_write(t, w, m->h.vocab, e) || put_templates(w, m->store, e);
    tokenizer_close(t);
    return failed ? -1 : 0;
}

void gguf_keys_name(struct gguf_writer *w, const struct store *s)
{
    char path[512];
    snprintf(path, sizeof path, "%s", s->path);
    const char *name = basename(path);
    if (strcmp(name, ".") && strcmp(name, "/"))
        gguf_put_str(w, "general.name", name, strlen(name));
}

int keys_from_model(struct gguf_writer *w, const struct model *m, struct err *e)
{
    const struct hparams *h = &m->h;
    struct keys_out k = {w, m, h, h->arch->written ? h->arch->written : h->arch->name};
    if (h->experts && h->arch->written_moe)
        k.arch = h->arch->written_moe;
    if (h->kv_lora && h->rope_kind == ROPE_HALVES && h->arch->gguf_rope != ROPE_HALVES)
        return err_set(e, ERR_DATA, "config.json: rope_interleave is false, which GGUF cannot say of %s",
                       k.arch);
    if (!strcmp(k.arch, "jetmoe"))
        return err_set(e, ERR_DATA, "GGUF has no form for experts of attention, which jetmoe has");
    gguf_put_str(w, "general.architecture", k.arch, strlen(k.arch));
    gguf_put_str(w, "general.type", "model", 5);
    gguf_keys_name(w, m->store);
    return put_hparams(&k, e) || put_text(w, m, e) ? -1 : 0;
}
