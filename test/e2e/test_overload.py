"""Clients that take what they can get: descriptors, connections, memory, the workers' time, places in the queue. A quick
form of each in every run; the attacks in full, with figures, in `make soak`."""
import asyncio
import collections
import json
import os
import re
import resource
import threading
import time

import pytest

from load import run_alone
from server import Server, until


@pytest.fixture(autouse=True)
def many_files():
    """As many descriptors for the clients as the machine gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def logged(server):
    """The bytes that the server has logged since the last look."""
    fd, out = server.process.stderr.fileno(), b""
    os.set_blocking(fd, False)
    try:
        while part := os.read(fd, 1 << 20):
            out += part
    except BlockingIOError:
        pass
    return out


def without_descriptors(server, seconds):
    """Clients come and no descriptor is left -> share of a core, bytes logged"""
    pid = server.process.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, hard))
    logged(server)
    clients = [server.connect() for _ in range(20)]
    before, start, log = cpu_seconds(pid), time.monotonic(), b""
    while time.monotonic() - start < seconds:
        time.sleep(0.05)
        log += logged(server)
    share = (cpu_seconds(pid) - before) / (time.monotonic() - start)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
    assert server.request("GET", "/livez")[0] == 200
    for c in clients:
        c.close()
    return share, log


# ---- descriptors and connections ----


def test_no_descriptor_is_left(serve, smollm2):
    s = serve(smollm2)
    share, log = without_descriptors(s, 1)
    assert log.count(b"\n") == 1 and b"cannot accept connections" in log
    print(f"no descriptor left: {share:.0%} of a core, {len(log)} bytes logged in 1 s")
    assert s.stop() == 0


def test_few_descriptors(binary, smollm2, tmp_path):
    """The limit of open files is far below that of connections: idle ones give theirs up, and everybody is answered."""
    script = tmp_path / "few"
    script.write_text(f'#!/bin/sh\nulimit -n 48\nexec "{binary}" "$@"\n')
    script.chmod(0o755)
    s = Server(script, smollm2)
    try:
        silent = [s.connect() for _ in range(200)]
        for _ in range(5):
            assert s.request("GET", "/livez")[0] == 200
            assert s.ask("/v1/completions", {"prompt": "A mill", "max_tokens": 1})["choices"]
        assert len(logged(s)) < 1000
        for c in silent:
            c.close()
        assert s.stop() == 0
    finally:
        s.kill()


def test_silent_connections_give_way(serve, smollm2):
    s = serve(smollm2)
    silent = [s.connect() for _ in range(1100)]
    start = time.monotonic()
    assert s.request("GET", "/livez")[0] == 200
    assert s.ask("/v1/completions", {"prompt": "A mill", "max_tokens": 1})["choices"]
    print(f"beside 1,100 silent connections: answered after {time.monotonic() - start:.2f} s")
    silent[0].settimeout(60)
    assert silent[0].recv(1) == b""  # the oldest has gone
    assert s.metric("quern_connections") <= 1024
    silent[-1].sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert silent[-1].recv(12) == b"HTTP/1.1 200"  # the youngest has not
    for c in silent:
        c.close()
    assert s.stop() == 0


def stream_later(server, tokens, prompt="A mill"):
    """A request that runs for long -> its connection"""
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}).encode()
    c = server.connect()
    c.sendall(post(b"/v1/completions", body))
    return c


def stream(server, tokens=4000):
    """The same, after the first bytes of the reply"""
    c = stream_later(server, tokens)
    assert c.recv(12) == b"HTTP/1.1 200"
    return c


def test_probes_are_answered_where_all_connections_are_busy(serve, smollm2):
    s = serve(smollm2, "--limit", "connections=2", "--slots", 2)
    busy = [stream(s), stream(s)]
    for path in ("/livez", "/readyz", "/health"):
        assert s.request("GET", path)[0] == 200
    status, headers, body = s.request("GET", "/v1/models")
    assert status == 503 and int(headers["retry-after"]) >= 1 and b"all connections" in body
    assert s.request("POST", "/v1/completions", {"prompt": "A mill", "max_tokens": 1})[0] == 503
    for c in busy:  # nobody who has a request running was cut off
        assert c.recv(1)
    busy[0].close()
    until(lambda: s.request("GET", "/v1/models")[0] == 200)
    busy[1].close()
    assert s.stop() == 0


@pytest.mark.slow
def test_descriptors_and_silence(serve, smollm2, capsys):
    """Half a minute without a descriptor, then 1,100 connections of each silent kind: what it costs, and what others notice."""
    s = serve(smollm2)
    share, log = without_descriptors(s, 30)
    with capsys.disabled():
        print(f"\nno descriptor left for 30 s: {share:.1%} of a core, {len(log) / 30:.0f} bytes of log a second", end="")
    assert share < 0.2 and len(log) < 1000
    s.kill()
    for name, begin in (("nothing", b""), ("half a head", b"GET /livez HTTP/1.1\r\nHo"), ("half a body", post(b"/tokenize", b"{" * 100)[:-50])):
        s = serve(smollm2)
        silent = [s.connect() for _ in range(1100)]
        for c in silent:
            try:
                c.sendall(begin)
            except OSError:  # it had to go
                pass
        waits, served, start = [], 0, time.monotonic()
        for path in ("/livez", "/health", "/v1/models") * 10:
            began = time.monotonic()
            try:
                served += s.request("GET", path)[0] == 200
            except (OSError, IndexError, ValueError):
                pass
            waits.append(time.monotonic() - began)
        with capsys.disabled():
            print(f"\n1,100 connections that sent {name}: {served} of 30 requests beside them answered, {1e3 * max(waits):.0f} ms at most", end="")
        assert served == 30
        for c in silent:
            c.close()
        s.kill()


# ---- memory ----


def resident(pid):
    """Megabytes of the process itself, without the file's pages."""
    return int(re.search(r"RssAnon:\s+(\d+)", open(f"/proc/{pid}/status").read()).group(1)) / 1024


def post(path, body):
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path, len(body)) + body


def many_values(values, what=b"{}", tokens=64):
    """A request with a field that nobody reads"""
    return (b'{"prompt": "A mill", "max_tokens": %d, "ignore_eos": true, "stream": true, "x": [' % tokens + b",".join([what] * values) + b"]}")


def heaviest(server, bodies, done):
    """Sends all at once -> how many MB the server grew by at most, the first lines of the replies"""
    pid = server.process.pid
    before = most = resident(pid)
    clients = [server.connect() for _ in bodies]
    senders = [threading.Thread(target=c.sendall, args=(post(b"/v1/completions", b),)) for c, b in zip(clients, bodies)]
    for t in senders:
        t.start()
    start = time.monotonic()
    while (any(t.is_alive() for t in senders) or not done()) and time.monotonic() - start < 120:
        most = max(most, resident(pid))
        time.sleep(0.005)
    heads = [c.recv(12)[-3:].decode() for c in clients]
    most = max(most, resident(pid))
    for c in clients:
        c.close()
    return most - before, heads


def test_values_are_counted_before_they_are_read(serve, smollm2):
    s = serve(smollm2, "--limit", "values=1000", "--limit", "bodies=2M")
    status, _, body = s.request("POST", "/v1/completions", many_values(900, tokens=1))
    assert status == 200
    status, _, body = s.request("POST", "/v1/completions", many_values(1000, tokens=1))
    assert status == 413 and b"1006 values" in body and b"(limit values)" in body
    status, _, body = s.request("POST", "/v1/completions", many_values(1, b'"%s"' % (b"x" * 1000000), tokens=1))
    assert status == 413 and b"(limit bodies)" in body
    for _ in range(20):  # what was charged is given back, whether it was answered or refused
        assert s.request("POST", "/v1/completions", many_values(900, b'{"a": {"b": "c"}}' if _ % 2 else b"1", tokens=1))[0] in (200, 413)
    assert s.metric("quern_request_bytes") == 0
    assert s.stop() == 0


def test_a_request_is_freed_once_it_is_understood(serve, smollm2):
    """Streams that run hold no tree of their request."""
    s = serve(smollm2, "--slots", 4)
    running = lambda: s.metric("quern_running") == 4
    grown, heads = heaviest(s, [many_values(100000, tokens=4000)] * 4, running)
    assert heads == ["200"] * 4
    assert s.metric("quern_request_bytes") < 1 << 20
    print(f"4 streams whose requests had 100,000 objects each: {grown:.0f} MB more at most")
    assert s.stop() == 0


@pytest.mark.slow
def test_memory_of_many_values(serve, smollm2, capsys):
    """16 bodies of many values, as large as they are taken and larger: below 300 MB in all."""
    for what, values in ((b"{}", 700000), (b"{}", 500000), (b'{"a":{}}', 240000), (b"[]", 500000), (b'"a text"', 500000), (b"1", 500000)):
        s = serve(smollm2, "--slots", 16)
        body = many_values(values, what)
        done = lambda: s.metric("quern_answers") == s.metric("quern_running") + s.metric("quern_waiting")
        grown, heads = heaviest(s, [body] * 16, done)
        with capsys.disabled():
            print(f"\n16 bodies of {len(body) / 1e6:.1f} MB, {values} times {what.decode()}: resident memory grew by {grown:.0f} MB at most, "
                  f"replies {dict(collections.Counter(heads))}", end="")
        assert grown < 300
        assert s.stop() == 0


# ---- the workers' time ----

ROW = b'{"prompt": "A mill", "max_tokens": 1, "temperature": 0}'


def too_long(text):
    """Requests of every API whose prompt is this text -> path, body, what names the error"""
    messages = [{"role": "user", "content": text}]
    return [("/v1/completions", {"prompt": text}),
            ("/v1/completions", {"prompt": ["a", text]}),
            ("/v1/chat/completions", {"messages": messages}),
            ("/v1/chat/completions", {"messages": messages, "response_format": {"type": "json_object"}}),
            ("/v1/responses", {"input": text}),
            ("/v1/messages", {"messages": messages, "max_tokens": 1}),
            ("/api/chat", {"messages": messages, "stream": False}),
            ("/api/generate", {"prompt": text, "stream": False}),
            ("/completion", {"prompt": text}),
            ("/completion", {"prompt": [1, text]}),
            ("/v1/embeddings", {"input": text}),
            ("/v1/rerank", {"query": "a", "documents": ["b", text]})]


def test_what_cannot_fit_is_refused(serve, smollm2):
    """By its bytes, by its first tokens, or by all of them: the sentence is the same."""
    s = serve(smollm2, "--ctx", 256)
    for text, rows in (("a" * 200_000, None), ("word " * 300, None), (" " * 100_000 + "x", 1), ("word " * 5_000, 1)):
        for path, body in too_long(text)[:rows]:
            status, _, reply = s.request("POST", path, body)
            assert status == 400, (path, status, reply[:200])
            assert b"This model's maximum context length is 256 tokens; " in reply, (path, reply[:300])
            if path.startswith("/v1") and path != "/v1/messages":
                assert json.loads(reply)["error"]["code"] == "context_length_exceeded", (path, reply[:300])
    exact = s.request("POST", "/v1/completions", {"prompt": "word " * 300})[2]
    assert re.search(rb"the prompt has 3\d\d\. Shorten it", exact)  # up to twice the context it is counted
    assert s.ask("/v1/completions", {"prompt": "word " * 200, "max_tokens": 1})["choices"]
    assert len(s.ask("/tokenize", {"content": "word " * 3000})["tokens"]) > 3000  # no context, no limit
    assert s.stop() == 0


def beside(server, path, body, times):
    """Seconds that a short request takes while so many large ones are being read, for each of several, and those alone"""
    ask = lambda: server.send(post(b"/v1/completions", ROW).replace(b"Host", b"Connection: close\r\nHost"))
    took = lambda: (time.monotonic(), ask(), time.monotonic())
    ask()
    alone = [b - a for a, _, b in (took() for _ in range(5))]
    clients = [server.connect() for _ in range(times)]
    replies = []

    def large(c):
        c.settimeout(600)
        c.sendall(post(path, body))
        replies.append(c.recv(12)[-3:].decode())
    senders = [threading.Thread(target=large, args=(c,)) for c in clients]
    for t in senders:
        t.start()
    time.sleep(0.2)
    start, waits = time.monotonic(), []
    while any(t.is_alive() for t in senders) and time.monotonic() - start < 300:
        a, reply, b = took()
        assert reply.startswith(b"HTTP/1.1 200")
        waits.append(b - a)
    for t in senders:
        t.join()
    for c in clients:
        c.close()
    return max(alone), max(waits or [0]), time.monotonic() - start, replies


@pytest.mark.slow
def test_short_requests_pass_long_ones(serve, smollm2, capsys):
    """Six of 15 MB beside a request for one token, which takes at most 2 s more than alone."""
    words = ("the mill turns in the wind and " * 500_000)[:15_000_000]
    for name, path, body in (("prompts of words", b"/v1/completions", {"prompt": words}),
                             ("prompts of one letter", b"/v1/completions", {"prompt": "a" * 15_000_000}),
                             ("prompts of blanks", b"/v1/completions", {"prompt": " " * 15_000_000}),
                             ("chats", b"/v1/chat/completions", {"messages": [{"role": "user", "content": words}]}),
                             ("embeddings", b"/v1/embeddings", {"input": words}),
                             ("4,096 messages", b"/v1/chat/completions", {"messages": [{"role": "user", "content": words[:3600]}] * 4096}),
                             ("texts to tokenize", b"/tokenize", {"content": words[:5_000_000]})):
        s = serve(smollm2)
        alone, most, took, replies = beside(s, path, json.dumps(body).encode(), 6)
        with capsys.disabled():
            print(f"\nsix {name}: a short request took {alone:.2f} s alone and {most:.2f} s at most beside them; they took {took:.1f} s, "
                  f"replies {dict(collections.Counter(replies))}", end="")
        assert most < alone + 2
        s.kill()


# ---- the queue ----


def test_64_chats_at_once(serve, smollm2):
    """OpenAI's client with its own retries, and a server with its own defaults: everybody gets an answer."""
    openai = pytest.importorskip("openai")
    s = serve(smollm2)
    name = s.ask("/v1/models")["data"][0]["id"]

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{s.url}/v1", api_key="none", timeout=600) as client:
            ask = lambda i: client.chat.completions.create(model=name, messages=[{"role": "user", "content": f"{i}?"}], max_tokens=2)
            return await asyncio.gather(*(ask(i) for i in range(64)))
    assert all(r.usage.completion_tokens for r in run_alone(all_of_them()))
    assert s.metric("quern_refused_total") == 0
    assert s.stop() == 0


def test_retry_after_follows_the_rate(serve, smollm2):
    """One runs and one waits: the more are refused, the later they are to come back."""
    s = serve(smollm2, "--slots", 1, "--queue", 1)
    first = [stream(s, 100), stream_later(s, 4000)]
    until(lambda: s.metric("quern_finished_total") == 1)  # that took as long as it took while another one waited
    first.append(stream_later(s, 4000))
    until(lambda: s.metric("quern_waiting") == 1)
    waits = [s.request("POST", "/v1/completions", json.loads(ROW)) for _ in range(40)]
    assert {status for status, _, _ in waits} == {429}
    waits = [int(headers["retry-after"]) for _, headers, _ in waits]
    assert waits == sorted(waits) and 1 <= waits[0] < waits[-1] <= 60
    print(f"Retry-After of 40 refused: {waits[0]} to {waits[-1]} s")
    for c in first:
        c.close()
    s.settle()
    assert s.stop() == 0


def test_the_queue_is_bounded_by_memory(serve, smollm2):
    """A request may always wait; more of them as far as their prompts have room."""
    s = serve(smollm2, "--slots", 1, "--limit", "queued=1M", "--ctx", 8192)
    c = stream(s, 8000)
    waiting = [stream_later(s, 1, "word " * 8000) for _ in range(12)]
    until(lambda: s.metric("quern_waiting") + s.metric("quern_refused_total") == 12)
    assert 5 <= s.metric("quern_waiting") <= 11
    status, _, body = s.request("POST", "/v1/completions", {"prompt": "word " * 8000, "max_tokens": 1})
    assert status == 429 and b"with 1 MiB of prompts" in body
    for one in (c, *waiting):
        one.close()
    s.settle()
    assert s.stop() == 0
