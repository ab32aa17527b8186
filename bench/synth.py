#!/usr/bin/env python3
"""A GGUF file with a real model's shapes and random weights: bench/synth.py PRESET OUT.gguf [--type q4_k_m] [--layers N]

Speed depends on shapes and types, not on what the weights say, so a benchmark of a model needs no download. The weights
are random blocks, valid in their type and scaled so that activations and logits stay finite; a few megabytes of them are
repeated, so that ten gigabytes take some seconds. Presets of towers give mmproj files, for `quern bench FILE --image`. The vocabulary is made up: 256 bytes, then one word an id. Needs Python
alone.
"""
import argparse
import array
import os
import random
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace


@dataclass
class Shape:
    arch: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    dim: int
    ffn: int
    vocab: int
    tied: bool = False
    bias: bool = False     # of Q, K and V
    qk_norm: bool = False
    rope: float = 1e6
    experts: int = 0
    used: int = 0
    shared: int = 0        # width of the shared expert
    oss: bool = False      # gpt-oss: sinks, biases everywhere, windows
    delta: tuple = ()      # qwen3.5: heads of keys, heads of values, size; three layers of four are gated delta rules
    mlstm: tuple = ()      # xlstm: heads, sizes of their keys and values
    post_norm: bool = False  # gemma: norms behind attention and feed-forward
    stacked: int = 0       # qwen3-vl: rows of the tower that are added in the first layers


PRESETS = {
    "smollm2-135m": Shape("llama", 30, 576, 9, 3, 64, 1536, 49152, tied=True, rope=1e5),
    "qwen2.5-0.5b": Shape("qwen2", 24, 896, 14, 2, 64, 4864, 151936, tied=True, bias=True),
    "qwen2.5-1.5b": Shape("qwen2", 28, 1536, 12, 2, 128, 8960, 151936, tied=True, bias=True),
    "qwen2.5-7b": Shape("qwen2", 28, 3584, 28, 4, 128, 18944, 152064, bias=True),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, tied=True, qk_norm=True),
    "qwen3-8b": Shape("qwen3", 36, 4096, 32, 8, 128, 12288, 151936, qk_norm=True),
    "qwen3-30b-a3b": Shape("qwen3moe", 48, 2048, 32, 4, 128, 768, 151936, qk_norm=True, experts=128, used=8),
    "qwen2-57b-a14b": Shape("qwen2moe", 28, 3584, 28, 4, 128, 2560, 151936, bias=True, experts=64, used=8, shared=20480),
    "gpt-oss-20b": Shape("gpt-oss", 24, 2880, 64, 8, 64, 2880, 201088, rope=150000.0, bias=True, experts=32, used=4, oss=True),
    "qwen3.5-9b": Shape("qwen35", 32, 4096, 16, 4, 256, 12288, 248320, qk_norm=True, rope=1e7, delta=(16, 32, 128)),
    "qwen3.5-35b-a3b": Shape("qwen35moe", 40, 2048, 16, 2, 256, 512, 248320, qk_norm=True, rope=1e7, experts=256, used=8,
                             shared=512, delta=(16, 32, 128)),
    "xlstm-7b": Shape("xlstm", 32, 4096, 8, 0, 512, 10944, 50304, mlstm=(8, 256, 512)),
    "llama3.2-1b": Shape("llama", 16, 2048, 32, 8, 64, 8192, 128256, tied=True, rope=5e5),
    "llama3-8b": Shape("llama", 32, 4096, 32, 8, 128, 14336, 128256, rope=5e5),
    "llama3-70b": Shape("llama", 80, 8192, 64, 8, 128, 28672, 128256, rope=5e5),
    # One layer: a text model that other programs want beside the tower of the same width
    "gemma3-stub": Shape("gemma3", 1, 1024, 4, 1, 256, 1024, 1024, tied=True, qk_norm=True, post_norm=True),
    "qwen3-vl-stub": Shape("qwen3vl", 1, 1024, 16, 8, 128, 1024, 1024, tied=True, qk_norm=True, stacked=3),
}


@dataclass
class Tower:
    """A tower for images, as mmproj files have it: matrices are F16."""
    projector: str
    layers: int
    width: int
    heads: int
    ffn: int
    patch: int
    side: int              # of the images that it was trained with, in pixels
    merge: int
    out: int               # width of the text model
    deepstack: tuple = ()


TOWERS = {
    "siglip-so400m": Tower("gemma3", 27, 1152, 16, 4304, 14, 896, 4, 1024),
    "qwen3-vl-tower": Tower("qwen3vl_merger", 24, 1024, 16, 4096, 16, 768, 2, 1024, deepstack=(5, 11, 17)),
}
# GGML type id, values a block, bytes a block, fp16 numbers of a block: (offset, value)
TYPES = {
    "F32": (0, 1, 4, ()), "F16": (1, 1, 2, ()), "BF16": (30, 1, 2, ()),
    "Q4_0": (2, 32, 18, ((0, 4.3e-3),)), "Q4_1": (3, 32, 20, ((0, 4.3e-3), (2, -3.2e-2))),
    "Q5_0": (6, 32, 22, ((0, 2.2e-3),)), "Q5_1": (7, 32, 24, ((0, 2.2e-3), (2, -3.4e-2))),
    "Q8_0": (8, 32, 34, ((0, 2.7e-4),)),
    "Q2_K": (10, 256, 84, ((80, 1.7e-3), (82, 2.6e-3))), "Q3_K": (11, 256, 110, ((108, 4.8e-4),)),
    "Q4_K": (12, 256, 144, ((0, 1e-4), (2, 7.5e-4))), "Q5_K": (13, 256, 176, ((0, 5e-5), (2, 7.5e-4))),
    "Q6_K": (14, 256, 210, ((208, 1.5e-5),)),
    "IQ4_NL": (20, 32, 18, ((0, 2.9e-4),)), "IQ4_XS": (23, 256, 136, ((0, 1.6e-5),)),
    "MXFP4": (39, 32, 17, ()),
}
FILE_TYPE = {"f16": 1, "bf16": 32, "q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7, "q2_k": 10, "q3_k_m": 12, "q4_k_m": 15,
             "q5_k_m": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30, "mxfp4": 38}
ALIGN, SLAB, PIECE = 32, 24 << 20, 64 << 20


def slab(kind, rng):
    """A run of random blocks with weights of about 0.02."""
    _, _, size, halves = TYPES[kind]
    n = SLAB // size
    if kind in ("F16", "BF16"):  # +-2^-6 to +-2^-5: sign and mantissa are random
        low = rng.randbytes(n)
        high, top, fraction = ((0x24, 0x80, 0x03) if kind == "F16" else (0x3C, 0x80, 0x00))
        if kind == "BF16":
            low = low.translate(bytes(b & 0x7F | 0x80 for b in range(256)))
        data = bytearray(2 * n)
        data[0::2] = low
        data[1::2] = rng.randbytes(n).translate(bytes(high | b & (top | fraction) for b in range(256)))
        return bytes(data)
    data = bytearray(rng.randbytes(n * size))
    for at, value in halves:
        for i, byte in enumerate(struct.pack("<e", value)):
            data[at + i::size] = bytes([byte]) * n
    if kind == "MXFP4":  # the exponent
        data[0::size] = bytes([120]) * n
    return bytes(data)


def kind_of(name, layer, ftype, layers, cols):
    """The types that the usual recipes of that name give."""
    if ftype == "mxfp4":
        return "MXFP4" if name.endswith("exps") else "Q8_0"
    if ftype in ("f16", "bf16", "q8_0"):
        return ftype.upper()
    base = ftype.upper().removesuffix("_M")
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    kind = "Q6_K" if name == "output" or (ftype.endswith("k_m") and more and name in ("attn_v", "ffn_down", "ffn_down_exps")) else base
    if TYPES[kind][1] == 256 and cols % 256:
        kind = "Q8_0" if kind == "Q6_K" else "IQ4_NL" if kind == "IQ4_XS" else "Q5_0"
    return kind


def after(s, l, mat, vec):
    """What follows attention in a layer: norm and feed-forward."""
    d = s.width
    if s.post_norm:
        yield vec("post_attention_norm", l, d)
        yield vec("post_ffw_norm", l, d)
    yield vec("post_attention_norm" if s.oss or s.delta else "ffn_norm", l, d)
    if not s.experts:
        for name, cols, rows in (("ffn_gate", d, s.ffn), ("ffn_up", d, s.ffn), ("ffn_down", s.ffn, d)):
            yield mat(name, l, cols, rows)
        return
    yield vec("ffn_gate_inp", l, d, s.experts)
    if s.oss:
        yield vec("ffn_gate_inp", l, s.experts, what="bias")
    for name, cols, rows in (("ffn_gate_exps", d, s.ffn), ("ffn_up_exps", d, s.ffn), ("ffn_down_exps", s.ffn, d)):
        yield mat(name, l, cols, rows, s.experts)
        if s.oss:
            yield vec(name, l, rows, s.experts, what="bias")
    if s.shared:
        yield vec("ffn_gate_inp_shexp", l, d)
        for name, cols, rows in (("ffn_gate_shexp", d, s.shared), ("ffn_up_shexp", d, s.shared), ("ffn_down_shexp", s.shared, d)):
            yield mat(name, l, cols, rows)


def tensors(s, ftype, layers):
    """(name, shape with the fastest dimension first, type) in the order of the file."""
    def mat(name, l, *shape):
        return (f"blk.{l}.{name}.weight", shape, kind_of(name, l, ftype, layers, shape[0]))

    def vec(name, l, *shape, what="weight"):
        return (f"blk.{l}.{name}.{what}", shape, "F32")

    d = s.width
    yield ("token_embd.weight", (d, s.vocab), kind_of("output" if s.tied else "token_embd", 0, ftype, layers, d))
    for l in range(layers):
        yield vec("attn_norm", l, d)
        if s.delta and l % 4 != 3:
            k, v = s.delta[0] * s.delta[2], s.delta[1] * s.delta[2]
            for name, n in (("attn_qkv", 2 * k + v), ("attn_gate", v), ("ssm_alpha", s.delta[1]), ("ssm_beta", s.delta[1])):
                yield mat(name, l, d, n)
            yield vec("ssm_conv1d", l, 4, 2 * k + v)
            yield (f"blk.{l}.ssm_a", (s.delta[1],), "F32")
            yield vec("ssm_dt", l, s.delta[1], what="bias")
            yield vec("ssm_norm", l, s.delta[2])
            yield mat("ssm_out", l, v, d)
            yield from after(s, l, mat, vec)
            continue
        if s.mlstm:
            heads, k, v = s.mlstm[0], s.mlstm[0] * s.mlstm[1], s.mlstm[0] * s.mlstm[2]
            for name, n in (("attn_q", k), ("attn_k", k), ("attn_v", v), ("attn_gate", v)):
                yield mat(name, l, d, n)
            for name in ("mlstm_input_gate", "mlstm_forget_gate"):
                yield mat(name, l, d, heads)
                yield vec(name, l, heads, what="bias")
            yield vec("ssm_norm", l, v)
            yield mat("ssm_out", l, v, d)
            yield from after(s, l, mat, vec)
            continue
        for name, n in (("attn_q", s.heads * s.dim * (2 if s.delta else 1)), ("attn_k", s.kv_heads * s.dim), ("attn_v", s.kv_heads * s.dim)):
            yield mat(name, l, d, n)
            if s.bias:
                yield vec(name, l, n, what="bias")
        if s.qk_norm:
            yield vec("attn_q_norm", l, s.dim)
            yield vec("attn_k_norm", l, s.dim)
        yield mat("attn_output", l, s.heads * s.dim, d)
        if s.oss:
            yield vec("attn_output", l, d, what="bias")
            yield vec("attn_sinks", l, s.heads)
        yield from after(s, l, mat, vec)
    yield ("output_norm.weight", (d,), "F32")
    if not s.tied:
        yield ("output.weight", (d, s.vocab), kind_of("output", 0, ftype, layers, d))


def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def vocabulary(vocab):
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    words = [chr(b if b in printable else next(spare)) for b in range(256)]
    return words + [f"\u0120w{i}" for i in range(256, vocab - 3)] + ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def metadata(preset, s, ftype, layers):
    u32 = lambda v: struct.pack("<II", 4, v)
    f32 = lambda v: struct.pack("<If", 6, v)
    string = lambda v: struct.pack("<I", 8) + text(v)
    several = lambda kind, body, n: struct.pack("<IIQ", 9, kind, n) + body
    a = s.arch
    kv = {
        "general.architecture": string(a), "general.name": string(f"synthetic {preset}"),
        "general.file_type": u32(FILE_TYPE[ftype]), "general.quantization_version": u32(2),
        f"{a}.block_count": u32(layers), f"{a}.context_length": u32(32768), f"{a}.embedding_length": u32(s.width),
        f"{a}.feed_forward_length": u32(s.ffn), f"{a}.attention.head_count": u32(s.heads),
        f"{a}.attention.head_count_kv": u32(s.kv_heads), f"{a}.attention.key_length": u32(s.dim),
        f"{a}.attention.value_length": u32(s.dim), f"{a}.rope.dimension_count": u32(s.dim),
        f"{a}.rope.freq_base": f32(s.rope), f"{a}.attention.layer_norm_rms_epsilon": f32(1e-6), f"{a}.vocab_size": u32(s.vocab),
        "tokenizer.ggml.model": string("gpt2"), "tokenizer.ggml.pre": string("llama-bpe" if a == "llama" else "qwen2"),
        "tokenizer.ggml.tokens": several(8, b"".join(map(text, vocabulary(s.vocab))), s.vocab),
        "tokenizer.ggml.token_type": several(5, struct.pack("<i", 1) * (s.vocab - 3) + struct.pack("<i", 3) * 3, s.vocab),
        "tokenizer.ggml.merges": several(8, text("\u0120 w"), 1),
        "tokenizer.ggml.bos_token_id": u32(s.vocab - 3), "tokenizer.ggml.eos_token_id": u32(s.vocab - 1),
        "tokenizer.chat_template": string(
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"),
    }
    if s.experts:
        kv |= {f"{a}.expert_count": u32(s.experts), f"{a}.expert_used_count": u32(s.used),
               f"{a}.expert_feed_forward_length": u32(s.ffn)}
    if s.shared:
        kv[f"{a}.expert_shared_feed_forward_length"] = u32(s.shared)
    if s.delta:
        keys, values, size = s.delta
        kv |= {f"{a}.ssm.conv_kernel": u32(4), f"{a}.ssm.state_size": u32(size), f"{a}.ssm.group_count": u32(keys),
               f"{a}.ssm.time_step_rank": u32(values), f"{a}.ssm.inner_size": u32(values * size),
               f"{a}.full_attention_interval": u32(4), f"{a}.rope.dimension_count": u32(s.dim // 4),
               f"{a}.rope.dimension_sections": several(5, struct.pack("<4i", 11, 11, 10, 0), 4)}
    if s.mlstm:
        heads, keys, values = s.mlstm
        kv |= {f"{a}.ssm.state_size": u32(keys), f"{a}.ssm.group_count": u32(heads), f"{a}.ssm.time_step_rank": u32(heads),
               f"{a}.ssm.inner_size": u32(heads * values), f"{a}.wkv.norm_epsilon": f32(1e-6),
               f"{a}.attn_logit_softcapping": f32(15.0), f"{a}.final_logit_softcapping": f32(30.0)}
    if s.post_norm:
        kv[f"{a}.attention.sliding_window"] = u32(1024)
    if s.stacked:
        kv |= {f"{a}.n_deepstack_layers": u32(s.stacked),
               f"{a}.rope.dimension_sections": several(5, struct.pack("<4i", 24, 20, 20, 0), 4)}
    if s.oss:
        kv |= {f"{a}.attention.sliding_window": u32(128), f"{a}.rope.scaling.type": string("yarn"),
               f"{a}.rope.scaling.factor": f32(32.0), f"{a}.rope.scaling.original_context_length": u32(4096)}
    return kv


def tower_metadata(preset, t):
    u32 = lambda v: struct.pack("<II", 4, v)
    f32 = lambda v: struct.pack("<If", 6, v)
    flag = lambda v: struct.pack("<I?", 7, v)
    string = lambda v: struct.pack("<I", 8) + text(v)
    floats3 = lambda v: struct.pack("<IIQ3f", 9, 6, 3, v, v, v)
    v = "clip.vision"
    kv = {
        "general.architecture": string("clip"), "general.type": string("mmproj"), "general.name": string(f"synthetic {preset}"),
        "general.file_type": u32(1), "general.quantization_version": u32(2), "clip.has_vision_encoder": flag(True),
        "clip.projector_type": string(t.projector), "clip.use_gelu": flag(True), f"{v}.projection_dim": u32(t.out),
        f"{v}.image_size": u32(t.side), f"{v}.patch_size": u32(t.patch), f"{v}.embedding_length": u32(t.width),
        f"{v}.feed_forward_length": u32(t.ffn), f"{v}.block_count": u32(t.layers), f"{v}.attention.head_count": u32(t.heads),
        f"{v}.attention.layer_norm_epsilon": f32(1e-6), f"{v}.image_mean": floats3(0.5), f"{v}.image_std": floats3(0.5),
    }
    if t.projector != "gemma3":
        kv[f"{v}.spatial_merge_size"] = u32(t.merge)
        flags = bytes(i in t.deepstack for i in range(t.layers))
        kv[f"{v}.is_deepstack_layers"] = struct.pack("<IIQ", 9, 7, t.layers) + flags
    return kv


def tower_tensors(t):
    mat = lambda name, cols, rows: [(f"{name}.weight", (cols, rows), "F16"), (f"{name}.bias", (rows,), "F32")]
    norm = lambda name, n: [(f"{name}.weight", (n,), "F32"), (f"{name}.bias", (n,), "F32")]
    gemma = t.projector == "gemma3"
    kernel, merged = (t.patch, t.patch, 3, t.width), t.width * t.merge**2
    out = [("v.patch_embd.weight", kernel, "F16"), ("v.patch_embd.bias", (t.width,), "F32"),
           ("v.position_embd.weight", (t.width, (t.side // t.patch)**2), "F32"), *norm("v.post_ln", t.width)]
    if not gemma:
        out.append(("v.patch_embd.weight.1", kernel, "F16"))
    for i in range(t.layers):
        b = f"v.blk.{i}."
        heads = [b + "attn_q", b + "attn_k", b + "attn_v"] if gemma else [b + "attn_qkv"]
        for name in heads:
            out += mat(name, t.width, t.width if gemma else 3 * t.width)
        out += mat(b + "attn_out", t.width, t.width) + mat(b + "ffn_up", t.width, t.ffn) + mat(b + "ffn_down", t.ffn, t.width)
        out += norm(b + "ln1", t.width) + norm(b + "ln2", t.width)
    if gemma:
        return out + [("mm.input_projection.weight", (t.out, t.width), "F16"), ("mm.soft_emb_norm.weight", (t.width,), "F32")]
    out += mat("mm.0", merged, merged) + mat("mm.2", merged, t.out)
    for i in t.deepstack:
        b = f"v.deepstack.{i}."
        out += norm(b + "norm", merged) + mat(b + "fc1", merged, merged) + mat(b + "fc2", merged, t.out)
    return out


def floats(name, n, rng):
    if name.endswith("ssm_a"):  # -exp(A_log)
        return array.array("f", (-rng.uniform(0.1, 2.0) for _ in range(n)))
    if name.endswith(("norm.weight", "ln1.weight", "ln2.weight", "post_ln.weight")):
        return array.array("f", [1.0]) * n
    pool = array.array("f", (rng.gauss(0.0, 0.02) for _ in range(min(n, 4099))))
    values = pool * (n // len(pool) + 1)  # a prime number of them, so that rows differ
    return values[:n]


def write(path, kv, todo, seed):
    rng = random.Random(seed)
    size_of = lambda shape, kind: product(shape) // TYPES[kind][1] * TYPES[kind][2]
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(todo), len(kv)) + b"".join(text(k) + v for k, v in kv.items())
    places, at = [], 0
    for name, shape, kind in todo:
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, TYPES[kind][0], at)
        places.append(at)
        at += -(-size_of(shape, kind) // ALIGN) * ALIGN
    head += b"\0" * (-len(head) % ALIGN)
    slabs = {kind: memoryview(slab(kind, rng)) for kind in sorted({k for _, _, k in todo} - {"F32"})}
    jobs = [(len(head) + start, size_of(shape, kind), kind, name) for (name, shape, kind), start in zip(todo, places)]
    with open(path, "wb") as f:
        f.truncate(len(head) + at)
        f.write(head)
        f.flush()

        def fill(job):
            where, size, kind, name = job
            local = random.Random(f"{seed} {name}")
            if kind == "F32":
                os.pwrite(f.fileno(), floats(name, size // 4, local).tobytes(), where)
                return
            data, block, done = slabs[kind], TYPES[kind][2], 0
            first = local.randrange(len(data) // block) * block
            while done < size:
                n = min(size - done, len(data) - first, PIECE)
                os.pwrite(f.fileno(), data[first:first + n], where + done)
                done, first = done + n, (first + n) % len(data)

        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            list(pool.map(fill, jobs))
    return at


def product(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("preset", choices=[*PRESETS, *TOWERS])
    p.add_argument("out")
    p.add_argument("--type", default="q4_k_m", choices=FILE_TYPE)
    p.add_argument("--layers", type=int, default=0, help="fewer layers than the real model has")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    if a.preset in TOWERS:
        t = TOWERS[a.preset]
        if a.layers:
            t = replace(t, layers=a.layers, deepstack=tuple(range(len(t.deepstack)))[:a.layers])
        size = write(a.out, tower_metadata(a.preset, t), tower_tensors(t), a.seed)
        print(f"{a.out}: {size / 1e9:.2f} GB", file=sys.stderr)
        return
    s = PRESETS[a.preset]
    layers = a.layers or s.layers
    size = write(a.out, metadata(a.preset, s, a.type, layers), list(tensors(s, a.type, layers)), a.seed)
    print(f"{a.out}: {size / 1e9:.2f} GB", file=sys.stderr)


if __name__ == "__main__":
    main()
