"""Several models behind one port: loaded when asked for, unloaded when idle or when memory is short, listed and stopped."""
import json
import os
import shutil
import signal
import threading
import time

import pytest

from server import Server, events, parse, read_all, until
from conftest import ROOT

HI = [{"role": "user", "content": "Say hello."}]


@pytest.fixture()
def folder(tmp_path, smollm2):
    """One model under two names, a file that is none, and a model without a tokenizer."""
    where = tmp_path / "models"
    (where / "below").mkdir(parents=True)
    (where / "a.gguf").symlink_to(smollm2)
    (where / "below" / "b.gguf").symlink_to(smollm2)
    (where / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    shutil.copytree(ROOT / "test/data/arch/llama", where / "mute")
    (where / "notes.txt").write_text("no model")
    return where


@pytest.fixture()
def serve(binary, folder):
    """serve("--keep-alive", "1s") -> a server of the folder; ends with 0."""
    all_of = []

    def start(*args, **kw):
        all_of.append(Server(binary, "--models-dir", folder, "--ctx", "256", "--slots", "2", *args, **kw))
        return all_of[-1]
    yield start
    for s in all_of:
        if s.process.poll() is None:
            assert s.stop() == 0


def states(server, **kw):
    return {m["id"]: m["status"]["value"] for m in server.ask("/v1/models", **kw)["data"]}


def chat(server, model, **fields):
    return server.request("POST", "/v1/chat/completions", {"model": model, "messages": HI, "max_tokens": 4, "temperature": 0, **fields})


def text(reply):
    status, _, body = reply
    assert status == 200, body
    return json.loads(body)["choices"][0]["message"]["content"]


def test_models_come_when_they_are_asked_for(serve):
    server = serve()
    assert states(server) == {"a": "unloaded", "b": "unloaded", "bad": "unloaded", "mute": "unloaded"}
    assert all(m["max_model_len"] == 256 for m in server.ask("/v1/models")["data"] if m["id"] != "bad")
    assert server.metric("quern_model_loads_total") == 0
    status, _, body = chat(server, "c")
    assert status == 404 and json.loads(body)["error"]["code"] == "model_not_found"
    assert text(chat(server, "b")) == text(chat(server, "b:latest")) == text(chat(server, "a"))
    assert json.loads(chat(server, "a")[2])["model"] == "a"
    assert states(server) == {"a": "loaded", "b": "loaded", "bad": "unloaded", "mute": "unloaded"}
    assert server.ask("/v1/models/b")["status"]["value"] == "loaded"
    for model in ("bad", "mute"):
        status, headers, body = chat(server, model)
        error = json.loads(body)["error"]
        assert status == 500 and headers["x-should-retry"] == "false" and "/" not in error["message"]
        assert error["code"] == "model_load_failed"
    assert text(chat(server, None)) == text(chat(server, "a"))  # the first one where none is named
    assert server.metric("quern_model_failures_total") == 2
    assert server.ask("/tokenize", {"model": "a", "content": "a b"})["count"] == 2


def test_two_models_with_room_for_one(serve):
    one = serve("--deterministic")
    expected = text(chat(one, "a", max_tokens=12))
    size = one.ask("/api/ps")["models"][0]["size"]
    server = serve("--deterministic", "--memory", str(int(size * 1.5)))
    wrong = []

    def ask(i):
        for k in range(4):
            model = "ab"[(i + k) % 2]
            status, _, body = chat(server, model, max_tokens=12)
            reply = json.loads(body)
            if status != 200 or reply["model"] != model or reply["choices"][0]["message"]["content"] != expected:
                wrong.append((status, reply))
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    server.settle()
    assert server.metric("quern_models_loaded") == 1
    assert server.metric("quern_models_bytes") <= size * 1.5
    assert server.metric("quern_model_unloads_total") > 0
    assert server.metric("quern_submitted_total") == server.metric("quern_finished_total") == 24


def test_a_load_that_takes_more_than_estimated(serve):
    """Files and keys are known before a load, what steps compute in is not: after it there is one model too many."""
    one = serve()
    chat(one, "a")
    size = one.ask("/api/ps")["models"][0]["size"]
    room = 2 * size - (1 << 20)
    server = serve("--memory", str(room))
    assert text(chat(server, "a")) and text(chat(server, "b"))
    until(lambda: states(server)["a"] == "unloaded")
    assert states(server)["b"] == "loaded" and server.metric("quern_models_bytes") <= room


def answers(server, prompts, tokens=8):
    """The texts of requests that run at once, and the most bytes that models took meanwhile."""
    got, most = [None] * len(prompts), 0

    def ask(i):
        got[i] = server.ask("/v1/completions", {"model": "a", "prompt": prompts[i], "max_tokens": tokens, "temperature": 0,
                                                "ignore_eos": True})["choices"][0]["text"]
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        most = max(most, server.metric("quern_models_bytes"))
        time.sleep(0.02)
    return got, most


def test_kv_takes_memory_as_requests_grow(serve):
    """Keys and values of 8 requests take more than those of one full text, which a model starts with. Where --memory ends, requests
    wait for each other and are answered as ever."""
    asked = ["--deterministic", "--ctx", "512", "--slots", "8"]
    prompts = [" ".join(f"{i * 7 + k} sheep and" for k in range(40)) for i in range(8)]
    free = serve(*asked)
    assert text(chat(free, "a"))
    size = free.ask("/api/ps")["models"][0]["size"]
    expected, grown = answers(free, prompts)
    assert all(expected) and grown > size + (10 << 20)
    tight = serve(*asked, "--memory", str(size + (4 << 20)))
    got, most = answers(tight, prompts)
    assert got == expected and size <= most <= size + (4 << 20)
    # cached prefixes are dropped where another model needs their room
    one = serve(*asked, "--memory", str(grown + size - (4 << 20)))
    assert answers(one, prompts)[0] == expected
    assert text(chat(one, "b")) and one.metric("quern_models_loaded") == 2
    assert one.metric("quern_model_unloads_total") == 0


def test_an_idle_model_returns_kv_that_nothing_uses(serve):
    """One request after the other, until KV grows: by an eighth more than the request needs, which is returned some seconds later."""
    server = serve("--deterministic", "--ctx", "512", "--slots", "8")
    assert text(chat(server, "a"))
    size = most = server.metric("quern_models_bytes")
    for i in range(20):
        if most > size:
            break
        _, most = answers(server, [" ".join(f"{i} times {k} sheep" for k in range(40))], tokens=1)
    assert most > size
    until(lambda: server.metric("quern_models_bytes") < most)


def stream(server, model, headers=b"", **fields):
    body = json.dumps({"model": model, "messages": HI, "max_tokens": 150, "stream": True, "ignore_eos": True, **fields}).encode()
    s = server.connect()
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s"
              % (headers, len(body), body))
    return s, s.recv(4096)


def test_a_busy_model_is_not_cut_and_waiting_is_bounded(serve):
    server = serve("--memory", "180M", "--load-wait", "0.2", "--ctx", "512")
    s, begun = stream(server, "a", max_tokens=450)
    status, headers, body = chat(server, "b")  # there is no room while a is busy
    assert status == 503 and int(headers["retry-after"]) > 0, body
    assert events(parse(begun + read_all(s))[2])[-1]["choices"][0]["finish_reason"] == "length"
    assert text(chat(server, "b"))
    status, _, body = serve("--memory", "50M").request("POST", "/v1/chat/completions", {"model": "a", "messages": HI})
    assert status == 500 and "memory" in json.loads(body)["error"]["message"]


def test_a_client_that_leaves_while_its_model_waits(serve):
    server = serve("--memory", "170M")
    busy, _ = stream(server, "a", max_tokens=200)
    waits = server.connect()
    waits.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 27\r\n\r\n" + b'{"model":"b", "prompt":"x"}')
    until(lambda: server.metric("quern_answers") == 2)
    waits.close()
    until(lambda: server.metric("quern_answers") <= 1)
    busy.close()
    server.settle()
    assert text(chat(server, "a"))


def test_idle_models_go_and_ps_and_stop_say_what_is_there(serve, quern):
    server = serve("--keep-alive", "5s")
    chat(server, "a")
    shown = json.loads(quern("ps", "--url", server.url, "--json").out)
    assert [m["name"] for m in shown] == ["a"] and shown[0]["size"] > 10**8 and shown[0]["context_length"] == 256
    assert shown[0]["device"] and shown[0]["expires_at"]
    until(lambda: states(server)["a"] == "unloaded")
    server.ask("/models/load", {"model": "b"})
    server.ask("/api/generate", {"model": "b", "keep_alive": -1})
    table = quern("ps", "--url", server.url + "/").out
    assert table.split("\n")[0].split() == ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "KIND", "DEVICE"]
    assert "b " in table and "for ever" in table and ("100% CPU" in table or "GPU" in table)
    assert quern("stop", "--url", server.url, "b").out == "1 unloaded\n"
    until(lambda: states(server)["b"] == "unloaded")
    chat(server, "a")
    assert json.loads(quern("stop", "--url", server.url, "--json").out) == {"unloaded": 1}
    assert quern("stop", "nobody", "--url", server.url).code == 65
    assert quern("ps", "--url", "ftp://x").code == 64
    server.stop()
    gone = quern("ps", "--url", server.url)
    assert gone.code == 69 and "quern serve" in gone.err


def test_sighup_reads_keys_and_models_anew(serve, folder, smollm2, tmp_path, quern):
    keys = tmp_path / "keys"
    keys.write_text("old-key\nboth-keys\n")
    server = serve("--api-key-file", keys, env={**os.environ, "QUERN_API_KEY": ""})
    s, begun = stream(server, "a", headers=b"x-api-key: old-key\r\n")
    keys.write_text("both-keys\nnew-key\n")
    (folder / "late.gguf").symlink_to(smollm2)
    (folder / "bad.gguf").unlink()
    server.process.send_signal(signal.SIGHUP)
    until(lambda: "late" in states(server, x_api_key="both-keys"))
    assert set(states(server, x_api_key="new-key")) == {"a", "b", "late", "mute"}
    assert server.request("GET", "/v1/models", x_api_key="old-key")[0] == 401
    assert server.request("GET", "/v1/models", x_api_key="")[0] == 401
    assert quern("ps", "--url", server.url, env={"QUERN_API_KEY": "new-key"}).code == 0
    assert quern("ps", "--url", server.url, env={"QUERN_API_KEY": "old-key"}).code == 64
    # what ran goes on, with the key that it came with
    assert events(parse(begun + read_all(s))[2])[-1]["choices"][0]["finish_reason"] == "length"
    (folder / "a.gguf").unlink()
    keys.write_text("")  # a mistake: the old keys stay
    server.process.send_signal(signal.SIGHUP)
    until(lambda: "a" not in states(server, x_api_key="new-key"))
    status, _, _ = server.request("POST", "/v1/chat/completions", {"model": "a", "messages": HI}, x_api_key="new-key")
    assert status == 404
    until(lambda: server.ask("/api/ps", x_api_key="new-key")["models"] == [])


def test_names_on_the_command_line(quern, smollm2, folder):
    assert quern("serve", smollm2, folder / "a.gguf", "--name", "x", "--port", "0").code == 64
    assert quern("serve", folder / "a.gguf", folder / "a.gguf", "--port", "0").code == 64
    bad = quern("serve", folder / "bad.gguf", "--port", "0")
    assert bad.code == 65 and bad.err.count("bad.gguf") == 2, bad.err  # of the list, and of the load
    assert quern("serve", "--models-dir", folder / "nowhere", "--port", "0").code == 64
    assert quern("serve", smollm2, "--keep-alive", "soon", "--port", "0").code == 64
