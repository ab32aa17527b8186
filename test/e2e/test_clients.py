"""Programs that people use, against the server as it is: LiteLLM and llm."""
import os
import subprocess
import sys

import pytest

from server import Server


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, "--name", "smol", "--ctx", "512", "--deterministic", env={**os.environ, "QUERN_API_KEY": "sesame"})
    yield s
    assert s.stop() == 0


def test_litellm(server):
    litellm = pytest.importorskip("litellm")
    where = dict(api_base=f"{server.url}/v1", api_key="sesame")
    ask = dict(model="openai/smol", messages=[{"role": "user", "content": "Say hello."}], max_tokens=4, temperature=0, **where)
    whole = litellm.completion(**ask)
    assert whole.choices[0].message.content and whole.usage.completion_tokens == 4
    pieces = list(litellm.completion(**ask, stream=True))
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == whole.choices[0].message.content
    assert pieces[-1].choices[0].finish_reason == "length"
    text = litellm.text_completion(model="text-completion-openai/smol", prompt="One two three", max_tokens=4, temperature=0, **where)
    assert text.choices[0].text
    vectors = litellm.embedding(model="openai/smol", input=["bread", "mill"], **where)
    assert len(vectors.data) == 2 and len(vectors.data[0]["embedding"]) == 576
    same = litellm.completion(model="ollama_chat/smol", messages=ask["messages"], max_tokens=4, temperature=0,
                              api_base=server.url, api_key="sesame")
    assert same.choices[0].message.content == whole.choices[0].message.content
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**ask, "model": "openai/other"})
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**ask, "api_key": "wrong"})
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**ask, "messages": [{"role": "user", "content": "word " * 1000}]})


def test_llm(server, tmp_path):
    pytest.importorskip("llm")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: mill\n  model_name: smol\n  api_base: {server.url}/v1\n  api_key_name: mill\n"
        f"- model_id: mill-text\n  model_name: smol\n  api_base: {server.url}/v1\n  api_key_name: mill\n  completion: true\n")
    (tmp_path / "keys.json").write_text('{"mill": "sesame"}')
    env = {**os.environ, "LLM_USER_PATH": str(tmp_path)}

    def llm(*args):
        done = subprocess.run([sys.executable, "-m", "llm", *args], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout
    assert "mill" in llm("models")
    streamed = llm("-m", "mill", "-o", "temperature", "0", "-o", "max_tokens", "8", "-n", "Say hello.")
    assert streamed.strip() == llm("-m", "mill", "-o", "temperature", "0", "-o", "max_tokens", "8", "-n", "--no-stream", "Say hello.").strip()
    assert len(streamed) > 5
    assert llm("-m", "mill-text", "-o", "temperature", "0", "-o", "max_tokens", "8", "-n", "One two three").strip()
