"""bench/turns.py: programs in turn on the same models."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def turns(*words):
    return subprocess.run([sys.executable, ROOT / "bench/turns.py", *map(str, words)], capture_output=True, text=True)


def program(path, device, rates):
    """One that measures nothing: each run has the next of these rates, on a made-up device."""
    path.write_text(f"#!{sys.executable}\n"
                    "import json, pathlib\n"
                    f"left = pathlib.Path({str(path)!r} + '.left')\n"
                    f"rates = json.loads(left.read_text()) if left.exists() else {rates!r}\n"
                    "left.write_text(json.dumps(rates[1:]))\n"
                    "print(json.dumps([{'test': 'decode', 'n': 8, 'depth': 0, 'batch': 4, "
                    f"'device': {device!r}, 'tok_s': rates[0], 'share': 0.25}}]))\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def empty(tmp_path):
    """A file that stands for a model."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"")
    return path


def test_medians_and_ratios(tmp_path, empty):
    one = program(tmp_path / "one", "cuda:0", [100.0, 500.0, 120.0])
    two = program(tmp_path / "two", "cuda:0", [90.0, 150.0, 1000.0])
    done = turns(f"before={one}", f"now={two}", "--test", f"{empty} -n 8 -b 4", "--rounds", 3, "--json", tmp_path / "all.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"| {empty} -n 8 -b 4 | decode, 4 at once | 120.0 | 150.0 | 1.250 | 25% |"
    assert json.loads((tmp_path / "all.json").read_text())[0]["tok_s"] == {"before": [100, 500, 120], "now": [90, 150, 1000]}


def test_another_device_ends_the_run(tmp_path, empty):
    one, two = program(tmp_path / "one", "cuda:0", [100.0]), program(tmp_path / "two", "cpu", [1.0])
    done = turns(f"before={one}", f"now={two}", "--test", f"{empty} -n 8")
    assert done.returncode == 1 and "now ran" in done.stderr and "on cpu, not on cuda:0" in done.stderr


def test_made_models(tmp_path, binary):
    done = turns(f"one={binary}", f"two={binary}", "--models", tmp_path, "--rounds", 1, "--repeats", 1, "--test",
                 "smollm2-135m --layers 1 --type q4_0 -p 0 -n 2 -b 1,2 --device cpu")
    assert done.returncode == 0, done.stderr
    assert [row.split(" | ")[1] for row in done.stdout.splitlines()[2:]] == ["decode, 1 at once", "decode, 2 at once"]
    assert (tmp_path / "smollm2-135m-layers-1-type-q4_0.gguf").exists()


def test_what_fails_is_said(tmp_path, binary):
    done = turns("before=nowhere", "--test", "smollm2-135m")
    assert done.returncode == 1 and "'before=nowhere' is not NAME=PROGRAM" in done.stderr
    done = turns(f"now={binary}", "--models", tmp_path, "--test", "no-such-preset -n 2")
    assert done.returncode == 1 and "turns: " in done.stderr
