#!/usr/bin/env python3
"""Writes a tiny folder of make_refs.py as GGUF, in the conventions of that format's converters: Q and K of some
families permuted, Gemma's norms plus one, experts stacked, fused tensors in the order q, k, v.

    make_gguf.py REFS OUT [--f32] [NAME...]     REFS/NAME -> OUT/NAME/model.gguf, with its ref.json beside it
"""
import json
import os
import re
import shutil
import struct
import sys

import gguf
import numpy as np

ARCH = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "gemma": "gemma", "gemma2": "gemma2", "gemma3_text": "gemma3",
    "phi": "phi2", "phi3": "phi3", "olmo": "olmo", "olmo2": "olmo2", "olmo3": "olmo2", "olmoe": "olmoe",
    "granite": "granite", "granitemoe": "granitemoe", "granitemoeshared": "granitemoe", "smollm3": "smollm3",
    "starcoder2": "starcoder2", "stablelm": "stablelm", "gpt2": "gpt2", "gpt_neox": "gptneox", "falcon": "falcon",
    "cohere": "command-r", "cohere2": "cohere2", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
    "gpt_oss": "gpt-oss", "bert": "bert", "nomic_bert": "nomic-bert",
}
PERMUTED = ("llama", "olmo", "granite", "granitemoe", "smollm3")
LAYER_NORM = ("phi2", "olmo", "starcoder2", "stablelm", "gpt2", "gptneox", "falcon", "command-r", "cohere2", "bert",
              "nomic-bert")


def read_safetensors(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            raw = np.frombuffer(data[t["data_offsets"][0]:t["data_offsets"][1]], np.uint16)
            out[name] = (raw.astype(np.uint32) << 16).view(np.float32).reshape(t["shape"])
    return out


def first(config, *names, default=None):
    return next((config[n] for n in names if config.get(n) is not None), default)


def permute(w, heads):
    """Halves to pairs: rows (head, 2, d/2) become (head, d/2, 2)."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def ungroup(w, groups, head_dim):
    """Fused group by group: (groups, q... k v, head_dim, ...) to q, k, v."""
    g = w.reshape(groups, -1, head_dim, *w.shape[1:])
    return np.concatenate([p.reshape(-1, *w.shape[1:]) for p in (g[:, :-2], g[:, -2:-1], g[:, -1:])])


class Convert:
    def __init__(self, folder):
        self.config = json.load(open(os.path.join(folder, "config.json")))
        self.kind = self.config["model_type"]
        self.arch = ARCH[self.kind]
        c = self.config
        self.heads = first(c, "num_attention_heads", "n_head")
        self.kv_heads = first(c, "num_key_value_heads", "num_kv_heads", default=self.heads)
        if self.kind == "falcon" and not c["new_decoder_architecture"]:
            self.kv_heads = 1 if c["multi_query"] else self.heads
        self.width = first(c, "hidden_size", "n_embd")
        self.layers = first(c, "num_hidden_layers", "n_layer")
        self.head_dim = first(c, "head_dim", default=self.width // self.heads)
        self.rope = c.get("rope_parameters") or {}
        self.rope = self.rope.get("full_attention", self.rope)
        arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == self.arch)
        self.map = gguf.get_tensor_name_map(arch, self.layers)
        self.tensors = {}
        self.source = read_safetensors(os.path.join(folder, "model.safetensors"))

    def check(self):
        """What the format has no key for."""
        c, r = self.config, self.rope
        if self.arch in ("llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "starcoder2") and c.get("sliding_window"):
            raise ValueError("a window")
        if c.get("query_pre_attn_scalar", self.head_dim) != self.head_dim:
            raise ValueError("the divisor of attention")
        if self.arch == "gemma2" and not c.get("attn_logit_softcapping"):
            raise ValueError("no caps")
        if c.get("no_rope_layers", [])[3:4] == [1] or sum(c.get("no_rope_layers", [])) != self.layers - self.layers // 4 \
                and self.arch == "smollm3":
            raise ValueError("layers without positions")
        if c.get("scale_attn_by_inverse_layer_idx"):
            raise ValueError("scales of attention")
        if c.get("rope_interleave") is False:
            raise ValueError("the order of rotated dimensions")
        if r.get("rope_type") == "dynamic" or self.arch == "llama" and ("mscale" in r or "beta_fast" in r):
            raise ValueError("this scaling of rope")

    def put(self, name, w):
        """By the name in safetensors; the package's own map knows GGUF's."""
        for suffix in (".weight", ".bias", ""):
            stem = name[: len(name) - len(suffix)] if suffix else name
            mapped = self.map.get_name(stem) if name.endswith(suffix) else None
            if mapped:
                self.tensors[mapped + (suffix or ".weight")] = np.ascontiguousarray(w)
                return
        raise KeyError(name)

    def one(self, name, w):
        c = self.config
        if "q_proj" in name and self.arch in PERMUTED:
            w = permute(w, self.heads)
        if "k_proj" in name and self.arch in PERMUTED:
            w = permute(w, self.kv_heads)
        if self.kind.startswith("gemma") and name.endswith("norm.weight"):
            w = w + 1
        if self.kind == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            w = w.T
        if "query_key_value" in name:
            w = ungroup(w, self.kv_heads, self.head_dim)
        if "kv_b_proj" in name:
            n, v = c["qk_nope_head_dim"], c["v_head_dim"]
            kv = w.reshape(self.heads, n + v, -1)
            self.put(name.replace("kv_b_proj", "k_b_proj"), kv[:, :n].swapaxes(1, 2))
            self.put(name.replace("kv_b_proj", "v_b_proj"), kv[:, n:])
            return
        if "e_score_correction_bias" in name:
            name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        if "pooler" in name:
            return
        if name == "embeddings.token_type_embeddings.weight":
            w = w[: c["type_vocab_size"]]
        if c.get("tie_word_embeddings") and name == "lm_head.weight":
            return
        self.put(name, w)

    def experts(self):
        """Stacks what lies expert by expert, and cuts what is fused."""
        groups = {}
        for name in list(self.source):
            m = re.match(r"(.*\.)experts\.(\d+)\.(w[123]|gate_proj|up_proj|down_proj)\.weight", name)
            if m:
                groups.setdefault((m[1], m[3]), {})[int(m[2])] = self.source.pop(name)
            elif "input_linear" in name or "gate_up_proj" in name and "experts" in name:
                w = self.source.pop(name)
                if self.kind == "gpt_oss":
                    w = w if name.endswith("_bias") else w.swapaxes(1, 2)
                    gate, up = w[:, 0::2], w[:, 1::2]
                else:
                    gate, up = np.split(w, 2, axis=-2)
                end = ".bias" if name.endswith("_bias") else ".weight"
                base = f"blk.{re.search(r'layers.([0-9]+)', name)[1]}.ffn_"
                kind = "shexp" if "shared_mlp" in name else "exps"
                self.tensors[f"{base}gate_{kind}{end}"] = np.ascontiguousarray(gate)
                self.tensors[f"{base}up_{kind}{end}"] = np.ascontiguousarray(up)
            elif self.kind == "gpt_oss" and "experts.down_proj" in name:
                w = self.source.pop(name)
                base = f"blk.{re.search(r'layers.([0-9]+)', name)[1]}.ffn_down_exps"
                bias = name.endswith("_bias")
                self.tensors[base + (".bias" if bias else ".weight")] = np.ascontiguousarray(w if bias else w.swapaxes(1, 2))
        for (prefix, part), each in groups.items():
            self.put(f"{prefix}experts.{part}.weight", np.stack([each[i] for i in range(len(each))]))

    def head_norms(self):
        """stablelm has a norm a head."""
        groups = {}
        for name in list(self.source):
            m = re.match(r"(.*[qk]_layernorm)\.norms\.(\d+)\.weight", name)
            if m:
                groups.setdefault(m[1], {})[int(m[2])] = self.source.pop(name)
        for name, each in groups.items():
            self.put(name + ".weight", np.stack([each[i] for i in range(len(each))]))

    def keys(self, w):
        c = self.config
        w.add_block_count(self.layers)
        w.add_context_length(first(c, "max_position_embeddings", "n_positions"))
        w.add_embedding_length(self.width)
        w.add_feed_forward_length(first(c, "ffn_hidden_size", "intermediate_size", "n_inner", default=4 * self.width))
        w.add_head_count(self.heads)
        w.add_vocab_size(c["vocab_size"])
        eps = first(c, "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", default=1e-5)
        (w.add_layer_norm_eps if self.arch in LAYER_NORM else w.add_layer_norm_rms_eps)(eps)
        if self.arch == "deepseek2":
            self.keys_latent(w)
        else:
            w.add_head_count_kv(self.kv_heads)
            w.add_key_length(self.head_dim)
            w.add_value_length(self.head_dim)
            w.add_rope_dimension_count(int(self.head_dim * self.rope.get("partial_rotary_factor", 1.0)))
        self.keys_rope(w)
        self.keys_experts(w)
        if c.get("sliding_window") and self.arch not in ("llama", "qwen2", "qwen3"):
            w.add_sliding_window(c["sliding_window"])
            if "layer_types" in c:
                w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
        for key, add in (("attn_logit_softcapping", w.add_attn_logit_softcapping), ("clip_qkv", w.add_clamp_kqv),
                         ("final_logit_softcapping", w.add_final_logit_softcapping),
                         ("logit_scale", w.add_logit_scale), ("logits_scaling", w.add_logit_scale),
                         ("embedding_multiplier", w.add_embedding_scale),
                         ("residual_multiplier", w.add_residual_scale),
                         ("attention_multiplier", w.add_attention_scale),
                         ("use_parallel_residual", w.add_parallel_residual)):
            if c.get(key) is not None:
                add(c[key])
        if self.arch in ("bert", "nomic-bert"):
            w.add_causal_attention(False)
            w.add_token_type_count(c["type_vocab_size"])
            w.add_pooling_type(gguf.PoolingType.MEAN)

    def keys_latent(self, w):
        c = self.config
        w.add_head_count_kv(1)
        if c.get("q_lora_rank"):
            w.add_q_lora_rank(c["q_lora_rank"])
        w.add_kv_lora_rank(c["kv_lora_rank"])
        w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
        w.add_value_length(c["kv_lora_rank"])
        w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
        w.add_value_length_mla(c["v_head_dim"])
        w.add_rope_dimension_count(c["qk_rope_head_dim"])
        w.add_leading_dense_block_count(c["first_k_dense_replace"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_weights_norm(bool(c["norm_topk_prob"]))
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if self.kind == "deepseek_v3"
                                 else gguf.ExpertGatingFuncType.SOFTMAX)
        if c.get("n_group") and c.get("topk_method") != "greedy":
            w.add_expert_group_count(c["n_group"])
            w.add_expert_group_used_count(c["topk_group"])
        if self.rope.get("mscale_all_dim"):
            w.add_rope_scaling_yarn_log_mul(0.1 * self.rope["mscale_all_dim"])

    def keys_rope(self, w):
        r, kind = self.rope, self.rope.get("rope_type")
        if not r:
            return
        w.add_rope_freq_base(r["rope_theta"])
        local = (self.config.get("rope_parameters") or {}).get("sliding_attention")
        if local:
            w.add_rope_freq_base_swa(local["rope_theta"])
        if kind in ("linear", "yarn"):
            w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR if kind == "linear" else gguf.RopeScalingType.YARN)
            w.add_rope_scaling_factor(r["factor"])
        if kind == "yarn":
            w.add_rope_scaling_orig_ctx_len(r["original_max_position_embeddings"])
        half = int(self.head_dim * r.get("partial_rotary_factor", 1.0)) // 2
        if kind == "llama3":
            freqs = r["rope_theta"] ** (-np.arange(half) / half)
            wave = 2 * np.pi / freqs
            low, high, old = r["low_freq_factor"], r["high_freq_factor"], r["original_max_position_embeddings"]
            smooth = np.clip((old / wave - low) / (high - low), 0, 1)
            self.tensors["rope_freqs.weight"] = (1 / ((1 - smooth) / r["factor"] + smooth)).astype(np.float32)
        if kind == "longrope":
            old = r["original_max_position_embeddings"]
            stretch = self.config["max_position_embeddings"] / old
            w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
            w.add_rope_scaling_orig_ctx_len(old)
            w.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(stretch) / np.log(old))))
            self.tensors["rope_factors_short.weight"] = np.array(r["short_factor"], np.float32)
            self.tensors["rope_factors_long.weight"] = np.array(r["long_factor"], np.float32)

    def keys_experts(self, w):
        c = self.config
        experts = first(c, "num_local_experts", "num_experts", "n_routed_experts")
        if not experts:
            return
        w.add_expert_count(experts)
        w.add_expert_used_count(c["num_experts_per_tok"])
        if c.get("moe_intermediate_size"):
            w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        elif self.arch == "gpt-oss":
            w.add_expert_feed_forward_length(c["intermediate_size"])
        shared = first(c, "shared_expert_intermediate_size", "shared_intermediate_size")
        if shared:
            w.add_expert_shared_feed_forward_length(shared)
        if c.get("n_shared_experts") is not None:
            w.add_expert_shared_count(c["n_shared_experts"])

    def vocabulary(self, w):
        n = self.config["vocab_size"]
        tokens = ["<unk>", "<s>", "</s>"] + [chr(0x100 + i) for i in range(n - 3)]
        w.add_tokenizer_model("bert" if self.arch in ("bert", "nomic-bert") else "llama")
        w.add_token_list(tokens)
        w.add_token_scores([0.0] * n)
        w.add_token_types([2, 3, 3] + [1] * (n - 3))
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_add_bos_token(False)

    def write(self, path, f32):
        w = gguf.GGUFWriter(path, self.arch)
        self.keys(w)
        self.vocabulary(w)
        self.experts()
        self.head_norms()
        for name, t in self.source.items():
            self.one(name, t)
        for name, t in self.tensors.items():
            if not f32 and t.ndim > 1 and "norm" not in name and "gate_inp" not in name and not name.endswith(".bias"):
                half = (t.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
                w.add_tensor(name, half.view(np.uint8), raw_shape=t.shape[:-1] + (t.shape[-1] * 2,),
                             raw_dtype=gguf.GGMLQuantizationType.BF16)
            else:
                w.add_tensor(name, np.ascontiguousarray(t, np.float32))
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()


def main():
    refs, out, names = sys.argv[1], sys.argv[2], [a for a in sys.argv[3:] if a != "--f32"]
    for name in names or sorted(os.listdir(refs)):
        folder = os.path.join(out, name)
        try:
            convert = Convert(os.path.join(refs, name))
            convert.check()
            os.makedirs(folder, exist_ok=True)
            convert.write(os.path.join(folder, "model.gguf"), "--f32" in sys.argv)
            shutil.copy(os.path.join(refs, name, "ref.json"), folder)
            print("made", name)
        except (KeyError, ValueError) as problem:
            print("GGUF cannot say", name, repr(problem))


if __name__ == "__main__":
    main()
