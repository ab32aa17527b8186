"""The server as a service: a Unix socket, TLS, systemd's socket, logs for machines, limits of keys and requests."""
import http.client
import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
from pathlib import Path

import pytest

from server import Server, until


def start(binary, *args, env=None):
    """-> the process, once its log says that it is ready, and that line"""
    p = subprocess.Popen([str(binary), "serve", *map(str, args)], stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    for line in p.stderr:
        if "ready at" in line:
            return p, line
    pytest.fail("the server did not start")


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def get(connection, path="/livez"):
    connection.request("GET", path)
    reply = connection.getresponse()
    return reply.status, reply.read()


def test_unix_socket(binary, smollm2, tmp_path):
    path = str(tmp_path / "quern.sock")
    with socket.socket(socket.AF_UNIX) as left:  # one that was killed leaves its socket behind
        left.bind(path)
    p, line = start(binary, smollm2, "--socket", path)
    assert f"unix:{path}" in line
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert get(UnixConnection(path)) == (200, b'{"status":"ok"}')
    second = subprocess.run([str(binary), "serve", str(smollm2), "--socket", path], capture_output=True, text=True, timeout=60)
    assert second.returncode == 75 and "cannot listen" in second.stderr  # the first one is alive: its socket stays
    assert get(UnixConnection(path))[0] == 200
    p.send_signal(signal.SIGTERM)
    assert p.wait(40) == 0
    assert not os.path.exists(path)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                           "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", folder / "key.pem",
                           "-out", folder / "cert.pem"], capture_output=True, text=True)
    if made.returncode:
        pytest.skip("openssl cannot make a certificate: " + made.stderr)
    return folder / "cert.pem", folder / "key.pem"


def test_tls(binary, smollm2, certificate):
    cert, key = certificate
    p, line = start(binary, smollm2, "--port", 0, "--tls-cert", cert, "--tls-key", key)
    port = int(line.rsplit(":", 1)[1])
    assert "https://" in line
    trust = ssl.create_default_context(cafile=cert)
    c = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=60)
    for _ in range(3):  # one connection, several requests
        assert get(c) == (200, b'{"status":"ok"}')
    c.request("POST", "/v1/completions", json.dumps({"prompt": "One, two,", "max_tokens": 20, "stream": True}), {"Content-Type": "application/json"})
    reply = c.getresponse()
    text = reply.read().decode()
    assert reply.status == 200 and text.endswith("data: [DONE]\n\n")
    old = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
                         stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert old.returncode and "protocol version" in old.stderr  # its alert: 1.1 is too old
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:  # not TLS: closed, and nobody else is hurt
        plain.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            assert b"200" not in plain.recv(100)
        except ConnectionResetError:
            pass
    p.send_signal(signal.SIGHUP)  # reads the certificate anew
    assert get(http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=30))[0] == 200
    p.send_signal(signal.SIGTERM)
    assert p.wait(40) == 0


@pytest.mark.parametrize("args, words", [
    (["--tls-cert", "x.pem"], "belong together"),
    (["--tls-cert", "missing.pem", "--tls-key", "missing.pem"], "--tls-cert"),
    (["--socket", "/tmp/" + "x" * 200], "a path of at most"),
    (["--socket", "s", "--port", "1"], "--socket excludes --host and --port"),
    (["--log-format", "xml"], "text or json"),
    (["--limit", "body=1"], "from 1024 to"),
    (["--limit", "nothing=1"], "--limit list"),
])
def test_bad_options(binary, smollm2, args, words):
    done = subprocess.run([str(binary), "serve", str(smollm2), *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 64 and words in done.stderr, done.stderr


def test_systemd_hears_of_it(binary, smollm2, tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hears:
        hears.bind(path)
        hears.settimeout(60)
        p, _ = start(binary, smollm2, "--port", 0, env={"NOTIFY_SOCKET": path})
        heard = [hears.recv(100) for _ in range(3)]
        assert heard.count(b"READY=1") == 1 and heard.count(b"WATCHDOG=1") == 2
        p.send_signal(signal.SIGTERM)
        while hears.recv(100) != b"STOPPING=1":
            pass
        assert p.wait(40) == 0


def test_logs_for_machines(binary, smollm2):
    p = subprocess.Popen([str(binary), "serve", str(smollm2), "--port", "0", "--log-format", "json"], stderr=subprocess.PIPE, text=True)
    for line in p.stderr:
        if "ready at" in (said := json.loads(line)["message"]):
            break
    port = int(said.rsplit(":", 1)[1])
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    secret = "the cellar key is under the mat"
    c.request("POST", "/v1/completions?" + "q=%22secret%22", json.dumps({"prompt": secret, "max_tokens": 2}), {"Content-Type": "application/json"})
    reply = c.getresponse()
    reply.read()
    asked = json.loads(p.stderr.readline())
    assert asked["message"] == "request" and asked["status"] == 200 and asked["route"] == "/completions"
    assert asked["id"] == reply.headers["x-request-id"] and asked["ms"] > 0
    p.send_signal(signal.SIGTERM)
    rest = p.stderr.read()
    assert secret not in json.dumps(asked) + rest and "secret" not in json.dumps(asked)
    for line in rest.splitlines():
        assert json.loads(line)["level"] in ("error", "warning", "info")
    assert p.wait(40) == 0


def test_keys_have_limits_and_counts(binary, smollm2, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alpha\nbeta\n")
    (tmp_path / "admin").write_text("root-key\n")
    s = Server(binary, smollm2, "--api-key-file", keys, "--admin-key-file", tmp_path / "admin", "--key-rate", 3, "--key-parallel", 2)
    body = {"prompt": "One, two,", "max_tokens": 4, "ignore_eos": True}
    codes = [s.request("POST", "/v1/completions", body, Authorization="Bearer alpha")[0] for _ in range(3)]
    assert codes == [200] * 3
    status, headers, reply = s.request("POST", "/v1/completions", body, Authorization="Bearer alpha")  # the next one in 20 s
    assert status == 429 and headers["retry-after"] and json.loads(reply)["error"]["type"] == "rate_limit_error"
    assert s.request("POST", "/v1/completions", body, Authorization="Bearer beta")[0] == 200  # the other key has its own
    figures = s.request("GET", "/metrics", Authorization="Bearer root-key")[2].decode()
    assert 'quern_key_requests_total{key="2"} 1' in figures and 'quern_key_generated_tokens_total{key="2"} 4' in figures
    assert 'quern_key_refused_total{key="1"}' in figures and "alpha" not in figures
    s.stop()


def test_a_key_has_its_share_of_the_slots(binary, smollm2, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alpha\nbeta\n")
    s = Server(binary, smollm2, "--api-key-file", keys, "--key-parallel", 1)
    long = json.dumps({"prompt": "Count:", "max_tokens": 4000, "stream": True, "ignore_eos": True}).encode()
    with s.connect() as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alpha\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(long) + long)
        assert b"200 OK" in c.recv(1000)
        short = {"prompt": "a", "max_tokens": 1}
        assert s.request("POST", "/v1/completions", short, Authorization="Bearer alpha")[0] == 429
        assert s.request("POST", "/v1/completions", short, Authorization="Bearer beta")[0] == 200
    until(lambda: s.request("POST", "/v1/completions", short, Authorization="Bearer alpha")[0] == 200)  # it left: its place is free
    s.stop()


def test_limits_are_flags(binary, smollm2):
    s = Server(binary, smollm2, "--limit", "body=2K", "--limit", "messages=2", "--limit", "n=1", "--limit", "uri=100", "--limit", "headers=1K")
    chat = lambda turns, **more: s.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}] * turns, "max_tokens": 1, **more})
    assert chat(2)[0] == 200
    assert chat(3)[0] == 400
    assert chat(1, n=2)[0] == 400
    assert chat(1, user="x" * 4000)[0] == 413
    assert s.request("GET", "/livez?" + "x" * 200)[0] == 414
    assert s.request("GET", "/livez", x_long="y" * 2000)[0] == 431
    s.stop()


def test_the_sandbox_holds(binary, smollm2, tmp_path):
    """What the running server may no longer do, seen from its own state in /proc."""
    s = Server(binary, smollm2, "--device", "cpu")
    status = open(f"/proc/{s.process.pid}/status").read()
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status  # a filter
    threads = os.listdir(f"/proc/{s.process.pid}/task")
    assert len(threads) > 2
    for t in threads:
        assert "Seccomp:\t2" in open(f"/proc/{s.process.pid}/task/{t}/status").read()
    assert s.ask("/v1/completions", {"prompt": "One, two,", "max_tokens": 4, "ignore_eos": True})["usage"]["completion_tokens"] == 4
    s.stop()
    free = Server(binary, smollm2, "--no-sandbox")
    assert "Seccomp:\t2" not in open(f"/proc/{free.process.pid}/status").read()
    free.stop()


def test_memory_is_shown_by_device(binary, smollm2):
    s = Server(binary, smollm2, "--device", "cpu")
    figures = dict(re.findall(r'^quern_device_(\w+)_bytes{device="cpu"} (\d+)$', s.request("GET", "/metrics")[2].decode(), re.M))
    assert set(figures) == {"weights", "kv", "scratch", "memory"}
    assert int(figures["memory"]) > int(figures["weights"]) > 10**7 and int(figures["kv"]) > 0
    parts = sum(int(figures[name]) for name in ("weights", "kv", "scratch"))
    assert parts == s.metric("quern_models_bytes")
    s.stop()


def test_the_dashboard_asks_for_what_there_is(binary, smollm2, tmp_path):
    board = json.loads((Path(__file__).resolve().parents[2] / "doc/grafana.json").read_text())
    asked = {name for panel in board["panels"] for target in panel["targets"] for name in re.findall(r"quern_\w+", target["expr"])}
    assert len(asked) > 15
    keys = tmp_path / "keys"
    keys.write_text("alpha\n")
    s = Server(binary, smollm2, "--api-key-file", keys)
    s.request("POST", "/v1/completions", {"prompt": "One, two,", "max_tokens": 4}, Authorization="Bearer alpha")
    there = set(re.findall(r"^(quern_\w+)", s.request("GET", "/metrics", Authorization="Bearer alpha")[2].decode(), re.M))
    s.stop()
    assert asked <= there, asked - there
