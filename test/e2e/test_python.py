"""The Python package of python/, with the library of this build; and the wheel, where there is one in dist/."""
import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

HERE = Path(__file__).parent


def sanitizer(library):
    """The runtime that a library built with sanitizers needs before Python; None = it is an ordinary one."""
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True).stdout
    if "__asan_init" not in symbols:
        return None
    return subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def environment(binary):
    library = binary.parent / "libquern.so"
    if not library.exists():
        pytest.skip("this build has no shared library")
    env = {**os.environ, "QUERN_LIBRARY": str(library), "PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1",
           "HF_HUB_OFFLINE": "1"}
    preload = sanitizer(library)
    return {**env, "LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0"} if preload else env


@pytest.fixture(scope="module")
def python(environment):
    """python(text of a program, args...) -> what it prints"""
    def run(program, *args, timeout=300):
        done = subprocess.run([sys.executable, "-X", "dev", "-W", "ignore::ResourceWarning", "-c", program, *map(str, args)],
                              env=environment, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
    return run


QUICK = r"""
import asyncio, logging, sys, threading
import quern
from pydantic import BaseModel

class Town(BaseModel):
    name: str
    people: int

logging.basicConfig(level=logging.INFO, stream=sys.stdout)
seen = []
m = quern.Model(sys.argv[1], ctx=512, streams=8, progress=lambda what, done, total: seen.append(what))
assert "loading" in seen and m.info["generates"] and m.context == 512, (seen, m.info)

first = m.chat("What is 2+2?", max_tokens=24, temperature=0)
assert first.finish_reason in ("stop", "length") and first.completion_tokens == len(first.ids) and first.prompt_tokens > 9
assert "".join(m.chat("What is 2+2?", stream=True, max_tokens=24, temperature=0)) == first.text
print(first.text)

# leaving the loop frees the engine: its only stream would otherwise run for 4,000 tokens
for text in m.complete("Once upon a time", stream=True, temperature=0):
    assert isinstance(text, str) and text
    break
stream = m.chat("Write a long story.", stream=True, temperature=0)
for i, _ in enumerate(stream):
    if i == 3:
        break
assert stream.result.finish_reason == "cancelled" and len(stream.result.ids) < 64

ids = m.tokenize("One two three")
assert all(type(i) is int for i in ids) and m.detokenize(ids) == "One two three"
town = m.chat("Name a town.", schema=Town, max_tokens=80, temperature=0).parsed
assert isinstance(town, Town), town
call = m.chat("The weather in Rome?", tools=[{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}}}],
    tool_choice="required", max_tokens=64, temperature=0)
assert call.tool_calls[0].name == "weather" and "city" in call.tool_calls[0].arguments, call
for wrong, kind in ((dict(temperature=-1), quern.UsageError), (dict(regex="("), quern.Error), (dict(no_such=1), TypeError)):
    try:
        m.chat("x", **wrong)
        raise SystemExit(f"{wrong} was not refused")
    except kind as e:
        assert str(e)

async def many():
    texts = await asyncio.gather(*[m.achat("What is 2+2?", max_tokens=24, temperature=0) for _ in range(12)])
    assert all(t.text == first.text for t in texts)
    n = 0
    async for text in m.achat("Write a long story.", stream=True, temperature=0):
        n += 1
        if n == 3:
            break
    try:
        await asyncio.wait_for(m.achat("Write a long story.", temperature=0), 0.2)
        raise SystemExit("the task was not cancelled")
    except asyncio.TimeoutError:
        pass
    return (await m.achat("Hi", max_tokens=2, temperature=0)).completion_tokens

assert asyncio.run(many()) == 2
m.close()
try:
    m.tokenize("x")
    raise SystemExit("a closed model was used")
except quern.ClosedError:
    print("closed")
"""


def test_chat_streams_schemas_tools_and_asyncio(python, smollm2, quern):
    lines = python(QUICK, smollm2).splitlines()
    want = quern("run", smollm2, "-p", "What is 2+2?", "-n", 24, "--temp", 0, "--json").json()["text"]
    assert lines[-1] == "closed" and want.splitlines()[0] in lines


LAYOUT = r"""
#include <quern.h>
#include <stdio.h>

int main(void)
{
%s
    return 0;
}
"""


def test_structs_have_the_header_s_layout(environment, tmp_path):
    cc = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not cc:
        pytest.skip("no C compiler")
    sys.path.insert(0, str(ROOT / "python"))
    os.environ["QUERN_LIBRARY"] = environment["QUERN_LIBRARY"]
    if "LD_PRELOAD" in environment:
        pytest.skip("the library has sanitizers, this process has none")
    from quern import _library
    names = {"quern_error": _library.ErrorStruct, "quern_options": _library.Options, "quern_request": _library.Request,
             "quern_piece": _library.Piece, "quern_probability": _library.Probability, "quern_chunk": _library.Chunk,
             "quern_event": _library.Event}
    rows = [f'printf("{s} {f[0]} %zu %zu\\n", offsetof(struct {s}, {f[0]}), sizeof(((struct {s} *)0)->{f[0]}));'
            for s, k in names.items() for f in k._fields_]
    rows += [f'printf("{s} - %zu 0\\n", sizeof(struct {s}));' for s in names]
    source = tmp_path / "layout.c"
    source.write_text(LAYOUT % "\n".join(rows))
    subprocess.run([cc, f"-I{ROOT / 'include'}", source, "-o", tmp_path / "layout"], check=True)
    for line in subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.splitlines():
        name, field, offset, size = line.split()
        kind = names[name]
        if field == "-":
            assert ctypes.sizeof(kind) == int(offset), name
        else:
            member = getattr(kind, field)
            assert (member.offset, member.size) == (int(offset), int(size)), line


@pytest.mark.slow
def test_readme(python, smollm2):
    program = (ROOT / "README.md").read_text().split("```python\nimport quern\n", 1)[1].split("```", 1)[0]
    out = python("import quern\n" + program)
    assert " name=" in out and " country=" in out, out


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_calls(environment, seed):
    """256 calls, 1,024 with those of all seeds, from four threads, two of them with event loops; the model is closed by hand, or by
    the end of Python. The models have 300 tokens: with sanitizers a large vocabulary takes most of the time."""
    model = ROOT / "test" / "data" / ("hybrid" if seed < 2 else "vision/colours")
    done = subprocess.run([sys.executable, HERE / "python_calls.py", model, "256", str(seed)], env=environment,
                          capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0 and "FAILED" not in done.stderr and "Sanitizer" not in done.stderr, done.stderr[-4000:]
    assert "'sync': 128" in done.stdout and "'async': 128" in done.stdout, done.stdout


SHUTDOWN = r"""
import asyncio, sys, quern
T = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}assistant:"
m = quern.Model(sys.argv[1], ctx=128, streams=3, threads=2, chat_template=T)
m.chat("hello", max_tokens=3, regex="[a-c]{2}")
for _ in m.complete("abc", stream=True, max_tokens=20):
    break
m.embed("x y")
m.detokenize(m.tokenize("a b"))
async def go():
    await asyncio.gather(*[m.achat("hi", max_tokens=2) for _ in range(3)])
    async for _ in m.achat("hi", stream=True):
        break
asyncio.run(go())
left = m.chat("on and on", stream=True)
next(left, None)
print("end")
"""


@pytest.mark.slow
def test_valgrind_sees_a_clean_end(environment, tiny, tmp_path):
    """Python ends while a request runs. What valgrind says of Python itself is not ours: no report may name the library."""
    if not shutil.which("valgrind") or "LD_PRELOAD" in environment:
        pytest.skip("no valgrind here, or a library with sanitizers")
    log = tmp_path / "valgrind"
    done = subprocess.run(["valgrind", "--leak-check=full", "--show-leak-kinds=definite,possible", "--num-callers=20", f"--log-file={log}",
                           sys.executable, "-c", SHUTDOWN, tiny[0]], env={**environment, "PYTHONMALLOC": "malloc"},
                          capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0 and done.stdout == "end\n", done.stderr
    assert "LEAK SUMMARY" in log.read_text() and "libquern" not in log.read_text(), log.read_text()[-4000:]


def interpreters():
    found = {}
    folders = [*Path.home().glob(".pyenv/versions/3.*/bin"), *map(Path, os.environ["PATH"].split(":"))]
    for folder in folders:
        for minor in range(9, 16):
            path = folder / f"python3.{minor}"
            if path.exists() and minor not in found and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
                found[minor] = path
    return found


WHEEL = r"""
import asyncio, sys
import quern
m = quern.Model(sys.argv[1], ctx=512)
assert m.info["streams"] == 32
print(m.chat("What is 2+2?", max_tokens=12, temperature=0).text)
assert "".join(m.chat("Hi", stream=True, max_tokens=5))
async def many():
    return await asyncio.gather(*[m.achat("Hi", max_tokens=4, temperature=0) for _ in range(8)])
assert len({r.text for r in asyncio.run(many())}) == 1
assert abs(sum(x * x for x in m.embed("a cat")) - 1) < 1e-3
"""


@pytest.mark.slow
@pytest.mark.parametrize("minor", range(9, 15))
def test_wheel(binary, smollm2, tmp_path, minor):
    """The wheel in a new environment of every Python that is here, with nothing else in it."""
    wheels = list((ROOT / "dist").glob("quern_engine-*x86_64.whl"))
    python = interpreters().get(minor)
    if not wheels:
        pytest.skip("no wheel in dist/ (make wheel)")
    if not python:
        pytest.skip(f"no Python 3.{minor} here")
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    bin_ = tmp_path / "venv" / "bin"
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "QUERN_LIBRARY")}
    subprocess.run([bin_ / "python", "-m", "pip", "install", "-q", "--no-index", wheels[0]], check=True, env=env)
    out = subprocess.run([bin_ / "python", "-c", WHEEL, smollm2], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert out.returncode == 0 and out.stdout.strip(), out.stderr
    version = subprocess.run([bin_ / "quern", "--version"], capture_output=True, text=True, env=env, check=True).stdout
    assert version.startswith("quern ")
    # the program takes its kernels from the library: a driver that computes nothing shows whether it has them
    kernels = "import ctypes, quern; print(bool(ctypes.CDLL(quern._library._candidates()[0]).quern_gpu_kernels(0)))"
    has = subprocess.run([bin_ / "python", "-c", kernels], capture_output=True, text=True, env=env, check=True).stdout.strip()
    (tmp_path / "driver").mkdir()
    shutil.copy(binary.parent / "test" / "libfake_cuda.so", tmp_path / "driver" / "libcuda.so.1")
    cards = subprocess.run([bin_ / "quern", "doctor"], capture_output=True, text=True, check=True,
                           env={**env, "LD_LIBRARY_PATH": str(tmp_path / "driver")}).stdout
    assert ("Fake Card" in cards, "no CUDA kernels" in cards) == ((True, False) if has == "True" else (False, True)), cards
