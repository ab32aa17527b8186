"""Streams that outlive their connection: X-Stream-Id, GET and DELETE /v1/streams/ID."""
import json
import secrets

import pytest

from server import Server, events, parse, read_all, until

LONG = {"messages": [{"role": "user", "content": "Go on."}], "stream": True, "temperature": 0, "max_tokens": 300, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(binary, tiny):
    s = Server(binary, *tiny, "--deterministic", "--slots", "4")
    yield s
    s.stop()


def new_id():
    return secrets.token_hex(16)


def begin(server, body=LONG, path="/v1/chat/completions", **headers):
    """A request whose first events have come. -> (socket, what came)"""
    data = json.dumps(body).encode()
    lines = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
    s = server.connect()
    s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    got = b""
    while got.count(b"data:") < 3:
        got += s.recv(65536)
    return s, got


def text(body):
    return "".join(e["choices"][0]["delta"].get("content") or "" for e in events(body) if e["choices"])


def test_the_answer_runs_on_without_its_client(server):
    plain = text(server.request("POST", "/v1/chat/completions", LONG)[2])
    cancelled, one = server.metric("quern_cancelled_total"), new_id()
    s, got = begin(server, X_Stream_Id=one)
    s.close()
    status, headers, body = server.request("GET", f"/v1/streams/{one}")
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    assert text(body) == plain and len(plain) > 100
    again = server.request("GET", f"/v1/streams/{one}")[2]  # it has ended, and is kept for a while
    assert again == body and server.metric("quern_cancelled_total") == cancelled


def test_several_connections_read_one_stream(server):
    one = new_id()
    s, got = begin(server, X_Stream_Id=one)
    follower = server.connect()
    follower.sendall(f"GET /v1/streams/{one} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    first = parse(got + read_all(s))[2]
    assert parse(read_all(follower))[2] == first and text(first)
    s.close()
    follower.close()


def test_delete_ends_it(server):
    cancelled = server.metric("quern_cancelled_total")
    for _ in range(20):  # until it is faster than the answer
        one = new_id()
        s, got = begin(server, X_Stream_Id=one)
        assert server.request("DELETE", f"/v1/streams/{one}")[0] == 200
        if b"ended by its client" in got + read_all(s):
            break
    else:
        pytest.fail("no stream was ended")
    server.settle()
    assert server.metric("quern_cancelled_total") == cancelled + 1
    assert server.request("GET", f"/v1/streams/{one}")[0] == 404
    assert json.loads(server.request("DELETE", f"/v1/streams/{one}")[2]) == {"object": "stream", "deleted": False}
    s.close()


def test_failures_and_whole_replies_are_sent_again(server):
    one, two = new_id(), new_id()
    bad = server.request("POST", "/v1/chat/completions", {"messages": 7}, X_Stream_Id=one)
    again = server.request("GET", f"/v1/streams/{one}")
    assert bad[0] == again[0] == 400 and bad[2] == again[2]
    whole = server.request("POST", "/v1/chat/completions", LONG | {"stream": False, "max_tokens": 5}, X_Stream_Id=two)
    again = server.request("GET", f"/v1/streams/{two}")
    assert whole[0] == again[0] == 200 and whole[2] == again[2] and json.loads(whole[2])["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("path,body", [("/v1/messages", {"max_tokens": 20, "model": "tiny"}), ("/api/chat", {"model": "tiny", "options": {"num_predict": 20}}),
                                       ("/v1/completions", {"prompt": "x", "max_tokens": 20})])
def test_the_other_apis(server, path, body):
    one = new_id()
    body = {"messages": LONG["messages"], "stream": True} | body
    if "prompt" in body:
        del body["messages"]
    status, headers, first = server.request("POST", path, body, X_Stream_Id=one)
    again = server.request("GET", f"/v1/streams/{one}")
    assert status == again[0] == 200 and first == again[2] and again[1]["content-type"] == headers["content-type"]


def test_ids(server):
    for bad in ("short", "x" * 65, "a b" * 8, "%" * 20, "ü" * 16):
        status, _, body = server.request("POST", "/v1/chat/completions", LONG, X_Stream_Id=bad)
        assert status == 400 and b"X-Stream-Id" in body
    one = new_id()
    s, _ = begin(server, X_Stream_Id=one)
    assert server.request("POST", "/v1/chat/completions", LONG, X_Stream_Id=one)[0] == 409
    server.request("DELETE", f"/v1/streams/{one}")
    s.close()
    assert server.request("GET", "/v1/streams/" + "x" * 200)[0] == 404


def test_a_stream_belongs_to_its_key(binary, tiny, tmp_path):
    (tmp_path / "keys").write_text("alice-key\nbob-key\n")
    server = Server(binary, *tiny, "--api-key-file", tmp_path / "keys")
    alice, bob = {"Authorization": "Bearer alice-key"}, {"Authorization": "Bearer bob-key"}
    one = new_id()
    s, got = begin(server, X_Stream_Id=one, **alice)
    assert server.request("GET", f"/v1/streams/{one}")[0] == 401
    assert server.request("GET", f"/v1/streams/{one}", **bob)[0] == 404
    assert json.loads(server.request("DELETE", f"/v1/streams/{one}", **bob)[2])["deleted"] is False
    s.close()
    assert server.request("GET", f"/v1/streams/{one}", **alice)[0] == 200
    s, got = begin(server, X_Stream_Id=new_id(), **alice)
    s.close()  # one that no connection follows does not hold the server up
    assert server.stop() == 0


@pytest.mark.slow
def test_it_is_forgotten_after_a_while(server):
    one = new_id()
    begin(server, X_Stream_Id=one)[0].close()
    again = lambda: server.request("POST", "/v1/chat/completions", LONG | {"max_tokens": 1}, X_Stream_Id=one)[0]
    assert again() == 409
    until(lambda: again() == 200, 600)
