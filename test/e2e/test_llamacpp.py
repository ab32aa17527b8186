"""Real models against what llama.cpp gives for them: ids, log-probabilities, greedy text."""
import json
import math

import pytest

FILES = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3-270m": "gemma-3-270m-q4_k_m.gguf",
    "qwen-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "qwen-coder-1.5b": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
}
# Only the default model is fetched by `make test`; `make test-models` fetches the others.
NAMES = [n if n == "smollm2-135m" else pytest.param(n, marks=pytest.mark.models) for n in FILES]


@pytest.fixture(scope="module", params=NAMES)
def reference(request, shared, model):
    return model(FILES[request.param]), json.loads((shared / "ref" / "llama.cpp.json").read_text())[request.param]


def log_softmax(logits):
    best = max(logits)
    total = math.log(sum(math.exp(x - best) for x in logits)) + best
    return [x - total for x in logits]


def logprobs(quern, path, ids):
    code, out, err = quern("logits", path, "--tokens", ",".join(map(str, ids)), "--json")
    assert code == 0, err
    return log_softmax(json.loads(out)["last"])


def test_ids(quern, reference):
    path, cases = reference
    for case in cases:
        code, out, err = quern("tokenize", path, "--json", stdin=case["prompt"].encode())
        assert code == 0, err
        assert json.loads(out)["ids"] == case["tokens"]


def test_logprobs(quern, reference):
    path, cases = reference
    differences = []
    for case in cases:
        for position, top in enumerate(case["top"]):
            ours = logprobs(quern, path, case["tokens"] + case["greedy"][:position])
            best = max(range(len(ours)), key=ours.__getitem__)
            if top[0][1] - top[1][1] > 0.1:
                assert best == top[0][0], (case["prompt"], position)
            differences += [abs(ours[token] - theirs) for token, theirs in top]
    mean = sum(differences) / len(differences)
    print(f"mean absolute difference of {len(differences)} log-probabilities: {mean:.4f}")
    assert mean < 0.05


def test_greedy(quern, reference):
    path, cases = reference
    for case in cases:
        code, out, err = quern("run", path, "--raw", "--json", "--temp", "0", "-n", str(len(case["greedy"])),
                               "--ignore-eos", "-p", case["prompt"])
        assert code == 0, err
        answer = json.loads(out)
        assert answer["prompt_ids"] == case["tokens"]
        for i, (ours, theirs) in enumerate(zip(answer["ids"], case["greedy"])):
            if ours != theirs:
                p = logprobs(quern, path, case["tokens"] + case["greedy"][:i])
                assert abs(p[ours] - p[theirs]) < 0.1, (case["prompt"], i)
                break
