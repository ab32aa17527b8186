"""Encoders through `quern embed --tokens`: rows and poolings against transformers, the modules of sentence-transformers."""
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_arch import DATA, floats, read_tensors, tokens_of, write_tensors

SHARED = Path(__file__).resolve().parents[3] / "shared/ref/encoders"
OURS = ["bert", "nomic-bert", "mpnet", "modernbert", "embeddinggemma", "jina-v3"]
THEIRS = ["embeddinggemma", "modernbert", "mpnet", "xlm_roberta"]
IDS = [7, 3, 11, 30, 5, 9, 22, 14, 3, 8, 50, 41]


@pytest.fixture(scope="session")
def embed(quern):
    def run(path, ids, *flags):
        return np.array(quern("embed", path, "--tokens", tokens_of(ids), "--json", *flags).json())
    return run


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("name", OURS)
def test_last_row(embed, name):
    for case in json.loads((DATA / name / "ref.json").read_text())["cases"]:
        got = embed(DATA / name, case["tokens"], "--pooling", "last", "--no-normalize", "--exact")[0]
        assert np.abs(got - case["last"]).max() < 2e-4
        got = embed(DATA / name, case["tokens"], "--pooling", "last")[0]
        assert cosine(got, np.array(case["last"])) > 0.9999 and abs(np.linalg.norm(got) - 1) < 1e-5


@pytest.mark.parametrize("kind", ["folder", "gguf"])
@pytest.mark.parametrize("name", THEIRS)
def test_poolings(embed, name, kind):
    path = SHARED / name if kind == "folder" else SHARED / name / "model.gguf"
    if not path.exists():
        pytest.skip(f"{name} has no {kind} here")
    for case in json.loads((SHARED / name / "ref.json").read_text())["cases"]:
        for pooling in ("mean", "first", "last"):
            want = np.array(case[pooling])
            got = embed(path, case["tokens"], "--pooling", pooling, "--no-normalize", "--exact")[0]
            assert np.abs(got - want).max() < 2e-3, (pooling, len(case["tokens"]))
            assert cosine(embed(path, case["tokens"], "--pooling", pooling)[0], want) > 0.9999
        rows = embed(path, case["tokens"], "--pooling", "none", "--no-normalize", "--exact")
        part = np.array(case["rows"])
        assert len(rows) == len(case["tokens"]) and np.abs(rows[:len(part), :part.shape[1]] - part).max() < 2e-3


def test_jina_as_it_was_published(embed, tmp_path):
    """An xlm-roberta with rotary positions, and adapters of tasks beside the weights; and with the names that transformers uses."""
    first, second, old = {}, {}, read_tensors(DATA / "jina-v3/model.safetensors")
    names = {"emb_ln": "embeddings.LayerNorm", "encoder.layers.": "layers.", "mixer.out_proj": "self_attn.o_proj",
             "norm1": "post_attention_layernorm", "norm2": "post_mlp_layernorm"}
    for name, (dtype, shape, data) in old.items():
        inside = name.endswith(".weight") and ("Wqkv" in name or "fc" in name or "out_proj" in name or "embeddings" in name)
        first["roberta." + (name[:-7] + ".parametrizations.weight.original" if inside else name)] = (dtype, shape, data)
        for other, own in names.items():
            name = name.replace(other, own)
        third = len(data) // 3
        for i, part in enumerate(("q_proj", "k_proj", "v_proj") if "Wqkv" in name else (None,)):
            new = name.replace("mixer.Wqkv", f"self_attn.{part}") if part else name
            second[new] = (dtype, [shape[0] // 3, *shape[1:]], data[i * third:(i + 1) * third]) if part else (dtype, shape, data)
    config = json.loads((DATA / "jina-v3/config.json").read_text())
    published = {**{k: v for k, v in config.items() if k != "rope_parameters"}, "model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"],
                 "position_embedding_type": "rotary", "rotary_emb_base": 20000.0, "lora_adaptations": ["a"], "pad_token_id": 1}
    case = json.loads((DATA / "jina-v3/ref.json").read_text())["cases"][-1]
    for folder, tensors, own in (("a", first, published), ("b", second, config)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(own))
        write_tensors(tmp_path / folder / "model.safetensors", tensors)
        got = embed(tmp_path / folder, case["tokens"], "--pooling", "last", "--no-normalize", "--exact")[0]
        assert np.abs(got - case["last"]).max() < 2e-4, folder


def test_bad_arguments(quern):
    for flags, word in ((["--tokens", "1,x"], "--tokens"), (["--tokens", "1,100000"], "vocabulary"),
                        (["--tokens", "1", "--pooling", "sum"], "--pooling"), (["--tokens", "1", "--prompt", "x"], "--prompt"),
                        (["--tokens", "1", "text"], "wants"), ([], "wants")):
        failed = quern("embed", DATA / "bert", *flags)
        assert failed.code == 64 and word in failed.err, flags


class Sentence:
    """The tiny embeddinggemma with the files that sentence-transformers writes."""

    def __init__(self, to):
        self.path, self.modules = to, []
        shutil.copytree(DATA / "embeddinggemma", to)
        self.module("models.Transformer", "", None)

    def module(self, kind, path, config):
        self.modules.append({"idx": len(self.modules), "name": str(len(self.modules)), "path": path,
                             "type": f"sentence_transformers.{kind}"})
        (self.path / "modules.json").write_text(json.dumps(self.modules))
        if config is not None:
            (self.path / path).mkdir(exist_ok=True)
            (self.path / path / "config.json").write_text(json.dumps(config))

    def dense(self, path, weight, bias, **config):
        self.module("models.Dense", path, {"in_features": weight.shape[1], "out_features": weight.shape[0],
                                           "bias": bias is not None, **config})
        tensors = {"linear.weight": ("F32", weight.shape, weight.astype(np.float32).tobytes())}
        if bias is not None:
            tensors["linear.bias"] = ("F32", bias.shape, bias.astype(np.float32).tobytes())
        write_tensors(self.path / path / "model.safetensors", tensors)


@pytest.fixture
def sentence(tmp_path):
    return Sentence(tmp_path / "sentence")


def unit(v):
    return v / np.linalg.norm(v)


POOLINGS = {
    "cls": lambda rows: rows[0],
    "max": lambda rows: rows.max(0),
    "mean": lambda rows: rows.mean(0),
    "mean_sqrt_len_tokens": lambda rows: rows.sum(0) / np.sqrt(len(rows)),
    "weightedmean": lambda rows: (rows * np.arange(1, len(rows) + 1)[:, None]).sum(0) / np.arange(1, len(rows) + 1).sum(),
    "lasttoken": lambda rows: rows[-1],
}


@pytest.mark.parametrize("mode", POOLINGS)
def test_pooling_by_its_file(embed, sentence, mode):
    rows = embed(sentence.path, IDS, "--pooling", "none", "--no-normalize", "--exact")
    sentence.module("models.Pooling", "1_Pooling", {"embedding_dimension": 32, "pooling_mode": mode})
    got = embed(sentence.path, IDS, "--no-normalize", "--exact")[0]
    assert np.abs(got - POOLINGS[mode](rows)).max() < 1e-4


def test_dense_layers(embed, sentence):
    rows = embed(sentence.path, IDS, "--pooling", "none", "--no-normalize", "--exact")
    rng = np.random.default_rng(3)
    a, b, c = rng.normal(size=(48, 32)), rng.normal(size=48), rng.normal(size=(20, 48))
    sentence.module("models.Pooling", "1_Pooling", {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
    sentence.dense("2_Dense", a, b, activation_function="torch.nn.modules.activation.Tanh")
    sentence.dense("3_Dense", c, None, activation_function="torch.nn.modules.linear.Identity")
    sentence.module("models.Normalize", "4_Normalize", None)
    want = c.astype(np.float32) @ np.tanh(a.astype(np.float32) @ rows.mean(0) + b.astype(np.float32))
    assert np.abs(embed(sentence.path, IDS, "--no-normalize", "--exact")[0] - want).max() < 1e-3
    assert np.abs(embed(sentence.path, IDS, "--exact")[0] - unit(want)).max() < 1e-4


def test_modules_that_are_refused(quern, sentence):
    sentence.module("models.LSTM", "1_LSTM", {})
    failed = quern("embed", sentence.path, "--tokens", "1")
    assert failed.code and "LSTM" in failed.err
    sentence.modules.pop()
    sentence.module("models.Dense", "../other", None)
    failed = quern("embed", sentence.path, "--tokens", "1")
    assert failed.code and "inside" in failed.err
    (sentence.path / "modules.json").write_text('{"a": 1}')
    assert "modules.json" in quern("embed", sentence.path, "--tokens", "1").err


def test_pooling_that_is_refused(quern, sentence):
    for config, word in (({"pooling_mode": "sum"}, "sum"), ({"pooling_mode": ["cls", "mean"]}, "joins 2"), ({"pooling_mode": 5}, "pooling_mode")):
        sentence.module("models.Pooling", "1_Pooling", config)
        assert word in quern("embed", sentence.path, "--tokens", "1").err
        sentence.modules.pop()


def test_quantized_encoders_are_the_same(quern, embed, tmp_path):
    """A folder written as a GGUF file gives the same vectors."""
    for name in OURS:
        out = tmp_path / f"{name}.gguf"
        quern("quantize", DATA / name, out, "F32")
        for pooling in ("mean", "last"):
            a, b = (embed(p, IDS, "--pooling", pooling, "--exact")[0] for p in (DATA / name, out))
            assert np.abs(a - b).max() < 1e-5, name
    assert floats(read_tensors(DATA / "mpnet/model.safetensors")["encoder.relative_attention_bias.weight"]).shape == (32, 4)
