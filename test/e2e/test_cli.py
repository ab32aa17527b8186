"""What holds for every verb: help, options, exit codes, what goes to which stream."""
import os
import subprocess

import pytest


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
    (["info", "hf:a/b"], "hf:a/b"),
    (["info", "a" * 5000 + "/b"], "too long")])
def test_usage_errors(quern, args, phrase):
    done = quern(*args)
    assert done.code == 64 and done.out == "" and phrase in done.err and done.err.count("\n") == 1


def test_options_before_and_after(quern, smollm2):
    forms = [["info", "--json", smollm2], ["info", smollm2, "--json"], ["--json", "info", smollm2],
             ["info", "--json", "--", smollm2]]
    outs = {quern(*f).out for f in forms}
    assert len(outs) == 1 and outs.pop().startswith("{")


def test_full_disk(binary):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([binary, "help"], stdout=full, stderr=subprocess.PIPE, timeout=20)
    assert done.returncode == 74 and b"cannot write to standard output: No space left" in done.stderr


def test_closed_output(binary):
    done = subprocess.run(["/bin/sh", "-c", f"'{binary}' help >&-"], capture_output=True, timeout=20)
    assert done.returncode == 74 and b"cannot write" in done.stderr


def test_reader_goes_away(binary):
    """As other tools of Unix: no message."""
    done = subprocess.run(["/bin/bash", "-c", f"trap '' PIPE; '{binary}' help | true; echo ${{PIPESTATUS[0]}}"],
                          capture_output=True, text=True, timeout=20)
    assert done.stderr == "" and done.stdout.strip() in ("0", "74")


def test_no_colours_off_a_terminal_or_with_no_color(binary):
    """With a terminal on stderr there are colours, unless NO_COLOR says no."""
    import pty
    for env, coloured in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        master, slave = pty.openpty()
        base = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        subprocess.run([binary, "inof"], stderr=slave, stdout=subprocess.DEVNULL, env={**base, **env}, timeout=20)
        os.close(slave)
        assert (b"\x1b[" in os.read(master, 4096)) == coloured
        os.close(master)
