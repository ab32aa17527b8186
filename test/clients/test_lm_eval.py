"""lm-eval: its completions model scores choices by echoed log-probabilities, its chat model writes answers."""
import json

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI


@pytest.fixture(scope="module")
def completions(server):
    return LocalCompletionsAPI(model="qwen", base_url=f"{server.v1}/completions", tokenizer_backend="remote", num_concurrent=1,
                               auth_token=server.key, header={"Authorization": f"Bearer {server.key}"}, max_length=2048)


def instance(kind, *arguments):
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def test_loglikelihood(completions):
    asked = [instance("loglikelihood", "The capital of France is", end) for end in (" Paris", " Berlin", " potato")]
    scores = [s for s, _ in completions.loglikelihood(asked, disable_tqdm=True)]
    assert scores[0] > scores[1] > scores[2]


def test_generate(completions, server):
    asked = [instance("generate_until", "def add(a, b):\n    return", {"until": ["\n"], "max_gen_toks": 8, "temperature": 0})]
    assert "a + b" in completions.generate_until(asked, disable_tqdm=True)[0]
    chat = LocalChatCompletion(model="qwen", base_url=f"{server.v1}/chat/completions", num_concurrent=2,
                               header={"Authorization": f"Bearer {server.key}"})
    ask = [{"role": "user", "content": "Reply with one word: what colour is the sky?"}]
    asked = [instance("generate_until", JsonChatStr(json.dumps(ask)), {"until": ["\n"], "max_gen_toks": 8, "temperature": 0})]
    assert chat.generate_until(asked, disable_tqdm=True)[0]
