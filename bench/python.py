#!/usr/bin/env python3
"""What the Python package costs beside the server: bench/python.py [--rounds N] [--streams N] [MODEL.gguf]

The same requests, all at once: by asyncio in this process (python/, with the library of build/), and by the C client of
bench/serve.py to `quern serve`. Both take turns, in a new order every round, so that a machine that is slow for a minute is
slow for both; the figure is the median of the rounds' ratios. Both read every token as it comes."""
import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python")]
os.environ.setdefault("QUERN_LIBRARY", str(ROOT / "build" / "libquern.so"))

import quern  # noqa: E402
import serve  # noqa: E402


async def one(model, prompt):
    n = 0
    stream = model.acomplete(prompt, stream=True, max_tokens=serve.PREDICT, temperature=0, ignore_end=True)
    async for _ in stream:
        n += 1
    if stream.result.completion_tokens != serve.PREDICT:
        sys.exit(f"a stream has {stream.result.completion_tokens} tokens, not {serve.PREDICT}")


async def package(model, prompts):
    start = time.perf_counter()
    await asyncio.gather(*[one(model, p) for p in prompts])
    return len(prompts) * serve.PREDICT / (time.perf_counter() - start)


def server(process, client, prompts):
    streams = process.ask(client, *((0, p, serve.PREDICT) for p in prompts))
    return len(prompts) * serve.PREDICT / (max(s.events[-1] for s in streams) - min(s.sent for s in streams))


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model", nargs="?", default=Path.home() / ".cache/quern/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    a.add_argument("--rounds", type=int, default=9)
    a.add_argument("--streams", type=int, default=32)
    o = a.parse_args()
    build, threads = ROOT / "build", len(os.sched_getaffinity(0))
    serve.SLOTS, serve.CONTEXT = o.streams, 512
    serve.learn_words(build / "quern", o.model)
    model = quern.Model(str(o.model), device="cpu", threads=threads, streams=o.streams, ctx=serve.CONTEXT)
    process = serve.serve_quern(build / "quern", o.model, threads)
    ratios, ours, theirs = [], [], []
    try:
        for i in range(o.rounds + 1):
            prompts = [serve.words(serve.PROMPT) for _ in range(o.streams)]
            sides = {"package": lambda: asyncio.run(package(model, prompts)),
                     "server": lambda: server(process, build / "bench" / "serve_client", prompts)}
            got = {side: sides[side]() for side in random.sample(sorted(sides), 2)}
            if i:  # the first round warms up
                ours.append(got["package"])
                theirs.append(got["server"])
                ratios.append(got["package"] / got["server"])
                print(f"round {i}: package {got['package']:.1f} tok/s, server {got['server']:.1f}, ratio {ratios[-1]:.3f}", flush=True)
    finally:
        process.stop()
        model.close()
    print(f"{o.streams} requests: package {statistics.median(ours):.1f} tok/s, server {statistics.median(theirs):.1f} (medians of "
          f"{o.rounds}); ratio: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
