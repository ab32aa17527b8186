"""Every command that the README shows runs, and prints the lines that it shows ('...' stands for anything)."""
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()
SESSIONS = [block for block in re.findall(r"```console\n(.*?)```", TEXT, re.S)]


def commands():
    for block in SESSIONS:
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, shown = part.partition("\n")
            yield pytest.param(command, shown, id=command[:50])


@pytest.mark.parametrize("command, shown", list(commands()))
def test_command(command, shown, binary, smollm2):
    if command.startswith("make"):
        pytest.skip("a make target: this very test runs inside one")
    env = {**os.environ, "PATH": f"{binary.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, env=env, timeout=300,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    for line in shown.splitlines():
        if line.strip():
            pattern = ".*".join(re.escape(p) for p in line.rstrip().split("..."))
            assert re.search(f"^{pattern}$", done.stdout + done.stderr, re.M), f"{line!r} not in {done.stdout!r}"


def test_there_are_commands():
    assert len(list(commands())) >= 6
