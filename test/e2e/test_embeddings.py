"""Vectors: OpenAI's embeddings with the real client, rerank, with a model that writes and with an encoder."""
import base64
import json
import shutil
import struct

import numpy as np
import pytest

from conftest import ROOT
from server import Server

openai = pytest.importorskip("openai")

TEXTS = ["Bread is made of flour.", "A mill grinds corn.", "The stock market fell."]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The tiny bert of the tests, with a vocabulary."""
    where = tmp_path_factory.mktemp("models") / "tiny"
    shutil.copytree(ROOT / "test/data/arch/bert", where)
    letters = [chr(c) for c in range(97, 123)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters), "."]
    (where / "vocab.txt").write_text("\n".join(words + [f"[unused{i}]" for i in range(64 - len(words))]) + "\n")
    (where / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}))
    return where


@pytest.fixture(scope="module")
def server(binary, smollm2, encoder):
    s = Server(binary, smollm2, encoder, "--ctx", "64")
    yield s
    assert s.stop() == 0


def test_the_real_client(server, smollm2, quern, encoder):
    client = server.client()
    for name, path in ((smollm2.stem, smollm2), ("tiny", encoder)):
        expected = np.array(quern("embed", path, *TEXTS, "--json").json())
        both = [client.embeddings.create(model=name, input=TEXTS, **extra) for extra in ({}, {"encoding_format": "float"})]
        for got in both:  # the client asks for base64 where nobody says
            vectors = np.array([d.embedding for d in got.data])
            assert np.abs(vectors - expected).max() < 2e-3
            assert [d.index for d in got.data] == [0, 1, 2] and got.model == name and got.object == "list"
            assert got.usage.prompt_tokens == got.usage.total_tokens > 8
        one = client.embeddings.create(model=name, input=TEXTS[0])
        assert np.abs(np.array(one.data[0].embedding) - expected[0]).max() < 2e-3
        short = np.array(client.embeddings.create(model=name, input=TEXTS[0], dimensions=8).data[0].embedding)
        assert len(short) == 8 and abs(np.linalg.norm(short) - 1) < 1e-5
        assert np.abs(short - expected[0][:8] / np.linalg.norm(expected[0][:8])).max() < 1e-2
    client.close()


def test_base64_is_little_endian_floats(server):
    ask = {"model": "tiny", "input": "abc"}
    plain = server.ask("/v1/embeddings", ask)["data"][0]["embedding"]
    raw = base64.b64decode(server.ask("/v1/embeddings", {**ask, "encoding_format": "base64"})["data"][0]["embedding"])
    assert struct.unpack(f"<{len(plain)}f", raw) == pytest.approx(plain, abs=1e-6)


def test_ids_and_lists_of_ids(server):
    ids = server.ask("/tokenize", {"model": "tiny", "content": "abc", "add_special": True})["tokens"]
    text = server.ask("/embeddings", {"model": "tiny", "input": ["abc"]})["data"][0]["embedding"]
    for shape in (ids, [ids], [ids, ids]):
        reply = server.ask("/embeddings", {"model": "tiny", "input": shape})
        for d in reply["data"]:
            assert d["embedding"] == pytest.approx(text, abs=1e-5)
        assert reply["usage"]["prompt_tokens"] == sum(len(s) for s in (shape if isinstance(shape[0], list) else [shape]))


BAD = [
    ({}, "input"), ({"input": None}, "input"), ({"input": []}, "input"), ({"input": 5}, "input"), ({"input": [["a"]]}, "input"),
    ({"input": [64]}, "input"), ({"input": [-1]}, "input"), ({"input": [[1], [10**10]]}, "input"), ({"input": [1, "a"]}, "input"),
    ({"input": ["a", 5]}, "input"), ({"input": [[]]}, "input"), ({"input": ["a"] * 2049}, "input"), ({"input": [1.5]}, "input"),
    ({"input": "a", "dimensions": 0}, "dimensions"), ({"input": "a", "dimensions": 10**6}, "dimensions"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format"), ({"input": "a", "model": 5}, "model"),
]


def test_bad_fields_are_named(server):
    for fields, param in BAD:
        status, _, body = server.request("POST", "/v1/embeddings", {"model": "tiny", **fields})
        error = json.loads(body)["error"]
        assert (status, error["param"]) == (400, param), (fields, error)
    status, _, body = server.request("POST", "/v1/embeddings", {"model": "tiny", "input": ["a", "b " * 200]})
    error = json.loads(body)["error"]
    assert status == 400 and error["code"] == "context_length_exceeded" and "maximum context length is 64 tokens" in error["message"]
    status, _, body = server.request("POST", "/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "a"}]})
    assert status == 400 and "/v1/embeddings" in json.loads(body)["error"]["message"]


def test_many_at_once(server):
    """Texts of several requests share steps; each gets its own vectors."""
    import threading
    words = [f"{a}{b}" for a in "abcdef" for b in "ghijkl"]
    alone = {w: server.ask("/embeddings", {"model": "tiny", "input": w})["data"][0]["embedding"] for w in words[:6]}
    wrong = []

    def ask(i):
        got = server.ask("/embeddings", {"model": "tiny", "input": words * 5})["data"]
        for k, w in enumerate(words[:6]):
            if got[k]["embedding"] != pytest.approx(alone[w], abs=1e-4):
                wrong.append(w)
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert server.metric("quern_embedded_texts_total") >= 4 * 180


def test_rerank(server):
    documents = [TEXTS[2], {"text": TEXTS[1]}, TEXTS[0]]
    got = server.ask("/v1/rerank", {"model": "tiny", "query": TEXTS[0], "documents": documents, "return_documents": True})
    assert got["results"][0]["index"] == 2 and got["results"][0]["relevance_score"] == pytest.approx(1, abs=1e-4)
    assert got["results"][0]["document"]["text"] == TEXTS[0]
    scores = [r["relevance_score"] for r in got["results"]]
    assert scores == sorted(scores, reverse=True) and len(scores) == 3
    assert len(server.ask("/rerank", {"model": "tiny", "query": "a", "documents": ["b", "c"], "top_n": 1})["results"]) == 1
    for fields in ({"query": "a"}, {"documents": ["a"]}, {"query": "a", "documents": []}, {"query": "a", "documents": [5]},
                   {"query": "a", "documents": ["a"], "top_n": 0}):
        assert server.request("POST", "/v1/rerank", {"model": "tiny", **fields})[0] == 400, fields


@pytest.mark.parametrize("name", ["rank", "rerank/modernbert", "rerank/tiny-reranker"])
def test_rerank_with_a_head(binary, name):
    """A cross-encoder's first row, the mean of all, and a decoder's "yes" and "no": as transformers scores them."""
    ref = json.loads((ROOT / "test/data" / name / "ref.json").read_text())
    s = Server(binary, ROOT / "test/data" / name, "--exact")
    got = s.ask("/v1/rerank", {"query": ref["query"], "documents": ref["documents"]})["results"]
    assert {r["index"]: r["relevance_score"] for r in got} == pytest.approx(dict(enumerate(ref["scores"])), abs=1e-4)
    assert got == sorted(got, key=lambda r: -r["relevance_score"])
    assert score(s, model=None, text_1=ref["query"], text_2=ref["documents"]) == pytest.approx(ref["scores"], abs=1e-4)
    raw = score(s, model=None, text_1=ref["query"], text_2=ref["documents"], use_activation=False)
    assert [1 / (1 + np.exp(-x)) for x in raw] == pytest.approx(ref["scores"], abs=1e-4)
    other = s.ask("/v1/rerank", {"query": ref["query"], "documents": ref["documents"], "instruction": "Judge by its letters."})["results"]
    assert (other == got) == ("reranker" not in name)
    assert s.stop() == 0


def test_prompts_of_the_files(binary, quern, encoder, tmp_path):
    """Prompts of sentence-transformers stand before texts: by name, by role, and the default one."""
    where = tmp_path / "prompted"
    shutil.copytree(encoder, where)
    (where / "config_sentence_transformers.json").write_text(json.dumps(
        {"prompts": {"query": "ask ", "document": "say ", "other": "x "}, "default_prompt_name": "other"}))

    def plain(*texts):
        return np.array(quern("embed", encoder, *texts, "--json").json())
    assert np.abs(np.array(quern("embed", where, "abc", "--prompt", "query", "--json").json()) - plain("ask abc")).max() < 1e-5
    assert np.abs(np.array(quern("embed", where, "abc", "--json").json()) - plain("x abc")).max() < 1e-5
    s = Server(binary, where, "--ctx", "64")
    for fields, text in (({}, "x abc"), ({"prompt_name": "query"}, "ask abc")):
        got = s.ask("/v1/embeddings", {"input": "abc", **fields})["data"][0]["embedding"]
        assert np.abs(np.array(got) - plain(text)[0]).max() < 2e-3
    query, document = plain("ask abc", "say abd")
    assert s.ask("/v1/rerank", {"query": "abc", "documents": ["abd"]})["results"][0]["relevance_score"] == pytest.approx(query @ document, abs=2e-3)
    assert s.request("POST", "/v1/embeddings", {"input": "abc", "prompt_name": "none"})[0] == 400
    assert s.stop() == 0


@pytest.mark.parametrize("family,key,values", [("gemma2", "final_logit_softcapping", [None, 2.0]),
                                               ("cohere", "logit_scale", [1.0, 0.0625])])
def test_vectors_are_no_logits(quern, tmp_path, family, key, values):
    """What a decoder does to its logits, a cap or a scale, is not done to its vectors."""
    got = []
    for i, value in enumerate(values):
        where = tmp_path / str(i)
        shutil.copytree(ROOT / "test/data/arch" / family, where)
        config = json.loads((where / "config.json").read_text())
        assert key in config
        (where / "config.json").write_text(json.dumps(config | {key: value}))
        got.append(quern("embed", where, "--tokens", "1,2,3,4,5", "--no-normalize", "--pooling", "last", "--json").json())
    assert got[0] == got[1] and np.abs(np.array(got[0])).max() > 0.5


@pytest.mark.models
@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "nomic-embed-text-v1.5.f16.gguf"])
def test_a_real_encoder(binary, model, name):
    path = model(name)
    s = Server(binary, path, "--name", "e")
    got = s.ask("/rerank", {"query": "search_query: How is flour made?", "documents": ["search_document: " + t for t in TEXTS]})
    assert [r["index"] for r in got["results"]][-1] == 2
    assert s.stop() == 0


def score(server, **fields):
    return [d["score"] for d in server.ask("/v1/score", {"model": "tiny", **fields})["data"]]


def test_score(server):
    vectors = np.array([d["embedding"] for d in server.ask("/v1/embeddings", {"model": "tiny", "input": TEXTS})["data"]])
    wanted = [float(vectors[0] @ v) for v in vectors]
    assert score(server, text_1=TEXTS[0], text_2=TEXTS) == pytest.approx(wanted, abs=1e-4)
    assert score(server, queries=TEXTS[0], documents=TEXTS) == pytest.approx(wanted, abs=1e-4)
    assert score(server, text_1=[TEXTS[0]], text_2=TEXTS[1]) == pytest.approx(wanted[1:2], abs=1e-4)
    assert score(server, text_1=TEXTS, text_2=TEXTS) == pytest.approx([1, 1, 1], abs=1e-4)
    reply = server.ask("/score", {"model": "tiny", "text_1": "a", "text_2": ["b", "c"]})
    assert reply["object"] == "list" and reply["model"] == "tiny" and reply["usage"]["prompt_tokens"] > 0 and reply["id"]
    assert [(d["index"], d["object"]) for d in reply["data"]] == [(0, "score"), (1, "score")]
    for fields in ({"text_1": "a"}, {"text_2": "a"}, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, {"text_1": [], "text_2": "a"},
                   {"text_1": 5, "text_2": "a"}, {"text_1": "a", "text_2": [5]}, {"text_1": ["a", "b"], "text_2": "a"},
                   {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 5}):
        assert server.request("POST", "/v1/score", {"model": "tiny", **fields})[0] == 400, fields


def test_tokenizer_info(server, smollm2):
    info = server.ask("/tokenizer_info")
    assert info["eos_token"] == "<|im_end|>" and "<|im_start|>" in info["chat_template"] and info["model"] == smollm2.stem
    assert info["tokenizer_class"] and info["add_bos_token"] is False and info["model_max_length"] == 64
    tiny = server.ask("/tokenizer_info?model=tiny")
    assert tiny["cls_token"] == "[CLS]" and tiny["pad_token"] == "[PAD]" and tiny["chat_template"] is None
    assert server.request("GET", "/tokenizer_info?model=other")[0] == 404


def test_rerank_as_text_embeddings_inference_has_it(server):
    got = server.ask("/rerank", {"model": "tiny", "query": TEXTS[0], "texts": TEXTS[::-1], "return_text": True})
    assert [set(r) for r in got] == [{"index", "score", "text"}] * 3 and got[0]["index"] == 2 and got[0]["text"] == TEXTS[0]


def test_vectors_as_llama_cpp_has_them(server):
    wanted = [d["embedding"] for d in server.ask("/v1/embeddings", {"model": "tiny", "input": TEXTS})["data"]]
    for fields in ({"content": TEXTS}, {"input": TEXTS}):
        got = server.ask("/embedding", {"model": "tiny", **fields})
        assert [r["index"] for r in got] == [0, 1, 2] and np.abs(np.array([r["embedding"][0] for r in got]) - wanted).max() < 1e-4
    assert len(server.ask("/embedding", {"model": "tiny", "content": "abc"})) == 1
    assert server.request("POST", "/embedding", {"model": "tiny", "content": "a", "embd_normalize": -1})[0] == 400
    assert server.request("POST", "/embedding", {"model": "tiny"})[0] == 400
    props = server.ask("/props")
    assert "<|im_start|>" in props["chat_template"] and props["eos_token"] == "<|im_end|>" and props["modalities"]["vision"] is False
