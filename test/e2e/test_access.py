"""Who may do what: origins and hosts, the share of a key, and what needs an admin key."""
import json
import os
import subprocess

import pytest

from server import Server, until

FAST = ("--ctx", "512")


def keyed(tmp_path, **files):
    """keys="a\nb", admin="root" -> the options"""
    out = []
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
        out += [{"keys": "--api-key-file", "admin": "--admin-key-file"}[name], tmp_path / name]
    return out


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_origins_that_are_allowed(binary, smollm2):
    server = Server(binary, smollm2, *FAST, "--allowed-origin", "https://chat.example", "--allowed-origin", "app://obsidian.md",
                    "--allowed-origin", "vscode-webview://*")
    for origin in "https://chat.example", "app://obsidian.md", "vscode-webview://1f4kq", "http://localhost:3000", "http://[::1]:1":
        status, headers, _ = server.request("OPTIONS", "/v1/chat/completions", Origin=origin,
                                            Access_Control_Request_Method="POST", Access_Control_Request_Headers="authorization,content-type")
        assert status == 204 and headers["access-control-allow-origin"] == origin and "POST" in headers["access-control-allow-methods"]
        status, headers, _ = server.request("GET", "/v1/models", Origin=origin)
        assert status == 200 and headers["access-control-allow-origin"] == origin and headers["vary"] == "Origin"
    for origin in ("https://chat.example.evil.com", "https://chat.example:444", "http://chat.example", "app://other.md", "vscode-webview2://a",
                   "http://localhost:3000.evil.com", "null", "app://obsidian.md.evil"):
        assert server.request("OPTIONS", "/v1/models", Origin=origin)[0] == 403, origin
        status, headers, _ = server.request("GET", "/v1/models", Origin=origin)
        assert status == 403 and "access-control-allow-origin" not in headers
    server.stop()


def test_what_is_refused_at_the_start(quern, smollm2):
    for words, why in ((["--allowed-origin", "chat.example"], "such as https://"), (["--allowed-origin", "https://a/b"], "no path"),
                       (["--allowed-origin", "*"], "--api-key-file"), (["--host", "0.0.0.0", "--no-key"], "--allowed-host"),
                       (["--host", "::", "--no-key", "--allowed-origin", "app://x"], "--allowed-host")):
        done = quern("serve", smollm2, "--port", 0, *words)
        assert done.code == 64 and why in done.err, (words, done)


def test_without_a_key_beyond_this_machine(binary, smollm2):
    """A name that is pointed here must be one that was named; probes ask by address."""
    process = subprocess.Popen([binary, "serve", smollm2, *FAST, "--host", "0.0.0.0", "--port", "0", "--no-key", "--allowed-host", "llm.example"],
                               stderr=subprocess.PIPE, text=True)
    server = object.__new__(Server)
    server.process, server.port = process, next(int(line.rsplit(":", 1)[1]) for line in process.stderr if "ready at" in line)
    for host, status in ("llm.example", 200), (f"LLM.example:{server.port}", 200), ("evil.example", 403), ("127.0.0.1", 403):
        assert server.request("GET", "/v1/models", Host=host)[0] == status
    for path in "/health", "/livez", "/readyz":
        assert server.request("GET", path, Host="10.0.0.7:8080")[0] == 200
    assert server.stop() == 0


def test_sequences_count_against_a_keys_share(binary, smollm2, tmp_path):
    server = Server(binary, smollm2, *FAST, *keyed(tmp_path, keys="alpha\nbeta"), "--key-parallel", "4", "--slots", "2")
    post = lambda key, **fields: server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, **fields}, **bearer(key))
    assert post("alpha", n=4)[0] == 200
    assert post("alpha", prompt=["a", "b"], n=2)[0] == 200
    for fields in {"n": 5}, {"n": 16}, {"prompt": ["a", "b", "c"], "n": 2}, {"best_of": 5}:
        status, _, body = post("alpha", **fields)
        assert status == 429 and json.loads(body)["error"]["code"] == "rate_limit_exceeded", body
    long = json.dumps({"prompt": "Count:", "max_tokens": 400, "n": 3, "stream": True, "ignore_eos": True}).encode()
    with server.connect() as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alpha\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(long) + long)
        assert b"200 OK" in c.recv(1000)
        assert post("alpha", n=2)[0] == 429
        assert post("beta", n=4)[0] == 200
    until(lambda: post("alpha", n=4)[0] == 200)  # it left: its places are free
    server.stop()


def test_what_needs_an_admin_key(binary, quern, smollm2, tmp_path):
    server = Server(binary, smollm2, *FAST, *keyed(tmp_path, keys="alpha\nbeta", admin="# who runs this\nroot-key"))
    name = server.ask("/v1/models", **bearer("alpha"))["data"][0]["id"]
    state = lambda: server.ask("/v1/models", **bearer("root-key"))["data"][0]["status"]["value"]
    for key, status in ("alpha", 403), ("nobody", 401):
        assert server.request("POST", "/models/unload", {}, **bearer(key))[0] == status
        assert server.request("POST", "/models/load", {"model": name}, **bearer(key))[0] == status
        assert server.request("POST", "/api/generate", {"model": name, "keep_alive": 0}, **bearer(key))[0] == status
    body = server.request("POST", "/models/unload", {}, **bearer("alpha"))[2]
    assert "admin key" in json.loads(body)["error"]["message"]
    # an ordinary key's keep_alive does not unload what others use
    assert server.ask("/api/generate", {"model": name, "prompt": "a", "stream": False, "keep_alive": 0, "options": {"num_predict": 1}},
                      **bearer("alpha"))["done"]
    server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1}, **bearer("beta"))
    assert state() == "loaded"
    # counters: one's own, and all for the admin
    figures = {key: server.request("GET", "/metrics", **bearer(key))[2].decode() for key in ("alpha", "beta", "root-key")}
    assert 'quern_key_requests_total{key="1"}' in figures["alpha"] and 'key="2"' not in figures["alpha"]
    assert 'quern_key_requests_total{key="2"}' in figures["beta"] and 'key="1"' not in figures["beta"]
    assert 'key="1"' in figures["root-key"] and 'key="2"' in figures["root-key"]
    # the tool
    clean = {"QUERN_API_KEY": "alpha", "QUERN_ADMIN_KEY": ""}
    assert quern("stop", "--url", server.url, env=clean).code == 64
    assert quern("stop", "--url", server.url, "--admin-key-file", tmp_path / "admin", env=clean).out == "1 unloaded\n"
    until(lambda: state() == "unloaded")
    server.ask("/models/load", {"model": name}, **bearer("root-key"))
    assert quern("stop", "--url", server.url, env=clean | {"QUERN_ADMIN_KEY": "root-key"}).out == "1 unloaded\n"
    # and an admin's keep_alive works
    until(lambda: state() == "unloaded")
    server.ask("/api/generate", {"model": name, "prompt": "a", "stream": False, "keep_alive": 0, "options": {"num_predict": 1}}, **bearer("root-key"))
    until(lambda: state() == "unloaded")
    server.stop()


def test_keys_without_an_admin_file(binary, smollm2, tmp_path):
    server = Server(binary, smollm2, *FAST, *keyed(tmp_path, keys="alpha"), env={**os.environ, "QUERN_ADMIN_KEY": ""})
    assert server.request("POST", "/models/unload", {}, **bearer("alpha"))[0] == 403
    assert server.request("POST", "/v1/models/load", {}, **bearer("alpha"))[0] == 403
    server.stop()


@pytest.mark.parametrize("wrong", ["", "# nothing\n"])
def test_an_admin_file_without_a_key(quern, smollm2, tmp_path, wrong):
    done = quern("serve", smollm2, "--port", 0, *keyed(tmp_path, admin=wrong), env={"QUERN_ADMIN_KEY": ""})
    assert done.code == 64 and "--admin-key-file" in done.err
