"""Adapters: every module of every family against PEFT, both containers, mixed in one batch, and bad files."""
import json
import re
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from make_gguf import PERMUTED, Convert, permute, ungroup
from test_arch import read_tensors, write_tensors
from test_serve import Server

DATA = Path(__file__).resolve().parents[1] / "data"
CASES = sorted(p.name for p in (DATA / "lora").iterdir())


@pytest.fixture(scope="session")
def logits(quern):
    def run(base, ids, *flags):
        return quern("logits", base, "--tokens", ",".join(map(str, ids)), "--json", *flags).json()
    return run


def far(got, ref):
    return max(abs(a - b) for a, b in zip(got, ref))


@pytest.mark.parametrize("name", CASES)
def test_like_peft(logits, name):
    ref = json.loads((DATA / "lora" / name / "ref.json").read_text())
    base = DATA / "arch" / ref["base"]
    got = logits(base, ref["tokens"], "--exact", "--lora", DATA / "lora" / name)
    assert got["argmax"] == ref["argmax"]
    assert far(got["last"], ref["last"]) < 2e-4
    without = logits(base, ref["tokens"], "--exact")
    assert far(without["last"], ref["last"]) > 0.05


def ref_of(name):
    return json.loads((DATA / "lora" / name / "ref.json").read_text())


def arrays(name):
    """PEFT's tensors without the wrap and the copies of the model's own."""
    out = {}
    for key, (kind, shape, data) in read_tensors(DATA / "lora" / name / "adapter_model.safetensors").items():
        assert kind == "F32"
        if "base_layer.weight" not in key:
            out[key.removeprefix("base_model.model.")] = np.frombuffer(data, np.float32).reshape(shape)
    return out


def as_gguf(name, path):
    """The adapter as llama.cpp's converter writes it: GGUF's names, rows of B in GGUF's order."""
    convert = Convert(DATA / "arch" / ref_of(name)["base"])
    alpha = json.loads((DATA / "lora" / name / "adapter_config.json").read_text())["lora_alpha"]
    out = gguf.GGUFWriter(path, convert.arch)
    out.add_type("adapter")
    out.add_string("adapter.type", "lora")
    out.add_float32("adapter.lora.alpha", alpha)
    for key, w in arrays(name).items():
        module, side = re.fullmatch(r"(.*)\.lora_(?:embedding_)?([AB])(?:\.weight)?", key).groups()
        if side == "B" and "q_proj" in key and convert.arch in PERMUTED:
            w = permute(w, convert.heads)
        if side == "B" and "k_proj" in key and convert.arch in PERMUTED:
            w = permute(w, convert.kv_heads)
        if side == "B" and "query_key_value" in key:
            w = ungroup(w, convert.kv_heads, convert.head_dim)
        if side == "A" and "lora_embedding" in key:
            w = w.T
        out.add_tensor(f"{convert.map.get_name(module)}.weight.lora_{side.lower()}", np.ascontiguousarray(w))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


@pytest.fixture(scope="module")
def gguf_base(tmp_path_factory):
    """A model of test/data/arch as GGUF."""
    folder = tmp_path_factory.mktemp("gguf")

    def make(name):
        script = Path(__file__).with_name("make_gguf.py")
        subprocess.run([sys.executable, script, DATA / "arch", folder, name], check=True, capture_output=True)
        return folder / name / "model.gguf"
    return make


@pytest.mark.parametrize("name", ["llama", "falcon-40b", "phi3", "qwen2-moe", "deepseek-v2", "gpt-oss"])
def test_folder_on_gguf(logits, gguf_base, name):
    ref = ref_of(name)
    got = logits(gguf_base(ref["base"]), ref["tokens"], "--exact", "--lora", DATA / "lora" / name)
    assert far(got["last"], ref["last"]) < 2e-4


@pytest.mark.parametrize("name", ["llama", "llama-all", "falcon-40b", "phi3", "gpt2"])
def test_gguf_adapter(logits, gguf_base, tmp_path, name):
    """GGUF has one alpha for all, so that what PEFT's patterns say (llama-all) can only be compared with itself."""
    ref, want = ref_of(name), None
    adapter = as_gguf(name, tmp_path / "a.gguf")
    for base in DATA / "arch" / ref["base"], gguf_base(ref["base"]):
        got = logits(base, ref["tokens"], "--exact", "--lora", adapter)
        want = ref["last"] if name != "llama-all" else got["last"] if base.is_dir() else want
        assert far(got["last"], want) < 2e-4


def test_stacked_and_one_by_one(logits, tmp_path):
    """Experts by PEFT's older names, one module each, are what the wrapped parameter is."""
    config = json.loads((DATA / "arch" / "mixtral" / "config.json").read_text())
    experts, ref = config["num_local_experts"], ref_of("mixtral")
    tensors = {}
    for key, w in arrays("mixtral").items():
        m = re.fullmatch(r"(.*)mlp\.experts\.(base_layer\.)?lora_([AB])\.weight", key)
        if not m:
            tensors[key] = w
            continue
        for e in range(experts):
            names = ["w1", "w3"] if m[2] else ["w2"]  # the inner wrapper has gate and up
            for i, one in enumerate(names):
                part = w.reshape(experts, -1, w.shape[1])[e] if m[3] == "A" else \
                    np.split(w.reshape(w.shape[0], -1, experts)[:, :, e], len(names))[i]
                tensors[f"{m[1]}block_sparse_moe.experts.{e}.{one}.lora_{m[3]}.weight"] = part
    folder = write_adapter(tmp_path, tensors, lora_alpha=8)
    got = logits(DATA / "arch" / "mixtral", ref["tokens"], "--exact", "--lora", folder)
    assert far(got["last"], ref["last"]) < 2e-4


def write_adapter(folder, tensors, **config):
    write_tensors(folder / "adapter_model.safetensors",
                  {"base_model.model." + k: ("F32", w.shape, np.ascontiguousarray(w, np.float32).tobytes())
                   for k, w in tensors.items()})
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **config}))
    return folder


LAYER = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("change, says", [
    (lambda t: t.pop(f"{LAYER}.lora_B.weight"), "the other one of the pair"),
    (lambda t: t.update({f"{LAYER}.lora_A.weight": np.zeros((4, 31))}), "is expected"),
    (lambda t: t.update({f"{LAYER}.lora_B.weight": np.zeros((32, 3))}), "is expected"),
    (lambda t: t.update({"model.layers.9.self_attn.q_proj.lora_A.weight": np.zeros((4, 32)),
                         "model.layers.9.self_attn.q_proj.lora_B.weight": np.zeros((32, 4))}), "has no place"),
    (lambda t: t.update({"model.norm.weight": np.ones(32)}), "whole tensor"),
    (lambda t: t.clear(), "tensor"),
])
def test_bad_tensors(quern, tmp_path, change, says):
    tensors = arrays("llama")
    change(tensors)
    write_adapter(tmp_path, tensors)
    r = quern("logits", DATA / "arch" / "llama", "--tokens", "3", "--lora", tmp_path)
    assert r.code == 65 and says in r.err and "adapter" in r.err


@pytest.mark.parametrize("config, says", [({"use_dora": True}, "use_dora"), ({"peft_type": "IA3"}, "IA3"),
                                          ({"lora_alpha": "much"}, "lora_alpha")])
def test_bad_settings(quern, tmp_path, config, says):
    write_adapter(tmp_path, arrays("llama"), **config)
    r = quern("logits", DATA / "arch" / "llama", "--tokens", "3", "--lora", tmp_path)
    assert r.code == 65 and says in r.err


def test_wrong_files(quern, gguf_base, tmp_path):
    model, adapter = gguf_base("llama"), as_gguf("phi3", tmp_path / "a.gguf")
    for path, says in (adapter, "architecture phi3"), (model, "no adapter"), (tmp_path / "none", "open"), (tmp_path, "open"):
        r = quern("logits", DATA / "arch" / "llama", "--tokens", "3", "--lora", path)
        assert r.code == 65 and says in r.err


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory):
    """An adapter that makes SmolLM2 say something else."""
    rng = np.random.default_rng(7)
    tensors = {}
    for layer in range(0, 30, 3):
        for module, rows, cols in ("self_attn.q_proj", 576, 576), ("mlp.down_proj", 576, 1536):
            name = f"model.layers.{layer}.{module}.lora_"
            tensors[f"{name}A.weight"] = rng.normal(0, 0.2, (8, cols))
            tensors[f"{name}B.weight"] = rng.normal(0, 0.2, (rows, 8))
    return write_adapter(tmp_path_factory.mktemp("spoilt"), tensors, r=8, lora_alpha=8)


def test_run(quern, smollm2, spoilt):
    def say(*flags):
        return quern("run", smollm2, "-p", "Name the largest planet.", "-n", "12", "--temp", "0", "--device", "cpu",
                     *flags).out
    plain = say()
    assert say("--lora", f"x={spoilt}:0") == plain
    assert say("--lora", f"x={spoilt}:1") == say("--lora", spoilt) != plain


def test_serve(binary, smollm2, spoilt):
    s = Server(binary, smollm2, "--name", "smol", "--lora", f"bad={spoilt}", "--slots", "4", "--device", "cpu", "--deterministic")
    try:
        def ask(**more):
            body = {"prompt": "1, 2, 3, 4, 5, 6,", "max_tokens": 8, "temperature": 0, **more}
            status, _, text = s.request("POST", "/v1/completions", body)
            return status, json.loads(text)

        def say(**more):
            return ask(**more)[1]["choices"][0]["text"]
        plain = say()
        assert say(model="bad") == say(lora="bad") == say(lora=[{"id": 0}]) == say(lora=[{"name": "bad", "scale": 1}])
        assert say(model="bad") != plain
        assert say(lora="bad:0") == say(lora=[]) == plain
        models = json.loads(s.request("GET", "/v1/models")[2])["data"]
        assert [m["id"] for m in models] == ["smol", "bad"]
        assert [s.ask(f"/v1/models/{name}")["id"] for name in ("smol", "bad")] == ["smol", "bad"]
        assert s.request("GET", "/v1/models/nobody")[0] == 404
        for lora in "nobody", [{"id": 1}], [{"scale": 1}], ["bad"]:
            status, answer = ask(lora=lora)
            assert status == 400 and answer["error"]["param"] == "lora"
    finally:
        assert s.stop() == 0
