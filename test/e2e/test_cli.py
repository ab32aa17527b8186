"""What holds for every verb: help, options, exit codes, what goes to which stream."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import ROOT
from server import until


def test_alone_prints_help(quern):
    done = quern()
    assert done.code == 0 and "usage: quern COMMAND" in done.out and "\n  info " in done.out and done.err == ""
    assert quern("--help").out == quern("help").out == quern("-h").out == done.out


def test_version(quern):
    done = quern("--version")
    assert done.code == 0 and done.out.startswith("quern ") and done.out.count("\n") == 1


def verbs(quern):
    return [line.split()[0] for line in quern().out.splitlines() if line.startswith("  ")]


def test_every_verb_has_help(quern):
    names = verbs(quern)
    assert "info" in names and "help" in names
    for name in names:
        done = quern(name, "--help")
        assert done.code == 0 and done.out.startswith(f"usage: quern {name}") and done.err == ""
        assert quern("help", name).out == done.out == quern("--help", name).out


@pytest.mark.parametrize("args,phrase", [
    (["inof"], "there is no command 'inof'; did you mean 'info'?"),
    (["xyzzy"], "there is no command 'xyzzy'; 'quern help' lists them"),
    (["help", "inof"], "did you mean 'info'?"),
    (["info", "--josn"], "there is no option --josn; did you mean --json?"),
    (["info", "--tensor", "x"], "there is no option --tensor; did you mean --tensors?"),
    (["info", "--nothing-like-it"], "there is no option --nothing-like-it; --help lists them"),
    (["info", "-x"], "there is no option -x; --help lists them"),
    (["info", "--json=yes"], "--json takes no value"),
    (["info", "a", "b"], "'b' is one word too many for quern info"),
    (["--nope"], "there is no option --nope without a command"),
    (["info", "hf:a/b:"], "after the colon"),
    (["info", "a" * 5000 + "/b"], "too long")])
def test_usage_errors(quern, args, phrase):
    done = quern(*args)
    assert done.code == 64 and done.out == "" and phrase in done.err and done.err.count("\n") == 1


def test_options_before_and_after(quern, smollm2):
    forms = [["info", "--json", smollm2], ["info", smollm2, "--json"], ["--json", "info", smollm2],
             ["info", "--json", "--", smollm2]]
    outs = {quern(*f).out for f in forms}
    assert len(outs) == 1 and outs.pop().startswith("{")


def test_spellings_of_others(quern, smollm2, tmp_path):
    """What users of llama.cpp and Ollama type means the same here; -n -1 ends where the model ends."""
    (tmp_path / "prompt").write_text("Say hi")
    ours = quern("run", smollm2, "-p", "Say hi", "-n", "4", "--temp", "0", "--ctx", "256", "--json").out
    for words in (["-m", smollm2, "-f", str(tmp_path / "prompt"), "-n", "4", "--temperature", "0", "--ctx-size", "256"],
                  ["--model", smollm2, "-p", "Say hi", "--n-predict", "4", "--temperature=0", "--num-ctx", "256"]):
        assert json.loads(quern("run", *words, "--json").out)["ids"] == json.loads(ours)["ids"]
    assert json.loads(quern("run", smollm2, "-p", "Say hi", "-n", "-1", "--ctx", "64", "--temp", "0", "--json").out)["text"]
    for words, why in ((["-m", smollm2, "-p", "x", "-n", "0"], "1 or more, or -1"), (["-m", "a", "-hf", "b"], "given twice")):
        bad = quern("run", *words)
        assert bad.code == 64 and why in bad.err


def test_full_disk(binary):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([binary, "help"], stdout=full, stderr=subprocess.PIPE, timeout=20)
    assert done.returncode == 74 and b"cannot write to standard output: No space left" in done.stderr


def test_closed_output(binary):
    done = subprocess.run(["/bin/sh", "-c", f"'{binary}' help >&-"], capture_output=True, timeout=20)
    assert done.returncode == 74 and b"cannot write" in done.stderr


def test_reader_goes_away(binary):
    """It has what it wants: no sentence, no death by a signal."""
    done = subprocess.run(["/bin/bash", "-c", f"'{binary}' help | exec <&-; echo ${{PIPESTATUS[0]}}"],
                          capture_output=True, text=True, timeout=20)
    assert (done.stdout.strip(), done.stderr) == ("0", "")


def test_closed_input_is_not_the_model(binary, smollm2):
    done = subprocess.run(["/bin/sh", "-c", f"'{binary}' tokenize '{smollm2}' <&-"], capture_output=True, timeout=20)
    assert done.returncode == 74 and b"cannot read standard input" in done.stderr and done.stdout == b""


def catches(pid, number):
    """Whether the process has a handler for this signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^SigCgt:\s*(\w+)", status, re.M).group(1), 16) >> number - 1 & 1


def test_interrupt_while_waiting(binary, smollm2):
    process = subprocess.Popen([binary, "tokenize", smollm2], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    until(lambda: catches(process.pid, signal.SIGINT))
    while process.poll() is None:  # one that comes before it reads is seen only when it does
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert process.communicate(timeout=60)[1] == b"quern: interrupted\n" and process.returncode == 130


@pytest.mark.parametrize("limit, phrase", [(60_000, "in all (ulimit -v)"), (250_000, "there are 0.26 GB")])
def test_limits_of_the_process_are_said(binary, smollm2, limit, phrase):
    done = subprocess.run(["/bin/bash", "-c", f"ulimit -v {limit}; exec '{binary}' run '{smollm2}' -p hi -n 1"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 75 and phrase in done.stderr


def test_no_colours_off_a_terminal_or_with_no_color(binary, terminals):
    """With a terminal on stderr there are colours, unless NO_COLOR says no."""
    import pty
    for env, coloured in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        master, slave = pty.openpty()
        base = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        subprocess.run([binary, "inof"], stderr=slave, stdout=subprocess.DEVNULL, env={**base, **env}, timeout=20)
        os.close(slave)
        assert (b"\x1b[" in os.read(master, 4096)) == coloured
        os.close(master)


def blocked(binary, model):
    """A quern that has the model open and waits, since nobody reads what it prints."""
    return subprocess.Popen([binary, "info", model, "--json", "--metadata"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_until_it_writes(process):
    assert process.stdout.read(1) == b"{"  # the rest does not fit into the pipe


@pytest.fixture
def copy(smollm2, tmp_path):
    path = tmp_path / "m.gguf"
    shutil.copyfile(smollm2, path)
    return path


def test_bus_error_is_74(binary, copy):
    process = blocked(binary, copy)
    wait_until_it_writes(process)
    process.send_signal(signal.SIGBUS)
    assert process.wait(20) == 74
    assert process.stderr.read() == b"quern: the model file was cut short or could not be read while it was in use\n"


def test_fetch_model_sees_a_file_cut_short(tmp_path):
    """It is fetched again; without a network, one sentence."""
    models = tmp_path / "quern" / "models"
    models.mkdir(parents=True)
    (models / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run([ROOT / "scripts" / "fetch-model", "smollm2"], capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 69 and "has 4 bytes, not 98362432" in done.stderr and "could not be fetched" in done.stderr


def test_a_failed_download_names_the_networks_reason(tmp_path):
    for index, why in (("http://127.0.0.1:9/simple", "refused:"), ("https://no-such-host.invalid/simple", "DNS:")):
        done = subprocess.run([sys.executable, ROOT / "scripts" / "fetch_model.py", "smollm2"], capture_output=True, text=True, timeout=120,
                              env={**{k: v for k, v in os.environ.items() if not k.startswith("PIP_") and "proxy" not in k.lower()},
                                   "XDG_CACHE_HOME": str(tmp_path), "PIP_INDEX_URL": index, "PIP_RETRIES": "1", "PIP_CONFIG_FILE": "/dev/null"})
        assert done.returncode == 69 and why in done.stderr, done.stderr
    sys.path.insert(0, str(ROOT / "scripts"))
    from fetch_model import reason
    tls = "WARNING: SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...'))\nERROR: No matching distribution found"
    assert reason(tls).startswith("TLS:") and reason("ReadTimeoutError: timed out").startswith("timeout:")
    assert reason("ERROR: No matching distribution found for x") == "ERROR: No matching distribution found for x"
