"""--cache-dir: what one process computed the next one finds, and whatever happens to the files, the text is the same."""
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from test_serve import Server

PROMPT = "Numbers: " + ", ".join(str(i * 37 % 101) for i in range(60)) + "."


@pytest.fixture
def run(quern, smollm2):
    def go(*flags):
        r = quern("run", smollm2, "--device", "cpu", "--raw", "-p", PROMPT, "-n", "6", "--temp", "0", "--deterministic", "--json", *flags)
        return r.json(), r.err
    return go


def test_run_again(run, tmp_path):
    cache = tmp_path / "cache"
    plain, _ = run()
    first, _ = run("--cache-dir", cache)
    again, _ = run("--cache-dir", cache)
    n = len(plain["prompt_ids"])
    assert plain["ids"] == first["ids"] == again["ids"]
    assert first["timings"]["prompt_n"] == n > 100 and again["timings"]["prompt_n"] == n - n // 32 * 32
    for f in cache.iterdir():
        data = bytearray(f.read_bytes())
        data[len(data) // 2] ^= 16
        f.write_bytes(data)
    hurt, said = run("--cache-dir", cache)
    assert hurt["ids"] == plain["ids"] and said.count("damaged") == 1
    other, _ = run("--cache-dir", cache, "--exact")
    assert other["timings"]["prompt_n"] == n


@pytest.mark.parametrize("flags, says", [(["--cache-disk", "1G"], "--cache-dir"),
                                         (["--cache-dir", "x", "--cache-disk", "much"], "not a size"),
                                         (["--cache-dir", "/dev/null"], "folder")])
def test_bad_flags(quern, smollm2, flags, says):
    r = quern("run", smollm2, "-p", "x", "-n", "1", *flags)
    assert r.code == 64 and says in r.err


def ask(server):
    status, _, text = server.request("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 6, "temperature": 0})
    answer = json.loads(text)
    assert status == 200
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_two_servers_and_a_sudden_end(binary, smollm2, tmp_path):
    servers = [Server(binary, smollm2, "--device", "cpu", "--deterministic", "--cache-dir", tmp_path) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        texts = {t for t, _ in pool.map(ask, servers)}
    for s in servers:
        s.settle()
        s.kill()
    third = Server(binary, smollm2, "--device", "cpu", "--deterministic", "--cache-dir", tmp_path)
    text, cached = ask(third)
    assert third.stop() == 0
    assert texts == {text} and cached > 100


def test_deterministic(binary, smollm2):
    """Whatever runs beside a request, its numbers are the same to the last bit."""
    s = Server(binary, smollm2, "--device", "cpu", "--deterministic", "--slots", "6", "--queue", "32")
    asks = [{"prompt": PROMPT[:30 + 41 * i], "max_tokens": 5 + i, "temperature": 0.8 * (i % 2), "seed": i, "logprobs": 2}
            for i in range(8)]

    def ask(body):
        status, _, text = s.request("POST", "/v1/completions", body)
        choice = json.loads(text)["choices"][0]
        assert status == 200
        return choice["text"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, asks))
    assert [ask(a) for a in asks] == together
    assert s.stop() == 0
