"""Fetching: against a Hub on loopback that cuts, stalls, lies and refuses, with huggingface_hub as the judge of the cache."""
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from hub_server import Fault, HubServer
from server import until

RANDOM = random.Random(7)
BIG = RANDOM.randbytes(40_000_000)  # three pieces of 16 MiB
REPO, COMMIT = "me/mill-GGUF", "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub():
    with HubServer() as server:
        yield server


@pytest.fixture
def env(hub, tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "SSL_", "CURL_", "REQUESTS_"))}
    return {**clean, "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.url, "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "XDG_CONFIG_HOME": str(tmp_path / "config"), "HF_HUB_DOWNLOAD_TIMEOUT": "30", "no_proxy": "127.0.0.1"}


@pytest.fixture
def call(binary, env, tmp_path):
    """call("pull", "x", more={"HF_TOKEN": "…"}) -> (code, stdout, stderr)"""
    def run(*args, more=None, timeout=120):
        done = subprocess.run([str(binary), *map(str, args)], env={**env, **(more or {})}, capture_output=True, text=True,
                              timeout=timeout, cwd=tmp_path, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr
    return run


def cache(tmp_path, repo=REPO):
    return tmp_path / "hf" / "hub" / ("models--" + repo.replace("/", "--"))


def snapshot(tmp_path, repo=REPO):
    return cache(tmp_path, repo) / "snapshots" / COMMIT


def parts(tmp_path, repo=REPO):
    return sorted(cache(tmp_path, repo).glob("blobs/*.quern-part"))


def pulled(call, *args, **more):
    code, out, err = call("pull", *args, "--json", **more)
    assert code == 0, err
    return json.loads(out)[0]


# ---- the cache's layout, judged by huggingface_hub in both directions ----

def judge(env, code):
    """Runs code with huggingface_hub and this environment: its constants are read once, at import."""
    import sys
    done = subprocess.run([sys.executable, "-c", "import huggingface_hub as h, json, sys\n" + code], env=env, text=True,
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_quern_pulls_huggingface_hub_finds_offline(hub, env, call, tmp_path):
    pytest.importorskip("huggingface_hub")
    hub.add(REPO, {"mill-Q4_K_M.gguf": BIG[:20_000_000], "mill-Q8_0.gguf": BIG, "sub/tiny.gguf": b"GGUF"})
    got = pulled(call, REPO)
    assert got["path"] == str(snapshot(tmp_path) / "mill-Q4_K_M.gguf") and got["commit"] == COMMIT
    pulled(call, REPO + ":sub/tiny.gguf")
    offline = {**env, "HF_HUB_OFFLINE": "1"}
    for name in ("mill-Q4_K_M.gguf", "sub/tiny.gguf"):
        path = judge(offline, f"print(h.hf_hub_download({REPO!r}, {name!r}))")
        assert path == str(snapshot(tmp_path) / name)
    assert Path(judge(offline, f"print(h.hf_hub_download({REPO!r}, 'sub/tiny.gguf'))")).read_bytes() == b"GGUF"
    # and online it has nothing left to fetch
    before = len(hub.seen("store"))
    judge(env, f"print(h.hf_hub_download({REPO!r}, 'mill-Q4_K_M.gguf'))")
    assert len(hub.seen("store")) == before
    listed = json.loads(judge(env, "print(json.dumps([[r.repo_id, r.size_on_disk, len(list(r.revisions)[0].files)]"
                                   " for r in h.scan_cache_dir().repos]))"))
    assert listed == [[REPO, 20_000_004, 2]]


def test_what_huggingface_hub_downloads_quern_finds(hub, env, call, tmp_path):
    pytest.importorskip("huggingface_hub")
    hub.add(REPO, {"mill-Q4_K_M.gguf": BIG[:20_000_000], "README.md": b"# mill\n"})
    theirs = judge(env, f"print(h.hf_hub_download({REPO!r}, 'mill-Q4_K_M.gguf'))")
    before = len(hub.log)
    code, out, err = call("show", REPO, "--offline", "--json")
    assert code == 65 and "not a GGUF file" in err  # it was found, and opened
    code, out, err = call("ls", "--json")
    assert [(m["name"], m["path"], m["bytes"]) for m in json.loads(out)] == [(REPO + ":Q4_K_M", theirs, 20_000_000)]
    assert len(hub.log) == before  # without a question
    assert pulled(call, REPO)["fetched"] == 0


def test_snapshot_download_of_a_folder_is_run_in_place(hub, env, call, shared, tmp_path):
    pytest.importorskip("huggingface_hub")
    folder = shared / "ref" / "arch" / "llama"
    if not folder.is_dir():
        pytest.skip("no reference folder")
    hub.add("me/tiny", {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()})
    theirs = judge(env, "print(h.snapshot_download('me/tiny'))")
    code, out, err = call("info", "me/tiny", "--json", "--offline")
    assert code == 0 and json.loads(out)["path"] == theirs, err
    assert json.loads(out)["name"] == "tiny"


def test_blobs_links_refs_and_locks(hub, call, tmp_path):
    repo = hub.add(REPO, {"mill-Q4_K_M.gguf": BIG[:100_000], "sub/x-Q8_0.gguf": b"GGUF"})
    pulled(call, REPO)
    pulled(call, REPO + ":Q8_0")
    link = snapshot(tmp_path) / "mill-Q4_K_M.gguf"
    assert os.readlink(link) == f"../../blobs/{hashlib.sha256(BIG[:100_000]).hexdigest()}"
    assert os.readlink(snapshot(tmp_path) / "sub/x-Q8_0.gguf") == "../../../blobs/" + repo.etag("sub/x-Q8_0.gguf")
    assert (cache(tmp_path) / "refs" / "main").read_text() == COMMIT
    assert not parts(tmp_path) and link.read_bytes() == BIG[:100_000]


def test_a_snapshot_of_files_instead_of_links(hub, call, tmp_path):
    """As other tools leave it where there are no links."""
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG[:50_000]})
    snapshot(tmp_path).mkdir(parents=True)
    (snapshot(tmp_path) / "m-Q4_K_M.gguf").write_bytes(BIG[:50_000])
    got = pulled(call, REPO)
    assert got["fetched"] == 0 and not (snapshot(tmp_path) / "m-Q4_K_M.gguf").is_symlink()
    assert pulled(call, REPO, "--offline")["path"] == got["path"]
    code, out, _ = call("rm", REPO + ":Q4_K_M", "--json")
    assert json.loads(out)["freed"] >= 50_000 and not cache(tmp_path).exists()


def test_two_models_of_one_type(hub, call):
    hub.add(REPO, {"a-Q8_0.gguf": BIG[:20_000], "b-Q8_0.gguf": BIG[:30_000]})
    assert pulled(call, REPO + ":Q8_0")["bytes"] == 20_000 and pulled(call, REPO + ":b-Q8_0.gguf")["bytes"] == 30_000
    code, out, _ = call("ls", "--json")
    assert [m["name"] for m in json.loads(out)] == [REPO + ":Q8_0", REPO + ":b-Q8_0.gguf"]


def test_a_new_commit_fetches_only_what_changed(hub, call, tmp_path):
    repo = hub.add(REPO, {"mill-Q4_K_M-00001-of-00002.gguf": BIG[:50_000], "mill-Q4_K_M-00002-of-00002.gguf": BIG[:60_000]})
    assert pulled(call, REPO)["fetched"] == 110_000
    repo.files["mill-Q4_K_M-00002-of-00002.gguf"] = BIG[1:70_000]
    repo.commit = COMMIT[::-1]
    got = pulled(call, REPO)
    assert got["fetched"] == 69_999 and got["commit"] == COMMIT[::-1] and got["files"] == 2
    assert (cache(tmp_path) / "refs" / "main").read_text() == COMMIT[::-1]
    # the old commit is still there, by its name
    code, out, _ = call("show", f"{REPO}@{COMMIT}", "--offline", "--json")
    assert code == 65 or json.loads(out)["here"]


# ---- what is chosen ----

def test_sharded_safetensors_and_what_stands_beside(hub, call, tmp_path):
    index = {"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    hub.add("me/shards", {"model.safetensors.index.json": json.dumps(index).encode(), "config.json": b"{}",
                          "tokenizer.json": b"{}", "model-00001-of-00002.safetensors": BIG[:20_000],
                          "model-00002-of-00002.safetensors": BIG[:30_000], "model-00003-of-00002.safetensors": BIG[:10],
                          "pytorch_model.bin": BIG[:50_000], "README.md": b"---\nlicense: mit\n---\n"})
    got = pulled(call, "me/shards")
    assert got["path"] == str(snapshot(tmp_path, "me/shards"))
    assert sorted(p.name for p in snapshot(tmp_path, "me/shards").iterdir()) == [
        "README.md", "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "model.safetensors.index.json", "tokenizer.json"]


@pytest.mark.parametrize("files,name,phrase", [
    ({"a-Q8_0.gguf": b"GGUF", "a-Q5_K_M.gguf": b"GGUF"}, ":Q5_K_S", "did you mean Q5_K_M? There are Q5_K_M, Q8_0"),
    ({"pytorch_model.bin": b"x"}, "", "it holds no GGUF and no safetensors, only PyTorch pickles"),
    ({"README.md": b"x"}, "", "it holds no GGUF and no safetensors"),
    ({"a-00001-of-00002.gguf": b"GGUF"}, "", "a-00002-of-00002.gguf is not there"),
    ({"model.safetensors.index.json": b'{"weight_map": {"a": "../x.safetensors"}}', "config.json": b"{}"}, "",
     "the name of a .safetensors file in the same folder was expected"),
    ({"model.safetensors.index.json": b'{"weight_map": {"a": "x.safetensors"}}', "config.json": b"{}"}, "",
     "names x.safetensors, which is not in the repository"),
])
def test_what_cannot_be_chosen(hub, call, files, name, phrase):
    hub.add(REPO, files)
    code, out, err = call("pull", REPO + name)
    assert code == 65 and phrase in err and out == "" and err.count("\n") == 1


def test_run_pulls_what_is_missing_and_offline_refuses(hub, call, smollm2, tmp_path):
    hub.add("me/small", {"small-Q4_1.gguf": smollm2.read_bytes()})
    code, out, err = call("run", "me/small", "-p", "Hi", "-n", "2", "--offline")
    assert code == 65 and "nothing is fetched" in err and not hub.log
    code, out, err = call("run", "me/small", "-p", "Hi", "-n", "2", "--temp", "0")
    assert code == 0 and out.strip() and "fetching it" in err
    asked = len(hub.log)
    code, again, err = call("run", "me/small", "-p", "Hi", "-n", "2", "--temp", "0", more={"HF_HUB_OFFLINE": "1"})
    assert code == 0 and again == out and len(hub.log) == asked
    code, out, _ = call("ls", "--json")
    assert [m["name"] for m in json.loads(out)] == ["me/small:Q4_1"]


def test_serve_pulls_what_is_missing(hub, binary, env, smollm2, tmp_path):
    hub.add("me/small", {"small-Q4_1.gguf": smollm2.read_bytes()})
    process = subprocess.Popen([binary, "serve", "me/small", "--port", "0", "--ctx", "256"], env=env, text=True,
                               stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    said = ""
    for line in process.stderr:
        said += line
        if "http://127.0.0.1:" in line:
            break
    process.terminate()
    assert process.wait(60) == 0 and "fetching it" in said, said
    assert (snapshot(tmp_path, "me/small") / "small-Q4_1.gguf").exists()


def test_an_alias_names_it(hub, call, tmp_path):
    hub.add(REPO, {"mill-Q8_0.gguf": BIG[:20_000]})
    config = tmp_path / "config" / "quern"
    config.mkdir(parents=True)
    (config / "models.json").write_text(json.dumps({"mill": f"hf:{REPO}:Q8_0"}))
    assert pulled(call, "mill")["fetched"] == 20_000
    code, _, err = call("run", REPO.replace("GGUF", "GGUD"), "--offline")
    assert code == 65 and f"{REPO} is here: did you mean that?" in err
    code, _, err = call("pull", "mil")
    assert code == 65 and "did you mean 'mill'?" in err


# ---- the token ----

def test_the_token_stays_with_the_hub(hub, call, tmp_path):
    """A file of a gated repository lies in the store, which is another origin."""
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG[:50_000], "small-Q8_0.gguf": b"GGUF"}, gated=True)
    code, _, err = call("pull", REPO)
    assert code == 69 and "accept its conditions" in err
    code, _, err = call("pull", REPO, more={"HF_TOKEN": "hf_wrong"})
    assert code == 69
    hub.log.clear()
    pulled(call, REPO, more={"HF_TOKEN": hub.TOKEN})
    assert all(r["token"] == f"Bearer {hub.TOKEN}" for r in hub.seen("hub"))
    assert hub.seen("store") and all(r["token"] is None for r in hub.seen("store"))
    # redirects of the API and of HEAD do not carry it either
    for method, path in (("GET", "/api/"), ("HEAD", "/resolve/"), ("GET", "/resolve/")):
        shutil.rmtree(tmp_path / "hf", ignore_errors=True)
        hub.log.clear()
        hub.fault = lambda r: Fault(location=f"{hub.store_url}/elsewhere") if (
            r["role"] == "hub" and r["method"] == method and path in r["path"]) else (
            Fault(status=404) if r["role"] == "store" else None)
        code, _, err = call("pull", REPO, more={"HF_TOKEN": hub.TOKEN})
        assert code == 65 and hub.seen("store") and all(r["token"] is None for r in hub.seen("store"))


def test_the_token_of_the_login_file(hub, call, tmp_path):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG[:50_000]}, gated=True)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text(hub.TOKEN + "\n")
    assert pulled(call, REPO)["fetched"] == 50_000
    code, _, err = call("pull", REPO, more={"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"})
    assert code == 69


def test_no_token_in_any_message(hub, call):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG[:50_000]})
    for fault in (Fault(status=500), Fault(cut=0), Fault(location="http://127.0.0.1:1/x")):
        hub.fault = lambda r: fault
        code, out, err = call("pull", REPO, "--retries", "0", "--verbose", more={"HF_TOKEN": hub.TOKEN})
        assert code and hub.TOKEN not in out + err


# ---- TLS, and libcurl that is not there ----

def test_tls(call, env, tmp_path):
    """An unknown certificate is refused; a known one serves; https does not lead to http, where the store is."""
    openssl = shutil.which("openssl") or pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run([openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    with HubServer(tls=(certificate, key)) as hub:
        hub.add(REPO, {"m-Q4_K_M.gguf": BIG[:5000]})
        hub.add("me/large", {"m-Q4_K_M.gguf": BIG[:50_000]})
        more = {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.TOKEN}
        code, _, err = call("pull", REPO, more=more)
        assert code == 69 and "certificate" in err and not hub.log
        more["SSL_CERT_FILE"] = str(certificate)
        assert pulled(call, REPO, more=more)["fetched"] == 5000
        code, _, err = call("pull", "me/large", more=more)
        assert code == 69 and "redirects from https to http, which is not followed" in err and not hub.seen("store")


def test_without_libcurl(hub, call, smollm2, tmp_path):
    """What is here runs; what is not is refused with what to install."""
    for name in ("libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"):
        (tmp_path / name).write_text("no library")
    none = {"LD_LIBRARY_PATH": str(tmp_path)}
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG[:50_000]})
    code, _, err = call("pull", REPO, more=none)
    assert code == 69 and "libcurl is not installed" in err and "apt install libcurl4" in err
    code, out, err = call("info", smollm2, "--json", more=none)
    assert code == 0, err
    report = json.loads(call("doctor", "--json", more=none)[1])
    assert report["hub"]["libcurl"] is None and any("libcurl4" in a for a in report["advice"])


# ---- servers that do not do as they should ----

def test_redirects_that_are_not_followed(hub, call):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG[:50_000]})
    for location, phrase in (("file:///etc/passwd", "only http and https"), ("ftp://127.0.0.1/x", "only http and https"),
                             ("http://user@127.0.0.1/x", "not a supported URL"), (f"{hub.url}/{REPO}/resolve/main/x", "redirects")):
        hub.fault = lambda r: Fault(location=location) if "/resolve/" in r["path"] else None
        code, _, err = call("pull", REPO)
        assert code == 69 and phrase in err, err
    assert len(hub.log) < 60


@pytest.mark.parametrize("status,code,phrase,attempts", [
    (401, 69, "may not be fetched (401", 1), (403, 69, "may not be fetched (403", 1), (404, 65, "is not there (404", 1),
    (429, 69, "answers 429", 3), (500, 69, "answers 500", 3), (503, 69, "answers 503", 3)])
def test_refusals(hub, call, status, code, phrase, attempts):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG[:50_000]})
    hub.fault = lambda r: Fault(status=status)
    got, out, err = call("pull", REPO, "--retries", "2")
    assert got == code and phrase in err and out == "" and len(hub.log) == attempts


def test_retry_after_is_kept_to(hub, call):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG[:50_000]})
    times = []

    def fault(request):
        times.append(time.monotonic())
        return Fault(status=429, headers={"Retry-After": "1"}) if len(times) in (1, 4) else None
    hub.fault = fault
    assert pulled(call, REPO)["fetched"] == 50_000
    assert times[1] - times[0] >= 0.99 and times[4] - times[3] >= 0.99
    hub.fault = lambda r: Fault(status=503, headers={"Retry-After": "86400"})
    code, _, err = call("pull", REPO)
    assert code == 69 and "asks to wait for 86400 seconds" in err


def test_a_server_without_ranges(hub, call, tmp_path):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    hub.fault = lambda r: Fault(no_range=True)
    assert pulled(call, REPO)["bytes"] == len(BIG)
    assert (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG


def test_a_server_without_ranges_that_cuts(hub, call, tmp_path):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    cuts = iter([3_000_000, 30_000_000, 20_000_000])
    hub.fault = lambda r: Fault(no_range=True, cut=next(cuts, -1) if r["method"] == "GET" and r["role"] == "store" else -1)
    pulled(call, REPO)
    assert (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG
    shutil.rmtree(cache(tmp_path))
    hub.fault = lambda r: Fault(no_range=True, cut=1_000_000)
    code, _, err = call("pull", REPO, "--retries", "1")
    assert code == 69 and "1000000 of 40000000 bytes are kept" in err


@pytest.mark.parametrize("fault,code,phrase", [
    (Fault(total=1), 69, "sends a file of 40000001 bytes where 40000000 were announced"),
    (Fault(other_range=True), 69, "another range than the one that was asked for"),
    (Fault(longer=100), None, ""),  # announces more than it sends: the rest is asked for again
    (Fault(extra=100), None, ""),   # and more than it announces: what is over is not read
    (Fault(headers={"X-Big": "x" * 70_000}, status=200), 69, "bytes of headers"),
])
def test_lies_about_lengths(hub, call, tmp_path, fault, code, phrase):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    hub.fault = lambda r: fault if r["role"] == "store" and r["method"] == "GET" else None
    got, _, err = call("pull", REPO, "--retries", "1")
    if code:
        assert got == code and phrase in err, err
        assert not (snapshot(tmp_path) / "m-Q4_K_M.gguf").exists()
    else:
        assert got == 0, err
        assert (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG


def test_pieces_that_end_with_an_error_after_their_last_byte(hub, call, tmp_path):
    """With one connection the first piece is whole long before the file is."""
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    hub.fault = lambda r: Fault(longer=100) if r["role"] == "store" and r["method"] == "GET" else None
    pulled(call, REPO, "--connections", "1")
    assert (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG


def test_a_wrong_size_in_the_hubs_own_word(hub, call, tmp_path):
    repo = hub.add(REPO, {"m-Q4_K_M.gguf": BIG[:50_000]})
    longer = BIG[:50_001]
    hub.fault = lambda r: (repo.files.update({"m-Q4_K_M.gguf": longer}), None)[1] if r["role"] == "store" else None
    code, _, err = call("pull", REPO)
    assert code == 69 and "sends a file of 50001 bytes where 50000 were announced" in err


def test_wrong_bytes_are_thrown_away(hub, call, tmp_path):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    hub.fault = lambda r: Fault(flip=30_000_000) if r["role"] == "store" else None
    code, _, err = call("pull", REPO)
    assert code == 65 and "have the checksum" in err and hashlib.sha256(BIG).hexdigest() in err
    assert not parts(tmp_path) and not list(cache(tmp_path).glob("blobs/*"))
    assert not snapshot(tmp_path).exists()
    hub.fault = lambda r: None
    pulled(call, REPO)
    assert (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG


def test_wrong_bytes_of_a_small_file(hub, call, tmp_path):
    hub.add("me/small", {"model.safetensors": BIG[:20_000], "config.json": b'{"a": 1}'})
    hub.fault = lambda r: Fault(flip=1) if r["path"].endswith("config.json") else None
    code, _, err = call("pull", "me/small")
    assert code == 65 and "config.json: the bytes that came have the checksum" in err


def test_a_spoilt_part_is_fetched_anew(hub, call, tmp_path):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    hub.fault = lambda r: Fault(cut=5_000_000) if r["role"] == "store" and r["range"].startswith("bytes=0-") else (
        Fault(status=503) if r["role"] == "store" else None)
    code, _, err = call("pull", REPO, "--retries", "0", "--connections", "1")
    assert code == 69 and parts(tmp_path)
    with open(parts(tmp_path)[0], "r+b") as f:
        f.seek(1000)
        f.write(b"spoilt")
    hub.fault = lambda r: None
    code, out, err = call("pull", REPO)
    assert code == 0 and "fetching the file again" in err
    assert (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG


def test_what_another_tool_left_is_gone_on_with(hub, call, tmp_path):
    repo = hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    blobs = cache(tmp_path) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / (repo.etag("m-Q4_K_M.gguf") + ".incomplete")).write_bytes(BIG[:39_000_000])
    assert pulled(call, REPO)["fetched"] == 1_000_000
    assert (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG
    assert [p.name for p in blobs.iterdir()] == [repo.etag("m-Q4_K_M.gguf")]


def test_stalls_are_given_up(hub, call, tmp_path):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    stalled = []
    hub.fault = lambda r: Fault(stall=stalled.append(1) or 2_000_000) if r["role"] == "store" and len(stalled) < 2 else None
    pulled(call, REPO, more={"HF_HUB_DOWNLOAD_TIMEOUT": "1"})
    assert (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG and len(stalled) == 2


# ---- breaks ----

def cutting(seed, least=0, most=3_000_000):
    """Every answer of the store ends at a random byte."""
    rng, lock = random.Random(seed), threading.Lock()

    def fault(request):
        with lock:
            return Fault(cut=rng.randint(least, most)) if request["role"] == "store" else None
    return fault


def test_every_answer_is_cut(hub, call, tmp_path):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    hub.fault = cutting(1)
    assert pulled(call, REPO)["fetched"] == len(BIG)  # and no byte twice
    assert (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG and not parts(tmp_path)
    assert len(hub.seen("store")) > 20


@pytest.mark.parametrize("size,cuts", [(20_000_000, 16), pytest.param(100_000_000, 1000, marks=pytest.mark.slow)])
def test_cuts_at_random_bytes(hub, call, tmp_path, size, cuts):
    """One cut at a random byte of the file. Of two pulls one gets over it; the other finds the server gone, says so
    and keeps what came, and the same command then brings the rest: byte for byte, every time."""
    data = BIG[:size] if size <= len(BIG) else random.Random(8).randbytes(size)
    hub.add(REPO, {"m-Q4_K_M.gguf": data})
    rng, lock = random.Random(size), threading.Lock()
    state = {}

    def fault(request):
        if request["role"] != "store":
            return None
        first, last = map(int, request["range"].removeprefix("bytes=").split("-"))
        with lock:
            if state["cut"] is not None and first <= state["cut"] <= last:
                at, state["cut"] = state["cut"], None
                return Fault(cut=at - first)
            return Fault(status=503) if state["gone"] and state["cut"] is None else None
    hub.fault = fault
    for i in range(cuts):
        shutil.rmtree(cache(tmp_path), ignore_errors=True)
        state.update(cut=rng.randrange(size), gone=i % 2 == 1)
        code, _, err = call("pull", REPO, "--retries", "0" if state["gone"] else "3", "--connections", str(rng.choice((1, 4, 8))))
        if code:
            assert state["gone"] and code == 69 and "bytes are kept, and the same command resumes" in err, err
            kept = int(err.split(f" of {size} bytes")[0].split()[-1])
            assert len(parts(tmp_path)) == 1 and not snapshot(tmp_path).exists()
            state.update(cut=None, gone=False)
            assert pulled(call, REPO)["fetched"] == size - kept
        with open(snapshot(tmp_path) / "m-Q4_K_M.gguf", "rb") as f:
            assert f.read() == data, f"cut {i}"


def test_the_same_command_goes_on(hub, call, tmp_path):
    """Each run is refused after a while; what came is kept, and no byte is asked for twice."""
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    kept = 0
    for run in range(30):
        budget = [2]

        def fault(request):
            if request["role"] != "store":
                return None
            budget[0] -= 1
            return Fault(cut=1_500_000) if budget[0] >= 0 else Fault(status=503)
        hub.fault = fault
        code, out, err = call("pull", REPO, "--retries", "0", "--connections", "2")
        if code == 0:
            break
        assert code == 69 and "bytes are kept, and the same command resumes" in err
        now = int(err.split(" of 40000000 bytes")[0].split()[-1])
        assert now > kept
        kept = now
        assert len(parts(tmp_path)) == 1
    else:
        code, out, err = call("pull", REPO)
    assert code == 0 and (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG


def test_killed_at_any_moment(hub, env, binary, call, tmp_path):
    """SIGKILL, many times; what is read later is whole or is not there."""
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    real = cutting(3, 200_000, 900_000)

    def slow(request):
        time.sleep(0.01)
        return real(request)
    hub.fault = slow
    rng = random.Random(5)
    for _ in range(12):
        process = subprocess.Popen([binary, "pull", REPO], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(rng.uniform(0.02, 0.3))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        link = snapshot(tmp_path) / "m-Q4_K_M.gguf"
        assert not link.exists() or link.read_bytes() == BIG
    hub.fault = lambda r: None
    pulled(call, REPO)
    assert (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG


def test_interrupted(hub, env, binary, call, tmp_path):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    hub.fault = lambda r: Fault(stall=1_000_000) if r["role"] == "store" else None
    process = subprocess.Popen([binary, "pull", REPO], env=env, stderr=subprocess.PIPE, text=True)
    while len(hub.seen("store")) < 3:
        time.sleep(0.01)
    until(lambda: any(p.stat().st_blocks for p in parts(tmp_path)))  # something has come
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130 and process.stderr.read() == "quern: interrupted\n"
    hub.fault = lambda r: None
    assert pulled(call, REPO)["fetched"] < len(BIG)
    assert (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG


def test_two_pulls_at_once(hub, env, binary, tmp_path):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    real = cutting(4)

    def slow(request):
        time.sleep(0.02)
        return real(request)
    hub.fault = slow
    both = [subprocess.Popen([binary, "pull", REPO, "--json"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(3)]
    done = [(p.communicate(timeout=120), p.returncode) for p in both]
    assert [code for _, code in done] == [0, 0, 0], done
    fetched = sorted(json.loads(out)[0]["fetched"] for (out, _), _ in done)
    assert fetched[:2] == [0, 0] and len(BIG) <= fetched[2] < len(BIG) + 1000  # one fetched it, the others waited
    assert (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG


def test_pull_and_huggingface_hub_at_once(hub, env, binary, tmp_path):
    """Its lock is ours."""
    pytest.importorskip("huggingface_hub")
    import fcntl
    repo = hub.add(REPO, {"m-Q4_K_M.gguf": BIG[:50_000]})
    lock = tmp_path / "hf" / "hub" / ".locks" / "models--me--mill-GGUF" / (repo.etag("m-Q4_K_M.gguf") + ".lock")
    lock.parent.mkdir(parents=True)
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = subprocess.Popen([binary, "pull", REPO], env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert "waiting for another program" in process.stderr.readline()
        assert process.poll() is None and not hub.seen("store")
    assert process.wait(30) == 0


# ---- room ----

def test_no_room_is_said_before_the_first_byte(hub, call, tmp_path):
    repo = hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    hub.fault = lambda r: Fault(status=200, headers={
        "X-Linked-Size": str(1 << 60), "X-Linked-Etag": repo.etag("m-Q4_K_M.gguf"), "X-Repo-Commit": COMMIT}) \
        if r["method"] == "HEAD" else None
    code, _, err = call("pull", REPO)
    assert code == 75 and "no room in" in err and "GB are free" in err and not hub.seen("store")


def test_a_full_disk_keeps_the_part(hub, env, binary, call, tmp_path):
    """A limit on the file's size stands for the disk: the write fails at some byte in the middle."""
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    done = subprocess.run([binary, "pull", REPO], env=env, capture_output=True, text=True, timeout=60, preexec_fn=lambda:
                          resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, 20_000_000)))
    assert done.returncode == 75 and "File too large" in done.stderr and not snapshot(tmp_path).exists()
    pulled(call, REPO)
    assert (snapshot(tmp_path) / "m-Q4_K_M.gguf").read_bytes() == BIG


def test_a_full_file_system(hub, env, binary, tmp_path):
    """A real one where this user may mount a tmpfs in a namespace of its own."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    (tmp_path / "hf").mkdir()
    go, filled = tmp_path / "go", tmp_path / "filled"
    fill = f"""mount -t tmpfs -o size=70m none '{tmp_path}/hf' || exit 99
        (until [ -e '{go}' ]; do sleep 0.02; done; head -c 60000000 /dev/zero > '{tmp_path}/hf/fill'; touch '{filled}') &
        '{binary}' pull {REPO}; code=$?; ls '{tmp_path}/hf/hub/models--me--mill-GGUF/blobs' >&2; exit $code"""

    def fault(request):
        if request["role"] == "store":  # the room was looked at; now somebody else takes it
            go.touch()
            while not filled.exists():
                time.sleep(0.02)
    hub.fault = fault
    done = subprocess.run([*unshare, "bash", "-c", fill], env=env, capture_output=True, text=True, timeout=60)
    if done.returncode == 99:
        pytest.skip("no mounts here")
    assert done.returncode == 75 and "No space left on device" in done.stderr and "bytes are kept" in done.stderr
    assert ".quern-part" in done.stderr


def test_a_cache_that_may_not_be_written(hub, call, env, tmp_path):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG[:50_000]})
    (tmp_path / "hf").write_text("a file where the folder should be")
    code, _, err = call("pull", REPO)
    assert code == 75 and "cannot make the folder" in err


# ---- addresses ----

def test_by_address(hub, call, tmp_path):
    hub.add(REPO, {"a-Q8_0.gguf": BIG[:200_000], "s-00001-of-00002.gguf": BIG[:20_000], "s-00002-of-00002.gguf": BIG[:30_000]})
    url = f"{hub.store_url}/store/{REPO}/a-Q8_0.gguf"
    got = pulled(call, url, more={"HF_TOKEN": hub.TOKEN})
    assert Path(got["path"]).read_bytes() == BIG[:200_000] and got["commit"] is None
    assert all(r["token"] is None for r in hub.seen("store"))
    assert pulled(call, url)["fetched"] == 0
    code, out, _ = call("ls", "--json")
    assert [(m["name"], m["type"]) for m in json.loads(out)] == [(url, "Q8_0")]
    split = pulled(call, f"{hub.store_url}/store/{REPO}/s-00001-of-00002.gguf")
    assert split["files"] == 2 and Path(split["path"]).with_name("s-00002-of-00002.gguf").stat().st_size == 30_000
    # the Hub's own pages are the repository
    assert pulled(call, f"{hub.url}/{REPO}/blob/main/a-Q8_0.gguf")["path"] == str(snapshot(tmp_path) / "a-Q8_0.gguf")
    code, out, _ = call("rm", url, "--json")
    assert json.loads(out)["freed"] >= 200_000 and call("rm", url)[0] == 65


# ---- ls, show, rm ----

def test_remove(hub, call, tmp_path):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG[:50_000], "m-Q8_0.gguf": BIG[:60_000], "same-F16.gguf": BIG[:60_000]})
    for quant in ("Q4_K_M", "Q8_0", "F16"):
        pulled(call, f"{REPO}:{quant}")
    assert len(list(cache(tmp_path).glob("blobs/*"))) == 2
    assert call("rm", f"{REPO}:Q5_K_M")[0] == 65
    code, out, _ = call("rm", f"{REPO}:Q8_0", "--json")  # its bytes are also those of F16
    assert json.loads(out)["freed"] == 0 and len(list(cache(tmp_path).glob("blobs/*"))) == 2
    code, out, _ = call("rm", f"{REPO}:F16", "--json")
    assert json.loads(out)["freed"] >= 60_000 and len(list(cache(tmp_path).glob("blobs/*"))) == 1
    code, out, _ = call("rm", REPO)
    assert code == 0 and "freed" in out and not cache(tmp_path).exists()
    assert call("rm", REPO)[0] == 65 and call("rm", tmp_path / "hf")[0] == 64 and (tmp_path / "hf").exists()


def test_ls_shows_parts(hub, call, tmp_path):
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    hub.fault = lambda r: Fault(cut=1_000_000) if r["role"] == "store" and r["range"].startswith("bytes=0-") else (
        Fault(status=503) if r["role"] == "store" else None)
    assert call("pull", REPO, "--retries", "0", "--connections", "1")[0] == 69
    code, out, _ = call("ls", "--json")
    (row,) = json.loads(out)
    assert row["name"] == REPO and not row["whole"] and row["path"] is None and row["bytes"] >= 1_000_000
    assert "part" in call("ls")[1]
    assert call("rm", REPO)[0] == 0 and json.loads(call("ls", "--json")[1]) == []


def test_show(hub, call, smollm2):
    hub.add("me/small", {"small-Q4_1.gguf": smollm2.read_bytes(), "small-Q8_0.gguf": b"GGUF"})
    code, out, _ = call("show", "me/small", "--json")
    shown = json.loads(out)
    assert shown["types"] == ["Q4_1", "Q8_0"] and not shown["here"] and shown["commit"] == COMMIT
    pulled(call, "me/small:Q4_1")
    code, out, _ = call("show", "me/small:Q4_1", "--offline", "--json")
    shown = json.loads(out)
    assert shown["here"] and shown["architecture"] == "llama" and shown["types"] == ["Q4_1"]
    code, out, _ = call("show", "me/small:Q4_1")
    assert code == 0 and "Q4_1, Q8_0" in out and "134.5 M" in out
    assert call("show", "me/nothing", "--offline")[0] == 69


def test_the_bar(hub, binary, env, terminals, tmp_path):
    """On a terminal: a bar with bytes, speed and the time that is left."""
    import pty
    hub.add(REPO, {"m-Q4_K_M.gguf": BIG})
    real = cutting(6, 1_500_000, 2_500_000)

    def slow(request):
        time.sleep(0.1)
        return real(request)
    hub.fault = slow
    master, slave = pty.openpty()
    process = subprocess.Popen([binary, "pull", REPO, "--connections", "2"], env={**env, "TERM": "xterm"}, stderr=slave,
                               stdout=subprocess.DEVNULL)
    os.close(slave)
    seen = b""
    try:
        while chunk := os.read(master, 65536):
            seen += chunk
    except OSError:
        pass
    os.close(master)
    assert process.wait(60) == 0
    text = seen.decode()
    assert "fetching" in text and "B of 40.0 MB, " in text and "B/s" in text and "s left" in text
