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
    assert ask(client, items, tools=TOOLS, max_output_tokens=8, store=False).output


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
                                  {"input": [{"type": "function_call"}]}, {"input": "x", "background": True, "store": False},
                                  {"input": "x", "conversation": 7}, {"input": "x", "conversation": "a", "previous_response_id": "b"},
                                  {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}])
def test_bad_requests(server, body):
    status, _, raw = server.request("POST", "/v1/responses", body)
    assert status == 400 and json.loads(raw)["error"]["type"] == "invalid_request_error"


def test_what_is_refused(client):
    for name, more in (("prompt", {"prompt": {"id": "pmpt_1"}}), ("moderation", {"moderation": {"model": "omni"}}),
                       *((kind, {"tools": [*TOOLS, {"type": kind, "name": "x"}]})
                         for kind in ("custom", "mcp", "file_search", "web_search", "web_search_preview", "code_interpreter",
                                      "image_generation", "local_shell", "computer_use_preview"))):
        with pytest.raises(openai.BadRequestError) as e:
            client.responses.create(model="smol", input="Hi.", extra_body=more)
        assert name in e.value.message, name
    fine = {"background": False, "conversation": None, "include": ["reasoning.encrypted_content"], "truncation": "auto",
            "max_tool_calls": 3, "service_tier": "auto", "metadata": {"a": "b"}}
    assert ask(client, "Hi.", extra_body={"temperature": 0, **fine}, max_output_tokens=4).output


def test_logprobs(client):
    wants = dict(model="smol", input="Say hello.", temperature=0, max_output_tokens=8)
    plain = client.responses.create(**wants)
    assert plain.output[0].content[0].logprobs == []
    whole = client.responses.create(**wants, include=["message.output_text.logprobs"], top_logprobs=3)
    part = whole.output[0].content[0]
    assert part.text == plain.output_text and len(part.logprobs) == 8 == whole.usage.output_tokens
    assert "".join(bytes(p.bytes).decode() for p in part.logprobs) == part.text
    for p in part.logprobs:
        assert p.logprob <= 0 and len(p.top_logprobs) == 3 and p.top_logprobs[0].token == p.token
        assert p.top_logprobs[0].logprob == pytest.approx(p.logprob, abs=1e-4)
    without = client.responses.create(**wants, include=["message.output_text.logprobs"]).output[0].content[0].logprobs
    assert [p.token for p in without] == [p.token for p in part.logprobs] and all(p.top_logprobs == [] for p in without)
    events = list(client.responses.create(**wants, include=["message.output_text.logprobs"], top_logprobs=3, stream=True))
    told = [p.token for e in events if e.type == "response.output_text.delta" for p in e.logprobs]
    done = next(e for e in events if e.type == "response.output_text.done")
    last = events[-1].response.output[0].content[0]
    assert told == [p.token for p in done.logprobs] == [p.token for p in last.logprobs] == [p.token for p in part.logprobs]
    with pytest.raises(openai.BadRequestError):
        client.responses.create(**wants, top_logprobs=21)


def test_counting_tokens(client):
    count = client.responses.input_tokens.count(model="smol", input="My name is Ann.")
    assert count.object == "response.input_tokens"
    first = ask(client, "My name is Ann.", max_output_tokens=4)
    assert count.input_tokens == first.usage.input_tokens
    more = dict(input=[{"role": "user", "content": "Weather?"}], instructions="Be short.", tools=TOOLS)
    assert client.responses.input_tokens.count(model="smol", **more).input_tokens == \
        client.responses.create(model="smol", max_output_tokens=1, **more).usage.input_tokens
    on = dict(input="What is my name?", previous_response_id=first.id)
    assert client.responses.input_tokens.count(model="smol", **on).input_tokens == ask(client, on["input"], max_output_tokens=1,
                                                                                       previous_response_id=first.id).usage.input_tokens
    with pytest.raises(openai.BadRequestError):
        client.responses.input_tokens.count(model="smol", input=[{"type": "nothing"}])
