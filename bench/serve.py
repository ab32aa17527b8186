#!/usr/bin/env python3
"""What the server costs, and how it compares with llama.cpp's: bench/serve.py [--pairs N] [--one] [--json FILE] [MODEL.gguf]

With --streams 64,128,256 only quern, with its defaults (a GPU if there is one): so many requests of 16 tokens at once, 128 made by
each, and when their first tokens came.

One stream through the server as a share of `quern bench`, 16 streams as a share of the engine's (`quern bench --streams 16`);
and, where a llama-server is in the PATH, both servers in turn: tokens a second of 1, 4 and 16 streams, the time to the first
token where 1,000 tokens of the prompt are known, the longest gap of a running stream while a prompt of 4,000 arrives.

Everything takes turns, and each figure is the median over the rounds (of shares and ratios: of the rounds' own), so that a
machine that is slow for a minute is slow for all. The client is a small program in C (bench/serve_client.c). Answers are
greedy, of a fixed length, without guesses ahead. Prompts are tokens of words in an order that is new in every round.
"""
import argparse
import json
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MODEL = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
SLOTS, CONTEXT = 16, 4608  # of each slot
PROMPT, PREDICT = 32, 96   # tokens of a stream
KNOWN, REST = 1000, 32     # of a prompt whose beginning is known
AT_ONCE = 16, 128          # tokens of a prompt and of its answer, with --streams
LONG, BESIDE = 4000, 192   # the prompt that arrives, and the length of the answer that runs meanwhile
TEXT = """the miller grinds corn and barley between two stones while water turns a wooden wheel under his house near our river where
boats bring grain from every village in spring and carry flour back to bakers who make bread for people that never saw an old mill at
work or heard how loud it is when all gears move together on windy days"""


class Stream(NamedTuple):
    """Seconds since the start of the client."""
    status: str
    sent: float
    events: list


class Server:
    """A server on this machine, and what it has cost so far."""

    def __init__(self, name, command, port):
        self.name, self.port = name, port
        self.process = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        stdin=subprocess.DEVNULL)
        for _ in range(1200):
            if self.process.poll() is not None:
                sys.exit(f"{name} ended at once: {' '.join(map(str, command))}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
                    if reply.status == 200:
                        return
            except OSError:
                time.sleep(0.1)
        sys.exit(f"{name} is not ready after two minutes")

    def ask(self, client, *requests):
        """Sends requests, each (seconds after the start, prompt's ids, tokens) -> a Stream for each."""
        lines = "".join(f"{1000 * due:.0f} " + json.dumps({"prompt": ids, "max_tokens": n, "temperature": 0, "ignore_eos": True,
                                                          "stream": True}) + "\n" for due, ids, n in requests)
        out = subprocess.run([client, str(self.port), "/v1/completions"], input=lines, capture_output=True, text=True, check=True).stdout
        streams = []
        for line in out.splitlines():
            status, sent, *events = line.split()
            streams.append(Stream(status, float(sent) / 1000, [float(e) / 1000 for e in events]))
        for s, (_, _, n) in zip(streams, requests):
            if s.status != "200" or len(s.events) < n / 2:  # tokens may share an event, or have no text yet
                sys.exit(f"{self.name} answered {s.status} with {len(s.events)} events for {n} tokens")
        return streams

    def cpu(self):
        """Seconds of processor time, its own and the system's."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def serve_quern(program, model, threads):
    port = free_port()
    return Server("quern", [program, "serve", model, "--port", port, "--slots", SLOTS, "--ctx", CONTEXT, "--threads", threads,
                            "--device", "cpu", "--speculate", "off"], port)


def serve_llama(model, threads):
    program, port = shutil.which("llama-server"), free_port()
    if not program:
        return None
    return Server("llama-server", [program, "-m", model, "--port", port, "-np", SLOTS, "-c", SLOTS * CONTEXT, "-t", threads,
                                   "-tb", threads, "--cache-reuse", 256, "-fa", "auto", "--no-webui"], port)


WORDS = []


def learn_words(program, model):
    out = subprocess.run([program, "tokenize", model, "--no-bos", "--json"], input=TEXT, capture_output=True, text=True, check=True).stdout
    WORDS[:] = sorted(set(json.loads(out)["ids"]))


def words(n):
    return random.choices(WORDS, k=n)


# ---- what is measured of a server: one figure each ----

def decode(server, client):
    """Tokens a second of one stream, from its first token on."""
    s, = server.ask(client, (0, words(PROMPT), PREDICT))
    return (PREDICT - 1) / (s.events[-1] - s.events[0])


def throughput(server, client, count):
    """Tokens a second of several requests at once, including the time to read their prompts."""
    streams = server.ask(client, *((0, words(PROMPT), PREDICT) for _ in range(count)))
    return count * PREDICT / (max(s.events[-1] for s in streams) - min(s.sent for s in streams))


def first_token(server, client):
    """Milliseconds to the first token of a prompt whose beginning is known."""
    known = words(KNOWN)
    server.ask(client, (0, known + words(REST), 1))
    s, = server.ask(client, (0, known + words(REST), 1))
    return 1000 * (s.events[0] - s.sent)


def longest_gap(server, client):
    """Milliseconds that a running stream waits at most for a token while a long prompt is read."""
    running, arrived = server.ask(client, (0, words(PROMPT), BESIDE), (1, words(LONG), 1))
    pairs = zip(running.events, running.events[1:])
    return 1000 * max(b - a for a, b in pairs if b > arrived.sent and a < arrived.events[0])


# ---- and of the engine ----

def bench(program, model, threads, *args):
    return subprocess.run([str(c) for c in (program, "bench", model, "-t", threads, "--device", "cpu", *args)], capture_output=True,
                          text=True, check=True).stdout


def bench_decode(program, model, threads):
    out = bench(program, model, threads, "-p", 0, "-n", PREDICT, "-d", PROMPT, "-r", 1, "--json")
    return json.loads(out)[0]["tok_s"]


def bench_streams(program, model, threads):
    out = bench(program, model, threads, "--streams", SLOTS, "-p", PROMPT, "-n", PREDICT)
    return float(re.search(rf"^ *{SLOTS} +([\d.]+)", out, re.M).group(1))


def cost(server, work):
    """What a piece of work says, and the milliseconds of processor time that it took the server."""
    before = server.cpu()
    figure = work()
    return figure, 1000 * (server.cpu() - before)


def one_stream(start, client, bench_one, count):
    """A process keeps the memory that it was given, in large pages or not, and is a tenth faster or slower for it as long as it
    lives. So each round has a server of its own, as it has a quern bench of its own."""
    pairs = []
    for _ in range(count):
        server = start()
        try:
            server.ask(client, (0, words(PROMPT), 8))  # warms up
            pairs.append((decode(server, client), bench_one()))
        finally:
            server.stop()
    shares = sorted(a / b for a, b in pairs)
    ours, alone = (statistics.median(p) for p in zip(*pairs))
    print(f"one stream: {ours:.1f} tok/s, quern bench {alone:.1f} (medians of {count}); share: median {statistics.median(shares):.1%}, the "
          f"middle half {shares[count // 4]:.1%} to {shares[-1 - count // 4]:.1%}")


def many_streams(program, client, model, counts, count, extra):
    """Requests all at once: tokens a second with the time to read their prompts, and milliseconds to their first tokens."""
    port = free_port()
    server = Server("quern", [program, "serve", model, "--port", port, "--slots", max(counts), "--speculate", "off", *extra], port)
    print("| streams | tok/s | first token, ms: median | last |\n|---|---|---|---|")
    try:
        for n in counts:
            figures = []
            for _ in range(count + 1):  # the first one warms up
                streams = server.ask(client, *((0, words(AT_ONCE[0]), AT_ONCE[1]) for _ in range(n)))
                first = sorted(1000 * (s.events[0] - s.sent) for s in streams)
                took = max(s.events[-1] for s in streams) - min(s.sent for s in streams)
                figures.append((n * AT_ONCE[1] / took, statistics.median(first), first[-1]))
            rate, median, last = (statistics.median(f) for f in zip(*figures[1:]))
            print(f"| {n} | {rate:,.0f} | {median:.1f} | {last:.1f} |", flush=True)
    finally:
        server.stop()


def rounds(ours, theirs, client, bench_of, count):
    """Every figure of every round: {name: [(quern, the other)]}, and milliseconds of processor time for a token."""
    tests = {f"tok/s, {n} stream{'s' * (n > 1)}": lambda s, n=n: throughput(s, client, n) for n in (1, 4, 16)}
    tests |= {f"ms to the first token, {KNOWN} of {KNOWN + REST} known": lambda s: first_token(s, client),
              f"ms, longest gap while {LONG} arrive": lambda s: longest_gap(s, client)}
    figures, cpu = {}, {ours.name: [], theirs.name if theirs else "": []}
    for i in range(count):
        pairs = [("one", decode(ours, client), bench_of[0]()), ("16", throughput(ours, client, SLOTS), bench_of[1]())]
        for name, test in tests.items():
            got = [cost(s, lambda: test(s)) if s else (None, None) for s in (ours, theirs)]
            pairs.append((name, got[0][0], got[1][0]))
            if "16 streams" in name:
                for s, (_, ms) in zip((ours, theirs), got):
                    cpu[s.name if s else ""].append(ms and ms / (SLOTS * PREDICT))
        for name, a, b in pairs:
            figures.setdefault(name, []).append((a, b))
            print(f"  round {i + 1}, {name}: {a:.1f} {b or 0:.1f}", file=sys.stderr)
    return figures, cpu


def rows(figures):
    """One row a figure: the medians, and the median of the rounds' ratios, above 1 where quern is better."""
    out = []
    for name, pairs in figures.items():
        alone = any(b is None for _, b in pairs)
        ratios = [] if alone else [b / a if name.startswith("ms") else a / b for a, b in pairs]
        out.append({"test": name, "quern": statistics.median(a for a, _ in pairs),
                    "other": None if alone else statistics.median(b for _, b in pairs),
                    "ratio": None if alone else statistics.median(ratios)})
    return out


def table(all_rows, cpu):
    cell = lambda v, form="{:.1f}": "" if v is None else form.format(v)
    print("| streams, tok/s | through the server | `quern bench` | share |\n|---|---|---|---|")
    for r in all_rows[:2]:
        print(f"| {r['test']} | {cell(r['quern'])} | {cell(r['other'])} | {cell(r['ratio'], '{:.1%}')} |")
    print("\n| side by side | quern | llama-server | ratio |\n|---|---|---|---|")
    for r in all_rows[2:]:
        print(f"| {r['test']} | {cell(r['quern'])} | {cell(r['other'])} | {cell(r['ratio'], '{:.2f}')} |")
    ours, theirs = (statistics.median(v) if v and None not in v else None for v in cpu.values())
    print(f"| ms of processor time for a token, 16 streams | {cell(ours, '{:.2f}')} | {cell(theirs, '{:.2f}')} | "
          f"{cell(theirs and theirs / ours, '{:.2f}')} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "quern/models"
    parser.add_argument("model", nargs="?", default=cache / MODEL, metavar="MODEL.gguf")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="the folder with quern and bench/serve_client")
    parser.add_argument("--pairs", type=int, default=5, help="rounds")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--one", action="store_true", help="only one stream as a share of `quern bench`, which wants many rounds")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--streams", metavar="N,N...", help="only that many requests at once, on any device")
    parser.add_argument("--option", action="append", default=[], help="with --streams: for quern serve, as --option=--kv=f8")
    args = parser.parse_args()
    program, client = args.build / "quern", args.build / "bench/serve_client"
    if not Path(args.model).exists() or not client.exists():
        sys.exit(f"{args.model if client.exists() else client} is not there")
    learn_words(program, args.model)
    if args.streams:
        return many_streams(program, client, args.model, [int(n) for n in args.streams.split(",")], args.pairs, args.option)
    start = lambda: serve_quern(program, args.model, args.threads)
    bench_of = [lambda: bench_decode(program, args.model, args.threads), lambda: bench_streams(program, args.model, args.threads)]
    if args.one:
        return one_stream(start, client, bench_of[0], args.pairs)
    ours, theirs = start(), serve_llama(args.model, args.threads)
    try:
        for s in filter(None, (ours, theirs)):
            s.ask(client, (0, words(PROMPT), 8))  # warms up
        figures, cpu = rounds(ours, theirs, client, bench_of, args.pairs)
    finally:
        for s in filter(None, (ours, theirs)):
            s.stop()
    table(rows(figures), cpu)
    if args.json:
        Path(args.json).write_text(json.dumps({"rounds": figures, "cpu_ms": cpu}, indent=1) + "\n")


if __name__ == "__main__":
    main()
