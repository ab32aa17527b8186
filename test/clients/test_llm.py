"""llm: its command, chat and completions, streamed and not, with a schema."""
import json
import os
import subprocess
import sys


def test_command(server, tmp_path):
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: mill\n  model_name: qwen\n  api_base: {server.v1}\n  api_key_name: mill\n  supports_schema: true\n"
        f"- model_id: mill-text\n  model_name: qwen\n  api_base: {server.v1}\n  api_key_name: mill\n  completion: true\n")
    (tmp_path / "keys.json").write_text(json.dumps({"mill": server.key}))

    def llm(*args):
        done = subprocess.run([sys.executable, "-m", "llm", *args], env={**os.environ, "LLM_USER_PATH": str(tmp_path)},
                              capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()
    brief = ("-o", "temperature", "0", "-o", "max_tokens", "12", "-n")
    assert "mill" in llm("models")
    streamed = llm("-m", "mill", *brief, "Say hello.")
    assert streamed and streamed == llm("-m", "mill", *brief, "--no-stream", "Say hello.")
    assert llm("-m", "mill-text", *brief, "One two three")
    assert json.loads(llm("-m", "mill", "-n", "-o", "temperature", "0", "--schema", "name, age int", "Ada is 36."))["age"] == 36
