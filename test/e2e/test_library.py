"""The examples, compiled against the public header and the shared library alone, and run."""
import json
import math
import os
import re
import shutil
import subprocess

import pytest

from conftest import ROOT


@pytest.fixture(scope="module")
def example(binary, tmp_path_factory):
    cc = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not cc:
        pytest.skip("no C compiler")
    if not (binary.parent / "libquern.so").exists():
        pytest.skip("this build has no shared library")
    folder = tmp_path_factory.mktemp("examples")

    def run(name, *args, source=None, libraries=()):
        program = folder / name
        text = folder / f"{name}.c"
        text.write_text(source or (ROOT / "examples" / f"{name}.c").read_text())
        if not program.exists():
            subprocess.run([cc, "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", str(text),
                            "-o", str(program), f"-L{binary.parent}", "-lquern", f"-Wl,-rpath,{binary.parent}", *libraries], check=True)
        return subprocess.run([str(program), *map(str, args)], capture_output=True, text=True, timeout=600)
    return run


def test_every_example_is_run_here():
    assert {p.stem for p in (ROOT / "examples").glob("*.c")} == {"generate", "stream", "batch", "embed", "tools"}


IMAGE = r"""
#include <quern.h>
#include <stdio.h>
#include <stdlib.h>

/* MODEL FILE...: what the model says of each image, then of one that is none */
int main(int argc, char **argv)
{
    static char bytes[1 << 20];
    struct quern_error why;
    struct quern_model *m = quern_open(argv[1], NULL, &why);
    for (int i = 2; m && i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        struct quern_image image = {bytes, f ? fread(bytes, 1, sizeof bytes, f) : 0};
        struct quern_request r = QUERN_REQUEST;
        struct quern_answer a;
        r.prompt = "What colour is this image ?";
        r.images = &image;
        r.image_count = 1;
        r.temperature = 0;
        r.max_tokens = 8;
        if (f)
            fclose(f);
        if (quern_generate(m, &r, &a, &why)) {
            printf("%d %s\n", why.code, why.text);
            continue;
        }
        printf("%s\n", a.text);
        quern_answer_free(&a);
    }
    if (!m)
        puts(why.text);
    quern_close(m);
    return !m;
}
"""


def test_images(example, tmp_path):
    from test_images import COLOURS, RGB, png
    files = [tmp_path / f"{name}.png" for name in ("red", "blue", "none")]
    for file in files:
        file.write_bytes(png(RGB[file.stem]) if file.stem in RGB else b"GIF89a")
    got = example("image", COLOURS, *files, source=IMAGE)
    said = [line.strip() for line in got.stdout.splitlines()]
    assert got.returncode == 0 and said[:2] == ["red", "blue"] and said[2].startswith("65 "), got


def test_generate(example, smollm2, quern):
    got = example("generate", smollm2, "What is 2+2?")
    assert got.returncode == 0, got.stderr
    text, tail = got.stdout.rsplit("\n(", 1)
    assert re.fullmatch(r"\d+ tokens, (stop|length)\)\n", tail)
    assert text == quern("run", smollm2, "-p", "What is 2+2?", "-n", 48, "--temp", 0, "--json").json()["text"]
    assert example("generate", "nowhere.gguf", "x").returncode == 65


def test_stream_is_cut_short(example, smollm2):
    got = example("stream", smollm2, "Write a long story about a mill.")
    assert got.returncode == 0, got.stderr
    assert "(cancelled after" in got.stdout and got.stdout.count("\n") >= 13


def test_batch(example, smollm2):
    prompts = ["What is 2+2?", "Name a colour.", "Hi"]
    together = example("batch", smollm2, *prompts)
    assert together.returncode == 0, together.stderr
    assert len(re.findall(r"^\d+: ", together.stdout, re.M)) == 3
    assert together.stdout.count("(stop,") + together.stdout.count("(length,") == 3


def test_embed(example, model):
    got = example("embed", model("all-MiniLM-L6-v2"), "a cat", "a kitten", "tax law")
    assert got.returncode == 0, got.stderr
    cosine = [float(line.split()[0]) for line in got.stdout.splitlines()]
    assert cosine[0] == 1 and cosine[1] > 0.6 > 0.4 > cosine[2]


SCORE = r"""
#include <quern.h>
#include <stdio.h>

/* A prompt's tokens with their log-probabilities, and nothing said; then what it was read for is in the cache. */
int main(int argc, char **argv)
{
    struct quern_error why;
    struct quern_request r = {.raw = argv[2], .logprobs = 1, .echo = 1, .prompt_only = 1};
    struct quern_chunk chunk = {0};
    struct quern_answer answer;
    struct quern_model *m = argc == 3 ? quern_open(argv[1], NULL, &why) : NULL;
    struct quern_stream *s = m ? quern_submit(m, &r, &why) : NULL;
    while (s && !chunk.done && quern_next(s, -1, &chunk, &why) > 0)
        for (size_t i = 0; i < chunk.count; i++)
            printf("%d %.4f %d\n", (int)chunk.ids[i], (double)chunk.logprobs[i], i < chunk.echoed);
    quern_stream_close(s);
    struct quern_request again = {.raw = argv[2], .greedy = 1, .max_tokens = 4, .grammar = "root ::= [a-z ]+"};
    for (int i = 0; i < 2 && s; i++)
        if (!quern_generate(m, &again, &answer, &why)) {
            printf("%u %u %s\n", answer.prompt_tokens, answer.cached_tokens, answer.text);
            quern_answer_free(&answer);
        }
    quern_close(m);
    return 0;
}
"""


def test_prompts_are_scored(example, smollm2, quern):
    text = "One two three four five"
    got = example("score", smollm2, text, source=SCORE)
    *tokens, first, second = got.stdout.splitlines()
    rows = [line.split() for line in tokens]
    assert [int(r[0]) for r in rows] == quern("tokenize", smollm2, text, "--json").json()["ids"], got.stderr
    assert rows[0][1].lstrip("-") == "nan" and all(float(r[1]) < 0 for r in rows[1:]) and {r[2] for r in rows} == {"1"}
    last = quern("logits", smollm2, "--tokens", ",".join(r[0] for r in rows[:-1]), "--json").json()["last"]
    most = max(last)
    want = last[int(rows[-1][0])] - most - math.log(sum(math.exp(x - most) for x in last))
    assert float(rows[-1][1]) == pytest.approx(want, abs=0.05)
    assert first == second and first.split()[:2] == [str(len(rows)), str(len(rows) - 1)]


def test_tools(example, smollm2):
    got = example("tools", smollm2, "What is the weather in Rome?")
    assert got.returncode == 0, got.stderr
    call = json.loads(got.stdout.splitlines()[-1].rsplit(" (", 1)[0])[0]
    assert call["function"]["name"] == "weather" and json.loads(call["function"]["arguments"])["city"]
    assert got.stdout.rstrip().endswith("(tool_calls)") and call["id"].startswith("call_")


def test_the_rest_of_the_library(example, smollm2, quern):
    got = example("api", smollm2, source=(ROOT / "test" / "e2e" / "api.c").read_text(), libraries=["-lm"])
    assert got.returncode == 0 and "FAILED" not in got.stdout, got.stdout + got.stderr
    rows = dict(line.split("|", 1) for line in got.stdout.splitlines() if "|" in line)
    assert rows["old"] == rows["default"] and rows["zero"] == rows["greedy"] != rows["old"]
    assert re.match(r"(yes|no), [a-z]{3,8}\|", rows["regex"]) and rows["choices"].split("|")[0] in ("maybe", "perhaps")
    assert rows["grammar"] == "x|stop" and rows["continued"].lstrip().startswith("4")
    ids = quern("tokenize", smollm2, "One two three", "--json").json()["ids"]
    last = quern("logits", smollm2, "--tokens", ",".join(map(str, ids)), "--json").json()["last"]
    width, first = rows["logits"].split("|")
    assert int(width) == len(last) and float(first) == pytest.approx(last[0], abs=0.1)
