#include "quant/gguf_hybrid.h"

#include "model/arch.h"
#include "model/build.h"

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
    const float in = h->attn_in_scale, key = h->attn_scale * sqrtf((float)h->k_dim);
    if (!is(h->arch->name, "falcon-h1") || !is(b->suffix, ".weight"))
        return 0;
    if (is(b->name, "ssm_in"))
        return s->in_scale * (s->scaled && part < 5 ? s->scale[part] : 1);
    const struct {
        const char *name;
        float gain;
    } all[] = {{"attn_q", in},
               {"attn_k", in * key},
               {"attn_v", in},
               {"attn_output", h->attn_out_scale},
               {"ssm_out", s->out_scale},
               {"ffn_gate", h->ffn_scale[0]},
               {"ffn_down", h->ffn_scale[1]},
               {"output", h->logit_scale},
               {"token_embd", h->embed_scale}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (is(b->name, all[i].name))
            return all[i].gain;
    return 0;
}
