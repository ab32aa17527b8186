#!/usr/bin/env python3
"""Programs in turn on the same models: bench/turns.py before=OLD/quern now=build/quern --test "llama3-8b -p 0 -n 64 -b 1,8" ...

A test is a preset of bench/synth.py, with its options (--type, --layers), or a file that exists, and then options of `quern bench`. In each
round every program runs every test once, so that a machine that is slow for a minute is slow for all. Each line has the medians over the rounds,
in tok/s, the ratio of the last program to the first, and the last one's share of the limit.
A program that runs a test on another device than the first one did (a card that it cannot use) ends the run. Needs Python alone.
"""
import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SYNTH = Path(__file__).resolve().parent / "synth.py"


class Test:
    def __init__(self, text, folder):
        making = argparse.ArgumentParser(prog=f"--test '{text}'", add_help=False, allow_abbrev=False)
        for option in ("--layers", "--type", "--seed"):  # of synth.py; the others are those of `quern bench`
            making.add_argument(option)
        self.text, (self.preset, *words) = text, shlex.split(text)
        given, self.options = making.parse_known_args(words)
        self.making = [word for name, value in vars(given).items() if value for word in (f"--{name}", value)]
        name = "-".join([self.preset, *(word.lstrip("-") for word in self.making)])
        self.made = not Path(self.preset).exists()
        self.model = folder / f"{name}.gguf" if self.made else Path(self.preset)

    def make(self):
        if self.made and not self.model.exists():
            subprocess.run([sys.executable, SYNTH, self.preset, self.model, *self.making], check=True)


class Program:
    def __init__(self, text):
        self.name, _, path = text.partition("=")
        self.path = Path(path).resolve()
        if not self.name or not self.path.is_file():
            raise ValueError(f"'{text}' is not NAME=PROGRAM")

    def run(self, test, repeats):
        """The rows of `quern bench --json`."""
        r = subprocess.run([self.path, "bench", test.model, "--no-parity", "-r", str(repeats), "--json", *test.options],
                           capture_output=True, text=True)
        if r.returncode:
            raise RuntimeError(f"{self.name}, {test.text}: {(r.stderr.strip() or f'exit {r.returncode}').splitlines()[-1]}")
        return json.loads(r.stdout)


def what(row):
    depth = f" behind {row['depth']:,}" if row["depth"] else ""
    return f"decode, {row['batch']} at once{depth}" if row["test"] == "decode" else f"prompt of {row['n']:,}{depth}"


def measure(programs, tests, rounds, repeats):
    """{(test, row): {program: [tok/s]}}, and the last rows."""
    figures, last, devices = {}, {}, {}
    for n in range(rounds):
        for test in tests:
            for program in programs:
                for row in program.run(test, repeats):
                    device = devices.setdefault(test.text, row["device"])
                    if row["device"] != device:
                        raise RuntimeError(f"{program.name} ran '{test.text}' on {row['device']}, not on {device}")
                    key = test.text, what(row)
                    figures.setdefault(key, {}).setdefault(program.name, []).append(row["tok_s"])
                    last[key] = row
                    print(f"  {n + 1}/{rounds} {program.name}, {test.preset}, {what(row)}: {row['tok_s']:,.1f}", file=sys.stderr, flush=True)
    return figures, last


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("programs", nargs="+", metavar="NAME=PROGRAM")
    p.add_argument("--test", action="append", required=True, metavar="'PRESET OPTIONS'")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--repeats", type=int, default=3, help="of each run (-r)")
    p.add_argument("--models", type=Path, help="where models are made, and stay (default: a folder that goes)")
    p.add_argument("--json", type=Path, help="all figures into this file")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as gone:
        folder = a.models or Path(gone)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            programs, tests = [Program(t) for t in a.programs], [Test(t, folder) for t in a.test]
            with ThreadPoolExecutor() as pool:  # one for each model
                list(pool.map(Test.make, {t.model: t for t in tests}.values()))
            figures, last = measure(programs, tests, a.rounds, a.repeats)
        except (ValueError, RuntimeError, OSError, subprocess.CalledProcessError) as e:
            sys.exit(f"turns: {e}")
    names = [program.name for program in programs]
    print(f"| test | | {' | '.join(names)} | ratio | share |\n|---|---{'|---' * len(names)}|---|---|")
    for (test, row), by in figures.items():
        medians = [statistics.median(by[n]) for n in names]
        print(f"| {test} | {row} | {' | '.join(f'{m:,.1f}' for m in medians)} | {medians[-1] / medians[0]:.3f} | "
              f"{last[test, row]['share']:.0%} |")
    if a.json:
        a.json.write_text(json.dumps([{"test": t, "row": r, "tok_s": by} for (t, r), by in figures.items()], indent=1))


if __name__ == "__main__":
    main()
