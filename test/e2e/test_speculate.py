"""Guessing ahead changes nothing but the time: runs with and without it, greedy and sampled, with rules and without, give the same
ids. Where two runs part (kernels for one row and for many may round otherwise), the two best were as good as equal."""
import json
import math

import pytest

REWRITE = """Give back this text with every "mill" written as "MILL", and change nothing else:

The mill stands by the river. The miller of the mill grinds the corn of the village, and the wheel of the mill turns day and night. When
the river is low, the wheel of the mill stands still, and the miller of the mill repairs the stones of the mill."""
TOPICS = ["a mill", "the sea", "old maps", "bread", "trains", "winter", "a lighthouse", "bees", "clocks", "a bridge"]
KINDS = ["Write a Python function about {}.", "List five facts about {}, one a line.", "Repeat three times: I like {} very much.",
         "Give a JSON object that describes {}.", "Write a short poem about {} with a refrain.", "Translate to French: I saw {} today.",
         "Write a C struct and a function that prints it, for {}.", "Count from one to twenty, and then name {}.",
         "Write a dialogue of two people about {}.", "Write an HTML page about {}."]
PROMPTS = [k.format(t) for t in TOPICS for k in KINDS]
SCHEMA = {"type": "object", "properties": {
    "full_name_of_the_person": {"type": "string", "maxLength": 20}, "year_of_birth": {"type": "integer", "minimum": 1900, "maximum": 2020},
    "favourite_kind_of_bread": {"enum": ["wholemeal", "rye", "white"]}},
    "required": ["full_name_of_the_person", "year_of_birth", "favourite_kind_of_bread"], "additionalProperties": False}
NATS = 0.02


def answer(quern, model, prompt, *options, n=48, temp=0, seed=1):
    """Without top-k and the like, so that a draw is the largest of logit / T + noise and nothing else."""
    return quern("run", model, "-p", prompt, "-n", n, "--temp", temp, "--seed", seed, "--top-k", 0, "--top-p", 1, "--min-p", 0,
                 "--ctx", 1024, "--json", *options, timeout=600).json()


def noise(seed, position, token):
    """The sampler's Gumbel noise, written again from its description in src/run/sampler.c."""
    bits = (1 << 64) - 1
    x = seed * 0x9e3779b97f4a7c15 + position * 0xd1342543de82ef95 + token * 0xaf251af3b0f025b5 & bits
    for _ in range(2):
        x = (x ^ x >> 32) * 0xd6e8feb86659fd93 & bits
    x ^= x >> 32
    return -math.log(-math.log(((x >> 11) + 0.5) * 2.0 ** -53))


def parted(quern, model, plain, other, temp, seed):
    """None where both runs say the same, else how far the two tokens at which they part are apart, in nats."""
    a, b = plain["ids"], other["ids"]
    if a == b:
        return None
    at = next(i for i in range(max(len(a), len(b))) if a[i:i + 1] != b[i:i + 1])
    ids = plain["prompt_ids"] + a[:at]
    last = quern("logits", model, "--tokens", ",".join(map(str, ids)), "--json", timeout=600).json()["last"]
    values = [last[t[at]] + (temp * noise(seed, len(ids), t[at]) if temp else 0) for t in (a, b)]
    return abs(values[0] - values[1])


def compare(quern, model, prompts, options, temp, n=48, rule=()):
    """What was guessed, and how far apart the runs were where they parted."""
    total, apart = {"drafted": 0, "accepted": 0, "forced": 0}, []
    for seed, prompt in enumerate(prompts):
        plain, other = (answer(quern, model, prompt, *rule, *o, n=n, temp=temp, seed=seed) for o in (["--speculate", "off"], options))
        assert not any(plain["speculation"].values())
        for key in total:
            total[key] += other["speculation"][key]
        nats = parted(quern, model, plain, other, temp, seed)
        if nats is not None:
            apart.append(nats)
    assert all(n <= NATS for n in apart), apart
    return total, apart


@pytest.mark.parametrize("temp", [0, 0.8], ids=["greedy", "sampled"])
def test_repetitions(quern, smollm2, temp):
    total, _ = compare(quern, smollm2, [REWRITE, PROMPTS[2]], ["--speculate", "ngram"], temp)
    assert total["accepted"] > 10


def test_draft_model(quern, smollm2):
    """The model as its own draft: every guess of a greedy run is right, up to rounding."""
    total, _ = compare(quern, smollm2, [PROMPTS[0]], ["--speculate", "always", "--draft", smollm2, "--draft-n", 4], 0)
    assert total["drafted"] and total["accepted"] >= 0.8 * total["drafted"]


@pytest.mark.parametrize("temp", [0, 0.7], ids=["greedy", "sampled"])
def test_rule_is_jumped_along(quern, smollm2, tmp_path, temp):
    """Where the schema leaves one continuation its tokens are not waited for one by one, and the text stays what it was."""
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    total, _ = compare(quern, smollm2, ["Invent a person, as JSON."], ["--speculate", "always"], temp, n=120,
                       rule=["--json-schema", path])
    assert total["forced"] >= 8


def test_what_does_not_go_together(quern, smollm2):
    for options, why in ((["--speculate", "maybe"], "auto, ngram, always or off"), (["--speculate", "off", "--draft", smollm2], "one of them"),
                         (["--draft-n", "99"], "draft-n")):
        got = quern("run", smollm2, "-p", "x", *options)
        assert got.code == 64 and why in got.err


@pytest.mark.models
def test_other_vocabulary(quern, smollm2, model):
    got = quern("run", smollm2, "-p", "x", "--draft", model("gemma-3-270m-q4_k_m.gguf"))
    assert got.code == 64 and "another vocabulary" in got.err


@pytest.mark.slow
@pytest.mark.parametrize("temp", [0, 0.8], ids=["greedy", "sampled"])
def test_hundred_prompts(quern, smollm2, temp):
    total, apart = compare(quern, smollm2, PROMPTS, ["--speculate", "always"], temp, n=40)
    print(f"{len(PROMPTS)} prompts at temperature {temp}: {total}, {len(apart)} parted", apart)
    assert total["drafted"] > 300
