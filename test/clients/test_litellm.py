"""litellm: OpenAI's, Anthropic's and Ollama's ways of it; errors become its own classes."""
import litellm
import pytest

ASK = [{"role": "user", "content": "Reply with one word: what colour is the sky?"}]


@pytest.mark.parametrize("model", ["openai/qwen", "anthropic/qwen", "ollama_chat/qwen", "hosted_vllm/qwen"])
def test_completion(server, model):
    base = server.url if model.split("/")[0] in ("anthropic", "ollama_chat") else server.v1
    ask = dict(model=model, messages=ASK, max_tokens=8, temperature=0, api_base=base, api_key=server.key)
    whole = litellm.completion(**ask)
    assert whole.choices[0].message.content
    pieces = "".join(p.choices[0].delta.content or "" for p in litellm.completion(**ask, stream=True))
    assert pieces == whole.choices[0].message.content


def test_errors(server):
    ask = dict(model="openai/qwen", messages=ASK, api_base=server.v1, api_key=server.key)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**ask, "model": "openai/other"})
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**ask, "api_key": "wrong"})
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**ask, "messages": [{"role": "user", "content": "word " * 20000}]})


def test_rerank(server):
    done = litellm.rerank(model="hosted_vllm/qwen", query="bread", documents=["mill", "car"], api_base=server.url, api_key=server.key)
    assert sorted(r["index"] for r in done.results) == [0, 1]
