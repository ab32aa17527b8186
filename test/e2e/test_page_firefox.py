"""The chat page in Firefox."""
import pytest

from firefox import FIREFOX, Firefox
from server import Server

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FIREFOX, reason="firefox-esr is not installed")]
ENTER = "\ue007"
REPLY = r"""
    const real = window.fetch;
    window.fetch = (url, o) => String(url) !== "/v1/chat/completions" ? real(url, o) : Promise.resolve(new Response(
        ["# Title\n\n- [x] done\n\n| a | b |\n|--:|---|\n| 1 | 2 |\n\n$x^2$\n\n```python\ndef f(): pass\n```\n"].map((content) =>
            "data: " + JSON.stringify({ choices: [{ index: 0, delta: { content } }] }) + "\n\n").join("") + "data: [DONE]\n\n"));
"""


@pytest.fixture(scope="module")
def firefox(tmp_path_factory):
    pytest.importorskip("websockets", reason="the package websockets is not installed")
    f = Firefox(tmp_path_factory.mktemp("firefox"))
    yield f
    f.close()


def test_talks_formats_and_remembers(firefox, binary, tiny):
    s = Server(binary, *tiny)
    try:
        firefox.goto(s.url)
        firefox.wait("document.body.dataset.ready")
        assert firefox.evaluate("document.querySelector('#model-name').textContent") == "tiny"
        firefox.evaluate("localStorage.setItem('quern.settings', JSON.stringify({ max_tokens: 12 }))")
        firefox.reload()
        firefox.wait("document.body.dataset.ready")
        firefox.type("hello" + ENTER)  # a real answer
        firefox.wait("document.querySelector('.turn.assistant[aria-busy=false] .meta')?.textContent.includes('tokens')")
        firefox.evaluate(f"(() => {{ {REPLY} }})()")
        firefox.type("format" + ENTER)
        firefox.wait("document.querySelectorAll('.turn.assistant[aria-busy=false]').length == 2 && document.querySelector('.hljs-keyword') && document.querySelector('.katex')")
        assert firefox.evaluate("getComputedStyle(document.querySelector('td')).textAlign") == "right"
        firefox.reload()
        firefox.wait("document.querySelectorAll('.turn').length == 4")
        assert firefox.evaluate("document.querySelectorAll('#list li').length") == 1
        firefox.type("a draft")
        firefox.reload()
        firefox.wait("document.querySelector('#text').value == 'a draft'")
        firefox.goto(s.url + "/status")
        firefox.wait("document.querySelector('.pill.good') && document.querySelectorAll('.plot').length >= 6")
    finally:
        s.kill()
