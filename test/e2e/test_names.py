"""Names that people know: the catalogue, search, models with settings of their own, and Ollama's API that manages models."""
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hub_server import Fault, HubServer
from server import Server, until
from test_hub import call, env, hub  # noqa: F401  (fixtures)

ROOT = Path(__file__).resolve().parents[2]
LLAMA = "unsloth/Llama-3.2-3B-Instruct-GGUF"
FILE = "Llama-3.2-3B-Instruct-Q4_K_M.gguf"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def weights(tiny):
    return tiny[0].read_bytes()


@pytest.fixture
def llama(hub, weights):  # noqa: F811
    """A Hub that has the catalogue's llama3.2, which is a small model of random weights here."""
    return hub.add(LLAMA, {FILE: weights, "Llama-3.2-3B-Instruct-Q8_0.gguf": b"no" * 9000})


def test_every_row_has_a_source():
    rows = re.findall(r'^\{"([^"]+)", "([^"]+)", "([^"]*)", "(https://[^"]+)", "(\d{4}-\d\d-\d\d)"\},$',
                      (ROOT / "src" / "hub" / "catalogue.inc").read_text(), re.M)
    lines = [line for line in (ROOT / "src" / "hub" / "catalogue.inc").read_text().splitlines() if line.startswith("{")]
    assert len(rows) == len(lines) > 30 and len({r[0] for r in rows}) == len(rows)
    assert {"llama3.2", "qwen3:8b", "gemma3:4b", "gpt-oss:20b"} <= {r[0] for r in rows}
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", r[1]) for r in rows)


def test_search(call, hub, llama):  # noqa: F811
    hub.add("me/my-llama3.2-GGUF", {"x.gguf": b"x"})
    code, out, err = call("search", "llama3.2")
    assert code == 0 and f"{LLAMA}:Q4_K_M" in out and "me/my-llama3.2-GGUF" in out and "7 downloads" in out, err
    code, out, _ = call("search", "qwen3:8b", "--json", "--offline")
    assert code == 0 and [r["name"] for r in json.loads(out)] == ["qwen3:8b"] and json.loads(out)[0]["source"].startswith("https://")
    assert call("search", "no such model", "--offline")[0] == 65
    hub.fault = lambda request: Fault(status=404)
    code, out, err = call("search", "gpt-oss")
    assert code == 0 and "gpt-oss:20b" in out and "the Hub was not searched" in err


def test_a_short_name_is_pulled_and_run(call, tmp_path, llama, tiny):  # noqa: F811
    code, out, err = call("pull", "llama3.2:latest", "--json")
    assert code == 0 and json.loads(out)[0]["path"].endswith(FILE), err
    code, out, err = call("run", "llama3.2", "-p", "hi", "-n", "3", "--temp", "0", "--template", tiny[2], "--offline", "--json")
    assert code == 0 and len(json.loads(out)["ids"]) == 3, err
    code, _, err = call("run", "lama3.2", "-p", "hi")
    assert code == 65 and "did you mean 'llama3.2'?" in err


MODELFILE = '''# a comment
FROM ./tiny.gguf
parameter temperature 0
PARAMETER num_predict 5
PARAMETER stop "a b"
PARAMETER stop zz
SYSTEM """Be
brief."""
TEMPLATE """{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}:"""
MESSAGE user hi
MESSAGE assistant hello
LICENSE MIT
'''


def test_create_copy_and_remove(call, tmp_path, tiny):  # noqa: F811
    (tmp_path / "tiny.gguf").symlink_to(tiny[0])
    (tmp_path / "Modelfile").write_text(MODELFILE)
    assert call("create", "brief")[0] == 0
    entry = json.loads((tmp_path / "config" / "quern" / "models.json").read_text())["brief"]
    assert entry["parameters"] == {"temperature": 0, "num_predict": 5, "stop": ["a b", "zz"]} and entry["system"] == "Be\nbrief."
    code, out, err = call("run", "brief", "-p", "yo", "--json")
    got = json.loads(out)
    assert code == 0 and len(got["ids"]) == 5, err
    prompt = call("tokenize", tiny[0], "--decode", ",".join(map(str, got["prompt_ids"])))
    assert "[system]Be\nbrief.[user]hi[assistant]hello[user]yo:" in prompt[1] or prompt[0] != 0
    (tmp_path / "second").write_text("FROM brief\nPARAMETER num_predict 2\n")
    assert call("create", "briefer:1b", "-f", "second")[0] == 0
    assert call("cp", "briefer:1b", "mine")[0] == 0
    code, out, err = call("run", "mine", "-p", "yo", "--json")
    assert len(json.loads(out)["ids"]) == 2 and json.loads(out)["prompt_ids"] == got["prompt_ids"], err
    assert call("rm", "mine")[0] == 0 and call("run", "mine", "-p", "yo")[0] == 65
    assert call("list")[0] == 0
    (tmp_path / "own.json").write_text(json.dumps({"x": {"from": "brief", "parameters": {"num_predict": 3}}, "brief": entry}))
    assert len(json.loads(call("run", "x", "-p", "yo", "--json", "--config", "own.json")[1])["ids"]) == 3
    assert call("run", "x", "-p", "yo", "--config", "none.json")[0] == 64
    for text, why in (("FROM x\nPARAMETER temperatur 1\n", "there is no parameter 'temperatur'"), ("SYSTEM x\n", "names no model"),
                      ("FROM x\nPARAMETER temperature 1000\n", "from 0 to"), ('FROM x\nSYSTEM """a\n', "a quote is not closed"),
                      ("FROM x\nMESSAGE nobody hi\n", "MESSAGE is of system, user or assistant"), ("FRUM x\n", "is none of FROM")):
        (tmp_path / "bad").write_text(text)
        code, _, err = call("create", "bad", "-f", "bad")
        assert code != 0 and why in err, (text, err)


GO_TURNS = "{{ if .System }}<s>{{ .System }}</s>\n{{ end }}{{ if .Prompt }}<u>{{ .Prompt }}</u>\n{{ end }}<a>{{ .Response }}</a>\n"
GO_MESSAGES = """{{- if .Messages }}
{{- if or .System .Tools }}<s>{{ .System }}
{{- range .Tools }}
{"function": {{ json .Function }}}
{{- end }}</s>
{{ end }}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
{{- if eq .Role "user" }}<u>{{ .Content }}</u>
{{ else if eq .Role "assistant" }}<a>{{ .Content }}{{ range .ToolCalls }}[{{ .Function.Name }} {{ .Function.Arguments }}]{{ end }}</a>
{{ else if eq .Role "tool" }}<t>{{ .Content }}</t>
{{ end }}
{{- if and (ne .Role "assistant") $last }}<a>{{ end }}
{{- end }}
{{- else }}{{ .Prompt }}{{ end }}"""
CALL = [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]


@pytest.mark.parametrize("go, messages, tools, want", [
    (GO_TURNS, "sua", None, "<s>S0</s>\n<u>U1</u>\n<a>A2"),
    (GO_TURNS, "suauau", None, "<s>S0</s>\n<u>U1</u>\n<a>A2</a>\n<u>U3</u>\n<a>A4</a>\n<u>U5</u>\n<a>"),
    (GO_TURNS, "u", None, "<u>U0</u>\n<a>"),
    (GO_MESSAGES, "su", None, "<s>S0</s>\n<u>U1</u>\n<a>"),
    (GO_MESSAGES, "uct", ["f"], '<s>\n{"function": {"name": "f"}}</s>\n<u>U0</u>\n<a>[f {"a": 1}]</a>\n<t>T2</t>\n<a>'),
    ("{{ range .Messages }}{{ with .Content }}[{{ . }}]{{ else }}-{{ end }}{{ end }}", "uc", None, "[U0]-"),
    ("{{/* no */}}{% {{ .Prompt | json }} {# {{ .System }}{\n", "u", None, '{% "U0" {# {\n'),
])
def test_templates_in_gos_language(call, tmp_path, tiny, go, messages, tools, want):  # noqa: F811
    (tmp_path / "tiny.gguf").symlink_to(tiny[0])
    (tmp_path / "Modelfile").write_text(f'FROM ./tiny.gguf\nTEMPLATE """{go}"""\n')
    code, _, err = call("create", "go")
    assert code == 0, err
    entry = json.loads((tmp_path / "config" / "quern" / "models.json").read_text())["go"]
    (tmp_path / "t.jinja").write_text(entry["template"])
    roles = {"s": "system", "u": "user", "a": "assistant", "c": "assistant", "t": "tool"}
    said = [{"role": roles[r], "content": f"{r.upper()}{i}"} | ({"content": "", "tool_calls": CALL} if r == "c" else {})
            for i, r in enumerate(messages)]
    (tmp_path / "m.json").write_text(json.dumps(said))
    more = []
    if tools:
        (tmp_path / "tools.json").write_text(json.dumps([{"type": "function", "function": {"name": t}} for t in tools]))
        more = ["--tools", tmp_path / "tools.json"]
    code, out, err = call("template", "--file", tmp_path / "t.jinja", "--messages", tmp_path / "m.json", *more)
    assert code == 0 and out == want, err


@pytest.mark.parametrize("go, why", [("{{ .Foo }}", "'Foo'"), ("{{ if .System }}x", "an end is missing"), ("{{ .System }}{{ end }}", "end"),
                                     ('{{ .System }}{{ printf "%s" .Prompt }}', "'printf'"), ("{{ .System", "not closed"),
                                     ("{{ .System (eq }}", "known"), ('{{ .System }}{{ template "x" }}', "'template'")])
def test_what_of_go_is_not_known(call, tmp_path, tiny, go, why):  # noqa: F811
    (tmp_path / "tiny.gguf").symlink_to(tiny[0])
    (tmp_path / "Modelfile").write_text(f'FROM ./tiny.gguf\nTEMPLATE """{go}"""\n')
    code, _, err = call("create", "go")
    assert code == 65 and why in err and "Go's language" in err, err


@pytest.fixture
def managed(binary, env, tiny, llama):  # noqa: F811
    s = Server(binary, tiny[0], "--template", tiny[2], "--name", "tiny", "--ctx", "512",
               env={**env, "QUERN_ADMIN_KEY": "boss", "QUERN_API_KEY": "sesame"})
    yield s
    assert s.stop() == 0


def test_ollamas_client_manages_models(managed, hub, tmp_path):  # noqa: F811
    ollama = pytest.importorskip("ollama")
    boss = ollama.Client(host=managed.url, headers={"Authorization": "Bearer boss"})
    other = ollama.Client(host=managed.url, headers={"Authorization": "Bearer sesame"})
    for refused in (lambda: other.pull("llama3.2"), lambda: other.create("x", from_="tiny"), lambda: other.copy("tiny", "x"),
                    lambda: other.delete("tiny")):
        with pytest.raises(ollama.ResponseError) as why:
            refused()
        assert why.value.status_code == 403
    steps = list(boss.pull("llama3.2", stream=True))
    assert steps[0].status == "pulling manifest" and steps[-1].status == "success"
    assert any(s.status.startswith("pulling ") and s.total and s.completed <= s.total for s in steps[1:-1])
    assert "llama3.2" in [m.model for m in other.list().models]
    assert other.chat("llama3.2", MESSAGES, options={"num_predict": 3}).eval_count == 3
    assert boss.pull("llama3.2").status == "success"  # nothing to fetch
    made = boss.create("brief", from_="llama3.2", system="Be brief.", parameters={"temperature": 0, "num_predict": 4})
    assert made.status == "success"
    assert other.chat("brief", MESSAGES).eval_count == 4
    longer = other.chat("brief", MESSAGES).prompt_eval_count
    assert longer > other.chat("llama3.2", MESSAGES, options={"num_predict": 1}).prompt_eval_count  # the system message
    boss.copy("brief", "mine")
    assert other.chat("mine", MESSAGES).eval_count == 4
    boss.delete("mine")
    until(lambda: "mine" not in [m.model for m in other.list().models])
    with pytest.raises(ollama.ResponseError) as why:
        other.chat("mine", MESSAGES)
    assert why.value.status_code == 404
    for wrong in (lambda: boss.pull("no-such-model"), lambda: boss.create("x", from_="no-such-model"), lambda: boss.copy("nope", "x"),
                  lambda: boss.create("x", from_="/etc/passwd"), lambda: boss.create("x", from_="tiny", parameters={"temperatur": 1}),
                  lambda: boss.create("../x", from_="llama3.2")):
        with pytest.raises(ollama.ResponseError):
            wrong()
    boss.delete("llama3.2")
    assert not list((tmp_path / "hf").rglob("*Q4_K_M.gguf"))
    assert other.chat("tiny", MESSAGES, options={"num_predict": 2}).eval_count == 2  # the server's own model is still there


def test_pulled_models_survive_a_restart(binary, env, tiny, llama, tmp_path):  # noqa: F811
    own = {**env, "QUERN_ADMIN_KEY": "boss", "QUERN_API_KEY": "sesame"}
    args = [tiny[0], "--template", tiny[2], "--name", "tiny", "--ctx", "512", "--state-dir", tmp_path / "kept"]
    boss, other = {"Authorization": "Bearer boss"}, {"Authorization": "Bearer sesame"}

    def names(s):
        return [m["id"] for m in s.ask("/v1/models", **other)["data"]]
    s = Server(binary, *args, env=own)
    assert s.ask("/api/pull", {"model": "llama3.2", "stream": False}, **boss)["status"] == "success"
    assert s.ask("/api/create", {"model": "brief", "from": "llama3.2", "parameters": {"num_predict": 4}, "stream": False}, **boss)
    status, _, reply = s.request("DELETE", "/api/delete", {"model": "tiny"}, **boss)
    assert status == 400 and b"stays" in reply and "tiny" in names(s) and tiny[0].exists()
    assert s.stop() == 0
    s = Server(binary, *args, env=own)
    assert sorted(names(s)) == ["brief", "llama3.2", "tiny"]
    assert s.ask("/api/chat", {"model": "brief", "messages": MESSAGES, "stream": False}, **other)["eval_count"] == 4
    assert s.request("DELETE", "/api/delete", {"model": "brief"}, **boss)[0] == 200
    until(lambda: "brief" not in names(s))
    assert s.stop() == 0
    next((tmp_path / "hf").rglob("*Q4_K_M.gguf")).unlink()
    s = Server(binary, *args, env=own)
    assert names(s) == ["tiny"] and "llama3.2 is no longer listed" in "".join(s.log)
    assert s.stop() == 0


def test_settings_of_a_model_when_it_is_served(binary, env, tiny, tmp_path):  # noqa: F811
    """Context, slots, sampling, template and adapters of models.json."""
    from test_adapters import make
    red = make(tmp_path / "red", 1)
    config = {"small": {"from": str(tiny[0]), "template": "{{ messages[0].content }}:", "adapters": [str(red)],
                        "parameters": {"num_ctx": 96, "slots": 1, "temperature": 0, "num_predict": 6}},
              "plain": {"from": str(tiny[0]), "template": "{{ messages[0].content }}:", "parameters": {"num_predict": 6, "temperature": 0}}}
    (tmp_path / "own.json").write_text(json.dumps(config))
    s = Server(binary, "small", "plain", "--config", tmp_path / "own.json", "--slots", "4", "--device", "cpu", env=env)
    try:
        def chat(model, **more):
            return s.ask("/v1/chat/completions", {"model": model, "messages": MESSAGES, "ignore_eos": True, **more})
        small, plain = chat("small"), chat("plain")
        assert small["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"] == 6
        assert small["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
        text = [c["choices"][0]["message"]["content"] for c in (small, plain)]
        assert text[0] != text[1] == chat("small", lora="")["choices"][0]["message"]["content"]
        loaded = {m["name"]: m["context_length"] for m in s.ask("/api/ps")["models"]}
        assert loaded["small"] == 96 != loaded["plain"]
        assert [x["model"] for x in s.ask("/slots")].count("small") == 1 and [x["model"] for x in s.ask("/slots")].count("plain") == 4
        assert [(a["name"], a["scale"]) for a in s.ask("/lora-adapters?model=small")] == [("red", 1)]
        status, _, reply = s.request("POST", "/v1/completions", {"model": "small", "prompt": "a b c d " * 60})
        assert status == 400 and b"context_length_exceeded" in reply
    finally:
        assert s.stop() == 0


def test_a_pull_ends_with_its_client(managed, hub, tmp_path):  # noqa: F811
    hub.fault = lambda request: Fault(stall=500_000) if request["role"] == "store" else None
    with managed.connect() as s:
        body = json.dumps({"model": "llama3.2"}).encode()
        s.sendall(b"POST /api/pull HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer boss\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        assert b"pulling manifest" in s.recv(65536)
        time.sleep(0.5)
    hub.fault = lambda request: None
    assert managed.ask("/v1/models", Authorization="Bearer sesame")["data"]
    assert managed.ask("/api/pull", {"model": "llama3.2", "stream": False}, Authorization="Bearer boss")["status"] == "success"


def test_without_a_manager(serve, tiny):
    s = serve(*tiny)
    status, _, reply = s.request("POST", "/api/pull", {"model": "llama3.2"})
    assert status == 501 and b"--manage" in reply


@pytest.mark.slow  # its imports take long
def test_llm_by_a_short_name(managed, tmp_path):
    pytest.importorskip("llm")
    assert managed.ask("/api/pull", {"model": "llama3.2", "stream": False}, Authorization="Bearer boss")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: l\n  model_name: llama3.2\n  api_base: {managed.url}/v1\n  api_key_name: k\n")
    (tmp_path / "keys.json").write_text('{"k": "sesame"}')
    done = subprocess.run([sys.executable, "-m", "llm", "-m", "l", "-o", "max_tokens", "4", "-n", "hi"], capture_output=True, text=True,
                          env={**os.environ, "LLM_USER_PATH": str(tmp_path)}, timeout=120)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.slow  # its imports take long
def test_aider_by_a_short_name(managed, tmp_path):
    """The client of test/clients, with the name that people type."""
    aider = ROOT / ".venv-aider" / "bin" / "aider"
    if not aider.exists():
        pytest.skip("aider is not installed (.venv-aider)")
    assert managed.ask("/api/pull", {"model": "llama3.2", "stream": False}, Authorization="Bearer boss")
    done = subprocess.run([aider, "--model", "openai/llama3.2", "--message", "hi", "--no-git", "--yes-always", "--no-show-model-warnings",
                           "--no-check-update", "--no-analytics", "--map-tokens", "0", "--no-stream", "--chat-mode", "ask"],
                          capture_output=True, text=True, cwd=tmp_path, timeout=600, stdin=subprocess.DEVNULL,
                          env={**os.environ, "OPENAI_API_BASE": f"{managed.url}/v1", "OPENAI_API_KEY": "sesame", "HOME": str(tmp_path)})
    assert done.returncode == 0 and "litellm." not in done.stdout, done.stdout + done.stderr
    received = re.search(r"Tokens: .* sent, ([\d.]+k?) received|output tokens: ~?([\d,]+)", done.stdout, re.I)
    assert received and set(received.group(1) or received.group(2)) - {"0"}, done.stdout
