"""Adapters that are loaded and dropped while the server runs."""
import json
import os
import random
import threading
import time

import numpy as np
import pytest

from server import Server, until
from test_lora import write_adapter

ADMIN, USER = "admin-key-of-the-test", "user-key-of-the-test"
WIDTH, FFN = 576, 1536


def make(folder, seed, rank=8, cols=WIDTH):
    """An adapter for the one layer of the tiny model."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for module, rows, n in ("self_attn.q_proj", WIDTH, cols), ("mlp.down_proj", WIDTH, FFN):
        name = f"model.layers.0.{module}.lora_"
        tensors[f"{name}A.weight"] = rng.normal(0, 0.5, (rank, n))
        tensors[f"{name}B.weight"] = rng.normal(0, 0.5, (rows, rank))
    folder.mkdir(exist_ok=True)
    return write_adapter(folder, tensors, r=rank, lora_alpha=rank)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    for i, name in enumerate(("red", "green", "blue")):
        make(folder / name, i)
    make(folder / "wide", 9, cols=WIDTH + 32)
    make(folder / "high", 9, rank=80)
    (folder / "text").write_text("no adapter")
    (folder / "out").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    return folder


class Adapted(Server):
    def __init__(self, binary, tiny, shelf, *args):
        keys = shelf.parent / "keys"
        for kind, key in ("admin", ADMIN), ("user", USER):
            keys.with_suffix("." + kind).write_text(key + "\n")
        super().__init__(binary, *tiny, "--adapter-dir", shelf, "--device", "cpu", "--slots", "4", "--deterministic",
                         "--admin-key-file", keys.with_suffix(".admin"), "--api-key-file", keys.with_suffix(".user"),
                         "--limit", "adapters=3", "--limit", "adapter-rank=64", *args)

    def call(self, path, body, key=ADMIN, method="POST"):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        status, _, reply = self.request(method, path, body, **headers)
        return status, json.loads(reply)

    def load(self, name, path, **more):
        return self.call("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **more})

    def drop(self, name):
        return self.call("/v1/unload_lora_adapter", {"lora_name": name})

    def say(self, model="tiny", n=8, **more):
        return self.call("/v1/completions", {"model": model, "prompt": "1, 2, 3, 4, 5, 6,", "max_tokens": n, "temperature": 0,
                                             "ignore_eos": True, **more}, USER)

    def text(self, *args, **more):
        status, reply = self.say(*args, **more)
        assert status == 200, reply
        return reply["choices"][0]["text"]

    def names(self):
        return [m["id"] for m in self.call("/v1/models", None, USER, "GET")[1]["data"]]

    def settle(self):
        """Waits until nothing runs."""
        until(lambda: all(f"{name} 0\n" in self.request("GET", "/metrics", Authorization=f"Bearer {USER}")[2].decode()
                          for name in ("quern_running", "quern_waiting")))

    def listed(self):
        status, reply = self.call("/lora-adapters", None, USER, "GET")
        assert status == 200
        return reply


@pytest.fixture(scope="module")
def server(binary, tiny, shelf):
    s = Adapted(binary, tiny, shelf)
    yield s
    assert s.stop() == 0


@pytest.fixture(autouse=True)
def empty(request):
    """Every test begins without adapters."""
    yield
    if "server" in request.fixturenames:
        s = request.getfixturevalue("server")
        for one in s.listed():
            s.drop(one["name"])


def test_come_and_go(server):
    plain = server.text()
    status, reply = server.load("red", "red")
    assert status == 200 and reply["success"]
    models = server.call("/v1/models", None, USER, "GET")[1]["data"]
    assert [(m["id"], m.get("parent")) for m in models] == [("tiny", None), ("red", "tiny")]
    red = server.text("red")
    assert red != plain == server.text() and server.text(lora=[{"name": "red"}]) == server.text(lora="red") == red
    assert server.text(lora=[{"id": reply["id"]}]) == red and server.text(lora=[{"id": reply["id"], "scale": 0}]) == plain
    assert [(a["name"], a["path"], a["scale"]) for a in server.listed()] == [("red", "red", 0)]
    assert server.drop("red")[0] == 200
    assert server.names() == ["tiny"] and server.say("red")[0] == 404
    assert server.say(lora="red")[0] == 400 and server.drop("red")[0] == 404


def test_a_new_file_under_an_old_name(server):
    """Cached pages belong to the file that computed them."""
    texts = {}
    for name in "red", "green", "blue":
        assert server.load("same", name, load_inplace=True)[0] == 200
        texts[name] = server.text("same", n=24)
    assert len(set(texts.values())) == 3
    for name in "green", "red":
        assert server.load("same", name, load_inplace=True)[0] == 200
        assert server.text("same", n=24) == texts[name]
    assert server.load("same", "red")[0] == 400  # the name is taken


def test_scales_of_requests_that_name_none(server):
    """llama.cpp's list: what requests have without asking."""
    plain = server.text()
    for name in "red", "green":
        server.load(name, name)
    red, green = (a["id"] for a in server.listed())
    assert server.text() == plain
    status, reply = server.call("/lora-adapters", [{"id": red, "scale": 1}])
    assert status == 200 and [a["scale"] for a in reply] == [1, 0]
    assert server.text() == server.text("red") and server.text(lora="") == plain
    assert server.call("/lora-adapters", [{"id": green, "scale": 0.5}])[0] == 200
    assert server.text() == server.text(lora="green:0.5")
    for bad in [{"id": 9, "scale": 1}], [{"scale": 1}], {"id": red}, [{"id": red, "scale": 1e9}]:
        assert server.call("/lora-adapters", bad)[0] == 400
    assert server.call("/lora-adapters", [])[0] == 200 and server.text() == plain


@pytest.mark.parametrize("body, status, says", [
    ({"lora_name": "x"}, 400, "lora_path"), ({"lora_path": "red"}, 400, "lora_name"),
    ({"lora_name": "x", "lora_path": "none"}, 404, "no adapter at 'none'"),
    ({"lora_name": "x", "lora_path": "../keys.admin"}, 400, "'..'"), ({"lora_name": "x", "lora_path": "red/../../x"}, 400, "'..'"),
    ({"lora_name": "x", "lora_path": "/etc/passwd"}, 400, "below the folder"), ({"lora_name": "x", "lora_path": "out"}, 400, "link"),
    ({"lora_name": "x", "lora_path": "text"}, 400, "cannot be loaded"), ({"lora_name": "x", "lora_path": "wide"}, 400, "is expected"),
    ({"lora_name": "x", "lora_path": "high"}, 409, "rank 80"), ({"lora_name": "tiny", "lora_path": "red"}, 400, "already"),
    ({"lora_name": "a,b", "lora_path": "red"}, 400, "commas"), ({"lora_name": "x" * 200, "lora_path": "red"}, 400, "127 bytes"),
    ({"lora_name": "x", "lora_path": "red", "model": "nobody"}, 404, "nobody"),
])
def test_refused(server, shelf, body, status, says):
    got, reply = server.call("/v1/load_lora_adapter", body)
    assert (got, says in reply["error"]["message"]) == (status, True), reply
    assert str(shelf) not in reply["error"]["message"]
    assert server.names() == ["tiny"] and server.listed() == []


def test_paths(server, shelf):
    """By a path of the folder, as vLLM's clients write it."""
    assert server.load("red", str(shelf / "red"))[0] == 200
    assert server.load("file", "green/adapter_model.safetensors")[0] == 200
    assert [a["path"] for a in server.listed()] == ["red", "green/adapter_model.safetensors"]


def test_how_many(server):
    assert [server.load(f"n{i}", "red")[0] for i in range(4)] == [200, 200, 200, 409]
    assert server.drop("n1")[0] == 200
    until(lambda: server.load("n3", "green")[0] == 200)  # the place is free once the engine has seen it
    assert server.text("n3") != server.text("n0")


def test_who_may(server):
    for path, body in ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "red"}), ("/v1/unload_lora_adapter", {"lora_name": "x"}), \
            ("/lora-adapters", []):
        assert server.call(path, body, None)[0] == 401
        assert server.call(path, body, USER)[0] == 403
    assert server.call("/lora-adapters", None, None, "GET")[0] == 401


def test_metrics_and_reload(server):
    """A model that was unloaded has its adapters again."""
    server.load("red", "red")
    server.load("green", "green")
    red, green = server.text("red"), server.text("green")
    assert server.call("/lora-adapters", [{"name": "green", "scale": 1}])[0] == 200
    assert server.call("/models/unload", {"model": "tiny"})[0] == 200
    until(lambda: server.call("/v1/models", None, USER, "GET")[1]["data"][0]["status"]["value"] == "unloaded")
    assert server.names() == ["tiny", "red", "green"]
    assert server.text("red") == red and server.text() == green
    assert server.call("/models/unload", {"model": "tiny"})[0] == 200
    assert server.drop("red")[0] == 200 and server.text() == green and server.say("red")[0] == 404


def test_without_a_folder(binary, tiny):
    s = Server(binary, *tiny, "--device", "cpu")
    try:
        status, _, reply = s.request("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "y"})
        assert status == 501 and b"--adapter-dir" in reply
        assert s.request("POST", "/v1/unload_lora_adapter", {"lora_name": "x"})[0] == 404
    finally:
        assert s.stop() == 0


def test_wrong_folder(quern, tiny, tmp_path):
    (tmp_path / "file").write_text("")
    for folder, says in ("none", "No such file"), ("file", "not a folder"):
        r = quern("serve", *tiny, "--adapter-dir", tmp_path / folder)
        assert r.code == 64 and says in r.err


def storm(server, seconds, clients, loaders):
    """Random clients: each answer is the one of its adapter, or says that it is gone."""
    want = {"tiny": server.text(n=12)}
    for name in "red", "green", "blue":
        assert server.load(name, name)[0] == 200
        want[name] = server.text(name, n=12)
        assert server.drop(name)[0] == 200
    assert len(set(want.values())) == 4
    over, wrong, seen = time.time() + seconds, [], {"answers": 0, "loads": 0, "drops": 0, "gone": 0}
    lock = threading.Lock()

    def count(kind):
        with lock:
            seen[kind] += 1

    def client(seed):
        rng = random.Random(seed)
        while time.time() < over or not seen["answers"]:
            name = rng.choice(list(want))
            status, reply = server.say(name, n=12)
            if status == 200:
                if reply["choices"][0]["text"] != want[name]:
                    wrong.append((name, reply))
                count("answers")
            elif status in (400, 404) and name != "tiny":
                count("gone")
            else:
                wrong.append((status, reply))

    def loader(seed):
        rng = random.Random(seed)
        while time.time() < over or not (seen["loads"] and seen["drops"]):
            name = rng.choice(list(want)[1:])
            if rng.random() < 0.5:
                status = server.load(name, name, load_inplace=rng.random() < 0.3)[0]
                known = {200: "loads", 400: None, 409: None}
            else:
                status, known = server.drop(name)[0], {200: "drops", 404: None}
            if status not in known:
                wrong.append(status)
            elif known[status]:
                count(known[status])

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    threads += [threading.Thread(target=loader, args=(100 + i,)) for i in range(loaders)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[:3]
    server.settle()
    return seen


def test_storm(server):
    storm(server, 1, 3, 2)


@pytest.mark.slow
def test_long_storm(server):
    """Under the sanitizers' build: QUERN_BUILD=build-asan."""
    seen = storm(server, float(os.environ.get("QUERN_STORM", 120)), 4, 2)
    assert seen["answers"] > 100 and seen["loads"] > 100 and seen["drops"] > 50, seen
