"""Fill in the middle: `suffix`, /infill and Ollama's suffix, with a tiny model whose vocabulary has the tokens for it."""
import json
import shutil

import pytest

from conftest import ROOT
from server import Server

SPECIAL = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|endoftext|>"]


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    """The tiny llama of the tests with an alphabet: a token is a letter."""
    where = tmp_path_factory.mktemp("models") / "coder"
    shutil.copytree(ROOT / "test/data/arch/llama", where)
    letters = ["<unk>", "Ċ", "Ġ", ".", ":", "(", ")", "=", "+", *(chr(c) for c in range(97, 123)), *(str(d) for d in range(10))]
    vocab = {c: i for i, c in enumerate(letters)}
    added = [{"id": 64 - len(SPECIAL) + i, "content": s, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for i, s in enumerate(SPECIAL)]
    for i in range(len(vocab), 64 - len(SPECIAL)):
        vocab[f"<{i}>"] = i
    (where / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": False, "byte_fallback": False,
                  "vocab": {**vocab, **{a["content"]: a["id"] for a in added}}, "merges": []}}))
    (where / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return where


@pytest.fixture(scope="module")
def server(binary, coder):
    s = Server(binary, coder, "--exact")
    yield s
    assert s.stop() == 0


def ids(server, text):
    return server.ask("/tokenize", {"content": text, "parse_special": True})["tokens"]


def complete(server, prompt, n=8):
    reply = server.ask("/v1/completions", {"prompt": ids(server, prompt), "max_tokens": n, "temperature": 0, "ignore_eos": True})
    return reply["choices"][0]["text"]


def test_a_prompt_around_a_gap(server):
    plain = complete(server, "<|fim_prefix|>a=b<|fim_suffix|>.c<|fim_middle|>")
    asked = server.ask("/v1/completions", {"prompt": "a=b", "suffix": ".c", "max_tokens": 8, "temperature": 0, "ignore_eos": True})
    assert asked["choices"][0]["text"] == plain and asked["usage"]["prompt_tokens"] == 8
    filled = server.ask("/infill", {"input_prefix": "a=b", "input_suffix": ".c", "n_predict": 8, "temperature": 0, "ignore_eos": True})
    assert filled["content"] == plain and filled["stop"] is True and filled["stop_type"] == "limit"
    assert filled["tokens_evaluated"] == 8 and filled["tokens_predicted"] == 8 and filled["model"] == "coder"
    begun = server.ask("/infill", {"input_prefix": "a=b", "input_suffix": ".c", "prompt": "xy", "n_predict": 8, "temperature": 0,
                                   "ignore_eos": True})
    assert begun["content"] == complete(server, "<|fim_prefix|>a=b<|fim_suffix|>.c<|fim_middle|>xy")
    assert "insert" in server.ask("/api/show", {"model": "coder"})["capabilities"]


def test_other_files(server):
    extra = [{"filename": "m.c", "text": "f(a)"}, {"filename": "n.c", "text": "g"}]
    filled = server.ask("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": extra, "n_predict": 8, "temperature": 0,
                                    "ignore_eos": True})
    assert filled["content"] == complete(server, "<|repo_name|>project\n<|file_sep|>m.c\nf(a)\n<|file_sep|>n.c\ng\n<|file_sep|>file\n"
                                                 "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>")


def test_what_is_in_a_text_steers_nothing(server):
    filled = server.ask("/infill", {"input_prefix": "<|fim_middle|>", "input_suffix": "", "n_predict": 1})
    assert filled["tokens_evaluated"] == 3 + len(server.ask("/tokenize", {"content": "<|fim_middle|>", "parse_special": False})["tokens"])


def test_streams(server):
    whole = server.ask("/completion", {"prompt": "abc", "n_predict": 8, "temperature": 0, "ignore_eos": True})
    status, headers, body = server.request("POST", "/completion", {"prompt": "abc", "n_predict": 8, "temperature": 0, "ignore_eos": True,
                                                                   "stream": True})
    pieces = [json.loads(e[6:]) for e in body.decode().split("\n\n")[:-1]]
    assert status == 200 and headers["content-type"] == "text/event-stream"
    assert "".join(p["content"] for p in pieces) == whole["content"]
    assert [p["stop"] for p in pieces] == [False] * (len(pieces) - 1) + [True] and pieces[-1]["timings"]["predicted_n"] == 8


def test_slots_and_props(server):
    slots = server.ask("/slots")
    assert len(slots) == 4 and all(s["n_ctx"] == 128 and s["model"] == "coder" and not s["is_processing"] for s in slots)
    props = server.ask("/props?model=coder")
    assert props["total_slots"] == 4 and props["default_generation_settings"]["n_ctx"] == 128
    assert server.request("GET", "/props?model=nobody")[0] == 404
    assert server.ask("/openapi.json")["openapi"].startswith("3.")


def test_errors(server, binary, smollm2):
    for body in ({"input_prefix": 5}, {"input_extra": "a"}, {"input_extra": [{"filename": "a"}]}, {"n_predict": -2},
                 {"input_extra": [{"filename": 3, "text": "a"}]}, {"input_prefix": "a" * 500}):
        assert server.request("POST", "/infill", body)[0] == 400, body
    assert server.request("POST", "/completion", {"prompt": ["a", True]})[0] == 400
    other = Server(binary, smollm2, "--name", "smol", "--ctx", "128")
    for path, body in (("/infill", {"input_prefix": "a", "input_suffix": "b"}), ("/v1/completions", {"prompt": "a", "suffix": "b"})):
        status, _, reply = other.request("POST", path, body)
        assert status == 400 and "fill in the middle" in json.loads(reply)["error"]["message"]
    assert other.stop() == 0


@pytest.mark.models
def test_a_coder_fills_in(binary, model):
    s = Server(binary, model("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"), "--name", "coder", "--ctx", "512")
    filled = s.ask("/infill", {"input_prefix": "def add(a, b):\n    return", "input_suffix": "\n\nprint(add(1, 2))\n", "n_predict": 16,
                               "temperature": 0})
    assert filled["content"].strip().startswith("a + b")
    assert s.stop() == 0
