#!/usr/bin/env python3
"""Differential fuzzing of quern's Jinja against jinja2: random templates, the same context, the same text or
both fail. fuzz/jinja_differ.py [SECONDS] [SEED]; needs build/quern (or $QUERN_BUILD/quern) and jinja2. A program
that takes a JSON object {"template", "context"} a line and gives {"out"} or {"error"} can stand in $QUERN_RENDER:
that is faster."""
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "test" / "e2e"))
from jinja_reference import render  # noqa: E402

warnings.simplefilter("ignore")  # of the Python that jinja2 generates

CONTEXT = {
    "s": "Hello, Wörld", "e": "", "sp": "  a b\n c ", "n": 7, "z": 0, "neg": -3, "f": 2.5, "t": True, "no": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c"], "d": {"b": 1, "a": [1, {"k": "v"}], "s": "x"},
    "m": [{"role": "user", "content": "hi <b>"}, {"role": "assistant", "content": None, "n": 2},
          {"role": "user", "content": "bye", "n": 1}],
}
NAMES = list(CONTEXT) + ["x", "y", "missing"]
STRINGS = ["a", "", " ", "role", "content", "x,y", "%s-%s", "{}", "b", "é", "\\n", "A b", "user", "k", "0", "12", "-1.5"]
METHODS = ["upper()", "lower()", "strip()", "title()", "capitalize()", "split()", "split(',')", "splitlines()", "isdigit()",
           "replace('a','b')", "startswith('a')", "endswith(('b','c'))", "find('l')", "count('l')", "get('b')",
           "get('q', 1)", "items()", "keys()", "values()", "index(1)", "join(['p','q'])", "format(1, 2)", "zfill(5)",
           "center(9)", "rsplit(' ', 1)", "lstrip('H')", "rstrip()", "partition('l')", "copy()", "append(1)", "isupper()"]
FILTERS = ["upper", "lower", "trim", "length", "list", "first", "last", "join", "join(',')", "string", "int", "float",
           "abs", "round", "sort", "reverse", "unique", "sum", "max", "min", "tojson", "tojson(indent=2)", "default('D')",
           "default('D', true)", "replace('a','Z')", "title", "capitalize", "map('upper')", "map(attribute='role')",
           "select", "reject", "select('string')", "selectattr('n')", "selectattr('role','equalto','user')", "dictsort",
           "items", "batch(2)", "slice(2)", "indent", "truncate(5)", "wordcount", "center(11)", "escape", "safe",
           "striptags", "urlencode", "groupby('role')", "wordwrap(4)", "format(1)", "filesizeformat", "pprint", "count",
           "map('length')", "rejectattr('n','defined')", "map('string')", "attr('upper')", "e", "xmlattr"]
TESTS = ["defined", "undefined", "none", "string", "number", "mapping", "iterable", "sequence", "odd", "even", "true",
         "boolean", "integer", "float", "lower", "upper", "callable", "divisibleby 2", "eq 1", "in [1, 'a']", "sameas none",
         "gt 1", "escaped"]


class Writer:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, items):
        return self.r.choice(items)

    def atom(self):
        return self.pick([
            lambda: self.pick(NAMES), lambda: self.pick(NAMES), lambda: repr(self.pick(STRINGS)).replace("\\\\", "\\"),
            lambda: str(self.r.randint(-3, 12)), lambda: self.pick(["1.5", "0.1", "2.0", "1e3"]),
            lambda: self.pick(["true", "false", "none"])])()

    def expr(self, depth):
        if depth <= 0:
            return self.atom()
        e = lambda: self.expr(depth - 1)
        return self.pick([
            self.atom,
            lambda: f"{e()} {self.pick(['+', '-', '*', '/', '//', '%', '~', '~', '+'])} {e()}",
            lambda: f"{e()} {self.pick(['==', '!=', '<', '>', '<=', '>=', 'in', 'not in'])} {e()}",
            lambda: f"{e()} {self.pick(['and', 'or'])} {e()}",
            lambda: f"not {e()}", lambda: f"-{self.atom()}",
            lambda: f"({e()})", lambda: f"[{e()}, {e()}]", lambda: f"({e()}, {e()})", lambda: f"{{{self.atom()}: {e()}}}",
            lambda: f"({e()})[{self.pick(['0', '-1', chr(39) + 'b' + chr(39), '5'])}]",
            # jinja2 folds a slice of a constant, and then forgives what it does not forgive otherwise
            lambda: f"{self.pick(NAMES)}[{self.pick(['1:', '::-1', ':2', '-2:', '::2', '5:1:-1', 'n:'])}]",
            lambda: f"({e()}).{self.pick(['b', 'role', 'a', 'x', 'items'])}",
            lambda: f"({e()}).{self.pick(METHODS)}",
            lambda: f"{e()}|{self.pick(FILTERS)}", lambda: f"{e()}|{self.pick(FILTERS)}",
            lambda: f"({e()})|{self.pick(FILTERS)}|{self.pick(FILTERS)}",
            lambda: f"{e()} is {self.pick(['', 'not '])}{self.pick(TESTS)}",
            lambda: f"{e()} if {e()} else {e()}", lambda: f"{e()} if {e()}",
            lambda: f"range({self.r.randint(0, 5)})", lambda: f"mac({e()})", lambda: "ns.v", lambda: f"loop.{self.loop()}",
        ])()

    def loop(self):
        return self.pick(["index", "index0", "first", "last", "length", "revindex", "previtem", "nextitem", "cycle(1, 2)",
                          "changed(x)", "depth"])

    def open(self):
        return "{%" + self.pick(["", "", "-", "+"]) + " "

    def close(self):
        return " " + self.pick(["", "", "-"]) + "%}" + self.pick(["", "\n", "\n  "])

    def tag(self, text):
        return self.open() + text + self.close()

    def body(self, depth):
        return "".join(self.statement(depth - 1) for _ in range(self.r.randint(1, 3)))

    def statement(self, depth):
        text = lambda: self.pick(["", " ", "\n", "text", "  \n ", "a b\n"])
        if depth <= 0:
            return text() + "{{" + self.pick(["", "-"]) + " " + self.expr(self.r.randint(0, 2)) + " " + self.pick(["", "-"]) + "}}" + text()
        target = lambda: self.pick(["x", "y", "s", "q"])
        return self.pick([
            lambda: self.statement(0), lambda: self.statement(0),
            lambda: self.tag(f"if {self.expr(2)}") + self.body(depth) + self.pick(["", self.tag("else") + self.body(depth)])
            + self.tag("endif"),
            lambda: self.tag(f"for {self.pick(['x', 'y', 'k, v'])} in {self.pick(['l', 'm', 'd', 'd.items()', self.expr(1)])}"
                             + self.pick(["", "", " if x", " if loop is defined"])) + self.body(depth)
            + self.pick(["", self.tag("if x == 1") + self.tag(self.pick(["break", "continue"])) + self.tag("endif")])
            + self.pick(["", self.tag("else") + self.body(depth)]) + self.tag("endfor"),
            lambda: self.tag(f"set {target()} = {self.expr(2)}"), lambda: self.tag(f"set ns.v = {self.expr(2)}"),
            lambda: self.tag(f"set {target()}") + self.body(depth) + self.tag("endset"),
            lambda: self.tag(f"with x = {self.expr(1)}") + self.body(depth) + self.tag("endwith"),
            lambda: self.tag(f"filter {self.pick(['upper', 'trim', 'length', 'title'])}") + self.body(depth) + self.tag("endfilter"),
            lambda: self.tag(f"macro mac(x{self.pick(['', '=1', ', y=x'])})") + self.body(depth) + self.tag("endmacro"),
            lambda: self.tag("call mac(1)") + self.body(depth) + self.tag("endcall"),
            lambda: "{#" + text() + self.pick(["", "-"]) + "#}", lambda: self.tag("raw") + "{{ x }}" + self.tag("endraw"),
            lambda: self.tag("generation") + self.body(depth) + self.tag("endgeneration"),
        ])()

    def template(self):
        head = "{% set ns = namespace(v=1) %}{% macro mac(x) %}[{{ x }}{{ caller() if caller }}]{% endmacro %}"
        return self.pick(["", head, head]) + "".join(self.statement(self.r.randint(0, 3)) for _ in range(self.r.randint(1, 4)))


def agree(ours, theirs):
    if "out" in theirs:
        # ignore an object's address, and integers beyond 64 bits
        if "0x7f" in theirs["out"].lower():
            return True
        return ours.get("out") == theirs["out"] or "64 bits" in ours.get("error", "")
    return "error" in ours and (theirs["message"] is None or theirs["message"] in ours["error"])


def by_line(program):
    child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(template):
        child.stdin.write(json.dumps({"template": template, "context": CONTEXT}).encode() + b"\n")
        child.stdin.flush()
        line = child.stdout.readline()
        return json.loads(line) if line else None
    return run


def by_verb(program, folder):
    (Path(folder) / "messages").write_text("[]")
    names = [a for k, v in CONTEXT.items() for a in ("--set", f"{k}={json.dumps(v)}")]

    def run(template):
        (Path(folder) / "template").write_text(template)
        done = subprocess.run([program, "template", "--file", f"{folder}/template", "--messages", f"{folder}/messages", *names],
                              capture_output=True)
        if done.returncode < 0:
            return None
        return {"error": done.stderr.decode()} if done.returncode else {"out": done.stdout.decode()}
    return run


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    folder = tempfile.TemporaryDirectory()
    program = os.environ.get("QUERN_RENDER")
    quern = str(Path(os.environ.get("QUERN_BUILD", ROOT / "build")) / "quern")
    run = by_line(program) if program else by_verb(quern, folder.name)
    end, count, failed, differ = time.time() + seconds, 0, 0, 0
    while time.time() < end:
        seed += 1
        count += 1
        template = Writer(seed).template()
        theirs = render(template, CONTEXT)
        ours = run(template)
        if ours is None:
            sys.exit(f"the renderer died; seed {seed}\n{template}")
        failed += "error" in theirs
        if not agree(ours, theirs):
            differ += 1
            print(f"-- seed {seed}\n{template!r}\n   jinja2 {theirs}\n   quern  { {k: v for k, v in ours.items() if k != 'spans'} }")
            if differ == 10:
                break
    print(f"{count} templates, {failed} of them fail, {differ} differ")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
