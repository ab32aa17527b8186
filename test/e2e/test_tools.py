"""Tool calls and reasoning through OpenAI's chat, with the real clients and a real model."""
import json
import re

import pytest
from server import Server, events
from test_serve import HI, OPTIONS

openai = pytest.importorskip("openai")

WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20},
                                            "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "get_time", "parameters": {
             "type": "object", "properties": {}, "additionalProperties": False}}}]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
LONG = {"type": "object", "properties": {"text": {"type": "string", "minLength": 400}}, "required": ["text"]}
THINKS = ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
          "{% if enable_thinking is not defined or enable_thinking %} <think>\n{% endif %}")


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, *OPTIONS, "--slots", "2", "--queue", "4")
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return server.client()


@pytest.fixture(scope="module")
def thinker(binary, smollm2, tmp_path_factory):
    """The same model behind a template that opens the reasoning: it never closes it."""
    template = tmp_path_factory.mktemp("template") / "t.jinja"
    template.write_text(THINKS)
    s = Server(binary, smollm2, *OPTIONS, "--template", str(template))
    yield s
    assert s.stop() == 0


def chat(client, **more):
    return client.chat.completions.create(model="smol", **({"messages": ASK, "max_tokens": 200, "temperature": 0} | more))


def is_weather(call):
    arguments = json.loads(call.function.arguments)
    assert set(arguments) <= {"city", "days"} and isinstance(arguments["city"], str) and len(arguments["city"]) <= 20
    assert arguments.get("days", 1) in range(1, 10)
    return call.type == "function" and call.function.name == "get_weather" and call.id.startswith("call_")


# ---- tool_choice ----

def test_a_named_tool_is_called(client):
    r = chat(client, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "get_weather"}}).choices[0]
    assert r.finish_reason == "tool_calls" and r.message.content is None
    assert len(r.message.tool_calls) == 1 and is_weather(r.message.tool_calls[0])


def test_required_means_a_call(client):
    for seed in range(3):
        r = chat(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, temperature=1.5, seed=seed).choices[0]
        assert r.finish_reason == "tool_calls" and len(r.message.tool_calls) == 1 and r.message.content is None
        assert r.message.tool_calls[0].function.name in ("get_weather", "get_time")
        json.loads(r.message.tool_calls[0].function.arguments)


def test_none_means_text(client):
    r = chat(client, tools=TOOLS, tool_choice="none", max_tokens=10).choices[0]
    assert r.message.tool_calls is None and r.message.content


def test_allowed_tools(client):
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "get_time"}}]}}
    r = chat(client, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False).choices[0]
    assert [c.function.name for c in r.message.tool_calls] == ["get_time"]


def test_what_a_model_calls_by_itself_has_valid_arguments(client):
    """A call in the history makes this small model write one more: the grammar wakes at its mark."""
    messages = ASK + [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "assistant", "content": "It is sunny in Paris."},
        {"role": "user", "content": "What is the weather in London?"}]
    r = chat(client, messages=messages, tools=TOOLS, max_tokens=60).choices[0]
    assert r.message.content or is_weather(r.message.tool_calls[0])


@pytest.mark.parametrize("more, param", [
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
        "type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}}}]}, "tools"),
])
def test_what_cannot_be_is_said(client, more, param):
    with pytest.raises(openai.BadRequestError) as e:
        chat(client, **more)
    assert e.value.body["param"] == param and e.value.body["type"] == "invalid_request_error"


def test_a_schema_that_cannot_be_enforced_still_gives_json(client):
    tool = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}}}
    call = chat(client, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=300).choices[0]
    if call.finish_reason == "tool_calls":
        assert isinstance(json.loads(call.message.tool_calls[0].function.arguments), dict)


def test_tools_and_a_format_together(client):
    """Either a call or the format."""
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": {
        "type": "object", "properties": {"sky": {"enum": ["blue", "grey"]}}, "required": ["sky"], "additionalProperties": False}}}
    r = chat(client, tools=TOOLS, response_format=format, parallel_tool_calls=False).choices[0]
    if r.message.tool_calls is None:
        assert json.loads(r.message.content)["sky"] in ("blue", "grey")


# ---- streams ----

def test_tool_deltas(server):
    """id and name once, then the arguments; index from 0; never text and a call in one delta; {} at the end."""
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "max_tokens": 150, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    status, headers, raw = server.request("POST", "/v1/chat/completions", body)
    assert status == 200 and headers["content-type"] == "text/event-stream"
    *chunks, usage = events(raw)
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] > 0
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    assert all("usage" not in c for c in chunks)
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""} and all("role" not in d for d in deltas[1:])
    assert deltas[-1] == {} and chunks[-1]["choices"][0]["finish_reason"] in ("tool_calls", "length")
    assert not any("content" in d and "tool_calls" in d for d in deltas)
    calls = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
    assert calls[0]["index"] == 0 and calls[0]["type"] == "function" and calls[0]["function"]["arguments"] == ""
    for i in range(calls[-1]["index"] + 1):
        first, *rest = [c for c in calls if c["index"] == i]
        assert first["id"] and first["function"]["name"] and all(set(c) == {"index", "function"} for c in rest)
        assert all("name" not in c["function"] for c in rest)
        if i < calls[-1]["index"] or chunks[-1]["choices"][0]["finish_reason"] == "tool_calls":
            json.loads("".join(c["function"]["arguments"] for c in rest))
    assert [c["index"] for c in calls] == sorted(c["index"] for c in calls)


@pytest.mark.parametrize("name, finish", [("get_weather", "tool_calls"), ("write", "length")])
def test_arguments_come_in_pieces(server, name, finish):
    """What a grammar holds is told as it comes, and is what the answer in one piece says, also where it is cut."""
    body = {"messages": ASK, "tools": TOOLS + [{"type": "function", "function": {"name": "write", "parameters": LONG}}],
            "max_tokens": 60, "temperature": 0, "parallel_tool_calls": False,
            "tool_choice": {"type": "function", "function": {"name": name}}}
    whole = server.ask("/v1/chat/completions", body)["choices"][0]
    chunks = events(server.request("POST", "/v1/chat/completions", body | {"stream": True})[2])
    calls = [c["choices"][0]["delta"]["tool_calls"][0]["function"] for c in chunks if "tool_calls" in c["choices"][0]["delta"]]
    assert len(calls) > 3 and calls[0] == {"name": name, "arguments": ""}
    assert "".join(c["arguments"] for c in calls) == whole["message"]["tool_calls"][0]["function"]["arguments"]
    assert whole["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == finish


def test_the_client_puts_a_stream_together(client):
    with client.chat.completions.stream(model="smol", messages=ASK, tools=[
            {**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}], tool_choice="required",
            parallel_tool_calls=False, max_tokens=100, temperature=0) as s:
        for _ in s:
            pass
        call = s.get_final_completion().choices[0].message.tool_calls[0]
    assert call.function.parsed_arguments["city"]


def test_parse(client):
    pydantic = pytest.importorskip("pydantic")

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        age: int = pydantic.Field(ge=0, le=150)

    r = client.chat.completions.parse(model="smol", messages=[{"role": "user", "content": "Ann is 7 years old. JSON."}],
                                      response_format=Person, max_tokens=80, temperature=0)
    assert isinstance(r.choices[0].message.parsed, Person)


def test_several_and_probabilities(client):
    r = chat(client, messages=HI, n=3, logprobs=True, top_logprobs=2, max_tokens=4, temperature=1,
             extra_body={"ignore_eos": True})
    assert [c.index for c in r.choices] == [0, 1, 2]
    for c in r.choices:
        assert c.logprobs.content and all(len(t.top_logprobs) == 2 for t in c.logprobs.content)


# ---- history ----

def test_calls_and_results_come_back(client):
    first = chat(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0].message
    messages = ASK + [first, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny, 20 degrees"}]
    assert chat(client, messages=messages, tools=TOOLS, max_tokens=20).choices[0].message


def test_reasoning_comes_back_under_both_names(server):
    for name in ("reasoning_content", "reasoning"):
        body = {"messages": HI + [{"role": "assistant", "content": "Hello.", name: "They greet."}, HI[0]], "max_tokens": 4}
        assert server.request("POST", "/v1/chat/completions", body)[0] == 200


def test_fields_that_nobody_knows_are_passed_over(server):
    body = {"messages": [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, HI[0]], "max_tokens": 4,
            "store": True, "metadata": {}, "user": "me", "service_tier": "auto", "parallel_tool_calls": True, "strict": True,
            "prompt_cache_key": "k", "verbosity": "low", "tools": None, "tool_choice": None}
    assert server.request("POST", "/chat/completions", body)[0] == 200


def test_images_are_refused(server):
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}
    status, _, raw = server.request("POST", "/v1/chat/completions", body)
    assert status == 400 and "text" in json.loads(raw)["error"]["message"]


# ---- reasoning ----

def test_reasoning_is_split_out(thinker):
    body = {"messages": HI, "max_tokens": 12, "temperature": 0}
    answer = json.loads(thinker.request("POST", "/v1/chat/completions", body)[2])
    message = answer["choices"][0]["message"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 8
    assert message["content"] == "" and message["reasoning_content"] == message["reasoning"] != ""
    deltas = [c["choices"][0]["delta"] for c in events(thinker.request("POST", "/v1/chat/completions", body | {"stream": True})[2])]
    assert all(d["reasoning"] == d["reasoning_content"] and "content" not in d for d in deltas[1:-1])
    assert "".join(d["reasoning"] for d in deltas[1:-1]) == message["reasoning"]


def test_a_shape_is_that_of_the_answer_not_of_the_reasoning(thinker):
    body = {"messages": HI, "max_tokens": 12, "temperature": 0}
    free = thinker.ask("/v1/chat/completions", body)["choices"][0]["message"]
    for shape in ({"response_format": {"type": "json_object"}}, {"guided_regex": "[0-9]{3}"}):
        assert thinker.ask("/v1/chat/completions", body | shape)["choices"][0]["message"] == free
        off = thinker.ask("/v1/chat/completions", body | shape | {"reasoning_effort": "none"})["choices"][0]["message"]
        assert re.match(r"\{|[0-9]{3}", off["content"])


@pytest.mark.parametrize("more", [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}])
def test_reasoning_can_be_switched_off(thinker, more):
    message = thinker.ask("/v1/chat/completions", {"messages": HI, "max_tokens": 8, "temperature": 0} | more)["choices"][0]["message"]
    assert message["content"] and "reasoning" not in message


def test_reasoning_can_be_left_alone(binary, smollm2, tmp_path):
    (tmp_path / "t.jinja").write_text(THINKS)
    s = Server(binary, smollm2, *OPTIONS, "--template", str(tmp_path / "t.jinja"), "--reasoning", "none", "--tool-parser", "mistral")
    try:
        message = chat(s.client(), messages=HI, max_tokens=8).choices[0].message
        assert message.content and not hasattr(message, "reasoning")
        ids = chat(s.client(), tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls
        assert len(ids[0].id) == 9  # what this family's templates ask for
    finally:
        assert s.stop() == 0


def test_a_parser_that_nobody_knows(quern, smollm2):
    done = quern("serve", smollm2, "--port", "0", "--tool-parser", "nobody", timeout=30)
    assert done.code == 64 and "harmony" in done.err and "hermes" in done.err


# ---- LangChain ----

def test_langchain(server):
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", model="smol", max_tokens=60,
                                 temperature=0, max_retries=0)
    assert model.invoke("Say hello.").content
    assert "".join(c.content for c in model.stream("Say hello."))
    bound = model.bind_tools(TOOLS, tool_choice="get_weather")
    assert bound.invoke("What is the weather in Paris?").tool_calls[0]["args"]["city"]
    parts = [c for c in bound.stream("What is the weather in Paris?")]
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    assert whole.tool_calls[0]["name"] == "get_weather"
    schema = {"title": "Sky", "type": "object", "properties": {"color": {"enum": ["blue", "grey"]}}, "required": ["color"],
              "additionalProperties": False}
    assert model.with_structured_output(schema, method="json_schema").invoke("The sky?")["color"] in ("blue", "grey")


# ---- a model that was taught to call ----

@pytest.mark.models
def test_a_model_calls_by_itself(binary, model):
    s = Server(binary, model("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"), *OPTIONS)
    try:
        client = s.client()
        first = chat(client, tools=TOOLS).choices[0]
        assert first.finish_reason == "tool_calls" and is_weather(first.message.tool_calls[0])
        assert "Paris" in first.message.tool_calls[0].function.arguments
        answer = chat(client, tools=TOOLS, messages=ASK + [first.message, {
            "role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": '{"sky": "clear", "degrees": 21}'}])
        assert "21" in answer.choices[0].message.content
        with client.chat.completions.stream(model="smol", messages=ASK, tools=TOOLS, temperature=0) as stream:
            for _ in stream:
                pass
            assert is_weather(stream.get_final_completion().choices[0].message.tool_calls[0])
    finally:
        assert s.stop() == 0
