"""What was asked for holds for the whole answer: behind reasoning, in calls without a mark, and where the answer is cut."""
import json
import re

import pytest
from server import Server, events
from test_serve import OPTIONS

SKY = {"type": "object", "properties": {"sky": {"enum": ["blue", "grey"]}, "n": {"type": "integer", "minimum": 1, "maximum": 9}},
       "required": ["sky", "n"], "additionalProperties": False}
STRICT = {"type": "json_schema", "json_schema": {"name": "sky", "strict": True, "schema": SKY}}
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 5, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": WEATHER}}
ASK = [{"role": "user", "content": "What is the sky like?"}]
# The model copies the shape of what stands before: it closes its reasoning by a token that goes on behind the mark.
TURN = "user: What is the %s like?\nassistant: <think>\nok</think>%s\n"
SHOTS = "".join(TURN % (w, ". The %s is nice." % w) for w in ("sea", "sun", "air", "day"))


def template(tmp_path_factory, shots, opening=" <think>\n"):
    path = tmp_path_factory.mktemp("template") / "t.jinja"
    path.write_text(shots + "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:" + opening)
    return str(path)


@pytest.fixture(scope="module")
def thinker(binary, smollm2, tmp_path_factory):
    s = Server(binary, smollm2, *OPTIONS, "--slots", "4", "--template", template(tmp_path_factory, SHOTS))
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def caller(binary, smollm2, tmp_path_factory):
    """The same model after calls without a mark, in blocks of JSON or JSON alone: it writes one more."""
    call = '{"name": "get_weather", "arguments": {"city": "%s", "days": 3}}'
    shots = "".join(f"user: Weather in {c}?\nassistant: {{{{ open }}}}{call % c}{{{{ close }}}}\n" for c in ("Paris", "Lima", "Bonn"))
    s = Server(binary, smollm2, *OPTIONS, "--slots", "2", "--tool-parser", "hermes",
               "--template", template(tmp_path_factory, "{# tools #}" + shots, ""))
    yield s
    assert s.stop() == 0


def is_sky(text):
    value = json.loads(text)
    assert set(value) == {"sky", "n"} and value["sky"] in ("blue", "grey") and value["n"] in range(1, 10)
    return True


# ---- behind reasoning ----

def test_the_mark_ends_within_a_token(thinker):
    """Without a shape this is what the model writes: the shape may not be lost in the token that ends the mark."""
    message = thinker.ask("/v1/chat/completions", {"messages": ASK, "max_tokens": 20, "temperature": 0})["choices"][0]["message"]
    assert message["reasoning"] == "ok" and message["content"].startswith(". The sky")
    ids = thinker.ask("/tokenize", {"content": "ok</think>. The"})["tokens"]
    assert ">." in [thinker.ask("/detokenize", {"tokens": [i]})["content"] for i in ids]


@pytest.mark.parametrize("more, good", [
    ({"response_format": STRICT}, is_sky),
    ({"response_format": STRICT, "n": 3, "temperature": 1.2}, is_sky),
    ({"response_format": {"type": "json_object"}}, lambda t: re.match(r'\{\s*["}]', t)),
    ({"guided_choice": ["yes", "no"]}, lambda t: t in ("yes", "no")),
    ({"guided_regex": "[0-9]{3}"}, lambda t: re.fullmatch("[0-9]{3}", t)),
    ({"grammar": 'root ::= "a" [b-d]{2}'}, lambda t: re.fullmatch("a[b-d]{2}", t)),
])
def test_a_shape_holds_behind_reasoning(thinker, more, good):
    body = {"messages": ASK, "max_tokens": 30, "temperature": 0} | more
    for c in thinker.ask("/v1/chat/completions", body)["choices"]:
        assert c["message"]["reasoning"] is not None
        assert good(c["message"]["content"]) if c["message"]["content"] else more.get("n")
    texts = {}
    for e in events(thinker.request("POST", "/v1/chat/completions", body | {"stream": True})[2]):
        for c in e["choices"]:
            texts[c["index"]] = texts.get(c["index"], "") + (c["delta"].get("content") or "")
    assert len(texts) == more.get("n", 1) and all(not t or good(t) for t in texts.values())
    assert more.get("n") or texts[0]


def test_the_other_apis(thinker):
    text = thinker.ask("/api/chat", {"messages": ASK, "format": SKY, "stream": False, "options": {"temperature": 0}})["message"]
    assert is_sky(text["content"])
    blocks = thinker.ask("/v1/messages", {"model": "smol", "messages": ASK, "max_tokens": 120, "temperature": 0,
                                          "output_config": {"format": {"type": "json_schema", "schema": SKY}}})["content"]
    assert is_sky("".join(b["text"] for b in blocks if b["type"] == "text"))
    items = thinker.ask("/v1/responses", {"input": ASK, "temperature": 0, "max_output_tokens": 120, "text": {
        "format": {"type": "json_schema", "name": "sky", "schema": SKY}}})["output"]
    assert is_sky("".join(p["text"] for i in items if i["type"] == "message" for p in i["content"]))


def test_reasoning_that_is_cut_leaves_no_answer(thinker):
    """Wherever it is cut, the text is a beginning of what was asked for, and no piece of the mark is in it."""
    body = {"messages": ASK, "temperature": 0, "response_format": STRICT}
    whole = thinker.ask("/v1/chat/completions", body | {"max_tokens": 120})["choices"][0]["message"]
    for n in (1, 3, 4, 8):
        c = thinker.ask("/v1/chat/completions", body | {"max_tokens": n})["choices"][0]
        assert c["finish_reason"] == "length"
        assert whole["content"].startswith(c["message"]["content"] or "")
        assert whole["reasoning"].startswith(c["message"].get("reasoning") or "")


def test_speculation_keeps_to_the_shape(binary, smollm2, tmp_path_factory, thinker):
    body = {"messages": ASK, "temperature": 0, "response_format": STRICT, "max_tokens": 120}
    s = Server(binary, smollm2, *OPTIONS, "--speculate", "always", "--draft", smollm2, "--template", template(tmp_path_factory, SHOTS))
    try:
        assert s.ask("/v1/chat/completions", body)["choices"][0]["message"] == thinker.ask(
            "/v1/chat/completions", body)["choices"][0]["message"]
    finally:
        assert s.stop() == 0


def test_a_call_is_required_behind_reasoning(thinker):
    c = thinker.ask("/v1/chat/completions", {"messages": ASK, "max_tokens": 200, "temperature": 0, "tools": [TOOL],
                                             "tool_choice": "required", "parallel_tool_calls": False})["choices"][0]
    assert c["finish_reason"] == "tool_calls" and not c["message"]["content"]
    holds(c["message"]["tool_calls"][0]["function"]["arguments"])


# ---- calls without a mark ----

def holds(arguments):
    value = json.loads(arguments)
    assert set(value) == {"city", "days"} and value["city"] in ("Oslo", "Rome") and value["days"] in range(5, 10)


@pytest.mark.parametrize("open, close", [("```json\n", "\n```"), ("", "")])
@pytest.mark.parametrize("many", [True, False])
def test_strict_arguments_hold_without_a_mark(caller, open, close, many):
    body = {"messages": [{"role": "user", "content": "Weather in Paris?"}], "max_tokens": 50, "temperature": 0, "tools": [TOOL],
            "chat_template_kwargs": {"open": open, "close": close}, "parallel_tool_calls": many, "stop": ["user:"]}
    message = caller.ask("/v1/chat/completions", body)["choices"][0]["message"]
    assert message["tool_calls"] and (many or len(message["tool_calls"]) == 1)
    for call in message["tool_calls"]:
        holds(call["function"]["arguments"])
    told = {}
    for e in events(caller.request("POST", "/v1/chat/completions", body | {"stream": True})[2]):
        for c in e["choices"][0]["delta"].get("tool_calls", []):
            told[c["index"]] = told.get(c["index"], "") + c["function"]["arguments"]
    assert [told[i] for i in sorted(told)] == [c["function"]["arguments"] for c in message["tool_calls"]]


def test_text_beside_tools_is_free(caller):
    """Other JSON is text, in a block or alone."""
    for open, close in (("```json\n", "\n```"), ("", "")):
        body = {"messages": [{"role": "user", "content": "Weather in Paris?"}], "max_tokens": 25, "temperature": 0,
                "tools": [{"type": "function", "function": {"name": "other"}}],
                "chat_template_kwargs": {"open": open, "close": close}, "stop": ["user:"]}
        message = caller.ask("/v1/chat/completions", body)["choices"][0]["message"]
        assert message.get("tool_calls") is None and "get_weather" in message["content"]


# ---- calls that have to come ----

@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_required_call_ends(caller, choice):
    """At temperature 0 the model does not call on and on: where it would explain, the answer ends."""
    c = caller.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 300, "temperature": 0,
                                            "tools": [TOOL], "tool_choice": choice})["choices"][0]
    assert c["finish_reason"] == "tool_calls" and 1 <= len(c["message"]["tool_calls"]) <= 2 and not c["message"]["content"]


def test_a_cut_call_leaves_no_markup(caller):
    body = {"messages": [{"role": "user", "content": "Weather in Rome?"}], "temperature": 0, "tools": [TOOL], "tool_choice": "required"}
    for n in (1, 9, 14, 24):
        c = caller.ask("/v1/chat/completions", body | {"max_tokens": n})["choices"][0]
        assert not c["message"]["content"], n
        chunks = events(caller.request("POST", "/v1/chat/completions", body | {"max_tokens": n, "stream": True})[2])
        assert not any(d["choices"][0]["delta"].get("content") for d in chunks), n
        assert c["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"]


# ---- a model whose tokens end the mark with white space, and that calls without a mark ----

@pytest.mark.models
def test_white_space_behind_the_mark(binary, model, tmp_path_factory):
    shots = "".join(TURN % (w, "\n\nThe %s is nice." % w) for w in ("sea", "sun", "air"))
    s = Server(binary, model("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"), *OPTIONS, "--template", template(tmp_path_factory, shots))
    try:
        ids = s.ask("/tokenize", {"content": "ok</think>\n\nThe"})["tokens"]
        assert ">\n\n" in [s.ask("/detokenize", {"tokens": [i]})["content"] for i in ids]
        body = {"messages": ASK, "max_tokens": 60, "temperature": 0}
        free = s.ask("/v1/chat/completions", body)["choices"][0]["message"]
        held = s.ask("/v1/chat/completions", body | {"response_format": STRICT})["choices"][0]["message"]
        assert free["content"].startswith("The sky") and held["reasoning"] == free["reasoning"] and is_sky(held["content"])
    finally:
        assert s.stop() == 0


@pytest.mark.models
def test_a_coder_calls_without_a_mark(binary, model):
    s = Server(binary, model("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"), *OPTIONS)
    try:
        for ask in ("What is the weather in Paris for the next 3 days?", "Get the weather of Berlin, 2 days, unit celsius"):
            message = s.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": ask}], "temperature": 0, "max_tokens": 120,
                                                     "tools": [TOOL], "parallel_tool_calls": False})["choices"][0]["message"]
            assert len(message["tool_calls"]) == 1
            holds(message["tool_calls"][0]["function"]["arguments"])
    finally:
        assert s.stop() == 0
