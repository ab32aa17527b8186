"""anthropic: messages, streams, tools, prefill, counting, models."""
import anthropic
import pytest

ASK = [{"role": "user", "content": "Reply with one word: what colour is the sky?"}]
TOOL = {"name": "get_weather", "description": "The weather of a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}

COLD = {"extra_body": {"temperature": 0}}  # its newest versions have no such argument


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(max_retries=0, timeout=300)


def test_messages_and_stream(client):
    whole = client.messages.create(model="qwen", max_tokens=8, messages=ASK, **COLD, system="Be brief.")
    assert whole.content[0].text and whole.usage.output_tokens > 0 and whole._request_id
    with client.messages.stream(model="qwen", max_tokens=8, messages=ASK, **COLD, system="Be brief.") as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        assert stream.get_final_message().stop_reason == whole.stop_reason


def test_prefill(client):
    ask = [{"role": "user", "content": "Count to five."}, {"role": "assistant", "content": "one, two,"}]
    done = client.messages.create(model="qwen", max_tokens=6, messages=ask, **COLD)
    assert "three" in done.content[0].text and "one" not in done.content[0].text


def test_tools(client):
    ask = [{"role": "user", "content": "What is the weather in Paris?"}]
    done = client.messages.create(model="qwen", max_tokens=100, messages=ask, tools=[TOOL], tool_choice={"type": "any"}, **COLD)
    use = [b for b in done.content if b.type == "tool_use"]
    assert len(use) == 1 and "city" in use[0].input and done.stop_reason == "tool_use"
    ask += [{"role": "assistant", "content": done.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use[0].id, "content": "18 degrees"}]}]
    assert client.messages.create(model="qwen", max_tokens=40, messages=ask, tools=[TOOL], **COLD).content


def test_structured(client):
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False}
    done = client.messages.create(model="qwen", max_tokens=60, messages=[{"role": "user", "content": "Ada is 36."}], **COLD,
                                  output_config={"format": {"type": "json_schema", "schema": schema}})
    assert '"age"' in done.content[0].text


def test_count_and_models(client):
    assert client.messages.count_tokens(model="qwen", messages=ASK).input_tokens > 5
    assert [m.id for m in client.models.list()] == ["qwen"]
    assert client.models.retrieve("qwen").type == "model"


def test_errors(client):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", max_tokens=4, messages=ASK)
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(api_key="wrong").messages.create(model="qwen", max_tokens=4, messages=ASK)
