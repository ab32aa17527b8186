"""Several ranks run one model together: the numbers of one device, whatever is cut where."""
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "test" / "data" / "arch"
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


# ---- what goes through the team beside plain steps ----

BOTH = SPLITS["both"]


def far(a, b):
    return max(abs(x - y) for x, y in zip(a, b)) / max(map(abs, b))


@pytest.mark.parametrize("name", ["llama-all", "mixtral", "gpt2", "deepseek-v2"])
def test_adapters(quern, name):
    folder = DATA.parent / "lora" / name
    ref = json.loads((folder / "ref.json").read_text())
    words = ["logits", DATA / ref["base"], "--tokens", ",".join(map(str, ref["tokens"])), "--exact", "--json", "--lora", folder]
    one = quern(*words).json()
    for split in (SPLITS["3"], BOTH):
        assert far(quern(*words, *split).json()["last"], one["last"]) <= 1e-5


@pytest.mark.parametrize("name", ["gemma3_vl", "qwen2_5_vl"])
def test_images(quern, name):
    folder = DATA.parent / "vision" / name
    if not folder.exists():
        pytest.skip(f"no {name}")
    ref = json.loads((folder / "ref.json").read_text())
    case = ref["cases"][-1]
    images = [x for i in case["images"] for x in ("--image", folder / ref["images"][i]["file"])]
    words = ["logits", folder, "--tokens", ",".join(map(str, case["tokens"])), *images, "--exact", "--json"]
    assert far(quern(*words, *BOTH).json()["last"], quern(*words).json()["last"]) <= 1e-5


@pytest.mark.parametrize("name", ["bert", "modernbert", "embeddinggemma"])
def test_embeddings(quern, name):
    words = ["embed", DATA / name, "--tokens", "1,2,3,4,5,6,7", "--json", "--exact"]
    one = quern(*words).json()
    for split in (SPLITS["3"], SPLITS["stages"]):
        assert far(quern(*words, *split).json()[0], one[0]) <= 1e-5


def test_batches_are_in_flight(quern):
    """Prompts go through the stages in batches, with all of their results."""
    ids = ",".join(str(i * 7 % 60) for i in range(300))
    for name in ("llama", "jamba"):
        words = ["logits", model_of(name), "--exact", "--json", "--chunk", "300", "--tokens", ids]
        one, got = quern(*words).json(), quern(*words, *BOTH).json()
        assert got["argmax"] == one["argmax"] and far(got["last"], one["last"]) <= 1e-5


def test_streams_are_in_flight(serve, tmp_path):
    """Streams of one step go through the stages in batches: the texts of one device."""
    two, streams = tmp_path / "two.gguf", 24
    subprocess.run([sys.executable, ROOT / "bench" / "synth.py", "smollm2-135m", two, "--layers", "2", "--type", "q4_0"], check=True,
                   capture_output=True)

    def texts(*flags):
        s = serve(two, "--ctx", "128", "--slots", str(streams), "--exact", "--speculate", "off", "--threads", "2", *flags)

        def ask(i):
            body = {"prompt": [5 + 37 * i, 7, 3 + i], "max_tokens": 10, "temperature": 0, "ignore_eos": True}
            return json.loads(s.request("POST", "/v1/completions", body)[2])["choices"][0]["text"]
        with ThreadPoolExecutor(streams) as pool:
            return list(pool.map(ask, range(streams)))
    assert texts("--pipeline", "2") == texts()


def again(quern, splits, cache, *words):
    """The text of one device, also where the pages come from the disk."""
    words = ["run", *words, "--device", "cpu", "--raw", "-p", "Numbers: " + ", ".join(str(i * 37 % 101) for i in range(60)), "-n",
             "12", "--temp", "0", "--exact", "--json"]
    one = quern(*words).json()
    for split in splits:
        first = quern(*words, *SPLITS[split], "--cache-dir", cache).json()
        second = quern(*words, *SPLITS[split], "--cache-dir", cache).json()
        assert first["ids"] == second["ids"] == one["ids"]
        assert second["timings"]["prompt_n"] < 33 < first["timings"]["prompt_n"]


def test_cached_pages(quern, tiny, tmp_path):
    again(quern, ["2"], tmp_path, tiny[0])


@pytest.mark.slow
def test_texts(quern, smollm2, tmp_path):
    again(quern, SPLITS, tmp_path, smollm2)


def test_doctor_says_how_many_cards(quern, tiny):
    one = quern("doctor", tiny[0], "--cards", "4x10G", "--json").json()["model"]["ranks"]
    assert one["tensor_parallel"] == 1 and one["cards"] == 4
    assert "they do not hold it" in quern("doctor", tiny[0], "--cards", "2x1M").out
    assert quern("doctor", tiny[0], "--cards", "2by3").code == 64


def test_bench_over_ranks(quern, tiny):
    got = quern("bench", tiny[0], "--device", "cpu", "--tensor-parallel", "2", "-t", "2", "-p", "8", "-n", "2", "-r", "1", "--json")
    assert got.code == 0 and got.json()[0]["device"] == "cpu x 2", got.err
