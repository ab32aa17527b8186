#!/usr/bin/env python3
"""Tiny GGUF models of families that transformers does not have, with results from llama.cpp (PyPI's xllamacpp).

    make_llamacpp_refs.py OUT [NAME...]     OUT/NAME-gguf/model.gguf and ref.json, as make_refs.py writes it

RWKV 7 also as a folder with the names of flash-linear-attention, which defines them: OUT/rwkv7.

The first row of the head is zero, so that the log-probabilities that llama.cpp gives are logits but for that of token 0.
"""
import json
import os
import shutil
import sys

import gguf
import numpy as np

V, W, H, KV, F, L = 64, 32, 4, 2, 24, 2  # vocabulary, width, heads, key-value heads, feed-forward, layers
GATED, PLAIN, FUSED = ("gate", "up", "down"), ("up", "down"), ("up2", "down")
RWKV = {"wkv.head_size": 32, "attention.decay_lora_rank": 6, "attention.iclr_lora_rank": 5,
        "attention.value_residual_mix_lora_rank": 3, "attention.gate_lora_rank": 8}
RWKV6 = {"wkv.head_size": 16, "time_mix_extra_dim": 4, "time_decay_extra_dim": 6}
MOE = dict(experts=6, used=2, expert_ffn=16)

# arch, then what differs from llama: norm "rms" or "layer" (with biases), shapes of attention and feed-forward
CASES = {
    "internlm2": dict(arch="internlm2"),
    "xverse": dict(arch="xverse", kv=H),
    "orion": dict(arch="orion", norm="layer"),
    "exaone": dict(arch="exaone"),
    "maincoder": dict(arch="maincoder", head_norm=True),
    "minicpm": dict(arch="minicpm", keys={"embedding_scale": 12.0, "residual_scale": 0.3, "logit_scale": 2.0}),
    "pangu-embedded": dict(arch="pangu-embedded", bias=("attn_q", "attn_k", "attn_v", "attn_output")),
    "plamo": dict(arch="plamo", kv=1, second=None),
    "qwen": dict(arch="qwen", kv=H, qkv=True, bias=("attn_qkv",), ffn_key=2 * F),
    "codeshell": dict(arch="codeshell", norm="layer", ffn=PLAIN,
                      bias=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")),
    "chatglm": dict(arch="chatglm", qkv=True, bias=("attn_qkv",), ffn=FUSED, rope=4),
    "baichuan": dict(arch="baichuan", layers=32, width=16, heads=2, kv=2, feed=8),
    "baichuan-13b": dict(arch="baichuan", layers=40, width=16, heads=2, kv=2, feed=8),
    "refact": dict(arch="refact", kv=1),
    "jais": dict(arch="jais", norm="layer", kv=H, qkv=True,
                 bias=("attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), keys={"attention.max_alibi_bias": 8.0}),
    "mpt": dict(arch="mpt", norm="layer", kv=H, qkv=True, ffn=PLAIN, plain_norm=True,
                keys={"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 0.8}),
    "deepseek": dict(arch="deepseek", **MOE, shared=2 * 16, dense=1,
                     keys={"expert_shared_count": 2, "leading_dense_block_count": 1, "expert_weights_scale": 1.0}),
    "arctic": dict(arch="arctic", experts=6, used=2, expert_ffn=F, feed=W, ffn_key=F, both=True),
    "bailingmoe": dict(arch="bailingmoe", **MOE, shared=16, dense=0,
                       keys={"expert_shared_count": 1, "expert_weights_norm": True, "expert_weights_scale": 1.0}),
    "bailingmoe2": dict(arch="bailingmoe2", experts=8, used=2, expert_ffn=16, shared=16, dense=1, rope=4, head_norm=True,
                        qkv=True, choice=True,
                        keys={"expert_shared_count": 1, "expert_weights_norm": True, "expert_weights_scale": 2.5,
                              "leading_dense_block_count": 1, "expert_gating_func": 2, "expert_group_count": 4,
                              "expert_group_used_count": 2, "expert_shared_feed_forward_length": 16}),
    "rwkv7": dict(arch="rwkv7", norm="layer", width=64, heads=0, kv=0, feed=32, eps=2e-5, keys=RWKV),
    "arwkv7": dict(arch="arwkv7", width=64, heads=0, kv=0, feed=32, keys={**RWKV, "token_shift_count": 1}),
    "plamo2": dict(arch="plamo2", layers=3, width=32, heads=[4, 0, 0], kv=[2, 0, 0], feed=24, ffn=FUSED, rope=None,
                   keys={"attention.key_length": 16, "attention.value_length": 16, "ssm.state_size": 8, "ssm.conv_kernel": 4,
                         "ssm.time_step_rank": 3, "ssm.inner_size": 48, "ssm.group_count": 0}),
    "rwkv6": dict(arch="rwkv6", norm="layer", width=32, heads=0, kv=0, feed=24, keys={**RWKV6, "rescale_every_n_layers": 1}),
    "rwkv6qwen2": dict(arch="rwkv6qwen2", width=64, heads=0, kv=2, feed=32, keys={**RWKV6, "token_shift_count": 1}),
}


class Maker:
    def __init__(self, path, seed, case, f32):
        self.f32 = f32
        self.c, self.rng = case, np.random.default_rng(seed)
        self.width, self.heads = case.get("width", W), case.get("heads", H)
        self.kv, self.layers, self.feed = case.get("kv", KV), case.get("layers", L), case.get("feed", F)
        self.w = gguf.GGUFWriter(path, case["arch"])
        self.made = {}

    def put(self, name, *shape, scale=0.18, zero_first=False, negative=False):
        t = self.rng.normal(0, scale, shape).astype(np.float32)
        if negative:
            t = -0.5 - abs(t)
        if name.endswith(("norm", "norm.weight", "norm_exps.weight")):
            t += 1
        t = (t.view(np.uint32) & 0xFFFF0000).view(np.float32)
        if zero_first:
            t[0] = 0
        self.made[name] = t
        if self.f32 or len(shape) == 1 or any(x in name for x in ("gate_inp", "lerp", "conv1d", "norm", "first")):
            self.w.add_tensor(name, t)
        else:
            half = (t.view(np.uint32) >> 16).astype(np.uint16)
            self.w.add_tensor(name, half.view(np.uint8), raw_shape=shape[:-1] + (shape[-1] * 2,),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)

    def norm(self, name):
        self.put(name + ".weight", self.width)
        if self.c.get("norm") == "layer" and not self.c.get("plain_norm"):
            self.put(name + ".bias", self.width)

    def linear(self, blk, name, rows, cols):
        self.put(f"{blk}{name}.weight", rows, cols)
        if name in self.c.get("bias", ()):
            self.put(f"{blk}{name}.bias", rows)

    def time_mix6(self, i):
        """RWKV 6, or what rwkv6qwen2 has of it."""
        blk, width, keys, own = f"blk.{i}.", self.width, self.c["keys"], self.c["arch"] == "rwkv6"
        size, rank, low = keys["wkv.head_size"], keys["time_mix_extra_dim"], keys["time_decay_extra_dim"]
        given = width if own else self.kv * size
        self.put(blk + "time_mix_w1.weight", 5 * rank, width)
        self.put(blk + "time_mix_w2.weight", 5, width, rank)
        self.put(blk + "time_mix_lerp_x.weight", 1, 1, width, scale=0.5)
        if own and i:  # the older files
            for x in "wkvrg":
                self.put(f"{blk}time_mix_lerp_{x}.weight", 1, 1, width, scale=0.5)
        else:
            self.put(blk + "time_mix_lerp_fused.weight", 5, 1, 1, width, scale=0.5)
        self.put(blk + "time_mix_decay.weight", width, scale=0.5)
        self.put(blk + "time_mix_decay_w1.weight", low, width)
        self.put(blk + "time_mix_decay_w2.weight", width, low)
        for x, rows in (("key", given), ("value", given), ("receptance", width), ("gate", width), ("output", width)):
            self.put(f"{blk}time_mix_{x}.weight", rows, width)
            if not own and x in ("key", "value", "receptance"):
                self.put(f"{blk}time_mix_{x}.bias", rows)
        if own:
            self.put(blk + "time_mix_first.weight", width // size, size, scale=0.5)
            self.norm(blk + "time_mix_ln")
            self.norm(blk + "attn_norm_2")
            for x in "kr":
                self.put(f"{blk}channel_mix_lerp_{x}.weight", 1, 1, width, scale=0.5)
            self.put(blk + "channel_mix_key.weight", self.feed, width)
            self.put(blk + "channel_mix_value.weight", width, self.feed)
            self.put(blk + "channel_mix_receptance.weight", width, width)
        else:
            self.norm(blk + "ffn_norm")
            for x, rows, cols in (("gate", self.feed, width), ("up", self.feed, width), ("down", width, self.feed)):
                self.put(f"{blk}ffn_{x}.weight", rows, cols)

    def time_mix(self, i):
        """RWKV 7 in the place of attention."""
        blk, width, keys = f"blk.{i}.", self.width, self.c["keys"]
        rank = {"w": keys["attention.decay_lora_rank"], "a": keys["attention.iclr_lora_rank"],
                "v": keys["attention.value_residual_mix_lora_rank" if i else "attention.iclr_lora_rank"],
                "g": keys["attention.gate_lora_rank"]}
        for x, n in rank.items():
            if x != "g":
                self.put(f"{blk}time_mix_{x}0.weight", width, scale=0.5)
            self.put(f"{blk}time_mix_{x}1.weight", n, width)
            self.put(f"{blk}time_mix_{x}2.weight", width, n)
        self.put(blk + "time_mix_lerp_fused.weight", 6, 1, 1, width, scale=0.5)
        for x in ("k_k", "k_a", "r_k"):
            self.put(f"{blk}time_mix_{x}.weight", width, scale=0.5)
        for x in ("key", "value", "receptance", "output"):
            self.put(f"{blk}time_mix_{x}.weight", width, width)
        self.norm(blk + "time_mix_ln")
        if self.c.get("norm") == "layer":
            self.norm(blk + "attn_norm_2")
            self.put(blk + "channel_mix_lerp_k.weight", width, scale=0.5)
            self.put(blk + "channel_mix_key.weight", self.feed, width)
            self.put(blk + "channel_mix_value.weight", width, self.feed)
        else:
            self.put(blk + "time_mix_ln.bias", width)
            self.norm(blk + "ffn_norm")
            for name, rows, cols in (("gate", self.feed, width), ("up", self.feed, width), ("down", width, self.feed)):
                self.put(f"{blk}ffn_{name}.weight", rows, cols)

    def plamo2(self, i):
        """A layer of plamo 2: mamba where it has no heads."""
        blk, width, keys = f"blk.{i}.", self.width, self.c["keys"]
        heads, kv, size = self.heads[i], self.kv[i], keys["attention.key_length"]
        inner, state, count, rank = keys["ssm.inner_size"], keys["ssm.state_size"], keys["ssm.time_step_rank"], 64
        self.norm(blk + "attn_norm")
        self.norm(blk + "ffn_norm")
        self.put(blk + "post_attention_norm", width)
        self.put(blk + "post_ffw_norm", width)
        if heads:
            self.put(blk + "attn_qkv.weight", (heads + 2 * kv) * size, width)
            self.put(blk + "attn_q_norm.weight", heads, size)
            self.put(blk + "attn_k_norm.weight", kv, size)
            self.put(blk + "attn_output.weight", width, heads * size)
        else:
            self.put(blk + "ssm_in.weight", 2 * inner, width)
            self.put(blk + "ssm_conv1d.weight", inner, keys["ssm.conv_kernel"], scale=0.5)
            self.put(blk + "ssm_x.weight", rank + 2 * state, inner)
            self.put(blk + "ssm_dt.weight", count, rank)
            self.put(blk + "ssm_dt.bias", count, scale=0.5)
            self.put(blk + "ssm_a", count, negative=True)
            self.put(blk + "ssm_d", count, scale=0.5)
            self.put(blk + "ssm_out.weight", width, inner)
            for name, n in (("dt", rank), ("b", state), ("c", state)):
                self.put(f"{blk}ssm_{name}_norm", n)
        self.put(blk + "ffn_up.weight", 2 * self.feed, width)
        self.put(blk + "ffn_down.weight", width, self.feed)

    def layer(self, i):
        if self.c["arch"] == "plamo2":
            return self.plamo2(i)
        if "rwkv" in self.c["arch"]:
            self.norm(f"blk.{i}.attn_norm")
            return (self.time_mix6 if "rwkv6" in self.c["arch"] else self.time_mix)(i)
        c, blk, width = self.c, f"blk.{i}.", self.width
        dim = width // self.heads
        self.norm(blk + "attn_norm")
        q, kv = self.heads * dim, self.kv * dim
        for name, rows in [("attn_qkv", q + 2 * kv)] if c.get("qkv") else [("attn_q", q), ("attn_k", kv), ("attn_v", kv)]:
            self.linear(blk, name, rows, width)
        self.linear(blk, "attn_output", width, q)
        if c.get("head_norm"):
            self.put(blk + "attn_q_norm.weight", dim)
            self.put(blk + "attn_k_norm.weight", dim)
        if c.get("second", True):
            self.norm(blk + "ffn_norm")
        sparse = c.get("experts") and i >= c.get("dense", 0)
        if sparse:
            n, size = c["experts"], c["expert_ffn"]
            self.put(blk + "ffn_gate_inp.weight", n, width, scale=0.5)
            self.put(blk + "ffn_gate_exps.weight", n, size, width)
            self.put(blk + "ffn_up_exps.weight", n, size, width)
            self.put(blk + "ffn_down_exps.weight", n, width, size)
            if c.get("choice"):
                self.put(blk + "exp_probs_b.bias", n, scale=0.1)
            if c.get("both"):
                self.put(blk + "ffn_norm_exps.weight", width)
            if c.get("shared"):
                self.put(blk + "ffn_gate_shexp.weight", c["shared"], width)
                self.put(blk + "ffn_up_shexp.weight", c["shared"], width)
                self.put(blk + "ffn_down_shexp.weight", width, c["shared"])
        if not sparse or c.get("both"):
            for part in c.get("ffn", GATED):
                if part == "down":
                    self.linear(blk, "ffn_down", width, self.feed)
                else:
                    self.linear(blk, "ffn_" + part.rstrip("2"), self.feed * (2 if part == "up2" else 1), width)

    def write(self):
        c, w = self.c, self.w
        w.add_block_count(self.layers)
        w.add_context_length(128)
        w.add_embedding_length(self.width)
        w.add_feed_forward_length(c.get("ffn_key", self.feed))
        w.add_head_count(self.heads)
        w.add_head_count_kv(self.kv)
        w.add_vocab_size(V)
        (w.add_layer_norm_eps if c.get("norm") == "layer" else w.add_layer_norm_rms_eps)(c.get("eps", 1e-5))
        if self.heads and c.get("rope", 0) is not None:
            w.add_rope_dimension_count(c.get("rope", self.width // self.heads))
            w.add_rope_freq_base(10000.0)
        if c.get("experts"):
            w.add_expert_count(c["experts"])
            w.add_expert_used_count(c["used"])
            w.add_expert_feed_forward_length(c["expert_ffn"])
        for key, value in c.get("keys", {}).items():
            add = w.add_bool if isinstance(value, bool) else w.add_float32 if isinstance(value, float) else w.add_uint32
            add(f"{c['arch']}.{key}", value)
        w.add_tokenizer_model("llama")
        w.add_token_list(["<unk>", "<s>", "</s>"] + [chr(0x100 + i) for i in range(V - 3)])
        w.add_token_scores([0.0] * V)
        w.add_token_types([2, 3, 3] + [1] * (V - 3))
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_add_bos_token(False)
        self.put("token_embd.weight", V, self.width, scale=1.0)
        if c["arch"] in ("rwkv6", "rwkv7"):
            self.norm("token_embd_norm")
        self.norm("output_norm")
        self.put("output.weight", V, self.width, zero_first=True)
        for i in range(self.layers):
            self.layer(i)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()


FLA = {"token_embd": "model.embeddings", "token_embd_norm": "model.layers.0.pre_norm", "output_norm": "model.norm",
       "output": "lm_head", "attn_norm": "attn_norm", "attn_norm_2": "ffn_norm", "time_mix_ln": "attn.g_norm",
       "time_mix_key": "attn.k_proj", "time_mix_value": "attn.v_proj", "time_mix_receptance": "attn.r_proj",
       "time_mix_output": "attn.o_proj", "channel_mix_key": "ffn.key", "channel_mix_value": "ffn.value"}


def fla_folder(folder, made, case):
    """The same numbers as flash-linear-attention names them."""
    import torch
    from safetensors.torch import save_file
    out = {}
    for name, t in made.items():
        root, base, end = "", *name.rsplit(".", 1)
        if base.startswith("blk."):
            _, layer, base = base.split(".")
            root = f"model.layers.{layer}."
            if layer == "0" and base in ("time_mix_v0", "time_mix_v1", "time_mix_v2"):
                continue
        part = base.removeprefix("time_mix_")
        if base == "time_mix_lerp_fused":
            for x, one in zip("rwkvag", t):
                out[f"{root}attn.x_{x}"] = one.reshape(1, 1, -1)
        elif base == "channel_mix_lerp_k":
            out[root + "ffn.x_k"] = t
        elif part in ("k_k", "k_a", "r_k"):
            out[f"{root}attn.{part}"] = t.reshape(-1, 32) if part == "r_k" else t
        elif len(part) == 2 and part[1] in "012":
            out[f"{root}attn.{part[0]}_lora.lora.{'0' if part[1] == '1' else '2'}.{'bias' if part[1] == '0' else 'weight'}"] = t
        else:
            out[f"{root}{FLA[base]}.{end}"] = t
    os.makedirs(folder, exist_ok=True)
    save_file({k: torch.from_numpy(v.copy()).bfloat16() for k, v in out.items()}, os.path.join(folder, "model.safetensors"))
    config = {"model_type": "rwkv7", "architectures": ["RWKV7ForCausalLM"], "hidden_size": case["width"], "vocab_size": V,
              "num_hidden_layers": L, "head_dim": 32, "intermediate_size": case["feed"], "norm_eps": case["eps"],
              "hidden_act": "sqrelu", "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=2)


def answer(server, ids):
    r = server.handle_completions({"prompt": ids, "n_predict": 1, "n_probs": V, "temperature": 0, "ignore_eos": True,
                                   "cache_prompt": False})
    p = {t["id"]: t["logprob"] for t in r["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}
    return [p[i] - p[0] for i in range(V)]


def results(path, seed):
    import xllamacpp
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.warmup, p.verbosity = path, 128, False, -1
    p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server, rng, cases = xllamacpp.Server(p), np.random.default_rng(seed), []
    for n in (1, 20):
        ids = [int(x) for x in rng.integers(3, V, n)]
        rows = [answer(server, ids[:i + 1]) for i in range(n)]
        cases.append({"tokens": ids, "last": [round(x, 5) for x in rows[-1]],
                      "argmax": [int(np.argmax(r)) for r in rows], "greedy": []})
    return cases


def main():
    out, names = sys.argv[1], sys.argv[2:]
    for i, (name, case) in enumerate(CASES.items()):
        if names and name not in names:
            continue
        folder = os.path.join(out, name + "-gguf")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "model.gguf")
        Maker(path + ".f32", 500 + i, case, True).write()  # llama.cpp would round activations to BF16 with the weights
        maker = Maker(path, 500 + i, case, False)
        maker.write()
        try:
            cases = results(path + ".f32", 600 + i)
            os.remove(path + ".f32")
        except Exception as problem:
            print("failed", name, problem)
            continue
        with open(os.path.join(folder, "ref.json"), "w") as f:
            json.dump({"llama.cpp": "xllamacpp", "cases": cases}, f)
        if name == "rwkv7":
            fla_folder(os.path.join(out, name), maker.made, case)
            shutil.copy(os.path.join(folder, "ref.json"), os.path.join(out, name))
        print("made", name, flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
