"""Weights that are repacked for the products: the same text to the last bit, and no second copy of the file."""
import json
import math
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import Server

STORY = "Describe in a few words how a water mill turns grain into flour, and why the stones are dressed. " * 3


@pytest.fixture(scope="module")
def tiers(quern):
    has = quern("doctor", "--json").json()["tiers"]
    if not has["avx2"]:
        pytest.skip("this machine has no AVX2: nothing is repacked")
    return has


def texts(server):
    asks = [{"prompt": STORY[:20 + 31 * i], "max_tokens": 12, "temperature": 0.8 * (i % 2), "seed": i, "logprobs": 2}
            for i in range(6)]

    def ask(body):
        status, _, text = server.request("POST", "/v1/completions", body)
        assert status == 200, text
        return json.loads(text)["choices"][0]["logprobs"]
    alone = [ask(a) for a in asks]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(ask, asks))
    return alone, together


@pytest.fixture(scope="module")
def halves(quern, smollm2, tmp_path_factory):
    """The same model in F16."""
    path = tmp_path_factory.mktemp("halves") / "f16.gguf"
    assert quern("quantize", smollm2, path, "f16").code == 0
    return path


def check_bits(binary, model, *options, from_file=("--no-repack",)):
    """Before and after, alone and in a batch; and from the file's layout."""
    s = Server(binary, model, "--device", "cpu", "--slots", "6", *options)
    first, batch = texts(s)
    again, _ = texts(s)
    assert s.stop() == 0
    s = Server(binary, model, "--device", "cpu", "--slots", "6", *options, *from_file)
    plain, _ = texts(s)
    assert s.stop() == 0
    assert first == batch == again == plain


@pytest.mark.parametrize("tier", ["avx2", "avx512", "amx"])
def test_the_bits_are_the_same(tiers, binary, smollm2, halves, tier):
    if not tiers[tier]:
        pytest.skip(f"this machine has no {tier}")
    check_bits(binary, smollm2, "--tier", tier)
    check_bits(binary, smollm2, "--tier", tier, "--activations", "8")
    check_bits(binary, halves, "--tier", tier, "--activations", "8", from_file=("--no-repack", "--deterministic"))


def test_bf16_is_near_to_floats(quern, halves):
    """F16 weights are multiplied in bf16, and the distribution stays; small models do without by default."""
    ids = ",".join(str(7919 * i % 40000) for i in range(37))
    exact, default, floats = [quern("logits", halves, "--tokens", ids, "--json", *o).json()["last"]
                              for o in (["--exact"], ["--activations", "8"], [])]
    most = max(exact)
    total = sum(math.exp(v - most) for v in exact)
    other = sum(math.exp(v - most) for v in default)
    kl = sum(math.exp(a - most) / total * (a - b + math.log(other / total)) for a, b in zip(exact, default))
    assert 0 < kl < 0.002
    assert max(abs(a - b) for a, b in zip(exact, floats)) < 0.02


def test_there_is_one_copy(tiers, binary, smollm2):
    p = subprocess.Popen([binary, "run", smollm2, "-p", STORY, "-n", "100000", "-c", "512", "--ignore-eos", "--device", "cpu"],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    p.stdout.read(60)  # a few steps
    with open(f"/proc/{p.pid}/status") as f:
        most = {k: int(v.split()[0]) for k, v in (line.split(":") for line in f) if v.endswith("kB\n")}["VmHWM"] * 1024
    p.stdout.read()
    assert p.wait(120) == 0
    assert most < 1.5 * smollm2.stat().st_size
