"""Images in every way in: a tiny model that names colours (test/e2e/make_colours.py) answers what only the pixels say."""
import base64
import json
import os
import pty
import select
import struct
import subprocess
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from server import Server, events

DATA = Path(__file__).resolve().parents[1] / "data"
COLOURS = DATA / "vision" / "colours"
RGB = {"red": (210, 35, 40), "green": (45, 185, 60), "blue": (30, 60, 210)}
QUESTION = "What colour is this image ?"
ROWS = 4


def png(rgb, w=24, h=16):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = (b"\0" + bytes(rgb) * w) * h
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) +
            chunk(b"IEND", b""))


def b64(data):
    return base64.b64encode(data).decode()


def part(data):
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + b64(data)}}


def ask(image, text=QUESTION, **more):
    return {"messages": [{"role": "user", "content": [image, {"type": "text", "text": text}]}], "temperature": 0, "max_tokens": 8, **more}


@pytest.fixture(scope="module")
def server(binary):
    if not COLOURS.is_dir():
        pytest.skip("test/data/vision/colours is not there")
    s = Server(binary, COLOURS, "--name", "colours", "--device", "cpu")
    yield s
    s.stop()


@pytest.mark.parametrize("colour", RGB)
def test_run(quern, tmp_path, colour):
    file = tmp_path / "a.png"
    file.write_bytes(png(RGB[colour]))
    done = quern("run", COLOURS, "--image", file, "-p", QUESTION, "--temp", "0", "-n", "8")
    assert done.out.strip() == colour, done
    answer = quern("run", COLOURS, "--image", file, "-p", QUESTION, "--temp", "0", "-n", "8", "--json").json()
    assert answer["prompt_ids"].count(309) == ROWS and answer["text"].strip() == colour
    raw = quern("run", COLOURS, "--image", file, "--raw", "-p", f"user: <__media__>{QUESTION}\nassistant:", "--temp", "0", "-n", "8")
    assert raw.out.strip() == colour


def test_run_refuses(quern, tmp_path, smollm2):
    good, bad = tmp_path / "a.png", tmp_path / "b.png"
    good.write_bytes(png(RGB["red"]))
    bad.write_bytes(b"no image")
    text_only = quern("run", smollm2, "--image", good, "-p", "What is it?", "-n", "4")
    assert text_only.code == 64 and "takes no images" in text_only.err
    assert "no image that can be read" in quern("run", COLOURS, "--image", bad, "-p", "a").err
    assert quern("run", COLOURS, "--image", tmp_path / "none.png", "-p", "a").code != 0


def test_openai(server):
    client = server.client()
    for colour, rgb in RGB.items():
        reply = client.chat.completions.create(model="colours", temperature=0, max_tokens=8, **{"messages": ask(part(png(rgb)))["messages"]})
        assert reply.choices[0].message.content.strip() == colour
    plain = client.chat.completions.create(model="colours", max_tokens=2, messages=[{"role": "user", "content": QUESTION}])
    assert reply.usage.prompt_tokens == plain.usage.prompt_tokens + ROWS
    response = client.responses.create(model="colours", temperature=0, max_output_tokens=8, input=[{"role": "user", "content": [
        {"type": "input_image", "image_url": part(png(RGB["green"]))["image_url"]["url"], "detail": "auto"},
        {"type": "input_text", "text": QUESTION}]}])
    assert response.output_text.strip() == "green"
    again = client.responses.create(model="colours", temperature=0, max_output_tokens=8, previous_response_id=response.id, input=QUESTION)
    assert again.output_text.strip() == "green"  # the image is still in the conversation


def test_a_stream(server):
    _, _, body = server.request("POST", "/v1/chat/completions", ask(part(png(RGB["blue"])), stream=True))
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events(body) if e["choices"]).strip() == "blue"


def test_anthropic(server):
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64(png(RGB["red"]))}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}]
    reply = client.messages.create(model="colours", max_tokens=8, messages=messages, extra_body={"temperature": 0})
    assert reply.content[0].text.strip() == "red"
    count = client.messages.count_tokens(model="colours", messages=messages).input_tokens
    assert count == reply.usage.input_tokens + reply.usage.cache_read_input_tokens
    text = client.messages.count_tokens(model="colours", messages=[{"role": "user", "content": QUESTION}]).input_tokens
    assert count == text + ROWS


def test_ollama(server):
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(server.url)
    options = {"temperature": 0, "num_predict": 8}
    reply = client.chat("colours", [{"role": "user", "content": QUESTION, "images": [png(RGB["blue"])]}], options=options)
    assert reply.message.content.strip() == "blue"
    assert client.generate("colours", QUESTION, images=[png(RGB["green"])], options=options).response.strip() == "green"
    raw = client.generate("colours", f"user: <__media__>{QUESTION}\nassistant:", raw=True, options=options)
    assert raw.response  # without an image the mark is text


def test_llamacpp(server):
    body = {"prompt": {"prompt_string": f"user: <__media__>{QUESTION}\nassistant:", "multimodal_data": [b64(png(RGB["red"]))]},
            "n_predict": 8, "temperature": 0}
    assert server.ask("/completion", body)["content"].strip() == "red"
    image = body["prompt"]["multimodal_data"][0]
    for text, images, words in (("no mark", [image], b"0 places for 1 images"), ("<__media__>" * 2, [image], b"2 places for 1 images"),
                                ("<__media__>", [], b"multimodal_data no image"), ("<__media__>", image, b"has to be a list of images")):
        status, _, reply = server.request("POST", "/completion", {"prompt": {"prompt_string": text, "multimodal_data": images}})
        assert status == 400 and words in reply, reply


def test_what_others_ask_the_server(server):
    """Ollama's capabilities, llama.cpp's modalities, a rendered template; and how often the tower has run."""
    assert "vision" in server.ask("/api/show", {"model": "colours"})["capabilities"]
    props = server.ask("/props")
    assert props["modalities"] == {"vision": True, "audio": False} and props["media_marker"] == "<__media__>"
    messages = ask(part(png(RGB["red"])))["messages"]
    assert server.ask("/apply-template", {"messages": messages})["prompt"] == f"user: <image>{QUESTION}assistant:"
    image = part(png(tuple(max(0, v - 3) for v in RGB["blue"]), 31, 17))  # no test has shown this shade
    before = server.metric("quern_images_encoded_total")
    first = server.ask("/v1/chat/completions", ask(image))
    turns = [*ask(image)["messages"], {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
             {"role": "user", "content": QUESTION}]
    assert server.ask("/v1/chat/completions", {"messages": turns, "max_tokens": 8, "temperature": 0})["choices"][0]["message"]["content"].strip() == "blue"
    assert server.metric("quern_images_encoded_total") == before + 1  # the second turn encodes nothing


def test_two_images_and_text_that_looks_like_one(server):
    both = [part(png(RGB["red"])), part(png(RGB["blue"])), {"type": "text", "text": "<image> " + QUESTION}]
    body = {"messages": [{"role": "user", "content": both}], "max_tokens": 4, "temperature": 0}
    plain = server.ask("/v1/chat/completions", {**body, "messages": [{"role": "user", "content": "<image> " + QUESTION}]})
    assert server.ask("/v1/chat/completions", body)["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + 2 * ROWS


BAD = [line.split(" ", 2)[1:] for line in (DATA / "images" / "expect.txt").read_text().splitlines() if line.startswith("bad ")]


def test_bad_files(server):
    """Bombs, cut files, wrong magic, polyglots: 400 with a sentence, and the server is as it was."""
    before = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    other = []
    beside = threading.Thread(target=lambda: other.append(server.ask("/v1/completions", {
        "prompt": "Hello", "max_tokens": 600, "ignore_eos": True, "temperature": 0})["usage"]["completion_tokens"]))
    beside.start()
    for name, words in BAD:
        data = (DATA / "images" / name).read_bytes()
        status, _, reply = server.request("POST", "/v1/chat/completions", ask(part(data)))
        error = json.loads(reply)["error"]
        assert status == 400 and error["param"] == "messages[0].content[0]" and words in error["message"], (name, error)
    beside.join()
    assert other == [600]
    assert (int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) - before) * 4096 < 64 << 20
    assert server.ask("/v1/chat/completions", ask(part(png(RGB["red"]))))["choices"][0]["message"]["content"].strip() == "red"


@pytest.mark.parametrize("url, words", [
    ("http://127.0.0.1:1/a.png", "this server fetches no images"), ("https://example.org/a.png", "--image-urls"),
    ("file:///etc/passwd", "has to be a data: URL"), ("data:image/png,abc", "data:image/...;base64,"),
    ("data:image/png;base64,%%%", "not valid base64"), ("data:image/png;base64,", "no image that can be read"), ("", "data: URL")])
def test_bad_urls(server, url, words):
    status, _, reply = server.request("POST", "/v1/chat/completions", ask({"type": "image_url", "image_url": {"url": url}}))
    assert status == 400 and words in json.loads(reply)["error"]["message"], reply


def test_odd_urls(server):
    """What clients write before the base64, and how they break it into lines, is all the same."""
    data = b64(png(RGB["green"]))
    for url in ("data:;base64," + data, "data:image/jpeg;base64," + data, "DATA:image/png;charset=utf-8;BASE64," + data,
                "data:image/png;base64," + "\r\n".join(data[i:i + 20] for i in range(0, len(data), 20)),
                "data:image/png;base64," + data.replace("+", "-").replace("/", "_").rstrip("=")):
        reply = server.ask("/v1/chat/completions", ask({"type": "image_url", "image_url": {"url": url}}))
        assert reply["choices"][0]["message"]["content"].strip() == "green", url[:40]


def test_what_the_model_does_not_read(server):
    """A model that sees says so where it refuses something else; and images stand only where they can."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64(png(RGB["red"]))}}
    for path, body, words in (
            ("/v1/chat/completions", ask({"type": "input_audio", "input_audio": {}}), b"only text and images"),
            ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": [{"type": "document"}]}]}, b"only text and images"),
            ("/v1/messages", {"max_tokens": 4, "system": [image], "messages": [{"role": "user", "content": "a"}]}, b"only in the messages"),
            ("/api/generate", {"prompt": "a", "images": "abc"}, b"images has to be a list"),
            ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": {}}]}, b"images has to be a list")):
        status, _, reply = server.request("POST", path, {"model": "colours", **body})
        assert status == 400 and words in reply, (path, reply)


@pytest.mark.parametrize("image", [{"type": "image_url"}, {"type": "image_url", "image_url": 5}, {"type": "image_url", "image_url": {}},
                                   {"type": "image", "data": 5}, {"type": "input_image"}])
def test_bad_parts(server, image):
    assert server.request("POST", "/v1/chat/completions", ask(image))[0] == 400


def test_limits(binary):
    s = Server(binary, COLOURS, "--device", "cpu", "--limit", "images=1", "--limit", "image-pixels=400", "--limit", "image-bytes=2000")
    ok = s.request("POST", "/v1/chat/completions", ask(part(png(RGB["red"], 20, 20))))
    assert ok[0] == 200
    for body, words in ((ask(part(png(RGB["red"], 21, 20))), "at most 400"), (ask(part(os.urandom(3000))), "limit image-bytes"),
                        ({"messages": [{"role": "user", "content": [part(png(RGB["red"], 2, 2))] * 2}]}, "limit images")):
        status, _, reply = s.request("POST", "/v1/chat/completions", body)
        assert status == 400 and words in json.loads(reply)["error"]["message"], reply
    assert s.stop() == 0


def test_more_images_than_the_context_has_room_for(binary):
    s = Server(binary, COLOURS, "--device", "cpu", "--ctx", "64")
    body = {"messages": [{"role": "user", "content": [part(png(RGB["red"], 2, 2))] * 16}], "max_tokens": 2}
    status, _, reply = s.request("POST", "/v1/chat/completions", body)
    assert status == 400 and json.loads(reply)["error"]["code"] == "context_length_exceeded", reply
    assert s.stop() == 0


def test_urls_are_never_private(binary):
    """With --image-urls too: not this machine, not by a name, not by a redirect; nothing is even connected to."""
    hits = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            hits.append(self.path)
            self.send_error(404)
    web = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    s = Server(binary, COLOURS, "--device", "cpu", "--image-urls")
    for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "169.254.169.254", "[::ffff:127.0.0.1]"):
        url = f"http://{host}:{web.server_port}/a.png"
        status, _, reply = s.request("POST", "/v1/chat/completions", ask({"type": "image_url", "image_url": {"url": url}}))
        message = json.loads(reply)["error"]["message"]
        if "libcurl is not installed" in message:
            pytest.skip(message)
        assert status == 400 and ("not public" in message or "cannot be fetched" in message), (url, message)
    assert hits == [] and s.stop() == 0
    web.shutdown()


def test_text_models_refuse(serve, smollm2):
    s = serve(smollm2)
    image = png(RGB["red"])
    for path, body in (("/v1/chat/completions", ask(part(image))),
                       ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}),
                       ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": [
                           {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64(image)}}]}]}),
                       ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": [b64(image)]}]}),
                       ("/api/generate", {"prompt": "a", "images": [b64(image)]}),
                       ("/completion", {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [b64(image)]}})):
        status, _, reply = s.request("POST", path, body)
        assert status == 400 and b"reads only text" in reply, (path, reply)


class Chat:
    """The chat in a terminal of its own."""

    def __init__(self, binary, home):
        self.parent, child = pty.openpty()
        self.p = subprocess.Popen([str(binary), "run", str(COLOURS), "--temp", "0", "-n", "8", "--device", "cpu"], stdin=child,
                                  stdout=child, stderr=child, close_fds=True, env={**os.environ, "TERM": "dumb", "HOME": str(home)})
        os.close(child)
        self.seen = b""
        self.until(">>> ")

    def type(self, text):
        os.write(self.parent, text.encode() + b"\n")

    def until(self, text, seconds=120):
        text, end = text.encode(), time.time() + seconds
        while text not in self.seen:
            assert time.time() < end and select.select([self.parent], [], [], 5)[0] or time.time() < end, self.seen
            self.seen += os.read(self.parent, 4096)
        self.seen = self.seen[self.seen.index(text) + len(text):]

    def end(self):
        self.type("/bye")
        assert self.p.wait(60) == 0
        os.close(self.parent)


def test_chat_in_the_terminal(binary, terminals, tmp_path):
    """/image FILE, and a path that a terminal writes when a file is dropped on it."""
    for name, rgb in RGB.items():
        (tmp_path / f"my {name}.png").write_bytes(png(rgb))
    chat = Chat(binary, tmp_path)
    chat.type(f"/image {tmp_path}/my blue.png")
    chat.until("4 tokens; it goes with the next message")
    chat.type(QUESTION)
    chat.until(" blue")
    chat.type("/clear")
    dropped = str(tmp_path / "my green.png").replace(" ", "\\ ")
    chat.type(f"{dropped} {QUESTION}")
    chat.until("4 tokens")
    chat.until(" green")
    chat.type("/clear\n/image nowhere.png")
    chat.until("nowhere.png")
    chat.end()


def test_images_of_a_saved_conversation(binary, terminals, tmp_path):
    """/save writes where the images are, /load reads them again: the answer is that of the file as it is then."""
    file = tmp_path / "a.png"
    file.write_bytes(png(RGB["blue"]))
    chat = Chat(binary, tmp_path)
    chat.type(f"/image {file}")
    chat.until("it goes with the next message")
    chat.type(QUESTION)
    chat.until(" blue")
    chat.type(f"/save {tmp_path}/talk.json")
    chat.until("2 messages written")
    assert str(file) in (tmp_path / "talk.json").read_text()
    for colour in ("blue", "red"):
        file.write_bytes(png(RGB[colour]))
        chat.type(f"/clear\n/load {tmp_path}/talk.json")
        chat.until("2 messages read")
        chat.type("/retry")
        chat.until(f" {colour}")
    file.unlink()
    chat.type(f"/load {tmp_path}/talk.json")
    chat.until("cannot be read again")
    chat.end()


def test_every_family_goes_on_as_the_reference(binary, shared):
    """Prompts with one and two images, of every family: the same tokens as in transformers, by the engine."""
    folder = shared / "ref" / "vision"
    if not folder.is_dir():
        pytest.skip("no reference data of images")
    s = Server(binary, "--models-dir", folder, "--device", "cpu", "--exact")
    for model in sorted(p.name for p in folder.iterdir()):
        ref = json.loads((folder / model / "ref.json").read_text())
        for case in ref["cases"]:
            images = [b64((folder / model / ref["images"][i]["file"]).read_bytes()) for i in case["images"]]
            body = {"model": model, "prompt": {"prompt_string": case["prompt"], "multimodal_data": images}, "temperature": 0, "n_predict": 16,
                    "allowed_token_ids": list(range(300)), "ignore_eos": True, "return_tokens": True, "add_special_tokens": False}
            reply = s.ask("/completion", body)
            assert reply["tokens"] == case["greedy"], (model, case["prompt"])
            assert reply["tokens_evaluated"] == len(case["tokens"])
    assert s.stop() == 0
