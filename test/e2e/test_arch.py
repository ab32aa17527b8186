"""The model layer through `quern logits`: reference folders, other spellings of the same model, bad models, real files."""
import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).resolve().parents[1] / "data" / "arch"
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def read_tensors(path):
    """name -> (dtype, shape, bytes)"""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    return {k: (v["dtype"], v["shape"], body[slice(*v["data_offsets"])]) for k, v in header.items() if k != "__metadata__"}


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def floats(tensor):
    return (np.frombuffer(tensor[2], np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(tensor[1])


def bf16(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return "BF16", list(values.shape), ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()


class Folder:
    """A reference folder that a test may change."""

    def __init__(self, name, to):
        self.path, self.tensors = to, read_tensors(DATA / name / "model.safetensors")
        self.config = json.loads((DATA / name / "config.json").read_text())
        self.ref = json.loads((DATA / name / "ref.json").read_text())["cases"][-1]

    def write(self):
        self.path.mkdir(parents=True, exist_ok=True)
        write_tensors(self.path / "model.safetensors", self.tensors)
        (self.path / "config.json").write_text(json.dumps(self.config))
        return self.path


@pytest.fixture
def folder(tmp_path):
    return lambda name, to="model": Folder(name, tmp_path / to)


def tokens_of(ids):
    return ",".join(map(str, ids))


@pytest.fixture(scope="session")
def logits(quern):
    def run(path, ids, *flags):
        return quern("logits", path, "--tokens", tokens_of(ids), "--json", *flags).json()
    return run


def check(got, ref, most, sure):
    """sure: how far apart the two best of ours must be for the best to count."""
    last = ref.get("last") or ref["last_logits"]
    assert len(got["last"]) == len(last)
    assert max(abs(a - b) for a, b in zip(got["last"], last)) <= most
    best, second = sorted(got["last"])[-1:-3:-1]
    assert got["argmax"][-1] == ref["argmax"][-1] or best - second < sure


SHARED = ["gemma3_text", "gpt2", "llama", "llama3_rope", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe"]


@pytest.mark.parametrize("name", SHARED)
def test_shared_references(shared, logits, name):
    path = shared / "ref" / "arch" / name
    for case in json.loads((path / "ref.json").read_text())["cases"][1::2]:
        exact = logits(path, case["tokens"], "--exact")
        check(exact, case, 2e-3, 4e-3)
        assert sum(a != b for a, b in zip(exact["argmax"], case["argmax"])) == 0
        check(logits(path, case["tokens"]), case, 0.1, 0.2)


def test_greedy(shared, logits):
    path = shared / "ref" / "arch" / "gemma3_text"
    case = json.loads((path / "ref.json").read_text())["cases"][1]
    ids = case["tokens"] + case["greedy"]
    assert logits(path, ids[:-1], "--exact")["argmax"][-len(case["greedy"]):] == case["greedy"]


def same(logits, folder, flags=("--exact",)):
    check(logits(folder.write(), folder.ref["tokens"], *flags), folder.ref, 2e-3, 4e-3)


@pytest.mark.parametrize("name", ["llama", "llama-yarn", "llama-llama3", "llama-dynamic", "phi3-long", "qwen2"])
def test_older_spelling_of_rope(folder, logits, name):
    f = folder(name)
    rope = f.config.pop("rope_parameters")
    f.config["rope_theta"] = rope.pop("rope_theta")
    f.config["partial_rotary_factor"] = rope.pop("partial_rotary_factor", 1.0)
    kind = rope.pop("rope_type")
    f.config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    same(logits, f)


def test_older_spelling_of_gemma3(folder, logits):
    f = folder("gemma3")
    rope = f.config.pop("rope_parameters")
    f.config["rope_theta"] = rope["full_attention"]["rope_theta"]
    f.config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    f.config["rope_scaling"] = {"rope_type": "linear", "factor": rope["full_attention"]["factor"]}
    same(logits, f)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model.", ""])
def test_inside_a_wrapper(folder, logits, prefix):
    f = folder("llama")
    f.tensors = {k.replace("model.", prefix, 1) if k.startswith("model.") else "language_model." + k: v
                 for k, v in f.tensors.items()}
    f.tensors["vision_tower.encoder.layers.0.mlp.fc1.weight"] = bf16(np.zeros((4, 4), np.float32))
    f.config = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "text_config": f.config}
    same(logits, f)


def test_class_instead_of_model_type(folder, logits):
    f = folder("qwen2-moe")
    del f.config["model_type"]
    same(logits, f)


@pytest.mark.parametrize("name", ["qwen3-moe", "mixtral"])
def test_stacked_experts(folder, logits, name):
    f = folder(name)
    parts = ("gate_proj", "up_proj", "down_proj") if name == "qwen3-moe" else ("w1", "w3", "w2")
    block = "mlp" if name == "qwen3-moe" else "block_sparse_moe"
    count = f.config.get("num_experts") or f.config["num_local_experts"]
    for layer in range(f.config["num_hidden_layers"]):
        base = f"model.layers.{layer}.{block}.experts."
        gate, up, down = (np.stack([floats(f.tensors.pop(f"{base}{i}.{p}.weight")) for i in range(count)]) for p in parts)
        f.tensors[base + "gate_up_proj"] = bf16(np.concatenate([gate, up], 1))
        f.tensors[base + "down_proj"] = bf16(down)
    same(logits, f)


def fp8(values):
    """E4M3 by search: the code of the nearest value."""
    codes = np.arange(256)
    sign, exp, man = codes >> 7, codes >> 3 & 15, codes & 7
    table = np.where(exp == 0, man / 8 * 2.0 ** -6, (1 + man / 8) * 2.0 ** (exp - 7.0)) * np.where(sign, -1, 1)
    table[(codes & 127) == 127] = 1e9
    code = np.abs(values[..., None] - table).argmin(-1)
    return code.astype(np.uint8), table[code].astype(np.float32)


@pytest.mark.parametrize("scales", ["block", "row", "tensor"])
def test_fp8_weights(folder, logits, scales):
    f, plain = folder("qwen3-moe", "fp8"), folder("qwen3-moe", "plain")
    rng = np.random.default_rng(1)
    for name, tensor in list(f.tensors.items()):
        if not name.endswith("proj.weight"):
            continue
        rows, cols = tensor[1]
        code, value = fp8(floats(tensor) * 64)
        shape = {"block": (-(-rows // 16), -(-cols // 8)), "row": (rows, 1), "tensor": (1, 1)}[scales]
        scale = rng.uniform(0.5, 2, shape).astype(np.float32) / 64
        whole = np.kron(scale, np.ones((16, 8)))[:rows, :cols] if scales == "block" else np.broadcast_to(scale, (rows, cols))
        f.tensors[name] = ("F8_E4M3", [rows, cols], code.tobytes())
        suffix = "weight_scale_inv" if scales == "block" else "weight_scale"
        f.tensors[name.replace("weight", suffix)] = ("F32", list(shape), scale.tobytes())
        plain.tensors[name] = bf16(value * whole.astype(np.float32))
    f.config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [16, 8]}
    ids = f.ref["tokens"]
    assert logits(f.write(), ids, "--exact") == logits(plain.write(), ids, "--exact")


def test_mxfp4_experts(folder, logits):
    f, plain = folder("gpt-oss", "mxfp4"), folder("gpt-oss", "plain")
    rng = np.random.default_rng(2)
    count, ffn, width = 4, 32, f.config["hidden_size"]
    for layer in range(f.config["num_hidden_layers"]):
        base = f"model.layers.{layer}.mlp.experts."
        for name, rows, cols in (("gate_up_proj", 2 * ffn, width), ("down_proj", width, ffn)):
            blocks = rng.integers(0, 256, (count, rows, cols // 32, 16), np.uint8)
            powers = rng.integers(122, 126, (count, rows, cols // 32), np.uint8)
            values = np.stack([FP4[blocks & 15], FP4[blocks >> 4]], -1).reshape(count, rows, cols // 32, 32)
            values = (values * 2.0 ** (powers[..., None].astype(np.float32) - 127)).reshape(count, rows, cols)
            del f.tensors[base + name]
            f.tensors[base + name + "_blocks"] = ("U8", blocks.shape, blocks.tobytes())
            f.tensors[base + name + "_scales"] = ("U8", powers.shape, powers.tobytes())
            plain.tensors[base + name] = bf16(values.swapaxes(1, 2))
            bias = bf16(rng.normal(0, 0.2, (count, rows)).astype(np.float32))
            f.tensors[base + name + "_bias"] = plain.tensors[base + name + "_bias"] = bias
    f.config["intermediate_size"] = plain.config["intermediate_size"] = ffn
    f.config["quantization_config"] = {"quant_method": "mxfp4"}
    ids = f.ref["tokens"]
    a, b = (logits(x.write(), ids, "--exact")["last"] for x in (f, plain))
    assert max(abs(x - y) for x, y in zip(a, b)) < 1e-4


def set_key(key, value):
    return lambda f: f.config.__setitem__(key, value)


def drop(name):
    return lambda f: f.tensors.pop(name)


def cut(name):
    return lambda f: f.tensors.__setitem__(name, bf16(floats(f.tensors[name])[:-1]))


@pytest.mark.parametrize("harm, words", [
    (set_key("model_type", "wizard"), ['"wizard"', "not known", "similar"]),
    (set_key("model_type", "lama"), ['"lama"', "nearest", "llama"]),
    (set_key("model_type", "qwen9_vl_next"), ["nearest", "qwen"]),
    (set_key("num_attention_heads", 0), ["attention has no heads"]),
    (set_key("num_attention_heads", "4"), ["num_attention_heads", '"4"']),
    (set_key("num_key_value_heads", 3), ["3 key-value heads", "4 heads"]),
    (set_key("hidden_size", 2 ** 40), ["hidden_size"]),
    (set_key("hidden_size", 33), ["model.embed_tokens.weight", "(64, 32)", "(64, 33)"]),
    (set_key("num_hidden_layers", 3), ["model.layers.2.", "no tensor"]),
    (set_key("hidden_act", "sine"), ["sine", "silu"]),
    (set_key("rms_norm_eps", -1), ["-1"]),
    (set_key("rope_parameters", {"rope_type": "spiral"}), ["spiral", "yarn"]),
    (set_key("rope_parameters", {"rope_type": "llama3"}), ["llama3", "low_freq_factor"]),
    (set_key("rope_parameters", {"rope_type": "longrope", "short_factor": [1, 2]}), ["long_factor"]),
    (set_key("quantization_config", {"quant_method": "gptq"}), ["GPTQ"]),
    (lambda f: f.config.clear(), ["architecture"]),
    (drop("model.norm.weight"), ["model.norm.weight"]),
    (drop("model.layers.1.mlp.up_proj.weight"), ["model.layers.1.mlp.up_proj.weight", "llama"]),
    (cut("model.layers.0.self_attn.q_proj.weight"), ["q_proj.weight", "(31, 32)", "(32, 32)"]),
    (cut("model.norm.weight"), ["model.norm.weight", "31", "32"]),
])
def test_bad_models_say_why(folder, quern, harm, words):
    f = folder("llama")
    harm(f)
    r = quern("logits", f.write(), "--tokens", "1,2", "--json")
    assert r.code == 65 and r.out == ""
    for word in words:
        assert word in r.err


@pytest.mark.parametrize("ids, code, word", [("1,x", 64, '"x"'), ("", 64, "token id"), ("1,64", 65, "vocabulary of 64"),
                                             (tokens_of([1] * 129), 0, "1 more than")])
def test_bad_tokens(quern, ids, code, word):
    r = quern("logits", DATA / "llama", "--tokens", ids, "--json")
    assert r.code == code and word in r.err


def test_learned_positions_end(quern):
    r = quern("logits", DATA / "gpt2", "--tokens", tokens_of([1] * 65), "--json")
    assert r.code == 75 and "1 more than the context" in r.err


def test_a_context_of_learned_positions(quern):
    done = quern("bench", DATA / "gpt2", "--no-parity", "-p", "60", "-n", "0", "-c", "300", "-r", "1")
    assert done.code == 0 and "a context of 300 tokens is more than the 64 positions that the model has learnt: it is 64" in done.err
    done = quern("bench", DATA / "gpt2", "--no-parity", "-p", "100", "-n", "0", "-r", "1")
    assert done.code and "100 tokens do not fit into the context of 64" in done.err


def test_alibi_is_refused(folder, quern):
    f = folder("falcon-7b")
    f.config["alibi"] = True
    r = quern("logits", f.write(), "--tokens", "1")
    assert r.code == 65 and "alibi" in r.err


FAMILIES = ["cohere2", "deepseek_v32", "ernie4_5", "gemma3n_text", "gemma4_e", "gemma4_moe", "glm4", "glm4_moe", "helium",
            "llama4_text_gguf", "longcat_flash", "minicpm3", "ministral3", "afmoe", "apertus", "bitnet", "dots1", "exaone4_full",
            "granitemoe", "hunyuan_v1_dense", "minimax_m2", "nemotron", "olmo3", "phimoe"]


@pytest.mark.parametrize("name", FAMILIES)
def test_family_references(shared, logits, name):
    folder = shared / "ref" / "families" / name
    case = json.loads((folder / "ref.json").read_text())["cases"][-1]
    for path in [folder] + list(folder.glob("model.gguf")):
        exact = logits(path, case["tokens"], "--exact")
        check(exact, case, 2e-3, 4e-3)
        assert exact["argmax"] == case["argmax"]
        check(logits(path, case["tokens"]), case, 0.1, 0.2)


@pytest.mark.parametrize("harm, words", [(set_key("model_type", "lama"), ["not known", "nearest", "llama"]),
                                         (drop("model.layers.1.mlp.up_proj.weight"), ["model.layers.1.mlp.up_proj"])])
def test_info_says_what_is_missing(folder, quern, harm, words):
    f = folder("llama")
    harm(f)
    text = quern("info", f.write()).out
    facts = quern("info", f.write(), "--json").json()
    assert all(word in text and word in facts["problem"] for word in words)
    assert "problem" not in quern("info", DATA / "llama", "--json").json()
