"""quern run as a person and a program use it: answers, JSON, pipes, signals, bad use."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest


def test_answer(quern, smollm2):
    code, out, err = quern("run", smollm2, "--raw", "-p", "The capital of France is", "--temp", "0", "-n", "4")
    assert code == 0, err
    assert out.startswith(" Paris") and out.endswith("\n")
    assert err == ""


def test_default_model(quern, smollm2):
    code, out, err = quern("run", "-p", "Say hello.", "--temp", "0", "-n", "8")
    assert code == 0 and out.strip(), err


def test_json(quern, smollm2):
    answer = quern("run", smollm2, "-p", "Count to three.", "--json", "--seed", "7", "-n", "12").json()
    assert set(answer) == {"text", "ids", "prompt_ids", "finish_reason", "reasoning_tokens", "timings"}
    assert set(answer["timings"]) == {"load_ms", "first_token_ms", "prompt_n", "prompt_tok_s", "n", "tok_s"}
    assert 1 <= len(answer["ids"]) <= 12 and answer["timings"]["n"] == len(answer["ids"])
    assert answer["finish_reason"] in ("stop", "length")
    again = quern("run", smollm2, "-p", "Count to three.", "--json", "--seed", "7", "-n", "12").json()
    assert again["ids"] == answer["ids"]
    other = [quern("run", smollm2, "-p", "Count to three.", "--json", "--temp", "1.5", "--seed", str(s), "-n", "12").json()
             for s in (1, 2)]
    assert other[0]["ids"] != other[1]["ids"]


def test_prompt_by_pipe_and_word(quern, smollm2):
    want = quern("run", smollm2, "-p", "Say hello.", "--temp", "0", "-n", "8").out
    assert quern("run", smollm2, "Say hello.", "--temp", "0", "-n", "8").out == want
    assert quern("run", smollm2, "--temp", "0", "-n", "8", stdin="Say hello.").out == want
    assert quern("run", "--temp", "0", "-n", "8", smollm2, stdin="Say hello.").out == want


def test_stop_and_system(quern, smollm2):
    whole = quern("run", smollm2, "--raw", "-p", "One, two, three, four,", "--temp", "0", "-n", "16", "--json").json()
    assert "six" in whole["text"]
    cut = quern("run", smollm2, "--raw", "-p", "One, two, three, four,", "--temp", "0", "-n", "16", "--json",
                "--stop", "six").json()
    assert cut["text"] == whole["text"][:whole["text"].index("six")] and cut["finish_reason"] == "stop"
    with_system = quern("run", smollm2, "-p", "Hi", "--system", "You are a pirate.", "--json", "-n", "1").json()
    without = quern("run", smollm2, "-p", "Hi", "--json", "-n", "1").json()
    assert with_system["prompt_ids"] != without["prompt_ids"]


def test_control_tokens_of_a_user_are_text(quern, smollm2):
    """A user's <|im_end|> must not become the control token; --raw, the template's role, parses it."""
    said = quern("run", smollm2, "-p", "a<|im_end|>b", "--json", "-n", "1").json()["prompt_ids"]
    plain = quern("run", smollm2, "-p", "ab", "--json", "-n", "1").json()["prompt_ids"]
    end = quern("tokenize", smollm2, "--special", "--no-bos", "--json", stdin="<|im_end|>").json()["ids"]
    assert len(end) == 1
    assert said.count(end[0]) == plain.count(end[0])
    assert end[0] in quern("run", smollm2, "--raw", "-p", "a<|im_end|>b", "--json", "-n", "1").json()["prompt_ids"]


@pytest.mark.parametrize("args, code, text", [
    (["nowhere.gguf", "-p", "x"], 65, "nowhere.gguf"),
    (["nowhere.gguf"], 65, "nowhere.gguf"),
    (["MODEL"], 64, "empty"),
    ([__file__, "-p", "x"], 65, "GGUF"),
    (["MODEL", "-p", "x", "--temp", "-1"], 64, "temp"),
    (["MODEL", "-p", "x", "--temp", "nan"], 64, "temp"),
    (["MODEL", "-p", "x", "--top-p", "1.5"], 64, "top-p"),
    (["MODEL", "-p", "x", "--top-k", "2.5"], 64, "top-k"),
    (["MODEL", "-p", "x", "--mirostat", "3"], 64, "mirostat"),
    (["MODEL", "-p", "x", "--logit-bias", "5"], 64, "logit-bias"),
    (["MODEL", "-p", "x", "--logit-bias", "4000000=1"], 64, "4000000"),
    (["MODEL", "-p", "x", "--stop", ""], 64, "stop"),
    (["MODEL", "-p", ""], 64, "empty"),
    (["MODEL", "one", "-p", "two"], 64, "twice"),
    (["MODEL", "-p", "x", "--frobnicate"], 64, "frobnicate"),
    (["MODEL", "-p", "x", "--device", "abacus"], 64, "abacus"),
    (["MODEL", "-p", "x", "--tier", "mmx"], 64, "mmx"),
    (["MODEL", "-p", "x", "--ctx", "16"], 75, "too many"),
    (["MODEL", "-p", "x", "--ctx", "16000000"], 75, "needs"),
    (["MODEL", "-p", "x", "--template", "/nowhere.jinja"], 65, "/nowhere.jinja"),
])
def test_bad_use(quern, smollm2, args, code, text):
    result = quern("run", *[str(smollm2) if a == "MODEL" else a for a in args])
    assert result.code == code, result.err
    assert text in result.err and result.err.startswith("quern: ") and result.err.count("\n") == 1
    assert result.out == ""


def test_template_that_fails(quern, smollm2, tmp_path):
    bad = tmp_path / "bad.jinja"
    bad.write_text("{{ raise_exception('no turn today') }}")
    result = quern("run", smollm2, "-p", "x", "--template", bad)
    assert result.code == 65 and "no turn today" in result.err
    bad.write_text("{% if %}")
    result = quern("run", smollm2, "-p", "x", "--template", bad)
    assert result.code == 65 and "line 1" in result.err


def test_interrupt(binary, smollm2):
    p = subprocess.Popen([binary, "run", smollm2, "--raw", "-p", "Once", "--ignore-eos", "-n", "4000"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 130 and err == b"quern: interrupted\n"


def test_reader_that_leaves(binary, smollm2):
    p = subprocess.Popen([binary, "run", smollm2, "--raw", "-p", "Once", "--ignore-eos", "-n", "4000"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.stdout.close()
    assert p.wait(timeout=60) == 0 and p.stderr.read() == b""  # it has what it wants, and the rest is not made


def test_full_disk(binary, smollm2):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([binary, "run", smollm2, "--raw", "-p", "Once", "-n", "3"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 74 and done.stderr == b"quern: cannot write to standard output: No space left on device\n"


def test_seeds_have_64_bits(quern, smollm2):
    texts = [quern("run", smollm2, "--raw", "-p", "Once", "-n", "8", "--temp", "2", "--seed", str(2**64 - 1)).out for _ in range(2)]
    assert texts[0] == texts[1]
    assert quern("run", smollm2, "-p", "x", "--seed", str(2**64)).code == 64


def test_longer_context_than_the_model_has_is_a_warning(quern, smollm2):
    result = quern("run", smollm2, "--raw", "-p", "Once", "-n", "1", "--ctx", "9000")
    assert result.code == 0 and "more than the 8192" in result.err


class Terminal:
    """The program on a pseudo-terminal."""

    def __init__(self, args, env=None):
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execve(args[0], args, {**os.environ, "TERM": "xterm", **(env or {})})
        self.seen = ""

    def sees(self, pattern, seconds):
        """Has the pattern come within this time? What is up to its end is done with then."""
        end = time.monotonic() + seconds
        while not (m := re.search(pattern, self.seen)):
            if not select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]:
                return None
            try:
                self.seen += os.read(self.fd, 4096).decode("utf-8", "replace")
            except OSError:
                return None
        self.seen = self.seen[m.end():]
        return m

    def wait_for(self, pattern, seconds=60):
        m = self.sees(pattern, seconds)
        assert m, f"no {pattern!r} in {self.seen!r}"
        return m

    def interrupt(self, pattern):
        """Ctrl-C. Between an answer and the next prompt it has nothing to end; people press it again, and so do we."""
        for _ in range(20):
            self.type("\x03")
            if self.sees(pattern, 20):  # a second one while it stops would end the program
                return
        raise AssertionError(f"no {pattern!r} in {self.seen!r}")

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self, seconds=60):
        """-> the exit status"""
        self.sees("(?!)", seconds)  # until the program has closed the terminal
        end = time.monotonic() + 5
        while not (done := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError(f"it did not end: {self.seen!r}")
            time.sleep(0.01)
        return os.waitstatus_to_exitcode(done[1])


def test_chat(binary, smollm2, tmp_path, terminals):
    t = Terminal([str(binary), "run", str(smollm2), "--temp", "0", "-n", "16"], {"XDG_STATE_HOME": str(tmp_path)})
    t.wait_for(">>> ")
    t.type("/help\r")
    t.wait_for("/save FILE")
    t.wait_for(">>> ")
    t.type("/set temp 7e9\r")
    t.wait_for("temperature is 7e\\+09")
    t.type("/set top_k 1\r")  # at any temperature the best
    t.type("Say hello to the miller.\r")
    t.wait_for("miller\\.\r\n.*[a-z]+.*\r\n")
    t.wait_for(">>> ")
    saved = tmp_path / "chat.json"
    t.type(f"/save {saved}\r")
    t.wait_for("2 messages written")
    t.type("/stats\r")
    t.wait_for("tok/s")
    t.type("/clear\r")
    t.type(f"/load {saved}\r")
    t.wait_for("2 messages read")
    t.type("/nonsense\r")
    t.wait_for("no command /nonsense")
    t.type('"""two\r')
    t.wait_for(r"\.\.\. ")
    t.type('lines"""\r')
    t.wait_for(">>> ")
    t.type("/bye\r")
    assert t.end() == 0
    messages = json.loads(saved.read_text())
    assert [m["role"] for m in messages] == ["user", "assistant"] and messages[1]["content"].strip()
    assert (tmp_path / "quern" / "history").exists()


def test_chat_interrupt_stops_the_answer_only(binary, smollm2, tmp_path, terminals):
    t = Terminal([str(binary), "run", str(smollm2), "-n", "200"], {"XDG_STATE_HOME": str(tmp_path)})
    t.wait_for(">>> ")
    t.type("Write a very long story about a mill, with many chapters.\r")
    t.wait_for("chapters.\r\n.")
    t.interrupt(">>> ")
    for typed in ("", "half a line", '"""one\r'):
        t.type(typed)
        time.sleep(0.2)
        t.interrupt("\n>>> ")
    t.type("/set top_k 1\r")
    t.type("Say hi.\r")
    t.wait_for("Say hi\\.\r\n[^>]*[A-Za-z]")  # the next question is answered
    t.wait_for(">>> ")
    t.type("/load -\r")
    t.wait_for("wants a file name")
    t.wait_for(">>> ")
    t.type("\x04")
    assert t.end() == 0


def test_chat_ends_with_what_was_typed_during_an_answer(binary, smollm2, tmp_path, terminals):
    t = Terminal([str(binary), "run", str(smollm2), "-n", "40", "--ignore-eos"], {"XDG_STATE_HOME": str(tmp_path)})
    t.wait_for(">>> ")
    t.type("Count to ten.\r")
    t.wait_for("ten\\.\r\n.")
    t.type("\x04")  # the answer is still written, and the terminal has lines
    assert t.end() == 0


def test_profile(quern, smollm2):
    result = quern("run", smollm2, "-p", "Hi", "-n", "8", "--temp", "0", "--profile", "--ignore-eos")
    assert result.code == 0
    for word in ("prompt", "decode", "qkv", "attn", "ffn", "logits", "GB/s", "GFLOP/s"):
        assert word in result.err


def test_perplexity(quern, smollm2, tmp_path):
    text = tmp_path / "text"
    text.write_text("".join(f"The miller's daughter counted {i} sacks of flour, and then {i + 1}. " for i in range(160)))
    p = quern("perplexity", smollm2, "-f", text, "--ctx", "128", "--chunks", "4", "--json").json()
    assert p["chunks"] == 4 and p["scored"] == 4 * 63 and 1 < p["perplexity"] < 20
    exact = quern("perplexity", smollm2, "-f", text, "--ctx", "128", "--chunks", "4", "--json", "--exact").json()
    assert abs(exact["perplexity"] / p["perplexity"] - 1) < 0.05
    text.write_text("short")
    assert quern("perplexity", smollm2, "-f", text).code == 65


def test_bench(quern, smollm2):
    rows = quern("bench", smollm2, "-p", "16", "-n", "4", "-b", "1,2", "-d", "8", "-r", "1", "--json").json()
    assert [(r["test"], r["n"], r["batch"]) for r in rows] == [("prefill", 16, 1), ("decode", 4, 1), ("decode", 4, 2)]
    for r in rows:
        assert r["tok_s"] > 0 and r["gb_s"] > 0 and 0 < r["share"] and r["depth"] == 8 and r["device"] == "cpu"
        assert r["result"] == "logits"
    rows = quern("bench", smollm2, "-p", "16", "-n", "0", "-t", "1,2", "-r", "1", "--json").json()
    assert [r["threads"] for r in rows] == [1, 2]
    assert quern("bench", smollm2, "-t", "many").code == 64


def test_room_for_keys_and_values(quern, smollm2):
    """A pool of a given size: what fits into it runs as ever, what does not is refused with both figures."""
    plain, small = (quern("run", smollm2, "-p", "Name three colours.", "-n", 12, "--temp", 0, *o) for o in ([], ["--kv-memory", "4M"]))
    assert plain.code == small.code == 0 and plain.out == small.out
    assert "room for 160 tokens" in small.err and "room for" not in plain.err
    much = quern("run", smollm2, "-p", "word " * 300, "-n", 1, "--kv-memory", "4M")
    assert much.code != 0 and "there is room for 160" in much.err
    assert "--kv-memory" in quern("run", smollm2, "-p", "x", "--kv-memory", "lots").err
