#!/usr/bin/env python3
"""Random configurations of the families with recurrent layers, each compared with transformers.

    vary_hybrids.py QUERN [--family NAME] [--from SEED] [--count N] [--keep DIR]

A table of families: a function draws each one's configuration. vary.py saves and compares.
"""
import sys

import transformers
from transformers import AutoConfig

import vary
from vary import FULL, LINEAR


class Draw(vary.Draw):
    """What several families with recurrent layers share."""

    def mamba2(self, width):
        """Heads, groups and sizes of a Mamba 2 layer of this many channels."""
        heads = self.choice([h for h in (1, 2, 3, 4, 6, 8) if width % h == 0])
        groups = self.choice([g for g in (1, 2, 3, 4) if heads % g == 0])
        return heads, width // heads, groups

    def limits(self):
        return self.choice(((0.0, float("inf")), (0.05, 0.9), (0.0, 0.5)))

    def kernel(self):
        return self.choice((2, 3, 4, 4, 5, 8))


def mamba(r, **more):
    c = r.base()
    return dict(c, state_size=r.choice((4, 8, 16)), conv_kernel=r.kernel(), expand=r.choice((1, 2, 3)), use_bias=r.flip(),
                time_step_rank=r.choice(("auto", 3, 5)), use_conv_bias=r.flip(), layer_norm_epsilon=r.choice((1e-5, 1e-3)), **more)


def mamba2(r):
    c = r.base()
    expand = r.choice((1, 2))
    heads, size, groups = r.mamba2(c["hidden_size"] * expand)
    return dict(c, num_heads=heads, head_dim=size, n_groups=groups, expand=expand, state_size=r.choice((4, 8, 16)),
                conv_kernel=r.kernel(), use_bias=r.flip(), use_conv_bias=r.flip(), chunk_size=r.choice((4, 8, 256)),
                time_step_limit=r.limits())


def mamba2_part(r, width):
    expand = r.choice((1, 2, 3))
    heads, size, groups = r.mamba2(width * expand)
    return dict(mamba_n_heads=heads, mamba_d_head=r.choice(("auto", size)), mamba_n_groups=groups, mamba_expand=expand,
                mamba_d_state=r.choice((4, 8, 16)), mamba_d_conv=r.kernel(), mamba_conv_bias=r.flip(), mamba_proj_bias=r.flip(),
                mamba_chunk_size=r.choice((4, 8, 256)), time_step_limit=r.limits())


def jamba(r):
    c = r.attention(even=True)
    period, every = r.randint(1, 4), r.randint(1, 3)
    experts, used = r.moe()
    if r.random() < 0.2:
        experts = used = 1
    return dict(c, attn_layer_period=period, attn_layer_offset=r.randrange(period), expert_layer_period=every,
                expert_layer_offset=r.randrange(every), num_experts=experts, num_experts_per_tok=used,
                mamba_d_state=r.choice((4, 8, 16)), mamba_d_conv=r.kernel(), mamba_expand=r.choice((1, 2)),
                mamba_dt_rank=r.choice(("auto", 3)), mamba_conv_bias=r.flip(), mamba_proj_bias=r.flip())


def granite(r):
    c = r.attention(even=True)
    experts, used = r.moe() if r.flip() else (0, 0)
    return dict(c, **mamba2_part(r, c["hidden_size"]), **r.rope(), num_local_experts=experts, num_experts_per_tok=used,
                layer_types=r.layers(c["num_hidden_layers"], (LINEAR, FULL)), shared_intermediate_size=r.choice((12, 20)),
                embedding_multiplier=r.factor(), residual_multiplier=r.factor(), attention_multiplier=r.choice((0.2, 0.35)),
                logits_scaling=r.factor(), position_embedding_type=r.choice((None, "rope")), attention_bias=r.flip())


def bamba(r):
    c = r.attention(even=True)
    n = c["num_hidden_layers"]
    return dict(c, **mamba2_part(r, c["hidden_size"]), **r.rope(0.5), attention_bias=r.flip(), mlp_bias=r.flip(),
                attn_layer_indices=[i for i in range(n) if r.flip()] or r.choice((None, [])))


def falcon_h1(r):
    c = r.attention(even=True)
    m = mamba2_part(r, c["hidden_size"])
    if r.flip():
        heads = r.choice((1, 2, 4))
        size = r.choice((4, 8, 12))
        m.update(mamba_d_ssm=heads * size, mamba_n_heads=heads, mamba_d_head=size,
                 mamba_n_groups=r.choice([g for g in (1, 2) if heads % g == 0]))
    else:
        m["mamba_d_ssm"] = None
    return dict(c, **m, **r.rope(), head_dim=r.choice((8, 12)), mamba_rms_norm=r.flip(), mamba_norm_before_gate=r.flip(),
                projectors_bias=r.flip(), attention_bias=r.flip(), mlp_bias=r.flip(), attention_in_multiplier=r.factor(),
                attention_out_multiplier=r.factor(), embedding_multiplier=r.factor(), key_multiplier=r.factor(),
                lm_head_multiplier=r.factor(), ssm_in_multiplier=r.factor(), ssm_out_multiplier=r.factor(),
                mlp_multipliers=r.choice((None, [r.factor(), r.factor()])),
                ssm_multipliers=r.choice((None, [r.factor() for _ in range(5)])))


def nemotron_h(r):
    c = r.attention()
    heads = r.choice((2, 4, 6))
    size, experts = r.choice((4, 8, 16)), r.choice((2, 4, 6))
    groups = r.choice((1, 2)) if experts > 2 else 1
    return dict(c, head_dim=r.choice((8, 12)), mamba_num_heads=heads, mamba_head_dim=size, ssm_state_size=r.choice((4, 8, 16)),
                n_groups=r.choice([g for g in (1, 2) if heads % g == 0]), conv_kernel=r.kernel(), use_conv_bias=r.flip(),
                mamba_proj_bias=r.flip(), attention_bias=r.flip(), mlp_bias=r.flip(), chunk_size=r.choice((4, 8, 128)),
                layers_block_type=r.layers(c["num_hidden_layers"], (LINEAR, FULL, "mlp", "moe")),
                time_step_limit=r.limits(), n_routed_experts=experts, num_experts_per_tok=r.randint(1, experts // groups),
                n_group=groups, topk_group=1, moe_intermediate_size=r.choice((8, 12)),
                moe_shared_expert_intermediate_size=r.choice((8, 20)), moe_latent_size=r.choice((None, None, 16)),
                routed_scaling_factor=r.factor(), norm_topk_prob=r.flip(), expand=2,
                mlp_hidden_act=r.choice(("relu2", "relu2", "silu")))


def qwen_part(r):
    c = r.attention()
    keys = r.choice((1, 2, 3))
    head = r.choice((8, 16, 24))
    return dict(c, head_dim=head, linear_conv_kernel_dim=r.kernel(), linear_key_head_dim=r.choice((4, 8, 12)),
                linear_value_head_dim=r.choice((4, 8, 12)), linear_num_key_heads=keys,
                linear_num_value_heads=keys * r.choice((1, 2, 3)),
                layer_types=r.layers(c["num_hidden_layers"], (LINEAR, FULL)), attention_bias=r.flip(),
                **r.rope(r.choice((0.25, 0.5, 1.0) if head != 24 else (0.25, 0.5))))


def shared_moe(r, c):
    experts, used = r.moe()
    return dict(c, num_experts=experts, num_experts_per_tok=used, moe_intermediate_size=r.choice((8, 12)),
                shared_expert_intermediate_size=r.choice((8, 20)))


def qwen3_next(r):
    c = shared_moe(r, qwen_part(r))
    n = c["num_hidden_layers"]
    return dict(c, decoder_sparse_step=r.choice((1, 1, 2)), mlp_only_layers=[i for i in range(n) if r.random() < 0.2],
                norm_topk_prob=r.flip())


def mrope(r, c):
    """The part of the head that rotates, in the sections of the three axes of a position."""
    pairs = int(c["head_dim"] * c["rope_parameters"]["partial_rotary_factor"]) // 2
    if pairs >= 3 and r.flip():
        third = pairs // 3
        c["rope_parameters"].update(mrope_section=[pairs - 2 * third, third, third], mrope_interleaved=True)
    return c


def qwen3_5(r):
    return mrope(r, qwen_part(r))


def qwen3_5_moe(r):
    return mrope(r, shared_moe(r, qwen_part(r)))


def olmo_hybrid(r):
    c = r.attention(even=True)
    keys = r.choice((1, 2, 3))
    n = c["num_hidden_layers"] = max(2, c["num_hidden_layers"])
    kinds = [LINEAR, FULL] + r.layers(n - 2, (LINEAR, FULL))
    r.shuffle(kinds)
    more = {} if r.flip() else dict(rope_parameters={"rope_type": "default", "rope_theta": None})
    return dict(c, linear_conv_kernel_dim=r.kernel(), linear_key_head_dim=r.choice((4, 8, 12)),
                linear_value_head_dim=r.choice((4, 8, 12)), linear_num_key_heads=keys,
                linear_num_value_heads=keys * r.choice((1, 2)), linear_allow_neg_eigval=r.flip(), layer_types=kinds,
                attention_bias=r.flip(), **(more or r.rope()))


def lfm2(r):
    c = r.attention(even=True)
    return dict(c, **r.rope(), conv_L_cache=r.kernel(), conv_bias=r.flip(), norm_eps=1e-5, block_multiple_of=r.choice((4, 16)),
                block_auto_adjust_ff_dim=r.flip(), block_ffn_dim_multiplier=r.choice((1.0, 1.3)),
                layer_types=r.layers(c["num_hidden_layers"], ("conv", FULL)))


def lfm2_moe(r):
    c = r.attention(even=True)
    experts, used = r.moe()
    return dict(c, **r.rope(), conv_L_cache=r.kernel(), conv_bias=r.flip(), num_experts=experts, num_experts_per_tok=used,
                moe_intermediate_size=r.choice((8, 12)), num_dense_layers=r.randint(0, c["num_hidden_layers"]),
                use_expert_bias=r.flip(), norm_topk_prob=r.flip(), routed_scaling_factor=r.factor(),
                layer_types=r.layers(c["num_hidden_layers"], ("conv", FULL)))


def latent(r):
    return dict(kv_lora_rank=r.choice((8, 16)), qk_nope_head_dim=r.choice((8, 12)), qk_rope_head_dim=r.choice((4, 8)),
                v_head_dim=r.choice((8, 10, 16)))


def routed(r):
    experts = r.choice((4, 6))
    groups = r.choice((1, 2))
    return dict(num_local_experts=experts, num_experts_per_tok=r.randint(1, 2), n_group=groups, topk_group=1,
                n_shared_experts=r.choice((1, 2)), moe_intermediate_size=r.choice((8, 12)), routed_scaling_factor=r.factor(),
                norm_topk_prob=r.flip())


def kimi_linear(r):
    c = r.attention()
    c["num_key_value_heads"] = c["num_attention_heads"]
    n = c["num_hidden_layers"]
    return dict(c, **latent(r), **routed(r), q_lora_rank=None, head_dim=8, linear_head_dim=r.choice((8, 12)),
                linear_num_heads=r.choice((1, 3, 4)), linear_conv_kernel_dim=r.kernel(),
                layer_types=r.layers(n, (LINEAR, FULL)), mlp_layer_types=["dense"] * (k := r.randint(0, n)) + ["sparse"] * (n - k))


def bailing_hybrid(r):
    c = r.attention()
    c["num_key_value_heads"] = c["num_attention_heads"]
    n = c["num_hidden_layers"]
    return dict(c, **latent(r), **routed(r), **r.rope(), head_dim=r.choice((8, 12)), layer_group_size=r.randint(1, 4),
                first_k_dense_replace=r.randint(0, n), num_mtp_layers=0, short_conv_kernel_size=r.kernel(),
                kda_safe_gate=r.flip(), kda_lower_bound=r.choice((-5.0, -2.0)))


def minimax(r):
    c = r.attention()
    experts, used = r.moe()
    return dict(c, **r.rope(), head_dim=r.choice((8, 12)), layer_types=r.layers(c["num_hidden_layers"], (LINEAR, FULL)),
                num_local_experts=experts, num_experts_per_tok=used, block_size=r.choice((4, 8, 256)),
                **{f"{a}_{b}_factor": r.factor() for a in ("linear_attn", "full_attn", "mlp") for b in ("alpha", "beta")})


def zamba_part(r):
    n = r.randint(2, 5)
    heads = r.choice((1, 2, 4))
    return dict(r.base(), hidden_size=heads * r.choice((4, 8, 12)) * 2, num_hidden_layers=n, intermediate_size=r.choice((12, 20)),
                num_attention_heads=heads, max_position_embeddings=128, mamba_d_state=r.choice((4, 8)), mamba_d_conv=r.kernel(),
                mamba_expand=r.choice((1, 2)), hidden_act=r.choice(("gelu", "silu", "gelu_pytorch_tanh")))


def zamba2(r):
    c = zamba_part(r)
    kinds = r.layers(c["num_hidden_layers"], (LINEAR, "hybrid"))
    kinds[-1] = "hybrid"
    heads, _, groups = r.mamba2(c["hidden_size"] * c["mamba_expand"])
    used = kinds.count("hybrid")
    return dict(c, layers_block_type=kinds, n_mamba_heads=heads, mamba_ngroups=groups, num_mem_blocks=r.randint(1, used),
                use_mem_rope=r.flip(), use_shared_attention_adapter=r.flip(), adapter_rank=r.choice((2, 3, 8)),
                chunk_size=r.choice((4, 8, 256)), add_bias_linear=r.flip(), use_conv_bias=r.flip(),
                time_step_min=r.choice((0.001, 0.2)))


def zamba(r):
    c = zamba_part(r)
    kinds = [LINEAR, "hybrid"] + r.layers(c["num_hidden_layers"] - 1, (LINEAR, "hybrid"))
    kinds[-1] = "hybrid"
    c["num_hidden_layers"] += 1
    return dict(c, layers_block_type=kinds, n_mamba_heads=r.choice((1, 2, 4)), mamba_dt_rank=r.choice(("auto", 3)),
                num_key_value_heads=c["num_attention_heads"], mamba_conv_bias=r.flip(), mamba_proj_bias=r.flip())


def recurrent_gemma(r):
    heads = r.choice((1, 2, 4))
    return dict(r.base(), hidden_size=heads * r.choice((8, 12)), num_attention_heads=heads,
                num_key_value_heads=r.choice([k for k in (1, 2, heads) if heads % k == 0]), intermediate_size=48,
                lru_width=r.choice((None, heads * 8, heads * 12)), attention_window_size=r.choice((8, 2048)),
                conv1d_width=r.kernel(), logits_soft_cap=r.choice((30.0, 3.0)), attention_bias=r.flip(),
                block_types=r.layers(r.randint(1, 3), ("recurrent", "attention")), **r.rope(0.5, scaled=False))


def rwkv(r):
    return dict(r.base(), context_length=128, attention_hidden_size=r.choice((None, 24, 48)),
                intermediate_size=r.choice((None, 40)), rescale_every=r.choice((0, 1, 2, 6)))


def xlstm(r):
    heads = r.choice((1, 2, 4))
    return dict(r.base((32, 64)), num_heads=heads, qk_dim_factor=r.choice((0.5, 1.0)), v_dim_factor=r.choice((0.5, 1.0)),
                ffn_round_up_to_multiple_of=r.choice((4, 8)), ffn_proj_factor=r.choice((1.6, 2.667)), chunk_size=r.choice((8, 64)),
                autocast_kernel_dtype="float32", gate_soft_cap=r.choice((5.0, 15.0)),
                output_logit_soft_cap=r.choice((6.0, 30.0)), add_out_norm=r.flip())


def zaya(r):
    c = r.base()
    kv = r.choice((1, 2))
    n = c["num_hidden_layers"]
    return dict(c, num_key_value_heads=kv * 2, num_attention_heads=kv * 2 * r.choice((1, 2, 3)), head_dim=r.choice((8, 12)),
                num_experts=r.choice((2, 3, 4)), moe_intermediate_size=r.choice((8, 12)), router_hidden_size=r.choice((8, 16)),
                cca_time0=r.choice((2, 3)), cca_time1=r.choice((2, 3)), max_position_embeddings=128, sliding_window=8,
                layer_types=r.layers(n, ("hybrid", "hybrid_sliding")), attention_bias=r.flip(), lm_head_bias=r.flip())


FAMILIES = {"mamba": mamba, "falcon_mamba": mamba, "mamba2": mamba2, "jamba": jamba, "granitemoehybrid": granite, "bamba": bamba,
            "falcon_h1": falcon_h1, "nemotron_h": nemotron_h, "qwen3_next": qwen3_next, "qwen3_5_text": qwen3_5,
            "qwen3_5_moe_text": qwen3_5_moe, "olmo_hybrid": olmo_hybrid, "lfm2": lfm2, "lfm2_moe": lfm2_moe,
            "kimi_linear": kimi_linear, "bailing_hybrid": bailing_hybrid, "minimax": minimax, "zamba2": zamba2, "zamba": zamba,
            "recurrent_gemma": recurrent_gemma, "rwkv": rwkv, "xlstm": xlstm, "zaya": zaya}


def older(kind, c):
    """The same configuration with the keys of files that older versions wrote, or that model code of the Hub did."""
    names = {LINEAR: "mamba", FULL: "attention"}
    if kind == "granitemoehybrid":
        c["layer_types"] = [names[t] for t in c["layer_types"]]
        if c.get("position_embedding_type") is None:
            c["position_embedding_type"] = "nope"
    elif kind == "nemotron_h":
        marks = {LINEAR: "M", FULL: "*", "mlp": "-", "moe": "E"}
        kinds = c.pop("layers_block_type", None) or c.pop("layer_types")
        c.pop("layer_types", None)
        c["hybrid_override_pattern"], c["num_hidden_layers"] = "".join(marks[t] for t in kinds), len(kinds)
        c["rms_norm_eps"] = c["layer_norm_epsilon"]
    elif kind == "zamba2":
        c["layers_block_type"] = ["mamba" if t == LINEAR else t for t in c["layers_block_type"]]
        c["hybrid_layer_ids"] = [i for i, t in enumerate(c["layers_block_type"]) if t == "hybrid"]
    elif kind == "zamba":
        c["layers_block_type"] = ["mamba" if t == LINEAR else t for t in c["layers_block_type"]]
    elif kind == "kimi_linear":
        kinds = c.pop("layer_types")
        c["linear_attn_config"] = {"head_dim": c.pop("linear_head_dim"), "num_heads": c.pop("linear_num_heads"),
                                   "short_conv_kernel_size": c.pop("linear_conv_kernel_dim"),
                                   "kda_layers": [i + 1 for i, t in enumerate(kinds) if t == LINEAR],
                                   "full_attn_layers": [i + 1 for i, t in enumerate(kinds) if t == FULL]}
        c["first_k_dense_replace"] = c.pop("mlp_layer_types").count("dense")
        for new, old in (("num_local_experts", "num_experts"), ("num_experts_per_tok", "num_experts_per_token"),
                         ("n_shared_experts", "num_shared_experts"), ("norm_topk_prob", "moe_renormalize"),
                         ("n_group", "num_expert_group"), ("max_position_embeddings", "model_max_length")):
            if new in c:
                c[old] = c.pop(new)
        c.update(use_grouped_topk=True, moe_router_activation_func="sigmoid", mla_use_nope=True, moe_layer_freq=1)
    elif kind == "lfm2":
        c["block_ff_dim"] = c.pop("intermediate_size")
        c["tie_embedding"] = c.pop("tie_word_embeddings", True)
        kinds = c.pop("layer_types")
        c["full_attn_idxs"] = [i for i, t in enumerate(kinds) if t == FULL] if "conv" in kinds else None
        c["block_norm_eps"] = c["norm_eps"]
    elif kind == "lfm2_moe":
        c["tie_embedding"] = c.pop("tie_word_embeddings", True)
    elif kind == "minimax":
        c["attn_type_list"] = [int(t == FULL) for t in c["layer_types"]]
    elif kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        kinds = c["layer_types"]
        for every in range(1, len(kinds) + 2):
            if kinds == [FULL if (i + 1) % every == 0 else LINEAR for i in range(len(kinds))]:
                c.pop("layer_types")
                c["full_attention_interval"] = every
                break


def wrap(kind, config, r):
    """The text model inside one that sees, as the Hub has Qwen 3.5."""
    top = kind.removesuffix("_text")
    vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=4, out_hidden_size=config["hidden_size"],
                  num_position_embeddings=16)
    return AutoConfig.for_model(top, text_config=dict(config, model_type=kind), vision_config=vision,
                                tie_word_embeddings=config["tie_word_embeddings"])


# Keys that a family has beside its own function's.
EPS = {"mamba": "layer_norm_epsilon", "falcon_mamba": "layer_norm_epsilon", "mamba2": "layer_norm_epsilon", "lfm2": "norm_eps",
       "nemotron_h": "layer_norm_epsilon", "lfm2_moe": "norm_eps", "rwkv": "layer_norm_epsilon", "xlstm": "norm_eps"}
ACTS = {"granitemoehybrid": "hidden_act", "bamba": "hidden_act", "falcon_h1": "hidden_act", "jamba": "hidden_act",
        "qwen3_next": "hidden_act", "qwen3_5_text": "hidden_act", "qwen3_5_moe_text": "hidden_act", "olmo_hybrid": "hidden_act",
        "kimi_linear": "hidden_act", "bailing_hybrid": "hidden_act", "minimax": "hidden_act", "mamba": "hidden_act",
        "falcon_mamba": "hidden_act", "mamba2": "hidden_act", "nemotron_h": "mamba_hidden_act", "zamba": "hidden_mamba_act",
        "recurrent_gemma": "hidden_activation", "zaya": "hidden_act"}
OTHER = {"sliding_window": ("minimax", "nemotron_h"), "num_mtp_layers": ("bailing_hybrid",),
         "num_nextn_predict_layers": ("nemotron_h",)}


def others(kind, r):
    """Keys with other values than published files have."""
    c = {EPS.get(kind, "rms_norm_eps"): r.choice((1e-6, 1e-5, 1e-2))}
    if kind in ACTS and r.random() < 0.3:
        c[ACTS[kind]] = r.choice(("gelu", "gelu_pytorch_tanh", "relu"))
    for key, kinds in OTHER.items():
        if kind in kinds and r.flip():
            c[key] = 8 if key == "sliding_window" else 1
    return c


def build(kind, r):
    """The text model inside one that sees, in half of the cases of Qwen 3.5."""
    config = dict(FAMILIES[kind](r), **others(kind, r))
    if kind not in ("qwen3_5_text", "qwen3_5_moe_text") or not r.flip():
        return vary.causal(kind, config)
    whole = wrap(kind, config, r)
    name = {"qwen3_5": "Qwen3_5ForConditionalGeneration", "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration"}[whole.model_type]
    return getattr(transformers, name)(whole)


def before_save(kind, model):
    if kind == "rwkv" and model.config.rescale_every:  # running it scales weights in place
        model.train()
        model.rwkv._rescale_layers()


if __name__ == "__main__":
    sys.exit(vary.main(vary.Table(FAMILIES, Draw, build, older, before_save)))
