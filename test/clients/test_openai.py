"""openai: chat, streams, tools, structured outputs, log-probabilities, completions, embeddings, responses."""
import asyncio
import json

import openai
import pytest
from pydantic import BaseModel

ASK = [{"role": "user", "content": "Reply with one word: what colour is the sky?"}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
                   "required": ["city", "unit"], "additionalProperties": False}, "strict": True}}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(max_retries=0, timeout=300)


def test_chat_and_stream(client):
    whole = client.chat.completions.create(model="qwen", messages=ASK, max_tokens=8, temperature=0)
    assert whole.choices[0].message.content and whole.usage.total_tokens > 8 and whole._request_id
    with client.chat.completions.stream(model="qwen", messages=ASK, max_tokens=8, temperature=0) as stream:
        text = "".join(e.delta for e in stream if e.type == "content.delta")
    assert text == whole.choices[0].message.content


def test_parse(client):
    done = client.chat.completions.parse(model="qwen", messages=[{"role": "user", "content": "Ada is 36 years old."}],
                                         response_format=Person, max_tokens=64, temperature=0)
    assert isinstance(done.choices[0].message.parsed, Person) and done.choices[0].message.parsed.age == 36


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
def test_tools(client, choice):
    ask = [{"role": "user", "content": "What is the weather in Paris, in C? Use the tool."}]
    done = client.chat.completions.create(model="qwen", messages=ask, tools=[WEATHER], tool_choice=choice, temperature=0,
                                          max_tokens=200)
    calls = done.choices[0].message.tool_calls
    assert calls and done.choices[0].finish_reason == "tool_calls"
    if choice != "auto":
        assert len(calls) == 1
    arguments = json.loads(calls[0].function.arguments)
    assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("C", "F")
    ask += [done.choices[0].message.model_dump(exclude_none=True)]
    ask += [{"role": "tool", "tool_call_id": c.id, "content": "18 degrees and sunny"} for c in calls]
    after = client.chat.completions.create(model="qwen", messages=ask, tools=[WEATHER], temperature=0, max_tokens=60)
    assert after.choices[0].message.content or after.choices[0].message.tool_calls


def test_prefill(client):
    ask = [{"role": "user", "content": "Count to five."}, {"role": "assistant", "content": "one, two,"}]
    done = client.chat.completions.create(model="qwen", messages=ask, max_tokens=6, temperature=0)
    assert "three" in done.choices[0].message.content and "one" not in done.choices[0].message.content


def test_completions_and_logprobs(client):
    done = client.completions.create(model="qwen", prompt="def add(a, b):\n    return", max_tokens=6, temperature=0, logprobs=2)
    assert "a + b" in done.choices[0].text and len(done.choices[0].logprobs.tokens) == 6
    chat = client.chat.completions.create(model="qwen", messages=ASK, max_tokens=2, temperature=0, logprobs=True, top_logprobs=3)
    assert len(chat.choices[0].logprobs.content[0].top_logprobs) == 3


def test_embeddings(client):
    done = client.embeddings.create(model="qwen", input=["bread", "mill"])
    assert len(done.data) == 2 and len(done.data[0].embedding) == 896


def test_responses(client):
    first = client.responses.create(model="qwen", input="My name is Ada. Reply with: hello Ada.", max_output_tokens=16, temperature=0)
    assert first.output_text and first.usage.output_tokens > 0
    second = client.responses.create(model="qwen", input="What is my name?", previous_response_id=first.id, max_output_tokens=24,
                                     temperature=0)
    assert "Ada" in second.output_text
    with client.responses.stream(model="qwen", input="Say hi.", max_output_tokens=8, temperature=0) as stream:
        kinds = [e.type for e in stream]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    parsed = client.responses.parse(model="qwen", input="Ada is 36 years old.", text_format=Person, temperature=0)
    assert parsed.output_parsed.age == 36
    counted = client.responses.input_tokens.count(model="qwen", input="hello")
    assert counted.input_tokens > 1


def test_many_at_once(server):
    """64 chats with the client's own retries and the server's defaults: all are answered."""
    async def go():
        client = openai.AsyncOpenAI(timeout=600)
        ask = [client.chat.completions.create(model="qwen", messages=ASK, max_tokens=2) for _ in range(64)]
        return await asyncio.gather(*ask)
    assert len(asyncio.run(go())) == 64


def test_errors(client):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=ASK)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(api_key="wrong").models.list()
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="qwen", messages=[{"role": "user", "content": "word " * 20000}])
    assert e.value.code == "context_length_exceeded"
