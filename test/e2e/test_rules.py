"""Constraints are compiled once for all requests that ask for the same."""
import json

import pytest

from server import Server

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": ["small", "large"]}},
          "required": ["name", "size"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weigh", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, "--name", "smol", "--ctx", "1024", "--slots", "4")
    yield s
    assert s.stop() == 0


def counts(server):
    return [server.metric("quern_rule_misses_total"), server.metric("quern_rule_hits_total")]


def ask(server, **more):
    status, _, body = server.request("POST", "/v1/chat/completions",
                                     {"messages": [{"role": "user", "content": "A mill stone, please."}], "max_tokens": 200,
                                      "temperature": 1.2, **more})
    assert status == 200
    return json.loads(body)["choices"]


def shaped(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def test_one_schema_is_compiled_once(server):
    before = counts(server)
    for seed in range(4):
        for choice in ask(server, seed=seed, response_format=shaped(SCHEMA)):
            got = json.loads(choice["message"]["content"])
            assert list(got) == ["name", "size"] and got["size"] in ("small", "large")
    after = counts(server)
    assert [after[0] - before[0], after[1] - before[1]] == [1, 3]
    # the order of properties is the order of the answer: another language
    turned = dict(SCHEMA, properties=dict(reversed(SCHEMA["properties"].items())))
    got = json.loads(ask(server, seed=1, response_format=shaped(turned))[0]["message"]["content"])
    assert list(got) == ["size", "name"]
    assert counts(server) == [after[0] + 1, after[1]]


def test_tools_are_compiled_once_for_each_use(server):
    before = counts(server)
    for choice in ("required", "auto", "required", "auto"):
        got = ask(server, seed=3, tools=[TOOL], tool_choice=choice)
        if choice == "required":
            call = got[0]["message"]["tool_calls"][0]["function"]
            assert call["name"] == "weigh" and json.loads(call["arguments"])["size"] in ("small", "large")
    after = counts(server)
    assert [after[0] - before[0], after[1] - before[1]] == [2, 2]
