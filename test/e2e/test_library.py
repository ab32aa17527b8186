"""The examples, compiled against the public header and the shared library alone, and run."""
import os
import re
import shutil
import subprocess

import pytest

from conftest import ROOT


@pytest.fixture(scope="module")
def example(binary, tmp_path_factory):
    cc = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not cc:
        pytest.skip("no C compiler")
    if not (binary.parent / "libquern.so").exists():
        pytest.skip("this build has no shared library")
    folder = tmp_path_factory.mktemp("examples")

    def run(name, *args):
        program = folder / name
        if not program.exists():
            subprocess.run([cc, "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", str(ROOT / "examples" / f"{name}.c"),
                            "-o", str(program), f"-L{binary.parent}", "-lquern", f"-Wl,-rpath,{binary.parent}"], check=True)
        return subprocess.run([str(program), *map(str, args)], capture_output=True, text=True, timeout=120)
    return run


def test_every_example_is_run_here():
    assert {p.stem for p in (ROOT / "examples").glob("*.c")} == {"generate", "stream", "batch", "embed"}


def test_generate(example, smollm2, quern):
    got = example("generate", smollm2, "What is 2+2?")
    assert got.returncode == 0, got.stderr
    text, tail = got.stdout.rsplit("\n(", 1)
    assert re.fullmatch(r"\d+ tokens, (stop|length)\)\n", tail)
    assert text == quern("run", smollm2, "-p", "What is 2+2?", "-n", 48, "--temp", 0, "--json").json()["text"]
    assert example("generate", "nowhere.gguf", "x").returncode == 65


def test_stream_is_cut_short(example, smollm2):
    got = example("stream", smollm2, "Write a long story about a mill.")
    assert got.returncode == 0, got.stderr
    assert "(cancelled after" in got.stdout and got.stdout.count("\n") >= 13


def test_batch(example, smollm2):
    prompts = ["What is 2+2?", "Name a colour.", "Hi"]
    together = example("batch", smollm2, *prompts)
    assert together.returncode == 0, together.stderr
    assert len(re.findall(r"^\d+: ", together.stdout, re.M)) == 3
    assert together.stdout.count("(stop,") + together.stdout.count("(length,") == 3


def test_embed(example, model):
    got = example("embed", model("all-MiniLM-L6-v2"), "a cat", "a kitten", "tax law")
    assert got.returncode == 0, got.stderr
    cosine = [float(line.split()[0]) for line in got.stdout.splitlines()]
    assert cosine[0] == 1 and cosine[1] > 0.6 > 0.4 > cosine[2]
