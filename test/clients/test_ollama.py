"""ollama: chat, generate, streams, formats, tools, embeddings, lists."""
import json

import ollama
import pytest

ASK = [{"role": "user", "content": "Reply with one word: what colour is the sky?"}]
BRIEF = {"temperature": 0, "num_predict": 12}


@pytest.fixture(scope="module")
def client(server):
    return ollama.Client(host=server.url, headers={"Authorization": f"Bearer {server.key}"})


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    return city


def test_chat_and_generate(client):
    whole = client.chat("qwen", ASK, options=BRIEF)
    assert whole.message.content and whole.done and whole.eval_count
    assert "".join(p.message.content for p in client.chat("qwen", ASK, options=BRIEF, stream=True)) == whole.message.content
    first = client.generate("qwen", "My name is Ada.", options=BRIEF)
    assert first.response and first.context
    assert client.generate("qwen", "What is my name?", context=first.context, options=BRIEF).response


def test_format_and_tools(client):
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    done = client.chat("qwen", [{"role": "user", "content": "Ada is 36 years old."}], format=schema, options={"temperature": 0})
    assert json.loads(done.message.content)["age"] == 36
    called = client.chat("qwen", [{"role": "user", "content": "What is the weather in Paris? Use the tool."}], tools=[get_weather],
                         options={"temperature": 0, "num_predict": 100})
    assert called.message.tool_calls and called.message.tool_calls[0].function.name == "get_weather"


def test_lists(client):
    assert [m.model for m in client.list().models] == ["qwen:latest"] or [m.model for m in client.list().models] == ["qwen"]
    shown = client.show("qwen")
    assert "tools" in shown.capabilities and shown.template and shown.details.quantization_level == "Q4_K_M"
    assert client.ps().models
    assert len(client.embed("qwen", ["bread", "mill"]).embeddings) == 2
    with pytest.raises(ollama.ResponseError):
        client.chat("other", ASK)
