"""Models with recurrent layers: the shared references in both containers, cuts of a prompt, adapters, types at load."""
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from server import Server
from test_arch import floats, read_tensors, write_tensors

DATA = Path(__file__).resolve().parents[1] / "data" / "arch"
FAMILIES = ["falcon_h1", "granitemoehybrid", "jamba", "kimi_linear", "lfm2", "mamba2", "minimax", "nemotron_h",
            "olmo_hybrid", "qwen3_5_text", "qwen3_next"]


@pytest.fixture(scope="session")
def logits(quern):
    def run(path, ids, *flags):
        return quern("logits", path, "--tokens", ",".join(map(str, ids)), "--json", *flags).json()
    return run


def far(a, b):
    assert len(a) == len(b)
    return max(abs(x - y) for x, y in zip(a, b))


def agreeing(a, b):
    return sum(x == y for x, y in zip(a, b)) / len(b)


@pytest.mark.parametrize("name", FAMILIES)
def test_shared_family(shared, logits, name):
    folder = shared / "ref" / "families" / name
    if not folder.exists():
        pytest.skip(f"{folder} is not there")
    for case in json.loads((folder / "ref.json").read_text())["cases"]:
        for model in [folder] + list(folder.glob("model.gguf")):
            got = logits(model, case["tokens"], "--exact")
            assert far(got["last"], case["last_logits"]) < 2e-3
            assert got["argmax"] == case["argmax"]
            got = logits(model, case["tokens"])
            assert far(got["last"], case["last_logits"]) < 0.1
            assert agreeing(got["argmax"], case["argmax"]) >= 0.95


def last_case(name):
    return json.loads((DATA / name / "ref.json").read_text())["cases"][-1]


@pytest.mark.parametrize("name", ["falcon-mamba", "jamba", "kimi-linear", "lfm2", "minimax", "nemotron-h", "qwen3.5", "rwkv4",
                                  "xlstm", "zamba2", "zaya"])
def test_cuts(logits, name):
    """Where a prompt is cut into steps does not show."""
    ids = last_case(name)["tokens"]
    whole = logits(DATA / name, ids, "--exact")
    for chunk in (1, 3, 7):
        got = logits(DATA / name, ids, "--exact", "--chunk", chunk)
        assert far(got["last"], whole["last"]) < 1e-4
        assert got["argmax"] == whole["argmax"]


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3-next"])
def test_inside_a_wrapper(logits, tmp_path, name):
    """The text model of one that sees: its config is nested, and its tensors are."""
    case = last_case(name)
    tensors = read_tensors(DATA / name / "model.safetensors")
    write_tensors(tmp_path / "model.safetensors",
                  {k.replace("model.", "model.language_model.", 1): v for k, v in tensors.items()})
    text = json.loads((DATA / name / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": text}))
    assert far(logits(tmp_path, case["tokens"], "--exact")["last"], case["last"]) < 2e-3


def test_xlstm_fused(logits, tmp_path):
    """Products of the same rows as one tensor each, which config.json calls weight_mode."""
    case, tensors = last_case("xlstm"), read_tensors(DATA / "xlstm" / "model.safetensors")
    for i in range(2):
        for parts, to in ((("q", "k", "v", "ogate_preact"), "mlstm_layer.qkv_opreact"),
                          (("igate_preact", "fgate_preact"), "mlstm_layer.ifgate_preact"),
                          (("proj_up_gate", "proj_up"), "ffn.proj_up_gate_z")):
            layer = f"backbone.blocks.{i}."
            module = layer + to.split(".")[0] + "."
            for end in (".weight", ".bias"):
                some = [tensors.pop(module + p + end) for p in parts if module + p + end in tensors]
                if some:
                    shape = [sum(t[1][0] for t in some), *some[0][1][1:]]
                    tensors[layer + to + end] = (some[0][0], shape, b"".join(t[2] for t in some))
    write_tensors(tmp_path / "model.safetensors", tensors)
    config = json.loads((DATA / "xlstm" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "weight_mode": "fused"}))
    assert far(logits(tmp_path, case["tokens"], "--exact")["last"], case["last"]) < 2e-3


@pytest.mark.parametrize("name", ["rwkv4", "xlstm", "zaya"])
def test_written(quern, logits, tmp_path, name):
    """The GGUF file that quern writes of a family which only transformers defines."""
    case = last_case(name)
    assert quern("quantize", DATA / name, tmp_path / "w.gguf", "F32").code == 0
    assert far(logits(tmp_path / "w.gguf", case["tokens"], "--exact")["last"], case["last"]) < 2e-5


def with_keys(path, to, keys):
    """A GGUF file with other keys of its architecture; None: without that one."""
    r = GGUFReader(path)
    arch = r.fields["general.architecture"].contents()
    w, keys = GGUFWriter(to, arch), {f"{arch}.{k}": v for k, v in keys.items()}
    for k, f in r.fields.items():
        if not k.startswith("GGUF.") and k != "general.architecture" and k not in keys:
            kind = f.types[0]
            w.add_key_value(k, f.contents(), kind, f.types[-1] if kind == GGUFValueType.ARRAY else None)
    for k, v in keys.items():
        if v is not None:
            w.add_uint32(k, v)
    for t in r.tensors:
        w.add_tensor(t.name, np.array(t.data).reshape([int(n) for n in t.shape][::-1]))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.mark.parametrize("name,keys", [
    ("nemotron-h", {"rope.dimension_count": 21}), ("jamba", {"rope.dimension_count": 64}),
    ("qwen3.5", {"attention.head_count_kv": 2, "full_attention_interval": 4}),
    ("qwen3-next-bias", {"attention.head_count_kv": 2, "full_attention_interval": None})])
def test_other_keys(quern, logits, tmp_path, name, keys):
    """Keys of llama.cpp's converter that say nothing of the model, or too little: positions where none are, and which layers
    have attention in models that are not made of periods."""
    case = last_case(name)
    assert quern("quantize", DATA / name, tmp_path / "w.gguf", "F32").code == 0
    with_keys(tmp_path / "w.gguf", tmp_path / "k.gguf", keys)
    assert far(logits(tmp_path / "k.gguf", case["tokens"], "--exact")["last"], case["last"]) < 2e-3


PLAMO2 = {"token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "pre_mixer_norm", "ffn_norm": "pre_mlp_norm",
          "post_attention_norm": "post_mixer_norm", "post_ffw_norm": "post_mlp_norm", "attn_qkv": "mixer.qkv_proj",
          "attn_output": "mixer.o_proj", "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj", "ssm_in": "mixer.in_proj",
          "ssm_conv1d": "mixer.conv1d", "ssm_x": "mixer.bcdt_proj", "ssm_out": "mixer.out_proj"}
BARE = {"ssm_a": "mixer.A_log", "ssm_d": "mixer.D", "ssm_dt_norm": "mixer.dt_norm_weight", "ssm_b_norm": "mixer.B_norm_weight",
        "ssm_c_norm": "mixer.C_norm_weight", "attn_q_norm": "mixer.q_weight", "attn_k_norm": "mixer.k_weight",
        "ssm_dt.bias": "mixer.dt_bias"}
LESS = {"attn_norm": 1, "ffn_norm": 1, "output_norm": 1, "post_attention_norm": 0.2, "post_ffw_norm": 5 ** -1.5}


def test_plamo2_folder(quern, logits, tmp_path):
    """A folder with the names and offsets that llama.cpp's converter knows, and the GGUF file of the same numbers; then the
    file that quern writes of the folder."""
    from make_llamacpp_refs import CASES, Maker
    case = {**CASES["plamo2"], "heads": [0, 4, 0], "kv": [0, 2, 0]}
    maker = Maker(tmp_path / "model.gguf", 7, case, True)
    maker.write()
    tensors = {}
    for key, t in maker.made.items():
        base, layer = key.removesuffix(".weight"), ""
        if base.startswith("blk."):
            _, i, base = base.split(".", 2)
            layer = f"layers.layers.{i}."
        t = np.log(-t) if base == "ssm_a" else t[:, None] if base == "ssm_conv1d" else t - LESS.get(base, 0)
        name = BARE.get(base) or PLAMO2.get(base, "mixer.dt_proj") + ".weight"
        tensors["lm_head.weight" if base == "output" else f"model.{layer}{name}"] = (
            "F32", t.shape, t.astype(np.float32).tobytes())
    folder = tmp_path / "folder"
    folder.mkdir()
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "plamo2", "hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_size_per_head": 16, "mamba_num_heads": 3, "mamba_d_state": 8, "rms_norm_eps": 1e-5,
        "intermediate_size": 24, "max_position_embeddings": 128}))
    ids = last_case("plamo2-gguf")["tokens"]
    want = logits(tmp_path / "model.gguf", ids, "--exact")
    assert far(logits(folder, ids, "--exact")["last"], want["last"]) < 1e-4
    quern("quantize", folder, tmp_path / "written.gguf", "F32")
    assert far(logits(tmp_path / "written.gguf", ids, "--exact")["last"], want["last"]) < 1e-4
    shapes = [{t.name: list(t.shape) for t in GGUFReader(tmp_path / name).tensors} for name in ("model.gguf", "written.gguf")]
    assert shapes[0] == shapes[1]


RWKV6 = {"time_mix_lerp_": "attention.time_maa_", "time_mix_w": "attention.time_maa_w", "time_mix_decay": "attention.time_decay",
         "time_mix_first": "attention.time_faaaa", "time_mix_ln": "attention.ln_x", "channel_mix_lerp_": "feed_forward.time_maa_",
         "time_mix_": "attention.", "channel_mix_": "feed_forward.", "attn_norm_2": "ln2", "attn_norm": "ln1"}
RWKV6_TOP = {"token_embd.weight": "rwkv.embeddings.weight", "output.weight": "head.weight", "output_norm": "rwkv.ln_out",
             "token_embd_norm": "rwkv.blocks.0.pre_ln"}


def rwkv6_folder(made, layers, every):
    """The tensors of a GGUF file as folders have them: names, factors from inputs to outputs, and weights that the stream's
    halving has not yet scaled."""
    tensors = {}
    for key, t in made.items():
        if not key.startswith("blk."):
            start = next(k for k in sorted(RWKV6_TOP, key=len, reverse=True) if key.startswith(k))
            tensors[RWKV6_TOP[start] + key[len(start):]] = t
            continue
        _, i, base = key.split(".", 2)
        name = base.removesuffix(".weight")
        if name == "time_mix_lerp_fused":
            tensors.update({f"rwkv.blocks.{i}.attention.time_maa_{x}": t[n].reshape(1, 1, -1) for n, x in enumerate("wkvrg")})
            continue
        start = next(k for k in RWKV6 if name.startswith(k))
        if name in ("time_mix_w1", "time_mix_decay_w1", "time_mix_decay_w2"):
            t = t.T
        elif name == "time_mix_w2":
            t = t.transpose(0, 2, 1)
        elif name in ("time_mix_output", "channel_mix_value"):
            t = t * 2.0 ** (int(i) // every)
        whole = RWKV6[start] + name[len(start):]
        bare = "maa" in whole or "time_" in whole
        tensors[f"rwkv.blocks.{i}.{whole}" + ("" if bare or base.endswith(".bias") else ".weight")] = t
    return {k: ("F32", t.shape, np.ascontiguousarray(t, np.float32).tobytes()) for k, t in tensors.items()}


def test_rwkv6_folder(quern, logits, tmp_path):
    """A folder with the names and shapes that llama.cpp's converter knows, and the GGUF file of the same numbers; then the
    file that quern writes of the folder."""
    from make_llamacpp_refs import CASES, Maker
    maker = Maker(tmp_path / "model.gguf", 9, {**CASES["rwkv6"], "layers": 3}, True)
    maker.write()
    folder = tmp_path / "folder"
    folder.mkdir()
    write_tensors(folder / "model.safetensors", rwkv6_folder(maker.made, 3, 1))
    config = {"model_type": "rwkv6", "hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 64, "head_size": 16,
              "head_size_divisor": 8, "intermediate_size": 24, "layer_norm_epsilon": 1e-5, "rescale_every": 1,
              "attention_hidden_size": 32, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    ids = last_case("rwkv6-gguf")["tokens"]
    want = logits(tmp_path / "model.gguf", ids, "--exact")
    got = logits(folder, ids, "--exact")
    assert far(got["last"], want["last"]) < 1e-4
    assert got["argmax"] == want["argmax"]
    assert far(logits(folder, ids, "--exact", "--chunk", 3)["last"], want["last"]) < 1e-4
    assert quern("quantize", folder, tmp_path / "written.gguf", "F32").code == 0
    assert far(logits(tmp_path / "written.gguf", ids, "--exact")["last"], want["last"]) < 1e-4
    first, second = ({t.name: list(t.shape) for t in GGUFReader(tmp_path / n).tensors} for n in ("model.gguf", "written.gguf"))
    assert {k: v for k, v in first.items() if "lerp" not in k} == {k: v for k, v in second.items() if "lerp" not in k}
    for change in ({"attention_hidden_size": 48}, {"head_size": 5}):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        assert quern("logits", folder, "--tokens", "1,2").code == 65


# Of texts, as llama.cpp cuts them: some of these have several ways of the same cost.
PLAMO2_PIECES = [("a", -5.0), ("aa", -7.0), ("aaa", -9.0), ("b", -5.0), ("ab", -8.0), ("ba", -8.0), ("abc", -12.0), (" ", -4.0),
                 ("  ", -6.0), (" a", -7.5), ("日", -6.0), ("本", -6.0), ("日本", -8.0), ("本語", -8.0), ("é", -6.5), ("\n", -3.0)]
PLAMO2_IDS = {"aaaaa": [263, 262], "aaaa": [263, 261], "abab abc": [265, 265, 268, 267], "日本語": [271, 274],
              "  a   b": [269, 261, 269, 268, 264], "é日x😀\nba": [275, 271, 125, 245, 164, 157, 133, 276, 266], "": [],
              "<|plamo:eos|>a": [2, 261], "\ufeffab": [265], "aabaab": [262, 266, 265]}


def test_plamo2_tokenizer(quern, tmp_path):
    """The tokens of a GGUF file, and the lines of a folder's tokenizer.jsonl."""
    rows = [[f"<|plamo:{n}|>", 0.0, "UNKNOWN" if n == "unk" else "CONTROL"] for n in ("unk", "bos", "eos", "pad", "op")]
    rows += [[f"<0x{b:02X}>", 0.0, "BYTE"] for b in range(256)] + [[t, x, "NORMAL"] for t, x in PLAMO2_PIECES]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "tokenizer.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    w = GGUFWriter(tmp_path / "t.gguf", "plamo2")
    w.add_tokenizer_model("plamo2")
    w.add_token_list([r[0] for r in rows])
    w.add_token_scores([r[1] for r in rows])
    w.add_token_types([{"UNKNOWN": 2, "CONTROL": 3, "BYTE": 6, "NORMAL": 1}[r[2]] for r in rows])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    for model in (tmp_path / "t.gguf", tmp_path / "folder"):
        for text, ids in PLAMO2_IDS.items():
            assert quern("tokenize", model, "--special", "--json", text, "--no-bos").json()["ids"] == ids, (model, text)
            back = quern("tokenize", model, "--decode", *ids).out if ids else text + "\n"
            assert back.rstrip("\n") == text.removeprefix("\ufeff").rstrip("\n")
    (tmp_path / "folder" / "tokenizer.jsonl").write_text('["a", -1.0, "NORMAL"]\n["<0x6>", 0, "BYTE"]\n')
    done = quern("tokenize", tmp_path / "folder", "a")
    assert done.code == 65


def adapted(folder, to):
    """A PEFT adapter for every matrix of the layers, and the model with it merged."""
    rng = np.random.default_rng(3)
    tensors, pairs = read_tensors(folder / "model.safetensors"), {}
    for key, t in list(tensors.items()):
        inside = re.search(r"\b(layers|blocks)\.(?!.*(expert|mlp\.gate\.)).*(proj|proj_current|key|value|receptance)\.weight", key)
        if t[0] != "BF16" or len(t[1]) != 2 or not inside:
            continue
        a, b = (rng.normal(0, 0.2, s).astype(np.float32) for s in ((3, t[1][1]), (t[1][0], 3)))
        module = "base_model.model." + key.removesuffix(".weight")
        pairs[module + ".lora_A.weight"] = ("F32", a.shape, a.tobytes())
        pairs[module + ".lora_B.weight"] = ("F32", b.shape, b.tobytes())
        merged = (floats(t) + 2 * b @ a).astype(np.float32)
        tensors[key] = ("F32", t[1], merged.tobytes())
    (to / "merged").mkdir()
    (to / "adapter").mkdir()
    write_tensors(to / "merged" / "model.safetensors", tensors)
    write_tensors(to / "adapter" / "adapter_model.safetensors", pairs)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if (folder / name).exists():
            (to / "merged" / name).write_text((folder / name).read_text())
    (to / "adapter" / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": "all-linear"}))
    return len(pairs)


@pytest.mark.parametrize("name", ["falcon-h1", "jamba", "kimi-linear", "lfm2", "falcon-mamba", "nemotron-h", "olmo-hybrid",
                                  "qwen3-next", "qwen3.5", "rwkv4", "xlstm", "zamba2", "zaya"])
def test_adapters(logits, tmp_path, name):
    ids = last_case(name)["tokens"][:20]
    assert adapted(DATA / name, tmp_path) >= 4
    merged = logits(tmp_path / "merged", ids, "--exact")
    got = logits(DATA / name, ids, "--exact", "--lora", tmp_path / "adapter")
    assert far(got["last"], merged["last"]) < 1e-3
    assert far(logits(DATA / name, ids, "--exact")["last"], merged["last"]) > 0.05


def test_adapters_in_the_engine(binary, tmp_path):
    """Requests with the adapter and without it side by side, in one batch and from cached states: as the merged model and as
    the plain one answer alone."""
    hybrid = DATA.parent / "hybrid"
    assert adapted(hybrid, tmp_path) >= 4
    how = ["--device", "cpu", "--exact", "--tier", "scalar", "--ctx", "512", "--slots", "4", "--name", "m"]

    def answers(*args, adapters):
        with_texts = [(text, lora) for text in ("one two three", "one two four", "seven") for lora in adapters]
        server = Server(binary, *args, *how)
        with ThreadPoolExecutor(6) as pool:
            got = [list(pool.map(lambda a: server.ask("/v1/completions", {
                "prompt": a[0] * 9, "max_tokens": 12, "temperature": 0, **({"lora": a[1]} if a[1] else {})})
                ["choices"][0]["text"], with_texts)) for _ in range(2)]
        assert server.stop() == 0
        assert got[0] == got[1]
        return dict(zip(with_texts, got[0]))
    both = answers(hybrid, "--lora", f"x={tmp_path / 'adapter'}", adapters=(None, "x"))
    plain, merged = answers(hybrid, adapters=(None,)), answers(tmp_path / "merged", adapters=(None,))
    assert {t: v for (t, lora), v in both.items() if not lora} == {t: v for (t, _), v in plain.items()}
    assert {t: v for (t, lora), v in both.items() if lora} == {t: v for (t, _), v in merged.items()}
    assert plain != merged


@pytest.mark.parametrize("name", ["rwkv4", "xlstm", "zaya"])
def test_states_in_the_engine(binary, tmp_path, name):
    """Requests in one batch, and again from kept states: as each answers alone."""
    rng = np.random.default_rng(5)
    tensors, words = read_tensors(DATA / name / "model.safetensors"), 300
    for key, (kind, shape, _) in list(tensors.items()):
        if len(shape) == 2 and shape[0] == 64 and re.search(r"embed|head", key):
            rows = rng.normal(0, 0.5, (words, shape[1])).astype(np.float32)
            tensors[key] = ("F32", rows.shape, rows.tobytes())
    write_tensors(tmp_path / "model.safetensors", tensors)
    config = json.loads((DATA / name / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": words}))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_text((DATA.parent / "hybrid" / file).read_text())
    texts = ["one two three" * 9, "one two four" * 9, "seven", "one two three" * 9 + " and so on", "two" * 30]

    def answers(workers, *args):
        server = Server(binary, tmp_path, "--device", "cpu", "--exact", "--tier", "scalar", "--ctx", "128", "--name", "m", *args)
        with ThreadPoolExecutor(workers) as pool:
            got = [list(pool.map(lambda t: server.ask("/v1/completions", {"prompt": t, "max_tokens": 12, "seed": 3})
                                 ["choices"][0]["text"], texts)) for _ in range(2)]
        assert server.stop() == 0
        assert got[0] == got[1]
        return got[0]
    alone = answers(1, "--slots", "1", "--snapshot-every", "128")
    assert len(set(alone)) > 2
    assert answers(5, "--slots", "5", "--snapshot-every", "32") == alone


def test_importance(quern, tmp_path):
    """An importance matrix of a hybrid has its recurrent layers' products, and quantising takes it."""
    hybrid, text = DATA.parent / "hybrid", tmp_path / "text"
    text.write_text("Some words that a tiny model reads, and some more of them. " * 40)
    done = quern("imatrix", hybrid, "-f", text, "-o", tmp_path / "m.gguf", "--device", "cpu")
    assert done.code == 0, done.err
    names = (tmp_path / "m.gguf").read_bytes()
    for name in (b"blk.0.ssm_in.weight", b"blk.0.ssm_out.weight", b"blk.1.attn_q.weight"):
        assert name in names
    done = quern("quantize", hybrid, tmp_path / "q.gguf", "Q8_0", "--imatrix", tmp_path / "m.gguf")
    assert done.code == 0, done.err
    assert quern("run", tmp_path / "q.gguf", "-p", "hello", "-n", "4", "--device", "cpu").code == 0


def test_infinity(logits, tmp_path):
    """Python writes what is not JSON, and files on the Hub have it."""
    case = last_case("nemotron-h")
    (tmp_path / "model.safetensors").write_bytes((DATA / "nemotron-h" / "model.safetensors").read_bytes())
    config = json.loads((DATA / "nemotron-h" / "config.json").read_text())
    config["time_step_limit"] = [0.0, math.inf]
    text = json.dumps(config)
    assert "Infinity" in text
    (tmp_path / "config.json").write_text(text)
    assert far(logits(tmp_path, case["tokens"], "--exact")["last"], case["last"]) < 2e-3


def test_bad_layers(quern, tmp_path):
    """Lists of layers that cannot be."""
    config = json.loads((DATA / "qwen3.5" / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((DATA / "qwen3.5" / "model.safetensors").read_bytes())
    for change in ({"layer_types": ["linear_attention"]}, {"layer_types": ["linear_attention", "sideways"]},
                   {"layer_types": ["linear_attention", 2.5]}, {"linear_num_key_heads": 3}, {"linear_conv_kernel_dim": 1},
                   {"linear_key_head_dim": 0}, {"linear_conv_kernel_dim": 5}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        done = quern("logits", tmp_path, "--tokens", "1,2")
        assert done.code == 65, (change, done.code)
        assert "Traceback" not in done.err
