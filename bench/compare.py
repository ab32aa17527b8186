#!/usr/bin/env python3
"""quern beside llama.cpp on the CPU: bench/compare.py [--pairs N] [--plot FILE.svg] [--json FILE] [MODEL.gguf ...]

Needs a llama-bench in the PATH, built natively (with AMX off where that dies); llama-completion too for the time to
the first token. The two programs take turns on the same file with the same number of threads, and each figure is the
median over the pairs: a machine that is slow for a minute is slow for both. llama.cpp gets flash attention where one
trial of both says that it helps. The walls (read bandwidth, int8 by vectors) are probed by every run of quern.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "Describe in a few words how a water mill turns grain into flour, and why the stones are dressed. " * 2
# what is measured: name, tokens read, tokens generated, tokens in the context before
TESTS = [("prefill 512", 512, 0, 0), ("prefill 2048", 2048, 0, 0), ("decode", 0, 48, 0), ("decode at 4096", 0, 24, 4096)]


CONTEXT = 4096


def measure(command):
    """(stdout, seconds, most resident MB) of one run. Pages of the file count: both programs map it."""
    start = time.monotonic()
    with subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          stdin=subprocess.DEVNULL) as p:
        out = p.stdout.read()
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        raise RuntimeError(f"exit {p.returncode}: {' '.join(map(str, command))}")
    return out, time.monotonic() - start, usage.ru_maxrss / 1024


class Quern:
    def __init__(self, program, threads):
        self.program, self.threads = program, threads

    def speed(self, model, read, generate, depth):
        out, *_ = measure([self.program, "bench", model, "-p", read, "-n", generate, "-d", depth, "-r", 1,
                           "-t", self.threads, "--device", "cpu", "--json"])
        row = json.loads(out)[0]
        return row["tok_s"], row["share"]

    def answer(self, model, tokens):
        """(seconds from start to end, most resident MB) of an answer to PROMPT."""
        return measure([self.program, "run", model, "--raw", "-p", PROMPT, "-n", tokens, "-c", CONTEXT, "-t", self.threads,
                        "--device", "cpu", "--temp", 0])[1:]


class Llama:
    def __init__(self, program, threads):
        self.program, self.threads, self.flash = program, threads, {}

    def run(self, model, read, generate, depth, flash):
        out, *_ = measure([self.program, "-m", model, "-p", read, "-n", generate, "-d", depth, "-r", 1,
                           "-t", self.threads, "-fa", flash, "-o", "json"])
        return json.loads(out)[0]["avg_ts"], None

    def speed(self, model, read, generate, depth):
        key = model, read, generate, depth
        if key not in self.flash:
            self.flash[key] = max((0, 1), key=lambda f: self.run(*key, f)[0])
        return self.run(*key, self.flash[key])

    def answer(self, model, tokens):
        program = shutil.which("llama-completion")
        if not program:
            return None, None
        return measure([program, "-m", model, "-p", PROMPT, "-n", tokens, "-c", CONTEXT, "-t", self.threads, "-no-cnv",
                        "--no-warmup", "--temp", 0])[1:]


def median(values):
    return statistics.median(values) if values and None not in values else None


def compare(model, quern, llama, pairs):
    """One row for each test: both medians and the median of the pairs' ratios."""
    rows = []
    for name, read, generate, depth in TESTS:
        ours, theirs = [], []
        for _ in range(pairs):
            ours.append(quern.speed(model, read, generate, depth))
            theirs.append(llama.speed(model, read, generate, depth))
            print(f"  {name}: {ours[-1][0]:.1f} {theirs[-1][0]:.1f}", file=sys.stderr)
        rows.append({"test": name, "unit": "tok/s", "quern": median([o[0] for o in ours]),
                     "llama.cpp": median([t[0] for t in theirs]),
                     "ratio": median([o[0] / t[0] for o, t in zip(ours, theirs)]), "share": median([o[1] for o in ours])})
    for name, unit, tokens, which in (("start to first token", "s", 1, 0), ("resident", "MB", 32, 1)):
        both = [(quern.answer(model, tokens)[which], llama.answer(model, tokens)[which]) for _ in range(pairs)]
        ours, theirs = median([b[0] for b in both]), median([b[1] for b in both])
        rows.append({"test": name, "unit": unit, "quern": ours, "llama.cpp": theirs, "ratio": theirs and theirs / ours,
                     "share": None})
    return rows


def table(results):
    print("| model | test | quern | llama.cpp | ratio | share of the wall |")
    print("|---|---|---|---|---|---|")
    for model, rows in results.items():
        for r in rows:
            cell = lambda v, form: "" if v is None else form.format(v)
            number = "{:.2f}" if r["unit"] == "s" else "{:,.0f}" if r["quern"] >= 100 else "{:.1f}"
            print(f"| {model} | {r['test']}, {r['unit']} | {number.format(r['quern'])} | {cell(r['llama.cpp'], number)} | "
                  f"{cell(r['ratio'], '{:.2f}')} | {cell(r['share'], '{:.0%}')} |")
            model = ""


def plot(results, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    names = [r["test"] for r in next(iter(results.values()))]
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    width = 0.8 / len(results)
    for i, (model, rows) in enumerate(results.items()):
        at = [n + i * width for n in range(len(names))]
        bars = axes.bar(at, [r["ratio"] or 0 for r in rows], width, label=model)
        axes.bar_label(bars, fmt="%.1f", fontsize=7)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks([n + 0.4 - width / 2 for n in range(len(names))], names)
    axes.set_ylabel("times llama.cpp (higher is better)")
    axes.legend(fontsize=8)
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL.gguf")
    parser.add_argument("--quern", default=ROOT / "build/quern")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tests", metavar="NAME,NAME", help="only these: " + ", ".join(t[0] for t in TESTS))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args()
    program = shutil.which("llama-bench")
    if not program:
        sys.exit("no llama-bench in the PATH: nothing to compare with")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "quern/models"
    models = args.models or sorted(cache.glob("*coder*.gguf")) + sorted(cache.glob("SmolLM2*.gguf"))
    if not models:
        sys.exit("no model: name one, or run scripts/fetch-model")
    if args.tests:
        TESTS[:] = [t for t in TESTS if t[0] in args.tests.split(",")]
    quern, llama, results = Quern(args.quern, args.threads), Llama(program, args.threads), {}
    for model in map(str, models):
        print(Path(model).stem, file=sys.stderr)
        results[Path(model).stem] = compare(model, quern, llama, args.pairs)
    table(results)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    if args.plot:
        plot(results, args.plot)


if __name__ == "__main__":
    main()
