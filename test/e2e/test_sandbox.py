"""The server's sandbox: what is opened later comes from the broker, anew each time; the rest is closed."""
import http.client
import os
import shutil
import signal
import ssl
import subprocess
import time

import pytest

from conftest import ROOT
from server import Server, until

TINY = ROOT / "test/data/arch/llama"
SHORT = {"prompt": "One, two,", "max_tokens": 2}


def said(server, phrase):
    """Reads the log up to a line with the phrase -> the lines up to it"""
    lines = []
    for line in server.process.stderr:
        lines.append(line)
        if phrase in line:
            return lines
    pytest.fail(f"the log ends without '{phrase}': {lines}")


def hang_up(server, phrase="list of models"):
    """SIGHUP -> the lines of the log up to the last that follows it"""
    server.process.send_signal(signal.SIGHUP)
    return "".join(said(server, phrase))


def helpers(server):
    """-> {name: process} of the server's children"""
    pids = open(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read().split()
    return {open(f"/proc/{pid}/comm").read().strip(): int(pid) for pid in pids}


def broker(server):
    """-> the process that opens files"""
    found = helpers(server)
    assert sorted(found) == ["quern-broker", "quern-decoder"]
    return found["quern-broker"]


def status(server, key):
    return server.request("GET", "/v1/models", Authorization=f"Bearer {key}")[0]


def replace(path, text):
    """As sed -i and editors do: another file gets the name."""
    other = path.with_name("other")
    other.write_text(text)
    other.rename(path)


def test_keys_replaced_by_rename(binary, smollm2, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("old-key\nkept-key\n")
    s = Server(binary, smollm2, "--api-key-file", keys, "--device", "cpu")
    assert [status(s, key) for key in ("old-key", "kept-key", "new-key")] == [200, 200, 401]
    replace(keys, "kept-key\nnew-key\n")
    assert "keys have been read" in hang_up(s)
    assert [status(s, key) for key in ("old-key", "kept-key", "new-key")] == [401, 200, 200]
    keys.unlink()  # what cannot be read is never claimed to have been, and the old keys stay
    log = hang_up(s)
    assert "the keys could NOT be read, the old ones stay valid: cannot open" in log and "keys have been read" not in log
    assert [status(s, key) for key in ("old-key", "kept-key", "new-key")] == [401, 200, 200]
    replace(keys, "# none\n")
    assert "has no key" in hang_up(s)
    assert status(s, "kept-key") == 200
    assert s.stop() == 0


def test_keys_of_a_secret_mount(binary, smollm2, tmp_path):
    """keys -> ..data/keys, ..data -> ..N: a new folder, and one link is swapped."""
    for n, key in enumerate(("old-key", "new-key")):
        (tmp_path / f"..{n}").mkdir()
        (tmp_path / f"..{n}" / "keys").write_text(key + "\n")
    (tmp_path / "..data").symlink_to("..0")
    (tmp_path / "keys").symlink_to("..data/keys")
    s = Server(binary, smollm2, "--api-key-file", tmp_path / "keys", "--device", "cpu")
    assert [status(s, key) for key in ("old-key", "new-key")] == [200, 401]
    (tmp_path / "..data_tmp").symlink_to("..1")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    shutil.rmtree(tmp_path / "..0")
    assert "keys have been read" in hang_up(s)
    assert [status(s, key) for key in ("old-key", "new-key")] == [401, 200]
    assert s.stop() == 0


def certificate(folder, name):
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                           "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key", "-out", folder / "cert"],
                          capture_output=True, text=True)
    if made.returncode:
        pytest.skip("openssl cannot make a certificate: " + made.stderr)


def shown(port):
    """-> the certificate that the server shows"""
    return ssl.get_server_certificate(("127.0.0.1", port)).strip()


def test_certificate_replaced_by_rename(binary, smollm2, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        certificate(folder, folder.name)
    p = subprocess.Popen([str(binary), "serve", str(smollm2), "--port", "0", "--tls-cert", first / "cert", "--tls-key", first / "key"],
                         stderr=subprocess.PIPE, text=True)
    for line in p.stderr:
        if "ready at" in line:
            break
    port = int(line.rsplit(":", 1)[1])
    old, new = ((folder / "cert").read_text().strip() for folder in (first, second))
    assert shown(port) == old
    (second / "cert").rename(first / "cert")
    p.send_signal(signal.SIGHUP)  # half of it: the key is another's
    for line in p.stderr:
        assert "certificate has been read" not in line
        if "the certificate could NOT be read, the old one stays in use: --tls-key" in line:
            break
    assert shown(port) == old
    (second / "key").rename(first / "key")
    p.send_signal(signal.SIGHUP)
    for line in p.stderr:
        if "certificate has been read" in line:
            break
    assert shown(port) == new
    c = http.client.HTTPSConnection("127.0.0.1", port, context=ssl.create_default_context(cadata=new), timeout=60)
    c.request("GET", "/livez")
    assert c.getresponse().status == 200
    p.send_signal(signal.SIGTERM)
    assert p.wait(40) == 0


def test_models_that_come_later_from_elsewhere(binary, smollm2, tmp_path):
    """More folders than there were places for, and a link into a folder that did not exist at the start."""
    models, elsewhere = tmp_path / "models", tmp_path / "elsewhere"
    models.mkdir()
    for n in range(140):
        own = elsewhere / str(n) / "tiny"
        own.mkdir(parents=True)
        for file in TINY.iterdir():
            os.link(file, own / file.name) if os.stat(file).st_dev == os.stat(own).st_dev else shutil.copy(file, own)
        (models / f"m{n:03}").symlink_to(own)
    s = Server(binary, "--models-dir", models, "--ctx", "256", "--device", "cpu")
    listed = s.ask("/v1/models")["data"]
    assert len(listed) == 140 and all(m["max_model_len"] == 256 for m in listed)  # each header could be read
    later = tmp_path / "later"
    later.mkdir()
    shutil.copy(smollm2, later / "x.gguf")
    (models / "zz.gguf").symlink_to(later / "x.gguf")
    assert "list of models has been read" in hang_up(s)
    assert s.ask("/v1/completions", {**SHORT, "model": "zz"})["usage"]["completion_tokens"] == 2
    assert s.stop() == 0


def test_a_file_is_a_file(binary, smollm2, tmp_path):
    """What lies beside the model cannot be opened: the broker has no row for it."""
    shutil.copytree(TINY, tmp_path / "tiny")
    (tmp_path / "one.gguf").symlink_to(smollm2)
    s = Server(binary, tmp_path / "one.gguf", "--device", "cpu")
    maps = open(f"/proc/{s.process.pid}/maps").read()
    assert str(smollm2.resolve()) in maps  # mapped by a descriptor of the broker's
    assert s.ask("/v1/completions", SHORT)["usage"]["completion_tokens"] == 2
    assert s.stop() == 0


def test_the_state_is_logged(binary, smollm2):
    s = Server(binary, smollm2, "--device", "cpu")
    line = next(line for line in s.log if "sandbox:" in line)
    assert "closed: " in line and "calls" in line and "network" in line and "threads" not in line
    for pid in (s.process.pid, *helpers(s).values()):
        facts = open(f"/proc/{pid}/status").read()
        assert "NoNewPrivs:\t1" in facts and "Seccomp:\t2" in facts
    helper = broker(s)
    assert s.stop() == 0
    until(lambda: not os.path.exists(f"/proc/{helper}"))
    free = Server(binary, smollm2, "--no-sandbox")
    assert any("sandbox: off (--no-sandbox)" in line for line in free.log)
    assert list(helpers(free)) == ["quern-decoder"]  # strangers' images never have the server's rights
    assert "Seccomp:\t2" in open(f"/proc/{helpers(free)['quern-decoder']}/status").read()
    assert free.stop() == 0


def test_without_the_broker(binary, smollm2, tmp_path):
    keys, models = tmp_path / "keys", tmp_path / "models"
    keys.write_text("key\n")
    models.mkdir()
    for name in ("a", "b"):
        (models / f"{name}.gguf").symlink_to(smollm2)
    s = Server(binary, "--models-dir", models, "--api-key-file", keys, "--ctx", "256", "--device", "cpu")
    ask = lambda model: s.request("POST", "/v1/completions", {**SHORT, "model": model}, Authorization="Bearer key")[0]
    assert ask("a") == 200
    helper = broker(s)
    os.kill(helper, signal.SIGTERM)  # is for the server: systemd sends it to all
    os.kill(helper, signal.SIGHUP)
    time.sleep(0.1)
    assert broker(s) == helper
    os.kill(helper, signal.SIGKILL)
    log = hang_up(s)
    assert "broker" in log and "has ended" in log and "the keys could NOT be read" in log and "list of models could NOT be read" in log
    assert ask("a") == 200  # what is in memory goes on
    assert ask("b") == 500
    assert s.request("GET", "/v1/models", Authorization="Bearer wrong")[0] == 401
    assert s.stop() == 0


def test_the_broker_ends_with_the_server(binary, smollm2, tmp_path):
    s = Server(binary, smollm2, "--device", "cpu")
    helper = broker(s)
    s.kill()
    until(lambda: not os.path.exists(f"/proc/{helper}") or "State:\tZ" in open(f"/proc/{helper}/status").read())
