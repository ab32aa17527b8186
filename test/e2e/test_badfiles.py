"""Broken models by path: folders, shards, splits, pickles, foreign quantisation. Each gives one sentence and 65."""
import json
import os
import struct
import subprocess

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

INDEX = "model.safetensors.index.json"


def refused(quern, path, *phrases, code=65):
    done = quern("info", path, timeout=20)
    assert done.code == code, (done.code, done.err)
    assert done.out == ""
    assert done.err.startswith("quern: ") and done.err.count("\n") == 1, done.err
    for phrase in phrases:
        assert phrase in done.err, done.err
    return done.err


def tiny_gguf(path, keys=(), name="w"):
    w = gguf.GGUFWriter(path, "llama")
    for add, key, value in keys:
        getattr(w, add)(key, value)
    w.add_tensor(name, np.zeros(8, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def part(folder, no, count, name, tensors=2, of=None, stem="m"):
    path = folder / f"{stem}-{no + 1:05d}-of-{of or count:05d}.gguf"
    tiny_gguf(path, [("add_uint16", "split.no", no), ("add_uint16", "split.count", count),
                     ("add_int32", "split.tensors.count", tensors)], name)
    return path


def folder_with(tmp_path, config=None, tensors=None):
    save_file(tensors or {"a": np.zeros(4, np.float32)}, tmp_path / "model.safetensors")
    if config is not None:
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return tmp_path


# ---- paths ----

def test_no_such_path(quern, tmp_path):
    refused(quern, tmp_path / "none.gguf", "cannot open", "none.gguf", "No such file or directory")


def test_unknown_name(quern):
    refused(quern, "nosuchmodel", "there is no file, folder or model 'nosuchmodel'", "smollm2")


def test_default_model_not_fetched(quern, tmp_path):
    done = quern("info", "smollm2", "--offline", env={"XDG_CACHE_HOME": str(tmp_path)}, cwd=tmp_path)
    assert done.code == 65 and "scripts/fetch-model" in done.err and done.err.count("\n") == 1
    done = quern("info", env={"XDG_CACHE_HOME": "", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}, cwd=tmp_path)
    assert done.code == 65 and f"{tmp_path}/.cache/quern/models" in done.err


def test_empty_folder(quern, tmp_path):
    refused(quern, tmp_path, "holds no .safetensors and no .gguf file")


def test_fifo_is_refused_at_once(quern, tmp_path):
    os.mkfifo(tmp_path / "m.gguf")
    refused(quern, tmp_path / "m.gguf", "is a FIFO, not a file")
    refused(quern, tmp_path, "is a FIFO, not a file")  # found in the folder


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/urandom"])
def test_devices(quern, device):
    refused(quern, device, f"{device} is a device, not a file")


def test_socket(quern, tmp_path):
    import socket
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(tmp_path / "s.gguf"))
    refused(quern, tmp_path / "s.gguf", "cannot open")
    s.close()


def test_loop_of_links(quern, tmp_path):
    os.symlink(tmp_path / "b.gguf", tmp_path / "a.gguf")
    os.symlink(tmp_path / "a.gguf", tmp_path / "b.gguf")
    refused(quern, tmp_path / "a.gguf", "Too many levels of symbolic links")


def test_folder_named_as_a_model(quern, tmp_path):
    (tmp_path / "m.gguf").mkdir()
    refused(quern, tmp_path / "m.gguf", "holds no .safetensors and no .gguf file")


def test_model_safetensors_is_a_folder(quern, tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    refused(quern, tmp_path, "model.safetensors is a folder, not a file")


def test_unreadable(quern, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")
    refused(quern, path, "Permission denied")


def test_empty_and_foreign_files(quern, tmp_path):
    for name, data, phrase in [("e.gguf", b"", "0 bytes are too few"), ("e.safetensors", b"", "0 bytes are too few"),
                               ("t.gguf", b"hello, world, this is text", "it begins with 68 65 6c 6c"),
                               ("z.gguf", bytes(4096), "it begins with 00 00 00 00"),
                               ("old.bin", b"lmgg" + bytes(60), "PyTorch pickle")]:
        (tmp_path / name).write_bytes(data)
        refused(quern, tmp_path / name, phrase)


def test_sparse_terabyte(quern, tmp_path):
    """A huge file that holds nothing is refused by its first bytes, in no time."""
    with open(tmp_path / "m.gguf", "wb") as f:
        f.truncate(1 << 40)
    refused(quern, tmp_path / "m.gguf", "it begins with 00 00 00 00")


def test_control_characters_are_not_printed(quern, tmp_path):
    err = refused(quern, tmp_path / "a\x1b[31mb\nc.gguf", "\\x1b[31m", "\\x0a")
    assert "\x1b" not in err


# ---- pickles and foreign quantisation ----

@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "x.ckpt"])
def test_pickles(quern, tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04" + bytes(60))
    refused(quern, tmp_path / name, "PyTorch pickle", "safetensors")
    refused(quern, tmp_path, "holds only PyTorch pickles", "safetensors")


def test_pickle_by_its_bytes(quern, tmp_path):
    for i, head in enumerate((b"PK\x03\x04", b"\x80\x02}q\x00")):
        path = tmp_path / f"weights{i}"
        path.write_bytes(head + bytes(60))
        refused(quern, path, "PyTorch pickle")


@pytest.mark.parametrize("quant,name", [
    ({"quant_method": "gptq", "bits": 4}, "GPTQ"), ({"quant_method": "awq"}, "AWQ"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"), ({"load_in_8bit": True}, "bitsandbytes"),
    ({"quant_method": "aqlm"}, "AQLM"), ({"quant_method": "hqq"}, "HQQ"), ({"quant_method": "mystery"}, "mystery"),
    ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors")])
def test_foreign_quantisation(quern, tmp_path, quant, name):
    folder_with(tmp_path, {"model_type": "llama", "quantization_config": quant})
    refused(quern, tmp_path, f"quantised with {name}, which quern does not run")


@pytest.mark.parametrize("tensor,name", [("l.q_proj.g_idx", "GPTQ"), ("l.q_proj.qzeros", "AWQ"),
                                         ("l.weight.quant_state.bitsandbytes__nf4", "bitsandbytes"),
                                         ("l.SCB", "bitsandbytes")])
def test_foreign_quantisation_by_tensors(quern, tmp_path, tensor, name):
    folder_with(tmp_path, {"model_type": "llama"}, {tensor: np.zeros(4, np.int32)})
    refused(quern, tmp_path, f"quantised with {name}")


# ---- config.json ----

@pytest.mark.parametrize("text,phrase", [
    ("", "config.json, line 1, column 0: unexpected token near end of file"),
    ("[]", "config.json is not a JSON object"), ("3", "config.json is not a JSON object"),
    ("{", "config.json, line 1"), ('{"a": 1,}', "config.json, line 1"),
    ('{"a": 1, "a": 2}', "duplicate object key"),
    ('{\n"a": Infinite}', "config.json, line 2"),
    ('{"a": NaN}', "line 1: NaN is not JSON"),
    ('{"a":' + "[" * 60000 + "]" * 60000 + "}", "nests more than 64 levels deep"),
    ('{"a": "\xff"}'.encode("latin1"), "unable to decode byte 0xff"),
    ('{"num_hidden_layers": "two"}', 'config.json: num_hidden_layers is "two"; a whole number from'),
    ('{"hidden_size": -1}', "config.json: hidden_size is -1; a whole number from"),
    ('{"vocab_size": 1.5}', "config.json: vocab_size is 1.5; a whole number from"),
    ('{"num_hidden_layers": 99999999999}', "num_hidden_layers is 99999999999; a whole number from 0 to"),
    ('{"hidden_size": 99999999999999999999}', "hidden_size is 1e20; a whole number from")])
def test_config(quern, tmp_path, text, phrase):
    folder_with(tmp_path)
    (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(quern, tmp_path, phrase)


def test_config_too_large(quern, tmp_path):
    folder_with(tmp_path)
    (tmp_path / "config.json").write_text('{"a": "' + "x" * (5 << 20) + '"}')
    refused(quern, tmp_path, "at most 4194304 are read")


def test_wrong_types_of_gguf_keys(quern, tmp_path):
    for add, key, value, phrase in [
            ("add_string", "llama.block_count", "two", "key 'llama.block_count' is of type string; an integer"),
            ("add_int32", "llama.block_count", -3, "key 'llama.block_count' is -3; 0 to 1024"),
            ("add_uint32", "llama.context_length", 2**32 - 1, "key 'llama.context_length' is 4294967295"),
            ("add_array", "tokenizer.ggml.tokens", [1, 2], "'tokenizer.ggml.tokens' is an array of i32; an array of strings"),
            ("add_uint32", "tokenizer.ggml.tokens", 5, "'tokenizer.ggml.tokens' is of type u32; an array of strings"),
            ("add_array", "llama.attention.head_count_kv", ["a"], "is an array of string; an array of integers"),
            ("add_array", "llama.attention.head_count_kv", [1, -1], "head_count_kv[1] is -1; a whole number from 0 to 65536"),
            ("add_uint32", "general.name", 5, "key 'general.name' is of type u32; a string")]:
        tiny_gguf(tmp_path / "m.gguf", [(add, key, value)])
        refused(quern, tmp_path / "m.gguf", phrase)


# ---- shards ----

def shards(tmp_path, weight_map, files=None):
    for name, tensors in (files or {"a.safetensors": ["a"], "b.safetensors": ["b"]}).items():
        save_file({t: np.zeros(4, np.float32) for t in tensors}, tmp_path / name)
    index = weight_map if isinstance(weight_map, str) else json.dumps({"weight_map": weight_map})
    (tmp_path / INDEX).write_text(index)
    return tmp_path


@pytest.mark.parametrize("weight_map,phrase", [
    ({"a": "a.safetensors", "b": "c.safetensors"}, "shard 2 of 2: cannot open"),
    ({"a": "a.safetensors", "b": "../b.safetensors"}, "tensor 'b' lies in '../b.safetensors'; the name of"),
    ({"a": "/etc/x.safetensors"}, "tensor 'a' lies in '/etc/x.safetensors'"),
    ({"a": "a.bin"}, "tensor 'a' lies in 'a.bin'"), ({"a": ""}, "tensor 'a' lies in ''"),
    ({"a": 1}, "tensor 'a' lies in"), ({"a": None}, "tensor 'a' lies in"),
    ({"a": "b.safetensors", "b": "a.safetensors"}, "the index says that tensor 'a' is in b.safetensors, and it is not"),
    ({"a": "a.safetensors", "x": "b.safetensors"}, "the index says that tensor 'x' is in b.safetensors, and it is not"),
    ({}, "weight_map is empty"), ("{}", "has no object weight_map"), ('{"weight_map": []}', "has no object weight_map"),
    ("[]", "is not a JSON object"), ("{", INDEX + ", line 1"),
    ('{"weight_map": {"a": "a.safetensors", "a": "a.safetensors"}}', "duplicate object key")])
def test_shards(quern, tmp_path, weight_map, phrase):
    refused(quern, shards(tmp_path, weight_map), phrase)


def test_tensor_in_two_shards(quern, tmp_path):
    shards(tmp_path, {"a": "a.safetensors", "b": "b.safetensors"}, {"a.safetensors": ["a"], "b.safetensors": ["a", "b"]})
    refused(quern, tmp_path, "tensor 'a' is in", "and in another shard")


def test_missing_shard_is_named(quern, tmp_path):
    shards(tmp_path, {"a": "a.safetensors", "b": "b.safetensors"})
    (tmp_path / "b.safetensors").unlink()
    refused(quern, tmp_path, "shard 2 of 2", "b.safetensors", "No such file")


def test_shards_without_index(quern, tmp_path):
    shards(tmp_path, {})
    (tmp_path / INDEX).unlink()
    refused(quern, tmp_path, "holds 2 safetensors files, and no " + INDEX)


def test_broken_shard_is_named(quern, tmp_path):
    shards(tmp_path, {"a": "a.safetensors", "b": "b.safetensors"})
    data = (tmp_path / "b.safetensors").read_bytes()
    (tmp_path / "b.safetensors").write_bytes(data[:-1])
    refused(quern, tmp_path, "shard 2 of 2", "b.safetensors", "tensor 'b'", "is it cut short?")


# ---- splits ----

def test_several_ggufs(quern, tmp_path):
    tiny_gguf(tmp_path / "a.gguf")
    tiny_gguf(tmp_path / "b.gguf")
    refused(quern, tmp_path, "holds 2 .gguf files: name the one to open")


def test_missing_part_is_named(quern, tmp_path):
    first = part(tmp_path, 0, 2, "a")
    refused(quern, first, "part 2 of 2 of this model: cannot open", "m-00002-of-00002.gguf", "No such file")


def test_later_part_says_which_is_first(quern, tmp_path):
    part(tmp_path, 0, 2, "a")
    second = part(tmp_path, 1, 2, "b")
    refused(quern, second, "is part 2 of 2: open the first", "m-00001-of-00002.gguf")


def test_first_part_renamed(quern, tmp_path):
    first = part(tmp_path, 0, 2, "a")
    part(tmp_path, 1, 2, "b")
    first.rename(tmp_path / "model.gguf")
    refused(quern, tmp_path / "model.gguf", "is the first of 2 parts", "-00001-of-00002.gguf")


def test_part_that_is_another(quern, tmp_path):
    first = part(tmp_path, 0, 3, "a", 3)
    part(tmp_path, 1, 3, "b", 3)
    third = part(tmp_path, 2, 3, "c", 3)
    third.write_bytes((tmp_path / "m-00002-of-00003.gguf").read_bytes())
    refused(quern, first, "tensor 'b' is there twice")
    part(tmp_path, 1, 3, "c", 3).rename(third)
    part(tmp_path, 1, 3, "b", 3)
    refused(quern, first, "m-00003-of-00003.gguf: split.no is not 2, as it must be in part 3")


def test_part_without_its_number(quern, tmp_path):
    first = part(tmp_path, 0, 2, "a")
    tiny_gguf(tmp_path / "m-00002-of-00002.gguf", name="b")
    refused(quern, first, "split.no is not 1")


def test_parts_with_too_few_tensors(quern, tmp_path):
    first = part(tmp_path, 0, 2, "a", 5)
    part(tmp_path, 1, 2, "b", 5)
    refused(quern, first, "split.tensors.count is 5, and the parts have 2 tensors")


def test_absurd_count_of_parts(quern, tmp_path):
    refused(quern, part(tmp_path, 0, 65535, "a"), "key 'split.count' is 65535; 0 to 4096")


def test_broken_part_is_named(quern, tmp_path):
    first = part(tmp_path, 0, 2, "a")
    second = part(tmp_path, 1, 2, "b")
    second.write_bytes(second.read_bytes()[:40])
    refused(quern, first, "part 2 of 2", "m-00002-of-00002.gguf")


# ---- memory ----

def test_hostile_files_take_no_memory(binary, tmp_path):
    """Headers that announce the sky, opened with 300 MB of address space."""
    if b"__asan_init" in binary.read_bytes():
        pytest.skip("ASan takes terabytes of address space")
    text = lambda s: struct.pack("<Q", len(s)) + s
    head = lambda tensors, keys: b"GGUF" + struct.pack("<IQQ", 3, tensors, keys)
    files = {
        "tensors.gguf": head(65536, 0) + bytes(4 << 20),
        "keys.gguf": head(0, 65536) + bytes(4 << 20),
        "array.gguf": head(0, 1) + text(b"k") + struct.pack("<IIQ", 9, 8, 1 << 40) + bytes(1 << 20),
        "tensor.gguf": head(1, 0) + text(b"w") + struct.pack("<I2QIQ", 2, 1 << 30, 1 << 30, 0, 0) + bytes(64),
        "names.gguf": head(0, 400) + b"".join(text(b"%06d" % i + b"x" * 65000) + struct.pack("<IB", 0, 1) for i in range(400)),
        "json.safetensors": struct.pack("<Q", 30 << 20) + b'{"a":[' + b"1," * ((30 << 19) - 4) + b"1]",
        "deep.safetensors": struct.pack("<Q", 1 << 20) + b'{"a":' + b"[" * (1 << 20),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        done = subprocess.run(["/bin/sh", "-c", f"ulimit -v 300000; exec '{binary}' info '{tmp_path / name}'"],
                              capture_output=True, timeout=30)
        assert done.returncode in (65, 75), (name, done)
        assert done.stderr.count(b"\n") == 1, (name, done)
