"""A conversation that ends with the assistant's words: the answer goes on from them, and holds only what is new."""
import json

import pytest
from server import Server, events
from test_sampling import CHAT, PLAIN, refused
from test_serve import HI, OPTIONS
from test_tools import THINKS, TOOLS

COUNT = [{"role": "user", "content": "Count to ten, in digits."}, {"role": "assistant", "content": "1, 2, 3, "}]
GREEDY = {"temperature": 0, "max_tokens": 8, "model": "smol"}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"],
          "additionalProperties": False}


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, *OPTIONS, "--slots", "2", "--queue", "8")
    yield s
    assert s.stop() == 0


def template(server, **body):
    return server.ask("/apply-template", {"messages": COUNT, **body})["prompt"]


def test_the_answer_goes_on_from_the_last_words(server):
    prompt = template(server)
    assert prompt.endswith("<|im_start|>assistant\n1, 2, 3, ")
    plain = server.ask(PLAIN, {"prompt": prompt, **GREEDY})
    wanted = plain["choices"][0]["text"]
    chat = server.ask(CHAT, {"messages": COUNT, **GREEDY})
    assert chat["choices"][0]["message"]["content"] == wanted and wanted.strip() and "1, 2, 3" not in wanted
    assert chat["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    parts = [COUNT[0], {"role": "assistant", "content": [{"type": "text", "text": "1, 2"}, {"type": "text", "text": ", 3, "}]}]
    assert server.ask(CHAT, {"messages": parts, **GREEDY})["choices"][0]["message"]["content"] == wanted
    stream = events(server.request("POST", CHAT, {"messages": COUNT, **GREEDY, "stream": True})[2])
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in stream) == wanted
    explicit = server.ask(CHAT, {"messages": COUNT, **GREEDY, "continue_final_message": True, "add_generation_prompt": False})
    assert explicit["choices"][0]["message"]["content"] == wanted
    echo = server.ask(CHAT, {"messages": COUNT, **GREEDY, "echo": True, "logprobs": True})["choices"][0]
    assert echo["message"]["content"] == "1, 2, 3, " + wanted
    assert "".join(t["token"] for t in echo["logprobs"]["content"]) == wanted
    assert server.ask("/api/chat", {"messages": COUNT, "model": "smol", "stream": False,
                                    "options": {"temperature": 0, "num_predict": 8}})["message"]["content"] == wanted


def test_anthropics_clients_go_on_too(server):
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    prompt = template(server)
    wanted = server.ask(PLAIN, {"prompt": prompt, **GREEDY})["choices"][0]["text"]
    ask = {"model": "smol", "max_tokens": 8, "messages": COUNT, "extra_body": {"temperature": 0}}
    assert client.messages.create(**ask).content[0].text == wanted
    with client.messages.stream(**ask) as stream:
        assert stream.get_final_text() == wanted
    count = client.messages.count_tokens(model="smol", messages=COUNT).input_tokens
    assert count == len(server.ask("/tokenize", {"messages": COUNT})["tokens"]) == len(
        server.ask("/tokenize", {"content": prompt})["tokens"])
    blocks = [COUNT[0], {"role": "assistant", "content": [{"type": "text", "text": "1, 2, 3, "}]}]
    assert client.messages.create(**ask | {"messages": blocks}).content[0].text == wanted
    new = client.messages.count_tokens(model="smol", messages=COUNT, extra_body={"continue_final_message": False}).input_tokens
    assert new == len(server.ask("/tokenize", {"messages": COUNT, "continue_final_message": False})["tokens"]) > count


def test_a_turn_begins_where_the_client_says_so(server):
    closed = "<|im_start|>assistant\n1, 2, 3, <|im_end|>\n"
    assert template(server, continue_final_message=False).endswith(closed + "<|im_start|>assistant\n")
    assert template(server, add_generation_prompt=True).endswith(closed + "<|im_start|>assistant\n")
    assert template(server, continue_final_message=False, add_generation_prompt=False).endswith(closed)
    assert template(server, add_generation_prompt=False).endswith("1, 2, 3, ")
    new = server.ask(CHAT, {"messages": COUNT, **GREEDY, "continue_final_message": False})
    prompt = template(server, continue_final_message=False)
    assert new["choices"][0]["message"]["content"] == server.ask(PLAIN, {"prompt": prompt, **GREEDY})["choices"][0]["text"]
    user = server.ask("/apply-template", {"messages": HI, "add_generation_prompt": False})["prompt"]
    assert user.endswith("user\nSay hello.<|im_end|>\n")
    bare = server.ask(CHAT, {"messages": HI, "add_generation_prompt": False, **GREEDY})
    assert bare["usage"]["prompt_tokens"] == len(server.ask("/tokenize", {"content": user})["tokens"])
    open_user = server.ask("/apply-template", {"messages": HI, "continue_final_message": True})["prompt"]
    assert open_user.endswith("user\nSay hello.")
    called = [*HI, {"role": "assistant", "content": "", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]
    assert server.ask("/apply-template", {"messages": called})["prompt"].endswith("<|im_end|>\n<|im_start|>assistant\n")
    for path in (CHAT, "/apply-template", "/tokenize"):
        refused(server, path, {"messages": COUNT, "continue_final_message": True, "add_generation_prompt": True},
                "continue_final_message")
        refused(server, path, {"messages": called, "continue_final_message": True}, "continue_final_message")


def test_a_constraint_sees_the_words_as_its_beginning(server):
    fmt = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    body = {"messages": [*HI, {"role": "assistant", "content": '{"name": "Bo'}], "response_format": fmt, "model": "smol",
            "max_tokens": 40, "temperature": 0}
    text = server.ask(CHAT, body)["choices"][0]["message"]["content"]
    assert json.loads('{"name": "Bo' + text)["name"].startswith("Bo") and not text.startswith("{")
    yes = {"messages": [*HI, {"role": "assistant", "content": "per"}], "guided_choice": ["yes", "perhaps", "perchance"]}
    assert server.ask(CHAT, yes)["choices"][0]["message"]["content"] in ("haps", "chance")
    for begun in ("Sure: ", '{"age": ', '{"name": "too long a name'):
        message = refused(server, CHAT, body | {"messages": [*HI, {"role": "assistant", "content": begun}]})
        assert "does not satisfy the constraint" in message


def test_a_call_that_is_begun_goes_on(server):
    begun = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par'
    body = {"messages": [*HI, {"role": "assistant", "content": begun}], "tools": TOOLS, "max_tokens": 60, "temperature": 0}
    for choice in ("auto", "required"):
        reply = server.ask(CHAT, body | {"tool_choice": choice, "parallel_tool_calls": False})["choices"][0]
        call = reply["message"]["tool_calls"][0]["function"]
        assert call["name"] == "get_weather" and json.loads(call["arguments"])["city"].startswith("Par")
        assert reply["finish_reason"] == "tool_calls" and not reply["message"]["content"]
    stream = events(server.request("POST", CHAT, body | {"stream": True})[2])
    deltas = [d for e in stream for d in e["choices"][0]["delta"].get("tool_calls", [])]
    assert deltas[0]["function"]["name"] == "get_weather" and deltas[0]["id"]
    assert json.loads("".join(d["function"]["arguments"] for d in deltas if d["index"] == 0))["city"].startswith("Par")


def test_reasoning_that_is_begun_goes_on(binary, smollm2, tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text(THINKS)
    s = Server(binary, smollm2, *OPTIONS, "--template", str(path))
    try:
        def ask(text, **more):
            return s.ask(CHAT, {"messages": [*HI, {"role": "assistant", "content": text}], **GREEDY, **more})["choices"][0]["message"]
        open_, closed = ask("<think>\nI have to"), ask("<think>I know.</think>\n\nHello")
        assert open_["reasoning_content"] and not open_["content"] and "<think>" not in open_["reasoning_content"]
        assert closed["content"] and "reasoning_content" not in closed and "I know" not in closed["content"]
        shaped = ask('<think>I know.</think>\n\n{"na', max_tokens=40, response_format={
            "type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}})
        assert "name" in json.loads('{"na' + shaped["content"])
    finally:
        assert s.stop() == 0


def test_a_json_prefill_beside_tools_is_text(server):
    body = {"messages": [*HI, {"role": "assistant", "content": '{"greeting": "'}], "tools": TOOLS, **GREEDY}
    assert server.ask(CHAT, body)["choices"][0]["message"]["content"]
