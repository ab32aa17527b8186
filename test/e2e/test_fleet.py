"""A server as a part of a fleet: metrics that a real parser reads, in both styles; the metrics port; probes; draining."""
import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from server import Server, until
from test_lora import write_adapter

SERIES = {  # as routers and dashboards read them: the kind, and labels beside model_name
    "vllm:num_requests_waiting": ("gauge", ()),
    "vllm:num_requests_running": ("gauge", ()),
    "vllm:kv_cache_usage_perc": ("gauge", ()),
    "vllm:cache_config_info": ("gauge", ("block_size", "num_gpu_blocks")),
    "vllm:lora_requests_info": ("gauge", ("max_lora", "running_lora_adapters", "waiting_lora_adapters")),
    "vllm:prefix_cache_queries": ("counter", ()),
    "vllm:prefix_cache_hits": ("counter", ()),
    "vllm:prompt_tokens": ("counter", ()),
    "vllm:generation_tokens": ("counter", ()),
    "vllm:iteration_tokens_total": ("histogram", ("le",)),
    "vllm:time_to_first_token_seconds": ("histogram", ("le",)),
    "vllm:inter_token_latency_seconds": ("histogram", ("le",)),
    "vllm:e2e_request_latency_seconds": ("histogram", ("le",)),
    "vllm:request_success": ("counter", ("finished_reason",)),
}


class Replica(Server):
    """A server with a metrics port."""

    def __init__(self, binary, *args):
        super().__init__(binary, *args, "--metrics-port", "0")
        self.metrics_port = next(int(m[1]) for line in self.log if (m := re.search(r"metrics are at http://127.0.0.1:(\d+)/", line)))

    def probe(self, path, method="GET", **headers):
        """-> status, body, at the metrics port"""
        c = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=60)
        c.request(method, path, headers=headers)
        reply = c.getresponse()
        return reply.status, reply.read()

    def families(self, style="both"):
        status, text = self.probe(f"/metrics?style={style}")
        assert status == 200
        return {f.name: f for f in text_string_to_metric_families(text.decode())}

    def value(self, name, **labels):
        found = [s.value for f in self.families().values() for s in f.samples
                 if s.name == name and labels.items() <= s.labels.items()]
        assert len(found) == 1, (name, found)
        return found[0]


@pytest.fixture(scope="module")
def replica(binary, tiny):
    s = Replica(binary, *tiny, "--name", "second \"name\"", "--slots", "2", "--metrics-style", "both")
    yield s
    s.kill()


def check_histogram(family, labels):
    """Counts rise with the bounds, and the last is the count."""
    assert {s.name.removeprefix(family.name) for s in family.samples} == {"_bucket", "_sum", "_count"}
    buckets = [(float(s.labels["le"]), s.value) for s in family.samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets) and buckets[-1][0] == float("inf") and len(buckets) > 10
    assert [v for _, v in buckets] == sorted(v for _, v in buckets)
    count = next(s.value for s in family.samples if s.name.endswith("_count"))
    assert buckets[-1][1] == count
    assert all(labels.items() <= s.labels.items() for s in family.samples)
    return count


def test_series_are_there_from_the_start(binary, tiny):
    s = Replica(binary, *tiny, "--metrics-style", "vllm")
    families = s.families("vllm")
    assert set(families) == set(SERIES)
    for name, (kind, labels) in SERIES.items():
        f = families[name]
        assert f.type == kind and f.documentation and f.samples
        assert all(x.labels["model_name"] == "tiny" for x in f.samples)
        assert set().union(*(x.labels for x in f.samples)) == {"model_name", *labels}
        if kind == "histogram":
            assert check_histogram(f, {"model_name": "tiny"}) == 0
        elif kind == "counter" or name.endswith(("waiting", "running", "perc")):
            assert all(x.value == 0 for x in f.samples)
    assert {x.labels["finished_reason"] for x in families["vllm:request_success"].samples} == {"stop", "length", "abort"}
    config = families["vllm:cache_config_info"].samples[0]
    assert config.value == 1 and int(config.labels["block_size"]) > 0 and int(config.labels["num_gpu_blocks"]) > 0
    assert abs(families["vllm:lora_requests_info"].samples[0].value - time.time()) < 3600
    status, _, text = s.request("GET", "/metrics")  # the style of the flag
    assert status == 200 and b"vllm:" in text and b"quern_" not in text
    s.kill()


def test_styles_agree(replica):
    for n in (5, 9):
        replica.ask("/v1/completions", {"model": "tiny", "prompt": "One, two, three, " * 20, "max_tokens": n, "ignore_eos": True})
    first = replica.ask("/v1/completions", {"prompt": "a", "max_tokens": 64, "logit_bias": {"5": 100}, "stop_token_ids": [5]})
    assert first["choices"][0]["finish_reason"] == "stop"
    both = replica.families()
    one = {f: x.samples[0].value for f, x in both.items() if len(x.samples) == 1}
    assert one["vllm:prompt_tokens"] == one["vllm:prefix_cache_queries"] == one["quern_prompt_tokens"] + one["quern_cached_tokens"]
    assert one["vllm:prefix_cache_hits"] == one["quern_cached_tokens"] > 0
    assert one["vllm:generation_tokens"] == one["quern_generated_tokens"]
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        assert check_histogram(both[f"vllm:{name}_seconds"], {"model_name": "tiny"}) > 0
    assert check_histogram(both["vllm:iteration_tokens_total"], {}) == one["quern_steps"]
    assert replica.value("vllm:request_success_total", finished_reason="length") == 2
    assert replica.value("vllm:request_success_total", finished_reason="stop") == 1
    assert one["quern_kv_pages_free"] < one["quern_kv_pages"]  # prefixes are cached,
    until(lambda: replica.value("vllm:kv_cache_usage_perc") == 0)  # and no request uses a page
    assert set(f.name for f in text_string_to_metric_families(replica.request("GET", "/metrics?style=vllm")[2].decode())) == set(SERIES)
    assert replica.request("GET", "/metrics?style=other")[0] == 400


def test_both_names_are_one_model(replica):
    assert [m["id"] for m in replica.ask("/v1/models")["data"]] == ["tiny", 'second "name"']
    for name in ("tiny", 'second "name"'):
        reply = replica.ask("/v1/completions", {"model": name, "prompt": "x", "max_tokens": 2})
        assert reply["model"] == name
    assert {s.labels["model_name"] for f in replica.families("vllm").values() for s in f.samples} == {"tiny"}


def test_a_running_and_an_aborted_request_show(replica):
    before = replica.value("vllm:request_success_total", finished_reason="abort")
    body = json.dumps({"prompt": "x", "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
    s = replica.connect()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    until(lambda: replica.value("vllm:num_requests_running") == 1 and replica.value("vllm:kv_cache_usage_perc") > 0)
    s.close()
    until(lambda: replica.value("vllm:request_success_total", finished_reason="abort") == before + 1)
    until(lambda: replica.value("vllm:num_requests_running") == 0)


def test_a_name_with_quotes_is_a_label(binary, tiny):
    s = Replica(binary, *[x if x != "tiny" else 'a "b" \\ c' for x in tiny])
    assert {x.labels["model_name"] for f in s.families("vllm").values() for x in f.samples} == {'a "b" \\ c'}
    s.kill()


def test_the_metrics_port(binary, tiny, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alpha\n")
    s = Replica(binary, *tiny, "--api-key-file", keys)
    s.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2}, Authorization="Bearer alpha")
    status, text = s.probe("/metrics", Host="10.1.2.3:9090")  # a scraper asks by address, without a key
    assert status == 200 and b"quern_steps_total" in text and b"quern_key" not in text
    assert b"quern_key" in s.request("GET", "/metrics", Authorization="Bearer alpha")[2]
    assert s.request("GET", "/metrics")[0] == 401
    for path in ("/livez", "/readyz", "/health"):
        assert s.probe(path, Host="10.1.2.3:9090") == (200, b'{"status":"ok"}')
        assert s.request("GET", path, Host="10.1.2.3:8000")[0] == 200
    for path in ("/v1/models", "/", "/status", "/slots", "/v1/completions"):
        assert s.probe(path, Authorization="Bearer alpha")[0] == 404
    assert s.probe("/metrics", Origin="https://page.example")[0] == 403
    s.kill()


def test_flags_of_metrics(quern, tiny):
    assert "--metrics-style is quern, vllm or both" in quern("serve", *tiny, "--metrics-style", "statsd").err
    assert "needs --metrics-port" in quern("serve", *tiny, "--metrics-host", "0.0.0.0").err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        got = quern("serve", *tiny, "--port", "0", "--metrics-port", taken.getsockname()[1])
    assert got.code == 75 and "cannot listen" in got.err


def seen_while_loading(binary, tmp_path, tiny):
    """-> (status, body) of /readyz, /livez and a request, from the first moment on"""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    p = subprocess.Popen([binary, "serve", *map(str, tiny), "--port", str(port)], stderr=subprocess.PIPE, text=True)
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    seen, body = [], json.dumps({"prompt": "x", "max_tokens": 2})
    until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
    asked = []
    while not seen or seen[-1][0] != 200:
        for path in ("/livez", "/readyz"):
            c.request("GET", path)
            reply = c.getresponse()
            got = reply.status, json.loads(reply.read())["status"]
            assert path == "/readyz" or got == (200, "ok")
        seen.append(got)
        if got[0] == 503 and not asked:
            other = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            other.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            asked.append(other)
    for other in asked:  # it waited for the model
        assert other.getresponse().status == 200
    p.send_signal(signal.SIGTERM)
    assert p.wait(40) == 0
    return seen


def test_not_ready_while_loading(binary, tiny, tmp_path):
    for _ in range(20):
        seen = seen_while_loading(binary, tmp_path, tiny)
        assert seen[-1] == (200, "ok") and set(seen[:-1]) <= {(503, "loading")}
        if len(seen) > 1:
            return
    pytest.skip("the model was always loaded before the first probe")


def test_a_model_that_cannot_be_loaded_ends_the_server(quern, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(100))
    got = quern("serve", bad, "--port", "0")
    assert got.code == 65 and "ready at" not in got.err


def test_not_ready_when_no_model_can_be_loaded(serve, tiny, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "a.gguf").write_bytes(tiny[0].read_bytes())
    s = serve("--models-dir", folder)
    assert s.request("GET", "/readyz")[0] == 200
    (folder / "a.gguf").write_bytes(b"GGUF" + bytes(100))
    assert s.request("POST", "/v1/completions", {"model": "a", "prompt": "x"})[0] == 500
    assert s.request("GET", "/readyz")[0] == s.request("GET", "/health")[0] == 503
    assert s.request("GET", "/livez")[0] == 200
    (folder / "a.gguf").unlink()
    s.process.send_signal(signal.SIGHUP)
    until(lambda: json.loads(s.request("GET", "/readyz")[2])["status"] == "there is no model")


def stream(server, tokens):
    """A stream in a thread -> a list that gets its texts, and the thread"""
    out = []

    def run():
        out.append(server.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": tokens, "ignore_eos": True}))
    t = threading.Thread(target=run)
    t.start()
    return out, t


def test_drain(binary, quern, tiny):
    s = Replica(binary, *tiny, "--slots", "2")
    out, thread = stream(s, 300)
    until(lambda: s.value("vllm:num_requests_running") == 1)
    assert s.probe("/drain")[0] == 405  # a page can make a browser send GET
    assert s.probe("/drain", "POST", Host="rebound.example:80")[0] == 403
    assert s.request("POST", "/drain", {})[0] == 403  # no key: not at the port of requests
    assert s.probe("/readyz")[0] == 200
    status, body = s.probe("/drain", "POST")
    assert status == 200 and json.loads(body) == {"status": "draining", "running": 1}
    for path in ("/readyz", "/health"):
        assert s.request("GET", path)[0] == s.probe(path)[0] == 503
    assert s.request("GET", "/livez")[0] == 200
    assert s.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200  # routers are late
    done = quern("drain", "--url", f"http://127.0.0.1:{s.metrics_port}", "--least", "0.3")
    assert done.code == 0, done.err
    thread.join()
    assert out[0][0] == 200 and json.loads(out[0][2])["usage"]["completion_tokens"] == 300
    assert s.stop() == 0


def test_drain_needs_an_admin_key(serve, quern, tiny, tmp_path):
    (tmp_path / "keys").write_text("alpha\n")
    (tmp_path / "admin").write_text("root-key\n")
    s = serve(*tiny, "--api-key-file", tmp_path / "keys", "--admin-key-file", tmp_path / "admin")
    assert s.request("POST", "/drain", {})[0] == 401
    assert s.request("POST", "/drain", {}, Authorization="Bearer alpha")[0] == 403
    assert s.request("GET", "/readyz")[0] == 200
    done = quern("drain", "--url", s.url, "--admin-key-file", tmp_path / "admin")
    assert done.code == 0, done.err
    assert s.request("GET", "/readyz")[0] == 503


def test_sigterm_drains(binary, tiny):
    s = Replica(binary, *tiny, "--slots", "2")
    out, thread = stream(s, 300)
    until(lambda: s.value("vllm:num_requests_running") == 1)
    s.process.send_signal(signal.SIGTERM)
    until(lambda: s.probe("/readyz")[0] == 503)
    assert s.request("POST", "/v1/completions", {"prompt": "x"})[0] == 503
    thread.join()
    assert out[0][0] == 200 and json.loads(out[0][2])["usage"]["completion_tokens"] == 300
    assert s.process.wait(40) == 0


def test_adapters_of_requests_show(binary, tiny, tmp_path):
    random = np.random.default_rng(7)
    adapter = write_adapter(tmp_path, {"model.layers.0.self_attn.q_proj.lora_A.weight": random.normal(0, 0.2, (8, 576)),
                                       "model.layers.0.self_attn.q_proj.lora_B.weight": random.normal(0, 0.2, (576, 8))},
                            r=8, lora_alpha=8)
    s = Replica(binary, *tiny, "--lora", adapter, "--lora", f"poet={adapter}", "--slots", "1")

    def adapters():
        return {k: v for k, v in s.families()["vllm:lora_requests_info"].samples[0].labels.items() if k != "model_name"}
    assert adapters() == {"max_lora": "1", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    body = {"prompt": [1, 2, 3], "max_tokens": 2000, "ignore_eos": True, "model": "poet"}
    data = json.dumps(body).encode()
    asked = [s.connect() for _ in range(2)]
    for c in asked:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    until(lambda: adapters() == {"max_lora": "1", "running_lora_adapters": "poet", "waiting_lora_adapters": "poet"})
    s.kill()
