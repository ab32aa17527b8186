"""Clients that take what they can get: descriptors, connections, memory, the workers' time, places in the queue. A quick
form of each in every run; the attacks in full, with figures, in `make soak`."""
import collections
import os
import re
import resource
import threading
import time

import pytest

from server import Server, until


@pytest.fixture
def serve(binary):
    """serve(model, ...) -> a server, which does not outlive the test"""
    running = []

    def start(*args):
        running.append(Server(binary, *args))
        return running[-1]
    yield start
    for s in running:
        s.process.kill()


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
        s.process.kill()


def test_silent_connections_give_way(serve, smollm2):
    s = serve(smollm2)
    silent = [s.connect() for _ in range(1100)]
    start = time.monotonic()
    assert s.request("GET", "/livez")[0] == 200
    assert s.ask("/v1/completions", {"prompt": "A mill", "max_tokens": 1})["choices"]
    print(f"beside 1,100 silent connections: answered after {time.monotonic() - start:.2f} s")
    silent[0].settimeout(10)
    assert silent[0].recv(1) == b""  # the oldest has gone
    assert s.metric("quern_connections") <= 1024
    silent[-1].sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert silent[-1].recv(12) == b"HTTP/1.1 200"  # the youngest has not
    for c in silent:
        c.close()
    assert s.stop() == 0


def stream(server, tokens=4000):
    """A request that runs for long -> its connection, after the first bytes of the reply"""
    body = b'{"prompt": "A mill", "max_tokens": %d, "ignore_eos": true, "stream": true}' % tokens
    c = server.connect()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
              + body)
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
