"""What the program says of models: types, templates, which one answers where none is named, and by which names."""
import json
import shutil

import pytest

from conftest import ROOT
from server import Server

HI = [{"role": "user", "content": "Say hello."}]
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if tools %}<tools>{% endif %}<think>"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A tiny model that writes, with a tokenizer and without a chat template."""
    where = tmp_path_factory.mktemp("models") / "a-plain"
    shutil.copytree(ROOT / "test/data/arch/llama", where)
    vocab = json.loads((where / "config.json").read_text())["vocab_size"]
    words = {chr(97 + i) if i < 26 else f"<{i}>": i for i in range(vocab)}
    (where / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "post_processor": None, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": words, "merges": []}}))
    return where


def test_the_type_of_a_file(quern, binary, tmp_path):
    folder = tmp_path / "quern" / "models"
    folder.mkdir(parents=True)
    quern("quantize", ROOT / "test/data/arch/llama", folder / "mill.gguf", "Q4_K_M", "--quiet", "--json").json()
    kinds = quern("info", folder / "mill.gguf", "--json").json()["types"]
    assert "Q4_K" not in kinds  # its rows are too short for that: the tensors have other types
    listed = quern("ls", "--json", env={"XDG_CACHE_HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}).json()
    assert [m["type"] for m in listed] == ["Q4_K_M"]
    server = Server(binary, "--models-dir", folder)
    assert server.ask("/api/tags")["models"][0]["details"]["quantization_level"] == "Q4_K_M"
    assert server.ask("/api/show", {"model": "mill"})["details"]["quantization_level"] == "Q4_K_M"
    assert server.stop() == 0


def test_who_answers_where_none_is_named(binary, smollm2, plain, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copytree(plain, folder / "a-plain")
    (folder / "b-chat.gguf").symlink_to(smollm2)
    server = Server(binary, "--models-dir", folder, "--ctx", "256")
    few = {"max_tokens": 2, "temperature": 0}
    for path, body in (("/v1/chat/completions", {"messages": HI, **few}), ("/v1/messages", {"messages": HI, **few}),
                       ("/v1/responses", {"input": "Hi", "max_output_tokens": 2}),
                       ("/api/chat", {"messages": HI, "stream": False, "options": {"num_predict": 2}})):
        assert server.ask(path, body)["model"] == "b-chat", path
    assert server.ask("/apply-template", {"messages": HI})["prompt"].startswith("<|im_start|>")
    assert server.ask("/v1/completions", {"prompt": "ab", **few})["model"] == "a-plain"
    for path in ("/v1/chat/completions", "/apply-template", "/v1/messages"):
        status, _, body = server.request("POST", path, {"model": "a-plain", "messages": HI, **few})
        why = json.loads(body)["error"]["message"]
        assert status == 400 and "a-plain has no chat template" in why and "--" not in why and str(folder) not in why, why
    assert server.stop() == 0


def test_a_template_of_the_command_line(binary, smollm2, tmp_path):
    (tmp_path / "own.jinja").write_text(TEMPLATE)
    own = Server(binary, smollm2, "--name", "smol", "--ctx", "128", "--template", tmp_path / "own.jinja")
    shown = own.ask("/api/show", {"model": "smol"})
    assert shown["template"] == TEMPLATE and {"completion", "tools", "thinking"} <= set(shown["capabilities"])
    assert own.stop() == 0
    plain = Server(binary, smollm2, "--name", "smol", "--ctx", "128")
    shown = plain.ask("/api/show", {"model": "smol"})
    assert "<|im_start|>" in shown["template"] and "thinking" not in shown["capabilities"]
    assert shown["model_info"]["llama.block_count"] == 30 and shown["model_info"]["tokenizer.ggml.tokens"] is None
    assert plain.stop() == 0


def test_several_names(binary, quern, smollm2, plain):
    server = Server(binary, smollm2, "--name", "one", "--name", "two", "--name", "three", "--name", "two", "--ctx", "128")
    assert [m["id"] for m in server.ask("/v1/models")["data"]] == ["one", "two", "three"]
    assert [m["name"] for m in server.ask("/api/tags")["models"]] == ["one", "two", "three"]
    few = {"messages": HI, "max_tokens": 2, "temperature": 0}
    for name in ("one", "two", "three"):
        assert server.ask("/v1/chat/completions", {"model": name, **few})["model"] == name
        assert server.ask("/v1/models/" + name)["id"] == name
    assert server.ask("/v1/chat/completions", {"model": "two:latest", **few})["model"] == "two"
    assert server.ask("/v1/chat/completions", few)["model"] == "one"
    assert server.request("POST", "/v1/chat/completions", {"model": smollm2.stem, **few})[0] == 404
    assert server.metric("quern_model_loads_total") == 1
    assert server.stop() == 0
    several = quern("serve", smollm2, plain, "--name", "one", "--name", "two", "--port", "0")
    assert several.code == 64 and "--name is for one model" in several.err


def test_doctor_has_one_size_of_keys_and_values(quern, smollm2):
    found = quern("doctor", smollm2, "--device", "cpu", "--json").json()["model"]
    said = float(found["where"].split("KV ")[1].split(" GB")[0])
    assert abs(said - found["kv"] / 1e9) <= 0.006 and found["texts"] == 1 and found["kv"] > 0, found


def test_the_header_says_where_adapters_run():
    lines = (ROOT / "include/quern.h").read_text().splitlines()
    assert not [line for line in lines if "lora" in line and "CPU only" in line]
