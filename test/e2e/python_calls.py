"""Random calls of the Python package from several threads and event loops: python_calls.py MODEL COUNT SEED [NAME=ADAPTER...].
Prints a line of counts. Run by test_python.py, also with a library built with sanitizers."""
import asyncio
import collections
import random
import struct
import sys
import threading
import zlib

import quern

MODEL, COUNT, SEED, ADAPTERS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {
    "x": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["x"], "additionalProperties": False}}}


def png(rgb, side=20):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = (b"\0" + bytes(rgb) * side) * side
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


counts = collections.Counter()
lock = threading.Lock()


def note(what):
    with lock:
        counts[what] += 1


def chosen(r):
    """Adapters of a request: none, a name, several, or some with scales."""
    names = [a.split("=")[0] for a in ADAPTERS]
    some = r.sample(names, r.randint(0, len(names)))
    if some:
        note("adapter")
    return r.choice([some, {name: r.choice([0, 0.5, -1]) for name in some}, some[0] if some else None])


def options(r):
    o = {"max_tokens": r.randint(1, 16), "seed": r.randint(0, 99)}
    for name, value in (("temperature", r.choice([0, 0.7, 2])), ("top_p", r.random()), ("top_k", r.randint(0, 50)),
                        ("stop", r.choice(["a", ["the", "x"]])), ("logprobs", r.choice([True, 3])), ("salt", r.randint(0, 3)),
                        ("sampling", {"repeat_penalty": 1.2}), ("adapters", chosen(r))):
        if r.random() < 0.2:
            o[name] = value
    shaped = r.random()
    if shaped < 0.1:
        o["regex"] = "[a-f]{3,9}"
    elif shaped < 0.2:
        o["choices"] = ["yes", "no", "näin"]
    elif shaped < 0.3:
        o["schema"] = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    elif shaped < 0.35:
        o["grammar"] = 'root ::= "a"+ "b"'
    return o


def text(r):
    return "".join(r.choice("abc déß\n🙂{}<|>") for _ in range(r.randint(1, 60)))


def left_early(m, r):
    """Streams with images that are left: in the loop, by another thread, by dropping them, or before they are read."""
    images = [png([r.randrange(256) for _ in range(3)])] if m.info["images"] else None
    stream = m.chat([{"role": "user", "content": text(r)}], stream=True, images=images, adapters=chosen(r), ignore_end=True, max_tokens=200)
    way = r.randrange(4)
    if way == 0:
        for _ in stream:
            break
    elif way == 1:
        other = threading.Timer(r.random() * 0.02, r.choice([stream.close, stream.cancel]))
        other.start()
        for _ in stream.pieces():
            pass
        other.join()
    elif way == 2:
        next(stream, None)
    del stream
    note("left")


def sync_call(m, r):
    kind = r.randrange(12)
    if kind < 3:
        m.chat(text(r), **options(r))
    elif kind == 3:
        for i, _ in enumerate(m.complete(text(r), stream=True, max_tokens=20)):
            if i == r.randint(0, 9):
                break
    elif kind == 4:
        stream = m.chat([{"role": "user", "content": text(r)}], stream=True, **options(r))
        next(stream, None)
        r.choice([stream.cancel, stream.close, stream.wait, lambda: None])()
    elif kind == 5:
        ids = m.tokenize(text(r))
        assert m.tokenize(m.detokenize(ids)) is not None
        m.complete(ids or [1], max_tokens=3)
    elif kind == 6:
        assert m.logits(text(r), all=r.random() < 0.5, adapters=chosen(r)).shape[-1] == m.info["vocabulary"]
    elif kind == 7:
        vectors = m.embed([text(r) + "x" for _ in range(r.randint(1, 4))], numpy=True)
        assert abs(float((vectors[0] ** 2).sum()) - 1) < 1e-3
    elif kind == 8:
        calls = m.chat(text(r), tools=[TOOL], tool_choice=r.choice(["required", "look", "none"]), max_tokens=40).tool_calls
        assert all(c.name == "look" for c in calls)
    elif kind == 9:
        whole = png([r.randrange(256) for _ in range(3)])
        image = r.choice([whole, whole, whole[:40], b"", b"GIF89a"])
        try:
            m.complete(text(r), images=[image] * r.randint(1, 3), max_tokens=2)
            assert m.info["images"] and image is whole
        except quern.Error as e:
            assert not m.info["images"] or image is not whole, e
        note("image")
    elif kind == 10:
        left_early(m, r)
    else:
        wrong = r.choice([dict(temperature=-1), dict(regex="("), dict(choices=[], grammar="root ::= \"a\""),
                          dict(schema={"type": 7}), dict(sampling={"no": 1}), dict(adapters="none"), dict(logprobs=99),
                          dict(tools={"a": 1}), dict(choices=[]), dict(stop=5), dict(timeout=-1)])
        try:
            m.chat(text(r), max_tokens=2, **wrong)
            raise AssertionError(f"{wrong} was not refused")
        except quern.Error as e:
            assert str(e) and e.code in (64, 65), (e, e.code)
    note("sync")


async def async_call(m, r):
    kind = r.randrange(5)
    if kind == 0:
        await m.achat(text(r), **options(r))
    elif kind == 1:
        left = r.randint(0, 9)
        async for _ in m.acomplete(text(r), stream=True, max_tokens=20):
            left -= 1
            if left < 0:
                break
    elif kind == 2:
        task = asyncio.ensure_future(asyncio.wait_for(m.achat(text(r), max_tokens=200, temperature=1), r.random() * 0.05))
        try:
            await task
        except asyncio.TimeoutError:
            pass
    elif kind == 3:
        async with m.achat(text(r), stream=True, adapters=chosen(r), images=png([9, 9, 9]) if m.info["images"] else None) as stream:
            async for _ in stream.pieces():
                if r.random() < 0.3:
                    break
    else:
        await m.aembed(text(r) + "y")
    note("async")


async def async_calls(m, r, n):
    for _ in range(0, n, 8):
        await asyncio.gather(*[async_call(m, random.Random(r.random())) for _ in range(8)])


def sync_calls(m, r, n):
    for _ in range(n):
        sync_call(m, r)


def guarded(call, *args):
    try:
        call(*args)
    except BaseException as e:  # the count is then short
        print("FAILED", repr(e), file=sys.stderr)
        raise


def main():
    m = quern.Model(MODEL, ctx=1024, streams=6, chat_template=TEMPLATE, adapters=ADAPTERS)
    each = COUNT // 4
    threads = [threading.Thread(target=guarded, args=(sync_calls, m, random.Random(f"{SEED} {i}"), each)) for i in range(2)]
    threads += [threading.Thread(target=guarded, args=(
        lambda i: asyncio.run(async_calls(m, random.Random(f"{SEED} loop {i}"), each)), i)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    running = m.chat("on and on", stream=True)  # runs while the model is closed
    next(running, None)
    if SEED % 2:
        m.close()
        try:
            m.chat("x")
        except quern.ClosedError:
            note("closed")
    print(dict(counts))


main()
