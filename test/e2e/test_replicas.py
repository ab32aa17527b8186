"""Three replicas behind nginx or HAProxy, with the configurations of package/: one is killed and one drained under load."""
import http.client
import json
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from server import until

PACKAGE = Path(__file__).resolve().parents[2] / "package"
CLIENTS, SECONDS, TOKENS = 10, 14, (5, 40, 120)


def free_ports(n):
    held = [socket.socket() for _ in range(n)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


class Fleet:
    """Three replicas and a proxy in front of them."""

    def __init__(self, binary, model, proxy, folder):
        self.binary, self.model, self.folder = binary, model, folder
        ports = free_ports(7)
        self.port, self.ports, self.metrics = ports[0], ports[1:4], ports[4:]
        self.replicas = [None] * 3
        for i in range(3):
            self.start(i)
        for i in range(3):
            until(lambda: self.ready(i))
        self.proxy = self.front(proxy)
        until(lambda: not socket.socket().connect_ex(("127.0.0.1", self.port)))

    def start(self, i):
        self.replicas[i] = subprocess.Popen(
            [str(self.binary), "serve", *map(str, self.model), "--port", str(self.ports[i]), "--metrics-port", str(self.metrics[i]),
             "--slots", "4", "--no-state", "--threads", "1"], stderr=subprocess.DEVNULL)

    def ready(self, i):
        try:
            c = http.client.HTTPConnection("127.0.0.1", self.metrics[i], timeout=10)
            c.request("GET", "/readyz")
            return c.getresponse().status == 200
        except OSError:
            return False

    def front(self, proxy):
        """The file of the package, with the ports of this test."""
        known = {8000: self.port, **{8001 + i: p for i, p in enumerate(self.ports)}, **{9001 + i: p for i, p in enumerate(self.metrics)}}
        name = "nginx.conf" if proxy == "nginx" else "haproxy.cfg"
        text = re.sub(r"\b(800[0-3]|900[1-3])\b", lambda m: str(known[int(m[1])]), (PACKAGE / name).read_text())
        (self.folder / name).write_text(text)
        if proxy == "haproxy":
            return subprocess.Popen(["haproxy", "-db", "-q", "-f", self.folder / name])
        (self.folder / "main.conf").write_text(
            f"daemon off; master_process off; pid {self.folder}/pid; error_log {self.folder}/error.log; events {{}}\n"
            f"http {{ access_log off; client_body_temp_path {self.folder}/body; proxy_temp_path {self.folder}/proxy;\n"
            f"fastcgi_temp_path {self.folder}/f; uwsgi_temp_path {self.folder}/u; scgi_temp_path {self.folder}/s;\n"
            f"include {self.folder}/{name}; }}\n")
        return subprocess.Popen(["nginx", "-p", self.folder, "-c", self.folder / "main.conf"])

    def stop(self):
        for p in self.replicas + [self.proxy]:
            p.kill()


def request(port, n, stream):
    """-> the text of the answer and how many tokens it says it has; raises where it is not whole"""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        c.request("POST", "/v1/completions", json.dumps(
            {"model": "tiny", "prompt": "Once upon a time", "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": stream,
             **({"stream_options": {"include_usage": True}} if stream else {})}), {"Content-Type": "application/json"})
        reply = c.getresponse()
        body = reply.read()  # raises IncompleteRead where it is cut
        if reply.status != 200:
            raise OSError(f"status {reply.status}")
    finally:
        c.close()
    if not stream:
        value = json.loads(body)
        return value["choices"][0]["text"], value["usage"]["completion_tokens"], value["choices"][0]["finish_reason"]
    events = [e.removeprefix("data: ") for e in body.decode().split("\n\n") if e.startswith("data: ")]
    parts = [json.loads(e) for e in events if e != "[DONE]"]
    if any("error" in p for p in parts):
        raise OSError("an error inside of the stream")
    text = "".join(ch["text"] for p in parts for ch in p["choices"])
    ends = [ch["finish_reason"] for p in parts for ch in p["choices"] if ch["finish_reason"]]
    return text, parts[-1]["usage"]["completion_tokens"] if events[-1] == "[DONE]" else None, ends[-1] if ends else None


class Load:
    """Clients that ask until they are told to end."""

    def __init__(self, fleet):
        self.whole = {n: request(fleet.ports[0], n, False) for n in TOKENS}
        assert all(got[1:] == (n, "length") for n, got in self.whole.items())
        self.fleet, self.over, self.answers, self.errors = fleet, False, 0, []
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(CLIENTS)]
        for t in self.threads:
            t.start()

    def client(self, i):
        rng = random.Random(i)
        while not self.over:
            n, stream, start = rng.choice(TOKENS), rng.random() < 0.7, time.time()
            try:
                got = request(self.fleet.port, n, stream)
            except (OSError, http.client.HTTPException) as why:
                self.errors.append((start, time.time(), repr(why)))
                continue
            assert got == self.whole[n], "it looks whole, and is not"  # ends this client: `end` sees it
            self.answers += 1

    def end(self):
        alive = [t.is_alive() for t in self.threads]
        self.over = True
        for t in self.threads:
            t.join()
        assert all(alive), "a client got an answer that was cut"


@pytest.mark.slow
@pytest.mark.parametrize("proxy", ["nginx", "haproxy"])
def test_one_is_killed_and_one_drained(binary, quern, tiny, tmp_path, proxy):
    assert shutil.which(proxy), f"{proxy} is missing: scripts/setup test"
    fleet = Fleet(binary, tiny, proxy, tmp_path)
    try:
        load = Load(fleet)
        time.sleep(SECONDS / 5)
        killed = time.time()
        fleet.replicas[0].kill()
        fleet.replicas[0].wait()
        time.sleep(SECONDS / 5)
        fleet.start(0)
        until(lambda: fleet.ready(0))
        time.sleep(SECONDS / 5)
        before = len(load.errors)
        done = quern("drain", "--url", f"http://127.0.0.1:{fleet.metrics[1]}", "--least", "2", "--most", "4")
        assert done.code == 0 or proxy == "nginx", done.err  # nginx goes on sending: there is always a request
        fleet.replicas[1].send_signal(signal.SIGTERM)
        assert fleet.replicas[1].wait(60) == 0
        time.sleep(SECONDS / 5)
        load.end()
        print(f"{proxy}: {load.answers} whole answers, {len(load.errors)} errors: {load.errors}")
        assert load.answers > 50
        assert len(load.errors) == before, "an answer broke while a replica was drained"
        assert len(load.errors) <= CLIENTS and all(start <= killed <= end + 1 for start, end, _ in load.errors)
        for path in ("/metrics", "/drain", "/v1/drain", "/models/unload", "/readyz"):  # not for clients
            c = http.client.HTTPConnection("127.0.0.1", fleet.port, timeout=30)
            c.request("POST", path, "{}", {"Content-Type": "application/json"})
            assert c.getresponse().status == 404, path
    finally:
        fleet.stop()
