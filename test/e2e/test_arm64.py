"""The program's main verbs as `make test-arm64` runs them, under qemu; any other build may be asked, too. What a tier answers is
what plain C answers, and what this machine's own program answers where there is one."""
import json
import os
import subprocess

import pytest

from conftest import ROOT
from server import Server

pytestmark = pytest.mark.skipif("qemu" not in os.environ.get("QUERN_BUILD", ""), reason="for make test-arm64")
TIERS = ["scalar", "neon", "dotprod", "i8mm"]


def test_tiers_are_there(quern):
    tiers = quern("doctor", "--json", timeout=600).json()["tiers"]
    assert list(tiers) == TIERS and all(tiers.values())


def native(*args):
    """What this machine's own program prints, or None."""
    program = ROOT / "build" / "quern"
    return subprocess.run([program, *map(str, args)], capture_output=True, text=True).stdout if program.is_file() else None


def test_tokenize(quern, smollm2):
    words = ["tokenize", smollm2, "The sky is blue: naïve 🙂 12345.", "--json"]
    ids = quern(*words, timeout=300).json()
    assert ids["ids"] and (native(*words) is None or json.loads(native(*words)) == ids)


def test_run_answers_the_same_in_every_tier(quern, smollm2):
    words = ["run", smollm2, "-p", "Name three colours.", "--temp", "0", "-n", "8", "--ctx", "256", "-q"]
    said = {}
    for tier in TIERS:
        done = quern(*words, "--tier", tier, timeout=1800)
        assert done.code == 0, done.err
        said[tier] = done.out
    assert len(set(said.values())) == 1 and said["i8mm"].strip(), said


@pytest.mark.parametrize("kind", ["q8_0", "q4_k_m", "iq4_nl"])
def test_quantize_gives_the_same_file(quern, tmp_path, kind):
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    done = quern("quantize", ROOT / "test/data/arch/llama", ours, kind, timeout=1200)
    assert done.code == 0, done.err
    if native("quantize", ROOT / "test/data/arch/llama", theirs, kind) is not None:
        assert ours.read_bytes() == theirs.read_bytes()
    assert quern("info", ours, timeout=600).code == 0


def test_serve(binary, smollm2):
    server = Server(binary, smollm2, "--ctx", "512", "--slots", "2")
    reply = server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 6,
                                                "temperature": 0})
    assert reply["choices"][0]["message"]["content"].strip()
    assert server.stop() == 0
