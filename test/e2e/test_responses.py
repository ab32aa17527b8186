"""OpenAI's responses with the real client."""
import json

import pytest
from server import Server
from test_serve import OPTIONS
from test_tools import LONG, THINKS, WEATHER

openai = pytest.importorskip("openai")

TOOLS = [{"type": "function", "name": "get_weather", "description": "Weather of a city", "parameters": WEATHER, "strict": True}]


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, *OPTIONS)
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def ask(client, input, **more):
    return client.responses.create(model="smol", input=input, **({"max_output_tokens": 200, "temperature": 0} | more))


def named_events(raw):
    """[(name, data)]: event: and data: on lines of their own, no [DONE]."""
    out = []
    for part in raw.decode().split("\n\n")[:-1]:
        name, data = part.split("\n")
        assert name.startswith("event: ") and data.startswith("data: ")
        out.append((name[7:], json.loads(data[6:])))
    return out


def test_a_response(client):
    r = ask(client, "Say hello.", instructions="Be kind.", metadata={"a": "b"})
    assert r.id.startswith("resp_") and r.object == "response" and r.status == "completed" and r.output_text
    assert r.instructions == "Be kind." and r.metadata == {"a": "b"} and r.usage.output_tokens > 0
    message = r.output[0]
    assert message.type == "message" and message.role == "assistant" and message.content[0].type == "output_text"
    cut = ask(client, [{"role": "user", "content": [{"type": "input_text", "text": "Tell me a story."}]}], max_output_tokens=5)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"


def test_events_come_in_order(server):
    body = {"model": "smol", "input": "Say hello.", "max_output_tokens": 200, "temperature": 0, "stream": True}
    status, headers, raw = server.request("POST", "/v1/responses", body)
    assert status == 200 and headers["content-type"] == "text/event-stream"
    got = named_events(raw)
    assert [d["sequence_number"] for _, d in got] == list(range(len(got)))
    assert all(name == d["type"] for name, d in got)
    names = [name for name, _ in got]
    deltas = [d["delta"] for name, d in got if name == "response.output_text.delta"]
    assert names == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
                     *["response.output_text.delta"] * len(deltas), "response.output_text.done", "response.content_part.done",
                     "response.output_item.done", "response.completed"]
    done = dict(got)
    assert "".join(deltas) == done["response.output_text.done"]["text"] != ""
    assert done["response.completed"]["response"]["output"] == [done["response.output_item.done"]["item"]]


def test_the_client_follows_a_stream(client):
    with client.responses.stream(model="smol", input="Weather in Paris?", tools=TOOLS, max_output_tokens=200,
                                 tool_choice={"type": "function", "name": "get_weather"}, temperature=0) as s:
        names = [e.type for e in s]
        r = s.get_final_response()
    deltas = names.count("response.function_call_arguments.delta")
    assert deltas > 2 and names[2:-1] == ["response.output_item.added", *["response.function_call_arguments.delta"] * deltas,
                                          "response.function_call_arguments.done", "response.output_item.done"]
    assert r.output[0].type == "function_call" and r.output[0].parsed_arguments["city"]


def test_calls_and_their_results(client):
    r = ask(client, "Weather in Paris?", tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    call = r.output[0]
    assert call.type == "function_call" and call.name == "get_weather" and json.loads(call.arguments)["city"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    assert ask(client, [result], previous_response_id=r.id, tools=TOOLS, max_output_tokens=8).output
    items = [{"role": "user", "content": "Weather in Paris?"},
             {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
             call.model_dump(exclude_none=True), result]
    assert ask(client, items, tools=TOOLS + [{"type": "web_search"}], max_output_tokens=8, store=False).output


def test_a_call_that_is_cut(client):
    ask_for = dict(model="smol", input="Write.", tools=[{"type": "function", "name": "write", "parameters": LONG}],
                   max_output_tokens=48, temperature=0, tool_choice={"type": "function", "name": "write"})
    whole = client.responses.create(**ask_for)
    *_, last = client.responses.create(**ask_for, stream=True)
    assert last.type == "response.incomplete" and whole.status == "incomplete"
    for r in (whole, last.response):
        assert r.output[0].type == "function_call" and r.output[0].status == "incomplete"
    assert whole.output[0].arguments == last.response.output[0].arguments


def test_a_conversation_goes_on_from_what_was_kept(client):
    first = ask(client, "My name is Ann.", max_output_tokens=10)
    second = ask(client, "What is my name?", previous_response_id=first.id, max_output_tokens=10)
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    other = ask(client, "Hi.", store=False, max_output_tokens=4)
    for gone in (first.id, other.id, "resp_nobody"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(gone)
        with pytest.raises(openai.NotFoundError) as e:
            ask(client, "And?", previous_response_id=gone)
        assert e.value.body["param"] == "previous_response_id"


def test_what_is_kept_is_bounded(server, client):
    first = ask(client, "Hi.", max_output_tokens=1)
    for _ in range(257):
        status, _, _ = server.request("POST", "/v1/responses", {"input": "Hi.", "max_output_tokens": 1, "temperature": 0})
        assert status == 200
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_parse(client):
    pydantic = pytest.importorskip("pydantic")

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        age: int = pydantic.Field(ge=0, le=150)

    r = client.responses.parse(model="smol", input="Ann is 7 years old. JSON.", text_format=Person, max_output_tokens=80,
                               temperature=0)
    assert isinstance(r.output_parsed, Person)


def test_reasoning_items(binary, smollm2, tmp_path):
    (tmp_path / "t.jinja").write_text(THINKS)
    s = Server(binary, smollm2, *OPTIONS, "--template", str(tmp_path / "t.jinja"))
    try:
        r = ask(s.client(), "Say hello.", max_output_tokens=8, reasoning={"effort": "low"})
        assert r.output[0].type == "reasoning" and r.output[0].content[0].text
        body = {"input": "Say hello.", "max_output_tokens": 8, "temperature": 0, "stream": True}
        got = named_events(s.request("POST", "/v1/responses", body)[2])
        assert "".join(d["delta"] for n, d in got if n == "response.reasoning_text.delta") == r.output[0].content[0].text
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("body", [{}, {"input": 7}, {"input": [{"type": "nobody"}]}, {"input": [{"role": "user"}, 7]},
                                  {"input": [{"type": "function_call"}]}, {"input": "x", "background": True},
                                  {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}])
def test_bad_requests(server, body):
    status, _, raw = server.request("POST", "/v1/responses", body)
    assert status == 400 and json.loads(raw)["error"]["type"] == "invalid_request_error"
