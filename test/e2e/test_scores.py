"""Log-probabilities of prompts, and the best of several answers, through OpenAI's client."""
import json
import math

import pytest

from server import Server, events

openai = pytest.importorskip("openai")

PROMPT = "The mill on the river grinds grain into flour, and the miller sells it."


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, "--name", "smol", "--ctx", "512", "--slots", "2", "--queue", "8",
               "--deterministic")
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def test_prompt_is_scored(client, server, quern, smollm2):
    got = client.completions.create(model="smol", prompt=PROMPT, max_tokens=0, echo=True, logprobs=3)
    choice, lists = got.choices[0], got.choices[0].logprobs
    assert choice.text == PROMPT and choice.finish_reason == "length"
    assert (got.usage.completion_tokens, got.usage.prompt_tokens) == (0, len(lists.tokens))
    assert lists.token_logprobs[0] is None and lists.top_logprobs[0] is None
    assert all(p <= 0 for p in lists.token_logprobs[1:])
    assert "".join(lists.tokens) == PROMPT
    assert [PROMPT[at:at + len(token)] for at, token in zip(lists.text_offset, lists.tokens)] == lists.tokens
    ids = server.request("POST", "/tokenize", {"content": PROMPT})[2]
    ids = json.loads(ids)["tokens"]
    for at in (1, 4, len(ids) - 1):
        last = quern("logits", smollm2, "--tokens", ",".join(map(str, ids[:at])), "--json").json()["last"]
        most = max(last)
        want = last[ids[at]] - most - math.log(sum(math.exp(x - most) for x in last))
        assert lists.token_logprobs[at] == pytest.approx(want, abs=0.05)
        top = lists.top_logprobs[at]
        assert len(top) == 3 and max(top.values()) == pytest.approx(most - (last[ids[at]] - want), abs=0.05)


def test_prompt_and_answer_are_scored(client, server):
    ask = dict(model="smol", prompt=PROMPT, max_tokens=5, temperature=0, logprobs=1)
    plain = client.completions.create(**ask).choices[0]
    both = client.completions.create(**ask, echo=True)
    choice = both.choices[0]
    assert choice.text == PROMPT + plain.text and both.usage.completion_tokens == 5
    assert choice.logprobs.tokens[-5:] == plain.logprobs.tokens
    assert choice.logprobs.token_logprobs[-5:] == pytest.approx(plain.logprobs.token_logprobs, abs=0.05)
    assert choice.logprobs.text_offset[-5] == len(PROMPT)
    chunks = events(server.request("POST", "/v1/completions", {**ask, "echo": True, "stream": True})[2])
    assert "".join(c["choices"][0]["text"] for c in chunks) == choice.text
    tokens = [t for c in chunks if c["choices"][0]["logprobs"] for t in c["choices"][0]["logprobs"]["tokens"]]
    assert tokens == choice.logprobs.tokens


def test_nothing_is_said(client, server):
    got = client.completions.create(model="smol", prompt=PROMPT, max_tokens=0)
    assert got.choices[0].text == "" and got.choices[0].logprobs is None and got.usage.completion_tokens == 0
    got = client.completions.create(model="smol", prompt=PROMPT, max_tokens=0, echo=True, n=2)
    assert [c.text for c in got.choices] == [PROMPT] * 2
    status, _, _ = server.request("POST", "/v1/chat/completions",
                                  {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 0})
    assert status == 400


def test_best_of(client):
    ask = dict(model="smol", prompt=[PROMPT, "Once upon a time"], max_tokens=6, temperature=1.3, seed=11)
    ask["extra_body"] = {"ignore_eos": True}
    every = client.completions.create(**ask, n=4, logprobs=0)
    assert every.usage.completion_tokens == 8 * 6
    want = []
    for group in (every.choices[:4], every.choices[4:]):
        want += sorted(group, key=lambda c: -sum(c.logprobs.token_logprobs) / 6)[:2]
    best = client.completions.create(**ask, n=2, best_of=4)
    assert [c.text for c in best.choices] == [c.text for c in want]
    assert [c.index for c in best.choices] == [0, 1, 2, 3]
    assert best.choices[0].logprobs is None
    assert best.usage.completion_tokens == 8 * 6 and best.usage.prompt_tokens == every.usage.prompt_tokens
    same = client.completions.create(**ask, n=2, best_of=2)
    assert [c.text for c in same.choices] == [c.text for c in client.completions.create(**ask, n=2).choices]


@pytest.mark.parametrize("more", [{"n": 3, "best_of": 2}, {"best_of": 17}, {"best_of": 2, "stream": True}])
def test_best_of_is_refused(client, more):
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(model="smol", prompt="Hi", max_tokens=2, **more)
    assert e.value.param == "best_of"
