"""Usage by key, model and day: counted, bounded by quotas, and there after a kill."""
import csv
import io
import json
import sqlite3

import pytest
from server import Server

KEYS = """# the team
alpha 60 - alice
beta - 1k   bob     # a month
gamma
"""


@pytest.fixture
def start(binary, smollm2, tmp_path):
    (tmp_path / "keys").write_text(KEYS)
    (tmp_path / "admin").write_text("root\n")
    running = []

    def run(*more):
        running.append(Server(binary, smollm2, "--ctx", "512", "--name", "smol", "--state-dir", tmp_path / "state",
                              "--api-key-file", tmp_path / "keys", "--admin-key-file", tmp_path / "admin", *more))
        return running[-1]
    yield run
    for s in running:
        s.kill()


def ask(server, key, **more):
    body = {"model": "smol", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 20} | more
    status, headers, raw = server.request("POST", "/v1/chat/completions", body, Authorization=f"Bearer {key}")
    return status, headers, raw


def rows(server, key):
    got = server.ask("/usage", Authorization=f"Bearer {key}")["data"]
    return {(r["key"], r["model"]): r for r in got}


def test_usage_and_quotas(start, quern, tmp_path):
    server = start()
    told = [json.loads(ask(server, "alpha")[2])["usage"] for _ in range(2)]
    streamed = ask(server, "gamma", stream=True)
    assert streamed[0] == 200 and streamed[2].endswith(b"data: [DONE]\n\n")
    assert ask(server, "gamma", model="nope")[0] == 404
    # a quota by day, and one by month that is not reached
    status, headers, raw = ask(server, "alpha")
    error = json.loads(raw)["error"]
    assert status == 429 and error["code"] == "insufficient_quota" and "60 tokens of this day" in error["message"]
    assert 0 < int(headers["retry-after"]) <= 86400 and headers["x-should-retry"] == "false"
    assert ask(server, "beta")[0] == 200
    # one's own; all for the admin
    assert set(rows(server, "gamma")) == {(3, "smol"), (3, "")}
    everything = rows(server, "root")
    assert set(everything) == {(1, "smol"), (2, "smol"), (3, "smol"), (3, "")}
    mine = everything[1, "smol"]
    assert mine["name"] == "alice" and mine["requests"] == 2 and mine["errors"] == 0
    assert mine["read"] == sum(u["prompt_tokens"] for u in told) and mine["written"] == sum(u["completion_tokens"] for u in told)
    assert mine["cached"] == sum(u["prompt_tokens_details"]["cached_tokens"] for u in told)
    assert everything[3, ""]["errors"] == 1 and everything[3, ""]["read"] == 0
    assert server.request("GET", "/usage?since=yesterday", Authorization="Bearer root")[0] == 400
    # what was told is there after a kill; the quota too
    server.kill()
    server = start()
    assert rows(server, "root") == everything and ask(server, "alpha")[0] == 429
    # the program beside it
    state = ("--state-dir", tmp_path / "state")
    table = quern("usage", *state)
    assert table.code == 0 and "alice" in table.out and table.out.splitlines()[-1].startswith("all")
    assert quern("usage", *state, "--key", "1", "--json").json() == quern("usage", *state, "--key", "alice", "--json").json()
    listed = list(csv.DictReader(io.StringIO(quern("usage", *state, "--csv", "--since", "1d").out)))
    assert sum(int(r["written"]) for r in listed) == sum(r["written"] for r in everything.values())
    assert quern("usage", *state, "--since", "soon").code == 64 and quern("usage", *state, "--key", "9").code == 65
    assert b"hello" not in (tmp_path / "state" / "quern.db").read_bytes().lower()
    with sqlite3.connect(tmp_path / "state" / "quern.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert not any("alpha" in str(row) for row in db.execute("SELECT * FROM keys"))
    assert server.stop() == 0


@pytest.mark.parametrize("line", ["alpha lots", "alpha 0", "alpha 10 -5", "alpha 1k 1k " + "n" * 65])
def test_a_wrong_column_of_the_key_file(quern, smollm2, tmp_path, line):
    (tmp_path / "keys").write_text(f"# keys\n{line}\n")
    done = quern("serve", smollm2, "--port", 0, "--no-state", "--api-key-file", tmp_path / "keys")
    assert done.code == 64 and "line 2" in done.err and "--api-key-file" in done.err
