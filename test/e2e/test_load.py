"""The server under load: a quick form in every run, and the long ones (make soak): ten minutes of 64 streams among a
thousand connections, ten times too much, kill -9 a hundred times."""
import asyncio
import json
import os
import re
import signal
import socket
import statistics
import time

import pytest

from load import Load, run_alone
from server import until


PROMPTS = [f"{word} is a word with {len(word)} letters. Another word is" for word in
           ("mill", "stone", "flour", "grain", "river", "wheel", "bread", "wind", "barley", "miller", "sack", "sieve")]


def resident(pid):
    """Megabytes of the process itself, without the file's pages."""
    return int(re.search(r"RssAnon:\s+(\d+)", open(f"/proc/{pid}/status").read()).group(1)) / 1024


def files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def alone(server):
    """The text of every prompt when nothing runs beside it."""
    return {p: server.ask("/v1/completions", {"prompt": p, "max_tokens": 24, "temperature": 0})["choices"][0]["text"] for p in PROMPTS}


def check(server, load, expected):
    server.settle()
    assert server.process.poll() is None
    assert load.broken == []
    for prompt, texts in load.texts.items():  # nobody got the text of another; a rounding may part from the run alone
        for other, text in expected.items():
            assert text == expected[prompt] or text not in texts, (prompt, other)
    same = sum(expected[p] in texts for p, texts in load.texts.items())
    assert same >= 0.9 * len(load.texts)
    count = lambda name: server.metric(f"quern_{name}_total")
    assert count("submitted") == count("finished") + count("cancelled") + count("failed")
    assert count("failed") == 0


def run(server, expected, streams, seconds, idle):
    load = Load(server.port, PROMPTS, 24)
    run_alone(load.run(streams, seconds, idle))
    check(server, load, expected)
    until(lambda: server.metric("quern_connections") == 1)  # some linger for a while
    return load


def test_a_load(serve, smollm2):
    s = serve(smollm2, "--slots", 8, "--queue", 64)
    expected = alone(s)
    before = files(s.process.pid)
    load = run(s, expected, 24, 6, 100)
    assert load.codes[200] > 3
    until(lambda: files(s.process.pid) <= before + 2)
    assert s.stop() == 0


def test_too_much_is_refused_at_once(serve, smollm2):
    s = serve(smollm2, "--slots", 4, "--queue", 4)
    load = Load(s.port, PROMPTS, 24, bad=0, leave=0)
    run_alone(load.run(40, 5))
    assert load.broken == [] and set(load.codes) == {200, 429}
    assert load.refused
    s.stop()


def test_no_stream_is_cut_at_the_end(serve, smollm2):
    s = serve(smollm2, "--slots", 32, "--grace", 120)
    load = Load(s.port, PROMPTS, 24, bad=0, leave=0)

    async def all_at_once():
        streams = [asyncio.create_task(load.one()) for _ in range(32)]
        while s.metric("quern_running") < 32 and not all(t.done() for t in streams):
            await asyncio.sleep(0.05)
        s.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*streams)

    run_alone(all_at_once())
    assert load.broken == [] and load.codes == {200: 32}
    assert s.process.wait(60) == 0


def test_slow_clients_do_not_hold_up_others(serve, smollm2):
    s = serve(smollm2)
    slow = [s.connect() for _ in range(1000)]
    for c in slow:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: local")
    waits = []
    for i in range(20):
        slow[i].sendall(b"h")
        start = time.monotonic()
        assert s.request("GET", "/livez")[0] == 200
        waits.append(time.monotonic() - start)
    print(f"slowloris, 1000 connections: /livez took {1e3 * max(waits):.1f} ms at most")
    for c in slow:
        c.close()
    s.stop()


# ---- make soak ----


@pytest.mark.slow
def test_ten_minutes(serve, smollm2, capsys):
    seconds = int(os.environ.get("QUERN_SOAK_SECONDS", 600))
    s = serve(smollm2, "--slots", 64, "--queue", 256, "--limit", "connections=2048")
    expected = alone(s)
    run(s, expected, 64, 60, 960)
    first = resident(s.process.pid)
    start = time.monotonic()
    load = run(s, expected, 64, seconds - 60, 960)
    took, last = time.monotonic() - start, resident(s.process.pid)
    with capsys.disabled():
        print(f"\n64 streams, 1024 connections, {took:.0f} s: codes {load.codes}, {load.left} left, {load.made / took:.0f} tok/s, "
              f"resident {first:.0f} MB after a minute, {last:.0f} MB at the end")
    assert last < 1.05 * first + 8
    assert s.stop() == 0


@pytest.mark.slow
def test_ten_times_too_much(serve, smollm2, capsys):
    """As many at once as there are slots, and ten times as many a second as that brought to an end, in turn."""
    s = serve(smollm2, "--slots", 16, "--queue", 16)
    shares, peaks, waits = [], [], []
    for _ in range(5):
        speed = {}
        for kind in ("peak", "over"):
            load = Load(s.port, PROMPTS, 24, bad=0, leave=0)
            start = time.monotonic()
            run_alone(load.run(16, 12) if kind == "peak" else load.arrive(10 * rate, 12))
            took = time.monotonic() - start
            rate, speed[kind] = load.codes[200] / took, load.made / took
            waits += load.refused
            assert load.broken == []
        shares.append(speed["over"] / speed["peak"])
        peaks.append(speed["peak"])
    s.stop()
    waits.sort()
    with capsys.disabled():
        print(f"\npeak {statistics.median(peaks):.0f} tok/s, ten times as many: {statistics.median(shares):.0%} of that (median of 5); "
              f"{len(waits)} refused, {1e3 * waits[len(waits) // 2]:.1f} ms (median), {1e3 * waits[len(waits) * 99 // 100]:.0f} ms (99%), "
              f"{1e3 * waits[-1]:.0f} ms at most")
    assert waits


@pytest.mark.slow
def test_killed_a_hundred_times(serve, smollm2, tmp_path):
    for i in range(100):
        s = serve(smollm2)
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            body = json.dumps({"prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": 500, "stream": True}).encode()
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            c.recv(10 + i)
            s.kill()
    s = serve(smollm2)
    assert s.request("GET", "/health")[0] == 200
    assert s.stop() == 0
