"""What a client was told is there afterwards: kill -9 at random moments, disks without room, damaged and foreign databases,
a second server, a clock that jumps."""
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

import pytest
from server import Server, kept_state, until


def post(server, body, path="/v1/responses"):
    status, _, raw = server.request("POST", path, {"input": "Hello.", "max_output_tokens": 4} | body)
    return status, json.loads(raw)


class Clients:
    """Threads that ask until the server is gone, and remember what they were told."""

    def __init__(self, server, count=4):
        self.server, self.told, self.sent = server, {}, 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run) for _ in range(count)]
        for t in self.threads:
            t.start()

    def run(self):
        while True:
            try:
                with self.lock:
                    self.sent += 1
                status, reply = post(self.server, {})
            except (OSError, ValueError, IndexError):
                return
            assert status == 200, reply
            with self.lock:
                self.told[reply["id"]] = reply

    def join(self):
        for t in self.threads:
            t.join(60)


def counts(folder):
    with kept_state(folder) as db:
        return db.execute("SELECT sum(requests), sum(read), sum(written) FROM usage").fetchone()


def kill_often(binary, tiny, folder, kills, rng):
    told, sent = {}, 0
    for _ in range(kills):
        server = Server(binary, *tiny, "--state-dir", folder, "--slots", "4")
        clients = Clients(server)
        until(lambda: clients.told)
        time.sleep(rng.uniform(0, 0.5))
        server.kill()
        clients.join()
        told |= clients.told
        sent += clients.sent
        requests, read, written = counts(folder)
        assert len(told) <= requests <= sent
        assert read >= sum(r["usage"]["input_tokens"] for r in told.values())
        assert written >= sum(r["usage"]["output_tokens"] for r in told.values())
    server = Server(binary, *tiny, "--state-dir", folder)
    try:
        for id, reply in told.items():
            assert server.ask(f"/v1/responses/{id}") == reply
        assert server.stop() == 0
    finally:
        server.kill()
    return len(told)


def test_killed_a_few_times(binary, tiny, tmp_path):
    assert kill_often(binary, tiny, tmp_path, 2, random.Random(1)) > 1


@pytest.mark.slow
def test_killed_a_hundred_times(binary, tiny, tmp_path):
    print(kill_often(binary, tiny, tmp_path, 100, random.Random(2)), "acknowledged responses are there after 100 kills")


def test_no_room(binary, tiny, tmp_path):
    """Files that may not grow (the kernel's limit stands for a full disk), then the state's own limit."""
    server = Server(binary, *tiny, "--state-dir", tmp_path)
    try:
        _, first = post(server, {})
        size = (tmp_path / "quern.db-wal").stat().st_size
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size + 8192, resource.RLIM_INFINITY))
        status, reply = 200, None
        told = [first]
        for _ in range(50):
            status, reply = post(server, {"input": "word " * 300})
            if status != 200:
                break
            told.append(reply)
        assert status == 507 and reply["error"]["code"] == "insufficient_storage" and "state folder" in reply["error"]["message"]
        assert post(server, {"store": False})[0] == 200  # the answer itself needs no disk
        for r in told:
            assert server.ask(f"/v1/responses/{r['id']}") == r
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        until(lambda: post(server, {})[0] == 200)
        usage = server.ask("/usage")["data"][0]
        assert server.stop() == 0
        assert counts(tmp_path)[0] >= usage["requests"] >= len(told) + 2
    finally:
        server.kill()
    server = Server(binary, *tiny, "--state-dir", tmp_path, "--limit", "state=1M")
    try:
        replies = [post(server, {"items": [{"role": "user", "content": "word " * 50000}]}, "/v1/conversations") for _ in range(8)]
        assert replies[-1][0] == 507 and "--limit state" in replies[-1][1]["error"]["message"]
        assert server.ask(f"/v1/responses/{first['id']}") == first
    finally:
        server.kill()


def test_what_is_found_at_the_start(binary, quern, tiny, tmp_path):
    serve = lambda *more, **kw: quern("serve", *tiny, "--port", 0, "--state-dir", tmp_path, *more, **kw)
    server = Server(binary, *tiny, "--state-dir", tmp_path)
    try:
        _, reply = post(server, {})
        # a second server on the folder; one without --state-dir goes on in memory
        done = serve()
        assert done.code == 75 and f"process {server.process.pid}" in done.err and "--state-dir" in done.err
        # the program beside it: show, export, backup, purge
        state = ("--state-dir", tmp_path)
        assert quern("state", "show", "--json", *state).json()["responses"] == 1
        lines = [json.loads(line) for line in quern("state", "export", *state).out.splitlines()]
        assert [x["body"] for x in lines if x["kind"] == "response"] == [reply]
        assert {x["kind"] for x in lines} == {"usage", "response", "item"}
        assert quern("state", "backup", tmp_path / "copy.db", *state).code == 0
        assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
        assert quern("state", "backup", tmp_path / "copy.db", *state).code == 64
        assert quern("state", "purge", *state).code == 64 and quern("state", "nothing", *state).code == 64
        assert quern("state", "purge", "--all", *state).out.startswith("1 ")
        assert server.request("GET", f"/v1/responses/{reply['id']}")[0] == 404
    finally:
        server.kill()
    # a newer version
    with sqlite3.connect(tmp_path / "quern.db") as db:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        db.execute("PRAGMA user_version = 999")
    done = serve()
    assert done.code == 64 and "version 999" in done.err and "newer program" in done.err
    with sqlite3.connect(tmp_path / "quern.db") as db:
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    # a damaged page: moved aside, with a sentence, and a new one begins
    data = bytearray((tmp_path / "quern.db").read_bytes())
    data[4096:8192] = random.Random(3).randbytes(4096)
    (tmp_path / "quern.db").write_bytes(data)
    for end in ("-wal", "-shm"):
        (tmp_path / f"quern.db{end}").unlink(missing_ok=True)
    server = Server(binary, *tiny, "--state-dir", tmp_path)
    try:
        assert any("damaged" in line and "a new one begins" in line for line in server.log)
        aside = list(tmp_path.glob("damaged-*.db"))
        assert len(aside) == 1 and aside[0].read_bytes() == bytes(data)
        assert post(server, {})[0] == 200
    finally:
        server.kill()
    # a folder that cannot be
    (tmp_path / "file").write_text("")
    done = quern("serve", *tiny, "--port", 0, "--state-dir", tmp_path / "file" / "state")
    assert done.code == 73 and "state folder" in done.err
    assert quern("serve", *tiny, "--port", 0, "--state-dir", tmp_path, "--no-state").code == 64


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root writes everywhere")
def test_a_folder_that_is_read_only(binary, tiny, tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o555)
    command = [str(binary), "serve", *map(str, tiny), "--port", "0", "--state-dir", str(folder)]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 73 and "cannot be written" in done.stderr


CLOCK = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
time_t time(time_t *t)
{
    char text[32] = "";
    struct timeval now;
    int fd = open(getenv("CLOCK_OFFSET"), O_RDONLY);
    long n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    gettimeofday(&now, 0);
    now.tv_sec += n > 0 ? atol(text) : 0;
    if (t)
        *t = now.tv_sec;
    return now.tv_sec;
}
"""


def test_a_clock_that_jumps(binary, tiny, tmp_path):
    """Nothing that is stored goes, and usage goes on; a day is counted by the clock as it is."""
    (tmp_path / "clock.c").write_text(CLOCK)
    if not shutil.which("cc") or "san" in str(binary):
        pytest.skip("needs a compiler, and no sanitizer")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "clock.so", tmp_path / "clock.c"], check=True)
    offset = tmp_path / "offset"
    offset.write_text("0")
    server = Server(binary, *tiny, "--state-dir", tmp_path / "state", "--keep-responses", "1h", "--no-sandbox",
                    env={**os.environ, "LD_PRELOAD": str(tmp_path / "clock.so"), "CLOCK_OFFSET": str(offset)})
    try:
        told = [post(server, {})[1]]
        for days in (400, -400, 0):
            offset.write_text(str(days * 86400))
            time.sleep(0.7)  # the loop looks a few times a second
            told.append(post(server, {})[1])
        assert all(server.ask(f"/v1/responses/{r['id']}") == r for r in told)
        assert len({r["day"] for r in server.ask("/usage?since=2000-01-01")["data"]}) == 3
        server.process.send_signal(signal.SIGTERM)
        log = server.process.stderr.read()
        assert "the time of day has jumped" in log  # how often depends on when the loop looks
        assert server.process.wait(40) == 0
        assert counts(tmp_path / "state")[0] == 4
    finally:
        server.kill()
