"""Pictures of the pages, for doc/: QUERN_SHOTS=doc pytest -m slow test/e2e/test_page_shots.py. What they weigh, and how fast they paint."""
import json
from pathlib import Path

import pytest

from browser import ask, chunk, finished, opened, ready, shot

pytestmark = pytest.mark.slow
SAMPLE = Path(__file__).with_name("page_sample.md").read_text()
MODELS = [("Qwen3-8B-Q4_K_M", 8.2e9, 5.0e9, 40960, "Q4_K_M", ["chat", "tools", "reasoning"], "loaded"),
          ("gemma-3-4b-it-Q4_K_M", 4.3e9, 2.5e9, 131072, "Q4_K_M", ["chat", "vision"], "loading"),
          ("SmolLM2-135M-Instruct.Q4_1", 1.35e8, 9.8e7, 8192, "Q4_1", ["chat"], "unloaded")]
OLD = ["Plan a week in Lisbon", "Why is my SQL join slow?", "Rewrite a cover letter", "Unit tests for a parser", "Names for a grey cat"]


def models(route):
    data = []
    for name, params, size, ctx, kind, can, state in MODELS:
        status = {"value": state} | ({"device": "cuda", "memory": int(size * 1.2)} if state == "loaded" else {}) | ({"progress": 0.6} if state == "loading" else {})
        data.append({"id": name, "object": "model", "max_model_len": ctx, "meta": {"n_params": params, "size": size, "type": kind, "capabilities": can}, "status": status})
    route.fulfill(json={"object": "list", "data": data})


def prepare(page):
    """A page as one has it after some days."""
    page.evaluate("""(titles) => new Promise((done) => {
        const open = indexedDB.open("quern");
        open.onsuccess = () => {
            const t = open.result.transaction(["conversations", "heads"], "readwrite");
            titles.forEach((title, i) => {
                const id = String(i).padStart(32, "0"), changed = Date.now() - [0.1, 1, 1.1, 4, 5][i] * 86400000;
                const m = { id: "q", parent: null, role: "user", text: title, files: [], created: changed, rev: 1 };
                t.objectStore("conversations").put({ id, title, model: "", system: "", pinned: false, leaf: "q", stamps: {}, created: changed, changed, messages: { q: m } });
                t.objectStore("heads").put({ id, title, changed, pinned: i === 4, model: "" });
            });
            t.oncomplete = () => { open.result.close(); done(); };
        };
    })""", OLD)
    page.route("**/v1/models", models)
    page.reload()
    ready(page)


def reply(route):
    body = "".join(chunk(reasoning_content=w + " ") for w in "The question wants a tour of what can be formatted.".split())
    body += "".join(chunk(content=SAMPLE[i:i + 9]) for i in range(0, len(SAMPLE), 9))
    usage = {"choices": [], "usage": {"prompt_tokens": 31, "completion_tokens": 412}}
    route.fulfill(status=200, content_type="text/event-stream", body=body + f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize("name,scheme,size", [("page", "light", (1280, 860)), ("page-dark", "dark", (1280, 860)), ("page-wide", "light", (2560, 1300)), ("page-narrow", "dark", (360, 720))])
def test_pictures_of_the_chat(chromium, page_server, name, scheme, size):
    with opened(chromium, page_server.url, color_scheme=scheme, reduced_motion="reduce", viewport=dict(zip(("width", "height"), size))) as page:
        prepare(page)
        shot(page, name + "-first")
        page.route("**/v1/chat/completions", reply)
        page.evaluate("let t = 0; performance.now = () => (t += 21)")  # a reply that comes at once looks like one of a model
        ask(page, "Show me everything that you can format.")
        finished(page)
        page.wait_for_selector(".hljs-keyword")
        page.wait_for_function("() => document.querySelectorAll('.katex').length >= 2 && document.fonts.status == 'loaded'")
        page.evaluate("document.activeElement.blur(); document.querySelector('#scroll').scrollTop = 0")
        page.wait_for_timeout(200)
        shot(page, name)
        page.click("#model-button")
        page.wait_for_selector("#models progress")
        shot(page, name + "-models")
        page.keyboard.press("Escape")
        page.keyboard.press("Alt+s")
        shot(page, name + "-settings")


def test_pictures_of_the_status(chromium, page_server):
    for scheme in ("light", "dark"):
        c = chromium.new_context(viewport={"width": 1280, "height": 1000}, color_scheme=scheme)
        page = c.new_page()
        page.goto(page_server.url + "/status")
        for i in range(6):
            page_server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello " * (i + 1)}], "max_tokens": 40 + 20 * i})
            page.wait_for_timeout(1500)
        page.reload()
        page.wait_for_selector("#usage:not([hidden])")
        for i in range(4):
            page_server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello " * (i + 1)}], "max_tokens": 40 + 20 * i})
            page.wait_for_timeout(1500)
        shot(page, "status" if scheme == "light" else "status-dark")
        c.close()


def test_what_the_page_weighs_and_when_it_paints(chromium, page_server):
    """Prints them; a timing fails nothing. Bytes: what a browser without a cache loads to show the first screen."""
    with opened(chromium, page_server.url) as page:
        own = page.evaluate("performance.getEntriesByType('resource').filter(r => r.name.includes('/page/')).map(r => [r.name, r.encodedBodySize, r.decodedBodySize])")
        first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        html = page.evaluate("performance.getEntriesByType('navigation')[0].encodedBodySize")
        total, plain = html + sum(r[1] for r in own), sum(r[2] for r in own)
        page.reload()
        ready(page)
        again = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        print(f"\n{len(own) + 1} files, {total:,} bytes packed, {plain:,} unpacked; first paint after {first:.0f} ms, {again:.0f} ms when cached")
        assert total < 150_000  # highlight.js, KaTeX and pdf.js come when they are needed
        assert not any(n in u for u, *_ in own for n in ("katex", "highlight", "pdf"))
