"""Answers that have to be in a language: schemas and grammars through `quern run`, at a temperature where the
model by itself would say anything."""
import json
import re

import jsonschema
import pytest

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "role": {"enum": ["miller", "baker", "farmer"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "age", "role"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"anyOf": [{"type": "boolean"}, {"type": "number"}, {"const": "x"}]}, "maxItems": 4}


def answer(quern, model, path, option, seed, *more):
    return quern("run", model, "-p", "Invent a person, as JSON.", option, path, "-n", 300, "--temp", 1.5, "--top-k", 0,
                 "--top-p", 1, "--min-p", 0, "--seed", seed, "--ctx", 512, "--json", *more).json()


@pytest.mark.parametrize("schema", [PERSON, LIST], ids=["person", "list"])
def test_schema_is_obeyed(quern, smollm2, tmp_path, schema):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema))
    texts = set()
    for seed in range(2):
        got = answer(quern, smollm2, path, "--json-schema", seed)
        assert got["finish_reason"] == "stop"
        jsonschema.validate(json.loads(got["text"]), schema)
        texts.add(got["text"])
    assert len(texts) > 1


def test_end_token_waits_for_the_end(quern, smollm2, tmp_path):
    path = tmp_path / "digits.gbnf"
    path.write_text('root ::= [0-9]{8} "-" [a-f]{4}\n')
    for more in ([], ["--ignore-eos"]):
        got = answer(quern, smollm2, path, "--grammar", 1, *more)
        assert re.fullmatch("[0-9]{8}-[a-f]{4}", got["text"])
        assert got["finish_reason"] == "stop"


def test_what_is_wrong_is_said(quern, smollm2, tmp_path):
    bad = tmp_path / "bad"
    bad.write_text("{")
    got = quern("run", smollm2, "-p", "x", "--json-schema", bad)
    assert got.code == 65 and "not JSON" in got.err and str(bad) in got.err
    bad.write_text("root ::= thing\n")
    got = quern("run", smollm2, "-p", "x", "--grammar", bad)
    assert got.code in (64, 65) and "thing" in got.err
    got = quern("run", smollm2, "-p", "x", "--grammar", bad, "--json-schema", bad)
    assert got.code == 64 and "one of them" in got.err
