"""Images: the rows of towers and the logits of prompts with images, against what transformers gives."""

import json
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent / "data/vision"
SHARED = Path(os.environ.get("QUERN_SHARED", Path(__file__).resolve().parents[2].parent / "shared")) / "ref/vision"


def models():
    for base in (HERE, SHARED):
        for folder in sorted(base.glob("*/ref.json")):
            if base == SHARED and (HERE / folder.parent.name).exists():
                continue
            yield pytest.param(folder.parent, "", id=folder.parent.name)
            if (folder.parent / "mmproj.gguf").exists():
                yield pytest.param(folder.parent, "model.gguf", id=folder.parent.name + "-gguf")


def ask(binary, *args):
    done = subprocess.run([binary, *map(str, args), "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("folder,file", list(models()))
def test_rows(binary, folder, file):
    for image in json.loads((folder / "ref.json").read_text())["images"]:
        rows = ask(binary, "embed", folder / file, "--image", folder / image["file"], "--rows", "--exact",
                     "--device", "cpu")
        want = image["features"]["rows"]
        assert len(rows) == len(want)
        assert max(abs(a - b) for x, y in zip(rows, want) for a, b in zip(x, y)) < 1e-3


@pytest.mark.parametrize("exact,most", [(True, 0.002), (False, 0.1)])
@pytest.mark.parametrize("folder,file", list(models()))
def test_logits(binary, folder, file, exact, most):
    ref = json.loads((folder / "ref.json").read_text())
    for case in ref["cases"]:
        images = [x for i in case["images"] for x in ("--image", folder / ref["images"][i]["file"])]
        got = ask(binary, "logits", folder / file, "--tokens", ",".join(map(str, case["tokens"])), *images,
                    *(["--exact"] if exact else []), "--device", "cpu")
        assert max(abs(a - b) for a, b in zip(got["last"], case["last_logits"])) < most
        if exact:
            assert got["argmax"] == case["argmax"]


def test_chunks_keep_images_whole(binary):
    """The tokens of an image see each other: steps shorter than the prompt give the same."""
    folder = HERE / "gemma3_vl"
    ref = json.loads((folder / "ref.json").read_text())
    case = ref["cases"][1]
    images = [x for i in case["images"] for x in ("--image", folder / ref["images"][i]["file"])]
    for chunk in (1, 3, 4, 5, 7):  # also less than an image has
        got = ask(binary, "logits", folder, "--tokens", ",".join(map(str, case["tokens"])), *images,
                    "--exact", "--chunk", chunk)
        assert max(abs(a - b) for a, b in zip(got["last"], case["last_logits"])) < 0.002


@pytest.mark.parametrize("args,said", [
    (["--tokens", "1,2,3"], "image tokens"),
    (["--tokens", "306,306,306,306,306"], "image tokens"),
])
def test_tokens_must_match(binary, args, said):
    folder = HERE / "gemma3_vl"
    done = subprocess.run([binary, "logits", folder, "--image", folder / "image0.png", *args],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and said in done.stderr


def test_text_model_takes_no_image(binary, tmp_path):
    folder = HERE.parent / "arch/llama"
    done = subprocess.run([binary, "logits", folder, "--image", HERE / "gemma3_vl/image0.png", "--tokens", "1"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "takes no images" in done.stderr


def test_a_folder_with_both_files(binary, tmp_path):
    """model.gguf and mmproj.gguf in a folder: the folder's name is enough, also with a dot in it and a slash behind it."""
    folder, own = HERE / "gemma3_vl", tmp_path / "my.gguf.models"
    own.mkdir()
    for name in ("model.gguf", "mmproj.gguf"):
        (own / name).write_bytes((folder / name).read_bytes())
    ref = json.loads((folder / "ref.json").read_text())
    case = ref["cases"][0]
    images = [x for i in case["images"] for x in ("--image", folder / ref["images"][i]["file"])]
    for model in (own, str(own) + "/"):
        got = ask(binary, "logits", model, "--tokens", ",".join(map(str, case["tokens"])), *images, "--exact")
        assert max(abs(a - b) for a, b in zip(got["last"], case["last_logits"])) < 0.002


def test_bench_of_a_tower(binary):
    """A tower alone is enough."""
    folder = HERE / "gemma3_vl"
    lines = ask(binary, "bench", folder / "mmproj.gguf", "--image", folder / "image0.png", "-r", 2, "--device", "cpu")
    assert lines[0]["test"] == "encode" and lines[0]["rows"] == 4 and lines[0]["ms"] > 0
    profile = ask(binary, "bench", folder / "mmproj.gguf", "--image", folder / "image0.png", "-r", 1, "--device", "cpu",
                  "--profile")[0]["profile"]
    named = profile["operations"]
    assert {"qkv", "attn", "ffn", "out", "logits"} <= set(named) and all(s > 0 for s in named.values())
    assert sum(named.values()) + profile["rows"] + profile["sending"] <= profile["seconds"]
