"""Every command and program that the README shows runs, and prints what it shows ('...' stands for anything); the links and
pictures of every page exist, and the plots are those of the tables."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import cached
from server import Server

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()
QWEN05 = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "doc").glob("*.md")])
SESSIONS = [block for block in re.findall(r"```console\n(.*?)```", TEXT, re.S)]


def commands():
    for block in SESSIONS:
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, shown = part.partition("\n")
            yield pytest.param(command, shown, id=command[:50])


@pytest.mark.parametrize("command, shown", list(commands()))
def test_command(command, shown, binary, smollm2):
    if command.startswith("make"):
        pytest.skip("a make target: this very test runs inside one")
    if "qwen05" in command:
        cached(QWEN05)
    env = {**os.environ, "PATH": f"{binary.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, env=env, timeout=300,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    for line in shown.splitlines():
        if line.strip():
            pattern = ".*".join(re.escape(p) for p in line.rstrip().split("..."))
            assert re.search(f"^{pattern}$", done.stdout + done.stderr, re.M), f"{line!r} not in {done.stdout!r}"


def test_there_are_commands():
    assert len(list(commands())) >= 6


@pytest.fixture(scope="module")
def server(binary):
    cached(QWEN05)
    s = Server(binary, "qwen05")
    yield s
    s.stop()


@pytest.mark.parametrize("language, program", [("python", [sys.executable, "-c"]), ("sh", ["bash", "-c"])])
def test_client(language, program, server):
    if language == "python":
        pytest.importorskip("openai")
    block = next(b for b in re.findall(rf"```{language}\n(.*?)```", TEXT, re.S) if "/v1" in b)
    assert "http://127.0.0.1:8080" in block
    done = subprocess.run([*program, block.replace("http://127.0.0.1:8080", server.url)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "The capital of France is Paris." in done.stdout


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path) if path else page
        assert there.exists(), f"{target} is not there"
        assert not anchor or anchor in anchors(there), f"{path} has no heading {anchor}"


def test_the_plots_are_those_of_the_tables():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "speed-svg", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=lambda p: p.name)
def test_plain_words(page):
    """Phrases that a reader of English as a second language has to guess at."""
    found = re.findall(r"as (?:it|they) lies?|laid out anew|nobody|somebody|so many |sent away|(?:is|are) told", page.read_text(), re.I)
    assert not found, found
