"""The public JSON-Schema-Test-Suite, where a copy of it is at hand: QUERN_SCHEMA_SUITE names its folder. A schema is compiled or
refused with a sentence; one that is compiled accepts every valid instance and no other. Run as a program it prints the figures."""
import itertools
import json
import os
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="the package numpy is not installed (test/e2e/requirements.txt)")
from constraint import Constraint, Refused, byte_vocab  # noqa: E402

# Valid instances that are not written, as doc/constraints.md says: files of which parts are left out, and single groups.
NARROW = ("optional/format/", "optional/bignum.json", "optional/ecmascript-regex.json",
          "dependentSchemas.json: dependencies with escaped characters", "unevaluatedItems.json: unevaluatedItems with minContains = 0",
          "unevaluatedItems.json: unevaluatedItems can see annotations from if", "unevaluatedProperties.json: unevaluatedProperties with anyOf",
          "unevaluatedProperties.json: dynamic evalation inside nested refs",
          "unevaluatedProperties.json: unevaluatedProperties can see annotations from if")
ORDERS = 4000  # of the keys of one instance

# The draft leaves formats and content to the reader's choice: quern enforces the formats it knows, so the files that say
# "format is not asserted" do not apply.
ASIDE = {"format.json", "content.json", "vocabulary.json"}


def orders(value):
    """The value with its keys in every order: properties come in the schema's order, whatever the suite's is."""
    if isinstance(value, list):
        for kids in itertools.product(*(list(itertools.islice(orders(v), ORDERS)) for v in value)):
            yield list(kids)
    elif isinstance(value, dict):
        for keys in itertools.permutations(value):
            for kids in itertools.product(*(list(itertools.islice(orders(value[k]), ORDERS)) for k in keys)):
                yield dict(zip(keys, kids))
    else:
        yield int(value) if isinstance(value, float) and value.is_integer() else value  # 2.0 is written as 2


def accepts(c, value):
    texts = (json.dumps(v, ensure_ascii=False) for v in itertools.islice(orders(value), ORDERS))
    return any(c.accepts(t) for t in texts)


def judge(folder):
    """-> groups compiled, groups refused [(file, group, sentence)], instances right, wrong [(file, group, test, instance, valid)]"""
    vocab, compiled, refused, right, wrong = byte_vocab(), 0, [], 0, []
    for path in sorted(folder.glob("*.json")) + sorted(folder.glob("optional/*.json")) + sorted(folder.glob("optional/format/*.json")):
        if path.name in ASIDE and path.parent == folder:
            continue
        for group in json.loads(path.read_text()):
            name = f"{path.relative_to(folder)}: {group['description']}"
            try:
                c = Constraint("schema", group["schema"], vocab)
            except Refused as why:
                refused.append((name, str(why)))
                continue
            compiled += 1
            for test in group["tests"]:
                if accepts(c, test["data"]) == test["valid"]:
                    right += 1
                else:
                    wrong.append((name, test["description"], test["data"], test["valid"]))
            c.close()
    return compiled, refused, right, wrong


def suite():
    folder = Path(os.environ.get("QUERN_SCHEMA_SUITE", "")) / "tests" / "draft2020-12"
    return folder if "QUERN_SCHEMA_SUITE" in os.environ and folder.is_dir() else None


@pytest.mark.slow
def test_suite():
    if not suite():
        pytest.skip("QUERN_SCHEMA_SUITE does not name a copy of the JSON-Schema-Test-Suite")
    compiled, refused, right, wrong = judge(suite())
    assert compiled > 300 and right > 1600
    for name, test, data, valid in wrong:
        assert valid and name.startswith(NARROW), (name, test, data)


if __name__ == "__main__":
    compiled, refused, right, wrong = judge(suite())
    for row in refused:
        print("refused", *row, sep=" | ")
    for row in wrong:
        print("WRONG", *row, sep=" | ")
    print(f"{compiled} schemas compiled, {len(refused)} refused; {right} instances right, {len(wrong)} wrong")
