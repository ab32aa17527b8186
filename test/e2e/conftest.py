"""Fixtures of the end-to-end tests: the program, reference data, models."""
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from browser import CHROMIUM, LAN_NAME, opened
from server import Server

ROOT = Path(__file__).resolve().parents[2]


class Result(NamedTuple):
    code: int
    out: str
    err: str

    def json(self):
        assert self.code == 0, self.err
        return json.loads(self.out)


def pytest_configure(config):
    config.addinivalue_line("markers", "models: needs models that only `make test-models` fetches")
    config.addinivalue_line("markers", "slow: takes minutes; for `make soak`")


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory):
    """What servers of the tests keep does not go to the user's folder."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def binary():
    path = Path(os.environ.get("QUERN_BUILD", ROOT / "build")) / "quern"
    if not path.is_file():
        pytest.fail(f"{path} is not there: make build")
    return path


@pytest.fixture(scope="session")
def quern(binary):
    """quern("info", path, stdin=b"") -> Result(code, out, err). With raw=True out is bytes."""
    def run(*args, stdin=b"", timeout=300, env=None, cwd=None, raw=False):
        stdin = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run([str(binary), *map(str, args)], input=stdin, capture_output=True, timeout=timeout, cwd=cwd,
                              env={**os.environ, **(env or {})})
        out = done.stdout if raw else done.stdout.decode("utf-8", "replace")
        return Result(done.returncode, out, done.stderr.decode("utf-8", "replace"))
    return run


@pytest.fixture(scope="session")
def shared():
    """The folder of reference data: $QUERN_SHARED, or `shared` beside the repository."""
    path = Path(os.environ.get("QUERN_SHARED", ROOT.parent / "shared"))
    if not (path / "vocab").is_dir():
        pytest.skip("no reference data: ../shared is not there")
    return path


def cached(name):
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(cache) / "quern" / "models" / name
    if not path.exists():
        pytest.skip(f"the model {name} is not in the cache (scripts/fetch-model)")
    return path


@pytest.fixture(scope="session")
def smollm2():
    """The default model, which `make test` fetches."""
    return cached("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """What to serve where only the server matters: one layer of random weights, fast and without sense."""
    folder = tmp_path_factory.mktemp("tiny")
    subprocess.run([sys.executable, ROOT / "bench" / "synth.py", "smollm2-135m", folder / "tiny.gguf", "--layers", "1", "--type",
                    "q4_0"], check=True, capture_output=True)
    (folder / "chat.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    return [folder / "tiny.gguf", "--template", folder / "chat.jinja", "--name", "tiny", "--ctx", "2048"]


@pytest.fixture(scope="session")
def model():
    """model("gemma-3-270m-q4_k_m.gguf") -> its path in the cache, or a skip."""
    return cached


@pytest.fixture(scope="session")
def terminals():
    """Skips where the machine gives no pseudo-terminals (a bare chroot)."""
    try:
        for fd in pty.openpty():
            os.close(fd)
    except OSError as why:
        pytest.skip(f"no pseudo-terminal here: {why}")


@pytest.fixture
def serve(binary):
    """serve(model, ...) -> a server, which does not outlive the test"""
    running = []

    def start(*args):
        running.append(Server(binary, *args))
        return running[-1]
    yield start
    for s in running:
        s.kill()


@pytest.fixture(scope="session")
def chromium():
    """A browser, started once; a page needs no more."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as p:
        b = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", f"--host-resolver-rules=MAP {LAN_NAME} 127.0.0.1"])
        yield b
        b.close()


@pytest.fixture(scope="session")
def page_server(binary, tiny):
    """For tests of the page that answer its requests themselves."""
    s = Server(binary, *tiny)
    yield s
    s.stop()


@pytest.fixture
def tab(chromium, page_server):
    """A page whose server does not matter."""
    with opened(chromium, page_server.url) as p:
        yield p
