"""Conversion and quantisation: every tiny folder to GGUF and back through our own loader, PyPI's gguf and llama.cpp
(PyPI's xllamacpp); tokenizers carried over; overrides, splits, importance matrices; loading with --quant."""
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ARCH = HERE.parent / "data" / "arch"
ENCODERS = ("bert", "nomic-bert", "embeddinggemma", "jina-v3", "modernbert", "mpnet")
# What GGUF has no form for.
NO_GGUF = ("jetmoe",)
# relative to the largest logit; four bits upset models of 32 columns, which nobody trained, a good deal
WITHIN = {"F16": 5e-6, "Q8_0": 0.15, "Q4_K_M": 0.9}
# falcon-h1's multipliers become part of its weights; rounding changes the tiny bailing's choice of experts,
# and which keys the tiny glm-moe-dsa sees
LOOSE = {("falcon-h1", "F16"): 5e-3, ("falcon-h1-norm", "F16"): 5e-3, ("falcon-h1-biases", "F16"): 5e-3,
         ("falcon_h1", "F16"): 5e-3, ("bailing-hybrid", "Q8_0"): 0.5, ("bailing-hybrid", "Q4_K_M"): 1.5, ("glm-moe-dsa", "Q8_0"): 0.5,
         ("glm-moe-dsa", "Q4_K_M"): 1.2}


def folders(root):
    return sorted(p.name for p in root.iterdir() if (p / "config.json").is_file())


def ids_of(folder):
    return json.loads((folder / "ref.json").read_text())["cases"][-1]["tokens"]


def logits(quern, model, ids, *options):
    return quern("logits", model, "--tokens", ",".join(map(str, ids)), "--json", "--exact", *options).json()["last"]


def vectors(quern, model, ids, *_):
    """What an encoder has in place of logits: a row for each token."""
    rows = quern("embed", model, "--tokens", ",".join(map(str, ids)), "--pooling", "none", "--no-normalize", "--json", "--exact")
    return [x for row in rows.json() for x in row]


def distance(a, b):
    assert len(a) == len(b)
    return max(abs(x - y) for x, y in zip(a, b)) / max(map(abs, a))


def round_trip(quern, folder, out):
    ids = ids_of(folder)
    if folder.name == "llama-dynamic":
        ids = ids[:16]  # what lies beyond the context it was made for depends on the length of the text
    context = ("--ctx", str(len(ids)))
    results = vectors if folder.name in ENCODERS else logits
    source = results(quern, folder, ids, *context)
    for kind, bound in WITHIN.items():
        report = quern("quantize", folder, out, kind, "--force", "--json", "--quiet").json()
        assert report["type"] == kind and report["bytes"] == out.stat().st_size
        assert report["bits_per_weight"] == pytest.approx(8 * report["bytes_after"] / report["parameters"])
        bound = LOOSE.get((folder.name, kind), bound)
        assert distance(source, results(quern, out, ids, *context)) < bound, (folder.name, kind)


@pytest.mark.parametrize("name", [n for n in folders(ARCH) if n not in NO_GGUF])
def test_folder(quern, tmp_path, name):
    round_trip(quern, ARCH / name, tmp_path / "out.gguf")


@pytest.mark.parametrize("name", ["gemma3_text", "gpt2", "llama", "llama3_rope", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe"])
def test_shared_folder(quern, shared, tmp_path, name):
    round_trip(quern, shared / "ref" / "arch" / name, tmp_path / "out.gguf")


@pytest.mark.parametrize("name", ["bert", "nomic-bert"])
def test_encoder(quern, tmp_path, name):
    """Without a tokenizer nothing can be embedded: the tensors have to be those of the reference converter."""
    gguf = pytest.importorskip("gguf")
    import make_gguf
    out = tmp_path / "out.gguf"
    quern("quantize", ARCH / name, out, "F32", "--quiet", "--json").json()
    convert = make_gguf.Convert(ARCH / name)
    convert.experts()
    for source, t in convert.source.items():
        convert.one(source, t)
    theirs = convert.tensors
    ours = {t.name: t for t in gguf.GGUFReader(out).tensors}
    assert sorted(ours) == sorted(theirs)
    for tensor, values in theirs.items():
        assert ours[tensor].data.reshape(-1).tolist() == pytest.approx(values.reshape(-1).tolist(), abs=1e-7), tensor


def test_gguf_package_opens(quern, tmp_path):
    gguf = pytest.importorskip("gguf")
    out = tmp_path / "out.gguf"
    quern("quantize", ARCH / "qwen3-moe", out, "Q8_0", "--quiet", "--json").json()
    reader = gguf.GGUFReader(out)
    assert reader.fields["general.architecture"].contents() == "qwen3moe"
    assert reader.fields["general.file_type"].contents() == 7
    kinds = {t.name: t.tensor_type.name for t in reader.tensors}
    assert kinds["blk.0.ffn_down_exps.weight"] in ("Q8_0", "F16") and kinds["blk.0.attn_norm.weight"] == "F32"
    assert list(kinds) == sorted(kinds, key=lambda n: (int(n.split(".")[1]) if n.startswith("blk.") else -1, n))


# ---- llama.cpp ----

def with_tokenizer(folder, to):
    """The folder with a byte-level tokenizer that has a token for every row, each of which is text by itself."""
    tokenizers = pytest.importorskip("tokenizers")
    shutil.copytree(folder, to)
    n = json.loads((folder / "config.json").read_text())["vocab_size"]
    alphabet = [chr(c) for c in range(33, 127)]
    words = (alphabet + [a + b for a in alphabet[:64] for b in alphabet[:64]])[:n]
    t = tokenizers.Tokenizer(tokenizers.models.BPE({w: i for i, w in enumerate(words)}, []))
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = tokenizers.decoders.ByteLevel()
    t.save(str(to / "tokenizer.json"))
    return to


LLAMA_CPP = """
import json, sys, xllamacpp
out = []
for path, ids in json.load(sys.stdin):
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.warmup, p.verbosity = path, 64, False, -1
    s = xllamacpp.Server(p)
    r = s.handle_completions({"prompt": ids, "n_predict": 1, "n_probs": 4096, "temperature": 0, "ignore_eos": True})
    top = r["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    out.append({t["id"]: t["logprob"] for t in top})
print("\\n" + json.dumps(out))
sys.stdout.flush()
import os; os._exit(0)
"""


def test_llama_cpp_agrees(quern, shared, tmp_path):
    pytest.importorskip("xllamacpp")
    cases, ours = [], []
    for i, name in enumerate(folders(shared / "ref" / "arch")):
        # the folder's name becomes the model's, and llama.cpp expects certain tokens of one that is called phi3
        folder = with_tokenizer(shared / "ref" / "arch" / name, tmp_path / f"tiny-{i}")
        ids = ids_of(folder)[:24]
        for kind in ("F16", "Q8_0", "Q4_K_M"):
            out = tmp_path / f"{name}-{kind}.gguf"
            quern("quantize", folder, out, kind, "--quiet", "--json").json()
            cases.append((str(out), ids))
            row = logits(quern, out, ids)
            best = max(row)
            total = best + math.log(sum(math.exp(x - best) for x in row))
            ours.append((name, kind, [x - total for x in row]))
    done = subprocess.run([sys.executable, "-c", LLAMA_CPP], input=json.dumps(cases), capture_output=True, text=True,
                          timeout=300)
    assert done.stdout, done.stderr[-2000:]
    for (name, kind, mine), theirs in zip(ours, json.loads(done.stdout.splitlines()[-1])):
        apart = max(abs(mine[int(i)] - p) for i, p in theirs.items()) / (max(mine) - min(mine))
        # llama.cpp rounds keys and values to F16, and activations to 8 bits where the weights are quantised
        assert apart < (0.01 if kind == "F16" else 0.15), (name, kind, apart)


# ---- tokenizers ----

def plain_folder(to, vocab, **config):
    """A llama of one layer that needs no more than a vocabulary."""
    np = pytest.importorskip("numpy")
    st = pytest.importorskip("safetensors.numpy")
    width, ffn, rng = 32, 64, np.random.default_rng(1)
    shapes = {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)}
    for part, shape in (("self_attn.q_proj", (width, width)), ("self_attn.k_proj", (width, width)), ("self_attn.v_proj", (width, width)),
                        ("self_attn.o_proj", (width, width)), ("mlp.gate_proj", (ffn, width)), ("mlp.up_proj", (ffn, width)),
                        ("mlp.down_proj", (width, ffn)), ("input_layernorm", (width,)), ("post_attention_layernorm", (width,))):
        shapes[f"model.layers.0.{part}.weight"] = shape
    to.mkdir(exist_ok=True)
    st.save_file({n: rng.standard_normal(s, dtype=np.float32) * 0.2 for n, s in shapes.items()}, str(to / "model.safetensors"))
    (to / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": width, "intermediate_size": ffn, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": vocab, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, **config}))
    return to


QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def trained(kind, text):
    tk = pytest.importorskip("tokenizers")
    pre, specials = tk.pre_tokenizers, ["<unk>", "<s>", "</s>", "<|im_end|>"]
    alphabet = pre.ByteLevel.alphabet()
    if kind == "unigram":
        t = tk.Tokenizer(tk.models.Unigram())
        t.pre_tokenizer, t.decoder = pre.Metaspace(), tk.decoders.Metaspace()
        trainer = tk.trainers.UnigramTrainer(vocab_size=500, special_tokens=specials, unk_token="<unk>", show_progress=False)
    elif kind == "wordpiece":
        t = tk.Tokenizer(tk.models.WordPiece(unk_token="[UNK]"))
        t.normalizer, t.pre_tokenizer, t.decoder = tk.normalizers.BertNormalizer(), pre.BertPreTokenizer(), tk.decoders.WordPiece()
        trainer = tk.trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                                               show_progress=False)
    elif kind == "spm":
        t = tk.Tokenizer(tk.models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        t.normalizer = tk.normalizers.Sequence([tk.normalizers.Prepend("\u2581"), tk.normalizers.Replace(" ", "\u2581")])
        t.decoder = tk.decoders.Sequence([tk.decoders.Replace("\u2581", " "), tk.decoders.ByteFallback(), tk.decoders.Fuse(),
                                          tk.decoders.Strip(" ", 1, 0)])
        trainer = tk.trainers.BpeTrainer(vocab_size=700, show_progress=False, max_token_length=12,
                                         special_tokens=specials + [f"<0x{b:02X}>" for b in range(256)])
    else:
        t = tk.Tokenizer(tk.models.BPE(ignore_merges=kind == "llama3"))
        split = {"qwen2": QWEN, "llama3": LLAMA3}.get(kind)
        t.pre_tokenizer = pre.ByteLevel(add_prefix_space=False) if not split else pre.Sequence(
            [pre.Split(tk.Regex(split), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
        t.decoder = tk.decoders.ByteLevel()
        trainer = tk.trainers.BpeTrainer(vocab_size=700, show_progress=False, initial_alphabet=alphabet, special_tokens=specials)
    t.train_from_iterator(text.splitlines(), trainer)
    if kind in ("llama3", "spm"):
        t.post_processor = tk.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", t.token_to_id("<s>"))])
    if kind == "wordpiece":
        t.post_processor = tk.processors.TemplateProcessing(
            "[CLS] $A [SEP]", special_tokens=[(n, t.token_to_id(n)) for n in ("[CLS]", "[SEP]")])
    return t


TEXTS = ["Hello world, it's 12345 o'clock!\n\nYes  -- 3.14", "  leading, trailing  ", "naïve Straße 日本語 🙂", "a\tb\r\nc",
         "the quick brown fox <|im_end|> jumps", ""]


@pytest.mark.parametrize("kind", ["gpt2", "qwen2", "llama3", "spm", "unigram", "wordpiece"])
def test_tokenizer_goes_along(quern, tmp_path, kind):
    text = "\n".join([(HERE / n).read_text() for n in ("test_quantize.py", "make_gguf.py")])
    t = trained(kind, text)
    folder = plain_folder(tmp_path / "folder", t.get_vocab_size() + 5)
    t.save(str(folder / "tokenizer.json"))
    bos, eos = ("[CLS]", "[SEP]") if kind == "wordpiece" else ("<s>", "</s>")
    names = {"bos_token": bos, "eos_token": eos} if kind != "wordpiece" else {"cls_token": bos, "sep_token": eos, "mask_token": "[MASK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "chat_template": "{{ messages[0].content }}!"}))
    out = tmp_path / "out.gguf"
    report = quern("quantize", folder, out, "F16", "--json")
    assert report.code == 0, report.err
    for text in TEXTS:
        if kind == "unigram" and (text.startswith(" ") or "<|" in text):
            continue  # Hugging Face adds no space where there is one, and takes a piece for what it looks like
        for options in ([], ["--no-bos"], ["--special"]):
            a = quern("tokenize", folder, "--json", *options, stdin=text).json()["ids"]
            b = quern("tokenize", out, "--json", *options, stdin=text).json()["ids"]
            assert a == b, (text, options)
    (tmp_path / "m.json").write_text('[{"role": "user", "content": "hi"}]')
    assert quern("template", out, "--messages", tmp_path / "m.json").out == "hi!"


# ---- quantize's own options ----

def test_splits_and_overrides(quern, tmp_path):
    source = plain_folder(tmp_path / "folder", 300)
    whole, parts = tmp_path / "whole.gguf", tmp_path / "parts.gguf"
    quern("quantize", source, whole, "Q8_0", "--quiet", "--json").json()
    report = quern("quantize", whole, parts, "Q8_0", "--split-size", "8K", "--quiet", "--json").json()
    assert report["files"] > 1 and not parts.exists()
    first = tmp_path / f"parts-00001-of-{report['files']:05d}.gguf"
    assert sorted(p.name for p in tmp_path.glob("parts-*"))[0] == first.name
    assert logits(quern, first, [1, 2, 3]) == logits(quern, whole, [1, 2, 3])
    types = quern("quantize", source, whole, "Q4_0", "--force", "--tensor", "attn_[qk]=F16", "--tensor", "ffn=Q5_1", "--pure", "--quiet",
                  "--json").json()["types"]
    assert types == {"F32": 3, "F16": 2, "Q4_0": 3, "Q5_1": 3}
    assert not list(tmp_path.glob("*.part"))


def test_nothing_is_left_behind(quern, tmp_path):
    source, out = plain_folder(tmp_path / "folder", 300), tmp_path / "no" / "such.gguf"
    assert quern("quantize", source, out, "Q8_0").code == 64
    assert quern("quantize", source, tmp_path / "x.gguf", "Q9").code == 64
    assert quern("quantize", source, tmp_path / "x.gguf", "Q8_0", "--tensor", "x").code == 64
    assert quern("quantize", tmp_path / "nothing", tmp_path / "x.gguf", "Q8_0").code != 0
    (tmp_path / "bad.dat").write_bytes(b"\x01\x00\x00\x00\xff\xff")
    done = quern("quantize", source, tmp_path / "x.gguf", "Q8_0", "--imatrix", tmp_path / "bad.dat")
    assert done.code == 65 and "importance matrix" in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.dat", "folder"]


def test_fp8_folder(quern, tmp_path):
    """Blocks with a scale each, and one scale for all: both as transformers would multiply them out."""
    np = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    st = pytest.importorskip("safetensors.torch")
    source = plain_folder(tmp_path / "plain", 300)
    tensors = st.load_file(str(source / "model.safetensors"))
    for layout in ("block", "tensor"):
        exact, packed = {}, {}
        for name, t in tensors.items():
            if "proj" not in name:
                exact[name] = packed[name] = t
                continue
            if layout == "block":
                rows, cols = (t.shape[0] + 15) // 16, (t.shape[1] + 15) // 16
                scale = torch.rand(rows, cols) * 0.01 + 0.001
                wide = scale.repeat_interleave(16, 0).repeat_interleave(16, 1)[:t.shape[0], :t.shape[1]]
            else:
                scale = torch.tensor([0.004])
                wide = scale
            q = (t / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
            packed[name] = q
            packed[name + ("_scale_inv" if layout == "block" else "_scale")] = scale
            exact[name] = (q.float() * wide).to(torch.bfloat16)
        config = json.loads((source / "config.json").read_text())
        for kind, content in (("exact", exact), ("fp8", packed)):
            folder = tmp_path / f"{layout}-{kind}"
            folder.mkdir()
            st.save_file(content, str(folder / "model.safetensors"))
            if kind == "fp8":
                config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [16, 16]}
            (folder / "config.json").write_text(json.dumps(config))
        ids = [1, 5, 7, 100, 299]
        a, b = (logits(quern, tmp_path / f"{layout}-{kind}", ids) for kind in ("exact", "fp8"))
        assert distance(a, b) < 1e-6
        quern("quantize", tmp_path / f"{layout}-fp8", tmp_path / "out.gguf", "BF16", "--force", "--quiet", "--json").json()
        assert distance(a, logits(quern, tmp_path / "out.gguf", ids)) < 1e-2  # the embedding is rounded too


def test_ternary_folder(quern, tmp_path):
    """bitnet's packed weights, four rows in one, are what they stand for; so are TQ1_0 and TQ2_0."""
    np = pytest.importorskip("numpy")
    save = pytest.importorskip("safetensors.numpy").save_file
    rng = np.random.default_rng(5)
    width, kv, ffn, vocab = 256, 128, 256, 64
    config = {"model_type": "bitnet", "hidden_size": width, "intermediate_size": ffn, "num_hidden_layers": 1, "vocab_size": vocab,
              "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    plain = {"model.embed_tokens.weight": rng.standard_normal((vocab, width)).astype(np.float32)}
    for name, n in (("model.norm", width), ("model.layers.0.input_layernorm", width), ("model.layers.0.mlp.ffn_sub_norm", ffn),
                    ("model.layers.0.post_attention_layernorm", width), ("model.layers.0.self_attn.attn_sub_norm", width)):
        plain[name + ".weight"] = (1 + 0.2 * rng.standard_normal(n)).astype(np.float32)
    packed = dict(plain)
    for name, rows, cols in (("self_attn.q_proj", width, width), ("self_attn.k_proj", kv, width), ("self_attn.v_proj", kv, width),
                             ("self_attn.o_proj", width, width), ("mlp.gate_proj", ffn, width), ("mlp.up_proj", ffn, width),
                             ("mlp.down_proj", width, ffn)):
        t, scale = rng.integers(-1, 2, (rows, cols)), np.float32(rng.integers(20, 60) / 256)
        parts = (t + 1).astype(np.uint8).reshape(4, rows // 4, cols)
        name = f"model.layers.0.{name}.weight"
        plain[name] = (t * scale).astype(np.float32)
        packed[name] = parts[0] | parts[1] << 2 | parts[2] << 4 | parts[3] << 6
        packed[name + "_scale"] = np.array([scale])
    for kind, tensors in (("plain", plain), ("packed", packed)):
        (tmp_path / kind).mkdir()
        save(tensors, str(tmp_path / kind / "model.safetensors"))
        if kind == "packed":
            config["quantization_config"] = {"quant_method": "bitnet", "linear_class": "autobitlinear"}
        (tmp_path / kind / "config.json").write_text(json.dumps(config))
    ids = [1, 5, 7, 30, 63]
    want = logits(quern, tmp_path / "plain", ids)
    assert distance(want, logits(quern, tmp_path / "packed", ids)) < 2e-5
    for kind in ("TQ1_0", "TQ2_0"):
        report = quern("quantize", tmp_path / "packed", tmp_path / "out.gguf", kind, "--tensor", "token_embd=F32", "--force",
                       "--quiet", "--json").json()
        assert report["types"][kind] == 7
        assert distance(want, logits(quern, tmp_path / "out.gguf", ids)) < 2e-5
    config["quantization_config"]["quantization_mode"] = "online"
    (tmp_path / "packed" / "config.json").write_text(json.dumps(config))
    assert "Take the packed weights" in quern("info", tmp_path / "packed").err


# ---- with a text ----

@pytest.fixture(scope="module")
def real(quern, smollm2, tmp_path_factory):
    """The default model, its weights as F16."""
    out = tmp_path_factory.mktemp("real") / "smollm2-f16.gguf"
    assert quern("quantize", smollm2, out, "F16", "--quiet", timeout=300).code == 0
    text = out.parent / "text.txt"
    text.write_text("\n".join((HERE.parents[1] / "doc" / n).read_text() for n in ("design.md", "engine.md")) * 2)
    return out, text


def test_importance_divergence_and_load(quern, real, tmp_path):
    source, text = real
    matrix = tmp_path / "imatrix.gguf"
    short = ["--ctx", "128", "--chunks", "3", "--device", "cpu", "--json"]
    report = quern("imatrix", source, "-f", text, "-o", matrix, *short, timeout=600).json()
    assert report["chunks"] == 3 and report["tensors"] == 30 * 7
    kl = {}
    for name, options in (("plain", []), ("weighted", ["--imatrix", matrix])):
        out = tmp_path / f"{name}.gguf"
        done = quern("quantize", source, out, "Q4_0", "--force", "--check", text, "--quiet", *short, *options, timeout=600)
        check = done.json()["check"]
        assert check["ratio"] == pytest.approx(check["perplexity"] / check["against"])
        assert 0 < check["kl"]["median"] < check["kl"]["mean"] < check["kl"]["max"] and check["same_top"] > 0.6
        kl[name] = check["kl"]["mean"]
    assert kl["weighted"] < kl["plain"]  # the same text: it has to help there
    plot = tmp_path / "kl.svg"
    same = quern("perplexity", tmp_path / "plain.gguf", "--against", tmp_path / "plain.gguf", "-f", text, "--plot", plot, *short,
                 timeout=600).json()
    assert same["kl"]["max"] < 1e-6 and same["same_top"] == 1 and same["ratio"] == 1
    assert plot.read_text().startswith("<svg") and "KL divergence" in plot.read_text()


def test_quant_while_loading(quern, real, tmp_path):
    source, _ = real
    quern("quantize", source, tmp_path / "q.gguf", "q4_k_m", "--quiet", "--json", timeout=300).json()
    arguments = ["--raw", "-p", "A quern is", "-n", "8", "--temp", "0", "--json", "--device", "cpu"]
    a = quern("run", tmp_path / "q.gguf", *arguments).json()
    b = quern("run", source, "--quant", "q4_k_m", *arguments, timeout=300).json()
    assert a["ids"] == b["ids"]
    assert quern("run", source, "--quant", "q9", *arguments).code == 64


def test_compare(quern, real, smollm2, tmp_path):
    source, _ = real
    arguments = ["-p", "Say hello", "-n", "6", "--temp", "0", "--device", "cpu"]
    sides = quern("compare", smollm2, source, *arguments, "--json", timeout=300).json()
    assert [s["model"] for s in sides] == [str(smollm2), str(source)]
    assert sides[0]["ids"][0] == sides[1]["ids"][0] and sides[0]["text"]
    text = quern("compare", smollm2, source, *arguments, timeout=300).out
    assert smollm2.name in text.splitlines()[0] and " | " in text.splitlines()[0]
