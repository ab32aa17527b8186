"""Several ranks run one model together: the numbers of one device, whatever is cut where."""
import json
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[1] / "data" / "arch"
# dense, groups of heads, windows, experts, a shared expert, latent attention, sparse keys, shared keys, biases and
# post-norms, whole-row norms, recurrences: of every kind one in each run; the others are slow
KINDS = ["llama", "gemma3", "mixtral", "deepseek-v3", "deepseek-v32", "gemma3n", "gpt2", "olmo2", "gpt-oss", "jamba",
         "kimi-linear", "longcat-flash"]
SPLITS = {"2": ["--tensor-parallel", "2"], "3": ["--tensor-parallel", "3"], "4": ["--tensor-parallel", "4"],
          "stages": ["--pipeline", "2"], "both": ["--tensor-parallel", "2", "--pipeline", "2"]}


def decoders():
    encoders = {"bert", "embeddinggemma", "jina-v3", "modernbert", "mpnet"}
    return sorted(p.name for p in DATA.iterdir() if p.name not in encoders and not p.name.startswith("nomic"))


def model_of(name):
    folder = DATA / name
    return folder if (folder / "config.json").exists() else next(folder.glob("*.gguf"))


def tokens_of(name):
    ids = json.loads((DATA / name / "ref.json").read_text())["cases"][-1]["tokens"]
    return ",".join(map(str, (ids * 3)[:60]))


def same(quern, name, splits):
    def run(*flags):
        return quern("logits", model_of(name), "--exact", "--json", "--chunk", "16", "--threads", "2", "--tokens",
                     tokens_of(name), *flags).json()
    one = run()
    largest = max(map(abs, one["last"]))
    for split in splits:
        got = run(*SPLITS[split])
        assert got["argmax"] == one["argmax"], split
        assert max(abs(a - b) for a, b in zip(got["last"], one["last"])) <= 1e-5 * largest, split


@pytest.mark.parametrize("name", KINDS)
def test_ranks_give_the_logits_of_one_device(quern, name):
    same(quern, name, ["3", "both"])


@pytest.mark.slow
@pytest.mark.parametrize("name", decoders())
def test_every_family_over_ranks(quern, name):
    same(quern, name, SPLITS)


def test_more_stages_than_layers(quern):
    got = quern("logits", model_of("llama"), "--tokens", "1,2,3", "--pipeline", "9")
    assert got.code == 64
    assert "the layers of this model make" in got.err
