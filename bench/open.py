#!/usr/bin/env python3
"""How long it takes to open a model: bench/open.py [--quern PROGRAM] [--json] [MODEL.gguf]

Without MODEL a GGUF of 5 GB with 151,936 tokens and 322 tensors is made, whose data are holes: opening reads no
weight, so it costs nothing on disk. What is timed is the whole of `quern info --json`, from fork to exit; the
memory is the most that the process had resident, with the pages of the header that it read.
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY, LAYERS, WIDTH, FFN = 151936, 40, 4096, 12288
LIMIT_MS, LIMIT_MB = 50, 64


def text(s):
    data = s.encode()
    return struct.pack("<Q", len(data)) + data


def array(kind, body, count):
    return struct.pack("<IIQ", 9, kind, count) + body


def make(path):
    u32 = lambda v: struct.pack("<II", 4, v)
    words = [f"\u0120token{i}" for i in range(VOCABULARY)]
    keys = {
        "general.architecture": struct.pack("<I", 8) + text("llama"), "llama.block_count": u32(LAYERS),
        "llama.context_length": u32(32768), "llama.embedding_length": u32(WIDTH), "llama.attention.head_count": u32(32),
        "llama.attention.head_count_kv": u32(8), "llama.feed_forward_length": u32(FFN),
        "tokenizer.ggml.model": struct.pack("<I", 8) + text("gpt2"),
        "tokenizer.ggml.tokens": array(8, b"".join(map(text, words)), VOCABULARY),
        "tokenizer.ggml.token_type": array(5, struct.pack("<i", 1) * VOCABULARY, VOCABULARY),
        "tokenizer.ggml.merges": array(8, b"".join(text(f"{w[:3]} {w[3:]}") for w in words), VOCABULARY),
    }
    shapes = [("token_embd.weight", (WIDTH, VOCABULARY)), ("output.weight", (WIDTH, VOCABULARY))]
    for layer in range(LAYERS):
        for name, out in (("attn_q", WIDTH), ("attn_k", 1024), ("attn_v", 1024), ("attn_output", WIDTH)):
            shapes.append((f"blk.{layer}.{name}.weight", (WIDTH, out)))
        shapes += [(f"blk.{layer}.ffn_{n}.weight", s) for n, s in
                   (("gate", (WIDTH, FFN)), ("up", (WIDTH, FFN)), ("down", (FFN, WIDTH)), ("x", (WIDTH, 32)))]
    at = 0
    with open(path, "wb") as f:
        f.write(struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(keys)))
        for key, value in keys.items():
            f.write(text(key) + value)
        for name, (inner, outer) in shapes:
            f.write(text(name) + struct.pack("<I2QIQ", 2, inner, outer, 12, at))  # Q4_K: 144 bytes for 256 values
            at += inner * outer // 256 * 144
        f.truncate(-(-f.tell() // 32) * 32 + at)


def run(program, model):
    start = time.perf_counter()
    child = subprocess.Popen([program, "info", model, "--json"], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{program} info {model}: exit {child.returncode}")
    return (time.perf_counter() - start) * 1e3, usage.ru_maxrss / 1024


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?")
    p.add_argument("--quern", default=str(ROOT / "build" / "quern"))
    p.add_argument("--runs", type=int, default=21)
    p.add_argument("--json", action="store_true")
    p.add_argument("--make", metavar="FILE", help="only make that file")
    a = p.parse_args()
    if a.make:
        return make(a.make)
    with tempfile.TemporaryDirectory() as folder:
        model = a.model or os.path.join(folder, "synthetic.gguf")
        if not a.model:  # in a process of its own: a child's peak counts what its parent had when it forked
            subprocess.run([sys.executable, __file__, "--make", model], check=True)
        run(a.quern, model)  # warms the page cache
        times, sizes = zip(*(run(a.quern, model) for _ in range(a.runs)))
        size = os.path.getsize(model)
    result = {"bytes": size, "ms": sorted(times)[len(times) // 2], "ms_least": min(times), "resident_mb": max(sizes)}
    if a.json:
        print(json.dumps(result))
    else:
        print(f"open: {size / 1e9:.2f} GB in {result['ms']:.1f} ms (median of {a.runs}, least {result['ms_least']:.1f}; "
              f"aim {LIMIT_MS}), {result['resident_mb']:.1f} MB resident (aim {LIMIT_MB})")


main()
