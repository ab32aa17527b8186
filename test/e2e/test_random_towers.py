"""Models that see with settings drawn at random (random_towers.py): pixels, rows and logits are those of transformers, for the
folder and for the GGUF files that quern writes of it.

$QUERN_REF_PYTHON names a Python with torch, transformers and Pillow; $QUERN_TOWERS a folder of models that were made before."""
import json
import os
import subprocess
from pathlib import Path

import pytest
from test_quantize_towers import distance, with_tokens

HERE = Path(__file__).resolve().parent
COUNT = int(os.environ.get("QUERN_TOWERS_COUNT", 3))  # of each family
FAMILIES = ("llava", "llava_next", "gemma3", "gemma4", "idefics3", "smolvlm", "mistral3", "pixtral", "qwen2_vl", "qwen2_5_vl", "qwen3_vl",
            "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "internvl")
TOLD = ("differs in: ", "only the text model is written")


@pytest.fixture(scope="module", params=FAMILIES)
def folders(request, tmp_path_factory):
    made = os.environ.get("QUERN_TOWERS")
    if not made:
        python = os.environ.get("QUERN_REF_PYTHON")
        if not python:
            pytest.skip("QUERN_REF_PYTHON names no Python with torch and transformers")
        made = tmp_path_factory.mktemp("towers")
        subprocess.run([python, HERE / "random_towers.py", made, "--count", str(COUNT), request.param], check=True, timeout=3600)
    found = sorted(Path(made).glob(f"{request.param}-*/ref.json"))
    assert found, f"no models of {request.param}"
    return [f.parent for f in found]


def check(quern, model, folder, ref, exact):
    """How far rows and logits of a model are from the reference."""
    how = ["--exact"] if exact else []
    wrong = []
    for image in ref["images"] if exact else []:
        rows, want = quern("embed", model, "--image", folder / image["file"], "--rows", "--exact", "--device", "cpu", "--json").json(), \
            image["features"]["rows"]
        off = distance(rows, want) if len(rows) == len(want) else f"{len(rows)} rows for {len(want)}"
        if isinstance(off, str) or not off < 1e-3:
            wrong.append(("rows", image["file"], off))
    for case in ref["cases"]:
        images = [x for i in case["images"] for x in ("--image", folder / ref["images"][i]["file"])]
        done = quern("logits", model, "--tokens", ",".join(map(str, case["tokens"])), *images, *how, "--device", "cpu", "--json")
        if done.code:
            wrong.append(("logits", case["images"], done.err))
            continue
        off = max(abs(a - b) for a, b in zip(done.json()["last"], case["last_logits"]))
        if not off < (0.002 if exact else 0.1):
            wrong.append(("logits", case["images"], off))
        if exact and case["min_margin"] > 0.004 and done.json()["argmax"] != case["argmax"]:
            wrong.append(("argmax", case["images"]))
    return wrong


@pytest.mark.slow
def test_random(quern, binary, tmp_path, folders):
    wrong = []
    for folder in folders:
        ref = json.loads((folder / "ref.json").read_text())
        for image in ref["images"]:
            done = subprocess.run([binary.parent / "test/test_model_preprocess", folder, folder / image["file"]], capture_output=True, text=True)
            if done.stdout.strip() != image["pixels"]:
                wrong.append((folder.name, "pixels", image["file"], done.stderr))
        for exact in (True, False):
            wrong += [(folder.name, exact, *w) for w in check(quern, folder, folder, ref, exact)]
        out = tmp_path / folder.name / "model.gguf"
        out.parent.mkdir()
        done = quern("quantize", with_tokens(folder, out.parent / "source"), out, "F32", "--tower", "F32")
        if done.code:
            wrong.append((folder.name, "quantize", done.err))
        elif not any(t in done.err for t in TOLD):
            wrong += [(folder.name, "gguf", *w) for w in check(quern, out, folder, ref, True)]
    assert not wrong, "\n".join(map(str, wrong))
