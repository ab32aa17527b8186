"""Anthropic's messages with the real client."""
import json

import pytest
from server import Server
from test_serve import OPTIONS
from test_tools import THINKS, WEATHER

anthropic = pytest.importorskip("anthropic")

HI = [{"role": "user", "content": "Say hello."}]
TOOLS = [{"name": "get_weather", "description": "Weather of a city", "input_schema": WEATHER}]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, *OPTIONS)
    yield s
    assert s.stop() == 0


def connect(server, key="none"):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key=key, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def client(server):
    return connect(server)


def ask(client, messages, **more):
    return client.messages.create(model="smol", messages=messages, **({"max_tokens": 200, "extra_body": {"temperature": 0}} | more))


def test_a_message(client):
    r = ask(client, HI, system="Be kind.")
    assert r.id.startswith("msg_") and r.type == "message" and r.role == "assistant" and r.model == "smol"
    assert [b.type for b in r.content] == ["text"] and r.content[0].text
    assert r.stop_reason == "end_turn" and r.stop_sequence is None and r.usage.output_tokens > 0
    blocks = ask(client, [{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}],
                 system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}])
    assert blocks.content[0].text == r.content[0].text
    assert ask(client, ASK, max_tokens=3).stop_reason == "max_tokens"


def test_stop_sequences(client):
    whole = ask(client, HI).content[0].text
    word = whole.split()[1]
    r = ask(client, HI, stop_sequences=["nobody says this", word])
    assert r.stop_reason == "stop_sequence" and r.stop_sequence == word and r.content[0].text == whole.split(word)[0]


def test_events(server):
    body = {"model": "smol", "max_tokens": 200, "messages": HI, "temperature": 0, "stream": True}
    status, headers, raw = server.request("POST", "/v1/messages", body, anthropic_version="2023-06-01", x_api_key="any")
    assert status == 200 and headers["content-type"] == "text/event-stream"
    got = []
    for part in raw.decode().split("\n\n")[:-1]:
        name, data = part.split("\n")
        got.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {got[-1]['type']}"
    deltas = [e["delta"]["text"] for e in got if e["type"] == "content_block_delta"]
    assert [e["type"] for e in got] == ["message_start", "ping", "content_block_start", *["content_block_delta"] * len(deltas),
                                        "content_block_stop", "message_delta", "message_stop"]
    assert got[0]["message"]["content"] == [] and got[0]["message"]["usage"]["input_tokens"] > 0
    assert got[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None} and got[-2]["usage"]["output_tokens"] > 0
    assert "".join(deltas)


def test_the_client_follows_a_stream(client):
    whole = ask(client, HI)
    with client.messages.stream(model="smol", max_tokens=200, messages=HI, extra_body={"temperature": 0}) as s:
        assert "".join(s.text_stream) == whole.content[0].text
        assert s.get_final_message().stop_reason == "end_turn"


@pytest.mark.parametrize("choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}])
def test_tools(client, choice):
    r = ask(client, ASK, tools=TOOLS, tool_choice=choice)
    assert r.stop_reason == "tool_use" and [b.type for b in r.content] == ["tool_use"]
    use = r.content[0]
    assert use.name == "get_weather" and isinstance(use.input["city"], str)
    with client.messages.stream(model="smol", max_tokens=200, messages=ASK, tools=TOOLS, tool_choice=choice,
                                extra_body={"temperature": 0}) as s:
        kinds = [e.type for e in s]
        assert kinds.count("input_json") > 2  # the input in pieces
        assert s.get_final_message().content[0].input == use.input
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "sunny"}]}
    history = ASK + [{"role": "assistant", "content": r.content},
                     {"role": "user", "content": [result, {"type": "text", "text": "So?"}]}]
    assert ask(client, history, tools=TOOLS, max_tokens=8).usage.output_tokens


def test_no_tools(client):
    assert ask(client, ASK, tools=TOOLS, tool_choice={"type": "none"}, max_tokens=8).content[0].type == "text"


def test_tokens_are_counted(client):
    counted = client.messages.count_tokens(model="smol", messages=HI, system="Be kind.", tools=TOOLS).input_tokens
    r = ask(client, HI, system="Be kind.", tools=TOOLS, max_tokens=1)
    assert counted == r.usage.input_tokens + r.usage.cache_read_input_tokens
    assert counted > client.messages.count_tokens(model="smol", messages=HI).input_tokens > 0


def test_thinking(binary, smollm2, tmp_path):
    (tmp_path / "t.jinja").write_text(THINKS)
    s = Server(binary, smollm2, *OPTIONS, "--template", str(tmp_path / "t.jinja"))
    try:
        client = connect(s)
        r = ask(client, HI, max_tokens=8, thinking={"type": "enabled", "budget_tokens": 1024})
        assert r.content[0].type == "thinking" and r.content[0].thinking
        with client.messages.stream(model="smol", max_tokens=8, messages=HI, extra_body={"temperature": 0}) as stream:
            assert stream.get_final_message().content[0].thinking == r.content[0].thinking
        assert ask(client, HI + [{"role": "assistant", "content": r.content + [{"type": "text", "text": "Hello."}]}, HI[0]],
                   max_tokens=2).content
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("body, status, kind", [
    ({"model": "nobody", "messages": HI}, 404, "not_found_error"),
    ({"messages": []}, 400, "invalid_request_error"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400, "invalid_request_error"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, 400, "invalid_request_error"),
    ({"messages": HI, "tool_choice": {"type": "any"}}, 400, "invalid_request_error"),
    ({"messages": HI, "max_tokens": 0}, 400, "invalid_request_error"),
    ({"messages": HI, "top_p": 1.5}, 400, "invalid_request_error"),
    ({"messages": HI, "stop_sequences": "end"}, 400, "invalid_request_error"),
    ({"messages": [{"role": "user", "content": "long " * 2000}]}, 400, "invalid_request_error"),
])
def test_errors_have_their_shape(server, body, status, kind):
    got, _, raw = server.request("POST", "/v1/messages", {"max_tokens": 4} | body)
    error = json.loads(raw)
    assert got == status and error["type"] == "error" and error["error"]["type"] == kind and error["error"]["message"]
    if "long " not in str(body) and "max_tokens" not in body:  # the same where tokens are only counted
        assert server.request("POST", "/v1/messages/count_tokens", body)[0] == status


def test_keys(binary, smollm2, tmp_path):
    (tmp_path / "keys").write_text("secret\n")
    s = Server(binary, smollm2, *OPTIONS, "--api-key-file", str(tmp_path / "keys"))
    try:
        assert ask(connect(s, "secret"), HI, max_tokens=1).content is not None
        with pytest.raises(anthropic.AuthenticationError) as e:
            ask(connect(s, "wrong"), HI)
        assert e.value.body["error"]["type"] == "authentication_error"
    finally:
        assert s.stop() == 0
