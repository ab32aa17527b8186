"""Ollama's API: its own client, and the lines as they are."""
import json

import pytest

from server import Server, until

ollama = pytest.importorskip("ollama")

HI = [{"role": "user", "content": "Say hello."}]
FEW = {"num_predict": 6, "temperature": 0}


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, "--name", "smol", "--ctx", "512", "--deterministic")
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return ollama.Client(server.url)


def test_what_there_is(server, client):
    assert [m.model for m in client.list().models] == ["smol"]
    shown = client.show("smol")
    assert shown.details.family == "llama" and shown.details.quantization_level == "Q4_1" and "completion" in shown.capabilities
    assert shown.modelinfo["general.architecture"] == "llama" and shown.modelinfo["llama.context_length"] == 8192
    assert client.show("smol:latest").details.parameter_size == shown.details.parameter_size == "134.52M"
    running = client.ps().models[0]
    assert running.model == "smol" and running.size > 10**8 and running.context_length == 512
    assert server.ask("/api/version")["version"].count(".") == 2
    assert server.request("GET", "/", Accept="*/*")[2] == b"Ollama is running"
    assert server.request("HEAD", "/")[0] == 200
    assert b"Ollama" not in server.request("GET", "/", Accept="text/html,application/xhtml+xml")[2]


def test_chat(client):
    whole = client.chat("smol", HI, options=FEW)
    pieces = list(client.chat("smol", HI, options=FEW, stream=True))
    assert "".join(p.message.content for p in pieces) == whole.message.content != ""
    assert [p.done for p in pieces] == [False] * (len(pieces) - 1) + [True]
    last = pieces[-1]
    assert last.done_reason == whole.done_reason == "length" and last.eval_count == whole.eval_count == 6
    assert last.prompt_eval_count == whole.prompt_eval_count > 10
    assert last.total_duration >= last.eval_duration > 0 and whole.load_duration >= 0


def test_generate(server, client):
    whole = client.generate("smol", "Why is the sky blue?", system="Be short.", options=FEW)
    assert whole.response and whole.done and whole.eval_count == 6
    asked = client.chat("smol", [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Why is the sky blue?"}],
                        options=FEW)
    assert asked.message.content == whole.response
    raw = client.generate("smol", "One two three", raw=True, options=FEW)
    same = server.ask("/v1/completions", {"prompt": "One two three", "max_tokens": 6, "temperature": 0})
    assert raw.response == same["choices"][0]["text"]
    assert client.generate("smol").done_reason == "load"
    stopped = client.generate("smol", "1, 2, 3,", raw=True, options={"stop": [" 6"], "temperature": 0})
    assert stopped.done_reason == "stop" and " 6" not in stopped.response
    with pytest.raises(ollama.ResponseError) as e:
        client.generate("smol", "a", suffix="b")  # it has no tokens for that
    assert e.value.status_code == 400


def test_format(client):
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99, "minimum": 1}}, "required": ["age"],
              "additionalProperties": False}
    reply = client.chat("smol", [{"role": "user", "content": "How old are you?"}], format=schema, options={"temperature": 0})
    assert 1 <= json.loads(reply.message.content)["age"] <= 99
    assert client.generate("smol", "Invent a person.", format="json", options=FEW).response.lstrip().startswith("{")


def test_vectors(server, client):
    two = client.embed("smol", ["bread", "mill"])
    assert len(two.embeddings) == 2 and two.prompt_eval_count >= 2
    assert two.embeddings[0] == pytest.approx(client.embeddings("smol", "bread").embedding, abs=1e-3)
    assert len(client.embed("smol", "word " * 2000).embeddings) == 1  # cut, as is the habit there
    assert server.request("POST", "/api/embed", {"model": "smol", "input": "word " * 2000, "truncate": False})[0] == 400


def test_lines(server):
    status, headers, body = server.request("POST", "/api/chat", {"model": "smol", "messages": HI, "options": {"num_predict": 4}})
    assert status == 200 and headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in body.decode().splitlines()]
    assert body.endswith(b"\n") and all(line["model"] == "smol" and line["created_at"].endswith("Z") for line in lines)
    assert not any("eval_count" in line for line in lines[:-1])


def test_errors(server, client):
    for ask, status in (
            (lambda: client.chat("other", HI), 404), (lambda: client.show("other"), 404), (lambda: client.pull("other"), 501),
            (lambda: client.delete("smol"), 400), (lambda: client.generate("other", keep_alive=0), 404),
            (lambda: client.chat("smol", [{"role": "user", "content": "a", "images": [b"x"]}]), 400),
            (lambda: client.chat("smol", [{"role": "user", "content": "word " * 3000}]), 400)):
        with pytest.raises(ollama.ResponseError) as e:
            ask()
        assert e.value.status_code == status and e.value.error
    for body in ({"options": 5}, {"stream": "x"}, {"messages": 5}, {"messages": HI, "format": "xml"}, {"keep_alive": "soon"},
                 {"messages": HI, "options": {"temperature": -1}}, {"messages": [{"role": "assistant", "tool_calls": [[]]}]}):
        status, _, reply = server.request("POST", "/api/chat", {"model": "smol", **body})
        assert status == 400 and isinstance(json.loads(reply)["error"], str), body
    for body in ({"format": "xml"}, {"format": 5}, {"keep_alive": 0, "format": []}):  # also where nothing is to be written
        assert server.request("POST", "/api/generate", {"model": "smol", **body})[0] == 400, body


def test_keep_alive(server, client):
    assert client.generate("smol", keep_alive="1h").done_reason == "load"
    assert client.generate("smol", keep_alive=0).done_reason == "unload"
    until(lambda: server.ask("/v1/models")["data"][0]["status"]["value"] == "unloaded")
    loads = server.metric("quern_model_loads_total")
    assert client.generate("smol", keep_alive=0).done_reason == "unload"  # and is not loaded by that
    assert server.metric("quern_model_loads_total") == loads
    assert client.chat("smol", HI, options=FEW).message.content


def test_context(server, client):
    ids = lambda text, special=True: server.ask("/tokenize", {"content": text, "parse_special": special})["tokens"]
    first = client.generate("smol", "My name is Ann.", options=FEW)
    prompt = server.ask("/apply-template", {"messages": [{"role": "user", "content": "My name is Ann."}]})["prompt"]
    assert list(first.context)[:first.prompt_eval_count] == ids(prompt)
    assert len(first.context) == first.prompt_eval_count + first.eval_count
    last = list(client.generate("smol", "My name is Ann.", options=FEW, stream=True))[-1]
    assert list(last.context) == list(first.context)
    second = client.generate("smol", "What is my name?", context=first.context, options=FEW)
    asked = server.ask("/apply-template", {"messages": [{"role": "user", "content": "What is my name?"}]})["prompt"]
    whole = [*first.context, *ids(asked)]
    assert list(second.context)[:second.prompt_eval_count] == whole
    same = server.ask("/v1/completions", {"prompt": whole, "max_tokens": 6, "temperature": 0})["choices"][0]["text"]
    assert second.response == same
    assert "context" not in server.ask("/api/generate", {"model": "smol", "prompt": "a", "raw": True, "stream": False, "options": FEW})
    for wrong in ([-1], ["a"], [10**7], "x", {"a": 1}):
        assert server.request("POST", "/api/generate", {"model": "smol", "prompt": "a", "context": wrong})[0] == 400, wrong


def test_template(server, client):
    shown = client.show("smol").template
    assert client.generate("smol", "Hi", template=shown, options=FEW).response
    for path, what in (("/api/generate", {"prompt": "Hi"}), ("/api/chat", {"messages": HI})):
        for text in ("{{ .Prompt }}", "{{ messages }}", "plain"):
            status, _, body = server.request("POST", path, {"model": "smol", "template": text, **what})
            assert status == 400 and "template is not supported" in json.loads(body)["error"], (path, text)
    for extra in ({"system": "Be short."}, {"template": "x"}, {"context": [1, 2]}):
        status, _, body = server.request("POST", "/api/generate", {"model": "smol", "prompt": "Hi", "raw": True, **extra})
        assert status == 400 and "raw" in json.loads(body)["error"], extra


def test_logprobs(server, client):
    for call, text in ((lambda **more: client.chat("smol", HI, options=FEW, **more), lambda r: r.message.content),
                       (lambda **more: client.generate("smol", "Say hello.", options=FEW, **more), lambda r: r.response),
                       (lambda **more: client.generate("smol", "1, 2, 3,", raw=True, options=FEW, **more), lambda r: r.response)):
        whole = call(logprobs=True, top_logprobs=2)
        assert len(whole.logprobs) == 6 and "".join(p.token for p in whole.logprobs) == text(whole)
        assert all(p.logprob <= 0 and len(p.top_logprobs) == 2 and p.top_logprobs[0].token == p.token for p in whole.logprobs)
        told = [p.token for piece in call(logprobs=True, top_logprobs=2, stream=True) for p in piece.logprobs or []]
        assert told == [p.token for p in whole.logprobs]
        assert not call().logprobs and len(call(logprobs=True).logprobs) == 6
    raw = server.ask("/api/chat", {"model": "smol", "messages": HI, "logprobs": True, "stream": False, "options": FEW})
    assert raw["logprobs"][0]["bytes"] == list(raw["logprobs"][0]["token"].encode())
    for wrong in ({"logprobs": 3}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": True, "top_logprobs": -1},
                  {"top_logprobs": 2}):
        assert server.request("POST", "/api/chat", {"model": "smol", "messages": HI, **wrong})[0] == 400, wrong


def test_dimensions(server, client):
    whole = client.embed("smol", ["bread", "mill"]).embeddings
    short = client.embed("smol", ["bread", "mill"], dimensions=8).embeddings
    for a, b in zip(whole, short):
        size = sum(x * x for x in a[:8]) ** 0.5
        assert len(b) == 8 and b == pytest.approx([x / size for x in a[:8]], abs=2e-3)
    assert len(client.embed("smol", "bread", dimensions=len(whole[0])).embeddings[0]) == len(whole[0])
    for wrong in (0, -1, len(whole[0]) + 1, 1.5, "8"):
        assert server.request("POST", "/api/embed", {"model": "smol", "input": "a", "dimensions": wrong})[0] == 400, wrong
