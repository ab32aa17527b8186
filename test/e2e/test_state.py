"""Models with recurrent state: by the server's own counts the next turn of a conversation computes its own tokens, and whatever
is cached, evicted, speculated or read from disk, the text is the same."""
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import ROOT
from server import Server

CHAT = "/v1/chat/completions"
EVERY = 64  # tokens between two snapshots
EXACT = ["--device", "cpu", "--exact", "--tier", "scalar", "--ctx", "4096", "--snapshot-every", EVERY]
SERVE = [*EXACT, "--reasoning", "none"]
PROMPT_END = 24  # tokens of "<s>assistant\n<think>\n", at most


@pytest.fixture(scope="module")
def hybrid():
    """A tiny model (falcon-h1) with a tokenizer, and a template that forgets how the model began its answers."""
    return ROOT / "test" / "data" / "hybrid"


@pytest.fixture(scope="module")
def serve(binary):
    servers = []

    def start(*args):
        servers.append(Server(binary, *args))
        return servers[-1]
    yield start
    for s in servers:
        if s.process.poll() is None:
            assert s.stop() == 0


class Talk:
    """A conversation: what each turn's prompt has, and how much of it was computed."""

    def __init__(self, server, name="a"):
        self.server, self.name, self.messages, self.prompts, self.computed = server, name, [], [], []

    def send(self, messages=None, **options):
        body = {"messages": messages or self.messages, "max_tokens": 16, "temperature": 0, **options}
        answer = self.server.ask(CHAT, body)
        n, cached = answer["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["message"]["content"], n, n - cached

    def turn(self, **options):
        said = f"Message {len(self.messages)} of {self.name}: " + "so many words " * (1 + len(self.messages) % 3)
        self.messages.append({"role": "user", "content": said})
        text, n, computed = self.send(**options)
        self.prompts.append(n)
        self.computed.append(computed)
        self.messages.append({"role": "assistant", "content": text})

    def check(self, start=1):
        """Each turn computes what follows the end of the last one's prompt, and nothing else."""
        for i in range(start, len(self.prompts)):
            own = self.prompts[i] - self.prompts[i - 1]
            assert own < self.computed[i] + PROMPT_END and self.computed[i] <= own + PROMPT_END, (i, self.prompts, self.computed)


def test_twenty_turns(serve, hybrid):
    s = serve(hybrid, *SERVE, "--slots", "2", "--state-memory", "60M")
    talk = Talk(s)
    for _ in range(20):
        talk.turn()
    talk.check()
    assert talk.prompts[-1] > 10 * EVERY
    assert s.metric("quern_state_snapshots") > 20
    # another text in the middle: what comes before it is known up to the last snapshot
    for i in (5, 11, 16):
        changed = [dict(m) for m in talk.messages]
        changed[2 * i + 1]["content"] = "Something else."
        _, n, computed = talk.send(changed)
        assert computed <= n - talk.prompts[i] + PROMPT_END + EVERY
    # the last one again: all of it is known, up to the end of the prompt
    text, n, computed = talk.send(talk.messages[:-1])
    assert text == talk.messages[-1]["content"] and computed <= PROMPT_END


def test_restart(serve, hybrid, tmp_path):
    flags = [*SERVE, "--slots", "2", "--cache-dir", tmp_path / "cache"]
    talk = Talk(serve(hybrid, *flags))
    for _ in range(6):
        talk.turn()
    again = talk.send(talk.messages[:-1])
    assert talk.server.stop() == 0
    talk.server = serve(hybrid, *flags)
    assert talk.send(talk.messages[:-1]) == again
    for _ in range(3):
        talk.turn()
    talk.check()
    talk.server.settle()
    assert talk.server.stop() == 0
    for f in (tmp_path / "cache").iterdir():
        data = bytearray(f.read_bytes())
        data[len(data) // 2] ^= 16
        f.write_bytes(data)
    talk.server = serve(hybrid, *flags)
    text, n, computed = talk.send(talk.messages[:-1])
    assert text == talk.messages[-1]["content"] and computed == n


def test_little_memory(serve, hybrid):
    """Many conversations at once, with room for hardly one, say what they say alone with room for all."""
    roomy = serve(hybrid, *SERVE, "--slots", "4")
    tight = serve(hybrid, *SERVE, "--slots", "4", "--state-memory", "1", "--kv-memory", "2M", "--speculate", "always")
    pairs = [(Talk(roomy, str(i)), Talk(tight, str(i))) for i in range(6)]
    for room, _ in pairs:
        for _ in range(4):
            room.turn()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda pair: [pair[1].turn() for _ in range(4)], pairs))
    for room, talk in pairs:
        assert room.messages == talk.messages
        room.check()
    assert tight.metric("quern_state_slots") == 5 and tight.metric("quern_failed_total") == 0


def test_several_answers(serve, hybrid):
    """The prompt is computed once, whatever number of answers it gets."""
    s = serve(hybrid, *SERVE, "--slots", "4")
    body = {"messages": [{"role": "user", "content": "one two three " * 40}], "max_tokens": 12, "temperature": 0.9, "seed": 3}
    alone = s.ask(CHAT, body)
    n = alone["usage"]["prompt_tokens"]
    body["messages"][0]["content"] = "four five six " * 40
    before = s.metric("quern_prompt_tokens_total")
    four = s.ask(CHAT, {**body, "n": 4})
    s.settle()
    assert s.metric("quern_prompt_tokens_total") - before <= n + 4 * (32 + PROMPT_END)
    texts = [c["message"]["content"] for c in four["choices"]]
    assert len(set(texts)) > 1 and texts == [c["message"]["content"] for c in s.ask(CHAT, {**body, "n": 4})["choices"]]


def test_speculation(quern, hybrid):
    prompt = "<s>user\n" + "the same words again and again, " * 6
    flags = ["--device", "cpu", "--exact", "--tier", "scalar", "--raw", "-p", prompt, "-n", "64", "--json"]
    for temp in (0, 0.3):
        plain = quern("run", hybrid, *flags, "--temp", temp, "--seed", 5, "--speculate", "off").json()
        for how in (["--speculate", "always"], ["--draft", hybrid, "--draft-n", "4", "--speculate", "always"]):
            other = quern("run", hybrid, *flags, "--temp", temp, "--seed", 5, *how).json()
            assert other["ids"] == plain["ids"]
            assert "--draft" not in how or other["speculation"]["accepted"] > 10


def test_other_verbs(quern, hybrid, tmp_path):
    text = tmp_path / "text"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    exact = ["--device", "cpu", "--exact", "--tier", "scalar"]
    whole = quern("perplexity", hybrid, "-f", text, *exact, "--ctx", "128", "--json").json()
    assert 1 < whole["perplexity"] < 3000
    vectors = quern("embed", hybrid, "a text", "another one", *exact, "--json")
    assert vectors.code == 0, vectors.err
    assert "state" in quern("info", hybrid).out
