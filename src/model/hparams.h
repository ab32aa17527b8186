/* The hyper-parameters of a model, as one struct whatever the container. They are read from keys alone:
 * a file without tensors (a bare vocabulary) may have them, and may lack them.
 *
 * What differs from layer to layer is in `layer`; counts there are never larger than the plain fields. */
#pragma once

#include "base/err.h"
#include "base/mem.h"
#include "device/plan.h"
#include "format/store.h"
#include "model/keys.h"

#include <stdbool.h>
#include <stdint.h>

struct arch;

enum rope_scaling {
    SCALING_NONE,
    SCALING_LINEAR,
    SCALING_DYNAMIC, /* NTK: the base grows with the context */
    SCALING_YARN,
    SCALING_LLAMA3,
    SCALING_PROPORTIONAL, /* gemma 4: of all pairs of the head only the first `partial` rotate */
    SCALING_LONGROPE
};

struct rope_params {
    float theta;
    enum rope_scaling scaling;
    float factor;           /* 0 = not given */
    uint32_t original;      /* context before scaling; 0 = not given: the trained one */
    float attention_factor; /* 0 = not given */
    float beta_fast, beta_slow, mscale, mscale_all_dim;
    bool truncate; /* YaRN's ramp between whole dimensions */
    float low_freq, high_freq;
    float partial;             /* share of the head that rotates */
    uint32_t dims;             /* dimensions that rotate; 0: hparams.rope_dims */
    const float *short_factor; /* (factors): longrope from config.json */
    const float *long_factor;
    float short_mscale,
        long_mscale; /* the attention factor on either side of the original context; 0 = not given */
    uint32_t factors;
    bool apart; /* [1]: a GGUF file's divisors are not for it */
};

/* How the rows of a text become one; the first four are GGUF's numbers. */
enum pooling {
    POOLING_NONE,
    POOLING_MEAN,
    POOLING_CLS, /* the first row */
    POOLING_LAST,
    POOLING_MAX = 5,
    POOLING_MEAN_SQRT, /* the sum divided by the root of the rows' number */
    POOLING_WEIGHTED   /* the mean, row i counted i + 1 times */
};

struct layer_params {
    uint32_t kv_heads, ffn; /* kv_heads 0: no attention */
    uint32_t k_dim, v_dim;  /* of a head */
    uint32_t kv;            /* the layer whose keys and values it uses: mostly its own number */
    bool scales_q;          /* hparams.q_scale counts */
    float sparsity;         /* of gates: those that many deviations above their mean stay; 0: all */
    bool recurrent;         /* keeps a state */
    bool sliding;           /* sees hparams.window tokens only */
    bool rope;
    float theta; /* of its rope; 0: that of hparams.rope */
};

/* Recurrent layers. Of delta rules `state` is the size of a key head, `groups` counts them, and `heads` those of values;
 * of mamba 1 `heads` is the rank of dt, as in GGUF. */
struct ssm_params {
    uint32_t conv; /* columns of the convolution */
    uint32_t inner, state, heads, groups;
    float dt_range[2]; /* of mamba's time step; the second 0 = no bound */
    float eps;         /* of the norm of the output, or (mamba 1) of dt, B and C */
    enum act_kind act; /* of the convolution */
    bool norms;        /* dt, B and C are normed also without weights */
    bool norm_first;   /* the output is normed before its gate */
    bool tiled;        /* value heads of a key head are not side by side */
    bool scaled;       /* falcon-h1: z, x, B, C, dt times `scale` */
    float scale[5], in_scale, out_scale;
    float write_scale; /* of delta rules */
    uint32_t kda_dim;  /* of a head of KDA */
    bool safe;         /* KDA's decay has a bound */
    float bound;
    uint32_t every; /* one layer of this many has attention; 0 = not given */
};

struct hparams {
    const struct arch *arch;
    enum store_kind container;
    char spelled[64]; /* the architecture as the file spells it */
    struct arena arena;

    uint32_t vocab, context, layers, width, ffn;
    uint32_t heads, kv_heads, k_dim, v_dim; /* k_dim, v_dim: of a head */
    uint32_t rope_dims;
    struct layer_params *layer; /* (layers) */
    struct rope_params rope[2]; /* [0] of full layers, [1] of sliding ones */
    enum rope_kind rope_kind;

    float eps;
    enum act_kind act;
    float act_alpha, act_limit; /* ACT_SWIGLU_OAI */
    uint32_t window,
        window_pattern;  /* a layer slides unless it is the last of a period (arch.full_first: first) */
    float attn_scale;    /* of q.k; 0 until known */
    bool scale_by_layer; /* ... divided by the layer's number, from 1 */
    float attn_softcap, logit_softcap;
    float embed_scale, residual_scale, logit_scale;
    float clamp_qkv;
    bool clamp_last;            /* after the norms of Q and K */
    bool chunked;               /* the window is a chunk */
    struct query_scale q_scale; /* of layers that say so */
    float v_scale;              /* of V, in the product behind attention; 1 mostly */
    bool parallel;              /* attention and feed-forward side by side */
    bool tied;                  /* config.json says that the head is the embedding */
    bool causal;
    bool alibi;                                        /* falcon's own kind, which no operation does */
    float alibi_bias;                                  /* ALiBi: the largest slope's exponent; 0 = none */
    float attn_in_scale, attn_out_scale, ffn_scale[2]; /* falcon-h1 */
    float residual_mix
        [3][2]; /* minimax: factors of the residual and of attention, linear attention, feed-forward */
    enum pooling pooling;
    uint32_t types; /* token types of an encoder */
    uint32_t position_offset;
    uint32_t distance_buckets; /* rows of mpnet's table of biases by distance; 0 = there is none */

    uint32_t experts, experts_used, expert_ffn, shared_ffn, shared_experts;
    uint32_t expert_width; /* of the rows that experts take and give; 0: the model's */
    uint32_t expert_groups, expert_groups_used;
    enum gating_kind gating;
    bool normalise, group_pair; /* group_pair: as in struct op_moe */
    float weight_scale, least_sum;
    float nearness;      /* of sparsemixer */
    const float *xielu;  /* (layers, 4): xIELU's numbers in a GGUF, as the file has them */
    uint32_t identities; /* experts that give their input */
    bool scale_input;    /* an expert's weight multiplies its input */
    bool qk_norm;        /* llama 4: Q and K are normed, without weights */

    uint32_t per_layer;       /* numbers that every layer has of each token; 0 = none */
    uint32_t streams, stream; /* gemma 3n: side by side, and the one that layers compute on */
    bool stream_scaled;       /* ... which is scaled before the per-layer numbers meet it */

    struct ssm_params ssm;
    uint32_t shared_blocks;    /* zamba: transformer blocks that layers take in turn */
    bool shared_rope;          /* with positions */
    uint32_t rope_sections[4]; /* pairs of time, height and width (M-RoPE); 0 = not given */
    bool rope_in_turns;        /* ... in turns, not one after the other */

    uint32_t q_lora, kv_lora, nope_dim;          /* latent attention; rope_dims is the rest of a head */
    uint32_t index_heads, index_dim, index_used; /* sparse attention: what chooses the keys */
};

int hparams_read(struct hparams *h, const struct store *s, struct err *e);
/* The same for people, of any model: where it cannot be read as above (an architecture that is not known, keys that are
 * missing) the sizes that its keys say, and 0 for others; arch is NULL then. */
int hparams_scan(struct hparams *h, const struct store *s, struct err *e);
void hparams_free(struct hparams *h);
/* Keys and values of one token in a layer. */
uint32_t hparams_kv_values(const struct hparams *h, uint32_t layer);

/* The other way: the keys of a GGUF file, without the architecture in front (but where it begins with '.'),
 * and what they hold. Only keys with a single number, and only values that differ from the default: not 0,
 * not a factor of 1. */
enum hparam_kind { HPARAM_U32, HPARAM_F32, HPARAM_BOOL };
struct hparams_sink {
    void (*put)(void *arg, const char *key, enum hparam_kind kind, const void *value);
    void *arg;
};
/* As config.json spells it; NULL = it has no name. */
const char *hparams_act_name(enum act_kind kind);
void hparams_write(const struct hparams *h, const struct hparams_sink *s);

/* For the families' own keys. */
extern const uint32_t HPARAMS_SIZE[2];  /* 1 to 2^24 */
extern const uint32_t HPARAMS_COUNT[2]; /* 0 to 2^24 */
extern const double HPARAMS_REAL[2];
