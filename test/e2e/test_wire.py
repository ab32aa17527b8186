"""What clients rely on and no other test asks for: small things, each of which broke somebody's server once."""
import json
import shutil
import socket

import numpy as np
import pytest

from server import Server, events, parse, read_all, until
from test_arch import bf16, floats, read_tensors, write_tensors
from test_infill import coder  # noqa: F401: a fixture
from test_serve import ENDLESS, HI, OPTIONS


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, *OPTIONS, "--slots", "1", "--limit", "alive-seconds=1")
    yield s
    assert s.stop() == 0


def say(server, **fields):
    body = {"messages": HI, "max_tokens": 12, "temperature": 0, **fields}
    return server.ask("/v1/chat/completions", body)["choices"][0]["message"]["content"]


def post(server, body, path="/v1/chat/completions", room=None):
    """A request on its way: the socket, which takes in only so many bytes at once."""
    data = json.dumps(body).encode()
    s = socket.socket()
    if room:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    s.settimeout(300)
    s.connect(("127.0.0.1", server.port))
    s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(data), data))
    return s


# ---- requests ----

def test_stop_is_a_text_or_a_list(server):
    whole = say(server)
    word = whole.split()[1]
    assert say(server, stop=word) == say(server, stop=[word]) == whole[:whole.index(word)]


def test_any_text_will_do(server):
    assert say(server, response_format={"type": "text"}) == say(server)


def test_sampling_at_the_top_level(server):
    best = say(server, **ENDLESS)
    wild = {"temperature": 3, "seed": 1, **ENDLESS}
    assert say(server, **wild, top_k=1) == say(server, **wild, top_k=0, min_p=1) == best != say(server, **wild, top_k=0, top_p=1, min_p=0)
    assert say(server, repetition_penalty=1.9, **ENDLESS) == say(server, repeat_penalty=1.9, **ENDLESS)


def test_any_key_passes_where_there_is_none(server):
    for key in ({"Authorization": "Bearer anything"}, {"x_api_key": "anything"}, {"Authorization": "Basic eA=="}):
        assert server.request("GET", "/v1/models", **key)[0] == 200


# ---- replies ----

def test_what_a_reply_has(server):
    status, headers, raw = server.request("POST", "/v1/chat/completions", {"messages": HI, "max_tokens": 3})
    reply = json.loads(raw)
    assert set(reply) == {"id", "object", "created", "model", "system_fingerprint", "choices", "usage", "timings"}
    assert set(reply["choices"][0]) == {"index", "message", "finish_reason", "logprobs"}
    assert reply["choices"][0]["message"].keys() >= {"role", "content"} and reply["choices"][0]["logprobs"] is None
    assert reply["timings"].keys() >= {"prompt_n", "prompt_per_second", "predicted_n", "predicted_per_second", "cache_n"}
    assert "cached_tokens" in reply["usage"]["prompt_tokens_details"] and headers["x-request-id"]


def test_who_may_not_come_in_is_told_so(server):
    status, _, raw = server.request("GET", "/v1/models", Origin="https://evil.example")
    assert status == 403 and json.loads(raw)["error"]["type"] == "permission_error"


# ---- streams ----

def test_letters_are_not_cut(server):
    """What the grammar prescribes is of letters that have several tokens each."""
    text = "世界 👩‍🌾 ñ 𝔐ühle"
    body = {"messages": HI, "stream": True, "response_format": {"type": "json_schema", "json_schema": {"schema": {"const": text}}}}
    pieces = [e["choices"][0]["delta"].get("content", "") for e in events(server.request("POST", "/v1/chat/completions", body)[2])]
    assert json.loads("".join(pieces)) == text and not any("\ufffd" in p for p in pieces)


def test_a_stream_that_waits_says_that_it_is_alive(server):
    first = post(server, {"messages": HI, "stream": True, "max_tokens": 900, "ignore_eos": True})
    first.recv(1000)
    second = post(server, {"messages": HI, "stream": True, "max_tokens": 4})
    begun = b""
    while b"\r\n\r\n" not in begun or b":\n\n" not in begun:
        begun += second.recv(1000)
    first.close()
    status, headers, body = parse(begun + read_all(second))
    assert status == 200 and headers["content-type"] == "text/event-stream" and body.startswith(b":\n\n")
    assert events(body)[-1]["choices"][0]["finish_reason"]
    second.close()


def test_one_that_leaves_while_its_prompt_is_read(server):
    server.settle()
    before = server.metric("quern_cancelled_total")
    s = post(server, {"prompt": "word " * 990, "stream": True, "ignore_eos": True}, "/v1/completions")
    until(lambda: server.metric("quern_running") == 1)
    s.close()
    server.settle()
    assert server.metric("quern_cancelled_total") == before + 1


def test_a_slow_reader_loses_nothing(server):
    """Much more than the sockets hold has to be written before anything is read."""
    body = {"prompt": "One, two,", "stream": True, "max_tokens": 400, "temperature": 0, "ignore_eos": True, "logprobs": 20}
    s = post(server, body, "/v1/completions", room=4096)
    until(lambda: server.metric("quern_running") == 1)
    until(lambda: server.metric("quern_running") == 0)
    got = events(parse(read_all(s))[2])
    s.close()
    assert sum(len(e["choices"][0]["logprobs"]["tokens"]) for e in got if e["choices"][0]["logprobs"]) == 400
    assert "".join(e["choices"][0]["text"] for e in got) == server.ask("/v1/completions", {**body, "stream": False})["choices"][0]["text"]


def test_a_stream_that_breaks(binary, coder, tmp_path):  # noqa: F811
    """The row of one token is no number: an answer that takes this token fails at the next. If something has been told by then,
    the stream ends with the error; else it is a 500. Whoever else asks is not hurt."""
    where = tmp_path / "broken"
    shutil.copytree(coder, where)
    tensors = read_tensors(where / "model.safetensors")
    rows = floats(tensors["model.embed_tokens.weight"]).copy()
    rows[9] = np.nan
    tensors["model.embed_tokens.weight"] = bf16(rows)
    write_tensors(where / "model.safetensors", tensors)
    s = Server(binary, where)
    body = {"prompt": [10, 11], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    for seed in range(1000):  # where the token comes is up to chance
        wild = {**body, "max_tokens": 100, "temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0, "seed": seed, "stream": True}
        status, _, raw = s.request("POST", "/v1/completions", wild)
        got = events(raw) if status == 200 else []
        if got and "error" in got[-1]:
            break
    assert got[0]["choices"][0]["text"] and set(got[-1]) == {"error"} and got[-1]["error"]["message"]
    status, headers, raw = s.request("POST", "/v1/completions", {**body, "logit_bias": {"9": 100}})
    assert status == 500 and json.loads(raw)["error"]["type"] == "server_error" and headers["x-should-retry"] == "false"
    assert s.ask("/v1/completions", {**body, "logit_bias": {"9": -100}})["usage"]["completion_tokens"] == 8
    assert s.metric("quern_failed_total") >= 2
    assert s.stop() == 0
