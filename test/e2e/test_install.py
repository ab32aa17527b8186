"""What `make install` puts down is a library that a program can be built with, by pkg-config alone."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def prefix(binary, tmp_path_factory):
    where = tmp_path_factory.mktemp("prefix")
    subprocess.run(["cmake", "--install", binary.parent, "--prefix", where], check=True, capture_output=True)
    # the .pc file names the prefix that the build was configured with
    pc = next(where.rglob("quern.pc"))
    lines = [f"prefix={where}", f"libdir={pc.parent.parent}", f"includedir={where}/include"]
    rest = [l for l in pc.read_text().splitlines() if ":" in l]
    pc.write_text("\n".join(lines + rest) + "\n")
    return where, pc.parent


def test_installed_program(prefix):
    where, _ = prefix
    out = subprocess.run([where / "bin" / "quern", "--version"], capture_output=True, text=True, check=True).stdout
    assert out.startswith("quern ")


def test_a_program_by_pkg_config(prefix, smollm2, tmp_path):
    where, pc = prefix
    env = {**os.environ, "PKG_CONFIG_PATH": str(pc), "LD_LIBRARY_PATH": str(pc.parent)}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "quern"], env=env, capture_output=True, text=True,
                           check=True).stdout.split()
    program = tmp_path / "example"
    subprocess.run([shutil.which("cc") or "gcc", "-Wall", "-Wextra", "-Werror", ROOT / "examples" / "generate.c", *flags, "-o",
                    program], env=env, check=True)
    done = subprocess.run([program, smollm2, "Name a colour."], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    bad = subprocess.run([program, "/nowhere.gguf", "x"], env=env, capture_output=True, text=True, timeout=60)
    assert bad.returncode == 65 and "/nowhere.gguf" in bad.stderr


def test_only_the_public_names_show(binary):
    out = subprocess.run(["nm", "-D", "--defined-only", binary.parent / "libquern.so"], capture_output=True, text=True,
                         check=True).stdout
    names = [line.split()[-1].split("@")[0] for line in out.splitlines()]
    assert {"quern_open", "quern_gpu_open"} <= set(names) and all(n.startswith("quern_") for n in names)
