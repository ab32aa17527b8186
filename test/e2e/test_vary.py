"""Text models with configurations drawn at random (vary_hybrids.py, vary_attention.py): folders and the GGUF files that quern
writes of them answer as transformers does, or are refused in a sentence.

$QUERN_REF_PYTHON names a Python with torch and transformers; $QUERN_VARY_COUNT how many are drawn of each family."""
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.slow
@pytest.mark.parametrize("program", ("vary_hybrids.py", "vary_attention.py"))
def test_vary(binary, program):
    python = os.environ.get("QUERN_REF_PYTHON")
    if not python:
        pytest.skip("QUERN_REF_PYTHON names no Python with torch and transformers")
    done = subprocess.run([python, HERE / program, binary, "--count", os.environ.get("QUERN_VARY_COUNT", "2")], capture_output=True,
                          text=True, timeout=7200)
    assert done.returncode == 0, done.stdout + done.stderr
