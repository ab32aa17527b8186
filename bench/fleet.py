#!/usr/bin/env python3
"""How many replicas for how many users: a simulation of replicas from the measured costs of their steps.

    bench/fleet.py run [--model MODEL.gguf] [--runs 5] [--seconds 20] [--json FILE]
    bench/fleet.py plan [--costs FILE] [--users 50,200,1000] [--first 1] [--price 3]

`run` starts three replicas behind HAProxy (package/haproxy.cfg) on this machine, measures what their steps cost with all three
running on the same cores, and then compares users of the simulation with real ones: tokens a second and the time to the first
token, by round-robin, by least load and by session, medians over the runs. `plan` needs no server: it finds the fewest replicas
that give nine users in ten their first token in time. Costs are those of a JSON file as `run` writes it, or of an H200 with an
8B model (doc/speed-gpu.md).

A replica is what src/run/engine_step.c does: every step has a row for each stream that generates, and a chunk of prompts that
delays them by at most the gap; known prefixes are not read again. Replicas that share cores slow each other down as measured.
"""
import argparse
import heapq
import http.client
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict, deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE, GAP, CHUNK_LEAST = 32, 0.15, 16  # of src/run
REPLICAS = 3
# Llama-3-8B Q4_K_M on an H200: seconds of a step by its rows, and of a row of a prompt (doc/speed-gpu.md)
H200 = {"decode": [[1, 1 / 578], [8, 8 / 3383], [32, 32 / 7671], [64, 64 / 10378], [128, 128 / 13095], [256, 256 / 14338]],
        "prompt_row": 1 / 30638, "prompt_step": 0.002, "request": 0.003, "chunk": 1024, "slots": 128, "kv_tokens": 900000, "share": [1]}


class User:
    """Conversations one after the other: a beginning that all of a group share, and turns that continue the text."""

    def __init__(self, seed, shape):
        self.rng, self.shape, self.turn, self.number = random.Random(seed), shape, 0, 0
        self.seed = seed

    def next(self):
        """-> group, conversation, tokens of the prompt, tokens of the answer, seconds to think before"""
        s, r = self.shape, self.rng
        if self.turn == 0:
            self.group = r.randrange(s["groups"])
            self.number += 1
            self.length = s["system"]
        self.length += s["question"] + (s["answer"] if self.turn else 0)
        self.turn = (self.turn + 1) % s["turns"]
        out = max(1, round(s["answer"] * r.uniform(0.5, 1.5)))
        return self.group, (self.seed, self.number), self.length, out, r.expovariate(1 / s["think"])


# ---- the simulation ----

class Job:
    def __init__(self, user, now, asked, shared):
        self.user, self.sent, self.shared = user, now, shared
        self.group, self.talk, self.length, self.left, _ = asked
        self.pending, self.first = self.length, None


class Replica:
    def __init__(self, costs):
        self.costs, self.queue, self.running = costs, deque(), []
        self.known, self.held = OrderedDict(), 0  # group or conversation -> tokens, the least recently used first
        self.work, self.row = 0.0, costs["prompt_row"]
        self.step = None  # (jobs that generate, [(job, rows)])

    def load(self):
        return len(self.queue) + len(self.running)

    def match(self, job):
        return min(job.length - 1, max(self.known.get(job.talk, 0), self.known.get(job.group, 0)))

    def keep(self, key, tokens):
        self.held += tokens - self.known.pop(key, 0)
        self.known[key] = tokens
        while self.held > self.costs["kv_tokens"] and len(self.known) > 1:
            self.held -= self.known.popitem(last=False)[1]

    def decode(self, rows):
        """Seconds of a step of so many rows, between the measured ones."""
        t = self.costs["decode"]
        for (r0, s0), (r1, s1) in zip(t, t[1:]):
            if rows <= r1:
                return s0 + (s1 - s0) * (rows - r0) / (r1 - r0)
        if len(t) == 1:
            return t[0][1]
        return t[-1][1] + (rows - t[-1][0]) * max(0, (t[-1][1] - t[-2][1]) / (t[-1][0] - t[-2][0]))

    def compose(self):
        """Begins a step; False: there is nothing to do."""
        while self.queue and len(self.running) < self.costs["slots"]:
            job = self.queue.popleft()
            job.pending = job.length - self.match(job)
            self.running.append(job)
        if not self.running:
            return False
        writers = [j for j in self.running if not j.pending]
        readers = [j for j in self.running if j.pending]
        room = self.costs["chunk"] - len(writers)
        if writers:
            room = min(room, max(CHUNK_LEAST, int(GAP / self.row)))
        parts = []
        for at in range(len(readers) - 1, -1, -1):
            job, share = readers[at], -(-room // (at + 1))
            n = min(job.pending, share)
            if n < job.pending and n >= PAGE:
                n -= (job.length - job.pending + n) % PAGE
            if n:
                parts.append((job, n))
                room -= n
        rows = sum(n for _, n in parts)
        if writers:  # weights are read for both
            self.work = self.decode(len(writers)) + rows * self.costs.get("mixed_row", self.costs["prompt_row"])
        else:
            self.work = self.costs["prompt_step"] + rows * self.costs["prompt_row"]
        if rows >= CHUNK_LEAST:
            self.row = 0.7 * self.row + 0.3 * self.work / (rows + len(writers))
        self.step = writers, parts
        return True

    def finish(self, now):
        """-> the tokens of the step, and the jobs that have ended"""
        writers, parts = self.step
        self.step, made, ended = None, 0, []
        for job, n in parts:
            job.pending -= n
            if not job.pending:
                self.keep(job.group, job.shared)
                self.keep(job.talk, job.length)
                job.first = now
                writers = writers + [job]
        for job in writers:
            job.left -= 1
            made += 1
            if not job.left:
                self.running.remove(job)
                ended.append(job)
        return made, ended


def choose(policy, replicas, job, state):
    if policy == "session":
        return replicas[random.Random(hash(job.talk)).randrange(len(replicas))]
    order = [replicas[(state["next"] + i) % len(replicas)] for i in range(len(replicas))]
    state["next"] += 1
    if policy == "round-robin":
        return order[0]
    if policy == "least-load":
        return min(order, key=Replica.load)
    # prefix: the longest known part of the prompt, unless that replica has much more to do than another
    best = max(order, key=lambda r: (r.match(job), -r.load()))
    least = min(order, key=Replica.load)
    return best if best.load() <= 2 * least.load() + 4 else least


def simulate(costs, shape, users, count, policy, seconds, warm, seed):
    """-> tokens a second, seconds to the first token of every request"""
    replicas, state = [Replica(costs) for _ in range(count)], {"next": seed}
    people = [User(seed * 1000 + i, shape) for i in range(users)]
    arrivals, tokens, firsts, now = [], 0, [], 0.0
    for i, u in enumerate(people):
        asked = u.next()
        heapq.heappush(arrivals, (asked[4], i, asked))
    while now < seconds:
        busy = [r for r in replicas if r.step or r.compose()]
        share = costs["share"][min(len(busy), len(costs["share"])) - 1] if busy else 1
        until = min([arrivals[0][0] if arrivals else seconds] + [now + r.work * share for r in busy])
        for r in busy:
            r.work -= (until - now) / share
        now = until
        for r in busy:
            if r.work > 1e-9:
                continue
            made, ended = r.finish(now)
            tokens += made if now >= warm else 0
            for job in ended:
                if job.sent >= warm:
                    firsts.append(job.first - job.sent + costs["request"])
                asked = people[job.user].next()
                heapq.heappush(arrivals, (now + asked[4] + costs["request"], job.user, asked))
        while arrivals and arrivals[0][0] <= now:
            _, user, asked = heapq.heappop(arrivals)
            job = Job(user, now, asked, shape["system"])
            choose(policy, replicas, job, state).queue.append(job)
    return tokens / (seconds - warm), firsts


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


# ---- real replicas ----

def free_ports(n):
    held = [socket.socket() for _ in range(n)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


class Fleet:
    def __init__(self, binary, model, slots, folder):
        ports = free_ports(1 + 2 * REPLICAS)
        self.front, self.ports, self.metrics = ports[0], ports[1:1 + REPLICAS], ports[1 + REPLICAS:]
        self.folder, self.proxy = folder, None
        self.replicas = [subprocess.Popen([binary, "serve", model, "--name", "m", "--port", str(p), "--metrics-port", str(m), "--slots",
                                           str(slots), "--threads", "1", "--no-state", "--speculate", "off", "--ctx", "4096"],
                                          stderr=subprocess.DEVNULL) for p, m in zip(self.ports, self.metrics)]
        for m in self.metrics:
            self.wait(m)

    def wait(self, port):
        for _ in range(1200):
            try:
                c = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                c.request("GET", "/readyz")
                if c.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        sys.exit("a replica did not start")

    def route(self, policy):
        """The proxy of the package with this way to choose."""
        if self.proxy:
            self.proxy.kill()
            self.proxy.wait()
        known = {8000: self.front, **{8001 + i: p for i, p in enumerate(self.ports)}, **{9001 + i: p for i, p in enumerate(self.metrics)}}
        text = re.sub(r"\b(800[0-3]|900[1-3])\b", lambda m: str(known[int(m[1])]), (ROOT / "package/haproxy.cfg").read_text())
        balance = {"round-robin": "roundrobin", "least-load": "leastconn", "session": "hdr(x-session)\n    hash-type consistent"}[policy]
        Path(self.folder, "haproxy.cfg").write_text(text.replace("balance leastconn", "balance " + balance))
        self.proxy = subprocess.Popen(["haproxy", "-db", "-q", "-f", str(Path(self.folder, "haproxy.cfg"))])
        for _ in range(100):
            if not socket.socket().connect_ex(("127.0.0.1", self.front)):
                break
            time.sleep(0.1)
        time.sleep(1.5)  # its checks

    def numbers(self, i):
        c = http.client.HTTPConnection("127.0.0.1", self.metrics[i], timeout=30)
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        get = lambda name: int(re.search(rf"^quern_{name} (\d+)$", text, re.M)[1])
        return {n: get(n) for n in ("steps_total", "step_microseconds_total", "host_microseconds_total", "generated_tokens_total",
                                    "prompt_tokens_total", "running", "kv_pages")}

    def stop(self):
        for p in self.replicas + ([self.proxy] if self.proxy else []):
            p.kill()
            p.wait()


def ask(port, ids, tokens, session="", each=None):
    """A stream -> seconds to the first token"""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    body = json.dumps({"model": "m", "prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                       "return_token_ids": True})  # an event for every token, also for one whose text is not whole
    start, first = time.monotonic(), None
    c.request("POST", "/v1/completions", body, {"Content-Type": "application/json", "x-session": session})
    reply = c.getresponse()
    if reply.status != 200:
        raise OSError(f"status {reply.status}: {reply.read()[:200]}")
    while line := reply.readline():
        if line.startswith(b"data: {"):
            made = sum(len(ch.get("token_ids") or ()) for ch in json.loads(line[6:])["choices"])
            first = first or (time.monotonic() - start if made else None)
            if each:
                each(made)
    c.close()
    return first


def words(rng, n):
    return [rng.randrange(100, 20000) for _ in range(n)]


def together(jobs):
    threads = [threading.Thread(target=j) for j in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def decode_cost(fleet, rng, streams, busy, seconds, during=None):
    """Seconds of a step of so many rows, while as many replicas do the same. With `during`, which returns seconds to first
    tokens: these, too, and the steps, the rows of prompts and the seconds of all replicas meanwhile."""
    tokens, stop = 2000, []

    def one(port):
        def each(_):
            if stop:
                raise ConnectionAbortedError
        try:
            ask(port, words(rng, 4), tokens, each=each)
        except ConnectionAbortedError:
            pass
    threads = [threading.Thread(target=one, args=(p,)) for p in fleet.ports[:busy] for _ in range(streams)]
    for t in threads:
        t.start()
    while any(fleet.numbers(i)["running"] < streams for i in range(busy)):
        time.sleep(0.05)
    time.sleep(0.4)

    def window(work):
        """-> steps, rows of prompts, seconds of all replicas together"""
        before, t0 = [fleet.numbers(i) for i in range(busy)], time.monotonic()
        work()
        after, took = [fleet.numbers(i) for i in range(busy)], time.monotonic() - t0
        return [sum(a[k] - b[k] for a, b in zip(after, before)) for k in ("steps_total", "prompt_tokens_total")] + [took * busy]
    steps, _, took = window(lambda: time.sleep(seconds))
    firsts = []
    more = window(lambda: firsts.extend(during())) if during else None
    stop.append(True)
    for t in threads:
        t.join()
    while any(fleet.numbers(i)["running"] for i in range(REPLICAS)):
        time.sleep(0.05)
    step = took / max(1, steps)
    return (step, firsts, *more) if during else step


BESIDE = 32  # tokens of a prompt that is read beside running streams


def prompt_cost(fleet, rng, n):
    """-> seconds to the first token of a prompt of n tokens, while all replicas read one"""
    out = []
    together([lambda p=p: out.append(ask(p, words(rng, n), 1)) for p in fleet.ports])
    return statistics.mean(out)


def measure(fleet, slots, runs):
    """The costs of steps, with all replicas running; medians."""
    rng = random.Random(time.time())
    for i in range(REPLICAS):  # weights are repacked
        ask(fleet.ports[i], words(rng, 64), 8)
    fleet.route("round-robin")
    rows = [n for n in (1, 2, 4, 8) if n <= slots]
    decode, prompt = {n: [] for n in rows}, {n: [] for n in (32, 128, 448)}
    alone, beside = {k: [] for k in range(1, REPLICAS)}, []
    for _ in range(runs):
        for n in rows:
            decode[n].append(decode_cost(fleet, rng, n, REPLICAS, 1.0))
        for n in prompt:
            prompt[n].append(prompt_cost(fleet, rng, n))
        for k in alone:
            alone[k].append(decode_cost(fleet, rng, 2, k, 0.7))
        beside.append(decode_cost(fleet, rng, 2, REPLICAS, 1.0, lambda: [ask(fleet.front, words(rng, BESIDE), 1) for _ in range(12)]))
    d = {n: statistics.median(v) for n, v in decode.items()}
    p = {n: statistics.median(v) for n, v in prompt.items()}
    row = max(1e-6, (p[448] - p[32]) / (448 - 32))
    mixed = statistics.median(min(row, max(row / 4, (took - steps * step) / max(1, rows))) for step, _, steps, rows, took in beside)
    # what is left of a first token beside running streams: the step at hand, half of it on average, then its own
    request = statistics.median(first - 1.5 * step - BESIDE * mixed for step, firsts, *_ in beside for first in firsts)
    return {"decode": [[n, s] for n, s in d.items()], "prompt_row": row, "mixed_row": mixed, "prompt_step": max(0.0, min(d[1], p[32] - 32 * row)),
            "request": max(0.0, request), "chunk": 512, "slots": slots, "kv_tokens": fleet.numbers(0)["kv_pages"] * PAGE,
            "share": [min(1.0, statistics.median(alone[k]) / d[2]) for k in alone] + [1.0]}


def real(fleet, shape, users, policy, seconds, warm, seed):
    """The same users against the proxy -> tokens a second, seconds to the first tokens"""
    start, tokens, firsts, lock = time.monotonic(), [0], [], threading.Lock()
    # texts that no run before has left in a cache
    texts = [words(random.Random(f"{policy} {seed} group {g}"), shape["system"]) for g in range(shape["groups"])]

    def each(made):
        if warm <= time.monotonic() - start < seconds:
            with lock:
                tokens[0] += made

    def client(i):
        u, rng = User(seed * 1000 + i, shape), random.Random(f"{policy} {seed} {i}")
        talk, ids = None, []
        while True:
            group, name, length, out, think = u.next()
            if name != talk:
                talk, ids = name, list(texts[group])
            ids = ids + words(rng, length - len(ids))
            if time.monotonic() - start + think >= seconds:
                return
            time.sleep(think)
            sent = time.monotonic() - start
            first = ask(fleet.front, ids, out, f"{name}", each)
            if sent >= warm and time.monotonic() - start < seconds:
                firsts.append(first)
    together([lambda i=i: client(i) for i in range(users)])
    return tokens[0] / (seconds - warm), firsts


SHAPE = {"groups": 3, "system": 96, "question": 24, "answer": 24, "turns": 4, "think": 0.4}


POLICIES = ("round-robin", "least-load", "session")
FIGURES = {"tokens_a_second": lambda x: x[0], "first_p50": lambda x: quantile(x[1], 0.5), "first_p90": lambda x: quantile(x[1], 0.9)}


def compare(fleet, args):
    """Rounds: costs, then each policy, so that a machine that is slow for a minute is slow for both. -> costs and pairs"""
    costs, pairs, warm = [], {p: [] for p in POLICIES}, args.seconds / 5
    for seed in range(1, args.runs + 1):
        costs.append(measure(fleet, args.slots, 1))
        print(f"round {seed}: {json.dumps(costs[-1])}", flush=True)
        for policy in POLICIES:
            fleet.route(policy)
            got = real(fleet, SHAPE, args.users_here, policy, args.seconds, warm, seed)
            want = simulate(costs[-1], SHAPE, args.users_here, REPLICAS, policy, args.seconds, warm, seed)
            pairs[policy].append((got, want))
    return costs, pairs


def report(pairs):
    rows = []
    for policy, all in pairs.items():
        row = {"policy": policy}
        for name, f in FIGURES.items():
            of = [(f(got), f(want)) for got, want in all]
            row[name] = {"real": statistics.median(g for g, _ in of), "simulated": statistics.median(w for _, w in of),
                         "ratio": statistics.median(w / g for g, w in of)}
        rows.append(row)
        print(f"{policy:12s}" + "".join(f"  {k}: {v['real']:.3f} real, {v['simulated']:.3f} simulated, {v['ratio']:.2f}"
                                        for k, v in row.items() if k != "policy"))
    return rows


def run(args):
    model = args.model or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "quern/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    binary = str(Path(os.environ.get("QUERN_BUILD", ROOT / "build")) / "quern")
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(binary, str(model), args.slots, folder)
        try:
            costs, pairs = compare(fleet, args)
        finally:
            fleet.stop()
    rows = report(pairs)
    near = all(abs(v["ratio"] - 1) <= 0.15 for row in rows for k, v in row.items() if k in ("tokens_a_second", "first_p50"))
    print("tokens a second and first tokens (p50) are within 15% of the real ones" if near else "NOT all within 15% of the real ones")
    if args.json:
        Path(args.json).write_text(json.dumps({"model": str(model), "costs": costs[len(costs) // 2], "shape": SHAPE, "rows": rows}, indent=1))


PLAN = {"groups": 20, "system": 512, "question": 128, "answer": 256, "turns": 6, "think": 20}


def plan(args):
    costs = json.loads(Path(args.costs).read_text()) if args.costs else H200
    costs = costs.get("costs", costs) | {"share": [1]}  # each has a machine of its own
    print("| users | routing | replicas | first token, p50 / p90, s | tok/s | cost an hour | a million tokens |\n|---|---|---|---|---|---|---|")
    for users in map(int, args.users.split(",")):
        for policy in ("round-robin", "least-load", "prefix"):
            count = 1
            while True:
                rate, firsts = simulate(costs, PLAN, users, count, policy, args.seconds * 6, args.seconds * 2, 1)
                if quantile(firsts, 0.9) <= args.first or count >= 64:
                    break
                count += max(1, count // 4)
            print(f"| {users} | {policy} | {count} | {quantile(firsts, 0.5):.2f} / {quantile(firsts, 0.9):.2f} | {rate:.0f} | "
                  f"{count * args.price:.2f} | {count * args.price / (rate * 3600) * 1e6:.2f} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("run", "plan"))
    p.add_argument("--model", help="a GGUF file (default: SmolLM2 of the cache)")
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--seconds", type=float, default=20, help="of a run")
    p.add_argument("--slots", type=int, default=4)
    p.add_argument("--users-here", type=int, default=9, help="users of `run`")
    p.add_argument("--json")
    p.add_argument("--costs", help="of a file that `run` has written")
    p.add_argument("--users", default="50,200,1000")
    p.add_argument("--first", type=float, default=1, help="seconds to the first token, for nine users in ten")
    p.add_argument("--price", type=float, default=3, help="of a replica and an hour")
    args = p.parse_args()
    run(args) if args.what == "run" else plan(args)


if __name__ == "__main__":
    main()
