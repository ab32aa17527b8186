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
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key=key, max_retries=0, timeout=600)


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


def test_the_list_of_models(binary, smollm2):
    names = [f"smol-{i}" for i in range(5)]
    server = Server(binary, smollm2, *(x for n in names for x in ("--name", n)), "--ctx", "128")
    client = connect(server)
    page = client.models.list()
    assert [m.id for m in page.data] == names and page.has_more is False and (page.first_id, page.last_id) == (names[0], names[-1])
    first = page.data[0]
    assert first.type == "model" and first.display_name == names[0] and first.created_at.year > 2000 and first.max_input_tokens == 128
    assert [m.id for m in client.models.list(limit=2)] == names  # page after page
    two = client.models.list(limit=2)
    assert two.has_more and two.last_id == names[1] and [m.id for m in two.get_next_page().data] == names[2:4]
    back = client.models.list(limit=2, before_id=names[4])
    assert [m.id for m in back.data] == names[2:4] and back.has_more
    assert [m.id for m in client.models.list(limit=10, before_id=names[1]).data] == names[:1]
    assert client.models.list(after_id=names[4]).data == []
    assert client.models.retrieve(names[3]).id == names[3]
    with pytest.raises(anthropic.NotFoundError) as e:
        client.models.retrieve("other")
    assert e.value.body["type"] == "error" and e.value.request_id
    for wrong in ({"limit": 0}, {"limit": 1001}, {"after_id": "other"}, {"before_id": "other"}):
        with pytest.raises(anthropic.BadRequestError):
            client.models.list(**wrong)
    assert "object" in server.ask("/v1/models")  # others get OpenAI's form
    assert server.stop() == 0


def test_request_id(server, client):
    assert client.messages.with_raw_response.create(model="smol", max_tokens=1, messages=HI).request_id
    assert ask(client, HI, max_tokens=1)._request_id
    _, headers, _ = server.request("POST", "/v1/messages", {"model": "smol", "max_tokens": 1, "messages": HI})
    assert headers["request-id"] == headers["x-request-id"]
    assert "request-id" not in server.request("GET", "/v1/models")[1]


SCHEMA = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}}, "required": ["age"],
          "additionalProperties": False}


def test_the_older_output_format(client):
    form = {"type": "json_schema", "schema": SCHEMA}
    for extra in ({"output_format": form}, {"output_config": {"format": form}}):
        r = ask(client, [{"role": "user", "content": "How old are you?"}], extra_body={"temperature": 0, **extra})
        assert 1 <= json.loads(r.content[0].text)["age"] <= 99
    for wrong in ({"output_format": {"type": "json_schema"}}, {"output_config": {"format": {"type": "xml", "schema": {}}}},
                  {"output_format": "json"}):
        with pytest.raises(anthropic.BadRequestError):
            ask(client, HI, extra_body=wrong)


def test_what_is_refused(server, client):
    for name, extra in (("mcp_servers", {"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}),
                        ("container", {"container": "c_1"}), ("web_search_20250305", {"tools": [{"type": "web_search_20250305",
                                                                                              "name": "web_search"}]}),
                        ("bash_20250124", {"tools": [*TOOLS, {"type": "bash_20250124", "name": "bash"}]}),
                        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "some"}}),
                        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "tool"}}), ("thinking", {"thinking": {"type": "x"}})):
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            status, _, body = server.request("POST", path, {"model": "smol", "max_tokens": 5, "messages": HI, **extra})
            error = json.loads(body)["error"]
            assert status == 400 and error["type"] == "invalid_request_error" and name in error["message"], (name, body)
    for block in ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}},
                  {"type": "document", "source": {"type": "url", "url": "http://x"}},
                  {"type": "document", "source": {"type": "text", "data": "a"}, "citations": {"enabled": True}}):
        assert server.request("POST", "/v1/messages", {"model": "smol", "max_tokens": 5,
                                                       "messages": [{"role": "user", "content": [block]}]})[0] == 400, block
    empty = {"mcp_servers": [], "container": None, "tools": [{**TOOLS[0], "type": "custom"}], "thinking": {"type": "disabled"}}
    assert ask(client, HI, max_tokens=2, extra_body=empty).content
    count = lambda content: client.messages.count_tokens(model="smol", messages=[{"role": "user", "content": content}]).input_tokens
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Say hello."}}
    assert count([document]) == count("Say hello.")
