"""The chat in a real terminal (tmux): paste, resize, Ctrl-C, history, wrapping, completion, non-Latin text."""
import json
import os
import re
import shutil
import subprocess
import time

import pytest

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed: scripts/setup test")


class Screen:
    """A program in a window of tmux."""

    def __init__(self, folder, args, width=60, height=24, **env):
        self.socket, self.env = str(folder / "tmux"), {**os.environ, "XDG_STATE_HOME": str(folder), "LC_ALL": "C.UTF-8", **env}
        self.env.pop("TMUX", None)
        self.args, self.size = [str(a) for a in args], [str(width), str(height)]
        self.start()

    def start(self, *more):
        """Also once more, after it has ended."""
        command = [*self.args, *map(str, more)]
        done = self.tmux("new-session", "-d", "-x", self.size[0], "-y", self.size[1], *command)
        if done.returncode:
            pytest.skip(f"tmux does not start here: {done.stderr}")
        self.tmux("set-option", "-g", "history-limit", "5000")
        self.wait(r"^>>>$")

    def tmux(self, *args, stdin=None):
        return subprocess.run(["tmux", "-u", "-S", self.socket, "-f", "/dev/null", *args], env=self.env, input=stdin, capture_output=True,
                              text=True, timeout=60)

    def text(self, joined=True):
        """The screen and what has scrolled off it; joined: lines that only the terminal has broken are whole."""
        lines = self.tmux("capture-pane", "-p", *(["-J"] if joined else []), "-S", "-", "-t", ":").stdout.splitlines()
        return "\n".join(line.rstrip() for line in lines).rstrip("\n") + "\n"

    def wait(self, pattern, seconds=60):
        end = time.monotonic() + seconds
        while not (m := re.search(pattern, self.text(), re.M)):
            assert time.monotonic() < end, f"no {pattern!r} on the screen:\n{self.text()}"
            time.sleep(0.03)
        return m

    def keys(self, *keys):
        self.tmux("send-keys", "-t", ":", *keys)

    def type(self, text):
        self.tmux("send-keys", "-t", ":", "-l", text)

    def ask(self, text):
        """Types a line, and waits for the next prompt."""
        self.type(text)
        self.send()

    def send(self):
        """Enter, and waits for the next prompt."""
        before = self.text().count(">>>")
        self.keys("Enter")
        self.prompt(before + 1)

    def prompt(self, count):
        end = time.monotonic() + 60
        while self.text().count(">>>") < count or not self.text().endswith(">>>\n"):
            assert time.monotonic() < end, f"no prompt:\n{self.text()}"
            time.sleep(0.03)

    def paste(self, text):
        self.tmux("load-buffer", "-", stdin=text)
        self.tmux("paste-buffer", "-p", "-t", ":")

    def resize(self, width, height):
        """Until the program's terminal has the size: tmux sets it a moment later."""
        self.tmux("resize-window", "-t", ":", "-x", str(width), "-y", str(height))
        tty, end = self.tmux("display-message", "-p", "-t", ":", "#{pane_tty}").stdout.strip(), time.monotonic() + 60
        fd = os.open(tty, os.O_RDONLY | os.O_NOCTTY)
        while os.get_terminal_size(fd).columns != width:
            assert time.monotonic() < end, (width, os.get_terminal_size(fd))
            time.sleep(0.03)
        os.close(fd)

    def clear(self):
        self.tmux("clear-history", "-t", ":")

    def gone(self):
        end = time.monotonic() + 60
        while not self.tmux("has-session").returncode:
            assert time.monotonic() < end, self.text()
            time.sleep(0.03)

    def end(self):
        self.tmux("kill-server")


@pytest.fixture
def screen(binary, tiny, tmp_path, terminals):
    opened = []

    def start(*args, **how):
        opened.append(Screen(tmp_path, [binary, "run", tiny[0], "--template", tiny[2], "--temp", "0", "--ctx", "512", *args], **how))
        return opened[-1]
    yield start
    for s in opened:
        s.end()


def kept(tmp_path):
    """The messages of the conversation that is kept for --continue."""
    return json.loads((tmp_path / "quern" / "chat.json").read_text())["messages"]


def test_paste_is_one_message(screen, tmp_path):
    s = screen("-n", "4")
    assert "tiny: 512 tokens of context, on" in s.text()  # the banner
    s.paste('one\n"""two\nthree\n')
    s.wait("three")
    assert not (tmp_path / "quern" / "chat.json").exists()  # nothing was sent yet
    s.type(" and more")
    s.keys("Enter")
    s.wait(r"\[cut after 4 tokens")
    s.prompt(2)
    assert [m["content"] for m in kept(tmp_path) if m["role"] == "user"] == ['one\n"""two\nthree and more']
    s.paste("x" * 3000)  # longer than the screen, and than the context
    s.keys("Enter")
    s.wait("the prompt has 30.. tokens and there is room for 512")
    s.paste("short\n\n\tone")
    s.send()
    assert len(kept(tmp_path)) == 4 and kept(tmp_path)[2]["content"] == "short\n\n\tone"  # the first turn is still there


def test_wrapping_and_resize(screen):
    s = screen("-n", "40")
    s.ask("hi")
    answer = [line for line in s.text(joined=False).splitlines() if re.match(r"w\d", line.strip())]
    assert len(answer) > 3 and all(len(line) <= 60 for line in answer)
    assert all(re.fullmatch(r"( ?w\d+)+", line.rstrip()) for line in answer)  # no word is cut
    s.clear()
    s.resize(34, 24)
    s.type("a line that is longer than the narrow window is wide")
    s.wait("window")
    s.resize(100, 24)
    s.wait(r"^>>> a line that is longer than the narrow window is wide$")
    s.keys("C-u")
    s.wait(r"^>>>$")
    s.ask("hi")
    assert any(re.match(r"w\d", line.strip()) and len(line) > 60 for line in s.text(joined=False).splitlines())


def test_non_latin_text(screen, tmp_path):
    s = screen("--regex", "[水車小屋石臼粉挽]{80}", "--ctx", "2048", width=31)
    s.ask("Мельница 水車 방앗간 طاحونة")
    assert kept(tmp_path)[0]["content"] == "Мельница 水車 방앗간 طاحونة"
    answer = kept(tmp_path)[1]["content"]
    assert len(answer) == 80
    lines = [line for line in s.text(joined=False).splitlines() if re.fullmatch("[水車小屋石臼粉挽]+", line)]
    assert "".join(lines) == answer and {len(line) for line in lines[:-1]} == {15}  # 30 of 31 columns
    s.type("水車小")
    s.keys("BSpace", "Left", "BSpace")
    s.send()
    assert kept(tmp_path)[2]["content"] == "車"


def test_interrupts_and_history(screen, tmp_path):
    s = screen()
    s.type("tell me a very long story")
    s.keys("Enter")
    s.wait(r"w\d+ w\d+")
    s.keys("C-c")
    s.wait(r"\[stopped\]")
    s.prompt(2)
    s.type("half a line")
    s.wait("half a line")
    s.keys("C-c")
    s.prompt(3)
    s.keys("Up")
    s.wait(">>> tell me a very long story$")
    s.keys("C-u")
    s.type("/set top_k 1")
    s.keys("Enter")
    s.wait(r">>> /set top_k 1\n")
    s.keys("C-r")
    s.type("very")
    s.wait("tell me a very long story")
    s.keys("C-c")
    s.type("/bye")
    s.keys("Enter")
    s.gone()
    s.start()  # the history is still there
    s.keys("Up", "Up")
    s.wait(">>> /set top_k 1$")
    s.keys("C-u")
    s.type("/bye")
    s.keys("Enter")
    s.gone()


def test_completion(screen, tmp_path):
    s = screen("-n", "4")
    s.type("/re")
    s.keys("Tab")
    s.wait(">>> /retry")
    s.keys("C-u")
    s.type("/s")
    s.keys("Tab")
    s.wait(r"^/save\n/stats\n|^/system\n/set\n/save\n/stats\n")
    s.keys("C-u")
    (tmp_path / "my notes").mkdir()
    (tmp_path / "my notes" / "chat.json").write_text('[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]')
    s.type(f"/load {tmp_path}/my")
    s.keys("Tab")
    s.type("ch")
    s.keys("Tab", "Enter")
    s.wait("2 messages read")


def test_retry_edit_and_continue(screen, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/mill/quern/" "$1"\n')
    editor.chmod(0o755)
    s = screen("-n", "6", EDITOR=str(editor))
    s.ask("/retry")
    assert "there is no question yet" in s.text()
    s.ask("what is a mill")
    first = kept(tmp_path)
    s.ask("/retry")
    assert kept(tmp_path) == first  # at temperature 0 the same
    s.ask("/set temp 2")
    s.ask("/set top_k 0")
    s.ask("/retry")
    assert kept(tmp_path)[0] == first[0] and kept(tmp_path)[1] != first[1]
    s.ask("/edit")
    assert [m["content"] for m in kept(tmp_path)][0] == "what is a quern" and len(kept(tmp_path)) == 2
    s.ask("/rety")
    assert "did you mean /retry?" in s.text()
    s.type("/bye")
    s.keys("Enter")
    s.gone()
    s.start("--continue")
    assert "going on with 2 messages" in s.text() and ">>> what is a quern" in s.text()
    s.ask("and then")
    assert [m["role"] for m in kept(tmp_path)] == ["user", "assistant"] * 2


def test_context_shift(screen, tmp_path):
    s = screen("--system", "be brief", "-n", "40")
    for word in ("one", "two", "three", "four", "five", "six", "seven", "eight"):
        s.ask(word)
    assert "the oldest turn was dropped" in s.text()
    messages = kept(tmp_path)
    assert messages[0] == {"role": "system", "content": "be brief"} and messages[-2]["content"] == "eight"
    assert 3 < len(messages) < 17 and all(m["content"] for m in messages)
    s.type("/bye")
    s.keys("Enter")
    s.gone()
    s.start("--continue", "--no-context-shift")
    for word in ("nine", "ten", "eleven"):
        s.ask(word)
    assert re.search("the prompt has .* tokens and there is room for 512|the context of 512 tokens is full:", s.text())


def test_an_answer_goes_on_without_the_oldest_turn(screen, tmp_path):
    s = screen("--regex", ":{300}")
    s.ask("one")
    s.ask("two")
    assert "the oldest turn was dropped]" in s.text() and "is full: /clear" not in s.text()
    assert [m["content"] for m in kept(tmp_path)] == ["two", ":" * 300]
