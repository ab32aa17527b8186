"""What a constraint costs a step: microseconds for a token mask and for taking a token, over texts that models write, with the
vocabularies of the models in the cache. python bench/masks.py [FILE.gguf ...]"""
import ctypes as C
import json
import statistics
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1] / "test" / "e2e")
from constraint import Constraint, Err, State, gguf_vocab, lib  # noqa: E402

MODELS = ["SmolLM2-135M-Instruct.Q4_1.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "gemma-3-270m-q4_k_m.gguf"]
PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 40}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "email": {"type": "string", "format": "email"}, "role": {"enum": ["miller", "baker", "farmer"]},
    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5}}, "required": ["name", "age", "role"],
    "additionalProperties": False}
ORDER = {"type": "object", "properties": {
    "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{6}$"}, "at": {"type": "string", "format": "date-time"},
    "lines": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {
        "what": {"type": "string"}, "count": {"type": "integer", "minimum": 1}, "price": {"type": "number"}},
        "required": ["what", "count", "price"]}}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
    "required": ["id", "at", "lines", "note"]}
TREE = {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
    "value": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    "required": ["value", "children"], "additionalProperties": False}}}
CASES = [
    ("person", "schema", PERSON, {"name": "Ada Müller of the old mill", "age": 36, "email": "ada@mill.example", "role": "miller",
                                  "tags": ["flour", "water wheel", "stone"]}),
    ("order", "schema", ORDER, {"id": "AB-123456", "at": "2026-11-15T08:30:00Z", "lines": [
        {"what": "Flour, type 405", "count": 12, "price": 1.25}, {"what": "Bread \"old mill\"", "count": 3, "price": 4.5}],
        "note": "Please leave it at the back door\nand ring twice."}),
    ("tree", "schema", TREE, {"value": "root", "children": [{"value": "left leaf", "children": []},
                                                            {"value": "right", "children": [{"value": "deep", "children": []}]}]}),
    ("any object", "object", None, {"answer": "A few words, and a number.", "n": [1, 2.5, -3e7], "ok": True, "none": None}),
    ("list", "gbnf", 'root ::= ("- " [^\\n]+ "\\n")+', None),
]


def longest(vocab, data):
    """The text as tokens, each the longest that fits."""
    ids = {t: i for i, t in enumerate(vocab.tokens) if t}
    most = max(map(len, ids))
    while data:
        n = next(n for n in range(min(most, len(data)), 0, -1) if data[:n] in ids)
        yield ids[data[:n]]
        data = data[n:]


def measure(c, tokens):
    """Microseconds of each step: a mask and a token taken."""
    s, e, out = State(c), Err(), []
    for token in tokens:
        start = time.perf_counter()
        wrong = lib.constraint_mask(s.at, s.mask, C.byref(e))
        assert not wrong and s.mask[token // 32] >> token % 32 & 1, (e.text, c.vocab.tokens[token])
        lib.constraint_accept(s.at, token, C.byref(e))
        out.append(1e6 * (time.perf_counter() - start))
    s.close()
    return out


def main():
    cache = Path.home() / ".cache" / "quern" / "models"
    for path in map(Path, sys.argv[1:] or [cache / m for m in MODELS]):
        if not path.is_file():
            print(f"{path.name}: not there")
            continue
        vocab = gguf_vocab(path)
        print(f"{path.name}, {len(vocab.tokens)} tokens: us a step (steps; mean, median, most), first text and then others")
        for name, kind, language, value in CASES:
            text = "- flour and water\n- a stone, and time enough\n" if kind == "gbnf" else json.dumps(value, ensure_ascii=False)
            tokens = list(longest(vocab, text.encode()))
            start = time.perf_counter()
            c = Constraint(kind, language, vocab)
            c.warm()
            ready = 1e3 * (time.perf_counter() - start)
            first, later = measure(c, tokens), min((measure(c, tokens) for _ in range(5)), key=statistics.mean)
            figures = " ".join(f"{statistics.mean(t):7.1f} {statistics.median(t):7.1f} {max(t):8.1f}" for t in (first, later))
            print(f"  {name:12} {len(tokens):4} {figures}   ready in {ready:.0f} ms")
            c.close()


if __name__ == "__main__":
    main()
