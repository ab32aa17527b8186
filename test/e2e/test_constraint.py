"""Answers that have to be in a language: schemas and grammars through `quern run`, at a temperature where the
model by itself would say anything."""
import concurrent.futures
import json
import random
import re
import subprocess
import urllib.request

import jsonschema
import pytest

from schemas import COMMON, Maker

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
    for seed in range(8):
        got = answer(quern, smollm2, path, "--json-schema", seed)
        if got["finish_reason"] == "stop":  # what its length has cut off is not whole
            jsonschema.validate(json.loads(got["text"]), schema)
            texts.add(got["text"])
        if len(texts) == 2:
            return
    pytest.fail("of eight answers there are no two that came to their end")


def test_end_token_waits_for_the_end(quern, smollm2, tmp_path):
    path = tmp_path / "digits.gbnf"
    path.write_text('root ::= [0-9]{8} "-" [a-f]{4}\n')
    for more in ([], ["--ignore-eos"]):
        got = answer(quern, smollm2, path, "--grammar", 1, *more)
        assert re.fullmatch("[0-9]{8}-[a-f]{4}", got["text"])
        assert got["finish_reason"] == "stop"


@pytest.mark.parametrize("options, fits", [
    (["--regex", "(yes|no), because [a-z ]{3,20}[.]"], lambda t: re.fullmatch("(yes|no), because [a-z ]{3,20}[.]", t)),
    (["--choice", "red", "--choice", "dark red", "--choice", "blue"], lambda t: t in ("red", "dark red", "blue")),
    (["--json-object"], lambda t: isinstance(json.loads(t), dict)),
], ids=["regex", "choice", "object"])
def test_other_rules(quern, smollm2, options, fits):
    got = quern("run", smollm2, "-p", "Which colour has the mill?", "-n", 200, "--temp", 1.2, "--seed", 3, "--ctx", 512, "--json",
                *options).json()
    assert got["finish_reason"] == "length" or fits(got["text"])
    if "--json-object" not in options:
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
    got = quern("run", smollm2, "-p", "x", "--regex", "(a")
    assert got.code in (64, 65) and "parenthesis" in got.err


class Server:
    """quern serve, asked for constrained answers."""

    def __init__(self, binary, model, slots):
        self.process = subprocess.Popen([str(binary), "serve", str(model), "--port", "0", "--ctx", "640", "--slots", str(slots),
                                         "--queue", "64"], stderr=subprocess.PIPE, text=True)
        ready = next(line for line in self.process.stderr if "ready at" in line)
        self.url = re.search(r"http://\S+:\d+", ready).group(0) + "/v1/chat/completions"

    def ask(self, schema, seed):
        """The text, or None where it did not come to its end."""
        body = {"messages": [{"role": "user", "content": "Invent something, as JSON."}], "max_tokens": 400, "temperature": 1.5,
                "top_p": 1, "seed": seed, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        choice = json.load(urllib.request.urlopen(request, timeout=600))["choices"][0]
        return choice["message"]["content"] if choice["finish_reason"] == "stop" else None

    def close(self):
        self.process.terminate()
        assert self.process.wait(60) == 0


@pytest.mark.slow
def test_thousand_answers_validate(binary, smollm2):
    """1,000 of 1,000 answers of the model at temperature 1.5 satisfy their schema; those cut off by their length do not count."""
    schemas = [s for s in COMMON if isinstance(s, dict)] + [Maker(random.Random(i)).schema()[0] for i in range(100)]
    server, done, asked = Server(binary, smollm2, 8), 0, 0
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        while done < 1000:
            for schema, text in zip(schemas, pool.map(server.ask, schemas, range(asked, asked + len(schemas)))):
                asked += 1
                if text is None:
                    continue
                errors = list(jsonschema.Draft202012Validator(schema, format_checker=checker).iter_errors(json.loads(text)))
                assert not errors, (schema, text, errors[0].message)
                done += 1
    server.close()
    print(f"{done} of {done} answers satisfy their schema; {asked - done} more were cut off by their length")
    assert done >= 1000
