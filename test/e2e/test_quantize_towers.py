"""Towers for images as mmproj files: what quern quantize writes of a folder gives the folder's rows and logits."""
import json
import os
import shutil
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent / "data/vision"
SHARED = Path(os.environ.get("QUERN_SHARED", Path(__file__).resolve().parents[2].parent / "shared")) / "ref/vision"
# The name by which a GGUF file has the image token.
TOKENS = {"gemma3": "<image_soft_token>", "gemma4": "<|image|>", "llava": "<image>", "idefics3": "<image>", "smolvlm": "<image>", "mistral3": "[IMG]",
          "internvl": "<IMG_CONTEXT>"}
# What an mmproj file has no key for: the sentence, and whether the tower is written all the same.
DIFFERENT = {"gemma3_pan": ("differs in: pan", True), "llava_pad_crop": ("differs in: square", True),
             "llava_siglip_default": ("only the text model is written", False), "llava_next": ("only the text model is written", False)}


def folders():
    own = [f.parent for f in sorted(HERE.glob("*/ref.json"))]
    names = {f.name for f in own}
    return own + [f.parent for f in sorted(SHARED.glob("*/ref.json")) if f.parent.name not in names]


def with_tokens(folder, to):
    """The folder with the tests' vocabulary, in which the image token has its family's name."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.gguf"))
    config = json.loads((folder / "config.json").read_text())
    vocabulary = json.loads((HERE / "tokenizer.json").read_text())
    at = config.get("image_token_id", config.get("image_token_index"))
    pixtral = config["vision_config"].get("model_type") == "pixtral"
    want = TOKENS["mistral3"] if pixtral else TOKENS.get(config["model_type"], "<|image_pad|>")
    for token in vocabulary["added_tokens"]:
        if token["content"] == want:
            token["content"] = "<other>"
        if token["id"] == at:
            token["content"] = want
    (to / "tokenizer.json").write_text(json.dumps(vocabulary))
    (to / "tokenizer_config.json").unlink(missing_ok=True)
    return to


def rows_of(quern, model, image):
    return quern("embed", model, "--image", image, "--rows", "--exact", "--device", "cpu", "--json").json()


def distance(a, b):
    assert len(a) == len(b)
    return max(abs(x - y) for r, s in zip(a, b) for x, y in zip(r, s))


def largest(rows):
    return max(abs(x) for r in rows for x in r)


@pytest.mark.parametrize("folder", folders(), ids=lambda f: f.name)
def test_folder(quern, tmp_path, folder):
    if folder.name == "colours" or folder.name in DIFFERENT:
        pytest.skip("tested below, or has no reference")
    source = with_tokens(folder, tmp_path / "source")
    ref = json.loads((folder / "ref.json").read_text())
    image, case = ref["images"][0], ref["cases"][0]
    for tower in ("F32", "F16"):
        out = tmp_path / tower / "model.gguf"
        out.parent.mkdir()
        report = quern("quantize", source, out, "F32", "--tower", tower, "--json", "--quiet").json()
        assert report["tower"]["type"] == tower and Path(report["tower"]["path"]) == out.parent / "mmproj-model.gguf"
        want = image["features"]["rows"]
        assert distance(rows_of(quern, out, folder / image["file"]), want) < 1e-3
        got = quern("logits", out, "--tokens", ",".join(map(str, case["tokens"])), "--image", folder / image["file"], "--exact",
                    "--device", "cpu", "--json").json()
        assert max(abs(a - b) for a, b in zip(got["last"], case["last_logits"])) < 0.002


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_no_key_says(quern, tmp_path, name):
    text, written = DIFFERENT[name]
    done = quern("quantize", with_tokens(HERE / name, tmp_path / "source"), tmp_path / "model.gguf", "F16")
    assert done.code == 0 and text in done.err
    assert (tmp_path / "model.gguf").exists() and (tmp_path / "mmproj-model.gguf").exists() == written


def strings_of(path):
    """The first bytes of a GGUF file, where its keys are."""
    return path.read_bytes()[:1 << 16]


def test_keys_of_gemma4(quern, tmp_path):
    """Programs that read gemma4 want a flag for each layer with a window, also where they follow the usual period; and the
    tower says whether the tokens of an image see each other, which the text model's shape does not tell."""
    out = tmp_path / "model.gguf"
    done = quern("quantize", with_tokens(HERE / "gemma4_clip", tmp_path / "source"), out, "F16")
    assert done.code == 0 and "window" not in done.err
    name = b"gemma4.attention.sliding_window_pattern"
    keys = strings_of(out)
    at = keys.index(name) + len(name)
    kind, of, count = (int.from_bytes(keys[at + i:at + i + n], "little") for i, n in ((0, 4), (4, 4), (8, 8)))
    layers = json.loads((HERE / "gemma4_clip/config.json").read_text())["text_config"]["layer_types"]
    assert (kind, of, count) == (9, 7, len(layers))  # an array of booleans
    assert [bool(b) for b in keys[at + 16:at + 16 + count]] == [x == "sliding_attention" for x in layers]
    tower, name = strings_of(tmp_path / "mmproj-model.gguf"), b"clip.vision.bidirectional_tokens"
    at = tower.index(name) + len(name)
    assert tower[at:at + 5] == bytes([7, 0, 0, 0, 0])  # a boolean: no


def test_types(quern, tmp_path):
    """Blocks for matrices; kernels, positions and norms stay floats; an mmproj file is quantised like any other."""
    source = with_tokens(HERE / "gemma3_vl", tmp_path / "source")
    image = json.loads((HERE / "gemma3_vl/ref.json").read_text())["images"][0]
    out, again = tmp_path / "model.gguf", tmp_path / "other/mmproj-q8.gguf"
    again.parent.mkdir()
    first = quern("quantize", source, out, "F16", "--json", "--quiet").json()
    assert first["tower"]["type"] == "F16"
    second = quern("quantize", tmp_path / "mmproj-model.gguf", again, "Q8_0", "--json", "--quiet").json()
    assert second["types"]["Q8_0"] > 0 and second["types"]["F32"] == first["tower"]["types"]["F32"]
    a = rows_of(quern, again, HERE / "gemma3_vl" / image["file"])
    b = image["features"]["rows"]
    assert distance(a, b) < 0.1 * largest(b)
    assert quern("quantize", source, out, "F16", "--tower", "none", "--force", "--json", "--quiet").json().get("tower") is None
    (tmp_path / "mmproj-model.gguf").unlink()
    report = quern("quantize", source, out, "F16", "--tower", "q8_0", "--force", "--json", "--quiet").json()["tower"]
    assert report["types"]["Q8_0"] == 10 and report["types"]["F16"] == 3  # rows of 48 have no blocks, and the projection stays
