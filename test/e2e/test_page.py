"""The pages in a real browser: chromium, without a window, driven by playwright."""
import base64
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from server import Server

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")

HOSTILE = """<script>window.pwned = 1</script> <img src=x onerror="window.pwned = 2">

```html
<script>window.pwned = 3</script>
```

| a | b |
|---|---|
| <b>bold</b> | [link](javascript:window.pwned=4) |

- one **strong** `code`
  1. nested
- [good](https://example.org/x)"""


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, "--deterministic")
    yield s
    s.stop()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        b = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield b
        b.close()


@pytest.fixture
def page(browser, server):
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    p = context.new_page()
    p.set_default_timeout(120_000)  # a busy machine is slow, not wrong
    p.problems = []
    p.on("console", lambda m: m.type in ("error", "warning") and p.problems.append(m.text))
    p.on("pageerror", lambda e: p.problems.append(str(e)))
    p.goto(server.url)
    p.wait_for_selector("#model option", state="attached")
    yield p
    context.close()
    assert p.problems == []


def shot(page, name):
    """A picture, where QUERN_SHOTS says where to put it."""
    if folder := os.environ.get("QUERN_SHOTS"):
        page.screenshot(path=f"{folder}/{name}.png")


def ask(page, text):
    page.fill("#text", text)
    page.press("#text", "Enter")


def finished(page, answers=1):
    page.wait_for_function(f"() => document.querySelectorAll('.turn.assistant .tools').length == {answers}")


def limit(page, **numbers):
    page.click("#settings-open")
    for name, value in numbers.items():
        page.fill(f"#settings [name={name}]", str(value))
    page.click("#settings button[value=save]")


def test_talks_regenerates_edits_and_remembers(page):
    limit(page, max_tokens=24, temperature=0, system="You are a terse helper.")
    ask(page, "What is the capital of France?")
    finished(page)
    first = page.inner_text(".turn.assistant .body")
    assert "Paris" in first
    assert re.search(r"\d+ tokens, [\d.]+ tok/s", page.inner_text(".turn.assistant .meta"))
    shot(page, "chat")
    page.click("text=Regenerate")
    finished(page)
    assert page.inner_text(".turn.assistant .body") == first  # temperature 0: the same again
    page.click(".turn.user >> text=Edit")
    page.fill(".edit", "What is the capital of Italy?")
    page.press(".edit", "Enter")
    finished(page)
    assert "Rome" in page.inner_text(".turn.assistant .body")
    assert page.locator(".turn").count() == 2
    kept = page.inner_text("#log")
    page.reload()
    page.wait_for_selector(".turn.assistant .tools")
    assert page.inner_text("#log") == kept
    page.keyboard.press("Alt+n")
    assert page.locator(".turn").count() == 0
    assert page.locator("#list li").count() == 2
    page.click("#list li:nth-child(2) .open")
    assert page.inner_text("#log") == kept
    page.click("#settings-open")
    assert page.input_value("#settings [name=system]") == "You are a terse helper."
    assert page.input_value("#settings [name=max_tokens]") == "24"


def endless(route):
    """Sends the page's request on, and asks for a text that only a stop can end."""
    route.continue_(post_data=json.dumps(json.loads(route.request.post_data) | {"ignore_eos": True}))


def test_stops_and_the_server_stops_too(page, server):
    page.route("**/v1/chat/completions", endless)
    limit(page, max_tokens=4000)
    before = server.metric("quern_cancelled_total")
    ask(page, "Count slowly from one to ten thousand, every number in words.")
    page.wait_for_function("() => document.querySelector('.turn.assistant .body')?.textContent.length > 20")
    page.keyboard.press("Escape")
    finished(page)
    assert page.is_visible("#send")
    server.settle()
    assert server.metric("quern_cancelled_total") == before + 1


def test_hostile_output_is_text(page):
    chunk = '{"choices":[{"index":0,"delta":{"content":%s},"finish_reason":null}]}'
    body = "".join(f"data: {chunk % json.dumps(HOSTILE[i:i + 7])}\n\n" for i in range(0, len(HOSTILE), 7))
    page.route("**/v1/chat/completions", lambda r: r.fulfill(status=200, content_type="text/event-stream", body=body + "data: [DONE]\n\n"))
    ask(page, "<script>window.pwned = 5</script>")
    finished(page)
    assert page.evaluate("window.pwned") is None
    shown = page.locator(".turn.assistant .body")
    assert "<script>window.pwned = 1</script>" in shown.inner_text()
    assert page.locator(".turn script, .turn img, .turn b").count() == 0
    assert page.inner_text(".turn.assistant pre code") == "<script>window.pwned = 3</script>"
    assert page.eval_on_selector_all(".turn a", "all => all.map(a => a.href)") == ["https://example.org/x"]
    assert page.inner_text(".turn.assistant li strong") == "strong"
    assert page.locator(".turn.assistant li ol li").count() == 1
    assert page.inner_text(".turn.user .body") == "<script>window.pwned = 5</script>"
    shot(page, "markdown")


def test_an_error_is_said(page):
    page.route("**/v1/chat/completions", lambda r: r.fulfill(status=429, content_type="application/json",
                                                             body='{"error":{"message":"the queue is full"}}'))
    ask(page, "hello")
    finished(page)
    assert "the queue is full" in page.inner_text("#note")
    page.problems.clear()  # the browser itself logs a 429


def test_fits_a_phone(page):
    page.set_viewport_size({"width": 360, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert not page.is_visible("#side")
    page.click("#menu")
    assert page.is_visible("#new")
    shot(page, "phone-menu")
    page.click("#new")
    assert not page.is_visible("#side")
    limit(page, max_tokens=8)
    ask(page, "A long word: " + "x" * 300)
    finished(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    shot(page, "phone")


def test_dark_and_light(page):
    ground = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = ground()
    page.click("#theme")
    dark = ground()
    assert light != dark
    page.reload()
    assert ground() == dark
    shot(page, "dark")


def test_the_status_page_draws(page, server):
    page.goto(server.url + "/status")
    page.wait_for_selector(".plot polyline", state="attached")
    server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8})
    page.wait_for_function("() => Number(document.querySelectorAll('.figure b')[3].textContent) > 0")
    assert page.locator("#plots .plot").count() == 6
    page.wait_for_function("() => document.querySelector('#models td')?.textContent.length > 0")
    page.wait_for_timeout(2500)
    page.reload()
    page.wait_for_selector("#usage:not([hidden]) rect.bar-1", state="attached")
    assert "no key" in page.locator("#keys").inner_text()
    shot(page, "status")


RED, BLUE = (  # one pixel each
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGO4pKwBAALoAR75J2kYAAAAAElFTkSuQmCC",
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGOQs7kEAAGoAS0OpBBzAAAAAElFTkSuQmCC")


def test_images_are_attached_pasted_and_dropped(page):
    """What the page sends: parts with data: URLs; a thumbnail before and after."""
    sent = []
    chunk = '{"choices":[{"index":0,"delta":{"content":"red"},"finish_reason":"stop"}]}'

    def reply(route):
        sent.append(json.loads(route.request.post_data)["messages"])
        route.fulfill(status=200, content_type="text/event-stream", body=f"data: {chunk}\n\ndata: [DONE]\n\n")
    page.route("**/v1/chat/completions", reply)
    page.set_input_files("#file", {"name": "red.png", "mimeType": "image/png", "buffer": base64.b64decode(RED)})
    page.wait_for_selector("#strip img")
    give = """([kind, data]) => {
        const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0)), all = new DataTransfer();
        all.items.add(new File([bytes], "a.png", { type: "image/png" }));
        const target = document.querySelector(kind === "paste" ? "#text" : "main");
        target.dispatchEvent(kind === "paste" ? new ClipboardEvent("paste", { clipboardData: all, bubbles: true })
                                              : new DragEvent("drop", { dataTransfer: all, bubbles: true, cancelable: true }));
    }"""
    for i, kind in enumerate(("paste", "drop")):
        page.evaluate(give, [kind, RED])
        page.wait_for_function(f"() => document.querySelectorAll('#strip img').length == {2 + i}")
    page.click("#strip button >> nth=0")  # one is taken back
    page.wait_for_function("() => document.querySelectorAll('#strip img').length == 2")
    ask(page, "What colour?")
    finished(page)
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + RED}}
    assert sent == [[{"role": "user", "content": [url, url, {"type": "text", "text": "What colour?"}]}]]
    assert page.locator(".turn.user .thumbnail").count() == 2 and not page.is_visible("#strip")
    shot(page, "images")
    page.reload()  # kept with the conversation
    page.wait_for_selector(".turn.user .thumbnail")
    page.set_input_files("#file", {"name": "x.png", "mimeType": "image/png", "buffer": b"no image" * 200000})
    page.wait_for_function("() => document.querySelector('#note').textContent.includes('no image')")


def test_a_large_image_is_drawn_smaller(page):
    """A file above a megabyte becomes a JPEG that storage has room for."""
    sizes = page.evaluate("""async () => {
        const canvas = new OffscreenCanvas(2000, 1000), draw = canvas.getContext("2d"), all = draw.createImageData(2000, 1000);
        for (let i = 0, s = 1; i < all.data.length; i++) {
            s ^= s << 13, s ^= s >>> 17, s ^= s << 5;
            all.data[i] = i % 4 == 3 ? 255 : s;
        }
        draw.putImageData(all, 0, 0);
        const blob = await canvas.convertToBlob({ type: "image/png" }), list = new DataTransfer();
        list.items.add(new File([blob], "noise.png", { type: "image/png" }));
        document.querySelector("main").dispatchEvent(new DragEvent("drop", { dataTransfer: list, bubbles: true, cancelable: true }));
        return blob.size;
    }""")
    assert sizes > 1 << 20
    page.wait_for_selector("#strip img")
    page.wait_for_function("() => document.querySelector('#strip img').naturalWidth > 0")
    assert page.evaluate("[document.querySelector('#strip img').naturalWidth, document.querySelector('#strip img').src.slice(0, 15)]") == [1568, "data:image/jpeg"]


def test_a_model_sees_what_the_page_sends(browser, binary):
    """A tiny model names the colour of what was attached (test/e2e/make_colours.py)."""
    s = Server(binary, Path(__file__).resolve().parents[1] / "data" / "vision" / "colours", "--device", "cpu")
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(s.url)
    page.wait_for_selector("#model option", state="attached")
    limit(page, max_tokens=8, temperature=0)
    for i, (data, colour) in enumerate(((RED, "red"), (BLUE, "blue"))):
        page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": base64.b64decode(data)})
        page.wait_for_selector("#strip img")
        ask(page, "What colour is this image ?")
        finished(page)
        assert page.inner_text(".turn.assistant .body").strip() == colour
        page.keyboard.press("Alt+n")
    context.close()
    assert s.stop() == 0
