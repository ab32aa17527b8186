"""KV events: a subscriber rebuilds the prefix tree of a random run, through evictions, the disk, adapters and unloading."""
import os
import random
import re
import time

import msgpack
import numpy as np
import pytest
import zmq

from server import until
from test_fleet import Replica
from test_lora import write_adapter

PAGE = 32


class Tree:
    """What the events of a topic say is cached."""

    def __init__(self):
        self.blocks = {}  # hash -> (parent, tokens, adapter)
        self.next, self.seen, self.longest, self.adapters = 0, [], 0, set()

    def take(self, number, message):
        assert number == self.next
        self.next += 1
        stamp, events, rank = message
        assert abs(stamp - time.time()) < 3600 and rank == 0 and events
        for kind, *rest in events:
            self.seen.append(kind)
            getattr(self, kind)(*rest)

    def BlockStored(self, hashes, parent, tokens, size, adapter):
        assert size == PAGE and len(tokens) == len(hashes) * PAGE
        self.longest = max(self.longest, len(hashes))
        self.adapters.add(adapter)
        for i, h in enumerate(hashes):
            assert h not in self.blocks and (parent is None or parent in self.blocks)
            self.blocks[h] = parent, tuple(tokens[i * PAGE:(i + 1) * PAGE]), adapter
            parent = h

    def BlockRemoved(self, hashes):
        for h in hashes:
            assert all(parent != h for parent, _, _ in self.blocks.values()), "its children are still there"
            del self.blocks[h]

    def AllBlocksCleared(self):
        self.blocks = {}

    def known(self, ids, adapter=None):
        """How many tokens of a text are cached, in whole pages."""
        at = {(parent, tokens, of): h for h, (parent, tokens, of) in self.blocks.items()}
        n, parent = 0, None
        while (parent := at.get((parent, tuple(ids[n:n + PAGE]), adapter))):
            n += PAGE
        return n


class Subscriber:
    def __init__(self, server, topic=""):
        line = next(x for x in server.log if "KV events are at" in x)
        self.at, _, self.again = re.search(r"at (tcp://\S+?)(, and again at (\S+))?$", line.strip()).groups()
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.subscribe(topic)
        self.socket.connect(self.at.replace("0.0.0.0", "127.0.0.1"))
        self.trees = {}

    def read(self, wait=0):
        """All that has come; waits for the first of it. What was missed is asked for."""
        while self.socket.poll(wait):
            topic, number, payload = self.socket.recv_multipart()
            tree, number = self.trees.setdefault(topic.decode(), Tree()), int.from_bytes(number, "big")
            if number > tree.next:
                self.catch_up(topic)
            if number == tree.next:  # else it was replayed
                tree.take(number, msgpack.unpackb(payload))
            wait = 0

    def catch_up(self, topic):
        tree = self.trees.setdefault(topic.decode(), Tree())
        for number, message in self.replay(tree.next, topic):
            tree.take(number, message)

    def replay(self, start=0, topic=None):
        """-> [(number, message)]"""
        with zmq.Context.instance().socket(zmq.DEALER) as s:
            s.connect(self.again.replace("0.0.0.0", "127.0.0.1"))
            s.send_multipart([b"", start.to_bytes(8, "big")] + ([topic] if topic else []))
            out = []
            while True:
                assert s.poll(20000), "no reply"
                _, number, payload = s.recv_multipart()
                if number == b"\xff" * 8:
                    assert not payload
                    return out
                out.append((int.from_bytes(number, "big"), msgpack.unpackb(payload)))


NAME, TOPIC = "tiny", "kv@pod-7@tiny"
FLAGS = ["--kv-events", "tcp://127.0.0.1:*", "--kv-events-host", "pod-7"]


@pytest.fixture
def replica(binary, tiny, tmp_path):
    """A replica with few pages, a disk for prefixes and an adapter."""
    rng = np.random.default_rng(7)
    adapter = write_adapter(tmp_path, {"model.layers.0.self_attn.q_proj.lora_A.weight": rng.normal(0, 0.2, (8, 576)),
                                       "model.layers.0.self_attn.q_proj.lora_B.weight": rng.normal(0, 0.2, (576, 8))},
                            r=8, lora_alpha=8)
    args = [x if x != "2048" else "512" for x in tiny]
    s = Replica(binary, *args, *FLAGS, "--kv-events-replay", "tcp://127.0.0.1:*", "--slots", "2", "--cache-dir", tmp_path / "cache",
                "--lora", f"poet={adapter}")
    yield s
    s.kill()


def texts(rng, count):
    """Prompts that share beginnings, as conversations do."""
    made = []
    for _ in range(count):
        text = list(rng.choice(made))[:rng.randrange(400)] if made and rng.random() < 0.7 else []
        while len(text) < 20 or (rng.random() < 0.97 and len(text) < 440):
            text.append(rng.randrange(3, 2000))
        made.append(text)
    return made


def agrees(sub, server):
    """The subscriber's tree has as many pages as the server's, when nothing runs."""
    server.settle()

    def same():
        sub.read(50)
        for topic in sub.trees:
            sub.catch_up(topic.encode())
        return sum(len(t.blocks) for t in sub.trees.values()) == server.metric("quern_prefix_pages")
    until(same)


def test_a_subscriber_rebuilds_the_tree(replica):
    rng = random.Random(5)
    sub = Subscriber(replica)
    until(lambda: sub.catch_up(TOPIC.encode()) or sub.trees[TOPIC].seen)  # what came before the subscription
    tree = sub.trees[TOPIC]
    assert tree.seen[0] == "AllBlocksCleared"
    asked = {}
    for i, ids in enumerate(texts(rng, 40)):
        poet = rng.random() < 0.2
        if not poet:
            asked[i] = ids
        agrees(sub, replica) if i % 10 == 0 else None
        expected = tree.known(ids[:-1], 1 if poet else None) if i % 10 == 0 else None
        reply = replica.ask("/v1/completions", {"prompt": ids, "max_tokens": rng.randrange(1, 12), "model": "poet" if poet else NAME})
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        if expected is not None:  # the disk may have more than the tree
            assert cached >= expected
    agrees(sub, replica)
    assert len(tree.blocks) > 8 and tree.adapters == {None, 1}
    assert "BlockRemoved" in tree.seen and tree.longest > 3
    assert replica.ask("/models/unload", {})["unloaded"] == 1  # and what was cached goes with it
    until(lambda: (sub.read(50), not tree.blocks)[1])
    assert tree.seen[-1] == "AllBlocksCleared"
    ids = max(asked.values(), key=len)
    reply = replica.ask("/v1/completions", {"prompt": ids, "max_tokens": 1})  # loaded again, with pages from the disk
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] >= PAGE
    agrees(sub, replica)
    assert tree.known(ids[:-1]) == (len(ids) - 1) // PAGE * PAGE
    late = Subscriber(replica)  # a subscriber that comes late, or has missed something
    late.catch_up(TOPIC.encode())
    assert late.trees[TOPIC].blocks == tree.blocks
    assert [n for n, _ in late.replay(tree.next - 2)] == [tree.next - 2, tree.next - 1]
    assert late.replay(0, TOPIC.encode()) == late.replay(0) and late.replay(0, b"kv@other") == []
    assert replica.stop() == 0
    until(lambda: (sub.read(50), not tree.blocks)[1])  # a replica that ends says so


def test_bad_requests_for_a_replay_change_nothing(replica):
    sub = Subscriber(replica)
    until(lambda: sub.replay())
    before = sub.replay()
    with zmq.Context.instance().socket(zmq.DEALER) as s:
        s.connect(sub.again)
        for frames in ([b""], [b"", b"short"], [b"x", bytes(8)], [b"", bytes(8), b"t", b"more", b"still more"], [b"", bytes(9)],
                       [b"", bytes(8), b"t" * 5000], [b"", b"y" * 100000]):
            s.send_multipart(frames)
    assert sub.replay() == before
    replica.ask("/v1/completions", {"prompt": [5] * 70, "max_tokens": 1})
    sub.catch_up(TOPIC.encode())
    agrees(sub, replica)


def test_a_publisher_that_dies_is_no_reason_to_stop(replica):
    children = [p for p in os.listdir("/proc") if p.isdigit() and os.path.exists(f"/proc/{p}/comm")
                and open(f"/proc/{p}/comm").read().strip() == "quern-events"
                and f"PPid:\t{replica.process.pid}\n" in open(f"/proc/{p}/status").read()]
    assert len(children) == 1
    os.kill(int(children[0]), 9)
    for i in range(3):
        replica.ask("/v1/completions", {"prompt": [5 + i] * 70, "max_tokens": 1})
    assert replica.stop() == 0


@pytest.mark.parametrize("flags, says", [
    (["--kv-events", "ipc:///tmp/x"], "takes an endpoint such as tcp://*:5557"),
    (["--kv-events", "tcp://*"], "takes an endpoint"),
    (["--kv-events", "tcp://no.such.interface.example.:*"], "cannot publish events"),
    (["--kv-events-host", "x"], "need --kv-events"),
    (["--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "udp://x:1"], "--kv-events-replay takes"),
])
def test_bad_endpoints(quern, tiny, flags, says):
    got = quern("serve", *tiny, "--port", "0", *flags)
    assert got.code in (64, 75) and says in got.err, got.err


def test_connects_to_a_router(binary, tiny):
    """Where a router listens, replicas connect to it."""
    with zmq.Context.instance().socket(zmq.SUB) as s:
        s.subscribe("kv@")
        port = s.bind_to_random_port("tcp://127.0.0.1")
        r = Replica(binary, *tiny, "--kv-events", f"tcp://127.0.0.1:{port}")
        until(lambda: (r.ask("/v1/completions", {"prompt": [int(time.time() * 100) % 1000 + 3] * 40, "max_tokens": 1}), s.poll(100))[1])
        topic, number, payload = s.recv_multipart()
        assert re.fullmatch(rb"kv@[^@]+@tiny", topic) and len(number) == 8 and msgpack.unpackb(payload)[2] == 0
        r.kill()
