"""quern batch: each line once, whatever stops it."""
import json
import random
import signal
import subprocess
import time

import pytest

from server import until


def line(number, prompt="The number", url="/v1/completions", **body):
    body = body or {"prompt": f"{prompt} {number} is", "max_tokens": 2, "temperature": 0}
    return {"custom_id": f"line-{number}", "method": "POST", "url": url, "body": {"model": "any", **body}}


def write(path, lines):
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return path


def read(path):
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []


def whole(path):
    """The lines of an output that have their ends."""
    data = path.read_bytes() if path.exists() else b""
    return data[:data.rfind(b"\n") + 1]


def kill_later(process, out, rng):
    """Kills it while it starts, or when it has written some more lines, unless it ends before. The machine's speed decides how
    long that takes, and not whether it comes about: the hour is for one that hangs."""
    if rng.random() < 0.25:
        time.sleep(rng.uniform(0, 0.2))
    else:
        goal = whole(out).count(b"\n") + rng.randint(1, 30)
        until(lambda: process.poll() is not None or whole(out).count(b"\n") >= goal, 3600)
        time.sleep(rng.uniform(0, 0.05))
    process.kill()


def kill_and_go_on(binary, smollm2, folder, kills, count, seed):
    """Batches of so many lines, one after the other, until as many kills as asked for have hit them -> how many batches"""
    rng, done, batches = random.Random(seed), 0, 0
    while done < kills:
        source = write(folder / f"in-{batches}.jsonl", [line(i) for i in range(count)])
        out, kept, code = folder / f"out-{batches}.jsonl", b"", -signal.SIGKILL
        while code == -signal.SIGKILL:
            process = subprocess.Popen([str(binary), "batch", str(source), "-o", str(out), str(smollm2)], stderr=subprocess.PIPE,
                                       text=True)
            if done < kills:
                kill_later(process, out, rng)
            err, code = process.communicate(timeout=3600)[1], process.returncode
            assert whole(out).startswith(kept)  # what was written stays as it is
            kept = whole(out)
            done += code == -signal.SIGKILL
        assert code == 0, err
        assert out.read_bytes() == kept
        assert_each_once(out, count)
        batches += 1
    return batches


def assert_each_once(out, count):
    replies = read(out)
    assert sorted(r["custom_id"] for r in replies) == sorted(f"line-{i}" for i in range(count))
    assert all(r["response"]["status_code"] == 200 and r["response"]["body"]["choices"] for r in replies)


def test_every_kind_of_line(quern, smollm2, tmp_path):
    say = [{"role": "user", "content": "Say hello."}]
    lines = [line(0), line(1, url="/v1/chat/completions", messages=say, max_tokens=3),
             line(2, url="/v1/embeddings", input=["a", "b"]), line(3, url="/v1/responses", input="a", max_output_tokens=3),
             line(4, url="/v1/messages", messages=say, max_tokens=3), line(5, url="/v1/chat/completions", messages=[]),
             line(6, prompt="a", max_tokens=2, stream=True)]
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    done = quern("batch", source, "-o", out, smollm2, "--slots", "2")
    assert done.code == 65 and "2 of 7 lines failed" in done.err, done.err
    replies = {r["custom_id"]: r for r in read(out)}
    errors = {r["custom_id"]: r for r in read(tmp_path / "out.errors.jsonl")}
    assert sorted(replies) == [f"line-{i}" for i in range(5)] and sorted(errors) == ["line-5", "line-6"]
    for r in replies.values():
        assert set(r) == {"id", "custom_id", "response", "error"} and r["error"] is None
        assert r["response"]["status_code"] == 200 and r["response"]["request_id"]
    kinds = [replies[f"line-{i}"]["response"]["body"].get("object", "message") for i in range(5)]
    assert kinds == ["text_completion", "chat.completion", "list", "response", "message"]
    assert len(replies["line-2"]["response"]["body"]["data"]) == 2
    for r in errors.values():
        assert r["response"]["status_code"] == 400 and r["response"]["body"]["error"]["message"]
    before = out.read_bytes()
    done = quern("batch", source, "-o", out, smollm2)  # nothing is left
    assert done.code == 65 and out.read_bytes() == before


def test_inputs_that_are_refused(quern, smollm2, tmp_path):
    out = tmp_path / "out.jsonl"
    for lines, sentence in [
            ([line(1), line(2), line(1)], "lines 1 and 3 have the same custom_id"),
            ([line(1), {"custom_id": ""}], "line 2: custom_id has to be"),
            ([line(1) | {"method": "GET"}], "line 1: method has to be POST"),
            ([line(1) | {"url": "/v1/models"}], "line 1: url has to be"),
            ([line(1) | {"body": []}], "line 1: body has to be"),
            ([], "has no lines")]:
        done = quern("batch", write(tmp_path / "in.jsonl", lines), "-o", out, smollm2)
        assert done.code == 65 and sentence in done.err, done.err
    (tmp_path / "in.jsonl").write_text('{"custom_id": "a"')
    assert "line 1" in quern("batch", tmp_path / "in.jsonl", "-o", out, smollm2).err
    source = write(tmp_path / "in.jsonl", [line(1)])
    assert "is the input" in quern("batch", source, "-o", source, smollm2).err
    assert quern("batch", source, smollm2).code == 64
    for text, sentence in [('{"custom_id": "other"}\n', "which is not in"), ('hello\n{"custom_id": "line-1"}\n', "line 1: no reply"),
                           ('{"custom_id": "line-1"}\n' * 2, "a second reply")]:
        out.write_text(text)
        done = quern("batch", source, "-o", out, smollm2)
        assert done.code == 65 and sentence in done.err and out.read_text() == text


def test_a_full_disk_loses_nothing(quern, binary, smollm2, tmp_path):
    source, out = write(tmp_path / "in.jsonl", [line(i) for i in range(12)]), tmp_path / "out.jsonl"
    limited = subprocess.run(["sh", "-c", 'ulimit -f 4; exec "$@"', "sh", str(binary), "batch", str(source), "-o", str(out),
                              str(smollm2)], capture_output=True, text=True)
    assert limited.returncode == 73 and "goes on from here" in limited.stderr, limited.stderr
    assert all(json.loads(x) for x in out.read_text().splitlines()) and out.read_text().endswith("\n")
    assert quern("batch", source, "-o", out, smollm2).code == 0
    assert_each_once(out, 12)


def test_a_torn_line_and_ctrl_c(quern, binary, smollm2, tmp_path):
    source, out = write(tmp_path / "in.jsonl", [line(i) for i in range(200)]), tmp_path / "out.jsonl"
    process = subprocess.Popen([str(binary), "batch", str(source), "-o", str(out), str(smollm2)], stderr=subprocess.PIPE, text=True)
    while not (out.exists() and out.read_text().count("\n") >= 4):
        time.sleep(0.02)
    second = quern("batch", source, "-o", out, smollm2)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "the same command goes on" in err, err
    assert second.code == 75 and "another process writes" in second.err
    few = out.read_text().splitlines()
    source = write(tmp_path / "in.jsonl", [line(i) for i in range(200) if i < 8 or any(f'"line-{i}"' in x for x in few)])
    out.write_text("\n".join(few[:3]) + "\n" + few[3][:40])  # a torn line
    count = len(read(source))
    done = quern("batch", source, "-o", out, smollm2)
    assert done.code == 0 and f"3 of {count} lines are done" in done.err
    assert sorted(r["custom_id"] for r in read(out)) == sorted(r["custom_id"] for r in read(source))


def test_killed_now_and_then(binary, smollm2, tmp_path):
    kill_and_go_on(binary, smollm2, tmp_path, 3, 60, 1)


@pytest.mark.slow
def test_killed_a_hundred_times(binary, smollm2, tmp_path):
    print("killed 100 times in", kill_and_go_on(binary, smollm2, tmp_path, 100, 600, 2), "batches of 600 lines")
