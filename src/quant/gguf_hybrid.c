#include "quant/gguf_hybrid.h"

#include "model/arch.h"
#include "model/build.h"
#include "model/families.h"

#include <math.h>
#include <string.h>

static bool is(const char *a, const char *b)
{
    return !strcmp(a, b);
}

void gguf_hybrid_shape(const struct hparams *h, const char *name, uint64_t shape[4])
{
    const struct ssm_params *s = &h->ssm;
    bool vector = shape[1] == 1;
    if (vector && h->arch->mixer != build_delta && h->arch->mixer != build_mamba &&
        h->arch->mixer != build_plamo2 && (is(name, "ssm_a") || is(name, "ssm_d"))) {
        shape[1] = shape[0];
        shape[0] = 1;
    }
    if (vector && is(name, "ssm_norm") && h->arch->mixer == build_mamba2) {
        shape[0] /= s->groups;
        shape[1] = s->groups;
    }
    if (is(name, "time_mix_first") && h->arch->build == rwkv6_build) {
        shape[0] = s->state;
        shape[1] = s->heads;
    }
    if (is(name, "time_mix_lerp_fused")) {
        shape[3] = shape[1];
        shape[1] = 1;
    }
    if (is(name, "ssm_conv1d_q") || is(name, "ssm_conv1d_k") || is(name, "ssm_conv1d_v")) {
        shape[2] = shape[1];
        shape[1] = 1;
    }
}

void gguf_tile_values(const struct hparams *h, const struct bound *b, struct matrix *m)
{
    const struct ssm_params *s = &h->ssm;
    if (!h->arch->tiled_values || !h->layer[b->layer < 0 ? 0 : b->layer].recurrent || s->heads == s->groups)
        return;
    struct matrix_swap swap = {.a = s->groups, .b = s->heads / s->groups};
    uint32_t size = s->inner / s->heads, keys = 2 * s->groups * s->state;
    if (is(b->name, "attn_qkv") || is(b->name, "ssm_conv1d"))
        swap.from = keys, swap.unit = size;
    else if (is(b->name, "attn_gate") || is(b->name, "ssm_out"))
        swap.unit = size;
    else if (is(b->name, "ssm_alpha") || is(b->name, "ssm_beta") || is(b->name, "ssm_a") ||
             is(b->name, "ssm_dt"))
        swap.unit = 1;
    if (!swap.unit)
        return;
    if (is(b->name, "ssm_out") || m->rows == 1)
        m->col_swap = swap;
    else
        m->row_swap = swap;
}

float gguf_gain(const struct hparams *h, const struct bound *b, uint32_t part)
{
    const struct ssm_params *s = &h->ssm;
    if (h->arch->build == rwkv6_build && (is(b->name, "time_mix_output") || is(b->name, "channel_mix_value")))
        return rwkv_scale(h, (uint32_t)b->layer);
    const float key = h->attn_scale * sqrtf((float)h->k_dim);
    const bool bias = is(b->suffix, ".bias");
    if (!is(h->arch->name, "falcon-h1") || (!bias && !is(b->suffix, ".weight")))
        return 0;
    const struct {
        const char *name;
        float in, out; /* a bias has the latter only */
    } all[] = {{"ssm_in", s->in_scale, s->scaled && part < 5 ? s->scale[part] : 1},
               {"attn_q", h->attn_in_scale, 1},
               {"attn_k", h->attn_in_scale, key},
               {"attn_v", h->attn_in_scale, 1},
               {"attn_output", 1, h->attn_out_scale},
               {"ssm_out", 1, s->out_scale},
               {"ffn_gate", 1, h->ffn_scale[0]},
               {"ffn_down", 1, h->ffn_scale[1]},
               {"output", 1, h->logit_scale},
               {"token_embd", 1, h->embed_scale}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (is(b->name, all[i].name))
            return bias ? all[i].out : all[i].in * all[i].out;
    return 0;
}
