"""aider: its command asks for an edit of a file in a repository (in a venv of its own: it pins its libraries). Whether the
edit is a good one is the model's affair; that aider gets an answer and counts its tokens is the server's."""
import os
import re
import subprocess
from pathlib import Path

import pytest

AIDER = Path(__file__).resolve().parents[2] / ".venv-aider" / "bin" / "aider"


def test_edit(server, tmp_path):
    if not AIDER.exists():
        pytest.fail("aider is not installed: scripts/setup clients")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "hello.py").write_text('print("hello")\n')
    env = {**os.environ, "HOME": str(tmp_path), "OPENAI_API_BASE": server.v1, "OPENAI_API_KEY": server.key}
    done = subprocess.run([str(AIDER), "--model", "openai/qwen", "--no-show-model-warnings", "--no-check-update", "--analytics-disable",
                           "--yes-always", "--no-stream", "--no-auto-commits", "--edit-format", "whole", "--map-tokens", "0",
                           "--message", 'Change the text "hello" to "goodbye".', "hello.py"],
                          cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    tokens = re.search(r"Tokens: ([\d.k]+) sent, ([\d.k]+) received", done.stdout)
    assert tokens and tokens.group(2) != "0" and "litellm." not in done.stdout, done.stdout
