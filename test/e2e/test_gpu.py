"""What the command line says of GPUs: options, placement, doctor, the kernel tables. There need not be one: a driver that
computes nothing stands in for it, so these are not about numbers."""
import json
import os
import re
import shutil
import subprocess

import pytest

from conftest import ROOT
from server import Server, until

TINY = ROOT / "test/data/arch/llama"
MOE = ROOT / "test/data/arch/qwen3-moe"


@pytest.fixture(scope="module")
def fake(binary, quern, tmp_path_factory):
    """The environment in which libcuda.so.1 is the driver that computes nothing."""
    library = binary.parent / "test/libfake_cuda.so"
    if not library.is_file():
        pytest.skip("the tests' CUDA driver is not built")
    folder = tmp_path_factory.mktemp("driver")
    shutil.copy(library, folder / "libcuda.so.1")
    env = {"LD_LIBRARY_PATH": str(folder)}
    if "no CUDA kernels" in quern("doctor", "--device", "cuda", env=env).err:
        pytest.skip("this build has no CUDA kernels")
    return env


@pytest.mark.parametrize("args,phrase", [
    (["--gpu-layers", "many"], "--gpu-layers is a number, all or auto, not 'many'"),
    (["--gpu-layers", "-1"], "--gpu-layers is a number, all or auto"),
    (["--gpu-memory", "lots"], "--gpu-memory is a size, as 8G or 500M, not 'lots'"),
    (["--gpu-memory", "0"], "--gpu-memory is a size"),
    (["--gpu-copies", "lots"], "--gpu-copies takes a size such as 512M, not 'lots'"),
    (["--prefill", "int4"], "--prefill is f16 or fp8, not 'int4'"),
    (["--prefill", "fp8", "--gpu-copies", "0"], "--prefill fp8 keeps decoded weights, and --gpu-copies 0 allows none"),
    (["--gpus", "0,0", "--cpu-moe"], "--cpu-moe is for one GPU without ranks"),
    (["--tensor-parallel", "2", "--gpu-layers", "1"], "--gpu-layers N is for one GPU without ranks"),
    (["--device", "tpu"], "there is no device 'tpu'"),
])
def test_options_that_are_wrong(quern, args, phrase):
    done = quern("bench", TINY, *args)
    assert done.code == 64 and phrase in done.err


def test_no_layers_on_the_gpu_is_the_cpu(quern):
    rows = quern("bench", TINY, "--gpu-layers", "0", "-p", "8", "-n", "4", "-r", "1", "--json").json()
    assert {r["device"] for r in rows} == {"cpu"}


def where(quern, fake, *args, model=TINY):
    done = quern("bench", model, "--device", "cuda", "--no-parity", "-p", "8", "-n", "4", "-r", "1", *args, env=fake)
    assert done.code == 0, done.err
    return [line.removeprefix("quern: ") for line in done.err.splitlines()]


def test_the_load_line_says_what_lies_where(quern, fake):
    whole = where(quern, fake)
    assert len(whole) == 1 and whole[0].startswith("cuda:0 (Fake Card): embeddings, layers 0-1, head; weights ")
    split = where(quern, fake, "--gpu-layers", "1")
    assert split[0].startswith("cuda:0 (Fake Card): layers 1, head; weights ")
    assert split[1].startswith("cpu (") and "): embeddings, layers 0; weights " in split[1]
    assert where(quern, fake, "--gpu-layers", "all")[0] == where(quern, fake, "--gpu-layers", "auto")[0] == whole[0]


def test_bench_takes_tokens_from_the_card(quern, fake):
    args = ["bench", TINY, "--device", "cuda", "--no-parity", "-p", "8", "-n", "4", "-b", "1,2", "-r", "1", "--json"]
    rows = quern(*args, env=fake).json()
    assert [(r["test"], r["result"]) for r in rows] == [("prefill", "logits"), ("decode", "token"), ("decode", "token")]
    assert {r["result"] for r in quern(*args, "--logits", env=fake).json()} == {"logits"}


def test_bench_of_streams_ends(quern, fake):
    """The running stream has room for 33 tokens, and the prompt takes more steps than that: no more chunks come."""
    args = ["bench", TINY, "--device", "cuda", "--no-parity", "-r", "1", "--streams", "1", "-p", "80511", "-n", "1", "--read", "80000"]
    out = quern(*args, env=fake, timeout=60).out
    assert "while a prompt of 80000 tokens is read: " in out and "reached the end of its context" in out


def test_bench_of_streams_as_json(quern, fake):
    rows = quern("bench", TINY, "--device", "cuda", "--no-parity", "-r", "1", "--streams", "1,2", "--read", "64", "--json", env=fake,
                 timeout=60).json()
    assert [r["test"] for r in rows] == ["streams"] * 2 + ["running", "reading"] + ["known"] * 3
    assert [r["streams"] for r in rows[:2]] == [1, 2] and all(r["tok_s"] > 0 and r["steps"] > 0 for r in rows[:2])
    assert [r["prompt"] for r in rows[4:]] == [128, 256, 512] and all(r["cached"] > 0 for r in rows[4:])


def test_bench_of_more_streams_than_a_step_usually_has_rows(quern, fake):
    args = ["bench", TINY, "-p", "0", "-n", "1", "-r", "1", "--json"]
    assert quern(*args, "--device", "cpu", "-b", "600").json()[0]["batch"] == 600
    assert quern(*args, "--device", "cuda", "--no-parity", "-b", "1025", env=fake).json()[0]["batch"] == 1025


def test_bench_says_that_the_card_chooses_where_it_does(quern, fake):
    args = ["bench", TINY, "--device", "cuda", "--no-parity", "-p", "8", "-r", "1"]
    assert "the card chooses tokens" in quern(*args, "-n", "2", env=fake).out
    assert "the card chooses tokens" not in quern(*args, "-n", "0", env=fake).out


@pytest.mark.parametrize("args,phrase", [
    (["-p", "0", "-n", "0", "-d", "8"], "nothing to measure"),
    (["--read", "64"], "--read is for --streams"),
    (["--profile"], "--profile is for --image"),
    (["--type", "Q8_0"], "--type is for --kernels"),
])
def test_bench_refuses_what_would_do_nothing(quern, args, phrase):
    done = quern("bench", TINY, "--device", "cpu", *args)
    assert done.code == 64 and phrase in done.err and not done.out


def test_the_load_line_names_embeddings_once(quern, fake):
    """gemma3n has two tables of them."""
    lines = where(quern, fake, model=ROOT / "test/data/arch/gemma3n")
    assert sum(line.count("embeddings") for line in lines) == 1, lines


def test_fp8_on_a_cpu_is_reported(quern):
    for args in (["--device", "cpu"], ["--gpu-layers", "0"]):
        done = quern("bench", TINY, "--prefill", "fp8", *args, "-p", "8", "-n", "4", "-r", "1")
        assert done.code == 0 and "--prefill fp8 has no effect on a CPU" in done.err


def test_experts_stay_on_the_cpu(quern, fake):
    lines = where(quern, fake, "--cpu-moe", model=MOE)
    assert "attention of layers 0" in lines[0] and "experts" not in lines[0]
    assert "): experts of layers 0" in lines[1] and "attention" not in lines[1]


def test_weights_are_pinned_unless_told_otherwise(quern, fake):
    pinned = "  pinned in the machine's memory as prompts first send it: "
    assert any(line.startswith(pinned) for line in where(quern, fake, "--cpu-moe", model=MOE))
    assert not any("pinned" in line for line in where(quern, fake, "--cpu-moe", "--no-pinned-weights", model=MOE))


def test_prompts_send_some_of_the_experts(quern, fake):
    args = ["bench", MOE, "--device", "cuda", "--no-parity", "--cpu-moe", "-p", "64", "-n", "0", "-r", "1", "--json"]
    none, two, all_of_them = (quern(*args, "--sent-experts", n, env=fake).json()[0]["streamed_gb"] for n in ("0", "2", "999"))
    assert 0 < none < two < all_of_them
    assert none < quern(*args, "--no-pinned-weights", env=fake).json()[0]["streamed_gb"] <= all_of_them


def test_weights_that_were_sent_stay(quern, fake):
    stays = "  stays on the card: "
    assert any(line.startswith(stays) for line in where(quern, fake, "--cpu-moe", model=MOE))
    for limit in (("--gpu-copies", "0"), ("--gpu-memory", "1G")):
        assert not any(line.startswith(stays) for line in where(quern, fake, "--cpu-moe", *limit, model=MOE))
    done = quern("bench", MOE, "--device", "cuda", "--no-parity", "--cpu-moe", "-p", "64", "-n", "0", "-r", "1", "--json",
                 "--sent-experts", "999", env=fake).json()[0]
    assert done["sent_gb"] == 0 < done["streamed_gb"]


def test_memory_that_does_not_suffice(quern, fake):
    done = quern("bench", TINY, "--device", "cuda", "--no-parity", "--gpu-memory", "1M", env=fake)
    assert done.code == 75 and "not one layer fits: the model needs " in done.err and "GB are free" in done.err
    # where nobody names a device, the CPU does it
    done = quern("bench", TINY, "--no-parity", "--gpu-memory", "1M", "-p", "8", "-n", "4", "-r", "1", "--json", env=fake)
    assert "the GPU is not used: not one layer fits" in done.err
    assert {r["device"] for r in done.json()} == {"cpu"}


@pytest.mark.parametrize("size", ["200M", "250M", "300M"])
def test_as_many_layers_as_a_limit_has_room_for(quern, fake, smollm2, size):
    """What placement counts is what is taken: no limit makes a load fail that fewer layers would serve."""
    line = where(quern, fake, "--gpu-memory", size, model=smollm2)[0]
    assert re.search(r"layers \d+-29, head", line)


@pytest.mark.parametrize("layers", ["1", "2", "3"])
@pytest.mark.parametrize("family", ["gemma3n", "gemma4-e"])
def test_layers_that_share_keys_with_others(quern, fake, family, layers):
    """Queries alone: their keys, and so their attention, are on the CPU."""
    where(quern, fake, "--gpu-layers", layers, model=ROOT / "test/data/arch" / family)


def test_a_card_that_computes_nonsense_is_refused(quern, fake):
    done = quern("bench", TINY, "--device", "cuda", env=fake)
    assert done.code == 70 and "the GPU does not compute " in done.err and "--no-parity" in done.err


def test_doctor(quern):
    found = quern("doctor", "--json").json()
    assert found["cpu"]["cores"] >= 1 and found["cpu"]["read_gb_s"] > 0 and found["model"] is None
    assert found["cuda"] or found["no_gpu"]
    text = quern("doctor", TINY, "--device", "cpu")
    assert text.code == 0 and text.out.startswith("cpu ") and "\nmodel   fits: weights " in text.out
    model = quern("doctor", TINY, "--device", "cpu", "--json").json()["model"]
    assert model["fits"] and not model["gpu"] and "layers 0-1" in model["where"]
    assert quern("doctor", "nowhere.gguf").code == 65
    assert quern("doctor", "--device", "tpu").code == 64


def test_doctor_sees_the_card(quern, fake):
    found = quern("doctor", "--device", "cuda", "--json", env=fake).json()
    card = found["cuda"][0]
    assert card["name"] == "Fake Card" and card["capability"] == 9.0 and card["memory"] == 1 << 30
    assert {p["kernel"] for p in card["products"]} and all(p["why"] for p in card["products"])
    refused = quern("doctor", TINY, "--device", "cuda", env=fake)
    assert refused.code == 0 and "is not loaded: the GPU does not compute " in refused.out
    asked = ["doctor", TINY, "--device", "cuda", "--no-parity"]
    assert "parity gate: not run (--no-parity); loaded in " in quern(*asked, env=fake).out
    assert quern(*asked, "--json", env=fake).json()["model"]["parity_gate"] is False
    assert "1 blocks" not in quern("doctor", "--device", "cuda", env=fake).out


def test_kernel_tables(quern, tmp_path):
    rows = quern("bench", "--kernels", "--device", "cpu", "--type", "Q8_0", "--threads", "1", "--json").json()
    assert {r["type"] for r in rows} == {"Q8_0"} and {r["m"] for r in rows} >= {1, 8}
    for r in rows:
        assert r["us"] > 0 and r["gb_s"] > 0 and r["gop_s"] > 0 and r["share"] > 0 and r["limit"]
    assert quern("bench", "--kernels", "--type", "Q9").code == 64


def test_profile_in_three_levels(quern, tmp_path, fake, smollm2):
    file = tmp_path / "profile.json"
    asked = ["run", smollm2, "hello", "--raw", "-n", "4", "--ctx", "256", "--ignore-eos", "--device", "cuda", "--no-parity"]
    done = quern(*asked, "--profile-json", file, env=fake)
    assert done.code == 0, done.err
    assert "are launch overhead and waiting" in quern(*asked, "--profile", env=fake).err
    for phase in json.loads(file.read_text()):
        assert phase["launches"] > 0 and phase["overhead_seconds"] > 0
        assert {o["level"] for o in phase["operations"]} >= {"macro", "midi"} and phase["kernels"]
        # the fake card's launches overlap: each takes five ticks, of which two are its own (test/gpu/fake_cuda.h)
        busy = 1e-8 * (2 * phase["launches"] + 3 * phase["steps"])
        assert busy * 0.99 < phase["kernel_seconds"] < busy * 1.01 < phase["seconds"]
        for rows in (phase["operations"], phase["kernels"]):
            assert all(0 <= r["share"] <= 1 for r in rows)
            assert abs(sum(r["share"] for r in rows) - phase["kernel_seconds"] / phase["seconds"]) < 1e-6
        assert abs(phase["kernel_seconds"] + phase["overhead_seconds"] - phase["seconds"]) < 1e-9


def profile(quern, tmp_path, model, *args, env=None):
    file = tmp_path / "profile.json"
    prompt = [] if "-p" in args else ["-p", "hello"]
    done = quern("run", model, *prompt, "--raw", "--ignore-eos", "--profile-json", file, "--force", *args, env=env)
    assert done.code == 0, done.err
    return json.loads(file.read_text())


def test_profile_counts_steps_as_they_ran(quern, tmp_path, fake, smollm2):
    card = ["--ctx", "256", "--device", "cuda", "--no-parity"]
    prompt, decode = profile(quern, tmp_path, smollm2, "-n", "2", *card, env=fake)
    assert prompt["steps"] == decode["steps"] == decode["rows"] == 1
    assert decode["launches"] > 0 and decode["operations"] and prompt["launches"] < 2 * decode["launches"]
    only, = profile(quern, tmp_path, smollm2, "-n", "1", *card, env=fake)
    assert only["phase"] == "prompt" and only["steps"] == 1
    prompt, decode = profile(quern, tmp_path, smollm2, "-n", "24", "--temp", "0", "--speculate", "always", *card, env=fake)
    # the card that computes nothing always chooses the same token, so that drafts are accepted
    assert decode["steps"] < 23 and decode["rows"] > 1 and decode["steps"] * decode["rows"] >= 23


def test_profile_of_two_devices_keeps_the_kernels_apart(quern, tmp_path, fake, smollm2):
    card = ["--ctx", "256", "--device", "cuda", "--no-parity", "--gpu-layers", "10"]
    one, sent = (profile(quern, tmp_path, smollm2, "-n", "3", *card, *more, env=fake) for more in ([], ["-p", "word " * 100]))
    for phase in one + sent:
        assert abs(phase["kernel_seconds"] - sum(k["seconds"] for k in phase["kernels"])) < 1e-9 < phase["cpu_seconds"]
        whole = phase["kernel_seconds"] + phase["cpu_seconds"] + phase["overhead_seconds"]
        assert abs(whole - phase["seconds"]) < 1e-9
    # a long prompt sends the weights of the CPU's layers to the card: these launches count, too
    assert sent[0]["launches"] > 2 * one[0]["launches"]


@pytest.mark.parametrize("ranks", ["--tensor-parallel", "--pipeline"])
def test_profile_of_ranks_names_no_operation(quern, tmp_path, smollm2, ranks):
    for phase in profile(quern, tmp_path, smollm2, "-n", "3", "--device", "cpu", "-t", "2", ranks, "2"):
        assert [(o["name"], o["level"]) for o in phase["operations"]] == [("ranks", "step")]


def test_profile_of_an_image(quern, tmp_path, fake):
    folder = ROOT / "test/data/vision/colours"
    image = ROOT / "test/data/vision/gemma3_vl/image0.png"
    prompt, decode = profile(quern, tmp_path, folder, "-n", "3", "--image", image, "--device", "cuda", "--no-parity", env=fake)
    assert prompt["image_seconds"] > 0 == decode["image_seconds"]
    whole = prompt["image_seconds"] + prompt["kernel_seconds"] + prompt["overhead_seconds"]
    assert abs(whole - prompt["seconds"]) < 1e-9


def test_profile_follows_the_answer(binary, smollm2):
    """Also where both go to one file."""
    done = subprocess.run([str(binary), "run", str(smollm2), "hello", "-n", "2", "--profile", "--device", "cpu"], timeout=300,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0 and done.stdout.index("\nprompt ") > 0
    assert all(line.startswith(("prompt ", "decode ", "  ")) for line in done.stdout[done.stdout.index("\nprompt ") + 1:].splitlines())


def test_the_server_keeps_the_driver_in_its_sandbox(binary, smollm2, fake):
    """The driver's library is found where LD_LIBRARY_PATH says, and the log says what is left open."""
    s = Server(binary, smollm2, "--device", "cuda", "--no-parity", "--ctx", "256", env={**os.environ, **fake})
    line = next(line for line in s.log if "sandbox:" in line)
    assert "closed: " in line and "calls and network" in line and "the GPU driver's devices, libraries and ioctls" in line
    assert "Seccomp:\t2" in open(f"/proc/{s.process.pid}/status").read()
    assert 'device="cuda' in s.request("GET", "/metrics")[2].decode()
    assert s.stop() == 0


@pytest.fixture
def serve(binary, fake):
    """serve(model, ...) -> a server with the card, which does not outlive the test"""
    running = []

    def start(*args):
        running.append(Server(binary, *args, "--no-parity", env={**os.environ, **fake}))
        return running[-1]
    yield start
    for s in running:
        s.kill()


@pytest.mark.parametrize("args,line", [
    (["--device", "cuda"], "4 requests at once, by the GPU's memory of 1.1 GB (--slots)"),
    (["--device", "cuda", "--gpu-memory", "900M"], "4 requests at once, by --gpu-memory of 0.9 GB (--slots)"),
    (["--device", "cuda", "--gpu-layers", "0"], "4 requests at once (--slots)"),
    (["--device", "cpu"], "4 requests at once (--slots)"),
    (["--tier", "scalar"], "4 requests at once (--slots)"),
])
def test_the_card_counts_for_slots_if_it_is_used(serve, tiny, args, line):
    assert any(logged.endswith(f"{line}\n") for logged in serve(*tiny, *args).log)


def test_ps_divides_a_model_between_card_and_cpu(serve, quern, smollm2):
    share = []
    for layers in ("0", "5", "all"):
        server = serve(smollm2, "--device", "cuda", "--ctx", "256", "--gpu-layers", layers)
        shown = server.ask("/api/ps")["models"][0]
        share.append(shown["size_vram"] / shown["size"])
        server.kill()
    assert share[0] == 0 < share[1] < 0.7 and share[2] == 1


def folder_of(where, model, names):
    where.mkdir()
    for name in names:
        (where / f"{name}.gguf").symlink_to(model)
    return where


def devices(server):
    return {m["name"]: m["device"] for m in server.ask("/api/ps")["models"]}


def load(server, name):
    server.ask("/models/load", {"model": name})
    until(lambda: name in devices(server))


def test_idle_models_leave_the_card_before_layers_do(serve, smollm2, tmp_path):
    """Two fit. The third is not divided between card and CPU: the least recently used one goes."""
    server = serve("--models-dir", folder_of(tmp_path / "three", smollm2, "abc"), "--device", "cuda")
    for name, there in (("a", "a"), ("b", "ab"), ("c", "bc"), ("a", "ca")):
        load(server, name)
        assert devices(server) == {n: "cuda" for n in there}
    assert server.metric("quern_model_loads_total") == 4 and server.metric("quern_model_unloads_total") == 2


def test_models_that_fit_are_loaded_once(serve, tiny, tmp_path):
    server = serve("--models-dir", folder_of(tmp_path / "five", tiny[0], "abcde"), "--device", "cuda", "--ctx", "256")
    for name in "abcdeabcde":
        load(server, name)
    assert devices(server) == {n: "cuda" for n in "abcde"}
    assert server.metric("quern_model_loads_total") == 5 and server.metric("quern_model_unloads_total") == 0


def test_a_model_that_never_fits_evicts_none(serve, smollm2, tmp_path):
    server = serve("--models-dir", folder_of(tmp_path / "two", smollm2, "ab"), "--device", "cuda", "--gpu-memory", "240M")
    for name in "abab":
        load(server, name)
    assert devices(server) == {n: "cuda+cpu" for n in "ab"}
    assert server.metric("quern_model_loads_total") == 2 and server.metric("quern_model_unloads_total") == 0


def test_a_load_that_cannot_succeed_evicts_none(serve, smollm2, tiny, tmp_path):
    """Beyond a limit of each model's own: what others hold does not matter."""
    folder = folder_of(tmp_path / "three", tiny[0], "ab")
    (folder / "big.gguf").symlink_to(smollm2)
    server = serve("--models-dir", folder, "--device", "cuda", "--ctx", "256", "--gpu-layers", "all", "--gpu-memory", "120M")
    for name in "ab":
        load(server, name)
    for _ in range(3):
        status, _, reply = server.request("POST", "/v1/completions", {"model": "big", "prompt": "x", "max_tokens": 1})
        assert status == 500 and b"not enough memory" in reply, (status, reply)
    assert devices(server) == {n: "cuda" for n in "ab"}
    assert server.metric("quern_model_unloads_total") == 0


def test_gpu_check_builds_what_it_includes():
    """scripts/gpu-check compiles folders by name, on machines without CMake: all that their sources include must be among them."""
    folders = re.search(r"src/\{([a-z/,]+)\}/\*\.c", (ROOT / "scripts" / "gpu-check").read_text()).group(1).split(",")
    for folder in folders:
        for source in (ROOT / "src" / folder).glob("*.[ch]"):
            for header in re.findall(r'^#include "(\w[\w/]*)/\w+\.h"', source.read_text(), re.M):
                assert header in folders, f"{source.name} includes {header}"
