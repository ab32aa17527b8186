"""How requests are read: limits, sampling fields, and what comes back for them."""
import json

import pytest
from server import Server, events
from test_serve import HI, OPTIONS

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, *OPTIONS, "--slots", "2", "--queue", "8")
    yield s
    assert s.stop() == 0


def refused(server, path, body, param=None):
    """-> the sentence of a 400"""
    status, _, reply = server.request("POST", path, body)
    assert status == 400, (body, status, reply)
    error = json.loads(reply)["error"]
    assert param is None or error["param"] == param, (body, error)
    return error["message"]


# ---- what was refused without need ----

def test_minus_one_is_no_limit(server):
    full = server.ask(CHAT, {"messages": HI, "max_tokens": -1, "temperature": 0, "stop": ["!"]})
    assert full["choices"][0]["finish_reason"] == "stop"
    count = {"prompt": "1, 2, 3, 4, 5, 6,", "temperature": 0, "stop": [" 16"], "max_tokens": -1}
    assert server.ask(PLAIN, count)["usage"]["completion_tokens"] > 16
    for body in ({"max_tokens": -2}, {"max_tokens": -1.5}, {"top_k": -2}, {"max_completion_tokens": -1}):
        refused(server, CHAT, {"messages": HI, **body}, next(iter(body)))


def test_top_k_of_minus_one_is_off(server):
    body = {"prompt": "The sea is", "max_tokens": 12, "temperature": 1.5, "seed": 3, "top_p": 1, "min_p": 0}
    texts = [server.ask(PLAIN, body | {"top_k": k})["choices"][0]["text"] for k in (-1, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("most", [2**24 + 1, 2**62, 1e15])
def test_more_tokens_than_fit_are_as_many_as_fit(server, most):
    body = {"messages": HI, "temperature": 0, "stop": ["!"], "max_tokens": most}
    assert server.ask(CHAT, body)["choices"][0]["finish_reason"] == "stop"


def test_a_nul_in_a_text_is_a_character(server):
    ids = server.ask("/tokenize", {"content": "a\0b"})["tokens"]
    assert len(ids) >= 2 and server.ask("/detokenize", {"tokens": ids})["content"] == "a\0b"
    one = [{"role": "user", "content": "Say\0hello."}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "Say\0hello."}]}]
    assert "Say\0hello." in server.ask("/apply-template", {"messages": one})["prompt"]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    used = [server.ask(CHAT, {"messages": m, "max_tokens": 1, **more})["usage"]["prompt_tokens"]
            for m, more in ((one, {}), (parts, {}), (HI, {}), (one, {"tools": tools}), (HI, {"tools": tools}))]
    assert used[0] == used[1] > used[2] and used[3] > used[4]
    assert server.ask("/v1/messages/count_tokens", {"messages": parts, "model": "smol"})["input_tokens"] == used[0]
    server.ask("/api/generate", {"model": "smol", "prompt": "a\0b", "stream": False, "options": {"num_predict": 1}})
    for path, body in ((CHAT, {"messages": HI, "stop": "a\0b"}), (CHAT, {"messages": [{"role": "us\0er", "content": "a"}]}),
                       (PLAIN, {"prompt": "a", "suffix": "\0"}), (CHAT, {"messages": HI, "response_format": {"type": "te\0xt"}})):
        sentence = refused(server, path, body)
        assert "U+0000" in sentence and "JSON_" not in sentence


def test_a_slash_at_the_end_of_a_path(server):
    assert server.ask("/v1/models/")["data"] == server.ask("/v1/models")["data"]
    server.ask("/v1/chat/completions/", {"messages": HI, "max_tokens": 1})
    assert server.request("GET", "/livez/")[0] == 200
    assert server.request("GET", "/v1/models//")[0] == 404 and server.request("GET", "/nowhere/")[0] == 404
