"""The chat page in a real browser: chromium, without a window, driven by playwright."""
import base64
import json
import re
from pathlib import Path

import pytest

from browser import BLUE, RED, ask, chunk, drop, finished, fulfil, limit, opened, reload
from server import Server

HOSTILE = """<script>window.pwned = 1</script> <img src=x onerror="window.pwned = 2">

<iframe src="javascript:window.pwned=6"></iframe>
<svg><animate onbegin=window.pwned=7 attributeName=x></svg>

```html
<script>window.pwned = 3</script>
```

| a | b |
|---|---|
| <b>bold</b> | [link](javascript:window.pwned=4) |

- one **strong** `code`
  1. nested
- [good](https://example.org/x) ![picture](https://example.org/x.png)
- line<br>break <b onclick="window.pwned=8">x</b>

$\\href{javascript:window.pwned=9}{x}$ <a href="data:text/html,x">y</a>"""

RICH = r"""# Title

A paragraph with \*escapes\*, a note[^n] and $x^2$.

- [x] done
- [ ] open
  - nested
    1. deeper

| left | right | centre |
|:--|--:|:-:|
| a | 1 | c |

$$\int_0^1 x\,dx$$

\[ \frac{1}{2} \]

```python
def f(x):
    return "y"  # no
```

[^n]: The text of the note.
"""


@pytest.fixture(scope="module")
def server(binary, smollm2):
    s = Server(binary, smollm2, "--deterministic")
    yield s
    s.stop()


@pytest.fixture
def page(chromium, server):
    with opened(chromium, server.url) as p:
        yield p


def test_talks_regenerates_edits_and_remembers(page):
    limit(page, max_tokens=24, temperature=0, system="You are a terse helper.")
    ask(page, "What is the capital of France?")
    finished(page)
    first = page.inner_text(".turn.assistant .markdown")
    assert "Paris" in first
    assert re.search(r"\d+ tokens · [\d.]+ tok/s", page.inner_text(".turn.assistant .meta"))
    page.click("[aria-label=Regenerate]")
    page.wait_for_selector(".turn.assistant .versions >> text=2/2")
    finished(page)
    assert page.inner_text(".turn.assistant .markdown") == first  # temperature 0: the same again
    page.click(".turn.user [aria-label='Edit message']")
    page.fill(".edit", "What is the capital of Italy?")
    page.press(".edit", "Enter")
    page.wait_for_selector(".turn.user .versions >> text=2/2")
    finished(page)
    assert "Rome" in page.inner_text(".turn.assistant .markdown")
    assert page.locator(".turn").count() == 2
    page.click(".turn.user [aria-label='Earlier version']")  # the old question with both of its answers
    page.wait_for_selector(".turn.assistant .versions >> text=2/2")
    assert page.inner_text(".turn.assistant .markdown") == first
    page.click(".turn.user [aria-label='Later version']")
    page.wait_for_selector(".turn.user .versions >> text=2/2")
    kept = page.inner_text("#log")
    reload(page)
    page.wait_for_selector(".turn.assistant .meta")
    assert page.inner_text("#log") == kept
    page.keyboard.press("Alt+n")
    assert page.locator(".turn").count() == 0 and page.locator("#list li").count() == 1
    page.click("#list li .open")
    page.wait_for_selector(".turn.assistant .meta")
    assert page.inner_text("#log") == kept
    page.keyboard.press("Alt+s")
    assert page.input_value("#settings [name=system]") == "You are a terse helper."
    assert page.input_value("#settings [name=max_tokens]") == "24"


def test_stops_and_the_server_stops_too(page, server):
    limit(page, max_tokens=4000)
    page.route("**/v1/chat/completions", lambda r: r.continue_(post_data=json.dumps(json.loads(r.request.post_data) | {"ignore_eos": True})))
    before = server.metric("quern_cancelled_total")
    ask(page, "Count slowly from one to ten thousand, every number in words.")
    page.wait_for_function("() => document.querySelector('.turn.assistant .markdown')?.textContent.length > 20")
    page.keyboard.press("Escape")
    finished(page)
    assert page.is_visible("#send") and "You stopped this answer" in page.inner_text(".turn.assistant")
    assert page.is_visible("[aria-label=Continue]")
    server.settle()
    assert server.metric("quern_cancelled_total") == before + 1


def test_hostile_output_is_sanitised(tab):
    tab.route("**/v1/chat/completions", fulfil(HOSTILE))
    ask(tab, "<script>window.pwned = 5</script>")
    finished(tab)
    tab.wait_for_selector(".math .katex")
    assert tab.evaluate("window.pwned") is None
    shown = tab.inner_text(".turn.assistant .markdown")
    assert "<script>window.pwned = 1</script>" in shown and "<iframe" in shown
    assert tab.locator(".turn :is(script, img, iframe, animate, object, style)").count() == 0
    assert tab.inner_text(".turn.assistant .code pre") == "<script>window.pwned = 3</script>"
    links = tab.eval_on_selector_all(".turn a[href]", "all => all.map(a => a.href)")
    assert links == ["https://example.org/x", "https://example.org/x.png"]
    assert not tab.evaluate("[...document.querySelectorAll('.turn *')].some(n => [...n.attributes].some(a => a.name.startsWith('on')))")
    assert tab.inner_text(".turn.user .bubble") == "<script>window.pwned = 5</script>"


def test_markdown_formulas_and_code(tab):
    tab.route("**/v1/chat/completions", fulfil(RICH))
    ask(tab, "Show it")
    finished(tab)
    text = tab.locator(".turn.assistant .markdown")
    assert text.locator("h1").inner_text() == "Title" and "*escapes*" in text.inner_text()
    assert text.locator("li input[type=checkbox]").count() == 2 and text.locator("li input[checked]").count() == 1
    assert text.locator("ul ul ol li").inner_text() == "deeper"
    align = text.locator("td").evaluate_all("all => all.map(c => getComputedStyle(c).textAlign)")
    assert align == ["left", "right", "center"]
    tab.wait_for_function("() => document.querySelectorAll('.markdown .katex').length == 3")
    assert text.locator("div.math .katex-display").count() == 2
    tab.wait_for_selector(".code .hljs-keyword")
    assert text.locator(".code-head").inner_text().strip() == "python"
    tab.click("[aria-label='Show the source']")
    assert text.locator(".source").inner_text() == RICH and text.locator("h1").count() == 0
    tab.click("[aria-label='Show the source']")
    assert text.locator("h1").count() == 1
    assert text.locator(".footnote").inner_text() == "n The text of the note." and text.locator(".note-ref").count() == 1


def test_an_error_is_said(tab):
    tab.route("**/v1/chat/completions", lambda r: r.fulfill(status=429, content_type="application/json", body='{"error":{"message":"the queue is full"}}'))
    ask(tab, "hello")
    finished(tab)
    assert "the queue is full" in tab.inner_text(".turn.assistant .note")
    tab.problems.clear()  # the browser itself logs a 429


def test_images_are_attached_pasted_and_dropped(tab):
    """What the page sends: parts with data: URLs; a thumbnail before and after."""
    sent = []
    tab.route("**/v1/chat/completions", fulfil("red", sent))
    tab.set_input_files("#file", {"name": "red.png", "mimeType": "image/png", "buffer": base64.b64decode(RED)})
    tab.wait_for_selector("#strip img")
    for i, kind in enumerate(("paste", "drop")):
        drop(tab, kind, "a.png", "image/png", RED)
        tab.wait_for_function(f"() => document.querySelectorAll('#strip img').length == {2 + i}")
    tab.click("#strip button >> nth=0")  # one is taken back
    tab.wait_for_function("() => document.querySelectorAll('#strip img').length == 2")
    ask(tab, "What colour?")
    finished(tab)
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + RED}}
    assert sent[0]["messages"] == [{"role": "user", "content": [url, url, {"type": "text", "text": "What colour?"}]}]
    assert tab.locator(".turn.user .thumbnail").count() == 2 and not tab.is_visible("#strip")
    reload(tab)  # kept with the conversation
    tab.wait_for_selector(".turn.user .thumbnail")
    tab.set_input_files("#file", {"name": "x.png", "mimeType": "image/png", "buffer": b"no image" * 200000})
    tab.wait_for_selector("#toast >> text=x.png cannot be attached")


def test_a_large_image_is_drawn_smaller(tab):
    """A file above a megabyte becomes a JPEG."""
    size = tab.evaluate("""async () => {
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
    assert size > 1 << 20
    tab.wait_for_function("() => document.querySelector('#strip img')?.naturalWidth > 0")
    assert tab.evaluate("[document.querySelector('#strip img').naturalWidth, document.querySelector('#strip img').src.slice(0, 15)]") == [1568, "data:image/jpeg"]


def pdf(text):
    """A small PDF with one line."""
    stream = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET".encode()
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
               b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
               b"<</Length %d>>\nstream\n%s\nendstream" % (len(stream), stream), b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    out, at = b"%PDF-1.4\n", []
    for i, o in enumerate(objects):
        at.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (i + 1, o)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(at) + 1) + b"".join(b"%010d 00000 n \n" % a for a in at)
    return out + b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(at) + 1, table)


def test_files_become_text(tab):
    sent = []
    tab.route("**/v1/chat/completions", fulfil("ok", sent))
    tab.set_input_files("#file", [{"name": "a.py", "mimeType": "text/x-python", "buffer": b"print('```')\n"},
                                  {"name": "b.pdf", "mimeType": "application/pdf", "buffer": pdf("A page of text")}])
    tab.wait_for_function("() => document.querySelectorAll('#strip .chip').length == 2")
    reload(tab)  # a draft has its files, too
    tab.wait_for_function("() => document.querySelectorAll('#strip .chip').length == 2")
    tab.set_input_files("#file", {"name": "c.bin", "mimeType": "application/octet-stream", "buffer": b"\0\1"})
    tab.wait_for_selector("#toast >> text=neither an image, nor PDF, nor text")
    tab.evaluate("""() => { const d = new DataTransfer(); d.setData("text/plain", "y".repeat(9000));
        document.querySelector("#text").dispatchEvent(new ClipboardEvent("paste", { clipboardData: d, bubbles: true, cancelable: true })); }""")
    tab.wait_for_selector("#strip >> text=pasted.txt")
    ask(tab, "Read them")
    finished(tab)
    content = sent[0]["messages"][0]["content"]
    assert "File: a.py\n````py\nprint('```')\n````" in content and "File: b.pdf\n```pdf\nA page of text\n```" in content
    assert "y" * 9000 in content and content.endswith("Read them")


@pytest.mark.slow
def test_the_composer_grows_and_keeps_drafts(tab):
    low = tab.locator("#text").bounding_box()["height"]
    tab.fill("#text", "\n".join("line" for _ in range(8)))
    assert tab.locator("#text").bounding_box()["height"] > 3 * low
    assert not tab.is_disabled("#send")
    tab.fill("#text", "a thought that is not sent")
    reload(tab)
    tab.wait_for_function("() => document.querySelector('#text').value == 'a thought that is not sent'")
    tab.route("**/v1/chat/completions", fulfil("one"))
    tab.press("#text", "Enter")
    finished(tab)
    assert tab.input_value("#text") == ""
    tab.fill("#text", "a draft of this one")
    tab.keyboard.press("Alt+n")
    tab.wait_for_function("() => document.querySelector('#text').value == ''")
    tab.click("#list .open")
    tab.wait_for_function("() => document.querySelector('#text').value == 'a draft of this one'")


def test_what_is_typed_while_a_chat_opens_stays(tab):
    """Typed in the same turn of the page's loop: its store has not answered by then."""
    sent = []
    tab.route("**/v1/chat/completions", fulfil("one", sent))
    tab.evaluate("""() => {
        document.dispatchEvent(new KeyboardEvent("keydown", { bubbles: true, key: "n", altKey: true }));
        const text = document.querySelector("#text");
        text.value = "typed at once";
        text.dispatchEvent(new Event("input"));
        return new Promise((later) => setTimeout(later, 200)); }""")
    tab.press("#text", "Enter")
    finished(tab)
    assert sent[0]["messages"][-1]["content"] == "typed at once" and tab.input_value("#text") == ""


def test_reasoning_is_folded_with_its_duration(tab):
    def reply(route):
        body = chunk(reasoning_content="First ") + chunk(reasoning_content="this.") + chunk(content="Then that.")
        route.fulfill(status=200, content_type="text/event-stream", body=body + "data: [DONE]\n\n")
    tab.route("**/v1/chat/completions", reply)
    ask(tab, "Why?")
    finished(tab)
    assert re.match(r"Reasoned for ", tab.inner_text(".reason summary"))
    assert not tab.is_visible(".reason-text")
    tab.click(".reason summary")
    assert tab.inner_text(".reason-text") == "First this."


def test_settings_are_sent_by_their_names(tab):
    sent = []
    tab.route("**/v1/chat/completions", fulfil("ok", sent))
    limit(tab, max_tokens=7, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=3, repeat_penalty=1.1, presence_penalty=0.2,
          frequency_penalty=0.3, system="Be brief.")
    tab.click("#settings-open")
    tab.click("#tab-output")
    tab.select_option("#settings [name=format]", "schema")
    tab.fill("#settings [name=schema]", "{")
    assert "not JSON" in tab.inner_text("#settings .problem")
    tab.fill("#settings [name=schema]", '{"type": "object"}')
    assert not tab.is_visible("#settings .problem")
    tab.fill("#settings [name=stop]", "END\n\\n\\n")
    tab.fill("#settings [name=extra]", "[1]")
    assert "no object" in tab.inner_text("#settings .problem >> nth=1")
    tab.fill("#settings [name=extra]", '{"xtc_probability": 0.5, "stream": false}')
    tab.click("#tab-presets")
    tab.fill("#settings [name=preset]", "Exact")
    tab.click("text=Save preset")
    tab.click("#tab-generation")
    tab.click("text=Reset to defaults")
    assert tab.input_value("#settings [name=max_tokens]") == ""
    tab.click("#tab-presets")
    tab.click("#settings .rows >> text=Use")
    tab.click("#settings-close")
    ask(tab, "Go")
    finished(tab)
    body = sent[0]
    assert {k: body[k] for k in ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "repeat_penalty", "presence_penalty", "frequency_penalty")} == {
        "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 3, "repeat_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3}
    assert body["xtc_probability"] == 0.5 and body["stream"] is True
    assert body["stop"] == ["END", "\n\n"] and body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}


def test_an_answer_is_edited_and_a_chat_forked_and_copied(tab):
    sent = []
    tab.route("**/v1/chat/completions", fulfil("The first answer.", sent))
    ask(tab, "A question")
    finished(tab)
    tab.click("[aria-label='Edit answer']")
    assert tab.input_value(".edit") == "The first answer."
    tab.fill(".edit", "My *own* words.")
    tab.press(".edit", "Control+Enter")
    tab.wait_for_selector(".turn.assistant .versions >> text=2/2")
    assert tab.inner_text(".turn.assistant .markdown") == "My own words." and "edited by you" in tab.inner_text(".who")
    tab.click("[aria-label='New chat from here']")
    tab.wait_for_function("() => document.querySelectorAll('#list li').length == 2")
    ask(tab, "Another question")
    tab.wait_for_function("() => document.querySelectorAll('.turn.assistant[aria-busy=false]').length == 2")
    assert [m["content"] for m in sent[-1]["messages"]] == ["A question", "My *own* words.", "Another question"]
    tab.click(".turn.user [aria-label='Delete message'] >> nth=1")  # with its answer
    tab.wait_for_function("() => document.querySelectorAll('.turn').length == 2")
    tab.click("#toast >> text=Undo")
    tab.wait_for_function("() => document.querySelectorAll('.turn').length == 4")
    tab.click("[aria-label='Delete answer'] >> nth=1")
    tab.wait_for_function("() => document.querySelectorAll('.turn').length == 3")
    reload(tab)
    tab.wait_for_function("() => document.querySelectorAll('.turn').length == 3")
    assert "Another question" in tab.inner_text("#log")
    old = tab.locator("#list li:not(:has-text('from here'))")
    old.locator(".open").click()
    tab.wait_for_function("() => document.querySelectorAll('.turn').length == 2")  # it has not changed
    tab.wait_for_selector(".turn.assistant .versions >> text=2/2")
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    old.hover()
    old.locator(".menu-button").click()
    tab.click(".menu >> text=Copy as Markdown")
    tab.wait_for_selector("#toast >> text=Copied")
    copied = tab.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("# A question\n\n### You\n\nA question\n\n### ") and copied.endswith("My *own* words.\n") and "<!--" not in copied


@pytest.mark.slow
def test_pages_of_a_pdf_become_images(chromium, page_server):
    """For a model that sees: where the user wants it, and where there is no text."""
    seeing = {"id": "eyes", "max_model_len": 8192, "meta": {"capabilities": ["chat", "vision"]}, "status": {"value": "loaded"}}
    with opened(chromium, page_server.url) as page:
        page.route("**/v1/models", lambda r: r.fulfill(json={"object": "list", "data": [seeing]}))
        reload(page)
        attach = lambda name, text: page.set_input_files("#file", {"name": name, "mimeType": "application/pdf", "buffer": pdf(text)})
        attach("text.pdf", "A page of text")
        page.wait_for_selector("#strip .chip.pdf")
        attach("scan.pdf", "")
        page.wait_for_selector("#strip img[alt='scan.pdf, page 1']")
        page.keyboard.press("Alt+s")
        page.click("#tab-general")
        page.select_option("#settings [name=pdf]", "images")
        page.click("#settings-close")
        attach("shown.pdf", "A page of text")
        image = page.wait_for_selector("#strip img[alt='shown.pdf, page 1']")
        dark = image.evaluate("""async (n) => {
            await n.decode();
            const c = new OffscreenCanvas(n.naturalWidth, n.naturalHeight), d = c.getContext("2d");
            d.drawImage(n, 0, 0);
            const all = d.getImageData(0, 0, c.width, c.height).data;
            let dark = 0;
            for (let i = 0; i < all.length; i += 4) dark += all[i] < 128;
            return [c.height, dark];
        }""")
        assert dark[0] == 1568 and dark[1] > 100  # there are letters in it


@pytest.mark.slow
def test_history_is_searched_renamed_pinned_and_deleted(tab):
    replies = iter(["about whales", "about trains", "about bread"])
    tab.route("**/v1/chat/completions", lambda r: fulfil(next(replies))(r))
    for text in ("first chat", "second chat", "third chat"):
        ask(tab, text)
        finished(tab)
        tab.keyboard.press("Alt+n")
    tab.wait_for_function("() => document.querySelectorAll('#list li').length == 3")
    assert tab.inner_text("#list h2") == "Today"
    tab.keyboard.press("Alt+k")
    tab.keyboard.type("trains")
    tab.wait_for_function("() => document.querySelectorAll('#list li').length == 1")
    assert tab.inner_text("#list .title") == "second chat" and "trains" in tab.inner_text("#list .excerpt")
    tab.fill("#search", "")
    option = lambda title, name: (tab.hover(f"#list li:has-text('{title}')"), tab.click(f"#list li:has-text('{title}') .menu-button"), tab.click(f".menu >> text={name}"))
    option("first chat", "Rename")
    tab.fill(".rename", "Sea animals")
    tab.press(".rename", "Enter")
    tab.wait_for_selector("#list >> text=Sea animals")
    option("Sea animals", "Pin")
    tab.wait_for_selector("#list h2 >> text=Pinned")
    option("third chat", "Delete")
    tab.wait_for_function("() => document.querySelectorAll('#list li').length == 2")
    tab.click("#toast >> text=Undo")
    tab.wait_for_function("() => document.querySelectorAll('#list li').length == 3")
    reload(tab)
    tab.wait_for_function("() => document.querySelectorAll('#list li').length == 3")
    assert tab.locator("#list .title").first.inner_text() == "Sea animals"


def test_export_and_import(tab, tmp_path):
    tab.route("**/v1/chat/completions", fulfil("The *answer*."))
    for text in ("one question", "another question"):
        ask(tab, text)
        finished(tab)
        tab.keyboard.press("Alt+n")
    tab.wait_for_function("() => document.querySelectorAll('#list li').length == 2")
    files = {}
    tab.click("#settings-open")
    tab.click("#tab-data")
    for kind in ("JSON", "Markdown"):
        with tab.expect_download() as d:
            tab.click(f"text=Export all ({kind})")
        files[kind] = tmp_path / d.value.suggested_filename
        d.value.save_as(files[kind])
    whole = json.loads(files["JSON"].read_text())
    assert len(whole["conversations"]) == 2 and "### You\n\none question" in files["Markdown"].read_text()
    tab.once("dialog", lambda d: d.accept())
    tab.click("text=Delete all conversations…")
    tab.wait_for_function("() => !document.querySelector('#list li')")
    other = tmp_path / "openwebui.json"
    other.write_text(json.dumps([{"chat": {"title": "From elsewhere", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "model": "m"}]}}]))
    broken = tmp_path / "broken.json"
    broken.write_text('{"format": "quern conversations", "version": 1, "conversations": [{"title": 3, "messages": {"x": {"role": "user", "text": [1], "files": [{"kind": "image", "url": "javascript:1"}]}, "y": 7}}]}')
    for n, file in ((2, files["JSON"]), (4, files["Markdown"]), (5, other), (6, broken)):
        tab.set_input_files("#settings-panel input[type=file]", file)
        tab.wait_for_function(f"() => document.querySelectorAll('#list li').length == {n}")
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    tab.set_input_files("#settings-panel input[type=file]", bad)
    tab.wait_for_selector("#toast >> text=bad.json cannot be imported: it is not whole JSON")
    tab.click("#settings-close")
    tab.click("#list .open:has-text('From elsewhere')")
    tab.wait_for_selector(".turn.assistant .who >> text=m")
    for title in ("one question", "another question"):
        assert tab.locator(f"#list .open:has-text('{title}')").count() == 2
    tab.locator("#list .open:has-text('one question')").first.click()
    tab.wait_for_selector(".turn.assistant em >> text=answer")
    tab.hover("#list li:has-text('From elsewhere')")
    tab.click("#list li:has-text('From elsewhere') .menu-button")
    with tab.expect_download() as d:
        tab.click(".menu >> text=Export as Markdown")
    assert d.value.suggested_filename == "From-elsewhere.md"


def test_a_model_sees_what_the_page_sends(chromium, binary):
    """A tiny model names the colour of what was attached (test/e2e/make_colours.py)."""
    s = Server(binary, Path(__file__).resolve().parents[1] / "data" / "vision" / "colours", "--device", "cpu")
    with opened(chromium, s.url) as page:
        limit(page, max_tokens=8, temperature=0)
        for data, colour in ((RED, "red"), (BLUE, "blue")):
            page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": base64.b64decode(data)})
            page.wait_for_selector("#strip img")
            ask(page, "What colour is this image ?")
            finished(page)
            assert page.inner_text(".turn.assistant .markdown").strip() == colour
            page.keyboard.press("Alt+n")
    assert s.stop() == 0
