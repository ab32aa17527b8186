#!/usr/bin/env python3
"""Divergence (KL, nats) of the next token's distribution from --exact, at the ends of random pieces of a text:
bench/divergence.py MODEL TEXT [--pieces 30] [--tokens 40 120] [options of `quern logits`, as --activations 8]"""
import argparse
import json
import math
import os
import random
import subprocess
from pathlib import Path

QUERN = Path(os.environ.get("QUERN_BUILD", Path(__file__).resolve().parent.parent / "build")) / "quern"

def logits(model, ids, *options):
    done = subprocess.run([QUERN, "logits", model, "--tokens", ",".join(map(str, ids)), "--json", *options],
                          capture_output=True, check=True)
    return json.loads(done.stdout)["last"]

def log_softmax(x):
    most = max(x)
    total = most + math.log(sum(math.exp(v - most) for v in x))
    return [v - total for v in x]

def divergence(exact, other):
    p, q = log_softmax(exact), log_softmax(other)
    return sum(math.exp(a) * (a - b) for a, b in zip(p, q)), exact.index(max(exact)) == other.index(max(other))

def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--pieces", type=int, default=30)
    parser.add_argument("--tokens", type=int, nargs=2, default=[40, 120], metavar=("LEAST", "MOST"))
    parser.add_argument("--seed", type=int, default=1)

    args, more = parser.parse_known_args()
    with open(args.text, "rb") as text:
        done = subprocess.run([QUERN, "tokenize", args.model, "--json"], stdin=text, capture_output=True, check=True)
    ids = json.loads(done.stdout)["ids"]
    noise = random.Random(args.seed)
    found = []
    for _ in range(args.pieces):
        n = noise.randint(*args.tokens)
        at = noise.randint(0, len(ids) - n)
        found.append(divergence(logits(args.model, ids[at:at + n], "--exact"), logits(args.model, ids[at:at + n], *more)))
    kl = sorted(k for k, _ in found)
    print(f"{args.pieces} pieces: mean {sum(kl) / len(kl):.6f}, median {kl[len(kl) // 2]:.6f}, most {kl[-1]:.6f}; "
          f"same best token {sum(same for _, same in found)}")

if __name__ == "__main__":
    main()
