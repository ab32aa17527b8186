"""Ranks that are processes: by TCP as torchrun and LeaderWorkerSet name them, by MPI; what they do when one is lost."""
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from server import until
from test_ranks import DATA, model_of, tokens_of

QUICK = 60  # seconds within which survivors have ended, on a busy machine too


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def torchrun(rank, size, port):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def leader_worker_set(rank, size, port):
    return {"LWS_WORKER_INDEX": str(rank), "LWS_GROUP_SIZE": str(size), "LWS_LEADER_ADDRESS": "localhost",
            "QUERN_RANK_PORT": str(port)}


def stream_from(port, prompt, tokens):
    s = socket.create_connection(("127.0.0.1", port), timeout=60)
    body = '{"prompt": "%s", "max_tokens": %d, "stream": true, "ignore_eos": true}' % (prompt, tokens)
    s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return s


class Ranks:
    """Ranks(binary, 2, "serve", model): all of them started, rank 0 first."""

    def __init__(self, binary, size, *args, names=torchrun, wait=60, each=None, **env):
        self.meet, self.http = free_port(), free_port()
        args = [*map(str, args)] + (["--port", str(self.http), "--no-state"] if args[0] == "serve" else [])
        self.processes, self.readers, self.texts = [], [], [[] for _ in range(size)]
        for rank in range(size):
            words = [*args] if not each or rank not in each else [each[rank] if a == str(args[1]) else a for a in args]
            own = {**os.environ, **names(rank, size, self.meet), "QUERN_RANK_WAIT": str(wait), **env}
            self.processes.append(subprocess.Popen([str(binary), *map(str, words), "--threads", "1"], env=own, text=True,
                                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            self.readers.append(threading.Thread(target=self.read, args=(rank,), daemon=True))
            self.readers[-1].start()

    def read(self, rank):
        for line in self.processes[rank].stderr:
            self.texts[rank].append(line)

    def err(self, rank=0):
        return "".join(self.texts[rank])

    def ready(self):
        until(lambda: "ready at" in self.err() or self.processes[0].poll() is not None)
        assert self.processes[0].poll() is None, self.err()

    def stream(self, prompt, tokens):
        return stream_from(self.http, prompt, tokens)

    def kill(self, rank):
        self.processes[rank].send_signal(signal.SIGKILL)

    def ended(self, lost=None):
        """The exit codes of the survivors; all that they have said is there."""
        left = [i for i in range(len(self.processes)) if i != lost]
        codes = [self.processes[i].wait(QUICK) for i in left]
        for i in left:
            self.readers[i].join(QUICK)
        return codes

    def close(self):
        for p in self.processes:
            p.kill()
            p.wait()


@pytest.fixture
def ranks(binary):
    running = []

    def start(*args, **more):
        running.append(Ranks(binary, *args, **more))
        return running[-1]
    yield start
    for r in running:
        r.close()


@pytest.fixture(scope="session")
def mpirun(binary):
    """mpirun(2, "logits", ...) -> the finished process"""
    if not shutil.which("mpirun") or not (binary.parent / "libquern-mpi.so").exists():
        pytest.skip("no Open MPI here (scripts/setup test installs it)")

    def run(n, *args, start=subprocess.run, **more):
        return start(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(n), str(binary), *map(str, args), "--threads",
                      "1"], **more)
    return run


def close_to(got, one):
    assert got["argmax"] == one["argmax"]
    assert max(abs(a - b) for a, b in zip(got["last"], one["last"])) <= 1e-5 * max(map(abs, one["last"]))


@pytest.mark.parametrize("name,size,names,flags", [("mixtral", 2, torchrun, []), ("llama", 3, leader_worker_set, []),
                                                   ("gemma3", 4, torchrun, ["--pipeline", "2"])])
def test_tcp_ranks_give_the_logits_of_one_process(ranks, quern, name, size, names, flags):
    words = ["logits", model_of(name), "--exact", "--json", "--tokens", tokens_of(name)]
    one = quern(*words).json()
    team = ranks(size, *words, *flags, names=names)
    out = team.processes[0].stdout.read()
    assert team.ended() == [0] * size, team.err()
    close_to(json.loads(out), one)


@pytest.mark.parametrize("name", ["llama", "deepseek-v3", "jamba"])
def test_mpi_ranks_give_the_logits_of_one_process(mpirun, quern, name):
    words = ["logits", model_of(name), "--exact", "--json", "--tokens", tokens_of(name)]
    done = mpirun(2, *words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    close_to(json.loads(done.stdout), quern(*words).json())


# ---- a rank is lost ----

def kill_in(phase, team, rank=1):
    if phase == "load":
        time.sleep(random.random() * 0.15)
    else:
        team.ready()
    stream = None
    if phase == "prefill":
        stream = team.stream("word " * 1500, 400)
        time.sleep(random.random() * 0.1)
    if phase == "decode":
        stream = team.stream("once", 1900)
        while b"data:" not in stream.recv(4096):
            pass
    if phase == "idle":
        time.sleep(random.random() * 0.3)
    team.kill(rank)
    return stream


PHASES = ["load", "prefill", "decode", "idle"]


def killed(ranks, tiny, phase):
    team = ranks(3, "serve", *tiny, wait=4 if phase == "load" else 60)
    stream = kill_in(phase, team)
    assert team.ended(lost=1) == [70, 70], team.err()
    assert "rank 1" in team.err() or "have not come: 1" in team.err()
    is_cut(stream)
    team.close()


def is_cut(stream):
    """Cut off, or ended by an error: an answer never looks whole."""
    if stream:
        left = b"".join(iter(lambda: stream_part(stream), b""))
        assert b"[DONE]" not in left or b'"error"' in left
        assert b'"finish_reason":"' not in left


def stream_part(stream):
    try:
        return stream.recv(65536)
    except OSError:
        return b""


@pytest.mark.parametrize("phase", PHASES)
def test_survivors_of_a_killed_rank_end(ranks, tiny, phase):
    killed(ranks, tiny, phase)


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_survivors_end_twenty_times(ranks, tiny, phase):
    for _ in range(20):
        killed(ranks, tiny, phase)


class MpiRanks:
    """A server of three ranks under mpirun."""

    def __init__(self, mpirun, model):
        self.http, self.lines = free_port(), []
        self.job = mpirun(3, "serve", *model, "--port", self.http, "--no-state", start=subprocess.Popen, stderr=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        until(lambda: len(self.children()) == 3 or self.job.poll() is not None)
        self.pids = self.children()

    def read(self):
        for line in self.job.stderr:
            self.lines.append(line)

    def children(self):
        found = subprocess.run(["pgrep", "-P", str(self.job.pid), "-x", "quern"], capture_output=True, text=True).stdout
        return [int(pid) for pid in found.split()]

    def ready(self):
        until(lambda: any("ready at" in line for line in self.lines) or self.job.poll() is not None)
        assert self.job.poll() is None, "".join(self.lines)

    def stream(self, prompt, tokens):
        return stream_from(self.http, prompt, tokens)

    def kill(self, rank):
        os.kill(self.pids[rank], signal.SIGKILL)

    def gone(self):
        """Whether all ranks have ended; mpirun waits for them, so none stays as a zombie."""
        return not any(os.path.exists(f"/proc/{pid}") for pid in self.pids)

    def close(self):
        self.job.kill()
        self.job.wait()


def killed_under_mpirun(mpirun, tiny, phase, rank):
    """-> what the ranks and mpirun have said"""
    team = MpiRanks(mpirun, tiny)
    try:
        stream = kill_in(phase, team, rank)
        assert team.job.wait(QUICK) != 0, "".join(team.lines)
        until(team.gone, QUICK)
        is_cut(stream)
        team.reader.join(QUICK)
        return "".join(team.lines)
    finally:
        team.close()


def test_mpirun_fails_when_a_rank_is_killed(mpirun, tiny):
    said = killed_under_mpirun(mpirun, tiny, "idle", 1)
    assert "rank 1 of 3 is lost" in said
    assert "sandbox: closed: files" in said or "this kernel offers no Landlock" in said  # also for MPI's threads


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_mpirun_fails_twenty_times(mpirun, tiny, phase):
    for _ in range(20):
        killed_under_mpirun(mpirun, tiny, phase, random.randrange(3))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_counts_as_lost(ranks, tiny, rank):
    team = ranks(2, "serve", *tiny)
    team.ready()
    team.processes[rank].send_signal(signal.SIGSTOP)
    assert team.ended(lost=rank) == [70]
    assert f"rank {rank} of 2 is lost: it has given no sign of life" in team.err(1 - rank)


# ---- ranks that do not belong together ----

def test_another_model_on_a_rank(ranks):
    team = ranks(2, "logits", DATA / "llama", "--tokens", "1,2,3", each={1: DATA / "mistral"})
    assert team.ended() == [70, 70]
    assert "rank 1 has another model, or other options for it than rank 0" in team.err()


def test_a_file_with_other_contents_on_a_rank(ranks, tmp_path):
    other = shutil.copytree(DATA / "llama", tmp_path / "llama")
    data = bytearray((other / "model.safetensors").read_bytes())
    data[-1] ^= 0x10
    (other / "model.safetensors").write_bytes(data)
    team = ranks(2, "logits", DATA / "llama", "--tokens", "1,2,3", each={1: other})
    assert team.ended() == [70, 70]
    assert "rank 1 has a model file with other contents" in team.err()


def test_a_rank_that_does_not_come(ranks, binary):
    with subprocess.Popen([binary, "logits", DATA / "llama", "--tokens", "1,2", "--threads", "1"], stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **torchrun(0, 3, free_port()), "QUERN_RANK_WAIT": "1"}) as alone:
        assert alone.wait(QUICK) == 70
        assert "these of 3 ranks have not come: 1 2" in alone.stderr.read()


def greeting(version="0.1.0", key=b"", rank=1, size=2, magic=b"quernrk1"):
    return struct.pack("<8s24s64sIIIHH", magic, version.encode(), key, 2, rank, size, 0, 0)


def meet(port):
    """A connection to rank 0, once it listens."""
    met = []

    def connect():
        try:
            met.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        except OSError:
            return False
        return True
    until(connect)
    return met[0]


def test_strangers_are_turned_away_and_a_late_rank_is_not(binary, quern):
    port, words = free_port(), ["logits", DATA / "llama", "--exact", "--json", "--tokens", "1,2,3", "--threads", "1"]
    env = {**os.environ, "QUERN_RANK_WAIT": "60", "QUERN_RANK_KEY": "stone"}
    first = subprocess.Popen([binary, *words], env={**env, **torchrun(0, 2, port)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True)
    for bytes_ in (b"GET / HTTP/1.1\r\n\r\n" + b"x" * 200, greeting(), greeting(key=b"sand")):
        with meet(port) as s:
            s.sendall(bytes_)
            assert stream_part(s) == b""
    time.sleep(1)
    second = subprocess.run([binary, *words], env={**env, **torchrun(1, 2, port)}, capture_output=True, timeout=60)
    out, err = first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0), err
    assert err.count("turned away") == 3
    close_to(json.loads(out), quern(*words).json())


def test_another_version_on_a_rank(binary):
    port = free_port()
    first = subprocess.Popen([binary, "logits", DATA / "llama", "--tokens", "1,2"], stderr=subprocess.PIPE, text=True,
                             env={**os.environ, **torchrun(0, 2, port), "QUERN_RANK_WAIT": "60"})
    with meet(port) as s:
        s.sendall(greeting(version="9.9"))
        assert b"rank 1 has quern 9.9" in stream_part(s)
    assert first.wait(QUICK) == 70
    assert "rank 1 has quern 9.9, and rank 0 has" in first.stderr.read()


@pytest.mark.parametrize("env", [{"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "x", "WORLD_SIZE": "2"},
                                 {"RANK": "0", "WORLD_SIZE": "9999"}, {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "70000"}])
def test_an_environment_that_names_no_rank(quern, env):
    got = quern("logits", DATA / "llama", "--tokens", "1,2", env={"MASTER_ADDR": "localhost", **env})
    assert got.code == 64 and "in the environment" in got.err


def test_ranks_and_processes_that_do_not_match(ranks):
    team = ranks(2, "logits", DATA / "llama", "--tokens", "1,2", "--tensor-parallel", "3")
    assert team.ended()[0] == 64
    assert "make 3 ranks, and there are 2 processes" in team.err()
