#!/usr/bin/env python3
"""Tokenizing, side by side with Hugging Face's tokenizers, one thread each: bench/tokens.py [--json] [MODEL.gguf]

Ten megabytes of mixed text (prose, code, many scripts) as one text and as lines, over one byte-level BPE with about
150,000 tokens: MODEL's own, rebuilt for `tokenizers` from its vocabulary and merges. Loading is timed by itself: the
program with an empty text; our time of encoding has the printing of the ids in it, theirs has not. Times are the user's and the system's, of the process, not the clock's."""
import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT / "test" / "e2e")  # not this folder: its name would hide a module of Python's
import texts  # noqa: E402

COMMON = ("the of and to in a is that it was for on are as with his they at be this from have or by one had not but what all were when "
          "we there can an your which their said if do will each about how up out them then she many some so these would other").split()


def mixed(size, seed=5):
    rng, parts, n = random.Random(seed), [], 0
    while n < size:
        kind = rng.random()
        if kind < 0.6:
            words = (rng.choice(COMMON) if rng.random() < 0.8 else "".join(rng.choices("etaoinshrdlucmfwypvbgkjqxz", k=rng.randrange(3, 11)))
                     for _ in range(rng.randrange(5, 18)))
            part = " ".join(words).capitalize() + rng.choice([". ", ". ", ".\n\n"])
        elif kind < 0.8:
            part = "\n".join("    " * rng.randrange(3) + rng.choice(texts.CODE) for _ in range(rng.randrange(1, 5))) + "\n"
        else:
            part = texts.line(rng) + "\n"
        parts.append(part)
        n += len(part.encode())
    return "".join(parts)


def spent(command, stdin):
    """Seconds of the processor, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, input=stdin, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


JUDGE = """
import json, os, sys, time
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer, Regex, models, pre_tokenizers
model = json.load(open(sys.argv[1]))
t = Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(m.split(" ")) for m in model["merges"]]))
t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(model["pattern"]), "isolated"),
                                           pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
text = sys.stdin.buffer.read().decode()
out = {}
for name, parts in (("text", [text]), ("lines", text.split("\\n"))):
    start = time.process_time()
    n = sum(len(t.encode(p, add_special_tokens=False).ids) for p in parts)
    out[name] = [time.process_time() - start, n]
print(json.dumps(out))
"""


def judge(model, text):
    from gguf import GGUFReader
    from test_tokenize import QWEN2
    reader = GGUFReader(model)
    strings = {k: [bytes(f.parts[i]).decode() for i in f.data] for k, f in reader.fields.items()
               if k in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump({"vocab": {t: i for i, t in enumerate(strings["tokenizer.ggml.tokens"])},
                   "merges": strings["tokenizer.ggml.merges"], "pattern": QWEN2}, f)
        f.flush()
        done = subprocess.run([sys.executable, "-c", JUDGE, f.name], input=text, capture_output=True, check=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=os.path.expanduser("~/.cache/quern/models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"))
    parser.add_argument("--quern", default=str(ROOT / "build" / "quern"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bytes", type=int, default=10_000_000)
    args = parser.parse_args()
    if not Path(args.model).exists():
        sys.exit(f"bench/tokens.py: {args.model} is not there; give a GGUF with a byte-level BPE as MODEL")
    text = mixed(args.bytes).encode()
    load = min(spent([args.quern, "tokenize", args.model, "--json"], b"")[0] for _ in range(5))
    seconds, out = spent([args.quern, "tokenize", args.model, "--json", "--no-bos"], text)
    result = {"bytes": len(text), "load_ms": load * 1000, "quern_s": seconds - load, "tokens": len(json.loads(out)["ids"])}
    result["quern_mb_s"] = result["bytes"] / result["quern_s"] / 1e6
    try:
        theirs = judge(args.model, text)
        for name, (took, _) in theirs.items():
            result[f"tokenizers_{name}_mb_s"] = result["bytes"] / took / 1e6
        result["times_faster"] = result["quern_mb_s"] / max(result["bytes"] / took / 1e6 for took, _ in theirs.values())
    except (ImportError, subprocess.CalledProcessError) as e:
        print(f"bench/tokens.py: no comparison: {e}", file=sys.stderr)
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:24} {value:.1f}" if isinstance(value, float) else f"{name:24} {value}")


main()
