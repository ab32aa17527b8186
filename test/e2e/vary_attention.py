#!/usr/bin/env python3
"""Random configurations of the families that only attend, and of encoders, each compared with transformers.

    vary_attention.py QUERN [--family NAME] [--from SEED] [--count N] [--keep DIR]

A case of make_refs.py is where a draw starts. Then every option that the family's configuration has and OPTIONS names may change,
and the sizes and the rotation do. RULES say what a family cannot have. vary.py saves and compares.
"""
import inspect
import json
import sys

from transformers import AutoConfig, AutoModel
from transformers.models.mistral4.modeling_mistral4 import Mistral4ForCausalLM

import make_refs
import refs_hybrid
import vary
from vary import FULL
from vary_options import OPTIONS, SLIDING

PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers", "moe_layers", "indexer_types", "layer_rope_theta",
             "activation_sparsity_pattern", "attention_types", "mlp_only_layers", "num_kv_shared_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
KV_HEADS = ("num_key_value_heads", "num_kv_heads")
USED = ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def first(names, c):
    return next((n for n in names if n in c), None)


def sizes(r, c, known):
    """Heads, widths, layers, the vocabulary."""
    width, heads, kv, layers = (first(names, c) for names in (WIDTHS, HEADS, KV_HEADS, LAYERS))
    latent = "kv_lora_rank" in known
    k = r.choice((1, 2, 3))
    c[heads] = k * r.choice((1, 2, 3, 5))
    if kv:
        c[kv] = c[heads] if latent else k
    c["vocab_size"] = r.choice((64, 97, 131))
    own = "head_dim" in known and not latent and "head_dim" in inspect.signature(AutoConfig.for_model(c["model_type"]).__init__).parameters
    c[width] = c[heads] * r.choice((4, 6, 8, 12))
    if own:
        c["head_dim"] = r.choice((4, 6, 8, 12, 20)) if r.random() < 0.7 else c[width] // c[heads]
    elif not latent:
        c.pop("head_dim", None)
    if c["model_type"] not in ("longcat_flash",):
        c[layers] = r.randint(1, 5)
    c["num_hidden_layers"] = c[layers]
    if c[layers] != c.get("kept_layers"):
        for key in PER_LAYER:
            c.pop(key, None)
    if isinstance(c.get("intermediate_size"), int):
        c["intermediate_size"] = r.choice((12, 20, 36))


def rotation(r, dims, only):
    """One object of rope_parameters, for heads of which this many dimensions rotate."""
    kinds = ["default", "default", "linear", "dynamic", "yarn", "yarn", "llama3", "longrope"]
    if dims < 4:
        kinds = kinds[:3]
    kind = r.choice([k for k in kinds if k in only] or kinds)
    c = {"rope_type": kind, "rope_theta": r.choice((1e4, 5e5, 1e7))}
    if kind in ("linear", "dynamic"):
        c["factor"] = r.choice((2.0, 4.0, 3.5))
    elif kind == "llama3":
        c.update(factor=8.0, low_freq_factor=r.choice((1.0, 2.0)), high_freq_factor=4.0, original_max_position_embeddings=32)
    elif kind == "yarn":
        c.update(factor=r.choice((4.0, 2.5)), original_max_position_embeddings=r.choice((16, 32)))
        some = dict(beta_fast=16.0, beta_slow=2.0, truncate=r.flip(), mscale=r.choice((0.7, 1.0)), mscale_all_dim=r.choice((0.4, 1.0)),
                    attention_factor=1.3)
        c.update({k: v for k, v in some.items() if r.random() < 0.4})
    elif kind == "longrope":
        n = dims // 2
        c.update(short_factor=[r.factor() + 0.5 for _ in range(n)], long_factor=[r.factor() + i for i in range(n)],
                 original_max_position_embeddings=32)
        if r.flip():
            c["factor"] = 4.0
        if r.flip():
            c["attention_factor"] = 1.2
    return c


def rope(r, c, known):
    old = c.get("rope_parameters")
    if not old:
        return
    heads, width = first(HEADS, c), first(WIDTHS, c)
    size = c.get("head_dim") or c[width] // c[heads]
    if "kv_lora_rank" in known:
        size = c.get("qk_rope_head_dim") or known["qk_rope_head_dim"]
    partial = [p for p in (0.25, 0.5, 0.75, 1.0) if size * p % 2 == 0 and size * p >= 2] if c["model_type"] in PARTIAL else [1.0]

    def draw(was):
        p = r.choice(partial)
        got = rotation(r, int(size * p), ROPES.get(c["model_type"], ()))
        if c["model_type"] in PARTIAL:
            got["partial_rotary_factor"] = p
        if "llama_4_scaling_beta" in was:
            got.update(llama_4_scaling_beta=r.choice((0.1, 0.3)))
            got.setdefault("original_max_position_embeddings", 32)
        return got

    if any(isinstance(v, dict) for v in old.values()):
        c["rope_parameters"] = {k: draw(v) for k, v in old.items()}
    else:
        c["rope_parameters"] = draw(old)


ROPES = {"mistral4": ("default", "yarn"), "phi3": ("default", "longrope"), "phimoe": ("default", "longrope")}
PARTIAL = ("phi", "phi3", "stablelm", "gpt_neox", "minimax_m2", "nemotron", "persimmon", "glm", "glm4", "glm4_moe",
           "mimo_v2_flash")


def rules(kind, r, c):
    """What a family does not have."""
    n = c["num_hidden_layers"]
    number = first(EXPERTS, c)
    used = first(USED, c)
    if number and used and c[number]:
        groups = "n_group" in c or kind in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe", "glm_moe_dsa", "mistral4")
        if groups:
            g = r.choice([g for g in (1, 2, 3) if c[number] % g == 0 and c[number] // g >= 2])
            c["n_group"], c["topk_group"] = g, r.randint(1, g)
            c[used] = r.randint(1, c[number] // g * c["topk_group"])
        else:
            c[used] = r.randint(1, c[number])
    if kind.startswith(("qwen", "smollm")):
        if not c.get("use_sliding_window"):
            c.pop("layer_types", None)
        c["sliding_window"] = c.get("sliding_window") or 8
    if kind == "mistral4":
        c.pop("head_dim", None)
    if kind in RULES:
        RULES[kind](r, c, n)


def gemma3n(r, c, n):
    c["num_kv_shared_layers"] = 0
    c["layer_types"] = c.get("layer_types") or r.layers(n, (SLIDING, FULL))
    c["activation_sparsity_pattern"] = [r.choice((0.0, 0.3, 0.9)) for _ in range(n)]
    c["intermediate_size"] = 24
    c["final_logit_softcapping"] = 30.0
    c["altup_active_idx"] = r.randrange(c.get("altup_num_inputs", 4))
    c["hidden_size_per_layer_input"] = 4
    c["vocab_size_per_layer_input"] = c["vocab_size"]


def gemma4(r, c, n):
    c["layer_types"] = kinds = r.layers(n - 1, (SLIDING, FULL)) + [FULL]
    shared = r.randint(0, n - 1)
    while shared and not set(kinds[n - shared:]) <= set(kinds[:n - shared]):
        shared -= 1
    c["num_kv_shared_layers"] = shared
    c["num_global_key_value_heads"] = c["num_key_value_heads"]
    c["global_head_dim"] = r.choice((8, 16))
    c["vocab_size_per_layer_input"] = c["vocab_size"]
    for k in ("head_dim",):
        c[k] = r.choice((8, 12))
    c["rope_parameters"] = {FULL: {"rope_type": "proportional", "partial_rotary_factor": r.choice((0.25, 0.5, 1.0)), "rope_theta": 1e6},
                            SLIDING: {"rope_type": "default", "rope_theta": 1e4}}


def llama4(r, c, n):
    c.pop("layer_types", None)
    c["no_rope_layers"] = r.layers(n, (0, 1))


def phimoe(r, c, n):
    c["num_experts_per_tok"] = 2


def falcon(r, c, n):
    if c.get("new_decoder_architecture"):
        c["num_kv_heads"] = r.choice([k for k in (1, 2, 3) if c["num_attention_heads"] % k == 0])
    else:
        c["num_ln_in_parallel_attn"] = None


def fixed(**values):
    return lambda r, c, n: c.update(values)


def dbrx(r, c, n):
    c["tie_word_embeddings"] = False
    c["attn_config"]["kv_n_heads"] = r.choice([k for k in (1, 2, 3) if c["n_heads"] % k == 0])
    c["ffn_config"]["moe_top_k"] = r.randint(1, 4)


def opt(r, c, n):
    c["word_embed_proj_dim"] = c["hidden_size"]
    c["do_layer_norm_before"] = r.random() < 0.9


def codegen(r, c, n):
    c["n_head"] *= 4
    c["n_embd"] = c["n_head"] * 8


def mimo(r, c, n):
    c["num_key_value_heads"], c["num_attention_heads"] = 1, r.choice((2, 4, 6))
    c["head_dim"] = r.choice((8, 12, 20))  # a third of it rotates, unless config.json says more


def chosen_keys(r, c, n):
    """Few heads give keys of the same score, of which any may be chosen."""
    c.update(q_lora_rank=24, index_n_heads=24)


def dots1(r, c, n):
    if SLIDING in c.get("layer_types", ()):
        c["sliding_window"] = c.get("sliding_window") or 8


def latent_head(r, c, n):
    c["q_lora_rank"] = 24
    c["head_dim"] = c.get("qk_rope_head_dim", 64)


def gpt_neo(r, c, n):
    c["attention_types"] = [[[r.choice(("global", "local"))], 1] for _ in range(n)]


RULES = {"gemma3n_text": gemma3n, "gemma4_text": gemma4, "llama4_text": llama4, "phimoe": phimoe, "gpt_neo": gpt_neo, "falcon": falcon, "mpt": fixed(logit_scale=None),
         "dbrx": dbrx, "opt": opt, "codegen": codegen, "mimo_v2_flash": mimo, "dots1": dots1,
         "glm_moe_dsa": chosen_keys, "deepseek_v32": chosen_keys,
         "helium": lambda r, c, n: c.update(head_dim=c["hidden_size"] // c["num_attention_heads"]),
         "jetmoe": lambda r, c, n: c.update(num_attention_heads=c["num_key_value_heads"] * c["num_experts_per_tok"]),
         "longcat_flash": latent_head, "mpnet": fixed(max_position_embeddings=130)}
STARTS = {}
for name, (kind, config, _) in make_refs.CASES.items():
    if name not in refs_hybrid.CASES:
        STARTS.setdefault(kind, []).append(config)


def draw(kind, r):
    known = AutoConfig.for_model(kind).to_dict()
    c = json.loads(json.dumps(r.choice(STARTS[kind])))
    c["model_type"] = kind
    c["kept_layers"] = c.get(first(LAYERS, c)) if r.random() < 0.2 else None
    bidirectional = c.get("use_bidirectional_attention")
    sizes(r, c, known)
    for key, value in OPTIONS.items():
        if key in known and r.random() < 0.6 and not (key in PER_LAYER and key in c):
            c[key] = value(r, c)
    rope(r, c, known)
    rules(kind, r, c)
    if bidirectional:
        c["use_bidirectional_attention"] = True
    for key in ("model_type", "kept_layers", *(LAYERS if "num_hidden_layers" not in known else ())):
        c.pop(key) if key in c and key not in known else None
    c.pop("model_type", None)
    return {k: v for k, v in c.items() if k != "kept_layers"}


def build(kind, r):
    c = draw(kind, r)
    if kind == "mistral4":  # has no entry among the automatic classes
        return Mistral4ForCausalLM(AutoConfig.for_model(kind, **c))
    if kind in make_refs.ENCODERS or c.get("use_bidirectional_attention"):
        return AutoModel.from_config(AutoConfig.for_model(kind, **c))
    return vary.causal(kind, c)


def older(kind, c):
    """The same configuration with the keys of older files; whether transformers reads them must be seen."""
    for new, old, kinds in (("num_local_experts", "num_experts", ("qwen3_moe", "mellum")),):
        if kind in kinds and new in c:
            c[old] = c.pop(new)
    return True


if __name__ == "__main__":
    sys.exit(vary.main(vary.Table(STARTS, vary.Draw, build, older, lambda kind, model: None)))
