"""Files of models that change while they are in use: bytes count, times do not; a change costs one model, never the process."""
import os
import shutil
import signal
import subprocess

import pytest

from server import Server, until

STORY = ("-p", "Tell me a long story about a mill.", "-n", "30", "--temp", "0", "--raw", "--ignore-eos", "--ctx", "512")
WEIGHT = 60_000_000  # a place in the weights of SmolLM2


@pytest.fixture
def copy(smollm2, tmp_path):
    path = tmp_path / "m.gguf"
    shutil.copyfile(smollm2, path)
    return path


def write(path, at, data=None):
    """data None: the bytes that are there."""
    with open(path, "r+b") as f:
        f.seek(at)
        data = data or f.read(64)
        f.seek(at)
        f.write(data)


def running(binary, copy, *more):
    """A run that has written its first byte."""
    p = subprocess.Popen([binary, "run", copy, *STORY, *more], bufsize=0, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # communicate would miss what a buffer holds
    return p, p.stdout.read(1)


def touched(path):
    subprocess.run(["touch", path], check=True)
    os.utime(path, (1, 1))
    os.close(os.open(path, os.O_RDWR))
    os.chmod(path, 0o600)
    write(path, WEIGHT)


def test_run_goes_on_where_no_byte_changes(binary, copy):
    p, begun = running(binary, copy)
    alone = begun + p.communicate(timeout=120)[0]
    p, begun = running(binary, copy)
    touched(copy)
    out, err = p.communicate(timeout=120)
    assert p.returncode == 0 and begun + out == alone, err


@pytest.mark.parametrize("change", [lambda path: write(path, WEIGHT, bytes(4096)), lambda path: os.truncate(path, 1 << 20)])
def test_run_ends_where_bytes_change(binary, copy, change):
    p, _ = running(binary, copy, "-n", "400")
    change(copy)
    _, err = p.communicate(timeout=120)
    assert p.returncode == 74 and b"quern: the model file was changed or cut short while it was in use" in err and b"m.gguf" in err


def test_what_was_read_into_memory_stays(binary, copy):
    p, _ = running(binary, copy, "--no-mmap")
    os.truncate(copy, 1 << 20)
    _, err = p.communicate(timeout=120)
    assert p.returncode == 0, err


def test_a_command_that_has_the_file_open_lets_writers_in(binary, copy):
    p = subprocess.Popen([binary, "info", copy, "--json", "--metadata"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.stdout.read(1) == b"{"  # the rest does not fit into the pipe
    touched(copy)
    write(copy, WEIGHT, bytes(4096))
    os.truncate(copy, 100)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0 and out.endswith(b"}\n"), err


def test_quantize_does_not_write_what_has_changed(binary, tmp_path, copy):
    writer = os.open(copy, os.O_WRONLY)
    p = subprocess.Popen([binary, "quantize", copy, tmp_path / "out.gguf", "Q8_0"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    while len(os.listdir(tmp_path)) == 1 and p.poll() is None:  # its temporary file
        pass
    p.send_signal(signal.SIGSTOP)
    os.pwrite(writer, bytes(4096), WEIGHT)
    os.close(writer)
    p.send_signal(signal.SIGCONT)
    _, err = p.communicate(timeout=120)
    assert p.returncode == 74 and os.listdir(tmp_path) == ["m.gguf"], err


# ---- the server ----

def texts(server, name):
    return server.ask("/v1/completions", {"model": name, "prompt": "One, two,", "max_tokens": 6, "temperature": 0})["choices"][0]["text"]


def status(server, name):
    return server.request("POST", "/v1/completions", {"model": name, "prompt": "One, two,", "max_tokens": 6, "temperature": 0})[0]


def loads(server):
    return server.metric("quern_model_loads_total")


@pytest.fixture
def two(smollm2, tmp_path):
    for name in "ab":
        shutil.copyfile(smollm2, tmp_path / f"{name}.gguf")
    return tmp_path / "a.gguf", tmp_path / "b.gguf"


def test_a_change_takes_one_model_out(binary, two, smollm2):
    a, b = two
    server = Server(binary, a, b, "--ctx", "512")
    before = texts(server, "a")
    assert texts(server, "b") == before and loads(server) == 2
    touched(a)
    assert texts(server, "a") == before and loads(server) == 2
    # a stream that runs while the bytes change gets an error and no wrong token; the other model goes on
    with server.connect() as c:
        body = b'{"model": "a", "prompt": "Count:", "max_tokens": 480, "stream": true, "ignore_eos": true, "temperature": 0}'
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                  b"Connection: close\r\n\r\n" % len(body) + body)
        seen = c.recv(4096)
        write(a, WEIGHT, bytes(4096))
        while part := c.recv(65536):
            seen += part
    assert b"200 OK" in seen and b"was changed or cut short" in seen and str(a).encode() not in seen
    assert texts(server, "b") == before
    # the next request loads what is there now: here the old bytes again
    shutil.copyfile(smollm2, a)
    until(lambda: status(server, "a") == 200)
    assert texts(server, "a") == before and loads(server) >= 3
    # cut short while idle: it is taken out without a request, and the process stays
    os.truncate(b, 1 << 20)
    until(lambda: {m["id"]: m["status"]["value"] for m in server.ask("/v1/models")["data"]}["b"] == "unloaded")
    assert status(server, "b") == 500 and texts(server, "a") == before
    # replaced by rename: what is loaded stays
    count = loads(server)
    os.rename(b, a)
    assert texts(server, "a") == before and loads(server) == count
    assert server.stop() == 0


def test_a_server_without_mmap_does_not_mind(binary, two):
    a, b = two
    server = Server(binary, a, b, "--ctx", "512", "--no-mmap")
    before = texts(server, "a")
    touched(a)
    write(a, WEIGHT, bytes(4096))
    assert texts(server, "a") == before
    os.truncate(a, 100)
    assert texts(server, "a") == before and loads(server) == 1
    assert server.stop() == 0
