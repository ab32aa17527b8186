#!/usr/bin/env python3
"""What storing costs: bench/state.py million QUERN | cost QUERN MODEL [ROUNDS]

million: a state with a million stored responses beside an empty one: seconds until the server is ready, milliseconds of a
look-up, resident memory. cost: 64 streams of /v1/responses, stored in a folder and not stored, in turn: tokens a second and
the server's processor time for a token."""
import concurrent.futures
import http.client
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
ROWS, LOOKS, STREAMS, TOKENS = 1_000_000, 5000, 64, 24


class Server:
    def __init__(self, quern, *args):
        begun = time.time()
        self.process = subprocess.Popen([quern, "serve", *map(str, args), "--port", "0"], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"ready at http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        self.seconds = time.time() - begun

    def memory(self):
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024

    def cpu(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def ask(connection, method, path, body=None):
    connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    data = reply.read()
    assert reply.status == 200, data
    return data


def fill(folder):
    """A chain of its own for each response, as the server stores them."""
    text = "flour " * 60
    with sqlite3.connect(folder / "quern.db") as db:
        db.execute("PRAGMA synchronous = off")
        now = int(time.time())
        for first in range(0, ROWS, 50_000):
            rows = range(first + 1, first + 50_001)
            db.executemany("INSERT INTO threads (number, key, used, bytes) VALUES (?, 0, ?, 1200)", ((i, now - ROWS + i) for i in rows))
            db.executemany("INSERT INTO responses (number, id, key, thread, running, body) VALUES (?, ?, 0, ?, 0, ?)", (
                (i, f"resp_req-{i:024x}", i, json.dumps({"id": f"resp_req-{i:024x}", "object": "response", "output": [text]})) for i in rows))
            db.executemany("INSERT INTO items (id, body, thread, response, turn, listed) VALUES (?, ?, ?, ?, ?, 0)", (
                (f"msg_{i:x}_{turn}", json.dumps({"type": "message", "content": text}), i, i, turn) for i in rows for turn in (0, 1)))
            db.commit()


def look(server, path):
    connection, times = server.connect(), []
    for _ in range(LOOKS):
        begun = time.perf_counter()
        ask(connection, "GET", path())
        times.append(1000 * (time.perf_counter() - begun))
    times.sort()
    return times[LOOKS // 2], times[LOOKS * 99 // 100]


def million(quern, folder):
    model = folder / "tiny.gguf"
    subprocess.run([sys.executable, ROOT / "synth.py", "smollm2-135m", model, "--layers", "1", "--type", "q4_0"], check=True,
                   stdout=subprocess.DEVNULL)
    rng = random.Random(1)
    for name in ("empty", "million"):
        state = folder / name
        Server(quern, model, "--state-dir", state, "--keep-responses", "3650d").stop()
        if name == "million":
            fill(state)
        server = Server(quern, model, "--state-dir", state, "--keep-responses", "3650d")
        memory = server.memory()
        p50, p99 = look(server, (lambda: f"/v1/responses/resp_req-{rng.randint(1, ROWS):024x}") if name == "million" else lambda: "/health")
        size = (state / "quern.db").stat().st_size / 1e9
        print(f"{name:8} {size:6.2f} GB  ready in {server.seconds:5.2f} s  look-up p50 {p50:5.2f} ms, p99 {p99:5.2f} ms"
              f"{'' if name == 'million' else ' (of /health)'}  resident {memory:5.0f} MiB, then {server.memory():5.0f} MiB", flush=True)
        server.stop()


def streams(server, store):
    """Tokens a second and processor seconds a thousand tokens."""
    def one(i):
        body = {"input": f"Question {i}.", "max_output_tokens": TOKENS, "stream": True, "store": store, "temperature": 0}
        data = ask(server.connect(), "POST", "/v1/responses", body)
        return int(re.search(rb'"output_tokens":(\d+)', data)[1])
    begun, cpu = time.time(), server.cpu()
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        made = sum(pool.map(one, range(STREAMS)))
    return made / (time.time() - begun), 1000 * (server.cpu() - cpu) / made


def cost(quern, folder, model, rounds):
    server = Server(quern, model, "--state-dir", folder / "state", "--slots", STREAMS, "--ctx", "512")
    streams(server, True)
    got = {True: [], False: []}
    for i in range(rounds):
        for store in (True, False) if i % 2 else (False, True):
            got[store].append(streams(server, store))
    server.stop()
    middle = lambda store, which: sorted(r[which] for r in got[store])[rounds // 2]
    for store in (True, False):
        print(f"{'stored' if store else 'not stored':10} {middle(store, 0):8.1f} tokens/s  {middle(store, 1):8.3f} s of processor a thousand tokens")
    print(f"storing costs {100 * (1 - middle(True, 0) / middle(False, 0)):.2f}% of the speed and "
          f"{100 * (middle(True, 1) / middle(False, 1) - 1):.2f}% of processor time (medians of {rounds} rounds in turn)")


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("million", "cost"):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as t:
        if sys.argv[1] == "million":
            million(sys.argv[2], Path(t))
        else:
            cost(sys.argv[2], Path(t), sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 9)


main()
