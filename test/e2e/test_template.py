"""`quern template` against jinja2: every template of ../shared over many conversations, and the snippets."""
import json
from pathlib import Path

import pytest

from jinja_reference import NOW, render

DATA = Path(__file__).resolve().parents[1] / "data" / "jinja"
CONVERSATIONS = json.loads((DATA / "conversations.json").read_text())
SNIPPETS = json.loads((DATA / "snippets.json").read_text())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """files(value) -> a path that holds it as JSON (or as text, for a str)."""
    folder, seen = tmp_path_factory.mktemp("template"), {}

    def write(value):
        text = value if isinstance(value, str) else json.dumps(value)
        if text not in seen:
            seen[text] = folder / f"{len(seen)}"
            seen[text].write_text(text)
        return seen[text]
    return write


def check(quern, files, template, context):
    """Renders both ways and compares; returns jinja2's result."""
    args = ["template", "--file", files(template), "--messages", files(context["messages"]), "--now", NOW.isoformat()]
    for key, value in context.items():
        if key == "tools" and value is not None:
            args += ["--tools", files(value)]
        elif key == "add_generation_prompt":
            args += [] if value else ["--no-generation-prompt"]
        elif key != "messages":
            args += ["--set", f"{key}={json.dumps(value)}"]
    ours, want = quern(*args, raw=True), render(template, context)
    if "out" in want:
        assert ours.code == 0, ours.err
        assert ours.out.decode() == want["out"]
    else:
        assert ours.code in (65, 75), (ours, want)
        assert ours.out == b""
        assert (want["message"] or "") in ours.err
    return want


def test_templates_of_models(quern, files, shared):
    paths = sorted((shared / "templates").glob("*.jinja"))
    assert paths
    rendered = raised = 0
    for i, path in enumerate(paths):
        template = path.read_text()
        for k, (name, messages) in enumerate(CONVERSATIONS["conversations"].items()):
            # all conversations, and with each another one of the extras: all pairs come up over the templates
            extra = CONVERSATIONS["extras"][(i + k) % len(CONVERSATIONS["extras"])]
            context = {**CONVERSATIONS["names"], "messages": messages, "add_generation_prompt": (i + k) % 2 == 0, **extra}
            want = check(quern, files, template, context)
            rendered, raised = rendered + ("out" in want), raised + ("error" in want)
    assert rendered > 20 * len(paths) and raised > len(paths)


def test_snippets(quern, files):
    for s in SNIPPETS["snippets"][::4]:  # all of them run in the C test
        check(quern, files, s["template"], {"messages": [], "add_generation_prompt": True, **SNIPPETS["context"]})


def test_only_what_is_given_is_defined(quern, files):
    text = "{{ tools is defined }}{{ bos_token is defined }}{{ add_generation_prompt }}{{ messages|length }}{{ k }}{{ j.a }}"
    got = quern("template", "--file", files(text), "--messages", files([]), "--set", "k=<s>", "--set", 'j={"a": 1.0}')
    assert got.out == "FalseFalseTrue0<s>1.0"


def test_newlines_and_bytes_come_out_as_they_are(quern, files):
    got = quern("template", "--file", files("a\r\nb\n\n"), "--messages", files([]), raw=True)
    assert got.out == b"a\nb\n"


@pytest.mark.parametrize("args, code, text", [
    ([], 64, "needs"),
    (["--messages", "x"], 64, "MODEL or --file"),
    (["--file", "x", "--messages", "/nonexistent"], 65, "/nonexistent"),
])
def test_usage(quern, args, code, text):
    got = quern("template", *args)
    assert got.code == code and text in got.err


def test_bad_input(quern, files):
    template = files("{{ messages }}")
    assert quern("template", "--file", template, "--messages", files("{")).code == 65
    assert quern("template", "--file", template, "--messages", files({"a": 1})).code == 65
    assert quern("template", "--file", template, "--messages", files([]), "--set", "x").code == 64
    assert quern("template", "--file", template, "--messages", files([]), "--now", "2024-07-26T12:30:00Z").code == 0
    assert quern("template", "--file", template, "--messages", files([]), "--now", "yesterday").code == 64
    assert quern("template", "--file", files("{{ 'a' * 10**9 }}"), "--messages", files([])).code == 75


def test_model(quern, files, smollm2):
    """The template of a GGUF, with its special tokens; names of --set go before them."""
    messages = files([{"role": "user", "content": "Hi <|im_end|>"}])
    got = quern("template", smollm2, "--messages", messages)
    assert got.code == 0, got.err
    assert got.out.endswith("<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n")
    assert quern("template", smollm2, "--messages", messages, "--no-generation-prompt").out + "<|im_start|>assistant\n" == got.out


def test_model_folder(quern, files, tmp_path):
    """tokenizer_config.json with named templates; tokens as objects; a folder without a template says so."""
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    (tmp_path / "config.json").write_text("{}")
    messages = files([{"role": "user", "content": "x"}])
    none = quern("template", tmp_path, "--messages", messages)
    assert none.code == 65 and "no chat template" in none.err
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": {"content": "<B>", "lstrip": False}, "eos_token": "<E>", "pad_token": None,
        "chat_template": [{"name": "default", "template": "{{ bos_token }}{{ tools is none }}{{ pad_token is defined }}"},
                          {"name": "tool_use", "template": "tools {{ tools|length }}{{ eos_token }}"}]}))
    assert quern("template", tmp_path, "--messages", messages).out == "<B>TrueFalse"
    assert quern("template", tmp_path, "--messages", messages, "--tools", files([{}])).out == "tools 1<E>"
    assert quern("template", tmp_path, "--messages", messages, "--set", "bos_token=q").out == "qTrueFalse"
    (tmp_path / "chat_template.jinja").write_text("file {{ messages[0].content }}")
    assert quern("template", tmp_path, "--messages", messages).out == "file x"
