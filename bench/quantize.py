#!/usr/bin/env python3
"""quern quantize beside llama-quantize (in the PATH): the time of each, in turn, and the perplexity and KL divergence of
what each has made against the source.

    bench/quantize.py SOURCE.gguf TEXT [TYPE] [--rounds 3] [--chunks 20]

SOURCE holds F16, BF16 or F32. `quern quantize MODEL SOURCE.gguf F16` makes one. Times are CPU seconds and wall seconds
of the whole program, the least of all rounds."""
import argparse
import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def timed(command):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("source")
    parse.add_argument("text")
    parse.add_argument("type", nargs="?", default="Q4_K_M")
    parse.add_argument("--rounds", type=int, default=3)
    parse.add_argument("--chunks", type=int, default=20)
    a = parse.parse_args()
    quern = str(Path(os.environ.get("QUERN_BUILD", ROOT / "build")) / "quern")
    other = shutil.which("llama-quantize")
    with tempfile.TemporaryDirectory(dir=Path(a.source).resolve().parent) as folder:
        makers = {"quern": lambda out: [quern, "quantize", a.source, out, a.type, "--force", "--quiet"]}
        if other:
            makers["llama-quantize"] = lambda out: [other, a.source, out, a.type]
        else:
            print("llama-quantize is not in the PATH: quern alone")
        times = {name: [] for name in makers}
        for _ in range(a.rounds):
            for name, command in makers.items():
                times[name].append(timed(command(f"{folder}/{name}.gguf")))
        print(f"{'':16}{'wall s':>10}{'CPU s':>10}{'MB':>10}{'perplexity':>12}{'ratio':>10}{'mean KL':>10}{'same top':>10}")
        for name in makers:
            out = f"{folder}/{name}.gguf"
            done = subprocess.run([quern, "perplexity", out, "--against", a.source, "-f", a.text, "--chunks", str(a.chunks),
                                   "--json", "--quiet"], check=True, capture_output=True, text=True)
            p = json.loads(done.stdout)
            print(f"{name:16}{min(t[0] for t in times[name]):10.2f}{min(t[1] for t in times[name]):10.2f}"
                  f"{os.path.getsize(out) / 1e6:10.1f}{p['perplexity']:12.4f}{p['ratio']:10.5f}{p['kl']['mean']:10.5f}"
                  f"{p['same_top']:10.4f}")


if __name__ == "__main__":
    main()
