"""Real client libraries against a real server: `make test-clients`. Each file is one client, used as its own page shows it."""
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "e2e"))
from server import Server  # noqa: E402

KEY = "sesame"
# Libraries that would otherwise ask a network that is not there, or report home.
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1", "DO_NOT_TRACK": "1",
               "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def cached(name):
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(cache) / "quern" / "models" / name
    if not path.exists():
        pytest.fail(f"the model {name} is not in the cache: scripts/fetch-model")
    return path


@pytest.fixture(scope="session")
def server():
    """A model that can write code and call tools, behind a key."""
    binary = Path(os.environ.get("QUERN_BUILD", ROOT / "build")) / "quern"
    s = Server(binary, cached("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"), "--name", "qwen", "--ctx", "8192", "--deterministic",
               env={**os.environ, "QUERN_API_KEY": KEY})
    s.key, s.model, s.v1 = KEY, "qwen", f"{s.url}/v1"
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="session", autouse=True)
def environment(server):
    """Where clients look when nothing is said."""
    os.environ |= {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.v1, "OPENAI_API_BASE": server.v1,
                   "ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.url, "OLLAMA_HOST": server.url}
