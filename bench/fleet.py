#!/usr/bin/env python3
"""How many replicas for how many users: a simulation of replicas from the measured costs of their steps.

    bench/fleet.py run [--model MODEL.gguf] [--runs 5] [--seconds 16] [--json FILE]
    bench/fleet.py replay --json FILE
    bench/fleet.py plan [--costs FILE] [--users 50,200,1000] [--first 1] [--price 3]

`run` starts three replicas behind HAProxy (package/haproxy.cfg) on this machine, measures what their steps cost with all three
running on the same cores, and then compares users of the simulation with real ones: tokens a second and the time to the first
token, by round-robin, by least load and by session, medians over the runs. The file has all samples; `replay` makes the
costs and the simulation from it again. `plan` needs no server: it finds the fewest replicas that give nine users in ten their
first token in time. Costs are those of a JSON file as `run` writes it, or of an H200 with an 8B model (doc/speed-gpu.md).

A replica is what src/run/engine_step.c does: every step has a row for each stream that generates, and a chunk of prompts that
delays them by at most the gap; known prefixes are not read again, and a prompt waits for another one that reads the same
pages. Replicas that share cores slow each other down as measured.
"""
import argparse
import hashlib
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
        "prompt_row": 1 / 30638, "prompt_step": 0.002, "request": 0.003, "chunk": 1024, "slots": 128, "kv_tokens": 900000, "share": [[1, 1]]}


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
        name = hashlib.md5(f"{self.seed} {self.number}".encode()).hexdigest()[:8]
        return self.group, name, self.length, out, r.expovariate(1 / s["think"])


# ---- the simulation ----

class Job:
    def __init__(self, user, now, asked, shared):
        self.user, self.sent, self.shared = user, now, shared
        self.group, self.talk, self.length, self.left, _ = asked
        self.pending, self.first, self.made = self.length, None, 0

    def read(self):
        return self.length - self.pending


class Replica:
    def __init__(self, costs):
        self.costs, self.queue, self.running = costs, deque(), []
        self.known, self.held = OrderedDict(), 0  # group or conversation -> tokens, the least recently used first
        self.row = costs["prompt_row"]
        self.step = None  # (jobs that generate, [(job, rows)])
        self.cost, self.left, self.began = (0, 0), 0.0, 0.0  # of the step; the part of it that is left

    def load(self):
        return len(self.queue) + len(self.running)

    def match(self, job):
        return min(job.length - 1, max(self.known.get(job.talk, 0), self.known.get(job.group, 0)))

    def keep(self, key, tokens):
        self.held += tokens - self.known.pop(key, 0)
        self.known[key] = tokens
        while self.held > self.costs["kv_tokens"] and len(self.known) > 1:
            self.held -= self.known.popitem(last=False)[1]

    def seconds(self, writers, parts):
        """Of a step with a row for each of the writers, and parts of prompts: those of the first, and those of the second. Every row
        also reads the keys before it."""
        c, rows = self.costs, sum(n for _, n in parts)
        decode = c.get("decode_key", 0) * sum(j.length + j.made for j in writers)
        prompt = c.get("prompt_key", 0) * sum(n * (j.read() + n / 2) for j, n in parts)
        if writers:  # weights are read for both
            return decode + between(c["decode"], len(writers)), prompt + rows * c.get("mixed_row", c["prompt_row"])
        return 0, prompt + (between(c["prompt"], rows) if "prompt" in c else c["prompt_step"] + rows * c["prompt_row"])

    def takes(self, busy):
        """Seconds of the whole step while so many replicas are busy."""
        share = self.costs["share"][min(busy, len(self.costs["share"])) - 1]
        return self.cost[0] * share[0] + self.cost[1] * share[1]

    def waits(self, job, older):
        """Whether an older request reads the page that this one needs next."""
        want = job.read() + PAGE
        return not job.read() % PAGE and want <= job.shared and any(o.group == job.group and o.read() < want for o in older)

    def compose(self, now):
        """Begins a step; False: there is nothing to do."""
        while self.queue and len(self.running) < self.costs["slots"]:
            job = self.queue.popleft()
            job.pending = job.length - self.match(job)
            self.running.append(job)
        if not self.running:
            return False
        writers = [j for j in self.running if not j.pending]
        readers = []
        for j in self.running:
            if j.pending:
                if not j.read() % PAGE:
                    j.pending = min(j.pending, j.length - self.match(j))
                if not self.waits(j, readers):
                    readers.append(j)
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
        self.cost, self.left, self.began = self.seconds(writers, parts), 1.0, now
        self.step = writers, parts
        return True

    def finish(self, now):
        """-> the tokens of the step, and the jobs that have ended"""
        writers, parts = self.step
        self.step, made, ended, rows = None, 0, [], sum(n for _, n in parts)
        if rows >= CHUNK_LEAST:
            self.row = 0.7 * self.row + 0.3 * (now - self.began) / (rows + len(writers))
        for job, n in parts:
            job.pending -= n
            self.keep(job.group, max(self.known.get(job.group, 0), min(job.shared, job.read() // PAGE * PAGE)))
            if not job.pending:
                self.keep(job.group, job.shared)
                self.keep(job.talk, job.length)
                job.first = now
                writers = writers + [job]
        for job in writers:
            job.left -= 1
            job.made += 1
            made += 1
            if not job.left:
                self.running.remove(job)
                ended.append(job)
        return made, ended


def between(table, rows):
    """Seconds by rows, between those of the table or in the line of its last two."""
    for (r0, s0), (r1, s1) in zip(table, table[1:]):
        if rows <= r1:
            return s0 + (s1 - s0) * (rows - r0) / (r1 - r0)
    (r0, s0), (r1, s1) = table[-2] if len(table) > 1 else (0, table[-1][1]), table[-1]
    return s1 + (rows - r1) * max(0, (s1 - s0) / (r1 - r0))


def hash_sdbm(text):
    """What HAProxy takes modulo the number of servers."""
    h = 0
    for c in text.encode():
        h = (c + (h << 6) + (h << 16) - h) & 0xffffffff
    return h


def choose(policy, replicas, job, state):
    if policy == "session":
        return replicas[hash_sdbm(job.talk) % len(replicas)]
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
        busy = [r for r in replicas if r.step or r.compose(now)]
        takes = [r.takes(len(busy)) for r in busy]
        until = min([arrivals[0][0] if arrivals else seconds] + [now + r.left * t for r, t in zip(busy, takes)])
        for r, t in zip(busy, takes):
            r.left -= (until - now) / t
        now = until
        for r in busy:
            if r.left > 1e-9:
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


COUNTERS = ("steps_total", "step_microseconds_total", "host_microseconds_total", "generated_tokens_total", "prompt_tokens_total",
            "cached_tokens_total")


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
        balance = {"round-robin": "roundrobin", "least-load": "leastconn", "session": "hdr(x-session)"}[policy]
        text = text.replace("balance leastconn", f"balance {balance}\n    http-response set-header x-replica %s")
        Path(self.folder, "haproxy.cfg").write_text(text)
        self.proxy = subprocess.Popen(["haproxy", "-db", "-q", "-f", str(Path(self.folder, "haproxy.cfg"))])
        for _ in range(100):
            if not socket.socket().connect_ex(("127.0.0.1", self.front)):
                break
            time.sleep(0.1)
        time.sleep(1.5)  # its checks

    def find_names(self, rng):
        """A session of each replica."""
        found = {}
        for i in range(100):
            replica = ask(self.front, words(rng, 64), 8, f"s{i}")[1]  # weights are repacked
            found.setdefault(replica, f"s{i}")
            if len(found) == REPLICAS:
                break
        self.names = [found[r] for r in ("one", "two", "three")]

    def numbers(self, i):
        c = http.client.HTTPConnection("127.0.0.1", self.metrics[i], timeout=30)
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        return {n: int(re.search(rf"^quern_{n} (\d+)$", text, re.M)[1]) for n in COUNTERS + ("running", "kv_pages")}

    def processor(self):
        """Seconds of processor that all processes have had, and those of this benchmark"""
        pids = [p.pid for p in self.replicas] + ([self.proxy.pid] if self.proxy else []) + [os.getpid()]
        own = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        line = [int(x) for x in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        tick = os.sysconf("SC_CLK_TCK")
        return (sum(line) - line[3] - line[4]) / tick, sum(int(f[11]) + int(f[12]) for f in own) / tick

    def stop(self):
        for p in self.replicas + ([self.proxy] if self.proxy else []):
            p.kill()
            p.wait()


def ask(port, ids, tokens, session="", each=None):
    """A stream -> seconds to the first token, and the replica's name"""
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
    return first, reply.headers["x-replica"]


def words(rng, n):
    return [rng.randrange(100, 20000) for _ in range(n)]


def together(jobs):
    threads = [threading.Thread(target=j) for j in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


class Load:
    """Threads that ask until the block ends: streams that generate, prompts of so many tokens one after the other, or both, at
    each of the first `busy` replicas. All prompts begin with `known` tokens that are cached."""

    def __init__(self, fleet, rng, busy, streams=0, prompt=0, known=0):
        self.fleet, self.busy, self.streams, self.over, self.firsts = fleet, busy, streams, False, []
        self.known = words(rng, known)
        together([lambda i=i: ask(fleet.front, self.known + words(rng, 4), 1, fleet.names[i]) for i in range(busy) if known])
        jobs = [lambda i=i: self.stream(i, self.known + words(rng, 4)) for i in range(busy) for _ in range(streams)]
        jobs += [lambda i=i, r=random.Random(rng.random()): self.prompts(i, r, prompt) for i in range(busy) if prompt]
        self.threads = [threading.Thread(target=j) for j in jobs]

    def __enter__(self):
        for t in self.threads:
            t.start()
        while any(self.fleet.numbers(i)["running"] < self.streams for i in range(self.busy)):
            time.sleep(0.05)
        time.sleep(SETTLE)
        return self

    def __exit__(self, *_):
        self.over = True
        for t in self.threads:
            t.join()
        while any(self.fleet.numbers(i)["running"] for i in range(REPLICAS)):
            time.sleep(0.02)

    def stream(self, i, ids):
        def each(_):
            if self.over:
                raise ConnectionAbortedError
        try:
            ask(self.fleet.front, ids, 2000, self.fleet.names[i], each)
        except ConnectionAbortedError:
            pass

    def prompts(self, i, rng, n):
        while not self.over:
            self.firsts.append(ask(self.fleet.front, self.known + words(rng, n), 1, self.fleet.names[i])[0])

    def window(self, seconds):
        """-> what the counters of the busy replicas say of some seconds, summed, and the seconds of all of them"""
        before, t0 = [self.fleet.numbers(i) for i in range(self.busy)], time.monotonic()
        time.sleep(seconds)
        after, took = [self.fleet.numbers(i) for i in range(self.busy)], time.monotonic() - t0
        sums = {k: sum(a[k] - b[k] for a, b in zip(after, before)) for k in COUNTERS}
        return {"steps": sums["steps_total"], "seconds": sums["step_microseconds_total"] / 1e6, "prompt": sums["prompt_tokens_total"],
                "all": took * self.busy}


PROMPTS = (16, 48, 120)  # tokens of the prompts that are measured
BESIDE = 24  # and of those beside running streams
KNOWN = 256  # tokens of a text that goes on
SETTLE = 0.3  # seconds before a window


def measure(fleet, rng, slots):
    """Samples of steps: all replicas generate, read prompts, do both; one or two of them generate or read."""
    out = {"decode": {}, "prompt": {}, "firsts": {}, "alone": {}, "alone_prompt": {}, "slots": slots,
           "kv_pages": fleet.numbers(0)["kv_pages"]}
    for n in range(1, slots + 1):
        with Load(fleet, rng, REPLICAS, streams=n) as load:
            out["decode"][str(n)] = load.window(0.8)
    for n in PROMPTS:
        with Load(fleet, rng, REPLICAS, prompt=n) as load:
            out["prompt"][str(n)] = load.window(1.2)
        out["firsts"][str(n)] = load.firsts
    with Load(fleet, rng, REPLICAS, streams=2, prompt=BESIDE) as load:
        out["beside"] = load.window(1.5)
    with Load(fleet, rng, REPLICAS, streams=2, known=KNOWN) as load:
        out["decode_known"] = load.window(0.8)
    with Load(fleet, rng, REPLICAS, prompt=PROMPTS[1], known=KNOWN) as load:
        out["prompt_known"] = load.window(1.2)
    for k in range(1, REPLICAS):
        with Load(fleet, rng, k, streams=2) as load:
            out["alone"][str(k)] = load.window(0.7)
        with Load(fleet, rng, k, prompt=PROMPTS[1]) as load:
            out["alone_prompt"][str(k)] = load.window(1)
    return out


def derive(rounds):
    """The costs of the simulation from the samples of all rounds: medians."""
    median = lambda f: statistics.median(f(r) for r in rounds)
    each = lambda kind, f: {n: median(lambda r: f(r[kind][n])) for n in rounds[0][kind]}
    whole = lambda w: w["all"] / w["steps"]
    step = lambda w: w["seconds"] / w["steps"]
    decode, prompt, middle = each("decode", whole), each("prompt", step), str(PROMPTS[1])
    two = decode["2"]
    # keys: what a row takes longer after a text of KNOWN tokens
    decode_key = max(0, median(lambda r: whole(r["decode_known"])) - two) / (2 * KNOWN)
    prompt_key = max(0, median(lambda r: step(r["prompt_known"])) - prompt[middle]) / (PROMPTS[1] * KNOWN)
    # without those of the samples' own texts
    own = lambda r, n: 4 + (SETTLE / whole(r["decode"][n]) + r["decode"][n]["steps"] / REPLICAS / 2)
    bare = {n: s - decode_key * int(n) * median(lambda r: own(r, n)) for n, s in decode.items()}
    rows = [[int(n), s - prompt_key * int(n) ** 2 / 2] for n, s in prompt.items()]
    row = (rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0])
    mixed = median(lambda r: (r["beside"]["seconds"] - r["beside"]["steps"] * two) / max(1, r["beside"]["prompt"]))
    # a prompt that is read alone: what is left of its first token is the way there and back
    shortest = str(PROMPTS[0])
    request = statistics.median(x - prompt[shortest] for r in rounds for x in r["firsts"][shortest])
    return {"decode": [[int(n), s] for n, s in bare.items()], "prompt": rows, "prompt_row": row, "decode_key": decode_key, "prompt_key": prompt_key,
            "mixed_row": min(1.5 * row, max(row / 2, mixed)), "request": max(0.0, request), "chunk": 512, "slots": rounds[0]["slots"],
            "kv_tokens": rounds[0]["kv_pages"] * PAGE,
            "share": [[min(1.0, d / two), min(1.0, p / prompt[middle])]
                      for d, p in zip(each("alone", whole).values(), each("alone_prompt", step).values())] + [[1, 1]]}


def real(fleet, shape, users, policy, seconds, seed):
    """The users against the proxy -> when tokens came, what the replicas counted, and of each request: user, replica, when it was
    sent, seconds to the first token and to the end, tokens of the prompt and of the answer, conversation"""
    start, tokens, requests = time.monotonic(), [], []
    before = [fleet.numbers(i) for i in range(REPLICAS)]
    # texts that no run before has left in a cache
    texts = [words(random.Random(f"{policy} {seed} group {g}"), shape["system"]) for g in range(shape["groups"])]

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
            first, replica = ask(fleet.front, ids, out, name, lambda made: tokens.extend([time.monotonic() - start] * made))
            requests.append([i, replica, sent, first, time.monotonic() - start - sent, length, out, name])
    together([lambda i=i: client(i) for i in range(users)])
    counters = [{k: a[k] - b[k] for k in COUNTERS} for a, b in zip([fleet.numbers(i) for i in range(REPLICAS)], before)]
    return {"tokens": tokens, "requests": requests, "counters": counters}


def figures(got, seconds, warm):
    """-> tokens a second, seconds to the first tokens, as `simulate`"""
    return (sum(warm <= t < seconds for t in got["tokens"]) / (seconds - warm),
            [r[3] for r in got["requests"] if r[2] >= warm and r[2] + r[4] < seconds])


SHAPE = {"groups": 3, "system": 96, "question": 24, "answer": 24, "turns": 4, "think": 0.4}


POLICIES = ("round-robin", "least-load", "session")
FIGURES = {"tokens_a_second": lambda x: x[0], "first_p50": lambda x: quantile(x[1], 0.5), "first_p90": lambda x: quantile(x[1], 0.9)}


def rounds(fleet, args):
    """Rounds of samples, then each policy: a machine that is slow for a minute is slow for both."""
    rng, out = random.Random(time.time()), []
    fleet.route("session")
    fleet.find_names(rng)
    for seed in range(1, args.runs + 1):
        fleet.route("session")
        before = fleet.processor()
        one = {"seed": seed, "samples": measure(fleet, rng, args.slots), "runs": {}}
        for policy in POLICIES:
            fleet.route(policy)
            one["runs"][policy] = real(fleet, SHAPE, args.users_here, policy, args.seconds, seed)
        after = fleet.processor()
        total, own = (b - a for a, b in zip(before, after))
        one["others"] = max(0.0, total - own) / total
        print(f"round {seed}: other processes had {one['others']:.0%} of the processor; {json.dumps(derive([one['samples']]))}", flush=True)
        out.append(one)
    return out


def compare(data):
    """-> for each policy the real and the simulated figures of every round"""
    seconds, warm = data["seconds"], data["seconds"] / 5
    pairs, costs = {p: [] for p in POLICIES}, derive([one["samples"] for one in data["rounds"]])
    for one in data["rounds"]:
        for policy, got in one["runs"].items():
            want = simulate(costs, data["shape"], data["users"], REPLICAS, policy, seconds, warm, one["seed"])
            pairs[policy].append((figures(got, seconds, warm), want))
    return pairs


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


def conclude(data):
    rows = report(compare(data))
    near = all(abs(v["ratio"] - 1) <= 0.15 for row in rows for k, v in row.items() if k in ("tokens_a_second", "first_p50"))
    print("tokens a second and first tokens (p50) are within 15% of the real ones" if near else "NOT all within 15% of the real ones")
    return rows


def run(args):
    model = args.model or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "quern/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    binary = str(Path(os.environ.get("QUERN_BUILD", ROOT / "build")) / "quern")
    data = {"model": str(model), "shape": SHAPE, "users": args.users_here, "seconds": args.seconds}
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(binary, str(model), args.slots, folder)
        try:
            data["rounds"] = rounds(fleet, args)
        finally:
            fleet.stop()
    data["costs"] = derive([one["samples"] for one in data["rounds"]])
    data["rows"] = conclude(data)
    if args.json:
        Path(args.json).write_text(json.dumps(data))


PLAN = {"groups": 20, "system": 512, "question": 128, "answer": 256, "turns": 6, "think": 20}


def plan(args):
    costs = json.loads(Path(args.costs).read_text()) if args.costs else H200
    costs = costs.get("costs", costs) | {"share": [[1, 1]]}  # each has a machine of its own
    print("| users | routing | replicas | first token, p50 / p90, s | tok/s | cost an hour | a million tokens |\n|---|---|---|---|---|---|---|")
    for users in map(int, args.users.split(",")):
        for policy in ("round-robin", "least-load", "prefix"):
            count = 1
            while True:
                rate, firsts = simulate(costs, PLAN, users, count, policy, 120, 40, 1)
                if quantile(firsts, 0.9) <= args.first or count >= 64:
                    break
                count += max(1, count // 4)
            print(f"| {users} | {policy} | {count} | {quantile(firsts, 0.5):.2f} / {quantile(firsts, 0.9):.2f} | {rate:.0f} | "
                  f"{count * args.price:.2f} | {count * args.price / (rate * 3600) * 1e6:.2f} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("run", "replay", "plan"))
    p.add_argument("--model", help="a GGUF file (default: SmolLM2 of the cache)")
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--seconds", type=float, default=16, help="of a run")
    p.add_argument("--slots", type=int, default=4)
    p.add_argument("--users-here", type=int, default=9, help="users of `run`")
    p.add_argument("--json")
    p.add_argument("--costs", help="of a file that `run` has written")
    p.add_argument("--users", default="50,200,1000")
    p.add_argument("--first", type=float, default=1, help="seconds to the first token, for nine users in ten")
    p.add_argument("--price", type=float, default=3, help="of a replica and an hour")
    args = p.parse_args()
    if args.what == "replay":
        conclude(json.loads(Path(args.json).read_text()))
    else:
        run(args) if args.what == "run" else plan(args)


if __name__ == "__main__":
    main()
