"""quern info: what the writers of both formats wrote is what is read back."""
import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from conftest import ROOT

KEYS = ["path", "format", "architecture", "name", "license", "parameters", "bytes", "bits_per_weight", "context",
        "layers", "width", "heads", "kv_heads", "head_dim", "ffn", "experts", "vocab", "tokenizer", "template", "types",
        "memory"]


def raw(tensor):
    """The bytes of a tensor where quern says that they lie."""
    with open(tensor["file"], "rb") as f:
        f.seek(tensor["offset"])
        return f.read(tensor["bytes"])


def write_gguf(path, arch="llama", **writer):
    """A GGUF with a key of every type and tensors of several; returns what was written."""
    rng = np.random.default_rng(7)
    w = gguf.GGUFWriter(path, arch, **writer)
    scalars = {"t.u8": (w.add_uint8, 200), "t.i8": (w.add_int8, -100), "t.u16": (w.add_uint16, 65535),
               "t.i16": (w.add_int16, -32768), "t.u32": (w.add_uint32, 2**32 - 1), "t.i32": (w.add_int32, -2**31),
               "t.u64": (w.add_uint64, 2**64 - 1), "t.i64": (w.add_int64, -2**63), "t.f32": (w.add_float32, 0.1),
               "t.f64": (w.add_float64, 0.1), "t.bool": (w.add_bool, True), "t.text": (w.add_string, "na\u00efve\n\U0001f600")}
    keys = {}
    for key, (add, value) in scalars.items():
        add(key, value)
        keys[key] = value
    keys["t.f32"] = float(np.float32(0.1))
    arrays = {"t.words": ["a", "", "\u00e9", "x" * 300], "t.ids": [1, -2, 3], "t.scores": [0.5, -1.25], "t.flags": [True, False]}
    for key, value in arrays.items():
        w.add_array(key, value)
        keys[key] = value
    tensors = {}
    for name, shape, dtype in [("token_embd.weight", (64, 32), np.float32), ("blk.0.attn_q.weight", (32, 32), np.float16),
                               ("blk.0.attn_norm.weight", (32,), np.float32), ("t.i8", (3, 5), np.int8),
                               ("t.i64", (2, 3, 4, 5), np.int64), ("t.f64", (7,), np.float64)]:
        tensors[name] = (rng.standard_normal(shape) * 50).astype(dtype)
    for name, data in tensors.items():
        w.add_tensor(name, data)
    quantised = gguf.quants.quantize(rng.standard_normal((4, 256)).astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
    w.add_tensor("t.q8_0", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return keys, tensors, quantised


def compare(info, keys, tensors, quantised):
    for key, value in keys.items():
        got = info["metadata"][key]
        assert got == pytest.approx(value) if isinstance(value, float) else got == value, key
    by_name = {t["name"]: t for t in info["tensors"]}
    assert set(by_name) == {*tensors, "t.q8_0"}
    for name, data in tensors.items():
        assert by_name[name]["shape"] == list(reversed(data.shape)), name
        assert raw(by_name[name]) == data.tobytes(), name
    assert by_name["t.q8_0"]["type"] == "Q8_0" and by_name["t.q8_0"]["shape"] == [256, 4]
    assert raw(by_name["t.q8_0"]) == quantised.tobytes()


def test_gguf_reads_back(quern, tmp_path):
    path = tmp_path / "m.gguf"
    written = write_gguf(path)
    info = quern("info", path, "--json", "--metadata", "--tensors").json()
    compare(info, *written)
    assert info["types"] == {"F32": 2, "F16": 1, "I8": 1, "I64": 1, "F64": 1, "Q8_0": 1}


def test_gguf_alignment_reads_back(quern, tmp_path):
    for align in (8, 64, 4096, 1 << 20):
        path = tmp_path / f"{align}.gguf"
        w = gguf.GGUFWriter(path, "llama")
        w.add_custom_alignment(align)
        data = np.arange(11, dtype=np.float32)
        w.add_tensor("a", data)
        w.add_tensor("b", data[:3])
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        info = quern("info", path, "--json", "--tensors").json()
        assert [raw(t) for t in info["tensors"]] == [data.tobytes(), data[:3].tobytes()]


def test_split_gguf_reads_back(quern, tmp_path):
    written = write_gguf(tmp_path / "m.gguf", split_max_tensors=3)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert [p.name for p in parts] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    info = quern("info", parts[0], "--json", "--metadata", "--tensors").json()
    compare(info, *written)
    assert info["bytes"] == sum(p.stat().st_size for p in parts)
    # the folder that holds them opens too
    assert quern("info", tmp_path, "--json").json()["parameters"] == info["parameters"]


def test_every_type_that_gguf_knows(quern, tmp_path):
    """One row of zeros of every type: names and sizes are those of the reference."""
    path = tmp_path / "types.gguf"
    w = gguf.GGUFWriter(path, "llama")
    sizes = {t: s for t, s in gguf.GGML_QUANT_SIZES.items() if t.name != "Q8_1"}  # the reference has 40 bytes, files 36
    for kind, (values, size) in sizes.items():
        w.add_tensor(kind.name, np.zeros((3, size), np.uint8), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    got = quern("info", path, "--json", "--tensors").json()["tensors"]
    assert {t["name"]: (t["type"], t["shape"], t["bytes"]) for t in got} == {
        k.name: (k.name, [n, 3], 3 * size) for k, (n, size) in sizes.items()}


def test_safetensors_reads_back(quern, tmp_path):
    rng = np.random.default_rng(3)
    kinds = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U64": "u8",
             "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "?"}
    tensors = {f"w.{k}": (rng.standard_normal((3, 5)) * 9).astype(v) for k, v in kinds.items()}
    tensors["scalar"] = np.array(4.5, np.float32)
    tensors["none"] = np.zeros((0, 7), np.float32)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt", "note": "na\u00efve"})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 5}))
    for path in (tmp_path, tmp_path / "model.safetensors"):
        info = quern("info", path, "--json", "--tensors", "--metadata").json()
        assert info["metadata"]["__metadata__"] == {"format": "pt", "note": "na\u00efve"}
        assert info["metadata"]["config.json"]["hidden_size"] == 5
        got = {t["name"]: t for t in info["tensors"]}
        assert set(got) == set(tensors)
        for name, data in tensors.items():
            assert raw(got[name]) == data.tobytes(), name
            assert got[name]["shape"] == list(data.shape), name
            assert name[2:] in (got[name]["type"], "alar", "ne"), name


def test_shards_read_back(quern, tmp_path):
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(4, np.float16)
    save_file({"a": a}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": b}, tmp_path / "model-00002-of-00002.safetensors")
    index = {"metadata": {"total_size": 32}, "weight_map": {"a": "model-00001-of-00002.safetensors",
                                                            "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    info = quern("info", tmp_path, "--json", "--tensors").json()
    assert [(t["name"], raw(t)) for t in info["tensors"]] == [("a", a.tobytes()), ("b", b.tobytes())]
    assert info["parameters"] == 10


def test_fp8_checkpoint(quern, tmp_path):
    header = {"w": {"dtype": "F8_E4M3", "shape": [2, 4], "data_offsets": [0, 8]},
              "w_scale_inv": {"dtype": "F32", "shape": [1, 1], "data_offsets": [8, 12]},
              "v": {"dtype": "F8_E5M2", "shape": [4], "data_offsets": [12, 16]}}
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    for quant in ({"quant_method": "fp8"}, {"quant_method": "compressed-tensors", "format": "float-quantized"}):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "quantization_config": quant}))
        assert quern("info", tmp_path, "--json").json()["types"] == {"F32": 1, "F8_E4M3": 1, "F8_E5M2": 1}


def test_default_model(quern, smollm2):
    info = quern("info", smollm2, "--json").json()
    assert list(info) == KEYS
    assert (info["format"], info["architecture"], info["license"]) == ("gguf", "llama", "apache-2.0")
    assert (info["layers"], info["width"], info["heads"], info["kv_heads"], info["head_dim"]) == (30, 576, 9, 3, 64)
    assert (info["ffn"], info["experts"], info["vocab"], info["context"]) == (1536, 0, 49152, 8192)
    assert info["parameters"] == 134515008 and info["bytes"] == 98362432 and info["template"] is True
    kv = 2 * 30 * 3 * 64 * 2
    weights = info["memory"]["weights"]
    assert info["memory"] == {"weights": weights, "kv_per_token": kv, "kv_sliding": 0, "at_4096": weights + 4096 * kv,
                              "at_full": weights + 8192 * kv}
    assert info["bits_per_weight"] == pytest.approx(8 * weights / info["parameters"])
    assert quern("info", "smollm2", "--json").json() == info
    assert quern("info", "--json").json() == info


def test_text_for_people(quern, smollm2):
    out = quern("info", smollm2).out
    for line in ("architecture   llama (GGUF)", "parameters     134.5 M", "layers         30", "licence        apache-2.0",
                 "template       yes", "at 4k          190.9 MB", "at full        285.3 MB"):
        assert line in out
    assert "\x1b" not in out
    listing = quern("info", "--tensors", "--metadata", smollm2).out
    assert "blk.29.ffn_down.weight" in listing and "tokenizer.ggml.tokens" in listing
    assert max(map(len, listing.splitlines())) < 320  # long arrays and texts are cut


def strings(data, key):
    """An array of strings of a GGUF file, found by its key's name (the package's reader takes seconds for one)."""
    name = struct.pack("<Q", len(key)) + key.encode()
    at = data.index(name) + len(name)
    kind, item, count = struct.unpack_from("<IIQ", data, at)
    assert (kind, item) == (9, 8)
    at, out = at + 16, []
    for _ in range(count):
        (n,) = struct.unpack_from("<Q", data, at)
        out.append(data[at + 8:at + 8 + n].decode("utf-8", "replace"))
        at += 8 + n
    return out


def test_reference_vocabularies(quern, shared):
    for path in sorted((shared / "vocab").glob("*.gguf")):
        info = quern("info", path, "--json", "--metadata").json()
        tokens = strings(path.read_bytes(), "tokenizer.ggml.tokens")
        assert info["vocab"] == len(tokens) and info["metadata"]["tokenizer.ggml.tokens"] == tokens
        assert info["parameters"] == 0 and info["tokenizer"] in ("bpe", "spm", "wordpiece")


def test_reference_architectures(quern, shared):
    folders = [p for p in sorted((shared / "ref" / "arch").iterdir()) if p.is_dir()]
    assert folders
    for folder in folders:
        info = quern("info", folder, "--json", "--tensors").json()
        config = json.loads((folder / "config.json").read_text())
        assert info["architecture"] == config["model_type"]
        assert info["layers"] == config.get("num_hidden_layers", config.get("n_layer"))
        assert info["vocab"] == config["vocab_size"]
        (file,) = folder.glob("*.safetensors")
        data = file.read_bytes()
        (n,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + n])
        header.pop("__metadata__", None)
        assert {t["name"]: (t["shape"], t["offset"] - 8 - n, t["bytes"]) for t in info["tensors"]} == {
            k: (v["shape"], v["data_offsets"][0], v["data_offsets"][1] - v["data_offsets"][0]) for k, v in header.items()}


def test_folder_says_what_lies_beside(quern, tmp_path):
    commit = tmp_path / ("0123456789" * 4)  # as a hub's cache names a folder
    commit.mkdir()
    assert beside(quern, tmp_path)["name"] == tmp_path.name
    assert beside(quern, commit)["name"] == "tiny-thing"


def beside(quern, tmp_path):
    save_file({"a": np.zeros(4, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_ctx": 128, "vocab_size": 99,
        "_name_or_path": "someone/tiny-thing"}))
    (tmp_path / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# x\nlicense: other\n")
    (tmp_path / "tokenizer.json").write_text('{"version":"1.0","pre_tokenizer":{"type":"ByteLevel"},"model":{"type": "BPE"}}')
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    info = quern("info", tmp_path, "--json").json()
    assert (info["license"], info["tokenizer"], info["template"]) == ("mit", "bpe", True)
    assert (info["layers"], info["width"], info["heads"], info["kv_heads"], info["head_dim"]) == (2, 64, 4, 4, 16)
    assert info["ffn"] == 256
    assert info["memory"]["kv_per_token"] == 2 * 2 * 4 * 16 * 2
    return info


def test_deep_config_is_written_back(quern, tmp_path):
    save_file({"a": np.zeros(4, np.float32)}, tmp_path / "model.safetensors")
    config = {"a": json.loads("[" * 63 + "]" * 63)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert quern("info", tmp_path, "--json", "--metadata").json()["metadata"]["config.json"] == config


def test_plan(quern, smollm2):
    result = quern("info", smollm2, "--plan")
    assert result.code == 0, result.err
    assert result.out.count("qkv") == 30 and result.out.count(" down=576x1536:Q4_1 ") == 30 and "kv group 0: 30 layers" in result.out


def test_launches(quern, smollm2):
    """The kernels that a plan is launched as, without a card; layers with the same launches are said once."""
    result = quern("info", smollm2, "--plan", "--device", "cuda", "--rows", 8, "--keys", 4000)
    assert result.code == 0, result.err
    assert "8 sequences that decode, 4000 keys" in result.out and "layers 0 to 29\n" in result.out
    assert "products that share their input" in result.out and "attn_" in result.out
    result = quern("info", smollm2, "--plan", "--device", "cuda", "--rows", 512, "--prompt")
    # the first layer and the last one begin and end in their own way; five products each, Q, K and V in one
    assert "layers 1 to 28\n" in result.out and result.out.count("cublasLt") == 15 and "tiles of 64 queries" in result.out
    result = quern("info", smollm2, "--plan", "--device", "gpu")
    assert result.code == 64 and "--device gpu: cpu or cuda was expected" in result.err


def test_launches_of_families(quern):
    """Every family's plan can be lowered."""
    for folder in sorted((Path(__file__).resolve().parents[1] / "data" / "arch").iterdir()):
        result = quern("info", folder, "--plan", "--device", "cuda")
        assert result.code == 0, (folder, result.err)
        ops = [line for line in result.out.splitlines() if line.startswith("  ") and not line.startswith("   ")]
        assert ops and "?" not in "".join(line for line in result.out.splitlines() if line.startswith("    "))


@pytest.mark.parametrize("name, kv_heads, ffn, kv", [
    ("falcon-7b", 1, 40, 64),  # multi_query; num_kv_heads says something else
    ("deepseek-v2", 1, 24, 96), ("deepseek-v2-gguf", 1, 24, 96)])  # the latent is what is kept
def test_sizes_are_those_of_the_loader(quern, name, kv_heads, ffn, kv):
    info = quern("info", ROOT / "test/data/arch" / name, "--json").json()
    assert (info["kv_heads"], info["ffn"], info["memory"]["kv_per_token"]) == (kv_heads, ffn, kv)


def test_an_architecture_that_is_not_known(quern, tmp_path):
    save_file({"a": np.zeros(4, np.float32)}, tmp_path / "model.safetensors")
    config = {"model_type": "unheard_of", "text_config": {
        "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": [2, 4, 2],
        "intermediate_size": 96, "vocab_size": 50, "max_position_embeddings": 512, "rms_norm_eps": "small"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    info = quern("info", tmp_path, "--json").json()
    assert (info["architecture"], info["layers"], info["width"], info["heads"]) == ("unheard_of", 3, 64, 8)
    assert (info["kv_heads"], info["head_dim"], info["ffn"], info["vocab"], info["context"]) == (4, 8, 96, 50, 512)
    assert info["memory"]["kv_per_token"] == (2 + 4 + 2) * (8 + 8) * 2
