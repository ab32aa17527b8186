#!/usr/bin/env python3
"""Asks llama-quantize (in the PATH) which type it gives each tensor, for every file type and some small models, and
writes the answers as test/data/recipes.json, which test/quant/recipe.c compares with our own recipes.

    make_recipes.py OUT.json

A tensor's types over the layers are written in runs: "Q6_K*2 Q4_K*5 Q6_K".
"""
import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

NAMES = ["F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K",
         "Q2_K_S", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4_MOE"]
DENSE = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
FUSED = ["attn_norm", "attn_qkv", "attn_output", "ffn_up", "ffn_down"]
EXPERTS = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps",
           "ffn_down_exps"]
LATENT = ["attn_norm", "attn_q", "attn_kv_a_mqa", "attn_k_b", "attn_v_b", "attn_output", "ffn_norm", "ffn_gate_inp",
          "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"]
# architecture, layers, heads, kv heads, experts, width, feed-forward, tensors of a layer, others
CASES = {
    "shared": ("llama", 32, 8, 2, 0, 256, 512, DENSE, ["token_embd", "output", "output_norm"]),
    "tied": ("llama", 18, 4, 4, 0, 256, 512, DENSE, ["token_embd", "output_norm"]),
    "eight": ("llama", 16, 4, 2, 8, 256, 512, EXPERTS, ["token_embd", "output", "output_norm"]),
    "many": ("qwen3moe", 24, 8, 1, 16, 256, 256, EXPERTS, ["token_embd", "output", "output_norm"]),
    "largest": ("qwen2", 80, 8, 1, 0, 256, 256, DENSE, ["token_embd", "output", "output_norm"]),
    "falcon": ("falcon", 32, 8, 1, 0, 256, 512, FUSED, ["token_embd", "output", "output_norm"]),
    "fused": ("gpt2", 12, 4, 4, 0, 256, 512, FUSED, ["token_embd", "position_embd", "output_norm"]),
    "narrow": ("llama", 10, 3, 3, 0, 96, 288, DENSE, ["token_embd", "output", "output_norm"]),
    "latent": ("deepseek2", 9, 4, 1, 12, 256, 256, LATENT, ["token_embd", "output", "output_norm"]),
    "encoder": ("bert", 6, 4, 4, 0, 128, 512, DENSE, ["token_embd", "position_embd", "token_types", "token_embd_norm"]),
}


def shape(name, width, ffn, experts):
    if "norm" in name:
        return (width,)
    if name.endswith("_exps"):
        return (experts, 4, ffn if "down" in name else width)
    if name in ("attn_k_b", "attn_v_b"):
        return (4, 4, width)
    return (4, ffn if "down" in name else width)


def tensors(case):
    arch, layers, heads, kv, experts, width, ffn, each, others = CASES[case]
    for name in others:
        yield f"{name}.weight", shape(name, width, ffn, experts)
    for layer, name in itertools.product(range(layers), each):
        yield f"blk.{layer}.{name}.weight", shape(name, width, ffn, experts)


def write(case, path):
    arch, layers, heads, kv, experts, width, ffn, *_ = CASES[case]
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(layers)
    w.add_context_length(128)
    w.add_embedding_length(width)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_vocab_size(4)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_layer_norm_eps(1e-5)
    w.add_rope_freq_base(1e4)
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(2)
        w.add_expert_feed_forward_length(ffn)
    if arch == "deepseek2":
        for add, n in ((w.add_kv_lora_rank, 64), (w.add_q_lora_rank, 0), (w.add_leading_dense_block_count, 0),
                       (w.add_expert_shared_count, 1), (w.add_key_length, 64), (w.add_value_length, 64)):
            add(n)
    w.add_tokenizer_model("none")
    rng = np.random.default_rng(1)
    for name, dims in tensors(case):
        data = rng.standard_normal(dims, np.float32)
        w.add_tensor(name, data if len(dims) == 1 else data.astype(np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def runs(types):
    out = []
    for kind, group in itertools.groupby(types):
        n = len(list(group))
        out.append(kind if n == 1 else f"{kind}*{n}")
    return " ".join(out)


def ask(source, name, folder, imatrix):
    out = folder / "out.gguf"
    done = subprocess.run(["llama-quantize", *(["--imatrix", imatrix] if imatrix else []), str(source), str(out), name],
                          capture_output=True, text=True, errors="replace")
    if done.returncode:
        return None
    each = {}
    for t in gguf.GGUFReader(out).tensors:
        base = re.sub(r"^blk\.\d+\.", "", t.name)
        layer = int(m[1]) if (m := re.match(r"blk\.(\d+)\.", t.name)) else -1
        each.setdefault(base, []).append((layer, t.tensor_type.name))
    return {base: runs(kind for _, kind in sorted(types)) for base, types in sorted(each.items())}


def importance(case, path):
    w = gguf.GGUFWriter(path, "imatrix")
    w.add_type("imatrix")
    w.add_array("imatrix.datasets", ["none"])
    w.add_uint32("imatrix.chunk_count", 1)
    w.add_uint32("imatrix.chunk_size", 512)
    for name, dims in tensors(case):
        if name.startswith("blk.") and len(dims) > 1:
            count = dims[0] if len(dims) == 3 else 1
            w.add_tensor(name + ".in_sum2", np.ones((count, dims[-1]), np.float32))
            w.add_tensor(name + ".counts", np.ones((count, 1), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    facts = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for case, (arch, layers, heads, kv, experts, *_) in CASES.items():
            source, matrix = folder / "in.gguf", folder / "imatrix.gguf"
            write(case, source)
            importance(case, matrix)
            shapes = {}
            for name, dims in tensors(case):
                shapes[re.sub(r"^blk\.\d+\.", "", name)] = list(reversed(dims))
            fact = {"case": case, "arch": arch, "layers": layers, "heads": heads, "kv_heads": kv, "experts": experts,
                    "shapes": shapes, "types": {}, "with_importance": {}}
            for name in NAMES:
                for key, given in (("types", None), ("with_importance", str(matrix))):
                    answer = ask(source, name, folder, given)
                    if answer and (key == "types" or answer != fact["types"].get(name)):
                        fact[key][name.removesuffix("_MOE")] = answer
            print(case, len(fact["types"]), "types,", len(fact["with_importance"]), "otherwise with importance")
            facts.append(fact)
    lines = ",\n".join(json.dumps(f, separators=(",", ":")) for f in facts)
    Path(sys.argv[1]).write_text(f'{{"facts":[\n{lines}]}}\n')


if __name__ == "__main__":
    main()
