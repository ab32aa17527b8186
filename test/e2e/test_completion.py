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


def events(server, body):
    _, _, stream = server.request("POST", "/completion", {**body, "stream": True})
    return [json.loads(e[6:]) for e in stream.decode().strip().split("\n\n")]


def test_what_was_asked_for(server):
    body = {"prompt": "1, 2, 3, 4,", "n_predict": 3, "top_k": 7, "stop": ["no"], "logit_bias": [[12, False], [13, 1.5]]}
    got = server.ask("/completion", body)
    settings = got["generation_settings"]
    assert (settings["n_predict"], settings["top_k"], settings["stop"], settings["n_ctx"]) == (3, 7, ["no"], 256)
    assert settings["logit_bias"] == [{"token": 12, "bias": None}, {"token": 13, "bias": 1.5}]
    assert settings["stream"] is False and settings["ignore_eos"] is False
    # the seed that was drawn gives the same answer again
    assert server.ask("/completion", {**body, "seed": settings["seed"]})["content"] == got["content"]
    assert server.ask("/completion", {"prompt": "A", **FEW, "seed": -1})["generation_settings"]["seed"] == -1
    last = events(server, {**body, "seed": 5})[-1]
    assert last["generation_settings"]["seed"] == 5 and last["generation_settings"]["stream"] is True
    infill = server.ask("/completion", {"prompt": "A", "n_predict": -1, "ignore_eos": True})
    assert infill["generation_settings"]["n_predict"] == -1 and infill["truncated"] is True
    assert infill["tokens_predicted"] + infill["tokens_evaluated"] >= 256


def test_tokens_of_the_answer(server):
    body = {"prompt": "1, 2, 3, 4,", **FEW}
    assert server.ask("/completion", body)["tokens"] == []
    whole = server.ask("/completion", {**body, "return_tokens": True})
    assert len(whole["tokens"]) == 4
    told = events(server, body)
    assert told[-1]["stop"] and told[-1]["tokens"] == [] and all(e["tokens"] for e in told[:-1])
    assert sum((e["tokens"] for e in told), []) == whole["tokens"]


def test_response_fields(server):
    body = {"prompt": "1, 2, 3,", **FEW}
    whole = server.ask("/completion", body)
    wanted = ["content", "generation_settings/n_predict", "timings/prompt_n", "none", "none/at_all", "content/x"]
    got = server.ask("/completion", {**body, "response_fields": wanted})
    assert set(got) == {"content", "generation_settings/n_predict", "timings/prompt_n"}
    assert got["content"] == whole["content"] and got["generation_settings/n_predict"] == 4
    assert set(server.ask("/completion", {**body, "response_fields": []})) == set(whole)
    both = server.ask("/completion", {**body, "prompt": ["1, 2, 3,", "A"], "response_fields": ["index", "stop"]})
    assert both == [{"index": 0, "stop": True}, {"index": 1, "stop": True}]
    told = events(server, {**body, "response_fields": ["stop_type"]})
    assert told[-1] == {"stop_type": "limit"} and all("content" in e for e in told[:-1])
    status, _, answer = server.request("POST", "/completion", {**body, "response_fields": ["content", 3]})
    assert status == 400 and b"response_fields[1]" in answer


def test_prompts_that_are_objects(server):
    text = server.ask("/completion", {"prompt": "1, 2, 3,", **FEW})["content"]
    one = {"prompt_string": "1, 2, 3,"}
    assert server.ask("/completion", {"prompt": one, **FEW})["content"] == text
    assert server.ask("/completion", {"prompt": {**one, "multimodal_data": []}, **FEW})["content"] == text
    mixed = server.ask("/completion", {"prompt": [ids(server, "1, 2, 3,", add_special=True), one, "1, 2, 3,"], **FEW})
    assert [m["content"] for m in mixed] == [text] * 3
    for wrong in ({**one, "multimodal_data": ["aGk="]}, {**one, "multimodal_data": "aGk="}, {}, {"prompt_string": 3}):
        for prompt in (wrong, ["A", wrong]):
            status, _, answer = server.request("POST", "/completion", {"prompt": prompt, **FEW})
            assert status == 400 and json.loads(answer)["error"]["param"] == "prompt", prompt


def test_what_its_clients_look_for(server):
    chat = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 2, "temperature": 0}
    answer = server.ask("/v1/chat/completions", chat)
    for path in ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"):
        count = server.ask(path, chat)
        assert count == {"object": "response.input_tokens", "input_tokens": answer["usage"]["prompt_tokens"]}
    assert server.request("POST", "/v1/chat/completions/input_tokens", {"messages": "hi"})[0] == 400
    assert answer["system_fingerprint"].startswith("build-")
    assert server.ask("/v1/completions", {"prompt": "A", "max_tokens": 1})["system_fingerprint"] == answer["system_fingerprint"]
    props = json.loads(server.request("GET", "/props")[2])
    assert props["model_path"] == "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_timings_per_token(server):
    for n in (1, 4):
        t = server.ask("/completion", {"prompt": "1, 2, 3,", "n_predict": n, "ignore_eos": True})["timings"]
        assert t["prompt_per_token_ms"] == pytest.approx(t["prompt_ms"] / t["prompt_n"]) and t["predicted_n"] == n
        # the first token comes with the prompt
        assert t["predicted_per_token_ms"] == pytest.approx(t["predicted_ms"] / (n - 1) if n > 1 else 0)


def test_guesses_are_counted(binary, smollm2):
    body = {"prompt": "1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2,", "n_predict": 16, "temperature": 0}
    s = Server(binary, smollm2, "--ctx", "256", "--speculate", "always")
    timings = s.ask("/completion", body)["timings"]
    assert timings["draft_n"] >= timings["draft_n_accepted"] > 0
    assert s.stop() == 0
    s = Server(binary, smollm2, "--ctx", "256", "--speculate", "off")
    assert "draft_n" not in s.ask("/completion", body)["timings"]
    assert s.stop() == 0
