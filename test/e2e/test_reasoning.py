"""Reasoning with a budget: after exactly that many tokens it is closed, and the answer follows."""
import json

import pytest
from server import Server, events

THINKS = ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
          "{% if enable_thinking is not defined or enable_thinking %} <think>\n{% endif %}")
HARMONY = "{% for m in messages %}{{ m.content }}{% endfor %}<|start|>assistant{# <|channel|>analysis<|message|> #}"
CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "temperature": 0, "model": "tiny"}
CLOSE = [60, 47, 116, 104, 105, 110, 107, 62]  # the bytes of </think>, which is no token of this model


@pytest.fixture(scope="module")
def thinker(tiny, tmp_path_factory):
    """The model of random weights behind a template that opens the reasoning: it never closes it."""
    template = tmp_path_factory.mktemp("template") / "t.jinja"
    template.write_text(THINKS)
    return [tiny[0], "--template", template, "--name", "tiny", "--ctx", "2048"]


@pytest.fixture(scope="module")
def server(binary, thinker):
    s = Server(binary, *thinker, "--slots", "4", "--speculate", "always")
    yield s
    assert s.stop() == 0


def ask(server, **more):
    reply = server.ask(CHAT, ASK | more)
    return reply["choices"][0]["message"], reply["usage"]["completion_tokens_details"]["reasoning_tokens"]


def words(text):
    return len(text.split())


def test_exactly_so_many_tokens(quern, thinker):
    """The same tokens as without a budget, then the mark, then as many as were asked for in all."""
    run = ["run", thinker[0], "--template", thinker[2], "--temp", "0", "-p", "hi", "--json", "-n", "40"]
    free = quern(*run).json()
    assert free["reasoning_tokens"] == 40 and free["ids"] == quern(*run, "--reasoning-budget", "-1").json()["ids"]
    for budget in (1, 7, 32):
        for more in ((), ("--speculate", "always")):
            got = quern(*run, "--reasoning-budget", str(budget), *more).json()
            assert got["ids"][:budget + 8] == (free["ids"][:budget] + CLOSE)[:40] and len(got["ids"]) == 40
            assert got["reasoning_tokens"] == budget
    none = quern(*run, "--reasoning-budget", "0").json()
    assert none["reasoning_tokens"] == 0 and len(none["prompt_ids"]) == len(free["prompt_ids"]) - 9  # nothing is opened
    kept = quern(*run, "--reasoning-budget", "0", "--set", "enable_thinking=true").json()
    assert kept["ids"][:8] == CLOSE and kept["reasoning_tokens"] == 0


def test_every_name_of_the_budget(server):
    for more in ({"reasoning_budget": 5}, {"reasoning_budget_tokens": 5}, {"thinking_budget": 5}, {"thinking_budget_tokens": 5},
                 {"thinking_token_budget": 5}, {"thinking": {"type": "enabled", "budget_tokens": 5}}, {"reasoning_effort": 5},
                 {"reasoning": {"max_tokens": 5}}, {"reasoning": {"effort": 5}}, {"chat_template_kwargs": {"thinking_budget": 5}}):
        message, count = ask(server, **more)
        assert count == 5 and words(message["reasoning_content"]) == 5, more
        assert words(message["content"]) == 40 - 5 - len(CLOSE), more
    message, count = ask(server, reasoning_budget=-1)
    assert count == 40 and not message["content"]
    for more in ({"reasoning_budget": -2}, {"thinking_budget": "5"}, {"thinking": {"budget_tokens": 1.5}}, {"reasoning_budget": 2.5}):
        status, _, reply = server.request("POST", CHAT, ASK | more)
        assert status == 400 and b"budget" in reply, (more, reply)


def test_efforts_are_numbers(server):
    message, count = ask(server, reasoning_effort="minimal", max_tokens=532)
    assert count == 512 and message["content"]
    message, count = ask(server, reasoning_effort="none")
    assert count == 0 and not message.get("reasoning_content") and message["content"]


def test_every_api(server):
    anthropic = {"model": "tiny", "max_tokens": 40, "temperature": 0, "messages": ASK["messages"],
                 "thinking": {"type": "enabled", "budget_tokens": 5}}
    blocks = server.ask("/v1/messages", anthropic)["content"]
    assert [b["type"] for b in blocks] == ["thinking", "text"] and words(blocks[0]["thinking"]) == 5
    got = server.ask("/v1/responses", {"model": "tiny", "input": "hi", "max_output_tokens": 40, "temperature": 0,
                                       "reasoning": {"effort": 5}})
    assert got["usage"]["output_tokens_details"]["reasoning_tokens"] == 5
    assert [item["type"] for item in got["output"]] == ["reasoning", "message"]
    got = server.ask("/api/chat", {"model": "tiny", "messages": ASK["messages"], "stream": False, "think": 5,
                                   "options": {"num_predict": 40, "temperature": 0}})
    assert words(got["message"]["thinking"]) == 5 and words(got["message"]["content"]) == 27


def test_streams_and_choices(server):
    stream = events(server.request("POST", CHAT, ASK | {"reasoning_budget": 6, "stream": True, "logprobs": True})[2])
    deltas = [e["choices"][0]["delta"] for e in stream if e["choices"]]
    assert words("".join(d.get("reasoning_content") or "" for d in deltas)) == 6
    assert words("".join(d.get("content") or "" for d in deltas)) == 40 - 6 - len(CLOSE)
    reply = server.ask(CHAT, ASK | {"reasoning_budget": 6, "n": 3, "temperature": 1, "seed": 7})
    assert [words(c["message"]["reasoning_content"]) for c in reply["choices"]] == [6] * 3
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 18


def test_an_output_format_follows(server):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"],
              "additionalProperties": False}
    message, count = ask(server, reasoning_budget=4, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert count == 4 and set(json.loads(message["content"])) == {"n"}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    message, count = ask(server, reasoning_budget=4, tools=tools, tool_choice="required", parallel_tool_calls=False,
                         max_tokens=200)
    assert count == 4 and message["tool_calls"][0]["function"]["name"] == "f"


def test_reasoning_that_the_model_opens(server):
    """Without the template's help: a grammar makes it write the marks. What the grammar does not allow is not forced."""
    def grammar(text, **more):
        return ask(server, grammar=text, chat_template_kwargs={"enable_thinking": False}, **more)

    message, count = grammar('root ::= "<think>" [a-z]* "</think>" [0-9]+', reasoning_budget=3)
    assert count == 3 and len(message["reasoning_content"]) == 3 and message["content"].isdigit()
    message, count = grammar('root ::= "<think>abcdef</think>" [0-9]+', reasoning_budget=3)
    assert count == 6 and message["reasoning_content"] == "abcdef" and message["content"].isdigit()
    message, count = grammar('root ::= "<think>ab</thi" [a-z<>/]*', reasoning_budget=7)  # the rest of a mark that is begun
    assert count == 2 and message["reasoning_content"] == "ab" and message["content"]
    message, count = grammar('root ::= "<think>ab</thx" [a-z<>/]*', reasoning_budget=7)
    assert count == 7 and message["reasoning_content"] == "ab</thx" and message["content"]


def test_reasoning_that_the_client_begins(server):
    begun = ASK["messages"] + [{"role": "assistant", "content": "<think>\nwell, "}]
    message, count = ask(server, messages=begun, reasoning_budget=5, chat_template_kwargs={"enable_thinking": False})
    assert count == 5 and message["reasoning_content"] and message["content"]
    done = ASK["messages"] + [{"role": "assistant", "content": "<think>\nwell.</think>So "}]
    message, count = ask(server, messages=done, reasoning_budget=0, chat_template_kwargs={"enable_thinking": False})
    assert count == 0 and words(message["content"]) == 40


def test_the_servers_budget_and_harmonys_channels(serve, tiny, tmp_path):
    (tmp_path / "h.jinja").write_text(HARMONY)
    s = serve(tiny[0], "--template", tmp_path / "h.jinja", "--name", "tiny", "--ctx", "2048", "--reasoning-budget", "4",
              "--tool-parser", "harmony")
    grammar = {"grammar": 'root ::= "<|channel|>analysis<|message|>" [ -~]*', "max_tokens": 100}
    message, count = ask(s, **grammar)
    assert count == 4 and len(message["reasoning_content"]) <= 4 * 8 and message["content"] and "<|" not in message["content"]
    message, count = ask(s, **grammar, reasoning_budget=9)
    assert count == 9


def test_a_batch_has_budgets(quern, thinker, tmp_path):
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": ASK | {"reasoning_budget": 5}}
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
    done = quern("batch", tmp_path / "in.jsonl", thinker[0], "--template", thinker[2], "--ctx", "2048", "-o", tmp_path / "out.jsonl")
    assert done.code == 0, done.err
    message = json.loads((tmp_path / "out.jsonl").read_text())["response"]["body"]["choices"][0]["message"]
    assert words(message["reasoning_content"]) == 5 and message["content"]
