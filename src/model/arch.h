/* The architecture table: each family's names, the defaults that its containers omit, and the function that
 * writes its plan. */
#pragma once

#include "device/plan.h"
#include "model/hparams.h"

struct build;

struct arch {
    const char *name;     /* ours, which is GGUF's */
    const char *gguf;     /* other names in GGUF files, "a|b" or NULL */
    const char *written;  /* the name that a GGUF file gets that we write; NULL = name */
    const char *hf;       /* model_type in config.json, "a|b"; NULL or "" = GGUF only */
    const char *defaults; /* what config.json may leave out, as JSON; NULL = nothing */
    enum norm_kind norm;
    enum rope_kind gguf_rope, hf_rope;
    enum act_kind act;
    uint32_t window_pattern; /* see hparams */
    bool full_first;         /* the first layer of a period sees all tokens, not the last */
    bool windows_first;      /* max_window_layers counts layers with windows, not those before them */
    bool rope_if_sliding;    /* where some layers slide, only they rotate */
    enum gating_kind gating;
    bool normalise;          /* weights of experts, where the file does not say */
    bool norm_plus_one;      /* safetensors hold norms as w - 1 (GGUF holds w) */
    bool grouped_qkv;        /* safetensors fuse Q, K and V key-value head by head */
    bool conv1d;             /* safetensors hold matrices of layers transposed */
    const char *hf_kv_heads; /* config.json's name for the key-value heads: NULL the usual, "" it has none */
    bool plain_heads;        /* a head's size is width / heads, whatever config.json says */
    bool expert_is_ffn;      /* experts are intermediate_size wide, whatever else config.json says */
    bool partial_rope;       /* config.json's partial_rotary_factor counts; other families pass over it */
    bool qk_norm_row;        /* norms of Q and K are over the whole row, not over each head */
    bool paired;             /* two layers of ours are one in safetensors */
    enum rope_kind index_rope; /* of the attention that chooses keys */
    bool v_is_k;               /* layers without attn_v have V = K, before its norm and rotation */
    bool norm_last;            /* norms of Q and K come after the rotation */
    bool sandwich;             /* a norm after each half of a layer, before the sum */
    const char *ffn_norm;      /* canonical name of the second norm of a layer; NULL = ffn_norm */
    bool rope_back;            /* heads turn the other way */
    bool qkv_quarters;         /* safetensors fuse Q, V and K in four parts, each of a quarter of the heads */
    float alibi;               /* ALiBi's largest exponent, where the file does not say; 0 = none */
    bool encoder;
    struct arch_variant {
        const char *member, *value, *name;
    } variant;               /* config.json with this value is of another row: that of this name */
    const char *written_moe; /* the same of a model with experts; NULL = as above */
    bool hybrid;             /* layers may be without attention */
    bool conv_is_act;        /* the activation of config.json is that of convolutions, too */
    /* Its recurrent layers: the operations, up to the product that ends them. */
    struct op_out *(*mixer)(struct build *b, uint32_t layer, struct norm in);
    uint32_t attention_every; /* in a GGUF file that does not say it */
    bool tiled_values; /* GGUF has the value heads of a key head apart: head h is of key head h % key heads */
    /* The family's own keys and derived values, after the common ones; NULL = none. */
    int (*setup)(struct hparams *h, const struct keys *k, struct err *e);
    void (*build)(struct build *b);
};

/* The rows of families with latent attention (arch_latent.c). */
extern const struct arch arch_latents[];
extern const size_t arch_latents_count;
/* The rows of hybrid families (arch_hybrid.c). */
extern const struct arch arch_hybrids[];
extern const size_t arch_hybrids_count;
/* Those of older families, and of those that only llama.cpp defines (arch_older.c). */
extern const struct arch arch_older[];
extern const size_t arch_older_count;

/* NULL = unknown. The class counts only where there is no model type. */
const struct arch *arch_by_gguf(const char *name);
const struct arch *arch_by_config(const char *model_type, const char *class_name);
/* The row of a config.json whose model type has row `a`. */
const struct arch *arch_variant(const struct arch *a, const json_t *config);
/* Sets an error that names the unknown one, and the nearest of the known ones. */
int arch_unknown(const char *name, enum store_kind kind, struct err *e);
