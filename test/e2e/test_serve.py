"""The server: strict HTTP over raw sockets, and the real OpenAI client."""
import json
import re
import select
import signal
import threading

import pytest

from server import Server, events, parse, read_all, until

openai = pytest.importorskip("openai")

HI = [{"role": "user", "content": "Say hello."}]
HOST = "Host: localhost\r\n"
ENDLESS = {"ignore_eos": True}  # for answers that must not be shorter than they may be


OPTIONS = ["--name", "smol", "--ctx", "1024", "--deterministic"]  # equal questions have equal answers, whatever runs beside them


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, *OPTIONS, "--slots", "2", "--queue", "3")
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return server.client()


# ---- HTTP ----

BAD = [
    ("GET / HTTP/1.1\n" + HOST + "\r\n", 400),
    ("GET / HTTP/1.1\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\n" + HOST + HOST + "\r\n", 400),
    ("GET / HTTP/3.0\r\n" + HOST + "\r\n", 505),
    ("GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\n" + HOST + "A: b\r\n c\r\n\r\n", 400),
    ("BREW / HTTP/1.1\r\n" + HOST + "\r\n", 501),
    ("GET /" + "a" * 9000 + " HTTP/1.1\r\n" + HOST + "\r\n", 414),
    ("GET / HTTP/1.1\r\n" + HOST + "A: " + "a" * 40000 + "\r\n\r\n", 431),
    ("POST /tokenize HTTP/1.1\r\n" + HOST + "\r\n", 411),
    ("POST /tokenize HTTP/1.1\r\n" + HOST + "Content-Length: +5\r\n\r\nhello", 400),
    ("POST /tokenize HTTP/1.1\r\n" + HOST + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400),
    ("POST /tokenize HTTP/1.1\r\n" + HOST + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
    ("POST /tokenize HTTP/1.1\r\n" + HOST + "Content-Length: 99999999\r\n\r\n", 413),
    ("POST /tokenize HTTP/1.1\r\n" + HOST + "Transfer-Encoding: gzip\r\n\r\n", 501),
    ("POST /tokenize HTTP/1.1\r\n" + HOST + "Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n", 400),
    ("POST /tokenize HTTP/1.1\r\n" + HOST + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415),
    ("POST /tokenize HTTP/1.1\r\n" + HOST + "Expect: more\r\nContent-Length: 2\r\n\r\n{}", 417),
    ("\x16\x03\x01\x02\x00\x01\r\n", 400),
]


def test_malformed_requests_are_refused_and_the_connection_ends(server):
    for text, status in BAD:
        got, headers, body = parse(server.send(text))  # returns only because the server closes
        assert got == status, text[:80]
        assert headers["connection"] == "close"
        assert json.loads(body)["error"]["message"]


def test_pipelined_requests_are_answered_in_order(server):
    body = b'{"content": "a b c"}'
    raw = server.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
                      b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
                      b"HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
                      b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                      b"5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n"
                      b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                      % (len(body), body, body[:5], len(body) - 5, body[5:]))
    assert re.findall(rb"HTTP/1\.1 (\d+)", raw) == [b"200", b"200", b"200", b"200", b"404"]
    assert raw.count(b'"count":3') == 2
    assert b'"object":"list"' not in raw  # HEAD has no body


def test_expect_continue_waits_for_the_word(server):
    with server.connect() as s:
        s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 15\r\n"
                  b"Connection: close\r\n\r\n")
        assert s.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(b'{"content":"a"}')
        assert b'"count":1' in read_all(s)


def test_a_request_byte_by_byte(server):
    with server.connect() as s:
        for b in b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n":
            s.sendall(bytes([b]))
        assert parse(read_all(s))[0] == 200


def test_hosts_and_origins(server):
    for path in "/livez", "/readyz", "/health":  # probes ask by address
        assert server.request("GET", path, Host="10.1.2.3:8080")[0] == 200
    for host in "evil.example", "10.1.2.3", "localhost:80.evil.example", "localhost/evil.example":
        assert server.request("GET", "/v1/models", Host=host)[0] in (400, 403)
    assert server.request("GET", "/v1/models", Host=f"127.0.0.1:{server.port}")[0] == 200
    assert server.request("GET", "/v1/models", Host=f"[::1]:{server.port}")[0] == 200
    status, headers, _ = server.request("OPTIONS", "/v1/chat/completions", Origin="http://localhost:3000")
    assert status == 204 and headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "Authorization" in headers["access-control-allow-headers"]
    assert server.request("OPTIONS", "/v1/models", Origin="https://evil.example")[0] == 403
    assert server.request("GET", "/v1/models", Origin="null")[0] == 403
    for origin in "http://localhost.evil.example", "http://localhost:3000.evil.example", "http://a@localhost", "app://obsidian.md":
        assert server.request("GET", "/v1/models", Origin=origin)[0] == 403
    assert server.request("GET", "/livez", Origin="https://evil.example")[0] == 403


def test_routes(server):
    status, headers, body = server.request("GET", "/v1/models")
    assert status == 200 and headers["x-request-id"]
    model = json.loads(body)["data"][0]
    assert model["id"] == "smol" and model["max_model_len"] == 1024 and model["status"]["value"] == "loaded"
    for path in ("/models", "/models/smol", "/v1/models/smol", "/health", "/livez", "/readyz", "/metrics", "/", "/livez?a=b"):
        assert server.request("GET", path)[0] == 200, path
    status, _, body = server.request("GET", "/v1/models/other")
    assert status == 404 and json.loads(body)["error"]["code"] == "model_not_found"
    assert server.request("POST", "/livez", {})[0] == 405
    assert server.request("GET", "/v1/chat/completions")[0] == 405
    assert server.request("POST", "/tokenize", b"x", Content_Type="text/plain")[0] == 415


def test_text_endpoints(server):
    tokens = json.loads(server.request("POST", "/tokenize", {"content": "Grüße, 世界"})[2])["tokens"]
    assert json.loads(server.request("POST", "/detokenize", {"tokens": tokens})[2])["content"] == "Grüße, 世界"
    whole = server.ask("/tokenize", {"content": "a 世界", "with_pieces": True})["tokens"]
    assert [t["id"] for t in whole] == server.ask("/tokenize", {"content": "a 世界"})["tokens"]
    bytes_of = lambda piece: piece.encode() if isinstance(piece, str) else bytes(piece)
    assert b"".join(bytes_of(t["piece"]) for t in whole) == "a 世界".encode() and any(isinstance(t["piece"], list) for t in whole)
    strings = server.ask("/tokenize", {"prompt": "Hello there", "return_token_strs": True})["token_strs"]
    assert strings == ["Hello", "Ġthere"]
    prompt = json.loads(server.request("POST", "/apply-template", {"messages": HI})[2])["prompt"]
    assert server.ask("/tokenize", {"messages": HI})["tokens"] == server.ask("/tokenize", {"content": prompt})["tokens"]
    assert server.request("POST", "/tokenize", {"messages": 5})[0] == 400
    assert prompt.endswith("<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n")
    assert server.request("POST", "/detokenize", {"tokens": [-1]})[0] == 400
    assert server.request("POST", "/detokenize", {"tokens": [10**9]})[0] == 400


# ---- fields ----

BAD_FIELDS = [
    ({"messages": None}, "messages"), ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"),
    ({"messages": [1]}, "messages[0]"), ({"messages": [{"content": "a"}]}, "messages[0]"),
    ({"messages": [{"role": "user"}]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
     "messages[0].content[0]"),
    ({"temperature": -1}, "temperature"), ({"temperature": "hot"}, "temperature"), ({"top_p": 1.5}, "top_p"),
    ({"top_k": 1.5}, "top_k"), ({"min_p": 2}, "min_p"), ({"n": 0}, "n"), ({"n": 17}, "n"), ({"n": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"), ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"stop": ["a"] * 17}, "stop"), ({"stop": [""]}, "stop"), ({"stop": 5}, "stop"), ({"stream": "yes"}, "stream"),
    ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"), ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ({"presence_penalty": 1000}, "presence_penalty"),
    ({"response_format": {"type": "xml"}}, "response_format"), ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["a" * 70000]}}}}, "response_format"),
    ({"tools": [{}]}, "tools"), ({"tool_choice": "required"}, "tool_choice"), ({"seed": 1.5}, "seed"),
    ({"chat_template_kwargs": 1}, "chat_template_kwargs"), ({"repetition_penalty": 0}, "repetition_penalty"),
]


def test_bad_fields_are_named(server):
    for fields, param in BAD_FIELDS:
        status, _, body = server.request("POST", "/v1/chat/completions", {"messages": HI, "max_tokens": 1, **fields})
        error = json.loads(body)["error"]
        assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param), (fields, error)
    for body in (b"", b"{", b"[]", b"null", b'{"a":1,"a":2}', b"[" * 60000, b'{"messages":"\xff"}'):
        status, _, reply = server.request("POST", "/v1/chat/completions", body)
        assert status == 400 and json.loads(reply)["error"]["message"], body[:20]


def test_nulls_and_unknown_fields_count_for_nothing(server):
    body = {"messages": HI, "max_tokens": 2, "temperature": None, "stop": None, "tools": None, "stream": None, "n": None,
            "store": True, "metadata": {"a": 1}, "user": "me", "service_tier": "auto", "parallel_tool_calls": True,
            "stream_options": None, "response_format": None, "seed": None, "logit_bias": None, "model": None}
    assert server.request("POST", "/chat/completions", body)[0] == 200


# ---- the real client ----

def test_chat(client):
    first = client.chat.completions.create(model="smol", messages=HI, max_tokens=12, temperature=0, extra_body=ENDLESS)
    again = client.chat.completions.create(model="smol", max_completion_tokens=12, temperature=0, extra_body=ENDLESS, messages=[
        {"role": "user", "content": [{"type": "text", "text": "Say hello."}]}])
    assert first.choices[0].message.content == again.choices[0].message.content != ""
    assert first.choices[0].message.role == "assistant" and first.object == "chat.completion"
    assert first.choices[0].finish_reason == "length"
    assert first.usage.completion_tokens == 12 and first.usage.prompt_tokens > 10
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    assert first.timings["predicted_n"] == 12
    client.chat.completions.create(model="smol", max_tokens=2, messages=[
        {"role": "developer", "content": "Be short."}, *HI, {"role": "assistant", "content": None},
        {"role": "user", "content": "Again."}, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "user", "content": "Again."}])


def test_chat_stream(client):
    whole = client.chat.completions.create(model="smol", messages=HI, max_tokens=24, temperature=0)
    chunks = list(client.chat.completions.create(model="smol", messages=HI, max_tokens=24, temperature=0, stream=True,
                                                 stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert sum(bool(c.choices and c.choices[0].delta.role) for c in chunks) == 1
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details})
    assert len({(c.id, c.created, c.model) for c in chunks}) == 1
    assert all(c.usage is None for c in chunks[:-1])


def test_stream_framing(server):
    status, headers, body = server.request("POST", "/v1/chat/completions", {"messages": HI, "max_tokens": 8, "stream": True})
    assert status == 200 and headers["content-type"] == "text/event-stream"
    all_of = events(body)
    assert all_of[-1]["choices"][0]["delta"] == {} and all_of[-1]["choices"][0]["finish_reason"]
    assert not any("usage" in e for e in all_of)


def test_completions(client):
    whole = client.completions.create(model="smol", prompt="One two three", max_tokens=8, temperature=0, extra_body=ENDLESS)
    pieces = client.completions.create(model="smol", prompt="One two three", max_tokens=8, temperature=0, stream=True, extra_body=ENDLESS)
    assert "".join(p.choices[0].text for p in pieces) == whole.choices[0].text != ""
    assert whole.usage.completion_tokens == 8
    two = client.completions.create(model="smol", prompt=["One two three", "Four five six"], max_tokens=8, temperature=0,
                                    extra_body=ENDLESS)
    assert [c.index for c in two.choices] == [0, 1] and two.choices[0].text == whole.choices[0].text
    echo = client.completions.create(model="smol", prompt="One two three", max_tokens=8, temperature=0, echo=True, extra_body=ENDLESS)
    assert echo.choices[0].text == "One two three" + whole.choices[0].text
    stopped = client.completions.create(model="smol", prompt="1, 2, 3,", max_tokens=40, temperature=0, stop=[" 6"])
    assert stopped.choices[0].finish_reason == "stop" and " 6" not in stopped.choices[0].text
    probs = client.completions.create(model="smol", prompt="One two three", max_tokens=4, temperature=0, logprobs=2, extra_body=ENDLESS)
    lists = probs.choices[0].logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset) == 4
    assert "".join(lists.tokens) == probs.choices[0].text


def test_json_schema(client):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer",
              "minimum": 1, "maximum": 99}}, "required": ["name", "age"], "additionalProperties": False}
    for seed in range(2):
        reply = client.chat.completions.create(
            model="smol", messages=[{"role": "user", "content": "Invent a person."}], max_tokens=300, seed=seed,
            response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}})
        person = json.loads(reply.choices[0].message.content)
        assert set(person) == {"name", "age"} and 1 <= person["age"] <= 99
    reply = client.chat.completions.create(model="smol", messages=HI, max_tokens=3, response_format={"type": "json_object"})
    assert reply.choices[0].message.content.startswith("{")


def test_n_and_seed(client):
    ask = dict(model="smol", messages=HI, max_tokens=8, temperature=1.5, n=3, seed=7, extra_body=ENDLESS)
    one, two = (client.chat.completions.create(**ask) for _ in range(2))
    texts = [c.message.content for c in one.choices]
    assert texts == [c.message.content for c in two.choices] and len(set(texts)) > 1
    assert one.usage.completion_tokens == 24 and [c.index for c in one.choices] == [0, 1, 2]


def test_logprobs(client):
    ask = dict(model="smol", messages=HI, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3)
    whole = client.chat.completions.create(**ask).choices[0]
    assert "".join(t.token for t in whole.logprobs.content) == whole.message.content
    for t in whole.logprobs.content:
        assert t.logprob <= 0 and t.top_logprobs[0].token == t.token and len(t.top_logprobs) == 3
        assert bytes(t.bytes).decode() == t.token
    streamed = [t.token for c in client.chat.completions.create(**ask, stream=True)
                for t in (c.choices[0].logprobs.content if c.choices[0].logprobs else [])]
    assert streamed == [t.token for t in whole.logprobs.content]
    on = client.chat.completions.create(**{**ask, "max_tokens": 60}, extra_body=ENDLESS).choices[0]
    assert len(on.logprobs.content) == 60  # end tokens count where they do not end


def test_logit_bias(server, client):
    ban = json.loads(server.request("POST", "/tokenize", {"content": "Hello"})[2])["tokens"][0]
    plain = client.chat.completions.create(model="smol", messages=HI, max_tokens=1, temperature=0).choices[0].message.content
    banned = client.chat.completions.create(model="smol", messages=HI, max_tokens=1, temperature=0, logit_bias={str(ban): -100})
    assert plain == "Hello" != banned.choices[0].message.content


def test_errors(server, client):
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="gpt-x", messages=HI)
    assert e.value.code == "model_not_found"
    long = [{"role": "user", "content": "word " * 2000}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as e:
            client.chat.completions.create(model="smol", messages=long, stream=stream)
        assert e.value.code == "context_length_exceeded" and "maximum context length is 1024 tokens" in str(e.value)


# ---- many at once ----

def start(server, **fields):
    """A stream that is being read; returns the socket after the first bytes of text."""
    body = json.dumps({"messages": HI, "max_tokens": 900, "stream": True, "ignore_eos": True, **fields}).encode()
    s = server.connect()
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    return s


def test_a_client_that_leaves_cancels(server):
    server.settle()
    before, asked = server.metric("quern_cancelled_total"), server.metric("quern_submitted_total")
    streams = [start(server) for _ in range(4)]
    until(lambda: server.metric("quern_submitted_total") == asked + 4)
    until(lambda: server.metric("quern_running") == server.metric("quern_waiting") == 2)
    for s in streams:
        s.close()
    server.settle()
    assert server.metric("quern_cancelled_total") == before + 4


def test_a_full_queue_says_so(server):
    server.settle()
    streams = [start(server) for _ in range(2)]
    for s in streams:
        s.recv(4096)
    streams += [start(server) for _ in range(3)]
    until(lambda: server.metric("quern_waiting") == 3)
    status, headers, body = server.request("POST", "/v1/chat/completions", {"messages": HI})
    assert status == 429 and int(headers["retry-after"]) > 0
    assert json.loads(body)["error"]["type"] == "rate_limit_error"
    assert server.request("GET", "/health")[0] == 200
    for s in streams:
        s.close()
    server.settle()


def test_parallel_streams_do_not_mix(server, client):
    def ask(word):
        messages = [{"role": "user", "content": f"Write a sentence about {word}."}]
        chunks = client.chat.completions.create(model="smol", messages=messages, max_tokens=20, temperature=0, stream=True)
        return "".join(c.choices[0].delta.content or "" for c in chunks)
    words = ["mills", "rivers", "bread"]
    alone = {w: ask(w) for w in words}
    together = {}
    threads = [threading.Thread(target=lambda w=w: together.update({w: ask(w)})) for w in words]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone and len(set(alone.values())) == 3


def test_many_large_bodies_do_not_take_all_memory(server):
    part, refused, held = b"x" * ((16 << 20) - 1), set(), []
    for _ in range(20):
        s = server.connect()
        held.append(s)
        try:
            s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16777216\r\n\r\n" + part)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def look():
        for s in select.select(held, [], [], 0)[0]:
            try:
                if s.recv(100).startswith(b"HTTP/1.1 503"):
                    refused.add(s)
            except ConnectionResetError:
                pass
        return refused

    until(look)
    assert len(refused) < 20
    for s in held:
        s.close()
    for _ in range(3):  # and the memory is counted back
        assert server.request("POST", "/tokenize", {"content": "a"})[0] == 200


def test_counters_balance(server, client):
    client.close()  # no test after this one asks with it
    server.settle()
    parts = sum(server.metric(f"quern_{n}_total") for n in ("finished", "cancelled", "failed"))
    assert server.metric("quern_submitted_total") == parts
    until(lambda: server.metric("quern_connections") == 1)  # the one that asks


# ---- keys and the end ----

def test_keys_then_sigterm_with_running_streams(binary, smollm2, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# who\nsecret-one\nsecret-two\n")
    server = Server(binary, smollm2, *OPTIONS, "--api-key-file", str(keys), "--slots", "4", "--grace", "600")
    try:
        for path in ("/health", "/livez", "/readyz", "/"):
            assert server.request("GET", path)[0] == 200
        assert server.request("OPTIONS", "/v1/models", Origin="http://localhost")[0] == 204
        assert server.request("GET", "/v1/models", x_api_key="secret-two")[0] == 200
        assert server.request("GET", "/v1/models", Authorization="Bearer secret-one")[0] == 200
        for given in ({}, {"Authorization": "Bearer secret"}, {"x_api_key": "secret-onesecret-one"}, {"x_api_key": ""}):
            status, _, body = server.request("GET", "/v1/models", **given)
            assert status == 401 and json.loads(body)["error"]["type"] == "authentication_error"
        with pytest.raises(openai.AuthenticationError):
            server.client("wrong").models.list()
        body = json.dumps({"messages": HI, "max_tokens": 400, "stream": True, "ignore_eos": True}).encode()
        streams = []
        for _ in range(4):
            s = server.connect()
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nx-api-key: secret-one\r\n"
                      b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            streams.append((s, s.recv(4096)))
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.request("GET", "/readyz")[0] == 503)
        status, headers, _ = server.request("POST", "/v1/chat/completions", {"messages": HI}, x_api_key="secret-one")
        assert status == 503 and "retry-after" in headers
        for s, begun in streams:
            last = events(parse(begun + read_all(s))[2])[-1]
            assert last["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(60) == 0
    finally:
        server.kill()


def test_replies_that_outlast_the_grace_end_with_an_error(serve, smollm2):
    server = serve(smollm2, *OPTIONS, "--grace", "0")
    body = {"messages": HI, "max_tokens": 100_000, "ignore_eos": True, "truncation": "auto"}
    ask = lambda **more: b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        len(data := json.dumps(body | more).encode()), data)
    with server.connect() as stream, server.connect() as whole:
        whole.sendall(ask())
        stream.sendall(ask(stream=True))
        begun = stream.recv(4096)
        until(lambda: server.metric("quern_running") == 2)
        server.process.send_signal(signal.SIGTERM)
        assert events(parse(begun + read_all(stream))[2])[-1]["error"]["message"] == "the server is shutting down"
        status, _, reply = parse(read_all(whole))
        assert status == 503 and b"the server is shutting down" in reply
    assert server.process.wait(60) == 0


def test_a_bind_that_others_can_reach_needs_a_key(quern, smollm2):
    done = quern("serve", smollm2, "--host", "0.0.0.0", "--port", "0", env={"QUERN_API_KEY": ""})
    assert done.code == 64 and "--api-key-file" in done.err
