"""Files and batches of a server: OpenAI's and Anthropic's, by their own clients; each line once, whatever stops the server."""
import json
import random
import signal
import subprocess
import time

import pytest

from server import Server, kept_state, parse, read_all, until

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

OPTIONS = ["--name", "smol", "--ctx", "512", "--slots", "4"]
ENDED = ("completed", "failed", "expired", "cancelled")


def line(i, **body):
    return {"custom_id": f"line-{i}", "method": "POST", "url": "/v1/completions",
            "body": {"model": "smol", "prompt": f"The number {i} is", "max_tokens": 2, "temperature": 0} | body}


def jsonl(lines):
    return "".join(json.dumps(x) + "\n" for x in lines).encode()


def upload(client, lines, purpose="batch"):
    return client.files.create(file=("in.jsonl", lines if isinstance(lines, bytes) else jsonl(lines)), purpose=purpose)


def start(client, lines, **fields):
    return client.batches.create(**({"input_file_id": upload(client, lines).id, "endpoint": "/v1/completions",
                                     "completion_window": "24h"} | fields))


def wait(client, batch, seconds=120):
    until(lambda: client.batches.retrieve(batch.id).status in ENDED, seconds)
    return client.batches.retrieve(batch.id)


def content(client, file):
    return [json.loads(x) for x in client.files.content(file).text.splitlines()] if file else []


@pytest.fixture(scope="module")
def server(binary, smollm2, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("one\ntwo\nlittle 10\n")
    s = Server(binary, smollm2, *OPTIONS, "--api-key-file", keys, "--state-dir", tmp_path_factory.mktemp("state"), "--limit",
               "file=64K", "--limit", "batch-lines=40", "--limit", "batches=4")
    yield s
    assert s.stop() == 0


def test_files(server):
    one, two = server.client("one"), server.client("two")
    data = bytes(range(256)) * 200
    file = upload(one, data, "user_data")
    assert (file.bytes, file.filename, file.purpose, file.expires_at) == (len(data), "in.jsonl", "user_data", None)
    other = one.files.create(file=("b.jsonl", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    assert other.expires_at == other.created_at + 3600
    assert one.files.content(file.id).content == data
    assert [f.id for f in one.files.list()] == [other.id, file.id]
    assert [f.id for f in one.files.list(order="asc", limit=1)] == [file.id, other.id]  # two pages
    assert [f.id for f in one.files.list(purpose="batch")] == [other.id] and not two.files.list().data
    for ask in (lambda: two.files.retrieve(file.id), lambda: two.files.content(file.id), lambda: two.files.delete(file.id),
                lambda: one.files.retrieve("file-none")):
        with pytest.raises(openai.NotFoundError):
            ask()
    with pytest.raises(openai.APIStatusError) as too_large:
        upload(one, b"x" * (65 << 10))
    assert too_large.value.status_code == 413
    for body, kind in [(b"--x\r\n", "multipart/form-data; boundary=x"), (b"--x--\r\n", "multipart/form-data; boundary=x"),
                       (b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\na\r\n--x--', "multipart/form-data; boundary=x")]:
        assert server.request("POST", "/v1/files", body, Content_Type=kind, x_api_key="one")[0] == 400
    assert server.request("POST", "/v1/files", b"{}", x_api_key="one")[0] == 415
    with server.connect() as wire:  # without a key a file is not read
        wire.sendall(b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
                     b"Content-Length: 60000\r\n\r\n--x\r\n")
        assert parse(read_all(wire))[0] == 401
    assert one.files.delete(file.id).deleted and one.files.delete(other.id).deleted and not one.files.list().data


def test_a_batch_of_openai(server):
    one, two = server.client("one"), server.client("two")
    batch = start(one, [line(i) for i in range(12)] + [line(12, model="none")], metadata={"for": "test"})
    assert batch.status == "validating" and batch.metadata == {"for": "test"}
    done = wait(one, batch)
    assert done.status == "completed" and done.completed_at and done.in_progress_at and done.expires_at == done.created_at + 86400
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (13, 12, 1)
    replies, errors = content(one, done.output_file_id), content(one, done.error_file_id)
    assert sorted(r["custom_id"] for r in replies) == sorted(f"line-{i}" for i in range(12))
    assert all(r["response"]["body"]["choices"][0]["text"] and r["error"] is None for r in replies)
    assert [r["custom_id"] for r in errors] == ["line-12"] and errors[0]["response"]["status_code"] == 404
    assert one.files.retrieve(done.output_file_id).bytes == len(one.files.content(done.output_file_id).content)
    assert [b.id for b in one.batches.list(limit=1)][0] == batch.id and not two.batches.list().data
    for ask in (lambda: two.batches.retrieve(batch.id), lambda: two.batches.cancel(batch.id),
                lambda: two.files.content(done.output_file_id)):
        with pytest.raises(openai.NotFoundError):
            ask()
    one.files.delete(done.output_file_id)
    with pytest.raises(openai.NotFoundError):
        one.files.content(done.output_file_id)


def test_inputs_that_are_wrong(server):
    client = server.client("one")
    for lines, code in [([line(1), line(1)], "duplicate_custom_id"), (b"{}\nhello\n", "invalid_request"), (b"\n", "empty_file"),
                        ([line(i) for i in range(41)], "too_many_tasks"), ([line(1) | {"url": "/v1/embeddings"}], "invalid_request")]:
        batch = wait(client, start(client, lines))
        assert batch.status == "failed" and batch.errors.data[-1].code == code and batch.failed_at, batch
        assert batch.output_file_id is None
    for fields in ({"endpoint": "/v1/models"}, {"completion_window": "soon"}, {"input_file_id": "file-none"}, {"metadata": {"a": 1}}):
        with pytest.raises(openai.BadRequestError):
            start(client, [line(1)], **fields)


def test_cancel_expiry_and_how_many(server):
    client = server.client("one")
    long = [line(i, max_tokens=200, ignore_eos=True) for i in range(40)]
    batches = [start(client, long), start(client, long, completion_window="2s")] + [start(client, long) for _ in range(2)]
    with pytest.raises(openai.RateLimitError):
        start(client, long)
    for b in (batches[0], *batches[2:]):
        assert client.batches.cancel(b.id).status in ("cancelling", "cancelled")
    for b, status, code in [(batches[0], "cancelled", "batch_cancelled"), (batches[1], "expired", "batch_expired"),
                            (batches[2], "cancelled", "batch_cancelled"), (batches[3], "cancelled", "batch_cancelled")]:
        b = wait(client, b)
        assert b.status == status and getattr(b, f"{status}_at")
        replies, errors = content(client, b.output_file_id), content(client, b.error_file_id)
        ids = [r["custom_id"] for r in replies + errors]
        assert b.request_counts.completed == len(replies) and {e["error"]["code"] for e in errors} <= {code}
        assert sorted(ids) == sorted(x["custom_id"] for x in long) or not ids  # none where it was cancelled before it was read
    server.request("GET", "/health")


def test_a_batch_of_anthropic(server):
    client = anthropic.Anthropic(base_url=server.url, api_key="two", max_retries=0)
    other = anthropic.Anthropic(base_url=server.url, api_key="one", max_retries=0)

    def requests(n, **more):
        params = {"model": "smol", "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]} | more
        return [{"custom_id": f"m-{i}", "params": params} for i in range(n)]
    batch = client.messages.batches.create(requests=requests(6) + [{"custom_id": "bad", "params": {"model": "smol"}}])
    assert batch.processing_status == "in_progress" and batch.request_counts.processing == 7
    until(lambda: client.messages.batches.retrieve(batch.id).processing_status == "ended")
    batch = client.messages.batches.retrieve(batch.id)
    assert (batch.request_counts.succeeded, batch.request_counts.errored) == (6, 1) and batch.ended_at
    results = {r.custom_id: r.result for r in client.messages.batches.results(batch.id)}
    assert sorted(results) == sorted([f"m-{i}" for i in range(6)] + ["bad"])
    assert results["m-0"].message.content[0].text and results["bad"].error.error.type == "invalid_request_error"
    assert [b.id for b in client.messages.batches.list(limit=1)] == [batch.id] and not other.messages.batches.list().data
    with pytest.raises(anthropic.NotFoundError):
        other.messages.batches.retrieve(batch.id)
    long = client.messages.batches.create(requests=requests(30, max_tokens=300))
    with pytest.raises(anthropic.BadRequestError):
        client.messages.batches.delete(long.id)
    assert client.messages.batches.cancel(long.id).processing_status in ("canceling", "ended")
    until(lambda: client.messages.batches.retrieve(long.id).processing_status == "ended")
    counts = client.messages.batches.retrieve(long.id).request_counts
    assert counts.canceled + counts.succeeded == 30
    assert {r.result.type for r in client.messages.batches.results(long.id)} <= {"canceled", "succeeded"}
    assert client.messages.batches.delete(long.id).id == long.id
    for bad in (requests(2) + requests(1), [{"custom_id": "a b", "params": {}}], [{"custom_id": "a"}], []):
        with pytest.raises(anthropic.BadRequestError):
            client.messages.batches.create(requests=bad)


def test_a_quota_counts_for_batches(server):
    client = server.client("little")
    done = wait(client, start(client, [line(i) for i in range(12)]))
    errors = content(client, done.error_file_id)
    assert errors and errors[-1]["response"]["status_code"] == 429
    assert errors[-1]["response"]["body"]["error"]["code"] == "insufficient_quota"


def some_lines_later(server, batch, rng, lines):
    """Waits until a batch has that many more lines or has ended, and a moment -> what it says then. The machine's speed decides
    how long that takes, and not whether it comes about: the hour is for one that hangs."""
    state = lambda: server.ask(f"/v1/batches/{batch.id}")
    goal = state()["request_counts"]["completed"] + lines
    until(lambda: state()["status"] in ENDED or state()["request_counts"]["completed"] >= goal, 3600)
    time.sleep(rng.uniform(0, 0.05))
    return state()


def kill_while_it_starts(args, rng):
    process = subprocess.Popen([str(args[0]), "serve", *map(str, args[1:]), "--port", "0"], stderr=subprocess.DEVNULL)
    time.sleep(rng.uniform(0, 0.3))
    process.kill()
    assert process.wait() == -signal.SIGKILL


def stored_replies(folder):
    """{(batch, line): status and reply}, which the batches have counted"""
    with kept_state(folder) as db:
        found = db.execute("SELECT batch, number, status, reply FROM batch_lines WHERE status IS NOT NULL").fetchall()
        assert db.execute("SELECT sum(completed + failed) FROM batches").fetchone() == (len(found),)
    return {(batch, number): reply for batch, number, *reply in found}


def kill_and_go_on(binary, smollm2, folder, kills, count, seed):
    """Batches of so many lines, one after the other, until as many kills as asked for have hit them -> how many batches"""
    rng, done, ended, replies = random.Random(seed), 0, {}, {}
    args = [binary, smollm2, *OPTIONS, "--state-dir", folder]
    server = Server(*args)
    try:
        while done < kills:
            batch, state, lines = start(server.client(), [line(i) for i in range(count)]), {"status": None}, 0
            while done < kills and state["status"] not in ENDED:
                state = some_lines_later(server, batch, rng, lines)
                lines = rng.randint(1, 30)  # none before the first kill, which may come while the file is read
                server.kill()
                done += 1
                if done < kills and rng.random() < 0.25:
                    kill_while_it_starts(args, rng)
                    done += 1
                before, replies = replies, stored_replies(folder)
                assert len(replies) >= count * len(ended) + state["request_counts"]["completed"]  # what it was told
                assert all(replies.get(at) == reply for at, reply in before.items())  # what was stored stays as it is
                server = Server(*args)
            batch = wait(server.client(), batch, 3600)
            assert batch.status == "completed" and batch.request_counts.completed == batch.request_counts.total == count, batch
            ended[batch.output_file_id] = content(server.client(), batch.output_file_id)
            assert sorted(r["custom_id"] for r in ended[batch.output_file_id]) == sorted(f"line-{i}" for i in range(count))
        client = server.client()
        assert all(content(client, file) == lines for file, lines in ended.items())
        assert server.stop() == 0
    finally:
        server.kill()
    assert len(stored_replies(folder)) == count * len(ended)
    return len(ended)


def test_killed_now_and_then(binary, smollm2, tmp_path):
    kill_and_go_on(binary, smollm2, tmp_path, 3, 60, 1)


def test_killed_while_a_batch_is_read(binary, smollm2, tmp_path):
    """It is read anew, whatever was stored of it. (On a machine that reads it at once the kills come later; that is as good.)"""
    rng, args, count = random.Random(3), [binary, smollm2, *OPTIONS, "--state-dir", tmp_path], 20000
    server = Server(*args)
    try:
        batch = start(server.client(), [line(i) for i in range(count)])
        for _ in range(3):
            time.sleep(rng.uniform(0, 0.3))
            server.kill()
            server = Server(*args)
        until(lambda: server.ask(f"/v1/batches/{batch.id}")["status"] != "validating", 3600)
        found = server.ask(f"/v1/batches/{batch.id}")
        assert found["status"] in ("in_progress", "completed") and found["request_counts"]["total"] == count, found
    finally:
        server.kill()
    with kept_state(tmp_path) as db:
        assert db.execute("SELECT count(*), count(DISTINCT custom_id) FROM batch_lines").fetchone() == (count, count)


@pytest.mark.slow
def test_killed_a_hundred_times(binary, smollm2, tmp_path):
    print("killed 100 times in", kill_and_go_on(binary, smollm2, tmp_path, 100, 600, 2), "batches of 600 lines")


def test_a_stop_by_signal_goes_on(binary, smollm2, tmp_path):
    server = Server(binary, smollm2, *OPTIONS, "--state-dir", tmp_path)
    batch = start(server.client(), [line(i, max_tokens=8, ignore_eos=True) for i in range(16)])
    until(lambda: server.client().batches.retrieve(batch.id).request_counts.completed > 2)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0  # lines that run do not hold it up
    server = Server(binary, smollm2, *OPTIONS, "--state-dir", tmp_path)
    done = wait(server.client(), batch)
    assert done.request_counts.completed == 16 and len(content(server.client(), done.output_file_id)) == 16
    assert server.stop() == 0


def test_no_room(binary, smollm2, tmp_path):
    """507 where the state is full; what was accepted is there afterwards, and goes on when there is room."""
    args = [binary, smollm2, *OPTIONS, "--state-dir", tmp_path]
    server = Server(*args, "--limit", "state=1M")
    client = server.client()
    batch, kept = start(client, [line(i) for i in range(8)]), []
    with pytest.raises(openai.APIStatusError) as full:
        for i in range(40):
            kept.append((upload(client, (b"%d" % i) * 40000, "user_data"), (b"%d" % i) * 40000))
    assert full.value.status_code == 507 and "limit" in str(full.value) and kept
    with pytest.raises(openai.APIStatusError) as full:
        client.batches.create(input_file_id=kept[0][0].id, endpoint="/v1/completions", completion_window="24h")
    assert full.value.status_code == 507
    server.kill()
    server = Server(*args)
    client = server.client()
    assert all(client.files.content(f.id).content == data for f, data in kept)
    assert wait(client, batch).request_counts.completed == 8
    assert server.stop() == 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 12 MiB, where this user may mount one."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", tmp_path], capture_output=True).returncode:
        pytest.skip("no right to mount a tmpfs")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_full_disk(binary, smollm2, small_disk):
    """A batch pauses while the disk is full, and goes on: each line once."""
    server = Server(binary, smollm2, *OPTIONS, "--state-dir", small_disk / "state")
    client = server.client()
    batch = start(client, [line(i) for i in range(24)])
    until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 1)
    with pytest.raises(OSError), open(small_disk / "fill", "wb", buffering=0) as fill:
        while fill.write(bytes(65536)):
            pass
    with pytest.raises(openai.APIStatusError) as full:
        upload(client, [line(1)])
    assert full.value.status_code == 507
    time.sleep(1.5)  # replies that were under way have found no room
    assert client.batches.retrieve(batch.id).status in ("in_progress", "completed")
    (small_disk / "fill").unlink()
    done = wait(client, batch)
    assert done.request_counts.completed == 24
    assert sorted(r["custom_id"] for r in content(client, done.output_file_id)) == sorted(f"line-{i}" for i in range(24))
    assert server.stop() == 0
