"""A Hub on loopback, for the tests of fetching: the API and the headers that the real one has, a store on another
port to which large files are redirected, and faults on demand. Both quern and huggingface_hub are pointed at it."""
import hashlib
import http.server
import json
import re
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from dataclasses import dataclass, field

LARGE = 10_000  # bytes from which a file is in the store, as with LFS


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repo:
    files: dict
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    gated: bool = False  # opens with HubServer.TOKEN only

    def etag(self, name):
        data = self.files[name]
        return hashlib.sha256(data).hexdigest() if len(data) >= LARGE else git_sha1(data)


@dataclass
class Fault:
    """What goes wrong with one answer."""
    status: int = 0          # instead of the file
    headers: dict = field(default_factory=dict)
    cut: int = -1            # close after so many bytes of the body
    stall: int = -1          # say nothing more after so many bytes
    longer: int = 0          # Content-Length says so many bytes more
    flip: int = -1           # this byte of the file is wrong
    no_range: bool = False   # Range is not understood: the whole file, 200
    other_range: bool = False
    total: int = 0           # Content-Range says that the file is so much longer
    location: str = ""       # redirect there
    extra: int = 0           # bytes more than Content-Length


class HubServer:
    TOKEN = "hf_secret"

    def __init__(self, tls=None):
        """tls: (certificate, key) files for the Hub's side; the store speaks http all the same."""
        self.repos = {}
        self.tls = tls
        self.fault = lambda request: None  # request: {"role", "method", "path", "range", "token"} -> Fault or None
        self.log = []
        self.stopping = threading.Event()
        self.hub, self.store = (self._server(role) for role in ("hub", "store"))
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.hub.server_port}"
        self.store_url = f"http://127.0.0.1:{self.store.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for server in (self.hub, self.store):
            server.shutdown()
            server.server_close()

    def add(self, name, files, **more):
        self.repos[name] = Repo(files, **more)
        return self.repos[name]

    def _server(self, role):
        outer = self

        class Handler(_Handler):
            hub = outer
            kind = role

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        if self.tls and role == "hub":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.tls)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    def seen(self, role=None, method=None):
        return [r for r in self.log if (not role or r["role"] == role) and (not method or r["method"] == method)]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def setup(self):
        super().setup()
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_):
        pass

    def do_GET(self):
        try:
            self.answer()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_HEAD = do_GET

    def answer(self):
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        request = {"role": self.kind, "method": self.command, "path": path, "range": self.headers.get("Range"),
                   "token": self.headers.get("Authorization")}
        self.hub.log.append(request)
        fault = self.hub.fault(request) or Fault()
        if fault.status:
            return self.plain(fault.status, b"no", fault.headers)
        if fault.location:
            return self.plain(302, b"", {"Location": fault.location})
        if self.kind == "store":
            _, repo, name = re.fullmatch(r"/(store)/([^/]+/[^/]+)/(.+)", path).groups()
            return self.file(self.hub.repos[repo].files[name], {"ETag": '"store-etag"'}, fault)
        if path == "/api/models":
            word = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["search"][0].lower()
            found = [{"id": name, "downloads": 7, "likes": 1} for name in sorted(self.hub.repos) if word in name.lower()]
            return self.plain(200, json.dumps(found).encode(), {"Content-Type": "application/json"})
        m = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
        if m:
            return self.api(*m.groups())
        m = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if m:
            return self.resolve(*m.groups(), fault)
        self.plain(404, b"", {})

    def plain(self, status, body, headers):
        self.send_response(status)
        for k, v in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(k, v)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def repo(self, name, revision="main"):
        repo = self.hub.repos.get(name)
        if not repo:
            self.plain(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif repo.gated and self.headers.get("Authorization") != f"Bearer {self.hub.TOKEN}":
            self.plain(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model is restricted"})
        elif revision not in ("main", repo.commit):
            self.plain(404, b"", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        else:
            return repo
        return None

    def api(self, name, verb, revision):
        repo = self.repo(name, revision or "main")
        if not repo:
            return
        if verb == "tree":
            rows = []
            for path, data in sorted(repo.files.items()):
                row = {"type": "file", "oid": git_sha1(data), "size": len(data), "path": path}
                if len(data) >= LARGE:
                    row["lfs"] = {"oid": repo.etag(path), "size": len(data), "pointerSize": 130}
                rows.append(row)
            body = json.dumps(rows)
        else:
            body = json.dumps({"_id": "1", "id": name, "modelId": name, "sha": repo.commit, "private": False, "tags": [],
                               "downloads": 0, "likes": 0, "siblings": [{"rfilename": f} for f in sorted(repo.files)]})
        self.plain(200, body.encode(), {"Content-Type": "application/json"})

    def resolve(self, name, revision, file, fault):
        repo = self.repo(name, revision)
        if not repo:
            return
        if file not in repo.files:
            return self.plain(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        data = repo.files[file]
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{repo.etag(file)}"'}
        if len(data) < LARGE:
            return self.file(data, headers, fault)
        headers |= {"X-Linked-Etag": f'"{repo.etag(file)}"', "X-Linked-Size": str(len(data)),
                    "Location": f"{self.hub.store_url}/store/{name}/{urllib.parse.quote(file)}?signature=1"}
        self.plain(302, b"", headers)

    def file(self, data, headers, fault):
        status, body, start = 200, memoryview(data), 0
        m = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if m and not fault.no_range:
            start, end = int(m[1]), min(int(m[2] or len(data)), len(data) - 1)
            if start > end:
                return self.plain(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            status, body = 206, body[start:end + 1]
            shift = 1 if fault.other_range else 0
            headers = {**headers, "Content-Range": f"bytes {start + shift}-{end}/{len(data) + fault.total}"}
        self.send_response(status)
        self.send_header("Accept-Ranges", "bytes")
        for k, v in {"Content-Length": str(len(body) + fault.longer), **headers}.items():
            self.send_header(k, v)
        self.end_headers()
        if self.command == "GET":
            self.body(body, start, fault)

    def body(self, body, start, fault):
        if start <= fault.flip < start + len(body):
            body = bytearray(body)
            body[fault.flip - start] ^= 1
        if fault.stall >= 0:
            self.wfile.write(body[:fault.stall])
            self.hub.stopping.wait(30)
        elif fault.cut >= 0:
            self.wfile.write(body[:fault.cut])
            # half of them end with a reset, half with a proper close
            if fault.cut % 2:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self.wfile.write(body)
            self.wfile.write(bytes(fault.extra))
        if fault.cut >= 0 or fault.stall >= 0 or fault.longer or fault.extra:
            self.close_connection = True
            time.sleep(0.01 if fault.extra else 0)
