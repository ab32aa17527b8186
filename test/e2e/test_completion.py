"""llama.cpp's /completion: prompts of every shape, biases, why it stopped."""
import json

import pytest

from server import Server

FEW = {"n_predict": 4, "temperature": 0}


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, "--ctx", "256", "--deterministic")
    yield s
    assert s.stop() == 0


def ids(server, text, **more):
    return server.ask("/tokenize", {"content": text, **more})["tokens"]


def test_why_it_stopped(server):
    word = server.ask("/completion", {"prompt": "1, 2, 3, 4,", "n_predict": 16, "temperature": 0, "stop": ["no", " 6"]})
    assert (word["stop_type"], word["stopping_word"], word["stop"]) == ("word", " 6", True)
    limit = server.ask("/completion", {"prompt": "1, 2, 3, 4,", **FEW})
    assert (limit["stop_type"], limit["stopping_word"]) == ("limit", "") and limit["prompt"] == "1, 2, 3, 4,"
    assert limit["tokens_predicted"] == 4 and limit["tokens_evaluated"] == len(ids(server, "1, 2, 3, 4,"))
    end = server.ask("/completion", {"prompt": "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n", "temperature": 0,
                                     "n_predict": 200})
    assert end["stop_type"] == "eos" and end["truncated"] is False and end["has_new_line"] == ("\n" in end["content"])
    _, _, body = server.request("POST", "/completion", {"prompt": "1, 2, 3, 4,", "n_predict": 16, "temperature": 0, "stop": " 6",
                                                        "stream": True})
    last = json.loads(body.decode().strip().split("\n\n")[-1][6:])
    assert last["stop"] and last["stop_type"] == "word" and last["stopping_word"] == " 6"


def test_prompts_of_every_shape(server):
    texts = ["1, 2, 3,", "The sky is", "A B C"]
    alone = [server.ask("/completion", {"prompt": t, **FEW})["content"] for t in texts]
    assert len(set(alone)) == 3
    lists = [ids(server, t, add_special=True) for t in texts]
    for prompt in (texts, lists, [texts[0], lists[1], texts[2]]):
        reply = server.ask("/completion", {"prompt": prompt, **FEW})
        assert [r["content"] for r in reply] == alone and [r["index"] for r in reply] == [0, 1, 2], prompt
    for prompt in ([texts[0]], lists[0], [lists[0]]):
        assert server.ask("/completion", {"prompt": prompt, **FEW})["content"] == alone[0], prompt
    first, rest = ids(server, "1,", add_special=True), " 2, 3,"
    for prompt in ([*first, rest], ["1,", *ids(server, rest)], [["1,", *ids(server, rest)]]):  # ids and texts in turn
        reply = server.ask("/completion", {"prompt": prompt, **FEW})
        assert reply["content"] == alone[0] and reply["prompt"] == texts[0], prompt
    mixed = server.ask("/completion", {"prompt": ["The sky is", [*first, rest]], **FEW})
    assert [r["content"] for r in mixed] == [alone[1], alone[0]]
    _, _, body = server.request("POST", "/completion", {"prompt": texts, **FEW, "stream": True})
    told = ["", "", ""]
    for event in body.decode().strip().split("\n\n"):
        piece = json.loads(event[6:])
        told[piece["index"]] += piece["content"]
    assert told == alone
    for prompt in ([], [[]], [True], [["a", None]], [{"x": 1}], [["a", 10**9]], {"a": 1}, 5, ["a"] * 17):
        assert server.request("POST", "/completion", {"prompt": prompt, **FEW})[0] == 400, prompt


def test_biases(server):
    ask = {"prompt": "1, 2, 3, 4,", **FEW}
    usual = server.ask("/completion", ask)["content"]
    five = ids(server, " 5") if ids(server, " 5")[0] in ids(server, usual) else ids(server, usual)[:1]
    for bias in ([[five[0], False]], [[five[0], -1e9]], {str(five[0]): False}, [[t, False] for t in five]):
        reply = server.ask("/completion", {**ask, "logit_bias": bias, "n_predict": 1})["content"]
        assert not usual.startswith(reply) or reply == "", bias
    word = ids(server, " mill")
    assert len(word) == 1
    for bias in ([[" mill", 100]], {" mill": 100}, [[word[0], 100]], {str(word[0]): 100}):
        assert server.ask("/completion", {**ask, "logit_bias": bias})["content"] == " mill" * 4, bias
    both = server.ask("/completion", {**ask, "logit_bias": [[" mill", 100], [word[0], False]]})["content"]
    assert "mill" not in both  # the last one counts
    for bias in ([[1]], [1, 2], [["a", "b"]], [[10**9, 1]], [[-1, 1]], [[1.5, 1]], {"1": "x"}, "x", [[None, 1]]):
        assert server.request("POST", "/completion", {**ask, "logit_bias": bias})[0] == 400, bias
