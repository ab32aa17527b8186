"""aider: its command asks about a file in a repository, streamed (in a venv of its own: it pins its libraries)."""
import os
import re
import subprocess
from pathlib import Path

import pytest

AIDER = Path(__file__).resolve().parents[2] / ".venv-aider" / "bin" / "aider"


def test_ask(server, tmp_path):
    if not AIDER.exists():
        pytest.fail("aider is not installed: scripts/setup clients")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "hello.py").write_text('print("hello")\n')
    (tmp_path / "settings.yml").write_text("- name: openai/qwen\n  extra_params: {max_tokens: 64, temperature: 0}\n")
    env = {**os.environ, "HOME": str(tmp_path), "OPENAI_API_BASE": server.v1, "OPENAI_API_KEY": server.key}
    done = subprocess.run([str(AIDER), "--model", "openai/qwen", "--model-settings-file", "settings.yml", "--no-show-model-warnings",
                           "--no-check-update", "--analytics-disable", "--yes-always", "--no-gitignore", "--chat-mode", "ask",
                           "--map-tokens", "0", "--message", "Which word does hello.py print? Answer with one word.", "hello.py"],
                          cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    tokens = re.search(r"Tokens: ([\d.k]+) sent, ([\d.k]+) received", done.stdout)
    assert tokens and tokens.group(2) != "0" and "litellm." not in done.stdout, done.stdout[-2000:]
