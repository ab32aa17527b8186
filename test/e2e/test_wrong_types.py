"""JSON files of a model whose fields have a wrong type: each gives 65 and a sentence with file and field, none ends
a server, and steps of a tokenizer that would make gigabytes of a short text are refused."""
import copy
import json
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from server import Server

DATA = Path(__file__).resolve().parents[1] / "data"
VOCAB = {"<s>": 0, "a": 1, "b": 2, "ab": 3}
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": [{"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True}],
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "x"}, "content": "a"}, {"type": "Prepend", "prepend": "a"}]},
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "b+"}, "behavior": "Isolated", "invert": False},
    "post_processor": {"type": "TemplateProcessing",
                       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                       "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
    "decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    "model": {"type": "BPE", "unk_token": None, "byte_fallback": False, "vocab": VOCAB, "merges": ["a b"]},
}
CONFIG = json.loads((DATA / "arch/llama/config.json").read_text())
ADAPTER = json.loads((DATA / "lora/llama/adapter_config.json").read_text())


def changed(doc, path, value):
    """A copy with the field that a path like "model.vocab.a" or "added_tokens[0].id" names replaced."""
    doc = copy.deepcopy(doc)
    *way, last = [int(p) if p.isdigit() else p for p in path.replace("[", ".").replace("]", "").split(".")]
    at = doc
    for step in way:
        at = at[step]
    at[last] = value
    return doc


def says(done, file, field, *words):
    assert done.code == 65, (done.code, done.err)
    assert done.err.startswith("quern: ") and done.err.count("\n") == 1, done.err
    for word in (f"{file}: {field} is ", *words):
        assert word in done.err, done.err


WRONG = [
    ("model", [], "an array", "an object was expected"),
    ("model", None, "null", "an object was expected"),
    ("model.type", {"a": 1}, "an object", "a string was expected"),
    ("model.type", None, "null", "a string was expected"),
    ("model.type", 7, "a number", "a string was expected"),
    ("model.vocab", "a", "a string", "an object was expected"),
    ("model.vocab", None, "null", "an object was expected"),
    ("model.vocab.a", "1", "a string", "a whole number was expected"),
    ("model.vocab.a", 1.5, "a number", "a whole number was expected"),
    ("model.vocab.a", -1, "-1", "from 0 to"),
    ("model.vocab.a", 2**31, "2147483648", "from 0 to"),
    ("model.vocab.a", 10**30, "1e+30", "from 0 to"),
    ("model.merges", {"a": "b"}, "an object", "an array was expected"),
    ("model.merges[0]", 5, "a number", "a string or an array was expected"),
    ("model.merges[0]", None, "null", "a string or an array was expected"),
    ("model.unk_token", ["a"], "an array", "a string was expected"),
    ("model.byte_fallback", "false", "a string", "true or false was expected"),
    ("added_tokens", None, "null", "an array was expected"),
    ("added_tokens[0]", "<s>", "a string", "an object was expected"),
    ("added_tokens[0].id", None, "null", "a whole number was expected"),
    ("added_tokens[0].content", {}, "an object", "a string was expected"),
    ("added_tokens[0].special", "yes", "a string", "true or false was expected"),
    ("normalizer", [], "an array", "an object was expected"),
    ("normalizer.type", [], "an array", "a string was expected"),
    ("normalizer.normalizers", {}, "an object", "an array was expected"),
    ("normalizer.normalizers[0]", 1, "a number", "an object was expected"),
    ("normalizer.normalizers[0].pattern", 1, "a number", "a string or an object was expected"),
    ("normalizer.normalizers[0].pattern.String", {}, "an object", "a string was expected"),
    ("normalizer.normalizers[0].content", None, "null", "a string was expected"),
    ("normalizer.normalizers[1].prepend", 3, "a number", "a string was expected"),
    ("pre_tokenizer.pattern.Regex", True, "true", "a string was expected"),
    ("pre_tokenizer.behavior", {"a": 1}, "an object", "a string was expected"),
    ("pre_tokenizer.invert", 0, "a number", "true or false was expected"),
    ("post_processor.type", False, "false", "a string was expected"),
    ("post_processor.single", {}, "an object", "an array was expected"),
    ("post_processor.single[0].SpecialToken", "<s>", "a string", "an object was expected"),
    ("post_processor.special_tokens.<s>.ids[0]", "0", "a string", "a whole number was expected"),
    ("decoder", "Strip", "a string", "an object was expected"),
    ("decoder.start", "1", "a string", "a whole number was expected"),
]


@pytest.mark.parametrize("field,value,what,expected", WRONG)
def test_tokenizer(quern, tmp_path, field, value, what, expected):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(changed(TOKENIZER, field, value)))
    says(quern("tokenize", path, "ab"), "tokenizer.json", field, what, expected)


def test_null_stays_null_where_it_is_defined(quern, tmp_path):
    doc = copy.deepcopy(TOKENIZER)
    for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        doc[key] = None
    for key in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
                "ignore_merges"):
        doc["model"][key] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(doc))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": None, "eos_token": None, "add_bos_token": None, "added_tokens_decoder": None}))
    assert quern("tokenize", tmp_path, "ab", "--json").json()["ids"] == [3]


def test_text_that_no_tree_holds(quern, tmp_path):
    path = tmp_path / "tokenizer.json"
    text = json.dumps(TOKENIZER)
    path.write_text(text.replace('"type": "BPE"', '"type": "BPE", "type": "BPE"'))
    done = quern("tokenize", path, "ab")
    assert done.code == 65 and "tokenizer.json: model.type is given twice" in done.err
    for bad in ('"a": NaN', '"a": 1e999', '"a": ' + "[" * 70 + "]" * 70, '"a": ' + "9" * 400):
        path.write_text(text.replace('"a": 1', bad))
        done = quern("tokenize", path, "ab")
        assert done.code == 65 and done.err.count("\n") == 1, (bad, done)


def folder(tmp_path, **files):
    """A tiny model that runs, with some of its files replaced."""
    tmp_path.mkdir(exist_ok=True)
    shutil.copy(DATA / "arch/llama/model.safetensors", tmp_path)
    files = {"config": CONFIG, "tokenizer": TOKENIZER, **files}
    for name, doc in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(doc))
    return tmp_path


@pytest.mark.parametrize("field,value", [
    ("model_type", []), ("architectures", "x"), ("architectures", [{}]), ("text_config", "x"), ("rope_scaling", "yarn"),
    ("rope_parameters", []), ("layer_types", "full_attention"), ("layer_types", [1, 2]), ("quantization_config", "fp8"),
    ("quantization_config.quant_method", {}), ("quantization_config.weight_block_size", 128), ("eos_token_id", "2"),
    ("eos_token_id", [1, "2"]), ("hidden_size", "64"), ("num_attention_heads", {}), ("rms_norm_eps", []),
    ("tie_word_embeddings", "no"), ("hidden_act", 5)])
def test_config(quern, tmp_path, field, value):
    doc = copy.deepcopy(CONFIG)
    if field.startswith("quantization_config."):
        doc["quantization_config"] = {"quant_method": "fp8"}
    model = folder(tmp_path, config=changed(doc, field, value))
    done = quern("run", model, "ab", "-n", "1")
    assert done.code == 65, (done.code, done.err)
    assert f"config.json: {field}" in done.err, done.err


@pytest.mark.parametrize("file,field,value", [
    ("generation_config", "temperature", "hot"), ("generation_config", "do_sample", 1),
    ("generation_config", "eos_token_id", {}), ("generation_config", "top_k", [1]),
    ("tokenizer_config", "bos_token", 5), ("tokenizer_config", "eos_token", {"content": 1}),
    ("tokenizer_config", "chat_template", 7), ("tokenizer_config", "chat_template", [{"name": {}, "template": "x"}]),
    ("tokenizer_config", "added_tokens_decoder", []), ("special_tokens_map", "pad_token", ["x"])])
def test_files_beside_it(quern, tmp_path, file, field, value):
    done = quern("run", folder(tmp_path, **{file: {field: value}}), "ab", "-n", "1")
    assert done.code == 65, (done.code, done.err)
    assert f"{file}.json: {field}" in done.err, done.err


@pytest.mark.parametrize("field,value", [
    ("lora_alpha", "16"), ("lora_alpha", None), ("use_rslora", "no"), ("alpha_pattern", []),
    ("alpha_pattern", {"q_proj?": "x"}), ("peft_type", {})])
def test_adapter(quern, tmp_path, field, value):
    shutil.copytree(DATA / "lora/llama", tmp_path / "a")
    (tmp_path / "a/adapter_config.json").write_text(json.dumps(changed(ADAPTER, field, value)))
    done = quern("logits", DATA / "arch/llama", "--tokens", "1,2", "--lora", tmp_path / "a")
    assert done.code == 65, (done.code, done.err)
    assert f"adapter_config.json: {field}" in done.err, done.err


def test_a_folder_does_not_end_the_server(binary, tmp_path):
    """The other models go on when a request names one with a broken tokenizer."""
    rest = {f"t{i}": i for i in range(len(VOCAB), CONFIG["vocab_size"])}
    good = changed(TOKENIZER, "model.vocab", VOCAB | rest)
    folder(tmp_path / "good", tokenizer=good)
    for name, field, value in (("type", "model.type", {"a": 1}), ("vocab", "model.vocab", [[{}, {}]]),
                               ("step", "normalizer", {"type": {}})):
        folder(tmp_path / name, tokenizer=changed(TOKENIZER, field, value))
    server = Server(binary, "--models-dir", tmp_path, "--ctx", "64")
    try:
        for name in ("type", "vocab", "step"):
            status, _, body = server.request("POST", "/v1/completions", {"model": name, "prompt": "ab", "max_tokens": 1})
            assert status == 500 and json.loads(body)["error"]["code"] == "model_load_failed", body
            reply = server.ask("/v1/completions", {"model": "good", "prompt": "ab", "max_tokens": 1})
            assert reply["usage"]["completion_tokens"] == 1
    finally:
        server.stop()


GROW = {
    "replace": ({"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 7}, None, "a" * 10),
    "regex": ({"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"Regex": "a"}, "content": "a" * 10}] * 7}, None, "a" * 10),
    "prepend": ({"type": "Prepend", "prepend": "a" * 1000000}, None, "a"),
    "bytes": (None, {"type": "Sequence", "pretokenizers": [
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}] * 23}, "\u00e9" * 10),
}


@pytest.mark.parametrize("kind", GROW)
def test_growth(binary, tmp_path, kind):
    """Seven replacements of 1 by 10 would make 100 MB of 10 bytes, and did."""
    normalizer, pre, text = GROW[kind]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**TOKENIZER, "normalizer": normalizer, "pre_tokenizer": pre}))
    most = 200 << 20
    done = subprocess.run([binary, "tokenize", path, text], capture_output=True, text=True, timeout=60,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (most, most)))
    assert done.returncode == 65 and "makes too much of this text" in done.stderr, done.stderr


def test_what_unicode_makes_is_not_refused(quern, tmp_path):
    """The longest decomposition there is, and the alphabet of bytes behind it."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({
        "normalizer": {"type": "NFKD"}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "decoder": {"type": "ByteLevel"}, "model": {**TOKENIZER["model"], "vocab": {"\u00d8": 0, "\u00b5": 1}}}))
    done = quern("tokenize", path, "--json", stdin="\ufdfa" * 5000)
    assert done.code == 0 and len(done.json()["ids"]) > 5000, done.err
