"""What commands write where the user says: never over what they read, over nothing else without --force; and what they say first."""
import os
import shutil
import socket

import pytest

from conftest import ROOT

TINY = ROOT / "test/data/arch/llama-llama3-gguf/model.gguf"
FOLDER = ROOT / "test/data/arch/llama"


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "m.gguf"
    shutil.copyfile(TINY, path)
    return path


def refused(done, path, before, why):
    assert done.code == 64 and why in done.err, done
    assert path.read_bytes() == before


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_quantize_never_replaces_its_input(quern, tiny, tmp_path, force):
    """By whatever name: relative, through links of both kinds, through a linked folder."""
    before = tiny.read_bytes()
    (tmp_path / "soft.gguf").symlink_to(tiny)
    (tmp_path / "hard.gguf").hardlink_to(tiny)
    (tmp_path / "linked").symlink_to(tmp_path)
    for name in tiny, tmp_path / "soft.gguf", tmp_path / "hard.gguf", tmp_path / "linked" / "m.gguf":
        refused(quern("quantize", tiny, name, "Q8_0", *force), tiny, before, "is read by this command")
    refused(quern("quantize", tiny, "m.gguf", "Q8_0", *force, cwd=tmp_path), tiny, before, "is read by this command")
    refused(quern("quantize", tmp_path / "hard.gguf", tiny, "Q8_0", *force), tiny, before, "is read by this command")
    assert (tmp_path / "soft.gguf").is_symlink() and sorted(os.listdir(tmp_path)) == ["hard.gguf", "linked", "m.gguf", "soft.gguf"]


def test_parts_of_a_model_are_inputs(quern, tiny, tmp_path):
    """The second part of a split file, and what lies in a folder of safetensors."""
    assert quern("quantize", tiny, tmp_path / "s.gguf", "F16", "--split-size", "10K").code == 0
    parts = sorted(tmp_path.glob("s-*-of-*.gguf"))
    assert len(parts) > 1
    refused(quern("quantize", parts[0], parts[-1], "Q8_0", "--force"), parts[-1], parts[-1].read_bytes(), "is read by this command")
    # and the names of the parts that would be written count, not the name that was given
    before = [p.read_bytes() for p in parts]
    done = quern("quantize", parts[0], tmp_path / "s.gguf", "F16", "--split-size", "10K", "--force")
    assert done.code == 64 and [p.read_bytes() for p in parts] == before
    folder = tmp_path / "folder"
    shutil.copytree(FOLDER, folder)
    for name in "model.safetensors", "config.json":
        refused(quern("quantize", folder, folder / name, "Q8_0", "--force"), folder / name, (folder / name).read_bytes(), "is read by this command")


def test_what_exists_needs_force(quern, tiny, tmp_path):
    out = tmp_path / "out.gguf"
    out.write_bytes(b"precious")
    refused(quern("quantize", tiny, out, "Q8_0"), out, b"precious", "--force replaces it")
    assert quern("quantize", tiny, out, "Q8_0", "--force").code == 0
    assert out.read_bytes()[:4] == b"GGUF"
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    assert quern("quantize", tiny, tmp_path / "gone.gguf", "Q8_0").code == 64
    for other in tmp_path, "/dev/null":
        assert quern("quantize", tiny, other, "Q8_0", "--force").code == 64


def test_imatrix_does_not_replace_a_model(quern, smollm2, tmp_path):
    model, text = tmp_path / "m.gguf", tmp_path / "text"
    model.symlink_to(smollm2)
    text.write_text("some words " * 500)
    for out, why in (model, "is read by this command"), (smollm2, "is read by this command"), (text, "is read by this command"):
        done = quern("imatrix", model, "-f", text, "-o", out, "--force")
        assert done.code == 64 and why in done.err
    other = tmp_path / "other.gguf"
    other.write_bytes(b"another model")
    refused(quern("imatrix", model, "-f", text, "-o", other), other, b"another model", "--force replaces it")
    assert model.is_symlink() and text.read_text().startswith("some words")


def test_plots_and_profiles_too(quern, smollm2, tmp_path):
    text, plot = tmp_path / "text", tmp_path / "plot.svg"
    text.write_text("some words " * 500)
    plot.write_text("mine")
    refused(quern("perplexity", smollm2, "--against", smollm2, "-f", text, "--plot", plot), plot, b"mine", "--force replaces it")
    refused(quern("perplexity", smollm2, "--against", smollm2, "-f", text, "--plot", text, "--force"), text, text.read_bytes(), "is read by")
    refused(quern("run", smollm2, "-p", "a", "-n", "1", "--profile-json", plot), plot, b"mine", "--force replaces it")
    assert quern("run", smollm2, "-p", "a", "-n", "1", "--profile-json", smollm2, "--force").code == 64
    assert quern("run", smollm2, "-p", "a", "-n", "1", "--profile-json", plot, "--force").code == 0 and plot.read_text()[0] == "["


def test_types_that_do_not_fit_are_said(quern, tiny, tmp_path):
    """Rows of this model are no multiple of 256."""
    done = quern("quantize", tiny, tmp_path / "o.gguf", "Q2_K", "--json")
    said = done.json()
    assert sum(one["tensors"] for one in said["instead"] if one["wanted"] == "Q2_K" and one["type"] == "Q4_0") > 0
    assert "instead of Q2_K" in done.err and "blocks of 256" in done.err
    done = quern("quantize", tiny, tmp_path / "o.gguf", "Q2_K", "--force")
    assert "instead of Q2_K" in done.out and "bits a weight" in done.out
    fits = quern("quantize", tiny, tmp_path / "o.gguf", "F16", "--force", "--json")
    assert fits.json()["instead"] == [] and "instead" not in fits.err


def test_serve_binds_before_it_loads(binary, quern, smollm2, tmp_path):
    """A taken port is said before the model is looked at; while it loads, clients may connect and wait."""
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(100))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for model in bad, smollm2:
            done = quern("serve", model, "--port", taken.getsockname()[1])
            assert done.code == 75 and "cannot listen on 127.0.0.1 port" in done.err
        assert "loaded" not in done.err
    path = tmp_path / "socket"
    done = quern("serve", bad, "--socket", path)
    assert done.code == 65 and not path.exists()


def test_an_empty_models_dir_is_an_error(quern, smollm2, tmp_path):
    folder = tmp_path / "models"
    (folder / "below").mkdir(parents=True)
    (folder / "notes.txt").write_text("no model")
    for more in (), (smollm2,):
        done = quern("serve", *more, "--models-dir", folder, "--port", "0")
        assert done.code == 65 and "has no model" in done.err
