"""How requests are read: limits, sampling fields, and what comes back for them."""
import json

import pytest
from server import Server, events
from test_serve import HI, OPTIONS

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, *OPTIONS, "--slots", "2", "--queue", "8")
    yield s
    assert s.stop() == 0


def refused(server, path, body, param=None):
    """-> the sentence of a 400"""
    status, _, reply = server.request("POST", path, body)
    assert status == 400, (body, status, reply)
    error = json.loads(reply)["error"]
    assert param is None or error["param"] == param, (body, error)
    return error["message"]


# ---- what was refused without need ----

def test_minus_one_is_no_limit(server):
    full = server.ask(CHAT, {"messages": HI, "max_tokens": -1, "temperature": 0, "stop": ["!"]})
    assert full["choices"][0]["finish_reason"] == "stop"
    count = {"prompt": "1, 2, 3, 4, 5, 6,", "temperature": 0, "stop": [" 16"], "max_tokens": -1}
    assert server.ask(PLAIN, count)["usage"]["completion_tokens"] > 16
    for body in ({"max_tokens": -2}, {"max_tokens": -1.5}, {"top_k": -2}, {"max_completion_tokens": -1}):
        refused(server, CHAT, {"messages": HI, **body}, next(iter(body)))


def test_top_k_of_minus_one_is_off(server):
    body = {"prompt": "The sea is", "max_tokens": 12, "temperature": 1.5, "seed": 3, "top_p": 1, "min_p": 0}
    texts = [server.ask(PLAIN, body | {"top_k": k})["choices"][0]["text"] for k in (-1, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("most", [2**24 + 1, 2**62, 1e15])
def test_more_tokens_than_fit_are_as_many_as_fit(server, most):
    body = {"messages": HI, "temperature": 0, "stop": ["!"], "max_tokens": most}
    assert server.ask(CHAT, body)["choices"][0]["finish_reason"] == "stop"


def test_a_nul_in_a_text_is_a_character(server):
    ids = server.ask("/tokenize", {"content": "a\0b"})["tokens"]
    assert len(ids) >= 2 and server.ask("/detokenize", {"tokens": ids})["content"] == "a\0b"
    one = [{"role": "user", "content": "Say\0hello."}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "Say\0hello."}]}]
    assert "Say\0hello." in server.ask("/apply-template", {"messages": one})["prompt"]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    used = [server.ask(CHAT, {"messages": m, "max_tokens": 1, **more})["usage"]["prompt_tokens"]
            for m, more in ((one, {}), (parts, {}), (HI, {}), (one, {"tools": tools}), (HI, {"tools": tools}))]
    assert used[0] == used[1] > used[2] and used[3] > used[4]
    assert server.ask("/v1/messages/count_tokens", {"messages": parts, "model": "smol"})["input_tokens"] == used[0]
    server.ask("/api/generate", {"model": "smol", "prompt": "a\0b", "stream": False, "options": {"num_predict": 1}})
    for path, body in ((CHAT, {"messages": HI, "stop": "a\0b"}), (CHAT, {"messages": [{"role": "us\0er", "content": "a"}]}),
                       (PLAIN, {"prompt": "a", "suffix": "\0"}), (CHAT, {"messages": HI, "response_format": {"type": "te\0xt"}})):
        sentence = refused(server, path, body)
        assert "U+0000" in sentence and "JSON_" not in sentence


def test_a_slash_at_the_end_of_a_path(server):
    assert server.ask("/v1/models/")["data"] == server.ask("/v1/models")["data"]
    server.ask("/v1/chat/completions/", {"messages": HI, "max_tokens": 1})
    assert server.request("GET", "/livez/")[0] == 200
    assert server.request("GET", "/v1/models//")[0] == 404 and server.request("GET", "/nowhere/")[0] == 404


# ---- tokens: which may come, which end the answer ----

COUNT = {"prompt": "1, 2, 3, 4, 5, 6,", "temperature": 0, "max_tokens": 12}


def text(server, **more):
    return server.ask(PLAIN, COUNT | more)["choices"][0]["text"]


def ids(server, content):
    return server.ask("/tokenize", {"content": content})["tokens"]


def test_stop_token_ids_end_the_answer(server):
    seven, comma = text(server), ids(server, ",")[0]
    assert "," in seven
    got = server.ask(PLAIN, COUNT | {"stop_token_ids": [comma], "logprobs": 0, "return_token_ids": True})["choices"][0]
    assert got["text"] == seven[:seven.index(",")] and got["finish_reason"] == "stop"
    assert got["token_ids"][-1] == comma and "".join(got["logprobs"]["tokens"]) == got["text"]
    kept = text(server, stop_token_ids=[comma], include_stop_str_in_output=True, ignore_eos=True)
    assert kept == seven[:seven.index(",") + 1]
    chat = {"messages": [{"role": "user", "content": "Count: 1, 2, 3"}], "temperature": 0, "max_tokens": 20, "stop_token_ids": [comma]}
    assert "," not in server.ask(CHAT, chat)["choices"][0]["message"]["content"]
    for bad in ([-1], [10**9], ["a"], 5, [1.5]):
        refused(server, PLAIN, COUNT | {"stop_token_ids": bad}, "stop_token_ids")


def test_a_stop_string_is_given_back_where_asked_for(server):
    seven = text(server)
    for stop in (", 8", " 8"):
        cut = seven.index(stop)
        assert text(server, stop=[stop]) == seven[:cut]
        assert text(server, stop=[stop], include_stop_str_in_output=True) == seven[:cut] + stop
        native = server.ask("/completion", COUNT | {"n_predict": 12, "stop": [stop], "include_stop_str_in_output": True})
        assert native["content"] == seven[:cut] + stop
    stream = events(server.request("POST", PLAIN, COUNT | {"stop": [" 8"], "include_stop_str_in_output": True, "stream": True})[2])
    assert "".join(e["choices"][0]["text"] for e in stream) == seven[:seven.index(" 8") + 2]
    refused(server, PLAIN, COUNT | {"include_stop_str_in_output": 1}, "include_stop_str_in_output")


def test_min_tokens_come_before_any_end(server):
    seven = text(server)
    early = text(server, stop=[","], min_tokens=0)
    late = server.ask(PLAIN, COUNT | {"stop": [","], "min_tokens": 5})
    assert early == seven[:seven.index(",")] and late["usage"]["completion_tokens"] > 5
    assert late["choices"][0]["text"].startswith(seven[:seven.index(",") + 1])
    comma = ids(server, ",")[0]
    banned = server.ask(PLAIN, COUNT | {"stop_token_ids": [comma], "min_tokens": 4, "return_token_ids": True})["choices"][0]
    assert comma not in banned["token_ids"][:4]
    hello = {"messages": HI, "temperature": 0, "max_tokens": 60, "return_token_ids": True}
    short = server.ask(CHAT, hello)
    n = short["usage"]["completion_tokens"]
    assert short["choices"][0]["finish_reason"] == "stop" and n < 50
    longer = server.ask(CHAT, hello | {"min_tokens": n + 5})["choices"][0]
    assert len(longer["token_ids"]) >= n + 5 and longer["token_ids"][:n - 1] == short["choices"][0]["token_ids"][:n - 1]
    # a constraint wins where only the end is left
    assert server.ask(CHAT, hello | {"min_tokens": 20, "guided_choice": ["yes"]})["choices"][0]["message"]["content"] == "yes"
    refused(server, PLAIN, COUNT | {"min_tokens": 13}, "min_tokens")
    refused(server, PLAIN, COUNT | {"min_tokens": -1}, "min_tokens")


def test_only_allowed_tokens_come(server):
    digits = [ids(server, str(d))[0] for d in range(10)]
    got = server.ask(PLAIN, COUNT | {"allowed_token_ids": digits, "return_token_ids": True})["choices"][0]
    assert set(got["token_ids"]) <= set(digits) and len(got["token_ids"]) == 12 and got["text"].isdigit()
    warm = server.ask(PLAIN, COUNT | {"allowed_token_ids": digits, "return_token_ids": True, "temperature": 2, "seed": 1})
    assert set(warm["choices"][0]["token_ids"]) <= set(digits)
    message = server.ask(CHAT, {"messages": HI, "allowed_token_ids": digits[:1], "max_tokens": 3})["choices"][0]["message"]
    assert message["content"] == "000"
    assert server.ask("/completion", COUNT | {"allowed_token_ids": digits, "n_predict": 4})["content"].isdigit()
    for more in ({"allowed_token_ids": []}, {"allowed_token_ids": [10**9]},
                 {"allowed_token_ids": digits[:1], "logit_bias": {str(digits[0]): -100}},
                 {"allowed_token_ids": digits[:1], "bad_words": ["0"]},
                 {"allowed_token_ids": digits, "guided_choice": ["yes"]}):
        refused(server, PLAIN, COUNT | more, "allowed_token_ids")


def test_bad_words_do_not_come(server):
    seven = text(server)
    assert " 7" in seven and " 8" in seven
    for word in ("8", " 8", "7, 8"):
        got = text(server, bad_words=[word])
        assert word.strip() not in got, word
    assert text(server, bad_words=["7, 8"]).startswith(seven[:seven.index("8")])
    # a constraint wins where nothing else is left
    choose = {"messages": HI, "temperature": 0, "bad_words": ["7", "8"]}
    for choices, wanted in ((["7", "9"], "9"), (["7"], "7")):
        got = server.ask(CHAT, choose | {"guided_choice": choices})["choices"][0]["message"]["content"]
        assert got == wanted
    for bad in ([""], [" "], [5], "no", ["a"] * 300):
        refused(server, PLAIN, COUNT | {"bad_words": bad}, "bad_words")


def test_guesses_ahead_change_none_of_it(binary, smollm2, server):
    s = Server(binary, smollm2, *OPTIONS, "--speculate", "always")
    try:
        rounds = [{}, {"stop": [" 9"], "min_tokens": 6}, {"bad_words": ["9"]}, {"stop_token_ids": ids(server, " 9")[-1:]},
                  {"stop": [" 9"], "include_stop_str_in_output": True}]
        for more in rounds:
            assert text(s, **more, max_tokens=30) == text(server, **more, max_tokens=30), more
    finally:
        assert s.stop() == 0


# ---- what comes back beside the text ----

def test_token_ids_come_back(server):
    plain = server.ask(PLAIN, COUNT | {"return_token_ids": True})
    one = plain["choices"][0]
    assert one["prompt_token_ids"] == ids(server, COUNT["prompt"])
    assert len(one["token_ids"]) == 12 and server.ask("/detokenize", {"tokens": one["token_ids"]})["content"] == one["text"]
    stream = events(server.request("POST", PLAIN, COUNT | {"return_token_ids": True, "stream": True})[2])
    assert [i for e in stream for i in e["choices"][0].get("token_ids", [])] == one["token_ids"]
    assert [e["choices"][0]["prompt_token_ids"] for e in stream if "prompt_token_ids" in e["choices"][0]] == [one["prompt_token_ids"]]
    ask = {"messages": HI, "temperature": 0, "max_tokens": 30, "return_token_ids": True}
    chat = server.ask(CHAT, ask)
    assert chat["prompt_token_ids"] == server.ask("/tokenize", {"messages": HI})["tokens"]
    own = chat["choices"][0]["token_ids"]
    assert len(own) == chat["usage"]["completion_tokens"]
    chunks = events(server.request("POST", CHAT, ask | {"stream": True})[2])
    assert chunks[0]["prompt_token_ids"] == chat["prompt_token_ids"] and all("prompt_token_ids" not in c for c in chunks[1:])
    assert [i for c in chunks for i in c["choices"][0].get("token_ids", [])] == own
    assert server.ask("/completion", COUNT | {"n_predict": 12, "return_tokens": True})["tokens"] == one["token_ids"]
    assert "token_ids" not in server.ask(PLAIN, COUNT)["choices"][0]
    named = server.ask(PLAIN, COUNT | {"logprobs": 1, "return_tokens_as_token_ids": True})["choices"][0]["logprobs"]
    assert named["tokens"] == [f"token_id:{i}" for i in one["token_ids"]]


def test_the_prompts_probabilities_come_back(server):
    echo = server.ask(PLAIN, COUNT | {"echo": True, "logprobs": 2, "max_tokens": 2})["choices"][0]["logprobs"]
    r = server.ask(PLAIN, COUNT | {"prompt_logprobs": 2, "max_tokens": 2, "return_token_ids": True, "logprobs": 1})["choices"][0]
    prompt, found = r["prompt_token_ids"], r["prompt_logprobs"]
    assert len(found) == len(prompt) and found[0] is None and len(r["logprobs"]["tokens"]) == 2
    for i in range(1, len(prompt)):
        mine = found[i][str(prompt[i])]
        assert abs(mine["logprob"] - echo["token_logprobs"][i]) < 1e-3 and mine["decoded_token"] == echo["tokens"][i]
        ranks = sorted(t["rank"] for t in found[i].values())
        assert ranks[:2] == [1, 2] and len(found[i]) in (2, 3)
        best = min(found[i].values(), key=lambda t: t["rank"])
        assert best["logprob"] == max(t["logprob"] for t in found[i].values())
    chat = server.ask(CHAT, {"messages": HI, "prompt_logprobs": 0, "max_tokens": 1})
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"] and all(len(t) == 1 for t in chat["prompt_logprobs"][1:])
    refused(server, PLAIN, COUNT | {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs")
    for bad in (-1, 21, True, "1"):
        refused(server, PLAIN, COUNT | {"prompt_logprobs": bad}, "prompt_logprobs")


def test_n_probs_are_completion_probabilities(server):
    body = {"prompt": COUNT["prompt"], "n_predict": 6, "temperature": 0, "n_probs": 3}
    r = server.ask("/completion", body)
    probs = r["completion_probabilities"]
    assert "".join(t["token"] for t in probs) == r["content"] and len(probs) == 6
    for t in probs:
        assert len(t["top_logprobs"]) == 3 and t["top_logprobs"][0]["id"] == t["id"] and t["logprob"] <= 0
        assert bytes(t["bytes"]).decode() == t["token"] and t["top_logprobs"][0]["logprob"] == t["logprob"]
    reply = server.request("POST", "/completion", body | {"stream": True})[2].decode()
    chunks = [json.loads(line[6:]) for line in reply.split("\n\n") if line.startswith("data: ")]
    assert [t["id"] for c in chunks for t in c.get("completion_probabilities", [])] == [t["id"] for t in probs]
    assert "completion_probabilities" not in server.ask("/completion", body | {"n_probs": 0})
    chat = server.ask(CHAT, {"messages": HI, "n_probs": 2, "max_tokens": 2})["choices"][0]["logprobs"]["content"]
    assert len(chat) == 2 and len(chat[0]["top_logprobs"]) == 2
    refused(server, "/completion", body | {"post_sampling_probs": True}, "post_sampling_probs")
    refused(server, "/completion", body | {"n_probs": -1}, "n_probs")


# ---- the older functions ----

WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
                                                 "required": ["city"], "additionalProperties": False}}


def test_functions_are_called_in_their_own_shape(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    ask = {"model": "smol", "messages": [{"role": "user", "content": "Weather in Paris?"}], "functions": [WEATHER],
           "function_call": {"name": "get_weather"}, "temperature": 0, "max_tokens": 60}
    choice = client.chat.completions.create(**ask).choices[0]
    assert choice.finish_reason == "function_call" and choice.message.tool_calls is None and choice.message.content is None
    assert choice.message.function_call.name == "get_weather"
    assert json.loads(choice.message.function_call.arguments)["city"] in ("Paris", "Rome")
    name, arguments, finish = "", "", None
    for chunk in client.chat.completions.create(**ask, stream=True):
        call = chunk.choices[0].delta.function_call
        assert chunk.choices[0].delta.tool_calls is None
        name, arguments = name + (call and call.name or ""), arguments + (call and call.arguments or "")
        finish = chunk.choices[0].finish_reason or finish
    assert (name, arguments, finish) == ("get_weather", choice.message.function_call.arguments, "function_call")
    history = [*ask["messages"], {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": '{"city": "Paris"}'}},
               {"role": "function", "name": "get_weather", "content": "Sunny, 21 degrees"}]
    prompt = server.ask("/apply-template", {"messages": history})["prompt"]
    assert "Sunny, 21 degrees" in prompt
    after = server.ask(CHAT, {"messages": history, "functions": [WEATHER], "max_tokens": 8, "function_call": "none"})
    assert after["choices"][0]["message"]["content"] and "function_call" not in after["choices"][0]["message"]
    for bad, param in (({"functions": [5]}, "functions"), ({"function_call": "always"}, "function_call"), ({"function_call": {"name": "no"}}, "tool_choice"),
                       ({"tools": [{"type": "function", "function": WEATHER}]}, "functions")):
        refused(server, CHAT, ask | bad, param)


# ---- other servers' fields ----

def test_fields_that_are_not_built_are_refused(server):
    wrong = {"logits_processors": ["a"], "prompt_embeds": "AA", "use_beam_search": True, "top_n_sigma": 1.5, "dynatemp_range": 0.5,
             "min_keep": 3, "n_indent": 2, "grammar_lazy": True, "chat_template": "{{ 1 }}", "audio": {"voice": "a"},
             "structured_outputs": {"structural_tag": "{}"}, "add_special_tokens": True, "guided_whitespace_pattern": " ",
             "modalities": ["text", "audio"], "web_search_options": {}, "parse_tool_calls": False, "n_cmpl": 2}
    for name, value in wrong.items():
        assert name in refused(server, CHAT, {"messages": HI, name: value}, name)
    fine = {"logits_processors": [], "use_beam_search": False, "top_n_sigma": -1, "dynatemp_range": 0, "min_keep": 0, "id_slot": 0,
            "cache_prompt": False, "modalities": ["text"], "spaces_between_special_tokens": True, "kv_transfer_params": {}, "n_keep": 4}
    best = server.ask(CHAT, {"messages": HI, "max_tokens": 2, "best_of": 3, **fine})
    assert len(best["choices"]) == 1 and best["usage"]["completion_tokens"] == 6


def test_samplers_that_are_not_named_are_off(server):
    warm = COUNT | {"temperature": 1.5, "seed": 5, "top_k": 1, "max_tokens": 8}
    greedy = server.ask(PLAIN, warm)["choices"][0]["text"]
    free = server.ask(PLAIN, warm | {"samplers": ["temperature"], "min_p": 0})["choices"][0]["text"]
    assert greedy == text(server, max_tokens=8) != free
    assert server.ask(PLAIN, warm | {"samplers": ["top_k", "temperature"]})["choices"][0]["text"] == greedy
    assert server.ask(PLAIN, warm | {"samplers": "kt"})["choices"][0]["text"] == greedy
    for bad in (["temperature", "top_k"], ["magic"], [5], 7):
        refused(server, PLAIN, warm | {"samplers": bad}, "samplers")


def test_prompts_are_truncated_from_the_left(server):
    r = server.ask(PLAIN, COUNT | {"truncate_prompt_tokens": 3, "return_token_ids": True, "max_tokens": 1})["choices"][0]
    assert r["prompt_token_ids"] == ids(server, COUNT["prompt"])[-3:]
    refused(server, PLAIN, COUNT | {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens")


@pytest.mark.slow
def test_a_prompt_is_truncated_to_the_context(server):
    long = server.ask(PLAIN, {"prompt": "a " * 1500, "truncate_prompt_tokens": -1, "max_tokens": 1})
    assert long["usage"]["prompt_tokens"] == 1023


def test_writing_ends_with_a_line_when_its_time_is_over(server):
    body = {"prompt": "1\n2\n3\n4\n", "n_predict": 200, "temperature": 0, "ignore_eos": True, "t_max_predict_ms": 1}
    r = server.ask("/completion", body)
    assert r["stop_type"] == "limit" and r["tokens_predicted"] < 200 and "\n" in r["content"]


def test_reasoning_is_told_as_asked_for(binary, smollm2, tmp_path):
    from test_tools import THINKS
    path = tmp_path / "t.jinja"
    path.write_text(THINKS)
    s = Server(binary, smollm2, *OPTIONS, "--template", str(path))
    try:
        body = {"messages": HI, "max_tokens": 6, "temperature": 0}
        told = s.ask(CHAT, body)["choices"][0]["message"]
        raw = s.ask(CHAT, body | {"reasoning_format": "none"})["choices"][0]["message"]
        hidden = s.ask(CHAT, body | {"include_reasoning": False})["choices"][0]["message"]
        assert told["reasoning_content"].strip() in raw["content"] and "reasoning_content" not in raw
        assert not hidden["content"] and "reasoning_content" not in hidden and "reasoning" not in hidden
        refused(s, CHAT, body | {"reasoning_format": "xml"}, "reasoning_format")
    finally:
        assert s.stop() == 0
