"""What speculation gains: a rewrite with drafts from the text itself, code with a draft model, JSON under a schema. Every pair of
runs is interleaved; the figure is the median of the ratios. python bench/speculate.py [ROUNDS]"""
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = Path.home() / ".cache" / "quern" / "models"
SMALL, LARGE = MODELS / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", MODELS / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
SMOL = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
SOURCE = """struct list {
    int *items;
    size_t count, cap;
};

int list_add(struct list *l, int item)
{
    if (l->count == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 16;
        int *items = realloc(l->items, cap * sizeof *items);
        if (!items)
            return -1;
        l->items = items;
        l->cap = cap;
    }
    l->items[l->count++] = item;
    return 0;
}

void list_print(const struct list *l)
{
    for (size_t i = 0; i < l->count; i++)
        printf("%d\\n", l->items[i]);
}
"""
REWRITE = f"Rename `count` to `total` in this C code. Give back the whole code and change nothing else.\n\n```c\n{SOURCE}```\n"
CODE = "Write a Python class for a binary search tree with insert, delete and search, with type hints."
STORY = "Tell a story about a mill."
PERSON = {"type": "object", "properties": {"first_name": {"type": "string", "maxLength": 12}, "last_name": {"type": "string", "maxLength": 12},
          "year_of_birth": {"type": "integer", "minimum": 1900, "maximum": 2020}, "favourite_dish": {"enum": ["bread", "soup", "cheese"]},
          "lives_in_a_mill": {"type": "boolean"}}, "additionalProperties": False}
PERSON["required"] = list(PERSON["properties"])


def run(model, prompt, n, *options):
    out = subprocess.run([ROOT / "build" / "quern", "run", model, "-p", prompt, "-n", str(n), "--temp", "0", "--json", *options],
                         capture_output=True, check=True).stdout
    return json.loads(out)


def compare(name, rounds, model, prompt, n, *options, rule=()):
    if not all(Path(o).is_file() for o in (model, *options) if str(o).endswith(".gguf")):
        print(f"{name:34} not measured: a model is not in the cache")
        return
    ratios, speeds = [], []
    for _ in range(rounds):
        plain, other = run(model, prompt, n, "--speculate", "off", *rule), run(model, prompt, n, *options, *rule)
        ratios.append(other["timings"]["tok_s"] / plain["timings"]["tok_s"])
        speeds.append(plain["timings"]["tok_s"])
    s = other["speculation"]
    same = "the same text" if plain["ids"] == other["ids"] else "another text"
    print(f"{name:34} {statistics.median(speeds):6.1f} tok/s without; {statistics.median(ratios):.2f} times that with ({min(ratios):.2f} to "
          f"{max(ratios):.2f}); {s['accepted']} of {s['drafted']} drafts accepted, {s['forced']} prescribed; {same}")


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.NamedTemporaryFile("w", suffix=".json") as schema:
        json.dump(PERSON, schema)
        schema.flush()
        for how in ("auto", "ngram"):
            compare(f"rewrite, 1.5B, {how}", rounds, LARGE, REWRITE, 220, "--speculate", how)
        compare("rewrite, 0.5B, auto", rounds, SMALL, REWRITE, 220, "--speculate", "auto")
        for how in ("auto", "always"):
            compare(f"code, 0.5B drafts for 1.5B, {how}", rounds, LARGE, CODE, 160, "--draft", SMALL, "--speculate", how)
        compare("story, 0.5B drafts for 1.5B, auto", rounds, LARGE, STORY, 160, "--draft", SMALL, "--speculate", "auto")
        compare("JSON schema, 1.5B, auto", rounds, LARGE, "Invent a person.", 120, "--speculate", "auto",
                rule=["--json-schema", schema.name])
        compare("JSON schema, SmolLM2, auto", rounds, SMOL, "Invent a person.", 120, "--speculate", "auto",
                rule=["--json-schema", schema.name])
        compare("prose, SmolLM2, auto", rounds, SMOL, STORY, 200, "--speculate", "auto")


if __name__ == "__main__":
    main()
