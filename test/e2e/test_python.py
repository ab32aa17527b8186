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


WRONG = r"""
import asyncio, copy, json, os, pickle, signal, sys, typing
import numpy
import pydantic.v1
import quern
from pydantic import BaseModel, TypeAdapter
from quern._request import AllOptions, schema_text

T = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}assistant:"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
assert sorted(quern.OPTIONS) == sorted(typing.get_type_hints(AllOptions))
assert all(name in quern.Model.chat.__doc__ for name in quern.OPTIONS)
m = quern.Model(sys.argv[1], ctx=256, streams=numpy.int64(4), threads=2, chat_template=T)
assert m.info["streams"] == 4

def refused(call, *words):
    try:
        got = call()
    except quern.UsageError as e:
        assert all(w in str(e) for w in words), (words, e)
    else:
        raise SystemExit(f"not refused: {words} {got}")

for messages in (None, 5, b"hi", {"role": "user", "content": "x"}):
    refused(lambda: m.chat(messages), "messages", type(messages).__name__)
refused(lambda: m.chat("half \ud800"), "UTF-8")
refused(lambda: m.chat([{"role": "user", "content": float("nan")}]), "messages", "JSON")
for prompt in (None, 5, b"hi", [1.5], ["a"], [-1], [10**6]):
    refused(lambda: m.complete(prompt, max_tokens=1), "token" if prompt else "prompt")
    refused(lambda: m.logits(prompt))
for call in (m.tokenize, m.embed):
    refused(lambda: call(5), "text")
refused(lambda: m.embed([1]), "text")
refused(lambda: m.detokenize("abc"), "list of token ids")
for options, word in (({"max_tokens": 5.0}, "5.0"), ({"temperature": "hot"}, "'hot'"), ({"stop": 5}, "stop"), ({"stop": [5]}, "text"),
                      ({"regex": 5}, "text"), ({"choices": []}, "empty"), ({"timeout": 0}, "timeout"), ({"adapters": 5}, "adapters"),
                      ({"tools": TOOL}, "tools"), ({"tools": [print]}, "tools"), ({"schema": "{}"}, "schema"),
                      ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice"), ({"sampling": {1, 2}}, "sampling")):
    refused(lambda: m.chat("x", **options), word)
for name in ("ctx", "threads", "cache_bytes"):
    refused(lambda: quern.Model(sys.argv[1], **{name: 2**64}), name)
assert m.embed([], numpy=True).shape == (0, m.info["width"]) and m.embed([]) == []

class Town(BaseModel):  # it names no other properties, so that there are none
    size: bool

class OldTown(pydantic.v1.BaseModel):
    size: bool

class Country(BaseModel, extra="allow"):
    properties: list[Town]  # a name that schemas have, too

schema = json.loads(schema_text(Country))
assert schema["additionalProperties"] is True and list(schema["properties"]) == ["properties"]
assert schema["$defs"]["Town"]["additionalProperties"] is False
for schema, kind in ((Town, Town), (OldTown, OldTown), (TypeAdapter(Town), Town), (bool, bool),
                     ({**Town.model_json_schema(), "additionalProperties": False}, dict)):
    assert isinstance(m.chat("x", schema=schema, max_tokens=200).parsed, kind)
o = {"max_tokens": numpy.int64(2), "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}
assert m.chat("x", **{**o, "max_tokens": 60}).tool_calls[0].name == "f"

for e in (quern.Error("a"), quern.UsageError("a", 64), quern.UnreachableError("b", 69), quern.ResourceError("c", 73), quern.ClosedError("d")):
    again = pickle.loads(pickle.dumps(e))
    assert type(again) is type(e) and str(again) == str(e) and again.code == e.code
result = m.complete("x", max_tokens=2)
assert pickle.loads(pickle.dumps(result)) == result
for call in (pickle.dumps, copy.copy):
    try:
        call(m)
        raise SystemExit("a model was copied")
    except TypeError as e:
        assert "each process" in str(e)

async def task():
    answer = await asyncio.create_task(m.acomplete("x", max_tokens=2))
    async with m.acomplete("x", stream=True) as stream:
        async for _ in stream:
            break
    assert stream._dispatcher is not None
    return answer

assert asyncio.run(m.acomplete("x", max_tokens=2)).completion_tokens == asyncio.run(task()).completion_tokens == 2

running = m.complete("x", stream=True, ignore_end=True)
next(running)
child = os.fork()
if child == 0:
    signal.alarm(100)  # where it would wait for threads that are not here
    for call in (lambda: m.complete("x"), lambda: m.embed("x"), lambda: next(running), lambda: asyncio.run(m.acomplete("x"))):
        try:
            call()
            os._exit(1)
        except quern.ClosedError as e:
            assert "forked" in str(e)
    with quern.Model(sys.argv[1], ctx=256) as own:
        own.complete("x", max_tokens=1)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0

array, vector = m.logits("x"), m.embed("x", numpy=True)
want = array.copy(), vector.copy()
m.close()
m.close()
assert (array == want[0]).all() and (vector == want[1]).all()
for call in (lambda: m.chat("x"), lambda: m.embed("x"), lambda: m.logits("x"), lambda: m.tokenize("x")):
    try:
        call()
        raise SystemExit("a closed model was used")
    except quern.ClosedError:
        pass
print("refused")
"""


def test_what_else_people_try(python):
    """Wrong arguments, numpy's numbers, types as schemas, pickle, fork, arrays of a model that is closed."""
    assert python(WRONG, ROOT / "test/data/hybrid").strip().endswith("refused")


TYPED = """
import asyncio
import quern
from pydantic import BaseModel

class City(BaseModel):
    name: str

async def main(m: quern.Model) -> None:
    city: City = m.chat("x", schema=City, max_tokens=5, temperature=0.5, stop=["a"]).parsed
    city = (await m.achat("x", schema=City)).parsed
    text: str = (await asyncio.create_task(m.achat("x"))).text
    for piece in m.complete([1, 2], stream=True, images=[b""]):
        text += piece
    async for piece in m.achat("x", stream=True, max_tokens=3):
        text += piece
    vector: list[float] = m.embed("x")
    print(city, text, vector, m.embed(["x"], numpy=True).shape)
    m.chat("x", max_token=5)
    m.chat("x", temperature="hot")
"""


@pytest.mark.slow
def test_types(tmp_path):
    """mypy finds nothing in the package, and in a program of a user the two mistakes that are there."""
    mypy = shutil.which("mypy") or pytest.skip("mypy is not installed")
    done = subprocess.run([mypy, "--strict", ROOT / "python/quern"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    (tmp_path / "user.py").write_text(TYPED)
    done = subprocess.run([mypy, "--strict", "user.py"], capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "MYPYPATH": str(ROOT / "python")})
    lines = TYPED.splitlines()
    found = {lines[int(line.split(":")[1]) - 1].strip() for line in done.stdout.splitlines() if ": error:" in line}
    assert found == {'m.chat("x", max_token=5)', 'm.chat("x", temperature="hot")'}, done.stdout


IMAGES = r"""
import asyncio, base64, sys, threading
import quern

model, text_model, *files = sys.argv[1:]
red, blue = (open(f, "rb").read() for f in files)
question, o = "What colour is this image ?", dict(temperature=0, max_tokens=8)

def ask(data):
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]}]

# the thread that opens the model has ended when images are decoded
opened = []
opener = threading.Thread(target=lambda: opened.append(quern.Model(model, streams=4)))
opener.start()
opener.join()
m = opened[0]
assert m.info["images"], m.info

def colour(*args, **more):
    return m.chat(*args, **o, **more).text.strip()

first = m.chat(ask(red), **o)
assert first.text.strip() == "red" and first.prompt_tokens >= 4, first
assert colour(ask(blue)) == "blue"
assert colour(question, images=blue) == "blue" and colour(question, images=[files[0]]) == "red"
assert colour([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}], images=[bytearray(red)]) == "red"
assert colour([{"role": "system", "content": "x"}, {"role": "user", "content": question}], images=memoryview(blue)) == "blue"
assert "".join(m.chat(question, images=red, stream=True, **o)).strip() == "red"
for prompt in (f"user: <__media__>{question}\nassistant:", f"{question}\nassistant:"):
    assert m.complete(prompt, images=blue, **o).prompt_tokens >= 4
assert m.complete(f"user: <__media__>{question}\nassistant:", images=blue, **o).text.strip() == "blue"
assert m.prompt_ids(ask(red)).count(309) == 4 and m.prompt_ids(question, images=[red, blue]).count(309) == 8
second = m.chat(ask(red) + [first.message(), {"role": "user", "content": question}], **o)
assert second.cached_tokens >= 4, second

async def many():
    both = await asyncio.gather(*[m.achat(question, images=(red, blue)[i % 2], **o) for i in range(6)])
    assert [r.text.strip() for r in both] == ["red", "blue"] * 3

asyncio.run(many())
place = {"type": "image"}
for why, messages, images in (("no image that can be read", question, b"no image"),
                              ("places for 1 of them", [{"role": "user", "content": [place]}], [red, red]),
                              ("more places for images than images", [{"role": "user", "content": [place, place]}], red),
                              ("fetches none", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b"}}]}], None),
                              ("base64", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png,x"}}]}], None),
                              ("of type 'audio'", [{"role": "user", "content": [{"type": "audio"}]}], None),
                              ("more than 64", question, [red] * 65),
                              ("a path or the bytes", question, [7])):
    try:
        m.chat(messages, images=images, **o)
        raise SystemExit(f"{why}: not refused")
    except quern.Error as e:
        assert why in str(e), (why, e)
assert colour(question, images=red) == "red"
m.close()
t = quern.Model(text_model, chat_template="{% for m in messages %}{{ m.content }} {% endfor %}")
assert not t.info["images"]
for messages, images in ((question, red), (ask(red), None)):
    try:
        t.chat(messages, images=images, max_tokens=2)
        raise SystemExit("a text model took an image")
    except quern.UsageError as e:
        assert "reads only text" in str(e), e
print("images")
"""


def test_images(python, tmp_path):
    from test_images import COLOURS, RGB, png
    files = [tmp_path / f"{name}.png" for name in ("red", "blue")]
    for file in files:
        file.write_bytes(png(RGB[file.stem]))
    assert python(IMAGES, COLOURS, ROOT / "test/data/hybrid", *files).strip().endswith("images")


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
             "quern_event": _library.Event, "quern_image": _library.Image}
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


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Two adapters with random numbers for test/data/vision/colours."""
    import numpy as np
    from test_lora import write_adapter
    random = np.random.default_rng(1)
    shapes = {"self_attn.q_proj": (64, 48), "self_attn.o_proj": (48, 64), "mlp.up_proj": (64, 48), "mlp.down_proj": (48, 64)}
    found = []
    for name, rank in (("one", 2), ("two", 5)):
        tensors = {}
        for layer in range(2):
            for module, (rows, columns) in shapes.items():
                at = f"model.layers.{layer}.{module}.lora_"
                tensors |= {f"{at}A.weight": random.normal(0, 0.1, (rank, columns)), f"{at}B.weight": random.normal(0, 0.1, (rows, rank))}
        found.append(f"{name}={write_adapter(tmp_path_factory.mktemp(name), tensors, r=rank, lora_alpha=4)}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_calls(environment, adapters, seed):
    """256 calls, 1,024 with those of all seeds, from four threads, two of them with event loops; the model is closed by hand, or by
    the end of Python. The models have 300 tokens: with sanitizers a large vocabulary takes most of the time."""
    model, more = ("hybrid", []) if seed < 2 else ("vision/colours", adapters)
    done = subprocess.run([sys.executable, HERE / "python_calls.py", ROOT / "test" / "data" / model, "256", str(seed), *more], env=environment,
                          capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0 and "FAILED" not in done.stderr and "Sanitizer" not in done.stderr, done.stderr[-4000:]
    wanted = ["'sync': 128", "'async': 128", "'image': ", "'left': ", *(["'adapter': "] if more else [])]
    assert all(what in done.stdout for what in wanted), done.stdout


SHUTDOWN = r"""
import asyncio, sys, quern
T = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}assistant:"
with quern.Model(sys.argv[2], ctx=128, streams=2, threads=2, adapters=sys.argv[4:]) as v:
    v.chat("colour", images=[sys.argv[3]], max_tokens=2, adapters={"one": 0.5, "two": 1})
    for _ in v.chat("colour", images=[sys.argv[3]], stream=True, adapters="one"):
        break
    try:
        v.chat("colour", images=[b"no image"])
    except quern.Error:
        pass
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
def test_valgrind_sees_a_clean_end(environment, tiny, adapters, tmp_path):
    """Python ends while a request runs. What valgrind says of Python itself is not ours: no report may name the library."""
    if not shutil.which("valgrind") or "LD_PRELOAD" in environment:
        pytest.skip("no valgrind here, or a library with sanitizers")
    from test_images import COLOURS, RGB, png
    (tmp_path / "red.png").write_bytes(png(RGB["red"]))
    # glibc has one function for __memmove_chk and __memcpy_chk, and valgrind takes the first for the second
    (tmp_path / "known").write_text("{\n same_function\n Memcheck:Overlap\n fun:__memcpy_chk\n}\n")
    log = tmp_path / "valgrind"
    done = subprocess.run(["valgrind", "--child-silent-after-fork=yes", f"--suppressions={tmp_path / 'known'}", "--leak-check=full", "--show-leak-kinds=definite,possible", "--num-callers=20", f"--log-file={log}",
                           sys.executable, "-c", SHUTDOWN, tiny[0], COLOURS, tmp_path / "red.png", *adapters], env={**environment, "PYTHONMALLOC": "malloc"},
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


ARM64 = r"""
import asyncio, platform, sys
import quern
assert platform.machine() == "aarch64"
m = quern.Model(sys.argv[1], ctx=256, streams=4)
assert m.chat("What is 2+2?", max_tokens=4, temperature=0).completion_tokens
assert "".join(m.chat("Hi", stream=True, max_tokens=4, temperature=0))
for text in m.complete("One, two,", stream=True):
    break
async def many():
    return await asyncio.gather(*[m.achat("Hi", max_tokens=2, temperature=0) for _ in range(3)])
assert len({r.text for r in asyncio.run(many())}) == 1
assert abs(sum(x * x for x in m.embed("a cat")) - 1) < 1e-3
try:
    from pydantic import BaseModel
except ImportError:
    BaseModel = None
if BaseModel:
    class Answer(BaseModel, extra="forbid"):
        yes: bool
    assert isinstance(m.chat("Is the sky blue?", schema=Answer, max_tokens=60).parsed, Answer)
schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"], "additionalProperties": False}
assert isinstance(m.chat("Is the sky blue?", schema=schema, max_tokens=60).parsed["yes"], bool)
m.close()
print("answers", *(["pydantic"] if BaseModel else []))
"""


@pytest.mark.slow
def test_wheel_of_arm64(smollm2, tmp_path):
    """The wheel of the other architecture in a root of Debian with Python and pip alone, under qemu: it installs, answers, streams,
    embeds and follows schemas; those of pydantic where its wheels can be fetched. QUERN_ROOTS: a folder for such roots."""
    wheels = list((ROOT / "dist").glob("quern_engine-*aarch64.whl"))
    proot, qemu = shutil.which("proot"), shutil.which("qemu-aarch64-static")
    if not wheels or not proot or not qemu or not shutil.which("mmdebstrap"):
        pytest.skip("no wheel of ARM64 in dist/ (make release), or no proot, qemu-aarch64-static or mmdebstrap")
    root = Path(os.environ.get("QUERN_ROOTS", tmp_path)) / "python-arm64"
    if not root.exists():
        subprocess.run(["mmdebstrap", "--quiet", "--arch=arm64", "--variant=extract", "--include=python3,python3-pip", "bookworm", root],
                       check=True)
    given = tmp_path / "given"
    given.mkdir()
    for path in (wheels[0], smollm2):
        shutil.copy(path, given)
    (given / "answers.py").write_text(ARM64)
    fetched = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--dest", given, "--only-binary=:all:", "--python-version", "3.11",
                              "--platform", "manylinux2014_aarch64", "--platform", "manylinux_2_17_aarch64", "pydantic"], capture_output=True)
    env = {"PATH": "/usr/bin:/bin", "HOME": "/root", "PYTHONDONTWRITEBYTECODE": "1", "PROOT_NO_SECCOMP": "1"}

    def inside(*command):
        done = subprocess.run([proot, "-q", qemu, "-r", root, "-w", "/", "-b", "/proc", "-b", "/dev", "-b", f"{given}:/given",
                               *map(str, command)], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
    names = [wheels[0].name, *([] if fetched.returncode else ["pydantic"])]
    inside("/usr/bin/python3", "-m", "pip", "install", "-q", "--no-index", "--find-links", "/given", "--break-system-packages",
           "--root-user-action=ignore", f"/given/{names[0]}", *names[1:])
    assert inside("/usr/local/bin/quern", "--version").startswith("quern ")
    out = inside("/usr/bin/python3", "/given/answers.py", f"/given/{smollm2.name}").split()
    assert out == ["answers", *names[1:]], out
