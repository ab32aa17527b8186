"""A server of quern's for the tests, and what is read from it."""
import json
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest


class Server:
    """Server(binary, "model.gguf", "--slots", "2"): a server on a port of its own."""

    def __init__(self, binary, *args, env=None, port=0):
        self.process = subprocess.Popen([str(binary), "serve", *map(str, args), "--port", str(port)], stderr=subprocess.PIPE, text=True,
                                        env=env)
        self.log = []  # up to the line that says that it is ready
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"ready at http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found.group(1))
                break
        else:
            pytest.fail(f"the server did not start, exit status {self.process.wait()}:\n{''.join(self.log)}")
        self.url = f"http://127.0.0.1:{self.port}"

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=600)

    def send(self, text):
        """Raw bytes out; everything that comes until the server closes (or nothing more for a while)."""
        with self.connect() as s:
            s.sendall(text if isinstance(text, bytes) else text.encode())
            return read_all(s)

    def request(self, method, path, body=None, **headers):
        """-> status, headers, body"""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        head = {"Host": "localhost", "Connection": "close", **{k.replace("_", "-"): v for k, v in headers.items()}}
        if body is not None:
            head |= {"Content-Length": str(len(data)), "Content-Type": "application/json"} | head
        lines = "".join(f"{k}: {v}\r\n" for k, v in head.items())
        return parse(self.send(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + data))

    def ask(self, path, body=None, **headers):
        """-> the JSON of a 200"""
        status, _, reply = self.request("POST" if body is not None else "GET", path, body, **headers)
        assert status == 200, (status, reply)
        return json.loads(reply)

    def metric(self, name):
        return int(re.search(rf"^{name} (\d+)$", self.request("GET", "/metrics")[2].decode(), re.M).group(1))

    def settle(self):
        """Waits until nothing runs."""
        until(lambda: self.metric("quern_running") + self.metric("quern_waiting") + self.metric("quern_answers") == 0)

    def client(self, key="none"):
        openai = pytest.importorskip("openai")
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=600)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def kill(self):
        """Ends it at once. After this its files, locks and port are free."""
        self.process.kill()
        self.process.wait()


@contextmanager
def kept_state(folder):
    """The database of a state folder whose server is gone, which has to be sound. It is a copy: a reader of the folder itself
    would recover the log of a server that was killed, which is the work of the next one."""
    with tempfile.TemporaryDirectory() as copy:
        for name in ("quern.db", "quern.db-wal"):
            if (folder / name).exists():
                shutil.copy(folder / name, copy)
        with closing(sqlite3.connect(Path(copy) / "quern.db")) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            yield db


def until(condition, seconds=60):
    """Waits for something to become true."""
    end = time.time() + seconds
    while not condition():
        if time.time() > end:
            pytest.fail("it did not come about")
        time.sleep(0.05)


def read_all(s):
    out = b""
    while part := s.recv(65536):
        out += part
    return out


def parse(raw):
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        data, rest = b"", body
        while (size := int(rest.split(b"\r\n", 1)[0], 16)):
            rest = rest.split(b"\r\n", 1)[1]
            data, rest = data + rest[:size], rest[size + 2:]
        body = data
    return int(lines[0].split()[1]), headers, body


def events(body):
    """The data of every event; checks the framing."""
    text = body.decode()
    assert text.endswith("data: [DONE]\n\n")
    parts = [p for p in text.split("\n\n")[:-2] if p != ":"]
    assert all(p.startswith("data: ") and "\n" not in p for p in parts)
    return [json.loads(p[6:]) for p in parts]
