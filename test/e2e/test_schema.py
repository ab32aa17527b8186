"""Constraints: texts drawn evenly from the allowed tokens (worse than any temperature) satisfy their schema, with the package
jsonschema as the judge; instances that satisfy a schema are accepted; hostile input ends in an error, soon."""
import json
import random
import resource
import time

import pytest

np = pytest.importorskip("numpy", reason="the package numpy is not installed (test/e2e/requirements.txt)")
jsonschema = pytest.importorskip("jsonschema", reason="the package jsonschema is not installed (test/e2e/requirements.txt)")
gguf = pytest.importorskip("gguf", reason="the package gguf is not installed (test/e2e/requirements.txt)")

from constraint import Constraint, Refused, byte_vocab, gguf_vocab  # noqa: E402
from schemas import COMMON, Maker, Mixer, POOL, REFUSED, hostile  # noqa: E402

CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER


@pytest.fixture(scope="module")
def small():
    return byte_vocab()


@pytest.fixture(scope="module")
def real(smollm2):
    return gguf_vocab(smollm2)


def walks(schema, vocab, rng, times):
    """Finished walks through a schema, each judged; how many."""
    judge = jsonschema.Draft202012Validator(schema, format_checker=CHECKER)
    c, done = Constraint("schema", schema, vocab), 0
    for _ in range(times):
        text = c.walk(rng)
        if text is None:
            continue
        value = json.loads(text)  # strictly UTF-8, too
        errors = [e.message for e in judge.iter_errors(value)]
        assert not errors, (schema, text, errors[:2])
        done += 1
    c.close()
    return done


def test_walks_validate(small):
    rng = random.Random(1)
    done = sum(walks(s, small, rng, 4) for s in COMMON)
    assert done >= 3 * len(COMMON)


def test_walks_over_a_real_vocabulary(real):
    rng, done, tries = random.Random(2), 0, 0
    schemas = COMMON + [Maker(random.Random(i)).schema()[0] for i in range(60)]
    while done < 1000:
        for s in schemas:
            done += walks(s, real, rng, 6)
            tries += 6
        assert tries < 3000
    assert done >= 1000


def test_random_schemas(small):
    for seed in range(60):
        rng = random.Random(seed)
        schema, make = Maker(rng).schema()
        walks(schema, small, rng, 2)
        c = Constraint("schema", schema, small)
        judge = jsonschema.Draft202012Validator(schema)
        for _ in range(4):
            value = make()
            assert judge.is_valid(value), (schema, value)
            for kind in ({"separators": (",", ":")}, {}, {"indent": 2}):
                text = json.dumps(value, ensure_ascii=False, **kind)
                assert c.accepts(text), (schema, text)
            assert not c.accepts(text + " "), (schema, text)
        c.close()


def test_refusals_are_true(small):
    """Keywords thrown together: what compiles is satisfied by what is written, and where it is said that nothing satisfies a
    schema, nothing does."""
    compiled = refused = 0
    for seed in range(1500):
        rng = random.Random(seed)
        schema = Mixer(rng).schema()
        try:
            walks(schema, small, rng, 1)
            compiled += 1
        except Refused as why:
            judge = jsonschema.Draft202012Validator(schema, format_checker=CHECKER)
            found = [v for v in POOL if judge.is_valid(v)] if "nothing satisfies" in str(why) else []
            assert not found, (schema, found[:2])
            refused += 1
    assert compiled > 600 and refused > 100


def test_multiples_apart(small):
    c = Constraint("schema", {"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}]}, small)
    assert [n for n in range(-6, 14) if c.accepts(str(n))] == [n for n in range(-6, 14) if (n % 2 == 0) != (n % 3 == 0)]
    c.close()


def test_masks_are_what_the_bytes_say(small):
    """Every bit of a mask is whether the token's bytes are accepted."""
    for seed in range(12):
        rng = random.Random(seed)
        schema = rng.choice(COMMON[2:]) if seed % 2 else Maker(rng).schema()[0]
        c = Constraint("schema", schema, small)
        s = c.state()
        for _ in range(12):
            ids = set(s.allowed())
            for i, token in enumerate(small.tokens):
                if i in small.ends:
                    assert (i in ids) == s.may_end()
                elif token is not None:
                    fits = s.feed(token)
                    assert (i in ids) == fits, (schema, token)
                    if fits:
                        s.back(1)
            forced = s.forced()
            choices = [i for i in ids if i not in small.ends]
            if forced:
                assert not s.may_end() and all(forced.startswith(small.tokens[i][:len(forced)]) for i in choices)
            if not choices:
                break
            s.take(rng.choice(choices))
        s.close()
        c.close()


@pytest.mark.parametrize("schema", REFUSED, ids=lambda s: json.dumps(s)[:60])
def test_refused(schema, small):
    with pytest.raises(Refused):
        Constraint("schema", schema, small)


def test_hostile(small):
    """Each of them ends in an error, in 64 MB and soon: in under a second here; what runs away takes longer than any machine is slow."""
    cases = hostile()
    assert len(cases) >= 200
    slowest = (0, "", "")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for kind, text in cases:
        start = time.process_time()
        with pytest.raises(Refused):
            Constraint(kind, text, small).close()
            pytest.fail(f"accepted: {kind} {text[:200]}")
        slowest = max(slowest, (time.process_time() - start, kind, text[:100]))
    print(f"the slowest of {len(cases)}: {slowest}")
    assert slowest[0] < 10, slowest
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_large_but_honest(small):
    """What is large without being wrong compiles, and soon."""
    cases = [("schema", json.dumps({"enum": [f"v{i}" for i in range(6000)]})),
             ("schema", json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}})),
             ("schema", json.dumps({"type": "array", "items": {"type": "string", "maxLength": 100000}, "maxItems": 100000})),
             ("regex", "(a{1000}){1000}"), ("regex", "(((a{100}){100}){100}){3}b"), ("regex", "(a+)+b"), ("gbnf", 'root ::= ("a"{1000}){1000}'),
             ("gbnf", "root ::= [a-z]{1,100000} [0-9]"), ("regex", "(a|b)*a(a|b){16}")]
    for kind, text in cases:
        start = time.process_time()
        c = Constraint(kind, text, small)
        c.walk(random.Random(1), 50)
        assert time.process_time() - start < 10, (kind, text[:80])
        c.close()
