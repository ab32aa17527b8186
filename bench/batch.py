#!/usr/bin/env python3
"""Batches beside interactive requests: bench/batch.py QUERN MODEL [--streams 16] [--lines 64] [--tokens 64] [--rounds 3] [ARG...]

Two questions, each asked in turns so that a busy machine disturbs both sides alike; medians of the rounds are printed.

  gaps        the times between the tokens of one interactive stream: alone, and with a batch running
  throughput  tokens a second of a batch, and of as many streams driven by hand, with the same lines

Further arguments go to quern serve. Needs Python alone.
"""
import argparse
import http.client
import json
import re
import statistics
import subprocess
import tempfile
import threading
import time


class Server:
    def __init__(self, quern, model, args):
        self.folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen([quern, "serve", model, "--port", "0", "--name", "m", "--state-dir", self.folder.name, *args],
                                        stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"ready at http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found.group(1))
                break
        else:
            raise SystemExit("the server did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def ask(self, method, path, body=None, kind="application/json"):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        c.request(method, path, data, {"Content-Type": kind} if data is not None else {"Content-Length": "0"})
        r = c.getresponse()
        text = r.read()
        c.close()
        if r.status != 200:
            raise SystemExit(f"{path}: {r.status} {text[:300]}")
        return json.loads(text) if text[:1] == b"{" else text

    def batch(self, lines):
        """Starts a batch -> its id"""
        data = "".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": b}) + "\n"
                       for i, b in enumerate(lines))
        form = (f'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\nContent-Disposition: form-data; '
                f'name="file"; filename="in.jsonl"\r\n\r\n{data}\r\n--x--\r\n').encode()
        file = self.ask("POST", "/v1/files", form, "multipart/form-data; boundary=x")["id"]
        return self.ask("POST", "/v1/batches", {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"})["id"]

    def status(self, batch):
        return self.ask("GET", f"/v1/batches/{batch}")

    def wait(self, batch):
        while (b := self.status(batch))["status"] not in ("completed", "failed", "cancelled"):
            time.sleep(0.02)
        if b["status"] != "completed" or b["request_counts"]["failed"]:
            raise SystemExit(f"the batch ended badly: {b}")

    def cancel(self, batch):
        self.ask("POST", f"/v1/batches/{batch}/cancel", b"")
        while self.status(batch)["status"] == "cancelling":
            time.sleep(0.02)

    def stream(self, body):
        """The gaps of one stream, in ms, without the first"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request("POST", "/v1/completions", json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
        r = c.getresponse()
        times = []
        while line := r.readline():
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
        c.close()
        return [1e3 * (b - a) for a, b in zip(times, times[1:])]


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p / 100 * len(values)))]


def prompt(i, words):
    return f"Request {i}: " + " ".join(f"word{(7 * i + k) % 97}" for k in range(words))


def by_hand(server, lines, streams):
    """Seconds that so many clients take for all lines."""
    left, lock = list(lines), threading.Lock()

    def client():
        while True:
            with lock:
                if not left:
                    return
                body = left.pop()
            server.ask("POST", "/v1/completions", body)
    threads = [threading.Thread(target=client) for _ in range(streams)]
    start = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return time.perf_counter() - start


def in_batch(server, lines):
    start = time.perf_counter()
    server.wait(server.batch(lines))
    return time.perf_counter() - start


def gaps(server, o, line):
    """[(p50, p99, count)] of rounds: alone, beside a batch"""
    out = {"alone": [], "beside": []}
    interactive = line(10 ** 6) | {"max_tokens": o.interactive}
    server.stream(interactive)
    for round_ in range(o.rounds):
        for side in ("alone", "beside"):
            batch = server.batch([line(i + 1000 * round_) for i in range(16 * o.streams)]) if side == "beside" else None
            time.sleep(1 if batch else 0.2)
            found = server.stream(interactive)
            if batch:
                before = server.status(batch)["request_counts"]["completed"]
                server.cancel(batch)
                print(f"# {before} lines of the batch were done", flush=True)
            out[side].append((percentile(found, 50), percentile(found, 99), len(found)))
            print(f"# {side}: p50 {out[side][-1][0]:.2f} ms, p99 {out[side][-1][1]:.2f} ms of {len(found)} gaps", flush=True)
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("quern")
    p.add_argument("model")
    p.add_argument("--streams", type=int, default=16)
    p.add_argument("--lines", type=int, default=64)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--words", type=int, default=24)
    p.add_argument("--interactive", type=int, default=400, help="tokens of the interactive stream")
    p.add_argument("--rounds", type=int, default=3)
    o, args = p.parse_known_args()
    server = Server(o.quern, o.model, ["--slots", str(o.streams), "--speculate", "off", *args])  # a gap is a token's

    def line(i):
        return {"model": "m", "prompt": prompt(i, o.words), "max_tokens": o.tokens, "temperature": 0, "ignore_eos": True}
    try:
        in_batch(server, [line(i) for i in range(o.streams)])  # weights are warm
        found = gaps(server, o, line)
        for side, rows in found.items():
            print(f"gaps {side:7} p50 {statistics.median(r[0] for r in rows):8.2f} ms  p99 {statistics.median(r[1] for r in rows):8.2f} ms")
        rates = {"hand": [], "batch": []}
        for round_ in range(o.rounds):
            for i, way in enumerate(("hand", "batch")):
                lines = [line(10 ** 4 * (2 * round_ + i + 1) + k) for k in range(o.lines)]
                seconds = by_hand(server, lines, o.streams) if way == "hand" else in_batch(server, lines)
                rates[way].append(o.lines * o.tokens / seconds)
                print(f"# {way}: {rates[way][-1]:.1f} tok/s", flush=True)
        for way, values in rates.items():
            print(f"throughput {way:5} {statistics.median(values):8.1f} tok/s")
    finally:
        server.process.kill()


if __name__ == "__main__":
    main()
