"""Constraints are compiled once for all requests that ask for the same."""
import json
import re

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
    return [server.metric("quern_constraint_misses_total"), server.metric("quern_constraint_hits_total")]


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


# ---- the ways to say what an answer has to be ----

COLOURS = ["red", "dark blue"]
GRAMMAR = 'root ::= "stone " [1-3] | "wheel"'
SHAPES = {
    "grammar": ({"grammar": GRAMMAR}, r"stone [1-3]|wheel"),
    "guided_grammar": ({"guided_grammar": GRAMMAR}, r"stone [1-3]|wheel"),
    "guided_regex": ({"guided_regex": "[0-9]{3}-[a-c]"}, "[0-9]{3}-[a-c]"),
    "guided_choice": ({"guided_choice": COLOURS}, "red|dark blue"),
    "guided_json": ({"guided_json": {"enum": COLOURS}}, '"red"|"dark blue"'),
    "guided_json as text": ({"guided_json": '{"enum": ["red"]}'}, '"red"'),
    "json_schema": ({"json_schema": {"const": 7}}, "7"),
    "structured json": ({"structured_outputs": {"json": {"const": 7}}}, "7"),
    "structured regex": ({"structured_outputs": {"regex": "a{3}"}}, "aaa"),
    "structured choice": ({"structured_outputs": {"choice": COLOURS}}, "red|dark blue"),
    "structured grammar": ({"structured_outputs": {"grammar": GRAMMAR}}, r"stone [1-3]|wheel"),
    "json_object with a schema": ({"response_format": {"type": "json_object", "schema": {"const": 7}}}, "7"),
    "json_schema without a name": ({"response_format": {"type": "json_schema", "schema": {"const": 7}}}, "7"),
    "left out": ({"grammar": "", "guided_regex": None, "structured_outputs": {}, "response_format": shaped({"const": 7})}, "7"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_way_holds(server, name):
    fields, pattern = SHAPES[name]
    for seed in range(3):
        message = ask(server, seed=seed, **fields)[0]["message"]
        assert re.fullmatch(pattern, message["content"]), message
    status, _, body = server.request("POST", "/v1/completions", {"prompt": "The mill", "max_tokens": 40, "temperature": 1.2, **fields})
    assert status == 200 and re.fullmatch(pattern, json.loads(body)["choices"][0]["text"])


@pytest.mark.parametrize("fields, param, words", [
    ({"grammar": "root ::= ("}, "grammar", "grammar"),
    ({"grammar": 5}, "grammar", "text"),
    ({"guided_regex": "(a"}, "guided_regex", ""),
    ({"guided_choice": []}, "guided_choice", "list of texts"),
    ({"guided_choice": ["a", ""]}, "guided_choice", "list of texts"),
    ({"guided_choice": "red"}, "guided_choice", "list of texts"),
    ({"guided_json": "{"}, "guided_json", ""),
    ({"guided_json": 5}, "guided_json", "schema"),
    ({"json_schema": {"type": "objekt"}}, "json_schema", "schema"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", ""),
    ({"structured_outputs": "a"}, "structured_outputs", "object"),
    ({"grammar": GRAMMAR, "guided_regex": "a"}, "guided_regex", "both"),
    ({"response_format": {"type": "json_object"}, "grammar": GRAMMAR}, "grammar", "both"),
    ({"grammar": 'root ::= "' + "a" * 70000 + '"'}, "grammar", "larger"),
    ({"grammar": GRAMMAR, "tools": [TOOL]}, "grammar", "tools"),
])
def test_what_cannot_hold_is_refused(server, fields, param, words):
    status, _, body = server.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, **fields})
    error = json.loads(body)["error"]
    assert status == 400 and error["param"] == param and words in error["message"], error
